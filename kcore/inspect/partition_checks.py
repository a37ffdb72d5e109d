"""Checks of a partition's files against each other: offsets and epochs of the batches, indexes, the end of the log."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.file import read_file
from kcore.common.text import counted, date_of, some_of
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import without_path
from kcore.inspect.index_contents import IndexContents as IndexContents
from kcore.inspect.index_contents import read_index as read_index
from kcore.inspect.misplaced_segments import Surroundings, misplaced_segments
from kcore.inspect.segment_names import wrong_names
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    EpochEntry,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
)
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.log_file_names import (
    CLEAN_SHUTDOWN_FILE,
    LOG_SUFFIX,
    LOST_RECORDS_FILE,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    STRAY_DIR_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_partition_directory,
    segment_file,
)
from kcore.log.lost_records import meaning_of, read_mark
from kcore.log.overflowed_segment import MAX_RELATIVE_OFFSET
from kcore.log.partition_metadata import read_topic_id
from kcore.log.producer_state_manager import decode_snapshot
from kcore.log.transaction_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from kcore.log.transaction_index import decode_entries

if TYPE_CHECKING:
    import numpy as np


#: Of the wrong entries of an index so many are reported one by one, the others together.
_SHOWN_ENTRIES = 10


class Problem(NamedTuple):
    """Something wrong.  A warning: Kafka mends it when it opens the log, or does not need what is missing."""

    path: str
    text: str
    offset: int | None = None
    position: int | None = None
    warning: bool = False
    #: For a gap, the last missing offset; `offset` is the first one.
    last_offset: int | None = None
    #: How many gaps this problem stands for; 0 if it is not about gaps.
    gaps: int = 0
    #: Gaps that compaction left.  Neither damage nor a warning.
    explained: bool = False
    #: A file has a wrong name, or is another log's: only a person can know which, so a repair leaves the log alone.
    is_wrong_name: bool = False
    #: A gap before the last files, which are empty: they may not be of the log.
    is_before_empty: bool = False
    #: A file is not a segment of the log: a broker that starts may cut off a part of a sound one for it.
    is_misplaced: bool = False

    @property
    def damage(self) -> bool:
        return not self.warning and not self.explained


def unreadable(path: str, error: OSError) -> Problem:
    return Problem(path, f"cannot be read: {error.strerror or error}")


def check_other_logs(directory: str) -> Iterator[Problem]:
    """Files of a partition's directory that end as a segment and have no segment's name.  Raises OSError."""
    for name in sorted(os.listdir(directory)):
        stem, suffix = os.path.splitext(name)
        if suffix == LOG_SUFFIX and log_files.kind_of(name) is None:
            text = "no broker reads it: a segment's name has 20 digits"
            if stem.isascii() and stem.isdigit():
                text += f"; if it is one, rename it to {segment_file('', int(stem), LOG_SUFFIX)}"
            yield Problem(os.path.join(directory, name), text, warning=True)


def as_far_as_readable(path: str, problems: Iterable[Problem]) -> list[Problem]:
    """The problems of a file as a list; an OSError while they are collected becomes one more problem."""
    problems_of_file: list[Problem] = []
    try:
        problems_of_file.extend(problems)
    except OSError as error:
        problems_of_file.append(unreadable(path, error))
    return problems_of_file


@lru_cache(maxsize=16)
def _checkpointed(path: str, state: tuple[int, ...]) -> dict[TopicPartition, int]:
    """A checkpoint's offsets, parsed once for all partitions, since the file has a line for each of them.
    state: inode, size and modification time, so that a changed file is parsed again."""
    return OffsetCheckpointFile(path).read()


@dataclass
class PartitionFiles:
    """What the other files of a partition, and the checkpoints of its data directory, say about its segments."""

    directory: str
    topic_partition: TopicPartition | None
    #: Base offsets of the segments, ascending: the names of the .log files, but for those of `names` and `misplaced`.
    bases: list[int]
    #: None where the checkpoint cannot be read, empty where there is none.
    epochs: list[EpochEntry] | None
    #: Whether the marker of a clean shutdown is in the data directory, and the log is not a stray one.
    clean: bool
    #: Checkpoint name -> this partition's offset, for the checkpoints of the data directory that have one.
    checkpoints: dict[str, int] = field(default_factory=dict)
    #: The first offset that the mark of lost records names; None where there is none that can be read.
    lost_from: int | None = None
    #: Base offset -> name of each segment whose files have a wrong name (segment_names.py).
    names: dict[int, int] = field(default_factory=dict)
    #: Name -> why the .log with this name, and its indexes, are not a segment of this log (misplaced_segments.py).
    misplaced: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: str) -> PartitionFiles:
        """Ignores a checkpoint that cannot be read: the check of that file reports it."""
        parent = os.path.dirname(os.path.abspath(directory))
        bases = [log_files.base_offset_of(path) for path in log_files.known_files(directory) if path.endswith(".log")]
        name = parse_partition_directory(os.path.basename(os.path.abspath(directory)))
        tp = name.topic_partition if name else None
        epochs = lost_from = None
        with contextlib.suppress(KafkaError, OSError):
            lost_from = read_mark(directory)
        try:
            epochs = LeaderEpochCheckpointFile(os.path.join(directory, LEADER_EPOCH_CHECKPOINT)).read()
        except (KafkaError, OSError):
            pass
        checkpoints = {}
        # No checkpoint has a line for a stray log: the line of its partition is about the log in use.  A stray log was
        # put aside as it was, perhaps after a crash, so the marker of a clean shutdown is not about it either.
        is_stray = name is not None and name.mark == STRAY_DIR_SUFFIX
        for checkpoint in () if is_stray else log_files.OFFSET_CHECKPOINTS:
            try:
                path = os.path.join(parent, checkpoint)
                now = os.stat(path)
                offsets = _checkpointed(path, (now.st_ino, now.st_size, now.st_mtime_ns))
            except (KafkaError, OSError):
                continue
            if tp in offsets:
                checkpoints[checkpoint] = offsets[tp]
        base_offsets = sorted(base for base in bases if base is not None)
        clean = was_clean_shutdown(parent) and not is_stray
        names = wrong_names(directory, base_offsets)
        if clean and (end := checkpoints.get(RECOVERY_POINT_CHECKPOINT)) is not None:
            # From the end of the log on nothing is the log's, whatever its name.
            names = {base: file_name for base, file_name in names.items() if base < end}
        base_offsets = sorted({*base_offsets} - {*names.values()} | {*names})
        partition = cls(directory, tp, base_offsets, epochs, clean, checkpoints, lost_from, names)
        point = checkpoints.get(RECOVERY_POINT_CHECKPOINT)
        surroundings = Surroundings(
            base_offsets,
            partition.file,
            checkpoints.get(LOG_START_OFFSET_CHECKPOINT, 0),
            point or 0,
            once_reached(partition),
            point if clean and point == once_reached(partition) else None,
            clean,
            epochs or (),
        )
        partition.misplaced = misplaced_segments(surroundings)
        partition.bases = [base for base in base_offsets if base not in partition.misplaced]
        return partition

    @property
    def log_start_offset(self) -> int:
        first_base = self.bases[0] if self.bases else 0
        return max(first_base, self.checkpoints.get(LOG_START_OFFSET_CHECKPOINT, 0))

    def epoch_starts(self, rows: Rows) -> list[int]:
        """The offsets with which leader epochs begin: a truncation inside a batch leaves a gap before such an offset.
        rows: what is asked where there is no leader-epoch-checkpoint."""
        import numpy as np

        if self.epochs:
            return [entry.start_offset for entry in self.epochs]
        begins = np.flatnonzero(np.diff(rows["leader_epoch"])) + 1
        first, right_after = rows["base_offset"], rows["last_offset"][begins - 1] + 1
        following = np.append(first[1:], np.iinfo(np.int64).max)[begins]
        # One that does not fit is wrong: then the epoch begins somewhere after the batch before.
        fits = (right_after <= first[begins]) & (first[begins] < following)
        starts: list[int] = np.where(fits, first[begins], right_after + 1).tolist()
        return starts

    def file(self, base: int, suffix: str) -> str:
        # The name of a snapshot is no base offset.
        name = base if suffix == SNAPSHOT_SUFFIX else self.names.get(base, base)
        return segment_file(self.directory, name, suffix)

    def base_of(self, path: str) -> int | None:
        """The base offset of the segment that a file belongs to by its name; None for another file."""
        name = log_files.base_offset_of(path)
        return next((base for base, wrong in self.names.items() if wrong == name), name)

    def wrong_name(self, base: int) -> Problem | None:
        """The problem of a segment whose files have a wrong name."""
        if base not in self.names:
            return None
        path = self.file(base, LOG_SUFFIX)
        text = (
            f"the name is wrong: the batches begin at offset {base}, and go on without a gap, so no record is missing; "
            f"rename the .log, and the indexes that have this name, to {segment_file('', base, '')}.*"
        )
        return Problem(path, text, base, 0, is_wrong_name=True)

    def misplaced_problem(self, name: int) -> Problem:
        """The problem of a segment that is not one of this log."""
        return Problem(self.file(name, LOG_SUFFIX), self.misplaced[name], is_misplaced=True)

    def next_base(self, base: int) -> int | None:
        """Where the following segment starts; None for the last one."""
        n = bisect.bisect_right(self.bases, base)
        return self.bases[n] if n < len(self.bases) else None


def end_limit(partition: PartitionFiles, base: int) -> int:
    """The first offset that a segment cannot hold."""
    following = partition.next_base(base)
    return base + MAX_RELATIVE_OFFSET + 1 if following is None else following


def inside_segment(rows: Rows, first: np.ndarray, last: np.ndarray, base: int, limit: int) -> np.ndarray:
    """bool[n]: whether the segment can hold a batch with these offsets.  A batch that does not begin at position 0 has
    at least one offset before it.  limit: end_limit()."""
    inside: np.ndarray = (first >= base + (rows["position"] > 0)) & (last < limit)
    return inside


def end_of_segment(partition: PartitionFiles, base: int) -> int | None:
    """The offset at which the segment ends, None if it is not certain.  (A segment may end below the next one's name
    where compaction or a truncation left a gap.)"""
    following = partition.next_base(base)
    if following is not None:
        return following
    return partition.checkpoints.get(RECOVERY_POINT_CHECKPOINT) if partition.clean else None


def once_reached(partition: PartitionFiles) -> int:
    """The end that the log had at least once, by its checkpoints; 0 if they say nothing.  The high watermark is not
    above the end of the log that it was written for."""
    names = (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT)
    return max(partition.checkpoints.get(name, 0) for name in names)


def longest_ascending(first: np.ndarray, last: np.ndarray, *, strictly: bool = True) -> np.ndarray:
    """bool[n]: which elements form a longest subsequence in which each `first` is above the `last` of the element
    before it, or equal to it if not strictly."""
    import numpy as np

    if len(first) < 2 or ((first[1:] > last[:-1]) if strictly else (first[1:] >= last[:-1])).all():
        return np.ones(len(first), bool)
    # Patience sorting: of the subsequences of n + 1 elements so far, tails[n] is the last element of the lowest one.
    tails: list[int] = []
    ends: list[int] = []
    before = [-1] * len(first)
    for n, (begin, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        length = bisect.bisect_left(ends, begin) if strictly else bisect.bisect_right(ends, begin)
        before[n] = tails[length - 1] if length else -1
        if length == len(tails):
            tails.append(n)
            ends.append(end)
        elif end < ends[length]:
            tails[length], ends[length] = n, end
    mask = np.zeros(len(first), bool)
    n = tails[-1]
    while n >= 0:
        mask[n] = True
        n = before[n]
    return mask


def lone_log_problems(segment: ScannedSegment) -> Iterator[Problem]:
    """The problems of a file of batches that belongs to no log here, so it is not compared with other files."""
    for damage in segment.damages + segment.bad_records:
        yield Problem(segment.path, damage.problem, damage.offset, damage.position)
    for row in segment.batches[segment.batches["base_offset"] < 0]:
        yield Problem(segment.path, f"base offset {row['base_offset']}", int(row["base_offset"]), int(row["position"]))
    if (tail := segment.tail) is not None:
        yield Problem(
            segment.path,
            f"the file ends inside a batch: {counted(tail.size, 'byte')} of it",
            tail.offset,
            tail.position,
        )


def check_end(partition: PartitionFiles, path: str, end_offset: int) -> Iterator[Problem]:
    """Compares the end of the log with the checkpoints: the log reaches the recovery point, and after a clean shutdown
    it ends there."""
    point = partition.checkpoints.get(RECOVERY_POINT_CHECKPOINT)
    if point is not None and (end_offset < point or (partition.clean and end_offset != point)):
        text = f"the log ends at offset {end_offset}, {RECOVERY_POINT_CHECKPOINT} says {point}"
        if end_offset < point:
            text += f": offsets {end_offset}..{point - 1} are missing"
        yield Problem(path, text, end_offset)
    for name, mended in (
        # A log that starts after its end is emptied when it is opened.
        (LOG_START_OFFSET_CHECKPOINT, False),
        (REPLICATION_OFFSET_CHECKPOINT, True),
        (CLEANER_OFFSET_CHECKPOINT, True),
    ):
        offset = partition.checkpoints.get(name)
        if offset is not None and offset > end_offset:
            text = f"the log ends at offset {end_offset}, {name} says {offset}"
            if name == REPLICATION_OFFSET_CHECKPOINT:
                text += f": offsets {end_offset}..{offset - 1} are missing"
            yield Problem(path, text, end_offset, warning=mended)
    for entry in partition.epochs or ():
        if entry.start_offset > end_offset:
            yield Problem(
                os.path.join(partition.directory, LEADER_EPOCH_CHECKPOINT),
                f"epoch {entry.epoch} starts at {entry.start_offset}, the log ends at {end_offset}",
                entry.start_offset,
                warning=not partition.clean,
            )


def beyond_recovery_point(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Problem | None:
    """Batches of the last segment after a gap and beyond the recovery point of a clean stop: the log cannot have had
    them there.  Without a gap before them they are right, and the checkpoint is wrong; so too if the high watermark is
    beyond it."""
    import numpy as np

    point = partition.checkpoints.get(RECOVERY_POINT_CHECKPOINT)
    if point is None or not partition.clean or once_reached(partition) > point:
        return None
    rows = segment.batches
    beyond = np.flatnonzero(rows["last_offset"] >= point)
    if not len(beyond):
        return None
    n = int(beyond[0])
    first = int(rows["last_offset"][n - 1]) + 1 if n else base
    if not first <= point or int(rows["base_offset"][n]) <= first:
        return None
    text = (
        f"the log ends at offset {int(rows['last_offset'][-1]) + 1}, {RECOVERY_POINT_CHECKPOINT} says {point}: from "
        f"offset {first} on the offsets of the batches are not certain, so `kcore repair` changes no file of this "
        "partition; delete this replica and have it fetched again, or, if no other one has the records, delete "
        f"{CLEAN_SHUTDOWN_FILE} and repair it: the batches then stay at these offsets"
    )
    return Problem(segment.path, text, first, int(rows["position"][n]))


def epochs_of(tables: Iterable[Rows]) -> list[EpochEntry]:
    """The entries that leader-epoch-checkpoint should have, from the batches alone; without as few batches as possible
    where epochs fall."""
    rows = Rows.of(list(tables))
    rows = rows[rows["leader_epoch"] >= 0]
    rows = rows[longest_ascending(rows["leader_epoch"], rows["leader_epoch"], strictly=False)]
    entries: list[EpochEntry] = []
    for row in rows[_is_new(rows["leader_epoch"])]:
        entries.append(EpochEntry(int(row["leader_epoch"]), int(row["base_offset"])))
    return entries


def _is_new(values: np.ndarray) -> np.ndarray:
    """bool[n]: whether each value differs from the one before it."""
    import numpy as np

    new = np.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def check_index(
    partition: PartitionFiles, base: int, path: str, segment: ScannedSegment, contents: IndexContents | None = None
) -> Iterator[Problem]:
    """A .index or .timeindex against the batches of its segment (IDX-17).  contents: what was read of it before those
    were, because a log in use goes on; None: it is read now.  Raises OSError."""
    import numpy as np

    size = os.path.getsize(path)
    if size > log_files.MAX_INDEX_SIZE:
        yield Problem(path, f"{size} bytes are more than an index can have, {log_files.MAX_INDEX_SIZE}")
        return
    entries, empty, rest = contents or read_index(path)
    slot = entries.dtype.itemsize
    if rest:
        yield Problem(path, f"{counted(size, 'byte')}: no multiple of {slot}", position=size - rest)
    closed = partition.clean or partition.next_base(base) is not None
    if empty and closed:
        # Only the index of a log that is in use, or that crashed, still has its full size with empty slots.
        yield Problem(
            path, f"{counted(empty, 'empty entry', 'empty entries')} at the end", position=len(entries) * slot
        )
    if not len(segment.batches) and segment.incomplete:
        return
    offsets = entries["offset"].astype(np.int64) + base
    batch = np.searchsorted(segment.batches["last_offset"], offsets)  # the batch that holds each entry's offset
    is_time_index = path.endswith(TIME_INDEX_SUFFIX)
    checks = _time_index_checks if is_time_index else _offset_index_checks
    problems = list(checks(entries, offsets, batch, segment, _Unreadable(partition, base, segment)))
    wrong = {n for n, _ in problems}
    first_unused = len(entries)
    if empty and not closed:
        first_unused = _first_unused_entry(entries, offsets, wrong, int(segment.batches["last_offset"].max(initial=-1)))
    in_use = [(n, text) for n, text in problems if n < first_unused]
    named = in_use if len(in_use) == _SHOWN_ENTRIES + 1 else in_use[:_SHOWN_ENTRIES]
    for n, text in named:
        yield Problem(path, f"entry {n}: {text}", int(offsets[n]), n * slot)
    if more := in_use[len(named) :]:
        n = more[0][0]
        text = f"entry {n}: wrong too, and so are {counted(len(more) - 1, 'entry', 'entries')} more"
        yield Problem(path, text, int(offsets[n]), n * slot)
    if first_unused < len(entries):
        unused = counted(len(entries) - first_unused, "entry is", "entries are")
        text = f"entry {first_unused}: from here on {unused} not of this log's batches, as a truncation leaves them; a "
        text += "log in use does not read them"
        yield Problem(path, text, int(offsets[first_unused]), first_unused * slot, warning=True)
    if is_time_index and closed and not wrong and not rest:
        # A segment gets its last entry when it is rolled or closed.  A warning only: lookups work without it.
        last = int(entries["timestamp"][-1]) if len(entries) else -1
        greatest = int(segment.batches["max_timestamp"].max(initial=-1))
        if last < greatest:
            shown = f"ends with timestamp {last} ({date_of(last)})" if len(entries) else "has no entry"
            text = f"{shown}, the greatest of the segment is {greatest} ({date_of(greatest)})"
            yield Problem(path, text, warning=True)


def _first_unused_entry(entries: np.ndarray, offsets: np.ndarray, wrong: Collection[int], last_offset: int) -> int:
    """Where the entries begin that a truncation left at the end of an index in use; as many as there are entries if
    there are none.

    Its owner counts them no longer.  New entries overwrite them, and kcore fills the page of a new entry with zeros.  A
    single wrong entry whose offset the log has may as well be damaged: it is not among them.  last_offset: the log's.
    """
    import numpy as np

    count = len(entries)
    zeros = np.flatnonzero(entries == np.zeros((), entries.dtype))
    first = int(zeros[zeros > 0].min(initial=count))
    while first - 1 in wrong:
        first -= 1
    return count if first == count - 1 and offsets[first] <= last_offset else first


class _Unreadable:
    """The stretches of a .log that are in no valid batch, and the offsets that they may hold."""

    def __init__(self, partition: PartitionFiles, base: int, segment: ScannedSegment) -> None:
        import numpy as np

        #: (start, end, first offset, last offset), positions without the end, offsets with the last.
        self._stretches: list[tuple[int, int, int, int]] = []
        if not segment.incomplete:
            return
        rows = segment.batches
        starts = np.concatenate([[0], rows["position"] + rows["size"]])
        # If the file ends inside a batch, the length of that batch is unknown.
        ends = np.concatenate([rows["position"], [segment.size if segment.tail is None else 1 << 31]])
        first = np.concatenate([[base], rows["last_offset"] + 1])
        last = np.concatenate([rows["base_offset"], [end_limit(partition, base)]]) - 1
        at = np.flatnonzero(starts < ends)
        self._stretches = list(zip(*(each[at].tolist() for each in (starts, ends, first, last)), strict=True))
        self._batches = {damage.position for damage in segment.damages if damage.offset is not None}
        #: From each of these positions to the end of its stretch, the starts of batches are unknown.
        self._not_examined = [damage.position for damage in segment.damages if damage.offset is None]
        if segment.tail is not None:
            self._not_examined.append(segment.tail.position)

    def may_hold(self, offset: int) -> bool:
        return any(first <= offset <= last for _, _, first, last in self._stretches)

    def may_begin_at(self, position: int, offset: int) -> bool:
        """Whether a batch may begin at the position that holds this offset or a lower one."""
        for start, end, first, _ in self._stretches:
            if start <= position < end and first <= offset:
                return position in self._batches or any(start <= p <= position for p in self._not_examined)
        return False


def _offset_index_checks(
    entries: np.ndarray, offsets: np.ndarray, batch: np.ndarray, segment: ScannedSegment, unreadable: _Unreadable
) -> Iterator[tuple[int, str]]:
    """IDX-17: the batch at an entry's position is the one that holds its offset, or the first batch of the append that
    ended with that offset: Kafka 2.4 to 3.8 wrote one entry per append, and a follower's append has many batches."""
    import numpy as np

    table = segment.batches
    for n in np.flatnonzero(offsets[1:] <= offsets[:-1]):
        yield int(n) + 1, f"offset {offsets[n + 1]} is not above {offsets[n]}, the one before it"
    positions = entries["position"].astype(np.int64)
    inside = batch < len(table)
    expected = np.full(len(entries), -1, np.int64)
    expected[inside] = table["position"][batch[inside]]
    others = np.flatnonzero(positions != expected)
    if not len(others):
        return
    at = np.append(table["position"], -1)  # ascending but for the last, which is that of no batch
    named = np.searchsorted(at[:-1], positions[others])
    names_a_batch = at[named] == positions[others]
    # The base offset of the batch at the position, valid or not, must not be above the entry's offset.
    named_base = np.append(table["base_offset"], -1)[named]
    for n, names_batch, begins in zip(others, names_a_batch, named_base, strict=True):
        position, offset = int(positions[n]), int(offsets[n])
        can_begin = begins <= offset if names_batch else unreadable.may_begin_at(position, offset)
        if can_begin and inside[n] and position < expected[n] and table["last_offset"][batch[n]] == offset:
            continue  # the first batch of its append
        if can_begin and unreadable.may_hold(offset):
            continue
        where = f"that offset is in the batch at {expected[n]}" if inside[n] else "no batch holds that offset"
        yield int(n), f"offset {offsets[n]} at position {positions[n]}: {where}"


