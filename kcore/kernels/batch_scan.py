"""All batch headers of a segment as one structured array.

The format and the checks are those of csrc/record_batch.h: a length is compared with the number of remaining bytes
before the bytes after it are read.  CRCs are not computed here; `kcore.record.memory_records` does both in one pass.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kcore.kernels.jit import kernel
from kcore.record.batch_header import (
    ATTRIBUTES_OFFSET,
    BASE_SEQUENCE_OFFSET,
    BASE_TIMESTAMP_OFFSET,
    CODEC_MASK,
    CRC_OFFSET,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_OFFSET,
    LEGACY_ATTRIBUTES_OFFSET,
    LEGACY_CRC_OFFSET,
    LEGACY_TIMESTAMP_OFFSET,
    LENGTH_OFFSET,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    MAX_TIMESTAMP_OFFSET,
    PARTITION_LEADER_EPOCH_OFFSET,
    PRODUCER_EPOCH_OFFSET,
    PRODUCER_ID_OFFSET,
    RECORDS_COUNT_OFFSET,
    SMALLEST_SIZE,
)
from kcore.record.layout import BATCH_DTYPE

_SMALLEST_LENGTH = tuple(size - LOG_OVERHEAD for size in SMALLEST_SIZE)  # by magic
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_FIRST_ROWS = 4096

#: Reasons why a walk stopped, in the words of csrc/record_batch.c.
_OK, _TRUNCATED = 0, 1
_TEXT = {
    _TRUNCATED: "batch",
    2: "batch length too small",
    3: "batch length too large",
    4: "magic",
    5: "base offset",
    6: "last offset",
    7: "last offset delta",
    8: "record count",
    9: "offset",
}


class BatchScan(NamedTuple):
    """batches: rows of kcore.record.layout.BATCH_DTYPE, in file order.  valid_bytes: where the last of them ends.
    stopped: "end" of the data; "partial": they end inside a batch, as after a crash or during an append; "damage": the
    bytes there are no valid batch header.  problem: the expected and the actual value there; None at the end."""

    batches: np.ndarray
    valid_bytes: int
    stopped: Literal["end", "partial", "damage"]
    problem: str | None


def scan_batches(data: Any, position: int = 0) -> BatchScan:
    """The headers of all batches from `position` to the end or to the first invalid header.

    data: the bytes of a .log, of any magic: np.fromfile(path, np.uint8), bytes, or np.memmap(path, np.uint8, "r") of a
    file that nobody changes (see kcore.kernels).  Positions count from the start of data.  Raises ValueError for a
    position outside.
    """
    view = np.frombuffer(data, np.uint8)
    if not 0 <= position <= len(view):
        raise ValueError(f"position {position} is not within the {len(view)} bytes")
    rows = np.empty(_FIRST_ROWS, BATCH_DTYPE)
    count, at, why, expected, actual = _walk(view, position, rows, 0)
    while count == len(rows) and at < len(view):
        # 1.5 times the number of rows that the batch sizes so far suggest: untouched memory costs nothing.
        grown = np.empty(count + int(1.5 * (len(view) - at) * count / (at - position)) + _FIRST_ROWS, BATCH_DTYPE)
        grown[:count] = rows
        rows = grown
        count, at, why, expected, actual = _walk(view, at, rows, count)
    stopped: Literal["end", "partial", "damage"] = "damage"
    if why in (_OK, _TRUNCATED):
        stopped = "end" if why == _OK else "partial"
    problem = f"{_TEXT[why]} at position {at}: expected {expected}, found {actual}" if why else None
    return BatchScan(rows[:count], at, stopped, problem)


def _big_endian(bits: int) -> Any:
    """load(data, position): a signed number of so many bits.  The caller has checked the bounds."""

    @intrinsic
    def load(typing: Any, data: Any, position: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            pointer = builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            if sys.byteorder == "little" and bits > 8:
                value = builder.bswap(value)
            return builder.sext(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(data, types.int64), codegen

    return load


_load_i16, _load_i32, _load_i64 = _big_endian(16), _big_endian(32), _big_endian(64)


def _prefetch_line(typing: Any, data: Any, position: Any) -> Any:
    """Prefetch the cache line at data[position]; any position is allowed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        pointer = builder.gep(array.data, [args[1]])
        i32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(data, types.int64), codegen


_prefetch: Any = intrinsic(_prefetch_line)


