"""LogHotPath: the code that each append to a log and each fetch from it runs, and the state that this code reads and
writes.

UnifiedLog extends this class with everything that is rare.  Where an append or a fetch needs something rare (a roll, a
producer's first batch, a failed write) it calls a method of UnifiedLog: those methods are declared first in the class.

The order of an append is the order of the lines here.  Outside the lock: one native pass over the bytes (lengths, CRC),
then the leader's checks of the records.  Under the lock: duplicates, offsets, roll, producer state, leader epoch, one
write, log end offset, transaction index.

Most leader appends are one batch.  Its header is then one row on the stack, and the only objects made are the
LogAppendInfo and the producer's new state.  Every other append (several batches, compressed records, an older magic, a
producer's first or repeated batch, anything that will be refused) makes MemoryRecords.
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
    CorruptMessage,
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
from kcore.log.producer_runs cimport MAX_RUNS, find_runs, producer_run, state_after_run
from kcore.log.producer_state_entry cimport ProducerStateEntry, ProducerStates
from kcore.record.file_records cimport FileRecords
from kcore.record.memory_records import EMPTY
from kcore.record.memory_records cimport MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_ATTR_TRANSACTIONAL,
    KC_BATCH_HEADER_SIZE,
    kc_batch,
    kc_batch_assign,
    kc_batch_check_crc,
    kc_batch_parse,
    kc_batch_set_log_append_time,
    kc_batch_sync_max_timestamp,
)


# now_ms of an append that did not read the clock, because no rule of its topic compares with it.
cdef int64_t NO_TIME = INT64_MIN

# 256 KiB take some 20 us to check: below that the hand-off of the GIL costs more than it gives.
cdef int64_t NOGIL_BYTES = 256 * 1024

# Its milliseconds() are read without a call into Python.
cdef object SYSTEM_CLOCK = Time

cdef object CLIENT = AppendOrigin.CLIENT
cdef object REPLICATION = AppendOrigin.REPLICATION
cdef object LOG_END = FetchIsolation.LOG_END
cdef object HIGH_WATERMARK = FetchIsolation.HIGH_WATERMARK
cdef object TXN_COMMITTED = FetchIsolation.TXN_COMMITTED


cdef struct log_offset_metadata:
    # The native twin of LogOffsetMetadata.
    int64_t message_offset
    int64_t segment_base_offset             # -1: unknown
    int64_t relative_position_in_segment    # bytes; -1: unknown


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
    # One append before it is written: its batches, and the fields of its LogAppendInfo.
    const kc_batch *rows            # one for each batch
    int64_t count
    const uint8_t *data             # the bytes of all batches
    int64_t size
    bint crc_checked
    bint has_producer_id            # at least one batch has one
    int64_t now_ms                  # NO_TIME if the clock was not read
    int64_t first_offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t offset_of_max_timestamp # relative to first_offset until a leader has assigned the offsets
    int64_t log_append_time         # -1: CreateTime
    int64_t record_count
    int64_t converted_count         # of these, how many were rebuilt (VAL-24)
    int64_t conversion_ns
    int32_t leader_epoch            # of the last batch
    bint is_of_one_epoch            # all batches have the same leader epoch


@cython.freelist(16)
cdef class LogAppendInfo:
    """The result of an append.  For a duplicate, the offsets are those of the batch that the log already has."""

    cdef readonly int64_t first_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t offset_of_max_timestamp
    cdef readonly int64_t log_append_time
    cdef readonly int64_t log_start_offset
    cdef readonly int64_t valid_bytes
    cdef readonly int64_t batch_count
    cdef readonly int64_t record_count
    cdef readonly int64_t converted_count
    cdef readonly int64_t conversion_ns
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
    """The result of a read: a slice of one segment's file, no bytes; fetch_offset_metadata is where it begins.

    aborted_transactions is None unless the isolation is TXN_COMMITTED.
    """

    cdef log_offset_metadata _fetch_offset_metadata
    cdef readonly object records
    cdef readonly bint first_entry_incomplete
    cdef readonly object aborted_transactions

    def __init__(self, fetch_offset_metadata, records, bint first_entry_incomplete=False, aborted_transactions=None):
        self._fetch_offset_metadata = native_metadata(fetch_offset_metadata)
        self.records = records
        self.first_entry_incomplete = first_entry_incomplete
        self.aborted_transactions = aborted_transactions

    @property
    def fetch_offset_metadata(self):
        return python_metadata(self._fetch_offset_metadata)

    def __repr__(self):
        return f"FetchDataInfo({self.fetch_offset_metadata}, {self.records!r})"


cdef class LatestEpoch:
    """The base of LeaderEpochFileCache.  latest_epoch: the epoch of its last entry, -1 without one; every append
    compares it with its own."""

    cdef public int32_t latest_epoch


cdef class LogHotPath:
    """The base of UnifiedLog, which documents threads, locks and lifetime."""

    cdef readonly ReentrantLock lock
    # The directory's segments, and the home of the topic's settings.
    cdef public object local
    # Copied from local.config, for appends.
    cdef AppendSettings append_settings
    cdef public LogSegments segments
    cdef public LatestEpoch leader_epoch_cache
    cdef public ProducerStates producer_state_manager
    cdef public int64_t log_start_offset
    cdef public int64_t recovery_point
    cdef log_offset_metadata _log_end_offset_metadata
    cdef log_offset_metadata _high_watermark_metadata
    # Where the oldest transaction starts that holds back the last stable offset; None without one.
    cdef public object _first_unstable_offset_metadata
    cdef readonly int64_t bytes_rejected
    cdef public bint is_closed
    # The error that took the log offline; None while it is online.
    cdef public object _offline
    # mode is "a", and the log is neither closed nor offline.
    cdef public bint _is_writable
    # A partition of a running broker leads this log: only the partition appends, with its leader epoch.
    cdef public bint is_served
    # No partition moves the high watermark: it follows the log end.
    cdef public bint _sole_replica
    # Taken off segment.ms; chosen again at each roll.
    cdef public int64_t _roll_jitter_ms
    cdef public object _time
    # The log's name in error messages.
    cdef public str _source

    def __cinit__(self, *args, **kwargs):
        self.lock = ReentrantLock()

    # -- what UnifiedLog defines ------------------------------------------------------------------------------------

    def _check_open(self):
        """Raise KafkaStorageError if the log is offline, LogClosed if it is closed."""
        raise NotImplementedError

    def _check_writable(self):
        """The same; and raise ReadOnlyLog if the mode is "r"."""
        raise NotImplementedError

    def storage_failed(self, what, error, *, is_fatal=False):
        """Take the log offline, unless the error can pass; the KafkaStorageError to raise."""
        raise NotImplementedError

    def _with_position(self, offset):
        """The LogOffsetMetadata of an offset, with segment and position.  Raises KafkaStorageError, CorruptMessage."""
        raise NotImplementedError

    @property
    def last_stable_offset_metadata(self):
        """Of the first offset that a read_committed consumer may not read, with segment and position."""
        raise NotImplementedError

    def _update_first_unstable_offset(self):
        """Set _first_unstable_offset_metadata from the producer state.  Under the lock."""
        raise NotImplementedError

    def _find_duplicate(self, records):
        """The BatchMetadata of the first batch of records that the log already has; None if there is none."""
        raise NotImplementedError

    def _duplicate_info(self, duplicate):
        """The LogAppendInfo for such a batch."""
        raise NotImplementedError

    def _analyze_producers(self, records, segment, origin):
        """What _commit_producers() takes.  Changes nothing; raises what refuses the append."""
        raise NotImplementedError

    def _commit_producers(self, producers, completed_txns):
        """Take over the new producer states, and end transactions, after the write."""
        raise NotImplementedError

    def _roll(self, expected_next_offset):
        """The new active segment.  Raises OSError."""
        raise NotImplementedError

    def flush(self):
        """fsync everything that is not yet synced, and raise the recovery point."""
        raise NotImplementedError

    def _aborted_txns(self, segment, start_offset, records):
        """The aborted transactions that may have batches in a slice of segment."""
        raise NotImplementedError

    # -- settings and clock -------------------------------------------------------------------------------------------

    @property
    def config(self):
        """The topic's settings, a LogConfig.  Assign another one to change them: the next operation follows it.

        An open segment keeps the index size and the index interval that it was made with, until the next roll."""
        return self.local.config

    @config.setter
    def config(self, config):
        # Computed first and assigned at once: another thread sees the old settings or the new ones, never some of each.
        cdef AppendSettings settings = append_settings_of(config)
        self.local.config = config
        self.append_settings = settings

    cdef int64_t now_ms(self) except? -1:
        """Time.milliseconds(), without a call into Python where that is the system's clock."""
        cdef timespec wall
        if type(self._time) is SYSTEM_CLOCK:
            clock_gettime(CLOCK_REALTIME, &wall)
            return <int64_t>wall.tv_sec * 1000 + wall.tv_nsec // 1_000_000
        return self._time.milliseconds()

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self):
        """The next offset to be written."""
        return self._log_end_offset_metadata.message_offset

    @property
    def log_end_offset_metadata(self):
        return python_metadata(self._log_end_offset_metadata)

    def _update_log_end_offset_metadata(self, metadata):
        """Set the log end.  Under the lock."""
        self._log_end_offset_metadata = native_metadata(metadata)

    @property
    def high_watermark(self):
        return self._high_watermark_metadata.message_offset

    @property
    def high_watermark_metadata(self):
        """With segment and position.  Searches the index at the first call after a checkpoint or a leader gave only the
        offset.  Raises KafkaStorageError then, CorruptMessage."""
        return python_metadata(self.fetch_high_watermark_metadata())

    cdef log_offset_metadata fetch_high_watermark_metadata(self) except *:
        if (
            self._high_watermark_metadata.segment_base_offset < 0
            or self._high_watermark_metadata.relative_position_in_segment < 0
        ):
            self.lock.enter()
            try:
                self._high_watermark_metadata = native_metadata(
                    self._with_position(self._high_watermark_metadata.message_offset)
                )
            finally:
                self.lock.leave()
        return self._high_watermark_metadata

    def maybe_increment_high_watermark(self, new):
        """Raise the high watermark; the old LogOffsetMetadata, or None if it does not change.

        Raises ValueError beyond the log end offset."""
        cdef log_offset_metadata candidate = native_metadata(new)
        cdef log_offset_metadata current
        self.lock.enter()
        try:
            current = self._high_watermark_metadata
            if candidate.message_offset > self._log_end_offset_metadata.message_offset:
                raise ValueError(
                    f"{self._source}: high watermark {candidate.message_offset} beyond log end {self.log_end_offset}"
                )
            return python_metadata(current) if self.raise_high_watermark(candidate) else None
        finally:
            self.lock.leave()

    def maybe_increment_high_watermark_to_log_end(self):
        """Raise the high watermark to the log end offset, since there is no other replica.  Whether it rose."""
        self.lock.enter()
        try:
            return self.raise_high_watermark(self._log_end_offset_metadata)
        finally:
            self.lock.leave()

    cdef bint raise_high_watermark(self, log_offset_metadata candidate) except -1:
        """Whether it rose: to a higher offset, or to the same one in a later segment.  Needs the lock."""
        cdef log_offset_metadata current = self._high_watermark_metadata
        if current.message_offset < candidate.message_offset or (
            current.message_offset == candidate.message_offset
            and 0 <= current.segment_base_offset < candidate.segment_base_offset
        ):
            self.update_high_watermark_metadata(candidate)
            return True
        return False

    def _update_high_watermark_metadata(self, metadata):
        """Set the high watermark, whatever it was.  Under the lock."""
        self.update_high_watermark_metadata(native_metadata(metadata))

    cdef int update_high_watermark_metadata(self, log_offset_metadata metadata) except -1:
        self._high_watermark_metadata = metadata
        if self._first_unstable_offset_metadata is not None:
            self.producer_state_manager.on_high_watermark_updated(metadata.message_offset)
            self._update_first_unstable_offset()
        return 0

    # -- append ---------------------------------------------------------------------------------------------------

    def append_as_leader(self, records, leader_epoch=None, origin=CLIENT):
        """Check a producer's batches, give them the next offsets, write them.

        records: one batch, or plain messages of magic 0 or 1, which become one batch of magic 2.  A writable
        buffer has offsets and epoch assigned in place unless the batch is rebuilt; a read-only one is
        copied first.  leader_epoch None: the log's latest, 0 if there is none; not in a running broker, whose
        partition alone knows its epoch, moves the high watermark and completes delayed fetches (LogIsServed: use
        Broker.produce).  Returns a LogAppendInfo with the offsets of the batches; for a repeated batch of an idempotent
        producer, the offsets of its first append.  A partial batch at the end is left out: valid_bytes.

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
        if not self._is_writable:
            self._check_writable()
        append.now_ms = self.now_ms() if self.append_settings.needs_clock else NO_TIME
        append.log_append_time = append.now_ms if self.append_settings.is_log_append_time else -1
        append.crc_checked = False
        memset(&view, 0, sizeof(view))  # PyBuffer_Release() of an empty view does nothing
        try:
            if not (
                origin is CLIENT
                and one_batch(records, &view, &row, &append)
                and self.is_appendable_unchanged(&append, &row, &view)
            ):
                batches = self.validated_batches(records, origin is CLIENT, &append)
            self.lock.enter()
            try:
                if not self._is_writable:
                    self._check_writable()
                if append.has_producer_id and batches is None:
                    producer = self.continued_producer(&row)
                    if producer is None:
                        batches = self.validated_batches(records, True, &append)
                if append.has_producer_id and batches is not None and origin is CLIENT:
                    duplicate = self._find_duplicate(batches)
                    if duplicate is not None:
                        return self._duplicate_info(duplicate)
                append.is_of_one_epoch = True
                append.leader_epoch = (
                    max(self.leader_epoch_cache.latest_epoch, 0) if leader_epoch is None else leader_epoch
                )
                self.assign_offsets(&append, &row, batches)
                if producer is not None:
                    producer = producer.followed_by(&row, producer.open_txn)
                return self.write(&append, batches, producer, None, origin)
            finally:
                self.lock.leave()
        finally:
            PyBuffer_Release(&view)

    def append_as_follower(self, records, int32_t leader_epoch=-1):
        """Write batches as a leader sent them, offsets kept; gaps are legal.

        leader_epoch: of that leader, as far as this replica knows; -1: any.  From the first batch of a later epoch on
        the batches are left out: a broker that no longer leads may send what it has copied from its successor
        (KAFKA-18723).  If that is the first one, InvalidRecord.

        A fetch may end inside a batch: those bytes are left out.  Without a whole batch nothing is written, and the
        offsets of the result are -1, as in Kafka; append_as_leader refuses such bytes.  Bytes that cannot
        begin a batch raise CorruptMessage if there are enough of them to read a size (12) or a magic (17).

        Raises OffsetsOutOfOrder, UnexpectedAppendOffset, CorruptMessage, KafkaStorageError, ReadOnlyLog; LogIsServed
        while this broker leads the partition.
        Source: UnifiedLog.appendAsFollower, Kafka 4.1.
        """
        cdef Append append
        cdef int64_t taken, size
        cdef kc_batch row
        cdef Py_buffer view
        cdef MemoryRecords batches = None
        cdef ProducerStateEntry producer = None
        cdef list producers = None
        if self.is_served:
            raise log_is_served(self._source)
        if not self._is_writable:
            self._check_writable()
        append.now_ms = NO_TIME
        append.log_append_time = -1
        append.crc_checked = False
        memset(&view, 0, sizeof(view))
        try:
            if not one_batch(records, &view, &row, &append):
                batches = self.parsed_batches(records, &append)
                if append.count == 0:
                    return LogAppendInfo(-1, -1, -1, -1, log_start_offset=self.log_start_offset)
            taken = self.analyze_follower_batches(&append, leader_epoch if leader_epoch >= 0 else INT32_MAX)
            if taken < append.count:
                if taken == 0:
                    raise InvalidRecord(
                        f"{self._source}: the batch at offset {append.rows[0].base_offset} has leader epoch "
                        f"{append.rows[0].leader_epoch}, its sender leads with epoch {leader_epoch}"
                    )
                size = append.rows[taken].position - append.rows[0].position
                return self.append_as_follower(batches.buffer[:size], leader_epoch)
            self.lock.enter()
            try:
                if not self._is_writable:
                    self._check_writable()
                if append.first_offset < self._log_end_offset_metadata.message_offset:
                    raise UnexpectedAppendOffset(
                        f"{self._source}: append of offsets {append.first_offset} to {append.last_offset}, log ends "
                        f"at {self.log_end_offset}",
                        append.first_offset,
                        append.last_offset,
                    )
                if append.has_producer_id:
                    if batches is None:
                        producer = self.replicated_producer(&row)
                        if producer is None:
                            batches = self.parsed_batches(records, &append)
                    else:
                        producers = self.replicated_producers(&append)
                return self.write(&append, batches, producer, producers, REPLICATION)
            finally:
                self.lock.leave()
        finally:
            PyBuffer_Release(&view)

    cdef ProducerStateEntry continued_producer(self, const kc_batch *row):
        """The state of the producer of a client's single batch if the batch continues it; None if _analyze_producers()
        must decide."""
        cdef ProducerStateEntry producer = self.producer_state_manager.producers.get(row.producer_id)
        return producer if producer is not None and producer.is_continued_by(row) else None

    cdef ProducerStateEntry replicated_producer(self, const kc_batch *row):
        """replicated_producers() of a single batch: no run and no list, which cost 200 ns."""
        cdef ProducerStateEntry producer = self.producer_state_manager.producers.get(row.producer_id)
        if (
            producer is None
            or row.attributes & KC_ATTR_CONTROL
            or not producer.accepts_replicated(row.producer_epoch, row.attributes & KC_ATTR_TRANSACTIONAL)
        ):
            return None
        return producer.followed_by(row, producer.open_txn)

    cdef list replicated_producers(self, const Append *append):
        """The new states of the producers of a follower's batches, if all are data batches of known producers in their
        present epochs and none starts a transaction; None if _analyze_producers() must decide.

        As what the leader has accepted is accepted, no sequence is checked."""
        cdef producer_run[MAX_RUNS] runs
        cdef int run_count, i
        cdef ProducerStateEntry producer
        cdef dict producers = self.producer_state_manager.producers
        cdef list states
        if find_runs(append.rows, append.count, 0, INT64_MAX, INT32_MAX, runs, &run_count) < append.count:
            return None
        states = []
        for i in range(run_count):
            producer = producers.get(runs[i].producer_id)
            if producer is None or not producer.accepts_replicated(
                runs[i].producer_epoch, runs[i].first_txn_offset >= 0
            ):
                return None
            states.append(state_after_run(producer, append.rows, &runs[i]))
        return states

    cdef LogAppendInfo write(
        self, Append *append, MemoryRecords batches, ProducerStateEntry producer, list producers, object origin
    ):
        """Write the batches; under the lock.  Whatever can refuse the append comes before the write.

        producer: the state after the append, if it is of one; producers: of several.  Both are None if
        _analyze_producers() must decide, and then `batches` is not None."""
        cdef LogSegment segment
        cdef ProducerStateEntry state
        cdef int64_t position
        try:
            segment = self.segments.active
            assert segment is not None, f"{self._source}: a log without a segment"
            if append.now_ms == NO_TIME and not segment.rolls_by_timestamps():
                append.now_ms = self.now_ms()
            if segment.needs_roll(
                append.size,
                append.last_offset,
                append.max_timestamp,
                append.now_ms,
                self.append_settings.segment_bytes,
                self.append_settings.segment_ms - self._roll_jitter_ms,
            ):
                # The first offset of a wrapper of magic 0 or 1 is known only after decompressing it.
                segment = self._roll(
                    append.first_offset if append.rows[0].magic >= 2 else append.last_offset - INT32_MAX
                )
            if append.has_producer_id and producer is None and producers is None:
                prepared, completed_txns = self._analyze_producers(batches, segment, origin)
            if not append.is_of_one_epoch or append.leader_epoch != self.leader_epoch_cache.latest_epoch:
                self.assign_epochs(append)
            position = segment.append_rows(append.data, append.size, append.rows, append.count)
            # LOG-13: the end offset first, so that after a failure below no offset is assigned twice.
            self._log_end_offset_metadata.message_offset = append.last_offset + 1
            self._log_end_offset_metadata.segment_base_offset = segment.base_offset
            self._log_end_offset_metadata.relative_position_in_segment = position + append.size
            if producer is not None:
                self.producer_state_manager.producers[producer.producer_id] = producer
            elif producers is not None:
                for state in producers:
                    self.producer_state_manager.producers[state.producer_id] = state
            elif append.has_producer_id:
                self._commit_producers(prepared, completed_txns)
                self._update_first_unstable_offset()
            if self._sole_replica:
                self.update_high_watermark_metadata(self._log_end_offset_metadata)
            if append.last_offset + 1 - self.recovery_point >= self.append_settings.flush_messages:
                self.flush()
        except OSError as error:
            raise self.storage_failed("append to", error) from error
        return self.append_info(append)

    cdef LogAppendInfo append_info(self, const Append *append):
        cdef LogAppendInfo info = LogAppendInfo.__new__(LogAppendInfo)
        info.first_offset = append.first_offset
        info.last_offset = append.last_offset
        info.max_timestamp = append.max_timestamp
        info.offset_of_max_timestamp = append.offset_of_max_timestamp
        info.log_append_time = append.log_append_time
        info.log_start_offset = self.log_start_offset
        info.valid_bytes = append.size
        info.batch_count = append.count
        info.record_count = append.record_count
        info.converted_count = append.converted_count
        info.conversion_ns = append.conversion_ns
        info.last_leader_epoch = append.leader_epoch
        return info

    # -- append: what a leader checks -----------------------------------------------------------------------------

    cdef bint is_appendable_unchanged(self, Append *append, kc_batch *row, const Py_buffer *view) noexcept:
        """Whether a client's single batch can be written with its records as they are: they need no decompression, no
        conversion, and break no rule.  Returns False without a reason; validated_batches() repeats the checks and
        raises."""
        cdef kc_record_rules rules
        cdef kc_validation validation
        cdef kc_error err
        cdef kc_status status
        if (
            view.readonly
            or not self.append_settings.keeps_uncompressed
            or row.base_offset != 0
            or row.size > self.append_settings.max_message_bytes
            or row.size > self.append_settings.segment_bytes
            or (row.producer_id >= 0 and row.base_sequence < 0)
            or row.attributes & (KC_ATTR_CODEC_MASK | KC_ATTR_CONTROL)
            or row.count == 0
            or row.count - 1 != row.last_offset
        ):
            return False
        rules.need_key = self.append_settings.need_key
        if append.log_append_time >= 0 or append.now_ms == NO_TIME:
            rules.min_timestamp, rules.max_timestamp = INT64_MIN, INT64_MAX
        else:
            allow_timestamps(
                &rules, append.now_ms, self.append_settings.before_max_ms, self.append_settings.after_max_ms
            )
        if row.size < NOGIL_BYTES:
            status = kc_validate_records(row, append.data + KC_BATCH_HEADER_SIZE, row.size - KC_BATCH_HEADER_SIZE,
                                         &rules, NULL, 0, &validation, &err)
        else:
            with nogil:
                status = kc_validate_records(row, append.data + KC_BATCH_HEADER_SIZE,
                                             row.size - KC_BATCH_HEADER_SIZE, &rules, NULL, 0, &validation, &err)
        if status != KC_OK:
            return False
        append.record_count = row.count
        append.converted_count = append.conversion_ns = 0
        if append.log_append_time >= 0:
            append.max_timestamp = append.now_ms
            append.offset_of_max_timestamp = row.last_offset
        else:
            append.max_timestamp = row.max_timestamp = validation.max_timestamp
            append.offset_of_max_timestamp = validation.max_timestamp_delta
        return True

    cdef MemoryRecords validated_batches(self, records, bint from_client, Append *append):
        """The batches of any append to a leader, checked and converted (VAL); raises the exception that refuses them.
        Their offsets are not yet assigned."""
        cdef MemoryRecords sent = self.parsed_batches(records, append)
        cdef MemoryRecords batches = sent
        if append.count == 0:
            description = "the records" if batches is records else f"{memoryview(records).nbytes} bytes"
            raise NoRecordBatch(
                f"{self._source}: {description} hold no whole record batch; RecordBatchBuilder builds one"
            )
        if batches.readonly:
            batches = MemoryRecords(bytearray(batches.buffer), check_crc=False, source=self._source)
            self.use_batches(append, batches)
        self.check_leader_batches(append, from_client, sent)
        if append.now_ms == NO_TIME:
            append.now_ms = self.now_ms()
        config = self.config
        checked = validate_records(
            batches,
            from_client=from_client,
            compacted=self.append_settings.need_key,
            timestamp_type="LogAppendTime" if append.log_append_time >= 0 else "CreateTime",
            now_ms=append.now_ms,
            before_max_ms=self.append_settings.before_max_ms,
            after_max_ms=self.append_settings.after_max_ms,
            source=self._source,
            compression_type=config.compression_type,
            compression_level=config.compression_level,
        )
        if checked.records is not None:
            batches = checked.records
            self.use_batches(append, batches)
            self.check_leader_batches(append, from_client, sent)  # LOG-06: the sizes have changed
        append.max_timestamp = checked.max_timestamp
        append.offset_of_max_timestamp = checked.offset_of_max_timestamp
        append.record_count = checked.record_count
        append.converted_count = checked.converted_count
        append.conversion_ns = checked.conversion_ns
        return batches

    cdef int check_leader_batches(self, Append *append, bint from_client, MemoryRecords sent) except -1:
        """LOG-03, 06, 10, in Kafka's order: the producer gets the first error.

        sent: the records as the producer sent them; bytes_rejected counts all of them."""
        cdef const kc_batch *row
        cdef int64_t i
        for i in range(append.count):
            row = append.rows + i
            if from_client and row.base_offset != 0 and row.magic == 2:
                raise InvalidRecord(f"{self._source}: base offset {row.base_offset} in a produced batch, expected 0")
            if row.size > self.append_settings.max_message_bytes:
                self.bytes_rejected += sent.batches.owner.nbytes
                raise MessageTooLarge(
                    f"{self._source}: batch of {row.size} bytes, max.message.bytes is "
                    f"{self.append_settings.max_message_bytes}"
                )
        if append.size > self.append_settings.segment_bytes:
            raise RecordListTooLarge(
                f"{self._source}: append of {append.size} bytes, segment.bytes is {self.append_settings.segment_bytes}"
            )
        return 0

    cdef int assign_offsets(self, Append *append, kc_batch *row, MemoryRecords batches) except -1:
        """The next offsets and the epoch, in place (VAL-03, VAL-22); row is the only batch if batches is None."""
        cdef bint is_log_append_time = append.log_append_time >= 0
        append.first_offset = self._log_end_offset_metadata.message_offset
        if batches is not None:
            append.last_offset = assign_offsets(
                batches, append.first_offset, append.leader_epoch, append.now_ms if is_log_append_time else None
            )
        else:
            if row.count > INT64_MAX - append.first_offset:
                raise ValueError(f"{self._source}: offsets from {append.first_offset} on do not fit in 63 bits")
            kc_batch_assign(<uint8_t *>append.data, row, append.first_offset, append.leader_epoch)
            if is_log_append_time:
                kc_batch_set_log_append_time(<uint8_t *>append.data, row, append.now_ms)
            else:
                kc_batch_sync_max_timestamp(<uint8_t *>append.data, row)
            append.last_offset = row.last_offset
        if is_log_append_time:
            append.offset_of_max_timestamp = append.last_offset
        else:
            append.offset_of_max_timestamp += append.first_offset
        return 0

    # -- append: the batches --------------------------------------------------------------------------------------

    cdef MemoryRecords parsed_batches(self, records, Append *append):
        """The records with a BatchTable.  Raises CorruptMessage, InvalidRecord."""
        cdef MemoryRecords batches
        if isinstance(records, MemoryRecords):
            batches = records
        else:
            batches = MemoryRecords(records, check_crc=not append.crc_checked, source=self._source)
        self.use_batches(append, batches)
        return batches

    cdef int use_batches(self, Append *append, MemoryRecords batches) except -1:
        """Make these the append's batches."""
        cdef int64_t i
        append.rows = batches.batches.rows
        append.count = batches.batches.count
        append.data = batches.batches.data
        append.size = batches.valid_bytes
        append.has_producer_id = False
        for i in range(append.count):
            if append.rows[i].producer_id >= 0:
                append.has_producer_id = True
                break
        return 0

    cdef int64_t analyze_follower_batches(self, Append *append, int32_t leader_epoch) except -1:
        """Offsets, timestamps and counts of the append, from the batch headers.  Raises OffsetsOutOfOrder (LOG-08).

        The number of batches before the first one of a later leader epoch; if not all, the rest is unfinished."""
        cdef const kc_batch *row
        cdef int64_t i
        append.last_offset = append.max_timestamp = append.offset_of_max_timestamp = -1
        append.record_count = append.converted_count = append.conversion_ns = 0
        append.is_of_one_epoch = True
        for i in range(append.count):
            row = append.rows + i
            if row.leader_epoch > leader_epoch:
                return i
            if row.base_offset <= append.last_offset:
                raise OffsetsOutOfOrder(
                    f"{self._source}: batch at offset {row.base_offset} follows offset {append.last_offset} in one "
                    "append"
                )
            append.last_offset = row.last_offset
            append.record_count += row.count
            if row.leader_epoch != append.rows[0].leader_epoch:
                append.is_of_one_epoch = False
            if row.max_timestamp > append.max_timestamp:
                append.max_timestamp, append.offset_of_max_timestamp = row.max_timestamp, row.last_offset
        append.first_offset = append.rows[0].base_offset
        append.leader_epoch = append.rows[append.count - 1].leader_epoch
        return append.count

    cdef int assign_epochs(self, const Append *append) except -1:
        """EPOCH-02, LOG-11: before the write, so that the cache has the epoch of every record in the log."""
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
        """A slice of the segment that holds start_offset, of at most max_length bytes.

        It may start with records of the same batch below start_offset, and never reaches the isolation's limit.
        With min_one_message the first batch comes whole, however large.  Takes no lock, reads no record.
        Raises OffsetOutOfRange outside [log start offset, log end offset], KafkaStorageError, CorruptMessage for an
        invalid header and for a closed segment that ends inside a batch.
        Source: UnifiedLog.read, LocalLog.read.
        """
        cdef int64_t offset = start_offset
        cdef int64_t position, max_position
        cdef bint incomplete
        cdef LogSegment segment
        cdef FileRecords records
        # A consistent copy: no other thread runs while the struct is copied.
        cdef log_offset_metadata limit = self._log_end_offset_metadata
        if self._offline is not None or self.is_closed:
            self._check_open()
        if offset < self.log_start_offset or offset > limit.message_offset:
            raise OffsetOutOfRange(
                f"{self._source}: read at offset {offset}, log holds [{self.log_start_offset}, {limit.message_offset}]"
            )
        cdef bint committed = isolation is TXN_COMMITTED
        if isolation is not LOG_END:
            if not committed and isolation is not HIGH_WATERMARK:
                raise TypeError(f"isolation must be a FetchIsolation, not {isolation!r}")
            if committed and self._first_unstable_offset_metadata is not None:
                limit = native_metadata(self.last_stable_offset_metadata)
            else:
                limit = self.fetch_high_watermark_metadata()
        aborted_transactions = [] if committed else None
        if offset == limit.message_offset:
            return new_fetch(limit, EMPTY, False, aborted_transactions)
        if offset > limit.message_offset:
            return new_fetch(native_metadata(self._with_position(offset)), EMPTY, False, aborted_transactions)
        try:
            segment = self.segments.find_floor(offset)
            while segment is not None and segment.base_offset <= limit.segment_base_offset:
                if segment.base_offset == limit.segment_base_offset:
                    max_position = limit.relative_position_in_segment
                else:
                    max_position = segment._size
                records = segment.find_slice(
                    offset, max_length, max_position, min_one_message, &position, &incomplete
                )
                if records is not None:
                    if committed:
                        aborted_transactions = self._aborted_txns(segment, offset, records)
                    return new_fetch(
                        log_offset_metadata(offset, segment.base_offset, position),
                        records,
                        incomplete,
                        aborted_transactions,
                    )
                if position < segment._size and segment.base_offset < limit.segment_base_offset:
                    # Going on in the next segment would hide records: a follower would copy a hole.
                    raise CorruptMessage(
                        f"{segment.log_path}: the file ends inside the batch at position {position}, read at offset "
                        f"{offset}",
                        source=segment.log_path,
                        position=position,
                    )
                segment = self.segments.higher(segment.base_offset)
        except OSError as error:
            raise self.storage_failed("read", error) from error
        # The offset is in range, but compaction has removed every record from it to the limit.
        return new_fetch(limit, EMPTY, False, aborted_transactions)


