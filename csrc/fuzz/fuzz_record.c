/* seeds: *.log
 * The records of one batch, compressed or not: every extent that a record names is inside the payload. */
#include "fuzz.h"
#include "record.h"
#include "record_batch.h"

/* The short cut takes nothing but what the parser would take, and finds the same in it. */
static void check_short_cut(const uint8_t *payload, int64_t size, int64_t position) {
    kc_record usual, any;
    kc_error err;
    if (!kc_record_parse_usual(payload + position, size - position, &usual)) return;
    REQUIRE(kc_record_parse_any(payload, size, position, &any, &err) == KC_OK);
    REQUIRE(usual.size == any.size && usual.header_count == any.header_count && usual.headers == any.headers);
    REQUIRE(usual.timestamp_delta == any.timestamp_delta && usual.offset_delta == any.offset_delta);
    REQUIRE(usual.key == any.key && usual.key_size == any.key_size);
    REQUIRE(usual.value == any.value && usual.value_size == any.value_size);
}

static int64_t iterate(const uint8_t *payload, int64_t size, int32_t limit) {
    int64_t position = 0;
    for (int32_t i = 0; i < limit && position < size; i++) {
        kc_record record;
        kc_error err;
        check_short_cut(payload, size, position);
        if (kc_record_parse(payload, size, position, &record, &err)) {
            REQUIRE(err.status == KC_CORRUPT && err.position == position);
            return -1;
        }
        REQUIRE(record.size > 0 && record.size <= size - position);
        touch(record.key, record.key_size);
        touch(record.value, record.value_size);
        const uint8_t *p = record.headers, *end = payload + position + record.size;
        for (int32_t h = 0; h < record.header_count; h++) {
            kc_header header;
            p = kc_header_parse(p, end, &header);
            REQUIRE(p);
            touch(header.key, header.key_size);
            touch(header.value, header.value_size);
        }
        REQUIRE(p == end);
        position += record.size;
    }
    return position;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err;
    iterate(data, (int64_t)size, INT32_MAX);
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic < 2) return 0;
    const uint8_t *payload = data + KC_BATCH_HEADER_SIZE;
    int64_t payload_size = batch.size - KC_BATCH_HEADER_SIZE;
    if (!kc_records_check(payload, payload_size, batch.count, batch.last_offset - batch.base_offset,
                          batch.base_timestamp, &err))
        REQUIRE(iterate(payload, payload_size, batch.count) == payload_size);
    return 0;
}
