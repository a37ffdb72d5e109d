"""Checks of the batches of a .log: unreadable bytes, and what no CRC covers, the offsets and the leader epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.text import counted
from kcore.inspect.batch_reader import Correction, Tail
from kcore.inspect.partition_checks import PartitionFiles, Problem, end_limit, end_of_segment, longest_ascending
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from kcore.record.batch_header import LENGTH_OFFSET, PARTITION_LEADER_EPOCH_OFFSET

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

    #: Those of offsets first.
    problems: list[Problem]
    offset_problems: int
    corrections: list[Correction]
    base_offset: np.ndarray
    last_offset: np.ndarray
    leader_epoch: np.ndarray
    misfits: np.ndarray


def check_batches(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Iterator[Problem]:
    """The problems of a segment's .log, as it was scanned."""
    for damage in segment.damages + segment.bad_records:
        yield Problem(segment.path, damage.problem, damage.offset, damage.position)
    faults = _header_faults(partition, base, segment)
    if faults is not None:
        yield from faults.problems
    if segment.tail is not None:
        yield _judge_tail(partition, base, segment.path, segment.tail)


def check_offsets(partition: PartitionFiles, base: int, segment: ScannedSegment) -> list[Problem]:
    """The problems of a segment's base offsets alone."""
    faults = _header_faults(partition, base, segment)
    return faults.problems[: faults.offset_problems] if faults is not None else []


def corrected(
    partition: PartitionFiles, base: int, segment: ScannedSegment, *, epoch_before: int = -1, epoch_after: int = -1
) -> ScannedSegment:
    """The segment with the offsets and leader epochs that are certain, and the corrections that lead to them.

    epoch_before, epoch_after: of the last batch of the segment before it, and of the first one of the segment after it;
    -1 if there is none, or if it cannot be read.
    """
    faults = _header_faults(partition, base, segment, epoch_before, epoch_after)
    return segment if faults is None else _corrected(segment, faults)


def consistent(partition: PartitionFiles, base: int, segment: ScannedSegment) -> ScannedSegment:
    """The same; and batches whose offsets fit nowhere count as bytes that cannot be read.  For the checks of other
    files against the batches: what is wrong in one batch is reported once."""
    faults = _header_faults(partition, base, segment)
    return segment if faults is None else _corrected(segment, faults).without(faults.misfits)


def _corrected(segment: ScannedSegment, faults: HeaderFaults) -> ScannedSegment:
    return segment.corrected(faults.corrections, faults.base_offset, faults.last_offset, faults.leader_epoch)


def _header_faults(
    partition: PartitionFiles, base: int, segment: ScannedSegment, epoch_before: int = -1, epoch_after: int = -1
) -> HeaderFaults | None:
    """None if nothing is wrong, as in nearly every segment."""
    import numpy as np

    table = segment.batches
    if not len(table):
        return None
    rows = segment.with_damaged()
    first, last = rows["base_offset"], rows["last_offset"]
    limit, end = end_limit(partition, base), end_of_segment(partition, base)
    ascends = first[0] >= base and last[-1] < limit and bool((first[1:] > last[:-1]).all())
    offsets_fit = ascends and (end is None or partition.next_base(base) is not None or last[-1] + 1 == end)
    epochs_beside = (epoch_before, epoch_after)
    if offsets_fit and _one_known_epoch(partition, table) and not _differs_from(table, *epochs_beside):
        return None
    problems: list[Problem] = []
    corrections: list[Correction] = []
    misfits = np.zeros(len(table), bool)
    first, last = table["base_offset"], table["last_offset"]
    if not offsets_fit:
        first, last = _correct_offsets(segment, rows, base, end, problems, corrections)
        misfits = _misfits(segment, base, limit, first, last, problems)
    offset_problems = len(problems)
    epochs = _correct_epochs(partition, segment, first, problems, corrections, epochs_beside)
    if not problems:
        return None
    return HeaderFaults(problems, offset_problems, corrections, first, last, epochs, misfits)


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
    problems: list[Problem],
    corrections: list[Correction],
) -> tuple[np.ndarray, np.ndarray]:
    """(base offsets, last offsets) of segment.batches, corrected where exactly one base offset fits.  rows: those of
    segment.with_damaged(); a batch with a wrong CRC is not corrected, for it goes."""
    import numpy as np

    first, last = rows["base_offset"].copy(), rows["last_offset"].copy()
    size = last - first + 1
    is_valid = np.isin(rows["position"], segment.batches["position"])
    for start, stop in _filled_runs(rows, is_valid, segment.size, base, end):
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


