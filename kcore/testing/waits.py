"""Waiting in a test for what a client or a broker does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from kcore.server.call_arguments import number

#: Between two looks at what a test waits for.
PAUSE_S = 0.003


class WaitTimedOut(AssertionError):
    """What a test waited for did not happen in time.  The message says what there was at the end."""


class Wait(NamedTuple):
    """reached() is called until it is true.  wanted: what that means.  now(): what there is, for people."""

    reached: Callable[[], bool]
    wanted: str
    now: Callable[[], str]

    def run(self, timeout: float) -> None:
        """Raises WaitTimedOut after `timeout` seconds, TypeError for one that is no number."""
        deadline = time.monotonic() + number("timeout", timeout)
        while not self.reached():
            if time.monotonic() >= deadline:
                raise self._timed_out(timeout)
            time.sleep(PAUSE_S)

    async def run_async(self, timeout: float) -> None:
        """The same in an event loop of asyncio, which goes on meanwhile."""
        import asyncio  # here, because the plugin of pytest loads this module, and most runs need no event loop

        deadline = time.monotonic() + number("timeout", timeout)
        while not self.reached():
            if time.monotonic() >= deadline:
                raise self._timed_out(timeout)
            await asyncio.sleep(PAUSE_S)

    def _timed_out(self, timeout: float) -> WaitTimedOut:
        return WaitTimedOut(f"waited {timeout:g} s for {self.wanted}: {self.now()}")
