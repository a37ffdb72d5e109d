"""LogSegment: one .log file with its two indexes (SEG)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from kcore.log.offset_index import OffsetIndex
from kcore.log.segment_file import RecoveryResult, SegmentFile
from kcore.log.time_index import TimeIndex
from kcore.record.columns import RecordColumns
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import BatchTable, MemoryRecords
from kcore.record.record_columns import ColumnsReader

class OffsetPosition(NamedTuple):
    offset: int  # last offset of the batch found
    position: int
    size: int

class SegmentRead(NamedTuple):
    position: int  # of the batch that holds the start offset
    records: FileRecords  # may be empty (SEG-08)
    first_entry_incomplete: bool

class LogSegment(SegmentFile):
    """Not thread-safe for writers (the log's lock serialises them); reads need no lock.

    writable=False opens every file read-only and never creates one (a missing or bad index is rebuilt in memory).  The
    files then may be another process's, which may cut them at any time: they are read with system calls and never
    mapped.  A file that was cut ends earlier; where old bytes meet new ones, CorruptMessage.
    preallocated index files have max_index_size bytes (IDX-04).  per_append_index=True is the rule of Kafka 2.4-3.8.
    """

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        writable: bool = ...,
        file_suffix: str = ...,
        index_interval_bytes: int = ...,
        max_index_size: int = ...,
        max_segment_bytes: int = ...,
        per_append_index: bool = ...,
        now_ms: int | None = ...,
    ) -> None: ...
    @property
    def offset_index(self) -> OffsetIndex: ...
    @property
    def time_index(self) -> TimeIndex: ...
    @property
    def max_timestamp_so_far(self) -> int: ...
    @property
    def offset_of_max_timestamp(self) -> int: ...
    created_ms: int
    def append(self, records: MemoryRecords) -> int:
        """Write all batches with one pwrite, then index entries; returns the position.  SEG-02..06.

        Raises LogSegmentOffsetOverflow (nothing written), ValueError beyond 2 GiB, OSError (the file is cut back to
        its old size).
        """

    def should_roll(
        self,
        append_size: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
        *,
        segment_bytes: int,
        segment_ms: int,
        jitter_ms: int = ...,
    ) -> bool: ...  # LOG-17..20
    def translate_offset(self, offset: int, starting_position: int = ...) -> OffsetPosition | None: ...  # SEG-10
    def read(
        self, start_offset: int, max_size: int, max_position: int = ..., min_one_message: bool = ...
    ) -> SegmentRead | None: ...  # SEG-07..09
    def fetch_upper_bound_offset(self, position: int, size: int) -> int | None: ...
    def columns(
        self, start_offset: int | None = ..., end_offset: int | None = ..., columns: Sequence[str] | None = ...
    ) -> RecordColumns:
        """Records with an offset in [start_offset, end_offset) as NumPy arrays, free of the file; no control records.
        CRCs checked; CorruptMessage, also for a file that ends inside a batch before end_offset.  GIL released."""

    def read_columns(
        self, reader: ColumnsReader, start_offset: int, bound: int, max_bytes: int
    ) -> RecordColumns | None: ...  # from start_offset on, about max_bytes of batches; None after the last one
    def find_offset_by_timestamp(
        self, timestamp: int, starting_offset: int | None = ...
    ) -> tuple[int, int, int] | None: ...  # (timestamp, offset, leader epoch) of the first record >= timestamp
    def find_offset_of_max_timestamp(self) -> tuple[int, int, int] | None: ...
    def read_next_offset(self) -> int: ...  # SEG-14
    def ends_inside_a_batch(self) -> bool: ...
    def configure(
        self, *, index_interval_bytes: int, max_index_size: int, max_segment_bytes: int, per_append_index: bool
    ) -> None: ...  # other settings for an empty segment; ValueError for one with data
    def resize_indexes(self, max_index_size: int) -> None: ...
    def recover(
        self,
        on_batches: Callable[[BatchTable], None] | None = ...,
        *,
        only_noteworthy: bool = ...,
        cut: bool = ...,
        threads: Executor | None = ...,  # one of them helps, if it is free
    ) -> RecoveryResult: ...  # SEG-11
    def truncate_to(self, offset: int, *, now_ms: int | None = ...) -> int: ...  # bytes removed; TRUNC-08
    def sanity_check(self) -> None: ...  # CorruptIndex; FileNotFoundError for a missing index
    def on_become_inactive(self) -> None: ...  # SEG-12
    def flush(self) -> None: ...  # SEG-13
    @property
    def is_untouched(self) -> bool: ...  # its files are as they were when it was opened
    def unmap_if_untouched(self) -> None: ...
    def change_file_suffixes(self, old: str, new: str) -> None: ...
    def delete(self) -> None: ...
    def close(self, *, trim: bool = ...) -> None: ...
    def time_span(self) -> tuple[str, str]: ...  # for people: of the first batch, and the latest; "" for none
    def _repr_html_(self) -> str: ...
