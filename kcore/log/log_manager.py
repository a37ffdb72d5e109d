"""LogManager: all logs of a broker, in one or more data directories.

A data directory holds partition directories, the checkpoints of their offsets, `.lock`, and after a clean stop
`.kafka_cleanshutdown`.
Source: LogManager, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from kcore.common.file import is_directory, list_directory, make_directory, remove_tree
from kcore.common.scheduler import ScheduledTask, Scheduler
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import CorruptFile, InconsistentTopicId, KafkaError, KafkaStorageError
from kcore.log import clean_shutdown
from kcore.log.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    OffsetCheckpointFile,
)
from kcore.log.directory_lock import DirectoryLock
from kcore.log.log_config import LogConfig
from kcore.log.log_file_names import (
    DELETE_DIR_SUFFIX,
    marked_directory,
    parse_partition_directory,
    partition_directory,
)
from kcore.log.log_loader import load_log
from kcore.log.producer_state_manager import DEFAULT_PRODUCER_ID_EXPIRATION_MS
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

#: KRaft's own log: it lies in the data directory, but no broker serves it as a topic.
CLUSTER_METADATA_TOPIC = "__cluster_metadata"


class _LogDir:
    """One data directory: its lock, its checkpoints, whether it still works."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = DirectoryLock(path)
        self.recovery_points = OffsetCheckpointFile(os.path.join(path, RECOVERY_POINT_CHECKPOINT))
        self.log_starts = OffsetCheckpointFile(os.path.join(path, LOG_START_OFFSET_CHECKPOINT))
        self.high_watermarks = OffsetCheckpointFile(os.path.join(path, REPLICATION_OFFSET_CHECKPOINT))
        self.had_clean_shutdown = False
        self.failure: OSError | None = None


