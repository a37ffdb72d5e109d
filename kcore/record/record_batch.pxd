from libc.stdint cimport INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kcore.common.status cimport kc_error, kc_status


cdef extern from "record_batch.h" nogil:
    int KC_LOG_OVERHEAD
    int KC_MAGIC_OFFSET
    int KC_CRC_OFFSET
    int KC_ATTRIBUTES_OFFSET
    int KC_MAX_TIMESTAMP_OFFSET
    int KC_BATCH_HEADER_SIZE
    int KC_MIN_BATCH_SIZE
    int KC_COUNT_UNKNOWN
    int KC_ATTR_CODEC_MASK
    int KC_ATTR_LOG_APPEND_TIME
    int KC_ATTR_TRANSACTIONAL
    int KC_ATTR_CONTROL
    int KC_ATTR_DELETE_HORIZON
    int KC_WALK_CHECK_CRC

    ctypedef struct kc_batch:
        int64_t position
        int64_t base_offset
        int64_t last_offset
        int64_t base_timestamp
        int64_t max_timestamp
        int64_t producer_id
        int32_t size
        int32_t leader_epoch
        uint32_t crc
        int32_t base_sequence
        int32_t count
        int16_t attributes
        int16_t producer_epoch
        int8_t magic

    kc_status kc_batch_parse(const uint8_t *buf, int64_t end, int64_t position, kc_batch *batch, kc_error *err)
    kc_status kc_batch_check_crc(const uint8_t *buf, const kc_batch *batch, kc_error *err)
    kc_status kc_batch_check_count(const kc_batch *batch, int64_t size, kc_error *err)
    int64_t kc_batch_walk(const uint8_t *buf, int64_t end, int64_t *position, int flags, kc_batch *rows,
                          int64_t capacity, kc_error *err)
    void kc_batch_write_header(uint8_t *p, kc_batch *batch)
    void kc_batch_assign(uint8_t *buf, kc_batch *batch, int64_t base_offset, int32_t leader_epoch)
    void kc_batch_set_log_append_time(uint8_t *buf, kc_batch *batch, int64_t timestamp)
    void kc_batch_sync_max_timestamp(uint8_t *buf, kc_batch *batch)


cdef inline int32_t last_sequence_of(const kc_batch *batch) noexcept nogil:
    """Of the last record: it wraps from 2**31 - 1 to 0; -1 where the batch has none."""
    return -1 if batch.base_sequence < 0 else (
        (batch.base_sequence + (batch.last_offset - batch.base_offset)) & INT32_MAX
    )


cdef extern from "record.h" nogil:
    ctypedef struct kc_record:
        int64_t timestamp_delta
        int32_t offset_delta
        int32_t size
        int32_t key_size
        int32_t value_size
        int32_t header_count
        const uint8_t *key
        const uint8_t *value
        const uint8_t *headers

    ctypedef struct kc_header:
        int32_t key_size
        int32_t value_size
        const uint8_t *key
        const uint8_t *value

    int kc_varlong_size(int64_t value)
    const uint8_t *kc_header_parse(const uint8_t *p, const uint8_t *end, kc_header *header)
    kc_status kc_record_parse(const uint8_t *buf, int64_t end, int64_t position, kc_record *record, kc_error *err)
    kc_status kc_records_check(const uint8_t *payload, int64_t size, int32_t count, int64_t last_offset_delta,
                               int64_t base_timestamp, kc_error *err)
    int64_t kc_record_body_size(int64_t timestamp_delta, int32_t offset_delta, int64_t key_size, int64_t value_size,
                                int32_t header_count, int64_t headers_size)
    uint8_t *kc_record_write(uint8_t *p, int64_t body_size, int64_t timestamp_delta, int32_t offset_delta,
                             const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size,
                             int32_t header_count)
    uint8_t *kc_write_bytes(uint8_t *p, const uint8_t *bytes, int32_t size)


cdef extern from "legacy_record.h" nogil:
    int KC_LEGACY_TIMESTAMP_OFFSET

    ctypedef struct kc_legacy_message:
        int64_t offset
        int64_t timestamp
        int32_t size
        int32_t key_size
        int32_t value_size
        uint32_t crc
        const uint8_t *key
        const uint8_t *value
        int8_t magic
        uint8_t attributes

    int64_t kc_legacy_size(int magic, int64_t key_size, int64_t value_size)
    kc_status kc_legacy_parse(const uint8_t *buf, int64_t end, int64_t position, kc_legacy_message *message,
                              kc_error *err)
    uint8_t *kc_legacy_write(uint8_t *p, int magic, int64_t offset, int64_t timestamp, int attributes,
                             const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size)
    int64_t kc_legacy_check_inner(const uint8_t *payload, int64_t size, int64_t *last_offset, kc_error *err)


cdef class Record:
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object timestamp_type
    cdef readonly object key
    cdef readonly object value
    cdef readonly object headers


cdef class RecordBatch:
    cdef kc_batch row
    cdef const uint8_t *data  # the batch's first byte; NULL when only its header was kept
    cdef object owner         # the memoryview that data points into
    cdef readonly str source

    cdef object payload(self)
    cdef object payload_of_copy(self)
    cdef int64_t payload_into(self, bytearray buffer, int64_t position) except -1
    cdef object _decompressed(self, packed)
    cdef object _located(self, error)
    cdef object _wrapper_value(self)
    cdef int _parse_message(self, kc_legacy_message *message) except -1
    cdef object _legacy_records(self, bint compressed)
    cdef int need_data(self) except -1
    cdef kc_status check_crc(self, kc_error *err)


cdef int64_t put_bytes(bytearray buffer, int64_t position, const uint8_t *data, int64_t size) except -1
cdef RecordBatch make_batch(const kc_batch *row, const uint8_t *data, object owner, str source)
