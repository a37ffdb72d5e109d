"""The files of a log directory by their names, for code that reads them one by one, valid or damaged.

Nothing here opens a log.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcore.common.file import read_file
from kcore.errors import CorruptFile
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from kcore.log.log_file_names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED_SUFFIX,
    DELETE_DIR_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    LOST_RECORDS_FILE,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileName,
    parse_partition_directory,
    parse_segment_file,
)

#: Checkpoints of a data directory: lines of topic, partition, offset.
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
OFFSET_CHECKPOINT = "offset-checkpoint"
META_PROPERTIES_FILE = "meta.properties"

#: segment.index.bytes is an int32.
MAX_INDEX_SIZE = (1 << 31) - 1

#: Suffixes after the 20 digits of an offset, in the order in which we show a segment's files.
SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX)
#: Second suffixes: about to be removed, being written by the cleaner, about to replace other files.
MARKS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)
_SMALL_FILES = (
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA_FILE,
    LOST_RECORDS_FILE,
    META_PROPERTIES_FILE,
    CLEAN_SHUTDOWN_FILE,
)
_KRAFT_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint|bootstrap\.checkpoint")


class FileKind(NamedTuple):
    """kind: one of SUFFIXES, "offset-checkpoint", or the name of another small file.  mark: "" or one of MARKS."""

    kind: str
    mark: str = ""


def kind_of(path: str) -> FileKind | None:
    """What a file is by its name; None for a file that is not Kafka's."""
    name = os.path.basename(path)
    segment = parse_segment_file(name)
    if segment:
        return FileKind(segment.kind, segment.mark)
    if name in OFFSET_CHECKPOINTS:
        return FileKind(OFFSET_CHECKPOINT)
    if name in _SMALL_FILES:
        return FileKind(name)
    if _KRAFT_SNAPSHOT.fullmatch(name):
        return FileKind(LOG_SUFFIX)
    return None


def is_kraft_snapshot(path: str) -> bool:
    """Whether it is a file of batches that belongs to no log: KRaft's snapshots of its metadata."""
    return _KRAFT_SNAPSHOT.fullmatch(os.path.basename(path)) is not None


def kind_of_named(path: str) -> FileKind | None:
    """kind_of() for a file that somebody named on the command line: there a suffix is enough."""
    stem, mark = path, ""
    if os.path.splitext(path)[1] in MARKS:
        stem, mark = os.path.splitext(path)
    suffix = os.path.splitext(stem)[1]
    return kind_of(path) or (FileKind(suffix, mark) if suffix in SUFFIXES else None)


def base_offset_of(path: str) -> int | None:
    """The offset in a segment file's name; None for another file."""
    parsed = parse_segment_file(os.path.basename(path))
    return parsed.base_offset if parsed else None


def _plain_segment_file(name: str) -> SegmentFileName | None:
    parsed = parse_segment_file(name)
    return parsed if parsed and not parsed.mark else None


def is_partition_dir(path: str) -> bool:
    """Whether a directory holds a partition: some segment file, or its metadata.  Raises OSError."""
    return any(_plain_segment_file(name) or name == PARTITION_METADATA_FILE for name in os.listdir(path))


def partition_dirs(data_dir: str) -> list[str]:
    """The partition directories in a data directory, by name; without those that are being deleted.  Symbolic links
    are followed; a link that leads nowhere and a directory that cannot be read count by their names.  Raises
    OSError."""
    with os.scandir(data_dir) as entries:
        return sorted(
            entry.path for entry in entries if not entry.name.endswith(DELETE_DIR_SUFFIX) and _is_partition_entry(entry)
        )


def _is_partition_entry(entry: os.DirEntry[str]) -> bool:
    try:
        return is_partition_dir(entry.path)
    except NotADirectoryError:
        return False
    except OSError:
        return parse_partition_directory(entry.name) is not None


def known_files(directory: str, *, marked: bool = False) -> list[str]:
    """The files of one directory whose names kind_of() accepts, those of a segment together, segments in order.
    marked: with the files that an unfinished cleaning or deletion left.  A directory or link with such a name is listed
    too: it counts as a file that cannot be read.  Raises OSError."""

    def key(name: str) -> tuple[bool, int, int, str]:
        segment = parse_segment_file(name)
        return (False, segment.base_offset, SUFFIXES.index(segment.kind), name) if segment else (True, 0, 0, name)

    kinds = {name: kind_of(name) for name in os.listdir(directory)}
    wanted = [name for name, kind in kinds.items() if kind is not None and (marked or not kind.mark)]
    return [os.path.join(directory, name) for name in sorted(wanted, key=key)]


