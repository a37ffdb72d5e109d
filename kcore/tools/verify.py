"""`kcore verify`: is every byte of a log what was written?

Checked: of each .log the walk of batches with CRC, the records inside (decompressed, counted), offsets that ascend and
fit between the names of the segments, leader epochs that agree with leader-epoch-checkpoint; the indexes against the
batches they point at (IDX-17); .txnindex, .snapshot, checkpoints and small files by their own rules; after a clean
stop the end of each log against the recovery points.  What no check can find is listed in docs/tools.md.

Nothing is opened as a log and nothing is written, so it may run on a damaged directory.  On a directory in use it may
see a batch that is being written: a partial end is then no damage, as after a crash.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kcore.errors import CorruptFile, KafkaError
from kcore.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
)
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.log_file_names import PARTITION_METADATA_FILE, parse_partition_directory, segment_file
from kcore.log.partition_metadata import read_topic_id
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from kcore.log.transaction_index import decode_entries
from kcore.record.memory_records import MemoryRecords
from kcore.tools import log_files

if TYPE_CHECKING:
    import numpy as np

_MAX_RELATIVE_OFFSET = (1 << 31) - 1
#: What is kept of each batch header until its segment is done: 36 of 88 bytes, for there may be millions.
_COLUMNS = [
    ("position", "i8"),
    ("base_offset", "i8"),
    ("last_offset", "i8"),
    ("max_timestamp", "i8"),
    ("leader_epoch", "i4"),
]


class Problem(NamedTuple):
    """Something wrong.  A warning is what Kafka mends by itself when it opens the log."""

    path: str
    text: str
    offset: int | None = None
    position: int | None = None
    warning: bool = False


@dataclass
class Summary:
    """What was examined, and how long it took."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0
    seconds: float = 0.0
    damaged: int = 0
    warnings: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a file, a partition directory or a data directory")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, the summary last")
    parser.add_argument(
        "--records",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="look into the batches too: decompress, parse and count their records",
    )


def run(args: argparse.Namespace) -> int:
    """0, or 1 when there is damage; warnings alone leave it 0.  Raises OSError, CorruptFile for a path that cannot be
    examined at all."""
    summary = Summary()
    started = time.perf_counter()
    for path in args.paths:
        for problem in verify(path, summary, deep=args.records):
            if problem.warning:
                summary.warnings += 1
            else:
                summary.damaged += 1
            print(_problem_json(problem) if args.json else _problem_text(problem))
    summary.seconds = time.perf_counter() - started
    print(json.dumps({"type": "summary", **vars(summary)}) if args.json else _summary_text(summary))
    return 1 if summary.damaged else 0


def verify(path: str, summary: Summary, *, deep: bool = True) -> Iterator[Problem]:
    """The problems of a file, a partition directory or a data directory; counts into summary what was examined.

    deep: parse the records inside the batches.  Raises OSError, CorruptFile for a path that is nothing of Kafka's.
    """
    if not os.path.isdir(path):
        log_files.files_under(path)
        yield from _verify_file(path, summary, deep)
    elif log_files.is_partition_dir(path):
        yield from _verify_partition(path, summary, deep)
    else:
        directories = log_files.partition_dirs(path)
        files = log_files.known_files(path)
        if not directories and not files:
            raise CorruptFile(f"{path}: neither a partition directory nor one that holds some")
        for file in files:
            yield from _verify_small_file(file, summary, deep)
        for directory in directories:
            yield from _verify_partition(directory, summary, deep)


def _verify_file(path: str, summary: Summary, deep: bool) -> Iterator[Problem]:
    """One file, with what its directory tells about it."""
    kind = log_files.kind_of_named(path)
    base = log_files.base_offset_of(path)
    if kind not in (".log", ".index", ".timeindex") or base is None:
        yield from _verify_small_file(path, summary, deep)
        return
    partition = _Partition.of(os.path.dirname(path) or ".")
    if base not in partition.bases:
        yield Problem(path, "no .log beside this index", warning=True)
        return
    # An index can only be judged by its log; the log's own problems are then not what was asked for.
    log = partition.file(base, ".log")
    wanted = {log: (".index", ".timeindex")} if kind == ".log" else {}
    unseen = Summary()
    for problem in _verify_segment(partition, base, summary if kind == ".log" else unseen, deep and kind == ".log"):
        if problem.path == path or problem.path == log in wanted:
            yield problem
    if kind != ".log":
        summary.files += 1
        summary.bytes += os.path.getsize(path)


