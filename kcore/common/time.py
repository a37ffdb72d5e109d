"""Clocks.  No other module calls time.time(), so a test or a simulation can pass its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


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


class MovableTime(Time):
    """A clock that a test moves.  What waits for a deadline by this clock listens to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Have listener() called after each move, on the thread that moves the clock.

        It returns when nothing is due any more.
        """
        with self._lock:
            self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        with self._lock:
            self._listeners.remove(listener)

    def _call_listeners(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


class MockTime(MovableTime):
    """A clock that stands still until sleep() moves it.  Thread-safe.

    Give it to a Broker or open_log(), and sleep(ms) returns once the background work that has become due by then
    (retention, flushes, checkpoints, deletion of files, expiry of producers and offsets) has been done, once each.
    now_ms: what milliseconds() says at first.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        super().__init__()
        if isinstance(now_ms, bool) or not isinstance(now_ms, int):
            raise TypeError(f"now_ms must be an int, not {now_ms!r}")
        self._now_ms = now_ms
        self._elapsed_ms = 0.0

    def milliseconds(self) -> int:
        return self._now_ms

    def hi_res_clock_ms(self) -> float:
        return self._elapsed_ms

    def sleep(self, ms: float) -> None:
        """Move the clock by ms, and wait for the background work that this makes due.

        Raises ValueError for a negative ms: the clock never goes back.
        """
        check_not_back(ms)
        with self._lock:
            self._now_ms += int(ms)
            self._elapsed_ms += ms
        self._call_listeners()


class SkippableTime(MovableTime):
    """The system's clocks, which move_on() also moves.  Thread-safe.

    A broker calls attach() at the end of each start.  Its clients' waits follow this clock: fetches, sessions and
    rebalances of groups; its connections and its requests to other brokers follow the system's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._skipped_ms = 0.0

    def milliseconds(self) -> int:
        return super().milliseconds() + int(self._skipped_ms)

    def hi_res_clock_ms(self) -> float:
        return super().hi_res_clock_ms() + self._skipped_ms

    def attach(self, broker: Any) -> None:
        """A kcore.Broker that has this clock has started."""

    def move_on(self, ms: float) -> None:
        """Move the clock by ms, and wait for what this makes due.  Raises ValueError for a negative ms."""
        check_not_back(ms)
        self._shift(ms)
        self._call_listeners()

    def _shift(self, ms: float) -> None:
        """Move the clock alone."""
        with self._lock:
            self._skipped_ms += ms


def check_not_back(ms: float) -> None:
    if ms < 0:
        raise ValueError(f"ms {ms}, expected 0 or more")


class WallClockOf(Time):
    """The wall clock of another Time; deadlines and durations by the system's clock."""

    def __init__(self, time: Time) -> None:
        self._time = time

    def milliseconds(self) -> int:
        return self._time.milliseconds()


SYSTEM_TIME = Time()
