"""Where the batches go on after bytes of a .log that cannot be read, though no length leads there.

A record may hold whole batches with the right CRC, so a batch with the right CRC is not enough.  Certain is

- a batch that the offset index names by its position;
- a batch of magic 2 from which lengths lead on, batch by batch, exactly to such a batch, or where none follows, to the
  end of the file.  A batch inside a record leads to the rest of that record.

A batch that is in the last bytes of another one leads there too.  So in a log without gaps the offsets from the first
batch on must go on without one, up to the offset at which the file ends if that is known.  In a log with gaps, as
compaction leaves them, they must ascend; and a batch that is the whole value of another one's last header is none of
the log's: the length of that value, right before it, leads to the end of the other batch.

Damage may end inside the first bytes of a batch, its base offset and length, which no CRC covers.  Such a batch counts
too if its CRC is right: where the offset index names it, or where its base offset shows the damage, and it ends at the
next batch that is certain or at the end of the file.  batch_checks.py decides about its base offset.
"""

from __future__ import annotations

import bisect
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.index_contents import read_index
from kcore.inspect.neighbour_evidence import was_cut
from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX
from kcore.log.overflowed_segment import MAX_RELATIVE_OFFSET
from kcore.record.batch_header import (
    ATTRIBUTES_OFFSET,
    HEADER_SIZE,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC_OFFSET,
    SMALLEST_SIZE,
)
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords

_CHUNK = 1 << 20
_MAX_OFFSET = (1 << 63) - 1
#: Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, both timestamps, producer id and epoch,
#: base sequence, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
assert _HEADER.size == HEADER_SIZE
_LEGACY_HEADER = struct.Struct(">qiIb")
_MAX_CODEC = 4
#: No offset of a log needs more bits: it would be 280 trillion records.
_OFFSET_BITS = 48
#: So many zeros before a batch count as the end of a page of zeros.
_ZEROS = 32
#: So many bytes of a file are searched, one by one, for the ends of batches with a wrong length.
_SEARCHED_BYTES = 64 << 20
#: A header's key and both lengths are looked for in so many bytes before its value.
_MAX_KEY_BYTES = 256
_MAX_VARINT_BYTES = 5
#: Of candidates with a wrong CRC so many times the bytes of the file are read, so that the time stays linear.
_READ_AGAIN = 2


class Header(NamedTuple):
    """The header of a batch, or of a message of magic 0 or 1, that can be right.  The CRC is not checked."""

    position: int
    size: int
    magic: int
    base_offset: int
    #: In magic 0 and 1 the base offset.
    last_offset: int
    crc: int
    #: How many records it has; -1 in magic 0 and 1.
    record_count: int = -1

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def lacks_records(self) -> bool:
        """Whether an offset of it has no record, as compaction leaves it."""
        return 0 <= self.record_count <= self.last_offset - self.base_offset


class Found(NamedTuple):
    """What follows a batch that is not valid.  header: its own, if it can be trusted.  position: of the next batch;
    None if none can be located."""

    header: Header | None
    position: int | None


