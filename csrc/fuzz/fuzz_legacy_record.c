/* seeds: *.log
 * Messages of magic 0 and 1, plain and in a wrapper: every extent is inside the bytes, and a message
 * written from what was parsed parses to the same. */
#include "fuzz.h"
#include "legacy_record.h"

static void write_again(const kc_legacy_message *message, const uint8_t *original) {
    int64_t size = kc_legacy_size(message->magic, message->key_size, message->value_size);
    REQUIRE(size == message->size);
    uint8_t *copy = malloc((size_t)size);
    REQUIRE(copy);
    uint8_t *end = kc_legacy_write(copy, message->magic, message->offset, message->timestamp, message->attributes,
                                   message->key, message->key_size, message->value, message->value_size);
    REQUIRE(end == copy + size);
    REQUIRE(memcmp(copy, original, KC_LEGACY_CRC_OFFSET) == 0);
    REQUIRE(memcmp(copy + KC_MAGIC_OFFSET, original + KC_MAGIC_OFFSET, (size_t)size - KC_MAGIC_OFFSET) == 0);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t position = 0, end = (int64_t)size, count = 0, last_offset = -1;
    kc_error err;
    while (position < end) {
        kc_legacy_message message;
        if (kc_legacy_parse(data, end, position, &message, &err)) {
            REQUIRE(err.status == KC_CORRUPT && err.position == position && err.what);
            break;
        }
        REQUIRE(message.size >= KC_LEGACY_OVERHEAD && message.size <= end - position);
        touch(message.key, message.key_size);
        touch(message.value, message.value_size);
        write_again(&message, data + position);
        position += message.size;
        count++;
    }
    int64_t inner = kc_legacy_check_inner(data, end, &last_offset, &err);
    if (inner >= 0) REQUIRE(inner == count && position == end && last_offset >= 0);
    return 0;
}
