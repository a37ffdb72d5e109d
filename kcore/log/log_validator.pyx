"""LogValidator: what a leader checks in a producer's records, conversion to the topic's magic and codec, and the
assignment of their offsets (VAL).

Records stay as they are, and get their offsets in place, if magic and codec are the topic's and inner offsets are right
(VAL-02..04); else they are rebuilt (VAL-05).  Source: LogValidator, Kafka 2.4 to 4.x.
"""

from time import perf_counter_ns

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memset, strcmp

from kcore.common.status cimport KC_CORRUPT, kc_error, kc_status, raise_status
from kcore.record.memory_records cimport BatchTable, MemoryRecords
from kcore.record.record_batch cimport (
    KC_ATTR_CODEC_MASK,
    KC_ATTR_CONTROL,
    KC_ATTR_TRANSACTIONAL,
    KC_BATCH_HEADER_SIZE,
    RecordBatch,
    kc_batch,
    kc_batch_assign,
    kc_batch_set_log_append_time,
    kc_batch_sync_max_timestamp,
    kc_batch_write_header,
)

from kcore.errors import InvalidRecord, InvalidTimestamp, UnsupportedCompressionType, UnsupportedForMessageFormat
from kcore.record.compression import CODECS, compress
from kcore.record.record_batch_builder import RecordBatchBuilder


cdef enum:
    MAX_FAULTS = 256  # a response need not list more bad records than anybody reads

# Records of 256 KiB take some 20 us to check: below that the hand-off of the GIL costs more than it gives.
cdef int64_t NOGIL_BYTES = 256 * 1024


