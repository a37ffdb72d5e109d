from libc.stdint cimport int64_t


cdef extern from "status.h" nogil:
    ctypedef enum kc_status:
        KC_OK
        KC_TRUNCATED
        KC_CORRUPT
        KC_UNSUPPORTED_MAGIC
        KC_INVALID_RECORD
        KC_INVALID_TIMESTAMP
        KC_INDEX_FULL
        KC_INVALID_OFFSET
        KC_OFFSET_OVERFLOW
        KC_CORRUPT_INDEX
        KC_IO
        KC_INVALID_ARGUMENT
        KC_NO_MEMORY

    ctypedef struct kc_error:
        kc_status status
        const char *what
        int64_t position
        int64_t expected
        int64_t actual

    kc_status kc_fail(kc_error *err, kc_status status, const char *what, int64_t position, int64_t expected,
                      int64_t actual)


cdef int raise_status(const kc_error *err, object source, object offset=*) except -1
