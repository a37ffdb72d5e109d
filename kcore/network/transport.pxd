from libc.stdint cimport int64_t, uint8_t


cdef extern from *:
    """
    #include <sys/uio.h>
    """
    struct iovec:
        void *iov_base
        size_t iov_len


cdef class Transport:
    cdef readonly object sock
    cdef readonly int fd
    cdef readonly bint sends_mappings
    cdef public bint is_ready, wants_write, has_buffered
    cdef public object peer_principal

    cdef Py_ssize_t receive(self, uint8_t *target, Py_ssize_t size) except -2
    cdef Py_ssize_t send(self, iovec *parts, int count, int64_t total, bint more, bint may_wait) except -4
    cdef int64_t send_file(self, object chunk, int64_t offset) except -2
    cdef bint peer_has_closed(self) except -1


cdef class PythonTransport(Transport):
    cdef Py_ssize_t _call(self, method, data, Py_ssize_t size) except -2
