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
    KC_FAULT_MAGIC,           /* not that of the wrapper around it */
    KC_FAULT_CODEC,           /* compressed inside a wrapper */
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

/* Messages of magic 0 or 1 that a producer sent: plain ones one after the other, or those in one wrapper. */
typedef struct kc_messages {
    const uint8_t *payload;
    int64_t size;
    int64_t last_offset; /* as the wrapper says */
    int8_t magic;        /* of the wrapper, or of the first plain message */
    uint8_t is_inner;    /* they come from a wrapper, whose attributes these are: */
    uint8_t attributes;
} kc_messages;

/* What they become as one batch of magic 2. */
typedef struct kc_conversion {
    kc_validation validation;
    int64_t base_timestamp;
    int64_t size; /* of the records written */
    int32_t count;
    int32_t offsets_ascend_by_one; /* inner offsets are 0, 1, 2, ... and the wrapper's is the last of them, or 0 */
} kc_conversion;

/* Check all messages against the rules, and unless `out` is NULL write each as a record of magic 2, offset deltas
 * from 0 on: out has room for payload.size bytes, which is enough for any timestamps of -1 and above.
 * Faults as for kc_validate_records, indexes counting from the first message.  KC_CORRUPT for an inner message with a
 * wrong CRC (VAL-15; the CRCs of plain ones were checked when they were walked), KC_INVALID_RECORD for bytes that
 * are no messages or a plain message of another magic (VAL-09). */
kc_status kc_validate_messages(const kc_messages *messages, const kc_record_rules *rules, kc_record_fault *faults,
                               int64_t capacity, uint8_t *out, kc_conversion *result, kc_error *err);

/* Copy the records of a batch of magic 2, giving them the offset deltas 0, 1, 2, ... (VAL-05): out has room for
 * size + 8 * count bytes.  Returns the bytes written, or KC_INVALID_RECORD for bytes that are not exactly `count`
 * records; their offset deltas are not looked at. */
int64_t kc_renumber_records(const uint8_t *payload, int64_t size, int32_t count, uint8_t *out, kc_error *err);

#endif