def _filled_runs(rows: Rows, is_valid: np.ndarray, file_end: int, base: int, end: int | None) -> list[tuple[int, int]]:
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
    for length in range(1, min(_LONGEST_RUN, count) + 1):
        starts, stops = np.arange(count - length + 1), np.arange(length, count + 1)
        certain = ~follows[starts] & ~follows[stops] & before_is_right[starts] & after_is_right[stops]
        certain &= free_end[stops] - right[starts] == offsets[stops] - offsets[starts]
        certain &= (apart[stops + 1] == apart[starts]) & (wrappers[stops] == wrappers[starts])
        for start in np.flatnonzero(certain).tolist():
            stop = start + length
            has_other_gaps = breaks > np.count_nonzero(~follows[start : stop + 1])
            # The last batch is a neighbour without another side: only in a log without other gaps it is right.
            if stop == count - 1 and end is None and has_other_gaps:
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

    inside = (first >= base) & (last < limit)
    kept = np.flatnonzero(inside)
    kept = kept[longest_ascending(first[kept], last[kept])]
    for n in np.flatnonzero(first < base).tolist():
        add(n, f"base offset {first[n]} is below {base}, the segment's name")
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


def _correct_epochs(
    partition: PartitionFiles,
    segment: ScannedSegment,
    first: np.ndarray,
    problems: list[Problem],
    corrections: list[Correction],
    epochs_beside: tuple[int, int],
) -> np.ndarray:
    """The leader epochs, corrected where they are certain.  They never decrease, and agree with
    leader-epoch-checkpoint.  first: the base offsets, corrected."""
    import numpy as np

    table = segment.batches
    epochs = table["leader_epoch"]
    entries = partition.epochs or []
    slot = np.searchsorted(np.array([entry.start_offset for entry in entries]), first, "right") - 1
    # The checkpoint has no epoch for offsets below its first entry; batches with those are before the log start offset.
    # -1, as in magic 0 and 1 and from old brokers, is no epoch and is not checked.
    in_file = np.append(np.array([entry.epoch for entry in entries], np.int64), -1)[slot]
    differs = (in_file >= 0) & (epochs != in_file) & (epochs != -1)
    right, by_file = _certain_epochs(partition, segment, in_file, differs, epochs_beside)
    certain = np.flatnonzero(right != epochs)
    for n in certain.tolist():
        position, found, expected = int(table["position"][n]), int(epochs[n]), int(right[n])
        if by_file[n]:
            text = f"leader epoch {found}, {LEADER_EPOCH_CHECKPOINT} has {expected}"
        else:
            text = f"leader epoch {found}, the batches before and after it have {expected}"
        problems.append(Problem(segment.path, text, int(first[n]), position))
        content = expected.to_bytes(4, "big")
        text = f"leader epoch {found}, expected {expected}"
        corrections.append(Correction(position, position + PARTITION_LEADER_EPOCH_OFFSET, content, text))
    problems += _other_epochs(partition, segment, first, right, in_file)
    return right