class LogManager:
    """Finds, makes, flushes, checkpoints and deletes logs.

    Thread-safe.  Its lock guards the table of logs and creation; a log's own lock is never taken under it, except
    while a log is made, when nobody else knows it.  Lifetime: startup() once, shutdown() once.
    """

    def __init__(
        self,
        log_dirs: Iterable[str | os.PathLike[str]],
        default_config: LogConfig | None = None,
        *,
        topic_configs: Callable[[str], Mapping[str, Any]] | None = None,
        time: Time = SYSTEM_TIME,
        scheduler: Scheduler | None = None,
        num_recovery_threads: int = 2,
        flush_check_ms: float = 2**63 - 1,
        flush_checkpoint_ms: float = 60_000,
        start_offset_checkpoint_ms: float = 60_000,
        retention_check_ms: float = 300_000,
        producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
        producer_expiry_check_ms: int = 600_000,
        on_log_dir_failure: Callable[[str, OSError], None] | None = None,
    ) -> None:
        self.log_dirs = [os.path.abspath(os.fspath(path)) for path in log_dirs]
        if not self.log_dirs:
            raise ValueError("no log directory was given")
        self.default_config = default_config or LogConfig()
        self._topic_configs = topic_configs or (lambda topic: {})
        self._time = time
        self._scheduler = scheduler
        self._num_recovery_threads = max(num_recovery_threads, 1)
        self._flush_check_ms = flush_check_ms
        self._flush_checkpoint_ms = flush_checkpoint_ms
        self._start_offset_checkpoint_ms = start_offset_checkpoint_ms
        self._retention_check_ms = retention_check_ms
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._producer_expiry_check_ms = producer_expiry_check_ms
        self._on_log_dir_failure = on_log_dir_failure
        self._lock = threading.Lock()
        self._dirs: dict[str, _LogDir] = {}
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._tasks: list[ScheduledTask] = []

    # -- start and stop -------------------------------------------------------------------------------------------

    def startup(self) -> None:
        """Take every data directory, load its logs, start the background work.

        A log that cannot be loaded is named in the log and left out; a directory that fails goes offline.
        Raises DirectoryInUse, and OSError if no directory works.
        """
        try:
            for path in self.log_dirs:
                make_directory(path)
                self._dirs[path] = _LogDir(path)
            for log_dir in self._dirs.values():
                try:
                    self._load_logs(log_dir)
                except OSError as error:
                    self._fail_dir(log_dir, error)
            failures = [log_dir.failure for log_dir in self._dirs.values()]
            if all(failures):
                raise next(failure for failure in failures if failure is not None)
        except BaseException:
            for log_dir in self._dirs.values():
                log_dir.lock.release()
            raise
        self._schedule_background_work()

    def _load_logs(self, log_dir: _LogDir) -> None:
        log_dir.had_clean_shutdown = clean_shutdown.was_clean_shutdown(log_dir.path)
        recovery_points = _read_checkpoint(log_dir.recovery_points)
        log_starts = _read_checkpoint(log_dir.log_starts)
        high_watermarks = _read_checkpoint(log_dir.high_watermarks)
        to_load = []
        for name in sorted(list_directory(log_dir.path)):
            path = os.path.join(log_dir.path, name)
            if not is_directory(path):
                continue
            parsed = parse_partition_directory(name)
            if parsed is None:
                logger.warning("%s: leaving %s alone, it is no partition's directory", log_dir.path, name)
            elif parsed.mark == DELETE_DIR_SUFFIX:
                self._schedule_removal(path)
            elif parsed.mark:
                logger.warning("%s: leaving %s alone", log_dir.path, name)
            elif parsed.topic_partition.topic != CLUSTER_METADATA_TOPIC:
                to_load.append((parsed.topic_partition, path))
        # From here on files change: a crash must not look like a clean stop.
        clean_shutdown.remove_clean_shutdown(log_dir.path)

        configs = {topic: self.config_of(topic) for topic in {tp.topic for tp, _ in to_load}}

        def load(item: tuple[TopicPartition, str]) -> UnifiedLog | None:
            tp, path = item
            try:
                return self._load(
                    log_dir,
                    tp,
                    path,
                    configs[tp.topic],
                    recovery_points.get(tp, 0),
                    log_starts.get(tp, 0),
                    high_watermarks.get(tp, 0),
                    log_dir.had_clean_shutdown,
                )
            except (KafkaError, FileNotFoundError) as error:
                logger.error("%s: not served, loading it failed: %s", path, error)
                return None

        if not to_load:
            return
        if not log_dir.had_clean_shutdown:
            logger.warning("%s: no clean shutdown, recovering %d logs", log_dir.path, len(to_load))
        with ThreadPoolExecutor(min(self._num_recovery_threads, len(to_load)), "kcore-log-recovery") as threads:
            for log in threads.map(load, to_load):
                if log is None:
                    continue
                other = self._logs.get(log.topic_partition)
                if other is not None:
                    logger.error("%s: not served, %s holds the same partition", log.directory, other.directory)
                    log.close()
                    continue
                self._logs[log.topic_partition] = log

    def _load(
        self,
        log_dir: _LogDir,
        tp: TopicPartition,
        path: str,
        config: LogConfig,
        recovery_point: int,
        log_start_offset: int,
        high_watermark: int,
        had_clean_shutdown: bool,
    ) -> UnifiedLog:
        return load_log(
            path,
            tp,
            config,
            time=self._time,
            scheduler=self._scheduler,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            had_clean_shutdown=had_clean_shutdown,
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            on_storage_error=lambda log, error: self._fail_dir(log_dir, error),
            on_recovery_point_lowered=lambda log: self._checkpoint_recovery_points(log_dir),
        )

    def _schedule_background_work(self) -> None:
        if self._scheduler is None:
            return
        for name, task, delay_ms, period_ms in (
            ("kafka-log-retention", self.cleanup_logs, 30_000, self._retention_check_ms),
            ("kafka-log-flusher", self.flush_dirty_logs, 30_000, self._flush_check_ms),
            ("kafka-recovery-point-checkpoint", self.checkpoint_recovery_offsets, 30_000, self._flush_checkpoint_ms),
            (
                "kafka-log-start-offset-checkpoint",
                self.checkpoint_log_start_offsets,
                30_000,
                self._start_offset_checkpoint_ms,
            ),
            (
                "kafka-producer-expiry",
                self.remove_expired_producers,
                self._producer_expiry_check_ms,
                self._producer_expiry_check_ms,
            ),
        ):
            self._tasks.append(self._scheduler.schedule(name, task, max(delay_ms, 0), period_ms))

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Flush and close every log, write the checkpoints, and the marker of a clean stop where all went well.

        A second call does nothing.  Errors are logged: a directory that fails now is recovered at the next start.
        """
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        with self._lock:
            dirs, self._dirs = self._dirs, {}
            logs, self._logs = dict(self._logs), {}
        for log_dir in dirs.values():
            own = {tp: log for tp, log in logs.items() if os.path.dirname(log.directory) == log_dir.path}
            try:
                if self._close_all(own.values()) and log_dir.failure is None:
                    log_dir.recovery_points.write({tp: log.recovery_point for tp, log in own.items()})
                    log_dir.log_starts.write(_log_starts_worth_keeping(own))
                    clean_shutdown.write_clean_shutdown(log_dir.path, broker_epoch)
            except OSError:
                logger.exception("%s: it will be recovered at the next start", log_dir.path)
            finally:
                log_dir.lock.release()

    def _close_all(self, logs: Collection[UnifiedLog]) -> bool:
        """Close logs, several at a time: fsync is what takes the time, and it waits without the GIL."""
        try:
            with ThreadPoolExecutor(self._num_recovery_threads, "kcore-log-closing") as threads:
                return all(list(threads.map(_close, logs)))
        except RuntimeError:
            # An interpreter that is on its way out starts no more threads; so one after the other.
            closed = [_close(log) for log in logs]
            return all(closed)

    # -- logs -----------------------------------------------------------------------------------------------------

    def get_log(self, topic_partition: TopicPartition) -> UnifiedLog | None:
        return self._logs.get(topic_partition)

    def all_logs(self) -> list[UnifiedLog]:
        with self._lock:
            return list(self._logs.values())

    def config_of(self, topic: str) -> LogConfig:
        """The topic's settings on top of the defaults."""
        return LogConfig.from_kafka(self._topic_configs(topic), self.default_config)

    def get_or_create_log(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        is_new: bool = False,
    ) -> UnifiedLog:
        """The partition's log; a new one goes to the directory with the fewest.

        is_new: the caller knows that the topic was just made, so a directory may be offline without holding it.
        Raises InconsistentTopicId if the directory belongs to another topic of this name, KafkaStorageError.
        """
        with self._lock:
            log = self._logs.get(topic_partition)
            if log is None:
                log = self._create(topic_partition, config or self.config_of(topic_partition.topic), is_new)
        if topic_id is not None and topic_id.int != 0 and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise InconsistentTopicId(
                    f"{topic_partition}: topic id {topic_id}, the directory {log.directory} belongs to {log.topic_id}"
                )
            log.assign_topic_id(topic_id)
        return log

    def _create(self, tp: TopicPartition, config: LogConfig, is_new: bool) -> UnifiedLog:
        live = [log_dir for log_dir in self._dirs.values() if log_dir.failure is None]
        if not live:
            raise KafkaStorageError(f"{tp}: no log directory is left to make it in")
        if not is_new and len(live) < len(self._dirs):
            raise KafkaStorageError(f"{tp}: it may lie in a log directory that is offline")
        counts = {log_dir.path: 0 for log_dir in live}
        for log in self._logs.values():
            parent = os.path.dirname(log.directory)
            if parent in counts:
                counts[parent] += 1
        log_dir = min(live, key=lambda candidate: counts[candidate.path])
        path = os.path.join(log_dir.path, partition_directory(tp))
        try:
            make_directory(path)
            log = self._load(log_dir, tp, path, config, 0, 0, 0, False)
        except OSError as error:
            self._fail_dir(log_dir, error)
            raise KafkaStorageError(f"{tp}: making its log in {path} failed: {error}") from error
        self._logs[tp] = log
        logger.debug("created the log of %s in %s", tp, path)
        return log

    def async_delete(self, topic_partition: TopicPartition) -> None:
        """Take a log out of service now and off the disk after file.delete.delay.ms.

        Its directory gets another name first, so a log of the same name can be made at once.
        Raises KafkaStorageError; an unknown partition is no error.
        """
        with self._lock:
            log = self._logs.pop(topic_partition, None)
            if log is None:
                return
            log_dir = self._dirs.get(os.path.dirname(log.directory))
        log.rename_dir(marked_directory(topic_partition, DELETE_DIR_SUFFIX))
        if log_dir is not None:
            self._drop_checkpoints(log_dir, topic_partition)
        self._schedule_removal(log.directory, log.config.file_delete_delay_ms)

    def _drop_checkpoints(self, log_dir: _LogDir, tp: TopicPartition) -> None:
        """So that a new log of the same name does not inherit offsets."""
        cleaner = OffsetCheckpointFile(os.path.join(log_dir.path, CLEANER_OFFSET_CHECKPOINT))
        for checkpoint in (log_dir.recovery_points, log_dir.log_starts, log_dir.high_watermarks, cleaner):
            try:
                offsets = _read_checkpoint(checkpoint)
                if tp in offsets:
                    del offsets[tp]
                    checkpoint.write(offsets)
            except OSError as error:
                self._fail_dir(log_dir, error)

    def _schedule_removal(self, path: str, delay_ms: float = 60_000) -> None:
        def remove() -> None:
            try:
                remove_tree(path)
                logger.info("deleted %s", path)
            except OSError as error:
                logger.error("%s: deleting it failed, the next start tries again: %s", path, error)

        if self._scheduler is None:
            remove()
        else:
            self._scheduler.schedule("kafka-delete-logs", remove, delay_ms)

    def update_topic_config(self, topic: str, config: Mapping[str, Any] | LogConfig) -> None:
        """New settings for the topic's logs.  Raises InvalidConfig."""
        new = config if isinstance(config, LogConfig) else LogConfig.from_kafka(config, self.default_config)
        for log in self.all_logs():
            if log.topic_partition.topic == topic:
                log.update_config(new)

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate several logs (TRUNC-03); recovery points that came down are on disk when this returns (TRUNC-10)."""
        for tp, offset in offsets.items():
            log = self._logs.get(tp)
            if log is not None:
                log.truncate_to(offset)

    # -- background work --------------------------------------------------------------------------------------------

    def cleanup_logs(self) -> None:
        """Retention: delete segments that are too old, too much, or below the log start offset."""
        for log in self.all_logs():
            self._quietly(log, UnifiedLog.delete_old_segments)

    def flush_dirty_logs(self) -> None:
        """flush.ms: fsync the logs whose last one is too long ago."""
        now_ms = self._time.milliseconds()
        for log in self.all_logs():
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self._quietly(log, UnifiedLog.flush)

    def remove_expired_producers(self) -> None:
        now_ms = self._time.milliseconds()
        for log in self.all_logs():
            log.remove_expired_producers(now_ms)

    def _quietly(self, log: UnifiedLog, work: Callable[[UnifiedLog], Any]) -> None:
        """Background work on one log must not keep the next from its turn."""
        if log.is_closed or log.is_offline:
            return
        try:
            work(log)
        except KafkaError as error:
            logger.error("background work on %s: %s", log.topic_partition, error)

    def checkpoint_recovery_offsets(self) -> None:
        for log_dir in list(self._dirs.values()):
            self._checkpoint_recovery_points(log_dir)

    def _checkpoint_recovery_points(self, log_dir: _LogDir) -> None:
        logs = self._logs_in(log_dir)
        self._write_checkpoint(log_dir, log_dir.recovery_points, {tp: log.recovery_point for tp, log in logs.items()})

    def checkpoint_log_start_offsets(self) -> None:
        for log_dir in list(self._dirs.values()):
            starts = _log_starts_worth_keeping(self._logs_in(log_dir))
            self._write_checkpoint(log_dir, log_dir.log_starts, starts)

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write replication-offset-checkpoint in each data directory, for the partitions whose logs lie there."""
        for log_dir in list(self._dirs.values()):
            own = self._logs_in(log_dir)
            marks = {tp: offset for tp, offset in high_watermarks.items() if tp in own}
            self._write_checkpoint(log_dir, log_dir.high_watermarks, marks)

    def _logs_in(self, log_dir: _LogDir) -> dict[TopicPartition, UnifiedLog]:
        with self._lock:
            return {tp: log for tp, log in self._logs.items() if os.path.dirname(log.directory) == log_dir.path}

    def _write_checkpoint(
        self, log_dir: _LogDir, checkpoint: OffsetCheckpointFile, offsets: dict[TopicPartition, int]
    ) -> None:
        if log_dir.failure is not None:
            return
        try:
            checkpoint.write(offsets)
        except OSError as error:
            self._fail_dir(log_dir, error)

    # -- failures ---------------------------------------------------------------------------------------------------

    @property
    def offline_log_dirs(self) -> list[str]:
        return [log_dir.path for log_dir in self._dirs.values() if log_dir.failure is not None]

    def _fail_dir(self, log_dir: _LogDir, error: OSError) -> None:
        """The directory goes offline, with all its logs; the broker and the other directories go on."""
        if log_dir.failure is not None:
            return
        log_dir.failure = error
        logger.error("%s: the log directory goes offline: %s", log_dir.path, error)
        for log in list(self._logs.values()):
            if os.path.dirname(log.directory) == log_dir.path:
                log.mark_offline(error)
        if self._on_log_dir_failure is not None:
            self._on_log_dir_failure(log_dir.path, error)


def _close(log: UnifiedLog) -> bool:
    try:
        log.close()
    except KafkaError as error:
        logger.error("closing %s: %s", log.topic_partition, error)
        return False
    return not log.is_offline


def _read_checkpoint(checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read()
    except CorruptFile as error:
        logger.warning("going on without a checkpoint: %s", error)
        return {}


def _log_starts_worth_keeping(logs: Mapping[TopicPartition, UnifiedLog]) -> dict[TopicPartition, int]:
    """Only those that the first segment's name does not tell."""
    result = {}
    for tp, log in logs.items():
        first = log.segments.first
        if first is not None and log.log_start_offset > first.base_offset:
            result[tp] = log.log_start_offset
    return result
