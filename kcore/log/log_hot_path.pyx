"""LogHotPath: what each append and each fetch of a log runs through, and the state that they touch.

UnifiedLog extends this class with everything that is rare; the rare turns of the hot path (a roll, producer state, a
storage error) call methods that it defines.  The order of an append is the order of the lines here: one native pass
over the bytes, checks of the records (both outside the lock); then under the lock duplicates, offsets in place, roll,
producer state, epoch, one write, log end offset, transaction index.

Nearly every append is one batch: one row on the stack, no object made but the LogAppendInfo and the new state of its
producer, if it has one.  What is not that (several batches, a codec, an older magic, a producer's first batch, a
repeated one, anything that will be refused) becomes MemoryRecords.
Source: UnifiedLog and LocalLog, Kafka 2.4-4.x.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kcore.common.reentrant_lock cimport ReentrantLock
from kcore.common.status cimport KC_OK, kc_error, kc_status
from kcore.common.time import Time
from kcore.errors import (
    InvalidRecord,
    LogIsServed,
    MessageTooLarge,
    NoRecordBatch,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordListTooLarge,
    UnexpectedAppendOffset,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from kcore.log.log_segment cimport LogSegment
from kcore.log.log_segments cimport LogSegments
from kcore.log.log_validator cimport allow_timestamps, kc_record_rules, kc_validate_records, kc_validation
from kcore.log.log_validator import assign_offsets, validate_records
from kcore.log.producer_state_entry cimport ProducerStateEntry, ProducerStates
from kcore.record.file_records cimport FileRecords
from kcore.record.memory_records import EMPTY
from kcore.record.memory_records cimport MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_BATCH_HEADER_SIZE,
    kc_batch,
    kc_batch_assign,
    kc_batch_check_crc,
    kc_batch_parse,
    kc_batch_set_log_append_time,
    kc_batch_sync_max_timestamp,
)


# The clock was not read: nothing asks for it.
cdef int64_t UNREAD = INT64_MIN

# 256 KiB take some 20 us to check: below that the hand-off of the GIL costs more than it gives.
cdef int64_t NOGIL_BYTES = 256 * 1024

cdef object CLIENT = AppendOrigin.CLIENT
cdef object REPLICATION = AppendOrigin.REPLICATION
cdef object LOG_END = FetchIsolation.LOG_END
cdef object HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK
cdef object TXN_COMMITTED = FetchIsolation.TXN_COMMITTED


cdef struct Place:
    # What LogOffsetMetadata tells.
    int64_t offset
    int64_t segment
    int64_t position


cdef struct AppendSettings:
    # Of a LogConfig what an append looks at.
    int64_t segment_bytes
    int64_t segment_ms
    int64_t max_message_bytes
    int64_t flush_messages
    int64_t before_max_ms           # message.timestamp.before.max.ms
    int64_t after_max_ms
    bint need_key                   # cleanup.policy has compact
    bint is_log_append_time         # message.timestamp.type
    bint keeps_uncompressed         # compression.type leaves uncompressed batches as they are
    bint needs_clock                # is_log_append_time, or a limit for timestamps


cdef struct Append:
    # One append on its way into the log.
    const kc_batch *rows
    int64_t count
    const uint8_t *data
    int64_t size
    bint checked               # the CRC was found right
    bint by_producers          # some batch has a producer id
    int64_t now_ms             # UNREAD, where no rule of the topic asks for it
    int64_t first_offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t offset_of_max      # from first_offset on, until the leader's offsets are known
    int64_t log_append_time    # -1: CreateTime
    int64_t record_count
    int32_t leader_epoch       # of the last batch


@cython.freelist(16)
cdef class LogAppendInfo:
    """What an append did.  For a duplicate, the offsets are those of the batch that is in the log already."""

    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t offset_of_max_timestamp
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset
    cdef readonly int64_t valid_bytes
    cdef readonly int64_t batch_count
    cdef readonly int64_t record_count
    cdef readonly int32_t last_leader_epoch
    cdef readonly bint is_duplicate

    def __init__(
        self,
        int64_t first_offset,
        int64_t last_offset,
        int64_t max_timestamp,
        int64_t offset_of_max_timestamp,
        *,
        int64_t log_append_time=-1,
        int64_t log_start_offset=-1,
        bint is_duplicate=False,
    ):
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.offset_of_max_timestamp = offset_of_max_timestamp
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.last_leader_epoch = -1
        self.is_duplicate = is_duplicate

    def __repr__(self):
        return (
            f"LogAppendInfo([{self.first_offset}, {self.last_offset}], {self.batch_count} batches, {self.valid_bytes} "
            f"bytes{', a duplicate' if self.is_duplicate else ''})"
        )


@cython.freelist(16)
cdef class FetchDataInfo:
    """A read's answer: a slice of one segment's file, no bytes; fetch_offset_metadata is where it begins.

    aborted_transactions is None unless the isolation is TXN_COMMITTED.
    """

    cdef Place at
    cdef readonly object records
    cdef readonly bint first_entry_incomplete
    cdef readonly object aborted_transactions

    def __init__(self, fetch_offset_metadata, records, bint first_entry_incomplete=False, aborted_transactions=None):
        self.at = place_of(fetch_offset_metadata)
        self.records = records
        self.first_entry_incomplete = first_entry_incomplete
        self.aborted_transactions = aborted_transactions

    @property
    def fetch_offset_metadata(self):
        return LogOffsetMetadata(self.at.offset, self.at.segment, self.at.position)

    def __repr__(self):
        return f"FetchDataInfo({self.fetch_offset_metadata}, {self.records!r})"


cdef class LatestEpoch:
    """The base of LeaderEpochFileCache: the epoch of its last entry, -1 without one, which every append looks at."""

    cdef public int32_t latest_epoch


cdef class LogHotPath:
    """The base of UnifiedLog, which documents threads, locks and lifetime."""

    cdef readonly ReentrantLock lock
    cdef public LogSegments segments
    cdef public LatestEpoch leader_epoch_cache
    cdef public ProducerStates producer_state_manager
    cdef public int64_t log_start_offset
    cdef public int64_t recovery_point
    cdef readonly int64_t bytes_rejected
    cdef public bint is_closed
    # Set exactly while the producers' state has a transaction that holds back the last stable offset.
    cdef public object _first_unstable
    cdef public str _source
    cdef public bint _sole_replica
    cdef public object _offline
    # What every append looks at: mode "a", neither closed nor offline.
    cdef public bint _may_write
    # A partition leads this log: appends come from it, with its leader epoch.
    cdef public bint is_served
    cdef public int64_t _roll_jitter_ms
    cdef Place end
    cdef Place mark             # the high watermark
    cdef object clock
    cdef bint system_clock
    # The directory's segments, and the home of the topic's settings.
    cdef public object local
    cdef AppendSettings settings

    def __cinit__(self, *args, **kwargs):
        self.lock = ReentrantLock()

    @property
    def config(self):
        """The topic's settings, a LogConfig.  Assign another one to change them: the next operation follows it.

        An open segment keeps the index size and the index interval that it was made with, until the next roll."""
        return self.local.config

    @config.setter
    def config(self, config):
        # Computed first and assigned at once: another thread sees the old settings or the new ones, never some of each.
        cdef AppendSettings settings = append_settings(config)
        self.local.config = config
        self.settings = settings

    @property
    def _time(self):
        return self.clock

    @_time.setter
    def _time(self, clock):
        self.clock = clock
        self.system_clock = type(clock) is Time

    cdef int64_t now(self) except? -1:
        """ms; what Time.milliseconds() says, without a call into Python where that is the system's clock."""
        cdef timespec wall
        if self.system_clock:
            clock_gettime(CLOCK_REALTIME, &wall)
            return <int64_t>wall.tv_sec * 1000 + wall.tv_nsec // 1_000_000
        return self.clock.milliseconds()

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def _end(self):
        return LogOffsetMetadata(self.end.offset, self.end.segment, self.end.position)

    @_end.setter
    def _end(self, place):
        self.end = place_of(place)

    @property
    def _high_watermark(self):
        return LogOffsetMetadata(self.mark.offset, self.mark.segment, self.mark.position)

    @_high_watermark.setter
    def _high_watermark(self, place):
        self.mark = place_of(place)

    @property
    def log_end_offset(self):
        """The next offset to be written."""
        return self.end.offset

    @property
    def log_end_offset_metadata(self):
        return self._end

    @property
    def high_watermark(self):
        return self.mark.offset

    def maybe_increment_high_watermark(self, new):
        """Raise it (HW-03): the old value, or None if it stays.  Raises ValueError beyond the log end offset."""
        cdef Place place = place_of(new)
        self.lock.enter()
        try:
            if place.offset > self.end.offset:
                raise ValueError(
                    f"{self._source}: high watermark {place.offset} beyond log end {self.end.offset}"
                )
            if self.mark.offset < place.offset or (
                self.mark.offset == place.offset and 0 <= self.mark.segment < place.segment
            ):
                old = self._high_watermark
                self.set_mark(place)
                return old
            return None
        finally:
            self.lock.leave()

    def _set_high_watermark(self, mark):
        self.set_mark(place_of(mark))

    cdef int set_mark(self, Place mark) except -1:
        self.mark = mark
        if self._first_unstable is not None:
            self.producer_state_manager.on_high_watermark_updated(mark.offset)
            self._update_first_unstable()
        return 0

    # -- append ---------------------------------------------------------------------------------------------------

    def append_as_leader(self, records, leader_epoch=None, origin=CLIENT):
        """Check a producer's batches, give them the next offsets, write them.

        records: one batch, or plain messages of magic 0 or 1, which become one batch of magic 2 (VAL-02..06).  A
        writable buffer has offsets and epoch assigned in place unless the batch is built anew; a read-only one is
        copied first.  leader_epoch None: the log's latest, 0 if there is none; not in a running broker, whose
        partition alone knows its epoch, moves the high watermark and answers the fetches that wait (LogIsServed:
        use Broker.produce).  What comes back says which offsets they got; for a repeated batch of an idempotent
        producer, which they got the first time.  A partial batch at the end is left out (LOG-05): valid_bytes.

        Raises, with nothing written: NoRecordBatch (an InvalidRecord) without a whole batch, CorruptMessage,
        InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge,
        OutOfOrderSequenceNumber, InvalidProducerEpoch, TransactionCoordinatorFenced, InvalidTxnState,
        KafkaStorageError, LogIsServed, ReadOnlyLog.
        Source: UnifiedLog.appendAsLeader.
        """
        cdef Append append
        cdef kc_batch row
        cdef Py_buffer view
        cdef MemoryRecords batches = None
        cdef ProducerStateEntry producer = None
        if origin is not CLIENT and not isinstance(origin, AppendOrigin):
            raise TypeError(f"origin must be an AppendOrigin, not {origin!r}")
        if self.is_served and leader_epoch is None:
            raise log_is_served(self._source)
        if not self._may_write:
            self._check_writable()
        append.now_ms = self.now() if self.settings.needs_clock else UNREAD
        append.log_append_time = append.now_ms if self.settings.is_log_append_time else -1
        append.checked = False
        memset(&view, 0, sizeof(view))  # which makes the release one of nothing
        try:
            if not (
                origin is CLIENT and one_batch(records, &view, &row, &append) and self.is_plain(&append, &row, &view)
            ):
                batches = self.checked_batches(records, origin is CLIENT, &append)
            self.lock.enter()
            try:
                if not self._may_write:
                    self._check_writable()
                if append.by_producers and batches is None:
                    producer = self.continued_producer(&row, True)
                    if producer is None:
                        batches = self.checked_batches(records, True, &append)
                if append.by_producers and batches is not None and origin is CLIENT:
                    repeated = self._find_duplicate(batches)
                    if repeated is not None:
                        return self._duplicate(repeated)
                append.leader_epoch = (
                    max(self.leader_epoch_cache.latest_epoch, 0) if leader_epoch is None else leader_epoch
                )
                self.assign_offsets(&append, &row, batches)
                return self.write(&append, batches, producer, origin)
            finally:
                self.lock.leave()
        finally:
            PyBuffer_Release(&view)

    def append_as_follower(self, records):
        """Write batches as a leader sent them, offsets kept; gaps are legal (LOG-07..09).

        A fetch may end inside a batch: those bytes are left out.  Without a whole batch nothing is written, and the
        offsets of the result are -1 (LOG-04), as in Kafka; append_as_leader refuses such bytes.  Bytes that cannot
        begin a batch raise CorruptMessage if there are enough of them to read a size (12) or a magic (17).

        Raises OffsetsOutOfOrder, UnexpectedAppendOffset, CorruptMessage, KafkaStorageError, ReadOnlyLog; LogIsServed
        while this broker leads the partition.
        Source: UnifiedLog.appendAsFollower.
        """
        cdef Append append
        cdef kc_batch row
        cdef Py_buffer view
        cdef MemoryRecords batches = None
        cdef ProducerStateEntry producer = None
        if self.is_served:
            raise log_is_served(self._source)
        if not self._may_write:
            self._check_writable()
        append.now_ms = UNREAD
        append.log_append_time = -1
        append.checked = False
        memset(&view, 0, sizeof(view))  # which makes the release one of nothing
        try:
            if not one_batch(records, &view, &row, &append):
                batches = self.walked(records, &append)
                if append.count == 0:
                    return LogAppendInfo(-1, -1, -1, -1, log_start_offset=self.log_start_offset)
            self.sum_up(&append)
            self.lock.enter()
            try:
                if not self._may_write:
                    self._check_writable()
                if append.first_offset < self.end.offset:
                    raise UnexpectedAppendOffset(
                        f"{self._source}: append of offsets {append.first_offset} to {append.last_offset}, log ends "
                        f"at {self.end.offset}",
                        append.first_offset,
                        append.last_offset,
                    )
                if append.by_producers and batches is None:
                    producer = self.continued_producer(&row, False)
                    if producer is None:
                        batches = self.walked(records, &append)
                return self.write(&append, batches, producer, REPLICATION)
            finally:
                self.lock.leave()
        finally:
            PyBuffer_Release(&view)

    cdef ProducerStateEntry continued_producer(self, const kc_batch *row, bint from_client):
        """The producer of a single batch, if there is nothing to decide about it; else None."""
        cdef ProducerStateEntry producer = self.producer_state_manager.producers.get(row.producer_id)
        return producer if producer is not None and producer.is_continued_by(row, from_client) else None

    cdef LogAppendInfo write(
        self, Append *append, MemoryRecords batches, ProducerStateEntry producer, object origin
    ):
        """The part under the lock: everything that may refuse comes before the write, then nothing may.

        producer: of the only batch, which continues it; None for batches that have to be looked at one by one."""
        cdef LogSegment segment
        cdef int64_t position
        try:
            segment = self.segments.active
            assert segment is not None, f"{self._source}: a log without a segment"
            if append.now_ms == UNREAD and not segment.rolls_by_timestamps():
                append.now_ms = self.now()
            if segment.needs_roll(append.size, append.last_offset, append.max_timestamp, append.now_ms,
                                  self.settings.segment_bytes, self.settings.segment_ms - self._roll_jitter_ms):
                # What an old wrapper begins with is known only inside of it.
                segment = self._roll(
                    append.first_offset if append.rows[0].magic >= 2 else append.last_offset - INT32_MAX
                )
            if producer is not None:
                producer = producer.followed_by(append.rows, producer.open_txn)
            elif append.by_producers:
                producers, completed = self._analyze_producers(batches, segment, origin)
            if append.count > 1 or append.leader_epoch != self.leader_epoch_cache.latest_epoch:
                self.assign_epochs(append)
            position = segment.append_rows(append.data, append.size, append.rows, append.count)
            # LOG-13: first the end offset, so that a failure further on cannot give an offset out twice.
            self.end.offset = append.last_offset + 1
            self.end.segment = segment.base_offset
            self.end.position = position + append.size
            if producer is not None:
                self.producer_state_manager.producers[producer.producer_id] = producer
            elif append.by_producers:
                self._commit_producers(producers, completed)
                self._update_first_unstable()
            if self._sole_replica:
                self.set_mark(self.end)
            if self.end.offset - self.recovery_point >= self.settings.flush_messages:
                self.flush()
        except OSError as error:
            raise self._storage_failed("append to", error) from error
        return self.info_of(append)

    cdef LogAppendInfo info_of(self, const Append *append):
        cdef LogAppendInfo info = LogAppendInfo.__new__(LogAppendInfo)
        info.first_offset = append.first_offset
        info.last_offset = append.last_offset
        info.max_timestamp = append.max_timestamp
        info.offset_of_max_timestamp = append.offset_of_max
        info.log_append_time = append.log_append_time
        info.log_start_offset = self.log_start_offset
        info.valid_bytes = append.size
        info.batch_count = append.count
        info.record_count = append.record_count
        info.last_leader_epoch = append.leader_epoch
        return info

    # -- append: what a leader checks -----------------------------------------------------------------------------

    cdef bint is_plain(self, Append *append, kc_batch *row, const Py_buffer *view) noexcept:
        """Whether a client's single batch may be appended as it is: nothing to decompress, convert or look up, and
        no rule broken.  Says no rather than why: checked_batches() then finds that out."""
        cdef kc_record_rules rules
        cdef kc_validation found
        cdef kc_error err
        cdef kc_status status
        if (
            view.readonly
            or not self.settings.keeps_uncompressed
            or row.base_offset != 0
            or row.size > self.settings.max_message_bytes
            or row.size > self.settings.segment_bytes
            or (row.producer_id >= 0 and row.base_sequence < 0)
            or row.attributes & (KC_ATTR_CODEC_MASK | KC_ATTR_CONTROL)
            or row.count == 0
            or row.count - 1 != row.last_offset
        ):
            return False
        rules.need_key = self.settings.need_key
        if append.log_append_time >= 0 or append.now_ms == UNREAD:
            rules.min_timestamp, rules.max_timestamp = INT64_MIN, INT64_MAX
        else:
            allow_timestamps(&rules, append.now_ms, self.settings.before_max_ms, self.settings.after_max_ms)
        if row.size < NOGIL_BYTES:
            status = kc_validate_records(row, append.data + KC_BATCH_HEADER_SIZE, row.size - KC_BATCH_HEADER_SIZE,
                                         &rules, NULL, 0, &found, &err)
        else:
            with nogil:
                status = kc_validate_records(row, append.data + KC_BATCH_HEADER_SIZE,
                                             row.size - KC_BATCH_HEADER_SIZE, &rules, NULL, 0, &found, &err)
        if status != KC_OK:
            return False
        append.record_count = row.count
        if append.log_append_time >= 0:
            append.max_timestamp = append.now_ms
            append.offset_of_max = row.last_offset
        else:
            append.max_timestamp = row.max_timestamp = found.max_timestamp
            append.offset_of_max = found.max_timestamp_delta
        return True

    cdef MemoryRecords checked_batches(self, records, bint from_client, Append *append):
        """The general case of is_plain(): any batches that a leader takes, or the exception that refuses them."""
        cdef MemoryRecords sent = self.walked(records, append)
        cdef MemoryRecords batches = sent
        if append.count == 0:
            given = "the records" if batches is records else f"{memoryview(records).nbytes} bytes"
            raise NoRecordBatch(f"{self._source}: {given} hold no whole record batch; RecordBatchBuilder builds one")
        if batches.readonly:
            batches = MemoryRecords(bytearray(batches.buffer), check_crc=False, source=self._source)
            self.note_batches(append, batches)
        self.check_leader_batches(append, from_client, sent)
        if append.now_ms == UNREAD:
            append.now_ms = self.now()
        config = self.config
        checked = validate_records(
            batches,
            from_client=from_client,
            compacted=self.settings.need_key,
            timestamp_type="LogAppendTime" if append.log_append_time >= 0 else "CreateTime",
            now_ms=append.now_ms,
            before_max_ms=self.settings.before_max_ms,
            after_max_ms=self.settings.after_max_ms,
            source=self._source,
            compression_type=config.compression_type,
            compression_level=config.compression_level,
        )
        if checked.records is not None:
            batches = checked.records
            self.note_batches(append, batches)
            self.check_leader_batches(append, from_client, sent)  # LOG-06: the sizes have changed
        append.max_timestamp = checked.max_timestamp
        append.offset_of_max = checked.offset_of_max_timestamp
        append.record_count = checked.record_count
        return batches

    cdef int check_leader_batches(self, Append *append, bint from_client, MemoryRecords sent) except -1:
        """LOG-03, 06, 10, in Kafka's order: of several reasons the first one is what the producer is answered.

        sent: the records before any of them was changed, which count as rejected as a whole."""
        cdef const kc_batch *row
        cdef int64_t i
        for i in range(append.count):
            row = append.rows + i
            if from_client and row.base_offset != 0 and row.magic == 2:
                raise InvalidRecord(f"{self._source}: base offset {row.base_offset} in a produced batch, expected 0")
            if row.size > self.settings.max_message_bytes:
                self.bytes_rejected += sent.batches.owner.nbytes
                raise MessageTooLarge(
                    f"{self._source}: batch of {row.size} bytes, max.message.bytes is {self.settings.max_message_bytes}"
                )
        if append.size > self.settings.segment_bytes:
            raise RecordListTooLarge(
                f"{self._source}: append of {append.size} bytes, segment.bytes is {self.settings.segment_bytes}"
            )
        return 0

    cdef int assign_offsets(self, Append *append, kc_batch *row, MemoryRecords batches) except -1:
        """The next offsets and the epoch, in place (VAL-03, VAL-22); row is the only batch if batches is None."""
        cdef bint stamps = append.log_append_time >= 0
        append.first_offset = self.end.offset
        if batches is not None:
            append.last_offset = assign_offsets(
                batches, append.first_offset, append.leader_epoch, append.now_ms if stamps else None
            )
        else:
            if row.count > INT64_MAX - append.first_offset:
                raise ValueError(f"{self._source}: offsets from {append.first_offset} on do not fit in 63 bits")
            kc_batch_assign(<uint8_t *>append.data, row, append.first_offset, append.leader_epoch)
            if stamps:
                kc_batch_set_log_append_time(<uint8_t *>append.data, row, append.now_ms)
            else:
                kc_batch_sync_max_timestamp(<uint8_t *>append.data, row)
            append.last_offset = row.last_offset
        append.offset_of_max = append.last_offset if stamps else append.first_offset + append.offset_of_max
        return 0

    # -- append: the batches --------------------------------------------------------------------------------------

    cdef MemoryRecords walked(self, records, Append *append):
        """Walk any record set."""
        cdef MemoryRecords batches
        if isinstance(records, MemoryRecords):
            batches = records
        else:
            batches = MemoryRecords(records, check_crc=not append.checked, source=self._source)
        self.note_batches(append, batches)
        return batches

    cdef int note_batches(self, Append *append, MemoryRecords batches) except -1:
        cdef int64_t i
        append.rows = batches.batches.rows
        append.count = batches.batches.count
        append.data = batches.batches.data
        append.size = batches.valid_bytes
        append.by_producers = False
        for i in range(append.count):
            if append.rows[i].producer_id >= 0:
                append.by_producers = True
        return 0

    cdef int sum_up(self, Append *append) except -1:
        """What a follower's batches say of themselves; their offsets must ascend (LOG-08)."""
        cdef const kc_batch *row
        cdef int64_t i
        append.last_offset = append.max_timestamp = append.offset_of_max = -1
        append.record_count = 0
        for i in range(append.count):
            row = append.rows + i
            if row.base_offset <= append.last_offset:
                raise OffsetsOutOfOrder(
                    f"{self._source}: batch at offset {row.base_offset} follows offset {append.last_offset} in one "
                    "append"
                )
            append.last_offset = row.last_offset
            append.record_count += row.count
            append.leader_epoch = row.leader_epoch
            if row.max_timestamp > append.max_timestamp:
                append.max_timestamp, append.offset_of_max = row.max_timestamp, row.last_offset
        append.first_offset = append.rows[0].base_offset
        return 0

    cdef int assign_epochs(self, const Append *append) except -1:
        """EPOCH-02, LOG-11: before the write, so that no record is there whose epoch the cache does not know."""
        cdef const kc_batch *row
        cdef int64_t i
        cdef LatestEpoch cache = self.leader_epoch_cache
        for i in range(append.count):
            row = append.rows + i
            if row.magic < 2:
                cache.clear_and_flush()  # EPOCH-03
            elif row.leader_epoch >= 0 and row.leader_epoch != cache.latest_epoch:
                cache.assign(row.leader_epoch, row.base_offset)
        return 0

    # -- read -----------------------------------------------------------------------------------------------------

    def read(self, start_offset, max_length, isolation=LOG_END, min_one_message=True):
        """A slice of the segment that holds start_offset, of at most max_length bytes (LOG-24..28).

        It may start with records of the same batch below start_offset, and never reaches the isolation's limit.
        With min_one_message the first batch comes whole, however large.  Takes no lock, reads no record.
        Raises OffsetOutOfRange outside [log start offset, log end offset], KafkaStorageError.
        Source: UnifiedLog.read, LocalLog.read.
        """
        cdef int64_t offset = start_offset
        cdef int64_t position, max_position
        cdef bint incomplete
        cdef LogSegment segment
        cdef FileRecords records
        # One moment's end: nothing runs in between while it is copied.
        cdef Place limit = self.end
        if self._offline is not None or self.is_closed:
            self._check_open()
        if offset < self.log_start_offset or offset > limit.offset:
            raise OffsetOutOfRange(
                f"{self._source}: read at offset {offset}, log holds [{self.log_start_offset}, {limit.offset}]"
            )
        cdef bint committed = isolation is TXN_COMMITTED
        if isolation is not LOG_END:
            if not committed and isolation is not HIGH_WATERMARK:
                raise TypeError(f"isolation must be a FetchIsolation, not {isolation!r}")
            if committed and self._first_unstable is not None:
                limit = place_of(self.last_stable_offset_metadata)
            else:
                limit = self.readable_mark()
        aborted = [] if committed else None
        if offset == limit.offset:
            return new_fetch(limit, EMPTY, False, aborted)
        if offset > limit.offset:
            return new_fetch(place_of(self._with_position(offset)), EMPTY, False, aborted)
        try:
            segment = self.segments.find_floor(offset)
            while segment is not None and segment.base_offset <= limit.segment:
                max_position = limit.position if segment.base_offset == limit.segment else segment._size
                records = segment.find_slice(
                    offset, max_length, max_position, min_one_message, &position, &incomplete
                )
                if records is not None:
                    if committed:
                        aborted = self._aborted_txns(segment, offset, records)
                    return new_fetch(Place(offset, segment.base_offset, position), records, incomplete, aborted)
                segment = self.segments.higher(segment.base_offset)
        except OSError as error:
            raise self._storage_failed("read", error) from error
        # In range, but everything from here to the limit was compacted away.
        return new_fetch(limit, EMPTY, False, aborted)

    cdef Place readable_mark(self) except *:
        """The high watermark with its position, which the index is asked for after a checkpoint told the offset."""
        if self.mark.segment < 0 or self.mark.position < 0:
            return place_of(self.high_watermark_metadata)
        return self.mark


