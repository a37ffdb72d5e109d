from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.log.abstract_index cimport AbstractIndex


cdef extern from "offset_index.h" nogil:
    int KC_OFFSET_INDEX_ENTRY_SIZE
    int32_t kc_offset_index_relative_offset(const uint8_t *entries, int64_t slot)
    int32_t kc_offset_index_position(const uint8_t *entries, int64_t slot)
    void kc_offset_index_put(uint8_t *entries, int64_t slot, int32_t relative_offset, int32_t position)
    int64_t kc_offset_index_floor(const uint8_t *entries, int64_t count, int64_t target)
    int64_t kc_offset_index_ceiling_position(const uint8_t *entries, int64_t count, int64_t target)


cdef class OffsetIndex(AbstractIndex):
    cdef int floor_entry(self, int64_t target_offset, int64_t *offset, int64_t *position) except -1
    cdef int64_t position_at_or_after(self, int64_t position) except -1
    cdef int64_t get_last_offset(self) except? -1
