/* csrc/partitioner.c -- see partitioner.h */
#include "partitioner.h"

#include <string.h>

static inline uint32_t load_le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint32_t kc_murmur2(const uint8_t *data, int64_t size) {
    const uint32_t m = 0x5bd1e995;
    uint32_t h = 0x9747b28cu ^ (uint32_t)size;
    int64_t at = 0;
    for (; size - at >= 4; at += 4) {
        uint32_t k = load_le32(data + at) * m;
        h = h * m ^ (k ^ k >> 24) * m;
    }
    if (at < size) {
        for (int64_t i = size - 1; i >= at; i--) h ^= (uint32_t)data[i] << 8 * (i - at);
        h *= m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

kc_status kc_assign_partitions(const kc_extents *key, int64_t count, const int32_t *assigned, int32_t partitions,
                               int32_t *next, int32_t *partition, kc_error *err) {
    int32_t turn = *next;
    for (int64_t i = 0; i < count; i++) {
        if (assigned != NULL && assigned[i] >= 0) {
            if (assigned[i] >= partitions)
                return kc_fail(err, KC_INVALID_ARGUMENT, "partition", i, partitions, assigned[i]);
            partition[i] = assigned[i];
        } else if (key->position != NULL && key->size[i] >= 0) {
            int64_t at = key->position[i], size = key->size[i];
            if (at < 0 || at > key->data_size || size > key->data_size - at)
                return kc_fail(err, KC_INVALID_ARGUMENT, "end of a key", i, key->data_size, at);
            partition[i] = (int32_t)((kc_murmur2(key->data + at, size) & INT32_MAX) % (uint32_t)partitions);
        } else {
            partition[i] = turn;
            turn = turn + 1 == partitions ? 0 : turn + 1;
        }
    }
    *next = turn;
    return KC_OK;
}

void kc_group_by_partition(const int32_t *partition, int64_t count, int32_t partitions, int64_t *starts,
                           int64_t *order) {
    memset(starts, 0, ((size_t)partitions + 1) * sizeof *starts);
    for (int64_t i = 0; i < count; i++) starts[partition[i] + 1]++;
    for (int32_t p = 0; p < partitions; p++) starts[p + 1] += starts[p];
    /* starts[p] runs ahead to where p ends, which is where p + 1 began: so they are one place too low at the end. */
    for (int64_t i = 0; i < count; i++) order[starts[partition[i]]++] = i;
    memmove(starts + 1, starts, (size_t)partitions * sizeof *starts);
    starts[0] = 0;
}
