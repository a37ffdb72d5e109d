"""Offsets that no batch of a log holds, and what explains them.  docs/commands/verify.md has the rule in words.

A leader gives each record the next offset, transaction markers included.  So a log that was never compacted has no
gaps, with one exception: a truncation inside a batch removes the whole batch, and the log goes on at the offset that it
was truncated to (TRUNC-06), in the file that was cut.  A segment that is missing, or has lost its end, leaves a gap
between two files.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.text import counted
from kcore.common.topic_names import INTERNAL_TOPICS
from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.partition_checks import PartitionFiles, Problem, end_limit, inside_segment, longest_ascending
from kcore.inspect.segment_scan import GAP_DTYPE, ScannedSegment, is_control
from kcore.inspect.topic_settings import METADATA_FILE, cleanup_policy
from kcore.log.checkpoints import CLEANER_OFFSET_CHECKPOINT
from kcore.log.log_file_names import LOG_SUFFIX
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    import numpy as np

#: The first gaps of a partition, this many, are reported one by one; the others together as one problem.
_SHOWN_GAPS = 100
#: So many segments before and after one, and so many bytes of each, are searched for gaps.
_NEAR = 2
_SEARCHED_BYTES = 1 << 20
_MAX_SEQUENCE = (1 << 31) - 1
_MAX_OFFSET = (1 << 63) - 1

# -- what a segment shows by itself -----------------------------------------------------------------------------------


def find_gaps(partition: PartitionFiles, base: int, segment: ScannedSegment) -> None:
    """Fill segment.gaps and segment.sparse_end.

    A segment covers the offsets from its base offset to the base offset of the next segment that is not empty.  Offsets
    that unreadable bytes may hold are not a gap: those bytes are reported as damage.
    """
    import numpy as np

    rows = segment.batches
    if not len(rows):
        return
    first, last, count = rows["base_offset"], rows["last_offset"], rows["count"]
    start, end = _offsets_of(partition, base)
    ends_there = end is None or last[-1] + 1 == end
    closed = first[0] == start and ends_there and (first[1:] - last[:-1] == 1).all()
    if closed and int(count.sum(dtype="i8")) == int(last[-1]) + 1 - start:
        return  # a record for each offset: true of nearly every segment
    sparse = (count >= 0) & (count < last - first + 1)
    if sparse.any():
        segment.sparse_end = int(last[sparse].max()) + 1
    if closed:
        return
    position, size = rows["position"], rows["size"]
    first = _first_offsets(segment, start)
    limit = end_limit(partition, base)
    inside = inside_segment(rows, first, last, base, limit)
    if not (inside[0] and inside[-1] and (first[1:] > last[:-1]).all()):
        # _check_offsets() reports offsets out of order.  Without those batches their neighbours are not adjacent.
        kept = np.flatnonzero(inside)
        kept = kept[longest_ascending(first[kept], last[kept])]
        first, last, position, size = first[kept], last[kept], position[kept], size[kept]
        if not len(first):
            return
    begins = np.concatenate([[start], last + 1])
    ends = np.concatenate([first, [last[-1] + 1 if end is None else end]])
    adjacent = np.concatenate([[0], position + size]) == np.concatenate([position, [segment.size]])
    at = np.flatnonzero((begins < ends) & adjacent)
    segment.gaps = np.empty(len(at), GAP_DTYPE)
    segment.gaps["first"], segment.gaps["last"] = begins[at], ends[at] - 1
    # The batch after the last gap may be the first one of the next segment.
    segment.gaps["base"] = np.where(at == len(first), base if end is None else end, base)
    segment.gaps["position"] = np.concatenate([position, [0]])[at]


def _offsets_of(partition: PartitionFiles, base: int) -> tuple[int, int | None]:
    """The offsets that a segment covers: the first, and the end (excluded; None for the last segment).  An empty
    segment covers none."""
    n = bisect.bisect_left(partition.bases, base)
    before, after = partition.bases[:n], partition.bases[n + 1 :]
    start = base if any(_has_bytes(partition, other) for other in reversed(before)) else partition.bases[0]
    return start, next((other for other in after if _has_bytes(partition, other)), after[-1] if after else None)


def _has_bytes(partition: PartitionFiles, base: int) -> bool:
    try:
        return os.path.getsize(partition.file(base, LOG_SUFFIX)) > 0
    except OSError:
        return True


def _empty_end(partition: PartitionFiles, offset: int) -> list[str]:
    """The names of the .log files from an offset on if they are all empty; else nothing."""
    bases = [base for base in partition.bases if base > offset]
    if any(_has_bytes(partition, base) for base in bases):
        return []
    return [os.path.basename(partition.file(base, LOG_SUFFIX)) for base in bases]


def _first_offsets(segment: ScannedSegment, start: int) -> np.ndarray:
    """The first offset of each batch: base_offset, but for compressed messages of magic 0 and 1 the first offset
    inside.  If the records were not read, such a message is assumed to start right after the batch before it."""
    import numpy as np

    rows = segment.batches
    first, last = rows["base_offset"], rows["last_offset"]
    wrappers = np.flatnonzero(rows["count"] < 0)
    if not len(wrappers):
        return first
    first = first.copy()
    for n in wrappers.tolist():
        follows = int(last[n - 1]) + 1 if n else start
        first[n] = segment.first_offsets.get(int(rows["position"][n]), min(follows, int(first[n])))
    return first


# -- what explains gaps -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compaction:
    """The reason to take a log as compacted, and the offset below which compaction explains its gaps."""

    reason: str
    end_offset: int


def compaction_of(
    partition: PartitionFiles, segments: Sequence[ScannedSegment], *, compacted: bool = False
) -> Compaction | None:
    """None if nothing shows that the log was ever compacted.  compacted: the caller states that it was.

    A follower may have copied batches that its leader had compacted.  So compaction explains gaps up to the cleaner's
    checkpoint or up to the last batch that lacks records, whichever is higher.
    """
    if compacted:
        return Compaction("--compacted", _MAX_OFFSET)
    sparse_end = max((segment.sparse_end for segment in segments), default=-1)
    cleaned = partition.checkpoints.get(CLEANER_OFFSET_CHECKPOINT)
    if cleaned is not None:
        reason = f"{CLEANER_OFFSET_CHECKPOINT} has offset {cleaned}"
        return Compaction(reason, max(cleaned, sparse_end))
    if sparse_end >= 0:
        return Compaction("some of its batches have fewer records than offsets", _MAX_OFFSET)
    topic = partition.topic_partition.topic if partition.topic_partition else ""
    if topic in INTERNAL_TOPICS:
        return Compaction(f"{topic} always is", _MAX_OFFSET)
    if "compact" in (cleanup_policy(os.path.dirname(os.path.abspath(partition.directory)), topic) or ()):
        # Here the cleaner's checkpoint would be beside the metadata.
        return Compaction(f"{METADATA_FILE} has cleanup.policy=compact, though the cleaner was never here", -1)
    return None


def may_have_gaps(partition: PartitionFiles, base: int, *, compacted: bool = False) -> bool:
    """Whether anything but the segment itself shows that the log is compacted; of other segments those near it."""
    if compaction_of(partition, (), compacted=compacted) is not None:
        return True
    n = bisect.bisect_left(partition.bases, base)
    near = [*reversed(partition.bases[max(n - _NEAR, 0) : n]), *partition.bases[n + 1 : n + 1 + _NEAR]]
    return any(_begins_with_gaps(partition.file(other, LOG_SUFFIX)) for other in near)


def _begins_with_gaps(path: str) -> bool:
    """False also for a file that is damaged there, or cannot be read."""
    try:
        with log_files.open_file(path) as file:
            return MemoryRecords(file.read(_SEARCHED_BYTES)).batches.has_gaps
    except (KafkaError, OSError):
        return False


def check_gaps(
    partition: PartitionFiles, segments: Sequence[ScannedSegment], *, compacted: bool = False
) -> Iterator[Problem]:
    """The gaps of a partition, after find_gaps() for each segment: damage, or a warning where a gap can come about
    without a loss.  All gaps that compaction left are one Problem, which is `explained`."""
    gaps = _joined(partition, segments)
    if not len(gaps):
        return
    compaction = compaction_of(partition, segments, compacted=compacted)
    if compaction is None:
        steps = producer_steps(segments)
        yield from _one_by_one(partition, gaps, lambda *gap: _without_compaction(partition, steps, *gap))
        return
    explained = gaps["first"] < compaction.end_offset
    if explained.any():
        explained_gaps = gaps[explained]
        first, last = int(explained_gaps["first"][0]), int(explained_gaps["last"][-1])
        lacking = int((explained_gaps["last"] - explained_gaps["first"] + 1).sum())
        text = f"{counted(len(explained_gaps), 'gap')} within offsets {first}..{last}, {counted(lacking, 'offset')} "
        text += f"without a record: the log is compacted ({compaction.reason})"
        yield Problem(partition.directory, text, first, last_offset=last, gaps=len(explained_gaps), explained=True)
    text = f"the log is compacted ({compaction.reason}), but not there"
    yield from _one_by_one(partition, gaps[~explained], lambda *_: (text, True))


def _joined(partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> np.ndarray:
    """The gaps of all segments, without those below the log start.  A gap at the end of a segment and one at the start
    of the next segment are joined."""
    import numpy as np

    parts: list[np.ndarray] = []
    for segment in segments:
        if segment.gaps is None or not len(segment.gaps):
            continue
        part = segment.gaps.copy()
        if parts and parts[-1]["last"][-1] + 1 == part["first"][0]:
            part["first"][0] = parts[-1]["first"][-1]
            parts[-1] = parts[-1][:-1]
            if not len(parts[-1]):
                parts.pop()
        parts.append(part)
    gaps = np.concatenate([np.empty(0, GAP_DTYPE), *parts])
    start = partition.log_start_offset
    gaps = gaps[gaps["last"] >= start]
    gaps["first"] = gaps["first"].clip(start)
    return gaps


def _one_by_one(
    partition: PartitionFiles, gaps: np.ndarray, judge: Callable[[int, int, int], tuple[str, bool]]
) -> Iterator[Problem]:
    """judge(first offset, last offset, base offset of the segment after the gap) returns the text about a gap and
    whether it is only a warning."""
    only_warnings = True
    for first, last, base, position in gaps[:_SHOWN_GAPS].tolist():
        text, warning = judge(first, last, base)
        only_warnings &= warning
        path = partition.file(base, LOG_SUFFIX)
        gap = Problem(path, f"gap: offsets {first}..{last}: {text}", first, position, warning, last, 1)
        yield gap._replace(is_before_empty=bool(_empty_end(partition, first)))
    if len(more := gaps[_SHOWN_GAPS:]):
        first, last = int(more["first"][0]), int(more["last"][-1])
        text = f"gap: {len(more)} more within offsets {first}..{last}"
        yield Problem(partition.directory, text, first, None, only_warnings, last, len(more))


def _without_compaction(
    partition: PartitionFiles, steps: ProducerSteps, first: int, last: int, base: int
) -> tuple[str, bool]:
    """The text about a gap in a log without signs of compaction, and whether it is only a warning.  base: base offset
    of the segment that holds the batch after the gap."""
    if (jump := steps.jump_over(first, last)) is not None:
        text = f"producer {jump.producer_id} goes on with sequence {jump.sequence} where {jump.expected} comes next"
        return f"{text}: records are missing", False
    if empty := _empty_end(partition, first):
        text = (
            "it is not of this log, move it and its"
            if len(empty) == 1
            else "they are not of this log, move them and their"
        )
        files = f"{' and '.join(empty)} {'is' if len(empty) == 1 else 'are'} empty"
        then = f"then the log ends at offset {first}; else the end of the segment before is missing"
        return f"no file has them, and {files}: if {text} indexes away, and {then}", False
    if first < base:
        # A truncation leaves such a gap only if a new segment begins with the next append.
        text = "they are missing between two files, and nothing shows that the log was compacted"
        return f"{text}: a segment is missing, or the end of one", False
    # Epochs that begin inside the gap belong to leaders whose records were truncated, too.
    epoch = next((entry.epoch for entry in partition.epochs or () if entry.start_offset == last + 1), None)
    if epoch is not None:
        return f"leader epoch {epoch} starts right after it: a truncation inside a batch can leave such a gap", True
    producer = steps.continued_over(first, last)
    if producer is not None:
        return f"producer {producer} wrote the batches before and after it, and none of its records is missing", True
    return "no batch holds them, and nothing shows that the log was compacted", False


# -- what the producers' sequence numbers say --------------------------------------------------------------------------


class Jump(NamedTuple):
    """A producer's sequence number that is not the next one."""

    producer_id: int
    expected: int
    sequence: int


