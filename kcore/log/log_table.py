"""LogTable: the log of each partition, and the one that is to take its place."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kcore.common.meters import TimeHistogram
from kcore.common.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kcore.log.unified_log import UnifiedLog


class LogTable:
    """Partition -> its current log; and while it moves to another data directory, partition -> its future log.

    Thread-safe: a lock is held for a few operations of dictionaries, and nothing is called under it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: How long flushes of the logs took.
        self.flush_times = TimeHistogram()
        self._current: dict[TopicPartition, UnifiedLog] = {}
        self._future: dict[TopicPartition, UnifiedLog] = {}

    def get(self, topic_partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        return (self._future if is_future else self._current).get(topic_partition)

    def put(self, log: UnifiedLog, *, is_future: bool) -> None:
        log.flush_times = self.flush_times
        with self._lock:
            (self._future if is_future else self._current)[log.topic_partition] = log

    def pop(self, topic_partition: TopicPartition, *, is_future: bool) -> UnifiedLog | None:
        with self._lock:
            return (self._future if is_future else self._current).pop(topic_partition, None)

    def replace_current_with_future(self, log: UnifiedLog) -> None:
        """log: the partition's current log from now on, loaded from where its future log was."""
        log.flush_times = self.flush_times
        with self._lock:
            del self._future[log.topic_partition]
            self._current[log.topic_partition] = log

    def clear(self) -> list[UnifiedLog]:
        """The logs that were in the table."""
        with self._lock:
            logs = [*self._current.values(), *self._future.values()]
            self._current, self._future = {}, {}
        return logs

    def current(self) -> dict[TopicPartition, UnifiedLog]:
        with self._lock:
            return dict(self._current)

    def future(self) -> dict[TopicPartition, UnifiedLog]:
        with self._lock:
            return dict(self._future)

    def all(self) -> list[UnifiedLog]:
        """Current and future logs."""
        with self._lock:
            return [*self._current.values(), *self._future.values()]

    def in_dir(self, log_dir: str) -> list[UnifiedLog]:
        """Current and future logs whose directory is in this data directory."""
        return [log for log in self.all() if log.parent_dir == log_dir]
