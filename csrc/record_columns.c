#include "record_columns.h"

#include <string.h>

#include "record.h"

/* Of one producer transactions follow each other, so the last that starts at or before the batch decides. */
static int is_aborted(const kc_batch *batch, const kc_selection *selection) {
    int64_t lo = -1, hi = selection->aborted_count; /* invariant: aborted[lo] <= batch < aborted[hi] */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        const kc_aborted *txn = selection->aborted + mid;
        int after = txn->producer_id != batch->producer_id ? txn->producer_id > batch->producer_id
                                                           : txn->first_offset > batch->last_offset;
        if (after) hi = mid; else lo = mid;
    }
    if (lo < 0) return 0;
    const kc_aborted *txn = selection->aborted + lo;
    return txn->producer_id == batch->producer_id && batch->base_offset <= txn->last_offset;
}

int kc_batch_selected(const kc_batch *batch, const kc_selection *selection) {
    /* Of magic 0 and 1 only the last offset is known: a wrapper may hold some below it. */
    int64_t first = batch->magic == 2 ? batch->base_offset : 0;
    if (batch->last_offset < selection->start || first >= selection->end || batch->count == 0) return 0;
    if (batch->attributes & KC_ATTR_CONTROL) return selection->keep_control;
    return !(batch->attributes & KC_ATTR_TRANSACTIONAL && is_aborted(batch, selection));
}

kc_status kc_batches_check_order(const kc_batch *rows, int64_t count, int64_t previous, int64_t bound, kc_error *err) {
    for (int64_t i = 0; i < count; i++) {
        const kc_batch *row = rows + i;
        if (row->base_offset <= previous)
            return kc_fail(err, KC_CORRUPT, "base offset", row->position, previous + 1, row->base_offset);
        if (row->last_offset >= bound)
            return kc_fail(err, KC_CORRUPT, "last offset", row->position, bound - 1, row->last_offset);
        previous = row->last_offset;
    }
    return KC_OK;
}

kc_status kc_columns_check_count(const kc_batch *batch, int64_t size, kc_error *err) {
    if (batch->count > size / KC_RECORD_SIZE_MIN)
        return kc_fail(err, KC_CORRUPT, "record count", 0, size / KC_RECORD_SIZE_MIN, batch->count);
    return KC_OK;
}

kc_status kc_columns_add(kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position,
                         int64_t size, const kc_selection *selection, kc_error *err) {
    const kc_columns to = *columns; /* a copy that no store can alias */
    const int64_t start = selection->start, end = selection->end;
    const int log_append_time = batch->attributes & KC_ATTR_LOG_APPEND_TIME;
    kc_record_cursor cursor = kc_record_cursor_at_start(data + position, size, batch->count,
                                                        batch->last_offset - batch->base_offset, batch->base_timestamp);
    kc_status status = kc_columns_check_count(batch, size, err);
    if (status) return status;
    if (batch->count > to.capacity - to.count)
        return kc_fail(err, KC_INVALID_ARGUMENT, "room for records", 0, to.capacity - to.count, batch->count);
    int64_t n = to.count;
    while (cursor.index < cursor.count) {
        kc_record record;
        int64_t timestamp;
        if ((status = kc_record_next(&cursor, &record, &timestamp, err))) return status;
        int64_t offset = batch->base_offset + record.offset_delta;
        if (to.offset) to.offset[n] = offset;
        if (to.timestamp) to.timestamp[n] = log_append_time ? batch->max_timestamp : timestamp;
        if (to.key.position) {
            to.key.position[n] = record.key - data;
            to.key.size[n] = record.key_size;
        }
        if (to.value.position) {
            to.value.position[n] = record.value - data;
            to.value.size[n] = record.value_size;
        }
        if (to.headers.position) {
            to.headers.position[n] = record.headers - data;
            to.headers.size[n] = (int32_t)(data + position + cursor.position - record.headers);
            to.header_count[n] = record.header_count;
        }
        n += offset >= start && offset < end;
    }
    columns->count = n;
    return KC_OK;
}

int64_t kc_extents_bytes(const int32_t *size, int64_t count, int64_t *nulls) {
    int64_t bytes = 0, null = 0;
    for (int64_t i = 0; i < count; i++) {
        bytes += size[i] < 0 ? 0 : size[i];
        null += size[i] < 0;
    }
    *nulls = null;
    return bytes;
}

