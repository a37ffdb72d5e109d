"""The batches of a .log file that may be damaged: valid batches, and each damage with its position.

A batch with a wrong CRC does not hide the batches after it: its length leads to the next one.  Where the length itself
is wrong, the end of the batch is where the CRC-32C of its bytes equals the CRC in its header.  Where no CRC says so
either, as in a page of zeros, batch_finder.py locates the next batch.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import NamedTuple

from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_finder import BatchFinder
from kcore.record.batch_header import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_OFFSET,
    LEGACY_CRC_OFFSET,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    SMALLEST_SIZE,
)
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords

# One megabyte: large enough that the GIL is released, and small enough that most of it is still in the second-level
# cache when the CRC is computed.
_CHUNK = 1 << 20
#: By magic, where the CRC is and where the bytes that it covers begin.
_CRC_AT = (LEGACY_CRC_OFFSET, LEGACY_CRC_OFFSET, CRC_OFFSET)
_CRC_FROM = (MAGIC_OFFSET, MAGIC_OFFSET, ATTRIBUTES_OFFSET)
#: How many bytes after a batch with a wrong length are searched for its end by its CRC.
_SEARCH_LIMIT = 16 << 20
_MAX_OFFSET = (1 << 63) - 1


class Correction(NamedTuple):
    """A field of a batch's header that no CRC covers, and the only value that is right there."""

    #: Of the batch.
    position: int
    #: Where the bytes of the field are in the file, and what they should be.
    at: int
    content: bytes
    #: The field with its value in the file and the right one.
    text: str
    #: How many bits of a length differ; 0 for other fields.
    wrong_length_bits: int = 0


class Damage(NamedTuple):
    """Bytes that are wrong."""

    position: int
    #: Base offset of the batch as its header has it; None where no header could be read.
    offset: int | None
    problem: str
    #: How many bytes the batch has; 0 if its end is unknown.
    size: int = 0
    #: With it the batch is valid, its CRC included.
    correction: Correction | None = None
    #: As the header has it; None where the magic is not 2 or the end of the batch is unknown.
    last_offset: int | None = None


class Tail(NamedTuple):
    """A partial batch at the end of the file: a crash leaves it, and recovery cuts it off."""

    position: int
    offset: int | None
    size: int


def read_batches(
    path: str,
    start: int = 0,
    *,
    check_crc: bool = True,
    next_offset: int | None = None,
    end_offset: int | None = None,
    may_have_gaps: Callable[[], bool] | None = None,
) -> Iterator[MemoryRecords | Damage | Tail]:
    """The batches of a file from position `start` on, in order, a chunk at a time; damage and a partial
    end at their positions.

    After a batch whose bytes are wrong, reading goes on where its length leads to another batch, so one flipped byte
    costs one batch, and after a damaged page at the first batch that it does not touch.  A yielded item is valid until
    the next one is read: they share a buffer.
    next_offset: the offset after the batch before `start`; end_offset: the one at which the file ends; if known.
    may_have_gaps: whether other files show that the log is compacted; called only at damage.
    Raises OSError.
    """
    with log_files.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        finder = BatchFinder(file.fileno(), path, size, next_offset, end_offset, may_have_gaps)
        buffer = bytearray(min(_CHUNK, max(size - start, 0)))
        position = start
        while position < size:
            want = min(len(buffer), size - position)
            got = _read_at(file.fileno(), memoryview(buffer)[:want], position)
            if got < want:  # somebody truncated the file while we read; its end is now here
                size = position + got
                if not got:
                    return
            chunk = memoryview(buffer)[:got]
            try:
                records = MemoryRecords(chunk, check_crc=check_crc, source=path, base_position=position)
            except KafkaError:
                position = yield from _batch_by_batch(path, chunk, position, size, check_crc, finder)
                continue
            if records.valid_bytes:
                finder.passed(records)
                yield records
                position += records.valid_bytes
                continue
            del records
            # The chunk has no whole batch: the batch is longer than the buffer, or the file ends inside it.
            length = _stated_size(chunk, 0)
            if length is None or position + length > size:
                position = yield from _partial_end(file.fileno(), position, size, finder)
                continue
            if check_crc and (problem := _wrong_around_holes(file.fileno(), chunk, position, length)):
                finder.damaged(None)
                yield Damage(position, _base_offset(chunk, 0), problem)
                position += length
                continue
            del chunk
            buffer = bytearray(length)


