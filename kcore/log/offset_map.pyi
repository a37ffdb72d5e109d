"""OffsetMap: the cleaner's fixed-size table from a record's key to the latest offset it was seen at."""

from typing import Protocol

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch

def siphash128(secret: bytes, data: bytes) -> bytes: ...  # the 16 bytes that a key is hashed to; secret: 16 bytes

class Transactions(Protocol):
    def on_control_batch_read(self, batch: RecordBatch) -> bool: ...
    def on_batch_read(self, batch: RecordBatch) -> bool: ...

class OffsetMap:
    """key -> latest offset, in at most memory_bytes.  Holds memory from clear() to release(), as much as keys need.
    Not thread-safe.  Raises ValueError for a size that holds no key."""

    def __init__(self, memory_bytes: int, load_factor: float = ...) -> None: ...
    def clear(self) -> None: ...
    def release(self) -> None: ...
    def put(self, key: bytes | bytearray | memoryview, offset: int) -> bool: ...  # whether there was room
    def get(self, key: bytes | bytearray | memoryview) -> int: ...  # -1 if the key is unknown
    def update_latest_offset(self, offset: int) -> None: ...
    def add(self, records: MemoryRecords, start_offset: int, transactions: Transactions) -> tuple[int, bool]:
        """Put the keys of all records from start_offset on, aborted transactions left out; (records read, whether the
        table was full before the end).  Releases the GIL.  CorruptMessage."""

    @property
    def slots(self) -> int: ...
    @property
    def limit(self) -> int: ...  # keys at which the table counts as full
    @property
    def latest_offset(self) -> int: ...  # -1 before the first
    @property
    def utilization(self) -> float: ...  # keys, as a share of the slots
    def __len__(self) -> int: ...
