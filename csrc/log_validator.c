#include "log_validator.h"

#include "legacy_record.h"
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
    if (reason == KC_FAULT_TIMESTAMP_TOO_EARLY || reason == KC_FAULT_TIMESTAMP_TOO_LATE ||
        reason == KC_FAULT_LOG_APPEND_TIME)
        result->has_timestamp_fault = 1;
}

/* One fault a record, the key's first, as Kafka reports them. */
static inline void check_record(const kc_record_rules *rules, int32_t key_size, int64_t timestamp, int log_append_time,
                                kc_validation *result, kc_record_fault *faults, int64_t capacity, int32_t index) {
    if (rules->need_key && key_size < 0)
        add_fault(result, faults, capacity, index, KC_FAULT_NO_KEY, timestamp);
    else if (log_append_time)
        add_fault(result, faults, capacity, index, KC_FAULT_LOG_APPEND_TIME, timestamp);
    else if (timestamp < rules->min_timestamp && timestamp != -1)
        add_fault(result, faults, capacity, index, KC_FAULT_TIMESTAMP_TOO_EARLY, timestamp);
    else if (timestamp > rules->max_timestamp)
        add_fault(result, faults, capacity, index, KC_FAULT_TIMESTAMP_TOO_LATE, timestamp);
}

static kc_status outcome(const kc_validation *found) {
    if (found->fault_count == 0) return KC_OK;
    return found->has_timestamp_fault ? KC_INVALID_TIMESTAMP : KC_INVALID_RECORD;
}

/* A number of up to three bytes at *p, which the caller knows to be there; false for a longer one. */
static inline int take_number(const uint8_t **p, uint32_t *u) {
    const uint8_t *at = *p;
    *u = at[0];
    *p = at + 1;
    if (at[0] < 0x80) return 1;
    *u = (at[0] & 0x7f) | (uint32_t)at[1] << 7;
    *p = at + 2;
    if (at[1] < 0x80) return 1;
    *u = (*u & 0x3fff) | (uint32_t)at[2] << 14;
    *p = at + 3;
    return at[2] < 0x80;
}

/* timestamp - base, kept within just more than a number of three bytes can say. */
static int32_t bounded_delta(int64_t base, int64_t timestamp) {
    int64_t delta, bound = (1 << 20) + 1;
    if (__builtin_sub_overflow(timestamp, base, &delta)) delta = timestamp < base ? -bound : bound;
    return (int32_t)(delta < -bound ? -bound : delta > bound ? bound : delta);
}

/* Walks over usual records that break no rule (numbers of three bytes at most, a value, no headers, the next offset),
 * with all it needs in registers; stops before the first other one, and before the last. */
static void skip_good_records(kc_record_cursor *cursor, const kc_record_rules *rules, kc_validation *found) {
    const uint8_t *p = cursor->payload + cursor->position, *payload_end = cursor->payload + cursor->size;
    int32_t earliest = bounded_delta(cursor->base_timestamp, rules->min_timestamp);
    int32_t latest = bounded_delta(cursor->base_timestamp, rules->max_timestamp);
    int32_t highest = bounded_delta(cursor->base_timestamp, found->max_timestamp);
    int64_t next = cursor->previous_offset_delta + 1, at_highest = -1;
    int64_t stop = next + (cursor->count - 1 - cursor->index);
    if (stop > cursor->last_offset_delta) stop = cursor->last_offset_delta;
    int32_t smallest_key = rules->need_key ? 0 : -1;
    for (; next < stop && payload_end - p > 16; next++) { /* more than all that stands before the value */
        __builtin_prefetch(p + 1024); /* more than the processor does by itself */
        __builtin_prefetch(p + 1088);
        const uint8_t *q = p, *limit;
        uint32_t length, timestamp, offset, key, value;
        if (!take_number(&q, &length) || (length & 1)) break;
        limit = q + (length >> 1);
        q++; /* attributes */
        if (!take_number(&q, &timestamp) || !take_number(&q, &offset) || !take_number(&q, &key) || offset != next << 1) break;
        int32_t delta = kc_unzigzag32(timestamp), key_size = kc_unzigzag32(key);
        if (key_size < smallest_key || delta < earliest || delta > latest || limit > payload_end) break;
        if (key_size > 0) q += key_size;
        if (limit - q < 3 || !take_number(&q, &value) || q + (value >> 1) != limit - 1 || (value & 1) || limit[-1]) break;
        if (delta > highest) {
            highest = delta;
            at_highest = next;
        }
        p = limit;
    }
    cursor->index += (int32_t)(next - 1 - cursor->previous_offset_delta);
    cursor->position = p - cursor->payload;
    cursor->previous_offset_delta = next - 1;
    if (at_highest < 0) return;
    found->max_timestamp = cursor->base_timestamp + highest;
    found->max_timestamp_delta = at_highest;
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
        if (!log_append_time) skip_good_records(&cursor, rules, &found);
        int32_t index = cursor.index;
        if (kc_record_next(&cursor, &record, &timestamp, err)) return err->status = KC_INVALID_RECORD;
        if (timestamp > found.max_timestamp) {
            found.max_timestamp = timestamp;
            found.max_timestamp_delta = record.offset_delta;
        }
        check_record(rules, record.key_size, timestamp, log_append_time, &found, faults, capacity, index);
    }
    *result = found;
    return outcome(&found);
}