@kernel
def _walk(data, at, rows, count):  # type: ignore[no-untyped-def]
    """Fill rows[count:] from position `at` on.  Returns (total of filled rows, position where the walk stopped, reason:
    a key of _TEXT or 0, expected, actual value).

    data: uint8[n]; rows: BATCH_DTYPE[m].  Mirrors kc_batch_walk in csrc/record_batch.c without the CRC.  It prefetches
    guessed positions too: only this header has the position of the next one, but batch sizes repeat.
    """
    end = len(data)
    while count < len(rows) and at < end:
        available = end - at
        if available < LOG_OVERHEAD:
            return count, at, 1, LOG_OVERHEAD, available
        length = _load_i32(data, at + LENGTH_OFFSET)
        if length < _SMALLEST_LENGTH[0]:
            return count, at, 2, _SMALLEST_LENGTH[0], length
        if length > _INT32_MAX - LOG_OVERHEAD:
            return count, at, 3, _INT32_MAX - LOG_OVERHEAD, length
        if available <= MAGIC_OFFSET:
            return count, at, 1, LOG_OVERHEAD + length, available
        magic = np.int64(np.int8(data[at + MAGIC_OFFSET]))
        if magic < 0 or magic > 2:
            return count, at, 4, 2, magic
        smallest = _SMALLEST_LENGTH[2] if magic == 2 else _SMALLEST_LENGTH[1] if magic == 1 else _SMALLEST_LENGTH[0]
        if length < smallest:
            return count, at, 2, smallest, length
        if length > available - LOG_OVERHEAD:
            return count, at, 1, LOG_OVERHEAD + length, available
        size = LOG_OVERHEAD + length
        if 16 * size <= available - HEADER_SIZE:
            _prefetch(data, at + 16 * size)
            _prefetch(data, at + 16 * size + HEADER_SIZE - 1)
        if 4 * size <= available - HEADER_SIZE:
            _prefetch(data, at + 4 * size)
            _prefetch(data, at + 4 * size + HEADER_SIZE - 1)
        row = rows[count]
        base_offset = _load_i64(data, at)
        row.position = at
        row.base_offset = base_offset
        row.size = size
        row.magic = magic
        if magic == 2:
            delta = _load_i32(data, at + LAST_OFFSET_DELTA_OFFSET)
            records = _load_i32(data, at + RECORDS_COUNT_OFFSET)
            if base_offset < 0:
                return count, at, 5, 0, base_offset
            if delta >= _INT64_MAX - base_offset:
                return count, at, 6, _INT64_MAX - base_offset - 1, delta
            if delta < 0:
                return count, at, 7, 0, delta
            if records < 0 or records > delta + 1:
                return count, at, 8, delta + 1, records
            row.last_offset = base_offset + delta
            row.base_timestamp = _load_i64(data, at + BASE_TIMESTAMP_OFFSET)
            row.max_timestamp = _load_i64(data, at + MAX_TIMESTAMP_OFFSET)
            row.producer_id = _load_i64(data, at + PRODUCER_ID_OFFSET)
            row.leader_epoch = _load_i32(data, at + PARTITION_LEADER_EPOCH_OFFSET)
            row.crc = _load_i32(data, at + CRC_OFFSET) & 0xFFFFFFFF
            row.base_sequence = _load_i32(data, at + BASE_SEQUENCE_OFFSET)
            row.count = records
            row.attributes = _load_i16(data, at + ATTRIBUTES_OFFSET)
            row.producer_epoch = _load_i16(data, at + PRODUCER_EPOCH_OFFSET)
        else:
            # Magic 0 or 1.  Only the attribute bits that this magic defines; a wrapper's records are not counted.
            attributes = np.int64(data[at + LEGACY_ATTRIBUTES_OFFSET])
            timestamp = _load_i64(data, at + LEGACY_TIMESTAMP_OFFSET) if magic == 1 else np.int64(-1)
            if base_offset < 0 or base_offset == _INT64_MAX:
                return count, at, 9, 0, base_offset
            row.last_offset = base_offset
            row.base_timestamp = timestamp
            row.max_timestamp = timestamp
            row.producer_id = -1
            row.leader_epoch = -1
            row.crc = _load_i32(data, at + LEGACY_CRC_OFFSET) & 0xFFFFFFFF
            row.base_sequence = -1
            row.count = -1 if attributes & CODEC_MASK else 1
            row.attributes = attributes & (CODEC_MASK | LOG_APPEND_TIME if magic == 1 else CODEC_MASK)
            row.producer_epoch = -1
        at += size
        count += 1
    return count, at, 0, 0, 0
