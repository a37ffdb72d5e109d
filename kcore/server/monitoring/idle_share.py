"""IdleShare: how much of their time threads were idle, from the CPU time that the system counts for them.

No code runs in the threads themselves.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable

from kcore.common.time import Time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Over how long the share is an average, if it is read often; as Kafka's OneMinuteRate.
WINDOW_MS = 60_000


class IdleShare:
    """The share since the reading that is a minute old, or since the first that there is; for one thread.

    thread_ids: the system's numbers of the threads that run.
    """

    def __init__(self, time: Time, thread_ids: Callable[[], Iterable[int]]) -> None:
        self._time = time
        self._thread_ids = thread_ids
        #: (when in ms, CPU time of the threads in ms), the oldest first.
        self._readings = deque([(time.hi_res_clock_ms(), 0.0)])

    def read(self, num_threads: int) -> float:
        """From 0, all of num_threads threads are busy, to 1."""
        now, busy = self._time.hi_res_clock_ms(), sum(_cpu_ms(thread_id) for thread_id in self._thread_ids())
        self._readings.append((now, busy))
        while len(self._readings) > 2 and self._readings[1][0] <= now - WINDOW_MS:
            self._readings.popleft()
        then, busy_then = self._readings[0]
        available = max(now - then, 1.0) * max(num_threads, 1)
        return min(max(1.0 - (busy - busy_then) / available, 0.0), 1.0)


def _cpu_ms(thread_id: int) -> float:
    """0 for a thread that has ended."""
    try:
        with open(f"/proc/self/task/{thread_id}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return 0.0
    # After the name, which may have blanks and brackets: utime and stime are the 12th and 13th field.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / _TICKS_PER_S