@cython.freelist(16)
cdef class ValidationResult:
    """The result of validation.  max_timestamp: of all records, now_ms on a LogAppendTime topic, -1 for none;
    offset_of_max_timestamp: counted from the first record, as offsets are not yet assigned (VAL-21, VAL-22);
    record_count; records: the rebuilt batch, None if the producer's own is to be written.

    For rebuilt records (VAL-24): converted_count of them, temporary_bytes of memory that it took, conversion_ns;
    0, 0 and 0 in place."""

    cdef readonly int64_t max_timestamp
    cdef readonly int64_t offset_of_max_timestamp
    cdef readonly int64_t record_count
    cdef readonly MemoryRecords records
    cdef readonly int64_t converted_count
    cdef readonly int64_t temporary_bytes
    cdef readonly int64_t conversion_ns

    def __repr__(self):
        return (
            f"ValidationResult(max_timestamp={self.max_timestamp}, "
            f"offset_of_max_timestamp={self.offset_of_max_timestamp}, record_count={self.record_count}, "
            f"converted_count={self.converted_count})"
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
    str compression_type="producer",
    compression_level=None,
    int target_magic=2,
    int64_t base_offset=0,
):
    """Check a leader's append, record by record, compressed ones too (LOG-07, VAL-07..20).

    records: one batch, or a set of plain messages of magic 0 or 1; CRCs already checked.  compression_type: the
    topic's (VAL-06), with the level for it.  base_offset: of the rebuilt records, if assign_offsets cannot change
    it: that is a wrapper of magic 0.

    Returns a ValidationResult: its records, if there are any, are to be assigned offsets and written in place of the
    producer's.  Else no byte has changed; where the header names a max timestamp that is not its records', the
    BatchTable gets the right one, and assign_offsets will write it (VAL-03).

    Raises InvalidRecord or InvalidTimestamp; .record_errors = [(index in the batch, message)] for records that
    break a rule (the first 256), empty when the batch is refused as a whole.  Raises CorruptMessage for bytes the
    codec refuses and for an inner message with a wrong CRC (VAL-15), UnsupportedForMessageFormat for producer ids and
    transactions that the target magic does not have (VAL-13), UnsupportedCompressionType for zstd below magic 2.
    Needs no lock; the GIL is released while it decompresses and for payloads from 256 KiB on.
    """
    cdef kc_record_fault faults[MAX_FAULTS]
    cdef kc_validation validation
    cdef kc_record_rules rules
    cdef kc_error err
    cdef kc_status status
    cdef const uint8_t *payload
    cdef int64_t size
    cdef int codec, target_codec
    cdef bint log_append_time = timestamp_type == "LogAppendTime"
    rules.need_key = compacted
    if log_append_time:
        rules.min_timestamp, rules.max_timestamp = INT64_MIN, INT64_MAX
    else:
        allow_timestamps(&rules, now_ms, before_max_ms, after_max_ms)
    if records.batches.count == 0:
        raise InvalidRecord(f"{source}: no batch makes no append")
    if records.batches.rows[0].magic != 2:
        return _validate_messages(
            records, &rules, log_append_time, now_ms, source, compression_type, compression_level, target_magic,
            base_offset,
        )
    if records.batches.count != 1:
        raise InvalidRecord(f"{source}: one batch makes a leader's append, this one has {records.batches.count}")
    cdef kc_batch row = records.batches.rows[0]
    if from_client:
        _check_client_batch(&row, source)
    if target_magic < 2 and (row.producer_id >= 0 or row.attributes & KC_ATTR_TRANSACTIONAL):
        raise UnsupportedForMessageFormat(f"{source}: magic {target_magic} has no producer ids and no transactions")

    codec = row.attributes & KC_ATTR_CODEC_MASK
    target_codec = codec if compression_type == "producer" else _target_codec(compression_type, target_magic, source)
    cdef int64_t started = 0
    unpacked = None
    if codec:
        unpacked = records.batches.batch(0).payload()
        payload = unpacked
        size = len(unpacked)
    else:
        payload = records.batches.data + (row.position - records.batches.base_position) + KC_BATCH_HEADER_SIZE
        size = row.size - KC_BATCH_HEADER_SIZE
    cdef bint renumbered = False
    while True:
        validation.fault_count = 0
        if size < NOGIL_BYTES:
            status = kc_validate_records(&row, payload, size, &rules, faults, MAX_FAULTS, &validation, &err)
        else:
            with nogil:
                status = kc_validate_records(&row, payload, size, &rules, faults, MAX_FAULTS, &validation, &err)
        if not status:
            break
        if validation.fault_count:
            _raise_faults(&validation, faults, &rules, source)
        if not codec or renumbered or strcmp(err.what, b"record offset delta"):
            err.position = row.position + (0 if codec else KC_BATCH_HEADER_SIZE + err.position)
            raise_status(&err, source or records.source)
        # Some clients do not number the records of a compressed batch: that is done for them (VAL-05).
        unpacked = _renumbered(payload, size, &row, source or records.source)
        payload = unpacked
        size = len(unpacked)
        renumbered = True

    cdef ValidationResult result = ValidationResult.__new__(ValidationResult)
    result.record_count = row.count
    if log_append_time:
        result.max_timestamp = now_ms
    else:
        result.max_timestamp = validation.max_timestamp
        records.batches.rows[0].max_timestamp = validation.max_timestamp
    # Control records stay as their coordinator wrote them: their readers look at uncompressed ones only.
    cdef bint in_place = codec == target_codec and not renumbered and target_magic == 2
    if in_place or row.attributes & KC_ATTR_CONTROL:
        if log_append_time or codec:
            result.offset_of_max_timestamp = row.last_offset - row.base_offset
        else:
            result.offset_of_max_timestamp = validation.max_timestamp_delta
        return result

    started = perf_counter_ns()
    row.max_timestamp = result.max_timestamp
    row.last_offset = row.base_offset + row.count - 1
    if unpacked is None:
        unpacked = records.batches.batch(0).payload()
    _set_records(
        result, row, unpacked, target_codec if target_magic == 2 else 0, compression_level, records.source
    )
    result.offset_of_max_timestamp = row.last_offset - row.base_offset
    if target_magic < 2:
        _build_down(result, target_magic, target_codec, compression_level, base_offset, log_append_time, now_ms)
    _note_conversion(result, started)
    return result


