"""Batches as an old client reads them: converted to magic 0 or 1 when they are fetched.

Source: RecordsUtil.downConvert and LazyDownConversionRecords, Kafka 3.9.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kcore.common.meters import TopicMeters
from kcore.errors import UnsupportedCompressionType
from kcore.record.batch_header import HEADER_SIZE
from kcore.record.file_records import FileRecords
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.record.record_batch_builder import RecordBatchBuilder

#: What is read of a file at a time, unless one batch is larger.
_PIECE_BYTES = 1 << 20

#: The offset and length of a batch of which nothing more follows: the client takes it for one that its fetch size cut
#: off, and asks for more instead of asking for the same again for ever.
_CUT_BATCH = struct.pack(">qi", -1, HEADER_SIZE)


def down_convert(
    records: FileRecords | MemoryRecords, magic: int, first_offset: int, meters: TopicMeters | None = None
) -> bytearray:
    """The batches as messages of magic 0 or 1; those of that magic or a lower one are copied.

    Control batches and headers are left out, plain records below first_offset too (VAL-23); offsets, timestamps and
    codecs stay.  About as many bytes come back as there were, but at least one converted batch, however large; where
    nothing could be converted (all of it control batches, or the first batch is cut off), the beginning of a batch.
    meters: where the records of converted batches are counted.
    Raises UnsupportedCompressionType if the first batch to be converted is zstd's, CorruptMessage.
    """
    limit = records.size_in_bytes
    converted = bytearray()
    for batch in _batches(records):
        if batch.is_control:
            continue
        if batch.magic > magic and batch.compression == "zstd":
            if converted:
                break
            raise UnsupportedCompressionType(f"{batch.source}: zstd needs Fetch version 10 or later")
        piece = batch.buffer if batch.magic <= magic else _messages(batch, magic, first_offset)
        if converted and len(converted) + len(piece) > limit:
            break
        converted += piece
        if meters is not None and batch.magic > magic:
            meters.converted(fetched=max(batch.count, 1))  # a wrapper of magic 1 does not say how many it has
    return converted or bytearray(_CUT_BATCH if limit else b"")


def _messages(batch: RecordBatch, magic: int, first_offset: int) -> bytearray:
    builder = None
    for record in batch.records():
        # An old client would return records before its fetch offset to its user, unless they are in a wrapper.
        if record.offset < first_offset and batch.compression == "none":
            continue
        if builder is None:
            is_stamped = magic and batch.timestamp_type == "LogAppendTime"
            builder = RecordBatchBuilder(
                magic=magic,
                base_offset=record.offset,
                compression=batch.compression,
                timestamp_type="LogAppendTime" if is_stamped else "CreateTime",
                log_append_time=batch.max_timestamp if is_stamped else None,
            )
        # Magic 2 has room for timestamps below -1, and a broker without limits for them takes them.
        timestamp = max(record.timestamp, -1)
        builder.append(record.value, record.key, timestamp=timestamp, offset=record.offset)
    return bytearray() if builder is None else builder.build()


def _batches(records: FileRecords | MemoryRecords) -> Iterator[RecordBatch]:
    if isinstance(records, MemoryRecords):
        yield from records.batches
        return
    position, size = 0, _PIECE_BYTES
    while position < records.size_in_bytes:
        piece = records.slice(position, size).memory_records(check_crc=False)
        if piece.valid_bytes:
            yield from piece.batches
            position += piece.valid_bytes
            size = _PIECE_BYTES
        elif size < records.size_in_bytes - position:
            size *= 2
        else:
            return
