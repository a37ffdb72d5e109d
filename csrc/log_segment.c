#include "log_segment.h"

#include "bytes.h"
#include "legacy_record.h"
#include "offset_index.h"
#include "prefetch.h"
#include "time_index.h"

/* The byte at `position`, which must be there. */
static inline const uint8_t *at(const kc_log_bytes *log, int64_t position) {
    return log->bytes + (position - log->first);
}

/* How many bytes there are from `position` on; negative where it is outside. */
static inline int64_t present(const kc_log_bytes *log, int64_t position) {
    return position < log->first ? -1 : log->first + log->size - position;
}

/* Size and last offset of the batch at `position`, from four fields of its header: a search needs no
 * more.  0 where the log ends, also in mid-batch; 1 for a batch; KC_SEGMENT_MORE; a negative status otherwise. */
static inline int next_batch(const kc_log_bytes *log, int64_t position, kc_batch_place *place, kc_error *err) {
    int64_t available = log->end - position;
    if (available < KC_LOG_OVERHEAD) return 0;
    if (present(log, position) < (available < KC_BATCH_HEADER_SIZE ? available : KC_BATCH_HEADER_SIZE))
        return KC_SEGMENT_MORE;
    const uint8_t *p = at(log, position);
    if (available >= KC_BATCH_HEADER_SIZE) {
        int64_t base_offset = kc_load_i64(p);
        int32_t length = kc_load_i32(p + 8);
        int32_t last_offset_delta = kc_load_i32(p + 23);
        if (p[KC_MAGIC_OFFSET] == 2 && length >= KC_BATCH_HEADER_SIZE - KC_LOG_OVERHEAD &&
            length <= available - KC_LOG_OVERHEAD && length <= INT32_MAX - KC_LOG_OVERHEAD && base_offset >= 0 &&
            last_offset_delta >= 0 && last_offset_delta < INT64_MAX - base_offset) {
            place->position = position;
            place->last_offset = base_offset + last_offset_delta;
            place->size = KC_LOG_OVERHEAD + length;
            return 1;
        }
    }
    /* Rare: let the one parser say what is wrong.  It touches no more than a header. */
    kc_batch batch;
    kc_status status = kc_batch_parse(p, available, 0, &batch, err);
    if (status == KC_TRUNCATED) return 0;
    if (status) {
        err->position += position;
        return (int)status;
    }
    place->position = position;
    place->last_offset = batch.last_offset;
    place->size = batch.size;
    return 1;
}

/* Of the batch at p, which next_batch has returned as whole. */
static inline int64_t max_timestamp_at(const uint8_t *p) {
    if (p[KC_MAGIC_OFFSET] == 2) return kc_load_i64(p + KC_MAX_TIMESTAMP_OFFSET);
    return p[KC_MAGIC_OFFSET] ? kc_load_i64(p + KC_LEGACY_TIMESTAMP_OFFSET) : -1;
}

int64_t kc_segment_entry_start(const kc_log_bytes *log, int64_t position, int64_t offset) {
    kc_batch_place place;
    kc_error ignored;
    if (position <= 0 || position >= log->end || next_batch(log, position, &place, &ignored) != 1) return 0;
    return kc_load_i64(at(log, position)) <= offset ? position : 0;
}

int kc_segment_search_for(const kc_log_bytes *log, int64_t *position, int64_t target, kc_batch_place *place,
                          kc_error *err) {
    int status = next_batch(log, *position, place, err);
    if (status != 1 || place->last_offset >= target) return status;
    /* As many as an index interval has at 1 KiB. */
    for (int64_t i = 2; i <= 4; i++) kc_prefetch_header(at(log, *position), present(log, *position), i * place->size);
    do {
        *position += place->size;
        status = next_batch(log, *position, place, err);
    } while (status == 1 && place->last_offset < target);
    return status;
}

int kc_segment_search_for_timestamp(const kc_log_bytes *log, int64_t *position, int64_t timestamp,
                                    int64_t first_offset, kc_batch_place *place, kc_error *err) {
    for (;;) {
        int status = next_batch(log, *position, place, err);
        if (status != 1) return status;
        if (place->last_offset >= first_offset && max_timestamp_at(at(log, *position)) >= timestamp) return 1;
        *position += place->size;
    }
}