def _time_index_checks(
    entries: np.ndarray, offsets: np.ndarray, batch: np.ndarray, segment: ScannedSegment, unreadable: _Unreadable
) -> Iterator[tuple[int, str]]:
    """The batch that holds an entry's offset has the entry's timestamp as its maximum."""
    import numpy as np

    table = segment.batches
    timestamps = entries["timestamp"].astype(np.int64)
    for n in np.flatnonzero((timestamps[1:] <= timestamps[:-1]) | (offsets[1:] < offsets[:-1])):
        yield int(n) + 1, f"({timestamps[n + 1]}, {offsets[n + 1]}) is not above ({timestamps[n]}, {offsets[n]})"
    inside = batch < len(table)
    expected = np.full(len(entries), -1, np.int64)
    expected[inside] = table["max_timestamp"][batch[inside]]
    holds = np.zeros(len(entries), bool)
    holds[inside] = table["base_offset"][batch[inside]] <= offsets[inside]
    # The header of a compressed message of magic 0 or 1 has only its last offset; the record may be any one inside.
    wrapper = np.zeros(len(entries), bool)
    wrapper[inside] = table["count"][batch[inside]] < 0
    for n in np.flatnonzero((timestamps != expected) | ~(holds | wrapper)):
        if not holds[n] and unreadable.may_hold(int(offsets[n])):
            continue
        greatest, timestamp = int(expected[n]), int(timestamps[n])
        where = f"its batch has maximum {greatest} ({date_of(greatest)})" if holds[n] else "no batch holds that offset"
        yield int(n), f"timestamp {timestamp} ({date_of(timestamp)}) at offset {offsets[n]}: {where}"


