"""Offset ranges as tasks of even size: large ranges are cut at index entries, small ones share a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kcore.common.topic_partition import TopicPartition
from kcore.log.log_segment import LogSegment
from kcore.record.batch_header import ATTRIBUTES_OFFSET, CODEC_MASK, LEGACY_ATTRIBUTES_OFFSET, MAGIC_OFFSET
from kcore.spark.catalog import segment_base_offsets

_NO_BOUND = 2**63 - 1
#: Bytes of segment files that a task reads, by default: the first value up to 512 MiB in total, the second (that of
#: Spark's own file formats) from 1 GiB on, and values between them in between.  Each task costs 20 ms of CPU time, but
#: too few tasks leave cores idle.
LEAST_TARGET_BYTES, TARGET_BYTES = 64 << 20, 128 << 20
#: With `parallelism` the number of tasks is a multiple of it, and a task reads about TARGET_BYTES, at least this.
SMALLEST_TARGET_BYTES = 16 << 20
#: Cost of opening a log: the bytes that could be read in the same time.
_OPEN_COST = 4 * 1024 * 1024


@dataclass(frozen=True)
class _Cost:
    """The weight of a byte of a segment when tasks are cut."""

    read: float  # in the part whose records are read
    passed: float  # in the part whose records are decoded and then dropped: they are later than time_to


#: A compressed byte counts as the number of bytes that it usually decompresses to, so that a few hundred MB of
#: compressed data keep all cores busy too.  Decompression is a large part of the cost.
_PLAIN, _COMPRESSED = _Cost(1, 0.125), _Cost(4, 1.5)
#: With option maxBytesPerPartition every byte counts one.
_BYTES = _Cost(1, 1)


@dataclass(frozen=True)
class OffsetRange:
    """Records of one partition with start <= offset < end and time_from <= timestamp <= time_to (ms).

    size: about the bytes of the segment files that hold them, weighted as plan() does.  aborted: (producer id, first
    offset, last offset) of aborted transactions.
    """

    topic_partition: TopicPartition
    directory: str
    start: int
    end: int
    size: int = 0
    time_from: int = -(2**63)
    time_to: int = _NO_BOUND
    aborted: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def plan(
    ranges: Sequence[OffsetRange],
    *,
    parallelism: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
    min_tasks: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """The ranges that each task reads.

    parallelism: how many tasks run at once, None if Spark does not say it; max_bytes: bytes of segment files for each
    task; max_records: largest number of offsets of a task; min_tasks: smallest number of tasks, unless there are fewer
    records.
    Raises OSError, FileNotFoundError for a directory that does not exist.
    """
    marked = [(piece, _marks(piece, by_cost=not max_bytes)) for piece in ranges if len(piece)]
    total = sum(marks.size for _, marks in marked)
    if max_bytes:
        target = max_bytes
    elif parallelism:
        with_opening = total + _OPEN_COST * len(marked)
        rounds = max(1, round(with_opening / parallelism / (TARGET_BYTES + _OPEN_COST)))
        target = max(SMALLEST_TARGET_BYTES, with_opening // (rounds * parallelism) - _OPEN_COST)
    else:
        target = min(max(LEAST_TARGET_BYTES, total // 8), TARGET_BYTES)

    def cut_for(target: int) -> list[OffsetRange]:
        pieces = [cut for piece, marks in marked for cut in _cut(piece, marks, target)]
        return [cut for piece in pieces for cut in _no_longer_than(piece, max_records)] if max_records else pieces

    tasks = _packed(cut_for(target), target, max_records)
    if min_tasks and len(tasks) < min_tasks and total:
        pieces = cut_for(min(target, max(1, total // min_tasks)))
        if len(pieces) < min_tasks:
            pieces = _cut_by_offsets(pieces, min_tasks)
        tasks = [(piece,) for piece in pieces]
    return tasks


@dataclass(frozen=True)
class _Marks:
    """Offsets at which a range can be cut, ascending, and the weighted bytes before each."""

    offsets: np.ndarray
    positions: np.ndarray
    size: int


def _marks(piece: OffsetRange, by_cost: bool) -> _Marks:
    """by_cost: bytes are weighted by _Cost; without it each counts one."""
    base_offsets = segment_base_offsets(piece.directory)
    offsets, positions = [], []
    before = 0
    for base, following in pairwise([*base_offsets, _NO_BOUND]):
        if following <= piece.start or base >= piece.end:
            continue
        try:
            segment = LogSegment(piece.directory, base, writable=False)
        except FileNotFoundError:
            continue  # deleted meanwhile: the task that reads the range reports the loss
        try:
            entries = segment.offset_index.to_numpy()
            size = segment.size
            cost = (_COMPRESSED if _is_compressed(segment) else _PLAIN) if by_cost else _BYTES
            # No record before this offset is later than time_to; most of those after it are.
            in_time = segment.time_index.lookup(piece.time_to)[1] if piece.time_to < _NO_BOUND else _NO_BOUND
        finally:
            segment.close()
        # An index entry has the last offset of a batch: the next batch begins after it, the first one at the base.
        at = np.concatenate(([base], entries["offset"] + 1))
        position = np.concatenate(([0], entries["position"].astype(np.int64)))
        counts = np.maximum(np.diff(position, append=size), 0) * np.where(at > in_time, cost.passed, cost.read)
        counted = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        first = max(int(np.searchsorted(at, piece.start, side="right")) - 1, 0)
        last = int(np.searchsorted(at, piece.end, side="left"))
        offsets.append(at[first:last])
        positions.append(before + counted[first:last] - counted[first])
        before += int(counted[last] - counted[first])
    if not offsets:
        return _Marks(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    return _Marks(np.concatenate(offsets), np.concatenate(positions), before)


def _is_compressed(segment: LogSegment) -> bool:
    """True if the first batch is compressed."""
    last = ATTRIBUTES_OFFSET + 1
    header = segment.slice(0, last + 1).read()
    if len(header) <= last:
        return False
    return header[last if header[MAGIC_OFFSET] == 2 else LEGACY_ATTRIBUTES_OFFSET] & CODEC_MASK != 0


def _cut(piece: OffsetRange, marks: _Marks, target: int) -> list[OffsetRange]:
    count = max(1, round(marks.size / target))
    if count > len(marks.offsets):
        cuts = marks.offsets.tolist()  # there are no more index entries to cut at
    else:
        step = marks.size / count
        wanted = np.searchsorted(marks.positions, [step * i for i in range(1, count)])
        cuts = [int(marks.offsets[i]) for i in wanted if i < len(marks.offsets)]
    bounds = sorted({piece.start, piece.end, *(cut for cut in cuts if piece.start < cut < piece.end)})
    share = marks.size // (len(bounds) - 1)
    return [replace(piece, start=a, end=b, size=share) for a, b in pairwise(bounds)]


def _cut_by_offsets(pieces: list[OffsetRange], count: int) -> list[OffsetRange]:
    """Cuts into `count` pieces or a few more, of about the same number of offsets; for index entries too far apart."""
    longest = max(1, -(-sum(map(len, pieces)) // count))
    while True:
        cut = [part for piece in pieces for part in _no_longer_than(piece, longest)]
        if len(cut) >= count or longest == 1:
            return cut
        longest = max(1, longest - max(1, longest // 8))


def _no_longer_than(piece: OffsetRange, records: int) -> Iterator[OffsetRange]:
    count = -(-len(piece) // records)
    for i in range(count):
        start = piece.start + len(piece) * i // count
        end = piece.start + len(piece) * (i + 1) // count
        yield replace(piece, start=start, end=end, size=piece.size // count)


def _packed(pieces: list[OffsetRange], target: int, max_records: int | None) -> list[tuple[OffsetRange, ...]]:
    """Joins neighbours to tasks of about the same size: none much above `target` bytes, no small one at the end."""
    costs = [piece.size + _OPEN_COST for piece in pieces]
    share = sum(costs) / max(1, math.ceil(sum(costs) / (target + _OPEN_COST) - 0.1))
    tasks: list[list[OffsetRange]] = []
    belongs_to = -1
    before = used = records = 0
    for piece, cost in zip(pieces, costs, strict=True):
        middle_in = int((before + cost / 2) / share)
        too_much = used + cost > 1.25 * share or (max_records and records + len(piece) > max_records)
        if middle_in > belongs_to or too_much:
            tasks.append([])
            belongs_to, used, records = middle_in, 0, 0
        tasks[-1].append(piece)
        before += cost
        used += cost
        records += len(piece)
    return [tuple(task) for task in tasks]
