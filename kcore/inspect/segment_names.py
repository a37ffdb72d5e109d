"""Which names of .log files are wrong: those that are not the offset at which the segment begins.

Under a wrong name the batches are sound, and no record is missing; but some of them are outside of what the names leave
to their segment, and a repair would remove these.  A name that is too low is common: compaction removes the first
batches of a segment and keeps its name.  It is wrong only if it is inside of the segment before.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kcore.inspect import log_files
from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, segment_file
from kcore.record.batch_header import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
)

_BASE_AND_LENGTH = struct.Struct(">qi")
_INT32 = struct.Struct(">i")
_INDEX_ENTRY = struct.Struct(">ii")


class Span(NamedTuple):
    """The first and the last offset of a batch."""

    first: int
    last: int


def right_base(
    name: int, own: Sequence[Span], before: Sequence[Span], before_name: int | None, following: int | None
) -> int | None:
    """The offset at which a segment begins if its name is certain to be another one; else None.

    own: its first two batches, in the order of the file.  before: the last two of the segment before it, whose name is
    before_name; none for the first segment.  following: the name of the next segment; None for the last one.

    No CRC covers a base offset.  So the offsets must go on without a gap from the batches before to those after the
    first one, and the batch with which the name collides must be certain by another neighbour.
    """
    if not own:
        return None
    start = own[0].first
    if start == name or (following is not None and start >= following):
        return None
    if before_name is not None and start <= before_name:
        return None  # it is of other offsets than those after the segment before
    if before and before[-1].last + 1 != start:
        return None
    if start > name:
        if not before or before[-1].last < name:
            return None
        is_certain = before[-1].first == (before[-2].last + 1 if len(before) > 1 else before_name)
    else:
        is_certain = own[0].last + 1 == (own[1].first if len(own) > 1 else following)
    return start if is_certain else None


def wrong_names(directory: str, names: Sequence[int]) -> dict[int, int]:
    """Base offset -> name of each segment whose name is wrong.  names: those of the .log files, ascending.

    Reads some headers of each segment that does not begin with the offset of its name, and 8 bytes of the others.  A
    file that cannot be read, and one with messages of magic 0 or 1 there, has no wrong name."""
    wrong = {}
    before_name = None
    taken = {*names}
    for name, following in pairwise([*names, None]):
        assert name is not None
        own = _first_spans(segment_file(directory, name, LOG_SUFFIX), name)
        before: list[Span] = []
        if own and before_name is not None:
            before = _last_spans(directory, before_name, name if own[0].first > name else None)
        if own and (before or before_name is None or own[0].first < name):
            start = right_base(name, own, before, before_name, following)
            if start is not None and start not in taken:
                wrong[start] = name
        before_name = name
    return wrong


def _first_spans(path: str, name: int) -> list[Span]:
    """Of the first two batches; empty if the first one begins with the offset `name`, or cannot be read."""
    try:
        with log_files.open_file(path) as file:
            start = os.pread(file.fileno(), 8, 0)
            if len(start) < 8 or int.from_bytes(start, "big", signed=True) == name:
                return []
            return [span for span, _ in zip(_spans(file.fileno(), 0), range(2), strict=False)]
    except OSError:
        return []


def _last_spans(directory: str, name: int, reached: int | None) -> list[Span]:
    """Of the last two batches of a segment.  Empty if a file cannot be read; if `reached` is no None, also if the
    segment ends before that offset."""
    try:
        with log_files.open_file(segment_file(directory, name, LOG_SUFFIX)) as file:
            if reached is not None:
                position = _last_indexed_position(segment_file(directory, name, OFFSET_INDEX_SUFFIX))
                *_, last = [Span(-1, -1), *_spans(file.fileno(), position)]
                if last.last < reached:
                    return []
            spans: list[Span] = []
            for span in _spans(file.fileno(), 0):
                spans = [*spans[-1:], span]
            return spans
    except OSError:
        return []


def last_offset_by_index(path_of: Callable[[int, str], str], name: int) -> int | None:
    """The last offset of the batches from the last one on that the segment's offset index names; None without an index,
    or where no batches lead from there to the end of the file."""
    try:
        with log_files.open_file(path_of(name, LOG_SUFFIX)) as file:
            position = _last_indexed_position(path_of(name, OFFSET_INDEX_SUFFIX))
            *_, last = [None, *_spans_and_ends(file.fileno(), position)]
            size = os.fstat(file.fileno()).st_size
            return last[0].last if position and last is not None and last[1] == size else None
    except OSError:
        return None


def _last_indexed_position(path: str) -> int:
    """Where the last batch begins that an offset index names; 0 without one."""
    try:
        with log_files.open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = os.pread(file.fileno(), _INDEX_ENTRY.size, max(size - _INDEX_ENTRY.size, 0))
    except OSError:
        return 0
    return max(int(_INDEX_ENTRY.unpack(data)[1]), 0) if len(data) == _INDEX_ENTRY.size else 0


def _spans(fd: int, position: int) -> Iterator[Span]:
    """Of the batches from a position on, by their headers alone, up to the first bytes that are none of magic 2.
    Raises OSError."""
    return (span for span, _ in _spans_and_ends(fd, position))


def _spans_and_ends(fd: int, position: int) -> Iterator[tuple[Span, int]]:
    """The same, each with the position where the batch ends."""
    while len(header := os.pread(fd, HEADER_SIZE, position)) == HEADER_SIZE:
        first, length = _BASE_AND_LENGTH.unpack_from(header)
        (delta,) = _INT32.unpack_from(header, LAST_OFFSET_DELTA_OFFSET)
        if header[MAGIC_OFFSET] != 2 or length < HEADER_SIZE - LOG_OVERHEAD or delta < 0:
            return
        position += LOG_OVERHEAD + length
        yield Span(first, first + delta), position
