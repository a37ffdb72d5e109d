"""Clocks.  Nobody else calls time.time(), so a test or a simulation can pass its own."""

from __future__ import annotations

import time


class Time:
    """The system's clocks, in milliseconds.  Thread-safe."""

    def milliseconds(self) -> int:
        """Wall clock, ms since the epoch: for timestamps that are stored or sent."""
        return time.time_ns() // 1_000_000

    def hi_res_clock_ms(self) -> float:
        """A clock that never steps, ms from an arbitrary start: for deadlines and durations."""
        return time.monotonic_ns() / 1e6

    def sleep(self, ms: float) -> None:
        time.sleep(ms / 1000)


class MockTime(Time):
    """A clock that stands still until it is told to move; sleep() moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0.0

    def milliseconds(self) -> int:
        return self._now_ms

    def hi_res_clock_ms(self) -> float:
        return self._elapsed_ms

    def sleep(self, ms: float) -> None:
        self._now_ms += int(ms)
        self._elapsed_ms += ms


SYSTEM_TIME = Time()
