/* csrc/legacy_record.h -- messages of magic 0 and 1, what topics held before magic 2.
 *
 *    0  int64  offset
 *    8  int32  length of what follows           magic 1 only:
 *   12  uint32 crc-32 of bytes 16..             18  int64  timestamp
 *   16  int8   magic
 *   17  int8   attributes
 *   18  int32  key length, -1 for null, then the key       (at 26 in magic 1)
 *       int32  value length, -1 for null, then the value
 *
 * Attributes: bits 0-2 codec, 3 timestamp type (magic 1 only; 1 = LogAppendTime).  A message with a codec is a
 * wrapper: its value, decompressed, is messages of this form one after the other, and its offset that of the
 * last of them.  Inner offsets are absolute in magic 0, and count from the first inner message in magic 1.
 * Source: KIP-31, KIP-32.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_LEGACY_RECORD_H
#define KC_LEGACY_RECORD_H

#include <stdint.h>

#include "bytes.h"
#include "record_batch.h"
#include "status.h"

enum {
    KC_LEGACY_CRC_OFFSET = 12,
    KC_LEGACY_ATTRIBUTES_OFFSET = 17,
    KC_LEGACY_TIMESTAMP_OFFSET = 18,
    KC_LEGACY_OVERHEAD = 26, /* of a message of magic 0 with empty key and value; magic 1 has a timestamp more */
};

typedef struct kc_legacy_message {
    int64_t offset;
    int64_t timestamp; /* -1 in magic 0 */
    int32_t size;      /* of the whole message: 12 + length */
    int32_t key_size;  /* -1: null */
    int32_t value_size;
    uint32_t crc;
    const uint8_t *key;
    const uint8_t *value;
    int8_t magic;
    uint8_t attributes;
} kc_legacy_message;

/* Bytes of a message; sizes of -1 are null. */
static inline int64_t kc_legacy_size(int magic, int64_t key_size, int64_t value_size) {
    return KC_LEGACY_OVERHEAD + (magic ? 8 : 0) + (key_size > 0 ? key_size : 0) + (value_size > 0 ? value_size : 0);
}

/* Parse the message at buf[position]; buf holds `end` bytes.  KC_CORRUPT unless it is one of magic 0 or 1, whole,
 * and key and value fill exactly the length it states.  Inline: this is the inner loop of validation. */
static inline kc_status kc_legacy_parse(const uint8_t *buf, int64_t end, int64_t position, kc_legacy_message *message,
                                        kc_error *err) {
    int64_t available = end - position;
    const uint8_t *p = buf + position;
    if (available < KC_LEGACY_OVERHEAD)
        return kc_fail(err, KC_CORRUPT, "message length", position, KC_LEGACY_OVERHEAD, available);
    int32_t length = kc_load_i32(p + 8);
    int8_t magic = (int8_t)p[KC_MAGIC_OFFSET];
    if (magic != 0 && magic != 1) return kc_fail(err, KC_CORRUPT, "magic of a message", position, 1, magic);
    int32_t overhead = (int32_t)kc_legacy_size(magic, 0, 0);
    if (length < overhead - KC_LOG_OVERHEAD || length > available - KC_LOG_OVERHEAD)
        return kc_fail(err, KC_CORRUPT, "message length", position, available - KC_LOG_OVERHEAD, length);
    message->size = KC_LOG_OVERHEAD + length;
    message->offset = kc_load_i64(p);
    message->crc = kc_load_u32(p + KC_LEGACY_CRC_OFFSET);
    message->magic = magic;
    message->attributes = p[KC_LEGACY_ATTRIBUTES_OFFSET];
    message->timestamp = magic ? kc_load_i64(p + KC_LEGACY_TIMESTAMP_OFFSET) : -1;
    const uint8_t *key_length = p + overhead - 8;
    int32_t room = message->size - overhead; /* for key and value */
    int32_t key_size = kc_load_i32(key_length);
    if (key_size < -1 || key_size > room) return kc_fail(err, KC_CORRUPT, "key length", position, room, key_size);
    message->key = key_length + 4;
    message->key_size = key_size;
    if (key_size > 0) room -= key_size;
    const uint8_t *value_length = message->key + (key_size > 0 ? key_size : 0);
    int32_t value_size = kc_load_i32(value_length);
    if (value_size != room && !(value_size == -1 && room == 0))
        return kc_fail(err, KC_CORRUPT, "value length", position, room, value_size);
    message->value = value_length + 4;
    message->value_size = value_size;
    return KC_OK;
}

/* The CRC that the message at p, of `size` bytes, ought to have. */
uint32_t kc_legacy_crc(const uint8_t *p, int32_t size);

/* Write a message and its CRC; the caller has made room for kc_legacy_size bytes.  Returns the position after it. */
uint8_t *kc_legacy_write(uint8_t *p, int magic, int64_t offset, int64_t timestamp, int attributes,
                         const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size);

/* Walk the messages in a decompressed wrapper; *last_offset is that of the last of them, as it stands there.
 * Returns how many, or KC_CORRUPT unless there is at least one, all parse, none is compressed itself, and offsets
 * ascend.  Their CRCs are not looked at: the wrapper's covers them. */
int64_t kc_legacy_check_inner(const uint8_t *payload, int64_t size, int64_t *last_offset, kc_error *err);

#endif
