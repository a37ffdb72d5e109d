from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.log.abstract_index cimport AbstractIndex


cdef extern from "time_index.h" nogil:
    enum:
        KC_TIME_INDEX_ENTRY_SIZE
    int64_t kc_time_index_timestamp(const uint8_t *entries, int64_t slot)
    int32_t kc_time_index_relative_offset(const uint8_t *entries, int64_t slot)
    void kc_time_index_put(uint8_t *entries, int64_t slot, int64_t timestamp, int32_t relative_offset)
    int64_t kc_time_index_floor(const uint8_t *entries, int64_t count, int64_t target)
    int64_t kc_time_index_count_below(const uint8_t *entries, int64_t count, int64_t target)


cdef class TimeIndex(AbstractIndex):
    cdef int get_last(self, int64_t *timestamp, int64_t *offset) except -1
    cdef int64_t floor_offset(self, int64_t timestamp) except? -1
    cdef int add(self, int64_t timestamp, int64_t offset, bint skip_full_check) except -1