def check_small_file(path: str) -> Iterator[Problem]:
    """The problems of a file that is not one of SEGMENT_KINDS, from its own content.  Raises OSError."""
    kind = log_files.kind_of_named(path)
    name = kind.kind if kind else None
    try:
        if name == TXN_INDEX_SUFFIX:
            yield from _check_txn_index(path)
        elif name == SNAPSHOT_SUFFIX:
            decode_snapshot(read_file(path), path)
        elif name == log_files.OFFSET_CHECKPOINT:
            yield from _check_offset_checkpoint(path)
        elif name == LEADER_EPOCH_CHECKPOINT:
            yield from _check_epoch_entries(path)
        elif name == PARTITION_METADATA_FILE:
            read_topic_id(os.path.dirname(path))
        elif name == LOST_RECORDS_FILE:
            first_offset = read_mark(os.path.dirname(path))
            if first_offset is not None:
                yield Problem(path, meaning_of(first_offset), first_offset, warning=True)
        elif name == log_files.META_PROPERTIES_FILE:
            version = log_files.read_properties(path).get("version")
            if version not in ("0", "1"):
                text = "there is no version" if version is None else f"version {version}, expected 0 or 1"
                yield Problem(path, text)
    except KafkaError as error:
        yield Problem(path, without_path(error, path))


