"""LogDirFailureChannel: passes failed data directories to a thread that holds no lock.

The thread that meets the failure may hold a log's lock and a partition's ISR lock.  So it only puts the data directory
into the channel; a thread that holds no lock takes it out and does the rest.
Source: LogDirFailureChannel and ReplicaManager.LogDirFailureHandler, Kafka 2.4-4.x.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error

logger = logging.getLogger(__name__)

#: Errors that end once the disk has room.  They fail the operation, and take nothing offline unless half of it was
#: done.
DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogDirFailureChannel:
    """The data directories that are offline, and a queue of those that LogDirFailureHandler has not taken yet.

    Thread-safe.  Calls nothing but the logger; its own lock is the last that a thread takes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, OSError] = {}
        self._queue: SimpleQueue[str | None] = SimpleQueue()

    def maybe_add_offline_log_dir(self, log_dir: str, error: OSError) -> bool:
        """The directory is offline from now on, for good.  False if it already was; the first error stays."""
        with self._lock:
            if log_dir in self._failures:
                return False
            self._failures[log_dir] = error
            self._queue.put(log_dir)
        logger.error("%s: the log directory goes offline: %s", log_dir, plain_error(error))
        return True

    def failure(self, log_dir: str) -> OSError | None:
        """The error that took the directory offline; None while it works."""
        return self._failures.get(log_dir)

    def take_next_offline_log_dir(self) -> str | None:
        """The next directory to deal with, each once, in the order of their failures; waits for one.

        None after wake_up().
        """
        return self._queue.get()

    def poll_offline_log_dir(self) -> str | None:
        """The same without waiting: None if there is none.  For tests and simulations."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    def wake_up(self) -> None:
        """Let one take_next_offline_log_dir() return None."""
        self._queue.put(None)


class LogDirFailureHandler(ShutdownableThread):
    """Takes each failed directory out of the channel and calls handle(log_dir), with no lock held.

    It sleeps until there is one.  An error out of handle() is logged; the thread then waits for the next directory.
    """

    def __init__(self, name: str, channel: LogDirFailureChannel, handle: Callable[[str], None]) -> None:
        super().__init__(name)
        self._channel = channel
        self._handle = handle

    def do_work(self) -> None:
        log_dir = self._channel.take_next_offline_log_dir()
        if log_dir is None:
            return
        try:
            self._handle(log_dir)
        except Exception:
            logger.exception("%s: dealing with its failure stopped by an error", log_dir)

    def wake_up(self) -> None:
        self._channel.wake_up()
