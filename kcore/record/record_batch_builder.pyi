"""Build one magic-2 batch."""

from collections.abc import Sequence

from kcore.record.record_batch import CompressionType, Header, TimestampType

class RecordBatchBuilder:
    """Collects records and builds one batch.  Not thread-safe.

    compression: "none", "gzip", "snappy", "lz4" or "zstd"; level: the codec's own scale, None = its default.
    Offsets are base_offset, base_offset + 1, ... unless append() is given one (a compacted batch).
    Raises ValueError for MRB-03..07.
    """

    def __init__(
        self,
        *,
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
    def size_in_bytes(self) -> int: ...  # estimate of the batch so far, uncompressed
    def __len__(self) -> int: ...
