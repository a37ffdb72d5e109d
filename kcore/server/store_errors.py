"""What a client is answered while the metadata store is away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from kcore.errors import RequestTimedOut
from kcore.metadata.store import ConnectionLost, SessionExpired

logger = logging.getLogger(__name__)

#: The store cannot be reached now; a call a moment later may succeed.
STORE_AWAY = (ConnectionLost, SessionExpired)


@contextmanager
def timed_out_without_store(what: str) -> Iterator[None]:
    """Raises RequestTimedOut, with a line in the log, if the store cannot be reached: it is not known whether `what`
    took place, and the client may try again.  Kafka waits for ZooKeeper instead, and its clients time out."""
    try:
        yield
    except STORE_AWAY as error:
        logger.warning("%s: the metadata store cannot be reached: %s", what, error)
        raise RequestTimedOut(f"The metadata store cannot be reached: {error}") from error
