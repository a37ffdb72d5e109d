"""gzip, snappy, lz4, zstd: one compress and one decompress.

The codec libraries are imported at first use.  Thread-safe; they release the GIL while they work.
"""

from __future__ import annotations

import importlib
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from kcore.errors import CorruptMessage
from kcore.record.zstd_frame import most_unpacked, uninitialized

Buffer = bytes | bytearray | memoryview

#: CODECS[i] is the codec of attribute bits i.
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_LZ4, _ZSTD = 3, 4
#: Least and most level of the codecs that have some.  lz4: its library takes any number for the nearest that it has.
LEVELS = {1: (-1, 9), _LZ4: (0, 17), _ZSTD: (-131072, 22)}

#: What a batch may decompress to unless the caller says otherwise: far above what a producer's batch
#: holds, far below what a hostile megabyte of zstd could become.
MAX_DECOMPRESSED_SIZE = 256 * 1024 * 1024


def check_level(codec: int, level: int | None) -> None:
    """Raises ValueError for a level that the codec does not have."""
    if level is None:
        return
    if codec not in LEVELS:
        raise ValueError(f"{CODECS[codec]} has no levels")
    least, most = LEVELS[codec]
    if not least <= level <= most:
        raise ValueError(f"{CODECS[codec]} has no level {level}: they go from {least} to {most}")


def codec_of(compression: str, level: int | None = None) -> int:
    """The index in CODECS.  Raises ValueError for a name that is none of them, or a level that the codec has not."""
    if compression not in CODECS:
        raise ValueError(f"compression {compression!r} is none of {', '.join(CODECS)}")
    codec = CODECS.index(compression)
    check_level(codec, level)
    return codec


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """data in the framing that Kafka's clients read.  codec: an index of CODECS; level: the codec's own scale,
    None for its default; snappy has none.  magic: of the batch, since lz4 frames of magic 0 have a header checksum of
    their own, and only magic 2 has zstd: ValueError."""
    if codec == 0:
        return bytes(data)
    if codec == _ZSTD and magic < 2:
        raise ValueError(f"magic {magic} has no zstd")
    packed = _COMPRESS[codec](data, level)
    return _with_historic_checksum(packed) if codec == _LZ4 and magic == 0 else packed


def decompress(
    codec: int, data: Buffer, *, max_size: int = MAX_DECOMPRESSED_SIZE, source: str = "", magic: int = 2
) -> Buffer:
    """The input of compress(), with the same magic.  Raises CorruptMessage for bytes the codec refuses, an unknown
    codec, or contents of more than max_size bytes, of which only a bounded part is ever held in memory."""
    if codec == 0:
        return bytes(data)
    where = f"{source}: " if source else ""
    if not 0 < codec < len(CODECS) or (codec == _ZSTD and magic < 2):
        raise CorruptMessage(f"{where}unknown compression codec {codec} in magic {magic}", source=source or None)
    if codec == _LZ4 and magic == 0:
        data = _with_right_checksum(data)
    try:
        return _DECOMPRESS[codec](data, max_size)
    except Exception as error:
        if not isinstance(error, (_Refused, *_library_errors(codec))):
            raise
        raise CorruptMessage(f"{where}{CODECS[codec]}: {error}", source=source or None) from error


def decompress_zstd_into(data: Buffer, room: memoryview) -> int:
    """What one whole frame holds, into room, which has most_unpacked(data) bytes; its size.  Raises CorruptMessage."""
    try:
        return _zstd_into(data, room)
    except _library("zstandard").ZstdError as error:
        raise CorruptMessage(f"zstd: {error}") from error


class _Refused(Exception):
    """Bytes that this module itself finds wrong."""


def _exceeding(max_size: int) -> _Refused:
    return _Refused(f"contents exceed {max_size} bytes")


@cache
def _library(name: str) -> Any:
    """Faster than an import statement, which costs some 400 ns even of what is imported: a tenth of a small batch."""
    return importlib.import_module(name)


def _library_errors(codec: int) -> tuple[type[Exception], ...]:
    """How the codec's library says that it does not like the bytes."""
    if codec == 1:
        return (_inflate().error,)
    if codec == 2:
        return (_library("cramjam").DecompressionError,)
    if codec == 3:
        return (RuntimeError,)
    if codec == 4:
        return (_library("zstandard").ZstdError,)
    return ()


_GZIP_MAGIC = b"\x1f\x8b"


