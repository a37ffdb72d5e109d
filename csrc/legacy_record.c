#include "legacy_record.h"

#include "crc32.h"

uint32_t kc_legacy_crc(const uint8_t *p, int32_t size) {
    return kc_crc32(0, p + KC_MAGIC_OFFSET, (size_t)(size - KC_MAGIC_OFFSET));
}

static uint8_t *write_bytes(uint8_t *p, const uint8_t *bytes, int32_t size) {
    kc_store_i32(p, size);
    p += 4;
    if (size <= 0) return p;
    memcpy(p, bytes, (size_t)size);
    return p + size;
}

uint8_t *kc_legacy_write(uint8_t *p, int magic, int64_t offset, int64_t timestamp, int attributes,
                         const uint8_t *key, int32_t key_size, const uint8_t *value, int32_t value_size) {
    int32_t size = (int32_t)kc_legacy_size(magic, key_size, value_size);
    uint8_t *start = p;
    kc_store_i64(p, offset);
    kc_store_i32(p + 8, size - KC_LOG_OVERHEAD);
    p[KC_MAGIC_OFFSET] = (uint8_t)magic;
    p[KC_LEGACY_ATTRIBUTES_OFFSET] = (uint8_t)attributes;
    p += KC_LEGACY_TIMESTAMP_OFFSET;
    if (magic) {
        kc_store_i64(p, timestamp);
        p += 8;
    }
    p = write_bytes(p, key, key_size);
    p = write_bytes(p, value, value_size);
    kc_store_i32(start + KC_LEGACY_CRC_OFFSET, (int32_t)kc_legacy_crc(start, size));
    return p;
}

int64_t kc_legacy_check_inner(const uint8_t *payload, int64_t size, int64_t *last_offset, kc_error *err) {
    int64_t count = 0, position = 0, previous = -1;
    while (position < size) {
        kc_legacy_message message;
        if (kc_legacy_parse(payload, size, position, &message, err)) return err->status;
        if (message.attributes & KC_ATTR_CODEC_MASK)
            return kc_fail(err, KC_CORRUPT, "codec of a message in a wrapper", position, 0,
                           message.attributes & KC_ATTR_CODEC_MASK);
        if (message.offset <= previous)
            return kc_fail(err, KC_CORRUPT, "offset of a message in a wrapper", position, previous + 1, message.offset);
        previous = message.offset;
        position += message.size;
        count++;
    }
    if (count == 0) return kc_fail(err, KC_CORRUPT, "messages in a wrapper", 0, 1, 0);
    *last_offset = previous;
    return count;
}