def passing_files(directory: str) -> list[str]:
    """Names of files that an unfinished cleaning, split or deletion left.  Raises OSError."""
    return sorted(name for name in os.listdir(directory) if name.endswith(MARKS))


def files_under(path: str) -> list[str]:
    """The files of a path: the file itself, those of a partition directory, or those of a data directory and of all
    partitions in it.  A partition directory that cannot be read is listed in place of its files.  Raises OSError,
    CorruptFile for a path that is not a file or directory of Kafka's."""
    if not os.path.isdir(path):
        os.stat(path)
        if kind_of_named(path) is None:
            raise CorruptFile(f"{path}: no file of a log by its name")
        return [path]
    files = known_files(path, marked=True)
    if not is_partition_dir(path):
        for directory in partition_dirs(path):
            try:
                files += known_files(directory, marked=True)
            except OSError:
                files.append(directory)
    if not files:
        raise no_partitions(path)
    return files


def no_partitions(directory: str) -> CorruptFile:
    """The error for a directory without partitions and files of a log.  It names the directories in it that hold some,
    as those of the brokers of one machine, or else its segment files.  Raises OSError."""
    text = f"{directory}: neither a partition directory nor one that holds some"
    inner = inner_data_dirs(directory)
    if inner:
        names = f"directory {inner[0]} holds" if len(inner) == 1 else f"directories {_some(inner)} hold"
        return CorruptFile(f"{text}; its {names} some: name {'that' if len(inner) == 1 else 'one of them'}")
    segments = sorted(name for name in os.listdir(directory) if name.endswith(LOG_SUFFIX))
    if segments:
        return CorruptFile(f"{text}; it has {_some(segments)}: `kcore verify` and `kcore dump` take a file")
    return CorruptFile(text)


def inner_data_dirs(directory: str) -> list[str]:
    """The names of the directories in a directory that hold partitions.  Raises OSError."""
    return sorted(name for name in os.listdir(directory) if _holds_partitions(os.path.join(directory, name)))


def _holds_partitions(directory: str) -> bool:
    try:
        return bool(partition_dirs(directory))
    except OSError:
        return False


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


def read_properties(path: str) -> dict[str, str]:
    """key=value or key: value, a line each.  Raises CorruptFile naming the line, OSError."""
    data = read_file(path)
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(f"{path}: not a text file") from None
    properties = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", "!")):
            continue
        match = re.match(r"([^=:\s]+)\s*[=:]\s*(.*)", line)
        if not match:
            raise CorruptFile(f"{path}: line {number}: {line!r} is not a property")
        properties[match[1]] = match[2]
    return properties


def open_file(path: str) -> io.FileIO:
    """Open a regular file for reading; without waiting, since opening a FIFO would wait for a writer for ever.  Raises
    OSError, also for what is not a regular file."""
    file = io.FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "no regular file", path)
    return file


def data_stretches(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The ranges of [start, end) that are on the disk, as (start, end); the holes between them read as zeros.  Raises
    OSError."""
    while start < end:
        try:
            first = os.lseek(fd, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end of the file
                return
            raise
        if first >= end:
            return
        start = min(os.lseek(fd, first, os.SEEK_HOLE), end)
        yield first, start


def data_size(path: str) -> int:
    """Bytes of a file without its holes.  Raises OSError."""
    with open_file(path) as file:
        return sum(end - start for start, end in data_stretches(file.fileno(), 0, os.fstat(file.fileno()).st_size))


def size_of(path: str) -> int:
    """0 for a file that is not there any more, or cannot be reached."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def size_under(directories: Iterable[str]) -> int:
    """Total size of Kafka's files in the directories; a file or directory that cannot be reached counts as 0."""
    return _size_under(directories, "")


def log_size_under(directories: Iterable[str]) -> int:
    """Total size of the .log files alone, for the progress of what reads only those: an index of an empty partition
    may have 10 MB that are never read."""
    return _size_under(directories, LOG_SUFFIX)


def _size_under(directories: Iterable[str], suffix: str) -> int:
    total = 0
    for directory in directories:
        try:
            total += sum(size_of(path) for path in known_files(directory) if path.endswith(suffix))
        except OSError:
            continue
    return total
