#include "record_batch.h"

#include "bytes.h"
#include "crc32c.h"
#include "legacy_record.h"
#include "prefetch.h"

enum {
    MIN_LENGTH = KC_LEGACY_OVERHEAD - KC_LOG_OVERHEAD, /* the smallest message of magic 0: what any length must reach */
    MIN_LENGTH_1 = MIN_LENGTH + 8,
    MIN_LENGTH_2 = KC_BATCH_HEADER_SIZE - KC_LOG_OVERHEAD,
};

/* What the lengths say: where the batch ends and that its magic is known.  The order is Kafka's
 * (ByteBufferLogInputStream): an impossible length or magic is an error even when the rest is missing. */
static kc_status parse_extent(const uint8_t *buf, int64_t end, int64_t position, int32_t *size, kc_error *err) {
    int64_t available = end - position;
    if (available < KC_LOG_OVERHEAD)
        return kc_fail(err, KC_TRUNCATED, "batch", position, KC_LOG_OVERHEAD, available);
    const uint8_t *p = buf + position;
    int32_t length = kc_load_i32(p + 8);
    if (length < MIN_LENGTH)
        return kc_fail(err, KC_CORRUPT, "batch length too small", position, MIN_LENGTH, length);
    if (length > INT32_MAX - KC_LOG_OVERHEAD)
        return kc_fail(err, KC_CORRUPT, "batch length too large", position, INT32_MAX - KC_LOG_OVERHEAD, length);
    if (available <= KC_MAGIC_OFFSET)
        return kc_fail(err, KC_TRUNCATED, "batch", position, KC_LOG_OVERHEAD + (int64_t)length, available);
    int8_t magic = (int8_t)p[KC_MAGIC_OFFSET];
    if (magic < 0 || magic > 2) return kc_fail(err, KC_CORRUPT, "magic", position, 2, magic);
    int32_t min_length = magic == 2 ? MIN_LENGTH_2 : magic ? MIN_LENGTH_1 : MIN_LENGTH;
    if (length < min_length)
        return kc_fail(err, KC_CORRUPT, "batch length too small", position, min_length, length);
    if (length > available - KC_LOG_OVERHEAD)
        return kc_fail(err, KC_TRUNCATED, "batch", position, KC_LOG_OVERHEAD + (int64_t)length, available);
    *size = KC_LOG_OVERHEAD + length;
    return KC_OK;
}

/* A message of magic 0 or 1 as a batch: of one offset, since only decompressing a wrapper would tell more.  Of its
 * attributes the bits that its magic has not defined are left out. */
static __attribute__((noinline)) kc_status parse_legacy_fields(const uint8_t *p, int64_t position, int32_t size,
                                                               kc_batch *batch, kc_error *err) {
    int8_t magic = (int8_t)p[KC_MAGIC_OFFSET];
    uint8_t attributes = p[KC_LEGACY_ATTRIBUTES_OFFSET];
    int64_t timestamp = magic ? kc_load_i64(p + KC_LEGACY_TIMESTAMP_OFFSET) : -1;
    *batch = (kc_batch){
        .position = position,
        .base_offset = kc_load_i64(p),
        .last_offset = kc_load_i64(p),
        .base_timestamp = timestamp,
        .max_timestamp = timestamp,
        .producer_id = -1,
        .size = size,
        .leader_epoch = -1,
        .crc = kc_load_u32(p + KC_LEGACY_CRC_OFFSET),
        .base_sequence = -1,
        .count = attributes & KC_ATTR_CODEC_MASK ? KC_COUNT_UNKNOWN : 1,
        .attributes = attributes & (magic ? KC_ATTR_CODEC_MASK | KC_ATTR_LOG_APPEND_TIME : KC_ATTR_CODEC_MASK),
        .producer_epoch = -1,
        .magic = magic,
    };
    /* The offset after it, the log's end, must fit too. */
    if (batch->base_offset < 0 || batch->base_offset == INT64_MAX)
        return kc_fail(err, KC_CORRUPT, "offset", position, 0, batch->base_offset);
    return KC_OK;
}

