"""Checks of the batches' leader epochs, which no CRC covers, against each other and against leader-epoch-checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.text import counted
from kcore.inspect.batch_reader import Correction
from kcore.inspect.partition_checks import PartitionFiles, Problem, longest_ascending
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, EpochEntry
from kcore.record.batch_header import PARTITION_LEADER_EPOCH_OFFSET

if TYPE_CHECKING:
    import numpy as np


#: So many neighbouring batches with wrong epochs are corrected.
_LONGEST_RUN = 4
#: And so many where a clean stop has left the checkpoint complete, and they are out of order.
_LONGEST_RUN_OUT_OF_ORDER = 8


@dataclass(frozen=True)
class EpochFaults:
    """What is wrong with the leader epochs of some segments.

    certain, uncertain: one problem for each batch that is corrected, and those whose right epoch is not certain.
    The lists have one element for each segment: its epochs with the corrections, and these.
    """

    certain: list[Problem]
    uncertain: list[Problem]
    epochs: list[np.ndarray]
    corrections: list[list[Correction]]


@dataclass(frozen=True)
class _Batches:
    """The batches of consecutive segments.  in_file: the epoch that leader-epoch-checkpoint has for each, -1 for none;
    adjacent: bool[n + 1], whether each batch, and then the end, comes right after the batch before it."""

    paths: list[str]
    #: For each batch the index of its segment's path.
    segment: np.ndarray
    position: np.ndarray
    first_offset: np.ndarray
    epoch: np.ndarray
    in_file: np.ndarray
    candidates: np.ndarray
    adjacent: np.ndarray
    is_whole_log: bool

    def problem(self, n: int, text: str) -> Problem:
        path = self.paths[int(self.segment[n])]
        return Problem(path, text, int(self.first_offset[n]), int(self.position[n]))


def epoch_faults(
    partition: PartitionFiles, segments: Sequence[ScannedSegment], base_offsets: Sequence[np.ndarray] | None = None
) -> EpochFaults:
    """What is wrong with the epochs of consecutive segments.  They never decrease, and agree with
    leader-epoch-checkpoint.  base_offsets: those of the batches, if the segments do not have the corrected ones."""
    import numpy as np

    entries = _entries(partition)
    batches = _batches(partition, segments, base_offsets, entries)
    is_complete = _is_complete(partition, entries, segments)
    right, by_file = _certain_epochs(batches, entries, is_complete)
    certain = []
    corrections: list[list[Correction]] = [[] for _ in segments]
    for n in np.flatnonzero(right != batches.epoch).tolist():
        position, found, expected = int(batches.position[n]), int(batches.epoch[n]), int(right[n])
        beside = LEADER_EPOCH_CHECKPOINT + " has" if by_file[n] else "the batches before and after it have"
        certain.append(batches.problem(n, f"leader epoch {found}, {beside} {expected}"))
        text = f"leader epoch {found}, expected {expected}"
        at = position + PARTITION_LEADER_EPOCH_OFFSET
        correction = Correction(position, at, expected.to_bytes(4, "big"), text)
        corrections[int(batches.segment[n])].append(correction)
    uncertain = list(_uncertain_epochs(partition, batches, entries, right))
    ends = np.cumsum([len(segment.batches) for segment in segments])
    return EpochFaults(certain, uncertain, np.split(right, ends[:-1]), corrections)


def faults_between_segments(partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> list[Problem]:
    """Those of the epochs of all segments that no segment shows by itself."""
    if epochs_ascend(segments):
        return []
    of_each = [epoch_faults(partition, [segment]) for segment in segments]
    shown = {(problem.path, problem.position) for faults in of_each for problem in faults.certain + faults.uncertain}
    of_all = epoch_faults(partition, segments)
    problems = of_all.certain + of_all.uncertain
    return [problem for problem in problems if (problem.path, problem.position) not in shown]


def is_truth_about_epochs(partition: PartitionFiles, segments: Sequence[ScannedSegment]) -> bool:
    """Whether leader-epoch-checkpoint is right where batches contradict it: a clean stop leaves it complete."""
    return _is_complete(partition, _entries(partition), segments)


def epochs_ascend(segments: Sequence[ScannedSegment]) -> bool:
    import numpy as np

    epochs = np.concatenate([np.empty(0, np.int64), *(segment.batches["leader_epoch"] for segment in segments)])
    epochs = epochs[epochs >= 0]
    return bool((epochs[1:] >= epochs[:-1]).all())


def known_epoch_of_all(partition: PartitionFiles, table: Rows) -> bool:
    """True if all batches have one epoch and their offsets are those of that epoch in leader-epoch-checkpoint.  Most
    segments are so, and need no other check of epochs.  The offsets need not ascend here: they are checked before."""
    epochs, first = table["leader_epoch"], table["base_offset"]
    epoch = int(epochs[0])
    if epoch < 0 or not (epochs == epoch).all():
        return False
    entries = _entries(partition)
    if not entries:
        return True
    n = next((n for n, entry in enumerate(entries) if entry.epoch == epoch), None)
    if n is None or int(first.min()) < entries[n].start_offset:
        return False
    return n + 1 == len(entries) or int(first.max()) < entries[n + 1].start_offset


def _entries(partition: PartitionFiles) -> list[EpochEntry]:
    """The checkpoint's entries; none if they do not ascend, which is a problem of that file."""
    entries = partition.epochs or []
    ascend = all(a.epoch < b.epoch and a.start_offset <= b.start_offset for a, b in itertools.pairwise(entries))
    return entries if ascend else []


