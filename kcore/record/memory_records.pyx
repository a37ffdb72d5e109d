"""One partition's record set in memory, walked once.

Everything after the walk (validation, epoch cache, producer state, roll decision, index entries) reads
the BatchTable; nobody parses the bytes again.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo, PyBuffer_IsContiguous
from cpython.memoryview cimport PyMemoryView_FromObject, PyMemoryView_GET_BUFFER
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kcore.common.status cimport KC_OK, KC_TRUNCATED, kc_error, raise_status
from kcore.record.record_batch cimport KC_MIN_BATCH_SIZE, KC_WALK_CHECK_CRC, kc_batch_walk, make_batch

# 256 KiB are about 10 us of CRC: below that the hand-off of the GIL costs more than it gives.
cdef Py_ssize_t NOGIL_BYTES = 256 * 1024


@cython.freelist(16)
cdef class BatchTable:
    """The headers of a buffer's batches, one row each, in file order.  Read-only; safe to share.

    As a buffer it is its rows, of kcore.record.layout.BATCH_DTYPE: np.frombuffer(table, BATCH_DTYPE) copies nothing.
    """

    def __cinit__(self):
        self.source = ""

    def __dealloc__(self):
        free(self.rows)

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        """Make room for `capacity` rows in all."""
        cdef void *rows
        if capacity > self.capacity:
            rows = realloc(self.rows, capacity * sizeof(kc_batch))
            if rows == NULL:
                raise MemoryError(f"{self.source}: table of {capacity} batches")
            self.rows = <kc_batch *>rows
            self.capacity = capacity
        return 0

    def __getbuffer__(self, Py_buffer *view, int flags):
        # Nobody changes a table that was handed out, so its rows stay where they are.
        PyBuffer_FillInfo(view, self, self.rows, self.count * <Py_ssize_t>sizeof(kc_batch), True, flags)

    cdef RecordBatch batch(self, Py_ssize_t index):
        cdef const kc_batch *row = self.rows + index
        cdef const uint8_t *data = NULL
        if self.data != NULL:
            data = self.data + (row.position - self.base_position)
        return make_batch(row, data, self.owner, self.source)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.batch(i) for i in range(*index.indices(self.count))]
        cdef Py_ssize_t i = index
        if i < 0:
            i += self.count
        if not 0 <= i < self.count:
            raise IndexError(f"batch {index} of {self.count}")
        return self.batch(i)

    def __iter__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            yield self.batch(i)

    @property
    def has_gaps(self):
        """Whether an offset from the first batch to the last has no record.  A message of magic 0 or 1 may have more
        inside it, so its own offsets are not looked at."""
        cdef Py_ssize_t i
        cdef const kc_batch *row
        for i in range(self.count):
            row = self.rows + i
            if 0 <= row.count <= row.last_offset - row.base_offset:
                return True
            if i and row.base_offset != (row - 1).last_offset + 1:
                return True
        return False

    @property
    def has_messages(self):
        """Whether there is one of magic 0 or 1."""
        cdef Py_ssize_t i
        for i in range(self.count):
            if self.rows[i].magic < 2:
                return True
        return False

    def to_numpy(self):
        """A copy as a structured array of dtype kcore.record.layout.BATCH_DTYPE."""
        import numpy as np

        from kcore.record.layout import BATCH_DTYPE

        array = np.empty(self.count, BATCH_DTYPE)
        if self.count:
            raw = PyMemoryView_FromObject(array.view(np.uint8))
            memcpy(PyMemoryView_GET_BUFFER(raw).buf, self.rows, self.count * sizeof(kc_batch))
        return array

    def __repr__(self):
        return f"BatchTable({self.count} batches of {self.source or 'memory'})"


@cython.freelist(16)
cdef class MemoryRecords:
    """MemoryRecords(buffer, *, check_crc=True, source="", base_position=0)\n--\n
    A buffer of batches, of any magic, and their BatchTable, made in one pass: bounds, magic, counts, CRC.

    buffer: any contiguous bytes-like.  A partial batch at the end is left out of valid_bytes.
    source names the origin in messages; base_position is added to positions (a slice of a file).
    Raises CorruptMessage (position and both values), and InvalidRecord for a batch whose CRC is right but whose
    offsets or count are impossible.
    The GIL is released for buffers from 256 KiB on.  Not to be shared while offsets are assigned.
    """

    def __cinit__(self, buffer, *, bint check_crc=True, str source="", int64_t base_position=0):
        # A memoryview and not a plain reference: it keeps a bytearray from being resized while it is read.
        owner = PyMemoryView_FromObject(buffer)
        cdef Py_buffer *view = PyMemoryView_GET_BUFFER(owner)
        if not PyBuffer_IsContiguous(view, b"C"):
            raise BufferError(f"{source}: records must be in one contiguous buffer")
        self.readonly = view.readonly
        self.source = source
        self.batches = BatchTable.__new__(BatchTable)
        self.batches.data = <const uint8_t *>view.buf
        self.batches.base_position = base_position
        self.batches.source = source
        self.batches.owner = owner
        self._walk(view.len, KC_WALK_CHECK_CRC if check_crc else 0)

    cdef int _walk(self, int64_t end, int flags) except -1:
        cdef BatchTable table = self.batches
        cdef const uint8_t *data = table.data
        cdef int64_t position = 0
        cdef int64_t room
        cdef int64_t i
        cdef kc_error err
        while position < end:
            # Guess the number of rows from the batches seen so far; the first guess is that of one batch.
            room = 1 if table.count == 0 else (end - position) * table.count // position + 1
            room = min(room, (end - position) // KC_MIN_BATCH_SIZE + 1)
            table.reserve(table.count + room)
            if end < NOGIL_BYTES:
                room = kc_batch_walk(data, end, &position, flags, table.rows + table.count, room, &err)
            else:
                with nogil:
                    room = kc_batch_walk(data, end, &position, flags, table.rows + table.count, room, &err)
            table.count += room
            if err.status == KC_TRUNCATED:
                break
            if err.status != KC_OK:
                err.position += table.base_position
                raise_status(&err, self.source)
        self.valid_bytes = position
        if table.base_position:
            for i in range(table.count):
                table.rows[i].position += table.base_position
        return 0

    cdef uint8_t *writable_data(self) except NULL:
        """The first byte, for assigning offsets in place; its rows' positions count from base_position."""
        if self.readonly:
            raise BufferError(f"{self.source}: a read-only buffer cannot have offsets assigned in place")
        return <uint8_t *>self.batches.data

    @property
    def buffer(self):
        """The complete batches, as a memoryview of the buffer."""
        return self.batches.owner.cast("B")[: self.valid_bytes]

    @property
    def size_in_bytes(self):
        return self.valid_bytes

    @property
    def first_offset(self):
        """Base offset of the first batch; -1 if there is none."""
        return self.batches.rows[0].base_offset if self.batches.count else -1

    @property
    def last_offset(self):
        """Last offset of the last batch; -1 if there is none."""
        return self.batches.rows[self.batches.count - 1].last_offset if self.batches.count else -1

    def records(self):
        """All records of all batches, in order; see RecordBatch.records()."""
        for batch in self.batches:
            yield from batch.records()

    def __len__(self):
        return self.batches.count

    def __bool__(self):
        return self.batches.count > 0

    def __repr__(self):
        return f"MemoryRecords({self.batches.count} batches, {self.valid_bytes} bytes of {self.source or 'memory'})"


EMPTY = MemoryRecords(b"")