int kc_segment_walk_to_end(const kc_log_bytes *log, int64_t *position, int64_t *max_timestamp, int64_t *last_offset,
                           int64_t *end_offset, kc_error *err) {
    kc_batch_place place = {0, 0, 0};
    int status;
    while ((status = next_batch(log, *position, &place, err)) == 1) {
        int64_t timestamp = max_timestamp_at(at(log, *position));
        if (timestamp > *max_timestamp) {
            *max_timestamp = timestamp;
            *last_offset = place.last_offset;
        }
        *end_offset = place.last_offset;
        *position += place.size;
    }
    return status;
}

int kc_segment_walk_tail(const uint8_t *tail, int64_t size, int64_t indexed, int64_t *position, int64_t *max_timestamp,
                         int64_t *last_offset, int64_t *end_offset) {
    kc_log_bytes log = {tail, 0, size, size};
    kc_error ignored;
    *position = 0;
    return size >= KC_BATCH_HEADER_SIZE && kc_load_i64(tail) <= indexed &&
           kc_segment_walk_to_end(&log, position, max_timestamp, last_offset, end_offset, &ignored) == 0 &&
           *position > 0;
}

static void add_time(kc_indexer *indexer, int64_t capacity) {
    int64_t slot = indexer->time_count;
    int64_t relative = indexer->offset_of_max_timestamp - indexer->base_offset;
    int64_t last = slot ? kc_time_index_timestamp(indexer->time_slots, slot - 1) : -1;
    if (slot >= capacity || indexer->max_timestamp <= last || relative < 0 || relative > INT32_MAX) return;
    if (slot && relative < kc_time_index_relative_offset(indexer->time_slots, slot - 1)) return;
    kc_time_index_put(indexer->time_slots, slot, indexer->max_timestamp, (int32_t)relative);
    indexer->time_count++;
}

static void add_entries(kc_indexer *indexer, int64_t last_offset, int64_t position) {
    int64_t slot = indexer->offset_count;
    int64_t relative = last_offset - indexer->base_offset;
    int64_t last = slot ? kc_offset_index_relative_offset(indexer->offset_slots, slot - 1) : -1;
    if (slot < indexer->offset_capacity && relative > last && relative <= INT32_MAX && position <= INT32_MAX) {
        kc_offset_index_put(indexer->offset_slots, slot, (int32_t)relative, (int32_t)position);
        indexer->offset_count++;
    }
    add_time(indexer, indexer->time_capacity);
    indexer->bytes_since_last_entry = 0;
}

static inline void note_timestamp(kc_indexer *indexer, const kc_batch *row) {
    if (row->max_timestamp > indexer->max_timestamp) {
        indexer->max_timestamp = row->max_timestamp;
        indexer->offset_of_max_timestamp = row->last_offset;
    }
}

static inline void add_batch(kc_indexer *indexer, const kc_batch *row, int64_t position) {
    note_timestamp(indexer, row);
    if (indexer->bytes_since_last_entry > indexer->interval_bytes) add_entries(indexer, row->last_offset, position);
    indexer->bytes_since_last_entry += row->size;
}

void kc_indexer_add_batches(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position) {
    for (int64_t i = 0; i < count; i++) {
        add_batch(indexer, rows + i, position);
        position += rows[i].size;
    }
}

void kc_indexer_add_append(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position) {
    int64_t size = 0;
    for (int64_t i = 0; i < count; i++) {
        note_timestamp(indexer, rows + i);
        size += rows[i].size;
    }
    if (indexer->bytes_since_last_entry > indexer->interval_bytes)
        add_entries(indexer, rows[count - 1].last_offset, position);
    indexer->bytes_since_last_entry += size;
}

void kc_indexer_add_final_time(kc_indexer *indexer, int64_t time_capacity) { add_time(indexer, time_capacity); }

/* last_offset - base_offset could overflow for a hostile last_offset; compared this way it cannot. */
static int out_of_range(int64_t last_offset, int64_t base_offset) {
    return last_offset < base_offset || last_offset - base_offset > INT32_MAX;
}

kc_status kc_segment_check_offsets(const kc_batch *rows, int64_t count, int64_t base_offset, kc_error *err) {
    for (int64_t i = 0; i < count; i++)
        if (out_of_range(rows[i].last_offset, base_offset))
            return kc_fail(err, KC_OFFSET_OVERFLOW, "last offset of a batch (expected: the segment's base offset)",
                           rows[i].position, base_offset, rows[i].last_offset);
    return KC_OK;
}

