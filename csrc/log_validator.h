/* csrc/log_validator.h -- what a leader checks in each record of a producer's batch (VAL).
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_LOG_VALIDATOR_H
#define KC_LOG_VALIDATOR_H

#include <stdint.h>

#include "record_batch.h"
#include "status.h"

/* Rules that the topic sets. */
typedef struct kc_record_rules {
    int64_t min_timestamp; /* allowed range of a record's timestamp, ends included; */
    int64_t max_timestamp; /* -1, no timestamp, is always allowed */
    int need_key;          /* a compacted topic */
} kc_record_rules;

typedef enum kc_fault_reason {
    KC_FAULT_NO_KEY,
    KC_FAULT_TIMESTAMP_TOO_EARLY,
    KC_FAULT_TIMESTAMP_TOO_LATE,
    KC_FAULT_LOG_APPEND_TIME, /* only a broker may set this timestamp type */
} kc_fault_reason;

typedef struct kc_record_fault {
    int32_t index; /* of the record in its batch */
    int32_t reason;
    int64_t timestamp;
} kc_record_fault;

typedef struct kc_validation {
    int64_t max_timestamp;          /* -1: no record has one */
    int64_t max_timestamp_delta;    /* offset delta of the first record with it; of the last record if none has */
    int64_t fault_count;            /* how many there are, also beyond the capacity of `faults` */
    int32_t has_timestamp_fault;
} kc_validation;

/* Check all records of one batch, whose decompressed records are payload[0..size), against its header and the
 * rules.  Bytes that are not exactly the batch's records give KC_INVALID_RECORD: the CRC was right, so whoever
 * made the batch made it so.  Broken rules are collected in faults[0..capacity); then KC_INVALID_TIMESTAMP if
 * any of them is about a timestamp, else KC_INVALID_RECORD (VAL-19), err left alone. */
kc_status kc_validate_records(const kc_batch *batch, const uint8_t *payload, int64_t size,
                              const kc_record_rules *rules, kc_record_fault *faults, int64_t capacity,
                              kc_validation *result, kc_error *err);

#endif
