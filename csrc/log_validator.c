#include "log_validator.h"

#include "record.h"

static void add_fault(kc_validation *result, kc_record_fault *faults, int64_t capacity, int32_t index,
                      kc_fault_reason reason, int64_t timestamp) {
    if (result->fault_count < capacity) {
        kc_record_fault *fault = faults + result->fault_count;
        fault->index = index;
        fault->reason = reason;
        fault->timestamp = timestamp;
    }
    result->fault_count++;
    if (reason != KC_FAULT_NO_KEY) result->has_timestamp_fault = 1;
}

kc_status kc_validate_records(const kc_batch *batch, const uint8_t *payload, int64_t size,
                              const kc_record_rules *rules, kc_record_fault *faults, int64_t capacity,
                              kc_validation *result, kc_error *err) {
    int64_t last_offset_delta = batch->last_offset - batch->base_offset;
    kc_record_cursor cursor =
        kc_record_cursor_at_start(payload, size, batch->count, last_offset_delta, batch->base_timestamp);
    int log_append_time = batch->attributes & KC_ATTR_LOG_APPEND_TIME;
    kc_validation found = {-1, last_offset_delta, 0, 0};
    while (cursor.index < batch->count) {
        kc_record record;
        int64_t timestamp;
        int32_t index = cursor.index;
        if (kc_record_next(&cursor, &record, &timestamp, err)) return err->status = KC_INVALID_RECORD;
        if (timestamp > found.max_timestamp) {
            found.max_timestamp = timestamp;
            found.max_timestamp_delta = record.offset_delta;
        }
        /* One fault a record, the key's first, as Kafka reports them. */
        if (rules->need_key && record.key_size < 0)
            add_fault(&found, faults, capacity, index, KC_FAULT_NO_KEY, timestamp);
        else if (log_append_time)
            add_fault(&found, faults, capacity, index, KC_FAULT_LOG_APPEND_TIME, timestamp);
        else if (timestamp < rules->min_timestamp && timestamp != -1)
            add_fault(&found, faults, capacity, index, KC_FAULT_TIMESTAMP_TOO_EARLY, timestamp);
        else if (timestamp > rules->max_timestamp)
            add_fault(&found, faults, capacity, index, KC_FAULT_TIMESTAMP_TOO_LATE, timestamp);
    }
    *result = found;
    if (found.fault_count == 0) return KC_OK;
    return found.has_timestamp_fault ? KC_INVALID_TIMESTAMP : KC_INVALID_RECORD;
}
