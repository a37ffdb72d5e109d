"""Build one batch, or messages of magic 0 or 1."""

from collections.abc import Iterable, Sequence

from kcore.record.record_batch import CompressionType, Header, Record, TimestampType

class RecordBatchBuilder:
    """Collects records and builds one batch.  Not thread-safe.

    magic: 2, or 0 or 1 for a message a record, all in one wrapper if compressed.
    compression: "none", "gzip", "snappy", "lz4" or, in magic 2, "zstd"; level: the codec's own scale, None = its
    default.  Offsets are base_offset, base_offset + 1, ... unless append() is given one (a compacted batch).
    log_append_time: ms, with timestamp type LogAppendTime.  initial_size: bytes reserved at once.
    any_timestamp: a copy of old messages takes over timestamps below -1 too.
    Raises ValueError for arguments that contradict each other or no batch can have.
    """

    def __init__(
        self,
        *,
        magic: int = ...,
        base_offset: int = ...,
        compression: CompressionType = ...,
        level: int | None = ...,
        timestamp_type: TimestampType = ...,
        leader_epoch: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        base_sequence: int = ...,
        is_transactional: bool = ...,
        is_control: bool = ...,
        delete_horizon_ms: int | None = ...,
        log_append_time: int | None = ...,
        initial_size: int = ...,
        any_timestamp: bool = ...,
    ) -> None: ...
    def append(
        self,
        value: bytes | None,
        key: bytes | None = ...,
        *,
        timestamp: int = ...,
        headers: Sequence[Header] = ...,
        offset: int | None = ...,
    ) -> int: ...  # the record's offset; timestamp -1 = none
    def build(self) -> bytearray: ...  # a writable batch; b"" when nothing was appended
    @property
    def info(self) -> tuple[int, int]: ...  # max timestamp and the offset that goes with it
    @property
    def size_in_bytes(self) -> int: ...  # estimate of the batch so far, uncompressed
    def __len__(self) -> int: ...

def estimate_size_in_bytes(
    records: Iterable[Record], *, magic: int = ..., compression: CompressionType = ..., base_offset: int = ...
) -> int:
    """How many bytes a batch of these Records will take: exact if uncompressed, else half of that, but at least 1 KiB
    and at most 64 KiB."""
