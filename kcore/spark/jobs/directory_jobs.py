"""Jobs that check and compare data directories, spread over Spark's tasks: verify, reindex, diff.

The jobs run the code of the `kcore` commands (kcore.inspect), cut into tasks, and return the findings as a DataFrame.
Paths must be readable under the same names on the driver and the executors.  Progress goes to stderr.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa

from kcore.common.progress import Progress, phase
from kcore.common.text import json_line, plain_error
from kcore.errors import CorruptFile, KafkaError
from kcore.inspect import log_files
from kcore.inspect.directories import closed_directory, partitions_under
from kcore.inspect.index_files import IndexFile, examine_index_files, write_index
from kcore.inspect.partition_checks import PartitionFiles, unreadable
from kcore.inspect.producer_checks import essence_of
from kcore.inspect.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from kcore.inspect.replica_diff import compare, diff_event, paired_partitions
from kcore.inspect.segment_scan import ScannedSegment
from kcore.inspect.verifier import Examined, Verifier, problem_event
from kcore.log.log_file_names import LOG_SUFFIX
from kcore.spark.jobs.job_runner import Sized, balanced, checked, frame_of, parallelism, run_tasks, target_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUIET = Progress("", 0, quiet=True)

# -- verify -----------------------------------------------------------------------------------------------------------

_FINDING = pa.struct(
    [
        ("type", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("position", pa.int64()),
        ("problem", pa.string()),
        ("kind", pa.string()),
        ("last_offset", pa.int64()),
        ("gaps", pa.int64()),
    ]
)
_VERIFIED = pa.schema(
    [
        ("directory", pa.string()),
        ("file", pa.string()),
        ("files", pa.int32()),
        ("bytes", pa.int64()),
        ("read", pa.int64()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("damaged", pa.int32()),
        ("warnings", pa.int32()),
        ("gaps", pa.int64()),
        ("findings", pa.list_(_FINDING)),
    ]
)


class _Piece(NamedTuple):
    """Some segments of a partition; bases None: the whole partition with all its files."""

    directory: str
    bases: tuple[int, ...] | None = None


def verify(
    spark: SparkSession,
    *paths: str,
    records: bool = True,
    compacted: bool = False,
    tasks: int | None = None,
    max_task_bytes: int | None = None,
    quiet: bool = False,
) -> DataFrame:
    """Every CRC, every index, every record counted, as `kcore verify` does it.

    A row for each segment with its indexes (file: its .log), and one for the rest of each partition and of each data
    directory (file null): directory, file, files, bytes, read (without the holes of
    sparse files), batches, records, damaged, warnings, gaps, findings (type
    "damage", "warning" or "gap", and the other keys of `kcore verify --json`).  Partitions larger than a task are cut
    between segments.  records: look into batches too, as --records.  compacted: gaps between offsets are no damage, as
    --compacted.  tasks: at least so many; default: as many as run at a time.
    max_task_bytes: how large they may be; default: an even share of all, but not more than 512 MiB.
    Raises FileNotFoundError, CorruptFile for a path that holds no log; an unreadable file inside is a finding.
    """
    pieces: list[Sized[_Piece]] = []
    cut: dict[str, PartitionFiles] = {}
    rows: list[dict[str, Any]] = []
    verifier = Verifier(records, _QUIET, compacted=compacted)
    with phase("verify: listing files", quiet=quiet):
        directories = [directory for path in checked(paths) for directory in partitions_under(path)]
        tasks = tasks or parallelism(spark)
        target = max_task_bytes or target_bytes(log_files.size_under(directories), tasks)
        for directory in directories:
            partition, partition_pieces = _pieces(directory, target)
            pieces += partition_pieces
            if partition is not None:
                cut[directory] = partition
        for path in paths:
            if not log_files.is_partition_dir(path):
                rows.append(_verified(path, None, _own_files(verifier, path)))
        planned = balanced(pieces, tasks, target)
    scanned: dict[str, list[ScannedSegment]] = {directory: [] for directory in cut}
    for task_rows, essences in run_tasks(
        spark, "verify", planned, partial(_verify_pieces, records, compacted), quiet=quiet
    ):
        rows += task_rows
        for directory, essence in essences:
            scanned[directory].append(essence)
    for directory, partition in cut.items():
        rows.append(_verified(directory, None, verifier.rest(partition, scanned[directory])))
    rows.sort(key=lambda row: (row["directory"], row["file"] is None, row["file"]))
    return frame_of(spark, rows, _VERIFIED)


def _own_files(verifier: Verifier, data_dir: str) -> Examined:
    """The files of a data directory beside its partitions."""
    result = Examined()
    for file in log_files.known_files(data_dir):
        examined = verifier.small_file(file)()
        result.counts.add(examined.counts)
        result.problems += examined.problems
    return result


def _pieces(directory: str, target: int) -> tuple[PartitionFiles | None, list[Sized[_Piece]]]:
    """A small partition as one piece; a large one as its PartitionFiles and pieces of neighbouring segments."""
    if (total := log_files.size_under([directory])) <= target:
        return None, [Sized(total, _Piece(directory))]
    sizes = {path: log_files.size_of(path) for path in log_files.known_files(directory)}
    partition = PartitionFiles.of(directory)
    pieces: list[Sized[_Piece]] = []
    room = 0
    for base in partition.bases:
        size = sum(n for path, n in sizes.items() if log_files.base_offset_of(path) == base)
        if pieces and size <= room:
            pieces[-1] = Sized(pieces[-1].size + size, _Piece(directory, (*(pieces[-1].work.bases or ()), base)))
            room -= size
        else:
            pieces.append(Sized(size, _Piece(directory, (base,))))
            room = target - size
    return partition, pieces


def _verify_pieces(
    records: bool, compacted: bool, pieces: list[_Piece]
) -> tuple[list[dict[str, Any]], list[tuple[str, ScannedSegment]]]:
    """Rows, and for segments of partitions that were cut the data that checks across segments need."""
    verifier = Verifier(records, _QUIET, compacted=compacted)
    rows: list[dict[str, Any]] = []
    essences: list[tuple[str, ScannedSegment]] = []
    for piece in pieces:
        try:
            partition = PartitionFiles.of(piece.directory)
        except OSError as error:
            rows.append(_verified(piece.directory, None, Examined(problems=[unreadable(piece.directory, error)])))
            continue
        scanned: list[ScannedSegment] = []
        for base in partition.bases if piece.bases is None else piece.bases:
            examined = verifier.segment(partition, base, scanned)()
            rows.append(_verified(piece.directory, partition.file(base, LOG_SUFFIX), examined))
            if piece.bases is not None:
                essences.append((piece.directory, essence_of(partition, base, scanned.pop())))
        if piece.bases is None:
            rows.append(_verified(piece.directory, None, verifier.rest(partition, scanned)))
    return rows, essences


def _verified(directory: str, file: str | None, examined: Examined) -> dict[str, Any]:
    counts, problems = examined.counts, examined.problems
    return {
        "directory": directory,
        "file": file,
        "files": counts.files,
        "bytes": counts.bytes,
        "read": counts.read,
        "batches": counts.batches,
        "records": counts.records,
        "damaged": sum(problem.damage for problem in problems),
        "warnings": sum(problem.warning for problem in problems),
        "gaps": sum(problem.gaps for problem in problems if problem.explained),
        "findings": [problem_event(problem) for problem in problems],
    }


# -- reindex ----------------------------------------------------------------------------------------------------------

_REINDEXED = pa.schema(
    [
        ("directory", pa.string()),
        ("file", pa.string()),
        ("status", pa.string()),
        ("done", pa.string()),
        ("size", pa.int64()),
        ("problem", pa.string()),
    ]
)


def reindex(
    spark: SparkSession,
    *paths: str,
    mode: Literal["write", "check", "dry-run"] = "write",
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    tasks: int | None = None,
    quiet: bool = False,
) -> DataFrame:
    """Rebuilds the indexes, transaction indexes and snapshots of closed directories that contradict their log or are
    missing, as `kcore reindex`; status and done have the values of that command.

    A row for each file: directory, file, status, done, size of the correct content, problem; done is "refused" in the
    one row of a partition whose log is damaged.  One task processes a whole partition; the driver holds the locks of
    the directories.  Raises ValueError for another mode, DirectoryInUse, OSError, CorruptFile for a path that holds no
    log.
    """
    if mode not in ("write", "check", "dry-run"):
        raise ValueError(f"mode {mode!r}, expected 'write', 'check' or 'dry-run'")
    with ExitStack() as locks:
        pieces = []
        with phase("reindex: listing files", quiet=quiet):
            for path in checked(paths):
                locks.enter_context(closed_directory(path, write=mode == "write"))
                pieces += [Sized(log_files.size_under([directory]), directory) for directory in partitions_under(path)]
        work = partial(_reindex_partitions, mode, index_interval_bytes)
        rows_by_task = run_tasks(spark, "reindex", balanced(pieces, tasks or parallelism(spark)), work, quiet=quiet)
    rows = sorted((row for rows in rows_by_task for row in rows), key=lambda row: (row["directory"], row["file"]))
    return frame_of(spark, rows, _REINDEXED)


def _reindex_partitions(mode: str, index_interval_bytes: int, directories: list[str]) -> list[dict[str, Any]]:
    rows = []
    for directory in directories:
        try:
            files = examine_index_files(directory, index_interval_bytes=index_interval_bytes)
        except (CorruptFile, OSError) as error:
            refused = IndexFile(directory, "damaged", problem=plain_error(error))
            rows.append(_reindexed(directory, refused, "refused"))
            continue
        for file in files:
            if not file.to_write or mode == "check":
                done = "left"
            elif mode == "dry-run":
                done = "would write"
            else:
                write_index(file)
                done = "written"
            rows.append(_reindexed(directory, file, done))
    return rows


def _reindexed(directory: str, file: IndexFile, done: str) -> dict[str, Any]:
    return {
        "directory": directory,
        "file": file.path,
        "status": file.status,
        "done": done,
        "size": None if file.content is None else len(file.content),
        "problem": file.problem,
    }


# -- diff -------------------------------------------------------------------------------------------------------------

_DIFFERENCE = pa.schema(
    [
        ("partition", pa.string()),
        ("a", pa.string()),
        ("b", pa.string()),
        ("equal", pa.bool_()),
        ("start", pa.int64()),
        ("common_end", pa.int64()),
        ("common_bytes_a", pa.int64()),
        ("common_bytes_b", pa.int64()),
        ("first_difference", pa.int64()),
        ("batch_fields", pa.list_(pa.string())),
        ("record_fields", pa.list_(pa.string())),
        ("records_only_a", pa.int64()),
        ("records_only_b", pa.int64()),
        ("records_missing_in_a", pa.int64()),
        ("records_missing_in_b", pa.int64()),
        ("rewritten", pa.int64()),
        ("damage", pa.list_(pa.string())),
        ("detail", pa.string()),
    ]
)


def diff(
    spark: SparkSession,
    a: str,
    b: str,
    *,
    gaps_are_cleaning: bool = False,
    tasks: int | None = None,
    quiet: bool = False,
) -> DataFrame:
    """Two data directories, or two directories of one partition, compared as by `kcore diff`.

    A row for each partition: whether it is equal, the offsets from start to common_end that both have alike and the
    bytes they take, the first offset that differs and in which fields, records after the other's end (records_only_*),
    records that one side lacks between others (records_missing_in_*: a difference unless cleaning took them, or
    gaps_are_cleaning says so), batches of other bytes with the same records (rewritten).  A partition that one side
    lacks has null for it.  detail: the line of `kcore diff --json`.  One
    task processes a whole partition.  Raises OSError, CorruptFile, NotAPartitionDirectory.
    """
    with phase("diff: listing files", quiet=quiet):
        pairs = list(paired_partitions(a, b))
        pieces = [Sized(log_files.size_under(side for side in pair if side is not None), pair) for pair in pairs]
    work = balanced(pieces, tasks or parallelism(spark))
    rows = [
        row
        for rows in run_tasks(spark, "diff", work, partial(_diff_pairs, gaps_are_cleaning), quiet=quiet)
        for row in rows
    ]
    rows.sort(key=lambda row: row["partition"])
    return frame_of(spark, rows, _DIFFERENCE)


def _diff_pairs(gaps_are_cleaning: bool, pairs: list[tuple[str | None, str | None]]) -> list[dict[str, Any]]:
    rows = []
    for a, b in pairs:
        row: dict[str, Any] = dict.fromkeys(_DIFFERENCE.names)
        row |= {"partition": os.path.basename(os.path.abspath(a or b or "")), "a": a, "b": b, "equal": False}
        rows.append(row)
        if a is None or b is None:
            continue
        try:
            diff_of_replicas = compare(a, b, gaps_are_cleaning=gaps_are_cleaning)
        except (OSError, KafkaError) as error:
            row["damage"] = [plain_error(error)]
            continue
        divergence = diff_of_replicas.divergence
        row |= {
            "equal": diff_of_replicas.equal,
            "start": diff_of_replicas.start,
            "common_end": diff_of_replicas.common_end,
            "common_bytes_a": diff_of_replicas.common_bytes[0],
            "common_bytes_b": diff_of_replicas.common_bytes[1],
            "first_difference": divergence and divergence.offset,
            "batch_fields": divergence.batch_fields if divergence else [],
            "record_fields": divergence.record_fields if divergence else [],
            "records_only_a": diff_of_replicas.only_a.records if diff_of_replicas.only_a else 0,
            "records_only_b": diff_of_replicas.only_b.records if diff_of_replicas.only_b else 0,
            "records_missing_in_a": sum(gap.records for gap in diff_of_replicas.gaps if gap.missing_in == "a"),
            "records_missing_in_b": sum(gap.records for gap in diff_of_replicas.gaps if gap.missing_in == "b"),
            "rewritten": diff_of_replicas.rewritten,
            "damage": diff_of_replicas.damages,
            "detail": json_line(diff_event(diff_of_replicas)),
        }
    return rows
