"""Columns as finished batches of magic 2."""

from typing import Any

from kcore.record.record_batch import CompressionType, TimestampType

def batches_of(
    columns: Any,  # RecordColumns, or what kcore.record.arrow.columns_from_arrow takes
    *,
    base_offset: int | None = ...,  # None: offsets are those of the column offset
    max_bytes: int = ...,
    max_records: int = ...,
    compression: CompressionType = ...,
    level: int | None = ...,
    timestamp_type: TimestampType = ...,
    leader_epoch: int = ...,
    producer_id: int = ...,
    producer_epoch: int = ...,
    base_sequence: int = ...,
    is_transactional: bool = ...,
) -> bytearray:
    """The records as finished batches of magic 2, cut at max_bytes before compression; the bytes RecordBatchBuilder
    would write.  GIL released.  ValueError for offsets that do not ascend, timestamps below -1, a record too large."""
