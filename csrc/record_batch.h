/* csrc/record_batch.h -- the header of a record batch: parse, patch in place, walk a buffer.  Magic 2:
 *
 *    0  int64  base offset            23  int32  last offset delta      51  int16  producer epoch
 *    8  int32  batch length           27  int64  base timestamp         53  int32  base sequence
 *   12  int32  partition leader epoch 35  int64  max timestamp          57  int32  record count
 *   16  int8   magic                  43  int64  producer id            61  records
 *   17  uint32 crc-32c of bytes 21..
 *   21  int16  attributes
 *
 * Batch length counts the bytes after it, so a batch takes 12 + length bytes.  Attributes: bits 0-2
 * codec, 3 timestamp type (1 = LogAppendTime), 4 transactional, 5 control, 6 base timestamp is the
 * delete horizon.  A message of magic 0 or 1 (csrc/legacy_record.h) counts as a batch: of one record, or as a
 * wrapper of an unknown number, and only its last offset is known without decompressing it.
 * Source: KIP-98, KIP-534.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_RECORD_BATCH_H
#define KC_RECORD_BATCH_H

#include <stdint.h>

#include "status.h"

enum {
    KC_LOG_OVERHEAD = 12, /* base offset and length: what must be read to know a batch's size */
    KC_MAGIC_OFFSET = 16,
    KC_CRC_OFFSET = 17,
    KC_ATTRIBUTES_OFFSET = 21,
    KC_MAX_TIMESTAMP_OFFSET = 35,
    KC_BATCH_HEADER_SIZE = 61,
    KC_MIN_BATCH_SIZE = 26, /* a message of magic 0 with neither key nor value */
    KC_COUNT_UNKNOWN = -1,  /* count of a wrapper */

    KC_ATTR_CODEC_MASK = 0x07,
    KC_ATTR_LOG_APPEND_TIME = 0x08,
    KC_ATTR_TRANSACTIONAL = 0x10,
    KC_ATTR_CONTROL = 0x20,
    KC_ATTR_DELETE_HORIZON = 0x40,
};

/* One row of a BatchTable: a batch header in host byte order and where the batch is.
 * kcore/record/layout.py describes the same 88 bytes as a NumPy dtype. */
typedef struct kc_batch {
    int64_t position; /* of the batch's first byte in the buffer or file */
    int64_t base_offset;
    int64_t last_offset; /* base offset + last offset delta; magic 0 and 1: the base offset */
    int64_t base_timestamp;
    int64_t max_timestamp; /* -1 for none, as always in magic 0 */
    int64_t producer_id;
    int32_t size; /* of the whole batch: 12 + batch length */
    int32_t leader_epoch;
    uint32_t crc;
    int32_t base_sequence;
    int32_t count;
    int16_t attributes;
    int16_t producer_epoch;
    int8_t magic;
    uint8_t reserved[15];
} kc_batch;

enum { KC_WALK_CHECK_CRC = 1 };

/* Parse the batch at buf[position]; buf holds `end` bytes, position <= end.  KC_TRUNCATED when the batch
 * does not end within them (nothing is wrong with what is there), KC_CORRUPT for an impossible length,
 * offset, offset delta, count or magic. */
kc_status kc_batch_parse(const uint8_t *buf, int64_t end, int64_t position, kc_batch *batch, kc_error *err);

/* KC_CORRUPT unless the CRC stored in the batch is that of its bytes. */
kc_status kc_batch_check_crc(const uint8_t *buf, const kc_batch *batch, kc_error *err);

/* KC_CORRUPT if `size` bytes, a batch of magic 2's records decompressed, cannot hold as many as its header counts: what
 * room is made for is bounded by bytes that are there. */
kc_status kc_batch_check_count(const kc_batch *batch, int64_t size, kc_error *err);

/* Parse batches from *position on into rows[0..capacity); returns how many, and moves *position
 * after the last of them.  Stops early at a batch that does not parse, err says why: a partial
 * one at the end gives KC_TRUNCATED, the end of the buffer or a full table KC_OK.  With
 * KC_WALK_CHECK_CRC a wrong CRC comes before all other complaints, and an impossible offset or count
 * under a right CRC is KC_INVALID_RECORD: its maker broke the rule, not the way here (VAL-10). */
int64_t kc_batch_walk(const uint8_t *buf, int64_t end, int64_t *position, int flags, kc_batch *rows,
                      int64_t capacity, kc_error *err);

/* Write the header of a new batch of magic 2, of batch->size bytes to p, whose records are in place after it; computes
 * the CRC, into the batch too.  batch->position and magic are not looked at. */
void kc_batch_write_header(uint8_t *p, kc_batch *batch);

/* Give a checked batch its final place in the log: base offset and leader epoch, neither of which the CRC covers.
 * Magic 0 and 1 have no epoch, and of the offsets just the last; the caller has set batch->base_offset below it by
 * the number of messages in a wrapper, less one. */
void kc_batch_assign(uint8_t *buf, kc_batch *batch, int64_t base_offset, int32_t leader_epoch);

/* Set the type bit and the max timestamp (LogAppendTime topics); the CRC is recomputed.  Magic 0 has neither. */
void kc_batch_set_log_append_time(uint8_t *buf, kc_batch *batch, int64_t timestamp);

/* Bring the max timestamp in the bytes to batch->max_timestamp; the CRC is recomputed if they differed. */
void kc_batch_sync_max_timestamp(uint8_t *buf, kc_batch *batch);

#endif