cdef AppendSettings append_settings_of(config) except *:
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


cdef FetchDataInfo new_fetch(
    log_offset_metadata fetch_offset_metadata, object records, bint incomplete, object aborted_transactions
):
    cdef FetchDataInfo info = FetchDataInfo.__new__(FetchDataInfo)
    info._fetch_offset_metadata = fetch_offset_metadata
    info.records = records
    info.first_entry_incomplete = incomplete
    info.aborted_transactions = aborted_transactions
    return info


cdef log_offset_metadata native_metadata(metadata) except *:
    cdef log_offset_metadata native
    if not isinstance(metadata, LogOffsetMetadata):
        raise TypeError(f"LogOffsetMetadata expected, not {metadata!r}")
    native.message_offset = (<tuple>metadata)[0]
    native.segment_base_offset = (<tuple>metadata)[1]
    native.relative_position_in_segment = (<tuple>metadata)[2]
    return native


cdef object python_metadata(log_offset_metadata native):
    return LogOffsetMetadata(
        native.message_offset, native.segment_base_offset, native.relative_position_in_segment
    )


cdef bint one_batch(records, Py_buffer *view, kc_batch *row, Append *append) except -1:
    """Whether records is a buffer that holds exactly one whole batch of magic 2 with a right CRC; its header is then in
    row.  The caller releases view."""
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
    append.crc_checked = status == KC_OK
    append.has_producer_id = row.producer_id >= 0
    return append.crc_checked
