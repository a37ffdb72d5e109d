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
    /* A header knows the latest timestamp, not the earliest, unless all are that of the append.  Of magic 0 and 1 it
     * knows that of the wrapper. */
    if (batch->magic == 2) {
        if (batch->max_timestamp < selection->from_time) return 0;
        if (batch->attributes & KC_ATTR_LOG_APPEND_TIME && batch->max_timestamp > selection->to_time) return 0;
    }
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

/* kc_columns_add, with what is wanted as constants. */
__attribute__((always_inline)) static inline kc_status add_records(
    kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position, int64_t size,
    const kc_selection *selection, const int offsets, const int timestamps, const int keys, const int values,
    const int headers, kc_error *err) {
    const kc_columns to = *columns; /* a copy that no store can alias */
    const int64_t start = selection->start, end = selection->end, base_offset = batch->base_offset;
    const int64_t from_time = selection->from_time, to_time = selection->to_time;
    const int64_t log_append_time = batch->max_timestamp;
    const int is_log_append_time = batch->attributes & KC_ATTR_LOG_APPEND_TIME;
    kc_record_cursor cursor = kc_record_cursor_at_start(data + position, size, batch->count,
                                                        batch->last_offset - base_offset, batch->base_timestamp);
    int64_t n = to.count;
    while (cursor.index < cursor.count) {
        kc_record record;
        int64_t timestamp;
        /* The CRC of other batches has come between: this one is in a distant cache by now (34 -> 28 ns a record). */
        __builtin_prefetch(cursor.payload + cursor.position + 1024);
        __builtin_prefetch(cursor.payload + cursor.position + 1088);
        kc_status status = kc_record_next(&cursor, &record, &timestamp, err);
        if (status) return status;
        int64_t offset = base_offset + record.offset_delta;
        if (offsets) to.offset[n] = offset;
        if (is_log_append_time) timestamp = log_append_time;
        if (timestamps) to.timestamp[n] = timestamp;
        if (keys) {
            to.key.position[n] = record.key - data;
            to.key.size[n] = record.key_size;
        }
        if (values) {
            to.value.position[n] = record.value - data;
            to.value.size[n] = record.value_size;
        }
        if (headers) {
            to.headers.position[n] = record.headers - data;
            to.headers.size[n] = (int32_t)(cursor.payload + cursor.position - record.headers);
            to.header_count[n] = record.header_count;
        }
        n += offset >= start && offset < end && timestamp >= from_time && timestamp <= to_time;
    }
    columns->count = n;
    return KC_OK;
}

