"""Open files, shared by a segment and the slices cut from it; small files and names; faults for tests.

Every system call on a log directory goes through csrc/file.h, so that tests can let it fail; and no other module
calls that, because each extension module carries its own copy of csrc and with it of the table of calls.
"""

import errno
import logging
import os

from cpython.buffer cimport PyBuffer_IsContiguous
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from kcore.common.status cimport KC_OK, KC_TRUNCATED, kc_error, kc_status, raise_status

from kcore.errors import CorruptFile

# From here on a write to the page cache (some 10 us) outlasts the hand-off of the GIL, which can cost a whole
# switch interval when another thread is busy.
cdef int64_t NOGIL_BYTES = 64 * 1024

# A small file that is larger than this is none: nothing that kcore or Kafka writes whole comes near it.
cdef int64_t MAX_SMALL_FILE = 256 * 1024 * 1024

cdef tuple _NO_REGULAR_FILE = (errno.EISDIR, errno.EINVAL, errno.ENXIO, errno.ELOOP)

logger = logging.getLogger(__name__)


# os.fsencode and os.fsdecode without their Python frames: ten thousand partitions at start ask 180,000 times.
cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object path)
    str PyUnicode_DecodeFSDefault(const char *path)


cdef extern from "<sys/stat.h>" nogil:
    int S_ISDIR(unsigned int mode)
    int S_ISREG(unsigned int mode)
    struct c_stat "stat":
        unsigned int st_mode
        int64_t st_size
    int lstat(const char *path, c_stat *status)


cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass


cdef extern from "file.h" nogil:
    int KC_OPEN_READ
    int KC_OPEN_WRITE
    int KC_OPEN_CREATE
    int KC_OPEN_EMPTY
    int kc_file_open(const char *path, int how, kc_error *err)
    void kc_file_close(int fd)
    int64_t kc_file_size(int fd, kc_error *err)
    int64_t kc_file_first_hole(int fd, int64_t size)
    int64_t kc_file_read(int fd, uint8_t *buf, int64_t size, int64_t position, kc_error *err)
    kc_status kc_file_append(int fd, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err)
    kc_status kc_file_write(int fd, const uint8_t *buf, int64_t size, int64_t position, kc_error *err)
    kc_status kc_file_truncate(int fd, int64_t size, kc_error *err)
    kc_status kc_file_sync(int fd, kc_error *err)
    kc_status kc_file_sync_path(const char *path, kc_error *err)
    kc_status kc_file_status(const char *path, c_stat *status, kc_error *err)
    int64_t kc_file_modified_ms(const c_stat *status)
    kc_status kc_file_rename(const char *source, const char *target, kc_error *err)
    kc_status kc_file_unlink(const char *path, kc_error *err)
    kc_status kc_file_make_directory(const char *path, kc_error *err)
    kc_status kc_file_remove_directory(const char *path, kc_error *err)
    DIR *kc_file_open_directory(const char *path, kc_error *err)
    kc_status kc_file_next_name(DIR *directory, const char **name, kc_error *err)
    void kc_file_close_directory(DIR *directory)
    uint8_t *kc_file_map(int fd, int64_t size, int writable, kc_error *err)
    void kc_file_unmap(uint8_t *map, int64_t size)
    kc_status kc_file_sync_map(uint8_t *map, int64_t size, kc_error *err)
    void kc_file_populate(const uint8_t *map, int64_t position, int64_t size)
    int64_t kc_file_send(int socket, int fd, const uint8_t *map, int64_t position, int64_t size, kc_error *err)


cdef extern from "file_faults.h" nogil:
    ctypedef enum kc_file_call:
        pass
    ctypedef enum kc_file_effect:
        pass
    struct kc_file_fault:
        uint32_t calls
        int error
        int64_t skip
        int64_t times
        int64_t after_bytes
        uint64_t thread
        kc_file_effect effect
        int64_t wait_ms
        char under[512]
        char ending[16]
    int64_t kc_file_fail(const kc_file_fault *fault)
    int64_t kc_file_end_fault(int64_t id)
    int64_t kc_file_fault_hits(int64_t id)
    void kc_file_hold(kc_file_call call)
    void kc_file_clear_faults()
    int64_t kc_file_calls(kc_file_call call)
    void kc_file_count_calls()
    void kc_file_record(int fd)


