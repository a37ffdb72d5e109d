"""A log's records as Arrow record batches.  UnifiedLog.iter_arrow() and to_arrow() are the public names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kcore.errors import CorruptMessage, LogClosed, OffsetOutOfRange
from kcore.log.log_iteration import ARROW_BATCH_BYTES, batches_before_damage, check_nothing_lost, end_or_raise
from kcore.record.arrow import check_columns, columns_to_read, pyarrow, record_batches_of, schema
from kcore.record.columns import RecordColumns
from kcore.record.record_columns import ColumnsReader, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kcore.log.log_hot_path import LogHotPath


def iterate_columns(
    log: LogHotPath,
    start_offset: int | None,
    end_offset: int | None,
    columns: Sequence[str] | None,
    committed: bool,
    batch_bytes: int = ARROW_BATCH_BYTES,
    stops: bool = False,
) -> Iterator[RecordColumns]:
    """RecordColumns of some batch_bytes each; the records are those of UnifiedLog.records().  stops: the iteration ends
    at damage."""
    offset = log.log_start_offset if start_offset is None else start_offset
    try:
        for chunk, next_offset in _chunks(log, start_offset, end_offset, columns, committed, batch_bytes):
            yield chunk
            offset = next_offset
    except CorruptMessage as error:
        # A chunk with damage inside is refused whole.
        sound = batches_before_damage(log, offset, end_offset, committed, batch_bytes)
        if sound:
            data = b"".join(batch.buffer for batch in sound)
            end = sound[-1].next_offset if end_offset is None else end_offset
            chunk = columns_of(data, columns=columns, start_offset=offset, end_offset=end)
            if len(chunk):
                yield chunk
            offset = sound[-1].next_offset
        end_or_raise(log, error, offset, stops)


def _chunks(
    log: LogHotPath,
    start_offset: int | None,
    end_offset: int | None,
    columns: Sequence[str] | None,
    committed: bool,
    batch_bytes: int,
) -> Iterator[tuple[RecordColumns, int]]:
    """RecordColumns, and the offset of the next one."""
    limit = log.last_stable_offset if committed else log.log_end_offset
    end = limit if end_offset is None else min(end_offset, limit)
    offset = log.log_start_offset if start_offset is None else start_offset
    log.read(offset, 0, min_one_message=False)  # refuses what it refuses
    try:
        aborted = log.local.aborted_between(offset, end) if committed else ()
    except OSError as error:
        raise log.storage_failed("read", error) from error
    reader = ColumnsReader(columns, start_offset=offset, end_offset=end, aborted=aborted)
    while offset < end:
        segment = log.segments.floor(offset)
        if segment is None:
            raise OffsetOutOfRange(f"{log.topic_partition}: offset {offset} was deleted while the log was read")
        end_before = log.log_end_offset
        following = log.segments.higher(segment.base_offset)
        bound = following.base_offset if following is not None else max(end_before, log.log_end_offset)
        try:
            chunk = segment.read_columns(reader, offset, bound, batch_bytes)
            if chunk is None:
                check_nothing_lost(log, offset, end if following is None else following.base_offset)
        except LogClosed:
            if log.is_closed or log.segments.get(segment.base_offset) is segment:
                raise
            continue  # replaced or deleted meanwhile
        except OSError as error:
            raise log.storage_failed("read", error) from error
        if chunk is not None:
            offset = reader.previous + 1
            if len(chunk):
                yield chunk, offset
        elif following is not None:
            if log.segments.higher(segment.base_offset) is following:  # else the log was cut, and has grown again
                offset = following.base_offset
        else:
            return  # a gap up to the end, or cut off while we were reading


def iterate_arrow(
    log: LogHotPath,
    start_offset: int | None,
    end_offset: int | None,
    columns: Sequence[str] | None,
    committed: bool,
    batch_bytes: int,
    stops: bool = False,
) -> Iterator[pa.RecordBatch]:
    """See UnifiedLog.iter_arrow()."""
    if batch_bytes < 1:
        raise ValueError(f"batch_bytes {batch_bytes} is not positive")
    names = check_columns(columns)
    pyarrow()  # raises ImportError now, not at the first batch
    chunks = iterate_columns(log, start_offset, end_offset, columns_to_read(names), committed, batch_bytes, stops)
    tp = log.topic_partition
    return (batch for chunk in chunks for batch in record_batches_of(chunk, names, tp.topic, tp.partition))


def arrow_table(
    log: LogHotPath,
    start_offset: int | None,
    end_offset: int | None,
    columns: Sequence[str] | None,
    committed: bool,
    stops: bool = False,
) -> pa.Table:
    """See UnifiedLog.to_arrow()."""
    wanted = schema(columns)
    batches = list(iterate_arrow(log, start_offset, end_offset, columns, committed, ARROW_BATCH_BYTES, stops))
    return pyarrow().Table.from_batches(batches, wanted)