def _is_complete(partition: PartitionFiles, entries: list[EpochEntry], segments: Sequence[ScannedSegment]) -> bool:
    if not partition.clean or not entries:
        return False
    ends = [segment.end_offset or 0 for segment in segments]
    end = partition.checkpoints.get(RECOVERY_POINT_CHECKPOINT)
    return entries[-1].start_offset <= max([*ends, end or 0]) or (end is None and len(segments) < len(partition.bases))


def _batches(
    partition: PartitionFiles,
    segments: Sequence[ScannedSegment],
    base_offsets: Sequence[np.ndarray] | None,
    entries: list[EpochEntry],
) -> _Batches:
    import numpy as np

    tables = [segment.batches for segment in segments]
    rows = Rows.of(tables)
    first = rows["base_offset"] if base_offsets is None else np.concatenate(base_offsets)
    epochs = rows["leader_epoch"].astype(np.int64)
    slot = np.searchsorted(np.array([entry.start_offset for entry in entries], np.int64), first, "right") - 1
    # The checkpoint has no epoch for offsets below its first entry; batches with those are before the log start offset.
    # -1, as in magic 0 and 1 and from old brokers, is no epoch and is not checked.
    in_file = np.append(np.array([entry.epoch for entry in entries], np.int64), -1)[slot]
    segment_of = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    candidates = (rows["magic"] == 2) & (epochs != -1)
    paths = [segment.path for segment in segments]
    return _Batches(
        paths,
        segment_of,
        rows["position"],
        first,
        epochs,
        in_file,
        candidates,
        _adjacent(segments),
        is_whole_log=len(segments) == len(partition.bases),
    )


def _adjacent(segments: Sequence[ScannedSegment]) -> np.ndarray:
    import numpy as np

    adjacent = []
    end_is_read = True
    for segment in segments:
        rows = segment.batches
        ends = np.concatenate([[0], rows["position"] + rows["size"]])
        starts = np.concatenate([rows["position"], [segment.size]])
        follows = ends == starts
        if not len(rows):
            end_is_read &= bool(follows[0])
            continue
        follows[0] &= end_is_read
        end_is_read = bool(follows[-1])
        adjacent.append(follows[:-1])
    return np.concatenate([*adjacent, [end_is_read]])


def _certain_epochs(batches: _Batches, entries: list[EpochEntry], is_complete: bool) -> tuple[np.ndarray, np.ndarray]:
    """(the epochs, with the right ones where these are certain; where leader-epoch-checkpoint decided)."""
    import numpy as np

    right = batches.epoch
    by_file = np.zeros(len(right), bool)
    if is_complete:
        return _from_complete_file(batches, entries)
    # What is corrected may be the neighbour that makes another correction certain.
    while True:
        better, decided = _certain_once(batches, right, entries)
        if (better == right).all():
            return right, by_file
        by_file |= decided & (better != right)
        right = better


def _from_complete_file(batches: _Batches, entries: list[EpochEntry]) -> tuple[np.ndarray, np.ndarray]:
    """The checkpoint is right about a few neighbouring batches where one beside them agrees with it, and theirs are out
    of order, or would have to be in it.  Where they are in order, one wrong number in the checkpoint explains them as
    well."""
    import numpy as np

    right = batches.epoch.copy()
    by_file = np.zeros(len(right), bool)
    known = batches.candidates & (batches.in_file >= 0)
    agrees = np.concatenate([[False], known & (right == batches.in_file), [False]])
    listed = [entry.epoch for entry in entries]
    for start, stop in _runs(known & (right != batches.in_file)):
        is_at_edge = start == 0 or stop == len(right)
        if not (agrees[start] or agrees[stop + 1]) or (is_at_edge and not batches.is_whole_log):
            continue
        in_file = batches.in_file[start:stop]
        beside = batches.epoch[[n for n in (start - 1, stop) if agrees[n + 1]]]
        with_neighbours = batches.epoch[max(start - 1, 0) : stop + 1]
        if (np.diff(with_neighbours[with_neighbours != -1]) < 0).any():
            is_certain = stop - start <= _LONGEST_RUN_OUT_OF_ORDER
        else:
            is_certain = stop - start <= _LONGEST_RUN and not np.isin(batches.epoch[start:stop], listed).any()
            is_certain &= bool((in_file == in_file[0]).all() and (beside == in_file[0]).any())
        if is_certain:
            right[start:stop], by_file[start:stop] = in_file, True
    return right, by_file


