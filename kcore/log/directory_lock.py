""".lock: two processes never open one data directory for writing.

A POSIX record lock, as Java's FileChannel.tryLock takes on Unix, so kcore and Kafka exclude each other as well.
Source: FileLock in LogManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading

from kcore.common.file import File
from kcore.common.lock_holders import process_text
from kcore.errors import DirectoryInUse
from kcore.log.log_file_names import LOCK_FILE

# Record locks belong to the process: a second lock in the same one succeeds, and closing either file drops both.
_held: set[str] = set()
_guard = threading.Lock()


#: struct flock: type, whence, start, length, process.
_FLOCK = struct.Struct("@hhqqi")


def _holder(descriptor: int) -> str:
    """ ": process 123 (java)" for the process that keeps others from locking a file, empty if that is not known: it has
    just let go, or is in another container."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)[: _FLOCK.size])
    except OSError:
        return ""
    if kind == fcntl.F_UNLCK or pid <= 0:
        return ""
    return f": {process_text(pid)}"


def _held_here(directory: str) -> str:
    return f"{directory}: opened for writing in this process already"


def _held_elsewhere(directory: str, descriptor: int) -> str:
    return f"{directory}: another process holds its {LOCK_FILE}{_holder(descriptor)}"


def is_held(directory: str) -> bool:
    """Whether some process, or another part of this one, holds a directory.  Writes nothing.  Raises OSError."""
    return why_held(directory) is not None


def why_held(directory: str) -> str | None:
    """What DirectoryLock would raise now, None if the directory can be locked.  Writes nothing.  Raises OSError."""
    with _guard:
        # Closing the file below would drop a lock of our own process.
        if os.path.realpath(directory) in _held:
            return _held_here(directory)
        try:
            file = File(os.path.join(directory, LOCK_FILE))
        except FileNotFoundError:
            return None
        try:
            fcntl.lockf(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return _held_elsewhere(directory, file.fileno())
        return None


class DirectoryLock:
    """Held from construction to release().  The file stays behind, as Kafka leaves it.

    Raises DirectoryInUse if another process, or another part of this one, holds the directory; OSError.
    """

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        with _guard:
            if self.directory in _held:
                raise DirectoryInUse(_held_here(directory))
            file = File(os.path.join(directory, LOCK_FILE), writable=True, create=True)
            try:
                fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                raise DirectoryInUse(_held_elsewhere(directory, file.fileno())) from None
            self._file: File | None = file
            _held.add(self.directory)

    def release(self) -> None:
        with _guard:
            if self._file is not None:
                self._file = None  # closes it
                _held.discard(self.directory)
