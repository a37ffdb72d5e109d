/* csrc/record_columns.h -- records as columns, and columns as batches.
 *
 * A column of byte strings is kept as extents: where each string is in one buffer and how long it is, -1 for null.
 * So reading copies nothing; kc_gather then lays the strings side by side, as Arrow wants them.  Headers stay as they
 * are encoded in the record (csrc/record.h) until somebody asks for them.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_RECORD_COLUMNS_H
#define KC_RECORD_COLUMNS_H

#include <stdint.h>

#include "record_batch.h"
#include "status.h"
#include "varint.h"

/* Strings are copied in blocks, so kc_gather and kc_batch_write_records may write this much after the last byte. */
enum { KC_COPY_BLOCK = 32, KC_COPY_SLACK = KC_COPY_BLOCK + KC_VARINT_MAX };

typedef struct kc_extents {
    const uint8_t *data;
    int64_t data_size;
    int64_t *position; /* in data */
    int32_t *size;     /* -1: null */
} kc_extents;

/* Destination of the readers and source of the writer.  A reader leaves alone what is NULL; of extents, those
 * without position. */
typedef struct kc_columns {
    int64_t count;
    int64_t capacity;
    int64_t *offset;
    int64_t *timestamp;
    kc_extents key;
    kc_extents value;
    kc_extents headers; /* their encoded bytes, without the number of them; never null */
    int32_t *header_count;
} kc_columns;

/* A transaction that was aborted, by its producer and the offsets from its first record to its marker. */
typedef struct kc_aborted {
    int64_t producer_id;
    int64_t first_offset;
    int64_t last_offset;
} kc_aborted;

/* Which records the caller wants: offsets in [start, end), timestamps in [from_time, to_time], none of aborted
 * transactions (sorted by producer id, then first offset), control batches only if kept. */
typedef struct kc_selection {
    int64_t start;
    int64_t end;
    int64_t from_time;
    int64_t to_time;
    int keep_control;
    const kc_aborted *aborted;
    int64_t aborted_count;
} kc_selection;

/* Whether the batch may hold a record that the caller wants. */
int kc_batch_selected(const kc_batch *batch, const kc_selection *selection);

/* KC_CORRUPT unless offsets ascend from batch to batch, above `previous` and below `bound`. */
kc_status kc_batches_check_order(const kc_batch *rows, int64_t count, int64_t previous, int64_t bound, kc_error *err);

/* Append the selected records of one batch, whose decompressed records are data[position..position + size); the
 * columns have room for all of them and their extents count from data.  All records are checked as kc_record_next
 * does, also those that are left out.  On KC_CORRUPT nothing was appended; err->position counts from `position`. */
kc_status kc_columns_add(kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position,
                         int64_t size, const kc_selection *selection, kc_error *err);

/* Bytes of all strings together; *nulls: how many are null. */
int64_t kc_extents_bytes(const int32_t *size, int64_t count, int64_t *nulls);

/* Copy the strings side by side to `bytes` (room: kc_extents_bytes + KC_COPY_SLACK), write where each begins and the
 * last one ends to offsets[0..count], and the validity bits, unless NULL, to valid (zeroed by the caller). */
void kc_gather(const kc_extents *from, int64_t count, int32_t *offsets, uint8_t *bytes, uint8_t *valid);

/* Extents of the keys and values of all headers, one after the other, counting from headers->data.  The columns have
 * room for the sum of header_count.  KC_CORRUPT only if the bytes changed since they were read. */
kc_status kc_headers_expand(const kc_extents *headers, const int32_t *header_count, int64_t count, kc_extents *key,
                            kc_extents *value, kc_error *err);

/* Arrow's layout as extents: offsets[0..count] into data; valid bit i at valid_offset + i, NULL when all are.
 * KC_INVALID_ARGUMENT unless offsets ascend within [0, data_size]. */
kc_status kc_extents_of_offsets(const int32_t *offsets, const uint8_t *valid, int64_t valid_offset, int64_t count,
                                kc_extents *to, kc_error *err);

/* Encode headers: those of record i are list[i] .. list[i + 1] of key and value.  With `bytes` NULL only sizes and
 * positions are computed.  Returns the bytes they take. */
int64_t kc_headers_encode(const int32_t *list, int64_t count, const kc_extents *key, const kc_extents *value,
                          kc_extents *to, int32_t *header_count, uint8_t *bytes);

/* How columns are cut into batches. */
typedef struct kc_batch_limits {
    int64_t max_bytes;   /* of a batch with its header, uncompressed; a larger record has a batch of its own */
    int64_t max_records;
} kc_batch_limits;

/* Plan the batch that begins with record `first`: fills base and last offset, timestamps, count and size (before
 * compression) of *batch.  Offsets are next_offset, next_offset + 1, ... unless the columns have some.
 * KC_INVALID_ARGUMENT for an extent outside its data, an offset that does not ascend, a timestamp below -1, a record that no
 * batch can hold. */
kc_status kc_batch_plan(const kc_columns *columns, int64_t first, int64_t next_offset, const kc_batch_limits *limits,
                        kc_batch *batch, kc_error *err);

/* Write the records of a planned batch to p, which has room for batch->size - KC_BATCH_HEADER_SIZE + KC_COPY_SLACK
 * bytes. */
void kc_batch_write_records(const kc_columns *columns, int64_t first, const kc_batch *batch, uint8_t *p);

#endif
