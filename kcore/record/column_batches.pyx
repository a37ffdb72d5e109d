"""Columns as finished batches of magic 2."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from kcore.common.status cimport KC_OK, kc_error, kc_status, raise_status
from kcore.record.columns cimport KC_COPY_SLACK, RecordColumns, int32s, int64s, kc_columns
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport (
    KC_ATTR_LOG_APPEND_TIME, KC_ATTR_TRANSACTIONAL, KC_BATCH_HEADER_SIZE, kc_batch, kc_batch_write_header,
)


cdef extern from "record_columns.h" nogil:
    ctypedef struct kc_batch_limits:
        int64_t max_bytes
        int64_t max_records

    kc_status kc_batch_plan(const kc_columns *columns, int64_t first, int64_t next_offset,
                            const kc_batch_limits *limits, kc_batch *batch, kc_error *err)
    void kc_batch_write_records(const kc_columns *columns, int64_t first, const kc_batch *batch, uint8_t *p)


def batches_of(
    columns,
    *,
    base_offset=0,
    int64_t max_bytes=1024 * 1024,
    int64_t max_records=INT32_MAX,
    compression="none",
    level=None,
    timestamp_type="CreateTime",
    int32_t leader_epoch=-1,
    int64_t producer_id=-1,
    int16_t producer_epoch=-1,
    int32_t base_sequence=-1,
    bint is_transactional=False,
):
    """The records as finished batches of magic 2, one after the other in a bytearray.

    columns: RecordColumns, or what kcore.record.arrow.columns_from_arrow takes.  Offsets count from base_offset; None:
    they are those of the column offset.  A batch gets as many records as fit into max_bytes before compression, its
    header included, and no more than max_records; a larger record has a batch of its own.  compression, level and the
    fields of the header are those of RecordBatchBuilder, which would write the same bytes; the sequence goes on from
    batch to batch.  The GIL is released.
    Raises ValueError for an offset that does not ascend, a timestamp below -1, a record that no batch can hold.
    """
    from kcore.record.compression import codec_of, compress

    if not isinstance(columns, RecordColumns):
        from kcore.record.arrow import columns_from_arrow

        columns = columns_from_arrow(columns, with_offsets=base_offset is None)
    cdef int codec = codec_of(compression, level)
    if timestamp_type not in ("CreateTime", "LogAppendTime"):
        raise ValueError(f"timestamp type {timestamp_type!r} is neither CreateTime nor LogAppendTime")
    if base_offset is not None and base_offset < 0:
        raise ValueError(f"base offset {base_offset} is negative")
    if base_offset is None and columns.offset is None:
        raise ValueError("without a base offset the records need the column offset")
    cdef kc_batch template
    cdef kc_columns source = _as_source(columns, base_offset is None)
    memset(&template, 0, sizeof(template))
    template.leader_epoch = leader_epoch
    template.producer_id = producer_id
    template.producer_epoch = producer_epoch
    template.base_sequence = base_sequence
    template.attributes = (
        codec
        | (KC_ATTR_LOG_APPEND_TIME if timestamp_type == "LogAppendTime" else 0)
        | (KC_ATTR_TRANSACTIONAL if is_transactional else 0)
    )
    cdef kc_batch_limits limits
    limits.max_bytes, limits.max_records = min(max_bytes, INT32_MAX), min(max_records, INT32_MAX)
    if max_bytes < 1 or max_records < 1:
        raise ValueError(f"batches of {max_bytes} bytes and {max_records} records")
    cdef BatchTable plan = _planned(&source, 0 if base_offset is None else base_offset, &limits, &template)
    return _written(&source, plan) if codec == 0 else _packed(&source, plan, codec, level, compress)


cdef kc_columns _as_source(RecordColumns columns, bint with_offsets):
    cdef kc_columns source
    memset(&source, 0, sizeof(source))
    source.count = columns.count
    if with_offsets:
        source.offset = int64s(columns.offset)
    if columns.timestamp is not None:
        source.timestamp = int64s(columns.timestamp)
    if columns.key is not None:
        source.key = columns.key.extents
    if columns.value is not None:
        source.value = columns.value.extents
    if columns.headers is not None:
        source.headers = columns.headers.extents
        source.header_count = int32s(columns.header_count)
    return source


cdef BatchTable _planned(kc_columns *source, int64_t base_offset, const kc_batch_limits *limits,
                         const kc_batch *template):
    """A row for each batch to write, all but its CRC; sizes are those before compression."""
    cdef BatchTable plan = BatchTable.__new__(BatchTable)
    cdef int64_t first = 0
    cdef int64_t next_offset = base_offset
    cdef int64_t first_offset = source.offset[0] if source.offset != NULL else base_offset
    cdef int64_t position = 0
    cdef kc_error err
    cdef kc_status status = KC_OK
    cdef kc_batch *row
    while first < source.count:
        # As many rows as the batches so far make likely, and some more.
        plan.reserve(plan.count + 16 + (0 if first == 0 else (source.count - first) * plan.count // first))
        with nogil:
            while first < source.count and plan.count < plan.capacity:
                row = plan.rows + plan.count
                row[0] = template[0]
                row.magic = 2
                row.position = position
                status = kc_batch_plan(source, first, next_offset, limits, row, &err)
                if status != KC_OK:
                    break
                if row.base_sequence >= 0:
                    row.base_sequence = <int32_t>((row.base_sequence + (row.base_offset - first_offset)) & INT32_MAX)
                first += row.count
                next_offset = row.last_offset + 1
                position += row.size
                plan.count += 1
        if status != KC_OK:
            raise_status(&err, "records")
    return plan


cdef bytearray _written(const kc_columns *source, BatchTable plan):
    cdef kc_batch *row
    cdef int64_t size = 0
    if plan.count:
        row = plan.rows + plan.count - 1
        size = row.position + row.size
    cdef bytearray batches = PyByteArray_FromStringAndSize(NULL, size + KC_COPY_SLACK)
    cdef uint8_t *p = <uint8_t *>PyByteArray_AS_STRING(batches)
    cdef int64_t first = 0
    cdef Py_ssize_t i
    with nogil:
        for i in range(plan.count):
            row = plan.rows + i
            kc_batch_write_records(source, first, row, p + row.position + KC_BATCH_HEADER_SIZE)
            kc_batch_write_header(p + row.position, row)
            first += row.count
    PyByteArray_Resize(batches, size)
    return batches


cdef bytearray _packed(const kc_columns *source, BatchTable plan, int codec, level, compress):
    cdef bytearray batches = bytearray()
    cdef bytes packed
    cdef kc_batch *row
    cdef uint8_t *p
    cdef int64_t first = 0
    cdef int64_t size
    cdef int64_t largest = 0
    cdef Py_ssize_t i
    for i in range(plan.count):
        largest = max(largest, plan.rows[i].size)
    # One for all: malloc would give new pages to each, if they are large.
    cdef bytearray payload = PyByteArray_FromStringAndSize(NULL, largest + KC_COPY_SLACK)
    for i in range(plan.count):
        row = plan.rows + i
        size = row.size - KC_BATCH_HEADER_SIZE
        p = <uint8_t *>PyByteArray_AS_STRING(payload)
        with nogil:
            kc_batch_write_records(source, first, row, p)
        packed = compress(codec, memoryview(payload)[:size], level)
        size = KC_BATCH_HEADER_SIZE + len(packed)
        if size > INT32_MAX:
            raise ValueError(f"the batch takes {size} bytes, it can take {INT32_MAX}")
        row.size = <int32_t>size
        row.position = len(batches)
        PyByteArray_Resize(batches, row.position + size)
        p = <uint8_t *>PyByteArray_AS_STRING(batches) + row.position
        memcpy(p + KC_BATCH_HEADER_SIZE, PyBytes_AS_STRING(packed), size - KC_BATCH_HEADER_SIZE)
        with nogil:
            kc_batch_write_header(p, row)
        first += row.count
    return batches
