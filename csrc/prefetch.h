/* csrc/prefetch.h -- ask for the headers of batches before the walk gets to them.
 * Where a batch is is known only from the one before, so each header would be a cache miss waited for.
 * But batches of one producer are of much the same size: guess.  A wrong guess costs some bandwidth. */
#ifndef KC_PREFETCH_H
#define KC_PREFETCH_H

#include <stdint.h>

#include "record_batch.h"

/* always_inline: else gcc takes a function that only prefetches for one without effect, and drops the call. */
#define KC_PREFETCHER static inline __attribute__((always_inline)) void

/* The header at p + distance, if it is within the `available` bytes from p. */
KC_PREFETCHER kc_prefetch_header(const uint8_t *p, int64_t available, int64_t distance) {
    if (distance > available - KC_BATCH_HEADER_SIZE) return;
    __builtin_prefetch(p + distance);
    __builtin_prefetch(p + distance + KC_BATCH_HEADER_SIZE - 1); /* most headers are in two cache lines */
}

/* For a walk over many batches: 16 ahead is right for equal sizes (33 -> 105 M batches/s) and warms the TLB for
 * others, 4 ahead is still right when sizes differ by a few percent (24 -> 50 M/s). */
KC_PREFETCHER kc_prefetch_headers(const uint8_t *p, int64_t available, int64_t size) {
    kc_prefetch_header(p, available, 16 * size);
    kc_prefetch_header(p, available, 4 * size);
}

#endif
