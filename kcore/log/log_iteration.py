"""Iterate over a log's batches and records, checking on the way what no CRC covers.

UnifiedLog.batches() and records() are the public names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from kcore.errors import CorruptMessage
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.record.file_records import FileRecords
from kcore.record.record_batch import Record, RecordBatch
from kcore.record.valid_part import valid_part

if TYPE_CHECKING:
    from kcore.log.log_hot_path import LogHotPath
    from kcore.log.log_segment import LogSegment
    from kcore.log.segment_file import RecoveryResult

logger = logging.getLogger(__name__)

Isolation = Literal["read_uncommitted", "read_committed"]
#: What an iteration does at damage: raise CorruptMessage, or end there.
OnError = Literal["raise", "stop"]

#: What an iteration holds in memory at a time, unless one batch is larger.
_CHUNK_BYTES = 1 << 20
#: Default for the bytes of the log's batches that become one Arrow record batch.
ARROW_BATCH_BYTES = 16 * 1024 * 1024


def is_committed(isolation: Isolation) -> bool:
    """Whether the level leaves out aborted transactions.  Raises ValueError for what is no level.

    Not for the body of a generator, which would raise at the first next() only.
    """
    if isolation == "read_committed":
        return True
    if isolation == "read_uncommitted":
        return False
    raise ValueError(f"isolation {isolation!r}, expected 'read_uncommitted' or 'read_committed'")


def stops_at_damage(on_error: OnError) -> bool:
    """Raises ValueError for what is neither "raise" nor "stop"."""
    if on_error not in ("raise", "stop"):
        raise ValueError(f"on_error {on_error!r}, expected 'raise' or 'stop'")
    return on_error == "stop"


def iterate_batches(
    log: LogHotPath, start_offset: int | None, end_offset: int | None, committed: bool, stops: bool = False
) -> Iterator[RecordBatch]:
    """See UnifiedLog.batches().  stops: the iteration ends at damage."""
    offset = log.log_start_offset if start_offset is None else start_offset
    try:
        for batch in _batches(log, start_offset, end_offset, committed):
            yield batch
            offset = batch.next_offset
    except CorruptMessage as error:
        end_or_raise(log, error, offset, stops)


def end_or_raise(log: LogHotPath, error: CorruptMessage, offset: int, stops: bool) -> None:
    """End an iteration that has returned everything below `offset`, or raise the error and say what can be done."""
    if stops:
        logger.warning("%s: the iteration ends before offset %d: %s", log.topic_partition, offset, error)
        return
    if log.mode == "a":
        raise error
    unflushed = log.segments.floor(log.recovery_point) if log.recovery_point < log.log_end_offset else None
    if unflushed is not None and offset >= unflushed.base_offset:
        advice = f"open_log(path, 'a') would recover the log: cut it here, so that it ends at offset {offset}"
    else:
        advice = f"`kcore repair` shows what it would keep; by default the log then ends at offset {offset}"
    raise CorruptMessage(
        f"{error}; `kcore.open_log(DIR).records(on_error='stop')` ends here without an error, and so do batches() and "
        f"to_arrow(); {advice}",
        source=error.source,
        position=error.position,
        offset=error.offset,
    ) from error


def batches_before_damage(
    log: LogHotPath, offset: int, end_offset: int | None, committed: bool, max_bytes: int
) -> list[RecordBatch]:
    """Those from offset on whose records can be read; nothing if no damage comes within max_bytes."""
    sound = []
    size = 0
    try:
        for batch in _batches(log, offset, end_offset, committed):
            if not batch.is_control:
                batch.records()  # parses all of them
            sound.append(batch)
            size += batch.size
            if size > max_bytes:
                break
    except CorruptMessage:
        return sound
    return []


def _batches(
    log: LogHotPath, start_offset: int | None, end_offset: int | None, committed: bool
) -> Iterator[RecordBatch]:
    limit = log.last_stable_offset if committed else log.log_end_offset
    end = limit if end_offset is None else min(end_offset, limit)
    offset = log.log_start_offset if start_offset is None else start_offset
    fetch = FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.LOG_END
    previous = -1
    while offset < end or offset > log.log_end_offset or offset < log.log_start_offset:
        end_before = log.log_end_offset
        info = log.read(offset, _CHUNK_BYTES, fetch)
        try:
            if not isinstance(info.records, FileRecords) or info.records.size_in_bytes == 0:
                check_nothing_lost(log, offset, end)
                return
            segment_base = info.fetch_offset_metadata.segment_base_offset
            check_nothing_lost(log, offset, segment_base)
            following = log.segments.higher(segment_base)
            bound = following.base_offset if following is not None else max(end_before, log.log_end_offset)
            chunk, damage = valid_part(info.records)
        except OSError as error:
            raise log.storage_failed("read", error) from error
        if not chunk:
            return  # cut off while we were reading
        aborted = sorted(info.aborted_transactions or (), key=lambda txn: txn.first_offset, reverse=True)
        aborted_producers: set[int] = set()
        for batch, next_base in _with_next_base(chunk.batches, bound):
            # Of two overlapping batches the one whose base offset does not follow the batch before it is wrong.
            below = bound if batch.base_offset == previous + 1 else min(next_base, bound)
            if batch.base_offset <= previous or batch.last_offset >= below:
                raise CorruptMessage(
                    f"{info.records.path}: offsets {batch.base_offset} to {batch.last_offset} of the batch at "
                    f"position {batch.position}: expected above {previous} and below {below}",
                    source=info.records.path,
                    position=batch.position,
                    offset=batch.base_offset,
                )
            previous = batch.last_offset
            if batch.base_offset >= end:
                return
            while aborted and aborted[-1].first_offset <= batch.last_offset:
                aborted_producers.add(aborted.pop().producer_id)
            if batch.is_control:
                aborted_producers.discard(batch.producer_id)
            elif batch.is_transactional and batch.producer_id in aborted_producers:
                continue
            if batch.last_offset >= offset:
                yield batch
        if damage is not None:
            raise damage
        offset = chunk.last_offset + 1


def _with_next_base(batches: Iterable[RecordBatch], bound: int) -> Iterator[tuple[RecordBatch, int]]:
    """Each batch with the base offset of the next one; with bound for the last batch.

    A batch whose base offset is too high is detected by the next base offset, before its records are returned.
    """
    ahead = iter(batches)
    batch = next(ahead)
    for following in ahead:
        yield batch, following.base_offset
        batch = following
    yield batch, bound


def check_nothing_lost(log: LogHotPath, offset: int, found_at: int) -> None:
    """Check that the offsets between offset and found_at, which a read skipped, are a gap left by compaction.

    A length that is wrong looks like a batch not yet complete, so whole segments are walked, not only their ends;
    a log that was never compacted does not come here.
    """
    for segment in log.segments.from_floor(offset):
        if segment.base_offset >= found_at:
            return
        if not _walked(segment).truncated_bytes or log.log_end_offset < found_at:
            continue
        with log.lock:  # a walk beside a truncation and appends may end in a batch that is half written
            walked = _walked(segment)
            if walked.truncated_bytes and log.log_end_offset >= found_at:
                raise CorruptMessage(
                    f"{segment.log_path}: nothing can be read after position {walked.valid_bytes} ({walked.reason}), "
                    f"and the log goes on to offset {found_at}",
                    source=segment.log_path,
                    position=walked.valid_bytes,
                    offset=offset,
                )


def _walked(segment: LogSegment) -> RecoveryResult:
    return segment.scan(lambda batches: None, check_crc=False, only_noteworthy=True)


def iterate_records(
    log: LogHotPath, start_offset: int | None, end_offset: int | None, committed: bool, stops: bool = False
) -> Iterator[Record]:
    """See UnifiedLog.records().  stops: the iteration ends at damage."""
    first = log.log_start_offset if start_offset is None else start_offset
    for batch in iterate_batches(log, start_offset, end_offset, committed, stops):
        if batch.is_control:
            continue
        try:
            inside = batch.records()  # parses all of them
        except CorruptMessage as error:
            end_or_raise(log, error, max(batch.base_offset, first), stops)
            return
        for record in inside:
            if record.offset >= first and (end_offset is None or record.offset < end_offset):
                yield record
