/* seeds: *.log
 * Searches and the recovery scan: nothing is read outside the log, the place returned is inside it, and the
 * indexes that a scan builds point at batches of the valid part, ascending.  Windows of a few bytes give the answers that
 * the whole gives.  An append of the rows that a scan found makes the entries that the scan made. */
#include "fuzz.h"
#include "log_segment.h"
#include "offset_index.h"
#include "time_index.h"

enum { SLOTS = 64, ROWS = 16 };

static kc_log_bytes whole(const uint8_t *log, int64_t size) { return (kc_log_bytes){log, 0, size, size}; }

/* A part, in memory of its own so that the sanitizer sees who leaves it. */
static kc_log_bytes window(const uint8_t *log, int64_t size, int64_t position, int64_t room) {
    int64_t first = position < size ? position : size;
    int64_t held = room < size - first ? room : size - first;
    uint8_t *copy = malloc(held ? (size_t)held : 1);
    REQUIRE(copy);
    if (held) memcpy(copy, log + first, (size_t)held);
    return (kc_log_bytes){copy, first, held, size};
}

static int search_by_windows(const uint8_t *log, int64_t size, int64_t position, int64_t target, int by_timestamp,
                             kc_batch_place *place, kc_error *err) {
    for (;;) {
        kc_log_bytes part = window(log, size, position, 100);
        int64_t before = position;
        int status = by_timestamp ? kc_segment_search_for_timestamp(&part, &position, target, 0, place, err)
                                  : kc_segment_search_for(&part, &position, target, place, err);
        free((void *)(uintptr_t)part.bytes);
        if (status != KC_SEGMENT_MORE) return status;
        REQUIRE(position > before);
    }
}

static void search(const uint8_t *log, int64_t size, int64_t position, int64_t target) {
    kc_log_bytes all = whole(log, size);
    kc_batch_place place, again;
    kc_error err;
    int64_t from = position;
    int status = kc_segment_search_for(&all, &from, target, &place, &err);
    REQUIRE(status <= 1);
    if (status == 1) {
        REQUIRE(place.position == from && from >= position && place.last_offset >= target);
        REQUIRE(place.size >= KC_MIN_BATCH_SIZE && place.size <= size - place.position);
    }
    REQUIRE(search_by_windows(log, size, position, target, 0, &again, &err) == status);
    if (status == 1) REQUIRE(again.position == place.position && again.last_offset == place.last_offset);
    from = position;
    status = kc_segment_search_for_timestamp(&all, &from, target, 0, &place, &err);
    REQUIRE(status <= 1);
    if (status == 1) REQUIRE(place.size <= size - place.position);
    REQUIRE(search_by_windows(log, size, position, target, 1, &again, &err) == status);
    if (status == 1) REQUIRE(again.position == place.position);
    int64_t max_timestamp = -1, last_offset = -1, end_offset = -1;
    int64_t end = position;
    REQUIRE(kc_segment_walk_to_end(&all, &end, &max_timestamp, &last_offset, &end_offset, &err) <= 0);
    REQUIRE(end >= position && (end == position || end <= size));
    int64_t tail_end, tail_timestamp = -1, tail_last = -1, tail_offset = -1;
    if (position >= 0 && position < size &&
        kc_segment_walk_tail(log + position, size - position, target, &tail_end, &tail_timestamp, &tail_last,
                             &tail_offset))
        REQUIRE(tail_end == end - position && tail_timestamp == max_timestamp && tail_last == last_offset &&
                tail_offset == end_offset);
    int64_t start = kc_segment_entry_start(&all, position, target);
    REQUIRE(start == 0 || start == position);
}

static int64_t scan_by_windows(const uint8_t *log, int64_t size, int flags) {
    kc_segment_scan scan = {.flags = flags, .last_offset = -1, .leader_epoch = -2};
    kc_error err = {KC_OK, NULL, 0, 0, 0};
    do {
        kc_log_bytes part = window(log, size, scan.position, scan.need > 80 ? scan.need : 80);
        int64_t position = scan.position, need = scan.need;
        kc_segment_scan_step(&scan, &part, size, NULL, 0, &err);
        REQUIRE(!scan.need || scan.position > position || scan.need > need);
        free((void *)(uintptr_t)part.bytes);
    } while (scan.need);
    return scan.position;
}

static int64_t scan_all(const uint8_t *log, int64_t size, int flags, int64_t step) {
    uint8_t offsets[SLOTS * KC_OFFSET_INDEX_ENTRY_SIZE], times[SLOTS * KC_TIME_INDEX_ENTRY_SIZE];
    kc_indexer indexer = {.max_timestamp = -1, .interval_bytes = 100, .offset_slots = offsets,
                          .offset_capacity = SLOTS, .time_slots = times, .time_capacity = SLOTS - 1};
    uint8_t appended_offsets[sizeof offsets], appended_times[sizeof times];
    kc_indexer appended = indexer;
    appended.offset_slots = appended_offsets;
    appended.time_slots = appended_times;
    kc_segment_scan scan = {.flags = flags, .last_offset = -1, .leader_epoch = -2, .indexer = &indexer};
    kc_batch rows[ROWS];
    kc_error err = {KC_OK, NULL, 0, 0, 0};
    while (scan.position < size && err.status == KC_OK) {
        int64_t before = scan.position, stop = size - before < step ? size : before + step;
        kc_log_bytes all = whole(log, size);
        int64_t count = kc_segment_scan_step(&scan, &all, stop, rows, ROWS, &err);
        REQUIRE(!scan.need);
        REQUIRE(count >= 0 && count <= ROWS && scan.position <= size);
        REQUIRE(scan.position > before || err.status != KC_OK);
        for (int64_t i = 0; i < count; i++) REQUIRE(rows[i].position >= before && rows[i].position < scan.position);
        kc_indexer_add_batches(&appended, rows, count, before);
    }
    if (!(flags & KC_SCAN_NOTEWORTHY)) {
        REQUIRE(appended.offset_count == indexer.offset_count && appended.time_count == indexer.time_count);
        REQUIRE(!memcmp(offsets, appended_offsets, (size_t)indexer.offset_count * KC_OFFSET_INDEX_ENTRY_SIZE));
        REQUIRE(!memcmp(times, appended_times, (size_t)indexer.time_count * KC_TIME_INDEX_ENTRY_SIZE));
        REQUIRE(appended.bytes_since_last_entry == indexer.bytes_since_last_entry);
    }
    kc_indexer_add_final_time(&indexer, SLOTS);
    REQUIRE(indexer.offset_count <= SLOTS && indexer.time_count <= SLOTS);
    for (int64_t i = 0; i < indexer.offset_count; i++) {
        kc_batch_place place;
        int32_t offset = kc_offset_index_relative_offset(offsets, i), position = kc_offset_index_position(offsets, i);
        REQUIRE(i == 0 || offset > kc_offset_index_relative_offset(offsets, i - 1));
        kc_log_bytes valid = whole(log, scan.position);
        int64_t from = position;
        REQUIRE(kc_segment_search_for(&valid, &from, offset, &place, &err) == 1);
        REQUIRE(place.position == position && place.last_offset == offset);
        from = 0;
        REQUIRE(kc_segment_search_for(&valid, &from, offset, &place, &err) == 1 && place.position == position);
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
    REQUIRE(valid == scan_by_windows(data, end, KC_SCAN_CHECK_CRC));
    REQUIRE(scan_all(data, end, 0, 1000) == scan_by_windows(data, end, 0));
    return 0;
}
