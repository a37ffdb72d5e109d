/* csrc/record.h -- the records inside one magic-2 batch, decompressed.
 *
 *   varint   length of what follows          varint   key length, -1 for null    then the key
 *   int8     attributes (unused)             varint   value length, -1 for null  then the value
 *   varlong  timestamp - base timestamp      varint   number of headers          then the headers:
 *   varint   offset - base offset                       varint key length, key, varint value length, value
 *
 * Source: KIP-98, KIP-82.  Nothing here allocates, locks, or knows about Python. */
#ifndef KC_RECORD_H
#define KC_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "status.h"
#include "varint.h"

typedef struct kc_record {
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t size;     /* of the whole record, its length field included */
    int32_t key_size; /* -1: null */
    int32_t value_size;
    int32_t header_count;
    const uint8_t *key;
    const uint8_t *value;
    const uint8_t *headers; /* up to the record's end */
} kc_record;

typedef struct kc_header {
    int32_t key_size;
    int32_t value_size; /* -1: null */
    const uint8_t *key;
    const uint8_t *value;
} kc_header;

/* A length-prefixed byte string; NULL when it does not end before `end`.  null_allowed: whether -1 is. */
static inline const uint8_t *kc_read_bytes(const uint8_t *p, const uint8_t *end, int null_allowed,
                                           const uint8_t **bytes, int32_t *size) {
    p = kc_read_varint(p, end, size);
    if (!p) return NULL;
    *bytes = p;
    if (*size < 0) return *size == -1 && null_allowed ? p : NULL;
    if (*size > end - p) return NULL;
    return p + *size;
}

/* The header at p; returns the position after it, NULL when it does not end before `end`. */
static inline const uint8_t *kc_header_parse(const uint8_t *p, const uint8_t *end, kc_header *header) {
    p = kc_read_bytes(p, end, 0, &header->key, &header->key_size);
    return p ? kc_read_bytes(p, end, 1, &header->value, &header->value_size) : NULL;
}

/* A number of one or two bytes, which the caller knows to be there; a longer one gives *u >= 1 << 14. */
static inline const uint8_t *kc_read_short(const uint8_t *p, uint32_t *u) {
    uint32_t value = p[0];
    *u = value;
    if (value < 0x80) return p + 1;
    *u = (value & 0x7f) | (uint32_t)p[1] << 7;
    return p + 2;
}

/* kc_record_parse for the usual record: numbers below 1 << 13, a value, no headers, not at the very end of the buffer.
 * One check of the bounds for several numbers is what makes it fast.  0: it may be another one or a bad one. */
static inline int kc_record_parse_usual(const uint8_t *start, int64_t available, kc_record *record) {
    const uint8_t *p = start, *limit;
    uint32_t length, timestamp_delta, offset_delta, key_size, value_size;
    if (available < 16) return 0; /* more than all that stands before the key */
    p = kc_read_short(p, &length);
    limit = p + (length >> 1);
    p = kc_read_short(p + 1, &timestamp_delta);
    p = kc_read_short(p, &offset_delta);
    p = kc_read_short(p, &key_size);
    if ((length | timestamp_delta | offset_delta | key_size) >> 14 || (length & 1) || limit - start > available)
        return 0;
    record->key = p;
    record->key_size = kc_unzigzag32(key_size);
    if (record->key_size > 0) p += record->key_size;
    if (record->key_size < -1 || limit - p < 3) return 0;
    p = kc_read_short(p, &value_size);
    record->value = p;
    /* Not negative, and right up to the one byte that counts no headers. */
    if ((value_size & 1) || (int64_t)(value_size >> 1) != limit - p - 1 || limit[-1] != 0) return 0;
    record->value_size = (int32_t)(value_size >> 1);
    record->size = (int32_t)(limit - start);
    record->timestamp_delta = kc_unzigzag32(timestamp_delta);
    record->offset_delta = kc_unzigzag32(offset_delta);
    record->header_count = 0;
    record->headers = limit;
    return 1;
}

/* Parse the record at buf[position]; buf holds `end` bytes.  KC_CORRUPT unless all its fields, headers
 * too, fill exactly the length it states. */
kc_status kc_record_parse_any(const uint8_t *buf, int64_t end, int64_t position, kc_record *record, kc_error *err);

