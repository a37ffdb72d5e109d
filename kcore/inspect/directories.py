"""Data directories and partition directories, and the lock that repair and reindex need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kcore.errors import DirectoryInUse
from kcore.inspect import log_files
from kcore.log.directory_lock import DirectoryLock, why_held


def data_dir_of(path: str) -> str:
    """The data directory of a path: the parent of a partition directory, else the path itself."""
    return os.path.dirname(os.path.abspath(path)) if log_files.is_partition_dir(path) else path


def partitions_under(path: str) -> list[str]:
    """The partition directories that a command-line argument means.  Raises OSError, CorruptFile for what is neither a
    partition's directory nor one that holds some."""
    if log_files.is_partition_dir(path):
        return [path]
    directories = log_files.partition_dirs(path)
    if not directories and not log_files.known_files(path):
        raise log_files.no_partitions(path)
    return directories


@contextmanager
def closed_directory(path: str, *, write: bool) -> Iterator[None]:
    """Nobody else has the data directory of a path open; write: nor can anybody open it meanwhile.  Raises
    DirectoryInUse, OSError."""
    data_dir = data_dir_of(path)
    try:
        if not write and (reason := why_held(data_dir)) is not None:
            raise DirectoryInUse(reason)
        lock = DirectoryLock(data_dir) if write else None
    except DirectoryInUse as error:
        raise DirectoryInUse(f"{error}; stop it first, or work on a copy") from None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
