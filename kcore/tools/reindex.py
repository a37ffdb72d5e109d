"""`kcore reindex`: make the files anew that say where things are in a log, from the log."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import chain
from typing import Literal, NamedTuple

from kcore.common.file import clear_the_way, is_file, read_file, unlink, write_atomically
from kcore.common.progress import Progress
from kcore.common.text import counted, json_line
from kcore.errors import CorruptFile, KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import without_path
from kcore.inspect.closed_directory import closed_directory, partitions_under
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
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import encode_entries
from kcore.tools.command_line import DAMAGE, OK, add_json, add_paths, add_reading, positive

#: identical: byte for byte what we would write.  agrees: other entries, and all of them right (IDX-17).
#: damaged is not about a file but about its partition.
Status = Literal["identical", "agrees", "contradicts", "missing", "orphan", "unknown", "damaged"]
_WORDS = {
    "identical": "identical to what the log gives",
    "agrees": "agrees with the log, with other entries than we would write",
    "contradicts": "contradicts the log",
    "missing": "missing",
    "orphan": "no .log beside it",
    "unknown": "cannot be rebuilt: what the producers did before the log's start is not known",
    "damaged": "nothing is rebuilt from a log that is damaged or cannot be read",
}
_SOUND = ("identical", "agrees")


class IndexFile(NamedTuple):
    """One file that reindex is about.  content: what belongs in it; None where there should be no file."""

    path: str
    status: Status
    content: bytes | None = None
    problem: str | None = None

    @property
    def to_write(self) -> bool:
        if self.status == "agrees":
            return self.content is not None
        return self.status in ("contradicts", "missing", "orphan")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, "a partition directory or a data directory, closed")
    add_json(parser, "one JSON object a line for each file")
    add_choices(parser)
    add_reading(parser)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What is to be done, here and by `kcore spark reindex`."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only compare; exit 1 when a file contradicts the log")
    mode.add_argument("--dry-run", action="store_true", help="list what would be written, write nothing")
    parser.add_argument(
        "--index-interval-bytes",
        type=positive,
        default=DEFAULT_INDEX_INTERVAL_BYTES,
        metavar="N",
        help=f"bytes between entries, as index.interval.bytes of the topic; default {DEFAULT_INDEX_INTERVAL_BYTES}",
    )


def run(args: argparse.Namespace) -> int:
    """0; 1 when --check found a contradiction, or a log is damaged or cannot be read.  Raises OSError, DirectoryInUse,
    CorruptFile."""
    bad = written = 0
    directories = [directory for path in args.paths for directory in partitions_under(path)]
    progress = Progress("reindex", log_files.size_under(directories), quiet=args.quiet or args.json)
    only_look = args.check or args.dry_run
    for path in args.paths:
        with closed_directory(path, write=not only_look):
            for directory in partitions_under(path):
                try:
                    found = examine(directory, args.index_interval_bytes, args.jobs, progress)
                except (CorruptFile, OSError) as error:
                    progress.clear()
                    bad += 1
                    progress.findings += 1
                    print(_line(IndexFile(directory, "damaged", problem=str(error)), "refused", args.json))
                    continue
                progress.clear()
                for file in found:
                    bad += args.check and file.status not in _SOUND
                    write = file.to_write and not args.check
                    if write and not args.dry_run:
                        write_index(file)
                    written += write
                    done = ("would write" if args.dry_run else "written") if write else "left"
                    if not args.json and done == "left" and file.status in _SOUND and not args.check:
                        continue
                    print(_line(file, done, args.json))
    if not args.json and not args.check:
        print(f"{counted(written, 'file')} {'to write' if args.dry_run else 'written'}")
    return DAMAGE if bad else OK


def write_index(file: IndexFile) -> None:
    """Replace the file as a whole, or remove it; what is no file there is set aside.  Raises OSError."""
    if not is_file(file.path):
        clear_the_way(file.path)
    elif file.content is None:
        unlink(file.path)
    if file.content is not None:
        write_atomically(file.path, file.content)


def examine(directory: str, index_interval_bytes: int, jobs: int, progress: Progress) -> list[IndexFile]:
    """Every index and snapshot of a partition beside what the log gives.

    Raises OSError, CorruptFile for a log with damage in it: that has to be repaired first.
    """
    partition = PartitionFiles.of(directory)
    segments = scan_all(partition, jobs, progress)
    for segment in segments:
        for damage in segment.damages:
            where = f"position {damage.position}: {damage.problem}"
            raise CorruptFile(f"{segment.path}: {where}; `kcore repair` it first")
        if segment.tail is not None:
            where = f"position {segment.tail.position}: {counted(segment.tail.size, 'byte')} of a batch at its end"
            raise CorruptFile(f"{segment.path}: {where}; open the log once, or `kcore repair` it first")
    return [*_examine(partition, segments, index_interval_bytes)]


def _examine(
    partition: PartitionFiles, segments: list[ScannedSegment], index_interval_bytes: int
) -> Iterator[IndexFile]:
    snapshots = read_snapshots(partition)
    aborted = AbortedTransactions(open_at_start(partition, snapshots))
    for base, segment in zip(partition.bases, segments, strict=True):
        rebuilt = rebuilt_indexes(segment.path, base, index_interval_bytes)
        for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path = partition.file(base, suffix)
            yield _compare(path, rebuilt[suffix], check_index(partition, base, path, segment))
        path = partition.file(base, TXN_INDEX_SUFFIX)
        expected = aborted.of_segment(segment)
        if not aborted.known and os.path.lexists(path):
            yield IndexFile(path, "unknown")
        elif expected or os.path.lexists(path):
            content = encode_entries(expected) if expected else None
            checks = chain(check_small_file(path), check_txn_index(path, base, expected, aborted.markers, segment))
            found = _compare(path, content, checks)
            # One with more entries speaks of transactions that cleaning took: it stays.
            yield found._replace(content=None) if found.status == "agrees" else found
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
    problem = None
    try:
        entries = decode_snapshot(read_file(path), path)
        problem = next(iter(check_snapshots(partition, {offset: entries}, segments)), None)
        if problem is None:
            return IndexFile(path, "agrees")
        text = problem.text
    except KafkaError as error:
        text = without_path(error, path)
    except OSError as error:
        text = unreadable(path, error).text
    content = rebuilt_snapshot(partition.directory, partition.bases, [o for o in good if o != offset], offset)
    return IndexFile(path, "contradicts" if content is not None else "unknown", content, text)


def _line(file: IndexFile, done: str, as_json: bool) -> str:
    if as_json:
        size = None if file.content is None else len(file.content)
        event = {"type": "index", "file": file.path, "status": file.status, "done": done, "size": size}
        return json_line(event | {"problem": file.problem})
    problem = f": {file.problem}" if file.problem else ""
    return f"{file.path}: {_WORDS[file.status]}{problem}; {done}"
