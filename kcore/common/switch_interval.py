"""How long a thread that computes keeps the GIL while another waits for it: Python's switch interval, for a time.

A thread of kcore that works on a long request takes turns with the network thread.  Both lose by a long interval: the
network thread waits that long for each small request, and the other at each system call that gives the GIL up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds; Python's own is 0.005.  A hand-over costs about 0.01 ms.
SHORT_SWITCH_INTERVAL = 0.0005

_MICROSECOND = 1e-6

_lock = threading.Lock()
_holders = 0
# What it was before the first holder came; None if it was short already.
_before: float | None = None


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """The interval is at most SHORT_SWITCH_INTERVAL until the last of all such blocks has ended, then what it was.

    The interval is the whole process's.  One that is short already stays, and so does one that somebody else sets
    meanwhile.  Thread-safe.
    """
    _begin()
    try:
        yield
    finally:
        _end()


def _begin() -> None:
    global _holders, _before
    with _lock:
        _holders += 1
        if _holders == 1 and sys.getswitchinterval() > SHORT_SWITCH_INTERVAL:
            _before = sys.getswitchinterval()
            _set(SHORT_SWITCH_INTERVAL)


def _end() -> None:
    global _holders, _before
    with _lock:
        _holders -= 1
        if _holders == 0 and _before is not None:
            if abs(sys.getswitchinterval() - SHORT_SWITCH_INTERVAL) < _MICROSECOND / 2:
                _set(_before)
            _before = None


def _set(interval: float) -> None:
    # Python keeps whole microseconds, and cuts off the rest: 0.0001 would become 0.000099 when it is set again.
    sys.setswitchinterval(interval + _MICROSECOND / 2)
