"""EpochLoader: the leader epochs of a log that is being opened, from their file and from the batches.

epoch_recovery.py has the rules.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, CorruptMessage
from kcore.log.checkpoints import LEADER_EPOCH_CHECKPOINT, EpochEntry, LeaderEpochCheckpointFile
from kcore.log.epoch_recovery import BatchEpochs, corrected_epochs, epoch_runs, with_later_epochs
from kcore.log.leader_epoch_file_cache import LeaderEpochFileCache
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS
from kcore.log.log_segments import LogSegments
from kcore.log.overflowed_segment import batch_at
from kcore.record.record_batch import RecordBatch

logger = logging.getLogger(__name__)


class EpochLoader:
    """segments: those of the log; read_file() comes before their recovery, load() after it."""

    def __init__(
        self,
        directory: str,
        topic_partition: TopicPartition,
        segments: LogSegments,
        *,
        writable: bool,
        sole_replica: bool,
        had_clean_shutdown: bool,
    ) -> None:
        self._directory = directory
        self._name = str(topic_partition)
        self._segments = segments
        self._writable = writable
        self._sole_replica = sole_replica
        self._had_clean_shutdown = had_clean_shutdown
        self._checkpoint = LeaderEpochCheckpointFile(os.path.join(directory, LEADER_EPOCH_CHECKPOINT))

    def read_file(self) -> list[EpochEntry] | None:
        """The epochs in the file; None, for the batches' epochs, if it is damaged or may not be on the disk."""
        try:
            entries = self._checkpoint.read()
            if any(entry.epoch < 0 or entry.start_offset < 0 for entry in entries):
                raise CorruptFile(f"{self._checkpoint.path}: a negative epoch or offset")
        except CorruptFile as error:
            logger.warning("%s: rebuilding the leader epochs from the log: %s", self._directory, error)
            return None
        return entries if entries or self._had_clean_shutdown else None

    def clear_file(self) -> None:
        """Called before the segments leave a log that starts anew: without segments the next start, after a crash in
        between, would take the file's epochs for those of records that were deleted.  Raises OSError."""
        if not self._sole_replica:
            self._checkpoint.write([])

    def load(
        self,
        epochs_from_file: list[EpochEntry] | None,
        batch_epochs: BatchEpochs,
        log_start_offset: int,
        log_end_offset: int,
        *,
        starts_anew: bool,
    ) -> LeaderEpochFileCache:
        """The epochs of the log: those of the file, corrected by the batches that recovery has read.

        starts_anew: all segments ended below the log start offset, and are no part of the log any more.
        """
        if epochs_from_file is None:
            entries = self._of_all_batches(check_crc=not (self._had_clean_shutdown or self._writable))
        else:
            # Offsets ascend from here on.
            entries = list(LeaderEpochFileCache(self._name, None, epochs_from_file).entries)
            log_range = (log_start_offset, log_end_offset, self._first_offset)
            if self._had_clean_shutdown:
                entries = with_later_epochs(entries, epoch_runs(batch_epochs.entries, *log_range))
            else:
                entries, contradicted = corrected_epochs(entries, batch_epochs, *log_range)
                if contradicted:
                    logger.warning(
                        "%s: the leader epochs in %s are not those of the batches, which are used",
                        self._directory,
                        LEADER_EPOCH_CHECKPOINT,
                    )
        kept = LeaderEpochFileCache(self._name, None, entries)
        keeps_epoch_at_end = self._sole_replica or not self._writable
        # An epoch that starts at the log end has no record.  If there are other replicas, it may contradict the
        # leader's, so it is dropped; a sole replica keeps it as its current epoch.
        kept.truncate_from_end(log_end_offset + 1 if keeps_epoch_at_end else log_end_offset)
        # Only then, as in Kafka: if every record was deleted, the epoch of the last one ends at the log end, and other
        # replicas ask for that end.
        kept.truncate_from_start(log_start_offset)
        if starts_anew and not keeps_epoch_at_end:
            kept.clear_and_flush()
        epochs = LeaderEpochFileCache(
            self._name,
            self._checkpoint if self._writable else None,
            epochs_from_file or [],
            # A clean stop does not sync the epochs of an empty log.
            is_synced=self._had_clean_shutdown and epochs_from_file is not None and log_start_offset < log_end_offset,
        )
        # Entries at the log end stay in the file: usually the next leader has the same epoch, and no write is needed.
        count = len(kept.entries)
        only_cut = (
            self._had_clean_shutdown
            and epochs_from_file is not None
            and kept.entries == tuple(epochs_from_file[:count])
        )
        try:
            epochs.replace(kept.entries, write=not only_cut)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            # A full disk keeps no log from being served: the next change or flush writes the file, and until then the
            # batches above the recovery point have the epochs.
            logger.error("%s: the leader epochs could not be written: %s", self._directory, plain_error(error))
            epochs.replace(kept.entries, write=False)
        return epochs

    def _first_offset(self, start: int, end: int) -> int | None:
        """The first offset in [start, end) that a batch holds; None if there is none, or if a segment is damaged."""
        try:
            for segment in self._segments.from_floor(start):
                place = segment.translate_offset(start)
                batch = batch_at(segment, place.position) if place is not None else None
                if batch is not None:
                    return max(batch.base_offset, start) if batch.base_offset < end else None
        except CorruptMessage:
            pass
        return None

    def _of_all_batches(self, *, check_crc: bool) -> list[EpochEntry]:
        """The epochs of every batch.  To be called after recovery, which removes torn batches."""
        epochs = BatchEpochs(self._name, 0)

        def note(batches: Iterable[RecordBatch]) -> None:
            for batch in batches:
                epochs.note(batch)

        for segment in self._segments:
            segment.scan(note, check_crc=check_crc, only_noteworthy=True)
        return list(epochs.entries)