/* Where a scan is: the bytes at p that may be touched, and how many the file has. */
typedef struct scan_place {
    const uint8_t *p;
    int64_t present, available;
} scan_place;

/* Whether the step must first be given `size` bytes from this place on, or as many of them as the file has. */
static inline int lacks(kc_segment_scan *scan, const scan_place *here, int64_t size) {
    if (here->present >= size || here->present >= here->available) return 0;
    scan->need = size < here->available ? size : here->available;
    return 1;
}

/* Whether a whole batch with the right CRC follows row.  May set scan->need. */
static int is_followed_by_a_batch(kc_segment_scan *scan, const scan_place *here, const kc_batch *row) {
    kc_batch next;
    kc_error ignored;
    return !lacks(scan, here, (int64_t)row->size + KC_BATCH_HEADER_SIZE) &&
           kc_batch_parse(here->p, here->available, row->size, &next, &ignored) == KC_OK &&
           !lacks(scan, here, (int64_t)row->size + next.size) &&
           kc_batch_check_crc(here->p, &next, &ignored) == KC_OK;
}

/* No CRC covers a base offset.  Whether row's is the wrong one where it overlaps the next batch: that one begins
 * between the batch before row and row, or just where row would end if it followed the batch before.  May set
 * scan->need. */
static inline int jumps_ahead(kc_segment_scan *scan, const scan_place *here, const kc_batch *row) {
    if (here->available - row->size < 8) return 0;
    int64_t following = kc_load_i64(here->p + row->size);
    if (following > row->last_offset) return 0;
    int64_t before = scan->last_offset < scan->base_offset ? scan->base_offset - 1 : scan->last_offset;
    if (following <= before) return 0;
    if (following >= row->base_offset && following - before != row->last_offset - row->base_offset + 2) return 0;
    return is_followed_by_a_batch(scan, here, row);
}

/* KC_OK for a valid batch, of which *row is the header, or for none if scan->need was set. */
static inline kc_status next_valid(kc_segment_scan *scan, const scan_place *here, kc_batch *row, kc_error *err) {
    if (lacks(scan, here, KC_BATCH_HEADER_SIZE)) return KC_OK;
    kc_status status = kc_batch_parse(here->p, here->available, 0, row, err);
    if (status == KC_OK) {
        if (lacks(scan, here, (int64_t)row->size + 8)) return KC_OK;
        if (scan->flags & KC_SCAN_CHECK_CRC) status = kc_batch_check_crc(here->p, row, err);
    }
    if (status) {
        err->position += scan->position;
        return status;
    }
    row->position = scan->position;
    if (row->base_offset <= scan->last_offset)
        return kc_fail(err, KC_INVALID_OFFSET, "base offset", scan->position, scan->last_offset + 1, row->base_offset);
    if (jumps_ahead(scan, here, row))
        return kc_fail(err, KC_INVALID_OFFSET, "last offset (expected: below the next batch)", scan->position,
                       kc_load_i64(here->p + row->size) - 1, row->last_offset);
    return kc_segment_check_offsets(row, 1, scan->base_offset, err);
}

int64_t kc_segment_scan_step(kc_segment_scan *scan, const kc_log_bytes *log, int64_t stop, kc_batch *rows,
                             int64_t capacity, kc_error *err) {
    kc_batch unwanted;
    int64_t count = 0;
    err->status = KC_OK;
    scan->need = 0;
    while (scan->position < stop && (!rows || count < capacity)) {
        kc_batch *row = rows ? rows + count : &unwanted;
        scan_place here = {at(log, scan->position), present(log, scan->position), log->end - scan->position};
        if (next_valid(scan, &here, row, err) || scan->need) break;
        if (!(scan->flags & KC_SCAN_CHECK_CRC)) kc_prefetch_headers(here.p, here.present, row->size);
        if (scan->indexer) add_batch(scan->indexer, row, scan->position);
        if (rows && (!(scan->flags & KC_SCAN_NOTEWORTHY) || row->leader_epoch != scan->leader_epoch ||
                     row->producer_id >= 0 || (row->attributes & KC_ATTR_CONTROL)))
            count++;
        scan->leader_epoch = row->leader_epoch;
        scan->last_offset = row->last_offset;
        scan->position += row->size;
    }
    return count;
}
