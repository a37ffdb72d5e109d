"""The common start and the common measurement window of the tasks of a load test.

Barrier stages are no start signal: tasks leave barrier() up to a second apart.  So the tasks send each other their
clocks and start a while after the latest of them.  What they do is counted by slices of the window in which all are
meant to work; afterwards only those slices are taken in which all of them did.

Moments are nanoseconds of the wall clock, the only one that several hosts have in common; between hosts they are as
good as the clocks are synchronized.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kcore.spark.load.latency_histogram import BUCKETS, LatencyHistogram, buckets_of

#: From the latest clock to the start: longer than Spark takes to hand out the clocks (it polls once a second).
START_DELAY_NS = 1_500_000_000
#: The last part of the wait is spun: sleep() ends late.
_SPIN_NS = 4_000_000
#: Slices of a window; a window that has to be cut loses at most two of them.
SLICES = 100
#: Numbers of each operation that is kept until it is sorted in.
_FIELDS = 4
_PENDING_OPERATIONS = 1 << 14


class SteadyClock:
    """The wall clock at creation plus a monotonic clock: later changes of the wall clock have no effect."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.perf_counter_ns()

    def now(self) -> int:
        return time.perf_counter_ns() + self._offset

    def wait_until(self, moment: int) -> None:
        wait_ns = moment - self.now() - _SPIN_NS
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        while self.now() < moment:
            pass


class Window(NamedTuple):
    """start <= moment < stop, ns."""

    start: int
    stop: int

    @property
    def seconds(self) -> float:
        return max(self.stop - self.start, 0) / 1e9


def common_window(windows: Iterable[Window]) -> Window:
    """From the last start to the first stop: stop <= start where there is no moment at which all worked."""
    starts, stops = zip(*windows, strict=True)
    return Window(max(starts), min(stops))


class Counted(NamedTuple):
    """The work within a window: operations that ended in it."""

    window: Window
    operations: int
    records: int
    bytes: int
    latencies: LatencyHistogram


class WindowRecorder:
    """Counts operations that end within a window, whenever they began: where many are under way at once, as records on
    their way to a broker, only so are rates right.  Not thread-safe.

    Memory does not grow with the operations.  record() costs some 0.4 us, sorting in included: what the measurement
    adds to each operation, beside the two looks at the clock.
    """

    def __init__(self, window: Window) -> None:
        self.window = window
        self._slice_ns = max((window.stop - window.start) // SLICES, 1)
        self._pending: list[int] = []
        self._latencies = np.zeros((SLICES, BUCKETS), np.int64)
        self._records = np.zeros(SLICES, np.int64)
        self._bytes = np.zeros(SLICES, np.int64)

    def record(self, started: int, stopped: int, records: int, size: int) -> None:
        """An operation: when it began and ended, and how many records and bytes it moved."""
        self._pending.extend((started, stopped, records, size))
        if len(self._pending) >= _FIELDS * _PENDING_OPERATIONS:
            self._sort_in()

    def _sort_in(self) -> None:
        operations = np.array(self._pending, np.int64).reshape(-1, _FIELDS)
        self._pending.clear()
        ended = operations[:, 1]
        inside = (ended >= self.window.start) & (ended < self.window.stop)
        started, stopped, records, size = operations[inside].T
        at = np.minimum((stopped - self.window.start) // self._slice_ns, SLICES - 1)
        buckets = at * BUCKETS + buckets_of(stopped - started)
        self._latencies += np.bincount(buckets, minlength=SLICES * BUCKETS).reshape(SLICES, BUCKETS)
        # Sums of this few are exact as floats.
        self._records += np.bincount(at, records, minlength=SLICES).astype(np.int64)
        self._bytes += np.bincount(at, size, minlength=SLICES).astype(np.int64)

    def within(self, window: Window) -> Counted:
        """The operations that ended in whole slices inside another window; Counted.window is that of these slices."""
        self._sort_in()
        own, width = self.window, self._slice_ns
        first = -(-max(window.start - own.start, 0) // width)
        last = SLICES if window.stop >= own.stop else max((window.stop - own.start) // width, 0)
        last = max(first, last)
        taken = slice(first, last)
        latencies = self._latencies[taken].sum(axis=0)
        stop = own.stop if last == SLICES else own.start + last * width
        return Counted(
            Window(own.start + first * width, stop) if first < last else Window(own.start, own.start),
            int(latencies.sum()),
            int(self._records[taken].sum()),
            int(self._bytes[taken].sum()),
            LatencyHistogram(latencies),
        )
