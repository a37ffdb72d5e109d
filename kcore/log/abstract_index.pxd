from libc.stdint cimport int32_t, int64_t, uint8_t

from kcore.common.file cimport File, Mapping


cdef class AbstractIndex:
    cdef readonly str path
    cdef readonly int64_t base_offset
    cdef readonly bint writable       # a mapped file; otherwise private memory
    cdef bint in_memory               # without a file: rebuilt for a reader that may not write one
    cdef bint closed
    cdef int entry_size
    cdef uint8_t *slots               # NULL until first used
    cdef int64_t count                # slots in use
    cdef int64_t limit                # slots there may be
    cdef int64_t file_size            # of the file as this object left it
    cdef int64_t backed               # entries may be stored below it: from slot `count` on, pages have blocks
    cdef bint has_hole                # seen at loading; the slots from there on are left out
    cdef uint8_t *private             # slots, when they are memory of our own
    cdef Mapping _mapping             # what slots points into otherwise
    cdef str moving_to                # the new name, while a rename is under way

    cdef int load(self) except -1
    cdef int unmap(self) except -1
    cdef int leave_out_holes(self, File file) except -1
    cdef int copy_slots(self, File file, int64_t first, int64_t count, uint8_t *slots) except -1
    cdef int check_writable(self) except -1
    cdef File _file(self)
    cdef int reserve(self, int64_t entries) except -1
    cdef int keep(self, int64_t count) except -1
    cdef int32_t relative(self, int64_t offset) except -1
    cdef int replace(self, const uint8_t *slots, int64_t count) except -1
    cdef int rename(self, str path) except -1
    cdef int _slot(self, int64_t n) except -1
    cdef bint _set_file_size(self, int64_t size) except -1
    cdef int _check_length(self) except -1
    cdef int _check_no_hole(self) except -1