void kc_gather(const kc_extents *from, int64_t count, int32_t *offsets, uint8_t *bytes, uint8_t *valid) {
    const uint8_t *data = from->data, *limit = data + from->data_size;
    uint8_t *out = bytes;
    for (int64_t i = 0; i < count; i++) {
        int32_t size = from->size[i];
        offsets[i] = (int32_t)(out - bytes);
        if (size < 0) continue;
        if (valid) valid[i >> 3] |= (uint8_t)(1 << (i & 7));
        const uint8_t *p = data + from->position[i];
        if (size <= 512 && limit - p >= size + KC_GATHER_SLACK) {
            /* Whole blocks, the last of them over the end: half the time of a memcpy of unknown size. */
            for (int32_t at = 0; at < size; at += KC_GATHER_SLACK) memcpy(out + at, p + at, KC_GATHER_SLACK);
        } else {
            memcpy(out, p, (size_t)size);
        }
        out += size;
    }
    offsets[count] = (int32_t)(out - bytes);
}

kc_status kc_headers_expand(const kc_extents *headers, const int32_t *header_count, int64_t count, kc_extents *key,
                            kc_extents *value, kc_error *err) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *p = headers->data + headers->position[i], *end = p + headers->size[i];
        for (int32_t h = 0; h < header_count[i]; h++, n++) {
            kc_header header;
            if (!(p = kc_header_parse(p, end, &header)))
                return kc_fail(err, KC_CORRUPT, "record header", headers->position[i], headers->size[i], -1);
            key->position[n] = header.key - headers->data;
            key->size[n] = header.key_size;
            value->position[n] = header.value - headers->data;
            value->size[n] = header.value_size;
        }
    }
    return KC_OK;
}

kc_status kc_extents_of_offsets(const int32_t *offsets, const uint8_t *valid, int64_t valid_offset, int64_t count,
                                kc_extents *to, kc_error *err) {
    int32_t from = offsets[0];
    if (from < 0) return kc_fail(err, KC_INVALID_ARGUMENT, "offset of a string", 0, 0, from);
    for (int64_t i = 0; i < count; i++) {
        int32_t next = offsets[i + 1];
        if (next < from || next > to->data_size)
            return kc_fail(err, KC_INVALID_ARGUMENT, "offset of a string", i + 1, from, next);
        int64_t bit = valid_offset + i;
        int null = valid && !(valid[bit >> 3] >> (bit & 7) & 1);
        to->position[i] = from;
        to->size[i] = null ? -1 : next - from;
        from = next;
    }
    return KC_OK;
}

static int64_t bytes_size(int32_t size) { return kc_varlong_size(size) + (size > 0 ? size : 0); }

int64_t kc_headers_encode(const int32_t *list, int64_t count, const kc_extents *key, const kc_extents *value,
                          kc_extents *to, int32_t *header_count, uint8_t *bytes) {
    int64_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t start = total;
        for (int32_t h = list[i]; h < list[i + 1]; h++) {
            if (bytes) {
                uint8_t *p = kc_write_bytes(bytes + total, key->data + key->position[h], key->size[h]);
                kc_write_bytes(p, value->data + value->position[h], value->size[h]);
            }
            total += bytes_size(key->size[h]) + bytes_size(value->size[h]);
        }
        to->position[i] = start;
        to->size[i] = total - start > INT32_MAX ? INT32_MAX : (int32_t)(total - start);
        header_count[i] = list[i + 1] - list[i];
    }
    return total;
}

static kc_status check_extent(const kc_extents *extents, int64_t i, const char *what, kc_error *err) {
    if (!extents->position) return KC_OK;
    int64_t position = extents->position[i], size = extents->size[i];
    if (size == -1) return KC_OK;
    if (size < 0 || position < 0 || position > extents->data_size || size > extents->data_size - position)
        return kc_fail(err, KC_INVALID_ARGUMENT, what, i, extents->data_size, size < 0 ? size : position);
    return KC_OK;
}

