"""Two replicas of one partition compared: the first difference, and what their leader epochs say about it.

These may differ between valid replicas and are not reported as a difference: where segments begin, how dense indexes
are, where the log starts, and which records cleaning has removed (those gaps are listed).  Offsets, leader epochs and
every byte of a batch must be equal; batches that cleaning wrote anew are compared record by record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kcore.common.progress import Progress
from kcore.common.text import counted
from kcore.errors import NotAPartitionDirectory
from kcore.inspect import log_files
from kcore.inspect.dump_events import batch_event, record_event
from kcore.inspect.gap_checks import compaction_of, find_gaps
from kcore.inspect.parallel import scan_all
from kcore.inspect.partition_checks import PartitionFiles, epochs_of
from kcore.inspect.segment_scan import Rows
from kcore.log.checkpoints import REPLICATION_OFFSET_CHECKPOINT, EpochEntry
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.offset_truncation import offset_truncation_state
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record, RecordBatch

if TYPE_CHECKING:
    import numpy as np

#: Header fields that are equal in equal batches.  They are compared first, the bytes only where all of these agree.
_SAME = ("last_offset", "size", "leader_epoch", "crc", "magic")
#: Fields of a batch or record that may differ between equal ones: they depend on the file.
_PLACE = ("type", "position", "file")


class Gap(NamedTuple):
    """Offsets that one side has and the other does not, between offsets that both have."""

    missing_in: str
    first_offset: int
    last_offset: int
    records: int
    #: Whether compaction explains that they are missing there.
    cleaned: bool = False


class Tail(NamedTuple):
    """The records that one side has after the other's end, or before its start."""

    first_offset: int
    last_offset: int
    records: int


@dataclass
class Side:
    """Where one side has the first offset that differs; every field is None if it has no record there."""

    file: str | None = None
    position: int | None = None
    #: The batch and the record as `kcore dump` shows them.
    batch: dict[str, Any] | None = None
    record: dict[str, Any] | None = None
    leader_epoch: int | None = None


@dataclass
class Divergence:
    offset: int
    a: Side
    b: Side
    #: Names of the fields that differ, of the batch's header and of the record.
    batch_fields: list[str] = field(default_factory=list)
    record_fields: list[str] = field(default_factory=list)


class Truncation(NamedTuple):
    """What a side would cut off if it followed the other one (EPOCH-06..10)."""

    offset: int
    records_lost: int
    #: Whether the two would still differ below that.
    difference_stays: bool
    steps: list[str]


@dataclass
class PartitionDiff:
    a: str
    b: str
    #: The offsets that are compared: from the higher start to the lower end.
    start: int = 0
    end: int = 0
    #: Below this offset the two are equal except for the gaps; common_bytes: the bytes of those offsets on each side.
    common_end: int = 0
    common_bytes: tuple[int, int] = (0, 0)
    divergence: Divergence | None = None
    only_a: Tail | None = None
    only_b: Tail | None = None
    before_a: Tail | None = None
    before_b: Tail | None = None
    gaps: list[Gap] = field(default_factory=list)
    #: Batches that hold the same records in other bytes.
    rewritten: int = 0
    damages: list[str] = field(default_factory=list)
    epochs_a: list[EpochEntry] = field(default_factory=list)
    epochs_b: list[EpochEntry] = field(default_factory=list)
    #: "a" or "b": the side with the higher leader epoch at the first difference; None if the epochs do not show it.
    newer: str | None = None
    #: None if the two are equal, or the follower has no epochs.
    a_follows_b: Truncation | None = None
    b_follows_a: Truncation | None = None

    @property
    def equal(self) -> bool:
        return not (self.divergence or self.only_a or self.only_b or self.damages or self.unexplained_gaps)

    @property
    def unexplained_gaps(self) -> list[Gap]:
        """The gaps that count as a difference."""
        return [gap for gap in self.gaps if not gap.cleaned]


