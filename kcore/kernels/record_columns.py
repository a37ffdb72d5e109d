"""The records of uncompressed batches as columns: offsets, timestamps, positions of keys and values in the file.

The format and the checks are those of csrc/record.h: each length is compared with the end of its record before it is
used, and each record with the fields of the batch header.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kcore.common.optional_packages import missing_package
from kcore.errors import CorruptMessage
from kcore.kernels.jit import kernel
from kcore.record.batch_header import CODEC_MASK, CONTROL, HEADER_SIZE, LOG_APPEND_TIME
from kcore.record.layout import BATCH_DTYPE

#: Size of the smallest record.  It limits the memory that is allocated for the record count of a header.
_RECORD_SIZE_MIN = 7
#: More than the bytes before the key of a usual record.
_BEFORE_KEY = 16

#: Reasons why a batch cannot be read, in the words of csrc/record.c.
_TEXT = (
    "",
    "batch",
    "record count",
    "record length",
    "record attributes",
    "record timestamp delta",
    "record offset delta",
    "record key",
    "record value",
    "record header count",
    "record header",
    "bytes after the last record",
)
_BATCH, _COUNT, _LENGTH, _ATTRIBUTES, _TIMESTAMP, _OFFSET, _KEY, _VALUE, _HEADERS, _HEADER, _BEHIND = range(1, 12)


class RecordColumns(NamedTuple):
    """One entry for each record.  offset and timestamp (ms): int64[n]; a key is
    data[key_position[i] : key_position[i] + key_size[i]], null where the size is -1, and so a value: int64[n] and
    int32[n]; header_count: int32[n]."""

    offset: np.ndarray
    timestamp: np.ndarray
    key_position: np.ndarray
    key_size: np.ndarray
    value_position: np.ndarray
    value_size: np.ndarray
    header_count: np.ndarray


def is_plain(batches: np.ndarray) -> np.ndarray:
    """bool[n]: the rows of scan_batches() that record_columns() can read and that have user records.  False for batches
    that are compressed, of magic 0 or 1, or transaction markers; kcore.record.record_columns reads them all."""
    return (batches["magic"] == 2) & (batches["attributes"] & (CODEC_MASK | CONTROL) == 0)


def record_columns(data: Any, batches: np.ndarray) -> RecordColumns:
    """The records of some batches, in their order; also of transaction markers, if `batches` has their rows.

    data: the bytes of a .log; batches: their rows from scan_batches(), BATCH_DTYPE[m].  CRCs are not checked.
    Raises ValueError for a batch that is compressed or not of magic 2; CorruptMessage with the position of a record
    that is invalid or contradicts the header of its batch.
    """
    view, batches = np.frombuffer(data, np.uint8), np.ascontiguousarray(batches, BATCH_DTYPE)
    unreadable = (batches["magic"] != 2) | (batches["attributes"] & CODEC_MASK != 0)
    if unreadable.any():
        row = batches[int(unreadable.argmax())]
        how = f"compressed (codec {row['attributes'] & CODEC_MASK})" if row["magic"] == 2 else f"magic {row['magic']}"
        raise ValueError(f"the batch at position {row['position']} is {how}: choose batches by is_plain()")
    counts = batches["count"].astype(np.int64)
    room = int(np.minimum(counts, batches["size"] // _RECORD_SIZE_MIN).clip(0).sum())
    columns = RecordColumns(
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )
    why, position, expected, actual = _columns(view, batches, *columns)
    if why:
        message = f"{_TEXT[why]} at position {position}: expected {expected}, found {actual}"
        raise CorruptMessage(message, position=position)
    return columns


@kernel
def _short(data, p):  # type: ignore[no-untyped-def]
    """A varint of one or two bytes, not yet zigzag-decoded; a longer one gives a number >= 1 << 14.  The caller has
    checked that two bytes can be read."""
    low = np.int64(data[np.uint64(p)])
    if low < 0x80:
        return p + 1, low
    return p + 2, (low & 0x7F) | np.int64(data[np.uint64(p + 1)]) << 7


@kernel
def _number(data, p, end, bits):  # type: ignore[no-untyped-def]
    """The zigzag varint at data[p] that ends before `end` and fits into `bits` bits: (position after it, value);
    (-1, 0) if there is none.  Mirrors kc_read_varint and kc_read_varlong in csrc/varint.h."""
    if end - p >= 2:
        low = np.uint64(data[np.uint64(p)])
        if low < 0x80:
            return p + 1, np.int64(low >> np.uint64(1)) ^ -np.int64(low & np.uint64(1))
        high = np.uint64(data[np.uint64(p + 1)])
        if high < 0x80:
            low = (low & np.uint64(0x7F)) | high << np.uint64(7)
            return p + 2, np.int64(low >> np.uint64(1)) ^ -np.int64(low & np.uint64(1))
    number = np.uint64(0)
    shift = 0
    while shift < bits:
        if p >= end:
            return np.int64(-1), np.int64(0)
        byte = np.uint64(data[np.uint64(p)])
        p += 1
        # If bits of the last byte would be shifted out, the number does not fit.
        if shift + 7 > bits and (byte & np.uint64(0x7F)) >> np.uint64(bits - shift):
            return np.int64(-1), np.int64(0)
        number |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < 0x80:
            return p, np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))
        shift += 7
    return np.int64(-1), np.int64(0)


@kernel
def _string(data, p, end, null_allowed):  # type: ignore[no-untyped-def]
    """A length and that many bytes: (position after them, position of the first, size); (-1, 0, 0) if they do not end
    before `end`."""
    p, size = _number(data, p, end, 32)
    if p < 0 or size > end - p or size < -1 or (size == -1 and not null_allowed):
        return np.int64(-1), np.int64(0), np.int64(0)
    return p + max(size, 0), p, size


@kernel
def _columns(  # type: ignore[no-untyped-def]
    data, batches, offset, timestamp, key_position, key_size, value_position, value_size, header_count
):
    """Fill the columns, which have room for as many records as the batches can hold.  Returns (0, 0, 0, 0), or for an
    invalid batch: an index of _TEXT, the record's position, expected, actual value.

    data: uint8[n]; batches: BATCH_DTYPE[m]; the columns as in RecordColumns.  Mirrors kc_record_next in csrc/record.h.
    """
    n = 0
    for b in range(len(batches)):
        row = batches[b]
        at, size = np.int64(row.position), np.int64(row.size)
        if size < HEADER_SIZE or at < 0 or at > len(data) - size:
            return _BATCH, at, size, len(data) - at
        p, end = at + HEADER_SIZE, at + size
        count, base_offset = np.int64(row.count), np.int64(row.base_offset)
        base_timestamp, max_timestamp = np.int64(row.base_timestamp), np.int64(row.max_timestamp)
        log_append_time = row.attributes & LOG_APPEND_TIME != 0
        if count < 0 or count > (end - p) // _RECORD_SIZE_MIN:
            return _COUNT, p, (end - p) // _RECORD_SIZE_MIN, count
        last_delta, previous = np.int64(row.last_offset) - base_offset, np.int64(-1)
        for i in range(count):
            start = p
            if p == end:
                return _COUNT, p, count, np.int64(i)
            # The usual record: numbers below 1 << 13, a value, no headers, not at the very end.  It is fast
            # because one check of the bounds is enough for several numbers.
            usual = bool(end - p >= _BEFORE_KEY)
            if usual:
                p, length = _short(data, p)
                limit = p + (length >> 1)
                p, timestamp_delta = _short(data, p + 1)
                p, delta = _short(data, p)
                p, key_bytes = _short(data, p)
                usual = bool(
                    (length | timestamp_delta | delta | key_bytes) >> 14 == 0 and length & 1 == 0 and limit <= end
                )
                timestamp_delta = timestamp_delta >> 1 ^ -(timestamp_delta & 1)
                delta = delta >> 1 ^ -(delta & 1)
                key_bytes = key_bytes >> 1 ^ -(key_bytes & 1)
                key_at = p
                p += max(key_bytes, 0)
                if usual and key_bytes >= -1 and limit - p >= 3:
                    p, value_bytes = _short(data, p)
                    value_at = p
                    usual = bool(value_bytes & 1 == 0 and data[np.uint64(limit - 1)] == 0)
                    value_bytes >>= 1
                    usual = usual and bool(value_bytes == limit - p - 1)
                    headers = np.int64(0)
                else:
                    usual = False
            if usual:
                p = limit
            else:
                p = start
                p, length = _number(data, p, end, 32)
                if p < 0:
                    return _LENGTH, start, end - start, np.int64(-1)
                if length < 0 or length > end - p:
                    return _LENGTH, start, end - p, length
                limit = p + length
                if length == 0:
                    return _ATTRIBUTES, start, np.int64(1), np.int64(0)
                p, timestamp_delta = _number(data, p + 1, limit, 64)
                if p < 0:
                    return _TIMESTAMP, start, limit - start, np.int64(-1)
                p, delta = _number(data, p, limit, 32)
                if p < 0:
                    return _OFFSET, start, limit - start, np.int64(-1)
                p, key_at, key_bytes = _string(data, p, limit, True)
                if p < 0:
                    return _KEY, start, limit - start, np.int64(-1)
                p, value_at, value_bytes = _string(data, p, limit, True)
                if p < 0:
                    return _VALUE, start, limit - start, np.int64(-1)
                p, headers = _number(data, p, limit, 32)
                if p < 0 or headers < 0 or headers > limit - p:
                    return _HEADERS, start, limit - start, np.int64(-1)
                for _ in range(headers):
                    p, _at, _size = _string(data, p, limit, False)
                    if p >= 0:
                        p, _at, _size = _string(data, p, limit, True)
                    if p < 0:
                        return _HEADER, start, limit - start, np.int64(-1)
                if p != limit:
                    return _LENGTH, start, p - start, limit - start
            if delta <= previous:
                return _OFFSET, start, previous + 1, delta
            if delta > last_delta:
                return _OFFSET, start, last_delta, delta
            # After an overflow the sum has the other sign than both parts.
            when = base_timestamp + timestamp_delta
            if (when ^ base_timestamp) & (when ^ timestamp_delta) < 0:
                return _TIMESTAMP, start, base_timestamp, timestamp_delta
            previous = delta
            offset[n] = base_offset + delta
            timestamp[n] = max_timestamp if log_append_time else when
            key_position[n] = key_at
            key_size[n] = key_bytes
            value_position[n] = value_at
            value_size[n] = value_bytes
            header_count[n] = headers
            n += 1
        if p != end:
            return _BEHIND, p, np.int64(0), end - p
    return 0, np.int64(0), np.int64(0), np.int64(0)


def binary_views(data: Any, position: np.ndarray, size: np.ndarray) -> Any:
    """Byte strings as a pyarrow binary_view array that points into `data`: no byte string is copied, and `data` is kept
    alive.  position: int64[n]; size: int32[n], -1 for null.

    Raises ValueError for an extent that is not inside, and for data beyond 2 GiB, which a view cannot reach;
    ImportError without pyarrow.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise missing_package("Arrow data", "arrow", error) from None

    view = np.frombuffer(data, np.uint8)
    if len(view) > 2**31 - 1:
        raise ValueError(f"{len(view)} bytes: an Arrow view reaches 2 GiB")
    views = np.zeros((len(size), 16), np.uint8)
    wrong = _fill_views(view, position, size, views, views.view(np.int32))
    if wrong >= 0:
        raise ValueError(f"string {wrong}: {size[wrong]} bytes at {position[wrong]} are not within {len(view)}")
    valid = np.packbits(size >= 0, bitorder="little")
    return pa.Array.from_buffers(
        pa.binary_view(), len(size), [pa.py_buffer(valid), pa.py_buffer(views), pa.py_buffer(view)]
    )


@kernel
def _fill_views(data, position, size, views, words):  # type: ignore[no-untyped-def]
    """Arrow's views: {int32 size, then the string itself up to 12 bytes, else its first 4, int32 buffer, int32 offset}.
    Returns the first string that is not inside data, or -1.  views: uint8[n, 16], zeros; words: the same as int32."""
    for i in range(len(size)):
        n, at = np.int64(size[i]), position[i]
        if n < -1 or (n >= 0 and (at < 0 or at > len(data) - n)):
            return i
        words[i, 0] = max(n, 0)
        for k in range(n if n <= 12 else 4):
            views[i, 4 + k] = data[at + k]
        if n > 12:
            words[i, 3] = at
    return -1
