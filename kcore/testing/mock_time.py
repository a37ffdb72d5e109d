"""A clock for tests of programs that embed kcore."""

from __future__ import annotations

from kcore.common import time


class MockTime(time.MockTime):
    """A clock that stands still until sleep() moves it.  Thread-safe.

    Give it to a Broker or open_log(), and sleep(ms) returns once the background work that has become due by then
    (retention, flushes, checkpoints, deletion of files, expiry of producers and offsets) has been done, once each.
    now_ms: what milliseconds() says at first; without it the present, as in the records that clients write: records
    from its future would never expire.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        super().__init__(time.SYSTEM_TIME.milliseconds() if now_ms is None else now_ms)
