"""FollowerLogs: the logs that a fetcher copies into; ReplicaLogs: those of this broker's partitions (RFT-03..15)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import KafkaStorageError, UnexpectedAppendOffset
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.replica_quota import ReplicaQuota

if TYPE_CHECKING:
    from kcore.log.log_manager import LogManager
    from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class AppendedRecords(NamedTuple):
    """What an append wrote last."""

    last_offset: int
    last_leader_epoch: int


class FollowerLogs(Protocol):
    """The local logs of the partitions that are copied.  Each method may raise KafkaStorageError."""

    def log_end_offset(self, tp: TopicPartition) -> int: ...

    def log_start_offset(self, tp: TopicPartition) -> int: ...

    def start_and_topic_id(self, tp: TopicPartition) -> tuple[int, UUID]:
        """(log start offset, topic id, which is ZERO_UUID for a log that has none)."""
        ...

    def high_watermark(self, tp: TopicPartition) -> int: ...

    def latest_epoch(self, tp: TopicPartition) -> int:
        """-1 for a log that has none."""
        ...

    def end_offset_for_epoch(self, tp: TopicPartition, epoch: int) -> tuple[int, int]:
        """As UnifiedLog.end_offset_for_epoch."""
        ...

    def truncate_to(self, tp: TopicPartition, offset: int, is_completed: bool) -> None:
        """is_completed: a future log of the partition, if there is one, is cut there too (RFT-15)."""
        ...

    def truncate_fully_and_start_at(self, tp: TopicPartition, offset: int) -> None: ...

    def append(
        self,
        tp: TopicPartition,
        records: bytes | bytearray | memoryview,
        leader_log_start_offset: int,
        leader_epoch: int,
    ) -> AppendedRecords | None:
        """Append as a follower, offsets and epochs kept (RFT-06); None if there is no whole batch.

        Batches from the first one of a later leader epoch on are left out.

        Raises CorruptMessage or InvalidRecord for what can be fetched again, anything else for what cannot be helped.
        """
        ...

    def update_high_watermark(self, tp: TopicPartition, offset: int) -> None:
        """Set it, brought into [log start offset, log end offset] (RFT-07)."""
        ...

    def maybe_increment_log_start_offset(self, tp: TopicPartition, offset: int) -> None:
        """Never lowers it; OffsetOutOfRange above the high watermark (RFT-08)."""
        ...


class ReplicaLogs:
    """FollowerLogs of one fetcher.  Not thread-safe, like the fetcher's state; complete_waiting() is called without
    the fetcher's lock.

    get_partition: HostedPartitions.get.  Each call raises KafkaStorageError for a partition that is offline.
    on_change(tp): a fetch of a consumer would get another answer than before; it may wait to read from this follower.
    on_truncated(tp, offset): a log that moves to another data directory must be cut too (RFT-15).  quota: counts the
    bytes of throttled partitions (RFT-09).
    """

    #: Whether they are future logs, which move to another data directory.
    _is_future = False

    def __init__(
        self,
        get_partition: Callable[[TopicPartition], Partition | OfflinePartition | None],
        log_manager: LogManager,
        on_change: Callable[[TopicPartition], None] = lambda tp: None,
        on_truncated: Callable[[TopicPartition, int], None] = lambda tp, offset: None,
        quota: ReplicaQuota | None = None,
    ) -> None:
        self._get_partition = get_partition
        self._log_manager = log_manager
        self._on_change = on_change
        self._on_truncated = on_truncated
        self._quota = quota
        self._changed: list[TopicPartition] = []

    def _partition(self, tp: TopicPartition) -> Partition:
        partition = self._get_partition(tp)
        if isinstance(partition, Partition):
            return partition
        raise KafkaStorageError(f"{tp}: {'is not hosted any more' if partition is None else partition.reason}")

    def _log(self, tp: TopicPartition) -> UnifiedLog:
        partition = self._get_partition(tp)
        return partition.log if type(partition) is Partition else self._partition(tp).log

    def log_end_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).log_end_offset

    def log_start_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).log_start_offset

    def start_and_topic_id(self, tp: TopicPartition) -> tuple[int, UUID]:
        log = self._log(tp)
        return log.log_start_offset, log.topic_id or ZERO_UUID

    def high_watermark(self, tp: TopicPartition) -> int:
        return self._log(tp).high_watermark

    def latest_epoch(self, tp: TopicPartition) -> int:
        return self._log(tp).last_epoch

    def end_offset_for_epoch(self, tp: TopicPartition, epoch: int) -> tuple[int, int]:
        return self._log(tp).end_offset_for_epoch(epoch)

    def truncate_to(self, tp: TopicPartition, offset: int, is_completed: bool) -> None:
        """Through the log manager, so that a recovery point above offset comes down with it (PART-22)."""
        log = self._log(tp)
        if offset < log.high_watermark:
            logger.warning("%s: truncated to %d, below the high watermark %d", tp, offset, log.high_watermark)
        self._log_manager.truncate_to({tp: offset}, is_future=self._is_future)
        self._note_change(tp)
        if is_completed:
            self._on_truncated(tp, offset)

    def truncate_fully_and_start_at(self, tp: TopicPartition, offset: int) -> None:
        """PART-23."""
        self._log(tp)
        self._log_manager.truncate_fully_and_start_at(tp, offset, is_future=self._is_future)
        self._note_change(tp)

    def append(
        self,
        tp: TopicPartition,
        records: bytes | bytearray | memoryview,
        leader_log_start_offset: int,
        leader_epoch: int = -1,
    ) -> AppendedRecords | None:
        partition = self._partition(tp)
        append = partition.append_records_to_follower_or_future_replica
        if self._is_future:
            leader_epoch = -1  # what the current log has was taken
        try:
            info = append(records, self._is_future, leader_epoch)
        except UnexpectedAppendOffset as error:
            # The leader's log starts inside a batch (DeleteRecords), and the follower's ends there: PART-21.
            log = self._log(tp)
            if not error.first_offset < log.log_end_offset <= error.last_offset:
                raise
            if log.log_start_offset == log.log_end_offset:
                self._log_manager.truncate_fully_and_start_at(tp, error.first_offset, is_future=self._is_future)
            elif error.first_offset < leader_log_start_offset <= error.last_offset:
                # Not in Kafka: a leader epoch that began with this batch seems to begin at the log start, so a follower
                # with another record below it was not cut far enough (docs/invariants.md).
                self.truncate_to(tp, error.first_offset, is_completed=False)
            else:
                raise
            info = append(records, self._is_future, leader_epoch)
        if info is None or info.last_offset < 0:
            return None
        if self._quota is not None and self._quota.is_throttled(tp):
            self._quota.record(len(records))
        return AppendedRecords(info.last_offset, info.last_leader_epoch)

    def update_high_watermark(self, tp: TopicPartition, offset: int) -> None:
        log = self._log(tp)
        before = log.high_watermark
        if log.lost_records is not None and log.lost_records.is_cut and offset <= log.log_end_offset:
            logger.log(
                logging.INFO if log.lost_records.has_mark else logging.DEBUG,
                "%s: has all records up to the leader's high watermark %d again",
                tp,
                offset,
            )
            log.forget_lost_records()
        if offset != before and log.update_high_watermark(offset) > before:
            self._note_change(tp)

    def maybe_increment_log_start_offset(self, tp: TopicPartition, offset: int) -> None:
        log = self._log(tp)
        if offset > log.log_start_offset:
            log.maybe_increment_log_start_offset(offset)
            self._note_change(tp)

    def _note_change(self, tp: TopicPartition) -> None:
        self._changed.append(tp)

    def complete_waiting(self) -> None:
        """Try the requests again that wait for what the last replies have brought.  Without any lock."""
        while self._changed:
            self._on_change(self._changed.pop())
