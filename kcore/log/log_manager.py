"""LogManager: all logs of a broker, in one or more data directories.

log_dir.py has what belongs to a data directory as a whole.
Source: LogManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from kcore.common.executors import ExecutorFactory, thread_pool
from kcore.common.file import make_directory, remove_tree, rename, sync_path
from kcore.common.meters import TimeHistogram
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.scheduler import Scheduler
from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import InconsistentTopicId, KafkaError, KafkaStorageError
from kcore.log.boot_id import write_boot_id
from kcore.log.disk_room import has_room
from kcore.log.gone_logs import GoneLogs
from kcore.log.log_cleaner import LogCleaner
from kcore.log.log_closing import close_logs, discard_logs
from kcore.log.log_config import LogConfig
from kcore.log.log_dir import LogDir
from kcore.log.log_dir_failure_channel import DISK_FULL_ERRORS, LogDirFailureChannel
from kcore.log.log_dir_loader import AwaitingRoom, LoadLog, LogDirLoader
from kcore.log.log_file_names import (
    FUTURE_DIR_SUFFIX,
    marked_directory,
    partition_directory,
)
from kcore.log.log_loader import load_log
from kcore.log.log_maintenance import LogMaintenance
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.log_placement import LogPlacement
from kcore.log.log_removal import LogRemoval
from kcore.log.log_table import LogTable
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class LogManager:
    """Finds, makes, flushes, checkpoints, moves and deletes logs.

    A partition has at most one current log, and while it moves to another data directory a future one beside it.
    Thread-safe.  _lock is held while a log is made, moved or removed, and comes before a log's own lock.
    A directory that fails is offline at once, and so is the log that met the failure; the directory's other logs follow
    when the owner of the manager reads log_dir_failure_channel and calls handle_log_dir_failure().
    Lifetime: startup() once, shutdown() once.

    scheduler: for work that waits for a disk; without one nothing runs by itself.  clock_scheduler: for the expiry of
    producers; the same if None.  random: for the unique names of directories that go or move, and segment.jitter.ms.
    executors: for loading and closing logs.  boot_id: which boot of the machine this is, None if that is not known.
    """

    def __init__(
        self,
        log_dirs: Iterable[str | os.PathLike[str]],
        default_config: LogConfig | None = None,
        config: LogManagerConfig | None = None,
        *,
        topic_configs: Callable[[str], Mapping[str, Any]] | None = None,
        time: Time = SYSTEM_TIME,
        random: Random = SYSTEM_RANDOM,
        executors: ExecutorFactory = thread_pool,
        scheduler: Scheduler | None = None,
        clock_scheduler: Scheduler | None = None,
        boot_id: str | None = None,
    ) -> None:
        self.log_dirs = [os.path.abspath(os.fspath(path)) for path in log_dirs]
        if not self.log_dirs:
            raise ValueError("no log directory")
        self.default_config = default_config or LogConfig()
        self._topic_configs = topic_configs or (lambda topic: {})
        self._time = time
        self._random = random
        self._executors = executors
        self._scheduler = scheduler
        self._clock_scheduler = clock_scheduler
        self._config = config or LogManagerConfig()
        self._load_log = self._log_loading()
        self.log_dir_failure_channel = LogDirFailureChannel()
        self._lock = threading.Lock()
        self._dirs = {path: LogDir(path, self.log_dir_failure_channel, time, boot_id) for path in self.log_dirs}
        self._logs = LogTable()
        #: Which data directory a new log goes to.
        self.placement = LogPlacement(self._dirs, self._logs)
        # Directories that are there but could not be loaded: a new, empty log must not take their place.
        self._not_loaded: dict[TopicPartition, str] = {}
        self._awaiting_room: dict[TopicPartition, AwaitingRoom] = {}
        #: None unless compaction is enabled.
        self.cleaner: LogCleaner | None = None
        if self._config.cleaner is not None and self._config.cleaner.enable:
            self.cleaner = LogCleaner(self._config.cleaner, self._dirs.values(), self._logs.current, time)
        self._removal = LogRemoval(self.cleaner, random, scheduler)
        self._gone = GoneLogs(self._dirs, self._removal)
        #: Retention, flush.ms and the expiry of producers: what the schedulers run.
        self.maintenance = LogMaintenance(self._logs, self.cleaner.manager if self.cleaner else None, time)

    # -- start and stop -------------------------------------------------------------------------------------------

    def startup(self, is_stray: Callable[[UnifiedLog], bool] = lambda log: False) -> None:
        """Take every data directory, load the logs of all of them side by side, start the background work.

        is_stray(log): called for each log.  True if no known partition owns the directory; it is then renamed to -stray
        and kept.
        A log that cannot be loaded is named in the log and left out; a directory that fails goes offline.
        Raises DirectoryInUse, and OSError if no directory works.
        """
        try:
            for log_dir in self._dirs.values():
                try:
                    log_dir.lock()
                except OSError as error:
                    log_dir.fail(error)
            self._load_dirs(is_stray)
            failures = [log_dir.failure for log_dir in self._dirs.values()]
            if all(failures):
                raise next(failure for failure in failures if failure is not None)
        except BaseException:
            for log_dir in self._dirs.values():
                log_dir.release()
            raise
        for path in self.offline_log_dirs:
            self.handle_log_dir_failure(path)  # some of its logs may have been loaded before
        if self._scheduler is not None:
            checkpoints = (self.checkpoint_recovery_offsets, self.checkpoint_log_start_offsets)
            self.maintenance.start(
                self._scheduler, self._clock_scheduler or self._scheduler, self._config, *checkpoints
            )
        if self.cleaner is not None:
            for topic_partition in self._logs.future():
                self.cleaner.manager.abort_and_pause_cleaning(topic_partition)
            self.cleaner.startup()

    def _load_dirs(self, is_stray: Callable[[UnifiedLog], bool]) -> None:
        live = [log_dir for log_dir in self._dirs.values() if log_dir.failure is None]
        loaders = [
            LogDirLoader(log_dir, self._load_log, self.config_of, self._num_recovery_threads, self._executors)
            for log_dir in live
        ]
        if len(loaders) == 1:  # it has threads of its own for its logs
            loaders[0].load()
        elif loaders:
            with self._executors(len(loaders), "kcore-log-dir") as threads:
                list(threads.map(LogDirLoader.load, loaders))
        for loader in loaders:
            for path in loader.deleted:
                self._removal.delete_files(path, self.default_config.file_delete_delay_ms)
            for parsed, log in loader.logs:
                try:
                    if not parsed.mark and is_stray(log):
                        self._removal.set_aside(log, "its partition is another one now")
                    else:
                        self._add_loaded(log, is_future=parsed.mark == FUTURE_DIR_SUFFIX)
                except Exception as error:  # whatever is wrong with one log, the others are served
                    loader.note_not_loaded(parsed, log.directory, error)
            self._not_loaded.update(loader.not_loaded)
            self._awaiting_room.update(loader.awaiting_room)
        with self._lock:
            self._gone.find(loaders, lambda tp: self.get_log(tp) is not None or tp in self._not_loaded)

    def _add_loaded(self, log: UnifiedLog, is_future: bool) -> None:
        # A crash while one log took the place of another leaves both.  The longer one has all records.
        kept, duplicate = log, self.get_log(log.topic_partition, is_future=is_future)
        if duplicate is not None and duplicate.log_end_offset >= log.log_end_offset:
            kept, duplicate = duplicate, log
        self._logs.put(kept, is_future=is_future)
        if duplicate is not None:
            self._removal.set_aside(duplicate, f"{kept.directory} holds the same partition up to {kept.log_end_offset}")

    def _log_loading(self) -> LoadLog:
        """load_log() with what is the same for all logs."""
        return partial(
            load_log,
            time=self._time,
            random=self._random,
            scheduler=self._scheduler,
            producer_id_expiration_ms=self._config.producer_id_expiration_ms,
            verifies_transactions=self._config.verifies_transactions,
            marks_lost_records=self._config.has_other_replicas,
        )

    def record_boot_id(self) -> None:
        """The effects of a failure of the machine before this start have been dealt with: the next start need not."""
        for log_dir in list(self._dirs.values()):
            log_dir.record_boot_id()

    @property
    def _num_recovery_threads(self) -> int:
        return max(self._config.num_recovery_threads, 1)

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, and the marker of a clean stop where all went well.

        A second call does nothing.  Errors are logged: a directory that fails now is recovered at the next start.
        """
        self.maintenance.stop()
        if self.cleaner is not None:
            self.cleaner.shutdown()
        with self._lock:
            dirs = dict(self._dirs)
            self._dirs.clear()  # here and in placement
            logs = self._logs.clear()
        for log_dir in dirs.values():
            own = [log for log in logs if log.parent_dir == log_dir.path]
            if log_dir.is_discarded:
                discard_logs(own)
                log_dir.release()
                continue
            try:
                is_closed = close_logs(own, self._num_recovery_threads, self._executors)
                if is_closed and log_dir.failure is None:
                    log_dir.write_clean_shutdown(own, broker_epoch)
            except OSError as error:
                logger.error("%s will be recovered at the next start: %s", log_dir.path, plain_error(error))
            finally:
                log_dir.release()

    def record_failed_machine(self) -> None:
        """For tests, after abandon(): have the next start find that the machine has failed meanwhile."""
        for path in self.log_dirs:
            write_boot_id(path, "of a machine that failed")

    def discard_data(self) -> None:
        """The data directories are removed after shutdown(), which then flushes nothing and writes no checkpoint."""
        with self._lock:
            for log_dir in self._dirs.values():
                log_dir.is_discarded = True

    def abandon(self, reason: str) -> None:
        """Let go of all logs as the end of a killed process does: nothing is flushed, no checkpoint and no marker of a
        clean stop is written, the files are closed as they are, and the locks of the directories are free.  shutdown()
        then does nothing.

        A call of a log afterwards raises KafkaStorageError with the reason.
        """
        self.maintenance.stop()
        with self._lock:
            dirs, self._dirs = self._dirs, {}
            logs = self._logs.clear()
        for log in logs:
            log.mark_offline(OSError(reason))
        if self.cleaner is not None:
            self.cleaner.shutdown()
        discard_logs(logs)
        for log_dir in dirs.values():
            log_dir.release()

    # -- logs -----------------------------------------------------------------------------------------------------

    def get_log(self, topic_partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        return self._logs.get(topic_partition, is_future=is_future)

    def all_logs(self) -> list[UnifiedLog]:
        """The current logs, not the future ones."""
        return list(self._logs.current().values())

    def future_logs(self) -> list[UnifiedLog]:
        """The logs that are to replace current ones."""
        return list(self._logs.future().values())

    def gone_logs(self) -> list[TopicPartition]:
        """Partitions whose directories somebody removed while the broker was down, and that have no new log yet."""
        with self._lock:
            return list(self._gone.high_watermarks())

    def forget_gone_logs(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """The partitions were deleted, or are on other brokers: no log of theirs is missed."""
        with self._lock:
            self._gone.forget(topic_partitions)

    def may_have(self, topic_partition: TopicPartition) -> bool:
        """Whether there is a log of the partition, or one that could not be loaded, or may be in a failed directory."""
        return (
            bool(self.offline_log_dirs)
            or topic_partition in self._not_loaded
            or any(self.get_log(topic_partition, is_future=is_future) is not None for is_future in (False, True))
        )

    def partitions_with_lost_records(self) -> list[TopicPartition]:
        """Those whose logs lack records that they once had, or may, or are gone."""
        lacking = [log.topic_partition for log in self.all_logs() if log.lost_records is not None]
        return [*lacking, *self.gone_logs()]

    def config_of(self, topic: str) -> LogConfig:
        """The topic's settings on top of the defaults."""
        return LogConfig.of_topic(self._topic_configs(topic), self.default_config)

    def reconfigure(self, default_config: LogConfig, config: LogManagerConfig) -> None:
        """Other defaults from now on, for the logs that are open too: each log's next operation follows them.  The
        periods of the background work stay as they were at the start, and so does whether there is a cleaner.
        """
        with self._lock:
            self.default_config = default_config
            self._config = config
            self._load_log = self._log_loading()
            for log in self._logs.all():
                log.producer_state_manager.producer_id_expiration_ms = config.producer_id_expiration_ms
                log.producer_state_manager.verifies_transactions = config.verifies_transactions
                log.config = self.config_of(log.topic_partition.topic)
        if self.cleaner is not None and config.cleaner is not None:
            self.cleaner.reconfigure(config.cleaner)

    def reconfigure_topic(self, topic: str) -> None:
        """The topic's own settings have changed: each of its open logs follows them from its next operation on."""
        with self._lock:
            for log in self._logs.all():
                if log.topic_partition.topic == topic:
                    log.config = self.config_of(topic)

    def get_or_create_log(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        is_new: bool = False,
        is_future: bool = False,
        log_dir: str | None = None,
    ) -> UnifiedLog:
        """The partition's log; a new one goes to the live directory with the fewest, or to log_dir.

        is_new: the caller knows that the topic was just made, so a directory may be offline without holding it.
        is_future: the log that will replace the current one; it is in another data directory.
        Raises InconsistentTopicId if the directory belongs to another topic of this name, KafkaStorageError (also
        where a directory of this partition is there but could not be loaded), ValueError for a log_dir that is not
        one of the broker's or that has the current log.
        """
        with self._lock:
            log = self.get_log(topic_partition, is_future=is_future)
            if log is None:
                config = config or self.config_of(topic_partition.topic)
                if is_new:
                    self._gone.forget([topic_partition])
                candidates = self.placement.dirs_for(topic_partition, is_new, is_future, log_dir)
                log = self._create(topic_partition, config, candidates, is_future)
                if is_future and self.cleaner is not None:
                    self.cleaner.manager.abort_and_pause_cleaning(topic_partition)
        if topic_id is not None and topic_id.int != 0 and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise InconsistentTopicId(
                    f"{topic_partition}: topic id {topic_id}, the directory {log.directory} belongs to {log.topic_id}"
                )
            log.assign_topic_id(topic_id)
        return log

    def _create(
        self, tp: TopicPartition, config: LogConfig, candidates: Iterable[LogDir], is_future: bool
    ) -> UnifiedLog:
        if not is_future and tp in self._not_loaded:
            log = self._load_again(tp, config)
            self._logs.put(log, is_future=False)
            return log
        name = marked_directory(tp, FUTURE_DIR_SUFFIX, self._random) if is_future else partition_directory(tp)
        failure: OSError | None = None
        for log_dir in candidates:
            path = os.path.join(log_dir.path, name)
            try:
                log_dir.finish_drop(tp)
                made = make_directory(path)
                try:
                    others = self._config.has_other_replicas
                    is_gone = not is_future and self._gone.note_in(log_dir, path, tp, has_other_replicas=others)
                    log = self._load_log(path, tp, config, log_dir=log_dir, is_empty=made and not is_gone)
                except OSError:
                    if made:
                        _remove_quietly(path)
                    raise
            except OSError as error:
                failure = error
                if error.errno not in DISK_FULL_ERRORS:
                    log_dir.fail(error)
                continue
            self._logs.put(log, is_future=is_future)
            if not is_future:
                self._gone.made_anew(tp)
            logger.debug("created the log of %s in %s", tp, path)
            return log
        raise KafkaStorageError(f"{tp}: making its log failed: {failure}") from failure

    def _load_again(self, tp: TopicPartition, config: LogConfig) -> UnifiedLog:
        """The log of a directory that could not be loaded because its disk was full.  Raises KafkaStorageError."""
        waiting = self._awaiting_room.get(tp)
        # A load may scan all that was not flushed before it needs a block.
        if waiting is not None and waiting.log_dir.failure is None and has_room(waiting.log_dir.path):
            try:
                log = waiting.load(config)
            except OSError as error:
                if error.errno not in DISK_FULL_ERRORS:
                    waiting.log_dir.fail(error)
            else:
                del self._awaiting_room[tp], self._not_loaded[tp]
                logger.info("%s: its disk has room again, its log is loaded", tp)
                return log
        raise KafkaStorageError(f"{tp}: its log is there but could not be loaded: {self._not_loaded[tp]}")

    def async_delete(self, topic_partition: TopicPartition, *, is_future: bool = False, is_stray: bool = False) -> None:
        """Take a log out of service now and off the disk after file.delete.delay.ms.

        Its directory gets another name first, so a log of the same name can be made at once.  is_stray: no
        known partition owns it, but that may be a mistake: the directory is renamed to -stray and kept.  Deleting a
        future log ends its move.  Raises KafkaStorageError; an unknown partition is no error.
        """
        for error in self.async_delete_logs([topic_partition], is_future=is_future, is_stray=is_stray).values():
            raise error

    def async_delete_logs(
        self, topic_partitions: Iterable[TopicPartition], *, is_future: bool = False, is_stray: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """async_delete() of several logs, which costs far less than one after the other; the errors."""
        topic_partitions = list(topic_partitions)
        if not is_future:
            self.forget_gone_logs(topic_partitions)
        logs = self._out_of_service(topic_partitions, is_future)
        return self._removal.remove(logs, list(self._dirs.values()), is_stray=is_stray)

    def _out_of_service(self, topic_partitions: Iterable[TopicPartition], is_future: bool) -> Iterator[UnifiedLog]:
        """Each log is renamed before the next one leaves the table: a new one may take its place at any time."""
        for topic_partition in topic_partitions:
            with self._lock:
                log = self._logs.pop(topic_partition, is_future=is_future)
            if log is None:
                continue
            if is_future:
                self._resume_cleaning(topic_partition)
            elif self.cleaner is not None:
                # It is out of the table, so no cleaner takes it up again.
                self.cleaner.manager.abort_cleaning(topic_partition)
            yield log

    def replace_current_with_future_log(
        self, topic_partition: TopicPartition, on_replaced: Callable[[UnifiedLog], None] = lambda log: None
    ) -> UnifiedLog:
        """The future log becomes the current one, which is deleted later.  The caller prevents appends to both.

        The new current log, with the high watermark and the log start of the old one.  on_replaced is called with it
        before the old one is closed and renamed: a reader must not find the old one then.  A crash in between
        leaves two logs of the partition, of which the next start takes the longer and sets the other aside.
        Raises KafkaStorageError, ValueError if there is no current or no future log.  Source: DIR-06.
        """
        with self._lock:
            current, future = self.get_log(topic_partition), self.get_log(topic_partition, is_future=True)
            if current is None or future is None:
                raise ValueError(f"{topic_partition}: no {'current' if current is None else 'future'} log to replace")
            log_dir = self._dirs[os.path.dirname(future.directory)]
            path = os.path.join(log_dir.path, partition_directory(topic_partition))
            if current.lost_records is not None and current.lost_records.has_mark:
                future.mark_lost_records(current.lost_records.first_offset)  # the copy lacks them too
            future.close()
            try:
                rename(future.directory, path)
                sync_path(log_dir.path)
                log = self._load_log(
                    path,
                    topic_partition,
                    current.config,
                    log_dir=log_dir,
                    recovery_point=future.recovery_point,
                    log_start_offset=current.log_start_offset,
                    high_watermark=current.high_watermark,
                    had_clean_shutdown=True,
                )
            except OSError as error:
                log_dir.fail(error)
                raise KafkaStorageError(
                    f"{topic_partition}: moving its log to {path} failed: {plain_error(error)}"
                ) from error
            log.lost_records = current.lost_records
            self._logs.replace_current_with_future(log)
        on_replaced(log)
        old_dir = self._dirs.get(os.path.dirname(current.directory))
        if self.cleaner is not None and old_dir is not None:
            self.cleaner.manager.alter_checkpoint_dir(topic_partition, old_dir.path, log_dir.path)
        self._resume_cleaning(topic_partition)
        self._removal.mark_deleted(current)
        if old_dir is not None:
            self._removal.drop_checkpoints(old_dir, [topic_partition])
        log_dir.checkpoint_recovery_points(partial(self._logs.in_dir, log_dir.path))
        self.checkpoint_log_start_offsets()
        self._removal.delete_files(current.directory, current.config.file_delete_delay_ms)
        logger.info("%s: its log is now in %s", topic_partition, log.directory)
        return log

    def _resume_cleaning(self, tp: TopicPartition) -> None:
        """A log moved, or does not move any more: until then no cleaner may change what the future log copies."""
        if self.cleaner is not None:
            self.cleaner.manager.resume_cleaning([tp])

    @contextmanager
    def _not_cleaned(self, log: UnifiedLog, is_future: bool) -> Iterator[None]:
        """Around a truncation below the active segment: no cleaner works on the log, and what comes after is dirty."""
        if self.cleaner is None or is_future:
            yield
            return
        manager, tp = self.cleaner.manager, log.topic_partition
        manager.abort_and_pause_cleaning(tp)
        try:
            yield
            manager.maybe_truncate_checkpoint(log.parent_dir, tp, log.active_segment.base_offset)
        finally:
            manager.resume_cleaning([tp])

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Truncate several logs (TRUNC-03); recovery points that came down are on disk when this returns (TRUNC-10).

        Raises KafkaStorageError.
        """
        for tp, offset in offsets.items():
            log = self.get_log(tp, is_future=is_future)
            if log is not None and offset < log.active_segment.base_offset:
                with self._not_cleaned(log, is_future):
                    log.truncate_to(offset)
            elif log is not None:
                log.truncate_to(offset)

    def truncate_fully_and_start_at(
        self, topic_partition: TopicPartition, new_offset: int, *, is_future: bool = False
    ) -> None:
        """Empty a log (TRUNC-07); its recovery point is on disk when this returns.  Raises KafkaStorageError."""
        log = self.get_log(topic_partition, is_future=is_future)
        if log is not None:
            with self._not_cleaned(log, is_future):
                log.truncate_fully_and_start_at(new_offset)
            log_dir = self._dirs.get(os.path.dirname(log.directory))
            if log_dir is not None:
                log_dir.checkpoint_recovery_points(partial(self._logs.in_dir, log_dir.path))

    def cut_lost_records(self, topic_partition: TopicPartition) -> int | None:
        """UnifiedLog.cut_lost_records(); the offset at which the log ends now, None where nothing was cut.

        For a log that nobody appends to.  Raises KafkaStorageError.
        """
        log = self.get_log(topic_partition)
        if log is None or log.lost_records is None or log.lost_records.is_cut:
            return None
        log_end_offset = log.log_end_offset
        with self._not_cleaned(log, is_future=False):
            log.cut_lost_records()
        return log.log_end_offset if log.log_end_offset < log_end_offset else None

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint_recovery_offsets(self) -> None:
        for log_dir in list(self._dirs.values()):
            log_dir.checkpoint_recovery_points(partial(self._logs.in_dir, log_dir.path))

    def checkpoint_log_start_offsets(self) -> None:
        for log_dir in list(self._dirs.values()):
            log_dir.checkpoint_log_starts(partial(self._logs.in_dir, log_dir.path))

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write replication-offset-checkpoint in each data directory, for the partitions with a log in it."""

        def of_logs_in(path: str) -> dict[TopicPartition, int]:
            own = [log.topic_partition for log in self.all_logs() if log.parent_dir == path]
            future = {log.topic_partition: log.high_watermark for log in self.future_logs() if log.parent_dir == path}
            return future | {tp: high_watermarks[tp] for tp in own if tp in high_watermarks}

        for log_dir in list(self._dirs.values()):
            log_dir.checkpoint_high_watermarks(partial(of_logs_in, log_dir.path))

    # -- failures ---------------------------------------------------------------------------------------------------

    @property
    def flush_times(self) -> TimeHistogram:
        """How long flushes of the logs took (LogFlushRateAndTimeMs)."""
        return self._logs.flush_times

    @property
    def offline_log_dirs(self) -> list[str]:
        return [log_dir.path for log_dir in self._dirs.values() if log_dir.failure is not None]

    @property
    def live_log_dirs(self) -> list[str]:
        return [log_dir.path for log_dir in self._dirs.values() if log_dir.failure is None]

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Take all logs of a directory that has failed offline; the other directories go on.  A move into it has ended:
        its future log is forgotten here.

        For the thread that takes it out of log_dir_failure_channel; nothing happens while the directory works.
        """
        error = self.log_dir_failure_channel.failure(log_dir)
        if error is None:
            return
        if self.cleaner is not None:
            self.cleaner.manager.handle_log_dir_failure(log_dir)
        for log in self._logs.in_dir(log_dir):
            log.mark_offline(error)
            tp = log.topic_partition
            if self._logs.get(tp, is_future=True) is log:
                self._logs.pop(tp, is_future=True)
                self._resume_cleaning(tp)


def _remove_quietly(path: str) -> None:
    """What is left of a log that could not be made; a disk that is full may refuse even that."""
    try:
        remove_tree(path)
    except OSError as error:
        logger.warning("%s: an empty directory is left: %s", path, plain_error(error))
