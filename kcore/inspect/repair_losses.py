"""What a repair would remove from a log, and what it has lost already: stretches of .log files, and their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kcore.inspect.batch_checks import check_offsets
from kcore.inspect.partition_checks import (
    PartitionFiles,
    Problem,
    check_end,
    end_of_segment,
    inside_segment,
    longest_ascending,
    once_reached,
)
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.overflowed_segment import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    import numpy as np

AFTER_THE_CUT = "after the cut"


class Loss(NamedTuple):
    """A stretch of a .log that would go, with the offsets that it holds or may hold; last_offset None: unknown."""

    path: str
    position: int
    size: int
    first_offset: int
    last_offset: int | None
    #: How many batches and records in it can still be read, and how many bytes cannot.
    batches: int
    records: int
    unreadable_size: int
    #: How many offsets the unreadable bytes may hold; None: unknown.
    unreadable_offsets: int | None
    reason: str
    #: Of an end whose last offset is unknown: one that the log had, by its checkpoints; None if they say nothing.
    last_offset_at_least: int | None = None

    @property
    def missing_offsets(self) -> int:
        """How many offsets are in no file, though the log had them; `position` is then the end of the last file."""
        return 0 if self.size else self.unreadable_offsets or 0


@dataclass
class Kept:
    """A segment as it is and as it will be."""

    base: int
    segment: ScannedSegment
    #: One for each batch of the segment: whether it stays.
    mask: np.ndarray
    after: ScannedSegment
    #: The stretches that stay.
    ranges: list[tuple[int, int]]
    removed: bool = False

    @property
    def changed(self) -> bool:
        return self.removed or self.ranges != ([(0, self.segment.size)] if self.segment.size else [])

    @property
    def loses_end(self) -> bool:
        return (self.ranges[-1][1] if self.ranges else 0) < self.segment.size


def losses_of(partition: PartitionFiles, kept: list[Kept], problems: Sequence[Problem]) -> Iterator[Loss]:
    """The stretches that are removed from the segments, and the end of the log that is in no file."""
    end_offset = kept[0].base if kept else 0
    lost_end = 0
    for n, part in enumerate(kept):
        end_offset = max(end_offset, part.base)
        end = kept[n + 1].base if n + 1 < len(kept) else end_of_segment(partition, part.base)
        for loss in _losses_in(problems, part, end_offset, end, is_last=n + 1 == len(kept)):
            lost_end = max(lost_end, -1 if loss.last_offset is None else loss.last_offset + 1)
            is_end = n + 1 == len(kept) and loss.position + loss.size == part.segment.size
            had = once_reached(partition) - 1 if is_end and loss.last_offset is None else -1
            yield loss._replace(last_offset_at_least=had) if had >= loss.first_offset else loss
        if part.after.end_offset is not None:
            end_offset = max(end_offset, part.after.end_offset)
    for missing in missing_end(partition, kept):
        # The last offsets may be those of a batch that goes.
        first, last = max(missing.offset or 0, lost_end), missing.last_offset or 0
        if first <= last:
            yield Loss(missing.path, kept[-1].segment.size, 0, first, last, 0, 0, 0, last - first + 1, missing.text)


def _losses_in(
    problems: Sequence[Problem], part: Kept, end_offset: int, end_limit: int | None, *, is_last: bool
) -> Iterator[Loss]:
    """Those of one segment.  end_offset: the end of the log before it; end_limit: where the segment ends, if known."""
    rows, after = part.segment.batches, part.after.batches
    bounds = [*(edge for stretch in part.ranges for edge in stretch), part.segment.size]
    starts = [0, *bounds[1::2]]
    for start, end in zip(starts, bounds[0::2], strict=True):
        if start == end:
            continue
        following = after[after["position"] >= end]
        before = after[after["position"] < start]
        first = max(int(before["last_offset"][-1]) + 1, end_offset) if len(before) else end_offset
        readable = rows[(rows["position"] >= start) & (rows["position"] < end)]
        held = int((readable["last_offset"] - readable["base_offset"] + 1).sum(dtype="i8"))
        next_offset = int(following["base_offset"][0]) if len(following) else end_limit
        last = None if next_offset is None else next_offset - 1
        if last is not None and last < first and (len(following) or not is_last):
            last = None  # the batches around leave no offset free, so some offset beside it is wrong
        if is_last and not len(following):
            begins, ends = readable["base_offset"], readable["last_offset"]
            inside = inside_segment(readable, begins, ends, part.base, part.base + MAX_RELATIVE_OFFSET + 1)
            begins, ends = begins[inside], ends[inside]
            highest = max([first - 1, *ends[longest_ascending(begins, ends)].tolist()])
            if len(readable) and readable["position"][-1] + readable["size"][-1] == end:
                last = max(highest, first - 1 + held)
            elif last is not None and last <= highest:
                is_after_the_end = not len(readable) and last == first - 1 and _is_full(part, before)
                last = last if is_after_the_end else None
        reasons = [p for p in problems if p.path == part.segment.path and p.position is not None]
        unreadable_size = end - start - int(readable["size"].sum(dtype="i8"))
        unreadable_offsets = None
        if not unreadable_size:
            unreadable_offsets = 0
        elif last is not None:
            free = last - first + 1 - held
            # After the end of the log unreadable bytes hold nothing; beside batches they do, so some offset is wrong.
            unreadable_offsets = free if free > 0 else None if len(readable) else 0
        said = next((p.text for p in reasons if p.position is not None and start <= p.position < end), None)
        yield Loss(
            part.segment.path,
            start,
            end - start,
            first,
            last,
            len(readable),
            part.segment.records_of(readable),
            unreadable_size,
            unreadable_offsets,
            said or AFTER_THE_CUT,
        )


def _is_full(part: Kept, rows: Rows) -> bool:
    """Whether these first batches of the segment leave no offset free from its name on: none of them was moved."""
    if not len(rows):
        return False
    held = int((rows["last_offset"] - rows["base_offset"] + 1).sum(dtype="i8"))
    return held == int(rows["last_offset"][-1]) + 1 - part.base


def missing_end(partition: PartitionFiles, kept: list[Kept]) -> Iterator[Problem]:
    """The offsets that the log had, by its checkpoints, and the last file, which can be read to its end, does not."""
    if not kept:
        return
    segment, base = kept[-1].segment, kept[-1].base
    rows = segment.batches
    if segment.size != (int(rows["position"][-1] + rows["size"][-1]) if len(rows) else 0):
        return
    end_offset = max([base, *(rows["last_offset"][-1:] + 1).tolist(), kept[-1].after.end_offset or 0])
    if end_offset < (limit := once_reached(partition)):
        problems = check_end(partition, segment.path, end_offset)
        yield next(p for p in problems if f"says {limit}" in p.text)._replace(last_offset=limit - 1)


def first_doubtful_offsets(partition: PartitionFiles, kept: list[Kept], gaps: Sequence[Problem]) -> Iterator[int]:
    """Of each segment that loses batches: offsets whose batch may be another one than that which stays or goes.

    gaps: those that nothing explains.  The batch before such a gap, or after it, may have had other offsets."""
    for part in kept:
        if part.changed and not part.removed:
            yield from _contradicted(partition, part)
            yield from (gap.offset for gap in gaps if gap.path == part.segment.path and gap.offset is not None)


def _contradicted(partition: PartitionFiles, part: Kept) -> Iterator[int]:
    """Where batches contradict each other, those that stay are more than those that go, and still may be the wrong
    ones; but not while they go on without a gap from the segment's name.  Of a bad batch the header may be right."""
    import numpy as np

    rows = part.after.batches
    if check_offsets(partition, part.base, part.segment):
        right = np.concatenate([[part.base], rows["last_offset"] + 1])
        yield int(right[np.flatnonzero(np.append(rows["base_offset"], -1) != right)[0]])
    for damage in part.segment.damages:
        if damage.offset is not None and damage.last_offset is not None and damage.offset >= part.base:
            before = rows["last_offset"][rows["position"] < damage.position]
            if len(before) and before[-1] >= damage.offset:
                yield damage.offset
