"""LogHotPath: the appends and reads of UnifiedLog, and the state that they read and write."""

from typing import Literal

from kcore.common.reentrant_lock import ReentrantLock
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.local_log import LocalLog
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import (
    AbortedTxn,
    AppendOrigin,
    FetchIsolation,
    LogOffsetMetadata,
)
from kcore.log.log_segments import LogSegments
from kcore.log.producer_state_manager import ProducerStateManager
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords

class LogAppendInfo:
    """The result of an append.  For a duplicate, the offsets are those of the batch that the log already has."""

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        *,
        log_append_time: int = ...,
        log_start_offset: int = ...,
        is_duplicate: bool = ...,
    ) -> None: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def offset_of_max_timestamp(self) -> int: ...
    @property
    def log_append_time(self) -> int: ...  # ms; -1 unless the topic has LogAppendTime
    @property
    def log_start_offset(self) -> int: ...
    @property
    def valid_bytes(self) -> int: ...
    @property
    def batch_count(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def converted_count(self) -> int: ...  # records that were built anew (VAL-24)
    @property
    def conversion_ns(self) -> int: ...
    @property
    def last_leader_epoch(self) -> int: ...
    @property
    def is_duplicate(self) -> bool: ...

class FetchDataInfo:
    """The result of a read: a slice of one segment's file, no bytes; fetch_offset_metadata is where it begins.

    aborted_transactions is None unless the isolation is TXN_COMMITTED.
    """

    def __init__(
        self,
        fetch_offset_metadata: LogOffsetMetadata,
        records: FileRecords | MemoryRecords,
        first_entry_incomplete: bool = ...,
        aborted_transactions: list[AbortedTxn] | None = ...,
    ) -> None: ...
    @property
    def fetch_offset_metadata(self) -> LogOffsetMetadata: ...
    @property
    def records(self) -> FileRecords | MemoryRecords: ...
    @property
    def first_entry_incomplete(self) -> bool: ...
    @property
    def aborted_transactions(self) -> list[AbortedTxn] | None: ...

class LatestEpoch:
    #: The epoch of the last entry, -1 without one.
    latest_epoch: int

class LogHotPath:
    @property
    def lock(self) -> ReentrantLock: ...
    config: LogConfig
    local: LocalLog
    segments: LogSegments
    leader_epoch_cache: LeaderEpochFileCache
    producer_state_manager: ProducerStateManager
    log_start_offset: int
    #: All records below this offset are on the disk, not only in the page cache.
    recovery_point: int
    @property
    def bytes_rejected(self) -> int: ...  # of appends refused with MessageTooLarge, as they were sent (LOG-06)
    is_closed: bool
    #: A partition leads this log: an append without a leader epoch raises LogIsServed.
    is_served: bool
    _first_unstable_offset_metadata: LogOffsetMetadata | None
    _source: str
    _time: Time
    _sole_replica: bool
    _offline: OSError | None
    _is_writable: bool
    _roll_jitter_ms: int

    @property
    def log_end_offset(self) -> int: ...  # the next offset to be written
    @property
    def log_end_offset_metadata(self) -> LogOffsetMetadata: ...
    @property
    def high_watermark(self) -> int: ...
    def maybe_increment_high_watermark(self, new: LogOffsetMetadata) -> LogOffsetMetadata | None: ...  # HW-03
    def maybe_increment_high_watermark_to_log_end(self) -> bool: ...
    @property
    def high_watermark_metadata(self) -> LogOffsetMetadata: ...  # with segment and position
    # What UnifiedLog has, for the files below it that take a log.
    topic_partition: TopicPartition
    mode: Literal["a", "r"]
    @property
    def last_stable_offset(self) -> int: ...
    def storage_failed(self, what: str, error: OSError, *, is_fatal: bool = ...) -> KafkaStorageError: ...
    def _update_log_end_offset_metadata(self, metadata: LogOffsetMetadata) -> None: ...
    def _update_high_watermark_metadata(self, metadata: LogOffsetMetadata) -> None: ...
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

    def append_as_follower(
        self, records: bytes | bytearray | memoryview | MemoryRecords, leader_epoch: int = ...
    ) -> LogAppendInfo:
        """Write batches as a leader sent them, offsets kept; gaps are legal.

        From the first batch of a later leader epoch than leader_epoch (-1: any) on they are left out.

        A batch cut off at the end is left out.  Without a whole one nothing is written: offsets -1.
        """

    def read(
        self,
        start_offset: int,
        max_length: int,
        isolation: FetchIsolation = ...,
        min_one_message: bool = ...,
    ) -> FetchDataInfo:
        """A slice of the segment that holds start_offset, of at most max_length bytes."""
