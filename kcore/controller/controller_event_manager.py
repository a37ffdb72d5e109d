"""The controller's events: a queue, and one thread that processes them one after the other (CTRL-02).

Source: ControllerEventManager, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.metadata.store import ConnectionLost

logger = logging.getLogger(__name__)


class ControllerEvent:
    """An event, and the function that processes it.

    preempt: called instead of process when the queue is cleared; it answers the request that waits.
    """

    __slots__ = ("_started", "name", "preempt", "process")

    def __init__(self, name: str, process: Callable[[], None], preempt: Callable[[], None] | None = None) -> None:
        self.name = name
        self.process = process
        self.preempt = preempt
        self._started = threading.Event()

    def run(self) -> None:
        """Process it; an exception is logged, the events after it go on."""
        self._started.set()
        try:
            self.process()
        except ConnectionLost as error:
            logger.warning("controller event %s: the store cannot be reached: %s", self.name, error)
        except Exception:
            logger.exception("controller event %s failed", self.name)

    def skip(self) -> None:
        """It was taken out of the queue."""
        self._started.set()
        if self.preempt is not None:
            self.preempt()

    def await_started(self, timeout_s: float) -> bool:
        return self._started.wait(timeout_s)


class ControllerEventManager:
    """Thread-safe.  Without start(), the owner calls process_all(), as tests do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: deque[ControllerEvent] = deque()
        self._changed = threading.Condition()
        self._thread: _EventThread | None = None
        self._is_closed = False

    @property
    def queue_size(self) -> int:
        """Events that wait."""
        return len(self._events)

    def start(self) -> None:
        self._thread = _EventThread(self._name, self)
        self._thread.start()

    def close(self) -> None:
        """Process nothing more; the running event ends first."""
        if self._thread is not None:
            self._thread.shutdown()
        with self._changed:
            self._is_closed = True
        self._clear()

    def put(self, event: ControllerEvent) -> None:
        with self._changed:
            if not self._is_closed:
                self._events.append(event)
                self._changed.notify()
                return
        event.skip()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Nothing that is queued is processed any more."""
        self._clear()
        self.put(event)

    def await_started(self, event: ControllerEvent, timeout_s: float) -> bool:
        """Whether the processing of a queued event has begun, or it was skipped; waits at most timeout_s for that."""
        if self._thread is None:
            self.process_all()
        elif not self._thread.is_current():
            return event.await_started(timeout_s)
        return True

    def process_all(self) -> int:
        """Process what is queued, on this thread; how many events there were."""
        count = 0
        while (event := self._take()) is not None:
            event.run()
            count += 1
        return count

    def _take(self) -> ControllerEvent | None:
        with self._changed:
            return self._events.popleft() if self._events else None

    def _clear(self) -> None:
        with self._changed:
            skipped = list(self._events)
            self._events.clear()
        for event in skipped:
            event.skip()

    def _await_event(self, thread: _EventThread) -> ControllerEvent | None:
        with self._changed:
            while not self._events and thread.is_running:
                self._changed.wait()
            return self._events.popleft() if thread.is_running else None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _EventThread(ShutdownableThread):
    def __init__(self, name: str, manager: ControllerEventManager) -> None:
        super().__init__(name)
        self._manager = manager

    def do_work(self) -> None:
        event = self._manager._await_event(self)
        if event is not None:
            event.run()

    def wake_up(self) -> None:
        self._manager._notify()

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()
