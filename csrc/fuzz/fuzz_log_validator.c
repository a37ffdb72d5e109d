/* seeds: *.log
 * Validation: what it accepts is what the checked iteration accepts, and its faults are in order. */
#include "fuzz.h"
#include "log_validator.h"
#include "record.h"

enum { CAPACITY = 4 };

static void validate(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_record_rules *rules) {
    kc_record_fault faults[CAPACITY];
    kc_validation found = {0};
    kc_error err = {0}, check_err;
    kc_status status = kc_validate_records(batch, payload, size, rules, faults, CAPACITY, &found, &err);
    kc_status check = kc_records_check(payload, size, batch->count, batch->last_offset - batch->base_offset,
                                       batch->base_timestamp, &check_err);
    if (batch->count == 0) return; /* emptied by the cleaner: nothing is looked at */
    if (check) {
        REQUIRE(status == KC_INVALID_RECORD && err.status == KC_INVALID_RECORD && found.fault_count == 0);
        return;
    }
    REQUIRE((status == KC_OK) == (found.fault_count == 0));
    REQUIRE(found.fault_count <= batch->count);
    for (int64_t i = 0; i < found.fault_count && i < CAPACITY; i++) {
        REQUIRE(faults[i].index >= 0 && faults[i].index < batch->count);
        REQUIRE(i == 0 || faults[i].index > faults[i - 1].index);
    }
    REQUIRE(found.max_timestamp >= -1);
    REQUIRE(found.max_timestamp_delta >= 0 && found.max_timestamp_delta <= batch->last_offset - batch->base_offset);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err;
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic < 2) return 0;
    kc_record_rules lax = {INT64_MIN, INT64_MAX, 0};
    kc_record_rules strict = {batch.base_timestamp, batch.base_timestamp, 1};
    const uint8_t *payload = data + KC_BATCH_HEADER_SIZE;
    validate(&batch, payload, batch.size - KC_BATCH_HEADER_SIZE, &lax);
    validate(&batch, payload, batch.size - KC_BATCH_HEADER_SIZE, &strict);
    return 0;
}
