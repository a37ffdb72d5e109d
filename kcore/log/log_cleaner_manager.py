"""LogCleanerManager: which log is cleaned next, which may not be, and how far each one is clean.

How far is kept in cleaner-offset-checkpoint of each data directory: everything below a log's offset there is clean, the
rest is dirty.  A log that somebody needs to truncate, delete, move or stop compacting is paused first: then no cleaner
works on it.
Source: LogCleanerManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, LogCleaningAborted
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_dir import LogDir
from kcore.log.log_segment import LogSegment
from kcore.log.retention import largest_timestamp
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

#: What a log's entry may be.  None (no entry) -> "cleaning" or 1; "cleaning" -> None or "aborting"; "aborting" -> a
#: number, a pause for each who waited for that; a number, how many pauses are to be resumed, -> one more or less, None
#: after 1.
State = Literal["cleaning", "aborting"] | int

#: How long a log is left alone after a cleaning that a full disk ended: each attempt reads all of its dirty part.
#: Doubled with each failure.
_FIRST_RETRY_MS = 60_000
_LAST_RETRY_MS = 3_600_000


class LogToClean(NamedTuple):
    """A log and the offsets of its dirty part that can be cleaned."""

    log: UnifiedLog
    first_dirty_offset: int
    #: Base offset of the first segment that is left alone.
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    #: How long ago max.compaction.lag.ms asked for it; 0 if it did not.
    compaction_delay_ms: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        return self.log.topic_partition

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0


def find_log_to_clean(log: UnifiedLog, last_clean_offset: int | None, now_ms: int) -> tuple[LogToClean, bool]:
    """What of a log can be cleaned, and whether last_clean_offset, the checkpoint's, was wrong for it.

    Cleaning stops before the last stable offset, the active segment, and the first segment with a record younger than
    min.compaction.lag.ms.  Source: LogCleanerManager.cleanableOffsets and calculateCleanableBytes.
    """
    start = log.log_start_offset
    first_dirty = start if last_clean_offset is None else last_clean_offset
    is_wrong = False
    if first_dirty < start:
        # With compact,delete retention does this all the time.
        level = logging.DEBUG if log.config.delete else logging.WARNING
        logger.log(
            level,
            "%s: clean up to %d, but the log starts at %d: dirty from there",
            log.topic_partition,
            first_dirty,
            start,
        )
        first_dirty, is_wrong = start, True
    elif first_dirty > log.log_end_offset:
        logger.warning(
            "%s: clean up to %d, but the log ends at %d: all of it is dirty from %d on",
            log.topic_partition,
            first_dirty,
            log.log_end_offset,
            start,
        )
        first_dirty, is_wrong = start, True

    segments = list(log.segments)
    active = segments[-1].base_offset
    dirty = [s for s in log.segments.from_floor(first_dirty) if s.base_offset < active] if first_dirty <= active else []
    limit = min(log.last_stable_offset, active)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        young = (s.base_offset for s in dirty if largest_timestamp(s) > now_ms - lag_ms)
        limit = min(limit, next(young, limit))
    limit = max(limit, first_dirty)
    inside = log.segments.floor(limit)
    first_uncleanable = active if inside is None or limit > active else inside.base_offset
    cleanable = [
        s for s in log.segments.from_floor(min(first_dirty, first_uncleanable)) if s.base_offset < first_uncleanable
    ]
    log_to_clean = LogToClean(
        log,
        first_dirty,
        first_uncleanable,
        sum(s.size for s in segments if s.base_offset < first_dirty),
        sum(s.size for s in cleanable),
        _compaction_delay_ms(log, dirty, now_ms),
    )
    return log_to_clean, is_wrong


def _compaction_delay_ms(log: UnifiedLog, dirty: Iterable[LogSegment], now_ms: int) -> int:
    if log.config.max_compaction_lag_ms >= now_ms:
        return 0  # as by default: no need to look into the segments
    first_timestamps = [s.first_batch_timestamp for s in dirty]
    timestamps = [timestamp for timestamp in first_timestamps if timestamp is not None and timestamp > 0]
    if not timestamps:
        return 0
    return max(now_ms - max(log.config.max_compaction_lag_ms, 0) - min(timestamps), 0)


class LogCleanerManager:
    """Thread-safe.  Its lock guards the states and the checkpoints; a log's lock is never taken under it.

    logs: the logs of the broker at this moment.
    """

    def __init__(
        self, log_dirs: Iterable[LogDir], logs: Callable[[], Mapping[TopicPartition, UnifiedLog]], time: Time
    ) -> None:
        self._logs = logs
        self._time = time
        self._checkpoints = {log_dir.path: log_dir.cleaner_offsets for log_dir in log_dirs}
        self._states: dict[TopicPartition, State] = {}
        # How many wait for the end of a cleaning in the state "aborting": it ends in as many pauses.
        self._waiting: dict[TopicPartition, int] = {}
        self._uncleanable: set[tuple[str, TopicPartition]] = set()
        # How long the log was put off, and until when by the clock that never steps.
        self._put_off: dict[TopicPartition, tuple[int, float]] = {}
        self._lock = threading.RLock()
        self._paused = threading.Condition(self._lock)
        #: Of the dirtiest log at the last look.
        self.max_dirty_ratio = 0.0

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def cleaner_offsets(self) -> dict[TopicPartition, int]:
        """Up to where each log is clean.  A directory whose file cannot be read has no clean logs."""
        offsets: dict[TopicPartition, int] = {}
        with self._lock:
            for checkpoint in self._checkpoints.values():
                offsets.update(self._read(checkpoint))
        return offsets

    def _read(self, checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
        try:
            return checkpoint.read()
        except CorruptFile as error:
            logger.warning("its logs count as never cleaned: %s", error)
        except OSError as error:
            logger.error("its logs count as never cleaned: %s: %s", checkpoint.path, plain_error(error))
        return {}

    def update_checkpoints(
        self,
        log_dir: str,
        *,
        update: tuple[TopicPartition, int] | None = None,
        remove: Collection[TopicPartition] = (),
    ) -> None:
        """Write a directory's file with one log changed or some left out, and without logs that are no longer there;
        nothing is written where nothing changes."""
        with self._lock:
            checkpoint = self._checkpoints.get(log_dir)
            if checkpoint is None:
                return
            logs, gone, before = self._logs(), set(remove), self._read(checkpoint)
            offsets = {tp: offset for tp, offset in before.items() if tp in logs and tp not in gone}
            if update is not None:
                offsets[update[0]] = update[1]
            if offsets != before:
                self._write(checkpoint, offsets)

    def _write(self, checkpoint: OffsetCheckpointFile, offsets: dict[TopicPartition, int]) -> None:
        try:
            checkpoint.write(offsets)
        except OSError as error:
            # The old offsets stay valid; only more is cleaned again than necessary.
            logger.error("%s could not be written: %s", checkpoint.path, plain_error(error))

    def maybe_truncate_checkpoint(self, log_dir: str, topic_partition: TopicPartition, offset: int) -> None:
        """Lower the log's cleaner offset after a truncation to offset: later records are dirty."""
        with self._lock:
            checkpoint = self._checkpoints.get(log_dir)
            if checkpoint is None:
                return
            offsets = self._read(checkpoint)
            if offsets.get(topic_partition, 0) > offset:
                offsets[topic_partition] = offset
                self._write(checkpoint, offsets)

    def alter_checkpoint_dir(self, topic_partition: TopicPartition, source: str, destination: str) -> None:
        """Move the log's cleaner offset to the checkpoint of its new data directory."""
        with self._lock:
            checkpoint = self._checkpoints.get(source)
            offset = None if checkpoint is None else self._read(checkpoint).get(topic_partition)
            if offset is not None:
                self.update_checkpoints(source, remove=[topic_partition])
                self.update_checkpoints(destination, update=(topic_partition, offset))
            if (source, topic_partition) in self._uncleanable:
                self._uncleanable.discard((source, topic_partition))
                self._uncleanable.add((destination, topic_partition))

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Leave the directory's checkpoint alone from now on."""
        with self._lock:
            self._checkpoints.pop(log_dir, None)

    # -- what to do next --------------------------------------------------------------------------------------------

    def grab_filthiest_compacted_log(self) -> LogToClean | None:
        """The log with the greatest share of dirty bytes, now in the state "cleaning": done_cleaning() must follow.

        None if no log's share is above its min.cleanable.dirty.ratio and none waits longer than its
        max.compaction.lag.ms.
        """
        with self._lock:
            now_ms, clock_ms = self._time.milliseconds(), self._time.hi_res_clock_ms()
            offsets = self.cleaner_offsets()
            dirty = []
            for tp, log in self._logs().items():
                if not self._may_be_cleaned(tp, log) or self._put_off.get(tp, (0, clock_ms))[1] > clock_ms:
                    continue
                try:
                    log_to_clean, is_wrong = find_log_to_clean(log, offsets.get(tp), now_ms)
                except Exception as error:
                    self._note_uncleanable(log, error)
                    continue
                if is_wrong:
                    self.update_checkpoints(log.parent_dir, update=(tp, log_to_clean.first_dirty_offset))
                if log_to_clean.total_bytes:
                    dirty.append(log_to_clean)
            self.max_dirty_ratio = max((d.cleanable_ratio for d in dirty), default=0.0)
            cleanable = [
                d
                for d in dirty
                if d.cleanable_bytes
                and (d.compaction_delay_ms or d.cleanable_ratio > d.log.config.min_cleanable_dirty_ratio)
            ]
            if not cleanable:
                return None
            filthiest = max(cleanable, key=lambda d: d.cleanable_ratio)
            self._states[filthiest.topic_partition] = "cleaning"
            return filthiest

    def _may_be_cleaned(self, tp: TopicPartition, log: UnifiedLog) -> bool:
        return (
            log.config.compact
            and tp not in self._states
            and not (log.is_closed or log.is_offline)
            and log.parent_dir in self._checkpoints
            and (log.parent_dir, tp) not in self._uncleanable
        )

    def deletable_logs(self) -> list[UnifiedLog]:
        """The compacted logs that no thread works on, now in the state "cleaning": done_deleting() must follow.

        Those without `delete` in their cleanup.policy too: DeleteRecords may have left segments below the log start.
        """
        with self._lock:
            logs = [log for tp, log in self._logs().items() if self._may_be_cleaned(tp, log)]
            for log in logs:
                self._states[log.topic_partition] = "cleaning"
            return logs

    def pause_cleaning_for_non_compacted_partitions(self) -> list[UnifiedLog]:
        """The logs with something to delete that only retention works on, paused, so that a change of their
        cleanup.policy does not let a cleaner in meanwhile: resume_cleaning() must follow."""
        with self._lock:
            logs = [
                log
                for tp, log in self._logs().items()
                if log.may_have_old_segments and not log.config.compact and tp not in self._states
            ]
            for log in logs:
                self._states[log.topic_partition] = 1
            return logs

    # -- states -----------------------------------------------------------------------------------------------------

    def state(self, topic_partition: TopicPartition) -> State | None:
        with self._lock:
            return self._states.get(topic_partition)

    def abort_cleaning(self, topic_partition: TopicPartition) -> None:
        """Returns when no cleaner works on the log; one may start again at once."""
        with self._lock:
            self.abort_and_pause_cleaning(topic_partition)
            self.resume_cleaning([topic_partition])

    def abort_and_pause_cleaning(self, topic_partition: TopicPartition) -> None:
        """Returns when no cleaner works on the log, and none will until resume_cleaning() was called as often."""
        with self._lock:
            state = self._states.get(topic_partition, 0)
            if isinstance(state, int):
                self._states[topic_partition] = state + 1
                return
            self._states[topic_partition] = "aborting"
            self._waiting[topic_partition] = self._waiting.get(topic_partition, 0) + 1
            while not isinstance(self._states[topic_partition], int):
                self._paused.wait()

    def resume_cleaning(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Take back one pause of each."""
        with self._lock:
            for tp in topic_partitions:
                state = self._states.get(tp)
                if not isinstance(state, int):
                    raise ValueError(f"{tp}: its cleaning is not paused but {state}")
                if state == 1:
                    del self._states[tp]
                else:
                    self._states[tp] = state - 1

    def check_cleaning_aborted(self, topic_partition: TopicPartition) -> None:
        """Raises LogCleaningAborted if another thread waits for the end of this cleaning."""
        with self._lock:
            if self._states.get(topic_partition) == "aborting":
                raise LogCleaningAborted(f"{topic_partition}: another operation needs the log")

    def done_cleaning(self, log: UnifiedLog, log_dir: str, end_offset: int) -> None:
        """The cleaning has ended; if it was not aborted, everything below end_offset is clean."""
        with self._lock:
            if self._states.get(log.topic_partition) == "cleaning":
                self.update_checkpoints(log_dir, update=(log.topic_partition, end_offset))
            self._let_go(log.topic_partition)

    def done_deleting(self, logs: Iterable[UnifiedLog]) -> None:
        with self._lock:
            for log in logs:
                self._let_go(log.topic_partition)

    def _let_go(self, tp: TopicPartition) -> None:
        state = self._states.get(tp)
        if state == "cleaning":
            del self._states[tp]
        elif state == "aborting":
            # At once, or the cleaner would be back before any of those who wait has woken up.
            self._states[tp] = self._waiting.pop(tp)
            self._paused.notify_all()
        else:
            raise ValueError(f"{tp}: it is not being cleaned, its state is {state}")

    # -- logs that cannot be cleaned ----------------------------------------------------------------------------------

    def mark_uncleanable(self, log: UnifiedLog, error: BaseException) -> None:
        """Cleaning it raised an unexpected error: it is left alone until the next start."""
        with self._lock:
            self._note_uncleanable(log, error)

    def _note_uncleanable(self, log: UnifiedLog, error: BaseException) -> None:
        self._uncleanable.add((log.parent_dir, log.topic_partition))
        logger.error(
            "%s: it cannot be cleaned, and will not be until the next start: %s",
            log.directory,
            plain_error(error),
            exc_info=error,
        )

    def put_off(self, log: UnifiedLog) -> int:
        """A full disk ended its cleaning: for how many ms no cleaner tries again.  Retention goes on."""
        with self._lock:
            last_ms, _ = self._put_off.get(log.topic_partition, (_FIRST_RETRY_MS // 2, 0))
            delay_ms = min(2 * last_ms, _LAST_RETRY_MS)
            self._put_off[log.topic_partition] = (delay_ms, self._time.hi_res_clock_ms() + delay_ms)
            return delay_ms

    def cleaned(self, log: UnifiedLog) -> None:
        """A cleaning of the log reached its end."""
        with self._lock:
            self._put_off.pop(log.topic_partition, None)

    @property
    def uncleanable_partitions(self) -> Collection[TopicPartition]:
        with self._lock:
            return sorted({tp for _, tp in self._uncleanable})

    def maintain_uncleanable_partitions(self) -> None:
        """Remove the partitions whose logs were deleted."""
        with self._lock:
            logs = self._logs()
            self._uncleanable = {(path, tp) for path, tp in self._uncleanable if tp in logs}
            self._put_off = {tp: put_off for tp, put_off in self._put_off.items() if tp in logs}
