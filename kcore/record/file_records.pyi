"""A slice of a segment file: what a fetch carries instead of bytes."""

from collections.abc import Iterator

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record

class FileRecords:
    """Bytes [position, position + size) of an open segment file.

    Keeps the file open as long as the slice lives, also when the segment is deleted meanwhile.
    """

    @property
    def path(self) -> str: ...
    @property
    def fileno(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...
    def read(self) -> bytearray: ...  # the bytes, by pread; shorter if the file was truncated meanwhile
    def read_into(self, buffer: bytearray | memoryview, at: int = ...) -> int: ...
    def send_to(self, sock_fd: int, offset: int = ...) -> int:
        """Send from `offset` within the slice to a non-blocking socket; bytes sent, 0 when it would block.
        Raises OSError.  Never SIGBUS, even when the file is cut meanwhile."""

    def mapped(self) -> tuple[int, object]: ...  # for system calls only
    def slice(self, position: int, size: int) -> FileRecords: ...
    def memory_records(self, *, check_crc: bool = ...) -> MemoryRecords: ...
    def records(self) -> Iterator[Record]: ...
    def __len__(self) -> int: ...
