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

/* The header at p; returns the position behind it, NULL when it does not end before `end`. */
static inline const uint8_t *kc_header_parse(const uint8_t *p, const uint8_t *end, kc_header *header) {
    p = kc_read_bytes(p, end, 0, &header->key, &header->key_size);
    return p ? kc_read_bytes(p, end, 1, &header->value, &header->value_size) : NULL;
}

/* Parse the record at buf[position]; buf holds `end` bytes.  KC_CORRUPT unless all its fields, headers
 * too, fill exactly the length it states.  Inline: this is the inner loop of validation. */
static inline kc_status kc_record_parse(const uint8_t *buf, int64_t end, int64_t position, kc_record *record,
                                        kc_error *err) {
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
    if (position == cursor->size)
        return kc_fail(err, KC_CORRUPT, "record count", position, cursor->count, cursor->index);
    kc_status status = kc_record_parse(cursor->payload, cursor->size, position, record, err);
    if (status) return status;
    if (record->offset_delta <= cursor->previous_offset_delta)
        return kc_fail(err, KC_CORRUPT, "record offset delta", position, cursor->previous_offset_delta + 1,
                       record->offset_delta);
    if (record->offset_delta > cursor->last_offset_delta)
        return kc_fail(err, KC_CORRUPT, "record offset delta", position, cursor->last_offset_delta,
                       record->offset_delta);
    if (__builtin_add_overflow(cursor->base_timestamp, record->timestamp_delta, timestamp))
        return kc_fail(err, KC_CORRUPT, "record timestamp delta", position, cursor->base_timestamp,
                       record->timestamp_delta);
    cursor->previous_offset_delta = record->offset_delta;
    cursor->position += record->size;
    cursor->index++;
    if (cursor->index == cursor->count && cursor->position != cursor->size)
        return kc_fail(err, KC_CORRUPT, "bytes behind the last record", cursor->position, 0,
                       cursor->size - cursor->position);
    return KC_OK;
}

/* KC_CORRUPT unless payload[0..size) is exactly `count` such records. */
kc_status kc_records_check(const uint8_t *payload, int64_t size, int32_t count, int64_t last_offset_delta,
                           int64_t base_timestamp, kc_error *err);

/* What a record's length field will hold: the bytes behind it.  Sizes of -1 are null; headers_size counts
 * the headers' bytes without their number. */
int64_t kc_record_body_size(int64_t timestamp_delta, int32_t offset_delta, int64_t key_size, int64_t value_size,
                            int32_t header_count, int64_t headers_size);

/* Write a record up to and with its header count; the caller has made room and has body_size from above.
 * Returns the position for the headers. */
uint8_t *kc_record_write(uint8_t *p, int64_t body_size, int64_t timestamp_delta, int32_t offset_delta,
                         const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size,
                         int32_t header_count);

/* A varint length (-1 for null) and that many bytes: keys, values and both parts of a header. */
uint8_t *kc_write_bytes(uint8_t *p, const uint8_t *bytes, int32_t size);

#endif