cdef class Mapping:
    """Bytes [0, size) of a file in memory for as long as somebody holds this object.

    The file may be shorter: a reader must stop at its end, or the process dies of SIGBUS.
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
    """Have these bytes of the mapping in place, which must be within the file; only for speed, and only once."""
    if size > 0 and position + size > mapping.populated:
        kc_file_populate(mapping.data, position, size)
        mapping.populated = position + size


cdef class Window:
    """Memory of one reader for a part of a file that another process may cut at any time: File.read_into() fills it.  A
    mapping of such a file would end this process with SIGBUS."""

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *of(self, int64_t size) except NULL:
        """Memory of at least `size` bytes, at least one; what was in it is lost when it grows.  MemoryError."""
        if self.data == NULL or size > self.room:
            free(self.data)
            self.room = 0
            self.data = <uint8_t *>malloc(max(size, 1))
            if self.data == NULL:
                raise MemoryError(f"{size} bytes to read a part of a file into")
            self.room = size
        return self.data


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
        self.fd = kc_file_open(PyUnicode_EncodeFSDefault(path), KC_OPEN_WRITE * writable | KC_OPEN_CREATE * create, &err)
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

    cdef int64_t first_hole(self, int64_t size) noexcept:
        """Position of the first hole in [0, size); size if there is none."""
        return kc_file_first_hole(self.fd, size)

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
            if size > self.reserve > 0:
                # segment.bytes was raised after the segment was opened: not a new mapping after each append.
                self.reserve = 2 * size
            self._mapping = self.new_mapping(max(size, self.reserve, 1), False)
        return self._mapping

    cdef void unmap(self) noexcept:
        """Let go of the mapping; who reads through it keeps it until done, the next reader makes another."""
        self._mapping = None

    cdef int64_t read_into(self, uint8_t *buf, int64_t size, int64_t position) except -1:
        """Bytes read, fewer than size only at the end of the file.  Releases the GIL: it may wait for a disk."""
        cdef kc_error err
        cdef int64_t n
        with nogil:
            n = kc_file_read(self.fd, buf, size, position, &err)
        if n < 0:
            raise_status(&err, self.path)
        return n

    def read(self, int64_t position, int64_t size):
        """Bytes [position, position + size), as far as the file goes.  OSError."""
        cdef bytearray data = bytearray(size)
        cdef uint8_t[::1] buf = data
        cdef int64_t n = self.read_into(&buf[0], size, position) if size else 0
        return bytes(data[:n])

    cdef kc_status append(self, const uint8_t *buf, int64_t size, int64_t position, int *cut, kc_error *err) noexcept:
        """Write all of buf at the end of the file, with one pwrite; on failure the file is cut back, *cut says
        whether that worked, and *err what happened.  Releases the GIL from 64 KiB on."""
        cdef kc_status status
        if size < NOGIL_BYTES:
            return kc_file_append(self.fd, buf, size, position, cut, err)
        with nogil:
            status = kc_file_append(self.fd, buf, size, position, cut, err)
        return status

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
        """Holds the GIL where the file gets longer: no block is allocated then, and each hand-over of the GIL may cost
        whoever makes ten thousand indexes a switch interval."""
        cdef kc_error err
        cdef kc_status status
        if size > self.length():
            status = kc_file_truncate(self.fd, size, &err)
        else:
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


# -- small files and names: GIL released, they may wait for a disk ------------------------------------------------------

cdef int _open(str path, int how) except -1:
    cdef kc_error err
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *c_name = name
    cdef int fd
    with nogil:
        fd = kc_file_open(c_name, how, &err)
    if fd < 0:
        raise_status(&err, path)
    return fd


def read_file(str path):
    """All bytes of a small file.  Raises OSError; CorruptFile for one that is too large to be right, or is no regular
    file, and that at once, where a FIFO would wait for a writer."""
    cdef kc_error err
    cdef int64_t size, n = -1
    cdef bytes data
    cdef uint8_t *buf
    cdef int fd
    try:
        fd = _open(path, KC_OPEN_READ)
    except OSError as error:
        # (A link that leads nowhere is no missing file: who asks would take it for one that was never written.)
        if error.errno in _NO_REGULAR_FILE or (error.errno == errno.ENOENT and _is_there(path)):
            raise CorruptFile(f"{path}: no regular file") from None
        raise
    try:
        size = kc_file_size(fd, &err)
        if size < 0:
            raise_status(&err, path)
        if size > MAX_SMALL_FILE:
            raise CorruptFile(f"{path}: {size} bytes, no file of its kind has so many")
        data = PyBytes_FromStringAndSize(NULL, size)
        buf = <uint8_t *>PyBytes_AS_STRING(data)
        with nogil:
            n = kc_file_read(fd, buf, size, 0, &err)
        if n < 0:
            raise_status(&err, path)
    finally:
        kc_file_close(fd)
    return data if n == size else data[:n]


cdef Py_buffer *_contiguous(bytes_of, str path) except NULL:
    """The buffer of a memoryview.  Raises BufferError."""
    cdef Py_buffer *view = PyMemoryView_GET_BUFFER(bytes_of)
    if not PyBuffer_IsContiguous(view, b"C"):
        raise BufferError(f"{path}: what is written must be in one contiguous buffer")
    return view


cdef int _write(int fd, data, int64_t position, bint append, bint sync, str path) except -1:
    cdef kc_error err
    cdef kc_status status = KC_OK
    cdef int cut
    bytes_of = PyMemoryView_FromObject(data)
    cdef Py_buffer *view = _contiguous(bytes_of, path)
    cdef int64_t size = view.len
    cdef const uint8_t *buf = <const uint8_t *>view.buf
    with nogil:
        if append:
            status = kc_file_append(fd, buf, size, position, &cut, &err)
        elif size:
            status = kc_file_write(fd, buf, size, position, &err)
        if status == KC_OK and sync:
            status = kc_file_sync(fd, &err)
    return raise_status(&err, path) if status != KC_OK else 0


def write_atomically(str path, data, *, bint sync=True):
    """Replace a file's content; after a crash there is the old content or the new.  Raises OSError with the path.
    What is there and is no file is set aside.

    sync=False leaves the moment of reaching the disk to the system; the rename still hides a half-written file.
    Releases the GIL once, not for each system call: ten thousand new partitions write twenty thousand such files.
    """
    cdef kc_error err
    cdef kc_status status = KC_OK
    cdef str temporary = f"{path}.tmp"
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef bytes temporary_name = PyUnicode_EncodeFSDefault(temporary)
    cdef bytes directory = PyUnicode_EncodeFSDefault(os.path.dirname(path) or ".")
    cdef const char *c_name = name
    cdef const char *c_temporary = temporary_name
    cdef const char *c_directory = directory
    bytes_of = PyMemoryView_FromObject(data)
    cdef Py_buffer *view = _contiguous(bytes_of, path)
    cdef const uint8_t *buf = <const uint8_t *>view.buf
    cdef int64_t size = view.len
    cdef int fd
    cdef bint is_renamed = False
    if not is_file(path):
        clear_the_way(path)
    with nogil:
        fd = kc_file_open(c_temporary, KC_OPEN_WRITE | KC_OPEN_CREATE | KC_OPEN_EMPTY, &err)
        if fd < 0:
            status = err.status
        else:
            if size:
                status = kc_file_write(fd, buf, size, 0, &err)
            if status == KC_OK and sync:
                status = kc_file_sync(fd, &err)
            kc_file_close(fd)
        if status == KC_OK:
            status = kc_file_rename(c_temporary, c_name, &err)
            is_renamed = status == KC_OK
        if is_renamed and sync:
            status = kc_file_sync_path(c_directory, &err)
    if status != KC_OK:
        raise_status(&err, os.path.dirname(path) or "." if is_renamed else temporary)


def append_to(str path, data, int64_t position):
    """Write at `position`, the end of the file, which is made if need be.  Raises OSError; the file is cut back then."""
    cdef int fd = _open(path, KC_OPEN_WRITE | KC_OPEN_CREATE)
    try:
        _write(fd, data, position, True, False, path)
    finally:
        kc_file_close(fd)


def truncate_file(str path, int64_t size):
    """Raises OSError."""
    File(path, writable=True).truncate(size)


def sync_path(str path):
    """Make a file durable, or the names in a directory.  Raises OSError."""
    cdef kc_error err
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *c_name = name
    cdef kc_status status
    with nogil:
        status = kc_file_sync_path(c_name, &err)
    if status != KC_OK:
        raise_status(&err, path)


def rename(str source, str target):
    """Replaces a file or an empty directory called `target`.  Raises OSError."""
    cdef kc_error err
    cdef bytes source_name = PyUnicode_EncodeFSDefault(source)
    cdef bytes target_name = PyUnicode_EncodeFSDefault(target)
    cdef const char *c_source = source_name
    cdef const char *c_target = target_name
    cdef kc_status status
    with nogil:
        status = kc_file_rename(c_source, c_target, &err)
    if status != KC_OK:
        raise_status(&err, source)


ctypedef kc_status (*path_call)(const char *path, kc_error *err) noexcept nogil


cdef int _on_path(path_call call, str path, int ignored_error=0) except -1:
    """Whether it happened: not where it failed with the ignored errno."""
    cdef kc_error err
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *c_name = name
    cdef kc_status status
    with nogil:
        status = call(c_name, &err)
    if status == KC_OK:
        return 1
    if ignored_error and err.actual == ignored_error:
        return 0
    raise_status(&err, path)


def unlink(str path):
    """Raises OSError."""
    _on_path(kc_file_unlink, path)


def unlink_if_there(str path):
    """Whether there was one; a directory gets another name.  Raises OSError."""
    try:
        return _on_path(kc_file_unlink, path, errno.ENOENT) == 1
    except (IsADirectoryError, PermissionError):  # EISDIR on Linux, EPERM by POSIX
        if not is_directory(path):
            raise
        clear_the_way(path)
        return True


def set_aside(str path):
    """Rename what cannot be used to a free name beside it, and return that name.  Raises OSError."""
    name, n = f"{path}.damaged", 1
    while os.path.lexists(name):
        n += 1
        name = f"{path}.damaged.{n}"
    rename(path, name)
    return name


def clear_the_way(str path):
    """For a path at which a file is to be made: a directory, FIFO or broken link there is renamed, not deleted, since
    its owner may need it.  Raises OSError."""
    if _is_there(path):
        logger.error("%s: this is no file; it is %s now", path, set_aside(path))


def make_directory(str path):
    """Make it and those above it; whether it was missing.  Raises OSError."""
    try:
        return _on_path(kc_file_make_directory, path, errno.EEXIST) == 1
    except FileNotFoundError:
        if os.path.dirname(path) in ("", path):
            raise
        make_directory(os.path.dirname(path))
        return _on_path(kc_file_make_directory, path, errno.EEXIST) == 1


def list_directory(str path):
    """The names in a directory, in no order.  Raises OSError."""
    cdef kc_error err
    cdef bytes directory_name = PyUnicode_EncodeFSDefault(path)
    cdef const char *c_name = directory_name
    cdef const char *name = NULL
    cdef DIR *directory
    cdef list names = []
    with nogil:
        directory = kc_file_open_directory(c_name, &err)
    if directory == NULL:
        raise_status(&err, path)
    try:
        while True:
            # One system call brings hundreds of names: not worth giving up the GIL for each.
            if kc_file_next_name(directory, &name, &err) != KC_OK:
                raise_status(&err, path)
            if name == NULL:
                return names
            names.append(PyUnicode_DecodeFSDefault(name))
    finally:
        kc_file_close_directory(directory)


def remove_tree(str path):
    """Remove a directory with all that is in it, or a file; fine if it is gone.  Raises OSError."""
    try:
        if not is_directory(path) or os.path.islink(path):
            unlink_if_there(path)
            return
        for name in list_directory(path):
            remove_tree(os.path.join(path, name))
        _on_path(kc_file_remove_directory, path, errno.ENOENT)
    except FileNotFoundError:
        pass


cdef int _status(str path, c_stat *status) except -1:
    """Whether there is such a path."""
    cdef kc_error err
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *c_name = name
    if kc_file_status(c_name, status, &err) == KC_OK:
        return 1
    if err.actual in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return 0
    raise_status(&err, path)


cdef bint _is_there(str path):
    """Whether there is anything, also a link that leads nowhere.  Holds the GIL."""
    cdef c_stat status
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    return lstat(name, &status) == 0


def exists(str path):
    """Raises OSError where the disk cannot tell.  Holds the GIL, as the other three."""
    cdef c_stat status
    return _status(path, &status) == 1


def is_file(str path):
    """False if there is nothing, or what is no regular file.  Raises OSError."""
    return file_size(path) >= 0


def is_directory(str path):
    """False if there is nothing.  Raises OSError."""
    cdef c_stat status
    return _status(path, &status) == 1 and S_ISDIR(status.st_mode) != 0


def modified_ms(str path):
    """When a file was last changed.  Raises OSError."""
    cdef c_stat status
    if not _status(path, &status):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return kc_file_modified_ms(&status)


cdef int64_t file_size(str path) except -2:
    """In bytes; -1 if there is no such file, or what is no regular file.  Raises OSError."""
    cdef c_stat status
    return status.st_size if _status(path, &status) and S_ISREG(status.st_mode) else -1


# -- a simulated disk, for tests -------------------------------------------------------------------------------------------

# In the order of kc_file_call.
_CALLS = (
    "open", "open_write", "stat", "pread", "pwrite", "ftruncate", "fsync", "mmap", "msync", "rename", "unlink", "mkdir",
    "rmdir", "opendir", "readdir",
)

# In the order of kc_file_effect.
_EFFECTS = ("fail", "flip", "lose", "wait")

#: What a read-only file system refuses.
CHANGES = ("open_write", "pwrite", "ftruncate", "rename", "unlink", "mkdir", "rmdir")


cdef uint32_t _bits(call) except 0:
    cdef uint32_t bits = 0
    for name in (call,) if isinstance(call, str) else call:
        bits |= 1 << <int>_CALLS.index(name)
    return bits


def fail_next(call, int error, *, int64_t after_bytes=0, int64_t times=1, int64_t skip=0, str under="", str ending="",
              uint64_t thread=0):
    """For tests: after `skip` of them the next `times` such calls (negative: all) on a log directory fail with `error`
    once after_bytes bytes went through (in a call that comes back short).  error 0: only the short call.

    call: one kind, or several that count together.  under, ending: only where the path begins and ends so.
    thread: only calls of the thread with this threading.Thread.ident.  Process-wide.  Of several faults for a call the
    one that was made last has it, then the one before.  Returns the fault's id.  It ends with end_fault() or
    clear_faults()."""
    cdef kc_file_fault fault
    memset(&fault, 0, sizeof(fault))
    fault.thread = thread
    fault.error, fault.after_bytes, fault.times, fault.skip = error, after_bytes, times, skip
    return _put_fault(&fault, call, under, ending)


def spoil_next(call, str effect, *, int64_t times=1, int64_t wait_ms=0, str under="", str ending=""):
    """For tests: the next `times` such calls (negative: all) have an effect: "flip", a pwrite writes with the lowest bit
    of its last byte flipped; "lose", an fsync or msync says that it was made; "wait", one of the three takes wait_ms
    longer.  As for fail_next()."""
    cdef kc_file_fault fault
    memset(&fault, 0, sizeof(fault))
    fault.effect = <kc_file_effect><int>_EFFECTS.index(effect)
    fault.times, fault.wait_ms = times, wait_ms
    return _put_fault(&fault, call, under, ending)


cdef int64_t _put_fault(kc_file_fault *fault, call, str under, str ending) except -1:
    cdef bytes prefix = PyUnicode_EncodeFSDefault(under), suffix = PyUnicode_EncodeFSDefault(ending)
    fault.calls = _bits(call)
    if len(prefix) >= <Py_ssize_t>sizeof(fault.under):
        raise ValueError(f"{under}: too long")
    if len(suffix) >= <Py_ssize_t>sizeof(fault.ending):
        raise ValueError(f"{ending}: too long")
    memcpy(fault.under, <const char *>prefix, len(prefix))
    memcpy(fault.ending, <const char *>suffix, len(suffix))
    cdef int64_t fault_id = kc_file_fail(fault)
    if fault_id == 0:
        raise ValueError("too many faults at once")
    return fault_id


def fault_hits(int64_t fault_id):
    """For tests: how many calls had the fault with this id so far; 0 if it has ended."""
    return kc_file_fault_hits(fault_id)


def end_fault(int64_t fault_id):
    """For tests: end the fault with this id; how many calls had it, 0 if it had ended already."""
    return kc_file_end_fault(fault_id)


def count_calls():
    """For tests: calls() counts from here, nothing fails."""
    kc_file_count_calls()


def calls(str call):
    """How many such calls were made since count_calls() or the first fault."""
    return kc_file_calls(<kc_file_call><int>_CALLS.index(call))


def record_to(int fd):
    """For tests: each call that changes a log directory is appended to this file (csrc/file_faults.h says how), and
    nothing is synced to the real disk, until clear_faults().  Only what is opened from here on is recorded."""
    kc_file_record(fd)


def hold(str call):
    """For tests: such calls, which must release the GIL, wait until clear_faults(); calls() counts them."""
    kc_file_hold(<kc_file_call><int>_CALLS.index(call))


def clear_faults():
    """Back to plain system calls."""
    kc_file_clear_faults()
