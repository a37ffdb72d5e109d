"""Rewrites whole directories with another codec, segment by segment, in Spark's tasks.

The records' bytes stay as they are, and so does every field of a batch's header but codec, length and CRC: offsets,
timestamps, sequence numbers and leader epochs included.  The source is only read.  The result is written
under a temporary name and renamed when it is complete and synced: after a crash it is complete or missing.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kcore.common.file import sync_path
from kcore.common.progress import phase
from kcore.common.text import nearest
from kcore.errors import CorruptFile
from kcore.inspect import log_files
from kcore.inspect.batch_reader import Damage, Tail, read_batches
from kcore.inspect.directories import closed_directory, partitions_under
from kcore.inspect.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from kcore.log.log_file_names import (
    LOCK_FILE,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from kcore.log.log_segment import LogSegment
from kcore.record.batch_header import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CRC_OFFSET,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
)
from kcore.record.compression import CODECS, check_level, compress, decompress
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.spark.jobs.job_runner import TARGET_BYTES, Sized, balanced, frame_of, parallelism, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SEGMENT_BYTES = 1 << 30
#: Bytes of one append.
_WRITE_BYTES = 1 << 20
#: Files of a segment that a task writes; the other files are copied.
_MADE = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)

_RECOMPRESSED = pa.schema(
    [
        ("directory", pa.string()),
        ("file", pa.string()),
        ("output", pa.string()),
        ("segments", pa.int32()),
        ("batches", pa.int64()),
        ("recompressed", pa.int64()),
        ("records", pa.int64()),
        ("bytes_before", pa.int64()),
        ("bytes_after", pa.int64()),
    ]
)


class _Settings(NamedTuple):
    codec: int
    level: int | None
    segment_bytes: int
    index_interval_bytes: int
    attempts: str  # where tasks write until a segment is whole


class _Segment(NamedTuple):
    source: str
    base: int
    target: str


def recompress(
    spark: SparkSession,
    path: str,
    output: str,
    *,
    codec: str,
    level: int | None = None,
    segment_bytes: int = _SEGMENT_BYTES,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    tasks: int | None = None,
    quiet: bool = False,
) -> DataFrame:
    """A closed data directory, or a partition's, written anew as `output`, which must not exist, with its batches in
    another codec.

    codec: "none", "gzip", "snappy", "lz4" or "zstd"; level: on the codec's own scale; without one, batches of that
    codec stay as they are.  So do transaction markers, empty batches, and messages of magic 0 and 1.  Segments keep
    their names; one that outgrows segment_bytes becomes several.  Indexes are made, all other files copied.
    A row for each segment: directory, file, output, segments (how many it became), batches, recompressed (how many
    of them), records, bytes_before, bytes_after (of the .log files).
    Raises ValueError for a codec or level that is none, FileExistsError, DirectoryInUse, CorruptFile for a damaged log
    (the output is then removed), OSError.
    """
    number = _codec_number(codec, level)
    output = os.path.abspath(output)
    if os.path.lexists(output):
        raise FileExistsError(17, "the output must not exist", output)
    partitions = partitions_under(path)
    staging = tempfile.mkdtemp(prefix=f".{os.path.basename(output)}.", dir=os.path.dirname(output))
    try:
        with closed_directory(path, write=False):
            settings = _Settings(number, level, segment_bytes, index_interval_bytes, os.path.join(staging, "attempts"))
            result = os.path.join(staging, "result")
            os.makedirs(settings.attempts)
            os.mkdir(result)
            targets = {directory: os.path.join(result, os.path.basename(directory)) for directory in partitions}
            if log_files.is_partition_dir(path):
                targets = {path: result}
            with phase("recompress: listing files", quiet=quiet):
                pieces = [piece for source, target in targets.items() for piece in _prepared(source, target)]
            work = balanced(pieces, tasks or parallelism(spark), TARGET_BYTES)
            rows_by_task = run_tasks(spark, "recompress", work, partial(_recompress_segments, settings), quiet=quiet)
            with phase("recompress: copying the other files", quiet=quiet):
                for source, target in targets.items():
                    _copy_other_files(source, target)
                if path not in targets:
                    _copy_other_files(path, result)
                sync_path(result)
                os.rename(result, output)
                sync_path(os.path.dirname(output))
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    rows = sorted((row for rows in rows_by_task for row in rows), key=lambda row: row["file"])
    for row in rows:
        row["output"] = output + row["output"].removeprefix(result)
    return frame_of(spark, rows, _RECOMPRESSED)


def recompressed(batch: RecordBatch, codec: int, level: int | None = None) -> bytes | None:
    """The same batch in another codec (an index of CODECS); None for one that stays as it is: of magic 0 or 1, a
    transaction marker, without records, or already in that codec when level is None.  Raises CorruptMessage."""
    current = batch.attributes & CODEC_MASK
    if batch.magic != 2 or batch.is_control or batch.count == 0 or (current == codec and level is None):
        return None
    source = batch.buffer
    payload = decompress(current, source[HEADER_SIZE:], source=batch.source)
    made = bytearray(source[:HEADER_SIZE]) + compress(codec, payload, level)
    struct.pack_into(">i", made, LENGTH_OFFSET, len(made) - LOG_OVERHEAD)
    struct.pack_into(">h", made, ATTRIBUTES_OFFSET, batch.attributes & ~CODEC_MASK | codec)
    struct.pack_into(">I", made, CRC_OFFSET, crc32c(memoryview(made)[ATTRIBUTES_OFFSET:]))
    return bytes(made)


def _codec_number(codec: str, level: int | None) -> int:
    if codec not in CODECS:
        raise ValueError(f"no codec {codec!r}{nearest(codec, CODECS)}; there are {', '.join(CODECS)}")
    number = CODECS.index(codec)
    check_level(number, level)
    return number


def _prepared(source: str, target: str) -> list[Sized[_Segment]]:
    """The segments of a partition as pieces of work; its directory is made."""
    swaps = [name for name in log_files.passing_files(source) if name.endswith(SWAP_SUFFIX)]
    if swaps:
        raise CorruptFile(f"{source}: {swaps[0]} is from a cleaning that did not end; open the log once")
    os.makedirs(target, exist_ok=True)
    logs = [file for file in log_files.known_files(source) if file.endswith(LOG_SUFFIX)]
    return [
        Sized(log_files.size_of(file), _Segment(source, base, target))
        for file in logs
        if (base := log_files.base_offset_of(file)) is not None
    ]


def _recompress_segments(settings: _Settings, segments: list[_Segment]) -> list[dict[str, Any]]:
    return [_recompress_segment(settings, segment) for segment in segments]


def _recompress_segment(settings: _Settings, segment: _Segment) -> dict[str, Any]:
    """Each attempt of a task works in a directory of its own.  If two attempts succeed, the files of one replace the
    identical files of the other."""
    path = segment_file(segment.source, segment.base, LOG_SUFFIX)
    attempt = os.path.join(settings.attempts, uuid.uuid4().hex)
    os.mkdir(attempt)
    writer = _Writer(attempt, segment.base, settings)
    batches = changed = records = 0
    try:
        for item in read_batches(path):
            if isinstance(item, Damage | Tail):
                problem = item.problem if isinstance(item, Damage) else f"{item.size} bytes of a batch at its end"
                raise CorruptFile(f"{path}: position {item.position}: {problem}; `kcore repair` it first")
            for batch in item.batches:
                anew = recompressed(batch, settings.codec, settings.level)
                # The first offset of a wrapper of magic 0 or 1 is not in its header, so no segment can begin with it.
                first = batch.base_offset if batch.magic == 2 else None
                writer.add(first, batch.buffer if anew is None else anew)
                batches += 1
                changed += anew is not None
                records += max(batch.count, 0)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    stat = os.stat(path)
    written = sorted(os.listdir(attempt))
    for name in written:
        made_file = os.path.join(attempt, name)
        if name.endswith(LOG_SUFFIX):
            # Retention goes by the age of the data, not of the copy.
            os.utime(made_file, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        os.replace(made_file, os.path.join(segment.target, name))
    os.rmdir(attempt)
    return {
        "directory": segment.source,
        "file": path,
        "output": segment_file(segment.target, segment.base, LOG_SUFFIX),
        "segments": sum(name.endswith(LOG_SUFFIX) for name in written),
        "batches": batches,
        "recompressed": changed,
        "records": records,
        "bytes_before": stat.st_size,
        "bytes_after": writer.bytes,
    }


class _Writer:
    """Segments one after the other, each at most segment_bytes large; a piece at a time is written."""

    def __init__(self, directory: str, base: int, settings: _Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._segment = self._new(base)
        self._waiting = bytearray()
        self.bytes = 0

    def _new(self, base: int) -> LogSegment:
        return LogSegment(
            self._directory,
            base,
            index_interval_bytes=self._settings.index_interval_bytes,
            max_segment_bytes=2**31 - 1,
        )

    def add(self, base_offset: int | None, batch: bytes | memoryview) -> None:
        """base_offset: None for a batch that no segment can begin with."""
        before = self._segment.size + len(self._waiting)
        if base_offset is not None and before and before + len(batch) > self._settings.segment_bytes:
            self.finish()
            self._segment = self._new(base_offset)
        elif len(self._waiting) >= _WRITE_BYTES:
            self._write()
        self._waiting += batch
        self.bytes += len(batch)

    def _write(self) -> None:
        if self._waiting:
            self._segment.append(MemoryRecords(self._waiting, check_crc=False, source=self._segment.log_path))
            self._waiting = bytearray()

    def finish(self) -> None:
        """What was added is on the disk, and its indexes are whole."""
        self._write()
        self._segment.on_become_inactive()
        self._segment.flush()
        self._segment.close()

    def abandon(self) -> None:
        self._segment.close()


def _copy_other_files(source: str, target: str) -> None:
    """Copy the files beside the segments that hold for the new ones too, and sync them and the names of all files."""
    with os.scandir(source) as entries:
        names = [entry.name for entry in entries if entry.is_file()]
    for name in names:
        if not name.endswith((*_MADE, *log_files.MARKS)) and name != LOCK_FILE:
            copy = os.path.join(target, name)
            shutil.copy2(os.path.join(source, name), copy)
            sync_path(copy)
    sync_path(target)
