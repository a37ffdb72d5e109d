"""A log as ranges of offsets, with what the indexes say about the records of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kcore.log.log_segment import LogSegment
from kcore.log.unified_log import UnifiedLog


class Chunk(NamedTuple):
    """The records with an offset in [start, end).  max_timestamp: none of them has a later one (ms); None if the
    indexes do not say it."""

    start: int
    end: int
    max_timestamp: int | None


class _Part(NamedTuple):
    """A segment, its offsets that end at `end`.

    cuts: offsets at which it can be cut, ascending, the first one its base offset; positions: bytes before each.
    timed_offsets, timestamps: the time index: no record up to such an offset is later than its timestamp (ms).
    is_rolled: it is not the active segment; when a segment is rolled, its latest timestamp becomes the last entry
    (SEG-12).
    """

    base_offset: int
    end: int
    size: int
    cuts: np.ndarray
    positions: np.ndarray
    timed_offsets: np.ndarray
    timestamps: np.ndarray
    is_rolled: bool


def chunks_of(log: UnifiedLog, start: int, end: int, target_bytes: int) -> Iterator[Chunk]:
    """The offsets from start to end, in chunks of about target_bytes each, cut at entries of the offset indexes."""
    if start >= end:
        return
    segments = [segment for segment in log.segments.from_floor(start) if segment.base_offset < end]
    ends = [*(segment.base_offset for segment in segments[1:]), end]
    parts = [_part(*pair, is_rolled=pair[0] is not log.segments.active) for pair in zip(segments, ends, strict=True)]
    before, cuts, positions = 0, [], []
    for part in parts:
        cuts.append(part.cuts)
        positions.append(part.positions + before)
        before += part.size
    if not parts:
        return
    all_cuts, all_positions = np.concatenate(cuts), np.concatenate(positions)
    first = max(0, int(np.searchsorted(all_cuts, start, side="right")) - 1)
    wanted = np.arange(int(all_positions[first]) + target_bytes, before, target_bytes)
    chosen = np.unique(all_cuts[np.minimum(np.searchsorted(all_positions, wanted), len(all_cuts) - 1)])
    edges = [start, *chosen[(chosen > start) & (chosen < end)].tolist(), end]
    for chunk_start, chunk_end in pairwise(edges):
        yield Chunk(chunk_start, chunk_end, _max_timestamp(parts, chunk_start, chunk_end))


def _part(segment: LogSegment, end: int, *, is_rolled: bool) -> _Part:
    entries, times = segment.offset_index.to_numpy(), segment.time_index.to_numpy()
    return _Part(
        segment.base_offset,
        end,
        segment.size,
        # An index entry has the last offset of a batch: the next batch begins after it.
        np.concatenate(([segment.base_offset], entries["offset"] + 1)),
        np.concatenate(([0], entries["position"].astype(np.int64))),
        times["offset"],
        times["timestamp"],
        is_rolled,
    )


def _max_timestamp(parts: list[_Part], start: int, end: int) -> int | None:
    latest = -1
    for part in parts:
        if part.end <= start or part.base_offset >= end:
            continue
        covering = int(np.searchsorted(part.timed_offsets, min(end, part.end) - 1))
        if covering == len(part.timed_offsets):
            if not part.is_rolled or covering == 0:
                return None
            covering -= 1
        latest = max(latest, int(part.timestamps[covering]))
    return latest
