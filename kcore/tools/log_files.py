"""The files of a log directory, for tools that read them as they lie, sound or not.

Nothing here opens a log: a damaged directory must still be readable up to the damage, and what lies behind it where
that can be told.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from kcore.errors import CorruptFile, KafkaError
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
)
from kcore.log.log_file_names import (
    CLEANED_SUFFIX,
    DELETE_DIR_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileName,
    parse_segment_file,
)
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords

#: Checkpoints of a data directory: lines of topic, partition, offset.
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
META_PROPERTIES_FILE = "meta.properties"

#: segment.index.bytes is an int32.
MAX_INDEX_SIZE = (1 << 31) - 1

#: Suffixes after the 20 digits of an offset, in the order in which we show a segment's files.
SUFFIXES = (LOG_SUFFIX, *INDEX_SUFFIXES, SNAPSHOT_SUFFIX)
_KRAFT_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint|bootstrap\.checkpoint")

# One megabyte: the CRC then finds the bytes still in the second-level cache, and the GIL is given up for it.
_CHUNK = 1 << 20
_HEADER_SIZE = 61
_LOG_OVERHEAD = 12
_CRC_FROM = 21
#: How far behind a length that leads nowhere we look for the end its CRC tells.
_SEARCH_LIMIT = 16 << 20


def kind_of(path: str) -> str | None:
    """What a file is by its name: one of SUFFIXES, "offset-checkpoint", the name of another small file; None for a file
    that is not Kafka's, or that is about to go."""
    name = os.path.basename(path)
    segment = _segment_file(name)
    if segment:
        return segment.kind
    if name in OFFSET_CHECKPOINTS:
        return "offset-checkpoint"
    if name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE, META_PROPERTIES_FILE):
        return name
    if _KRAFT_SNAPSHOT.fullmatch(name):
        return LOG_SUFFIX
    return None


def _segment_file(name: str) -> SegmentFileName | None:
    parsed = parse_segment_file(name)
    return parsed if parsed and not parsed.mark else None


def base_offset_of(path: str) -> int | None:
    """The offset in a segment file's name; None for another file."""
    parsed = _segment_file(os.path.basename(path))
    return parsed.base_offset if parsed else None


def is_partition_dir(path: str) -> bool:
    """Whether a directory holds a partition: some segment file, or its metadata."""
    with os.scandir(path) as entries:
        return any(_segment_file(entry.name) or entry.name == PARTITION_METADATA_FILE for entry in entries)


def partition_dirs(data_dir: str) -> list[str]:
    """The partition directories in a data directory, by name; without those that are being deleted."""
    with os.scandir(data_dir) as entries:
        found = [entry.path for entry in entries if entry.is_dir() and not entry.name.endswith(DELETE_DIR_SUFFIX)]
    return sorted(path for path in found if is_partition_dir(path))


def known_files(directory: str) -> list[str]:
    """The files of one directory that kind_of() knows, those of a segment together, segments in order."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_file() and kind_of(entry.name)]

    def key(name: str) -> tuple[bool, int, int, str]:
        segment = _segment_file(name)
        return (False, segment.base_offset, SUFFIXES.index(segment.kind), "") if segment else (True, 0, 0, name)

    return [os.path.join(directory, name) for name in sorted(names, key=key)]


def passing_files(directory: str) -> list[str]:
    """Names of files that an unfinished cleaning, split or deletion left."""
    with os.scandir(directory) as entries:
        return sorted(
            entry.name for entry in entries if entry.name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX))
        )


class Damage(NamedTuple):
    """Bytes that cannot be right."""

    position: int
    #: Base offset of the batch as its header has it; None where no header could be read.
    offset: int | None
    problem: str


class Tail(NamedTuple):
    """The file ends inside a batch: what a crash leaves, and recovery cuts."""

    position: int
    offset: int | None
    size: int


def read_batches(path: str, *, check_crc: bool = True) -> Iterator[MemoryRecords | Damage | Tail]:
    """The batches of a file in order, a chunk at a time; damage and a partial end where they lie.

    A batch whose bytes are wrong but whose length leads to another batch is passed over, so that one flipped byte
    hides one batch.  What is yielded is valid until the next item is asked for: the buffer is used again.
    Raises OSError.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        buffer = bytearray(min(_CHUNK, size))
        position = 0
        while position < size:
            want = min(len(buffer), size - position)
            got = _read_at(file.fileno(), memoryview(buffer)[:want], position)
            if got < want:  # cut while we read: what is gone is not ours to judge
                size = position + got
                if not got:
                    return
            chunk = memoryview(buffer)[:got]
            try:
                records = MemoryRecords(chunk, check_crc=check_crc, source=path, base_position=position)
            except KafkaError:
                position = yield from _batch_by_batch(path, chunk, position, size, check_crc)
                continue
            if records.valid_bytes:
                yield records
                position += records.valid_bytes
                continue
            del records
            # Not even one batch.  Either it is longer than the buffer, or the file ends inside it.
            length = _stated_size(chunk, 0)
            if length is None or position + length > size:
                position = yield from _partial_end(file.fileno(), position, size)
                continue
            del chunk
            buffer = bytearray(length)


