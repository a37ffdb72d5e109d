/* seeds: *.log
 * Records of one uncompressed batch as columns: every extent is inside the bytes, and the batch written from the
 * columns gives the same columns. */
#include "fuzz.h"
#include "record.h"
#include "record_columns.h"

enum { ROOM = 8192 };

typedef struct arrays {
    int64_t offset[ROOM], timestamp[ROOM], position[3][ROOM];
    int32_t size[3][ROOM], header_count[ROOM];
} arrays;

static arrays read, again;

static kc_columns columns_over(arrays *a, const uint8_t *data, int64_t size) {
    kc_columns c = {0, ROOM, a->offset, a->timestamp, {data, size, a->position[0], a->size[0]},
                    {data, size, a->position[1], a->size[1]}, {data, size, a->position[2], a->size[2]},
                    a->header_count};
    return c;
}

static void touch_extents(const kc_extents *extents, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(extents->size[i] >= -1);
        if (extents->size[i] < 0) continue;
        REQUIRE(extents->position[i] >= 0 && extents->position[i] <= extents->data_size - extents->size[i]);
        touch(extents->data + extents->position[i], extents->size[i]);
    }
}

static void gather(const kc_extents *extents, int64_t count) {
    int64_t nulls, bytes = kc_extents_bytes(extents->size, count, &nulls);
    int32_t *offsets = malloc(((size_t)count + 1) * sizeof *offsets);
    uint8_t *to = malloc((size_t)bytes + KC_COPY_SLACK), *valid = calloc(1, (size_t)count / 8 + 1);
    kc_gather(extents, count, offsets, to, valid);
    REQUIRE(offsets[count] == bytes);
    for (int64_t i = 0; i < count; i++) {
        REQUIRE((valid[i >> 3] >> (i & 7) & 1) == (extents->size[i] >= 0));
        if (extents->size[i] > 0)
            REQUIRE(!memcmp(to + offsets[i], extents->data + extents->position[i], (size_t)extents->size[i]));
    }
    free(offsets);
    free(to);
    free(valid);
}

static void expand_headers(const kc_columns *columns) {
    int64_t total = 0;
    kc_error err;
    for (int64_t i = 0; i < columns->count; i++) total += columns->header_count[i];
    kc_extents parts[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = columns->headers;
        parts[i].position = malloc((size_t)total * sizeof(int64_t) + 1);
        parts[i].size = malloc((size_t)total * sizeof(int32_t) + 1);
    }
    REQUIRE(!kc_headers_expand(&columns->headers, columns->header_count, columns->count, &parts[0], &parts[1], &err));
    for (int i = 0; i < 2; i++) {
        touch_extents(&parts[i], total);
        free(parts[i].position);
        free(parts[i].size);
    }
}

/* What was read as it stands is written to a batch and read again. */
static void round_trip(const kc_columns *columns) {
    static const kc_batch_limits limits = {INT32_MAX, INT32_MAX};
    static const kc_selection all = {0, INT64_MAX, INT64_MIN, INT64_MAX, 1, NULL, 0};
    kc_batch batch = {0};
    kc_error err;
    batch.magic = 2;
    if (columns->count == 0 || kc_batch_plan(columns, 0, 0, &limits, &batch, &err)) return; /* a timestamp below -1 */
    REQUIRE(batch.count == columns->count);
    int64_t size = batch.size - KC_BATCH_HEADER_SIZE;
    uint8_t *payload = malloc((size_t)size + KC_COPY_SLACK);
    kc_batch_write_records(columns, 0, &batch, payload);
    kc_columns read_back = columns_over(&again, payload, size);
    REQUIRE(!kc_columns_add(&read_back, &batch, payload, 0, size, &all, &err));
    REQUIRE(read_back.count == columns->count);
    for (int64_t i = 0; i < read_back.count; i++) {
        REQUIRE(read_back.offset[i] == columns->offset[i] && read_back.timestamp[i] == columns->timestamp[i]);
        REQUIRE(read_back.header_count[i] == columns->header_count[i]);
    }
    for (int part = 0; part < 3; part++)
        for (int64_t i = 0; i < read_back.count; i++) {
            REQUIRE(again.size[part][i] == read.size[part][i]);
            if (again.size[part][i] > 0)
                REQUIRE(!memcmp(payload + again.position[part][i], columns->key.data + read.position[part][i],
                                (size_t)again.size[part][i]));
        }
    free(payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kc_batch batch;
    kc_error err;
    if (kc_batch_parse(data, (int64_t)size, 0, &batch, &err) || batch.magic != 2) return 0;
    int64_t payload = batch.size - KC_BATCH_HEADER_SIZE;
    if (kc_batch_check_count(&batch, payload, &err)) {
        REQUIRE(err.status == KC_CORRUPT);
        return 0;
    }
    if (batch.count > ROOM) return 0;
    kc_aborted aborted = {batch.producer_id, batch.base_offset, batch.last_offset};
    kc_selection selection = {0, INT64_MAX, INT64_MIN, INT64_MAX, 0, &aborted, 1};
    REQUIRE(!kc_batch_selected(&batch, &selection) ||
            !(batch.attributes & (KC_ATTR_TRANSACTIONAL | KC_ATTR_CONTROL)));
    kc_columns columns = columns_over(&read, data, (int64_t)size);
    if (kc_columns_add(&columns, &batch, data, KC_BATCH_HEADER_SIZE, payload, &selection, &err)) {
        REQUIRE(err.status == KC_CORRUPT && columns.count == 0);
        return 0;
    }
    REQUIRE(columns.count == batch.count);
    const kc_extents *parts[] = {&columns.key, &columns.value, &columns.headers};
    for (int i = 0; i < 3; i++) {
        touch_extents(parts[i], columns.count);
        gather(parts[i], columns.count);
    }
    expand_headers(&columns);
    round_trip(&columns);
    /* Cut in the middle. */
    if (columns.count > 1) {
        int64_t middle = columns.offset[columns.count / 2], count = columns.count;
        kc_columns cut = columns_over(&again, data, (int64_t)size);
        selection.end = middle;
        REQUIRE(!kc_columns_add(&cut, &batch, data, KC_BATCH_HEADER_SIZE, payload, &selection, &err));
        selection.start = middle;
        selection.end = INT64_MAX;
        REQUIRE(!kc_columns_add(&cut, &batch, data, KC_BATCH_HEADER_SIZE, payload, &selection, &err));
        REQUIRE(cut.count == count && cut.offset[count / 2] == middle);
    }
    return 0;
}
