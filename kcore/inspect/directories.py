"""Data directories and partition directories, and the lock that repair and reindex need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from kcore.errors import DirectoryInUse
from kcore.inspect import log_files
from kcore.log.checkpoints import RECOVERY_POINT_CHECKPOINT
from kcore.log.directory_lock import DirectoryLock, why_held
from kcore.log.log_file_names import PARTITION_METADATA_FILE


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


def lacks_meta_properties(data_dir: str) -> bool:
    """Whether a data directory has no meta.properties though a broker has used it: topic ids beside a checkpoint come
    from a broker, which had the file.  Raises OSError."""
    names = {os.path.basename(file) for file in log_files.known_files(data_dir)}
    is_brokers = RECOVERY_POINT_CHECKPOINT in names and any(
        os.path.lexists(os.path.join(partition, PARTITION_METADATA_FILE))
        for partition in log_files.partition_dirs(data_dir)
    )
    return is_brokers and log_files.META_PROPERTIES_FILE not in names


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