def _batch_by_batch(
    path: str, chunk: memoryview, position: int, size: int, check_crc: bool, finder: BatchFinder
) -> Generator[MemoryRecords | Damage | Tail, None, int]:
    """The batches of a chunk with damage in it, one by one; the return value is the position where to go on."""
    at = 0
    while at < len(chunk):
        length = _stated_size(chunk, at)
        whole = length is not None and at + length <= len(chunk)
        if at and not whole and (length is not None or len(chunk) - at < HEADER_SIZE):
            break  # perhaps whole in the next chunk
        end = at + length if whole and length is not None else len(chunk)
        try:
            records = MemoryRecords(chunk[at:end], check_crc=check_crc, source=path, base_position=position + at)
        except KafkaError as error:
            if at > len(chunk) // 2 and position + len(chunk) < size:
                break  # from here on, so that enough bytes follow to find where the batch ends
            problem = without_path(error, path)
            if (flipped_end := _end_by_one_bit(chunk, at)) is not None:
                damage = _wrong_length(chunk, at, position, flipped_end)
            elif whole and _leads_on(chunk, at, end, position, size, finder):
                damage = _wrong_magic(chunk, at, position, end) or Damage(
                    position + at, _base_offset(chunk, at), problem, end - at, None, _last_offset(chunk, at, end)
                )
            elif (true_end := _end_by_crc(chunk, at, finder)) is not None:
                damage = _wrong_length(chunk, at, position, true_end)
            else:
                offset, lost_from = _base_offset(chunk, at), position + (end if whole else at)
                following = yield from _skip(finder, position + at, offset, problem, lost_from, size)
                if following >= position + len(chunk):
                    return following
                at = following - position
                continue
            finder.damaged(damage.last_offset)
            yield damage
            end = at + damage.size
        else:
            finder.passed(records)
            yield records
        at = end
    return position + at


def _skip(
    finder: BatchFinder, position: int, offset: int | None, problem: str, lost_from: int, size: int
) -> Generator[Damage, None, int]:
    """The damage of a batch that leads to no other one; the return value is where the next batch is.  offset: the base
    offset that its bytes have.  lost_from: where nothing is known any more if no batch can be located."""
    header, following = finder.after(position)
    if header is not None and header.end <= size:
        yield Damage(position, header.base_offset, problem, header.size, None, header.last_offset)
        lost_from = header.end
    elif following is not None:
        yield Damage(position, None, f"{problem}; the next batch that can be located is at position {following}")
        return following
    else:
        yield Damage(position, offset, problem)
    if following is None:
        yield from _lost_from(lost_from, size)
    elif lost_from < following:
        yield Damage(lost_from, None, f"no batch could be located from here up to position {following}")
    return size if following is None else following


def _wrong_around_holes(fd: int, chunk: memoryview, position: int, size: int) -> str | None:
    """Checks the CRC of a batch that has holes, without reading the holes: a sparse file can have batches of 2 GiB that
    are all holes.  The problem; None if the CRC is right, or the batch has no hole.  Raises OSError."""
    stretches = list(log_files.data_stretches(fd, position, position + size))
    if _magic(chunk, 0) != 2 or stretches == [(position, position + size)]:
        return None
    crc = _number(">I", chunk, _CRC_AT[2])
    value, at = 0, position + _CRC_FROM[2]
    for start, end in (*stretches, (position + size, position + size)):
        value = crc32c_of_zeros(start - at, value) if start > at else value
        at = max(at, start)
        while at < end:
            data = os.pread(fd, min(end - at, _CHUNK), at)
            if not data:
                return None  # cut while we read
            value = crc32c(data, value)
            at += len(data)
    if value == crc:
        return None
    return f"CRC-32C at position {position}: expected {crc}, found {value}"


