"""Search a log's segments by time: what ListOffsets answers for a timestamp.

UnifiedLog.fetch_offset_by_timestamp() and legacy_fetch_offsets_before() are the public names.  Nothing here takes a
lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcore.common.file import modified_ms
from kcore.log.log_offset_metadata import TimestampAndOffset
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments
from kcore.log.special_timestamps import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


def first_record_since(
    segments: LogSegments, timestamp: int, start_offset: int, *, are_repaired: bool
) -> TimestampAndOffset | None:
    """The first record at or after start_offset with this timestamp or a later one; None if there is none.

    are_repaired: False if the time indexes may lack their last entries, so that every segment must be searched.
    Raises OSError, CorruptMessage.
    """
    for segment in segments:
        if not are_repaired or segment.max_timestamp_so_far >= timestamp:
            record = segment.find_offset_by_timestamp(timestamp, start_offset)
            if record is not None:
                return TimestampAndOffset(*record)
    return None


def record_of_max_timestamp(segments: LogSegments) -> TimestampAndOffset | None:
    """The first record with the largest timestamp; None for an empty log.  Raises OSError, CorruptMessage."""
    best: LogSegment | None = None
    for segment in segments:
        if segment.size and (best is None or segment.max_timestamp_so_far > best.max_timestamp_so_far):
            best = segment
    record = best.find_offset_of_max_timestamp() if best is not None else None
    return TimestampAndOffset(*record) if record is not None else None


def legacy_offsets_before(
    segments: Sequence[LogSegment], timestamp: int, max_num_offsets: int, log_start_offset: int, log_end_offset: int
) -> list[int]:
    """See UnifiedLog.legacy_fetch_offsets_before().  log_end_offset was read after the segments, so it is not below
    their base offsets.  Raises OSError."""
    places = [(max(segment.base_offset, log_start_offset), segment.log_path) for segment in segments]
    offsets = [offset for offset, _ in places]
    if segments[-1].size > 0:
        offsets.append(log_end_offset)
    if timestamp == LATEST_TIMESTAMP:
        last = len(offsets) - 1
    elif timestamp == EARLIEST_TIMESTAMP:
        last = 0
    else:
        last = -1
        for i, (_, path) in enumerate(places):
            try:
                if modified_ms(path) <= timestamp:
                    last = i
            except FileNotFoundError:
                pass  # retention has just taken the segment
    return offsets[: last + 1][::-1][: max(0, max_num_offsets)]
