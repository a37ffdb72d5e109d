"""LogMaintenance: the work that is done again and again for every log: retention, flush.ms, checkpoints, expiry of
producers.

Source: LogManager.cleanupLogs and flushDirtyLogs, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kcore.common.scheduler import ScheduledTask, Scheduler, Task
from kcore.common.time import Time
from kcore.errors import KafkaError
from kcore.log.log_cleaner_manager import LogCleanerManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.log_table import LogTable
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class LogMaintenance:
    """One log after the other; an error of one is logged and the next has its turn all the same.  Thread-safe."""

    def __init__(self, logs: LogTable, cleaner_manager: LogCleanerManager | None, time: Time) -> None:
        self._logs = logs
        self._cleaner_manager = cleaner_manager
        self._time = time
        self._tasks: list[ScheduledTask] = []

    def start(
        self,
        scheduler: Scheduler,
        clock_scheduler: Scheduler,
        config: LogManagerConfig,
        checkpoint_recovery_offsets: Task,
        checkpoint_log_start_offsets: Task,
    ) -> None:
        """Run all of it again and again until stop().  clock_scheduler: for what does not wait for a disk."""
        delay_ms = max(config.initial_task_delay_ms, 0)
        for name, task, period_ms in (
            ("kafka-log-retention", self.cleanup_logs, config.retention_check_ms),
            ("kafka-log-flusher", self.flush_dirty_logs, config.flush_check_ms),
            ("kafka-recovery-point-checkpoint", checkpoint_recovery_offsets, config.flush_checkpoint_ms),
            ("kafka-log-start-offset-checkpoint", checkpoint_log_start_offsets, config.start_offset_checkpoint_ms),
        ):
            self._tasks.append(scheduler.schedule(name, task, delay_ms, period_ms))
        check_ms = config.producer_expiry_check_ms
        expiry = clock_scheduler.schedule("kafka-producer-expiry", self.remove_expired_producers, check_ms, check_ms)
        self._tasks.append(expiry)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def cleanup_logs(self) -> None:
        """Retention: delete segments that are too old, too much, or below the log start offset."""
        manager = self._cleaner_manager
        if manager is None:
            for log in self._logs.current().values():
                if log.may_have_old_segments:
                    self._try(log, UnifiedLog.delete_old_segments)
            return
        # Those of compacted logs are the cleaner's to delete: it knows when it is inside of them.
        logs = manager.pause_cleaning_for_non_compacted_partitions()
        try:
            for log in logs:
                self._try(log, UnifiedLog.delete_old_segments)
        finally:
            manager.resume_cleaning([log.topic_partition for log in logs])

    def flush_dirty_logs(self) -> None:
        """flush.ms: fsync the logs whose last one is too long ago."""
        now_ms = self._time.milliseconds()
        for log in self._logs.all():
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                self._try(log, UnifiedLog.flush)

    def remove_expired_producers(self) -> None:
        now_ms = self._time.milliseconds()
        for log in self._logs.current().values():
            log.remove_expired_producers(now_ms)

    def _try(self, log: UnifiedLog, work: Callable[[UnifiedLog], Any]) -> None:
        if log.is_closed or log.is_offline:
            return
        try:
            work(log)
        except KafkaError as error:
            logger.error("background work on %s: %s", log.topic_partition, error)
