"""Which .log files of a partition's directory are not segments of its log: copies of another log's, or of its own under
another name.

Such a file makes its neighbours look wrong: the segment before it holds offsets from its name on.  What gives it away
is that the other segments go on without it.  Everything here is read from names and headers; no CRC is checked, because
a wrong base offset of one batch does not make a stretch of batches end exactly where another segment begins.

Where the files do not tell which of two segments with the same offsets is the log's, neither is named here:
batch_checks.py says so then.
"""

from __future__ import annotations

import bisect
import filecmp
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from kcore.errors import KafkaError
from kcore.inspect import log_files
from kcore.inspect.batch_reader import read_batches
from kcore.inspect.index_contents import read_index
from kcore.inspect.segment_names import last_offset_by_index
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, EpochEntry
from kcore.log.log_file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_file,
)
from kcore.record.memory_records import MemoryRecords

if TYPE_CHECKING:
    import numpy as np

#: `kcore repair` may correct the base offsets of up to four neighbours, so four batches prove nothing.
CERTAIN_BATCHES = 5
_INDEXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass
class Headers:
    """What the batch headers of one segment say, in the order of the file.  All arrays have one length."""

    name: int
    position: np.ndarray = field(repr=False)
    first: np.ndarray = field(repr=False)
    last: np.ndarray = field(repr=False)
    epoch: np.ndarray = field(repr=False)
    crc: np.ndarray = field(repr=False)
    #: Whether there are no other bytes in the file.
    is_whole: bool = True

    def __len__(self) -> int:
        return len(self.first)

    @property
    def start(self) -> int:
        """The first batch's offset; the name where there is no batch."""
        return int(self.first[0]) if len(self) else self.name

    @property
    def end(self) -> int:
        """The offset after the last batch; the name where there is none."""
        return int(self.last[-1]) + 1 if len(self) else self.name

    @cached_property
    def goes_on(self) -> bool:
        """From its name on without a gap, to the end of the file."""
        return self.start == self.name and self._has_no_gap

    @property
    def begins_below(self) -> bool:
        """From an offset below its name on without a gap, to the end of the file."""
        return len(self) > 1 and self.start < self.name and self._has_no_gap

    @cached_property
    def _has_no_gap(self) -> bool:
        return self.is_whole and bool((self.first[1:] == self.last[:-1] + 1).all())

    @cached_property
    def has_certain_end(self) -> bool:
        """Whether its last batches go on from each other without a gap, so many that no few wrong base offsets lead to
        that."""
        first, last = self.first[-CERTAIN_BATCHES:], self.last[-CERTAIN_BATCHES:]
        return self.goes_on or (len(first) == CERTAIN_BATCHES and bool((first[1:] == last[:-1] + 1).all()))

    def holds(self, offset: int) -> bool:
        """Whether batches below and from this offset on are in it beyond doubt: it has no gap, or as many as that."""
        if not len(self) or self.start >= offset or self.start < self.name:
            return False
        return self.end > offset if self.goes_on else bool((self.last >= offset).sum() >= CERTAIN_BATCHES)

    def has_all_batches_of(self, other: Headers) -> bool:
        """Whether each batch of the other one is here too, with the same offsets and CRC."""
        import numpy as np

        at = np.searchsorted(self.first, other.first)
        if not len(other) or (at == len(self)).any():
            return False
        same = (self.first[at] == other.first) & (self.last[at] == other.last) & (self.crc[at] == other.crc)
        return bool(same.all())


def read_headers(path: str, name: int) -> Headers:
    """Raises OSError."""
    import numpy as np

    from kcore.record.layout import BATCH_DTYPE

    parts = [np.empty(0, BATCH_DTYPE)]
    is_whole = True
    for item in read_batches(path, check_crc=False):
        if isinstance(item, MemoryRecords):
            parts.append(item.batches.to_numpy())
        else:
            is_whole = False
    rows = np.concatenate(parts)
    return Headers(
        name,
        rows["position"].astype(np.int64),
        rows["base_offset"].astype(np.int64),
        rows["last_offset"].astype(np.int64),
        rows["leader_epoch"].astype(np.int64),
        rows["crc"].astype(np.int64),
        is_whole,
    )


@dataclass
class Surroundings:
    """What other files say about the segments of one directory."""

    #: Base offsets of the segments, ascending.
    names: Sequence[int]
    #: The path of a segment's file, by its base offset and a suffix.
    path_of: Callable[[int, str], str]
    log_start_offset: int
    recovery_point: int
    #: The end that the log had at least once, by its checkpoints; 0 if they say nothing.
    reached_offset: int
    #: Where a clean stop says that the log ended, and no other checkpoint says more; None without one.
    log_end_offset: int | None
    is_clean: bool
    epochs: Sequence[EpochEntry]


