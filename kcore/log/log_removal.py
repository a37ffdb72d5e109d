"""LogRemoval: deletes logs.  Renames their directories, drops their lines from checkpoints, deletes the files later.

Source: LogManager.asyncDelete, Kafka 2.4-4.x.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from random import Random

from kcore.common.file import remove_tree, sync_path
from kcore.common.scheduler import Scheduler
from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError, KafkaStorageError
from kcore.log.log_cleaner import LogCleaner
from kcore.log.log_dir import LogDir
from kcore.log.log_file_names import DELETE_DIR_SUFFIX, STRAY_DIR_SUFFIX, marked_directory
from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class LogRemoval:
    """For logs that are in no table any more.  Thread-safe.

    scheduler: without one files are deleted at once.  random: for the unique names of the directories.
    """

    def __init__(self, cleaner: LogCleaner | None, random: Random, scheduler: Scheduler | None) -> None:
        self._cleaner = cleaner
        self._random = random
        self._scheduler = scheduler

    def set_aside(self, log: UnifiedLog, why: str) -> None:
        """Rename the directory to -stray; the data stay until the operator deletes them."""
        before = log.directory
        log.rename_dir(marked_directory(log.topic_partition, STRAY_DIR_SUFFIX, self._random))
        logger.error(
            "%s: not served, %s.  Nothing was deleted: it is %s now, with the offsets [%d, %d)",
            before,
            why,
            log.directory,
            log.log_start_offset,
            log.log_end_offset,
        )

    def mark_deleted(self, log: UnifiedLog, *, sync: bool = True) -> None:
        """Rename the directory to -delete, which a start removes.  Raises KafkaStorageError."""
        log.rename_dir(marked_directory(log.topic_partition, DELETE_DIR_SUFFIX, self._random), sync=sync)

    def remove(
        self, logs: Iterable[UnifiedLog], dirs: Iterable[LogDir], *, is_stray: bool
    ) -> dict[TopicPartition, KafkaError]:
        """Mark logs as deleted, or set them aside; the errors.  A data directory is synced once, and each checkpoint is
        written once: it has a line for each log, so that writing it after each of ten thousand takes minutes."""
        errors: dict[TopicPartition, KafkaError] = {}
        renamed: list[UnifiedLog] = []
        for log in logs:
            try:
                if is_stray:
                    self.set_aside(log, "its topic was deleted, or the partition is on other brokers")
                else:
                    self.mark_deleted(log, sync=False)
            except KafkaError as error:
                errors[log.topic_partition] = error
            else:
                renamed.append(log)
        for log_dir in dirs:
            own = [log for log in renamed if log.parent_dir == log_dir.path]
            if not own:
                continue
            gone = [log.topic_partition for log in own]
            try:
                sync_path(log_dir.path)
            except OSError as error:
                log_dir.fail(error)
                failure = KafkaStorageError(
                    f"{log_dir.path}: the deletion of {len(gone)} logs may not be on the disk: {plain_error(error)}"
                )
                errors.update(dict.fromkeys(gone, failure))
                continue
            self.drop_checkpoints(log_dir, gone)
            if not is_stray:
                for log in own:
                    self.delete_files(log.directory, log.config.file_delete_delay_ms)
        return errors

    def drop_checkpoints(
        self, log_dir: LogDir, topic_partitions: Collection[TopicPartition], *, high_watermarks: bool = True
    ) -> None:
        """LogDir.drop(), and the cleaner's checkpoint."""
        if self._cleaner is not None:
            self._cleaner.manager.update_checkpoints(log_dir.path, remove=topic_partitions)
        log_dir.drop(topic_partitions, cleaner_offsets=self._cleaner is None, high_watermarks=high_watermarks)

    def delete_files(self, path: str, delay_ms: float) -> None:
        """Delete a directory that is marked as deleted, after file.delete.delay.ms."""

        def delete() -> None:
            try:
                remove_tree(path)
                logger.info("deleted %s", path)
            except OSError as error:
                logger.error("%s: deleting it failed, the next start tries again: %s", path, plain_error(error))

        if self._scheduler is None:
            delete()
        else:
            self._scheduler.schedule("kafka-delete-logs", delete, delay_ms)
