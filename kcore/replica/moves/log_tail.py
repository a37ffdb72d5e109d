"""What a future log still lacks of the current log near the end of a move (DIR-06)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcore.log.log_offset_metadata import FetchIsolation
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    from kcore.log.unified_log import UnifiedLog

#: How much of a log is copied at most while appends to it wait: some 5 ms.
MAX_BYTES_UNDER_LOCK = 4 * 1024 * 1024
_NEAR_THE_END = 1024 * 1024


def is_near_the_end(log: UnifiedLog, future: UnifiedLog) -> bool:
    """Whether the future log lacks less than 1 MiB of the log's present segment."""
    return _records_from(log, future.log_end_offset, _NEAR_THE_END).size_in_bytes < _NEAR_THE_END


def copy_tail(log: UnifiedLog, future: UnifiedLog) -> bool:
    """Append to the future log what it lacks, all of it or nothing; the caller prevents appends to the log meanwhile.

    False, and nothing is done, for more than MAX_BYTES_UNDER_LOCK or more than one segment.
    """
    if future.log_end_offset == log.log_end_offset:
        return True
    tail = _records_from(log, future.log_end_offset, MAX_BYTES_UNDER_LOCK)
    if not tail.size_in_bytes:
        future.roll(log.log_end_offset)  # a truncation inside the log's last batch has removed the batch whole
        return True
    if tail.size_in_bytes > MAX_BYTES_UNDER_LOCK or tail.last_offset + 1 != log.log_end_offset:
        return False
    future.append_as_follower(tail.buffer)
    return True


def _records_from(log: UnifiedLog, offset: int, max_bytes: int) -> MemoryRecords:
    """The batches from the one with this offset on, in one segment; at least one, unless no record follows."""
    records = log.read(offset, max_bytes, FetchIsolation.LOG_END, min_one_message=True).records
    return records if isinstance(records, MemoryRecords) else MemoryRecords(records.read(), check_crc=False)
