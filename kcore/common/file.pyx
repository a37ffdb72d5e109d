"""An open file and its mapping, shared by a segment and the slices cut from it; faults for tests.

Every system call goes through csrc/file.h, so that tests can let it fail; and no other module calls that, because
each extension module carries its own copy of csrc and with it of the table of calls.
"""

import errno
import os

from kcore.common.status cimport KC_OK, KC_TRUNCATED, kc_error, kc_status, raise_status

# From here on a write to the page cache (some 10 us) outlasts the hand-off of the GIL, which can cost a whole
# switch interval when another thread is busy.
cdef int64_t NOGIL_BYTES = 64 * 1024


cdef extern from "file.h" nogil:
    int kc_file_open(const char *path, int writable, int create, kc_error *err)
    void kc_file_close(int fd)
    int64_t kc_file_size(int fd, kc_error *err)
    int64_t kc_file_read(int fd, uint8_t *buf, int64_t size, int64_t position, kc_error *err)
    kc_status kc_file_append(int fd, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err)
    kc_status kc_file_write(int fd, const uint8_t *buf, int64_t size, int64_t position, kc_error *err)
    kc_status kc_file_truncate(int fd, int64_t size, kc_error *err)
    kc_status kc_file_sync(int fd, kc_error *err)
    uint8_t *kc_file_map(int fd, int64_t size, int writable, kc_error *err)
    void kc_file_unmap(uint8_t *map, int64_t size)
    kc_status kc_file_sync_map(uint8_t *map, int64_t size, kc_error *err)
    void kc_file_populate(const uint8_t *map, int64_t position, int64_t size)
    int64_t kc_file_send(int socket, int fd, const uint8_t *map, int64_t position, int64_t size, kc_error *err)


cdef extern from "file_faults.h" nogil:
    ctypedef enum kc_file_call:
        KC_CALL_PREAD
        KC_CALL_PWRITE
        KC_CALL_FTRUNCATE
        KC_CALL_FSYNC
        KC_CALL_MSYNC
    void kc_file_fail_next(kc_file_call call, int error, int64_t after_bytes, int64_t times)
    void kc_file_clear_faults()
    int64_t kc_file_calls(kc_file_call call)
    void kc_file_count_calls()


cdef class Mapping:
    """Bytes [0, size) of a file in memory for as long as somebody holds this object.

    The file may be shorter: whoever reads must stop at its end, or the process dies of SIGBUS.
    """

    def __dealloc__(self):
        if self.data != NULL:
            kc_file_unmap(self.data, self.size)

    cdef int sync(self, int64_t size) except -1:
        """Write changed pages of [0, size) to the disk; releases the GIL."""
        cdef kc_error err
        cdef kc_status status
        with nogil:
            status = kc_file_sync_map(self.data, size, &err)
        return raise_status(&err, self.path) if status != KC_OK else 0


cdef void populate(Mapping mapping, int64_t position, int64_t size) noexcept nogil:
    """Have these bytes of the mapping in place, which must lie within the file; only for speed, and only once."""
    if size > 0 and position + size > mapping.populated:
        kc_file_populate(mapping.data, position, size)
        mapping.populated = position + size


