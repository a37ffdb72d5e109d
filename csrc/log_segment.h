/* csrc/log_segment.h -- what a segment does with the bytes of its .log: find the batch that holds an
 * offset or a timestamp, decide which batches get index entries, and scan a whole file for recovery.
 *
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_LOG_SEGMENT_H
#define KC_LOG_SEGMENT_H

#include <stdint.h>

#include "record_batch.h"
#include "status.h"

/* Bytes [first, first + size) of a .log that may be touched.  Of our own file they are a mapping, and all there are: never
 * more than the file holds at that moment, or the process dies of SIGBUS (docs/invariants.md).  Of a file that another
 * process may cut at any time they are a copy of a part. */
typedef struct kc_log_bytes {
    const uint8_t *bytes; /* the one at `first` */
    int64_t first;
    int64_t size;
    int64_t end; /* where the file ends; first + size at least */
} kc_log_bytes;

/* A search or walk needs bytes that are not there: those from *position on, KC_BATCH_HEADER_SIZE at least where the file
 * has as many.  Never where all bytes are there. */
enum { KC_SEGMENT_MORE = 2 };

/* Where a search found its batch. */
typedef struct kc_batch_place {
    int64_t position;
    int64_t last_offset;
    int32_t size;
} kc_batch_place;

/* Where a search may begin that an index entry {offset, position} sends off: at that position, if a whole
 * batch is there that starts at or below the offset, so that nothing searched for is before it; at
 * 0 otherwise.  A wrong entry costs time, never a record. */
int64_t kc_segment_entry_start(const kc_log_bytes *log, int64_t position, int64_t offset);

/* The first batch from *position on whose last offset is >= target: 1 and *place, or 0 when the log
 * ends first (a partial batch at the end counts as the end), or KC_SEGMENT_MORE, or a negative status. */
int kc_segment_search_for(const kc_log_bytes *log, int64_t *position, int64_t target, kc_batch_place *place,
                          kc_error *err);

/* The same for the first batch with max timestamp >= timestamp and last offset >= first_offset. */
int kc_segment_search_for_timestamp(const kc_log_bytes *log, int64_t *position, int64_t timestamp,
                                    int64_t first_offset, kc_batch_place *place, kc_error *err);

/* Raise *max_timestamp and *last_offset, which belongs to it, over all batches from *position on, which
 * moves after the last whole one; the last offset of that goes to *end_offset, which is left alone when
 * there is none.  0, KC_SEGMENT_MORE, or a negative status. */
int kc_segment_walk_to_end(const kc_log_bytes *log, int64_t *position, int64_t *max_timestamp, int64_t *last_offset,
                           int64_t *end_offset, kc_error *err);

/* The same over `tail`, a copy of what the segment ends with, which by the index begins with the batch that holds
 * `indexed`; *position counts from the tail's first byte.  Returns 0 where that is not so, where no batch is whole and
 * where a header is damaged: then only the whole file can tell. */
int kc_segment_walk_tail(const uint8_t *tail, int64_t size, int64_t indexed, int64_t *position, int64_t *max_timestamp,
                         int64_t *last_offset, int64_t *end_offset);

/* The rule that gives batches their index entries, and the two indexes it fills.  An entry of the
 * offset index names the last offset of a batch and the position of its first byte; the time index
 * gets one beside it, the greatest timestamp so far.  A batch gets entries when more than
 * interval_bytes were written since the last entry, its own bytes not counted, so the first one never
 * does.  Slots are written only below the capacities: an index that is full stays sparse.
 * Source: LogSegment.append of Kafka 4.x (apache/kafka#18012), LogSegment.recover. */
typedef struct kc_indexer {
    int64_t base_offset;
    int64_t interval_bytes;
    int64_t bytes_since_last_entry;
    int64_t max_timestamp;           /* so far; -1 for none */
    int64_t offset_of_max_timestamp; /* last offset of the first batch that reached it */
    uint8_t *offset_slots;
    int64_t offset_count;
    int64_t offset_capacity;
    uint8_t *time_slots;
    int64_t time_count;
    int64_t time_capacity;
} kc_indexer;

/* Batches one after the other, the first at `position` of the file (their rows' positions are not looked at). */
void kc_indexer_add_batches(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position);

/* The rule of Kafka 2.4-3.8: one entry at most for the whole append, naming its last offset and its
 * first position. */
void kc_indexer_add_append(kc_indexer *indexer, const kc_batch *rows, int64_t count, int64_t position);

/* The time index's final entry, for a segment that becomes inactive; may use the last slot. */
void kc_indexer_add_final_time(kc_indexer *indexer, int64_t time_capacity);

/* KC_OFFSET_OVERFLOW unless every row's last offset is in [base_offset, base_offset + 2^31). */
kc_status kc_segment_check_offsets(const kc_batch *rows, int64_t count, int64_t base_offset, kc_error *err);

enum {
    KC_SCAN_CHECK_CRC = 1,
    /* Collect only batches that matter to the epoch cache and the producer state: a new leader epoch, a
     * producer id, a control batch. */
    KC_SCAN_NOTEWORTHY = 2,
};

/* A scan from some position to the end or to the first batch that is not valid: does not parse, CRC
 * differs, offsets outside the segment's range, not ascending, or past those of the valid batch after it. */
typedef struct kc_segment_scan {
    int64_t base_offset;
    int flags;
    int64_t position;    /* after the last valid batch */
    int64_t last_offset; /* of the last valid batch; -1 before the first */
    int64_t leader_epoch; /* of the last valid batch; -2 before the first */
    int64_t need;         /* bytes from `position` on without which a step cannot go on; 0 for none */
    kc_indexer *indexer; /* NULL: build no indexes */
} kc_segment_scan;

/* Go on until scan->position reaches `stop`, rows is full, a batch is not valid, or bytes are needed that are not there
 * (scan->need); returns how many rows were stored.  err->status is KC_OK, or says why the next batch is not valid.  rows
 * may be NULL. */
int64_t kc_segment_scan_step(kc_segment_scan *scan, const kc_log_bytes *log, int64_t stop, kc_batch *rows,
                             int64_t capacity, kc_error *err);

#endif
