from libc.stdint cimport int64_t, uint8_t, uint64_t

from kcore.common.status cimport kc_error, kc_status
from kcore.record.record_batch cimport RecordBatch, kc_batch


cdef extern from "offset_map.h" nogil:
    ctypedef struct kc_offset_entry:
        int64_t offset

    ctypedef struct kc_offset_map:
        kc_offset_entry *entries
        int64_t slots
        int64_t limit
        int64_t roomy
        int64_t size
        int64_t latest_offset
        uint64_t[2] secret

    void kc_siphash128(const uint64_t *secret, const uint8_t *data, int64_t size, uint64_t *out)
    void kc_offset_map_move(const kc_offset_map *start, kc_offset_map *to)
    bint kc_offset_map_needs_room(const kc_offset_map *map, int64_t count)
    int64_t kc_offset_map_get(const kc_offset_map *map, const uint8_t *key, int64_t size)
    int kc_offset_map_put(kc_offset_map *map, const uint8_t *key, int64_t size, int64_t offset)
    kc_status kc_offset_map_add_records(kc_offset_map *map, const kc_batch *batch, const uint8_t *payload,
                                        int64_t size, int64_t start_offset, int64_t *records, int *full,
                                        kc_error *err)
    int64_t kc_offset_map_add_batches(kc_offset_map *map, const kc_batch *rows, int64_t count, const uint8_t *buf,
                                      int64_t base_position, int64_t start_offset, int64_t *records, int *full,
                                      kc_error *err)


cdef class OffsetMap:
    cdef kc_offset_map map
    cdef readonly int64_t max_slots
    cdef double _load_factor

    cdef int _take_table(self, kc_offset_map *map, int64_t slots) except -1
    cdef int _make_room(self, int64_t count) except -1
    cdef int _check_cleared(self) except -1
    cdef int _add_special(self, RecordBatch batch, int64_t start_offset, transactions, int64_t *read) except -1
