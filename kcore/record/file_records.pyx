"""A slice of a segment file: what a fetch carries instead of bytes."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport uint8_t, uintptr_t

from kcore.common.file cimport Mapping

from kcore.record.memory_records import MemoryRecords

# records() parses this much at a time; a larger batch makes its own piece larger.
cdef int64_t PIECE_BYTES = 1024 * 1024


cdef FileRecords make_file_records(File file, int64_t position, int64_t size):
    cdef FileRecords records = FileRecords.__new__(FileRecords)
    records.file = file
    records.position = position
    records.size_in_bytes = size
    return records


cdef class FileRecords:
    """Bytes [position, position + size_in_bytes) of an open segment file.

    Immutable; safe to share between threads.  Keeps the file open as long as the slice lives, also when the
    segment is closed or deleted meanwhile.  Made by LogSegment; there is no public constructor.
    """

    def __init__(self):
        raise TypeError("LogSegment.read and LogSegment.slice make FileRecords")

    @property
    def path(self):
        return self.file.path

    @property
    def fileno(self):
        return self.file.fd

    def read(self):
        """The bytes as a new bytearray, by pread with the GIL released; shorter if the file was cut meanwhile.
        OSError."""
        data = PyByteArray_FromStringAndSize(NULL, self.size_in_bytes)
        cdef int64_t n = self.file.read_into(
            <uint8_t *>PyByteArray_AS_STRING(data), self.size_in_bytes, self.position
        )
        if n < self.size_in_bytes:
            PyByteArray_Resize(data, n)
        return data

    def read_into(self, buffer, int64_t at=0):
        """Fill buffer with bytes of the slice from `at` on; how many there were.  OSError, ValueError."""
        cdef Py_buffer view
        cdef int64_t size = self.size_in_bytes - at
        if not 0 <= at <= self.size_in_bytes:
            raise ValueError(f"{self!r} has no byte {at}")
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
        try:
            return self.file.read_into(<uint8_t *>view.buf, min(size, <int64_t>view.len), self.position + at)
        finally:
            PyBuffer_Release(&view)

    def send_to(self, int sock_fd, int64_t offset=0):
        """Send from `offset` within the slice to a non-blocking socket; bytes sent, 0 when it would block.

        Straight from the page cache, GIL released; when the file is cut meanwhile, OSError (EIO) and not SIGBUS.
        Raises OSError, ValueError for an offset outside the slice.
        """
        cdef int64_t size = self.size_in_bytes - offset
        if not 0 <= offset <= self.size_in_bytes:
            raise ValueError(f"{self!r} has no byte {offset}")
        if size == 0:
            return 0
        return self.file.send(
            sock_fd, self.file.map(self.position + self.size_in_bytes), self.position + offset, size
        )

    def mapped(self):
        """(address of the bytes in a mapping of the file, the mapping, which must live as long as the address is used).

        For system calls: they fail with EFAULT where the file has been cut meanwhile, this process would get SIGBUS.
        Raises OSError.
        """
        cdef Mapping mapping = self.file.map(self.position + self.size_in_bytes)
        return <uintptr_t>(mapping.data + self.position), mapping

    def slice(self, int64_t position, int64_t size):
        """The part from `position` within this slice, at most `size` bytes.  ValueError outside it."""
        if not 0 <= position <= self.size_in_bytes or size < 0:
            raise ValueError(f"{self!r} has no {size} bytes at {position}")
        return make_file_records(self.file, self.position + position, min(size, self.size_in_bytes - position))

    def memory_records(self, *, bint check_crc=True):
        """The batches of the slice, read into memory; positions count from the start of the file."""
        return MemoryRecords(self.read(), check_crc=check_crc, source=self.path, base_position=self.position)

    def records(self):
        """The records one by one, a piece of the file at a time; a partial batch at the end is left out.

        Raises CorruptMessage (file, offset, position).
        """
        cdef int64_t position = 0
        cdef int64_t size = PIECE_BYTES
        while position < self.size_in_bytes:
            piece = self.slice(position, size).memory_records()
            if piece.valid_bytes:
                yield from piece.records()
                position += piece.valid_bytes
                size = PIECE_BYTES
            elif size < self.size_in_bytes - position:
                # A batch larger than the piece; at most its size is doubled in vain.
                size *= 2
            else:
                break

    def __len__(self):
        return self.size_in_bytes

    def __repr__(self):
        return f"FileRecords({self.path!r}, position={self.position}, size={self.size_in_bytes})"
