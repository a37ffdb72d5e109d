from libc.stdint cimport int64_t

from kcore.common.file cimport File


cdef class FileRecords:
    cdef File file
    cdef readonly int64_t position
    cdef readonly int64_t size_in_bytes


cdef FileRecords make_file_records(File file, int64_t position, int64_t size)
