/* seeds: *.log
 * The cleaner's pass: bytes that are no records are refused by both steps, and what a cleaning leaves is a sound batch,
 * which the same cleaning leaves alone. */
#include "batch_filter.h"
#include "fuzz.h"
#include "record.h"

enum { SLOTS = 4096, SPANS = 4096, ROWS = 64 };

static kc_offset_entry entries[SLOTS];
static kc_span spans[SPANS];

static kc_status records_of(const uint8_t *bytes, const kc_batch *batch) {
    kc_error err;
    return kc_records_check(bytes + KC_BATCH_HEADER_SIZE, batch->size - KC_BATCH_HEADER_SIZE, batch->count,
                            batch->last_offset - batch->base_offset, batch->base_timestamp, &err);
}

static void filter_twice(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *bytes, int flags) {
    int64_t room = batch->size + (int64_t)batch->count * KC_SPAN_GROWTH, written, again;
    uint8_t *out = malloc((size_t)room), *second;
    kc_error err = {0};
    kc_status status = kc_filter_batch(filter, batch, bytes, flags, spans, out, &written, &err);
    REQUIRE((status == KC_OK) == (batch->count == 0 || records_of(bytes, batch) == KC_OK));
    REQUIRE(written >= 0 && written <= room);
    if (status == KC_OK && written > 0) {
        kc_batch left;
        REQUIRE(kc_batch_parse(out, written, 0, &left, &err) == KC_OK);
        REQUIRE(left.size == written && left.base_offset == batch->base_offset);
        REQUIRE(left.last_offset == batch->last_offset && left.count <= batch->count);
        if (written != batch->size || memcmp(out, bytes, (size_t)written)) {
            REQUIRE(kc_batch_check_crc(out, &left, &err) == KC_OK);
            REQUIRE(records_of(out, &left) == KC_OK);
        }
        second = malloc((size_t)(left.size + (int64_t)left.count * KC_SPAN_GROWTH));
        REQUIRE(kc_filter_batch(filter, &left, out, flags, spans, second, &again, &err) == KC_OK);
        REQUIRE(left.count == 0 || (again == written && memcmp(second, out, (size_t)written) == 0));
        free(second);
    }
    free(out);
}

/* All batches of the input at once, into an output that has room for half of their bytes. */
static void filter_into_little_room(kc_batch_filter *filter, const uint8_t *data, int64_t size) {
    kc_batch rows[ROWS];
    kc_error err = {0};
    int64_t position = 0, count = kc_batch_walk(data, size, &position, 0, rows, ROWS, &err);
    kc_filter_run run = {.buf = data, .spans = spans, .span_capacity = SPANS, .out_capacity = position / 2};
    run.out = malloc((size_t)run.out_capacity);
    for (int64_t done = 0; done < count; done++) {
        done = kc_filter_batches(filter, &run, rows, done, count, &err);
        REQUIRE(done <= count && run.out_size >= 0 && run.out_size <= run.out_capacity);
        if (err.status != KC_OK) break;
    }
    free(run.out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err = {0};
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic < 2 || batch.count > SPANS) return 0;
    if (batch.attributes & KC_ATTR_CODEC_MASK) return 0;
    memset(entries, 0, sizeof entries);
    kc_offset_map map = {entries, SLOTS, SLOTS / 2, INT64_MAX, 0, -1, {size, batch.crc}};
    int64_t records = 0;
    int full = 0;
    kc_status status = kc_offset_map_add_records(&map, &batch, data + KC_BATCH_HEADER_SIZE,
                                                 batch.size - KC_BATCH_HEADER_SIZE, batch.base_offset, &records, &full,
                                                 &err);
    REQUIRE(full || (status == KC_OK) == (batch.count == 0 || records_of(data, &batch) == KC_OK));
    REQUIRE(map.size <= map.limit);
    map.latest_offset = batch.last_offset;
    /* now_ms is before any horizon that is set here, so that the second pass keeps what the first did. */
    kc_batch_filter filter = {&map, batch.max_timestamp < 0 ? 0 : batch.max_timestamp / 2, 1 << 20, 0, 0, 0};
    filter_twice(&filter, &batch, data, 0);
    filter_twice(&filter, &batch, data, KC_FILTER_RETAIN_EMPTY);
    filter_twice(&filter, &batch, data, KC_FILTER_DISCARD_RECORDS | KC_FILTER_RETAIN_EMPTY);
    filter_twice(&filter, &batch, data, KC_FILTER_START_HORIZON);
    map.latest_offset = -1; /* so that every record stays */
    filter_into_little_room(&filter, data, (int64_t)size);
    return 0;
}
