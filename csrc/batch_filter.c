#include "batch_filter.h"

#include <string.h>

#include "record.h"

enum { GROUP = 32, EMPTY_ATTRIBUTES = KC_ATTR_LOG_APPEND_TIME | KC_ATTR_TRANSACTIONAL | KC_ATTR_CONTROL };

static int is_wanted(kc_batch_filter *filter, const kc_batch *batch, const kc_record *record, kc_key_hash hash) {
    int64_t offset = batch->base_offset + record->offset_delta;
    if (offset > filter->map->latest_offset) return 1;
    if (record->key_size < 0) {
        filter->records_without_key++;
        return 0;
    }
    const kc_offset_entry *entry = kc_offset_map_find(filter->map, hash);
    if ((entry->hash.high | entry->hash.low) && offset < entry->offset) return 0;
    return record->value_size >= 0 || !(batch->attributes & KC_ATTR_DELETE_HORIZON) ||
           filter->now_ms < batch->base_timestamp;
}

/* Whether timestamps between these two can be written as differences from the base: hostile ones cannot. */
static int can_be_base(int64_t base, int64_t first, int64_t last) {
    int64_t delta;
    return !__builtin_sub_overflow(first, base, &delta) && !__builtin_sub_overflow(last, base, &delta);
}

kc_status kc_filter_select(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *payload, int64_t size,
                           int flags, kc_span *spans, kc_filtered *result, kc_error *err) {
    kc_record_cursor cursor = kc_record_cursor_at_start(payload, size, batch->count,
                                                        batch->last_offset - batch->base_offset, batch->base_timestamp);
    int by_key = !(flags & KC_FILTER_DISCARD_RECORDS) && !(batch->attributes & KC_ATTR_CONTROL);
    int log_append_time = batch->attributes & KC_ATTR_LOG_APPEND_TIME;
    int tombstones = flags & KC_FILTER_START_HORIZON;
    int64_t first_timestamp = -1, min_timestamp = INT64_MAX, max_timestamp = -1, kept = 0, kept_size = 0;
    while (cursor.index < batch->count) {
        kc_record records[GROUP];
        kc_key_hash hashes[GROUP] = {{0, 0}};
        int64_t timestamps[GROUP];
        int32_t positions[GROUP];
        int count = 0;
        for (; count < GROUP && cursor.index < batch->count; count++) {
            positions[count] = (int32_t)cursor.position;
            kc_status status = kc_record_next(&cursor, records + count, timestamps + count, err);
            if (status) return status;
            if (!by_key || records[count].key_size < 0) continue;
            hashes[count] = kc_offset_map_hash(filter->map, records[count].key, records[count].key_size);
            __builtin_prefetch(kc_offset_map_home(filter->map, hashes[count]));
        }
        for (int i = 0; i < count; i++) {
            if (flags & KC_FILTER_DISCARD_RECORDS) continue;
            if (by_key && !is_wanted(filter, batch, records + i, hashes[i])) continue;
            int64_t timestamp = log_append_time ? batch->max_timestamp : timestamps[i];
            if (kept == 0) first_timestamp = timestamp;
            if (timestamp > max_timestamp) max_timestamp = timestamp;
            if (timestamp < min_timestamp) min_timestamp = timestamp;
            if (records[i].value_size < 0) tombstones = 1;
            spans[kept].position = positions[i];
            spans[kept].size = records[i].size;
            kept_size += records[i].size;
            kept++;
        }
    }
    filter->records_read += batch->count;
    filter->records_kept += kept;
    int64_t horizon = filter->now_ms + filter->delete_retention_ms;
    int starts_horizon = tombstones && kept && !(batch->attributes & KC_ATTR_DELETE_HORIZON) &&
                         can_be_base(horizon, min_timestamp, max_timestamp);
    result->kept = kept;
    result->payload_size = kept_size;
    result->as_it_was = kept && kept == batch->count && !starts_horizon;
    result->row = *batch;
    kc_batch *row = &result->row;
    row->count = (int32_t)kept;
    if (!kept) {
        row->attributes &= EMPTY_ATTRIBUTES;
        row->base_timestamp = -1;
        return KC_OK;
    }
    row->max_timestamp = log_append_time ? batch->max_timestamp : max_timestamp;
    if (starts_horizon) {
        row->attributes |= KC_ATTR_DELETE_HORIZON;
        row->base_timestamp = horizon;
    } else if (!(batch->attributes & KC_ATTR_DELETE_HORIZON) &&
               (log_append_time || can_be_base(first_timestamp, min_timestamp, max_timestamp))) {
        row->base_timestamp = first_timestamp;
    }
    return KC_OK;
}

