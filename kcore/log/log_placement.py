"""LogPlacement: the data directory that a new log goes to."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError, LogDirNotFound
from kcore.log.log_dir import LogDir
from kcore.log.log_table import LogTable


class LogPlacement:
    """Thread-safe, except for dirs_for(), which LogManager's lock guards.

    Source: LogManager.getOrCreateLog, nextLogDirs, Kafka 2.4-4.x.
    """

    def __init__(self, dirs: Mapping[str, LogDir], logs: LogTable) -> None:
        self._dirs = dirs
        self._logs = logs
        # Where AlterReplicaLogDirs wants logs that this broker does not have yet.
        self._preferred: dict[TopicPartition, str] = {}

    def check_online(self, path: str) -> None:
        """Raises LogDirNotFound where path is not, letter by letter, one of the absolute paths of the data directories;
        KafkaStorageError where that directory has failed."""
        log_dir = self._dirs.get(path)
        if log_dir is None:
            raise LogDirNotFound(f"{path} is none of the log directories {list(self._dirs)}")
        if log_dir.failure is not None:
            raise KafkaStorageError(f"the log directory {path} is offline")

    def prefer(self, topic_partition: TopicPartition, path: str) -> None:
        """If this broker gets the partition, its log is to be there.  The partition has no log now."""
        self._preferred[topic_partition] = path

    def dirs_for(self, tp: TopicPartition, is_new: bool, is_future: bool, path: str | None) -> list[LogDir]:
        """Where a new log may go, the best place first: path, or the preferred directory, or any, by number of logs.

        Raises KafkaStorageError where there is no place, or where the partition may have a log in a directory that is
        offline; ValueError for a path that is not one of the broker's log directories, or that has the current
        log.
        """
        live = [log_dir for log_dir in self._dirs.values() if log_dir.failure is None]
        if path is not None:
            path = os.path.abspath(path)
            if path not in self._dirs:
                raise ValueError(f"{path} is none of the log directories {list(self._dirs)}")
            live = [log_dir for log_dir in live if log_dir.path == path]
        current = self._logs.get(tp)
        if is_future and current is not None:
            occupied = os.path.dirname(current.directory)
            if path == occupied:
                raise ValueError(f"{tp}: its current log is in {path} already")
            live = [log_dir for log_dir in live if log_dir.path != occupied]
        if not live:
            raise KafkaStorageError(f"{tp}: no log directory is left to make it in")
        if not is_new and any(log_dir.failure is not None for log_dir in self._dirs.values()):
            raise KafkaStorageError(f"{tp}: it may be in a log directory that is offline")
        if len(live) == 1:
            return live  # nothing to count: with a thousand partitions that would be half a million looks
        counts = Counter(log.parent_dir for log in self._logs.all())
        preferred = None if is_future else self._preferred.pop(tp, None)
        return sorted(live, key=lambda candidate: (candidate.path != preferred, counts[candidate.path]))
