"""LogCleaner: compaction, which leaves a log at least the last record of each key.

A log has a clean head, compacted before, and a dirty tail.  A cleaning reads the dirty part up to where it may be
cleaned and notes the latest offset of each key (OffsetMap); then it copies head and tail, group of segments by group,
leaving out records whose key comes again later (BatchFilter), and swaps each copy in for the segments it was made from.
Tombstones (null values) and transaction markers stay until a delete horizon: delete.retention.ms after the cleaning
that first met them, so that a consumer slower than the cleaner still reads the deletion.
Source: LogCleaner and Cleaner, Kafka 2.4-4.x; KIP-58, KIP-354, KIP-534.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kcore.common.file import modified_ms
from kcore.common.shutdownable_thread import ShutdownableThread
from kcore.common.text import plain_error
from kcore.common.throttler import Throttler
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptMessage, KafkaStorageError, LogCleaningAborted, LogClosed
from kcore.log.batch_filter import DISCARD_RECORDS, RETAIN_EMPTY, START_HORIZON, BatchFilter
from kcore.log.log_cleaner_manager import LogCleanerManager, LogToClean
from kcore.log.log_dir import LogDir
from kcore.log.log_offset_metadata import AbortedTxn
from kcore.log.log_segment import LogSegment
from kcore.log.offset_map import OffsetMap
from kcore.log.transaction_index import TransactionIndex
from kcore.log.unified_log import UnifiedLog
from kcore.record.batch_header import LENGTH_OFFSET, LOG_OVERHEAD
from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record, RecordBatch
from kcore.record.record_batch_builder import RecordBatchBuilder

logger = logging.getLogger(__name__)

_MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """The log.cleaner.* settings."""

    num_threads: int = 1
    dedupe_buffer_size: int = 128 << 20
    dedupe_buffer_load_factor: float = 0.9
    io_buffer_size: int = 512 << 10
    max_io_bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000
    enable: bool = True

    def offset_map(self) -> OffsetMap:
        """A new map for one of the threads.  Raises ValueError if its share of the memory does not hold one key."""
        return OffsetMap(self.dedupe_buffer_size // max(self.num_threads, 1), self.dedupe_buffer_load_factor)


@dataclass(slots=True)
class CleanerStats:
    """What one cleaning did."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    map_bytes_read: int = 0
    map_records_read: int = 0
    buffer_utilization: float = 0.0
    elapsed_ms: float = 0.0
    map_elapsed_ms: float = 0.0


