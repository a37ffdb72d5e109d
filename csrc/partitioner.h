/* csrc/partitioner.h -- which partition a record goes to, and records by partition.
 *
 * A record with a key goes where Kafka's Java producer sends it by default: murmur2 of the key's bytes, without its
 * sign bit, modulo the number of partitions.  (librdkafka's default is CRC-32; its "murmur2" is this.)
 * Nothing here allocates, locks, or knows about Python.
 * Source: Utils.murmur2 and BuiltInPartitioner.partitionForKey, Kafka 2.4-4.x. */
#ifndef KC_PARTITIONER_H
#define KC_PARTITIONER_H

#include <stdint.h>

#include "record_columns.h"
#include "status.h"

/* MurmurHash2 with Kafka's seed. */
uint32_t kc_murmur2(const uint8_t *data, int64_t size);

/* Fill partition[0..count): assigned[i] where that is not negative (assigned may be NULL); else by the key; without one
 * in turn, from *next on, which moves.  key->position NULL: no record has a key.  partitions > 0, *next in [0, partitions).
 * KC_INVALID_ARGUMENT for an assigned partition that does not exist (err->position: which record; expected: the number
 * of partitions) and for an extent outside its data. */
kc_status kc_assign_partitions(const kc_extents *key, int64_t count, const int32_t *assigned, int32_t partitions,
                               int32_t *next, int32_t *partition, kc_error *err);

/* The numbers of partition p's records, in their order, are order[starts[p]..starts[p + 1]); starts has partitions + 1
 * places.  Every partition[i] is in [0, partitions). */
void kc_group_by_partition(const int32_t *partition, int64_t count, int32_t partitions, int64_t *starts,
                           int64_t *order);

#endif
