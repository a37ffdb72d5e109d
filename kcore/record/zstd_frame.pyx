# cython: freethreading_compatible = True
"""How much room a zstd frame needs, so that the library can unpack it in one go; see csrc/zstd_frame.h."""

from libc.stdint cimport int64_t, uint8_t


cdef extern from "zstd_frame.h" nogil:
    int64_t kc_zstd_most(const uint8_t *data, int64_t size)


def most_unpacked(const uint8_t[::1] data not None):
    """The most bytes that can come out of data, which is one whole frame; -1 when it is anything else."""
    return kc_zstd_most(&data[0], data.shape[0]) if data.shape[0] else -1
