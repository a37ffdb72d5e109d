/* seeds: *.log
 * Searches and the recovery scan: nothing is read outside the log, the place found is inside it, and the
 * indexes that a scan builds point at batches of the valid part, ascending. */
#include "fuzz.h"
#include "log_segment.h"
#include "offset_index.h"
#include "time_index.h"

enum { SLOTS = 64, ROWS = 16 };

static void search(const uint8_t *log, int64_t size, int64_t position, int64_t target) {
    kc_batch_place found;
    kc_error err;
    int status = kc_segment_search_for(log, size, position, target, &found, &err);
    REQUIRE(status <= 1);
    if (status == 1) {
        REQUIRE(found.position >= position && found.last_offset >= target);
        REQUIRE(found.size >= KC_MIN_BATCH_SIZE && found.size <= size - found.position);
    }
    status = kc_segment_search_for_timestamp(log, size, position, target, 0, &found, &err);
    if (status == 1) REQUIRE(found.size <= size - found.position);
    int64_t max_timestamp = -1, last_offset = -1, end_offset = -1;
    int64_t end = position;
    kc_segment_walk_to_end(log, size, &end, &max_timestamp, &last_offset, &end_offset, &err);
    REQUIRE(end >= position && (end == position || end <= size));
    int64_t tail_end, tail_timestamp = -1, tail_last = -1, tail_offset = -1;
    if (position >= 0 && position < size &&
        kc_segment_walk_tail(log + position, size - position, target, &tail_end, &tail_timestamp, &tail_last,
                             &tail_offset))
        REQUIRE(tail_end == end - position && tail_timestamp == max_timestamp && tail_last == last_offset &&
                tail_offset == end_offset);
    int64_t start = kc_segment_entry_start(log, size, position, target);
    REQUIRE(start == 0 || start == position);
}

static int64_t scan_all(const uint8_t *log, int64_t size, int flags, int64_t step) {
    uint8_t offsets[SLOTS * KC_OFFSET_INDEX_ENTRY_SIZE], times[SLOTS * KC_TIME_INDEX_ENTRY_SIZE];
    kc_indexer indexer = {.max_timestamp = -1, .interval_bytes = 100, .offset_slots = offsets,
                          .offset_capacity = SLOTS, .time_slots = times, .time_capacity = SLOTS - 1};
    kc_segment_scan scan = {.flags = flags, .last_offset = -1, .leader_epoch = -2, .indexer = &indexer};
    kc_batch rows[ROWS];
    kc_error err = {KC_OK, NULL, 0, 0, 0};
    while (scan.position < size && err.status == KC_OK) {
        int64_t before = scan.position, stop = size - before < step ? size : before + step;
        int64_t count = kc_segment_scan_step(&scan, log, size, stop, rows, ROWS, &err);
        REQUIRE(count >= 0 && count <= ROWS && scan.position <= size);
        REQUIRE(scan.position > before || err.status != KC_OK);
        for (int64_t i = 0; i < count; i++) REQUIRE(rows[i].position >= before && rows[i].position < scan.position);
    }
    kc_indexer_add_final_time(&indexer, SLOTS);
    REQUIRE(indexer.offset_count <= SLOTS && indexer.time_count <= SLOTS);
    for (int64_t i = 0; i < indexer.offset_count; i++) {
        kc_batch_place found;
        int32_t offset = kc_offset_index_relative_offset(offsets, i), position = kc_offset_index_position(offsets, i);
        REQUIRE(i == 0 || offset > kc_offset_index_relative_offset(offsets, i - 1));
        REQUIRE(kc_segment_search_for(log, scan.position, position, offset, &found, &err) == 1);
        REQUIRE(found.position == position && found.last_offset == offset);
        REQUIRE(kc_segment_search_for(log, scan.position, 0, offset, &found, &err) == 1 && found.position == position);
    }
    return scan.position;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int64_t end = (int64_t)size;
    static const int64_t targets[] = {INT64_MIN, -1, 0, 5, INT32_MAX, INT64_MAX};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        search(data, end, 0, targets[i]);
        search(data, end, end / 2, targets[i]);
        search(data, end, end, targets[i]);
    }
    int64_t valid = scan_all(data, end, KC_SCAN_CHECK_CRC, INT64_MAX / 2);
    REQUIRE(valid == scan_all(data, end, KC_SCAN_CHECK_CRC | KC_SCAN_NOTEWORTHY, 100));
    REQUIRE(valid <= scan_all(data, end, 0, 1000));
    return 0;
}