def _gzip_compress(data: Buffer, level: int | None) -> bytes:
    packer = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


@cache
def _inflate() -> Any:
    """zlib, or isal's twin of it where that is installed: it inflates twice as fast."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _gzip_decompress(data: Buffer, max_size: int) -> Buffer:
    inflate = _inflate()
    parts: list[bytes] = []
    rest: Buffer = data
    size = 0
    # Concatenated members are one stream, what follows them and is none is not looked at, as in Java's GZIPInputStream.
    while not parts or bytes(rest[:2]) == _GZIP_MAGIC:
        unpacker = inflate.decompressobj(31)
        parts.append(unpacker.decompress(rest, max_size + 1 - size))
        size += len(parts[-1])
        if size > max_size:
            raise _exceeding(max_size)
        if not unpacker.eof:
            raise _Refused("stream ends early")
        rest = unpacker.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


# Snappy has two forms in Kafka's topics: the Java client's framing, written by xerial's SnappyOutputStream
# (magic, two big-endian int32 versions, then blocks of int32 length + raw snappy), and bare raw snappy.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024  # SnappyOutputStream's default block
_INT32 = struct.Struct(">i")
_SNAPPY_MOST = 22  # three bytes copy 64 at most


def _snappy_compress(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data).cast("B")
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(_library("cramjam").snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts.append(_INT32.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _snappy_decompress(data: Buffer, max_size: int) -> Buffer:
    view = memoryview(data).cast("B")
    blocks = list(_xerial_blocks(view)) if view[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC else [view]
    # Sizes are read first: the library would allocate whatever a block claims.
    sizes = [_raw_snappy_size(block) for block in blocks]
    size = sum(sizes)
    if size > max_size:
        raise _exceeding(max_size)
    if size > _SNAPPY_MOST * len(view):
        raise _Refused(f"{len(view)} bytes that claim to hold {size}")
    return _raw_snappy(blocks, sizes, size)


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise _Refused("stream ends in its header")
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:  # streams may be concatenated
            position += len(_XERIAL_HEADER)
            continue
        if len(view) - position < 4:
            raise _Refused(f"stream ends in a block length at {position}")
        (length,) = _INT32.unpack_from(view, position)
        position += 4
        if length < 0 or length > len(view) - position:
            raise _Refused(f"block of {length} bytes at {position}, {len(view) - position} are there")
        yield view[position : position + length]
        position += length


def _raw_snappy_size(block: memoryview) -> int:
    """What a raw block claims to hold."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    else:
        raise _Refused("block without a size")
    return size


def _raw_snappy(blocks: list[memoryview], sizes: list[int], size: int) -> bytearray:
    decompress = _library("cramjam").snappy.decompress_raw_into
    result = bytearray(size)
    room = memoryview(result)
    position = 0
    for block, block_size in zip(blocks, sizes, strict=True):
        end = position + block_size
        if decompress(block, room[position:end]) != block_size:
            raise _Refused(f"block of other than the {block_size} bytes that it claims to hold")
        position = end
    return result


def _lz4_compress(data: Buffer, level: int | None) -> bytes:
    # Kafka's Java reader takes independent blocks only, and no content size.
    packed: bytes = _library("lz4.frame").compress(
        data, compression_level=level or 0, block_linked=False, store_size=False
    )
    return packed


def _lz4_decompress(data: Buffer, max_size: int) -> Buffer:
    # Twice as fast, for the small batches that most are; but it allocates what the header claims, so only where that
    # claims nothing and the format itself, which expands by 255 at most, sets the limit.
    if 255 * len(data) <= max_size and len(data) > _LZ4_FLAGS and not data[_LZ4_FLAGS] & _LZ4_CONTENT_SIZE:
        unpacked: bytes = _library("lz4.frame").decompress(data)
        return unpacked
    unpacker = _library("lz4.frame").LZ4FrameDecompressor()
    # The library allocates what it is allowed to return, so ask for a usual ratio first.
    step = min(max_size + 1, max(64 * 1024, 8 * len(data)))
    parts = [unpacker.decompress(data, max_length=step)]
    size = len(parts[0])
    while not unpacker.eof and not unpacker.needs_input and size <= max_size:
        step = min(2 * step, max_size + 1 - size)
        parts.append(unpacker.decompress(b"", max_length=step))
        size += len(parts[-1])
    if size > max_size:
        raise _exceeding(max_size)
    if not unpacker.eof:
        raise _Refused("stream ends early")
    return parts[0] if len(parts) == 1 else b"".join(parts)


