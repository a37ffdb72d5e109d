"""Data directories: what logs they have, and a map of each log's segments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from kcore.common.progress import Progress
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.partition_checks import PartitionFiles, Problem
from kcore.inspect.segment_scan import ScannedSegment
from kcore.inspect.verifier import Verifier
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.log_file_names import DELETE_DIR_SUFFIX, LOG_SUFFIX, parse_partition_directory, parse_segment_file

#: The name of a log in a directory that is itself one partition's.
ITSELF = "."


class DataDirectory(NamedTuple):
    """properties: of meta.properties.  is_clean: its broker has stopped cleanly, and has not started since.  free: room
    of the file system, in bytes.  problem: why it cannot be read."""

    path: str
    logs: int
    properties: dict[str, str]
    is_clean: bool
    free: int | None
    problem: str | None = None


class LogSize(NamedTuple):
    """size: of its .log files, in bytes.  changed_ms: when one of them was written last, None without files."""

    segments: int
    size: int
    changed_ms: int | None


def log_names(path: str) -> list[str]:
    """The logs of a data directory.  Raises OSError."""
    found = os.listdir(path)
    if log_files.META_PROPERTIES_FILE in found:
        # A broker's, so by their names alone: a directory with 40,000 of them takes no more than its list.
        names = [
            name
            for name in found
            if not name.endswith(DELETE_DIR_SUFFIX) and parse_partition_directory(name) is not None
        ]
    else:
        # Where brokers' directories are, one of them may have a name as broker-0.
        names = [os.path.basename(directory) for directory in log_files.partition_dirs(path)]
    return names if names or not log_files.is_partition_dir(path) else [ITSELF]


def log_path(path: str, name: str) -> str | None:
    """The directory of one of its logs; None if it has no such log.  Raises OSError."""
    if name == ITSELF:
        return path if log_files.is_partition_dir(path) else None
    found = os.path.join(path, name)
    is_name = os.sep not in name and "\0" not in name and parse_partition_directory(name) is not None
    return found if is_name and os.path.isdir(found) else None


def describe(path: str) -> DataDirectory:
    try:
        count = len(log_names(path))
        disk = os.statvfs(path)
    except OSError as error:
        return DataDirectory(path, 0, {}, False, None, error.strerror)
    try:
        properties = log_files.read_properties(os.path.join(path, log_files.META_PROPERTIES_FILE))
    except (OSError, KafkaError):
        properties = {}
    return DataDirectory(path, count, properties, was_clean_shutdown(path), disk.f_bavail * disk.f_frsize)


def size_of_log(directory: str) -> LogSize:
    """Raises OSError."""
    sizes = []
    with os.scandir(directory) as entries:
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is not None and parsed.kind == LOG_SUFFIX and not parsed.mark:
                state = entry.stat()
                sizes.append((state.st_size, state.st_mtime_ns // 1_000_000))
    return LogSize(len(sizes), sum(size for size, _ in sizes), max((at for _, at in sizes), default=None))


class Stretch(NamedTuple):
    """Bytes of a segment."""

    position: int
    size: int


class Gap(NamedTuple):
    """Offsets that no batch has, both ends included, before the batch at the position."""

    position: int
    first: int
    last: int


class SegmentMap(NamedTuple):
    """bad: bytes that are in no valid batch; tail: a part of a batch at the end.  end_offset: None without batches."""

    name: str
    base: int
    size: int
    batches: int
    end_offset: int | None
    max_timestamp: int
    bad: Sequence[Stretch]
    tail: Stretch | None
    gaps: Sequence[Gap]


class LogMap(NamedTuple):
    """problems: as `kcore verify` has them."""

    segments: Sequence[SegmentMap]
    problems: Sequence[Problem]

    @property
    def largest(self) -> int:
        """Bytes of the largest segment, at least 1."""
        return max([1, *(segment.size for segment in self.segments)])


def map_of(directory: str, progress: Progress) -> LogMap:
    """Reads all of a log: its batches and their CRCs, not their records.  Raises OSError, Stopped."""
    verifier = Verifier(False, progress)
    files = PartitionFiles.of(directory)
    scanned: list[ScannedSegment] = []
    problems = [problem for base in files.bases for problem in verifier.segment(files, base, scanned)().problems]
    problems += verifier.rest(files, scanned).problems
    segments = [_segment_map(base, segment) for base, segment in zip(files.bases, scanned, strict=True)]
    return LogMap(segments, problems)


def sizes_of(directory: str) -> LogMap:
    """The segments' sizes alone.  Raises OSError."""
    files = PartitionFiles.of(directory)
    paths = {base: files.file(base, LOG_SUFFIX) for base in files.bases}
    return LogMap(
        [
            SegmentMap(os.path.basename(path), base, log_files.size_of(path), 0, None, -1, (), None, ())
            for base, path in paths.items()
        ],
        (),
    )


def _segment_map(base: int, segment: ScannedSegment) -> SegmentMap:
    rows = segment.batches
    starts = rows["position"]
    bad = []
    for damage in segment.damages:
        if damage.correction is None:
            after = int(starts.searchsorted(damage.position, "right"))
            end = int(starts[after]) if after < len(starts) else segment.size
            bad.append(Stretch(damage.position, min(damage.size or end - damage.position, end - damage.position)))
    tail = segment.tail
    gaps = [] if segment.gaps is None else segment.gaps.tolist()
    return SegmentMap(
        os.path.basename(segment.path),
        base,
        segment.size,
        len(rows),
        segment.end_offset,
        int(rows["max_timestamp"].max(initial=-1)),
        bad,
        None if tail is None else Stretch(tail.position, segment.size - tail.position),
        [Gap(position if gap_base == base else segment.size, first, last) for first, last, gap_base, position in gaps],
    )
