"""Background work: flushes, checkpoints, retention, deletions.  One thread, one heap."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
from collections.abc import Callable

from kcore.common.time import MockTime, MovableTime, Time

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class ScheduledTask:
    """A task that was handed to a scheduler.  cancel() may be called from any thread, any number of times."""

    __slots__ = ("cancelled", "name", "period_ms", "task")

    def __init__(self, name: str, task: Task, period_ms: float) -> None:
        self.name = name
        self.task = task
        self.period_ms = period_ms
        self.cancelled = False

    def cancel(self) -> None:
        """The task does not start again; a run in progress ends by itself."""
        self.cancelled = True

    def run(self) -> None:
        """Run it once.  An exception is logged and does not cancel the following runs."""
        try:
            self.task()
        except Exception:
            logger.exception("background task %s failed", self.name)


class _Queue:
    """Tasks by due time; equal times in the order they were scheduled.  Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, ScheduledTask]] = []
        self._counter = itertools.count()

    def push(self, due_ms: float, task: ScheduledTask) -> None:
        heapq.heappush(self._heap, (due_ms, next(self._counter), task))

    def next_due_ms(self) -> float | None:
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[float, ScheduledTask]:
        due_ms, _, task = heapq.heappop(self._heap)
        return due_ms, task

    def clear(self) -> None:
        self._heap.clear()


class Scheduler:
    """Runs tasks on one daemon thread of its own.  Thread-safe.

    Tasks run one after the other, so a long one delays the rest; none of them may wait for another.  On a
    MovableTime they run when it is moved, and what moves it returns when all that were due have run.
    Lifetime: startup() once, shutdown() once.  schedule() before startup() is remembered.
    """

    def __init__(self, name: str = "kcore-scheduler", time: Time | None = None) -> None:
        self._name = name
        self._time = time or Time()
        self._condition = threading.Condition()
        self._queue = _Queue()
        self._running = False
        self._runs_task = False
        self._thread: threading.Thread | None = None
        self._pid = 0  # the process in which the thread runs

    def startup(self) -> None:
        with self._condition:
            if self._running:
                raise RuntimeError(f"{self._name} was started already")
            self._running = True
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        if isinstance(self._time, MovableTime):
            self._time.add_listener(self._run_due_tasks)

    def shutdown(self) -> None:
        """Let the running task end, drop all others, stop the thread."""
        with self._condition:
            self._running = False
            self._queue.clear()
            self._condition.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and isinstance(self._time, MovableTime):
            self._time.remove_listener(self._run_due_tasks)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def schedule(self, name: str, task: Task, delay_ms: float = 0, period_ms: float = -1) -> ScheduledTask:
        """Run task after delay_ms, then every period_ms (once, if negative)."""
        scheduled = ScheduledTask(name, task, period_ms)
        with self._condition:
            due_ms = self._time.hi_res_clock_ms() + delay_ms
            first_due_ms = self._queue.next_due_ms()
            self._queue.push(due_ms, scheduled)
            # The thread sleeps until the first task is due, so only an earlier one has to wake it.  The start of a
            # broker schedules a dozen, and each wake-up is two switches between threads.
            if first_due_ms is None or due_ms < first_due_ms:
                self._condition.notify_all()
        return scheduled

    def _run(self) -> None:
        while (scheduled := self._await_due_task()) is not None:
            scheduled.run()
            with self._condition:
                self._runs_task = False
                if self._running and scheduled.period_ms >= 0 and not scheduled.cancelled:
                    # A period of 0 would never end at one instant.
                    self._queue.push(self._time.hi_res_clock_ms() + max(scheduled.period_ms, 1), scheduled)
                self._condition.notify_all()

    def _run_due_tasks(self) -> None:
        """The clock was moved: returns when nothing is due any more."""
        if os.getpid() != self._pid:
            return  # a forked child has no thread that runs tasks, and may have a copy of a lock that is held
        with self._condition:
            if threading.current_thread() is self._thread:
                return  # a task that sleeps
            self._condition.notify_all()
            while self._running and (self._runs_task or self._is_due()):
                self._condition.wait()

    def _is_due(self) -> bool:
        due_ms = self._queue.next_due_ms()
        return due_ms is not None and due_ms <= self._time.hi_res_clock_ms()

    def _await_due_task(self) -> ScheduledTask | None:
        with self._condition:
            while self._running:
                due_ms = self._queue.next_due_ms()
                if due_ms is None:
                    self._condition.wait()
                    continue
                wait_ms = due_ms - self._time.hi_res_clock_ms()
                if wait_ms <= 0:
                    self._runs_task = True
                    return self._queue.pop()[1]
                # threading.TIMEOUT_MAX is about 292 years; settings like flush.ms may say more.
                self._condition.wait(min(wait_ms / 1000, threading.TIMEOUT_MAX))
            return None


class MockScheduler(Scheduler):
    """Runs due tasks on the caller's thread, in tick(): for tests and simulations.

    A periodic task that fell behind runs once per missed period, in the order of due times, as if it had been on time.
    """

    def __init__(self, time: MockTime) -> None:
        super().__init__("mock-scheduler", time)

    def startup(self) -> None:
        self._running = True

    def tick(self) -> int:
        """Run everything that is due; returns how many runs that were."""
        runs = 0
        while True:
            with self._condition:
                due_ms = self._queue.next_due_ms()
                if due_ms is None or due_ms > self._time.hi_res_clock_ms():
                    return runs
                due_ms, scheduled = self._queue.pop()
            scheduled.run()
            runs += 1
            if scheduled.period_ms >= 0 and not scheduled.cancelled:
                with self._condition:
                    # A period of 0 would never end at one instant.
                    self._queue.push(due_ms + max(scheduled.period_ms, 1), scheduled)
