from libc.stdint cimport int64_t, uint8_t

from kcore.common.file cimport Window
from kcore.common.status cimport kc_error, kc_status
from kcore.record.columns cimport BinaryColumn, RecordColumns, kc_columns
from kcore.record.memory_records cimport BatchTable
from kcore.record.record_batch cimport kc_batch


cdef extern from "record_columns.h" nogil:
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

    int kc_batch_selected(const kc_batch *batch, const kc_selection *selection)
    kc_status kc_batches_check_order(const kc_batch *rows, int64_t count, int64_t previous, int64_t bound,
                                     kc_error *err)
    kc_status kc_columns_add(kc_columns *columns, const kc_batch *batch, const uint8_t *data, int64_t position,
                             int64_t size, const kc_selection *selection, kc_error *err)


cdef class ColumnsReader:
    cdef kc_selection selection
    cdef kc_aborted *aborted
    cdef int64_t aborted_count
    cdef int wanted
    cdef bint check_crc
    cdef str source
    cdef readonly int64_t previous   # last offset of the last batch that was read, -1 before the first
    cdef public int64_t position     # after that batch
    cdef Window window               # what batches of a foreign file are read into

    cdef RecordColumns of_rows(self, BatchTable table, int64_t max_bytes)
    cdef RecordColumns _unpacked(self, BatchTable table, BatchTable chosen, int64_t max_bytes)
    cdef object _arena(self, BatchTable table, BatchTable chosen, int64_t max_bytes, int64_t *position, int64_t *size)
    cdef RecordColumns _read(self, BatchTable chosen, positions, sizes, const uint8_t *data, int64_t data_size, owner,
                             bint unpacked)
    cdef int _refuse(self, const kc_batch *row, kc_error *err, bint unpacked) except -1
    cdef RecordColumns of_log(self, const uint8_t *data, int64_t position, int64_t size, int64_t bound,
                              int64_t max_bytes, str source)
    cpdef RecordColumns nothing(self)
