"""The leader epochs of a log after an unclean stop: the file's, corrected by the batches that recovery has read.

The file is replaced without an fsync, so it may be older or newer than the batches.  A batch contradicts the file if
the file assigns its offset to another epoch.  Offsets without a batch contradict nothing: the cleaner leaves gaps, and
a leader may append nothing in its epoch.  Offsets below the log start offset contradict nothing either.
Source: LogSegment.recover, LeaderEpochFileCache.assign, Kafka 4.x; the correction is kcore's own.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcore.log.checkpoints import EpochEntry
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache, epoch_at
from kcore.record.record_batch import RecordBatch


class BatchEpochs(LeaderEpochFileCache):
    """The epochs of the batches that recovery reads, in memory.

    Segments below from_offset are not read: the epochs of their batches were synced together with them.
    old_messages_end: the offset after the last batch of magic 0 or 1, which has no epoch; 0 if there was none.
    """

    def __init__(self, name: str, from_offset: int) -> None:
        super().__init__(name, None, [])
        self.from_offset = from_offset
        self.old_messages_end = 0

    def note(self, batch: RecordBatch) -> None:
        super().note(batch)
        if batch.magic < 2:
            self.old_messages_end = batch.last_offset + 1


class EpochRun(NamedTuple):
    """Consecutive batches of one epoch.  No batch of another epoch is in [start_offset, end_offset)."""

    epoch: int
    start_offset: int  # of the first batch, or the log start offset if that is higher
    first_offset: int  # the first offset >= start_offset that a batch holds
    end_offset: int  # where the next run starts, or the log ends


#: (start, end) -> the first offset in [start, end) that a batch holds, None if there is none.
FirstOffset = Callable[[int, int], int | None]


def corrected_epochs(
    epochs_from_file: Sequence[EpochEntry],
    batch_epochs: BatchEpochs,
    log_start_offset: int,
    log_end_offset: int,
    first_offset: FirstOffset,
) -> tuple[list[EpochEntry], bool]:
    """The epochs after an unclean stop, and whether a batch contradicts the file."""
    # Old messages have no epoch, and the epochs before them are dropped (EPOCH-03).
    entries_from_file = [entry for entry in epochs_from_file if entry.start_offset >= batch_epochs.old_messages_end]
    runs = epoch_runs(batch_epochs.entries, log_start_offset, log_end_offset, first_offset)
    entries = with_later_epochs(entries_from_file, runs)
    if len(entries_from_file) == len(epochs_from_file) and not is_contradicted(entries, runs, first_offset):
        return with_earlier_epochs(entries, runs), False
    return epochs_of_batches(entries_from_file, runs, batch_epochs.from_offset, log_end_offset, first_offset), True


def epoch_runs(
    batch_epochs: Sequence[EpochEntry], log_start_offset: int, log_end_offset: int, first_offset: FirstOffset
) -> list[EpochRun]:
    """The epochs of the batches that hold an offset in [log_start_offset, log_end_offset)."""
    ends = [entry.start_offset for entry in batch_epochs[1:]] + [log_end_offset]
    runs = []
    for (epoch, start), end in zip(batch_epochs, ends, strict=False):
        start = max(start, log_start_offset)
        first = first_offset(start, end)
        if first is not None:
            runs.append(EpochRun(epoch, start, first, end))
    return runs


def with_later_epochs(epochs_from_file: Sequence[EpochEntry], runs: Sequence[EpochRun]) -> list[EpochEntry]:
    """The file's epochs, then each epoch of a batch that is later than all before it.  Kafka does no more than this."""
    cache = LeaderEpochFileCache("", None, list(epochs_from_file))
    for run in runs:
        if run.epoch > cache.latest_epoch:
            cache.assign(run.epoch, run.start_offset)
    return list(cache.entries)


def is_contradicted(entries: Sequence[EpochEntry], runs: Sequence[EpochRun], first_offset: FirstOffset) -> bool:
    """Whether a batch holds an offset that these entries assign to another epoch."""
    for epoch, _, first, end in runs:
        if epoch_at(entries, first) not in (epoch, -1):
            return True
        at = bisect.bisect_right(entries, first, key=lambda entry: entry.start_offset)
        for later in entries[at:]:
            if later.start_offset >= end:
                break
            if later.epoch != epoch and first_offset(later.start_offset, end) is not None:
                return True
    return False


def with_earlier_epochs(entries: Sequence[EpochEntry], runs: Sequence[EpochRun]) -> list[EpochEntry]:
    """Entries that no batch contradicts, preceded by the epochs of the batches before the first entry.

    When the log start offset rises, the epochs are cut at once, but the checkpoint of the log start offset is written
    later.  After a kill between the two, the log again holds records whose epochs are not in the file.
    """
    before = [EpochEntry(run.epoch, run.start_offset) for run in runs if epoch_at(entries, run.first_offset) < 0]
    return [*before, *(entry for entry in entries if not before or entry.epoch > before[-1].epoch)]


def epochs_of_batches(
    epochs_from_file: Sequence[EpochEntry],
    runs: Sequence[EpochRun],
    from_offset: int,
    log_end_offset: int,
    first_offset: FirstOffset,
) -> list[EpochEntry]:
    """The epochs after an unclean stop if a batch contradicts the file: those of the batches, and from the file only

    - the entries below from_offset,
    - the start of an epoch, if no batch is between it and the epoch's first batch,
    - an epoch that is later than all batches and starts at the log end or above.
    """
    starts = dict(epochs_from_file)
    cache = LeaderEpochFileCache("", None, [entry for entry in epochs_from_file if entry.start_offset < from_offset])
    for run in runs:
        start = starts.get(run.epoch, run.start_offset)
        if start > run.start_offset or first_offset(start, run.start_offset) is not None:
            start = run.start_offset
        cache.assign(run.epoch, start)
    for epoch, start in epochs_from_file:
        if start >= log_end_offset and epoch > cache.latest_epoch:
            cache.assign(epoch, start)
    return list(cache.entries)
