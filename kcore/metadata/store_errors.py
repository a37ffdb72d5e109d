"""What a client is answered while the metadata store fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kcore.metadata.api_errors import api_error
from kcore.metadata.store import StoreError

logger = logging.getLogger(__name__)


@contextmanager
def store_errors_for_clients(what: str) -> Iterator[None]:
    """Raises the ApiError for a StoreError, with a line in the log."""
    try:
        yield
    except StoreError as error:
        answer = api_error(error)
        logger.warning("%s: %s", what, answer)
        raise answer from error


class RepeatedError:
    """Has an error that each request meets logged once, until one succeeds.  Thread-safe enough for that: two threads
    may log the same line."""

    def __init__(self) -> None:
        self._last: str | None = None

    def is_new(self, error: Exception) -> bool:
        text = f"{type(error).__name__} {error}"
        is_new = text != self._last
        self._last = text
        return is_new

    def is_over(self) -> bool:
        """To be called after a success: whether there was an error before it."""
        was_last, self._last = self._last, None
        return was_last is not None
