"""One partition's record set in memory, walked once."""

from collections.abc import Iterator, Sequence

import numpy as np

from kcore.record.record_batch import Record, RecordBatch

Buffer = bytes | bytearray | memoryview

class BatchTable(Sequence[RecordBatch]):
    """The headers of a buffer's batches, one row each, in file order.  As a buffer the rows themselves, of
    kcore.record.layout.BATCH_DTYPE: np.frombuffer(table, BATCH_DTYPE) copies nothing."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index): ...  # type: ignore[no-untyped-def]
    def __iter__(self) -> Iterator[RecordBatch]: ...
    @property
    def has_gaps(self) -> bool: ...  # whether an offset from the first batch to the last has no record
    @property
    def has_messages(self) -> bool: ...  # whether there is one of magic 0 or 1
    def to_numpy(self) -> np.ndarray: ...  # structured array, dtype kcore.record.layout.BATCH_DTYPE; a copy

class MemoryRecords:
    """A buffer of batches, of any magic, and their BatchTable, made in one pass: bounds, magic, counts, CRC.

    buffer: any bytes-like; a bytearray (or other writable buffer) can later have offsets assigned in
    place, a read-only one cannot.  Bytes of a partial batch at the end are left out of
    valid_bytes.  source names the origin in messages.  base_position is added to positions (a file slice).
    Raises CorruptMessage, InvalidRecord.
    """

    def __init__(
        self, buffer: Buffer, *, check_crc: bool = ..., source: str = ..., base_position: int = ...
    ) -> None: ...
    @property
    def batches(self) -> BatchTable: ...
    @property
    def buffer(self) -> memoryview: ...  # exactly valid_bytes long
    @property
    def valid_bytes(self) -> int: ...
    @property
    def size_in_bytes(self) -> int: ...  # = valid_bytes
    @property
    def readonly(self) -> bool: ...
    @property
    def first_offset(self) -> int: ...  # base offset of the first batch; -1 if empty
    @property
    def last_offset(self) -> int: ...  # of the last batch; -1 if empty
    def records(self) -> Iterator[Record]: ...
    def __len__(self) -> int: ...  # number of batches
    def __bool__(self) -> bool: ...  # any batch at all

EMPTY: MemoryRecords
