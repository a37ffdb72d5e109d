"""Segments whose offsets do not fit in 31 bits from the base offset, and how to make several of one.

Kafka before 1.1.1 could write them (KAFKA-6264): its cleaner grouped segments by size alone.  Neither index can name
an offset that far up, and recovery would take it for damage, so such a segment is split when its log is loaded.
Source: LocalLog.splitOverflowedSegment, LogLoader.retryOnOffsetOverflow.
"""

from __future__ import annotations

import logging

from kcore.common.file import append_to, rename, sync_path, unlink_if_there
from kcore.errors import CorruptMessage
from kcore.log.log_file_names import CLEANED_SUFFIX, SWAP_SUFFIX, segment_file
from kcore.log.log_segment import LogSegment, OffsetPosition
from kcore.record.batch_header import HEADER_SIZE, LENGTH_OFFSET, LOG_OVERHEAD, SMALLEST_SIZE
from kcore.record.record_batch import RecordBatch

logger = logging.getLogger(__name__)

#: How far from its segment's base offset an offset may be.
MAX_RELATIVE_OFFSET = 2**31 - 1
_CHUNK_BYTES = 1 << 20


def overflow_position(
    segment: LogSegment, base_offset: int, following: int | None, starting_position: int = 0
) -> int | None:
    """The position of the first batch whose offsets do not fit into a segment of this base offset; None if all fit.
    following: the base offset of the next segment.

    Invalid bytes are not an overflow; recovery cuts them off.  Nor is a batch that is followed by lower offsets: its
    base offset, which no CRC covers, is wrong.  Raises OSError.
    """
    try:
        place = segment.translate_offset(base_offset + MAX_RELATIVE_OFFSET + 1, starting_position)
        if place is None or not segment.slice(place.position, place.size).memory_records():
            return None
    except CorruptMessage:
        return None
    if (following is not None and place.offset >= following) or _is_followed_by_lower_offset(segment, place):
        return None
    return place.position


def _is_followed_by_lower_offset(segment: LogSegment, place: OffsetPosition) -> bool:
    """Whether the next batch is valid and its offsets are not above this one's.  A batch with a wrong CRC proves
    nothing about the batch before it."""
    position = place.position + place.size
    try:
        following = batch_at(segment, position)
        return (
            following is not None
            and following.last_offset <= place.offset
            and bool(segment.slice(position, following.size).memory_records())
        )
    except CorruptMessage:
        return False


def split(directory: str, segment: LogSegment, following: int | None) -> bool:
    """Write the parts beside the segment and give them .swap names, last first; the loader's completion of swaps
    does the rest, now or after a crash.  Whether there was anything to split.  Raises OSError, with .cleaned or .swap
    files left that the next start removes.
    """
    parts: list[tuple[int, int]] = []  # base offset, position
    base_offset, position = segment.base_offset, 0
    while True:
        parts.append((base_offset, position))
        overflow = overflow_position(segment, base_offset, following, position)
        if overflow is None:
            break
        base_offset, position = _first_offset(segment, overflow), overflow
    if len(parts) == 1:
        return False
    ends = [position for _, position in parts[1:]] + [segment.size]
    for (base_offset, position), end in zip(parts, ends, strict=True):
        logger.warning(
            "%s: offsets do not fit in one segment: bytes %d to %d become segment %d",
            segment.log_path,
            position,
            end,
            base_offset,
        )
        _write_part(directory, segment, base_offset, position, end)
    for base_offset, _ in reversed(parts):
        rename(
            segment_file(directory, base_offset, ".log" + CLEANED_SUFFIX),
            segment_file(directory, base_offset, ".log" + SWAP_SUFFIX),
        )
    sync_path(directory)
    return True


def batch_at(segment: LogSegment, position: int) -> RecordBatch | None:
    """The whole batch there, None if there is none; its CRC was not looked at.  Raises CorruptMessage, OSError."""
    head = segment.slice(position, min(LOG_OVERHEAD, segment.size - position)).read()
    size = LOG_OVERHEAD + int.from_bytes(head[LENGTH_OFFSET:], "big", signed=True)
    if len(head) < LOG_OVERHEAD or size > segment.size - position:
        return None
    # Only the bytes of this batch: damage after it does not concern it.  The parser rejects an impossible size.
    enough = size if size >= min(SMALLEST_SIZE) else min(HEADER_SIZE, segment.size - position)
    records = segment.slice(position, enough).memory_records(check_crc=False)
    return records.batches[0] if records else None


def _first_offset(segment: LogSegment, position: int) -> int:
    """The first offset of the batch at position.  That of an old wrapper is only in its inner messages."""
    batch = batch_at(segment, position)
    assert batch is not None
    return batch.base_offset if batch.magic >= 2 else next(iter(batch.records())).offset


def _write_part(directory: str, segment: LogSegment, base_offset: int, position: int, end: int) -> None:
    """Copy the segment's batches in [position, end), byte for byte.  recover() makes the indexes and checks them."""
    path = segment_file(directory, base_offset, ".log" + CLEANED_SUFFIX)
    unlink_if_there(path)
    append_to(path, b"", 0)
    start = position
    while position < end:
        size = _whole_batches(segment, position, end)
        if not size:
            logger.warning("%s: %d bytes at position %d are no batches", segment.log_path, end - position, position)
            break
        append_to(path, segment.slice(position, size).read(), position - start)
        position += size
    sync_path(path)


def _whole_batches(segment: LogSegment, position: int, end: int) -> int:
    """Bytes of the batches from there on that parse, some _CHUNK_BYTES of them; 0 if there is none.  Raises OSError."""
    try:
        chunk = segment.slice(position, min(_CHUNK_BYTES, end - position)).memory_records(check_crc=False)
        if chunk:
            return chunk.valid_bytes
    except CorruptMessage:
        pass  # somewhere in it
    size = 0
    try:
        while position + size < end and size < _CHUNK_BYTES:
            batch = batch_at(segment, position + size)
            if batch is None:
                break
            size += batch.size
    except CorruptMessage:
        pass
    return size