@dataclass
class _Partition:
    """What the files around a segment say about it."""

    directory: str
    #: Base offsets of the .log files, ascending.
    bases: list[int]
    epochs: list[EpochEntry] | None
    #: Whether the broker left its marker of a clean stop.
    clean: bool
    recovery_point: int | None

    @classmethod
    def of(cls, directory: str) -> _Partition:
        parent = os.path.dirname(os.path.abspath(directory))
        bases = [log_files.base_offset_of(path) for path in log_files.known_files(directory) if path.endswith(".log")]
        epochs = recovery_point = None
        # A checkpoint that cannot be read is reported where the file itself is verified.
        try:
            epochs = LeaderEpochCheckpointFile(os.path.join(directory, LEADER_EPOCH_CHECKPOINT)).read()
        except KafkaError:
            pass
        name = parse_partition_directory(os.path.basename(os.path.abspath(directory)))
        try:
            points = OffsetCheckpointFile(os.path.join(parent, RECOVERY_POINT_CHECKPOINT)).read()
            recovery_point = points.get(name.topic_partition) if name else None
        except KafkaError:
            pass
        known = sorted(base for base in bases if base is not None)
        return cls(directory, known, epochs, was_clean_shutdown(parent), recovery_point)

    def file(self, base: int, suffix: str) -> str:
        return segment_file(self.directory, base, suffix)

    def next_base(self, base: int) -> int | None:
        """Where the following segment starts; None for the last one."""
        n = bisect.bisect_right(self.bases, base)
        return self.bases[n] if n < len(self.bases) else None


def _verify_partition(directory: str, summary: Summary, deep: bool) -> Iterator[Problem]:
    partition = _Partition.of(directory)
    if not partition.bases:
        yield Problem(directory, "a partition directory without a .log file", warning=True)
    for path in log_files.known_files(directory):
        base = log_files.base_offset_of(path)
        if path.endswith(".log") and base is not None:
            yield from _verify_segment(partition, base, summary, deep)
        elif path.endswith((".index", ".timeindex", ".txnindex")) and base not in partition.bases:
            yield Problem(path, "no .log beside this index", warning=True)
        elif not path.endswith((".index", ".timeindex")):
            yield from _verify_small_file(path, summary, deep)
    for name in log_files.passing_files(directory):
        yield Problem(os.path.join(directory, name), "left by a cleaning or deletion that did not end", warning=True)


@dataclass
class _Batches:
    """The headers of a segment's sound batches, and whether there were others."""

    tables: list[np.ndarray] = field(default_factory=list)
    damaged: bool = False
    tail: log_files.Tail | None = None

    def add(self, table: np.ndarray) -> None:
        import numpy as np

        kept = np.empty(len(table), _COLUMNS)
        for name, _ in _COLUMNS:
            kept[name] = table[name]
        self.tables.append(kept)

    @property
    def incomplete(self) -> bool:
        return self.damaged or self.tail is not None


def _verify_segment(partition: _Partition, base: int, summary: Summary, deep: bool) -> Iterator[Problem]:
    import numpy as np

    path = partition.file(base, ".log")
    found = _Batches()
    yield from _verify_batches(path, found, summary, deep)
    table = np.concatenate(found.tables) if found.tables else np.empty(0, _COLUMNS)
    yield from _verify_offsets(partition, base, path, table)
    yield from _verify_epochs(partition, path, table)
    if found.tail is not None:
        yield _judge_tail(partition, base, path, found.tail)
    elif partition.next_base(base) is None and not found.damaged:
        yield from _verify_end(partition, path, int(table["last_offset"][-1]) + 1 if len(table) else base)
    for suffix in (".index", ".timeindex"):
        index = partition.file(base, suffix)
        if not os.path.isfile(index):
            yield Problem(index, "missing; it is rebuilt when the log is opened", warning=True)
            continue
        summary.files += 1
        yield from _verify_index(partition, base, index, table, found, summary)


