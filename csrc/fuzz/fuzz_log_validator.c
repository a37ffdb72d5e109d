/* seeds: *.log
 * Validation: what it accepts is what the checked iteration accepts, and it finds what that finds. */
#include "fuzz.h"
#include "log_validator.h"
#include "record.h"

enum { CAPACITY = 4 };

static void expect(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_record_rules *rules,
                   const kc_validation *validation);

static void validate(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_record_rules *rules) {
    kc_record_fault faults[CAPACITY];
    kc_validation validation = {0};
    kc_error err = {0}, check_err;
    kc_status status = kc_validate_records(batch, payload, size, rules, faults, CAPACITY, &validation, &err);
    kc_status check = kc_records_check(payload, size, batch->count, batch->last_offset - batch->base_offset,
                                       batch->base_timestamp, &check_err);
    if (batch->count == 0) return; /* emptied by the cleaner: nothing is looked at */
    if (check) {
        REQUIRE(status == KC_INVALID_RECORD && err.status == KC_INVALID_RECORD && validation.fault_count == 0);
        return;
    }
    REQUIRE((status == KC_OK) == (validation.fault_count == 0));
    for (int64_t i = 0; i < validation.fault_count && i < CAPACITY; i++) {
        REQUIRE(faults[i].index >= 0 && faults[i].index < batch->count);
        REQUIRE(i == 0 || faults[i].index > faults[i - 1].index);
    }
    expect(batch, payload, size, rules, &validation);
}

/* The same record by record, without any haste. */
static void expect(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_record_rules *rules,
                   const kc_validation *validation) {
    int64_t last = batch->last_offset - batch->base_offset, highest = -1, at_highest = last, faults = 0;
    kc_record_cursor cursor = kc_record_cursor_at_start(payload, size, batch->count, last, batch->base_timestamp);
    while (cursor.index < cursor.count) {
        kc_record record;
        int64_t timestamp;
        kc_error err;
        REQUIRE(!kc_record_next(&cursor, &record, &timestamp, &err));
        if (timestamp > highest) {
            highest = timestamp;
            at_highest = record.offset_delta;
        }
        faults += (rules->need_key && record.key_size < 0) || batch->attributes & KC_ATTR_LOG_APPEND_TIME ||
                  (timestamp < rules->min_timestamp && timestamp != -1) || timestamp > rules->max_timestamp;
    }
    REQUIRE(validation->max_timestamp == highest && validation->max_timestamp_delta == at_highest);
    REQUIRE(validation->fault_count == faults);
}

/* Records of the same sizes, as some bytes say, and others change a few of them. */
static void validate_alike(const uint8_t *data, size_t size) {
    static uint8_t payload[1 << 18];
    if (size < 150) return;
    data += KC_CRC_OFFSET; /* bytes before it are much the same in all inputs */
    size -= KC_CRC_OFFSET;
    const int is_long = data[5] == 0; /* offsets of three bytes */
    const int32_t count = 1 + (data[0] | data[1] << 8) % 400 + (is_long ? 8000 : 0);
    const int32_t key_size = data[2] % 8 - 1, value_size = data[3] % (is_long ? 8 : 100);
    const int64_t base = 1000, step = data[4] % 5;
    uint8_t *p = payload;
    for (int32_t i = 0; i < count; i++) {
        int64_t body = kc_record_body_size(step * i, i, key_size, value_size, 0, 0);
        p = kc_record_write(p, body, step * i, i, data, key_size, data, value_size, 0);
    }
    for (size_t at = 6; at + 3 <= size && at < 6 + 3 * 4; at += 3) {
        size_t where = (size_t)(data[at] << 8 | data[at + 1]) % (size_t)(p - payload);
        if (data[at + 2] & 0x80) payload[where] ^= (uint8_t)(1 << (data[at + 2] & 7));
    }
    kc_batch batch = {0};
    batch.magic = 2;
    batch.count = count;
    batch.base_timestamp = base;
    batch.last_offset = count - 1;
    if (data[6] & 1 && p - payload > data[7]) p -= data[7]; /* cut short */
    const size_t length = (size_t)(p - payload);
    uint8_t *exact = malloc(length); /* a sanitizer sees what reads after it */
    memcpy(exact, payload, length);
    kc_record_rules lax = {INT64_MIN, INT64_MAX, 0}, strict = {base + step, base + 100 * step, 1};
    validate(&batch, exact, (int64_t)length, &lax);
    validate(&batch, exact, (int64_t)length, &strict);
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err;
    validate_alike(data, size);
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic < 2) return 0;
    kc_record_rules lax = {INT64_MIN, INT64_MAX, 0};
    kc_record_rules strict = {batch.base_timestamp, batch.base_timestamp, 1};
    const uint8_t *payload = data + KC_BATCH_HEADER_SIZE;
    validate(&batch, payload, batch.size - KC_BATCH_HEADER_SIZE, &lax);
    validate(&batch, payload, batch.size - KC_BATCH_HEADER_SIZE, &strict);
    return 0;
}
