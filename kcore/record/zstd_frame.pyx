"""How much room a zstd frame needs, so that the library can unpack it in one go; see csrc/zstd_frame.h."""

from cpython.bytearray cimport PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t


cdef extern from "zstd_frame.h" nogil:
    int64_t kc_zstd_most(const uint8_t *data, int64_t size)


def most_unpacked(data):
    """The most bytes that can come out of data, which is one whole frame; -1 for all that is not to be unpacked in one
    go."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    most = kc_zstd_most(<const uint8_t *>view.buf, view.len)
    PyBuffer_Release(&view)
    return most


def uninitialized(Py_ssize_t size):
    """A bytearray of that many bytes with any values: bytearray(size) would write to all its pages."""
    return PyByteArray_FromStringAndSize(NULL, size)
