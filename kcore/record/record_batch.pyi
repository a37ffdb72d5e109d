"""Batches and records as objects.  Read-only views; nothing is copied until a record is read."""

from collections.abc import Iterator, Sequence
from typing import Literal

TimestampType = Literal["CreateTime", "LogAppendTime", "NoTimestampType"]
CompressionType = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Header = tuple[str, bytes | None]

class Record:
    """One record.  offset: absolute; timestamp: ms since the epoch, -1 for none, as always in magic 0."""

    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    def __init__(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: TimestampType = ...,
        key: bytes | None = ...,
        value: bytes | None = ...,
        headers: Sequence[Header] = ...,
    ) -> None: ...
    def __iter__(self) -> Iterator[object]: ...

class RecordBatch:
    """One batch: the header's fields, decoded, and its records on demand.

    A message of magic 0 or 1 is one too, with producer id and leader epoch -1.  Of a wrapper, a compressed such
    message, base_offset is that of its last record, and count is -1, unknown (len() raises TypeError).
    """

    source: str  # where it came from, for messages
    @property
    def position(self) -> int: ...  # of the first byte in the buffer or file it came from
    @property
    def size(self) -> int: ...  # bytes, header included
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def compression(self) -> CompressionType: ...
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def delete_horizon_ms(self) -> int | None: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...  # wraps at 2**31, -1 without a producer id
    @property
    def has_producer_id(self) -> bool: ...
    @property
    def count(self) -> int: ...  # 0 in a batch the cleaner emptied, -1 for a wrapper
    @property
    def buffer(self) -> memoryview: ...  # the batch's bytes, header included
    def is_valid(self) -> bool: ...  # the CRC matches
    def ensure_valid(self) -> None: ...  # raises CorruptMessage
    def records(self) -> Iterator[Record]:
        """Decompress and yield the records in order.  Raises CorruptMessage (source, offset, position)
        for bytes that cannot be right, before it yields a record that is."""

    def __iter__(self) -> Iterator[Record]: ...
    def __len__(self) -> int: ...
    def _repr_html_(self) -> str: ...