class BatchFinder:
    """Follows the batches that a reader of the file finds, and locates the next one where no length leads to it.  Not
    thread-safe."""

    def __init__(
        self,
        fd: int,
        path: str,
        size: int,
        next_offset: int | None = None,
        end_offset: int | None = None,
        may_have_gaps: Callable[[], bool] | None = None,
    ) -> None:
        """next_offset: of the batch with which the reader begins, end_offset: at which the file ends; if known.
        may_have_gaps: whether other files show that the log is compacted; called when it matters, once."""
        self._fd = fd
        self._path = path
        self._size = size
        base = log_files.base_offset_of(path)
        #: The offsets that the file can hold; the end is excluded.
        self._offsets = (0, _MAX_OFFSET) if base is None else (base, base + MAX_RELATIVE_OFFSET + 1)
        #: The next offset, or the lowest one that it can be.
        self._next_offset = self._offsets[0] if next_offset is None else next_offset
        self._next_is_exact = next_offset is not None
        self._end_offset = end_offset
        self._has_gaps = False
        self._may_have_gaps = may_have_gaps
        #: Where batches were last searched for gaps.
        self._searched_for_gaps = -1
        #: The last batch that was located whose base offset may be wrong.
        self._with_any_offset = -1
        self._has_messages = False
        self._window, self._window_start = b"", 0
        self._index: list[tuple[int, int]] | None = None
        self._budget: int | None = None
        self._search_budget = _SEARCHED_BYTES

    def passed(self, records: MemoryRecords) -> None:
        """The reader found these."""
        batches = records.batches
        # A wrong base offset looks like a gap.
        self._has_gaps = self._has_gaps or (batches.has_gaps and batches[0].position != self._with_any_offset)
        self._has_messages = self._has_messages or batches.has_messages
        self._next_offset, self._next_is_exact = records.last_offset + 1, True

    def damaged(self, last_offset: int | None) -> None:
        """The reader found a batch that is not valid, and where it ends.  last_offset: None if it is unknown."""
        self._next_is_exact = last_offset is not None and last_offset >= self._next_offset
        if last_offset is not None and self._next_is_exact:
            self._next_offset = last_offset + 1

    def leads_on(self, position: int, end: int) -> bool:
        """Whether the batch at the position, which is not valid, ends there: its header can be right, or a valid batch
        follows."""
        if end == self._size or self._header_at(position, any_offset=True) is not None:
            return True
        following = self._header_at(end, any_offset=True)
        return following is not None and self._is_valid(following)

    def may_search(self, count: int) -> int:
        """How many of these bytes may still be searched for the end of a batch."""
        allowed = min(count, self._search_budget)
        self._search_budget -= allowed
        return allowed

    def after(self, position: int) -> Found:
        """What follows the batch at the position, which is not valid.  Raises OSError."""
        target = self._indexed_after(position)
        self._look_for_gaps(target)
        header = self._header_at(position, to_the_end=False)
        if header is not None and not self._continues(header):
            header = None
        if header is not None and (position < target < header.end or header.end > self._size):
            if target == self._size:
                return Found(header, None)  # torn off: the batch is the last one
            header = None
        start = position + HEADER_SIZE if header is None else header.end
        if header is not None:
            self.damaged(header.last_offset)
        # The bytes in between held an offset at least.
        floor = self._next_offset + self._next_is_exact
        found = None if self._has_messages else self._chain_to(target, start, floor)
        if found is None and target < self._size:
            found = target
        self._next_is_exact = False
        uncertain = self._with_any_offset_in(start, self._size if found is None else found, floor)
        if uncertain is not None:
            self._with_any_offset = found = uncertain
        return Found(header, found)

    def _with_any_offset_in(self, start: int, end: int, floor: int) -> int | None:
        """The first batch between these positions that the offset index names, or if there is none, one that has lost
        its first bytes and ends at `end`.  Its CRC is right, its base offset may be wrong.  floor: the lowest base
        offset that it can have."""
        entries = self._entries()
        for at, _ in entries[bisect.bisect_left(entries, (start, 0)) : bisect.bisect_left(entries, (end, 0))]:
            header = self._header_at(at, any_offset=True)
            if header is not None and header.end <= end and self._is_valid(header):
                return at
        following = self._header_at(end) if end < self._size else None
        limit = self._offsets[1] if self._end_offset is None else self._end_offset
        limit = limit if following is None else following.base_offset
        for at in self._candidates(start, end, None):
            header = self._header_at(at, size=end - at, any_offset=True)
            if header is not None and self._has_lost_its_start(header, floor, limit) and self._is_valid(header):
                return at
        return None

    def _has_lost_its_start(self, header: Header, floor: int, limit: int) -> bool:
        """Whether its base offset is damaged: no log has so high a one, or zeros before it go on into it and it does
        not fit.  A batch inside a record has an offset, and its size right before it."""
        if header.base_offset >> _OFFSET_BITS:
            return True
        before = self._bytes_at(max(header.position - _ZEROS, 0), min(header.position, _ZEROS))
        fits = floor <= header.base_offset <= header.last_offset < limit
        expected = limit - 1 - (header.last_offset - header.base_offset)
        return not any(before) and (not fits or was_cut(header.base_offset, expected))

    def _look_for_gaps(self, target: int) -> None:
        """Whether the log has gaps, by other files, or by what follows the batch that the index names."""
        if not self._has_gaps and self._may_have_gaps is not None:
            self._has_gaps, self._may_have_gaps = self._may_have_gaps(), None
        if not self._has_gaps and target > self._searched_for_gaps:
            self._searched_for_gaps = target
            self._has_gaps = self._has_gaps_from(target)

    def _has_gaps_from(self, position: int) -> bool:
        """Whether gaps are in the first batches from a valid one on."""
        header = self._header_at(position)
        while header is not None and not header.lacks_records:
            following = self._header_at(header.end) if header.end < position + _CHUNK else None
            if following is None or not self._is_valid(following):
                return False
            if following.magic == 2 and following.base_offset > header.last_offset + 1:
                return True
            header = following
        return header is not None

    def _continues(self, header: Header) -> bool:
        if header.magic < 2 or not self._next_offset <= header.base_offset <= header.last_offset < self._offsets[1]:
            return False
        return header.base_offset == self._next_offset or self._has_gaps or not self._next_is_exact

    def _indexed_after(self, position: int) -> int:
        """The position of the first valid batch after this one that the offset index names; the end of the file if
        there is none."""
        entries = self._entries()
        for n in range(bisect.bisect_right(entries, (position, _MAX_OFFSET)), len(entries)):
            at, offset = entries[n]
            header = self._header_at(at)
            if header is not None and header.base_offset <= offset and self._is_valid(header):
                return at
        return self._size

    def _entries(self) -> list[tuple[int, int]]:
        """(position, offset) of the entries of the .index beside the file, by position; empty if there is none."""
        if self._index is None:
            self._index = self._read_index()
        return self._index

    def _read_index(self) -> list[tuple[int, int]]:
        path = self._path.removesuffix(LOG_SUFFIX) + OFFSET_INDEX_SUFFIX
        if not self._path.endswith(LOG_SUFFIX) or log_files.size_of(path) > log_files.MAX_INDEX_SIZE:
            return []
        try:
            entries = read_index(path).entries
        except OSError:
            return []
        offsets = entries["offset"].astype("i8") + self._offsets[0]
        return sorted(zip(entries["position"].astype("i8").tolist(), offsets.tolist(), strict=True))

    def _chain_to(self, target: int, start: int, floor: int) -> int | None:
        """The first batch from `start` on whose chain leads exactly to the target.  floor: the lowest base offset that
        it can have."""
        passed = start
        for position in self._candidates(start, target, self._offsets):
            if position < passed:
                continue
            header = self._header_at(position)
            if header is None or not self._is_valid(header):
                continue
            chain = self._chain(header, target)
            passed = chain[-1].end
            if passed == target:
                return self._start_of(chain, target, floor)
        return None

    def _chain(self, header: Header, target: int) -> list[Header]:
        """The batch and those to which lengths lead from it, up to the target.  A batch with a wrong CRC is among them
        if a valid one follows where it ends."""
        chain = [header]
        while chain[-1].end < target:
            before = chain[-1]
            header_after = self._header_at(before.end)
            if header_after is None or header_after.magic < 2:
                break
            if self._is_valid(header_after):
                chain.append(header_after)
                continue
            beyond = self._header_at(header_after.end) if header_after.end < target else None
            if header_after.base_offset <= before.last_offset or header_after.end > target:
                break
            if header_after.end < target and (beyond is None or not self._is_valid(beyond)):
                break
            chain.append(header_after)
        return chain

    def _start_of(self, chain: list[Header], target: int, floor: int) -> int | None:
        """The first batch of the chain that can be none inside another one; None if that is the target."""
        beyond = self._header_at(target) if target < self._size else None
        offsets = [*chain, *([beyond] if beyond else [])]
        end_offset = chain[-1].last_offset + 1
        if not beyond and self._end_offset is not None and end_offset != self._end_offset and not self._has_gaps:
            return None
        start = next((n for n, header in enumerate(offsets) if header.base_offset >= floor), 0)
        if (value_end := self._end_of_header_value(chain[0].position)) is not None:
            start = max(start, next((n for n, header in enumerate(offsets) if header.position == value_end), 0))
        for n in range(start, len(offsets) - 1):
            # Without an index the chain is all the rest of the file, and a gap far away says nothing about its start.
            if not beyond and offsets[n].position > chain[0].position + _CHUNK:
                break
            is_next = offsets[n + 1].base_offset == offsets[n].last_offset + 1
            if not is_next and (not self._has_gaps or offsets[n + 1].base_offset <= offsets[n].last_offset):
                start = n + 1
        return chain[start].position if start < len(chain) else None

    def _end_of_header_value(self, start: int) -> int | None:
        """Where the value of a record's header ends that begins at `start`; None if the bytes before it are not those
        of a header: the length of its key, the key, the length of its value."""
        before = self._bytes_at(max(start - _MAX_KEY_BYTES, 0), min(start, _MAX_KEY_BYTES))
        for value_at in range(len(before) - 1, max(len(before) - 1 - _MAX_VARINT_BYTES, 0), -1):
            length = _varint(before[value_at:])
            if length is None or length <= 0:
                continue
            for key_at in range(value_at, 0, -1):
                stored = before[max(key_at - 2, 0) : key_at]
                if value_at - key_at in (_varint(stored), _varint(stored[-1:])) and _is_text(before[key_at:value_at]):
                    return start + length
        return None

    def _candidates(self, start: int, end: int, offsets: tuple[int, int] | None) -> Iterator[int]:
        """The positions in [start, end) of bytes that look like the header of a batch of magic 2.  offsets: one of
        which it has; None: its base offset and its length may be wrong."""
        for first, last in log_files.data_stretches(self._fd, start, end):
            # The first bytes of a base offset are zeros, so they may be in the hole before.
            at = max(start, first - LENGTH_OFFSET)
            while at < last:
                data = os.pread(self._fd, _CHUNK + HEADER_SIZE, at)
                for place in _looks_like_a_header(data, offsets):
                    if place < min(_CHUNK, last - at):
                        yield at + place
                at += _CHUNK

    def _header_at(
        self, position: int, *, to_the_end: bool = True, any_offset: bool = False, size: int | None = None
    ) -> Header | None:
        """The header at the position, if it can be one.  to_the_end: its batch ends in the file.  any_offset: also with
        a base offset that the file cannot hold.  size: of its batch, whatever the header says; None: as that says."""
        data = self._bytes_at(position, HEADER_SIZE)
        if len(data) < _LEGACY_HEADER.size:
            return None
        base_offset, length, crc, magic = _LEGACY_HEADER.unpack_from(data)
        size = LOG_OVERHEAD + length if size is None else size
        if not 0 <= magic < len(SMALLEST_SIZE) or size < SMALLEST_SIZE[magic]:
            return None
        last_offset, count = base_offset, -1
        if magic == 2:
            if len(data) < HEADER_SIZE:
                return None
            _, _, _, _, crc, attributes, delta, _, _, *producer, count = _HEADER.unpack_from(data)
            if attributes & 7 > _MAX_CODEC or min(producer) < -1 or not 0 <= count <= delta + 1 or delta < 0:
                return None
            last_offset += delta
        lowest, limit = self._offsets
        if to_the_end and size > self._size - position:
            return None
        if not any_offset and not lowest <= base_offset <= last_offset < limit:
            return None
        return Header(position, size, magic, base_offset, last_offset, crc, count)

    def _is_valid(self, header: Header) -> bool:
        """Whether its CRC is right."""
        if self._budget is None:
            self._budget = _READ_AGAIN * log_files.data_size(self._path) + _CHUNK
        if header.size > self._budget:
            return False
        if header.magic == 2:
            start = header.position + ATTRIBUTES_OFFSET
            value = 0
            while start < header.end and (data := self._bytes_at(start, min(_CHUNK, header.end - start))):
                value = crc32c(data, value)
                start += len(data)
            valid = value == header.crc
        else:
            try:
                data = self._bytes_at(header.position, header.size)
                valid = bool(MemoryRecords(data, source=self._path))
            except KafkaError:
                valid = False
        if not valid:
            self._budget -= header.size
        return valid

    def _bytes_at(self, position: int, count: int) -> bytes:
        """Fewer at the end of the file."""
        at = position - self._window_start
        if at < 0 or at + count > len(self._window):
            self._window, self._window_start, at = os.pread(self._fd, max(count, 1 << 16), position), position, 0
        return self._window[at : at + count]