def _certain_epochs(
    partition: PartitionFiles,
    segment: ScannedSegment,
    in_file: np.ndarray,
    differs: np.ndarray,
    epochs_beside: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """(the epochs, with the right ones where these are certain; where leader-epoch-checkpoint decided).

    in_file: the epoch in leader-epoch-checkpoint, -1 for none; differs: where the batch has another."""
    import numpy as np

    table = segment.batches
    epochs = table["leader_epoch"].astype(np.int64)
    adjacent = _adjacent(table, segment.size)
    is_new_format = table["magic"] == 2
    candidates = is_new_format & (epochs != -1)
    before = np.concatenate([epochs_beside[:1], epochs[:-1]])
    after = np.concatenate([epochs[1:], epochs_beside[1:]])
    after = np.where(after < 0, np.iinfo(np.int64).max, after)
    has_both = adjacent[:-1] & adjacent[1:]
    same = has_both & candidates & (before == after) & (before >= 0) & (epochs != before)
    # Where epochs alternate, each of two neighbours is an exception beside the other: neither is certain.
    beside_another = np.zeros(len(epochs), bool)
    beside_another[1:] |= same[:-1]
    beside_another[:-1] |= same[1:]
    same &= ~beside_another
    neighbour_differs = np.concatenate([[False], differs[:-1]]) | np.concatenate([differs[1:], [False]])
    same &= ~neighbour_differs
    out_of_order = (epochs < before) | (epochs > after)
    if partition.clean and partition.epochs:
        # A clean stop leaves the checkpoint complete.
        out_of_order |= epochs > partition.epochs[-1].epoch
    by_file = candidates & differs & ~neighbour_differs & out_of_order & (before <= in_file) & (in_file <= after)
    right = np.where(by_file, in_file, np.where(same, before, epochs))
    for start, stop in _runs(candidates & differs & ~by_file & ~same):
        if _is_wrong_by_file(partition, epochs, in_file, adjacent, start, stop, epochs_beside):
            right[start:stop], by_file[start:stop] = in_file[start:stop], True
    if not partition.epochs:
        for start in (np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist():
            _correct_between(epochs, candidates, adjacent, start, right)
    return right, by_file


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) of each run of True."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _is_wrong_by_file(
    partition: PartitionFiles,
    epochs: np.ndarray,
    in_file: np.ndarray,
    adjacent: np.ndarray,
    start: int,
    stop: int,
    epochs_beside: tuple[int, int],
) -> bool:
    """Whether leader-epoch-checkpoint is right about a few neighbouring batches.  It is where a batch beside them has
    the epoch that it has for all of them, and theirs would have to be in it, or are out of order."""
    if stop - start > _LONGEST_RUN or not adjacent[start : stop + 1].all():
        return False
    import numpy as np

    right = int(in_file[start])
    before = int(epochs[start - 1]) if start else epochs_beside[0]
    after = int(epochs[stop]) if stop < len(epochs) else epochs_beside[1]
    if right not in (before, after) or (in_file[start:stop] != right).any():
        return False
    if before > right or 0 <= after < right:
        return False
    wrong = epochs[start:stop]
    disproved = (wrong < before) | ((wrong > after) & (after >= 0))
    if partition.clean:
        # A clean stop leaves the checkpoint complete.
        disproved |= ~np.isin(wrong, [entry.epoch for entry in partition.epochs or ()])
    return bool(disproved.all())


def _correct_between(
    epochs: np.ndarray, candidates: np.ndarray, adjacent: np.ndarray, start: int, right: np.ndarray
) -> None:
    """Without leader-epoch-checkpoint: give the few batches from `start` on the epoch that more batches before them and
    more batches after them have."""
    epoch = epochs[start - 1]
    for count in range(2, _LONGEST_RUN + 1):
        first, end = start - count - 1, start + 2 * count + 1
        if first < 0 or end > len(epochs):
            return
        beside = [*range(first, start), *range(start + count, end)]
        if (
            epoch >= 0
            and adjacent[first + 1 : end].all()
            and (epochs[beside] == epoch).all()
            and (epochs[start : start + count] != epoch).all()
            and candidates[start : start + count].all()
        ):
            right[start : start + count] = epoch
            return


