/* csrc/offset_map.h -- the cleaner's fixed-size table: key of a record -> the latest offset it was seen at.
 *
 * Keys are not stored, only a 128-bit hash of each, so an entry takes 24 bytes whatever the key's size (Kafka's
 * SkimpyOffsetMap does the same with MD5).  Two keys with one hash would make the cleaner drop a record that nothing
 * replaces, hence SipHash-2-4 with 128 bits under a secret key that the caller draws anew for each table: among
 * n keys the chance of any collision is n^2 / 2^129 (10^9 keys: 2 in 10^21), and without the secret nobody can
 * compute colliding keys beforehand, as anybody can for MD5.
 * Collisions of slots are resolved by linear probing: one cache line is missed, the next ones are prefetched.
 * Source: SipHash, Aumasson and Bernstein 2012; its 128-bit output is that of the reference implementation.
 * Nothing here allocates, locks, or knows about Python. */
#ifndef KC_OFFSET_MAP_H
#define KC_OFFSET_MAP_H

#include <stdint.h>

#include "record.h"
#include "record_batch.h"
#include "status.h"

typedef struct kc_key_hash {
    uint64_t high;
    uint64_t low;
} kc_key_hash;

typedef struct kc_offset_entry {
    kc_key_hash hash; /* both words 0: the slot is empty */
    int64_t offset;
} kc_offset_entry;

typedef struct kc_offset_map {
    kc_offset_entry *entries; /* `slots` of them, zeroed by the caller */
    int64_t slots;            /* > limit, so that a search always meets an empty slot */
    int64_t limit;            /* entries at which the table counts as full */
    int64_t roomy;            /* entries beyond which it should be moved to a larger one, INT64_MAX if there is none */
    int64_t size;
    int64_t latest_offset; /* -1 at first; everything up to it is in the table */
    uint64_t secret[2];
} kc_offset_map;

/* SipHash-2-4-128 of data[0..size). */
void kc_siphash128(const uint64_t secret[2], const uint8_t *data, int64_t size, uint64_t out[2]);

static inline kc_key_hash kc_offset_map_hash(const kc_offset_map *map, const uint8_t *key, int64_t size) {
    uint64_t words[2];
    kc_siphash128(map->secret, key, size, words);
    kc_key_hash hash = {words[0], words[1] | (words[0] == 0 && words[1] == 0)};
    return hash;
}

/* Where the search for a hash begins. */
static inline kc_offset_entry *kc_offset_map_home(const kc_offset_map *map, kc_key_hash hash) {
    return map->entries + (int64_t)((unsigned __int128)hash.high * (uint64_t)map->slots >> 64);
}

/* The entry of this hash, or the empty slot where it would go. */
static inline kc_offset_entry *kc_offset_map_find(const kc_offset_map *map, kc_key_hash hash) {
    kc_offset_entry *entry = kc_offset_map_home(map, hash), *end = map->entries + map->slots;
    while ((entry->hash.high | entry->hash.low) &&
           (entry->hash.high != hash.high || entry->hash.low != hash.low))
        if (++entry == end) entry = map->entries;
    return entry;
}

/* Offset of the key, -1 when it is not there. */
int64_t kc_offset_map_get(const kc_offset_map *map, const uint8_t *key, int64_t size);

/* Set the key's offset, which becomes the latest one; 0 and no change when the table is full. */
int kc_offset_map_put(kc_offset_map *map, const uint8_t *key, int64_t size, int64_t offset);

/* Copy all entries into a larger table whose fields but size and latest_offset are set; same secret. */
void kc_offset_map_move(const kc_offset_map *from, kc_offset_map *to);

/* Whether the keys of `count` more records should find a larger table first. */
static inline int kc_offset_map_needs_room(const kc_offset_map *map, int64_t count) {
    return count > map->roomy - map->size;
}

/* Put the keys of one batch, whose decompressed records are payload[0..size), with offsets from start_offset on;
 * records without a key are passed over.  Adds the records read to *records.  *full is 1 when the table was full
 * before a record, which then was not read; latest_offset is that of the last record put. */
kc_status kc_offset_map_add_records(kc_offset_map *map, const kc_batch *batch, const uint8_t *payload, int64_t size,
                                    int64_t start_offset, int64_t *records, int *full, kc_error *err);

/* The same for rows[0..count) of uncompressed data batches that no transaction wrote, which are in buf[0..end) at
 * their position - base_position; latest_offset follows the batches' last offsets.  Returns the first row that is
 * not such a batch, needs room, or could not be added: *full, or a status in err. */
int64_t kc_offset_map_add_batches(kc_offset_map *map, const kc_batch *rows, int64_t count, const uint8_t *buf,
                                  int64_t base_position, int64_t start_offset, int64_t *records, int *full,
                                  kc_error *err);

#endif
