"""Magic-2 batches in plain Python: encode, decode, check.  Slow on purpose; written from the format, not from kcore.

A batch: base offset i64, length i32 (bytes after this field), leader epoch i32, magic i8, CRC-32C u32 (of everything
after it), attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64, producer
epoch i16, base sequence i32, count i32, then the records, compressed as one block.  Big endian.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field, replace
from functools import cache

import cramjam
import lz4.frame
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
#: Bytes before the length field's own count begins: base offset and length.
LOG_OVERHEAD = 12
CRC_FROM = 21

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOG_APPEND_TIME = 1 << 3
TRANSACTIONAL = 1 << 4
CONTROL = 1 << 5
DELETE_HORIZON = 1 << 6

_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


class Malformed(ValueError):
    """Bytes that no writer of this format produces."""


@dataclass
class Record:
    offset: int
    timestamp: int
    key: bytes | None = None
    value: bytes | None = None
    #: (name, value) in order.  Names are bytes here: the model does not care whether they are UTF-8.
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass
class Batch:
    """All fields as stored.  position and size are set by decode, crc by both."""

    base_offset: int
    records: list[Record]
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    attributes: int = 0
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int = 0
    crc: int = 0
    magic: int = 2
    position: int = 0
    size: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> str:
        return CODECS[self.attributes & 7]

    @property
    def timestamp_type(self) -> str:
        return "LogAppendTime" if self.attributes & LOG_APPEND_TIME else "CreateTime"

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """The sequence counts to 2**31 - 1 and starts again at 0."""
        return -1 if self.base_sequence == -1 else (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


@cache
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def crc32c(data: bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli), reflected, one byte at a time."""
    table = _crc_table()
    value ^= 0xFFFFFFFF
    for byte in bytes(data):
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def encode_varint(number: int) -> bytes:
    """Zigzag, then seven bits a byte, least significant first.  Serves int32 and int64."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def decode_varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """(number, position after it).  At most 5 bytes for 32 bits, 10 for 64; what overflows the width is dropped."""
    zigzag = 0
    for n in range(5 if bits == 32 else 10):
        if at >= len(data):
            raise Malformed(f"varint runs past the end at {at}")
        byte = data[at]
        at += 1
        zigzag |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            zigzag &= (1 << bits) - 1
            return (zigzag >> 1) ^ -(zigzag & 1), at
    raise Malformed(f"varint longer than {n + 1} bytes before {at}")


def compress(codec: str, data: bytes) -> bytes:
    match codec:
        case "none":
            return data
        case "gzip":
            return gzip.compress(data, mtime=0)
        case "snappy":
            block = bytes(cramjam.snappy.compress_raw(data))
            return _XERIAL + struct.pack(">i", len(block)) + block
        case "lz4":
            return lz4.frame.compress(data, block_linked=False, store_size=False)
        case "zstd":
            return zstandard.ZstdCompressor(write_content_size=False).compress(data)
    raise ValueError(codec)


def decompress(codec: str, data: bytes) -> bytes:
    data = bytes(data)
    try:
        match codec:
            case "none":
                return data
            case "gzip":
                return gzip.decompress(data)
            case "snappy":
                return _decompress_snappy(data)
            case "lz4":
                return lz4.frame.decompress(data)
            case "zstd":
                return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except Malformed:
        raise
    except Exception as error:  # each codec has its own classes
        raise Malformed(f"{codec}: {error}") from error
    raise ValueError(codec)


def _decompress_snappy(data: bytes) -> bytes:
    """Java wraps blocks in xerial frames; librdkafka and others write one raw block.  Both are legal."""
    if data[:8] != _XERIAL[:8]:
        return bytes(cramjam.snappy.decompress_raw(data))
    out, at = b"", len(_XERIAL)
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 <= size <= len(data) - at:
            raise Malformed(f"snappy block of {size} bytes at {at}")
        out += bytes(cramjam.snappy.decompress_raw(data[at : at + size]))
        at += size
    return out


def _nullable(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    """Length, attributes 0, deltas, key, value, headers."""
    body = b"\x00" + encode_varint(record.timestamp - base_timestamp) + encode_varint(record.offset - base_offset)
    body += _nullable(record.key) + _nullable(record.value) + encode_varint(len(record.headers))
    for name, value in record.headers:
        body += encode_varint(len(name)) + name + _nullable(value)
    return encode_varint(len(body)) + body


def make_batch(
    records: list[Record],
    *,
    codec: str = "none",
    log_append_time: int | None = None,
    transactional: bool = False,
    control: bool = False,
    **fields: int,
) -> Batch:
    """A batch over these records as a producer builds it: base values from the first record.

    fields: leader_epoch, producer_id, producer_epoch, base_sequence, last_offset_delta, ...
    """
    first = records[0]
    attributes = CODECS.index(codec) | TRANSACTIONAL * transactional | CONTROL * control
    max_timestamp = max(record.timestamp for record in records)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time
    batch = Batch(
        base_offset=first.offset,
        records=records,
        last_offset_delta=records[-1].offset - first.offset,
        base_timestamp=first.timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
        count=len(records),
    )
    return replace(batch, **fields)


def encode_batch(batch: Batch, payload: bytes | None = None) -> bytes:
    """The batch's bytes; count and CRC are written as they must be, the other fields as passed.

    payload: the (compressed) records block to use instead of encoding batch.records; count is then batch.count.
    """
    count = batch.count
    if payload is None:
        count = len(batch.records)
        payload = compress(
            batch.codec, b"".join(encode_record(r, batch.base_offset, batch.base_timestamp) for r in batch.records)
        )
    header = HEADER.pack(
        batch.base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(payload),
        batch.leader_epoch,
        batch.magic,
        0,
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        count,
    )
    crc = crc32c(header[CRC_FROM:] + payload)
    return header[: CRC_FROM - 4] + struct.pack(">I", crc) + header[CRC_FROM:] + payload


def reseal(data: bytes) -> bytes:
    """The same batch bytes with the CRC made right: to reach the checks after the CRC with broken content."""
    return data[: CRC_FROM - 4] + struct.pack(">I", crc32c(data[CRC_FROM:])) + data[CRC_FROM:]


def decode_batch(data: bytes, at: int = 0, *, check_crc: bool = True) -> Batch:
    """The batch that starts at `at`, with its records.  Malformed for anything that is not exactly a batch."""
    data = bytes(data)
    if len(data) - at < HEADER_SIZE:
        raise Malformed(f"{len(data) - at} bytes left at {at}, a header has {HEADER_SIZE}")
    fields = HEADER.unpack_from(data, at)
    size = LOG_OVERHEAD + fields[1]
    if fields[3] != 2:
        raise Malformed(f"magic {fields[3]} at {at}")
    if not HEADER_SIZE <= size <= len(data) - at:
        raise Malformed(f"batch size {size} at {at}, {len(data) - at} bytes left")
    batch = Batch(
        base_offset=fields[0],
        records=[],
        leader_epoch=fields[2],
        magic=fields[3],
        crc=fields[4],
        attributes=fields[5],
        last_offset_delta=fields[6],
        base_timestamp=fields[7],
        max_timestamp=fields[8],
        producer_id=fields[9],
        producer_epoch=fields[10],
        base_sequence=fields[11],
        count=fields[12],
        position=at,
        size=size,
    )
    if check_crc and crc32c(data[at + CRC_FROM : at + size]) != batch.crc:
        raise Malformed(f"CRC at {at}")
    if batch.count < 0 or batch.last_offset_delta < 0:
        raise Malformed(f"count {batch.count}, last offset delta {batch.last_offset_delta} at {at}")
    if batch.attributes & 7 >= len(CODECS):
        raise Malformed(f"codec {batch.attributes & 7} at {at}")
    if batch.count == 0:  # emptied by the cleaner: there is no block to decompress
        return batch
    block = decompress(batch.codec, data[at + HEADER_SIZE : at + size])
    where = 0
    for _ in range(batch.count):
        record, where = decode_record(block, where, batch)
        batch.records.append(record)
    if where != len(block):
        raise Malformed(f"{len(block) - where} bytes after the last record of the batch at {at}")
    return batch


def decode_record(block: bytes, at: int, batch: Batch) -> tuple[Record, int]:
    length, at = decode_varint(block, at)
    end = at + length
    if length < 0 or end > len(block):
        raise Malformed(f"record of {length} bytes at {at}")
    body = block[:end]  # nothing inside may read past it
    if at >= end:
        raise Malformed(f"empty record at {at}")
    at += 1  # attributes: unused
    timestamp_delta, at = decode_varint(body, at, 64)
    offset_delta, at = decode_varint(body, at)
    key, at = _decode_nullable(body, at)
    value, at = _decode_nullable(body, at)
    count, at = decode_varint(body, at)
    if not 0 <= count <= end - at:
        raise Malformed(f"{count} headers at {at}")
    headers = []
    for _ in range(count):
        name, at = _decode_nullable(body, at)
        if name is None:
            raise Malformed(f"null header key before {at}")
        header_value, at = _decode_nullable(body, at)
        headers.append((name, header_value))
    if at != end:
        raise Malformed(f"record ends at {at}, its length says {end}")
    timestamp = batch.max_timestamp if batch.attributes & LOG_APPEND_TIME else batch.base_timestamp + timestamp_delta
    return Record(batch.base_offset + offset_delta, timestamp, key, value, headers), at


def _decode_nullable(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(body, at)
    if size < 0:
        return None, at
    if size > len(body) - at:
        raise Malformed(f"{size} bytes at {at}")
    return body[at : at + size], at + size


def decode_batches(data: bytes, *, check_crc: bool = True) -> list[Batch]:
    """All batches; a partial one at the end is left out, as a log scan leaves it out."""
    data = bytes(data)
    batches, at = [], 0
    while len(data) - at >= LOG_OVERHEAD:
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length >= HEADER_SIZE - LOG_OVERHEAD and length > len(data) - at - LOG_OVERHEAD:
            break
        batch = decode_batch(data, at, check_crc=check_crc)
        batches.append(batch)
        at += batch.size
    return batches


def control_record(offset: int, timestamp: int, *, commit: bool, coordinator_epoch: int = 0) -> Record:
    """An end-of-transaction marker: key {version i16, type i16}, value {version i16, coordinator epoch i32}."""
    return Record(offset, timestamp, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch))
