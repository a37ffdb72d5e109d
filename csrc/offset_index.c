#include "offset_index.h"

int64_t kc_offset_index_floor(const uint8_t *entries, int64_t count, int64_t target) {
    int64_t lo = -1, hi = count; /* invariant: key(lo) <= target < key(hi) */
    int64_t first_warm = count - 1 - KC_WARM_BYTES / KC_OFFSET_INDEX_ENTRY_SIZE;
    if (first_warm > 0) {
        if (kc_offset_index_relative_offset(entries, first_warm) <= target)
            lo = first_warm;
        else
            hi = first_warm;
    }
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (kc_offset_index_relative_offset(entries, mid) <= target)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

int64_t kc_offset_index_ceiling_position(const uint8_t *entries, int64_t count, int64_t target) {
    int64_t lo = -1, hi = count; /* invariant: position(lo) < target <= position(hi) */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if (kc_offset_index_position(entries, mid) < target)
            lo = mid;
        else
            hi = mid;
    }
    return hi < count ? hi : -1;
}