class ProducerSteps:
    """From each batch of an idempotent producer to its next one: arrays of one length."""

    def __init__(self, rows: np.ndarray) -> None:
        """rows: as ScannedSegment.producer_batches, in the order of the log."""
        import numpy as np

        rows = rows[~is_control(rows) & (rows["base_sequence"] >= 0)]
        rows = rows[np.argsort(rows["producer_id"], kind="stable")]
        before, after = rows[:-1], rows[1:]
        same = (before["producer_id"] == after["producer_id"]) & (before["last_offset"] < after["base_offset"])
        before, after = before[same], after[same]
        self._producer = before["producer_id"]
        self._from, self._to = before["last_offset"], after["base_offset"]
        next_sequence = before["base_sequence"] + (before["last_offset"] - before["base_offset"]) + 1
        # A new epoch begins with sequence 0.
        same_epoch = before["producer_epoch"] == after["producer_epoch"]
        self._expected = np.where(same_epoch, next_sequence & _MAX_SEQUENCE, 0)
        self._sequence = after["base_sequence"]
        # An old client whose producer state the broker had dropped began with 0 again.
        self._jumps = (self._sequence != self._expected) & (self._sequence != 0)

    def jump_over(self, first: int, last: int) -> Jump | None:
        """A producer with batches on both sides of the gap, between which records of it are missing; None if there is
        none."""
        import numpy as np

        at = np.flatnonzero(self._jumps & (self._from < first) & (self._to > last))
        if not len(at):
            return None
        n = at[0]
        return Jump(int(self._producer[n]), int(self._expected[n]), int(self._sequence[n]))

    def continued_over(self, first: int, last: int) -> int | None:
        """The producer that wrote the batches right before and right after a gap, without a jump."""
        import numpy as np

        at = np.flatnonzero(~self._jumps & (self._from == first - 1) & (self._to == last + 1))
        return int(self._producer[at[0]]) if len(at) else None


def producer_steps(segments: Sequence[ScannedSegment]) -> ProducerSteps:
    import numpy as np

    return ProducerSteps(np.concatenate([ScannedSegment("").producer_batches, *(s.producer_batches for s in segments)]))


def rows_beside_gaps(segment: ScannedSegment) -> np.ndarray:
    """Which of segment.producer_batches ProducerSteps needs for the gaps of this segment and between segments: the
    first and the last batch of each producer between any two gaps.  bool[len(producer_batches)]."""
    import numpy as np

    rows = segment.producer_batches
    kept = np.zeros(len(rows), bool)
    data = np.flatnonzero(~is_control(rows))
    firsts = segment.gaps["first"] if segment.gaps is not None else np.empty(0, np.int64)
    stretch = np.searchsorted(firsts, rows["last_offset"][data], "right")
    for order in (data, data[::-1]):
        keys = np.stack([stretch if order is data else stretch[::-1], rows["producer_id"][order]])
        kept[order[np.unique(keys, axis=1, return_index=True)[1]]] = True
    return kept
