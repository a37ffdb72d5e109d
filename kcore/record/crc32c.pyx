"""CRC-32C (Castagnoli) with run-time dispatch to the fastest kernel this CPU has."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t


cdef extern from "crc32c.h" nogil:
    ctypedef uint32_t (*kc_crc32c_function)(uint32_t value, const uint8_t *data, size_t size)

    ctypedef struct kc_crc32c_kernel:
        const char *name
        kc_crc32c_function function

    uint32_t kc_crc32c(uint32_t value, const uint8_t *data, size_t size)
    const kc_crc32c_kernel *kc_crc32c_kernels(int *count)


# 1 MiB takes some 20 us: below that the hand-off of the GIL costs more than it gives.
cdef Py_ssize_t NOGIL_BYTES = 1024 * 1024


def crc32c(data, uint32_t value=0):
    """The CRC-32C of bytes whose first part has the CRC `value` (0 for none) and whose rest is data.

    data: contiguous bytes-like.  Raises BufferError or TypeError for anything else, OverflowError for a value
    outside [0, 2**32).  Releases the GIL for 1 MiB and more.
    """
    if PyBytes_CheckExact(data) and PyBytes_GET_SIZE(data) < NOGIL_BYTES:
        return kc_crc32c(value, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return _crc_of_buffer(kc_crc32c, data, value)


cdef uint32_t _crc_of_buffer(kc_crc32c_function function, data, uint32_t value) except? 0:
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len < NOGIL_BYTES:
        value = function(value, <const uint8_t *>view.buf, view.len)
    else:
        with nogil:
            value = function(value, <const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return value


def kernels():
    """Names of the kernels that can run here, fastest first: of "avx512", "sse42", "armv8", "table"."""
    cdef int count
    cdef const kc_crc32c_kernel *table = kc_crc32c_kernels(&count)
    return [table[i].name.decode() for i in range(count)]


def crc32c_with(str kernel, data, uint32_t value=0):
    """crc32c() by one kernel, for tests and benchmarks.  ValueError for a kernel that cannot run here."""
    cdef int count
    cdef const kc_crc32c_kernel *table = kc_crc32c_kernels(&count)
    for i in range(count):
        if table[i].name.decode() == kernel:
            return _crc_of_buffer(table[i].function, data, value)
    raise ValueError(f"kernel {kernel!r} cannot run here, {', '.join(kernels())} can")