/* The same; inline for the usual record, because this is the inner loop of validation. */
static inline kc_status kc_record_parse(const uint8_t *buf, int64_t end, int64_t position, kc_record *record,
                                        kc_error *err) {
    if (__builtin_expect(kc_record_parse_usual(buf + position, end - position, record), 1)) return KC_OK;
    return kc_record_parse_any(buf, end, position, record, err);
}

/* A walk over all records of a payload, checked against what the batch's header says of them. */
typedef struct kc_record_cursor {
    const uint8_t *payload;
    int64_t size;
    int64_t position; /* of the next record */
    int32_t count;    /* records in all */
    int32_t index;    /* of the next record */
    int64_t previous_offset_delta;
    int64_t last_offset_delta;
    int64_t base_timestamp;
} kc_record_cursor;

static inline kc_record_cursor kc_record_cursor_at_start(const uint8_t *payload, int64_t size, int32_t count,
                                                         int64_t last_offset_delta, int64_t base_timestamp) {
    kc_record_cursor cursor = {payload, size, 0, count, 0, -1, last_offset_delta, base_timestamp};
    return cursor;
}

/* The next record and its timestamp; only while index < count.  KC_CORRUPT, with a position in the payload,
 * unless it parses, its offset delta ascends within [0, last_offset_delta], its timestamp fits in 64 bits,
 * and after the last record nothing is left. */
static inline kc_status kc_record_next(kc_record_cursor *cursor, kc_record *record, int64_t *timestamp,
                                       kc_error *err) {
    int64_t position = cursor->position;
    if (__builtin_expect(position == cursor->size, 0))
        return kc_fail(err, KC_CORRUPT, "record count", position, cursor->count, cursor->index);
    kc_status status = kc_record_parse(cursor->payload, cursor->size, position, record, err);
    if (__builtin_expect(status != KC_OK, 0)) return status;
    if (__builtin_expect(record->offset_delta <= cursor->previous_offset_delta, 0))
        return kc_fail(err, KC_CORRUPT, "record offset delta", position, cursor->previous_offset_delta + 1,
                       record->offset_delta);
    if (__builtin_expect(record->offset_delta > cursor->last_offset_delta, 0))
        return kc_fail(err, KC_CORRUPT, "record offset delta", position, cursor->last_offset_delta,
                       record->offset_delta);
    if (__builtin_add_overflow(cursor->base_timestamp, record->timestamp_delta, timestamp))
        return kc_fail(err, KC_CORRUPT, "record timestamp delta", position, cursor->base_timestamp,
                       record->timestamp_delta);
    cursor->previous_offset_delta = record->offset_delta;
    cursor->position += record->size;
    cursor->index++;
    if (cursor->index == cursor->count && cursor->position != cursor->size)
        return kc_fail(err, KC_CORRUPT, "bytes after the last record", cursor->position, 0,
                       cursor->size - cursor->position);
    return KC_OK;
}

/* KC_CORRUPT unless payload[0..size) is exactly `count` such records. */
kc_status kc_records_check(const uint8_t *payload, int64_t size, int32_t count, int64_t last_offset_delta,
                           int64_t base_timestamp, kc_error *err);

/* What a record's length field will hold: the bytes after it.  Sizes of -1 are null; headers_size counts
 * the headers' bytes without their number.  Inline, as the writers below: the inner loop of conversion. */
static inline int64_t kc_record_body_size(int64_t timestamp_delta, int32_t offset_delta, int64_t key_size,
                                          int64_t value_size, int32_t header_count, int64_t headers_size) {
    return 1 + kc_varlong_size(timestamp_delta) + kc_varlong_size(offset_delta) + kc_varlong_size(key_size) +
           (key_size > 0 ? key_size : 0) + kc_varlong_size(value_size) + (value_size > 0 ? value_size : 0) +
           kc_varlong_size(header_count) + headers_size;
}

/* A varint length (-1 for null) and that many bytes: keys, values and both parts of a header. */
static inline uint8_t *kc_write_bytes(uint8_t *p, const uint8_t *bytes, int32_t size) {
    p = kc_write_varint(p, size);
    if (size > 0) {
        memcpy(p, bytes, (size_t)size);
        p += size;
    }
    return p;
}

/* Write a record up to and with its header count; the caller has made room and has body_size from above.
 * Returns the position for the headers. */
static inline uint8_t *kc_record_write(uint8_t *p, int64_t body_size, int64_t timestamp_delta, int32_t offset_delta,
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

#endif
