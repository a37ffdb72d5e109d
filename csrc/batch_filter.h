/* csrc/batch_filter.h -- the cleaner's pass over magic-2 batches: which records stay, and the batch made of them.
 *
 * A record stays when no later record has its key, unless it is a tombstone (null value) whose batch's delete horizon
 * has come; records beyond the table's latest offset stay, for nothing is known about them.  A batch that keeps all
 * its records stays as it is, byte for byte.  Any other is made anew: base offset, last offset, base sequence,
 * producer, epochs, codec and types kept, base timestamp that of its first record.  A batch with tombstones gets a
 * delete horizon when it is first seen here: that becomes its base timestamp, attribute bit 6 says so (KIP-534).
 * Source: Cleaner and MemoryRecords.filterTo, Kafka 2.8-4.x.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_BATCH_FILTER_H
#define KC_BATCH_FILTER_H

#include <stdint.h>

#include "offset_map.h"
#include "record_batch.h"
#include "status.h"

/* What the caller decided about a batch. */
enum {
    KC_FILTER_DISCARD_RECORDS = 1, /* none stays: an aborted transaction's, or markers past their horizon */
    KC_FILTER_RETAIN_EMPTY = 2,    /* the batch stays even without a record */
    KC_FILTER_START_HORIZON = 4,   /* the marker of a transaction without data: counts as a tombstone */
};

typedef struct kc_batch_filter {
    const kc_offset_map *map;
    int64_t now_ms;
    int64_t delete_retention_ms; /* from when a tombstone is first seen here to its horizon */
    int64_t records_read;
    int64_t records_kept;
    int64_t records_without_key; /* dropped: nothing in a compacted log can replace them */
} kc_batch_filter;

typedef struct kc_span {
    int32_t position; /* of a record in the payload */
    int32_t size;
} kc_span;

/* What stays of one batch, and the header it gets. */
typedef struct kc_filtered {
    int64_t kept;
    int64_t payload_size; /* of the records that stay, as they are now */
    int as_it_was;        /* the whole batch stays unchanged */
    kc_batch row;         /* otherwise its header; size and CRC are set when it is written */
} kc_filtered;

enum { KC_SPAN_GROWTH = 16 }; /* what a record can grow by when its timestamp delta changes */

/* Decide about one batch, whose decompressed records are payload[0..size); spans has room for batch->count. */
kc_status kc_filter_select(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *payload, int64_t size,
                           int flags, kc_span *spans, kc_filtered *result, kc_error *err);

/* Write the records that stay to out, which has room for payload_size + kept * KC_SPAN_GROWTH; may set the row's base
 * timestamp back to the batch's where another would make the batch grow.  Returns the bytes written. */
int64_t kc_filter_write(const kc_batch *batch, const uint8_t *payload, int64_t size, const kc_span *spans,
                        kc_filtered *result, uint8_t *out);

/* One uncompressed batch at `bytes`: what is left of it goes to out, which has room for its size + KC_SPAN_GROWTH for
 * each record.  *written may be 0. */
kc_status kc_filter_batch(kc_batch_filter *filter, const kc_batch *batch, const uint8_t *bytes, int flags,
                          kc_span *spans, uint8_t *out, int64_t *written, kc_error *err);

/* Where kc_filter_batches works. */
typedef struct kc_filter_run {
    const uint8_t *buf;
    int64_t base_position;  /* rows' positions count from it in buf */
    const int64_t *stops;   /* ascending last offsets of batches that the caller decides about */
    int64_t stop_count;
    int64_t stop;           /* the next one */
    kc_span *spans;
    int64_t span_capacity;
    uint8_t *out;
    int64_t out_capacity;
    int64_t out_size;
} kc_filter_run;

/* Filter rows[from..count), appending to run->out.  Returns the first row that is left: the caller decides about it
 * (compressed, transactional, control, older magic, a stop), spans or out have no room for it, or err has a status. */
int64_t kc_filter_batches(kc_batch_filter *filter, kc_filter_run *run, const kc_batch *rows, int64_t from,
                          int64_t count, kc_error *err);

#endif
