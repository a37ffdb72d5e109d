"""UnifiedLog: one partition's log, the one place that puts appends, reads, rolls and truncations in order (LOG).

Appends and reads themselves are in log_hot_path.pyx, the class that this one extends; what happens to files is in
local_log.py; iterations are in log_iteration.py, searches by time in timestamp_search.py, and which segments
retention deletes is decided in retention.py.
Source: UnifiedLog, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from kcore.common.file import sync_path
from kcore.common.meters import TimeHistogram
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.scheduler import Scheduler
from kcore.common.text import bytes_of, counted, plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    DiskFull,
    InvalidOffset,
    KafkaStorageError,
    LogCleaningAborted,
    LogClosed,
    LogIsServed,
    OffsetOutOfRange,
    ReadOnlyLog,
)
from kcore.log import partition_metadata
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.local_log import LocalLog
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS
from kcore.log.log_hot_path import LogAppendInfo, LogHotPath
from kcore.log.log_iteration import (
    ARROW_BATCH_BYTES,
    Isolation,
    OnError,
    is_committed,
    iterate_batches,
    iterate_records,
    stops_at_damage,
)
from kcore.log.log_offset_metadata import (
    AbortedTxn,
    AppendOrigin,
    LogOffsetMetadata,
    TimestampAndOffset,
)
from kcore.log.log_segment import LogSegment
from kcore.log.log_segments import LogSegments
from kcore.log.lost_records import LostRecords, remove_mark, write_mark
from kcore.log.producer_runs import take_runs
from kcore.log.producer_state_entry import BatchMetadata, ProducerStateEntry
from kcore.log.producer_state_manager import (
    CompletedTxn,
    ProducerAppendInfo,
    ProducerStateManager,
    TransactionVerification,
    rebuild_producer_state,
)
from kcore.log.retention import expired_segments
from kcore.log.special_timestamps import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from kcore.log.timestamp_search import first_record_since, legacy_offsets_before, record_of_max_timestamp
from kcore.log.transaction_index import TransactionIndex
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record, RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: The flush times of logs that no log manager has, and of those that it has not got yet.  2 KiB: not for each log.
_NOT_READ = TimeHistogram()


Mode = Literal["r", "a"]

#: How often a log reports that its disk is still full: clients retry many times a second.
_DISK_FULL_LOG_INTERVAL_MS = 60_000


@dataclass(slots=True)
class LoadedParts:
    """The state of a log as the loader read it from its directory."""

    segments: LogSegments
    log_start_offset: int
    recovery_point: int
    log_end_offset: int
    leader_epoch_cache: LeaderEpochFileCache
    producer_state_manager: ProducerStateManager
    topic_id: UUID | None = None
    txn_indexes: dict[int, TransactionIndex] = field(default_factory=dict)
    lost_records: LostRecords | None = None


class UnifiedLog(LogHotPath):
    """One partition's log.

    Thread-safe.  A change holds `lock` (re-entrant; code below it takes no other log's lock).  A read takes no lock and
    sees the log end offset at its start.  Built by log_loader.load_log or open_log; ends with close() or delete().
    A failed system call takes the log offline: from then on every call raises KafkaStorageError, and the state in
    memory describes the last complete operation.  A full disk does so only if a truncation, flush, deletion or
    swap may be half done; a failed append or roll may be tried again.

    sole_replica: the log has no other replica, so the high watermark follows the log end offset.
    log_dir: the data directory.  The log reports to it a failing disk, and offsets that a truncation lowers.
    """

    #: Called when retention has raised the log start offset, without the log's lock.
    on_log_start_raised: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        parts: LoadedParts,
        *,
        time: Time,
        random: Random = SYSTEM_RANDOM,
        scheduler: Scheduler | None = None,
        mode: Mode = "a",
        high_watermark: int = 0,
        sole_replica: bool = False,
        log_dir: LogDir | None = None,
    ) -> None:
        self._source = str(topic_partition)
        self.local = LocalLog(
            directory,
            self._source,
            config,
            parts.segments,
            parts.txn_indexes,
            parts.recovery_point,
            lock=self.lock,
            loaded_end_offset=parts.log_end_offset,
            time=time,
            scheduler=scheduler,
        )
        self.config = config
        self.topic_partition = topic_partition
        self.mode = mode
        self.topic_id = parts.topic_id
        #: None unless the log lacks records that it once had (lost_records.py).
        self.lost_records = parts.lost_records
        # True if the directory's name and partition.metadata may not be on the disk: an empty log was never flushed.
        self._directory_may_be_new = parts.recovery_point == 0 or parts.log_start_offset == parts.log_end_offset
        self.segments = parts.segments
        self.leader_epoch_cache = parts.leader_epoch_cache
        self.producer_state_manager = parts.producer_state_manager
        self.log_start_offset = parts.log_start_offset
        self.recovery_point = parts.recovery_point
        self.last_flush_ms = time.milliseconds()
        #: How long flushes took: of all logs of the log manager that has this one.
        self.flush_times = _NOT_READ
        self._truncations = 0
        self._time = time
        self._random = random
        self._scheduler = scheduler
        self._sole_replica = sole_replica
        self._log_dir = log_dir
        self._offline = None
        self._next_disk_full_log_ms = 0
        self._is_writable = mode == "a"
        self._on_close: Callable[[UnifiedLog], None] | None = None
        self._roll_jitter_ms = self._next_roll_jitter_ms()

        self._update_log_end_offset_metadata(self.local.end_at(parts.log_end_offset))
        self._update_high_watermark_metadata(LogOffsetMetadata(parts.log_start_offset))
        self._update_first_unstable_offset()
        self.update_high_watermark(parts.log_end_offset if sole_replica else high_watermark)

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        return self.local.directory

    @property
    def parent_dir(self) -> str:
        """The data directory."""
        return os.path.dirname(self.directory)

    @property
    def active_segment(self) -> LogSegment:
        return self.local.active_segment

    @property
    def last_stable_offset(self) -> int:
        """First offset that a read_committed consumer may not read."""
        unstable, high_watermark = self._first_unstable_offset_metadata, self.high_watermark
        return high_watermark if unstable is None else min(unstable.message_offset, high_watermark)

    @property
    def last_stable_offset_metadata(self) -> LogOffsetMetadata:
        unstable = self._first_unstable_offset_metadata
        if unstable is None or unstable.message_offset >= self.high_watermark:
            return self.high_watermark_metadata
        return self._with_position(unstable.message_offset) if unstable.message_offset_only else unstable

    def segment_base_offsets(self) -> list[int]:
        """Ascending."""
        return list(self.segments.base_offsets())

    @property
    def size(self) -> int:
        """Bytes of all .log files."""
        return self.segments.size_in_bytes

    @property
    def last_epoch(self) -> int:
        """The latest leader epoch; -1 if there is none."""
        return self.leader_epoch_cache.latest_epoch

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch <= epoch; (-1, -1) if there is no such entry."""
        return self.leader_epoch_cache.end_offset_for(epoch, self.log_end_offset)

    def maybe_assign_epoch_start_offset(self, epoch: int, start_offset: int) -> None:
        """Begin a new leader's epoch.  Raises KafkaStorageError.

        The file is written with the next flush: a fail-over gives a thousand partitions a new epoch at once, and a
        start drops an epoch without records.  That of records above the recovery point is read from their batches.
        """
        with self.lock:
            self._check_writable()
            try:
                self.leader_epoch_cache.assign(epoch, start_offset, write=self._sole_replica)
            except OSError as error:
                raise self.storage_failed("write the leader epochs of", error) from error

    @property
    def max_producer_id(self) -> int:
        """The largest id of the producers whose state the log has; -1 for none."""
        with self.lock:
            return max(self.producer_state_manager.producers, default=-1)

    def active_producers(self) -> list[ProducerStateEntry]:
        """What is known of each producer id, in no order."""
        with self.lock:
            return list(self.producer_state_manager.producers.values())

    def is_transaction_committed(self, producer_id: int, offset: int) -> bool | None:
        """Of the transaction that has the producer's record at this offset; None while it is open.

        As for a read_committed consumer: what has ended and is in no transaction index is committed.
        Raises OSError, CorruptMessage.
        """
        with self.lock:
            unfinished = self.producer_state_manager.unfinished_txns()
        for txn in unfinished:
            if txn.producer_id == producer_id and txn.last_offset is None and txn.first_offset.message_offset <= offset:
                return None
        aborted = self.local.aborted_between(offset, offset + 1)
        return all(txn.producer_id != producer_id for txn in aborted)

    def start_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, raises_epoch: bool = False
    ) -> TransactionVerification | None:
        """To be called before the coordinator is asked whether the producer's transaction has this partition; None
        where it is open here already.  sequence: of the batch that is to be appended if the answer is yes.
        raises_epoch: whether the producer has transaction version 2.
        Source: UnifiedLog.maybeStartTransactionVerification, Kafka 3.9."""
        state = self.producer_state_manager
        # Without the lock, as most batches are not the first ones.  If it ends now, the append is refused.
        entry = state.producers.get(producer_id)
        if entry is not None and entry.current_txn_first_offset is not None and entry.producer_epoch == producer_epoch:
            return None
        with self.lock:
            now_ms = self._time.milliseconds()
            return state.start_verification(producer_id, producer_epoch, sequence, now_ms, raises_epoch=raises_epoch)

    def assign_topic_id(self, topic_id: UUID) -> None:
        """Write partition.metadata if the log has no topic id yet.  Raises ValueError if it has a different one.

        In a new log the file and the directory are synced with the first data, so that creating a thousand partitions
        does not cost a sync for each.
        """
        with self.lock:
            if self.topic_id is not None:
                if self.topic_id != topic_id:
                    raise ValueError(f"{self._source}: topic id {topic_id}, the directory belongs to {self.topic_id}")
                return
            self._check_writable()
            try:
                is_new = self._directory_may_be_new and self.log_end_offset == 0
                partition_metadata.write_topic_id(self.directory, topic_id, sync=not is_new)
            except OSError as error:
                raise self.storage_failed("write partition.metadata of", error) from error
            self.topic_id = topic_id

    def update_high_watermark(self, offset: int | LogOffsetMetadata) -> int:
        """Set it to the offset, limited to [log start offset, log end offset].  Returns the new value."""
        wanted = offset if isinstance(offset, LogOffsetMetadata) else LogOffsetMetadata(offset)
        with self.lock:
            if wanted.message_offset < self.log_start_offset:
                wanted = LogOffsetMetadata(self.log_start_offset)
            elif wanted.message_offset >= self.log_end_offset:
                wanted = self.log_end_offset_metadata
            if wanted.message_offset < 0:
                raise ValueError(f"{self._source}: high watermark {wanted.message_offset}")
            self._update_high_watermark_metadata(wanted)
            return wanted.message_offset

    def _update_first_unstable_offset(self) -> None:
        unstable = self.producer_state_manager.first_unstable_offset
        if unstable is not None and unstable.message_offset < self.log_start_offset:
            unstable = LogOffsetMetadata(self.log_start_offset)
        self._first_unstable_offset_metadata = unstable

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Hide the records below offset (DeleteRecords, retention).  Returns whether the log start offset rose.

        If a truncation inside a batch left only batches below offset, they are removed, and the log start offset rises
        to the log end offset.  Raises OffsetOutOfRange above the high watermark, KafkaStorageError.
        """
        with self.lock:
            self._check_writable()
            if offset > self.high_watermark:
                raise OffsetOutOfRange(
                    f"{self._source}: log start offset {offset} would be above the high watermark {self.high_watermark}"
                )
            if offset <= self.log_start_offset:
                return False
            try:
                if self._ends_below(offset):
                    self._empty_at_end()
                else:
                    self._set_log_start_offset(offset)
            except OSError as error:
                raise self.storage_failed("delete records of", error) from error
            return True

    def _set_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset
        if self.high_watermark < offset:
            self._update_high_watermark_metadata(LogOffsetMetadata(offset))
        self.leader_epoch_cache.truncate_from_start(offset)
        self.producer_state_manager.on_log_start_offset_incremented(offset)
        self._update_first_unstable_offset()

    def _with_position(self, offset: int) -> LogOffsetMetadata:
        try:
            return self.local.position_of(offset, self.log_end_offset_metadata)
        except OSError as error:
            raise self.storage_failed("read", error) from error

    # -- append: the rare cases ------------------------------------------------------------------------------------

    def _find_duplicate(self, records: MemoryRecords) -> BatchMetadata | None:
        for batch in records.batches:
            if batch.producer_id >= 0:
                duplicate = self.producer_state_manager.find_duplicate(batch)
                if duplicate is not None:
                    return duplicate
        return None

    def _duplicate_info(self, duplicate: BatchMetadata) -> LogAppendInfo:
        return LogAppendInfo(
            duplicate.first_offset,
            duplicate.last_offset,
            duplicate.timestamp,
            duplicate.last_offset,
            log_append_time=duplicate.timestamp if self.config.message_timestamp_type == "LogAppendTime" else -1,
            log_start_offset=self.log_start_offset,
            is_duplicate=True,
        )

    def _analyze_producers(
        self, records: MemoryRecords, segment: LogSegment, origin: AppendOrigin
    ) -> tuple[dict[int, ProducerAppendInfo], list[CompletedTxn]]:
        """The producers' states after the append, and the transactions that it ends.

        Replicated data batches are processed producer by producer, all others one by one.  Raises the error that
        rejects the append.
        """
        prepared: dict[int, ProducerAppendInfo] = {}
        completed_txns = []

        def info_of(producer_id: int) -> ProducerAppendInfo:
            info = prepared.get(producer_id)
            if info is None:
                info = prepared[producer_id] = self.producer_state_manager.prepare(producer_id, origin)
            return info

        table = records.batches
        position_delta = segment.size - table[0].position
        row = 0
        while row < len(table):
            if origin is AppendOrigin.REPLICATION:
                row, runs = take_runs(table, row, 2**63 - 1, 2**31 - 1)
                for producer_id, epoch, batches, txn_offset, txn_position in runs:
                    first_offset = LogOffsetMetadata(txn_offset, segment.base_offset, txn_position + position_delta)
                    info_of(producer_id).append_run(epoch, batches, first_offset if txn_offset >= 0 else None)
                if row == len(table):
                    break
            batch = table[row]
            row += 1
            if batch.producer_id >= 0:
                first_offset = LogOffsetMetadata(
                    batch.base_offset, segment.base_offset, batch.position + position_delta
                )
                txn = info_of(batch.producer_id).append(batch, first_offset)
                if txn is not None:
                    completed_txns.append(txn)
        return prepared, completed_txns

    def _commit_producers(self, producers: dict[int, ProducerAppendInfo], completed_txns: list[CompletedTxn]) -> None:
        state = self.producer_state_manager
        for info in producers.values():
            state.update(info)
        for txn in completed_txns:
            if txn.is_aborted:
                last_stable_offset = state.last_stable_offset(txn)
                self.local.note_aborted_txn(
                    AbortedTxn(txn.producer_id, txn.first_offset, txn.last_offset, last_stable_offset)
                )
            state.complete_txn(txn)

    # -- roll -----------------------------------------------------------------------------------------------------

    def roll(self, expected_next_offset: int | None = None) -> LogSegment:
        """Start a new active segment at the log end, or at expected_next_offset if that is higher.

        Raises InvalidOffset, KafkaStorageError.
        """
        with self.lock:
            self._check_writable()
            try:
                return self._roll(expected_next_offset or 0)
            except OSError as error:
                raise self.storage_failed("roll", error) from error

    def _roll(self, expected_next_offset: int) -> LogSegment:
        base_offset = max(expected_next_offset, self.log_end_offset)
        active = self.active_segment
        if base_offset < active.base_offset or (base_offset == active.base_offset and active.size > 0):
            raise InvalidOffset(
                f"{self._source}: cannot roll to {base_offset}, the active segment starts at {active.base_offset} and "
                f"holds {active.size} bytes"
            )
        if base_offset == active.base_offset:
            segment = self.local.renew_active()
            self._take_snapshot_at(base_offset)
        else:
            self.local.make_room_at(base_offset)
            try:
                self._take_snapshot_at(base_offset)
                segment = self.local.new_segment(base_offset)
            except OSError as error:
                if not self.local.remove_half_made(base_offset):
                    raise self.storage_failed("roll", error, is_fatal=True) from error
                raise
            self.segments.add(segment)
        # The log end is now at the start of the new segment.
        self._update_log_end_offset_metadata(self.local.end_at(self.log_end_offset))
        if self.high_watermark == self.log_end_offset:
            self._update_high_watermark_metadata(self.log_end_offset_metadata)
        self._roll_jitter_ms = self._next_roll_jitter_ms()
        if self._scheduler is not None:
            self._scheduler.schedule("flush-log", lambda: self._flush_in_background(base_offset))
        logger.debug("%s: rolled to a new segment at offset %d", self._source, base_offset)
        return segment

    def _take_snapshot_at(self, offset: int) -> None:
        self.producer_state_manager.map_end_offset = offset
        self.producer_state_manager.take_snapshot()

    def _next_roll_jitter_ms(self) -> int:
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return self._random.randrange(jitter_ms) if jitter_ms > 0 else 0

    # -- read -----------------------------------------------------------------------------------------------------

    def _aborted_txns(self, segment: LogSegment, start_offset: int, records: FileRecords) -> list[AbortedTxn]:
        return self.local.aborted_txns(segment, start_offset, records, self.log_end_offset)

    def fetch_offset_by_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record with this timestamp or a later one; None if there is none.

        -1: the log end offset; -2 and -4: the log start offset; -3: the record with the largest timestamp.  The
        first two come with timestamp -1.  Takes no lock.  Raises KafkaStorageError, CorruptMessage.
        Source: UnifiedLog.fetchOffsetByTimestamp.
        """
        self._check_open()
        if timestamp == LATEST_TIMESTAMP:
            return TimestampAndOffset(-1, self.log_end_offset, self.last_epoch)
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start = self.log_start_offset
            return TimestampAndOffset(-1, start, self.leader_epoch_cache.epoch_for_offset(start))
        try:
            if timestamp == MAX_TIMESTAMP:
                return record_of_max_timestamp(self.segments)
            if timestamp >= 0:
                # Files opened with mode "r" are not repaired.
                are_repaired = self.mode != "r"
                return first_record_since(self.segments, timestamp, self.log_start_offset, are_repaired=are_repaired)
        except OSError as error:
            raise self.storage_failed("search", error) from error
        return None

    def legacy_fetch_offsets_before(self, timestamp: int, max_num_offsets: int) -> list[int]:
        """Base offsets of the segments whose files were last changed at or before timestamp (ms), newest first, at
        most max_num_offsets.

        -1 (LATEST): all of them, with the log end offset in front unless the active segment is empty; -2 (EARLIEST):
        the log start offset.  Raises KafkaStorageError.  Source: UnifiedLog.legacyFetchOffsetsBefore, Kafka 3.9.
        """
        self._check_open()
        try:
            segments = list(self.segments)  # before the log end
            return legacy_offsets_before(
                segments, timestamp, max_num_offsets, self.log_start_offset, self.log_end_offset
            )
        except OSError as error:
            raise self.storage_failed("search", error) from error

    def batches(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        isolation: Isolation = "read_uncommitted",
        *,
        on_error: OnError = "raise",
    ) -> Iterator[RecordBatch]:
        """All batches, also control batches, with an offset in [start_offset, end_offset); by default the whole log.

        read_uncommitted reads up to the log end offset; read_committed up to the last stable offset, without the
        batches of aborted transactions.  Reads a MiB at a time.  Checks every CRC, and what no CRC covers: offsets
        ascend and are between the base offsets of the segments, and only the last segment may end inside a batch.

        on_error: at damage, after all batches before it, "raise" CorruptMessage, or "stop" with a warning in the log.
        Where a start after a crash would cut the log at this place, "stop" reads what it would keep.
        Raises ValueError for another isolation level or on_error, at the call; during the iteration OffsetOutOfRange
        for a start outside the log, CorruptMessage, KafkaStorageError.
        """
        stops = stops_at_damage(on_error)
        return iterate_batches(self, start_offset, end_offset, is_committed(isolation), stops)

    def records(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        isolation: Isolation = "read_uncommitted",
        *,
        on_error: OnError = "raise",
    ) -> Iterator[Record]:
        """The records with an offset in [start_offset, end_offset), read as by batches(); no control records."""
        stops = stops_at_damage(on_error)
        return iterate_records(self, start_offset, end_offset, is_committed(isolation), stops)

    def to_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_uncommitted",
        *,
        on_error: OnError = "raise",
    ) -> pa.Table:
        """The records of records() as an Arrow table; docs/dataframes.md describes its columns.

        columns: names of the columns to read, in this order.  on_error: as in batches().  The table has a chunk for
        about 16 MiB of batches.  GIL released for most of the work.  Raises ImportError without pyarrow, ValueError
        for an unknown column, and the exceptions of batches().
        """
        from kcore.log.log_columns import arrow_table  # a broker reads no columns

        stops = stops_at_damage(on_error)
        return arrow_table(self, start_offset, end_offset, columns, is_committed(isolation), stops)

    def iter_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
        isolation: Isolation = "read_uncommitted",
        *,
        batch_bytes: int = ARROW_BATCH_BYTES,
        on_error: OnError = "raise",
    ) -> Iterator[pa.RecordBatch]:
        """As to_arrow(), but one Arrow record batch at a time, each from about batch_bytes of the log: memory stays
        bounded for a log of any size.  Decompressed bytes count too; a larger batch is returned alone."""
        from kcore.log.log_columns import iterate_arrow

        stops = stops_at_damage(on_error)
        return iterate_arrow(self, start_offset, end_offset, columns, is_committed(isolation), batch_bytes, stops)

    # -- flush ------------------------------------------------------------------------------------------------------

    def flush(self, offset: int | None = None) -> None:
        """fsync everything below offset (default: the log end), and raise the recovery point to it.

        Takes the lock only for the first and the last step, so appends continue meanwhile.  After a truncation
        meanwhile the recovery point stays where it is.  Raises KafkaStorageError.
        """
        self._check_writable()
        with self.lock:
            truncations = self._truncations
            target = self.log_end_offset if offset is None else min(offset, self.log_end_offset)
        if target <= self.recovery_point:
            return
        begin = self.flush_times.begin()
        try:
            self.local.flush_segments(self.recovery_point, target)
            self.producer_state_manager.flush_snapshots(target)
            if self._directory_may_be_new:
                partition_metadata.sync_topic_id(self.directory)
            self.local.flush_names(directory_may_be_new=self._directory_may_be_new)
            self._directory_may_be_new = False
        except OSError as error:
            if self._was_closed_meanwhile():
                return
            # Fatal for a full disk too: the next fsync does not write again what this one could not write.
            raise self.storage_failed("flush", error, is_fatal=True) from error
        try:
            self.leader_epoch_cache.flush()
        except OSError as error:
            if self._was_closed_meanwhile():
                return
            raise self.storage_failed("write the leader epochs of", error) from error
        self.flush_times.end(begin)
        with self.lock:
            # After a truncation, records below the target may have been appended that were not synced.
            if truncations == self._truncations and target > self.recovery_point:
                self.recovery_point = target
                self.last_flush_ms = self._time.milliseconds()

    def _was_closed_meanwhile(self) -> bool:
        """For an error outside the lock: whether the log was closed (and its directory renamed) meanwhile."""
        with self.lock:
            return self.is_closed

    def _flush_in_background(self, offset: int) -> None:
        if not self.is_closed and self._offline is None:
            self.flush(offset)

    # -- truncation, retention, deletion ------------------------------------------------------------------------------

    def truncate_to(self, target_offset: int) -> bool:
        """Remove everything at or beyond target_offset.  Returns whether there was anything.

        A batch that spans the target is removed whole; the log end offset is still the target.  If all remaining
        batches are below the log start offset, the log becomes an empty segment that starts and ends at the target.
        Raises ValueError for a negative target, LogIsServed while a partition leads the log, KafkaStorageError.
        """
        if target_offset < 0:
            raise ValueError(f"{self._source}: truncation to {target_offset}")
        with self.lock:
            self._check_not_served()
            self._check_writable()
            try:
                if target_offset >= self.log_end_offset:
                    # An epoch that starts at the log end has no record, and may contradict the leader's next batch.
                    self.leader_epoch_cache.truncate_from_end(self.log_end_offset)
                    return False
                first = self.segments.first
                assert first is not None
                logger.info("%s: truncating from %d to %d", self._source, self.log_end_offset, target_offset)
                if first.base_offset > target_offset:
                    self._truncate_fully(target_offset)
                    return True
                # The last segment first, so that a crash leaves no gap.
                beyond = [s for s in reversed(list(self.segments)) if s.base_offset > target_offset]
                self.local.remove_segments(beyond)
                self.local.truncate_active_to(target_offset)
                self.producer_state_manager.map_end_offset = self.log_end_offset
                self._reset_end(target_offset, min(self.log_start_offset, target_offset))
                self.leader_epoch_cache.truncate_from_end(target_offset)
                state = self.producer_state_manager
                now_ms = self._time.milliseconds()
                rebuild_producer_state(state, self.segments, self.log_start_offset, target_offset, now_ms)
                state.on_high_watermark_updated(self.high_watermark)
                self._update_first_unstable_offset()
                if self._ends_below(self.log_start_offset):
                    self._empty_at_end()
                elif beyond:
                    # Without it a power loss may bring removed segments back; they would overlap later appends.
                    sync_path(self.directory)
                return True
            except OSError as error:
                raise self.storage_failed("truncate", error, is_fatal=True) from error

    def mark_lost_records(self, first_offset: int) -> None:
        """Leave a mark that records from first_offset on are lost; durable when it returns.  A mark at a lower offset
        stays.  Raises KafkaStorageError."""
        with self.lock:
            self._check_writable()
            if self.lost_records is not None:
                first_offset = min(first_offset, self.lost_records.first_offset)
            first_offset = max(first_offset, self.log_start_offset)
            try:
                write_mark(self.directory, first_offset)
            except OSError as error:
                raise self.storage_failed("mark", error) from error
            self.lost_records = LostRecords(first_offset)

    def cut_lost_records(self) -> None:
        """Truncate the log to the first lost offset, so that its end says what it has: there is no hole in it then.

        A damaged batch there is cut off by a scan with CRC: its header may be what is damaged, and a search would miss
        it.  Does nothing without a mark, or after it was done.  Raises LogIsServed, KafkaStorageError.
        """
        with self.lock:
            lost = self.lost_records
            if lost is None or lost.is_cut:
                return
            self._check_not_served()
            self._check_writable()
            first_offset = max(lost.first_offset, self.log_start_offset)
            if first_offset < self.log_end_offset:
                try:
                    first_offset = self._cut_damage_at(first_offset)
                except OSError as error:
                    raise self.storage_failed("recover", error, is_fatal=True) from error
                self.truncate_to(first_offset)
            self.lost_records = replace(lost, first_offset=first_offset, is_cut=True)

    def _cut_damage_at(self, offset: int) -> int:
        """Cut the segment that holds offset before its first bad batch; that batch's offset, or this one if it is
        lower."""
        segment = self.segments.floor(offset)
        if segment is None:
            return offset
        result = segment.recover(only_noteworthy=True)
        if not result.truncated_bytes:
            return offset
        logger.warning(
            "%s: cut %d bytes off segment %d from offset %d on, position %d: %s",
            self._source,
            result.truncated_bytes,
            segment.base_offset,
            result.last_offset + 1,
            result.valid_bytes,
            result.reason,
        )
        return min(offset, max(result.last_offset + 1, segment.base_offset))

    def forget_lost_records(self) -> None:
        """The log has all records again: remove the mark.  Raises KafkaStorageError."""
        with self.lock:
            self._check_writable()
            try:
                remove_mark(self.directory)
            except OSError as error:
                raise self.storage_failed("remove the mark of", error) from error
            self.lost_records = None

    def _ends_below(self, log_start_offset: int) -> bool:
        """Whether all batches are below the log start, and end before it: a truncation inside a batch removed the batch
        whole."""
        active = self.active_segment
        return active.base_offset < log_start_offset and active.read_next_offset() < log_start_offset

    def _empty_at_end(self) -> None:
        """Replace all segments by an empty one: the next start reads the log end offset from its name."""
        self._roll(0)
        self._remove_oldest(list(self.segments)[:-1])
        # Without it a power loss may bring removed segments back; they would overlap later appends.
        sync_path(self.directory)

    def truncate_fully_and_start_at(self, new_offset: int, log_start_offset: int | None = None) -> None:
        """Remove everything; the log is empty and starts and ends at new_offset.

        Raises ValueError for a negative offset, LogIsServed while a partition leads the log, KafkaStorageError.
        """
        if new_offset < 0:
            raise ValueError(f"{self._source}: truncation to {new_offset}")
        with self.lock:
            self._check_not_served()
            self._check_writable()
            logger.info("%s: truncating fully, the log starts again at %d", self._source, new_offset)
            try:
                self._truncate_fully(new_offset, log_start_offset)
            except OSError as error:
                raise self.storage_failed("truncate", error, is_fatal=True) from error

    def _truncate_fully(self, new_offset: int, log_start_offset: int | None = None) -> None:
        self.local.remove_segments(list(reversed(list(self.segments))), new_active_at=new_offset)
        self.leader_epoch_cache.clear_and_flush()
        self.producer_state_manager.truncate_fully_and_start_at(new_offset)
        self._reset_end(new_offset, new_offset if log_start_offset is None else log_start_offset)
        self._update_first_unstable_offset()
        sync_path(self.directory)

    def _reset_end(self, log_end_offset: int, log_start_offset: int) -> None:
        # After a crash, a log start offset left in the checkpoint would hide records appended below it.
        lowered = log_start_offset < self.log_start_offset
        self.log_start_offset = log_start_offset
        self._update_log_end_offset_metadata(self.local.end_at(log_end_offset))
        self._truncations += 1
        if self.high_watermark >= log_end_offset:
            self._update_high_watermark_metadata(self.log_end_offset_metadata)
        elif self.high_watermark < log_start_offset:
            self._update_high_watermark_metadata(LogOffsetMetadata(log_start_offset))
        if self.recovery_point > log_end_offset:
            self.recovery_point = log_end_offset
            lowered = True  # TRUNC-10: on disk before new data are appended below the old recovery point.
        if lowered and self._log_dir is not None:
            self._log_dir.lower_offsets(self)

    @property
    def may_have_old_segments(self) -> bool:
        """False for a log without any record; takes no lock."""
        segments = self.segments
        return len(segments) > 1 or segments.size_in_bytes > 0

    def delete_old_segments(self) -> int:
        """Apply retention.ms, retention.bytes and the log start offset.  Returns the number of deleted segments.

        Only whole segments below the high watermark are deleted, oldest first; an active segment that is deleted is
        replaced by a new one.  Raises KafkaStorageError.  Source: UnifiedLog.deleteOldSegments.
        """
        with self.lock:
            self._check_writable()
            log_start_offset = self.log_start_offset
            try:
                deleted = self._delete_old_segments()
            except OSError as error:
                raise self.storage_failed("delete old segments of", error) from error
            has_risen = self.log_start_offset > log_start_offset
        if has_risen:
            self.on_log_start_raised()
        return deleted

    def _delete_old_segments(self) -> int:
        expired = expired_segments(
            self.segments,
            self.config,
            self._time.milliseconds(),
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            log_end_offset=self.log_end_offset,
        )
        if not expired:
            return 0
        if len(expired) == len(self.segments):
            self._roll(0)
        self._remove_oldest(expired)
        return len(expired)

    def _remove_oldest(self, expired: list[LogSegment]) -> None:
        """Delete the oldest segments; the log then starts at the segment after them."""
        following = self.segments.higher(expired[-1].base_offset)
        assert following is not None
        logger.info("%s: deleting %d segments below offset %d", self._source, len(expired), following.base_offset)
        if following.base_offset > self.log_start_offset:
            self._set_log_start_offset(following.base_offset)
        try:
            self.local.remove_segments(expired)
            for segment in expired:
                self.producer_state_manager.delete_snapshot(segment.base_offset)
        except OSError as error:
            raise self.storage_failed("delete old segments of", error, is_fatal=True) from error

    def remove_expired_producers(self, now_ms: int) -> None:
        with self.lock:
            self.producer_state_manager.remove_expired_producers(now_ms)

    # -- compaction -------------------------------------------------------------------------------------------------

    def replace_segments(self, new: list[LogSegment], old: list[LogSegment]) -> None:
        """Replace `old` by the segments made from them (cleaned or split, flushed, still named .cleaned).

        Readers see the change in one step.  Raises KafkaStorageError and LogClosed; LogCleaningAborted if an old
        segment is no longer in the log below the active one.  If it raises and the new segments are not part of the
        log, the caller removes them.  Source: UnifiedLog.replaceSegments.
        """
        with self.lock:
            self._check_writable()
            active = self.active_segment.base_offset
            if not all(s.base_offset < active and self.segments.get(s.base_offset) is s for s in old):
                raise LogCleaningAborted(f"{self._source}: segments from {old[0].base_offset} on changed meanwhile")
            try:
                self.local.replace_segments(new, old)
                kept = {segment.base_offset for segment in new}
                for segment in old:
                    if segment.base_offset not in kept:
                        self.producer_state_manager.delete_snapshot(segment.base_offset)
            except OSError as error:
                # Only the next start can finish or undo half a swap.
                raise self.storage_failed("replace segments of", error, is_fatal=True) from error

    def cleaning_failed(self, error: OSError) -> None:
        """The cleaner could not read or write a file of this log: takes the log offline, unless the disk is full."""
        self.storage_failed("clean", error)

    def last_records_of_active_producers(self) -> dict[int, tuple[int | None, int]]:
        """producer id -> (offset of its last data record, None if it has only markers; its epoch)."""
        with self.lock:
            return {
                producer_id: (entry.last_batch.last_offset if entry.last_batch else None, entry.producer_epoch)
                for producer_id, entry in self.producer_state_manager.producers.items()
            }

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, save the producers' state, trim the indexes, close the files.  A second call does nothing.

        Raises LogIsServed while a partition leads the log, which its broker closes.  Raises KafkaStorageError if the
        flush or the snapshot fails; the files are closed all the same.
        """
        with self.lock:
            if self.is_closed:
                return
            if self._offline is None:
                self._check_not_served()
            try:
                if self.mode == "a" and self._offline is None:
                    self.producer_state_manager.map_end_offset = self.log_end_offset
                    self.producer_state_manager.take_snapshot()
                    self.flush()
                    # Without new data flush() does nothing, but a truncation or retention may have changed snapshots.
                    # The clean-shutdown marker states that they are on the disk.
                    self.producer_state_manager.flush_snapshots(self.log_end_offset)
                    if self._sole_replica or self.log_start_offset < self.log_end_offset:
                        self.leader_epoch_cache.flush()  # an empty log's epochs are not read again
                    # After a truncation inside a batch the log end offset is after the end of the data.  The next start
                    # uses the end of the data.
                    if not self.active_segment.is_untouched:
                        self.recovery_point = min(self.recovery_point, self.active_segment.read_next_offset())
            except OSError as error:
                raise self.storage_failed("close", error) from error
            finally:
                self._close_files()
        if self._on_close is not None:
            self._on_close(self)

    def discard(self) -> None:
        """Close the files and flush nothing, as their directory is removed next.  Raises LogIsServed as close()."""
        with self.lock:
            if self.is_closed:
                return
            if self._offline is None:
                self._check_not_served()
            self._close_files()
        if self._on_close is not None:
            self._on_close(self)

    def on_close(self, callback: Callable[[UnifiedLog], None]) -> None:
        """Call this after close(), once the files are closed."""
        self._on_close = callback

    def _close_files(self) -> None:
        self.is_closed = True
        self._is_writable = False
        self.local.close(trim=self.mode == "a" and self._offline is None)

    def rename_dir(self, name: str, *, sync: bool = True) -> None:
        """Close the files and rename the directory, within its data directory, before it is deleted.

        sync=False: the caller syncs the data directory, once for many logs.  Slices that were read before stay
        readable.  Raises KafkaStorageError.
        """
        with self.lock:
            self._check_writable()
            self._close_files()
            try:
                self.local.rename(name, sync=sync)
            except OSError as error:
                raise self.storage_failed("rename the directory of", error) from error

    def delete(self) -> None:
        """Close the log and remove its directory with everything in it.  Raises LogIsServed, KafkaStorageError."""
        if self.mode == "r":
            raise ReadOnlyLog(f"{self._source}: opened for reading, cannot be deleted")
        with self.lock:
            self._check_not_served()
            if not self.is_closed:
                self._close_files()
            try:
                self.local.delete()
            except OSError as error:
                raise self.storage_failed("delete", error) from error

    def __enter__(self) -> UnifiedLog:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.is_served:  # Broker.log() in a `with` block: its broker goes on
            self.close()

    def __repr__(self) -> str:
        return (
            f"UnifiedLog({self._source}, [{self.log_start_offset}, {self.log_end_offset}), high watermark "
            f"{self.high_watermark}, {counted(len(self.segments), 'segment')}, mode {self.mode!r})"
        )

    def _repr_html_(self) -> str:
        from kcore.common.html_table import MOST_ROWS, html_table

        segments = list(self.segments)
        ends = [*(segment.base_offset for segment in segments[1:]), self.log_end_offset]
        rows = [
            (segment.base_offset, end - 1, bytes_of(segment.size), *segment.time_span())
            for segment, end in zip(segments[:MOST_ROWS], ends, strict=False)
        ]
        title = (
            f"{self.topic_partition}: offsets {self.log_start_offset:,} to {self.log_end_offset:,}, high watermark "
            f"{self.high_watermark:,}, {bytes_of(self.size)} in {counted(len(segments), 'segment')}"
        )
        columns = ["first offset", "last offset", "size", "first timestamp", "latest timestamp"]
        return html_table(title, columns, rows, count=len(segments))

    # -- state checks -------------------------------------------------------------------------------------------------

    @property
    def is_offline(self) -> bool:
        return self._offline is not None

    def mark_offline(self, error: OSError) -> None:
        """Take the log offline: another log of the same data directory has reported a disk failure."""
        if self._offline is None:
            self._offline = error
            self._is_writable = False

    def _check_open(self) -> None:
        if self._offline is not None:
            raise KafkaStorageError(f"{self._source}: the log is offline after: {plain_error(self._offline)}")
        if self.is_closed:
            raise LogClosed(f"{self._source}: the log is closed")

    def _check_writable(self) -> None:
        if self._offline is not None or self.is_closed:
            self._check_open()
        if self.mode == "r":
            raise ReadOnlyLog(f"{self._source}: opened with mode 'r'; open_log(path, mode='a') appends")

    def _check_not_served(self) -> None:
        if self.is_served:
            raise LogIsServed(
                f"{self._source}: a partition leads this log: only its broker closes, truncates or deletes it"
            )

    def storage_failed(self, what: str, error: OSError, *, is_fatal: bool = False) -> KafkaStorageError:
        """Take the log offline, unless the disk is only full.  Returns the exception to raise.

        is_fatal: the operation may be half done, so a full disk takes the log offline as well.
        """
        disk_full_only = error.errno in DISK_FULL_ERRORS and not is_fatal
        text = f"could not {what} the log in {self.directory}"
        reason = plain_error(error)
        if not disk_full_only and self._offline is None:
            logger.error("%s: %s, it goes offline: %s", self._source, text, reason)
            self.mark_offline(error)
            if self._log_dir is not None:
                self._log_dir.fail(error)
        elif disk_full_only:
            now_ms = self._time.milliseconds()
            if now_ms >= self._next_disk_full_log_ms:
                self._next_disk_full_log_ms = now_ms + _DISK_FULL_LOG_INTERVAL_MS
                logger.error("%s: %s: %s", self._source, text, reason)
        failure = DiskFull if disk_full_only else KafkaStorageError
        return failure(f"{self._source}: {text}: {reason}")
