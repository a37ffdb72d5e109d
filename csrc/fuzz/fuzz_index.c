/* seeds: *.index
 * Index searches: whatever the bytes are, every slot they name is inside them; and where the entries ascend,
 * the answers are those of a plain walk. */
#include "fuzz.h"
#include "offset_index.h"
#include "time_index.h"

static void search_offsets(const uint8_t *entries, int64_t count, int64_t target) {
    int64_t floor = kc_offset_index_floor(entries, count, target);
    int64_t ceiling = kc_offset_index_ceiling_position(entries, count, target);
    REQUIRE(floor >= -1 && floor < count);
    REQUIRE(ceiling >= -1 && ceiling < count);
    int64_t expected_floor = -1, expected_ceiling = -1;
    for (int64_t i = 0; i < count; i++) {
        if (i && (kc_offset_index_relative_offset(entries, i) <= kc_offset_index_relative_offset(entries, i - 1) ||
                  kc_offset_index_position(entries, i) <= kc_offset_index_position(entries, i - 1)))
            return;
        if (kc_offset_index_relative_offset(entries, i) <= target) expected_floor = i;
        if (expected_ceiling < 0 && kc_offset_index_position(entries, i) >= target) expected_ceiling = i;
    }
    REQUIRE(floor == expected_floor && ceiling == expected_ceiling);
}

static void search_times(const uint8_t *entries, int64_t count, int64_t target) {
    int64_t floor = kc_time_index_floor(entries, count, target);
    int64_t below = kc_time_index_count_below(entries, count, target);
    REQUIRE(floor >= -1 && floor < count);
    REQUIRE(below >= 0 && below <= count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t offsets = (int64_t)size / KC_OFFSET_INDEX_ENTRY_SIZE, times = (int64_t)size / KC_TIME_INDEX_ENTRY_SIZE;
    static const int64_t targets[] = {INT64_MIN, -1, 0, 1, 1000, INT32_MAX, INT64_MAX};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        search_offsets(data, offsets, targets[i]);
        search_times(data, times, targets[i]);
    }
    for (int64_t i = 0; i < offsets && i < 16; i++)
        search_offsets(data, offsets, kc_offset_index_relative_offset(data, i));
    for (int64_t i = 0; i < times && i < 16; i++) search_times(data, times, kc_time_index_timestamp(data, i));
    return 0;
}
