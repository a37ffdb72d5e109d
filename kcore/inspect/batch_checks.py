"""Checks of the batches of a .log: unreadable bytes, and what no CRC covers, the offsets and the leader epochs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.text import counted
from kcore.inspect.batch_reader import Correction, Tail
from kcore.inspect.epoch_checks import epoch_faults, known_epoch_of_all
from kcore.inspect.index_evidence import IndexEvidence
from kcore.inspect.misplaced_segments import CERTAIN_BATCHES
from kcore.inspect.neighbour_evidence import KnownGaps, certain_beside_damage, may_be_cut, touches_a_neighbour
from kcore.inspect.partition_checks import (
    PartitionFiles,
    Problem,
    as_far_as_readable,
    check_index,
    end_limit,
    end_of_segment,
    inside_segment,
    longest_ascending,
)
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.log_file_names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, segment_file
from kcore.record.batch_header import LENGTH_OFFSET

if TYPE_CHECKING:
    import numpy as np


#: So many neighbouring batches with wrong base offsets are corrected.
_LONGEST_RUN = 4


@dataclass(frozen=True)
class HeaderFaults:
    """What is wrong with base offsets and leader epochs of a segment: one problem for each batch that is wrong.

    corrections: of fields whose right value is certain.  The arrays have one element for each batch: the values with
    the corrections, and whether the offsets fit nowhere.
    """

    #: Of these and of the corrections, those of offsets first.
    problems: list[Problem]
    offset_problems: int
    corrections: list[Correction]
    offset_corrections: int
    base_offset: np.ndarray
    last_offset: np.ndarray
    leader_epoch: np.ndarray
    misfits: np.ndarray
    #: Whether the misfits are batches of which the following segment has the offsets too.
    is_overlap: bool = False


def check_batches(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Iterator[Problem]:
    """The problems of a segment's .log, as it was scanned."""
    for damage in segment.damages + segment.bad_records:
        yield Problem(segment.path, damage.problem, damage.offset, damage.position)
    faults = _header_faults(partition, base, segment)
    if faults is not None:
        yield from faults.problems
    if segment.tail is not None:
        yield _judge_tail(partition, base, segment.path, segment.tail)


