"""One partition on this broker: whether it leads, its ISR, and what moves its high watermark (PART)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kcore.common.locks import ReadWriteLock
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    FencedLeaderEpoch,
    NoRecordBatch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownLeaderEpoch,
)
from kcore.log.log_hot_path import LogAppendInfo
from kcore.log.log_offset_metadata import (
    AppendOrigin,
    FetchIsolation,
    LogOffsetMetadata,
    TimestampAndOffset,
)

if TYPE_CHECKING:
    from kcore.log.log_hot_path import FetchDataInfo
    from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)

NO_EPOCH = -1
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
EARLIEST_LOCAL_TIMESTAMP = -4


class LogReadInfo(NamedTuple):
    """A read and the partition's offsets as they were before it (RD-23)."""

    fetched: FetchDataInfo
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int


class Partition:
    """Leader state of one hosted partition over its log.

    Thread-safe.  leader_isr_update_lock is read-held during an append and write-held while leadership changes, so that
    no append with an old epoch can still be running once a change has returned; reads take no lock.  Order of locks:
    leader_isr_update_lock, then the log's.  Nothing here calls back: who waits is told by ReplicaManager.
    """

    def __init__(self, topic_partition: TopicPartition, log: UnifiedLog, local_broker_id: int) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.local_broker_id = local_broker_id
        self.leader_isr_update_lock = ReadWriteLock()
        self.leader_id: int | None = None
        self.leader_epoch = NO_EPOCH
        self.isr: tuple[int, ...] = ()
        self.is_leader = False
        self.topic_id: UUID | None = None

    def make_leader(self, leader_epoch: int, isr: tuple[int, ...], topic_id: UUID | None) -> bool:
        """Lead from now on with this epoch; True if this broker did not lead before (PART-06).

        The epoch starts at the current log end (PART-02).  With nobody else in the ISR, what is in the log is
        replicated as far as it will ever be, so the high watermark goes to the log end (PART-05).
        """
        with self.leader_isr_update_lock.write():
            was_leader = self.is_leader
            self.log.maybe_assign_epoch_start_offset(leader_epoch, self.log.log_end_offset)
            self.topic_id = topic_id
            self.isr = isr
            self.leader_epoch = leader_epoch
            self.leader_id = self.local_broker_id
            self.is_leader = True
            self.log.is_served = True
            self._maybe_increment_leader_hw()
            return not was_leader

    def resign(self) -> None:
        """Stop leading: appends and reads that start from now on are refused."""
        with self.leader_isr_update_lock.write():
            self.is_leader = False
            self.log.is_served = False
            self.leader_id = None
            self.isr = ()

    def append_records_to_leader(
        self, records: bytes | bytearray | memoryview, required_acks: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> tuple[LogAppendInfo, bool]:
        """Append a producer's batches to the local log; the second value says whether the high watermark rose.

        Raises NotLeaderOrFollower if this broker does not lead, NotEnoughReplicas if acks=-1 and the ISR is below
        min.insync.replicas (in both cases nothing was written), and what UnifiedLog.append_as_leader raises.
        Source: Partition.appendRecordsToLeader, Kafka 2.4.
        """
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            log = self.log
            if not self.is_leader:
                raise self._not_leader()
            if required_acks == -1 and len(self.isr) < log.config.min_insync_replicas:
                raise NotEnoughReplicas(
                    f"{self.topic_partition}: ISR {self.isr}, min.insync.replicas {log.config.min_insync_replicas}"
                )
            try:
                info = log.append_as_leader(records, self.leader_epoch, origin)
            except NoRecordBatch:
                # LOG-04: what reaches a partition without a whole batch is answered with offset -1 and no error.
                return LogAppendInfo(-1, -1, -1, -1, log_start_offset=log.log_start_offset), False
            # The ISR may be only us; then our own append is what moves the high watermark.
            return info, self._maybe_increment_leader_hw()
        finally:
            lock.release_read()

    def _maybe_increment_leader_hw(self) -> bool:
        """PART-15 for an ISR without followers: what we have, everybody has."""
        return self.log.maybe_increment_high_watermark(self.log.log_end_offset_metadata) is not None

    def check_enough_replicas_reach_offset(self, required_offset: int) -> bool:
        """Whether a produce up to required_offset may be acknowledged to acks=-1 (PART-18).

        Raises NotLeaderOrFollower when leadership is lost, NotEnoughReplicasAfterAppend when the records are
        replicated but the ISR has shrunk below min.insync.replicas meanwhile.
        """
        if not self.is_leader:
            raise self._not_leader()
        log = self.log
        if log.high_watermark < required_offset:
            return False
        if len(self.isr) < log.config.min_insync_replicas:
            raise NotEnoughReplicasAfterAppend(
                f"{self.topic_partition}: ISR {self.isr}, min.insync.replicas {log.config.min_insync_replicas}"
            )
        return True

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raises FencedLeaderEpoch or UnknownLeaderEpoch for another epoch than ours (RD-24; -1 is not checked), then
        NotLeaderOrFollower if this broker does not lead."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            error = FencedLeaderEpoch if current_leader_epoch < self.leader_epoch else UnknownLeaderEpoch
            raise error(
                f"{self.topic_partition}: request has epoch {current_leader_epoch}, ours is {self.leader_epoch}"
            )
        if not self.is_leader:
            raise self._not_leader()

    def read_records(
        self,
        fetch_offset: int,
        max_bytes: int,
        isolation: FetchIsolation,
        min_one_message: bool,
        current_leader_epoch: int = NO_EPOCH,
    ) -> LogReadInfo:
        """Read from fetch_offset up to what the isolation level lets this reader see.

        Raises what check_leader raises, and OffsetOutOfRange (RD-30).
        """
        self.check_leader(current_leader_epoch)
        log = self.log
        # Before the read: an append that comes meanwhile must not make a follower look further behind (RD-23).
        high_watermark = log.high_watermark
        log_start_offset = log.log_start_offset
        log_end_offset = log.log_end_offset
        last_stable_offset = log.last_stable_offset
        fetched = log.read(fetch_offset, max_bytes, isolation, min_one_message)
        return LogReadInfo(fetched, high_watermark, log_start_offset, log_end_offset, last_stable_offset)

    def fetch_offset_for_timestamp(
        self, timestamp: int, isolation: FetchIsolation, current_leader_epoch: int = NO_EPOCH
    ) -> TimestampAndOffset | None:
        """The first record at or after timestamp (ms), or one of Kafka's negative specials; None if there is none.

        LATEST (-1) is the end of what this reader may read: LEO, HW or LSO by isolation.  A record beyond that end is
        not found.  Raises what check_leader raises.  Source: Partition.fetchOffsetForTimestamp, Kafka 3.9.
        """
        self.check_leader(current_leader_epoch)
        log = self.log
        last_fetchable_offset = self.last_fetchable_offset(isolation)
        if timestamp == LATEST_TIMESTAMP:
            return TimestampAndOffset(-1, last_fetchable_offset, self.leader_epoch)
        found = log.fetch_offset_by_timestamp(timestamp)
        if found is None or timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return found
        return found if found.offset < last_fetchable_offset else None

    def last_fetchable_offset(self, isolation: FetchIsolation) -> int:
        """The offset below which a reader of this isolation level may read."""
        if isolation is FetchIsolation.LOG_END:
            return self.log.log_end_offset
        if isolation is FetchIsolation.HIGH_WATERMARK:
            return self.log.high_watermark
        return self.log.last_stable_offset

    def last_fetchable_offset_metadata(self, isolation: FetchIsolation) -> LogOffsetMetadata:
        """The same with its place in the log."""
        log = self.log
        if isolation is FetchIsolation.LOG_END:
            return log.log_end_offset_metadata
        if isolation is FetchIsolation.HIGH_WATERMARK:
            return log.high_watermark_metadata
        return log.last_stable_offset_metadata

    def last_offset_for_leader_epoch(self, leader_epoch: int, current_leader_epoch: int = NO_EPOCH) -> tuple[int, int]:
        """(largest epoch <= leader_epoch that the log knows, its end offset); (-1, -1) for none (PART-24).

        Raises what check_leader raises.
        """
        self.check_leader(current_leader_epoch)
        return self.log.end_offset_for_epoch(leader_epoch)

    def delete_records_on_leader(self, offset: int) -> int:
        """Let the log start at offset, at the high watermark for -1; returns the low watermark.

        Raises OffsetOutOfRange beyond the high watermark or for another negative offset, PolicyViolation for a topic
        that only compacts, NotLeaderOrFollower.  Source: Partition.deleteRecordsOnLeader, Kafka 3.9.
        """
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            log = self.log
            if not self.is_leader:
                raise self._not_leader()
            if "delete" not in log.config.cleanup_policy:
                raise PolicyViolation(
                    f"{self.topic_partition}: records cannot be deleted, cleanup.policy is {log.config.cleanup_policy}"
                )
            high_watermark = log.high_watermark
            target = high_watermark if offset == -1 else offset
            if not 0 <= target <= high_watermark:
                raise OffsetOutOfRange(
                    f"{self.topic_partition}: delete before {offset}, log readable to {high_watermark}"
                )
            log.maybe_increment_log_start_offset(target)
            return log.log_start_offset
        finally:
            lock.release_read()

    def _not_leader(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(f"{self.topic_partition}: broker {self.local_broker_id} is not the leader")

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, leader={self.leader_id}, epoch={self.leader_epoch}, isr={self.isr})"