kc_status kc_columns_add(kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position,
                         int64_t size, const kc_selection *selection, kc_error *err) {
    kc_status status = kc_batch_check_count(batch, size, err);
    if (status) return status;
    if (batch->count > columns->capacity - columns->count)
        return kc_fail(err, KC_INVALID_ARGUMENT, "room for records", 0, columns->capacity - columns->count,
                       batch->count);
    const int offsets = columns->offset != NULL, timestamps = columns->timestamp != NULL;
    const int keys = columns->key.position != NULL, values = columns->value.position != NULL;
    const int headers = columns->headers.position != NULL;
    if (offsets && timestamps && keys && values && headers)
        return add_records(columns, batch, data, position, size, selection, 1, 1, 1, 1, 1, err);
    return add_records(columns, batch, data, position, size, selection, offsets, timestamps, keys, values, headers,
                       err);
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

/* Copy `size` bytes to p; up to KC_COPY_BLOCK - 1 bytes after them may be overwritten, with any values. */
static inline void copy_string(uint8_t *p, const kc_extents *from, int64_t position, int32_t size) {
    const uint8_t *string = from->data + position;
    if (size <= 512 && from->data_size - position >= size + KC_COPY_BLOCK) {
        /* The last block goes over the end: half the time of a memcpy of unknown size. */
        for (int32_t at = 0; at < size; at += KC_COPY_BLOCK) memcpy(p + at, string + at, KC_COPY_BLOCK);
    } else if (size > 0) { /* no bytes may be nowhere */
        memcpy(p, string, (size_t)size);
    }
}

void kc_gather(const kc_extents *from, int64_t count, int32_t *offsets, uint8_t *bytes, uint8_t *valid) {
    const kc_extents source = *from; /* a copy that no store can alias */
    uint8_t *out = bytes;
    for (int64_t i = 0; i < count; i++) {
        int32_t size = source.size[i];
        offsets[i] = (int32_t)(out - bytes);
        if (size < 0) continue;
        if (valid) valid[i >> 3] |= (uint8_t)(1 << (i & 7));
        copy_string(out, &source, source.position[i], size);
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

static inline int64_t bytes_size(int32_t size) { return kc_varlong_size(size) + (size > 0 ? size : 0); }

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

/* Whether string i is inside its data, or is null. */
static inline int is_inside(const kc_extents *extents, int64_t i) {
    if (!extents->position) return 1;
    int64_t position = extents->position[i], size = extents->size[i];
    /* As unsigned numbers, what is negative is too large. */
    return size == -1 || ((uint64_t)size <= (uint64_t)extents->data_size &&
                          (uint64_t)position <= (uint64_t)(extents->data_size - size));
}

static inline int are_headers(const kc_columns *columns, int64_t i) {
    if (!columns->headers.position) return 1;
    int32_t size = columns->headers.size[i], count = columns->header_count[i];
    return size >= 0 && count >= 0 && count <= size && is_inside(&columns->headers, i);
}

__attribute__((cold)) static kc_status refuse_extents(const kc_columns *columns, int64_t i, kc_error *err) {
    const kc_extents *extents = !is_inside(&columns->key, i)     ? &columns->key
                                : !is_inside(&columns->value, i) ? &columns->value
                                                                 : &columns->headers;
    const char *what = extents == &columns->key     ? "key of a record"
                       : extents == &columns->value ? "value of a record"
                                                    : "headers of a record";
    return kc_fail(err, KC_INVALID_ARGUMENT, what, i, extents->data_size, extents->size[i]);
}

static inline int32_t extent_size(const kc_extents *extents, int64_t i) {
    return extents->position ? extents->size[i] : -1;
}

/* What the length field of record i will hold: kc_record_body_size. */
static inline int64_t body_size(const kc_columns *columns, int64_t i, int64_t timestamp_delta, int32_t offset_delta) {
    int64_t size = 1 + kc_varlong_size(timestamp_delta) + kc_varlong_size(offset_delta) +
                   bytes_size(extent_size(&columns->key, i)) + bytes_size(extent_size(&columns->value, i));
    if (!columns->headers.position) return size + 1;
    return size + kc_varlong_size(columns->header_count[i]) + columns->headers.size[i];
}

static inline int64_t timestamp_at(const kc_columns *columns, int64_t i) {
    return columns->timestamp ? columns->timestamp[i] : -1;
}

static inline int64_t offset_at(const kc_columns *columns, int64_t i, int64_t first, int64_t base_offset) {
    return columns->offset ? columns->offset[i] : base_offset + (i - first);
}

/* A copy that no store can alias; a plain one is known to have no offsets, keys and headers, as most frames, for the
 * compiler to leave out what is done for them. */
static inline kc_columns columns_copy(const kc_columns *columns, const int plain) {
    kc_columns copy = *columns;
    if (plain) {
        copy.offset = NULL;
        copy.key.position = copy.headers.position = NULL;
    }
    return copy;
}

static inline int are_plain(const kc_columns *columns) {
    return !columns->offset && !columns->key.position && !columns->headers.position;
}

__attribute__((always_inline)) static inline kc_status plan_batch(const kc_columns *columns, const int plain,
                                                                  int64_t first, int64_t next_offset,
                                                                  const kc_batch_limits *limits, kc_batch *batch,
                                                                  kc_error *err) {
    const kc_columns from = columns_copy(columns, plain);
    const int64_t base_offset = offset_at(&from, first, first, next_offset), base_timestamp = timestamp_at(&from, first);
    const int64_t end = from.count - first > limits->max_records ? first + limits->max_records : from.count;
    int64_t size = KC_BATCH_HEADER_SIZE, max_timestamp = -1, i;
    for (i = first; i < end; i++) {
        int64_t offset = offset_at(&from, i, first, base_offset), timestamp = timestamp_at(&from, i), delta;
        if (offset < next_offset || offset == INT64_MAX)
            return kc_fail(err, KC_INVALID_ARGUMENT, "offset of a record", i, next_offset, offset);
        if (timestamp < -1 || __builtin_sub_overflow(timestamp, base_timestamp, &delta))
            return kc_fail(err, KC_INVALID_ARGUMENT, "timestamp of a record", i, base_timestamp, timestamp);
        if (!is_inside(&from.key, i) || !is_inside(&from.value, i) || !are_headers(&from, i))
            return refuse_extents(&from, i, err);
        if (offset - base_offset > INT32_MAX) break;
        int64_t body = body_size(&from, i, delta, (int32_t)(offset - base_offset));
        int64_t record = kc_varlong_size(body) + body;
        if (record > limits->max_bytes - size && i > first) break;
        if (record > INT32_MAX - size)
            return kc_fail(err, KC_INVALID_ARGUMENT, "size of a record", i, INT32_MAX - size, record);
        size += record;
        next_offset = offset + 1;
        if (timestamp > max_timestamp) max_timestamp = timestamp;
    }
    batch->base_offset = base_offset;
    batch->last_offset = next_offset - 1;
    batch->base_timestamp = base_timestamp;
    batch->max_timestamp = max_timestamp;
    batch->count = (int32_t)(i - first);
    batch->size = (int32_t)size;
    return KC_OK;
}

kc_status kc_batch_plan(const kc_columns *columns, int64_t first, int64_t next_offset, const kc_batch_limits *limits,
                        kc_batch *batch, kc_error *err) {
    if (are_plain(columns)) return plan_batch(columns, 1, first, next_offset, limits, batch, err);
    return plan_batch(columns, 0, first, next_offset, limits, batch, err);
}

static inline uint8_t *write_string(uint8_t *p, const kc_extents *extents, int64_t i) {
    int32_t size = extent_size(extents, i);
    p = kc_write_varlong(p, size);
    if (size <= 0) return p;
    copy_string(p, extents, extents->position[i], size);
    return p + size;
}

__attribute__((always_inline)) static inline void write_records(const kc_columns *columns, const int plain,
                                                                int64_t first, const kc_batch *batch, uint8_t *p) {
    const kc_columns from = columns_copy(columns, plain);
    const int64_t base_offset = batch->base_offset, base_timestamp = batch->base_timestamp, end = first + batch->count;
    int64_t length_size = 2;
    for (int64_t i = first; i < end; i++) {
        /* Its length takes as many bytes as that of the record before, or else the record has to move. */
        uint8_t *body = p + length_size, *q = body;
        *q++ = 0; /* attributes */
        q = kc_write_varlong(q, timestamp_at(&from, i) - base_timestamp);
        q = kc_write_varlong(q, offset_at(&from, i, first, base_offset) - base_offset);
        q = write_string(q, &from.key, i);
        q = write_string(q, &from.value, i);
        if (from.headers.position) {
            q = kc_write_varlong(q, from.header_count[i]);
            copy_string(q, &from.headers, from.headers.position[i], from.headers.size[i]);
            q += from.headers.size[i];
        } else {
            *q++ = 0;
        }
        int64_t length = q - body;
        if (kc_varlong_size(length) != length_size) {
            length_size = kc_varlong_size(length);
            memmove(p + length_size, body, (size_t)length);
        }
        p = kc_write_varlong(p, length) + length;
    }
}

void kc_batch_write_records(const kc_columns *columns, int64_t first, const kc_batch *batch, uint8_t *p) {
    if (are_plain(columns)) write_records(columns, 1, first, batch, p);
    else write_records(columns, 0, first, batch, p);
}
