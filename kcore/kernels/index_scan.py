"""Many lookups at once in the offset or time index of a segment.

The files are those of docs/formats: big-endian slots, ascending.  An index is decoded once (two copies, of 262,144
entries in a millisecond); then any number of lookups can follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kcore.errors import CorruptIndex
from kcore.kernels.jit import kernel
from kcore.record.layout import OFFSET_INDEX_SLOT, TIME_INDEX_SLOT

#: Number of interleaved searches: each waits for memory most of the time.
_AT_ONCE = 16
#: The largest base offset to which any int32 can be added without an overflow.
_LARGEST_BASE = 2**63 - 2**31


class OffsetEntries(NamedTuple):
    """The entries of a .index: int32[n] both, offsets relative to base_offset and ascending."""

    base_offset: int
    relative_offset: np.ndarray
    position: np.ndarray

    def lookup(self, offsets: Any) -> tuple[np.ndarray, np.ndarray]:
        """(offsets, positions), int64[m] each: of the last entry at or below each of m offsets; (base_offset, 0) where
        there is none, so that the caller can always scan forward from the answer.  As OffsetIndex.lookup."""
        slots = floor_slots(self.relative_offset, _as_int64(offsets), self.base_offset)
        return _taken(self.relative_offset, slots, self.base_offset, self.base_offset), _taken(self.position, slots)


class TimeEntries(NamedTuple):
    """The entries of a .timeindex: int64[n] timestamps in ms, ascending, and int32[n] relative offsets."""

    base_offset: int
    timestamp: np.ndarray
    relative_offset: np.ndarray

    def lookup(self, timestamps: Any) -> tuple[np.ndarray, np.ndarray]:
        """(timestamps, offsets), int64[m] each: of the last entry at or below each of m timestamps; (-1, base_offset)
        where there is none.  As TimeIndex.lookup."""
        slots = floor_slots(self.timestamp, _as_int64(timestamps))
        offsets = _taken(self.relative_offset, slots, self.base_offset, self.base_offset)
        return _taken(self.timestamp, slots, 0, -1), offsets


def offset_entries(data: Any, base_offset: int) -> OffsetEntries:
    """Decodes a .index.  data: its bytes, as np.fromfile(path, np.uint8) reads them.  Zeros after the last entry, as in
    an index in use, are ignored.  Raises CorruptIndex if the size is not a multiple of a slot, or if offsets do not
    ascend."""
    slots = _slots(data, OFFSET_INDEX_SLOT)
    offsets = slots["offset"].astype(np.int32)
    _check_ascending(offsets, "relative offset", strictly=True)
    return OffsetEntries(base_offset, offsets, slots["position"].astype(np.int32))


def time_entries(data: Any, base_offset: int) -> TimeEntries:
    """Decodes a .timeindex, as offset_entries() does a .index."""
    slots = _slots(data, TIME_INDEX_SLOT)
    timestamps, offsets = slots["timestamp"].astype(np.int64), slots["offset"].astype(np.int32)
    _check_ascending(timestamps, "timestamp", strictly=True)
    _check_ascending(offsets, "relative offset", strictly=False)
    return TimeEntries(base_offset, timestamps, offsets)


def floor_slots(keys: np.ndarray, targets: np.ndarray, base: int = 0) -> np.ndarray:
    """floor_slots[i] = last slot with base + keys[slot] <= targets[i], or -1.  Returns int64[m].

    keys: int32[n] or int64[n], ascending; targets: int64[m], in any order.  Ascending targets are searched by
    galloping from one to the next.  For keys that do not ascend the result is some existing slot or -1.
    """
    result = np.empty(len(targets), np.int64)
    if not 0 <= base <= _LARGEST_BASE:
        raise ValueError(f"no segment begins at offset {base}")
    if len(keys) == 0:
        result.fill(-1)
    elif _ascends(targets):
        _floor_ascending(keys, targets, base, result)
    else:
        _floor_anywhere(keys, targets, base, result)
    return result


def _as_int64(targets: Any) -> np.ndarray:
    return np.ascontiguousarray(targets, np.int64)


def _slots(data: Any, dtype: np.dtype) -> np.ndarray:
    view = np.frombuffer(data, np.uint8)
    rest = len(view) % dtype.itemsize
    if rest:
        raise CorruptIndex(f"{len(view)} bytes are no multiple of {dtype.itemsize}: {rest} are left at the end")
    used = np.flatnonzero(view)
    count = -(-(int(used[-1]) + 1) // dtype.itemsize) if len(used) else 0
    return view[: count * dtype.itemsize].view(dtype)


def _check_ascending(keys: np.ndarray, what: str, *, strictly: bool) -> None:
    wrong = keys[1:] <= keys[:-1] if strictly else keys[1:] < keys[:-1]
    if wrong.any():
        n = int(wrong.argmax()) + 1
        raise CorruptIndex(f"entry {n}: {what} {keys[n]} is not above {keys[n - 1]}, the one before it")


def _taken(values: np.ndarray, slots: np.ndarray, base: int = 0, otherwise: int = 0) -> np.ndarray:
    result = np.empty(len(slots), np.int64)
    _take(values, slots, base, otherwise, result)
    return result


@kernel
def _take(values, slots, base, otherwise, result):  # type: ignore[no-untyped-def]
    """result[i] = base + values[slots[i]], or `otherwise` where slots[i] is -1."""
    for i in range(len(slots)):
        result[i] = otherwise if slots[i] < 0 else base + values[np.uint64(slots[i])]


@kernel
def _ascends(targets):  # type: ignore[no-untyped-def]
    """True if no target (int64[m]) is below the one before it."""
    for i in range(1, len(targets)):  # noqa: SIM110 (Numba compiles no all())
        if targets[i] < targets[i - 1]:
            return False
    return True


@kernel
def _floor_anywhere(keys, targets, base, result):  # type: ignore[no-untyped-def]
    """floor_slots() for keys that are not empty, _AT_ONCE searches side by side.  Mirrors kc_offset_index_floor in
    csrc/offset_index.c.

    The number of keys <= target is computed one bit at a time, from the highest bit.  The code adds (comparison <<
    bit): from a condition, even with & and >>, LLVM makes a branch that is mispredicted half of the time (10 instead
    of 63 M lookups/s).
    """
    n, m = len(keys), len(targets)
    top = 0
    while (np.int64(2) << top) <= n:
        top += 1
    # Either fewer than 2**top keys are <= target, or at least at_first: so the steps below never leave the keys.
    first, at_first = (np.int64(1) << top) - 1, n - (np.int64(1) << top) + 1
    count = np.empty(_AT_ONCE, np.int64)
    wanted = np.empty(_AT_ONCE, np.int64)
    for start in range(0, m, _AT_ONCE):
        for k in range(_AT_ONCE):
            wanted[k] = targets[min(start + k, m - 1)]
            count[k] = at_first * np.int64(base + keys[np.uint64(first)] <= wanted[k])
        for bit in range(top - 1, -1, -1):
            step = (np.int64(1) << bit) - 1
            for k in range(_AT_ONCE):
                key = base + keys[np.uint64(count[k] + step)]
                count[k] += np.int64(key <= wanted[k]) << bit
        for k in range(min(_AT_ONCE, m - start)):
            result[start + k] = count[k] - 1


@kernel
def _floor_ascending(keys, targets, base, result):  # type: ignore[no-untyped-def]
    """floor_slots() for ascending targets: from the last answer in steps of 1, 2, 4 ..., then by binary search."""
    n = len(keys)
    at = np.int64(-1)
    for i in range(len(targets)):
        target, step = targets[i], np.int64(1)
        while at + step < n and base + keys[np.uint64(at + step)] <= target:
            at += step
            step *= 2
        while step > 1:
            step >>= 1
            if at + step < n and base + keys[np.uint64(at + step)] <= target:
                at += step
        result[i] = at