def crc32c_of_zeros(count: int, value: int) -> int:
    """crc32c(bytes(count), value), in O(log(count)) steps."""
    power = 0
    while count >> power:
        if count >> power & 1:
            value = _apply(_zeros_to_the(power), value)
        power += 1
    return value


#: A function of a CRC as (constant, columns): the constant and the column of each bit that is set, all XORed.
_Affine = tuple[int, list[int]]


@cache
def _zeros_to_the(power: int) -> _Affine:
    """The function that 2 ** power zero bytes apply to a CRC."""
    values = [0, *(1 << bit for bit in range(32))]
    if power == 0:
        constant, *others = [crc32c(b"\0", value) for value in values]
    else:
        half = _zeros_to_the(power - 1)
        constant, *others = [_apply(half, _apply(half, value)) for value in values]
    return constant, [other ^ constant for other in others]


def _apply(function: _Affine, value: int) -> int:
    result, columns = function
    for bit, column in enumerate(columns):
        if value >> bit & 1:
            result ^= column
    return result


def _partial_end(fd: int, position: int, size: int, finder: BatchFinder) -> Generator[Damage | Tail, None, int]:
    """The file ends inside a batch, or that batch's length is wrong; the return value is where to go on."""
    data = memoryview(bytearray(min(size - position, _SEARCH_LIMIT)))
    data = data[: _read_at(fd, data, position)]
    end = _end_by_crc(data, 0, finder)
    if end is not None:
        finder.damaged(None)
        yield _wrong_length(data, 0, position, end)
        return position + end
    _, following = finder.after(position)
    if following is None:
        yield Tail(position, _base_offset(data, 0), size - position)
        return size
    problem = f"the batch length leads beyond the end of the file; the next batch that can be located is at {following}"
    yield Damage(position, None, problem)
    return following


def _end_by_crc(chunk: memoryview, at: int, finder: BatchFinder) -> int | None:
    """Where the batch at `at` ends by its CRC: the first end for which the CRC of its bytes is right, or None.  This
    finds the end of a batch with a wrong length, because the CRC does not cover the length."""
    magic = _magic(chunk, at)
    if magic is None or len(chunk) - at < SMALLEST_SIZE[magic]:
        return None
    start, smallest = at + _CRC_FROM[magic], at + SMALLEST_SIZE[magic]
    header = bytes(chunk[at:start])
    if header == header[:1] * len(header):
        return None  # a page of zeros
    end_limit = smallest + finder.may_search(len(chunk) - smallest)
    # Magic 0 and 1 keep a CRC-32 before their magic byte, magic 2 a CRC-32C after it.
    crc_of = crc32c if magic == 2 else zlib.crc32
    crc = _number(">I", chunk, at + _CRC_AT[magic])
    value = crc_of(chunk[start:smallest], 0)
    for end in range(smallest, end_limit):
        if value == crc:
            return end
        value = crc_of(chunk[end : end + 1], value)
    return end_limit if value == crc else None


def _end_by_one_bit(chunk: memoryview, at: int) -> int | None:
    """Where the batch at `at` ends by its CRC if one bit of its length is wrong; None if that is not so.  Also where
    the bytes at the end that the wrong length gives look like another batch."""
    magic = _magic(chunk, at)
    if magic is None or len(chunk) - at < SMALLEST_SIZE[magic]:
        return None
    crc_of = crc32c if magic == 2 else zlib.crc32
    crc, length = _number(">I", chunk, at + _CRC_AT[magic]), _number(">I", chunk, at + LENGTH_OFFSET)
    value, reached = 0, at + _CRC_FROM[magic]
    for end in sorted(at + LOG_OVERHEAD + (length ^ 1 << bit) for bit in range(32)):
        if at + SMALLEST_SIZE[magic] <= end <= len(chunk):
            value, reached = crc_of(chunk[reached:end], value), end
            if value == crc:
                return end
    return None


def _wrong_length(chunk: memoryview, at: int, position: int, end: int) -> Damage:
    length, expected = _number(">i", chunk, at + LENGTH_OFFSET), end - at - LOG_OVERHEAD
    field_at = position + at + LENGTH_OFFSET
    problem = f"batch length at position {field_at}: expected {expected} by the CRC, found {length}"
    text = f"batch length {length}, expected {expected}"
    bits = ((length ^ expected) & 0xFFFF_FFFF).bit_count()
    correction = Correction(position + at, field_at, struct.pack(">i", expected), text, bits)
    return Damage(position + at, _base_offset(chunk, at), problem, end - at, correction)