cdef class File:
    """An open file, closed when the last holder lets go of it: a segment can be deleted while slices of it
    are still being sent.  Reads are thread-safe; writes are serialised by the owner.

    Raises OSError (FileNotFoundError without `create`).
    """

    def __cinit__(self, str path, *, bint writable=False, bint create=False):
        cdef kc_error err
        self.fd = -1
        self.path = path
        self.writable = writable
        self.fd = kc_file_open(os.fsencode(path), writable, create, &err)
        if self.fd < 0:
            raise_status(&err, path)

    def __dealloc__(self):
        if self.fd >= 0:
            kc_file_close(self.fd)

    def fileno(self):
        return self.fd

    @property
    def size(self):
        return self.length()

    cdef int64_t length(self) except -1:
        cdef kc_error err
        cdef int64_t size = kc_file_size(self.fd, &err)
        if size < 0:
            raise_status(&err, self.path)
        return size

    cdef Mapping new_mapping(self, int64_t size, bint writable):
        cdef kc_error err
        cdef Mapping mapping = Mapping.__new__(Mapping)
        mapping.path = self.path
        mapping.data = kc_file_map(self.fd, size, writable, &err)
        if mapping.data == NULL:
            raise_status(&err, self.path)
        mapping.size = size
        return mapping

    cdef Mapping map(self, int64_t size):
        """A read-only mapping of at least `size` bytes; a new one covers `reserve`, so that a file that grows
        is mapped once.  Who read through the old one keeps it alive until it is done."""
        if self._mapping is None or self._mapping.size < size:
            self._mapping = self.new_mapping(max(size, self.reserve, 1), False)
        return self._mapping

    cdef int64_t read_into(self, uint8_t *buf, int64_t size, int64_t position) except -1:
        """Bytes read, fewer than size only at the end of the file.  Releases the GIL: it may wait for a disk."""
        cdef kc_error err
        cdef int64_t n
        with nogil:
            n = kc_file_read(self.fd, buf, size, position, &err)
        if n < 0:
            raise_status(&err, self.path)
        return n

    cdef int append(self, const uint8_t *buf, int64_t size, int64_t position, int *cut) except -1:
        """Write all of buf at the end of the file, with one pwrite; on failure the file is cut back, and *cut says
        whether that worked.  Releases the GIL from 64 KiB on."""
        cdef kc_error err
        cdef kc_status status
        if size < NOGIL_BYTES:
            status = kc_file_append(self.fd, buf, size, position, cut, &err)
        else:
            with nogil:
                status = kc_file_append(self.fd, buf, size, position, cut, &err)
        return raise_status(&err, self.path) if status != KC_OK else 0

    cdef int write(self, const uint8_t *buf, int64_t size, int64_t position) except -1:
        cdef kc_error err
        if kc_file_write(self.fd, buf, size, position, &err) != KC_OK:
            raise_status(&err, self.path)
        return 0

    cdef int64_t send(self, int socket, Mapping mapping, int64_t position, int64_t size) except -1:
        """Bytes sent to a non-blocking socket, 0 when it would block.  OSError, EIO when the file was cut."""
        cdef kc_error err
        cdef int64_t n
        cdef const uint8_t *data = NULL if mapping is None else mapping.data
        with nogil:
            n = kc_file_send(socket, self.fd, data, position, size, &err)
        if n >= 0:
            return n
        if err.status == KC_TRUNCATED:
            raise OSError(errno.EIO, f"the file ends before position {position}", self.path)
        raise_status(&err, self.path)

    cdef int truncate(self, int64_t size) except -1:
        cdef kc_error err
        cdef kc_status status
        with nogil:
            status = kc_file_truncate(self.fd, size, &err)
        return raise_status(&err, self.path) if status != KC_OK else 0

    cdef int sync(self) except -1:
        cdef kc_error err
        cdef kc_status status
        with nogil:
            status = kc_file_sync(self.fd, &err)
        return raise_status(&err, self.path) if status != KC_OK else 0

    def __repr__(self):
        return f"File({self.path!r})"


cdef dict _CALLS = {
    "pread": KC_CALL_PREAD,
    "pwrite": KC_CALL_PWRITE,
    "ftruncate": KC_CALL_FTRUNCATE,
    "fsync": KC_CALL_FSYNC,
    "msync": KC_CALL_MSYNC,
}


def fail_next(str call, int error, *, int64_t after_bytes=0, int64_t times=1):
    """For tests: the next `times` such calls on a log's files fail with `error` once after_bytes bytes went
    through (in a call that comes back short).  error 0: only the short call.  Process-wide; one fault
    per kind of call; ends with clear_faults()."""
    kc_file_fail_next(_CALLS[call], error, after_bytes, times)


def count_calls():
    """For tests: calls() counts from here, nothing fails."""
    kc_file_count_calls()


def calls(str call):
    """How many such calls were made since count_calls() or the first fault."""
    return kc_file_calls(_CALLS[call])


def clear_faults():
    """Back to plain system calls."""
    kc_file_clear_faults()
