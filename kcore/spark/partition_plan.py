"""Offset ranges as tasks of even size: large ranges are cut at index entries, small ones share a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kcore.common.topic_partition import TopicPartition
from kcore.log.log_segment import LogSegment
from kcore.record.layout import CODEC_MASK
from kcore.spark.catalog import segment_base_offsets

#: Bytes of segment files that a task reads, unless told otherwise: the first up to 512 MiB in all, growing to the
#: second, as many as of Spark's own file formats, from 1 GiB on.  A task costs 20 ms of CPU time by itself, but few
#: tasks leave cores idle.
LEAST_TARGET_BYTES, TARGET_BYTES = 64 << 20, 128 << 20
#: A compressed byte takes several times as long as another; it counts as the bytes that usually come out of it, so that
#: a few hundred MB of them keep all cores busy too.
_UNPACKED = 4
#: What opening a log costs, in bytes that could be read meanwhile.
_OPEN_COST = 4 * 1024 * 1024


@dataclass(frozen=True)
class OffsetRange:
    """Records of one partition with start <= offset < end and time_from <= timestamp <= time_to (ms).

    size: bytes of the segment files that hold them, about, as plan() counts them.  aborted: (producer id, first offset,
    last offset) of transactions to leave out.
    """

    topic_partition: TopicPartition
    directory: str
    start: int
    end: int
    size: int = 0
    time_from: int = -(2**63)
    time_to: int = 2**63 - 1
    aborted: tuple[tuple[int, int, int], ...] = ()

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def plan(
    ranges: Sequence[OffsetRange],
    *,
    max_bytes: int | None = None,
    max_records: int | None = None,
    min_tasks: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """What each task reads.  max_bytes: of segment files; max_records bounds the offsets of a task; min_tasks is
    reached unless there are fewer records.  Raises OSError, FileNotFoundError for a directory that is gone."""
    unpacked = 1 if max_bytes else _UNPACKED
    marked = [(piece, _marks(piece, unpacked)) for piece in ranges if len(piece)]
    total = sum(marks.size for _, marks in marked)
    target = max_bytes or min(max(LEAST_TARGET_BYTES, total // 8), TARGET_BYTES)
    if min_tasks and total:
        target = min(target, max(1, total // min_tasks))
    pieces = [cut for piece, marks in marked for cut in _cut(piece, marks, target)]
    if min_tasks and len(pieces) < min_tasks:
        pieces = _cut_by_offsets(pieces, min_tasks)
    if max_records:
        pieces = [cut for piece in pieces for cut in _no_longer_than(piece, max_records)]
    if min_tasks:
        return [(piece,) for piece in pieces]
    return _packed(pieces, target, max_records)


@dataclass(frozen=True)
class _Marks:
    """Offsets at which a range can be cut, ascending, and the bytes that count before each."""

    offsets: np.ndarray
    positions: np.ndarray
    size: int


def _marks(piece: OffsetRange, unpacked: int) -> _Marks:
    """unpacked: for how many a byte of a compressed segment counts."""
    base_offsets = segment_base_offsets(piece.directory)
    offsets, positions = [], []
    before = 0
    for base, following in zip(base_offsets, [*base_offsets[1:], 2**63 - 1], strict=True):
        if following <= piece.start or base >= piece.end:
            continue
        try:
            segment = LogSegment(piece.directory, base, writable=False)
        except FileNotFoundError:
            continue  # deleted meanwhile: whoever reads it will see what that means
        try:
            entries = segment.offset_index.to_numpy()
            size = segment.size
            weight = unpacked if _is_compressed(segment) else 1
        finally:
            segment.close()
        # An entry names a batch by its last offset: the next batch begins behind it, or behind the segment's base.
        at = np.concatenate(([base], entries["offset"] + 1))
        position = np.concatenate(([0], entries["position"].astype(np.int64)))
        first = int(np.searchsorted(at, piece.start, side="right")) - 1
        last = int(np.searchsorted(at, piece.end, side="left"))
        first_position = int(position[max(first, 0)])
        end_position = size if last >= len(at) else int(position[last])
        inside = slice(max(first, 0), last)
        offsets.append(at[inside])
        positions.append(np.clip((position[inside] - first_position) * weight + before, before, None))
        before += max(0, end_position - first_position) * weight
    if not offsets:
        return _Marks(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    return _Marks(np.concatenate(offsets), np.concatenate(positions), before)


def _is_compressed(segment: LogSegment) -> bool:
    """As its first batch tells: magic in byte 16, the codec's bits in byte 22, in byte 17 of magic 0 and 1."""
    header = segment.slice(0, 23).read()
    return len(header) == 23 and header[22 if header[16] == 2 else 17] & CODEC_MASK != 0


def _cut(piece: OffsetRange, marks: _Marks, target: int) -> list[OffsetRange]:
    count = max(1, round(marks.size / target))
    if count > len(marks.offsets):
        cuts = marks.offsets.tolist()  # more cannot be had, however small the target
    else:
        step = marks.size / count
        wanted = np.searchsorted(marks.positions, [step * i for i in range(1, count)])
        cuts = [int(marks.offsets[i]) for i in wanted if i < len(marks.offsets)]
    bounds = sorted({piece.start, piece.end, *(cut for cut in cuts if piece.start < cut < piece.end)})
    share = marks.size // (len(bounds) - 1)
    return [replace(piece, start=a, end=b, size=share) for a, b in pairwise(bounds)]


def _cut_by_offsets(pieces: list[OffsetRange], count: int) -> list[OffsetRange]:
    """Into `count` pieces or a few more, as even as offsets tell: where index entries are too far apart."""
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
    tasks: list[list[OffsetRange]] = []
    room = records = 0
    for piece in pieces:
        cost = piece.size + _OPEN_COST
        if not tasks or cost > room or (max_records and records + len(piece) > max_records):
            tasks.append([])
            room, records = target + _OPEN_COST, 0
        tasks[-1].append(piece)
        room -= cost
        records += len(piece)
    return [tuple(task) for task in tasks]