static kc_status check_headers(const kc_columns *columns, int64_t i, kc_error *err) {
    if (!columns->headers.position) return KC_OK;
    int32_t size = columns->headers.size[i], count = columns->header_count[i];
    if (size < 0 || count < 0 || count > size)
        return kc_fail(err, KC_INVALID_ARGUMENT, "headers of a record", i, size, count);
    return check_extent(&columns->headers, i, "headers of a record", err);
}

static inline int32_t extent_size(const kc_extents *extents, int64_t i) {
    return extents->position ? extents->size[i] : -1;
}

/* What the length field of record i will hold. */
static inline int64_t body_size(const kc_columns *columns, int64_t i, int64_t timestamp_delta, int32_t offset_delta) {
    int32_t header_count = columns->headers.position ? columns->header_count[i] : 0;
    return kc_record_body_size(timestamp_delta, offset_delta, extent_size(&columns->key, i),
                               extent_size(&columns->value, i), header_count,
                               header_count ? columns->headers.size[i] : 0);
}

static inline int64_t timestamp_at(const kc_columns *columns, int64_t i) {
    return columns->timestamp ? columns->timestamp[i] : -1;
}

static inline int64_t offset_at(const kc_columns *columns, int64_t i, int64_t first, int64_t base_offset) {
    return columns->offset ? columns->offset[i] : base_offset + (i - first);
}

kc_status kc_batch_plan(const kc_columns *columns, int64_t first, int64_t next_offset, const kc_batch_limits *limits,
                        kc_batch *batch, kc_error *err) {
    int64_t size = KC_BATCH_HEADER_SIZE, i;
    batch->base_offset = offset_at(columns, first, first, next_offset);
    batch->base_timestamp = timestamp_at(columns, first);
    batch->max_timestamp = -1;
    for (i = first; i < columns->count; i++) {
        int64_t offset = offset_at(columns, i, first, batch->base_offset), timestamp = timestamp_at(columns, i), delta;
        if (offset < next_offset || offset == INT64_MAX)
            return kc_fail(err, KC_INVALID_ARGUMENT, "offset of a record", i, next_offset, offset);
        if (timestamp < -1 || __builtin_sub_overflow(timestamp, batch->base_timestamp, &delta))
            return kc_fail(err, KC_INVALID_ARGUMENT, "timestamp of a record", i, batch->base_timestamp, timestamp);
        kc_status status = check_extent(&columns->key, i, "key of a record", err);
        if (!status) status = check_extent(&columns->value, i, "value of a record", err);
        if (!status) status = check_headers(columns, i, err);
        if (status) return status;
        if (i > first && (i - first == limits->max_records || offset - batch->base_offset > INT32_MAX)) break;
        int64_t body = body_size(columns, i, delta, (int32_t)(offset - batch->base_offset));
        int64_t record = kc_varlong_size(body) + body;
        if (i > first && record > limits->max_bytes - size) break;
        if (record > INT32_MAX - size)
            return kc_fail(err, KC_INVALID_ARGUMENT, "size of a record", i, INT32_MAX - size, record);
        size += record;
        next_offset = offset + 1;
        if (timestamp > batch->max_timestamp) batch->max_timestamp = timestamp;
    }
    batch->last_offset = next_offset - 1;
    batch->count = (int32_t)(i - first);
    batch->size = (int32_t)size;
    return KC_OK;
}

void kc_batch_write_records(const kc_columns *columns, int64_t first, const kc_batch *batch, uint8_t *p) {
    for (int64_t i = first; i < first + batch->count; i++) {
        int64_t timestamp_delta = timestamp_at(columns, i) - batch->base_timestamp;
        int32_t offset_delta = (int32_t)(offset_at(columns, i, first, batch->base_offset) - batch->base_offset);
        int32_t key_size = extent_size(&columns->key, i), value_size = extent_size(&columns->value, i);
        int32_t header_count = columns->headers.position ? columns->header_count[i] : 0;
        p = kc_record_write(p, body_size(columns, i, timestamp_delta, offset_delta), timestamp_delta, offset_delta,
                            key_size > 0 ? columns->key.data + columns->key.position[i] : NULL, key_size,
                            value_size > 0 ? columns->value.data + columns->value.position[i] : NULL, value_size,
                            header_count);
        if (header_count) {
            memcpy(p, columns->headers.data + columns->headers.position[i], (size_t)columns->headers.size[i]);
            p += columns->headers.size[i];
        }
    }
}
