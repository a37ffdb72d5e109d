"""What the indexes of a segment say about base offsets, which no CRC covers.

An entry of the offset index has the position of a batch, and the last offset of that batch or, if an append or the
cleaner wrote several at once, of the last one of these.  If no batch ends with that offset, the entry is wrong, or the
base offset of such a batch, or such a batch cannot be read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kcore.inspect import log_files
from kcore.inspect.index_contents import read_index
from kcore.inspect.neighbour_evidence import was_cut
from kcore.inspect.partition_checks import PartitionFiles
from kcore.inspect.segment_scan import Rows
from kcore.log.log_file_names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    import numpy as np


class IndexEvidence:
    """The indexes of one segment beside its batches."""

    def __init__(self, partition: PartitionFiles, base: int, limit: int, rows: Rows, adjacent: np.ndarray) -> None:
        """rows: the batches, in the order of the file.  limit: the first offset that the segment cannot hold.
        adjacent: whether each batch, and then the end of the file, comes right after the batch before it."""
        self._base, self._limit, self._rows, self._adjacent = base, limit, rows, adjacent
        self._entries = _entries_of(partition.file(base, OFFSET_INDEX_SUFFIX), "position", base)
        self._times_path = partition.file(base, TIME_INDEX_SUFFIX)
        self._times: list[tuple[int, int]] | None = None

    def names(self, last_offset: int) -> bool:
        """Whether an entry has this offset."""
        return any(offset == last_offset for _, offset in self._entries)

    def certain(self, first: np.ndarray, last: np.ndarray) -> list[tuple[int, int]]:
        """(number of the batch, its right base offset) of each whose base offset in `first` is certain to be wrong.

        An entry proves it where the batch fits between its neighbours only with the entry's offset, and no bytes that
        cannot be read are from the entry's position to the batch after it.  Where it fits with both, something else
        must agree with the entry: the time index, or that no gap is left before the batch in a segment without others,
        or that a page of zeros ended inside the base offset.
        """
        import numpy as np

        first, last = first.copy(), last.copy()
        numbers = {position: n for n, position in enumerate(self._rows["position"].tolist())}
        ends = set(last.tolist())
        found = []
        for slot, (position, offset) in enumerate(self._entries):
            start = numbers.get(position)
            if start is None or offset in ends:
                continue
            following = next((numbers[p] for p, _ in self._entries[slot + 1 :] if p in numbers), len(first))
            stop = max(following, start + 1)
            damage = np.flatnonzero(~self._adjacent[start + 1 : stop + 1])
            stop = start + int(damage[0]) if len(damage) else stop
            fitting = [n for n in range(start, stop) if self._fits(n, offset, first, last)]
            certain = [n for n in fitting if self._is_certain(n, offset, first, last)]
            if len(certain) == 1:
                (n,) = certain
                first[n], last[n] = offset - (last[n] - first[n]), offset
                found.append((n, int(first[n])))
                ends = set(last.tolist())
        return found

    def _between(self, n: int, first: np.ndarray, last: np.ndarray) -> tuple[int, int]:
        """The lowest offset that batch n can have, and the first above it that it cannot."""
        # Bytes that cannot be read held one offset at least.
        return (
            (int(last[n - 1]) + 1 if n else self._base) + (not self._adjacent[n]),
            int(first[n + 1]) if n + 1 < len(first) else self._limit,
        )

    def _fits(self, n: int, last_offset: int, first: np.ndarray, last: np.ndarray) -> bool:
        lowest, end = self._between(n, first, last)
        return lowest <= last_offset - int(last[n] - first[n]) and last_offset < end

    def _is_certain(self, n: int, last_offset: int, first: np.ndarray, last: np.ndarray) -> bool:
        if not self._fits(n, int(last[n]), first, last):
            return True
        base_offset = last_offset - int(last[n] - first[n])
        if not self._adjacent[n] and was_cut(int(first[n]), base_offset):
            return True
        if self._times is None:
            self._times = _entries_of(self._times_path, "timestamp", self._base)
        timestamp = int(self._rows["max_timestamp"][n])
        named = [offset for time, offset in self._times if time == timestamp]
        if any(base_offset <= offset <= last_offset for offset in named):
            return not any(int(first[n]) <= offset <= int(last[n]) for offset in named)
        lowest, _ = self._between(n, first, last)
        others = first[1:] - last[:-1] != 1
        others[max(n - 1, 0) : n + 1] = False
        has_other_gaps = bool(others.any()) or (n > 0 and int(first[0]) != self._base)
        return base_offset == lowest and not has_other_gaps


def _entries_of(path: str, field: str, base: int) -> list[tuple[int, int]]:
    """(value of the field, offset) of each entry in order; empty if there is no index that can be read."""
    try:
        if os.path.getsize(path) > log_files.MAX_INDEX_SIZE:
            return []
        entries = read_index(path).entries
    except OSError:
        return []
    offsets = entries["offset"].astype("i8") + base
    return list(zip(entries[field].astype("i8").tolist(), offsets.tolist(), strict=True))