class _Replica:
    """All batches of one side, and the files that hold them."""

    def __init__(self, directory: str, jobs: int, progress: Progress, *, compacted: bool) -> None:
        import numpy as np

        self.partition = PartitionFiles.of(directory)
        self.segments = scan_all(self.partition, jobs, progress, compacted=compacted)
        for base, segment in zip(self.partition.bases, self.segments, strict=True):
            find_gaps(self.partition, base, segment)
        self.rows = Rows.of([segment.batches for segment in self.segments])
        self.segment_of = np.repeat(np.arange(len(self.segments)), [len(s.batches) for s in self.segments])
        # Bytes before the log's start, and offsets that do not ascend, are reported by `kcore verify`, not here.
        self.start = int(self.rows["base_offset"][0]) if len(self.rows) else next(iter(self.partition.bases), 0)
        self.end = int(self.rows["last_offset"].max()) + 1 if len(self.rows) else self.start
        # An epoch in which the leader wrote nothing is in the checkpoint alone.
        self.epochs = self.partition.epochs or epochs_of(s.batches for s in self.segments)

    def damages(self) -> Iterator[str]:
        for name in self.partition.misplaced:
            problem = self.partition.misplaced_problem(name)
            yield f"{problem.path}: {problem.text}"
        for segment in self.segments:
            for damage in segment.damages:
                yield f"{segment.path}: position {damage.position}: {damage.problem}"
            if segment.tail is not None:
                size = counted(segment.tail.size, "byte")
                yield f"{segment.path}: position {segment.tail.position}: {size} of a batch"

    def path(self, n: int) -> str:
        return self.segments[self.segment_of[n]].path

    def batch(self, n: int) -> RecordBatch:
        """Raises OSError, and what MemoryRecords raises."""
        row = self.rows[n]
        with log_files.open_file(self.path(n)) as file:
            data = os.pread(file.fileno(), int(row["size"]), int(row["position"]))
        return MemoryRecords(data, source=self.path(n), base_position=int(row["position"])).batches[0]

    def tail(self, first: int, end: int) -> Tail | None:
        """Its records with offsets from `first` to below `end`; None if no batch has such offsets.  Raises OSError, and
        what MemoryRecords raises."""
        import numpy as np

        inside = (self.rows["last_offset"] >= first) & (self.rows["base_offset"] < end)
        if not inside.any():
            return None
        rows = self.rows[inside]
        whole = (rows["base_offset"] >= first) & (rows["last_offset"] < end)
        records = int(rows["count"][whole].clip(0).sum())
        for n in np.flatnonzero(inside)[~whole].tolist():
            records += sum(first <= record.offset < end for record in self.batch(n).records())
        return Tail(max(int(rows["base_offset"][0]), first), min(int(rows["last_offset"].max()), end - 1), records)

    def bytes_below(self, start: int, end: int) -> int:
        rows = self.rows
        return int(rows["size"][(rows["last_offset"] >= start) & (rows["last_offset"] < end)].sum(dtype="i8"))


def compare(
    a: str, b: str, *, gaps_are_cleaning: bool = False, jobs: int = 1, progress: Progress | None = None
) -> PartitionDiff:
    """Where two directories of one partition differ, and what their leader epochs say about it.

    gaps_are_cleaning: the caller states that compaction removed the records of offsets that one side lacks between
    others.  jobs: how many segments are read at a time.  Damage in a .log is in PartitionDiff.damages.
    Raises OSError, NotAPartitionDirectory, KafkaError for records that cannot be read.
    """
    for side, other in ((a, b), (b, a)):
        if not log_files.is_partition_dir(side):
            raise _no_partition(side, other)
    progress = progress or Progress("diff", 0, quiet=True)
    left, right = (_Replica(side, jobs, progress, compacted=gaps_are_cleaning) for side in (a, b))
    diff = PartitionDiff(a, b, max(left.start, right.start), min(left.end, right.end))
    diff.damages = [*left.damages(), *right.damages()]
    diff.epochs_a, diff.epochs_b = left.epochs, right.epochs
    diff.before_a, diff.before_b = left.tail(0, right.start), right.tail(0, left.start)
    _find_divergence(diff, left, right)
    _explain_gaps(diff, left, right, gaps_are_cleaning)
    part_at = diff.end if diff.divergence is None else diff.divergence.offset
    diff.common_end = max(part_at, diff.start)
    diff.common_bytes = (left.bytes_below(diff.start, part_at), right.bytes_below(diff.start, part_at))
    diff.only_a = left.tail(max(right.end, diff.start), left.end)
    diff.only_b = right.tail(max(left.end, diff.start), right.end)
    if not diff.equal:
        diff.newer = _newer(diff)
        diff.a_follows_b = _truncation(left, right, diff)
        diff.b_follows_a = _truncation(right, left, diff)
    return diff