def _batch_by_batch(
    path: str, chunk: memoryview, position: int, size: int, check_crc: bool
) -> Generator[MemoryRecords | Damage | Tail, None, int]:
    """Walk a chunk with damage in it; the return value is the position from where to go on."""
    at = 0
    while at < len(chunk):
        length = _stated_size(chunk, at)
        whole = length is not None and at + length <= len(chunk)
        if at and not whole and (length is not None or len(chunk) - at < _HEADER_SIZE):
            break  # perhaps whole in the next chunk
        end = at + length if whole and length is not None else len(chunk)
        try:
            yield MemoryRecords(chunk[at:end], check_crc=check_crc, source=path, base_position=position + at)
        except KafkaError as error:
            offset = _base_offset(chunk, at)
            if not whole or not _can_start_here(chunk, end, position, size):
                true_end = _end_by_crc(chunk, at)
                if true_end is None:
                    yield Damage(position + at, offset, _without_path(str(error), path))
                    yield from _lost_from(position + (end if whole else at), size)
                    return size
                yield _length_lies(chunk, at, position, true_end)
                end = true_end
            else:
                yield Damage(position + at, offset, _without_path(str(error), path))
        at = end
    return position + at


def _partial_end(fd: int, position: int, size: int) -> Generator[Damage | Tail, None, int]:
    """The file ends inside a batch, or that batch's length is wrong; the return value is where to go on."""
    data = memoryview(bytearray(min(size - position, _SEARCH_LIMIT)))
    data = data[: _read_at(fd, data, position)]
    end = _end_by_crc(data, 0)
    if end is None:
        yield Tail(position, _base_offset(data, 0), size - position)
        return size
    yield _length_lies(data, 0, position, end)
    return position + end


def _end_by_crc(chunk: memoryview, at: int) -> int | None:
    """Where the batch at `at` ends if its CRC is right.  The CRC covers neither the length nor anything before it, so
    when a length leads nowhere, the run of bytes that the CRC fits is the batch.  None if it fits none."""
    if len(chunk) - at < _HEADER_SIZE:
        return None
    (crc,) = struct.unpack_from(">I", chunk, at + _CRC_FROM - 4)
    value = crc32c(chunk[at + _CRC_FROM : at + _HEADER_SIZE])
    for end in range(at + _HEADER_SIZE, len(chunk)):
        if value == crc:
            return end
        value = crc32c(chunk[end : end + 1], value)
    return len(chunk) if value == crc else None


def _length_lies(chunk: memoryview, at: int, position: int, end: int) -> Damage:
    (length,) = struct.unpack_from(">i", chunk, at + 8)
    problem = (
        f"batch length at position {position + at + 8}: expected {end - at - _LOG_OVERHEAD} by the CRC, found {length}"
    )
    return Damage(position + at, _base_offset(chunk, at), problem)


def _lost_from(position: int, size: int) -> Iterator[Damage]:
    if position < size:
        yield Damage(position, None, f"no batch to be found from here on: {size - position} bytes not examined")


def _read_at(fd: int, view: memoryview, position: int) -> int:
    """Fill view from position on; the number of bytes that were there."""
    got = 0
    while got < len(view):
        n = os.preadv(fd, [view[got:]], position + got)
        if n == 0:
            break
        got += n
    return got


def _stated_size(chunk: memoryview, at: int) -> int | None:
    """Size of the batch at `at` by its header; None if that is not there or too small for a batch."""
    if len(chunk) - at < _LOG_OVERHEAD:
        return None
    (length,) = struct.unpack_from(">i", chunk, at + 8)
    return _LOG_OVERHEAD + length if length >= _HEADER_SIZE - _LOG_OVERHEAD else None


def _base_offset(chunk: memoryview, at: int) -> int | None:
    return struct.unpack_from(">q", chunk, at)[0] if len(chunk) - at >= 8 else None


def _can_start_here(chunk: memoryview, at: int, position: int, size: int) -> bool:
    """Whether the bytes behind a bad batch can be a batch.  At the end of a chunk we give them the chance."""
    if len(chunk) - at < _CRC_FROM:
        return True
    length = _stated_size(chunk, at)
    return length is not None and position + at + length <= size and chunk[at + 16] == 2


def _without_path(message: str, path: str) -> str:
    return message.removeprefix(f"{path}: ")


def read_properties(path: str) -> dict[str, str]:
    """key=value or key: value, a line each.  Raises CorruptFile naming the line, OSError."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(f"{path}: not a text file") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(("#", "!")):
            continue
        match = re.match(r"([^=:\s]+)\s*[=:]\s*(.*)", line)
        if not match:
            raise CorruptFile(f"{path}: line {number}: {line!r} is not a property")
        found[match[1]] = match[2]
    return found


def kind_of_named(path: str) -> str | None:
    """kind_of() for a file that somebody named on the command line: there a suffix is enough."""
    suffix = os.path.splitext(path)[1]
    return kind_of(path) or (suffix if suffix in SUFFIXES else None)


def files_under(path: str) -> list[str]:
    """The files a command-line argument means: the file itself, those of a partition directory, or those of a data
    directory and of all partitions in it.  Raises OSError, CorruptFile for what is nothing of Kafka's."""
    if not os.path.isdir(path):
        os.stat(path)
        if kind_of_named(path) is None:
            raise CorruptFile(f"{path}: no file of a log by its name")
        return [path]
    found = known_files(path)
    if not is_partition_dir(path):
        for directory in partition_dirs(path):
            found += known_files(directory)
    if not found:
        raise CorruptFile(f"{path}: neither a partition directory nor one that holds some")
    return found
