"""What OffsetIndex and TimeIndex share: a file of fixed-size slots, mapped and preallocated.

A writable index is a shared mapping of the whole file, made at first use; the file is preallocated (sparse), cut to
its entries when the segment is rolled or closed, and grown again by the next append.  An index that may not be written
is read into private memory, because a mapping of a file that its owner cuts meanwhile would end this process with
SIGBUS.
"""

import errno

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kcore.common.file cimport file_size
from kcore.common.file import clear_the_way, rename
from kcore.errors import CorruptIndex, LogClosed, LogSegmentOffsetOverflow, ReadOnlyLog

# A store into a mapped page of a sparse file on a full disk is a SIGBUS; a pwrite is an ENOSPC.  So before entries
# go through the mapping, their pages are made real with pwrite, this many bytes at a time.
cdef enum:
    BACK_BYTES = 4096


cdef class AbstractIndex:
    """Base class; see OffsetIndex and TimeIndex.

    One writer at a time (the log's lock); lookups need no lock: they hold the GIL, as does every change of
    `count` or of the mapping.
    """

    def __cinit__(self, str path, int64_t base_offset, *, int64_t max_index_size=10 * 1024 * 1024,
                  bint writable=True, bint in_memory=False):
        if max_index_size < 0:
            raise ValueError(f"{path}: max_index_size {max_index_size} is negative")
        self.path = path
        self.base_offset = base_offset
        self.writable = writable and not in_memory
        self.in_memory = in_memory
        self.entry_size = type(self).ENTRY_SIZE
        self.limit = max_index_size // self.entry_size
        if in_memory:
            return
        self.file_size = file_size(path)
        if self.file_size < 0:
            if not writable:
                raise FileNotFoundError(errno.ENOENT, "no such file, or none that is regular", path)
            clear_the_way(path)
            File(path, writable=True, create=True).truncate(self.limit * self.entry_size)
            self.file_size = self.limit * self.entry_size
            return
        self.count = self.file_size // self.entry_size

    def __dealloc__(self):
        free(self.private)

    cdef int load(self) except -1:
        """Map or read the slots.  Called when `slots` is NULL."""
        cdef int64_t size = max(self.limit * self.entry_size, self.file_size, self.entry_size)
        cdef File file
        if self.closed:
            raise LogClosed(f"{self.path} is closed")
        if self.writable:
            # More than the file may hold now: only slots below `count` are touched, and growing the file
            # again needs no new mapping.
            file = self._file()
            self.leave_out_holes(file)
            self._mapping = file.new_mapping(size, True)
            self.slots = self._mapping.data
            return 0
        if not self.in_memory:
            size = max(self.count, 1) * self.entry_size
        cdef uint8_t *slots = <uint8_t *>calloc(size, 1)
        if slots == NULL:
            raise MemoryError(f"{self.path}: {size} bytes")
        if self.count and not self.in_memory:
            try:
                file = self._file()
                self.count = min(self.count, file.read_into(slots, size, 0) // self.entry_size)
            except BaseException:
                free(slots)
                raise
        # While the GIL was released another thread may have closed the index, or allocated the slots.
        if self.closed:
            free(slots)
            raise LogClosed(f"{self.path} is closed")
        if self.slots == NULL:
            self.slots = self.private = slots
        else:
            free(slots)
        return 0

    cdef int leave_out_holes(self, File file) except -1:
        """Drop the slots from the file's first hole on.  On tmpfs also a load from a mapped hole needs a block: on a full
        disk it is a SIGBUS.  No right entry is in a hole, which is zeros for a block or more: offsets and timestamps
        ascend.  sanity_check() then raises, so that the index is rebuilt."""
        cdef int64_t size = self.count * self.entry_size
        cdef int64_t hole = file.first_hole(size)
        if hole < size:
            self.has_hole = True
            self.keep(hole // self.entry_size)
        return 0

    cdef int unmap(self) except -1:
        """Let go of the mapping, if there is one; the next use maps again.  Only while no change waits for flush()."""
        if self._mapping is not None:
            self.slots = NULL
            self._mapping = None
        return 0

    cdef int copy_slots(self, File file, int64_t first, int64_t count, uint8_t *slots) except -1:
        """The slots [first, first + count), which there must be: for a look that is not worth a mapping.  file: the index's
        own, or None if the slots are loaded."""
        cdef int64_t at = first * self.entry_size, size = count * self.entry_size
        if file is not None:
            if file.read_into(slots, size, at) != size:
                raise CorruptIndex(f"{self.path}: the file ends before position {at + size}")
            return 0
        self._slot(first + count - 1)
        memcpy(slots, self.slots + at, size)
        return 0

    cdef int check_writable(self) except -1:
        if self.closed:
            raise LogClosed(f"{self.path} is closed")
        if not (self.writable or self.in_memory):
            raise ReadOnlyLog(f"{self.path} is open for reading only")
        return 0

    cdef File _file(self):
        # Not kept open: ten thousand partitions would hold twenty thousand descriptors for a call per roll.
        cdef str path = self.path
        while True:
            try:
                return File(path, writable=self.writable)
            except FileNotFoundError:
                # A rename gives the GIL away: it may be under way, or have ended just now.
                renamed = self.moving_to or self.path
                if renamed == path:
                    raise
                path = renamed

    cdef int reserve(self, int64_t entries) except -1:
        """Make sure that `entries` more can be stored without touching a page that has no block on the disk.
        Grows a trimmed file.  Raises OSError; CorruptIndex if somebody else has cut the file.  Nothing changed then."""
        cdef int64_t used = self.count * self.entry_size
        cdef int64_t need = min(self.count + entries, self.limit) * self.entry_size
        cdef int64_t at, kept, n
        cdef uint8_t[BACK_BYTES] page
        cdef File file
        if self.slots == NULL:
            self.load()
        if need <= self.backed or not self.writable:
            return 0
        file = self._file()
        if self.file_size < need:
            file.truncate(self.limit * self.entry_size)
            self.file_size = self.limit * self.entry_size
        # The page of the first new entry is written whole: the entries before it may be zeros without a block.
        at = max(self.backed, used - used % BACK_BYTES)
        while at < need:
            n = min(BACK_BYTES - at % BACK_BYTES, self.file_size - at)
            kept = min(max(used - at, 0), n)
            if file.read_into(page, kept, at) != kept:
                raise CorruptIndex(f"{self.path}: the file ends before position {at + kept}")
            memset(page + kept, 0, n - kept)
            file.write(page, n, at)
            at += n
            self.backed = at
        return 0

    cdef int keep(self, int64_t count) except -1:
        """Drop all entries but the first `count`.  The pages after them may have no blocks on the disk: in a file that was
        never cut to its entries, or was copied by a tool that turns zeros into holes."""
        if count < self.count:
            self.count = count
            self.backed = 0
        return 0

    cdef int32_t relative(self, int64_t offset) except -1:
        """offset - base_offset.  LogSegmentOffsetOverflow unless it is in [0, 2**31) (IDX-03)."""
        if offset < self.base_offset or offset - self.base_offset > 0x7FFFFFFF:
            raise LogSegmentOffsetOverflow(
                f"{self.path}: offset {offset} is not in [{self.base_offset}, {self.base_offset + 0x7FFFFFFF}]"
            )
        return <int32_t>(offset - self.base_offset)

    cdef int replace(self, const uint8_t *slots, int64_t count) except -1:
        """Put these slots in the place of all there are and cut the file to them.  On OSError the index holds
        no entry: it is sparse, so nothing is lost but speed."""
        cdef int64_t size = count * self.entry_size
        cdef File file
        self.check_writable()
        self.count = 0
        self.backed = 0
        self.has_hole = False
        if self.slots == NULL:
            self.load()
        if self.writable:
            file = self._file()
            file.write(slots, size, 0)
            file.truncate(size)
            self.file_size = size
            self.backed = size
        elif size:
            memcpy(self.slots, slots, size)
        self.count = count
        return 0

    cdef int rename(self, str path) except -1:
        if self.path != path and not self.in_memory:
            self.moving_to = path
            try:
                rename(self.path, path)
            except FileNotFoundError:
                pass  # A missing index is rebuilt when it is needed.
            except BaseException:
                self.moving_to = None
                raise
        self.path = path
        self.moving_to = None
        return 0

    @property
    def entries(self):
        return self.count

    @property
    def max_entries(self):
        return self.limit

    @property
    def size_in_bytes(self):
        return self.count * self.entry_size

    def __len__(self):
        return self.count

    cdef int _slot(self, int64_t n) except -1:
        if not 0 <= n < self.count:
            raise IndexError(f"{self.path}: entry {n} of {self.count}")
        if self.slots == NULL:
            self.load()
        return 0

    def truncate(self):
        """Forget every entry; the file keeps its size."""
        self.check_writable()
        self.has_hole = False
        self.keep(0)

    def resize(self, int64_t new_size):
        """Give the file new_size bytes, rounded down to whole entries, and the index room for as many.

        Returns whether the file changed.  ValueError if entries would be lost, OSError.
        """
        cdef int64_t limit = new_size // self.entry_size
        cdef int64_t size = limit * self.entry_size
        self.check_writable()
        if limit < self.count:
            raise ValueError(f"{self.path}: {new_size} bytes do not hold {self.count} entries")
        if self.in_memory:
            raise ValueError(f"{self.path}: an index in memory keeps its size")
        changed = self._set_file_size(size)
        self.limit = limit
        if self._mapping is not None and self._mapping.size < size:
            self.slots = NULL
            self._mapping = None
        return changed

    cdef bint _set_file_size(self, int64_t size) except -1:
        if size == self.file_size:
            return False
        self._file().truncate(size)
        self.file_size = size
        self.backed = min(self.backed, size)
        return True

    def trim_to_valid_size(self):
        """Cut the file to its entries.  A later append grows it again."""
        self.check_writable()
        if self.writable:
            self._set_file_size(self.count * self.entry_size)

    cdef int _check_length(self) except -1:
        if self.file_size > INT32_MAX and not self.in_memory:
            # What segment.index.bytes cannot ask for; reading a sparse file of a terabyte would end in MemoryError.
            raise CorruptIndex(f"{self.path}: length {self.file_size} is more than an index can have, {INT32_MAX}")
        if self.file_size % self.entry_size and not self.in_memory:
            raise CorruptIndex(
                f"{self.path}: length {self.file_size} is not a multiple of the entry size {self.entry_size}"
            )
        return 0

    cdef int _check_no_hole(self) except -1:
        if self.has_hole:
            raise CorruptIndex(f"{self.path}: a hole after {self.count} entries: it was not written to its end")
        return 0

    def flush(self):
        """Write changed pages to the disk; releases the GIL.  OSError."""
        cdef Mapping mapping = self._mapping
        cdef int64_t size = self.count * self.entry_size
        if mapping is not None and size:
            mapping.sync(size)

    def close(self, *, bint trim=True):
        """Trim a writable index (IDX-04) and let go of its memory; later calls raise LogClosed."""
        if self.closed:
            return
        try:
            if trim and self.writable:
                self.trim_to_valid_size()
        finally:
            self.closed = True
            free(self.private)
            self.slots = self.private = NULL
            self._mapping = None
            self.count = 0

    def __repr__(self):
        return f"{type(self).__name__}({self.path!r}, {self.count} of {self.limit} entries)"
