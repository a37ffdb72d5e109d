/* seeds: *.log
 * Wrong extents of keys: one outside the data is refused before it is read; the others get a partition that there
 * is, the same as the key's alone, and every record is in the group of its partition. */
#include "fuzz.h"
#include "partitioner.h"

enum { ROOM = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int64_t position[ROOM], starts[64 + 1], order[ROOM];
    static int32_t sizes[ROOM], assigned[ROOM], partition[ROOM];
    if (size < 8) return 0;
    int32_t partitions = 1 + data[0] % 64, next = data[1] % partitions, turn = next;
    int use_assigned = data[2] & 1;
    int64_t count = 0;
    for (size_t at = 3; count < ROOM && size - at >= 5; at += 5, count++) {
        position[count] = (int16_t)(data[at] << 8 | data[at + 1]) % 5000;
        sizes[count] = (int16_t)(data[at + 2] << 8 | data[at + 3]) % 300 - 1;
        assigned[count] = data[at + 4] % 70 - 3;
    }
    kc_extents key = {data, (int64_t)size, position, sizes};
    kc_error err;
    if (kc_assign_partitions(&key, count, use_assigned ? assigned : NULL, partitions, &next, partition, &err)) {
        int64_t i = err.position;
        REQUIRE(err.status == KC_INVALID_ARGUMENT && i >= 0 && i < count && next == turn);
        REQUIRE((use_assigned && assigned[i] >= partitions) || position[i] < 0 ||
                position[i] + (int64_t)sizes[i] > (int64_t)size);
        return 0;
    }
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(partition[i] >= 0 && partition[i] < partitions);
        if (!(use_assigned && assigned[i] >= 0) && sizes[i] >= 0)
            REQUIRE(partition[i] == (int32_t)((kc_murmur2(data + position[i], sizes[i]) & INT32_MAX) %
                                              (uint32_t)partitions));
    }
    kc_group_by_partition(partition, count, partitions, starts, order);
    REQUIRE(starts[0] == 0 && starts[partitions] == count);
    for (int32_t p = 0; p < partitions; p++)
        for (int64_t n = starts[p]; n < starts[p + 1]; n++) {
            REQUIRE(partition[order[n]] == p);
            REQUIRE(n == starts[p] || order[n - 1] < order[n]);
        }
    return 0;
}
