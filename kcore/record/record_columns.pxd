from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport kc_batch


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

    ctypedef struct kc_aborted:
        int64_t producer_id
        int64_t first_offset
        int64_t last_offset

    ctypedef struct kc_selection:
        int64_t start
        int64_t end
        int64_t from_time
        int64_t to_time
        int keep_control
        const kc_aborted *aborted
        int64_t aborted_count

    ctypedef struct kc_batch_limits:
        int64_t max_bytes
        int64_t max_records

    int kc_batch_selected(const kc_batch *batch, const kc_selection *selection)
    kc_status kc_batches_check_order(const kc_batch *rows, int64_t count, int64_t previous, int64_t bound,
                                     kc_error *err)
    kc_status kc_columns_add(kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position,
                             int64_t size, const kc_selection *selection, kc_error *err)
    int64_t kc_extents_bytes(const int32_t *size, int64_t count, int64_t *nulls)
    void kc_gather(const kc_extents *extents, int64_t count, int32_t *offsets, uint8_t *bytes, uint8_t *valid)
    kc_status kc_headers_expand(const kc_extents *headers, const int32_t *header_count, int64_t count,
                                kc_extents *key, kc_extents *value, kc_error *err)
    kc_status kc_extents_of_offsets(const int32_t *offsets, const uint8_t *valid, int64_t valid_offset,
                                    int64_t count, kc_extents *to, kc_error *err)
    int64_t kc_headers_encode(const int32_t *list, int64_t count, const kc_extents *key, const kc_extents *value,
                              kc_extents *to, int32_t *header_count, uint8_t *bytes)
    kc_status kc_batch_plan(const kc_columns *columns, int64_t first, int64_t next_offset,
                            const kc_batch_limits *limits, kc_batch *batch, kc_error *err)
    void kc_batch_write_records(const kc_columns *columns, int64_t first, const kc_batch *batch, uint8_t *p)


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


cdef class ColumnsReader:
    cdef kc_selection selection
    cdef kc_aborted *aborted
    cdef int64_t aborted_count
    cdef int wanted
    cdef bint check_crc
    cdef str source
    cdef readonly int64_t previous   # last offset of the last batch that was read, -1 before the first
    cdef public int64_t position     # behind that batch

    cdef RecordColumns of_rows(self, BatchTable table, int64_t max_bytes)
    cdef RecordColumns _unpacked(self, BatchTable table, BatchTable chosen, int64_t max_bytes)
    cdef object _arena(self, BatchTable table, BatchTable chosen, int64_t max_bytes, int64_t *position, int64_t *size)
    cdef RecordColumns _read(self, BatchTable chosen, positions, sizes, const uint8_t *data, int64_t data_size, owner,
                             bint unpacked)
    cdef int _refuse(self, const kc_batch *row, kc_error *err, bint unpacked) except -1
    cdef RecordColumns of_log(self, const uint8_t *log, int64_t position, int64_t end, int64_t bound,
                              int64_t max_bytes, str source)
    cpdef RecordColumns nothing(self)