def _varint(data: bytes) -> int | None:
    """The number that all these bytes encode, as records have their lengths; None if they encode none."""
    if not data or data[-1] & 0x80 or not all(byte & 0x80 for byte in data[:-1]):
        return None
    number = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(data))
    return number >> 1 ^ -(number & 1)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_a_header(data: bytes, offsets: tuple[int, int] | None) -> list[int]:
    """Where in the data the magic is 2, the length is not negative and the base offset may be one of `offsets`; if that
    is None, where the magic is 2 and the codec is one."""
    import numpy as np

    content = np.frombuffer(data, np.uint8)
    count = len(content) - HEADER_SIZE + 1
    if count <= 0:
        return []
    found = content[MAGIC_OFFSET : MAGIC_OFFSET + count] == 2
    if offsets is None:
        found &= content[ATTRIBUTES_OFFSET + 1 : ATTRIBUTES_OFFSET + 1 + count] & 7 <= _MAX_CODEC
        return np.flatnonzero(found).tolist()
    lowest, highest = (offset.to_bytes(8, "big") for offset in (offsets[0], offsets[1] - 1))
    for n in range(LENGTH_OFFSET):
        found &= (content[n : n + count] >= lowest[n]) & (content[n : n + count] <= highest[n])
        if lowest[n] != highest[n]:
            break
    found &= content[LENGTH_OFFSET : LENGTH_OFFSET + count] < 0x80
    positions: list[int] = np.flatnonzero(found).tolist()
    return positions
