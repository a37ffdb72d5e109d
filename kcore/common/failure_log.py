"""FailureLog: which failures of a call that is made again and again are logged."""

from __future__ import annotations

import math

#: Between two lines of the log about calls that fail again and again.
_FIRST_INTERVAL_MS = 1000
_LONGEST_INTERVAL_MS = 60_000
#: Of which the first is logged at once: an error's text might be another one each time.
_MAX_KINDS = 10


class FailureLog:
    """The first of each kind in a row of failures, and while they go on one after 1 s, then 2 s later, 4 s and so on,
    at last one each minute.

    A row ends with succeeded(), or if nothing has failed for quiet_ms.  For one thread.
    """

    def __init__(self, quiet_ms: float = math.inf) -> None:
        self._quiet_ms = quiet_ms
        self._kinds: set[str] = set()
        self._interval_ms = 0
        self._next_ms = 0.0
        self._last_ms = 0.0

    def is_logged(self, kind: str, now_ms: float) -> bool:
        """To be asked once for each failure."""
        if now_ms - self._last_ms > self._quiet_ms:
            self.succeeded()
        self._last_ms = now_ms
        if not self._kinds:
            self._interval_ms = _FIRST_INTERVAL_MS
            self._next_ms = now_ms + self._interval_ms
        if kind not in self._kinds and len(self._kinds) < _MAX_KINDS:
            self._kinds.add(kind)
            return True
        if now_ms < self._next_ms:
            return False
        self._interval_ms = min(2 * self._interval_ms, _LONGEST_INTERVAL_MS)
        self._next_ms = now_ms + self._interval_ms
        return True

    def succeeded(self) -> None:
        self._kinds.clear()
