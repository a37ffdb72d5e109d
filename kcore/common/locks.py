"""Locks the standard library lacks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """Many readers or one writer; a waiting writer holds new readers back.

    Neither side is reentrant.  acquire_read/release_read are for hot paths, write() for the rest.
    """

    __slots__ = ("_changed", "_mutex", "_readers", "_writers_waiting", "_writing")

    def __init__(self) -> None:
        # Entered directly where no thread waits: the condition's own methods are Python and cost as much again.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    def acquire_read(self) -> None:
        with self._mutex:
            while self._writing or self._writers_waiting:
                self._changed.wait()
            self._readers += 1

    def release_read(self) -> None:
        with self._mutex:
            self._readers -= 1
            if self._writers_waiting and not self._readers:
                self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._mutex:
            self._writers_waiting += 1
            while self._writing or self._readers:
                self._changed.wait()
            self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._mutex:
                self._writing = False
                self._changed.notify_all()