def _wrong_magic(chunk: memoryview, at: int, position: int, end: int) -> Damage | None:
    """The damage of a batch that is valid with another magic; None if it is not."""
    found = chunk[at + MAGIC_OFFSET] if end - at > MAGIC_OFFSET else None
    for magic in range(len(SMALLEST_SIZE) - 1, -1, -1):
        if found is None or magic == found or end - at < SMALLEST_SIZE[magic]:
            continue
        start = at + _CRC_FROM[magic]
        # The CRC of magic 0 and 1 covers the magic byte.
        covered = chunk[start:end] if magic == 2 else bytes([magic, *chunk[start + 1 : end]])
        if (crc32c if magic == 2 else zlib.crc32)(covered, 0) == _number(">I", chunk, at + _CRC_AT[magic]):
            field_at = position + at + MAGIC_OFFSET
            correction = Correction(position + at, field_at, bytes([magic]), f"magic {found}, expected {magic}")
            problem = f"magic at position {field_at}: expected {magic} by the CRC, found {found}"
            return Damage(position + at, _base_offset(chunk, at), problem, end - at, correction)
    return None


def _lost_from(position: int, size: int) -> Iterator[Damage]:
    if position < size:
        yield Damage(position, None, f"no batch could be located from here on, bytes not examined: {size - position}")


def _read_at(fd: int, view: memoryview, position: int) -> int:
    """Fill `view` from `position` on; returns the number of bytes read, fewer at the end of the file."""
    got = 0
    while got < len(view):
        n = os.preadv(fd, [view[got:]], position + got)
        if n == 0:
            break
        got += n
    return got


def _number(form: str, chunk: memoryview, at: int) -> int:
    number: int
    (number,) = struct.unpack_from(form, chunk, at)
    return number


def _magic(chunk: memoryview, at: int) -> int | None:
    """The magic of the batch at `at`; None if the chunk ends before it or it is not 0, 1 or 2."""
    if len(chunk) - at <= MAGIC_OFFSET:
        return None
    return chunk[at + MAGIC_OFFSET] if chunk[at + MAGIC_OFFSET] < len(SMALLEST_SIZE) else None


def _stated_size(chunk: memoryview, at: int) -> int | None:
    """Size of the batch at `at` by its header; None if the chunk ends before it or it is too small for a batch."""
    if len(chunk) - at < LOG_OVERHEAD:
        return None
    size = LOG_OVERHEAD + _number(">i", chunk, at + LENGTH_OFFSET)
    magic = _magic(chunk, at)
    return size if size >= SMALLEST_SIZE[2 if magic is None else magic] else None


def _base_offset(chunk: memoryview, at: int) -> int | None:
    return _number(">q", chunk, at) if len(chunk) - at >= LENGTH_OFFSET else None


def _last_offset(chunk: memoryview, at: int, end: int) -> int | None:
    """Of a batch whose CRC is wrong; None if its magic is not 2, or no batch can have such offsets."""
    if end - at < HEADER_SIZE or _magic(chunk, at) != 2:
        return None
    last_offset = _number(">q", chunk, at) + (delta := _number(">i", chunk, at + LAST_OFFSET_DELTA_OFFSET))
    return last_offset if delta >= 0 and last_offset <= _MAX_OFFSET else None


def _leads_on(chunk: memoryview, at: int, end: int, position: int, size: int, finder: BatchFinder) -> bool:
    """Whether the bytes after a bad batch can be a batch.  At the end of a chunk the next chunk decides."""
    if len(chunk) - end > MAGIC_OFFSET:
        length = _stated_size(chunk, end)
        if length is None or position + end + length > size or _magic(chunk, end) is None:
            return False
    return finder.leads_on(position + at, position + end)


def without_path(error: Exception, path: str) -> str:
    """An error's text without the path, for output that has the path already."""
    return str(error).removeprefix(f"{path}: ")