def misplaced_segments(files: Surroundings) -> dict[int, str]:
    """Name -> why the segment with this name is not one of the log.

    Of a sound log this reads some headers at the end of each segment that has an index, and all of one that has none.
    A segment that cannot be read is none of these."""
    names = files.names
    examination = _Examination(files)
    n = 0
    while n + 1 < len(names):
        if not examination.reaches(names[n], names[n + 1]):
            n += 1
            continue
        n = examination.judge_overlap(n)
    examination.judge_start()
    examination.judge_end()
    return examination.reasons


class _Examination:
    def __init__(self, files: Surroundings) -> None:
        self._files = files
        self._names = files.names
        self._headers: dict[int, Headers | None] = {}
        self.reasons: dict[int, str] = {}

    def headers(self, name: int) -> Headers | None:
        """None for a file that cannot be read."""
        if name not in self._headers:
            try:
                self._headers[name] = read_headers(self._files.path_of(name, LOG_SUFFIX), name)
            except (OSError, KafkaError):
                self._headers[name] = None
        return self._headers[name]

    def reaches(self, name: int, offset: int) -> bool:
        """Whether the segment may hold this offset."""
        last = last_offset_by_index(self._files.path_of, name)
        if last is None:
            # Not by headers(), which keeps what it has read.
            try:
                last = read_headers(self._files.path_of(name, LOG_SUFFIX), name).end - 1
            except (OSError, KafkaError):
                return False
        return last >= offset

    def judge_overlap(self, n: int) -> int:
        """A segment that reaches beyond the name of the next one; returns where to go on."""
        covering = self.headers(self._names[n])
        if covering is None or not (
            covering.holds(self._names[n + 1]) or self._begins_below_in(covering, self._names[n + 1])
        ):
            return n + 1
        following = bisect.bisect_left(self._names, covering.end)
        after = self._names[following] if following < len(self._names) else None
        for at in range(n + 1, following):
            inner = self.headers(self._names[at])
            if inner is None:
                return at
            inner_after = self._names[at + 1] if at + 1 < len(self._names) else None
            why = self._why_inner(covering, inner, after, inner_after)
            if why is None:
                if n == 0 and (why := self._why_first(covering, inner, after, inner_after)) is not None:
                    self._name(covering.name, why)
                return at
            self._name(inner.name, why)
        return following

    def _begins_below_in(self, covering: Headers, name: int) -> bool:
        """Whether the name is inside of another segment, and the offsets that the file has instead are another one's
        too.  Then a single batch of the other one is enough."""
        inner = self.headers(name)
        if inner is None or not inner.begins_below or not covering.name <= covering.start < name < covering.end:
            return False
        holder = self.headers(self._names[max(bisect.bisect_right(self._names, inner.start) - 1, 0)])
        return holder is not None and holder is not inner and holder.start < inner.end and inner.start < holder.end

    def judge_start(self) -> None:
        """A first segment without indexes, after which offsets are missing up to where the leader epochs begin."""
        if len(self._names) < 2 or self._names[0] in self.reasons or not self._files.epochs:
            return
        name, following = self._names[:2]
        if self._files.epochs[0].start_offset != following or not self._lacks_indexes(name, [following]):
            return
        first = self.headers(name)
        if first is None or not len(first) or not first.goes_on or first.end >= following or (first.epoch < 0).any():
            return
        why = f"by {LEADER_EPOCH_CHECKPOINT} the log begins at offset {following}, this file ends at {first.end}, and "
        self._name(name, f"{why}it has no index")

    def judge_end(self) -> None:
        """Segments after the end of the log; and those in the last places whose offsets other segments have."""
        names = [name for name in self._names if name not in self.reasons]
        end = self._files.log_end_offset
        beyond = [name for name in names if end is not None and name > end]
        if beyond and len(beyond) < len(names):
            last = names[-len(beyond) - 1]
            headers = self.headers(last)
            if headers is not None and headers.has_certain_end and headers.end == end:
                for name in beyond:
                    why = f"{_log(last)} ends at offset {end}, and there the log ended at its last clean stop"
                    inner = self.headers(name)
                    is_empty = inner is not None and inner.is_whole and not len(inner)
                    self._name(name, f"{why}; this file is empty" if is_empty else f"{why}{self._what_it_is(inner)}")
                return
        while len(names) > 1 and (reason := self._why_last(names)) is not None:
            self._name(names.pop(), reason)

    def _why_last(self, names: Sequence[int]) -> str | None:
        """Why the last one of these is not a segment of the log; None if that is not certain."""
        try:
            if _starts_at_name(self._files.path_of(names[-1], LOG_SUFFIX), names[-1]):
                return None
        except OSError:
            return None
        inner = self.headers(names[-1])
        if inner is None or not len(inner) or inner.start >= inner.name:
            return None
        at = bisect.bisect_right(names, inner.start) - 1
        holder = self.headers(names[at])
        if holder is None or holder is inner:
            return None
        end_holder = holder if holder.has_all_batches_of(inner) else self._last_holder(inner, names[at:-1])
        if end_holder is None:
            return None
        have = "has" if end_holder is holder else f"to {_log(end_holder.name)} have"
        why = f"{_log(holder.name)} {have} its offsets, which are below its name"
        return f"{why}{self._what_it_is(inner)}"

    def _last_holder(self, inner: Headers, names: Sequence[int]) -> Headers | None:
        """Of segments that have the offsets of the inner one, without a gap from the first of these names on, the last
        one; None if there are no such segments, or the inner one does not go on from an offset below its name."""
        if not inner.begins_below:
            return None
        end = None
        for name in names:
            headers = self.headers(name)
            if headers is None or not headers.goes_on or (end is not None and headers.name != end):
                return None
            end = headers.end
            if inner.end <= end:
                return headers
        return None

    def _name(self, name: int, why: str) -> None:
        self.reasons[name] = f"not a segment of this log: {why}"

    def _why_inner(self, covering: Headers, inner: Headers, after: int | None, inner_after: int | None) -> str | None:
        """Why the inner one of two segments with the same offsets is not the log's; None if that is not certain.

        after, inner_after: the name of the segment after each; None for the last one."""
        if covering.has_all_batches_of(inner):
            is_copy = self._copy_of(inner) == covering.name
            return f"a copy of {_log(covering.name)}" if is_copy else f"{_log(covering.name)} has each of its batches"
        why = self._what_speaks_against(inner, covering, after, inner_after)
        also = f"{_log(covering.name)} holds offset {inner.name} too"
        return None if why is None else f"{also}, and {why}{self._what_it_is(inner)}"

    def _what_speaks_against(
        self, inner: Headers, covering: Headers, after: int | None, inner_after: int | None
    ) -> str | None:
        end = self._files.log_end_offset
        covering_joins = covering.has_certain_end and covering.end == (end if after is None else after)
        inner_joins = inner.goes_on and inner.end == (end if inner_after is None else inner_after)
        if not len(inner) and inner.is_whole:
            return "this file is empty"
        if covering_joins and not inner_joins:
            ends = "the log ended at its last clean stop" if after is None else f"{_log(after)} begins"
            return f"ends at {covering.end}, where {ends}"
        is_older = not len(inner) or inner.epoch[-1] <= covering.epoch[-1]
        is_short = inner.end < self._files.reached_offset <= covering.end
        if after is None and inner_after is None and is_short and is_older:
            return f"offset {self._files.reached_offset - 1}, which the log has had, and this file has not"
        if len(inner) and inner.start < inner.name:
            return "this file begins below its name"
        if after is not None and len(inner) and inner.end > after:
            return f"{_log(after)} begins at {after}, below the end of this file"
        if self._files.is_clean or inner.end <= self._files.recovery_point:
            signs = self._signs(inner, covering.name)
        else:
            # A power loss may have undone half of a truncation, and left a new segment without its other files.
            signs = [*self._epoch_signs(inner, inner.name)]
        return " and ".join(signs) if signs and not self._signs(covering, inner.name) else None

    def _why_first(self, first: Headers, second: Headers, after: int | None, second_after: int | None) -> str | None:
        """Why the first of two segments with the same offsets is not the log's; None if that is not certain."""
        end = self._files.log_end_offset
        if not first.goes_on:
            return None
        if first.end == (end if after is None else after):
            return None
        if not second.goes_on or second.end != (end if second_after is None else second_after):
            return None
        overlaps = f"it has offsets up to {first.end - 1}, where {_log(second.name)} begins at {second.name}"
        if self._files.log_start_offset >= second.name:
            return f"{overlaps}, and by {LOG_START_OFFSET_CHECKPOINT} the log begins at {self._files.log_start_offset}"
        epochs = self._files.epochs
        if epochs and epochs[0].start_offset == second.name and (first.epoch >= 0).all():
            return f"{overlaps}, and there the log begins by {LEADER_EPOCH_CHECKPOINT}"
        # Without it the log would lose its first offsets: other signs are not enough.
        return None

    def _signs(self, headers: Headers, rival: int) -> list[str]:
        """What in the other files speaks against a segment.  rival: the name of the one that has its offsets too."""
        others = [name for name in self._names if name not in (headers.name, rival, *self.reasons)]
        signs = ["it has no index"] if self._lacks_indexes(headers.name, others) else []
        if headers.name != self._names[0]:
            with_snapshot = [self._has(name, SNAPSHOT_SUFFIX) for name in others if name != self._names[0]]
            if with_snapshot and all(with_snapshot) and not self._has(headers.name, SNAPSHOT_SUFFIX):
                signs.append("it has no snapshot of producers, unlike the others")
        if self._contradicts_index(headers):
            signs.append(f"its {OFFSET_INDEX_SUFFIX} is that of other batches")
        return [*signs, *self._epoch_signs(headers, max(headers.name, rival))]

    def _has(self, name: int, suffix: str) -> bool:
        return os.path.lexists(self._files.path_of(name, suffix))

    def _lacks_indexes(self, name: int, others: Collection[int]) -> bool:
        """Whether it has no index and the others have theirs."""
        has_all = all(self._has(other, suffix) for other in others for suffix in _INDEXES)
        return bool(others) and has_all and not any(self._has(name, suffix) for suffix in _INDEXES)

    def _contradicts_index(self, headers: Headers) -> bool:
        """Whether most entries of its offset index are of other batches."""
        import numpy as np

        try:
            entries = read_index(self._files.path_of(headers.name, OFFSET_INDEX_SUFFIX)).entries
        except OSError:
            return False
        if not len(entries) or not len(headers):
            return False
        at = np.searchsorted(headers.position, entries["position"]).clip(max=len(headers) - 1)
        # An entry of a large append has the position of its first batch and the offset of its last one.
        offsets = entries["offset"].astype(np.int64) + headers.name
        right = (headers.position[at] == entries["position"]) & np.isin(offsets, headers.last)
        return bool(2 * right.sum() < len(right))

    def _epoch_signs(self, headers: Headers, start: int) -> Iterator[str]:
        """start: the first offset from which on its batches are compared with leader-epoch-checkpoint."""
        import numpy as np

        entries = self._files.epochs
        rows = (headers.last >= start) & (headers.epoch >= 0)
        if not entries or not rows.any():
            return
        starts = np.array([entry.start_offset for entry in entries], np.int64)
        epochs = np.array([-1, *(entry.epoch for entry in entries)], np.int64)
        in_file = epochs[np.searchsorted(starts, headers.first[rows], "right")]
        found = headers.epoch[rows]
        # After a crash the checkpoint may lack the last epoch.
        wrong = (in_file >= 0) & (found != in_file) & (self._files.is_clean | (found <= int(epochs[-1])))
        if wrong.any():
            n = int(np.flatnonzero(wrong)[0])
            yield f"its batches have leader epoch {found[n]}, where {LEADER_EPOCH_CHECKPOINT} has {in_file[n]}"

    def _what_it_is(self, headers: Headers | None) -> str:
        if headers is None or not len(headers):
            return ""
        if (copied := self._copy_of(headers)) is not None:
            return f"; this file is a copy of {_log(copied)}"
        return f"; this file has the offsets {headers.start} to {headers.end - 1}"

    def _copy_of(self, headers: Headers | None) -> int | None:
        """The name of another segment with the same bytes, where this one does not begin with its name."""
        if headers is None or not len(headers) or headers.start == headers.name or headers.start not in self._names:
            return None
        path, other = (self._files.path_of(name, LOG_SUFFIX) for name in (headers.name, headers.start))
        try:
            same = log_files.size_of(path) == log_files.size_of(other) and filecmp.cmp(path, other, shallow=False)
        except OSError:
            return None
        return headers.start if same else None


def _starts_at_name(path: str, name: int) -> bool:
    """True as well for a file without a batch.  Raises OSError."""
    with log_files.open_file(path) as file:
        start = os.pread(file.fileno(), 8, 0)
    return len(start) < 8 or int.from_bytes(start, "big", signed=True) == name


def _log(name: int) -> str:
    return segment_file("", name, LOG_SUFFIX)
