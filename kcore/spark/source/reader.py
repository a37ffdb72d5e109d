"""Reads offset ranges from segment files: the work of a task.

A task opens only the segments that it needs.  The broker's cleaner or its retention may replace or delete files while
the task reads: an open segment stays readable, and the next one is looked up in the directory.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from kcore.errors import CorruptMessage
from kcore.log.log_segment import LogSegment
from kcore.record.columns import RecordColumns
from kcore.record.record_columns import ColumnsReader
from kcore.spark.catalog import segment_base_offsets
from kcore.spark.columns import columns_read, record_batch
from kcore.spark.source.data_loss import report_loss
from kcore.spark.source.partition_plan import OffsetRange

#: Bytes of batches that become one Arrow batch: they and the columns made of them fit into the cache of a core.
BATCH_BYTES = 2 * 1024 * 1024
_NO_BOUND = 2**63 - 1
#: How often a task tries to open a segment that the directory lists and that does not exist.
_ATTEMPTS = 10


def read_ranges(
    ranges: Iterable[OffsetRange],
    wanted: pa.Schema,
    *,
    fail_on_data_loss: bool = True,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The records of all ranges, in their order, as batches of that schema (columns.arrow_schema).

    Raises DataLoss, CorruptMessage, OSError.
    """
    for piece in ranges:
        tp = piece.topic_partition
        for records in _records(piece, wanted.names, fail_on_data_loss, batch_bytes):
            if len(records):
                yield record_batch(records, wanted, tp.topic, tp.partition, 0, len(records))


def _records(
    piece: OffsetRange, columns: Sequence[str], fail_on_data_loss: bool, batch_bytes: int
) -> Iterator[RecordColumns]:
    reader = ColumnsReader(
        columns_read(columns),
        start_offset=piece.start,
        end_offset=piece.end,
        from_time=piece.time_from,
        to_time=piece.time_to,
        aborted=piece.aborted,
    )
    offset = piece.start
    missing = 0
    while offset < piece.end:
        try:
            base_offsets = segment_base_offsets(piece.directory)
        except FileNotFoundError:
            base_offsets = []
        if not base_offsets or base_offsets[0] > offset:
            # Compaction keeps the base offset of the first segment, so the log start has moved.
            next_offset = min(base_offsets[0], piece.end) if base_offsets else piece.end
            lost(
                piece,
                offset,
                next_offset,
                f"it now starts at {base_offsets[0]}" if base_offsets else "it is gone",
                fail_on_data_loss,
            )
            offset = next_offset
            continue
        at = bisect_right(base_offsets, offset) - 1
        following = base_offsets[at + 1] if at + 1 < len(base_offsets) else None
        try:
            segment = LogSegment(piece.directory, base_offsets[at], writable=False)
        except FileNotFoundError:
            # Deleted or replaced since the directory was listed.  A broken symbolic link stays broken: hence the limit.
            missing += 1
            if missing == _ATTEMPTS:
                raise
            time.sleep(0.01 * missing)
            continue
        missing = 0
        try:
            for records in _segment_records(segment, reader, offset, piece.end, following, batch_bytes):
                offset = reader.previous + 1
                yield records
        finally:
            segment.close()
        if following is not None:
            offset = max(offset, following)
        elif offset < piece.end:
            lost(piece, offset, piece.end, f"it now ends at {offset}", fail_on_data_loss)
            return


def _segment_records(
    segment: LogSegment, reader: ColumnsReader, offset: int, end: int, following: int | None, batch_bytes: int
) -> Iterator[RecordColumns]:
    bound = _NO_BOUND if following is None else following
    while offset < min(end, bound):
        records = segment.read_columns(reader, offset, bound, batch_bytes)
        if records is None:
            if following is not None and segment.ends_inside_a_batch():
                raise CorruptMessage(
                    f"{segment.log_path}: nothing can be read after offset {offset - 1}, and the log goes on to "
                    f"offset {following}",
                    source=segment.log_path,
                    offset=offset,
                )
            return
        offset = reader.previous + 1
        yield records


def lost(piece: OffsetRange, start: int, end: int, why: str, fail: bool) -> None:
    """Raises DataLoss, or logs a warning, about offsets start to end - 1 of a range."""
    report_loss(
        f"{piece.topic_partition}: offsets {start} to {end - 1} are no longer in {piece.directory}: {why}. "
        "They were deleted by retention, or the log was cut back or made anew",
        fail,
    )