cdef ValidationResult _validate_messages(
    MemoryRecords records, kc_record_rules *rules, bint log_append_time, int64_t now_ms, str source,
    str compression_type, compression_level, int target_magic, int64_t base_offset,
):
    """The same for messages of magic 0 and 1."""
    cdef kc_record_fault faults[MAX_FAULTS]
    cdef kc_conversion conversion
    cdef kc_messages messages
    cdef kc_error err
    cdef kc_status status
    cdef kc_batch row
    cdef BatchTable table = records.batches
    cdef int codec = 0
    cdef Py_ssize_t i
    cdef int64_t started = perf_counter_ns()
    for i in range(table.count):
        codec = codec or table.rows[i].attributes & KC_ATTR_CODEC_MASK
    if codec and table.count > 1:
        raise InvalidRecord(f"{source}: a compressed message comes alone, here are {table.count} messages (VAL-08)")
    cdef int target_codec = codec
    if compression_type != "producer":
        target_codec = _target_codec(compression_type, target_magic, source)

    cdef RecordBatch wrapper = table.batch(0)
    messages.magic = wrapper.row.magic
    messages.is_inner = codec != 0
    messages.attributes = <uint8_t>wrapper.row.attributes
    messages.last_offset = wrapper.row.last_offset
    unpacked = None
    if codec:
        unpacked = wrapper.payload()
        messages.payload = unpacked
        messages.size = len(unpacked)
    else:
        messages.payload = table.data
        messages.size = records.valid_bytes
    # Deltas of timestamps must fit, and a rebuilt record has no negative timestamp but -1 (MRB-04).
    rules.min_timestamp = max(rules.min_timestamp, <int64_t>0)
    rules.max_timestamp = min(rules.max_timestamp, INT64_MAX - 1)
    cdef bytearray converted = PyByteArray_FromStringAndSize(NULL, KC_BATCH_HEADER_SIZE + messages.size)
    cdef uint8_t *out = <uint8_t *>PyByteArray_AS_STRING(converted) + KC_BATCH_HEADER_SIZE
    conversion.validation.fault_count = 0
    if messages.size < NOGIL_BYTES:
        status = kc_validate_messages(&messages, rules, faults, MAX_FAULTS, out, &conversion, &err)
    else:
        with nogil:
            status = kc_validate_messages(&messages, rules, faults, MAX_FAULTS, out, &conversion, &err)
    if status:
        if status != KC_CORRUPT and conversion.validation.fault_count:
            _raise_faults(&conversion.validation, faults, rules, source)
        err.position = wrapper.row.position + (0 if codec else err.position)
        raise_status(&err, source or records.source)

    cdef ValidationResult result = ValidationResult.__new__(ValidationResult)
    result.record_count = conversion.count
    result.max_timestamp = now_ms if log_append_time and target_magic else conversion.validation.max_timestamp
    if messages.magic == target_magic and codec == target_codec and (
        not codec or (target_magic == 1 and conversion.offsets_ascend_by_one)
    ):
        if codec:
            # What assign_offsets needs to know of a wrapper.
            table.rows[0].base_offset = table.rows[0].last_offset - (conversion.count - 1)
            table.rows[0].max_timestamp = conversion.validation.max_timestamp
        # Plain messages are batches of their own: the append time belongs to the first of them (MRB-10).
        if codec:
            result.offset_of_max_timestamp = conversion.count - 1
        else:
            result.offset_of_max_timestamp = 0 if log_append_time else conversion.validation.max_timestamp_delta
        return result

    memset(&row, 0, sizeof(row))
    row.last_offset = conversion.count - 1
    row.base_timestamp = conversion.base_timestamp
    row.max_timestamp = result.max_timestamp
    row.producer_id = row.producer_epoch = row.base_sequence = row.leader_epoch = -1
    row.count = conversion.count
    result.offset_of_max_timestamp = row.last_offset
    if target_magic == 2 and target_codec:
        _set_records(
            result, row, memoryview(converted)[KC_BATCH_HEADER_SIZE : KC_BATCH_HEADER_SIZE + conversion.size],
            target_codec, compression_level, records.source,
        )
    else:
        PyByteArray_Resize(converted, KC_BATCH_HEADER_SIZE + conversion.size)
        _set_batch(result, row, converted, records.source)
    if target_magic < 2:
        _build_down(result, target_magic, target_codec, compression_level, base_offset, log_append_time, now_ms)
    _note_conversion(result, started)
    return result


cdef int _target_codec(str compression_type, int target_magic, str source) except -1:
    cdef int codec = 0 if compression_type == "uncompressed" else CODECS.index(compression_type)
    if compression_type == "zstd" and target_magic < 2:
        raise UnsupportedCompressionType(f"{source}: magic {target_magic} has no zstd")
    return codec


cdef bytearray _renumbered(const uint8_t *payload, int64_t size, const kc_batch *row, str source):
    """The records with offset deltas 0, 1, 2, ...; raises InvalidRecord for bytes that are not records."""
    cdef kc_error err
    cdef int32_t count = row.count
    # No record takes fewer than 7 bytes, so count cannot make this large.
    cdef bytearray records = PyByteArray_FromStringAndSize(NULL, size + 8 * min(<int64_t>count, size))
    cdef uint8_t *out = <uint8_t *>PyByteArray_AS_STRING(records)
    cdef int64_t written
    with nogil:
        written = kc_renumber_records(payload, size, count, out, &err)
    if written < 0:
        err.position = row.position
        raise_status(&err, source)
    PyByteArray_Resize(records, written)
    return records