kc_status kc_validate_messages(const kc_messages *messages, const kc_record_rules *rules, kc_record_fault *faults,
                               int64_t capacity, uint8_t *out, kc_conversion *result, kc_error *err) {
    const uint8_t *payload = messages->payload;
    int64_t position = 0, last_offset = -1;
    uint8_t *p = out;
    kc_conversion found = {{-1, 0, 0, 0}, -1, 0, 0, 1};
    while (position < messages->size) {
        kc_legacy_message message;
        if (kc_legacy_parse(payload, messages->size, position, &message, err)) return err->status = KC_INVALID_RECORD;
        if (found.count == INT32_MAX)
            return kc_fail(err, KC_INVALID_RECORD, "message count", position, INT32_MAX, found.count);
        int32_t index = found.count++;
        uint8_t attributes = message.attributes;
        if (messages->is_inner) {
            uint32_t crc = kc_legacy_crc(payload + position, message.size);
            if (crc != message.crc)
                return kc_fail(err, KC_CORRUPT, "CRC-32 of a message in a wrapper", position, message.crc, crc);
            found.offsets_ascend_by_one &= message.offset == index;
            attributes = messages->attributes;
        } else if (message.magic != messages->magic) {
            return kc_fail(err, KC_INVALID_RECORD, "magic of a message behind others", position, messages->magic,
                           message.magic);
        }
        last_offset = message.offset;
        position += message.size;
        if (message.timestamp > found.found.max_timestamp) {
            found.found.max_timestamp = message.timestamp;
            found.found.max_timestamp_delta = index;
        }
        if (message.magic != messages->magic)
            add_fault(&found.found, faults, capacity, index, KC_FAULT_MAGIC, message.magic);
        else if (messages->is_inner && (message.attributes & KC_ATTR_CODEC_MASK))
            add_fault(&found.found, faults, capacity, index, KC_FAULT_CODEC, message.attributes & KC_ATTR_CODEC_MASK);
        else
            check_record(rules, message.key_size, message.timestamp,
                         message.magic && (attributes & KC_ATTR_LOG_APPEND_TIME), &found.found, faults, capacity, index);
        if (!out || found.found.fault_count) continue;
        if (index == 0) found.base_timestamp = message.timestamp;
        int64_t delta = message.timestamp - found.base_timestamp;
        int64_t body = kc_record_body_size(delta, index, message.key_size, message.value_size, 0, 0);
        p = kc_record_write(p, body, delta, index, message.key, message.key_size, message.value, message.value_size, 0);
    }
    if (found.count == 0) return kc_fail(err, KC_INVALID_RECORD, "messages in a wrapper", 0, 1, 0);
    if (found.found.max_timestamp < 0) found.found.max_timestamp_delta = found.count - 1;
    found.offsets_ascend_by_one &= messages->last_offset == last_offset || messages->last_offset == 0;
    found.size = p - out;
    *result = found;
    return outcome(&found.found);
}

int64_t kc_renumber_records(const uint8_t *payload, int64_t size, int32_t count, uint8_t *out, kc_error *err) {
    int64_t position = 0;
    uint8_t *p = out;
    for (int32_t index = 0; index < count; index++) {
        kc_record record;
        if (kc_record_parse(payload, size, position, &record, err)) return err->status = KC_INVALID_RECORD;
        position += record.size;
        int64_t headers_size = payload + position - record.headers;
        int64_t body = kc_record_body_size(record.timestamp_delta, index, record.key_size, record.value_size,
                                           record.header_count, headers_size);
        p = kc_record_write(p, body, record.timestamp_delta, index, record.key, record.key_size, record.value,
                            record.value_size, record.header_count);
        memcpy(p, record.headers, (size_t)headers_size);
        p += headers_size;
    }
    if (position != size)
        return kc_fail(err, KC_INVALID_RECORD, "bytes behind the last record", position, 0, size - position);
    return p - out;
}
