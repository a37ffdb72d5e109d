from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status


cdef extern from "record_columns.h" nogil:
    int KC_COPY_SLACK

    ctypedef struct kc_extents:
        const uint8_t *data
        int64_t data_size
        int64_t *position
        int32_t *size

    ctypedef struct kc_columns:
        int64_t count
        int64_t capacity
        int64_t *offset
        int64_t *timestamp
        kc_extents key
        kc_extents value
        kc_extents headers
        int32_t *header_count

    int64_t kc_extents_bytes(const int32_t *size, int64_t count, int64_t *nulls)
    void kc_gather(const kc_extents *extents, int64_t count, int32_t *offsets, uint8_t *bytes, uint8_t *valid)
    kc_status kc_headers_expand(const kc_extents *headers, const int32_t *header_count, int64_t count,
                                kc_extents *key, kc_extents *value, kc_error *err)
    kc_status kc_extents_of_offsets(const int32_t *offsets, const uint8_t *valid, int64_t valid_offset,
                                    int64_t count, kc_extents *to, kc_error *err)
    int64_t kc_headers_encode(const int32_t *list, int64_t count, const kc_extents *key, const kc_extents *value,
                              kc_extents *to, int32_t *header_count, uint8_t *bytes)


cdef class BinaryColumn:
    cdef kc_extents extents
    cdef object owner           # keeps extents.data alive; None while that is borrowed, then detach() comes
    cdef readonly object position
    cdef readonly object size
    cdef object gathered        # what gather() returned for the whole column, once detached

    cdef int detach(self) except -1


cdef class RecordColumns:
    cdef readonly object offset
    cdef readonly object timestamp
    cdef readonly BinaryColumn key
    cdef readonly BinaryColumn value
    cdef readonly BinaryColumn headers
    cdef readonly object header_count
    cdef readonly object batches
    cdef readonly object batch_records
    cdef Py_ssize_t count

    cdef int detach(self) except -1


cdef int64_t *int64s(array) except? NULL
cdef int32_t *int32s(array) except? NULL
cdef BinaryColumn column_at(const uint8_t *data, int64_t data_size, object owner, object position, object size)
