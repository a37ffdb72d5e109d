"""Waiting for what another thread, process or broker does."""

import time
from collections.abc import Callable
from typing import TypeVar

#: Longer than anything takes on a slow machine.
DEADLINE_S = 60

_T = TypeVar("_T")


def wait_until(
    condition: Callable[[], _T],
    what: str | Callable[[], object] = "it did not come to that",
    *,
    timeout_s: float = DEADLINE_S,
    pause_s: float = 0.005,
    ignoring: type[Exception] | tuple[type[Exception], ...] = (),
) -> _T:
    """The first result of condition() that counts as true.

    AssertionError with `what`, called if it can be, after timeout_s.  ignoring: errors of condition() that mean "not
    yet".
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := condition():
                return result
        except ignoring:
            pass
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(pause_s)