cdef AppendSettings append_settings(config) except *:
    cdef AppendSettings settings
    settings.segment_bytes = config.segment_bytes
    settings.segment_ms = config.segment_ms
    settings.max_message_bytes = config.max_message_bytes
    settings.flush_messages = config.flush_messages
    settings.before_max_ms = config.message_timestamp_before_max_ms
    settings.after_max_ms = config.message_timestamp_after_max_ms
    settings.need_key = config.compact
    settings.is_log_append_time = config.message_timestamp_type == "LogAppendTime"
    settings.keeps_uncompressed = config.compression_type in ("producer", "uncompressed")
    settings.needs_clock = (
        settings.is_log_append_time or settings.before_max_ms < INT64_MAX or settings.after_max_ms < INT64_MAX
    )
    return settings


cdef log_is_served(str source):
    return LogIsServed(f"{source}: the log of a running broker; broker.produce() appends so that consumers see it")


cdef FetchDataInfo new_fetch(Place at, object records, bint incomplete, object aborted):
    cdef FetchDataInfo info = FetchDataInfo.__new__(FetchDataInfo)
    info.at = at
    info.records = records
    info.first_entry_incomplete = incomplete
    info.aborted_transactions = aborted
    return info


cdef Place place_of(metadata) except *:
    cdef Place place
    if not isinstance(metadata, LogOffsetMetadata):
        raise TypeError(f"LogOffsetMetadata expected, not {metadata!r}")
    place.offset = (<tuple>metadata)[0]
    place.segment = (<tuple>metadata)[1]
    place.position = (<tuple>metadata)[2]
    return place


cdef bint one_batch(records, Py_buffer *view, kc_batch *row, Append *append) except -1:
    """Whether records is a buffer with exactly one whole v2 batch in it, whose CRC is right: then it is in row.
    The caller releases view."""
    cdef kc_error err
    cdef kc_status status
    cdef const uint8_t *data
    if not PyObject_CheckBuffer(records):
        return False
    PyObject_GetBuffer(records, view, PyBUF_SIMPLE)
    data = <const uint8_t *>view.buf
    if kc_batch_parse(data, view.len, 0, row, &err) != KC_OK or row.size != view.len or row.magic != 2:
        return False
    if row.size < NOGIL_BYTES:
        status = kc_batch_check_crc(data, row, &err)
    else:
        with nogil:
            status = kc_batch_check_crc(data, row, &err)
    append.rows = row
    append.count = 1
    append.data = data
    append.size = row.size
    append.checked = status == KC_OK
    append.by_producers = row.producer_id >= 0
    return append.checked
