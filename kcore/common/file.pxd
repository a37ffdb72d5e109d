from libc.stdint cimport int64_t, uint8_t

from kcore.common.status cimport kc_error, kc_status


cdef class Mapping:
    cdef uint8_t *data
    cdef int64_t size
    cdef int64_t populated
    cdef str path

    cdef int sync(self, int64_t size) except -1


cdef class Window:
    cdef uint8_t *data
    cdef int64_t room

    cdef uint8_t *of(self, int64_t size) except NULL


cdef class File:
    cdef public str path      # follows renames; only for messages and for renames
    cdef readonly bint writable
    cdef int fd
    cdef int64_t reserve      # how long the file may become: what a mapping covers from the start
    cdef Mapping _mapping

    cdef int64_t length(self) except -1
    cdef int64_t first_hole(self, int64_t size) noexcept
    cdef Mapping new_mapping(self, int64_t size, bint writable)
    cdef Mapping map(self, int64_t size)
    cdef void unmap(self) noexcept
    cdef int64_t read_into(self, uint8_t *buf, int64_t size, int64_t position) except -1
    cdef kc_status append(self, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err) noexcept
    cdef int write(self, const uint8_t *buf, int64_t size, int64_t position) except -1
    cdef int64_t send(self, int socket, Mapping mapping, int64_t position, int64_t size) except -1
    cdef int truncate(self, int64_t size) except -1
    cdef int sync(self) except -1


cdef void populate(Mapping mapping, int64_t position, int64_t size) noexcept nogil

cdef int64_t file_size(str path) except -2
