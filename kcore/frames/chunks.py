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


class _Cuts(NamedTuple):
    """Offsets at which a segment can be cut, ascending, the first one its base offset; position: bytes before each."""

    offsets: np.ndarray
    positions: np.ndarray


def chunks_of(log: UnifiedLog, end_offset: int, target_bytes: int) -> Iterator[Chunk]:
    """From the log start to end_offset, of about target_bytes each, cut at entries of the offset indexes."""
    segments = list(log.segments)
    bounds = [*(segment.base_offset for segment in segments[1:]), end_offset]
    cuts, before = [], 0
    for segment in segments:
        here = _cuts(segment)
        cuts.append(_Cuts(here.offsets, here.positions + before))
        before += segment.size
    if not cuts:
        return
    offsets = np.concatenate([cut.offsets for cut in cuts])
    positions = np.concatenate([cut.positions for cut in cuts])
    wanted = np.searchsorted(positions, np.arange(target_bytes, before, target_bytes))
    start = log.log_start_offset
    chosen = {int(offsets[place]) for place in wanted if place < len(offsets)}
    edges = [start, *sorted(offset for offset in chosen if start < offset < end_offset), end_offset]
    for first, end in pairwise(edges):
        if first < end:
            yield Chunk(first, end, _max_timestamp(segments, bounds, first, end))


def _cuts(segment: LogSegment) -> _Cuts:
    # An index entry has the last offset of a batch: the next batch begins after it.
    entries = segment.offset_index.to_numpy()
    return _Cuts(
        np.concatenate(([segment.base_offset], entries["offset"] + 1)),
        np.concatenate(([0], entries["position"].astype(np.int64))),
    )


def _max_timestamp(segments: list[LogSegment], bounds: list[int], start: int, end: int) -> int | None:
    latest = -1
    for place, (segment, bound) in enumerate(zip(segments, bounds, strict=True)):
        if bound <= start or segment.base_offset >= end:
            continue
        entries = segment.time_index.to_numpy()
        # An entry: no record up to this offset is later than this timestamp.
        covering = int(np.searchsorted(entries["offset"], min(end, bound) - 1))
        if covering < len(entries):
            latest = max(latest, int(entries["timestamp"][covering]))
        elif place < len(segments) - 1 and len(entries):
            # A segment that is rolled gets its latest timestamp as the last entry (SEG-12).
            latest = max(latest, int(entries["timestamp"][-1]))
        else:
            return None
    return latest