/* KC_INVALID_RECORD is for what the CRC covers: if that is right, the batch was made so. */
static inline __attribute__((always_inline)) kc_status parse_fields(const uint8_t *p, int64_t position, int32_t size,
                                                                    kc_batch *batch, kc_error *err) {
    if (p[KC_MAGIC_OFFSET] != 2) return parse_legacy_fields(p, position, size, batch, err);
    int32_t last_offset_delta = kc_load_i32(p + 23);
    batch->position = position;
    batch->base_offset = kc_load_i64(p);
    batch->base_timestamp = kc_load_i64(p + 27);
    batch->max_timestamp = kc_load_i64(p + KC_MAX_TIMESTAMP_OFFSET);
    batch->producer_id = kc_load_i64(p + 43);
    batch->size = size;
    batch->leader_epoch = kc_load_i32(p + 12);
    batch->crc = kc_load_u32(p + KC_CRC_OFFSET);
    batch->base_sequence = kc_load_i32(p + 53);
    batch->count = kc_load_i32(p + 57);
    batch->attributes = kc_load_i16(p + KC_ATTRIBUTES_OFFSET);
    batch->producer_epoch = kc_load_i16(p + 51);
    batch->magic = 2;
    memset(batch->reserved, 0, sizeof batch->reserved);
    if (batch->base_offset < 0)
        return kc_fail(err, KC_CORRUPT, "base offset", position, 0, batch->base_offset);
    /* The offset after it, the log's end, must fit too. */
    if (last_offset_delta >= INT64_MAX - batch->base_offset)
        return kc_fail(err, KC_CORRUPT, "last offset", position, INT64_MAX - batch->base_offset - 1, last_offset_delta);
    if (last_offset_delta < 0)
        return kc_fail(err, KC_INVALID_RECORD, "last offset delta", position, 0, last_offset_delta);
    /* Every record has an offset of its own, so a batch cannot hold more records than offsets; it
     * can hold fewer, or none, after cleaning. */
    if (batch->count < 0 || batch->count > (int64_t)last_offset_delta + 1)
        return kc_fail(err, KC_INVALID_RECORD, "record count", position, (int64_t)last_offset_delta + 1, batch->count);
    batch->last_offset = batch->base_offset + last_offset_delta;
    return KC_OK;
}

static uint32_t computed_crc(const uint8_t *p, int32_t size) {
    return kc_crc32c(0, p + KC_ATTRIBUTES_OFFSET, (size_t)(size - KC_ATTRIBUTES_OFFSET));
}

kc_status kc_batch_parse(const uint8_t *buf, int64_t end, int64_t position, kc_batch *batch, kc_error *err) {
    int32_t size;
    kc_status status = parse_extent(buf, end, position, &size, err);
    if (!status) status = parse_fields(buf + position, position, size, batch, err);
    /* Without a look at the CRC there is no telling whose fault it is. */
    return status == KC_INVALID_RECORD ? (err->status = KC_CORRUPT) : status;
}

kc_status kc_batch_check_crc(const uint8_t *buf, const kc_batch *batch, kc_error *err) {
    const uint8_t *p = buf + batch->position;
    uint32_t crc = batch->magic == 2 ? computed_crc(p, batch->size) : kc_legacy_crc(p, batch->size);
    if (crc == batch->crc) return KC_OK;
    return kc_fail(err, KC_CORRUPT, batch->magic == 2 ? "CRC-32C" : "CRC-32", batch->position, batch->crc, crc);
}

/* The fewest bytes that a record takes: seven fields of one byte. */
enum { RECORD_SIZE_MIN = 7 };

kc_status kc_batch_check_count(const kc_batch *batch, int64_t size, kc_error *err) {
    if (batch->count > size / RECORD_SIZE_MIN)
        return kc_fail(err, KC_CORRUPT, "record count", 0, size / RECORD_SIZE_MIN, batch->count);
    return KC_OK;
}