# Where an lz4 frame has the checksum of its header: after magic number, flags, block size and, if flagged, an int64
# of the content size.  Kafka clients before 0.10 computed it over the magic number too, and those of magic 0 messages
# have had to ever since.  Source: KAFKA-3160, LZ4 frame format.
_LZ4_FLAGS, _LZ4_CONTENT_SIZE = 4, 0x08


def _checksum_position(frame: Buffer) -> int:
    return 14 if len(frame) > _LZ4_FLAGS and frame[_LZ4_FLAGS] & _LZ4_CONTENT_SIZE else 6


def _with_historic_checksum(frame: bytes) -> bytes:
    at = _checksum_position(frame)
    return frame[:at] + bytes([_library("xxhash").xxh32_intdigest(frame[:at]) >> 8 & 0xFF]) + frame[at + 1 :]


def _with_right_checksum(frame: Buffer) -> bytes:
    """The historic checksum is not looked at, as Kafka does not: the message's CRC covers it."""
    at = _checksum_position(frame)
    head = bytes(frame[:at])
    return head + bytes([_library("xxhash").xxh32_intdigest(head[_LZ4_FLAGS:]) >> 8 & 0xFF]) + bytes(frame[at + 1 :])


_per_thread = threading.local()  # zstd contexts are costly to make and not thread-safe


def _zstd_compress(data: Buffer, level: int | None) -> bytes:
    packers: dict[int | None, Any] = _per_thread.__dict__.setdefault("packers", {})
    packer = packers.get(level)
    if packer is None:
        packer = packers[level] = _library("zstandard").ZstdCompressor(3 if level is None else level)
    packed: bytes = packer.compress(data)
    return packed


def _zstd_unpacker() -> Any:
    context = getattr(_per_thread, "unpacker", None)
    if context is None:
        context = _per_thread.unpacker = _library("zstandard").ZstdDecompressor()
    return context


def _zstd_into(data: Buffer, room: memoryview) -> int:
    size: int = _zstd_unpacker().stream_reader(data).readinto(room)
    return size


_SCRATCH_BYTES = 1024 * 1024


def _zstd_whole(data: memoryview, most: int) -> Buffer:
    """Of one frame.  A block as large as what could come out, cut to what did, would stay a mapping of its own, and be
    made of new pages each time; so small ones are copied out of one that stays."""
    if most > _SCRATCH_BYTES:
        buffer = uninitialized(most)
        with memoryview(buffer) as room:
            size = _zstd_into(data, room)
        del buffer[size:]
        return buffer
    scratch = getattr(_per_thread, "scratch", None)
    if scratch is None:
        scratch = _per_thread.scratch = memoryview(uninitialized(_SCRATCH_BYTES))
    return bytes(scratch[: _zstd_into(data, scratch)])


def _zstd_decompress(data: Buffer, max_size: int) -> Buffer:
    view = memoryview(data).cast("B")
    most = most_unpacked(view)
    if 0 < most <= max_size:
        return _zstd_whole(view, most)
    context = _zstd_unpacker()
    # Several frames, or none, or damage.  One input slice cannot grow past 4096 / 4 blocks of 128 KiB, so that is the
    # most that is unpacked beyond max_size.
    parts: list[bytes] = []
    size = position = 0
    unpacker = context.decompressobj()
    while position < len(view) and size <= max_size:
        chunk = view[position : position + 4096]
        parts.append(unpacker.decompress(chunk))
        size += len(parts[-1])
        position += len(chunk)
        if unpacker.eof:
            position -= len(unpacker.unused_data)
            if position < len(view):
                unpacker = context.decompressobj()
    if size > max_size:
        raise _exceeding(max_size)
    if not unpacker.eof:
        raise _Refused("stream ends early")
    return b"".join(parts)


_COMPRESS: dict[int, Callable[[Buffer, int | None], bytes]] = {
    1: _gzip_compress,
    2: _snappy_compress,
    3: _lz4_compress,
    4: _zstd_compress,
}
_DECOMPRESS: dict[int, Callable[[Buffer, int], Buffer]] = {
    1: _gzip_decompress,
    2: _snappy_decompress,
    3: _lz4_decompress,
    4: _zstd_decompress,
}
