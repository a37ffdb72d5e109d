"""LogHotPath: what each append and each fetch of a log runs through, and the state that they touch.

UnifiedLog extends this class with everything that is rare; the rare turns of the hot path (a roll, producer state, a
storage error) call methods that it defines.  The order of an append is the order of the lines here: one native pass
over the bytes, checks of the records (both outside the lock); then under the lock duplicates, offsets in place, roll,
producer state, epoch, one write, log end offset, transaction index.
Source: UnifiedLog and LocalLog, Kafka 2.4-4.x.
"""

import threading

from kcore.errors import (
    InvalidRecord,
    MessageTooLarge,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordListTooLarge,
    UnexpectedAppendOffset,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchDataInfo, FetchIsolation, LogAppendInfo, LogOffsetMetadata
from kcore.log.log_validator import assign_offsets, validate_records
from kcore.record.memory_records import EMPTY
from kcore.record.memory_records cimport MemoryRecords


cdef class LogHotPath:
    """The base of UnifiedLog, which documents threads, locks and lifetime."""

    cdef readonly object lock
    cdef public object config
    cdef public object segments
    cdef public object leader_epoch_cache
    cdef public object producer_state_manager
    cdef public object log_start_offset
    cdef public object recovery_point
    cdef public object is_closed
    cdef public object _end
    cdef public object _high_watermark
    # Set exactly while the producers' state has a transaction that holds back the last stable offset.
    cdef public object _first_unstable
    cdef public object _source
    cdef public object _time
    cdef public object _sole_replica
    cdef public object _offline
    # What every append looks at: mode "a", neither closed nor offline.
    cdef public object _may_write
    cdef public object _roll_jitter_ms

    def __cinit__(self, *args, **kwargs):
        self.lock = threading.RLock()
        self.is_closed = False

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self):
        """The next offset to be written."""
        return self._end.message_offset

    @property
    def log_end_offset_metadata(self):
        return self._end

    @property
    def high_watermark(self):
        return self._high_watermark.message_offset

    def maybe_increment_high_watermark(self, new):
        """Raise it (HW-03): the old value, or None if it stays.  Raises ValueError beyond the log end offset."""
        with self.lock:
            old = self._high_watermark
            if new.message_offset > self._end.message_offset:
                raise ValueError(
                    f"{self._source}: high watermark {new.message_offset} beyond log end {self._end.message_offset}"
                )
            if old.message_offset < new.message_offset or (
                old.message_offset == new.message_offset and old.on_older_segment(new)
            ):
                self._set_high_watermark(new)
                return old
            return None

    def _set_high_watermark(self, mark):
        self._high_watermark = mark
        if self._first_unstable is not None:
            self.producer_state_manager.on_high_watermark_updated(mark.message_offset)
            self._update_first_unstable()

    # -- append ---------------------------------------------------------------------------------------------------

    def append_as_leader(self, records, leader_epoch=None, origin=AppendOrigin.CLIENT):
        """Check a producer's batches, give them the next offsets, write them.

        records: v2 batches.  A writable buffer has offsets and epoch assigned in place, a read-only one is copied
        first.  leader_epoch None: the log's latest, 0 if there is none.  What comes back says which offsets they
        got; for a repeated batch of an idempotent producer, which they got the first time.

        Raises, with nothing written: CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge,
        RecordListTooLarge, OutOfOrderSequenceNumber, InvalidProducerEpoch, TransactionCoordinatorFenced,
        InvalidTxnState, KafkaStorageError, ReadOnlyLog.
        Source: UnifiedLog.appendAsLeader.
        """
        if not self._may_write:
            self._check_writable()
        if not isinstance(records, MemoryRecords):
            records = MemoryRecords(records, source=self._source)
        if records.readonly:
            records = MemoryRecords(bytearray(records.buffer), check_crc=False, source=self._source)
        if not records:
            return self._nothing_appended()
        config = self.config
        from_client = origin is AppendOrigin.CLIENT
        by_producers = self._check_leader_batches(records, config, from_client)
        now_ms = self._time.milliseconds()
        timestamp_type = config.message_timestamp_type
        checked = validate_records(
            records,
            from_client=from_client,
            compacted="compact" in config.cleanup_policy,
            timestamp_type=timestamp_type,
            now_ms=now_ms,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            source=self._source,
        )
        log_append_time = now_ms if timestamp_type == "LogAppendTime" else None
        with self.lock:
            if not self._may_write:
                self._check_writable()
            if by_producers and from_client:
                repeated = self._find_duplicate(records)
                if repeated is not None:
                    return self._duplicate(repeated)
            if leader_epoch is None:
                leader_epoch = max(self.leader_epoch_cache.latest_epoch, 0)
            first_offset = self._end.message_offset
            last_offset = assign_offsets(records, first_offset, leader_epoch, log_append_time)
            if log_append_time is None:
                max_timestamp, offset_of_max = checked.max_timestamp, first_offset + checked.offset_of_max_timestamp
            else:
                max_timestamp, offset_of_max = log_append_time, last_offset
            info = LogAppendInfo(
                first_offset,
                last_offset,
                max_timestamp,
                offset_of_max,
                -1 if log_append_time is None else log_append_time,
                self.log_start_offset,
                records.valid_bytes,
                len(records),
                checked.record_count,
                leader_epoch,
            )
            return self._append(records, info, by_producers, origin, now_ms)

    def append_as_follower(self, records):
        """Write batches as a leader sent them, offsets kept; gaps are legal (LOG-07..09).

        Raises OffsetsOutOfOrder, UnexpectedAppendOffset, CorruptMessage, KafkaStorageError, ReadOnlyLog.
        Source: UnifiedLog.appendAsFollower.
        """
        if not self._may_write:
            self._check_writable()
        if not isinstance(records, MemoryRecords):
            records = MemoryRecords(records, source=self._source)
        if not records:
            return self._nothing_appended()
        by_producers = False
        last_offset, max_timestamp, offset_of_max, count = -1, -1, -1, 0
        for batch in records.batches:
            if batch.base_offset <= last_offset:
                raise OffsetsOutOfOrder(
                    f"{self._source}: batch at offset {batch.base_offset} follows offset {last_offset} in one append"
                )
            last_offset = batch.last_offset
            count += batch.count
            if batch.max_timestamp > max_timestamp:
                max_timestamp, offset_of_max = batch.max_timestamp, last_offset
            by_producers = by_producers or batch.has_producer_id
        info = LogAppendInfo(
            records.first_offset,
            last_offset,
            max_timestamp,
            offset_of_max,
            -1,
            self.log_start_offset,
            records.valid_bytes,
            len(records),
            count,
            batch.leader_epoch,
        )
        with self.lock:
            if not self._may_write:
                self._check_writable()
            end = self._end.message_offset
            if info.first_offset < end:
                raise UnexpectedAppendOffset(
                    f"{self._source}: append of offsets {info.first_offset} to {last_offset}, log ends at {end}",
                    info.first_offset,
                    last_offset,
                )
            return self._append(records, info, by_producers, AppendOrigin.REPLICATION, self._time.milliseconds())

    def _append(self, records, info, by_producers, origin, now_ms):
        """The part under the lock: everything that may refuse comes before the write, then nothing may."""
        try:
            segment = self._maybe_roll(records, info, now_ms)
            if by_producers:
                producers, completed = self._analyze_producers(records, segment, origin)
            if info.last_leader_epoch != self.leader_epoch_cache.latest_epoch or info.batch_count > 1:
                self._assign_epochs(records)
            position = segment.append(records)
            # LOG-13: first the end offset, so that a failure further on cannot give an offset out twice.
            self._end = LogOffsetMetadata(info.last_offset + 1, segment.base_offset, position + info.valid_bytes)
            state = self.producer_state_manager
            if by_producers:
                self._commit_producers(producers, completed)
            state.map_end_offset = info.last_offset + 1
            if by_producers:
                self._update_first_unstable()
            if self._sole_replica:
                self._set_high_watermark(self._end)
            if info.last_offset + 1 - self.recovery_point >= self.config.flush_messages:
                self.flush()
        except OSError as error:
            raise self._storage_failed("append to", error) from error
        return info

    def _nothing_appended(self):
        return LogAppendInfo(-1, -1, -1, -1, log_start_offset=self.log_start_offset)

    def _check_leader_batches(self, records, config, from_client):
        """LOG-03, 06, 10; whether any batch has a producer id."""
        if records.valid_bytes > config.segment_bytes:
            raise RecordListTooLarge(
                f"{self._source}: append of {records.valid_bytes} bytes, segment.bytes is {config.segment_bytes}"
            )
        limit = config.max_message_bytes
        by_producers = False
        for batch in records.batches:
            if batch.size > limit:
                raise MessageTooLarge(f"{self._source}: batch of {batch.size} bytes, max.message.bytes is {limit}")
            if from_client and batch.base_offset != 0:
                raise InvalidRecord(f"{self._source}: base offset {batch.base_offset} in a produced batch, expected 0")
            if batch.producer_id >= 0:
                by_producers = True
        return by_producers

    def _maybe_roll(self, records, info, now_ms):
        """The segment to append to (LOG-12, LOG-17..21)."""
        segment = self.segments.active
        config = self.config
        if segment.should_roll(
            info.valid_bytes,
            info.last_offset,
            info.max_timestamp,
            now_ms,
            segment_bytes=config.segment_bytes,
            segment_ms=config.segment_ms,
            jitter_ms=self._roll_jitter_ms,
        ):
            # What an old wrapper begins with is known only inside of it.
            known = records.batches[0].magic >= 2
            return self._roll(info.first_offset if known else info.last_offset - 0x7FFFFFFF)
        return segment

    def _assign_epochs(self, records):
        """EPOCH-02, LOG-11: before the write, so that no record is there whose epoch the cache does not know."""
        cache = self.leader_epoch_cache
        for batch in records.batches:
            if batch.magic < 2:
                cache.clear_and_flush()  # EPOCH-03
            elif batch.leader_epoch != cache.latest_epoch and batch.leader_epoch >= 0:
                cache.assign(batch.leader_epoch, batch.base_offset)

    # -- read -----------------------------------------------------------------------------------------------------

    def read(self, start_offset, max_length, isolation=FetchIsolation.LOG_END, min_one_message=True):
        """A slice of the segment that holds start_offset, of at most max_length bytes (LOG-24..28).

        It may start with records of the same batch below start_offset, and never reaches the isolation's limit.
        With min_one_message the first batch comes whole, however large.  Takes no lock, reads no record.
        Raises OffsetOutOfRange outside [log start offset, log end offset], KafkaStorageError.
        Source: UnifiedLog.read, LocalLog.read.
        """
        if self._offline is not None or self.is_closed:
            self._check_open()
        end = self._end
        if not self.log_start_offset <= start_offset <= end.message_offset:
            raise OffsetOutOfRange(
                f"{self._source}: read at offset {start_offset}, log holds [{self.log_start_offset}, "
                f"{end.message_offset}]"
            )
        committed = isolation is FetchIsolation.TXN_COMMITTED
        if isolation is FetchIsolation.LOG_END:
            limit = end
        elif committed:
            limit = self.last_stable_offset_metadata
        else:
            limit = self.high_watermark_metadata
        aborted = [] if committed else None
        if start_offset >= limit.message_offset:
            at = limit if start_offset == limit.message_offset else self._with_position(start_offset)
            return FetchDataInfo(at, EMPTY, False, aborted)
        try:
            segment = self.segments.floor(start_offset)
            while segment is not None and segment.base_offset <= limit.segment_base_offset:
                is_last = segment.base_offset == limit.segment_base_offset
                max_position = limit.relative_position_in_segment if is_last else segment.size
                found = segment.read(start_offset, max_length, max_position, min_one_message)
                if found is not None:
                    at = LogOffsetMetadata(start_offset, segment.base_offset, found.position)
                    if committed:
                        aborted = self._aborted_txns(segment, start_offset, found)
                    return FetchDataInfo(at, found.records, found.first_entry_incomplete, aborted)
                segment = self.segments.higher(segment.base_offset)
        except OSError as error:
            raise self._storage_failed("read", error) from error
        # In range, but everything from here to the limit was compacted away.
        return FetchDataInfo(limit, EMPTY, False, aborted)
