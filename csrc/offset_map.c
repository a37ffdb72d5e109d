#include "offset_map.h"

#include <string.h>

enum { GROUP = 32 }; /* keys whose slots are fetched while the others are hashed */

static inline uint64_t rotate(uint64_t v, int bits) { return v << bits | v >> (64 - bits); }

#define SIP_ROUND()                                                                                    \
    do {                                                                                               \
        v0 += v1, v1 = rotate(v1, 13) ^ v0, v0 = rotate(v0, 32);                                       \
        v2 += v3, v3 = rotate(v3, 16) ^ v2;                                                            \
        v0 += v3, v3 = rotate(v3, 21) ^ v0;                                                            \
        v2 += v1, v1 = rotate(v1, 17) ^ v2, v2 = rotate(v2, 32);                                       \
    } while (0)

static inline uint64_t load_le64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline void siphash128(const uint64_t secret[2], const uint8_t *p, int64_t size, uint64_t out[2]) {
    uint64_t k0 = secret[0], k1 = secret[1];
    uint64_t v0 = 0x736f6d6570736575u ^ k0, v1 = 0x646f72616e646f6du ^ k1 ^ 0xee;
    uint64_t v2 = 0x6c7967656e657261u ^ k0, v3 = 0x7465646279746573u ^ k1;
    uint64_t last = (uint64_t)size << 56, word;
    for (; size >= 8; p += 8, size -= 8) {
        word = load_le64(p);
        v3 ^= word;
        SIP_ROUND();
        SIP_ROUND();
        v0 ^= word;
    }
    for (int64_t i = 0; i < size; i++) last |= (uint64_t)p[i] << (8 * i);
    v3 ^= last;
    SIP_ROUND();
    SIP_ROUND();
    v0 ^= last;
    v2 ^= 0xee;
    for (int i = 0; i < 4; i++) SIP_ROUND();
    out[0] = v0 ^ v1 ^ v2 ^ v3;
    v1 ^= 0xdd;
    for (int i = 0; i < 4; i++) SIP_ROUND();
    out[1] = v0 ^ v1 ^ v2 ^ v3;
}

void kc_siphash128(const uint64_t secret[2], const uint8_t *data, int64_t size, uint64_t out[2]) {
    siphash128(secret, data, size, out);
}

int64_t kc_offset_map_get(const kc_offset_map *map, const uint8_t *key, int64_t size) {
    kc_key_hash hash = kc_offset_map_hash(map, key, size);
    const kc_offset_entry *entry = kc_offset_map_find(map, hash);
    return entry->hash.high | entry->hash.low ? entry->offset : -1;
}

/* 0 when the table is full: like Kafka's, it then takes no offset for a key it knows either. */
static int put(kc_offset_map *map, kc_key_hash hash, int64_t offset) {
    if (map->size >= map->limit) return 0;
    kc_offset_entry *entry = kc_offset_map_find(map, hash);
    if (!(entry->hash.high | entry->hash.low)) {
        entry->hash = hash;
        map->size++;
    }
    entry->offset = offset;
    map->latest_offset = offset;
    return 1;
}

int kc_offset_map_put(kc_offset_map *map, const uint8_t *key, int64_t size, int64_t offset) {
    return put(map, kc_offset_map_hash(map, key, size), offset);
}

void kc_offset_map_move(const kc_offset_map *from, kc_offset_map *to) {
    const kc_offset_entry *end = from->entries + from->slots;
    /* In the order of their hashes, which is that of the new slots too: both tables are walked once, front to back. */
    for (const kc_offset_entry *entry = from->entries; entry != end; entry++)
        if (entry->hash.high | entry->hash.low) *kc_offset_map_find(to, entry->hash) = *entry;
    to->size = from->size;
    to->latest_offset = from->latest_offset;
}

kc_status kc_offset_map_add_records(kc_offset_map *map, const kc_batch *batch, const uint8_t *payload, int64_t size,
                                    int64_t start_offset, int64_t *records, int *full, kc_error *err) {
    kc_record_cursor cursor = kc_record_cursor_at_start(payload, size, batch->count,
                                                        batch->last_offset - batch->base_offset, batch->base_timestamp);
    *full = 0;
    while (cursor.index < batch->count) {
        kc_key_hash hashes[GROUP];
        int64_t offsets[GROUP];
        int count = 0;
        int32_t first = cursor.index;
        while (count < GROUP && cursor.index < batch->count) {
            kc_record record;
            int64_t timestamp;
            kc_status status = kc_record_next(&cursor, &record, &timestamp, err);
            if (status) return status;
            int64_t offset = batch->base_offset + record.offset_delta;
            if (record.key_size < 0 || offset < start_offset) continue;
            hashes[count] = kc_offset_map_hash(map, record.key, record.key_size);
            __builtin_prefetch(kc_offset_map_home(map, hashes[count]), 1);
            offsets[count++] = offset;
        }
        for (int i = 0; i < count; i++)
            if (!put(map, hashes[i], offsets[i])) {
                *full = 1;
                return KC_OK;
            }
        *records += cursor.index - first;
    }
    return KC_OK;
}

int64_t kc_offset_map_add_batches(kc_offset_map *map, const kc_batch *rows, int64_t count, const uint8_t *buf,
                                  int64_t base_position, int64_t start_offset, int64_t *records, int *full,
                                  kc_error *err) {
    err->status = KC_OK;
    *full = 0;
    for (int64_t i = 0; i < count; i++) {
        const kc_batch *row = rows + i;
        if (row->magic != 2 || row->attributes & (KC_ATTR_CODEC_MASK | KC_ATTR_TRANSACTIONAL | KC_ATTR_CONTROL))
            return i;
        if (kc_offset_map_needs_room(map, row->count)) return i;
        const uint8_t *payload = buf + (row->position - base_position) + KC_BATCH_HEADER_SIZE;
        kc_status status = kc_offset_map_add_records(map, row, payload, row->size - KC_BATCH_HEADER_SIZE,
                                                     start_offset, records, full, err);
        if (status || *full) return i;
        if (row->last_offset >= start_offset) map->latest_offset = row->last_offset;
    }
    return count;
}