cdef int _set_records(
    ValidationResult result, kc_batch row, payload, int target_codec, compression_level, str source
) except -1:
    """A batch of magic 2 with row's fields around these uncompressed records."""
    packed = payload if target_codec == 0 else compress(target_codec, payload, compression_level)
    cdef bytearray batch = PyByteArray_FromStringAndSize(NULL, KC_BATCH_HEADER_SIZE + len(packed))
    batch[KC_BATCH_HEADER_SIZE:] = packed
    row.attributes = (row.attributes & ~KC_ATTR_CODEC_MASK) | target_codec
    _set_batch(result, row, batch, source)
    result.temporary_bytes = KC_BATCH_HEADER_SIZE + len(payload)
    return 0


cdef int _set_batch(ValidationResult result, kc_batch row, bytearray batch, str source) except -1:
    row.size = <int32_t>len(batch)
    kc_batch_write_header(<uint8_t *>PyByteArray_AS_STRING(batch), &row)
    result.records = MemoryRecords(batch, check_crc=False, source=source)
    result.temporary_bytes = len(batch)
    return 0


cdef int _build_down(
    ValidationResult result, int target_magic, int target_codec, compression_level, int64_t base_offset,
    bint log_append_time, int64_t now_ms,
) except -1:
    """Put the records of result.records into messages of magic 0 or 1, which have no headers (VAL-23)."""
    cdef MemoryRecords records = result.records
    builder = RecordBatchBuilder(
        magic=target_magic, base_offset=base_offset, compression=CODECS[target_codec], level=compression_level,
        timestamp_type="LogAppendTime" if log_append_time and target_magic else "CreateTime",
        log_append_time=now_ms if log_append_time and target_magic else None,
    )
    for record in records.records():
        builder.append(record.value, record.key, timestamp=record.timestamp)
    result.max_timestamp, offset = builder.info
    result.offset_of_max_timestamp = offset - base_offset
    result.temporary_bytes = builder.size_in_bytes
    result.records = MemoryRecords(builder.build(), check_crc=False, source=records.source)
    if target_codec:
        result.records.batches.rows[0].base_offset -= result.record_count - 1
    return 0


cdef int _note_conversion(ValidationResult result, int64_t started) except -1:
    result.converted_count = result.record_count
    result.conversion_ns = perf_counter_ns() - started
    return 0


def assign_offsets(MemoryRecords records not None, int64_t base_offset, int32_t leader_epoch, log_append_time=None):
    """Give the batches their place in the log, in place: offsets from base_offset on, the epoch, and either the
    log append time (ms) or the max timestamp computed by validation (VAL-03, VAL-22).  The CRC is recomputed only
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


cdef int _check_client_batch(const kc_batch *row, str source) except -1:
    """VAL-10..12.  That the last offset is not below the base was checked when the header was parsed."""
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
    const kc_validation *validation, const kc_record_fault *faults, const kc_record_rules *rules, str source
) except -1:
    cdef int64_t i
    cdef list record_errors = []
    for i in range(min(validation.fault_count, MAX_FAULTS)):
        if faults[i].reason == KC_FAULT_NO_KEY:
            message = "a compacted topic takes no record without a key"
        elif faults[i].reason == KC_FAULT_LOG_APPEND_TIME:
            message = "a producer may not set timestamp type LogAppendTime"
        elif faults[i].reason == KC_FAULT_MAGIC:
            message = f"magic {faults[i].timestamp} in a wrapper of another magic"
        elif faults[i].reason == KC_FAULT_CODEC:
            message = f"compressed (codec {faults[i].timestamp}) inside a compressed message"
        else:
            message = (
                f"timestamp {faults[i].timestamp} is outside [{rules.min_timestamp}, {rules.max_timestamp}]"
            )
        record_errors.append((faults[i].index, message))
    index, message = record_errors[0]
    error = InvalidTimestamp if validation.has_timestamp_fault else InvalidRecord
    raise error(
        f"{source}: {validation.fault_count} bad records, the first at index {index}: {message}",
        record_errors=record_errors,
    )
