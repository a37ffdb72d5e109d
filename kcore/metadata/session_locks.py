"""Whether the process that has a session still runs: while it does, it has a file beside the store locked.

The kernel frees the lock when the process ends, however it ends.  So the others need not wait for the session's timeout
to know that a broker was killed; a process that stands still keeps its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import weakref
from collections.abc import Collection

logger = logging.getLogger(__name__)


class SessionLocks:
    """The lock of one store's own session, and what it knows of those of others.  Its owner's lock guards it.

    A session without a lock file, because none could be made or somebody has deleted it, is never said to be abandoned.
    """

    def __init__(self, store_path: str) -> None:
        self._prefix = f"{store_path}-session-"
        self._own: tuple[str, int] | None = None
        # Session -> its open lock file; that it is open makes it the same file, whatever has the name later.
        self._others: dict[int, int] = {}
        _all_locks.add(self)

    def hold(self, session_id: int) -> None:
        """Before others can see the session.  Where no lock can be had, only its timeout ends the session."""
        self.release()
        path = f"{self._prefix}{session_id}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a session that had the id before the store's file was restored
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            logger.warning("%s: no lock file: a kill is noticed at the session's timeout: %s", path, error.strerror)
            return
        self._own = path, fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            logger.warning("%s: not locked: a kill is noticed at the session's timeout: %s", path, error.strerror)

    def release(self) -> None:
        """The session has ended, or never came into being."""
        if self._own is not None:
            path, fd = self._own
            self._own = None
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(fd)

    def is_abandoned(self, session_id: int) -> bool:
        """Whether the process of another store's session has ended.  A system call of about 1 us."""
        fd = self._others.get(session_id)
        try:
            if fd is None:
                fd = os.open(f"{self._prefix}{session_id}", os.O_RDWR | os.O_CLOEXEC)
                self._others[session_id] = fd
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def remove(self, session_id: int) -> None:
        """The file of a session of another store, which has been ended."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._prefix}{session_id}")

    def keep(self, session_ids: Collection[int]) -> None:
        """Forget the other sessions than these."""
        for session_id in self._others.keys() - session_ids:
            os.close(self._others.pop(session_id))

    def abandon(self) -> None:
        """As the end of the process does: the files stay."""
        self.keep(())
        if self._own is not None:
            os.close(self._own[1])
            self._own = None


#: A forked child has its parent's locked files open too, and would keep them locked when the parent is killed.
_all_locks: weakref.WeakSet[SessionLocks] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for locks in list(_all_locks):
        locks.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