def _verify_batches(path: str, found: _Batches, summary: Summary, deep: bool) -> Iterator[Problem]:
    summary.files += 1
    summary.bytes += os.path.getsize(path)
    for item in log_files.read_batches(path):
        if isinstance(item, log_files.Damage):
            found.damaged = True
            yield Problem(path, item.problem, item.offset, item.position)
        elif isinstance(item, log_files.Tail):
            found.tail = item
        else:
            table = item.batches.to_numpy()
            found.add(table)
            summary.batches += len(table)
            summary.records += int(table["count"].sum())
            if deep:
                yield from _verify_records(path, item)


def _verify_records(path: str, records: MemoryRecords) -> Iterator[Problem]:
    for batch in records.batches:
        try:
            batch.records()  # parses and counts all of them before the first is handed out
        except KafkaError as error:
            yield Problem(path, str(error).removeprefix(f"{path}: "), batch.base_offset, batch.position)


def _verify_offsets(partition: _Partition, base: int, path: str, table: np.ndarray) -> Iterator[Problem]:
    """Offsets ascend from batch to batch, and lie between this segment's name and the next one's."""
    import numpy as np

    if not len(table):
        return
    first, last, position = table["base_offset"], table["last_offset"], table["position"]

    def at(n: int, text: str) -> Problem:
        return Problem(path, text, int(first[n]), int(position[n]))

    # Against the highest offset so far: one batch with an offset far too high is then met by its successor.
    highest = np.maximum.accumulate(last)
    for n in np.flatnonzero(first[1:] <= highest[:-1]):
        yield at(int(n) + 1, f"base offset {first[n + 1]} is not above {highest[n]}, the last offset before it")
    for n in np.flatnonzero(first < base):
        yield at(int(n), f"base offset {first[n]} is below {base}, the segment's name")
    limit = partition.next_base(base)
    if limit is None:
        limit = base + _MAX_RELATIVE_OFFSET + 1
    for n in np.flatnonzero(last >= limit):
        yield at(int(n), f"last offset {last[n]} is not below {limit}, where the segment must end")


def _verify_epochs(partition: _Partition, path: str, table: np.ndarray) -> Iterator[Problem]:
    """Leader epochs never fall, and are those of leader-epoch-checkpoint.  The CRC covers neither epoch nor offset."""
    import numpy as np

    epochs = table["leader_epoch"].astype(np.int64)
    if not len(epochs):
        return

    def at(n: int, text: str) -> Problem:
        return Problem(path, text, int(table["base_offset"][n]), int(table["position"][n]))

    for n in np.flatnonzero(epochs < -1):
        yield at(int(n), f"leader epoch {epochs[n]}")
    if not partition.epochs:
        for n in np.flatnonzero(epochs[1:] < np.maximum.accumulate(epochs)[:-1]):
            yield at(int(n) + 1, f"leader epoch {epochs[n + 1]} after a higher one")
        return
    starts = np.array([entry.start_offset for entry in partition.epochs])
    known = np.array([entry.epoch for entry in partition.epochs])
    slot = np.searchsorted(starts, table["base_offset"], "right") - 1
    # Below the first entry nothing is known: those batches lie before the log start offset.
    differs = (slot >= 0) & (epochs >= 0) & (epochs != known[slot])
    # After a crash the checkpoint may lack the last epoch; opening the log adds it from the batches.
    may_be_new = epochs > known[-1] if not partition.clean else np.zeros(len(epochs), bool)
    for n in np.flatnonzero(differs):
        yield at(int(n), f"leader epoch {epochs[n]}, {LEADER_EPOCH_CHECKPOINT} has {known[slot[n]]}")._replace(
            warning=bool(may_be_new[n])
        )


