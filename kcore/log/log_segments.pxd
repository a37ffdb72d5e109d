from libc.stdint cimport int64_t

from kcore.log.log_segment cimport LogSegment


cdef class LogSegments:
    cdef tuple _view                  # ([base offsets], [segments]), replaced as one
    cdef readonly LogSegment active   # the last segment, the only one written to; None in an empty list

    cdef int _set(self, list segments) except -1
    cdef LogSegment find_floor(self, int64_t offset)
