"""Records as columns.  NumPy is imported at first use."""

from collections.abc import Iterable

from kcore.record.columns import RecordColumns
from kcore.record.memory_records import Buffer, MemoryRecords

class ColumnsReader:
    """Reads batches into columns, for LogSegment.read_columns().  One thread at a time."""

    def __init__(
        self,
        columns: Iterable[str] | None = ...,
        *,
        start_offset: int = ...,
        end_offset: int = ...,
        from_time: int = ...,
        to_time: int = ...,
        aborted: Iterable[tuple[int, ...]] = ...,
        keep_control: bool = ...,
        check_crc: bool = ...,
        source: str = ...,
    ) -> None: ...
    @property
    def previous(self) -> int: ...  # last offset that was passed, -1 before the first batch
    position: int  # behind that batch
    def nothing(self) -> RecordColumns: ...

def columns_of(
    records: Buffer | MemoryRecords,
    *,
    columns: Iterable[str] | None = ...,
    start_offset: int = ...,
    end_offset: int = ...,
    aborted: Iterable[tuple[int, ...]] = ...,
    keep_control: bool = ...,
    check_crc: bool = ...,
    source: str = ...,
) -> RecordColumns:
    """RecordColumns of a buffer of batches.  Without compression keys and values stay where they are.
    Raises CorruptMessage (source, position, offset) and what MemoryRecords raises.  GIL released."""