def _judge_tail(partition: _Partition, base: int, path: str, tail: log_files.Tail) -> Problem:
    """A file that ends inside a batch is what a crash leaves, but only at the very end of a log nobody closed."""
    if partition.next_base(base) is None and not partition.clean:
        text = f"unclean tail, recovery will cut {tail.size} bytes"
        return Problem(path, text, tail.offset, tail.position, warning=True)
    return Problem(path, f"the file ends inside a batch: {tail.size} bytes of it", tail.offset, tail.position)


def _verify_end(partition: _Partition, path: str, end_offset: int) -> Iterator[Problem]:
    """What was flushed must be there; after a clean stop that is all of the log."""
    point = partition.recovery_point
    if point is not None and (end_offset < point or (partition.clean and end_offset != point)):
        yield Problem(
            path, f"the log ends at offset {end_offset}, {RECOVERY_POINT_CHECKPOINT} says {point}", end_offset
        )


def _verify_index(
    partition: _Partition, base: int, path: str, table: np.ndarray, found: _Batches, summary: Summary
) -> Iterator[Problem]:
    import numpy as np

    size = os.path.getsize(path)
    if size > log_files.MAX_INDEX_SIZE:
        yield Problem(path, f"{size} bytes are more than an index can have, {log_files.MAX_INDEX_SIZE}")
        return
    is_time = path.endswith(".timeindex")
    dtype = np.dtype([("timestamp", ">i8"), ("offset", ">i4")] if is_time else [("offset", ">i4"), ("position", ">i4")])
    with open(path, "rb") as file:
        data = file.read()
    if rest := len(data) % dtype.itemsize:
        yield Problem(path, f"{len(data)} bytes are no multiple of {dtype.itemsize}", position=len(data) - rest)
    entries = np.frombuffer(data[: len(data) - len(data) % dtype.itemsize], dtype)
    used = np.flatnonzero(entries != np.zeros(1, dtype))
    count = int(used[-1]) + 1 if len(used) else 0
    # The room that an index in use was created with is no data.
    summary.bytes += count * dtype.itemsize
    if count < len(entries) and (partition.clean or partition.next_base(base) is not None):
        # Only the index of a log in use, or of one that crashed, still has the room it was created with.
        yield Problem(path, f"{len(entries) - count} empty entries at the end", position=count * dtype.itemsize)
    entries = entries[:count]
    offsets = entries["offset"].astype(np.int64) + base
    batch = np.searchsorted(table["last_offset"], offsets)  # the batch that holds each entry's offset
    checks = _time_index_checks if is_time else _offset_index_checks
    for n, text in checks(entries, offsets, batch, table, found):
        yield Problem(path, f"entry {n}: {text}", int(offsets[n]), n * dtype.itemsize)


def _offset_index_checks(
    entries: np.ndarray, offsets: np.ndarray, batch: np.ndarray, table: np.ndarray, found: _Batches
) -> Iterator[tuple[int, str]]:
    """IDX-17: the batch at an entry's position is the one that holds its offset."""
    import numpy as np

    for n in np.flatnonzero(offsets[1:] <= offsets[:-1]):
        yield int(n) + 1, f"offset {offsets[n + 1]} is not above {offsets[n]}, the one before it"
    positions = entries["position"]
    inside = batch < len(table)
    expected = np.full(len(entries), -1, np.int64)
    expected[inside] = table["position"][batch[inside]]
    for n in np.flatnonzero(positions != expected):
        # It may point at a batch that could not be read: then only a readable one can contradict it.
        if found.incomplete and not (inside[n] and positions[n] in table["position"]):
            continue
        where = f"that offset lies in the batch at {expected[n]}" if inside[n] else "no batch holds that offset"
        yield int(n), f"offset {offsets[n]} at position {positions[n]}: {where}"


