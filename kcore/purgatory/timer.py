"""Things to do later: a heap of deadlines, and the thread that waits for the earliest one."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.time import Time

logger = logging.getLogger(__name__)

#: Cancelled tasks stay in the heap until their deadline, or until it has grown to twice what was live when they were
#: last removed, and by this many: below it a rebuild costs more than it frees.
_CANCELLED_KEPT = 1000


class TimerTask:
    """What Timer.add returns; cancel() takes it back."""

    __slots__ = ("callback", "deadline_ms")

    def __init__(self, callback: Callable[[], None], deadline_ms: float) -> None:
        self.callback: Callable[[], None] | None = callback
        self.deadline_ms = deadline_ms

    def cancel(self) -> None:
        """Do not run it.  No effect on a task that ran, runs just now, or was cancelled before."""
        self.callback = None


class Timer:
    """Runs each task once, at its deadline, on the thread that calls advance().

    Thread-safe.  Tasks run in the order of their deadlines, equal ones in the order they were added, without the
    timer's lock, so they may add and cancel.  Deterministic under MockTime: nothing runs unless advance() is called.
    A heap instead of Kafka's timing wheel: adding and cancelling cost log n of C code, and no thread has to tick.
    """

    def __init__(self, time: Time) -> None:
        self._time = time
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, TimerTask]] = []
        self._sequence = itertools.count()
        self._rebuild_above = _CANCELLED_KEPT
        # What await_next_deadline() sleeps until; None when nobody sleeps there, so that add() need not wake it.
        self._sleeping_until: float | None = None
        self._woken = False
        # Held while due tasks run: who calls advance() meanwhile returns after them.
        self._advancing = threading.RLock()

    def now_ms(self) -> float:
        """The clock that deadlines are compared with, in ms from an arbitrary start."""
        return self._time.hi_res_clock_ms()

    def add(self, callback: Callable[[], None], delay_ms: float) -> TimerTask:
        """Have callback() called delay_ms from now, at the next advance() when delay_ms <= 0."""
        deadline_ms = self._time.hi_res_clock_ms() + delay_ms
        task = TimerTask(callback, deadline_ms)
        with self._lock:
            heapq.heappush(self._heap, (deadline_ms, next(self._sequence), task))
            if len(self._heap) > self._rebuild_above:
                self._heap = [entry for entry in self._heap if entry[2].callback is not None]
                heapq.heapify(self._heap)
                self._rebuild_above = 2 * len(self._heap) + _CANCELLED_KEPT
            if self._sleeping_until is not None and deadline_ms < self._sleeping_until:
                self._changed.notify_all()
        return task

    def advance(self) -> int:
        """Run every task whose deadline has come; how many ran.  An exception in one is logged, the others run."""
        now_ms = self._time.hi_res_clock_ms()
        ran = 0
        with self._advancing:
            while True:
                with self._lock:
                    callback = self._pop_due(now_ms)
                if callback is None:
                    return ran
                ran += 1
                try:
                    callback()
                except Exception:
                    logger.exception("a timer task failed")

    def clock_moved(self) -> None:
        """Run what has become due by a move of the clock, and sleep until another deadline."""
        self.advance()
        self.wake_up()

    @property
    def is_advancing(self) -> bool:
        """Whether another thread runs tasks."""
        if not self._advancing.acquire(blocking=False):
            return True
        self._advancing.release()
        return False

    @property
    def next_deadline_ms(self) -> float | None:
        """When the next task is to run, by now_ms(); None without one."""
        with self._lock:
            self._drop_cancelled()
            return self._heap[0][0] if self._heap else None

    def _pop_due(self, now_ms: float) -> Callable[[], None] | None:
        while self._heap and self._heap[0][0] <= now_ms:
            task = heapq.heappop(self._heap)[2]
            callback = task.callback
            if callback is not None:
                task.callback = None
                return callback
        return None

    def _drop_cancelled(self) -> None:
        """Those that would be the next."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)

    def await_next_deadline(self) -> None:
        """Sleep until the earliest deadline, without limit when there is none; wake_up() ends it early."""
        with self._lock:
            self._drop_cancelled()
            deadline_ms = self._heap[0][0] if self._heap else float("inf")
            wait_ms = deadline_ms - self._time.hi_res_clock_ms()
            if wait_ms > 0 and not self._woken:
                self._sleeping_until = deadline_ms
                self._changed.wait(wait_ms / 1000 if self._heap else None)
                self._sleeping_until = None
            self._woken = False

    def wake_up(self) -> None:
        """End the running await_next_deadline(), or the next one if none runs."""
        with self._lock:
            self._woken = True
            self._changed.notify_all()

    @property
    def size(self) -> int:
        """Tasks that are still to run."""
        with self._lock:
            return sum([task.callback is not None for _, _, task in self._heap])


class TimerThread(ShutdownableThread):
    """Advances one timer in real time.  Sleeps from deadline to deadline: no ticking, no CPU while nothing is due."""

    def __init__(self, timer: Timer, name: str = "timer") -> None:
        super().__init__(name)
        self._timer = timer

    def do_work(self) -> None:
        self._timer.await_next_deadline()
        self._timer.advance()

    def wake_up(self) -> None:
        self._timer.wake_up()
