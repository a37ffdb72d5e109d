"""Indexes, transaction indexes and producer snapshots, compared with what the .log files give for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from kcore.common.file import clear_the_way, is_file, read_file, unlink, write_atomically
from kcore.common.progress import Progress
from kcore.common.text import counted
from kcore.errors import CorruptFile, CorruptMessage, KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_checks import check_offsets
from kcore.inspect.batch_reader import without_path
from kcore.inspect.parallel import scan_all
from kcore.inspect.partition_checks import PartitionFiles, Problem, check_index, check_small_file, unreadable
from kcore.inspect.producer_checks import (
    AbortedTransactions,
    check_snapshots,
    check_txn_index,
    open_at_start,
    read_snapshots,
)
from kcore.inspect.rebuild import DEFAULT_INDEX_INTERVAL_BYTES, rebuilt_indexes, rebuilt_snapshot
from kcore.inspect.segment_scan import ScannedSegment
from kcore.log.log_file_names import (
    INDEX_SUFFIXES,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kcore.log.producer_state_entry import ProducerStateEntry
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import encode_entries

#: identical: byte for byte what a rebuild gives.  agrees: other bytes, but nothing in them is wrong (IDX-17).  damaged:
#: not the status of a file but of its partition.
Status = Literal["identical", "agrees", "contradicts", "missing", "orphan", "unknown", "damaged"]


class IndexFile(NamedTuple):
    """One file that reindex checks.  content: what it should contain; None where there should be no file, or the file
    stays as it is.  problem: what contradicts the log; of a snapshot that agrees with the log, what differs from a
    rebuilt one."""

    path: str
    status: Status
    content: bytes | None = None
    problem: str | None = None

    def __repr__(self) -> str:
        size = [] if self.content is None else [counted(len(self.content), "byte")]
        problem = [] if self.problem is None else [repr(self.problem)]
        return f"IndexFile({', '.join([repr(self.path), repr(self.status), *size, *problem])})"

    @property
    def to_write(self) -> bool:
        if self.status == "agrees":
            return self.content is not None
        return self.status in ("contradicts", "missing", "orphan")


def write_index(file: IndexFile) -> None:
    """Replace the file as a whole, or remove it.  A directory or link at its path is renamed.  Raises OSError."""
    if not is_file(file.path):
        clear_the_way(file.path)
    elif file.content is None:
        unlink(file.path)
    if file.content is not None:
        write_atomically(file.path, file.content)


def examine_index_files(
    directory: str,
    *,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[IndexFile]:
    """Every index, transaction index and producer snapshot of a partition directory, each with its status and the
    content that the .log files give for it.  Nothing is written; write_index() does that.

    index_interval_bytes: bytes between two entries of a rebuilt index.  jobs: how many segments are read at a time.
    Raises OSError, CorruptFile for a log with damage in it: that has to be repaired first.
    """
    partition = PartitionFiles.of(directory)
    for name in partition.misplaced:
        misplaced = partition.misplaced_problem(name)
        raise CorruptFile(f"{misplaced.path}: {misplaced.text}; `kcore repair` it first")
    for base in partition.bases:
        if (wrong_name := partition.wrong_name(base)) is not None:
            raise CorruptFile(f"{wrong_name.path}: {wrong_name.text}")
    segments = scan_all(partition, jobs, progress or Progress("reindex", 0, quiet=True))
    for base, segment in zip(partition.bases, segments, strict=True):
        for damage in segment.damages:
            where = f"position {damage.position}: {damage.problem}"
            raise CorruptFile(f"{segment.path}: {where}; `kcore repair` it first")
        for problem in check_offsets(partition, base, segment):
            raise CorruptFile(f"{segment.path}: position {problem.position}: {problem.text}; `kcore repair` it first")
        if segment.tail is not None:
            where = f"position {segment.tail.position}: {counted(segment.tail.size, 'byte')} of a batch at its end"
            raise CorruptFile(f"{segment.path}: {where}; open the log once, or `kcore repair` it first")
    return [*_examine(partition, segments, index_interval_bytes)]


def _examine(
    partition: PartitionFiles, segments: list[ScannedSegment], index_interval_bytes: int
) -> Iterator[IndexFile]:
    snapshots = read_snapshots(partition)
    aborted = AbortedTransactions(open_at_start(partition, snapshots), partition.log_start_offset)
    for base, segment in zip(partition.bases, segments, strict=True):
        rebuilt = rebuilt_indexes(segment.path, base, index_interval_bytes)
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = partition.file(base, suffix)
            yield _compare(path, rebuilt[suffix], check_index(partition, base, path, segment))
        path = partition.file(base, TXN_INDEX_SUFFIX)
        expected = aborted.of_segment(segment)
        if not aborted.start_is_known and os.path.lexists(path):
            yield IndexFile(path, "unknown")
        elif expected or os.path.lexists(path):
            content = encode_entries(expected) if expected else None
            checks = chain(check_small_file(path), check_txn_index(path, base, expected, aborted.markers, segment))
            index_file = _compare(path, content, checks)
            # A file with more entries names transactions that cleaning removed from the log: it stays.
            yield index_file._replace(content=None) if index_file.status == "agrees" else index_file
    for path in log_files.known_files(partition.directory):
        if path.endswith(INDEX_SUFFIXES) and log_files.base_offset_of(path) not in partition.bases:
            yield IndexFile(path, "orphan")
        if path.endswith(SNAPSHOT_SUFFIX):
            yield _compare_snapshot(partition, segments, path, sorted(snapshots))


def _compare(path: str, content: bytes | None, problems: Iterator[Problem]) -> IndexFile:
    if not os.path.lexists(path):
        return IndexFile(path, "missing", content)
    try:
        with log_files.open_file(path) as file:
            if content is not None and file.read(len(content) + 1) == content:
                return IndexFile(path, "identical", content)
    except OSError as error:
        return IndexFile(path, "contradicts", content, unreadable(path, error).text)
    problem = next(problems, None)
    if problem is None:
        return IndexFile(path, "agrees", content)
    return IndexFile(path, "contradicts", content, problem.text)


def _compare_snapshot(
    partition: PartitionFiles, segments: list[ScannedSegment], path: str, good: list[int]
) -> IndexFile:
    offset = log_files.base_offset_of(path)
    assert offset is not None
    others = [other for other in good if other != offset]
    try:
        data = read_file(path)
        entries = decode_snapshot(data, path)
        problem = next(iter(check_snapshots(partition, {offset: entries}, segments)), None)
        if problem is None:
            return _compare_sound_snapshot(partition, path, data, others, offset)
        text = problem.text
    except KafkaError as error:
        text = without_path(error, path)
    except OSError as error:
        text = unreadable(path, error).text
    content = rebuilt_snapshot(partition.directory, partition.bases, others, offset)
    return IndexFile(path, "contradicts" if content is not None else "unknown", content, text)


def _compare_sound_snapshot(
    partition: PartitionFiles, path: str, data: bytes, others: list[int], offset: int
) -> IndexFile:
    """Of a snapshot that contradicts nothing, whose last batches are therefore those of the log."""
    # Only what follows the newest older snapshot is read, so all snapshots together cost one pass over the log.
    older = max((other for other in others if other < offset), default=-1)
    floor = max((base for base in partition.bases if base <= older), default=-1)
    bases = [base for base in partition.bases if base >= floor]
    try:
        rebuilt = rebuilt_snapshot(partition.directory, bases, others, offset)
    except CorruptMessage as error:
        return IndexFile(path, "agrees", None, f"only the last batches were compared, it could not be rebuilt: {error}")
    if rebuilt is None:
        text = "only the last batches were compared: what the producers did before the log's start is not known"
        return IndexFile(path, "agrees", None, text)
    if rebuilt == data:
        return IndexFile(path, "identical", rebuilt)
    # Not rewritten: what is different (a producer that has expired, say) need not be wrong.
    return IndexFile(path, "agrees", None, snapshot_difference(data, rebuilt))


def snapshot_difference(data: bytes, rebuilt: bytes) -> str:
    """The first difference of two producer snapshots whose bytes differ.  Raises CorruptFile."""
    ours = {entry.producer_id: entry for entry in decode_snapshot(rebuilt, "")}
    theirs = {entry.producer_id: entry for entry in decode_snapshot(data, "")}
    for producer in sorted(ours.keys() | theirs.keys()):
        if producer not in theirs:
            return f"producer {producer} of the log is not in the file"
        if producer not in ours:
            return f"the log has no batch of producer {producer}, which is in the file"
        in_log = _stored_fields(ours[producer])
        for name, value in _stored_fields(theirs[producer]).items():
            if value != in_log[name]:
                return f"producer {producer} has {name} {value} in the file, {in_log[name]} from the log"
    return "the same producers, in another order"


def _stored_fields(entry: ProducerStateEntry) -> dict[str, int | None]:
    last = entry.last_batch
    return {
        "producer_epoch": entry.producer_epoch,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_first_offset": entry.current_txn_first_offset,
        "last_sequence": None if last is None else last.last_sequence,
        "last_offset": None if last is None else last.last_offset,
        "offset_delta": None if last is None else last.offset_delta,
    }