def _find_divergence(diff: PartitionDiff, left: _Replica, right: _Replica) -> None:
    """Sets diff.divergence to the first offset that both have with different records, and adds the gaps before it."""
    import numpy as np

    sides = (left, right)
    inside = [(s.rows["last_offset"] >= diff.start) & (s.rows["base_offset"] < diff.end) for s in sides]
    _, at_left, at_right = np.intersect1d(left.rows["base_offset"], right.rows["base_offset"], return_indices=True)
    same = np.ones(len(at_left), bool)
    for name in _SAME:
        same &= left.rows[name][at_left] == right.rows[name][at_right]
    for n, m in _runs_with_other_bytes(left, right, at_left[same], at_right[same]):
        same &= ~((at_left == n) & (at_right == m))
    unequal = []
    for side_inside, at in zip(inside, (at_left, at_right), strict=True):
        mask = side_inside.copy()
        mask[at[same]] = False
        unequal.append(np.flatnonzero(mask))
    # Equal batches need no further comparison.  The others are compared in windows of batches that overlap in offsets.
    for window in _windows(left, right, unequal[0], unequal[1]):
        if _compare_window(diff, left, right, *window):
            return


def _runs_with_other_bytes(
    left: _Replica, right: _Replica, at_left: np.ndarray, at_right: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Pairs of batches with equal headers and different bytes.  Runs of adjacent batches are read at once."""
    import numpy as np

    if not len(at_left):
        return
    breaks = np.zeros(len(at_left), bool)
    breaks[0] = True
    for side, at in ((left, at_left), (right, at_right)):
        ends = side.rows["position"][at] + side.rows["size"][at]
        breaks[1:] |= (side.rows["position"][at[1:]] != ends[:-1]) | (np.diff(side.segment_of[at]) != 0)
    starts = np.flatnonzero(breaks).tolist()
    for first, last in zip(starts, [*(start - 1 for start in starts[1:]), len(at_left) - 1], strict=True):
        if not _equal_bytes(left, right, at_left[first], at_right[first], at_left[last]):
            for n in range(first, last + 1):
                if not _equal_bytes(left, right, at_left[n], at_right[n], at_left[n]):
                    yield int(at_left[n]), int(at_right[n])


def _equal_bytes(left: _Replica, right: _Replica, n: int, m: int, last: int) -> bool:
    """Whether the left's bytes from batch n to the end of batch `last` equal the right's bytes from batch m on."""
    start = int(left.rows["position"][n])
    size = int(left.rows["position"][last] + left.rows["size"][last]) - start
    other = int(right.rows["position"][m])
    with log_files.open_file(left.path(n)) as a, log_files.open_file(right.path(m)) as b:
        for at in range(0, size, 1 << 20):
            length = min(1 << 20, size - at)
            if os.pread(a.fileno(), length, start + at) != os.pread(b.fileno(), length, other + at):
                return False
    return True


def _windows(
    left: _Replica, right: _Replica, ours: np.ndarray, theirs: np.ndarray
) -> Iterator[tuple[list[int], list[int]]]:
    """Groups of batches of both sides that overlap in offsets, directly or through other batches; ascending."""
    tagged = [(int(left.rows["base_offset"][n]), int(left.rows["last_offset"][n]), 0, int(n)) for n in ours]
    tagged += [(int(right.rows["base_offset"][n]), int(right.rows["last_offset"][n]), 1, int(n)) for n in theirs]
    window: tuple[list[int], list[int]] = ([], [])
    end = -1
    for first, last, side, n in sorted(tagged):
        if first > end and (window[0] or window[1]):
            yield window
            window = ([], [])
        end = max(end, last)
        window[side].append(n)
    if window[0] or window[1]:
        yield window


class _StoredRecord(NamedTuple):
    record: Record
    batch: RecordBatch
    row: int


def _records(side: _Replica, rows: list[int]) -> dict[int, _StoredRecord]:
    records = {}
    for n in rows:
        batch = side.batch(n)
        for record in batch.records():
            records[record.offset] = _StoredRecord(record, batch, n)
    return records


def _compare_window(diff: PartitionDiff, left: _Replica, right: _Replica, ours: list[int], theirs: list[int]) -> bool:
    """Compares a window record by record and adds its gaps to the diff; True if a divergence is in it."""
    a, b = _records(left, ours), _records(right, theirs)
    offsets = sorted(offset for offset in a.keys() | b.keys() if diff.start <= offset < diff.end)
    for offset in offsets:
        if offset in a and offset in b and _differs(a[offset], b[offset]):
            diff.divergence = _divergence(offset, a[offset], b[offset], left, right)
            # A gap right before the divergence may be part of the same difference; it is still reported as a gap.
            _note_gaps(diff, [o for o in offsets if o < offset], a, b)
            return True
    _note_gaps(diff, offsets, a, b)
    diff.rewritten += sum(1 for n in ours if any(f.row == n for f in a.values()) and a.keys() & b.keys())
    return False


def _differs(a: _StoredRecord, b: _StoredRecord) -> bool:
    return (
        a.record != b.record
        or a.batch.leader_epoch != b.batch.leader_epoch
        or a.batch.producer_id != b.batch.producer_id
        or a.batch.producer_epoch != b.batch.producer_epoch
        or a.batch.is_control != b.batch.is_control
        or a.batch.is_transactional != b.batch.is_transactional
    )


def _note_gaps(
    diff: PartitionDiff, offsets: list[int], a: dict[int, _StoredRecord], b: dict[int, _StoredRecord]
) -> None:
    for offset in offsets:
        missing = "a" if offset not in a else "b" if offset not in b else None
        if missing is None:
            continue
        last = diff.gaps[-1] if diff.gaps else None
        if last is not None and last.missing_in == missing and last.last_offset == offset - 1:
            diff.gaps[-1] = last._replace(last_offset=offset, records=last.records + 1)
        else:
            diff.gaps.append(Gap(missing, offset, offset, 1))


def _explain_gaps(diff: PartitionDiff, left: _Replica, right: _Replica, gaps_are_cleaning: bool) -> None:
    """Sets Gap.cleaned.  Compaction is a setting of the topic, so signs of it on one side also explain gaps of the
    other side, if that side has no signs of its own."""
    if not diff.gaps:
        return
    compactions = {
        name: compaction_of(side.partition, side.segments, compacted=gaps_are_cleaning)
        for name, side in (("a", left), ("b", right))
    }
    for n, gap in enumerate(diff.gaps):
        compaction = compactions[gap.missing_in] or compactions["b" if gap.missing_in == "a" else "a"]
        diff.gaps[n] = gap._replace(cleaned=compaction is not None and gap.first_offset < compaction.end_offset)


def _divergence(offset: int, a: _StoredRecord, b: _StoredRecord, left: _Replica, right: _Replica) -> Divergence:
    ours, theirs = (
        Side(
            side.path(stored.row),
            stored.batch.position,
            batch_event(stored.batch),
            record_event(stored.batch, stored.record),
            stored.batch.leader_epoch,
        )
        for side, stored in ((left, a), (right, b))
    )
    batch_fields, record_fields = _other_fields(ours.batch, theirs.batch), _other_fields(ours.record, theirs.record)
    return Divergence(offset, ours, theirs, batch_fields, record_fields)


def _other_fields(a: dict[str, Any] | None, b: dict[str, Any] | None) -> list[str]:
    a, b = a or {}, b or {}
    return [name for name in {**a, **b} if name not in _PLACE and a.get(name) != b.get(name)]


def _newer(diff: PartitionDiff) -> str | None:
    """The side with the higher leader epoch at the divergence, or at the end if there is none."""
    if diff.divergence is not None:
        a, b = diff.divergence.a.leader_epoch, diff.divergence.b.leader_epoch
    else:
        a = diff.epochs_a[-1].epoch if diff.epochs_a else None
        b = diff.epochs_b[-1].epoch if diff.epochs_b else None
    if a is None or b is None or a == b or min(a, b) < 0:
        return None
    return "a" if a > b else "b"


def _truncation(follower: _Replica, leader: _Replica, diff: PartitionDiff) -> Truncation | None:
    """What the follower cuts off before it fetches from the leader; None if it has no epochs and truncates to its high
    watermark."""
    own = LeaderEpochFileCache("follower", None, list(follower.epochs))
    theirs = LeaderEpochFileCache("leader", None, list(leader.epochs))
    if own.latest_entry is None:
        return None
    high_watermark = follower.partition.checkpoints.get(REPLICATION_OFFSET_CHECKPOINT, follower.start)
    end, steps = follower.end, []
    # Each step but the last leaves a smaller epoch for the next request, so there are at most as many steps as epochs.
    for _ in range(len(follower.epochs) + 1):
        epoch = own.latest_epoch
        if epoch < 0:
            break
        answer = theirs.end_offset_for(epoch, leader.end)
        log_end = end
        state = offset_truncation_state(
            *answer,
            initial_offset=min(high_watermark, end),
            log_end_offset=end,
            end_offset_for_epoch=lambda e, log_end=log_end: own.end_offset_for(e, log_end),  # type: ignore[misc]
        )
        steps.append(f"epoch {epoch}? the leader says (epoch {answer[0]}, ends at {answer[1]}): cut to {state.offset}")
        end = min(end, state.offset)
        own.truncate_from_end(end)
        if state.completed:
            break
    gone = follower.rows[follower.rows["last_offset"] >= end]
    differences = [gap.first_offset for gap in diff.unexplained_gaps]
    if diff.divergence is not None:
        differences.append(diff.divergence.offset)
    stays = any(offset < end for offset in differences)
    return Truncation(end, int(gone["count"].clip(0).sum()), stays, steps)


def _no_partition(path: str, other: str) -> NotAPartitionDirectory:
    """The error for a side that is no partition's directory.  Raises OSError."""
    name = os.path.basename(os.path.abspath(other))
    inside = os.path.join(path, name)
    hint = "paired_partitions() has the pairs of two data directories"
    if log_files.is_partition_dir(other):
        is_there = inside in log_files.partition_dirs(path)
        hint = f"it has {name}: compare with {inside}" if is_there else f"{other} is one"
    return NotAPartitionDirectory(f"{path}: no directory of a partition; {hint}")


def paired_partitions(a: str, b: str) -> Iterator[tuple[str | None, str | None]]:
    """The pairs of partition directories to compare; None where a side lacks the partition.  Raises OSError,
    CorruptFile, NotAPartitionDirectory."""
    kinds = [log_files.is_partition_dir(path) for path in (a, b)]
    if all(kinds):
        yield a, b
        return
    if any(kinds):
        raise _no_partition(*((b, a) if kinds[0] else (a, b)))
    names = [{os.path.basename(path): path for path in log_files.partition_dirs(side)} for side in (a, b)]
    for path, directories in zip((a, b), names, strict=True):
        if not directories:
            raise log_files.no_partitions(path)
    for name in sorted(names[0].keys() | names[1].keys()):
        yield names[0].get(name), names[1].get(name)


def diff_event(diff: PartitionDiff) -> dict[str, Any]:
    """The JSON object of `kcore diff --json`.  Its keys are stable; docs/commands/diff.md explains them."""

    def tail(extra: Tail | None) -> dict[str, int] | None:
        return extra and {"firstOffset": extra[0], "lastOffset": extra[1], "records": extra[2]}

    def truncation(cut: Truncation | None) -> dict[str, Any] | None:
        return cut and {
            "truncateTo": cut.offset,
            "recordsLost": cut.records_lost,
            "differenceStays": cut.difference_stays,
            "steps": cut.steps,
        }

    def epochs(entries: list[EpochEntry]) -> list[dict[str, int]]:
        return [{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in entries]

    def side(place: Side) -> dict[str, Any]:
        shown = asdict(place)
        return {"leaderEpoch": shown.pop("leader_epoch"), **shown}

    divergence = diff.divergence
    return {
        "type": "partition",
        "a": diff.a,
        "b": diff.b,
        "equal": diff.equal,
        "start": diff.start,
        "commonEnd": diff.common_end,
        "commonBytes": {"a": diff.common_bytes[0], "b": diff.common_bytes[1]},
        "firstDifference": None
        if divergence is None
        else {
            "offset": divergence.offset,
            "batchFields": divergence.batch_fields,
            "recordFields": divergence.record_fields,
            "a": side(divergence.a),
            "b": side(divergence.b),
        },
        "onlyA": tail(diff.only_a),
        "onlyB": tail(diff.only_b),
        "beforeA": tail(diff.before_a),
        "beforeB": tail(diff.before_b),
        "gaps": [
            {
                "missingIn": gap.missing_in,
                "firstOffset": gap.first_offset,
                "lastOffset": gap.last_offset,
                "records": gap.records,
                "cleaned": gap.cleaned,
            }
            for gap in diff.gaps
        ],
        "rewritten": diff.rewritten,
        "epochs": {"a": epochs(diff.epochs_a), "b": epochs(diff.epochs_b)},
        "newerLeader": diff.newer,
        "ifAFollowsB": truncation(diff.a_follows_b),
        "ifBFollowsA": truncation(diff.b_follows_a),
        "damage": diff.damages,
    }