def _certain_once(batches: _Batches, epochs: np.ndarray, entries: list[EpochEntry]) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    in_file, adjacent, candidates = batches.in_file, batches.adjacent, batches.candidates
    differs = (in_file >= 0) & (epochs != in_file) & (epochs != -1)
    before = np.concatenate([[-1], epochs[:-1]])
    after = np.concatenate([epochs[1:], [-1]])
    after = np.where(after < 0, np.iinfo(np.int64).max, after)
    has_both = adjacent[:-1] & adjacent[1:]
    same = has_both & candidates & (before == after) & (before >= 0) & (epochs != before)
    # Where epochs alternate, each of two neighbours is an exception beside the other: neither is certain.
    beside_another = np.zeros(len(epochs), bool)
    beside_another[1:] |= same[:-1]
    beside_another[:-1] |= same[1:]
    same &= ~beside_another
    neighbour_differs = np.zeros(len(epochs), bool)
    neighbour_differs[1:] |= differs[:-1]
    neighbour_differs[:-1] |= differs[1:]
    same &= ~neighbour_differs
    out_of_order = (epochs < before) | (epochs > after)
    by_file = candidates & differs & ~neighbour_differs & out_of_order & (before <= in_file) & (in_file <= after)
    right = np.where(by_file, in_file, np.where(same, before, epochs))
    for start, stop in _runs(candidates & differs & ~by_file & ~same):
        if _is_wrong_by_file(epochs, in_file, adjacent, start, stop):
            right[start:stop], by_file[start:stop] = in_file[start:stop], True
    if not entries:
        for start in (np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist():
            _correct_between(epochs, candidates, adjacent, start, right)
    return right, by_file


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) of each run of True."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _is_wrong_by_file(epochs: np.ndarray, in_file: np.ndarray, adjacent: np.ndarray, start: int, stop: int) -> bool:
    """Whether leader-epoch-checkpoint is right about a few neighbouring batches.  It is where a batch beside them has
    the epoch that it has for all of them, and theirs are out of order."""
    if stop - start > _LONGEST_RUN or not adjacent[start : stop + 1].all():
        return False
    right = int(in_file[start])
    before = int(epochs[start - 1]) if start else -1
    after = int(epochs[stop]) if stop < len(epochs) else -1
    if right not in (before, after) or (in_file[start:stop] != right).any():
        return False
    if before > right or 0 <= after < right:
        return False
    wrong = epochs[start:stop]
    return bool(((wrong < before) | ((wrong > after) & (after >= 0))).all())


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


def _uncertain_epochs(
    partition: PartitionFiles, batches: _Batches, entries: list[EpochEntry], epochs: np.ndarray
) -> Iterator[Problem]:
    """The problems of epochs of which it is not certain what they should be.  epochs: the corrected ones."""
    import numpy as np

    for n in np.flatnonzero(epochs < -1).tolist():
        yield batches.problem(n, f"leader epoch {epochs[n]}")
    if not entries:
        yield from _out_of_order(batches, epochs)
        return
    in_file = batches.in_file
    # After a crash the checkpoint may lack the last epoch; opening the log adds it from the batches.
    may_be_new = epochs > entries[-1].epoch if not partition.clean else np.zeros(len(epochs), bool)
    wrong = np.flatnonzero((in_file >= 0) & (epochs >= 0) & (epochs != in_file))
    if not len(wrong):
        return
    # If the checkpoint is wrong, all batches of an epoch differ: they are one problem.
    changes = (np.diff(wrong) > 1) | (np.diff(epochs[wrong]) != 0) | (np.diff(in_file[wrong]) != 0)
    changes |= np.diff(batches.segment[wrong]) != 0
    starts = np.flatnonzero(np.concatenate([[True], changes]))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(wrong)], strict=True):
        n, more = int(wrong[start]), end - start - 1
        text = f"leader epoch {epochs[n]}, {LEADER_EPOCH_CHECKPOINT} has {in_file[n]}"
        if more:
            text += f"; so in the {counted(more, 'batch', 'batches')} after it"
        yield batches.problem(n, text)._replace(warning=bool(may_be_new[n]))


def _out_of_order(batches: _Batches, epochs: np.ndarray) -> Iterator[Problem]:
    """One problem for each batch without which the epochs of the others would never fall, as few as possible."""
    import numpy as np

    checked = np.flatnonzero((epochs >= 0) & batches.candidates)
    fits = longest_ascending(epochs[checked], epochs[checked], strictly=False)
    kept = checked[fits]
    for n in checked[~fits].tolist():
        slot = int(np.searchsorted(kept, n))
        if slot and epochs[n] < epochs[kept[slot - 1]]:
            yield batches.problem(n, f"leader epoch {epochs[n]} after a higher one, {epochs[kept[slot - 1]]}")
        else:
            yield batches.problem(n, f"leader epoch {epochs[n]} before a lower one, {epochs[kept[slot]]}")