/* The records as they are: only where the base timestamp stays. */
static int64_t copy_spans(const uint8_t *payload, const kc_span *spans, int64_t count, uint8_t *out) {
    uint8_t *start = out;
    for (int64_t i = 0; i < count;) {
        int32_t from = spans[i].position, to = from;
        while (i < count && spans[i].position == to) to += spans[i++].size;
        memcpy(out, payload + from, (size_t)(to - from));
        out += to - from;
    }
    return out - start;
}

/* kc_filter_select has parsed these bytes, so none of the fields runs over its record's end. */
static uint8_t *rewrite_record(const uint8_t *p, int32_t size, int64_t base_timestamp, int64_t *append_time,
                               int64_t new_base, uint8_t *out) {
    const uint8_t *end = p + size;
    int32_t length = 0;
    int64_t delta = 0;
    p = kc_read_varint(p, end, &length);
    p++; /* attributes */
    p = kc_read_varlong(p, end, &delta);
    int64_t timestamp = append_time ? *append_time : base_timestamp + delta;
    delta = timestamp - new_base;
    out = kc_write_varlong(out, 1 + kc_varlong_size(delta) + (end - p));
    *out++ = 0;
    out = kc_write_varlong(out, delta);
    memcpy(out, p, (size_t)(end - p));
    return out + (end - p);
}

int64_t kc_filter_write(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_span *spans,
                        kc_filtered *result, uint8_t *out) {
    int64_t append_time = batch->max_timestamp;
    int log_append_time = batch->attributes & KC_ATTR_LOG_APPEND_TIME;
    kc_batch *row = &result->row;
    if (row->base_timestamp == batch->base_timestamp)
        return copy_spans(payload, spans, result->kept, out);
    uint8_t *p = out;
    for (int64_t i = 0; i < result->kept; i++)
        p = rewrite_record(payload + spans[i].position, spans[i].size, batch->base_timestamp,
                           log_append_time ? &append_time : NULL, row->base_timestamp, p);
    if (p - out > size && !(row->attributes & KC_ATTR_DELETE_HORIZON)) {
        row->base_timestamp = batch->base_timestamp;
        return copy_spans(payload, spans, result->kept, out);
    }
    return p - out;
}

kc_status kc_filter_batch(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *bytes, int flags,
                          kc_span *spans, uint8_t *out, int64_t *written, kc_error *err) {
    const uint8_t *payload = bytes + KC_BATCH_HEADER_SIZE;
    int64_t size = batch->size - KC_BATCH_HEADER_SIZE;
    kc_filtered result;
    *written = 0;
    kc_status status = kc_filter_select(filter, batch, payload, size, flags, spans, &result, err);
    if (status) return status;
    if (result.as_it_was) {
        memcpy(out, bytes, (size_t)batch->size);
        *written = batch->size;
    } else if (result.kept || flags & KC_FILTER_RETAIN_EMPTY) {
        *written = KC_BATCH_HEADER_SIZE +
                   kc_filter_write(batch, payload, size, spans, &result, out + KC_BATCH_HEADER_SIZE);
        result.row.size = (int32_t)*written;
        kc_batch_write_header(out, &result.row);
    }
    return KC_OK;
}

int64_t kc_filter_batches(kc_batch_filter *filter, kc_filter_run *run, const kc_batch *rows, int64_t from,
                          int64_t count, kc_error *err) {
    int64_t i = from;
    err->status = KC_OK;
    for (; i < count; i++) {
        const kc_batch *row = rows + i;
        if (row->magic != 2 || row->attributes & (KC_ATTR_CODEC_MASK | KC_ATTR_TRANSACTIONAL | KC_ATTR_CONTROL)) break;
        while (run->stop < run->stop_count && run->stops[run->stop] < row->last_offset) run->stop++;
        if (run->stop < run->stop_count && run->stops[run->stop] == row->last_offset) break;
        if (row->count > run->span_capacity) break;
        if (row->size + (int64_t)row->count * KC_SPAN_GROWTH > run->out_capacity - run->out_size) break;
        int64_t written;
        if (kc_filter_batch(filter, row, run->buf + (row->position - run->base_position), 0, run->spans,
                            run->out + run->out_size, &written, err))
            break;
        run->out_size += written;
    }
    return i;
}
