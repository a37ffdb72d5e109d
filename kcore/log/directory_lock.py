""".lock: two processes never open one data directory for writing.

A POSIX record lock, as Java's FileChannel.tryLock takes on Unix, so kcore and Kafka exclude each other as well.
Source: FileLock in LogManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import fcntl
import os
import threading

from kcore.errors import DirectoryInUse
from kcore.log.log_file_names import LOCK_FILE

# Record locks belong to the process: a second lock in the same one succeeds, and closing either file drops both.
_held: set[str] = set()
_guard = threading.Lock()


class DirectoryLock:
    """Held from construction to release().  The file stays behind, as Kafka leaves it.

    Raises DirectoryInUse if another process, or another part of this one, holds the directory; OSError.
    """

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        with _guard:
            if self.directory in _held:
                raise DirectoryInUse(f"{directory}: opened for writing in this process already")
            fd = os.open(os.path.join(directory, LOCK_FILE), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(fd)
                raise DirectoryInUse(f"{directory}: another process holds its {LOCK_FILE}") from None
            except BaseException:
                os.close(fd)
                raise
            self._fd: int | None = fd
            _held.add(self.directory)

    def release(self) -> None:
        with _guard:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
                _held.discard(self.directory)
