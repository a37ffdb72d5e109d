"""A thread around do_work(), so that a simulation can call do_work() itself."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger(__name__)


class ShutdownableThread:
    """Calls do_work() again and again on its own thread, until shutdown.

    Lifetime: start() once, shutdown() any number of times, from any thread but its own.  An exception out of
    do_work() ends the loop and is logged; a subclass that must survive it catches it itself.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether it may go on; false from initiate_shutdown() on, and after an error.  Plain: it is read at each step.
        self.is_running = True
        self._shutdown_initiated = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def do_work(self) -> None:
        """One step; blocks no longer than until wake_up()."""
        raise AssertionError(f"{type(self).__name__} has no do_work()")

    def wake_up(self) -> None:
        """Make a do_work() that waits return soon.  Called once shutdown has been initiated."""

    def start(self) -> None:
        self._thread.start()

    @property
    def native_id(self) -> int | None:
        """The system's number of the thread; None before start()."""
        return self._thread.native_id

    def pause(self, timeout_ms: float) -> None:
        """Sleep inside do_work(), but not beyond the start of a shutdown."""
        # Event.wait() raises OverflowError for more than TIMEOUT_MAX, which is some 292 years.
        self._shutdown_initiated.wait(min(timeout_ms / 1000, threading.TIMEOUT_MAX))

    def initiate_shutdown(self) -> None:
        self.is_running = False
        self._shutdown_initiated.set()
        self.wake_up()

    def await_shutdown(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def shutdown(self) -> None:
        """Returns when do_work() has returned for the last time."""
        self.initiate_shutdown()
        self.await_shutdown()

    def _run(self) -> None:
        try:
            while self.is_running:
                self.do_work()
        except Exception:
            logger.exception("%s: stopped by an error", self.name)
        finally:
            self.is_running = False
            self._shutdown_initiated.set()
