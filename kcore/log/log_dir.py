"""LogDir: one data directory: its lock, its checkpoints, its marker of a clean stop, and whether it works.

Four text files hold offsets of all partitions in it (checkpoints.py): recovery points, log starts, high watermarks, and
the offsets up to which the cleaner has compacted.
Source: LogManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kcore.common.file import make_directory
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.log import clean_shutdown
from kcore.log.boot_id import read_boot_id, write_boot_id
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    OffsetCheckpointFile,
)
from kcore.log.directory_lock import DirectoryLock
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS, LogDirFailureChannel

if TYPE_CHECKING:
    from kcore.log.log_hot_path import LogHotPath

logger = logging.getLogger(__name__)

_PROGRESS_INTERVAL_MS = 5_000
_DISK_FULL_LOG_INTERVAL_MS = 60_000


class CheckpointedOffsets(NamedTuple):
    """What the checkpoints of a data directory say of its logs."""

    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]


class _RecoveryProgress(NamedTuple):
    """How far the loading of one data directory is."""

    logs: int  # to load in all
    remaining_logs: int
    remaining_segments: int  # of the logs being loaded: segments that still need a scan


class LogDir:
    """One data directory.

    Thread-safe.  A log calls fail() and lower_offsets() with its own lock held; nothing here takes a log's lock.  The
    lock of the checkpoints is held while a file is written, so that no older offset is written after a lower one.
    Lifetime: lock() and, at the end, release(); to read the checkpoints neither is needed.

    failure_channel: receives a failure of the directory; by default a new channel.  boot_id: the machine's, None if it
    is not known.
    """

    def __init__(
        self,
        path: str,
        failure_channel: LogDirFailureChannel | None = None,
        time: Time = SYSTEM_TIME,
        boot_id: str | None = None,
    ) -> None:
        self.path = path
        self.recovery_points = OffsetCheckpointFile(os.path.join(path, RECOVERY_POINT_CHECKPOINT))
        self.log_starts = OffsetCheckpointFile(os.path.join(path, LOG_START_OFFSET_CHECKPOINT))
        self.high_watermarks = OffsetCheckpointFile(os.path.join(path, REPLICATION_OFFSET_CHECKPOINT))
        self.cleaner_offsets = OffsetCheckpointFile(os.path.join(path, CLEANER_OFFSET_CHECKPOINT))
        self.had_clean_shutdown = False
        #: Whether its machine has failed since it was used last, so that what was not synced may be lost.
        self.machine_has_failed = False
        #: It is removed next: no checkpoint is written any more.
        self.is_discarded = False
        self._boot_id = boot_id
        self._failure_channel = failure_channel or LogDirFailureChannel()
        self._time = time
        self._directory_lock: DirectoryLock | None = None
        self._checkpoint_lock = threading.Lock()
        # What was last read from each file or written to it; the holder of the .lock is the only writer.  Reading a
        # file of ten thousand partitions takes longer than writing it.
        self._contents: dict[str, dict[TopicPartition, int]] = {}
        self._next_disk_full_log_ms: dict[str, float] = {}
        # The checkpoints in which a full disk has kept the lines of logs that are no longer here.
        self._not_dropped: dict[TopicPartition, list[OffsetCheckpointFile]] = {}
        # Offsets of logs that could not be loaded: they stay in the checkpoints until the logs can be loaded.  And high
        # watermarks of logs whose directories are gone (gone_logs.py).
        self._not_loaded = CheckpointedOffsets({}, {}, {})
        self._has_not_loaded = False
        self._progress_lock = threading.Lock()
        self._progress = _RecoveryProgress(0, 0, 0)
        self._next_progress_ms = 0.0

    # -- lock and failure -------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make the directory if it is missing, and hold its .lock until release().  Raises DirectoryInUse, OSError."""
        make_directory(self.path)
        self._directory_lock = DirectoryLock(self.path)

    def release(self) -> None:
        if self._directory_lock is not None:
            self._directory_lock.release()
            self._directory_lock = None

    @property
    def failure(self) -> OSError | None:
        """The error that took the directory offline; None while it works."""
        return self._failure_channel.failure(self.path)

    def fail(self, error: OSError) -> None:
        """The directory is offline from now on; the thread that takes it out of the channel does the rest."""
        self._failure_channel.maybe_add_offline_log_dir(self.path, error)

    # -- start and stop -----------------------------------------------------------------------------------------------

    def read_last_stop(self) -> None:
        """Whether the last stop was clean, and if not, whether the machine failed.  Raises OSError."""
        self.had_clean_shutdown = clean_shutdown.was_clean_shutdown(self.path)
        last_boot_id = read_boot_id(self.path)
        self.machine_has_failed = (
            not self.had_clean_shutdown and None not in (self._boot_id, last_boot_id) and self._boot_id != last_boot_id
        )

    def record_boot_id(self) -> None:
        """From now on the directory was used in this boot of the machine.  A failure takes it offline; a full disk is
        logged."""
        if self._boot_id is None or self.failure is not None:
            return
        try:
            if read_boot_id(self.path) != self._boot_id:
                write_boot_id(self.path, self._boot_id)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                self.fail(error)
            else:
                logger.error("%s: the boot id could not be written: %s", self.path, plain_error(error))

    def read_checkpoints(self) -> CheckpointedOffsets:
        """A damaged file counts as empty, with a warning in the log.  Raises OSError."""
        with self._checkpoint_lock:
            self._contents.clear()
            return CheckpointedOffsets(
                dict(self._read(self.recovery_points)),
                dict(self._read(self.log_starts)),
                dict(self._read(self.high_watermarks)),
            )

    def keep_checkpointed(self, topic_partition: TopicPartition, checkpointed: CheckpointedOffsets) -> None:
        """This log could not be loaded: its offsets stay in the checkpoints."""
        with self._checkpoint_lock:
            self._has_not_loaded = True
            for kept, offsets in zip(self._not_loaded, checkpointed, strict=True):
                if topic_partition in offsets:
                    kept[topic_partition] = offsets[topic_partition]

    def keep_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """They stay in their checkpoint, though there are no such logs, until keep_no_longer() or drop()."""
        with self._checkpoint_lock:
            self._not_loaded.high_watermarks.update(high_watermarks)

    def keep_no_longer(self, topic_partition: TopicPartition) -> None:
        with self._checkpoint_lock:
            self._not_loaded.high_watermarks.pop(topic_partition, None)

    def write_clean_shutdown(self, logs: Collection[LogHotPath], broker_epoch: int) -> None:
        """After all logs were closed in order: the last checkpoints, and the marker that no recovery is needed.

        No marker if a log that could not be loaded may need a recovery.  Raises OSError.
        """
        with self._checkpoint_lock:
            points = {log.topic_partition: log.recovery_point for log in logs}
            self._write(self.recovery_points, self._not_loaded.recovery_points | points)
            self._write(self.log_starts, self._not_loaded.log_starts | _log_starts_worth_keeping(logs))
        if self.had_clean_shutdown or not self._has_not_loaded:
            clean_shutdown.write_clean_shutdown(self.path, broker_epoch)

    # -- checkpoints --------------------------------------------------------------------------------------------------

    # The checkpoint_ functions take a callable, and call it with the lock held: otherwise a log of the list could be
    # deleted before the file is written, and a new log of the same name would get its offsets.

    def checkpoint_recovery_points(self, logs: Callable[[], Iterable[LogHotPath]]) -> None:
        """logs: returns all logs in the directory.  A failure takes it offline; a full disk is logged, as below."""
        with self._checkpoint_lock:
            points = {log.topic_partition: log.recovery_point for log in logs()}
            self._try_to_write(self.recovery_points, self._not_loaded.recovery_points | points)

    def checkpoint_log_starts(self, logs: Callable[[], Iterable[LogHotPath]]) -> None:
        with self._checkpoint_lock:
            starts = [(log, log.log_start_offset) for log in logs()]
            worth_keeping = _log_starts_worth_keeping(log for log, _ in starts)
            if self._try_to_write(self.log_starts, self._not_loaded.log_starts | worth_keeping):
                for log, start in starts:
                    log.leader_epoch_cache.forget_below(start)

    def checkpoint_high_watermarks(self, high_watermarks: Callable[[], dict[TopicPartition, int]]) -> None:
        with self._checkpoint_lock:
            self._try_to_write(self.high_watermarks, self._not_loaded.high_watermarks | high_watermarks())

    def lower_offsets(self, log: LogHotPath) -> None:
        """After a truncation: no checkpoint says more than the log's recovery point and log start (TRUNC-10).

        Returns when that is on disk.  Raises OSError.
        """
        with self._checkpoint_lock:
            tp = log.topic_partition
            points = self._read(self.recovery_points)
            if points.get(tp, 0) > log.recovery_point:
                self._write(self.recovery_points, points | {tp: log.recovery_point})
            starts = self._read(self.log_starts)
            if starts.get(tp, 0) > log.log_start_offset:
                others = {other: start for other, start in starts.items() if other != tp}
                self._write(self.log_starts, others | _log_starts_worth_keeping([log]))

    def update(self, checkpoint: OffsetCheckpointFile, topic_partition: TopicPartition, offset: int) -> None:
        """Change one partition in one of the files; nothing is written if that is what it says.  Raises OSError."""
        with self._checkpoint_lock:
            offsets = self._read(checkpoint)
            if offsets.get(topic_partition) != offset:
                self._write(checkpoint, offsets | {topic_partition: offset})

    def drop(
        self,
        topic_partitions: Collection[TopicPartition],
        *,
        cleaner_offsets: bool,
        high_watermarks: bool = True,
    ) -> None:
        """The logs are no longer here: a new one of the same name must not get an old one's offsets.

        cleaner_offsets: from the cleaner's checkpoint too.  False in a broker with a cleaner, which alone writes that
        file.  high_watermarks: False leaves them in theirs.  A failure takes the directory offline, except for a full
        disk: it is this that may give the space back, and finish_drop() tries again.
        """
        checkpoints = [self.recovery_points, self.log_starts]
        if high_watermarks:
            checkpoints.append(self.high_watermarks)
        if cleaner_offsets:
            checkpoints.append(self.cleaner_offsets)
        gone = set(topic_partitions)
        with self._checkpoint_lock:
            if high_watermarks:
                for tp in gone:
                    self._not_loaded.high_watermarks.pop(tp, None)
            for checkpoint in checkpoints:
                try:
                    offsets = self._read(checkpoint)
                except OSError as error:
                    self.fail(error)
                    continue
                if offsets.keys().isdisjoint(gone):
                    continue
                kept = {tp: offset for tp, offset in offsets.items() if tp not in gone}
                if not self._try_to_write(checkpoint, kept):
                    for tp in offsets.keys() & gone:
                        self._not_dropped.setdefault(tp, []).append(checkpoint)

    def finish_drop(self, topic_partition: TopicPartition) -> None:
        """Before a log is made here.  Raises OSError if the offsets of a former log of that name cannot be removed."""
        with self._checkpoint_lock:
            for checkpoint in self._not_dropped.get(topic_partition, ()):
                offsets = self._read(checkpoint)
                if topic_partition in offsets:
                    others = {tp: offset for tp, offset in offsets.items() if tp != topic_partition}
                    self._write(checkpoint, others)
            self._not_dropped.pop(topic_partition, None)

    def _read(self, checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
        if checkpoint.path not in self._contents:
            self._contents[checkpoint.path] = checkpoint.read_or_warn()
        return self._contents[checkpoint.path]

    def _write(self, checkpoint: OffsetCheckpointFile, offsets: dict[TopicPartition, int]) -> None:
        # If the write fails, the file may have the old content or the new one.
        self._contents.pop(checkpoint.path, None)
        checkpoint.write(offsets)
        self._contents[checkpoint.path] = offsets

    def _try_to_write(self, checkpoint: OffsetCheckpointFile, offsets: dict[TopicPartition, int]) -> bool:
        """Whether the file has the offsets now."""
        if self.failure is not None or self.is_discarded:
            return False
        try:
            self._write(checkpoint, offsets)
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                self.fail(error)
                return False
            # Space may come back.  Each file's error is logged once a minute, not at each attempt.
            now_ms = self._time.hi_res_clock_ms()
            if now_ms >= self._next_disk_full_log_ms.get(checkpoint.path, 0):
                self._next_disk_full_log_ms[checkpoint.path] = now_ms + _DISK_FULL_LOG_INTERVAL_MS
                logger.error("%s: could not be written: %s", checkpoint.path, plain_error(error))
            return False
        return True

    # -- progress of loading ------------------------------------------------------------------------------------------

    def begin_progress(self, logs: int) -> None:
        with self._progress_lock:
            self._progress = _RecoveryProgress(logs, logs, 0)
            self._next_progress_ms = self._time.milliseconds() + _PROGRESS_INTERVAL_MS

    def note_progress(self, *, logs_done: int = 0, segments: int = 0) -> None:
        """segments: how many more (or, below 0, fewer) need a scan.  The log says every five seconds how far it is."""
        now_ms = self._time.milliseconds()
        with self._progress_lock:
            logs, remaining, remaining_segments = self._progress
            progress = _RecoveryProgress(logs, remaining - logs_done, remaining_segments + segments)
            self._progress = progress
            due = now_ms >= self._next_progress_ms
            if due:
                self._next_progress_ms = now_ms + _PROGRESS_INTERVAL_MS
        if due:
            logger.info(
                "%s: %d of %d logs are loaded, %d segments of the others are still to be scanned",
                self.path,
                logs - progress.remaining_logs,
                logs,
                progress.remaining_segments,
            )


def _log_starts_worth_keeping(logs: Iterable[LogHotPath]) -> dict[TopicPartition, int]:
    """Only those above the offset that the first segment's name has."""
    result = {}
    for log in logs:
        first = log.segments.first
        if first is not None and log.log_start_offset > first.base_offset:
            result[log.topic_partition] = log.log_start_offset
    return result