class CleanedTransactionMetadata:
    """The transactions that a cleaner is inside of, as it walks up a log: whose data may go, and whose markers.

    The data of an aborted transaction is removed at once; its marker only by a cleaning that has met no data before it,
    so that a consumer that has read part of the data also reads the marker.
    """

    def __init__(self) -> None:
        self._committed: set[int] = set()
        # producer id -> [the transaction, whether any of its data was met]
        self._aborted: dict[int, list[AbortedTxn | bool]] = {}
        self._to_come: list[tuple[int, AbortedTxn]] = []
        #: Of the segment being written: gets the aborted transactions whose data or marker may still be read.
        self.cleaned_index: TransactionIndex | None = None

    def add_aborted_transactions(self, txns: Iterable[AbortedTxn]) -> None:
        for txn in txns:
            heapq.heappush(self._to_come, (txn.first_offset, txn))

    def on_control_batch_read(self, batch: RecordBatch) -> bool:
        """Whether the marker may go, as far as its transaction is concerned."""
        self._begin_up_to(batch.last_offset)
        record = next(iter(batch.records()), None)
        if record is None:
            return True  # emptied by an earlier cleaning
        kind = control_record_type(record.key)
        if kind is ControlRecordType.ABORT:
            txn, data_met = self._aborted.pop(batch.producer_id, (None, False))
            if data_met and self.cleaned_index is not None:
                assert isinstance(txn, AbortedTxn)
                self.cleaned_index.append(txn)
            return not data_met
        if kind is ControlRecordType.COMMIT:
            data_met = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not data_met
        return False

    def on_batch_read(self, batch: RecordBatch) -> bool:
        """Whether the batch, one of data, belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        aborted = self._aborted.get(batch.producer_id)
        if aborted is None:
            self._committed.add(batch.producer_id)
            return False
        aborted[1] = True
        return True

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[0][0] <= offset:
            txn = heapq.heappop(self._to_come)[1]
            self._aborted.setdefault(txn.producer_id, [txn, False])


class _Retention:
    """What BatchFilter asks about the batches of one group that are not decided by keys alone."""

    def __init__(
        self,
        transactions: CleanedTransactionMetadata,
        active_producers: Mapping[int, tuple[int | None, int]],
        last_offset_of_round: int,
        now_ms: int,
        offset_map: OffsetMap,
    ) -> None:
        self._transactions = transactions
        self._active_producers = active_producers
        self._last_offset_of_round = last_offset_of_round
        self._now_ms = now_ms
        self._offset_map = offset_map
        self.keeps_legacy_tombstones = True
        self.filter: BatchFilter | None = None

    def decide(self, batch: RecordBatch) -> int:
        """Flags for the filter.  Source: Cleaner.cleanInto, its RecordFilter."""
        if batch.is_control:
            may_go = self._transactions.on_control_batch_read(batch)
            horizon = batch.delete_horizon_ms
            flags = DISCARD_RECORDS if may_go and horizon is not None and horizon <= self._now_ms else 0
            if may_go:
                flags |= START_HORIZON
        else:
            flags = DISCARD_RECORDS if self._transactions.on_batch_read(batch) else 0
        # The last batch of the round stays, or the offsets after it would be assigned again.
        if self._is_last_of_producer(batch) or batch.last_offset == self._last_offset_of_round:
            flags |= RETAIN_EMPTY
        return flags

    def _is_last_of_producer(self, batch: RecordBatch) -> bool:
        """Its sequence number, or for lack of data its epoch, is what a later start knows the producer by."""
        last = self._active_producers.get(batch.producer_id)
        if last is None or batch.producer_id < 0:
            return False
        last_data_offset, epoch = last
        if last_data_offset is None:
            return batch.is_control and batch.producer_epoch == epoch
        return batch.last_offset == last_data_offset

    def rebuild_legacy(self, batch: RecordBatch) -> bytes | None:
        """What stays of a batch of magic 0 or 1, None if all does: it knows neither horizons nor empty batches."""
        assert self.filter is not None
        read = without_key = 0
        kept: list[Record] = []
        for record in batch.records():
            read += 1
            if record.offset > self._offset_map.latest_offset:
                kept.append(record)
            elif record.key is None:
                without_key += 1
            elif record.offset >= self._offset_map.get(record.key) and (
                record.value is not None or self.keeps_legacy_tombstones
            ):
                kept.append(record)
        self.filter.count_legacy(read, len(kept), without_key)
        if len(kept) == read:
            return None
        if not kept:
            return b""
        builder = RecordBatchBuilder(
            magic=batch.magic,
            base_offset=kept[0].offset,
            compression=batch.compression,
            timestamp_type=batch.timestamp_type,
            log_append_time=batch.max_timestamp if batch.timestamp_type == "LogAppendTime" else None,
            # No rule kept timestamps below -1 out of old logs.
            any_timestamp=True,
        )
        for record in kept:
            builder.append(record.value, record.key, timestamp=record.timestamp, offset=record.offset)
        return bytes(builder.build())


class Cleaner:
    """Cleans one log at a time.  Not thread-safe: each cleaner thread has its own.

    check_done(topic partition) raises what ends a cleaning early; it is called for each chunk.
    """

    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        io_buffer_size: int = 256 << 10,
        throttler: Throttler | None = None,
        time: Time = SYSTEM_TIME,
        check_done: Callable[[TopicPartition], None] = lambda tp: None,
    ) -> None:
        self.offset_map = offset_map
        self._io_buffer_size = io_buffer_size
        self._buffer = bytearray(io_buffer_size)
        self._throttler = throttler
        self._time = time
        self._check_done = check_done

    def clean(self, cleanable: LogToClean) -> tuple[int, CleanerStats]:
        """The first offset that is not clean now, and what was done.

        Raises CorruptMessage, LogCleaningAborted, KafkaStorageError, OSError, MemoryError; segments that were
        replaced before that stay replaced, and the rest is as it was.
        """
        log, stats = cleanable.log, CleanerStats()
        started_ms = self._time.hi_res_clock_ms()
        now_ms = self._time.milliseconds()
        try:
            self._build_offset_map(log, cleanable.first_dirty_offset, cleanable.first_uncleanable_offset, stats)
            stats.map_elapsed_ms = self._time.hi_res_clock_ms() - started_ms
            end_offset = max(self.offset_map.latest_offset + 1, cleanable.first_dirty_offset)
            if end_offset == cleanable.first_dirty_offset:
                return end_offset, stats
            # For batches of magic 0 and 1, which have no horizon of their own.
            head = [s for s in log.segments if s.base_offset < cleanable.first_dirty_offset]
            legacy_horizon_ms = modified_ms(head[-1].log_path) - log.config.delete_retention_ms if head else 0
            transactions = CleanedTransactionMetadata()
            segments = [s for s in log.segments if s.base_offset < end_offset]
            for group in group_segments(
                segments, log.config.segment_bytes, log.config.segment_index_bytes, cleanable.first_uncleanable_offset
            ):
                self._clean_segments(
                    log, group, transactions, now_ms, legacy_horizon_ms, cleanable.first_uncleanable_offset, stats
                )
            stats.buffer_utilization = self.offset_map.utilization
        finally:
            self.offset_map.release()
            self._buffer = bytearray(self._io_buffer_size)
        stats.elapsed_ms = self._time.hi_res_clock_ms() - started_ms
        return end_offset, stats

    # -- the offset map -----------------------------------------------------------------------------------------------

    def _build_offset_map(self, log: UnifiedLog, start: int, end: int, stats: CleanerStats) -> None:
        """Note the latest offset of each key in [start, end), or as far as the map has room."""
        offset_map = self.offset_map
        offset_map.clear()
        dirty = [s for s in log.segments.from_floor(start) if s.base_offset < end]
        transactions = CleanedTransactionMetadata()
        transactions.add_aborted_transactions(log.local.aborted_between(start, end))
        if not dirty:
            return
        for segment, following in zip(dirty, [*(s.base_offset for s in dirty[1:]), end], strict=True):
            position = 0
            if segment.base_offset < start:
                place = segment.translate_offset(start)
                position = segment.size if place is None else place.position
            for records in self._chunks(log, segment, position):
                read, is_full = offset_map.add(records, start, transactions)
                stats.map_records_read += read
                stats.map_bytes_read += records.valid_bytes
                if is_full:
                    return
            # Offsets that no batch has are done with too.
            offset_map.update_latest_offset(following - 1)

    def _chunks(self, log: UnifiedLog, segment: LogSegment, position: int = 0) -> Iterable[MemoryRecords]:
        """The batches of a segment, as many at a time as fit into the buffer, which grows for one that does not.

        Each is valid until the next one is read.  CRCs are checked: a copy with a new CRC would hide damage.
        """
        while position < segment.size:
            self._check_done(log.topic_partition)
            piece = segment.slice(position, len(self._buffer))
            size = piece.read_into(self._buffer)
            self._throttle(size)
            view = memoryview(self._buffer)[:size].toreadonly()
            records = MemoryRecords(view, source=segment.log_path, base_position=position)
            if not records:
                if size < len(self._buffer):
                    raise CorruptMessage(
                        f"{segment.log_path}: no whole batch in the {size} bytes from position {position} to the end",
                        source=segment.log_path,
                        position=position,
                    )
                self._grow_buffer(segment, position)
                continue
            yield records
            position += records.valid_bytes

    def _grow_buffer(self, segment: LogSegment, position: int) -> None:
        needed = LOG_OVERHEAD + int.from_bytes(self._buffer[LENGTH_OFFSET:LOG_OVERHEAD], "big")
        if needed > segment.size - position:
            raise CorruptMessage(
                f"{segment.log_path}: a batch of {needed} bytes at position {position}, the file has "
                f"{segment.size - position} more",
                source=segment.log_path,
                position=position,
            )
        self._buffer = bytearray(max(needed, 2 * len(self._buffer)))

    def _throttle(self, size: int) -> None:
        if self._throttler is not None:
            self._throttler.maybe_throttle(size)

    # -- the copy -----------------------------------------------------------------------------------------------------

    def _clean_segments(
        self,
        log: UnifiedLog,
        group: list[LogSegment],
        transactions: CleanedTransactionMetadata,
        now_ms: int,
        legacy_horizon_ms: int,
        end_of_round: int,
        stats: CleanerStats,
    ) -> None:
        """Make one segment of a group and swap it in."""
        cleaned = log.local.new_cleaned_segment(group[0].base_offset)
        try:
            index = log.local.txn_index_of(cleaned)
            transactions.cleaned_index = index
            producers = log.last_records_of_active_producers()
            retention = _Retention(transactions, producers, end_of_round - 1, now_ms, self.offset_map)
            stops = {offset for offset, _ in producers.values() if offset is not None} | {end_of_round - 1}
            batch_filter = BatchFilter(
                self.offset_map,
                retention.decide,
                retention.rebuild_legacy,
                stops=stops,
                now_ms=now_ms,
                delete_retention_ms=log.config.delete_retention_ms,
            )
            retention.filter = batch_filter
            for segment, following in zip(group, [*group[1:], None], strict=True):
                end = segment.read_next_offset() if following is None else following.base_offset
                transactions.add_aborted_transactions(log.local.aborted_between(segment.base_offset, end))
                retention.keeps_legacy_tombstones = modified_ms(segment.log_path) > legacy_horizon_ms
                self._clean_into(log, segment, cleaned, batch_filter, stats)
            stats.records_read += batch_filter.records_read
            stats.records_kept += batch_filter.records_kept
            stats.records_without_key += batch_filter.records_without_key
            cleaned.on_become_inactive()
            cleaned.flush()
            index.flush()
            # Retention goes by the age of the data, not of the copy.
            modified_s = modified_ms(group[-1].log_path) / 1000
            os.utime(cleaned.log_path, (modified_s, modified_s))
            logger.debug("%s: %d segments from %d on became one", log.directory, len(group), cleaned.base_offset)
            log.replace_segments([cleaned], group)
        except BaseException:
            if log.segments.get(cleaned.base_offset) is not cleaned:
                log.local.discard_cleaned_segment(cleaned)
            raise

    def _clean_into(
        self,
        log: UnifiedLog,
        segment: LogSegment,
        cleaned: LogSegment,
        batch_filter: BatchFilter,
        stats: CleanerStats,
    ) -> None:
        for records in self._chunks(log, segment):
            left = batch_filter.filter(records)
            stats.bytes_read += records.valid_bytes
            if left:
                # No other thread knows this segment yet, so it needs no lock.
                cleaned.append(MemoryRecords(left, check_crc=False, source=cleaned.log_path))
                stats.bytes_written += len(left)
                self._throttle(len(left))


def group_segments(
    segments: list[LogSegment], max_size: int, max_index_size: int, first_uncleanable_offset: int
) -> list[list[LogSegment]]:
    """Neighbours that fit into one segment: by the size of the logs, of each index, and by their offsets.

    The last offset of a segment is estimated by where the next one begins.  Source: Cleaner.groupSegmentsBySize.
    """
    groups: list[list[LogSegment]] = []
    room = [0, 0, 0]
    for n, segment in enumerate(segments):
        sizes = [segment.size, segment.offset_index.size_in_bytes, segment.time_index.size_in_bytes]
        end = segments[n + 1].base_offset if n + 1 < len(segments) else first_uncleanable_offset
        fits = groups and all(size <= left for size, left in zip(sizes, room, strict=True))
        if fits and (segment.size == 0 or end - 1 - groups[-1][0].base_offset <= _MAX_INT32):
            groups[-1].append(segment)
        else:
            groups.append([segment])
            room = [max_size, max_index_size, max_index_size]
        room = [left - size for size, left in zip(sizes, room, strict=True)]
    return groups


class CleanerThread(ShutdownableThread):
    """Cleans the dirtiest log, then lets retention have its turn at compacted logs; again and again."""

    def __init__(
        self, number: int, config: CleanerConfig, manager: LogCleanerManager, throttler: Throttler, time: Time
    ):
        super().__init__(f"kafka-log-cleaner-thread-{number}")
        self._config = config
        self._manager = manager
        self._time = time
        self._cleaner = Cleaner(
            config.offset_map(),
            io_buffer_size=max(config.io_buffer_size // config.num_threads // 2, 1),
            throttler=throttler,
            time=time,
            check_done=self._check_done,
        )
        self.last_stats = CleanerStats()

    def _check_done(self, topic_partition: TopicPartition) -> None:
        if not self.is_running:
            raise LogCleaningAborted(f"{topic_partition}: the cleaner is shutting down")
        self._manager.check_cleaning_aborted(topic_partition)

    def do_work(self) -> None:
        did_something = self.clean_filthiest_log()
        self._delete_old_segments()
        self._manager.maintain_uncleanable_partitions()
        if not did_something:
            self.pause(self._config.backoff_ms)

    def clean_filthiest_log(self) -> bool:
        """Whether there was one to clean, and it was."""
        cleanable = self._manager.grab_filthiest_compacted_log()
        if cleanable is None:
            return False
        log, end_offset = cleanable.log, cleanable.first_dirty_offset
        log_dir = log.parent_dir
        try:
            end_offset, stats = self._cleaner.clean(cleanable)
        except (LogCleaningAborted, LogClosed) as error:
            logger.info("%s", error)
        except KafkaStorageError as error:
            logger.warning("%s: the cleaning ended: %s", log.topic_partition, error)
            return False
        except OSError as error:
            log.cleaning_failed(error)
            if not log.is_offline:
                delay_ms = self._manager.put_off(log)
                logger.warning(
                    "%s: the cleaning ended, and is not tried again for %d s: %s",
                    log.topic_partition,
                    delay_ms // 1000,
                    plain_error(error),
                )
            return False
        except Exception as error:
            if not log.is_closed:
                self._manager.mark_uncleanable(log, error)
            return False
        else:
            self._manager.cleaned(log)
            self._tell(cleanable, end_offset, stats)
        finally:
            self._manager.done_cleaning(log, log_dir, end_offset)
        return True

    def _tell(self, cleanable: LogToClean, end_offset: int, stats: CleanerStats) -> None:
        self.last_stats = stats
        logger.info(
            "%s: cleaned offsets %d to %d: %d records of %d are left, %d bytes of %d, in %.1f s (keys: %.1f s)",
            cleanable.topic_partition,
            cleanable.first_dirty_offset,
            end_offset,
            stats.records_kept,
            stats.records_read,
            stats.bytes_written,
            stats.bytes_read,
            stats.elapsed_ms / 1000,
            stats.map_elapsed_ms / 1000,
        )
        if stats.records_without_key:
            logger.warning("%s: dropped %d records without a key", cleanable.topic_partition, stats.records_without_key)

    def _delete_old_segments(self) -> None:
        logs = self._manager.deletable_logs()
        try:
            for log in logs:
                try:
                    log.delete_old_segments()
                except Exception as error:
                    if not (log.is_closed or log.is_offline):
                        self._manager.mark_uncleanable(log, error)
        finally:
            self._manager.done_deleting(logs)


class LogCleaner:
    """The cleaner threads of a broker, and what the rest of it says to them (`manager`)."""

    def __init__(
        self,
        config: CleanerConfig,
        log_dirs: Iterable[LogDir],
        logs: Callable[[], Mapping[TopicPartition, UnifiedLog]],
        time: Time = SYSTEM_TIME,
    ) -> None:
        self.manager = LogCleanerManager(log_dirs, logs, time)
        self._time = time
        self._throttler = Throttler(config.max_io_bytes_per_second, time)
        self._lock = threading.Lock()
        self._is_running = False
        self.config, self.threads = config, self._new_threads(config)

    def _new_threads(self, config: CleanerConfig) -> list[CleanerThread]:
        return [
            CleanerThread(number, config, self.manager, self._throttler, self._time)
            for number in range(config.num_threads)
        ]

    def startup(self) -> None:
        with self._lock:
            self._is_running = True
            for thread in self.threads:
                thread.start()

    def shutdown(self) -> None:
        """Returns when no thread touches a log any more."""
        with self._lock:
            self._is_running = False
            self._stop_threads()

    def _stop_threads(self) -> None:
        for thread in self.threads:
            thread.initiate_shutdown()
        for thread in self.threads:
            thread.shutdown()

    def reconfigure(self, config: CleanerConfig) -> None:
        """Clean with other settings from now on: other threads take over, and what is being cleaned begins again.

        Raises ValueError or MemoryError, with nothing changed, for settings that no thread can be made with.
        """
        with self._lock:
            if config == replace(self.config, max_io_bytes_per_second=config.max_io_bytes_per_second):
                self._throttler.rate_per_s = config.max_io_bytes_per_second
                self.config = config
                return
            threads = self._new_threads(config)
            self._stop_threads()
            self._throttler.rate_per_s = config.max_io_bytes_per_second
            self.config, self.threads = config, threads
            if self._is_running:
                for thread in self.threads:
                    thread.start()
