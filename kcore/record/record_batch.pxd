from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kcore.common.status cimport kc_error, kc_status


cdef extern from "record_batch.h" nogil:
    int KC_LOG_OVERHEAD
    int KC_CRC_OFFSET
    int KC_ATTRIBUTES_OFFSET
    int KC_BATCH_HEADER_SIZE
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
    int64_t kc_batch_walk(const uint8_t *buf, int64_t end, int64_t *position, int flags, kc_batch *rows,
                          int64_t capacity, kc_error *err)
    void kc_batch_assign(uint8_t *buf, kc_batch *batch, int64_t base_offset, int32_t leader_epoch)
    void kc_batch_set_log_append_time(uint8_t *buf, kc_batch *batch, int64_t timestamp)


cdef class RecordBatch:
    cdef kc_batch row
    cdef const uint8_t *data  # the batch's first byte; NULL when only its header was kept
    cdef object owner         # the memoryview that data points into
    cdef readonly str source

    cdef int need_data(self) except -1
    cdef kc_status check_crc(self, kc_error *err)


cdef RecordBatch make_batch(const kc_batch *row, const uint8_t *data, object owner, str source)