def _check_txn_index(path: str) -> Iterator[Problem]:
    entries = decode_entries(read_file(path), path, log_files.base_offset_of(path) or 0)
    for n, txn in enumerate(entries):
        if txn.producer_id < 0 or not 0 <= txn.first_offset <= txn.last_offset:
            text = f"{txn} cannot be"
        elif not 0 <= txn.last_stable_offset <= txn.last_offset + 1:
            text = f"last stable offset {txn.last_stable_offset} is above the abort at {txn.last_offset}"
        else:
            continue
        yield Problem(path, f"entry {n}: {text}", txn.last_offset, n * TXN_ENTRY_SIZE)


def _check_offset_checkpoint(path: str) -> Iterator[Problem]:
    offsets = OffsetCheckpointFile(path).read()
    directory = os.path.dirname(path) or "."
    there = {os.path.basename(partition) for partition in log_files.partition_dirs(directory)}
    away = {tp: offset for tp, offset in offsets.items() if there and f"{tp.topic}-{tp.partition}" not in there}
    if len(away) == 1:
        ((tp, offset),) = away.items()
        yield Problem(path, f"{tp} is not in this directory", offset, warning=True)
    elif away:
        yield Problem(path, f"{len(away)} partitions are not in this directory: {some_of(away)}", warning=True)


def _check_epoch_entries(path: str) -> Iterator[Problem]:
    entries = LeaderEpochCheckpointFile(path).read()
    for n, (before, after) in enumerate(itertools.pairwise(entries), 4):
        if after.epoch <= before.epoch or after.start_offset < before.start_offset:
            yield Problem(path, f"line {n}: {after} after {before}", after.start_offset)


#: The files that are checked together with a segment's batches, not by check_small_file().
SEGMENT_KINDS = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
