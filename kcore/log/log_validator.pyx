# cython: freethreading_compatible = True
"""LogValidator: what a leader checks in a producer's records, and the assignment of their offsets (VAL).

Only magic 2 and only the producer's own codec: nothing is converted or recompressed, so VAL-02..06 come
down to "in place".  Source: LogValidator, Kafka 2.4 to 4.x.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status, raise_status
from kcore.record.memory_records cimport MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_BATCH_HEADER_SIZE,
    RecordBatch,
    kc_batch,
    kc_batch_assign,
    kc_batch_set_log_append_time,
    kc_batch_sync_max_timestamp,
)

from kcore.errors import InvalidRecord, InvalidTimestamp, UnsupportedForMessageFormat


cdef extern from "log_validator.h" nogil:
    ctypedef struct kc_record_rules:
        int64_t min_timestamp
        int64_t max_timestamp
        int need_key

    ctypedef enum kc_fault_reason:
        KC_FAULT_NO_KEY
        KC_FAULT_TIMESTAMP_TOO_EARLY
        KC_FAULT_TIMESTAMP_TOO_LATE
        KC_FAULT_LOG_APPEND_TIME

    ctypedef struct kc_record_fault:
        int32_t index
        int32_t reason
        int64_t timestamp

    ctypedef struct kc_validation:
        int64_t max_timestamp
        int64_t max_timestamp_delta
        int64_t fault_count
        int32_t has_timestamp_fault

    kc_status kc_validate_records(const kc_batch *batch, const uint8_t *payload, int64_t size,
                                  const kc_record_rules *rules, kc_record_fault *faults, int64_t capacity,
                                  kc_validation *result, kc_error *err)


cdef enum:
    MAX_FAULTS = 256  # a response need not list more bad records than anybody reads

# Records of 256 KiB take some 20 us to check: below that the hand-off of the GIL costs more than it gives.
cdef int64_t NOGIL_BYTES = 256 * 1024


cdef class ValidationResult:
    """What validation found.  max_timestamp: of all records, now_ms on a LogAppendTime topic, -1 for none;
    offset_of_max_timestamp: counted from the first record, as offsets are not yet assigned (VAL-21, VAL-22);
    record_count."""

    cdef readonly int64_t max_timestamp
    cdef readonly int64_t offset_of_max_timestamp
    cdef readonly int64_t record_count

    def __repr__(self):
        return (
            f"ValidationResult(max_timestamp={self.max_timestamp}, "
            f"offset_of_max_timestamp={self.offset_of_max_timestamp}, record_count={self.record_count})"
        )


def validate_records(
    MemoryRecords records not None,
    *,
    bint from_client,
    bint compacted,
    timestamp_type,
    int64_t now_ms,
    int64_t before_max_ms,
    int64_t after_max_ms,
    str source="",
):
    """Check a leader's append, record by record, compressed ones too (LOG-07, VAL-07..12, 16..19).

    records: one batch, its CRC already checked.  Returns a ValidationResult.  No byte changes; where the header
    names a max timestamp that is not its records', the BatchTable gets the right one, and assign_offsets will
    write it (VAL-03).

    Raises InvalidRecord or InvalidTimestamp; .record_errors = [(index in the batch, message)] for records that
    break a rule (the first 256), empty when the batch is refused as a whole.  Raises CorruptMessage for bytes
    the codec refuses.  Needs no lock; the GIL is released while it decompresses and for payloads from 256 KiB on.
    """
    cdef kc_record_fault faults[MAX_FAULTS]
    cdef kc_validation found
    cdef kc_record_rules rules
    cdef kc_error err
    cdef kc_status status
    cdef const uint8_t *payload
    cdef int64_t size
    cdef bint log_append_time = timestamp_type == "LogAppendTime"
    cdef RecordBatch batch = _single_batch(records, source)
    if from_client:
        _check_client_batch(batch, source)

    rules.need_key = compacted
    if log_append_time:
        rules.min_timestamp, rules.max_timestamp = INT64_MIN, INT64_MAX
    else:
        rules.min_timestamp = _saturating(now_ms - <object>before_max_ms)
        rules.max_timestamp = _saturating(now_ms + <object>after_max_ms)
    cdef bint compressed = batch.row.attributes & KC_ATTR_CODEC_MASK != 0
    unpacked = None
    if compressed:
        unpacked = batch.payload()
        payload = unpacked
        size = len(unpacked)
    else:
        payload = batch.data + KC_BATCH_HEADER_SIZE
        size = batch.row.size - KC_BATCH_HEADER_SIZE
    if size < NOGIL_BYTES:
        found.fault_count = 0
        status = kc_validate_records(&batch.row, payload, size, &rules, faults, MAX_FAULTS, &found, &err)
    else:
        with nogil:
            found.fault_count = 0
            status = kc_validate_records(&batch.row, payload, size, &rules, faults, MAX_FAULTS, &found, &err)
    if status:
        if found.fault_count:
            _raise_faults(&found, faults, &rules, source)
        err.position = batch.row.position + (0 if compressed else KC_BATCH_HEADER_SIZE + err.position)
        raise_status(&err, source or records.source)

    cdef ValidationResult result = ValidationResult.__new__(ValidationResult)
    result.record_count = batch.row.count
    if log_append_time:
        result.max_timestamp = now_ms
    else:
        result.max_timestamp = found.max_timestamp
        records.batches.rows[0].max_timestamp = found.max_timestamp
    if log_append_time or compressed:
        result.offset_of_max_timestamp = batch.row.last_offset - batch.row.base_offset
    else:
        result.offset_of_max_timestamp = found.max_timestamp_delta
    return result


def assign_offsets(MemoryRecords records not None, int64_t base_offset, int32_t leader_epoch, log_append_time=None):
    """Give the batches their place in the log, in place: offsets from base_offset on, the epoch, and either the
    log append time (ms) or the max timestamp that validation found (VAL-03, VAL-22).  The CRC is recomputed only
    if a timestamp changed.  The BatchTable follows.  Returns the last offset, base_offset - 1 for no batch.

    Raises BufferError for a read-only buffer, ValueError for offsets beyond 2**63 - 1 and for a slice of a file;
    nothing changed then.
    Caller holds the log's lock; holds the GIL.
    """
    cdef uint8_t *data = records.writable_data()
    cdef int64_t next_offset = base_offset
    cdef int64_t span = 0
    cdef int64_t now = -1 if log_append_time is None else log_append_time
    cdef kc_batch *row
    cdef Py_ssize_t i
    if records.batches.base_position:
        raise ValueError(f"{records.source}: a slice of a file has its offsets already")
    for i in range(records.batches.count):
        row = records.batches.rows + i
        span += row.last_offset - row.base_offset + 1
        if span > INT64_MAX - base_offset:
            raise ValueError(f"{records.source}: offsets from {base_offset} on do not fit in 63 bits")
    for i in range(records.batches.count):
        row = records.batches.rows + i
        kc_batch_assign(data, row, next_offset, leader_epoch)
        if log_append_time is None:
            kc_batch_sync_max_timestamp(data, row)
        else:
            kc_batch_set_log_append_time(data, row, now)
        next_offset = row.last_offset + 1
    return next_offset - 1


cdef int64_t _saturating(value):
    return max(INT64_MIN, min(value, INT64_MAX))


cdef RecordBatch _single_batch(MemoryRecords records, str source):
    if records.batches.count != 1:
        raise InvalidRecord(f"{source}: one batch makes a leader's append, this one has {records.batches.count}")
    if records.batches.rows[0].magic != 2:
        raise UnsupportedForMessageFormat(f"{source}: a batch of magic {records.batches.rows[0].magic}, expected 2")
    return records.batches.batch(0)


cdef int _check_client_batch(RecordBatch batch, str source) except -1:
    """VAL-10..12.  That the last offset is not below the base was checked when the header was parsed."""
    cdef const kc_batch *row = &batch.row
    if row.count <= 0:
        raise InvalidRecord(f"{source}: a producer's batch of {row.count} records")
    if row.count != row.last_offset - row.base_offset + 1:
        raise InvalidRecord(
            f"{source}: {row.count} records in a batch of offsets [{row.base_offset}, {row.last_offset}]"
        )
    if row.attributes & KC_ATTR_CONTROL:
        raise InvalidRecord(f"{source}: a producer may not write control records")
    if row.producer_id > -1 and row.base_sequence < 0:
        raise InvalidRecord(f"{source}: base sequence {row.base_sequence} of producer {row.producer_id}")
    return 0


cdef int _raise_faults(
    const kc_validation *found, const kc_record_fault *faults, const kc_record_rules *rules, str source
) except -1:
    cdef int64_t i
    cdef list record_errors = []
    for i in range(min(found.fault_count, MAX_FAULTS)):
        if faults[i].reason == KC_FAULT_NO_KEY:
            message = "a compacted topic takes no record without a key"
        elif faults[i].reason == KC_FAULT_LOG_APPEND_TIME:
            message = "a producer may not set timestamp type LogAppendTime"
        else:
            message = (
                f"timestamp {faults[i].timestamp} is outside [{rules.min_timestamp}, {rules.max_timestamp}]"
            )
        record_errors.append((faults[i].index, message))
    index, message = record_errors[0]
    error = InvalidTimestamp if found.has_timestamp_fault else InvalidRecord
    raise error(
        f"{source}: {found.fault_count} bad records, the first at index {index}: {message}",
        record_errors=record_errors,
    )
