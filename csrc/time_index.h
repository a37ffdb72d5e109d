/* csrc/time_index.h -- a .timeindex file: 12-byte big-endian entries {int64 timestamp,
 * int32 relative_offset}; timestamps strictly ascend, offsets never descend.  An entry says: no record
 * up to that offset has a greater timestamp.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_TIME_INDEX_H
#define KC_TIME_INDEX_H

#include <stdint.h>

#include "bytes.h"

enum { KC_TIME_INDEX_ENTRY_SIZE = 12 };

static inline int64_t kc_time_index_timestamp(const uint8_t *entries, int64_t slot) {
    return kc_load_i64(entries + slot * KC_TIME_INDEX_ENTRY_SIZE);
}

static inline int32_t kc_time_index_relative_offset(const uint8_t *entries, int64_t slot) {
    return kc_load_i32(entries + slot * KC_TIME_INDEX_ENTRY_SIZE + 8);
}

static inline void kc_time_index_put(uint8_t *entries, int64_t slot, int64_t timestamp, int32_t relative_offset) {
    kc_store_i64(entries + slot * KC_TIME_INDEX_ENTRY_SIZE, timestamp);
    kc_store_i32(entries + slot * KC_TIME_INDEX_ENTRY_SIZE + 8, relative_offset);
}

/* Slot of the last entry with timestamp <= target; -1 if there is none.  Warm section as in
 * offset_index.h. */
int64_t kc_time_index_floor(const uint8_t *entries, int64_t count, int64_t target);

/* How many entries have a relative offset < target: what truncation keeps. */
int64_t kc_time_index_count_below(const uint8_t *entries, int64_t count, int64_t target);

#endif
