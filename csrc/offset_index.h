/* csrc/offset_index.h -- an .index file: 8-byte big-endian entries {int32 relative_offset,
 * int32 position}, strictly ascending by offset, possibly sparse.  An offset is relative to the
 * segment's base offset, a position counts bytes from the start of the .log.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_OFFSET_INDEX_H
#define KC_OFFSET_INDEX_H

#include <stdint.h>

#include "bytes.h"

enum {
    KC_OFFSET_INDEX_ENTRY_SIZE = 8,
    /* A lookup looks in the last 8192 bytes first: at most two or three pages, which every lookup near the
     * log's end touches and so keeps in the page cache, where a plain binary search over the whole file
     * drifts over to new, cold pages each time the index grows past a power of two. */
    KC_WARM_BYTES = 8192,
};

static inline int32_t kc_offset_index_relative_offset(const uint8_t *entries, int64_t slot) {
    return kc_load_i32(entries + slot * KC_OFFSET_INDEX_ENTRY_SIZE);
}

static inline int32_t kc_offset_index_position(const uint8_t *entries, int64_t slot) {
    return kc_load_i32(entries + slot * KC_OFFSET_INDEX_ENTRY_SIZE + 4);
}

static inline void kc_offset_index_put(uint8_t *entries, int64_t slot, int32_t relative_offset, int32_t position) {
    kc_store_i32(entries + slot * KC_OFFSET_INDEX_ENTRY_SIZE, relative_offset);
    kc_store_i32(entries + slot * KC_OFFSET_INDEX_ENTRY_SIZE + 4, position);
}

/* Slot of the last entry with relative_offset <= target; -1 if there is none. */
int64_t kc_offset_index_floor(const uint8_t *entries, int64_t count, int64_t target);

/* Slot of the first entry with position >= target; -1 if there is none. */
int64_t kc_offset_index_ceiling_position(const uint8_t *entries, int64_t count, int64_t target);

#endif
