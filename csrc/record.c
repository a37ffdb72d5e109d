#include "record.h"

#include <string.h>

kc_status kc_records_check(const uint8_t *payload, int64_t size, int32_t count, int64_t last_offset_delta,
                           int64_t base_timestamp, kc_error *err) {
    kc_record_cursor cursor = kc_record_cursor_at_start(payload, size, count, last_offset_delta, base_timestamp);
    if (count == 0 && size != 0) return kc_fail(err, KC_CORRUPT, "bytes behind the last record", 0, 0, size);
    while (cursor.index < count) {
        kc_record record;
        int64_t timestamp;
        kc_status status = kc_record_next(&cursor, &record, &timestamp, err);
        if (status) return status;
    }
    return KC_OK;
}

int64_t kc_record_body_size(int64_t timestamp_delta, int32_t offset_delta, int64_t key_size, int64_t value_size,
                            int32_t header_count, int64_t headers_size) {
    return 1 + kc_varlong_size(timestamp_delta) + kc_varlong_size(offset_delta) + kc_varlong_size(key_size) +
           (key_size > 0 ? key_size : 0) + kc_varlong_size(value_size) + (value_size > 0 ? value_size : 0) +
           kc_varlong_size(header_count) + headers_size;
}

uint8_t *kc_write_bytes(uint8_t *p, const uint8_t *bytes, int32_t size) {
    p = kc_write_varint(p, size);
    if (size > 0) {
        memcpy(p, bytes, (size_t)size);
        p += size;
    }
    return p;
}

uint8_t *kc_record_write(uint8_t *p, int64_t body_size, int64_t timestamp_delta, int32_t offset_delta,
                         const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size,
                         int32_t header_count) {
    p = kc_write_varlong(p, body_size);
    *p++ = 0; /* attributes */
    p = kc_write_varlong(p, timestamp_delta);
    p = kc_write_varint(p, offset_delta);
    p = kc_write_bytes(p, key, key_size);
    p = kc_write_bytes(p, value, value_size);
    return kc_write_varint(p, header_count);
}