def _other_epochs(
    partition: PartitionFiles,
    segment: ScannedSegment,
    first: np.ndarray,
    epochs: np.ndarray,
    in_file: np.ndarray,
) -> Iterator[Problem]:
    """The problems of epochs of which it is not certain what they should be."""
    import numpy as np

    table = segment.batches

    def at(n: int, text: str) -> Problem:
        return Problem(segment.path, text, int(first[n]), int(table["position"][n]))

    for n in np.flatnonzero(epochs < -1).tolist():
        yield at(n, f"leader epoch {epochs[n]}")
    if not partition.epochs:
        checked = np.flatnonzero((epochs >= 0) & (table["magic"] == 2))
        fits = longest_ascending(epochs[checked], epochs[checked], strictly=False)
        kept = checked[fits]
        for n in checked[~fits].tolist():
            slot = int(np.searchsorted(kept, n))
            if slot and epochs[n] < epochs[kept[slot - 1]]:
                yield at(n, f"leader epoch {epochs[n]} after a higher one, {epochs[kept[slot - 1]]}")
            else:
                yield at(n, f"leader epoch {epochs[n]} before a lower one, {epochs[kept[slot]]}")
        return
    # After a crash the checkpoint may lack the last epoch; opening the log adds it from the batches.
    may_be_new = epochs > partition.epochs[-1].epoch if not partition.clean else np.zeros(len(epochs), bool)
    wrong = np.flatnonzero((in_file >= 0) & (epochs >= 0) & (epochs != in_file))
    if not len(wrong):
        return
    # If the checkpoint is wrong, all batches of an epoch differ: they are one problem.
    changes = (np.diff(wrong) > 1) | (np.diff(epochs[wrong]) != 0) | (np.diff(in_file[wrong]) != 0)
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(wrong)], strict=True):
        n, more = int(wrong[start]), end - start - 1
        text = f"leader epoch {epochs[n]}, {LEADER_EPOCH_CHECKPOINT} has {in_file[n]}"
        if more:
            text += f"; so in the {counted(more, 'batch', 'batches')} after it"
        yield at(n, text)._replace(warning=bool(may_be_new[n]))


def _one_known_epoch(partition: PartitionFiles, table: Rows) -> bool:
    """True if all batches have one epoch and their offsets are those of that epoch in leader-epoch-checkpoint.  Most
    segments are so, and need no other check of epochs.  The offsets need not ascend here: they are checked before."""
    epochs, first = table["leader_epoch"], table["base_offset"]
    epoch = int(epochs[0])
    if epoch < 0 or not (epochs == epoch).all():
        return False
    entries = partition.epochs or []
    if not entries:
        return True
    n = next((n for n, entry in enumerate(entries) if entry.epoch == epoch), None)
    if n is None or int(first.min()) < entries[n].start_offset:
        return False
    return n + 1 == len(entries) or int(first.max()) < entries[n + 1].start_offset


def _differs_from(table: Rows, epoch_before: int, epoch_after: int) -> bool:
    """Whether the batches' one epoch is another than that of the batches before and after, which have the same."""
    return 0 <= epoch_before == epoch_after != int(table["leader_epoch"][0])


def _judge_tail(partition: PartitionFiles, base: int, path: str, tail: Tail) -> Problem:
    """A warning at the end of the last segment of a log that was not closed: a crash leaves a partial batch there.
    Anywhere else a file that ends inside a batch is damage."""
    if partition.next_base(base) is None and not partition.clean:
        text = f"unclean tail, recovery will cut {counted(tail.size, 'byte')}"
        return Problem(path, text, tail.offset, tail.position, warning=True)
    return Problem(
        path, f"the file ends inside a batch: {counted(tail.size, 'byte')} of it", tail.offset, tail.position
    )
