"""Which partition a record goes to, as Kafka's Java producer decides by default, for whole columns."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from kcore.common.status cimport KC_OK, kc_error, kc_status
from kcore.record.columns cimport BinaryColumn, kc_extents


cdef extern from "partitioner.h" nogil:
    uint32_t kc_murmur2(const uint8_t *data, int64_t size)
    kc_status kc_assign_partitions(const kc_extents *key, int64_t count, const int32_t *assigned, int32_t partitions,
                                   int32_t *next, int32_t *partition, kc_error *err)
    void kc_group_by_partition(const int32_t *partition, int64_t count, int32_t partitions, int64_t *starts,
                               int64_t *order)


def murmur2(bytes key not None):
    """Kafka's murmur2 of a key, in [0, 2**32)."""
    return kc_murmur2(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


def partition_for_key(bytes key not None, int32_t partitions):
    """The partition of a record with this key, as Kafka's Java producer sends it.  ValueError without partitions."""
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    return (kc_murmur2(<const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF) % partitions


def assign_partitions(Py_ssize_t count, int32_t partitions, BinaryColumn key=None, assigned=None, int32_t turn=0):
    """(int32 array with the partition of each record, the turn of the next record without a key).

    assigned: int32 array of partitions, negative where the record has none of its own; then the key decides, and without
    one the partitions come in turn.  The GIL is released.
    Raises ValueError for a partition number of `partitions` or more, naming the record, and for arrays of other lengths.
    """
    import numpy as np

    cdef kc_extents keys
    cdef kc_error err
    cdef kc_status status
    cdef const int32_t[::1] wanted
    cdef int32_t[::1] partition
    cdef const int32_t *wanted_data = NULL
    if partitions < 1:
        raise ValueError(f"{partitions} partitions")
    if not 0 <= turn < partitions:
        raise ValueError(f"turn {turn} of {partitions} partitions")
    if key is not None and len(key) != count or assigned is not None and len(assigned) != count:
        raise ValueError(f"keys or partitions of another number of records than {count}")
    memset(&keys, 0, sizeof(keys))
    if key is not None:
        keys = key.extents
    partitions_of_records = np.empty(count, np.int32)
    if count == 0:
        return partitions_of_records, turn
    partition = partitions_of_records
    if assigned is not None:
        wanted = assigned
        wanted_data = &wanted[0]
    with nogil:
        status = kc_assign_partitions(&keys, count, wanted_data, partitions, &turn, &partition[0], &err)
    if status != KC_OK:
        raise ValueError(f"record {err.position}: {err.what.decode()} {err.actual}, there are {err.expected}")
    return partitions_of_records, turn


def group_by_partition(partition not None, int32_t partitions):
    """(int64 starts, int64 order): order[starts[p] : starts[p + 1]] are the numbers of partition p's records, in their
    order.  partition: int32 array.  The GIL is released.  Raises ValueError for a partition outside [0, partitions)."""
    import numpy as np

    cdef const int32_t[::1] wanted = partition
    cdef Py_ssize_t count = wanted.shape[0]
    if partitions < 1 or count and not (0 <= partition.min() and partition.max() < partitions):
        raise ValueError(f"a partition is outside [0, {partitions})")
    starts = np.zeros(partitions + 1, np.int64)
    order = np.empty(count, np.int64)
    cdef int64_t[::1] start_view = starts
    cdef int64_t[::1] order_view = order
    if count:
        with nogil:
            kc_group_by_partition(&wanted[0], count, partitions, &start_view[0], &order_view[0])
    return starts, order