def check_name(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Problem | None:
    """The problem of a .log whose batches are as a whole not those of this segment.

    Those of another segment of the log say so twice: the first one has the offset in that segment's name, and none an
    offset of this one.  In a file without a gap that begins elsewhere, and does not fit, no base offset is wrong."""
    rows = segment.batches
    if not len(rows) or segment.damages or rows["position"][0]:
        return None
    first, last = rows["base_offset"], rows["last_offset"]
    own = int(first[0])
    if own == base or (first[1:] <= last[:-1]).any():
        return None
    inside = inside_segment(rows, first, last, base, end_limit(partition, base))
    is_others = (
        not inside.any()
        and own in partition.bases
        and inside_segment(rows, first, last, own, end_limit(partition, own)).all()
    )
    if is_others:
        text = (
            f"its batches have the offsets {own} to {last[-1]}, as {segment_file('', own, LOG_SUFFIX)} must: if both "
            "files were swapped, give each its name; if one was copied over the other, remove this one"
        )
        return Problem(segment.path, text, own, 0, is_wrong_name=True)
    if len(rows) > 1 and not inside.all() and (first[1:] == last[:-1] + 1).all():
        text = (
            f"its batches have the offsets {own} to {last[-1]}, without a gap, and do not fit here: they are of "
            "another log, or the file has another segment's name"
        )
        return Problem(segment.path, text, own, 0, is_wrong_name=True)
    return None


def _overlap(
    partition: PartitionFiles, base: int, segment: ScannedSegment, first: np.ndarray, last: np.ndarray
) -> Problem | None:
    """The problem of two segments that hold the same offsets, where nothing shows which one is not the log's
    (misplaced_segments.py).  first, last: the offsets of the batches, corrected where those are certain."""
    import numpy as np

    following = partition.next_base(base)
    if following is None or not len(first) or first[0] >= following or first[0] < base:
        return None
    # The batches from the segment's name on, up to the first gap.
    breaks = np.flatnonzero(np.concatenate([[first[0] != base], first[1:] != last[:-1] + 1]))
    goes_on_to = int(last[breaks[0] - 1 if len(breaks) else -1]) if not len(breaks) or breaks[0] else base - 1
    beyond = last >= following
    if goes_on_to < following and not (beyond.sum() >= CERTAIN_BATCHES and (first[1:] > last[:-1])[beyond[1:]].all()):
        return None
    other = segment_file("", following, LOG_SUFFIX)
    text = (
        f"two segments have the same offsets: this one goes on to {last[-1]}, and {other} begins at {following}; "
        "one of them is of another log, or the rest of a truncation, and no file here shows which: move that one away"
    )
    index = partition.file(base, OFFSET_INDEX_SUFFIX)
    if os.path.lexists(index) and as_far_as_readable(index, check_index(partition, base, index, segment)):
        text += f" (the {OFFSET_INDEX_SUFFIX} of this one is not of its batches)"
    return Problem(segment.path, text, following, int(segment.batches["position"][beyond][0]), is_wrong_name=True)


def check_offsets(partition: PartitionFiles, base: int, segment: ScannedSegment) -> list[Problem]:
    """The problems of a segment's base offsets alone."""
    faults = _header_faults(partition, base, segment)
    return faults.problems[: faults.offset_problems] if faults is not None else []


def with_right_offsets(partition: PartitionFiles, base: int, segment: ScannedSegment) -> ScannedSegment:
    """The segment with the base offsets that are certain, and the corrections that lead to them."""
    faults = _header_faults(partition, base, segment)
    if faults is None:
        return segment
    corrections = faults.corrections[: faults.offset_corrections]
    epochs = segment.batches["leader_epoch"]
    return segment.corrected(corrections, faults.base_offset, faults.last_offset, epochs)


def with_right_epochs(
    partition: PartitionFiles, segments: list[ScannedSegment]
) -> tuple[list[ScannedSegment], list[Problem]]:
    """All segments of a log, whose base offsets are right, with the leader epochs that are certain, the corrections
    that lead to them, and the problem of each batch that has one."""
    faults = epoch_faults(partition, segments)
    if not faults.certain:
        return segments, []
    corrected = [
        segment.corrected(corrections, segment.batches["base_offset"], segment.batches["last_offset"], epochs)
        for segment, corrections, epochs in zip(segments, faults.corrections, faults.epochs, strict=True)
    ]
    return corrected, faults.certain


def consistent(partition: PartitionFiles, base: int, segment: ScannedSegment) -> ScannedSegment:
    """The segment with the base offsets and leader epochs that are certain; and batches whose offsets fit nowhere count
    as bytes that cannot be read.  For the checks of other files against the batches: what is wrong in one batch is
    reported once."""
    faults = _header_faults(partition, base, segment)
    if faults is None:
        return segment
    corrected = segment.corrected(faults.corrections, faults.base_offset, faults.last_offset, faults.leader_epoch)
    sound = corrected.without(faults.misfits)
    if faults.is_overlap:
        sound.overlaps_next = True
    return sound


def _header_faults(partition: PartitionFiles, base: int, segment: ScannedSegment) -> HeaderFaults | None:
    """None if nothing is wrong, as in nearly every segment."""
    import numpy as np

    table = segment.batches
    if not len(table):
        return None
    rows = segment.with_damaged()
    first, last = rows["base_offset"], rows["last_offset"]
    limit, end = end_limit(partition, base), end_of_segment(partition, base)
    inside = inside_segment(rows, first, last, base, limit)
    ascends = inside[0] and inside[-1] and bool((first[1:] > last[:-1]).all())
    offsets_fit = ascends and (end is None or partition.next_base(base) is not None or last[-1] + 1 == end)
    goes_on = first[0] == base and bool((first[1:] == last[:-1] + 1).all())
    if offsets_fit and goes_on and known_epoch_of_all(partition, table):
        return None
    if (wrong_name := check_name(partition, base, segment)) is not None:
        all_of_them = np.ones(len(table), bool)
        epochs = table["leader_epoch"]
        return HeaderFaults([wrong_name], 1, [], 0, table["base_offset"], table["last_offset"], epochs, all_of_them)
    problems: list[Problem] = []
    corrections: list[Correction] = []
    misfits = np.zeros(len(table), bool)
    gaps = KnownGaps(partition.epoch_starts(table), partition.lost_from)
    first, last = table["base_offset"], table["last_offset"]
    if not offsets_fit:
        first, last = _correct_offsets(segment, rows, base, end, gaps, problems, corrections)
    if not (offsets_fit and goes_on):
        first, last = _correct_by_other_evidence(partition, base, segment, first, last, gaps, problems, corrections)
    if not offsets_fit and (overlap := _overlap(partition, base, segment, first, last)) is not None:
        first, last, epochs = table["base_offset"], table["last_offset"], table["leader_epoch"]
        return HeaderFaults([overlap], 1, [], 0, first, last, epochs, last >= limit, is_overlap=True)
    if not offsets_fit:
        misfits = _misfits(segment, base, limit, first, last, problems)
    epochs_found = epoch_faults(partition, [segment], [first])
    of_epochs = epochs_found.certain + epochs_found.uncertain
    if not problems and not of_epochs:
        return None
    return HeaderFaults(
        problems + of_epochs,
        len(problems),
        corrections + epochs_found.corrections[0],
        len(corrections),
        first,
        last,
        epochs_found.epochs[0],
        misfits,
    )


def _adjacent(rows: Rows, end: int) -> np.ndarray:
    """bool[n + 1]: whether each batch, and then the end of the file, comes right after the batch before it."""
    import numpy as np

    ends = np.concatenate([[0], rows["position"] + rows["size"]])
    adjacent: np.ndarray = ends == np.concatenate([rows["position"], [end]])
    return adjacent


def _correct_offsets(
    segment: ScannedSegment,
    rows: Rows,
    base: int,
    end: int | None,
    gaps: KnownGaps,
    problems: list[Problem],
    corrections: list[Correction],
) -> tuple[np.ndarray, np.ndarray]:
    """(base offsets, last offsets) of segment.batches, corrected where exactly one base offset fits.  rows: those of
    segment.with_damaged(); a batch with a wrong CRC is not corrected, for it goes."""
    import numpy as np

    first, last = rows["base_offset"].copy(), rows["last_offset"].copy()
    size = last - first + 1
    is_valid = np.isin(rows["position"], segment.batches["position"])
    for start, stop in _filled_runs(rows, is_valid, segment.size, base, end, gaps):
        right = base if start == 0 else int(last[start - 1]) + 1
        is_alone = stop - start == 1
        before = "the segment's name" if start == 0 else f"the batch before {'it' if is_alone else 'them'}"
        after = f"the batch after {'it' if is_alone else 'them'}" if stop < len(first) else "the end of the segment"
        where = "fits" if is_alone else f"fits where {stop - start} batches are"
        for n in range(start, stop):
            expected, found, position = right + int(size[start:n].sum()), int(first[n]), int(rows["position"][n])
            if found == expected or not is_valid[n]:
                continue
            first[n], last[n] = expected, expected + size[n] - 1
            text = f"base offset {found}: only {expected} {where} between {before} and {after}"
            problems.append(Problem(segment.path, text, found, position))
            content = expected.to_bytes(LENGTH_OFFSET, "big")
            corrections.append(Correction(position, position, content, f"base offset {found}, expected {expected}"))
    return first[is_valid], last[is_valid]


def _correct_by_other_evidence(
    partition: PartitionFiles,
    base: int,
    segment: ScannedSegment,
    first: np.ndarray,
    last: np.ndarray,
    gaps: KnownGaps,
    problems: list[Problem],
    corrections: list[Correction],
) -> tuple[np.ndarray, np.ndarray]:
    """(base offsets, last offsets) of segment.batches, corrected where an entry of the offset index proves one, or
    where a batch beside bytes that cannot be read has one neighbour."""
    import numpy as np

    rows, limit = segment.batches, end_limit(partition, base)
    if (rows["magic"] < 2).any():
        return first, last
    first, last = first.copy(), last.copy()
    size = last - first + 1

    def correct(certain: list[tuple[int, int]], reason: str) -> None:
        for n, expected in certain:
            found, position = int(first[n]), int(rows["position"][n])
            first[n], last[n] = expected, expected + size[n] - 1
            problems.append(Problem(segment.path, f"base offset {found}: {reason.format(expected)}", found, position))
            content = expected.to_bytes(LENGTH_OFFSET, "big")
            corrections.append(Correction(position, position, content, f"base offset {found}, expected {expected}"))

    adjacent = _adjacent(rows, segment.size)
    entry_says = f"its entry in {OFFSET_INDEX_SUFFIX} says {{}}"
    index = IndexEvidence(partition, base, limit, rows, adjacent)
    correct(index.certain(first, last), entry_says)
    end = end_of_segment(partition, base)
    if segment.damages and not segment.is_compacted:
        neighbour_says = "bytes that cannot be read are on one side, and by the batches on the other it is {}"
        correct(certain_beside_damage(first, last, adjacent, base, limit, end, gaps), neighbour_says)
    fits = inside_segment(rows, first, last, base, limit)
    for n in may_be_cut(first, last, adjacent, end):
        if fits[n] and not index.names(int(last[n])):
            text = f"base offset {first[n]}: bytes before it are damaged; if its own first bytes are, it was higher"
            problems.append(Problem(segment.path, text, int(first[n]), int(rows["position"][n])))
    lengths = [correction.position for correction in segment.corrections if correction.wrong_length_bits > 1]
    touches = touches_a_neighbour(first, last, base, end)
    for n in np.flatnonzero(np.isin(rows["position"], lengths) & fits & ~touches).tolist():
        if not index.names(int(last[n])):
            text = (
                f"base offset {first[n]}: the length right after it is damaged; if it is too, no file has the right one"
            )
            problems.append(Problem(segment.path, text, int(first[n]), int(rows["position"][n])))
    return first, last


def _filled_runs(
    rows: Rows, is_valid: np.ndarray, file_end: int, base: int, end: int | None, gaps: KnownGaps
) -> list[tuple[int, int]]:
    """(start, stop) of the shortest runs of batches whose base offsets are certain although they do not fit; in order.

    The CRC covers the number of offsets in a batch.  If as many as a run has are free between its neighbours, and the
    neighbours' offsets go on without a gap to the batches on their other sides, no other base offsets are possible.
    is_valid: False for a batch with a wrong CRC.  In a run it counts with the number of offsets in its header, if its
    base offset agrees with the others, and no other gap of the log could hide that the number is wrong.
    """
    import numpy as np

    first, last = rows["base_offset"], rows["last_offset"]
    count = len(rows)
    right = np.concatenate([[base], last[:-1] + 1])
    free_end = np.concatenate([first, [-1 if end is None else end]])
    # Without a gap before and after each batch, from the segment's name to its end.
    follows = np.concatenate([first == right, [end is None or last[-1] + 1 == end]])
    breaks = int(np.count_nonzero(~follows))
    offsets = np.concatenate([[0], np.cumsum(last - first + 1)])
    # How many are not right after the batch before them; the base offset of a compressed message of magic 0 or 1 is its
    # last one.
    apart = np.concatenate([[0], np.cumsum(~_adjacent(rows, file_end))])
    wrappers = np.concatenate([[0], np.cumsum(rows["count"] < 0)])
    before_is_right = np.concatenate([[True], follows[:-2]])
    after_is_right = np.concatenate([follows[1:], [end is not None]])
    taken = np.zeros(count, bool)
    runs = []
    lengths = range(1, min(_LONGEST_RUN, count) + 1)
    stretches = [(np.arange(count - length + 1), np.arange(length, count + 1)) for length in lengths]
    # Batches that follow each other, however many, and would fit if they were all moved by the same number.  Not from
    # the file's start: a file in which all batches do not fit is another segment's.
    edges = np.flatnonzero(~follows[1:]) + 1
    stretches.append((edges[:-1], edges[1:]))
    for starts, stops in stretches:
        certain = ~follows[starts] & ~follows[stops] & before_is_right[starts] & after_is_right[stops]
        certain &= free_end[stops] - right[starts] == offsets[stops] - offsets[starts]
        certain &= (apart[stops + 1] == apart[starts]) & (wrappers[stops] == wrappers[starts])
        for start, stop in zip(starts[certain].tolist(), stops[certain].tolist(), strict=True):
            has_other_gaps = breaks > np.count_nonzero(~follows[start : stop + 1])
            # The last batch is a neighbour without another side: it may be what is wrong, and the gap before the run
            # be one of the log's.  It proves one batch alone, in a log without other gaps.
            if stop == count - 1 and end is None:
                is_gap = stop - start > 1 or gaps.may_be_after(int(right[start]), int(first[start]))
                if has_other_gaps or is_gap:
                    continue
            damaged = start + np.flatnonzero(~is_valid[start:stop])
            if len(damaged) and (
                has_other_gaps or (first[damaged] - right[start] != offsets[damaged] - offsets[start]).any()
            ):
                continue
            if not taken[start:stop].any():
                taken[start:stop] = True
                runs.append((start, stop))
    return sorted(runs)


def _misfits(
    segment: ScannedSegment, base: int, limit: int, first: np.ndarray, last: np.ndarray, problems: list[Problem]
) -> np.ndarray:
    """Which batches have to go so that the offsets ascend from batch to batch, and are between this segment's name and
    `limit`: as few as possible, each of them one problem."""
    import numpy as np

    apart = np.concatenate([[0], np.cumsum(~_adjacent(segment.batches, segment.size))])

    def add(n: int, text: str) -> None:
        slot = int(np.searchsorted(kept, n))
        before, after = (kept[slot - 1] if slot else -1), (kept[slot] if slot < len(kept) else len(first))
        if apart[after + 1] > apart[before + 1]:
            text += "; which one is right is not certain beside bytes that cannot be read"
        problems.append(Problem(segment.path, text, int(first[n]), int(segment.batches["position"][n])))

    inside = inside_segment(segment.batches, first, last, base, limit)
    kept = np.flatnonzero(inside)
    kept = kept[longest_ascending(first[kept], last[kept])]
    for n in np.flatnonzero(first < base).tolist():
        add(n, f"base offset {first[n]} is below {base}, the segment's name")
    for n in np.flatnonzero((first == base) & ~inside & (last < limit)).tolist():
        add(n, f"base offset {first[n]} is the segment's name, but other bytes are before the batch")
    for n in np.flatnonzero((first >= base) & (last >= limit)).tolist():
        add(n, f"last offset {last[n]} is not below {limit}, where the segment must end")
    fits = np.zeros(len(first), bool)
    fits[kept] = True
    for n in np.flatnonzero(inside & ~fits).tolist():
        slot = int(np.searchsorted(kept, n))
        before = int(last[kept[slot - 1]]) if slot else base - 1
        if first[n] <= before:
            add(n, f"base offset {first[n]} is not above {before}, the last offset before it")
        else:
            add(n, f"last offset {last[n]} is not below {first[kept[slot]]}, the base offset after it")
    return ~fits


def _judge_tail(partition: PartitionFiles, base: int, path: str, tail: Tail) -> Problem:
    """A warning at the end of the last segment of a log that was not closed: a crash leaves a partial batch there.
    Anywhere else a file that ends inside a batch is damage."""
    if partition.next_base(base) is None and not partition.clean:
        text = f"unclean tail, recovery will cut {counted(tail.size, 'byte')}"
        return Problem(path, text, tail.offset, tail.position, warning=True)
    return Problem(
        path, f"the file ends inside a batch: {counted(tail.size, 'byte')} of it", tail.offset, tail.position
    )
