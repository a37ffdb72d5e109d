from libc.stdint cimport INT64_MAX, INT64_MIN, int8_t, int32_t, int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status
from kcore.record.record_batch cimport kc_batch


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
        KC_FAULT_MAGIC
        KC_FAULT_CODEC

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

    ctypedef struct kc_messages:
        const uint8_t *payload
        int64_t size
        int64_t last_offset
        int8_t magic
        uint8_t is_inner
        uint8_t attributes

    ctypedef struct kc_conversion:
        kc_validation validation
        int64_t base_timestamp
        int64_t size
        int32_t count
        int32_t offsets_ascend_by_one

    kc_status kc_validate_messages(const kc_messages *messages, const kc_record_rules *rules, kc_record_fault *faults,
                                   int64_t capacity, uint8_t *out, kc_conversion *result, kc_error *err)
    int64_t kc_renumber_records(const uint8_t *payload, int64_t size, int32_t count, uint8_t *out, kc_error *err)


cdef inline void allow_timestamps(
    kc_record_rules *rules, int64_t now_ms, int64_t before_max_ms, int64_t after_max_ms
) noexcept nogil:
    """What the topic's settings allow at now_ms; each is at least 0, and the largest number sets no limit."""
    rules.min_timestamp, rules.max_timestamp = INT64_MIN, INT64_MAX
    if before_max_ms < INT64_MAX and now_ms >= INT64_MIN + before_max_ms:
        rules.min_timestamp = now_ms - before_max_ms
    if after_max_ms < INT64_MAX and now_ms <= INT64_MAX - after_max_ms:
        rules.max_timestamp = now_ms + after_max_ms
