/* seeds: *.log
 * Messages of magic 0 and 1 become records of magic 2 that parse, in order, with the same keys and values; records
 * that are numbered anew parse too. */
#include "fuzz.h"
#include "legacy_record.h"
#include "log_validator.h"
#include "record.h"

enum { CAPACITY = 4 };

static void check_converted(const kc_messages *messages, const uint8_t *out, const kc_conversion *conversion) {
    kc_error err;
    REQUIRE(conversion->size <= messages->size);
    REQUIRE(!kc_records_check(out, conversion->size, conversion->count, conversion->count - 1,
                              conversion->base_timestamp, &err));
    int64_t from = 0, to = 0;
    for (int32_t i = 0; i < conversion->count; i++) {
        kc_legacy_message message;
        kc_record record;
        REQUIRE(!kc_legacy_parse(messages->payload, messages->size, from, &message, &err));
        REQUIRE(!kc_record_parse(out, conversion->size, to, &record, &err));
        REQUIRE(conversion->base_timestamp + record.timestamp_delta == message.timestamp && record.offset_delta == i);
        REQUIRE(record.key_size == message.key_size && record.value_size == message.value_size);
        if (record.key_size > 0) REQUIRE(memcmp(record.key, message.key, (size_t)record.key_size) == 0);
        if (record.value_size > 0) REQUIRE(memcmp(record.value, message.value, (size_t)record.value_size) == 0);
        from += message.size;
        to += record.size;
    }
    REQUIRE(from == messages->size && to == conversion->size);
}

static void convert(const uint8_t *data, int64_t size, int8_t magic, uint8_t is_inner) {
    kc_messages messages = {data, size, 0, magic, is_inner, 0};
    kc_record_rules rules = {0, INT64_MAX - 1, 0};
    kc_record_fault faults[CAPACITY];
    kc_conversion conversion = {{0, 0, 0, 0}, 0, 0, 0, 0};
    kc_error err = {0};
    uint8_t *out = malloc((size_t)size + 1);
    REQUIRE(out);
    kc_status status = kc_validate_messages(&messages, &rules, faults, CAPACITY, out, &conversion, &err);
    if (status == KC_OK) check_converted(&messages, out, &conversion);
    if (conversion.validation.fault_count) REQUIRE(status == KC_INVALID_RECORD || status == KC_INVALID_TIMESTAMP);
    free(out);
}

static void renumber(const uint8_t *payload, int64_t size, int32_t count) {
    kc_error err;
    int64_t room = size + 8 * (count < size ? count : size);
    uint8_t *out = malloc((size_t)room + 1);
    REQUIRE(out);
    int64_t written = kc_renumber_records(payload, size, count, out, &err);
    REQUIRE(written <= room);
    if (written >= 0 && count > 0) {
        kc_status status = kc_records_check(out, written, count, count - 1, 0, &err);
        REQUIRE(status == KC_OK);
    }
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err;
    int64_t whole = 0, end = (int64_t)size;
    /* The messages at the start, as a producer's set and as what was in a wrapper. */
    while (!kc_batch_parse(data, end, whole, &batch, &err) && batch.magic < 2) whole += batch.size;
    if (whole) {
        convert(data, whole, (int8_t)data[KC_MAGIC_OFFSET], 0);
        convert(data, whole, (int8_t)data[KC_MAGIC_OFFSET], 1);
    }
    convert(data, end, 1, 1);
    if (!kc_batch_parse(data, end, 0, &batch, &err) && batch.magic == 2)
        renumber(data + KC_BATCH_HEADER_SIZE, batch.size - KC_BATCH_HEADER_SIZE, batch.count);
    return 0;
}
