#include "record.h"

kc_status kc_record_parse_any(const uint8_t *buf, int64_t end, int64_t position, kc_record *record, kc_error *err) {
    const uint8_t *start = buf + position, *limit = buf + end;
    int32_t length;
    const uint8_t *p = kc_read_varint(start, limit, &length);
    if (!p) return kc_fail(err, KC_CORRUPT, "record length", position, end, position);
    if (length < 0 || length > limit - p)
        return kc_fail(err, KC_CORRUPT, "record length", position, limit - p, length);
    limit = p + length;
    record->size = (int32_t)(limit - start);
    if (length == 0) return kc_fail(err, KC_CORRUPT, "record attributes", position, 1, 0);
    p++; /* attributes */
    const char *what = "record timestamp delta";
    if (!(p = kc_read_varlong(p, limit, &record->timestamp_delta))) goto bad;
    what = "record offset delta";
    if (!(p = kc_read_varint(p, limit, &record->offset_delta))) goto bad;
    what = "record key";
    if (!(p = kc_read_bytes(p, limit, 1, &record->key, &record->key_size))) goto bad;
    what = "record value";
    if (!(p = kc_read_bytes(p, limit, 1, &record->value, &record->value_size))) goto bad;
    what = "record header count";
    if (!(p = kc_read_varint(p, limit, &record->header_count))) goto bad;
    record->headers = p;
    if (record->header_count < 0 || record->header_count > limit - p) goto bad;
    what = "record header";
    for (int32_t i = 0; i < record->header_count; i++) {
        kc_header header;
        if (!(p = kc_header_parse(p, limit, &header))) goto bad;
    }
    if (p != limit) return kc_fail(err, KC_CORRUPT, "record length", position, p - start, limit - start);
    return KC_OK;
bad: /* the field runs over the record's end: expected is where that is, counted from the record */
    return kc_fail(err, KC_CORRUPT, what, position, limit - start, -1);
}

kc_status kc_records_check(const uint8_t *payload, int64_t size, int32_t count, int64_t last_offset_delta,
                           int64_t base_timestamp, kc_error *err) {
    kc_record_cursor cursor = kc_record_cursor_at_start(payload, size, count, last_offset_delta, base_timestamp);
    if (count == 0 && size != 0) return kc_fail(err, KC_CORRUPT, "bytes after the last record", 0, 0, size);
    while (cursor.index < count) {
        kc_record record;
        int64_t timestamp;
        kc_status status = kc_record_next(&cursor, &record, &timestamp, err);
        if (status) return status;
    }
    return KC_OK;
}
