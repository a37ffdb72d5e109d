"""What each data directory holds, for DescribeLogDirs.

Source: ReplicaManager.describeLogDirs, Kafka 3.9.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition

if TYPE_CHECKING:
    from kcore.log.log_manager import LogManager


@dataclass(frozen=True, slots=True)
class LogDescription:
    """size: bytes of its .log files.  offset_lag: of a future log the offsets that it lacks, -1 if there is no current
    log; of a current one those between its end and its high watermark, which only a follower can lack."""

    topic_partition: TopicPartition
    size: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """total_bytes, usable_bytes: of the directory's file system, -1 if the system cannot tell."""

    path: str
    is_offline: bool
    logs: Sequence[LogDescription] = ()
    total_bytes: int = -1
    usable_bytes: int = -1


def describe_log_dirs(log_manager: LogManager) -> list[LogDirDescription]:
    """One description for each data directory; an offline one has no logs.  Asks the file systems."""
    offline = log_manager.offline_log_dirs
    current = {log.topic_partition: log for log in log_manager.all_logs()}
    descriptions: dict[str, list[LogDescription]] = {path: [] for path in log_manager.log_dirs}
    for tp, log in current.items():
        lag = max(log.high_watermark - log.log_end_offset, 0)
        descriptions[log.parent_dir].append(LogDescription(tp, log.size, lag, False))
    for log in log_manager.future_logs():
        source = current.get(log.topic_partition)
        lag = -1 if source is None else max(source.log_end_offset - log.log_end_offset, 0)
        descriptions[log.parent_dir].append(LogDescription(log.topic_partition, log.size, lag, True))
    return [
        LogDirDescription(path, True) if path in offline else LogDirDescription(path, False, logs, *_space(path))
        for path, logs in descriptions.items()
    ]


def _space(path: str) -> tuple[int, int]:
    """(bytes of the file system, bytes that are free)."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free
