"""Checks of the batches of a .log: unreadable bytes, and what no CRC covers, the offsets and the leader epochs."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.text import counted
from kcore.inspect.batch_reader import Tail
from kcore.inspect.partition_checks import PartitionFiles, Problem, end_limit
from kcore.inspect.segment_scan import Rows, ScannedSegment
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT


def check_batches(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Iterator[Problem]:
    """The problems of a segment's .log."""
    for damage in segment.damages + segment.bad_records:
        yield Problem(segment.path, damage.problem, damage.offset, damage.position)
    yield from _check_offsets(partition, base, segment)
    yield from _check_epochs(partition, segment)
    if segment.tail is not None:
        yield _judge_tail(partition, base, segment.path, segment.tail)


def _check_offsets(partition: PartitionFiles, base: int, segment: ScannedSegment) -> Iterator[Problem]:
    """Offsets ascend from batch to batch, and are between this segment's name and the next one's."""
    import numpy as np

    table = segment.batches
    if not len(table):
        return
    first, last, position = table["base_offset"], table["last_offset"], table["position"]

    def at(n: int, text: str) -> Problem:
        return Problem(segment.path, text, int(first[n]), int(position[n]))

    limit = end_limit(partition, base)
    if first[0] >= base and last[-1] < limit and (first[1:] > last[:-1]).all():
        return
    # Compared with the highest offset so far: after one batch with an offset far too high, the next batch is reported.
    highest = np.maximum.accumulate(last)
    for n in np.flatnonzero(first[1:] <= highest[:-1]):
        yield at(int(n) + 1, f"base offset {first[n + 1]} is not above {highest[n]}, the last offset before it")
    for n in np.flatnonzero(first < base):
        yield at(int(n), f"base offset {first[n]} is below {base}, the segment's name")
    for n in np.flatnonzero(last >= limit):
        yield at(int(n), f"last offset {last[n]} is not below {limit}, where the segment must end")


def _check_epochs(partition: PartitionFiles, segment: ScannedSegment) -> Iterator[Problem]:
    """Leader epochs never decrease and agree with leader-epoch-checkpoint.  The CRC covers neither epoch nor offset."""
    import numpy as np

    table = segment.batches
    epochs = table["leader_epoch"]
    if not len(epochs) or _one_known_epoch(partition, table):
        return

    def at(n: int, text: str) -> Problem:
        return Problem(segment.path, text, int(table["base_offset"][n]), int(table["position"][n]))

    for n in np.flatnonzero(epochs < -1):
        yield at(int(n), f"leader epoch {epochs[n]}")
    if not partition.epochs:
        # -1, as in magic 0 and 1 and from old brokers, is no epoch and is not checked.
        highest = np.maximum.accumulate(epochs)
        for n in np.flatnonzero((epochs[1:] < highest[:-1]) & (table["magic"][1:] == 2)):
            yield at(int(n) + 1, f"leader epoch {epochs[n + 1]} after a higher one")
        return
    starts = np.array([entry.start_offset for entry in partition.epochs])
    checkpoint_epochs = np.array([entry.epoch for entry in partition.epochs])
    slot = np.searchsorted(starts, table["base_offset"], "right") - 1
    # The checkpoint has no epoch for offsets below its first entry; batches with those are before the log start offset.
    differs = (slot >= 0) & (epochs >= 0) & (epochs != checkpoint_epochs[slot])
    # After a crash the checkpoint may lack the last epoch; opening the log adds it from the batches.
    may_be_new = epochs > checkpoint_epochs[-1] if not partition.clean else np.zeros(len(epochs), bool)
    for n in np.flatnonzero(differs):
        yield at(
            int(n), f"leader epoch {epochs[n]}, {LEADER_EPOCH_CHECKPOINT} has {checkpoint_epochs[slot[n]]}"
        )._replace(warning=bool(may_be_new[n]))


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


def _judge_tail(partition: PartitionFiles, base: int, path: str, tail: Tail) -> Problem:
    """A warning at the end of the last segment of a log that was not closed: a crash leaves a partial batch there.
    Anywhere else a file that ends inside a batch is damage."""
    if partition.next_base(base) is None and not partition.clean:
        text = f"unclean tail, recovery will cut {counted(tail.size, 'byte')}"
        return Problem(path, text, tail.offset, tail.position, warning=True)
    return Problem(
        path, f"the file ends inside a batch: {counted(tail.size, 'byte')} of it", tail.offset, tail.position
    )
