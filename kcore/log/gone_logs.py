"""GoneLogs: logs whose directories somebody has removed while the broker was down.

replication-offset-checkpoint has a line for each log, and a broker that deletes a log removes its line.  So a line
above 0 without a directory says that records which consumers could read were here: a log that begins anew has lost
them (lost_records.py).
Source: kcore's own; Kafka makes an empty log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kcore.common.file import sync_path
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_dir import LogDir
from kcore.log.log_dir_loader import LogDirLoader
from kcore.log.lost_records import write_mark

if TYPE_CHECKING:
    from kcore.log.log_removal import LogRemoval

logger = logging.getLogger(__name__)


class GoneLogs:
    """Not thread-safe: LogManager's lock guards it.

    The lines stay in the checkpoint until a log with the mark takes the place of the one that is gone, or until the
    partition turns out not to be this broker's: if this start is killed before, the next one finds them too.
    """

    def __init__(self, dirs: Mapping[str, LogDir], removal: LogRemoval) -> None:
        self._dirs = dirs
        self._removal = removal
        self._high_watermarks: dict[TopicPartition, int] = {}

    def find(self, loaders: Iterable[LogDirLoader], is_here: Callable[[TopicPartition], bool]) -> None:
        """is_here: whether a data directory, this one or another one, has the partition."""
        for loader in loaders:
            gone = {tp: offset for tp, offset in loader.without_directory.items() if not is_here(tp)}
            if gone:
                loader.log_dir.keep_high_watermarks(gone)
                # A new log of that name must not get the other offsets.
                self._removal.drop_checkpoints(loader.log_dir, gone, high_watermarks=False)
                for tp, offset in gone.items():
                    self._high_watermarks[tp] = max(offset, self._high_watermarks.get(tp, 0))

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """The partitions, and up to which offset they had records that consumers could read."""
        return dict(self._high_watermarks)

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They were deleted, or are on other brokers: nothing is missed here."""
        forgotten = [tp for tp in topic_partitions if self._high_watermarks.pop(tp, None) is not None]
        if forgotten:
            for log_dir in self._dirs.values():
                self._removal.drop_checkpoints(log_dir, forgotten)

    def note_in(self, log_dir: LogDir, path: str, tp: TopicPartition, *, has_other_replicas: bool) -> bool:
        """Before a log begins in a new directory; whether one of the partition is gone.  Raises OSError."""
        high_watermark = self._high_watermarks.get(tp)
        if high_watermark is None:
            return False
        if has_other_replicas:
            write_mark(path, 0)
            sync_path(log_dir.path)
        logger.error(
            "%s: made anew and empty: its directory is gone, and had records up to offset %d, by %s",
            path,
            high_watermark,
            log_dir.high_watermarks.path,
        )
        return True

    def made_anew(self, topic_partition: TopicPartition) -> None:
        if self._high_watermarks.pop(topic_partition, None) is not None:
            for log_dir in self._dirs.values():
                log_dir.keep_no_longer(topic_partition)
