"""Which segments retention deletes: a rule over a log's segments and settings.

UnifiedLog.delete_old_segments() applies it.
Source: UnifiedLog.deleteRetentionMsBreachedSegments, deleteRetentionSizeBreachedSegments and
deleteLogStartOffsetBreachedSegments, Kafka 3.9.
"""

from __future__ import annotations

from kcore.common.file import modified_ms
from kcore.log.log_config import LogConfig
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments


def expired_segments(
    segments: LogSegments,
    config: LogConfig,
    now_ms: int,
    *,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
) -> list[LogSegment]:
    """The oldest segments that retention.ms, retention.bytes or the log start offset allow to delete, in their order.

    They end at or below the high watermark, and an empty active segment is none of them.  Raises OSError.
    """
    excess = segments.size_in_bytes - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
    by_age = config.delete and config.retention_ms >= 0
    in_order = list(segments)
    expired: list[LogSegment] = []
    for segment, following in zip(in_order, [*in_order[1:], None], strict=True):
        end = following.base_offset if following is not None else log_end_offset
        if end > high_watermark or (following is None and segment.size == 0):
            break
        below_start = following is not None and following.base_offset <= log_start_offset
        too_old = by_age and now_ms - largest_timestamp(segment) > config.retention_ms
        too_much = excess >= segment.size
        if not (below_start or too_old or too_much):
            break
        excess -= segment.size
        expired.append(segment)
    return expired


def largest_timestamp(segment: LogSegment) -> int:
    """The largest timestamp of the segment's records; the file's modification time if they have none."""
    if segment.max_timestamp_so_far >= 0:
        return segment.max_timestamp_so_far
    return modified_ms(segment.log_path)
