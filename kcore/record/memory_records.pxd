from libc.stdint cimport int64_t, uint8_t

from kcore.record.record_batch cimport RecordBatch, kc_batch


cdef class BatchTable:
    cdef kc_batch *rows
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef const uint8_t *data      # the buffer's first byte; NULL when only headers were kept
    cdef int64_t base_position    # rows[i].position - base_position counts from data
    cdef object owner             # the memoryview that data points into, None without data
    cdef str source

    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef RecordBatch batch(self, Py_ssize_t index)


cdef class MemoryRecords:
    cdef readonly bint readonly
    cdef readonly BatchTable batches
    cdef readonly Py_ssize_t valid_bytes
    cdef readonly str source

    cdef int _walk(self, int64_t end, int flags) except -1
    cdef uint8_t *writable_data(self) except NULL
