"""What the batches around it say about the base offset of a batch beside bytes that cannot be read.

In a log without gaps a batch begins where the one before it ends, so one neighbour is enough.  These are rules over
values: arrays with one element for each batch of a segment, in the order of the file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.record.batch_header import LENGTH_OFFSET

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class KnownGaps:
    """Where a log without compaction may rightly have a gap.

    epoch_starts: the offsets with which leader epochs begin; a truncation inside a batch leaves a gap before one.
    lost_from: the first offset that an earlier repair removed, by the mark of lost records; None without a mark.
    """

    epoch_starts: Collection[int] = ()
    lost_from: int | None = None

    def may_be_before(self, lowest: int, highest: int) -> bool:
        """Before a batch that begins above `lowest`, where the batch before it ends, and ends at `highest` or below."""
        return self.lost_from == lowest or any(lowest < start <= highest for start in self.epoch_starts)

    def may_be_after(self, lowest: int, highest: int) -> bool:
        """After a batch that begins at `lowest` or above, and before `highest`, where the next one begins."""
        return highest in self.epoch_starts or (self.lost_from is not None and lowest <= self.lost_from <= highest)


def was_cut(found: int, expected: int) -> bool:
    """Whether zeros in place of the first bytes of the base offset `expected` make it `found`: a page of zeros may end
    inside it."""
    return found != expected and any(found == expected % (1 << 8 * count) for count in range(LENGTH_OFFSET))


def certain_beside_damage(
    first: np.ndarray,
    last: np.ndarray,
    adjacent: np.ndarray,
    base: int,
    limit: int,
    end: int | None,
    gaps: KnownGaps,
) -> list[tuple[int, int]]:
    """(number of the batch, its right base offset) of each that has bytes that cannot be read on one side, a neighbour
    on the other, and a base offset that cannot be right.  For a log without gaps: empty if others are in the segment,
    and without the batches that may be beside one of `gaps`, or have the end of another offset.

    first, last: int64[n], the base offsets and last offsets.  adjacent: bool[n + 1], whether each batch, and then the
    end of the file, comes right after the batch before it.  base: the segment's name, limit: the first offset that it
    cannot hold, end: the offset at which it ends, None if that is not certain.
    """
    import numpy as np

    count = len(first)
    before = np.concatenate([[base], last + 1])
    after = np.concatenate([first, [limit if end is None else end]])
    goes_on = adjacent & (before == after)
    if end is None:
        goes_on[count] = False
    certain, explained = [], ~adjacent
    for n in np.flatnonzero(adjacent[:-1] != adjacent[1:]).tolist():
        found, size = int(first[n]), int(last[n] - first[n]) + 1
        # The bytes that cannot be read held one offset at least.
        lowest, highest = int(before[n]) + (not adjacent[n]), int(after[n + 1]) - (not adjacent[n + 1])
        if adjacent[n] and n + 1 == count and end in (lowest + size, found + size):
            highest = end  # those after the end of the log held none
        if adjacent[n]:
            expected = lowest
            other_is_right = n == 0 or bool(goes_on[n - 1])
            is_wrong = found + size > highest or (found < lowest and other_is_right)
            is_known = not gaps.may_be_before(lowest, highest)
        else:
            expected = highest - size
            is_known = (n + 1 < count or end is not None) and not gaps.may_be_after(lowest, highest)
            is_known &= not _is_cut_of_another(found, expected, lowest, highest - size)
            other_is_right = n + 1 == count or bool(goes_on[n + 2])
            is_wrong = found < lowest or was_cut(found, expected) or (found + size > highest and other_is_right)
        if is_known and is_wrong and lowest <= expected <= highest - size:
            certain.append((n, expected))
            explained[n + (not adjacent[n])] = True
    if end is None:
        explained[count] = True
    return certain if bool((goes_on | explained).all()) else []


def _is_cut_of_another(found: int, expected: int, lowest: int, highest: int) -> bool:
    """Whether zeros in place of first bytes make `found` of an offset from lowest to highest, and not of expected."""
    if found < 0 or was_cut(found, expected):
        return False
    step = 1 << 8 * ((found.bit_length() + 7) // 8)
    return lowest + (found - lowest) % step <= highest


def may_be_cut(first: np.ndarray, last: np.ndarray, adjacent: np.ndarray, end: int | None) -> list[int]:
    """The batches right after bytes that cannot be read whose base offset leaves room for the one that it was if zeros
    are in place of its first bytes.  Not the last one if `end` is None.  The rest as in certain_beside_damage()."""
    import numpy as np

    uncertain = []
    ends = np.concatenate([first[1:], [-1 if end is None else end]])
    for n in np.flatnonzero(~adjacent[:-1]).tolist():
        found, last_offset = int(first[n]), int(last[n])
        significant = (found.bit_length() + 7) // 8
        if found >= 0 and significant < LENGTH_OFFSET and last_offset + (1 << 8 * significant) < ends[n]:
            uncertain.append(n)
    return uncertain


def touches_a_neighbour(first: np.ndarray, last: np.ndarray, base: int, end: int | None) -> np.ndarray:
    """bool[n]: whether a batch begins where the one before it ends, or ends where the one after it begins: by chance no
    wrong base offset does.  As in certain_beside_damage()."""
    import numpy as np

    goes_on = np.concatenate([[base], last + 1]) == np.concatenate([first, [-1 if end is None else end]])
    touches: np.ndarray = goes_on[:-1] | goes_on[1:]
    return touches
