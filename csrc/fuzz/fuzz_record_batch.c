/* seeds: *.log
 * The header walk: whatever the bytes are, its rows lie one after the other inside them. */
#include "fuzz.h"
#include "record_batch.h"

enum { CAPACITY = 64 };

static void walk(const uint8_t *data, int64_t size, int flags) {
    kc_batch rows[CAPACITY];
    kc_error err;
    int64_t position = 0;
    for (;;) {
        int64_t start = position;
        int64_t count = kc_batch_walk(data, size, &position, flags, rows, CAPACITY, &err);
        REQUIRE(count >= 0 && count <= CAPACITY);
        for (int64_t i = 0; i < count; i++) {
            const kc_batch *row = rows + i;
            REQUIRE(row->position == start && row->size >= KC_MIN_BATCH_SIZE && row->size <= size - start);
            REQUIRE(row->base_offset >= 0 && row->last_offset >= row->base_offset);
            REQUIRE(row->magic >= 0 && row->magic <= 2);
            if (row->magic < 2)
                REQUIRE(row->count == (row->attributes & KC_ATTR_CODEC_MASK ? KC_COUNT_UNKNOWN : 1));
            else
                REQUIRE(row->count >= 0 && row->count <= row->last_offset - row->base_offset + 1);
            start += row->size;
        }
        REQUIRE(position == start);
        if (err.status != KC_OK) {
            REQUIRE(err.position == position && err.what);
            break;
        }
        if (position == size) break;
        REQUIRE(count == CAPACITY);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    walk(data, (int64_t)size, 0);
    walk(data, (int64_t)size, KC_WALK_CHECK_CRC);
    kc_batch batch;
    kc_error err;
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic < 2) return 0;
    uint8_t *copy = malloc(size);
    memcpy(copy, data, size);
    kc_batch_assign(copy, &batch, 1000, 5);
    kc_batch_set_log_append_time(copy, &batch, 77);
    kc_batch again;
    int64_t position = 0;
    int64_t count = kc_batch_walk(copy, (int64_t)size, &position, KC_WALK_CHECK_CRC, &again, 1, &err);
    REQUIRE(count == 1 && memcmp(&again, &batch, sizeof batch) == 0);
    free(copy);
    return 0;
}