def _time_index_checks(
    entries: np.ndarray, offsets: np.ndarray, batch: np.ndarray, table: np.ndarray, found: _Batches
) -> Iterator[tuple[int, str]]:
    """An entry names the record that had the highest timestamp so far: its batch has that maximum."""
    import numpy as np

    timestamps = entries["timestamp"].astype(np.int64)
    for n in np.flatnonzero((timestamps[1:] <= timestamps[:-1]) | (offsets[1:] < offsets[:-1])):
        yield int(n) + 1, f"({timestamps[n + 1]}, {offsets[n + 1]}) is not above ({timestamps[n]}, {offsets[n]})"
    inside = batch < len(table)
    expected = np.full(len(entries), -1, np.int64)
    expected[inside] = table["max_timestamp"][batch[inside]]
    holds = np.zeros(len(entries), bool)
    holds[inside] = table["base_offset"][batch[inside]] <= offsets[inside]
    for n in np.flatnonzero((timestamps != expected) | ~holds):
        if found.incomplete and not holds[n]:
            continue
        where = f"its batch has maximum {expected[n]}" if holds[n] else "no batch holds that offset"
        yield int(n), f"timestamp {timestamps[n]} at offset {offsets[n]}: {where}"


def _verify_small_file(path: str, summary: Summary, deep: bool) -> Iterator[Problem]:
    """A file that can be judged by itself."""
    kind = log_files.kind_of_named(path)
    if kind == ".log":
        found = _Batches()
        yield from _verify_batches(path, found, summary, deep)
        if found.tail is not None:
            text = f"the file ends inside a batch: {found.tail.size} bytes of it"
            yield Problem(path, text, found.tail.offset, found.tail.position)
        return
    summary.files += 1
    summary.bytes += os.path.getsize(path)
    try:
        if kind == ".txnindex":
            yield from _verify_txn_index(path)
        elif kind == ".snapshot":
            with open(path, "rb") as file:
                decode_snapshot(file.read(), path)
        elif kind == "offset-checkpoint":
            OffsetCheckpointFile(path).read()
        elif kind == LEADER_EPOCH_CHECKPOINT:
            yield from _verify_epoch_entries(path)
        elif kind == PARTITION_METADATA_FILE:
            read_topic_id(os.path.dirname(path))
        elif kind == log_files.META_PROPERTIES_FILE and "version" not in log_files.read_properties(path):
            yield Problem(path, "there is no version")
    except KafkaError as error:
        yield Problem(path, str(error).removeprefix(f"{path}: "))


def _verify_txn_index(path: str) -> Iterator[Problem]:
    with open(path, "rb") as file:
        entries = decode_entries(file.read(), path, log_files.base_offset_of(path) or 0)
    for n, txn in enumerate(entries):
        if txn.producer_id < 0 or not 0 <= txn.first_offset <= txn.last_offset:
            text = f"{txn} cannot be"
        elif not 0 <= txn.last_stable_offset <= txn.last_offset + 1:
            text = f"last stable offset {txn.last_stable_offset} is above the abort at {txn.last_offset}"
        else:
            continue
        yield Problem(path, f"entry {n}: {text}", txn.last_offset, n * TXN_ENTRY_SIZE)


def _verify_epoch_entries(path: str) -> Iterator[Problem]:
    entries = LeaderEpochCheckpointFile(path).read()
    for n, (before, after) in enumerate(itertools.pairwise(entries), 4):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            yield Problem(path, f"line {n}: {after} after {before}", after.start_offset)


def _problem_json(problem: Problem) -> str:
    """The keys of what `kcore dump --json` says about damage."""
    event = {
        "type": "warning" if problem.warning else "damage",
        "file": problem.path,
        "offset": problem.offset,
        "position": problem.position,
        "problem": problem.text,
    }
    return json.dumps(event)


def _problem_text(problem: Problem) -> str:
    places = [
        f"{name} {value}"
        for name, value in (("offset", problem.offset), ("position", problem.position))
        if value is not None
    ]
    word = "warning: " if problem.warning else ""
    return f"{problem.path}: {word}{', '.join(places)}{': ' if places else ''}{problem.text}"


def _summary_text(summary: Summary) -> str:
    rate = summary.bytes / summary.seconds / 1e9 if summary.seconds else 0.0
    what = f"{summary.files} files, {summary.bytes} bytes, {summary.batches} batches, {summary.records} records"
    verdict = f"{summary.damaged} damaged places" if summary.damaged else "no damage"
    warnings = f", {summary.warnings} warnings" if summary.warnings else ""
    return f"{what} in {summary.seconds:.3f} s ({rate:.2f} GB/s): {verdict}{warnings}"
