"""LeaderEpochFileCache: at which offset each leader epoch started (EPOCH-01..05).

Kept in leader-epoch-checkpoint.  Epochs and start offsets both ascend; an entry that contradicts a new one is removed.
Source: LeaderEpochFileCache, Kafka 2.4-4.x.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Iterable, Sequence

from kcore.log.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kcore.log.log_hot_path import LatestEpoch
from kcore.record.record_batch import RecordBatch

logger = logging.getLogger(__name__)

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


def epoch_at(entries: Sequence[EpochEntry], offset: int) -> int:
    """The epoch of the last entry that starts at or below the offset; -1 if there is none."""
    at = bisect.bisect_right(entries, offset, key=lambda e: e.start_offset)
    return entries[at - 1].epoch if at > 0 else UNDEFINED_EPOCH


class LeaderEpochFileCache(LatestEpoch):
    """Thread-safe: changes take the cache's own lock (after the log's); a read sees one consistent tuple of entries.

    checkpoint None keeps everything in memory (a log opened for reading).  A change that makes the entries differ from
    the file replaces the file without an fsync.  flush() syncs it; the log calls it before its recovery point passes
    the entries.  The recovery scan reads every entry above the recovery point again from the batches.  So the epoch of
    a new leader, which has no records yet, is not written at once (assign(write=False)).

    The file keeps the epochs below the log start until forget_below() says that this log start is on the disk: after a
    crash with the old log start, the records below the new one would be there without their epochs.

    entries: those of the file.  is_synced: they are certainly on the disk, as after a clean stop.
    """

    def __init__(
        self,
        name: str,
        checkpoint: LeaderEpochCheckpointFile | None,
        entries: list[EpochEntry],
        *,
        is_synced: bool = True,
    ) -> None:
        self._name = name
        self._checkpoint = checkpoint
        self._lock = threading.Lock()
        # _entries are what the log start, as far as truncate_from_start() knows it, leaves of _all.
        self._all: tuple[EpochEntry, ...] = ()
        self._entries: tuple[EpochEntry, ...] = ()
        self._log_start_offset = 0
        self.latest_epoch = UNDEFINED_EPOCH
        self._in_file = tuple(entries)
        self._unsynced = not is_synced
        for entry in entries:
            self._set(self._with(entry))

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._entries

    @property
    def latest_entry(self) -> EpochEntry | None:
        entries = self._entries
        return entries[-1] if entries else None

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> bool:
        """Add an entry: `epoch` starts at start_offset.  Entries that contradict it are removed (EPOCH-04).

        write=False: the next change or flush() writes the file.  Returns whether anything changed: the latest epoch
        with the same or a later offset changes nothing.  Raises ValueError for negative values, OSError with the cache
        unchanged.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"{self._name}: leader epoch {epoch} starting at {start_offset}")
        with self._lock:
            latest = self.latest_entry
            if latest is not None and epoch == latest.epoch and start_offset >= latest.start_offset:
                return False
            entries = self._with(EpochEntry(epoch, start_offset))
            if write:
                self._replace(entries)
            else:
                self._set(entries)
            return True

    def note(self, batch: RecordBatch) -> None:
        """Add the epoch of a batch.  Called with batches in offset order (EPOCH-02, EPOCH-03).  Raises OSError."""
        if batch.magic < 2:
            self.clear_and_flush()
        elif batch.leader_epoch > self.latest_epoch:
            self.assign(batch.leader_epoch, batch.base_offset)

    def _with(self, entry: EpochEntry) -> tuple[EpochEntry, ...]:
        kept = tuple(e for e in self._all if e.epoch < entry.epoch and e.start_offset < entry.start_offset)
        # A lower epoch with the same start has no records: its leader went before it wrote any.
        removed = [e for e in self._all[len(kept) :] if e.epoch >= entry.epoch or e.start_offset != entry.start_offset]
        if len(removed) > 1 or (removed and removed[0].epoch != entry.epoch):
            logger.warning("%s: epoch entry %s contradicts %s, which are removed", self._name, entry, removed)
        return (*kept, entry)

    def end_offset_for(self, requested_epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch <= requested_epoch and where it ends (EPOCH-05); (-1, -1) if there is no such entry."""
        entries = self._entries
        if requested_epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if requested_epoch == entries[-1].epoch:
            return requested_epoch, log_end_offset
        higher = bisect.bisect_right(entries, requested_epoch, key=lambda e: e.epoch)
        if higher == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        epoch = entries[higher - 1].epoch if higher > 0 else requested_epoch
        return epoch, entries[higher].start_offset

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch in which a record at this offset was written; -1 if no entry covers the offset."""
        return epoch_at(self._entries, offset)

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or beyond end_offset.  Raises OSError."""
        with self._lock:
            is_left = any(e.start_offset < end_offset for e in self._entries)
            self._replace(tuple(e for e in self._all if e.start_offset < end_offset) if is_left else ())

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that ended at or below start_offset; the epoch that holds start_offset now starts there.

        The file keeps them until forget_below().
        """
        with self._lock:
            if start_offset > self._log_start_offset:
                self._log_start_offset = start_offset
                self._set(self._all)

    def forget_below(self, start_offset: int) -> None:
        """A log start of start_offset is on the disk: the next write of the file leaves out the epochs below it."""
        if self._all is not self._entries:
            with self._lock:
                if self._log_start_offset <= start_offset:
                    self._all = self._entries

    def replace(self, entries: Iterable[EpochEntry], *, write: bool = True) -> None:
        """Replace all entries.  write=False: the next change or flush() writes the file.  Raises OSError."""
        with self._lock:
            self._log_start_offset = 0
            if write:
                self._replace(tuple(entries))
            else:
                self._set(tuple(entries))

    def clear_and_flush(self) -> None:
        """Remove all entries.  Raises OSError."""
        with self._lock:
            self._replace(())

    def flush(self) -> None:
        """Write and fsync the file, if it is not up to date on the disk.  Raises OSError."""
        with self._lock:
            if self._checkpoint is not None and (self._unsynced or self._in_file != self._all):
                self._checkpoint.write(self._all)
                self._in_file = self._all
                self._unsynced = False

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        if self._checkpoint is not None and entries != self._in_file:
            self._unsynced = True
            self._checkpoint.write(entries, sync=False)
            self._in_file = entries
        self._set(entries)

    def _set(self, all_entries: tuple[EpochEntry, ...]) -> None:
        if not all_entries:
            self._log_start_offset = 0
        entries, start = all_entries, self._log_start_offset
        at = bisect.bisect_right(entries, start, key=lambda e: e.start_offset)
        if at > 0 and (at > 1 or entries[0].start_offset < start):
            entries = (EpochEntry(entries[at - 1].epoch, start), *entries[at:])
        self._all = all_entries
        self._entries = entries
        self.latest_epoch = entries[-1].epoch if entries else UNDEFINED_EPOCH