int64_t kc_batch_walk(const uint8_t *buf, int64_t end, int64_t *position, int flags, kc_batch *rows,
                      int64_t capacity, kc_error *err) {
    int64_t at = *position, count = 0;
    err->status = KC_OK;
    while (count < capacity && at < end) {
        kc_batch *row = rows + count;
        int32_t size;
        if (parse_extent(buf, end, at, &size, err)) break;
        if (!(flags & KC_WALK_CHECK_CRC)) kc_prefetch_headers(buf + at, end - at, size);
        kc_status status = parse_fields(buf + at, at, size, row, err);
        if (flags & KC_WALK_CHECK_CRC) {
            kc_error crc_error;
            if (kc_batch_check_crc(buf, row, &crc_error)) {
                *err = crc_error;
                break;
            }
        } else if (status) {
            err->status = KC_CORRUPT;
        }
        if (status) break;
        at += size;
        count++;
    }
    *position = at;
    return count;
}

void kc_batch_write_header(uint8_t *p, kc_batch *batch) {
    kc_store_i64(p, batch->base_offset);
    kc_store_i32(p + 8, batch->size - KC_LOG_OVERHEAD);
    kc_store_i32(p + 12, batch->leader_epoch);
    p[KC_MAGIC_OFFSET] = 2;
    kc_store_i16(p + KC_ATTRIBUTES_OFFSET, batch->attributes);
    kc_store_i32(p + 23, (int32_t)(batch->last_offset - batch->base_offset));
    kc_store_i64(p + 27, batch->base_timestamp);
    kc_store_i64(p + KC_MAX_TIMESTAMP_OFFSET, batch->max_timestamp);
    kc_store_i64(p + 43, batch->producer_id);
    kc_store_i16(p + 51, batch->producer_epoch);
    kc_store_i32(p + 53, batch->base_sequence);
    kc_store_i32(p + 57, batch->count);
    batch->crc = computed_crc(p, batch->size);
    kc_store_i32(p + KC_CRC_OFFSET, (int32_t)batch->crc);
}

void kc_batch_assign(uint8_t *buf, kc_batch *batch, int64_t base_offset, int32_t leader_epoch) {
    uint8_t *p = buf + batch->position;
    batch->last_offset = base_offset + (batch->last_offset - batch->base_offset);
    batch->base_offset = base_offset;
    if (batch->magic < 2) {
        kc_store_i64(p, batch->last_offset);
        return;
    }
    kc_store_i64(p, base_offset);
    kc_store_i32(p + 12, leader_epoch);
    batch->leader_epoch = leader_epoch;
}

static void write_timestamps(uint8_t *p, kc_batch *batch) {
    if (batch->magic == 0) return; /* has none */
    if (batch->magic == 1) {
        p[KC_LEGACY_ATTRIBUTES_OFFSET] = (uint8_t)batch->attributes;
        kc_store_i64(p + KC_LEGACY_TIMESTAMP_OFFSET, batch->max_timestamp);
        batch->crc = kc_legacy_crc(p, batch->size);
        kc_store_i32(p + KC_LEGACY_CRC_OFFSET, (int32_t)batch->crc);
        return;
    }
    kc_store_i16(p + KC_ATTRIBUTES_OFFSET, batch->attributes);
    kc_store_i64(p + KC_MAX_TIMESTAMP_OFFSET, batch->max_timestamp);
    batch->crc = computed_crc(p, batch->size);
    kc_store_i32(p + KC_CRC_OFFSET, (int32_t)batch->crc);
}

void kc_batch_set_log_append_time(uint8_t *buf, kc_batch *batch, int64_t timestamp) {
    if (batch->magic == 0) return;
    batch->attributes |= KC_ATTR_LOG_APPEND_TIME;
    batch->max_timestamp = timestamp;
    write_timestamps(buf + batch->position, batch);
}

void kc_batch_sync_max_timestamp(uint8_t *buf, kc_batch *batch) {
    uint8_t *p = buf + batch->position;
    int32_t at = batch->magic == 2 ? KC_MAX_TIMESTAMP_OFFSET : KC_LEGACY_TIMESTAMP_OFFSET;
    if (batch->magic && kc_load_i64(p + at) != batch->max_timestamp) write_timestamps(p, batch);
}
