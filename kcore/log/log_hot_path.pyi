"""LogHotPath: the appends and reads of UnifiedLog, and the state that they touch."""

import threading

from kcore.common.time import Time
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import (
    AppendOrigin,
    FetchDataInfo,
    FetchIsolation,
    LogAppendInfo,
    LogOffsetMetadata,
)
from kcore.log.log_segments import LogSegments
from kcore.log.producer_state_manager import ProducerStateManager
from kcore.record.memory_records import MemoryRecords

class LogHotPath:
    @property
    def lock(self) -> threading._RLock: ...
    config: LogConfig
    segments: LogSegments
    leader_epoch_cache: LeaderEpochFileCache
    producer_state_manager: ProducerStateManager
    log_start_offset: int
    #: Everything below is on the disk, not only in the page cache.
    recovery_point: int
    is_closed: bool
    _end: LogOffsetMetadata
    _high_watermark: LogOffsetMetadata
    _first_unstable: LogOffsetMetadata | None
    _source: str
    _time: Time
    _sole_replica: bool
    _offline: OSError | None
    _may_write: bool
    _roll_jitter_ms: int

    @property
    def log_end_offset(self) -> int: ...  # the next offset to be written
    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata: ...
    @property
    def high_watermark(self) -> int: ...
    def maybe_increment_high_watermark(self, new: LogOffsetMetadata) -> LogOffsetMetadata | None: ...  # HW-03
    def _set_high_watermark(self, mark: LogOffsetMetadata) -> None: ...
    def append_as_leader(
        self,
        records: bytes | bytearray | memoryview | MemoryRecords,
        leader_epoch: int | None = ...,
        origin: AppendOrigin = ...,
    ) -> LogAppendInfo:
        """Check a producer's batches, give them the next offsets, write them.

        A writable buffer has offsets and epoch assigned in place, a read-only one is copied first.  leader_epoch
        None: the log's latest, 0 if there is none.  For a repeated batch of an idempotent producer, the offsets it
        got the first time.
        """

    def append_as_follower(self, records: bytes | bytearray | memoryview | MemoryRecords) -> LogAppendInfo:
        """Write batches as a leader sent them, offsets kept; gaps are legal (LOG-07..09)."""

    def read(
        self,
        start_offset: int,
        max_length: int,
        isolation: FetchIsolation = ...,
        min_one_message: bool = ...,
    ) -> FetchDataInfo:
        """A slice of the segment that holds start_offset, of at most max_length bytes (LOG-24..28)."""
