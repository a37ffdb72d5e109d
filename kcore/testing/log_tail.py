"""The last lines that the brokers of a test have logged."""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from typing import Self

_MAX_LINES = 60
#: So that INFO is logged.  No one else sets this level: a test that sets one for kcore's loggers gets what it wants.
_LEVEL = logging.INFO - 1
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"


class LogTail(logging.Handler):
    """Within a `with` block it keeps the last lines of kcore's loggers from INFO on.  The handlers that there are when
    it begins get what they would get without it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._logger = logging.getLogger("kcore")
        self._filtered: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def __enter__(self) -> Self:
        logger = self._logger
        if logger.level == logging.NOTSET and logger.propagate:
            self._filtered = [*logger.handlers, *logging.getLogger().handlers]
            for handler in self._filtered:
                handler.addFilter(_is_wanted)
            logger.setLevel(_LEVEL)
        logger.addHandler(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._logger.removeHandler(self)
        if self._logger.level == _LEVEL:
            self._logger.setLevel(logging.NOTSET)
        for handler in self._filtered:
            handler.removeFilter(_is_wanted)


def _is_wanted(record: logging.LogRecord) -> bool:
    """Whether a record would be logged without a LogTail."""
    if logging.getLogger(record.name).getEffectiveLevel() != _LEVEL:
        return True
    return record.levelno >= logging.getLogger().getEffectiveLevel()
