"""One partition on this broker: its state, its log, and what moves its high watermark (PART)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kcore.common.locks import ReadWriteLock
from kcore.common.time import Time
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import (
    ApiError,
    FencedLeaderEpoch,
    IneligibleReplica,
    KafkaStorageError,
    NoRecordBatch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OperationNotAttempted,
    PolicyViolation,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from kcore.log.log_hot_path import FetchDataInfo, LogAppendInfo
from kcore.log.log_offset_metadata import (
    AppendOrigin,
    FetchIsolation,
    LogOffsetMetadata,
    TimestampAndOffset,
)
from kcore.log.offset_truncation import diverging_epoch
from kcore.log.special_timestamps import EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from kcore.record.memory_records import EMPTY
from kcore.replica import isr as isr_rules
from kcore.replica.moves.log_tail import copy_tail, is_near_the_end
from kcore.replica.partition_state import (
    NO_EPOCH,
    NO_LEADER,
    CommittedIsr,
    FollowerState,
    LeaderAndIsrUpdate,
    LeaderState,
    PartitionState,
    PendingIsr,
)
from kcore.replica.partition_state_store import PartitionStateStore, RefusingStateStore, StoredIsr
from kcore.replica.replica import IdleFetch, Replica
from kcore.replica.replica_meters import ReplicaMeters

if TYPE_CHECKING:
    from uuid import UUID

    from kcore.log.unified_log import UnifiedLog
    from kcore.replica.fetch_params import FetchPartitionData

logger = logging.getLogger(__name__)

#: replica.lag.time.max.ms unless a broker says otherwise.
DEFAULT_REPLICA_LAG_TIME_MAX_MS = 30_000


def may_have_missed_a_leader(old_epoch: int, new_epoch: int) -> bool:
    """Whether another broker may have led between two leader epochs that this broker knows.

    The controller's requests for the epochs between may have come too late or never.  Followers may have truncated
    their logs for that leader, so their end offsets are unknown (PART-04).  Not in Kafka.
    """
    return new_epoch > old_epoch + 1


class LogReadInfo(NamedTuple):
    """A read and the partition's offsets as they were before it (RD-23)."""

    fetched: FetchDataInfo
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    #: (epoch, its end offset in this broker's log) if the reader's log has diverged from it; then without records.
    diverging_epoch: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    """A partition of this broker whose log cannot be used.

    is_permanent: its data directory has failed (RM-29), and only a restart brings it back.  Else its log could not be
    opened (RM-11), and the next update tries again: a full disk may have room.
    given_up_epoch: the leader epoch in which this broker led it until it found that its log is damaged, else None.
    """

    topic_partition: TopicPartition
    reason: str
    is_permanent: bool
    given_up_epoch: int | None = None

    def may_take(self, update: LeaderAndIsrUpdate, broker_id: int) -> bool:
        """Whether an update ends this state: one that was given up leads again only if it is alone in the ISR."""
        if self.given_up_epoch is None:
            return True
        if update.leader_epoch <= self.given_up_epoch:
            return False
        return update.leader != broker_id or list(update.isr) == [broker_id]

    @property
    def is_followed(self) -> bool:
        return False

    def has_led_since(self, leader_epoch: int) -> bool:
        return False

    def local_log(self) -> NoReturn:
        """Raises KafkaStorageError."""
        raise KafkaStorageError(f"{self.topic_partition} is offline: {self.reason}")


def _broker_epochs(state: PartitionState) -> Mapping[int, int]:
    """Follower -> the registration that its last fetch came from (KIP-903); empty unless this broker leads."""
    if not isinstance(state, LeaderState):
        return {}
    return {broker_id: replica.state.broker_epoch for broker_id, replica in state.replicas.items()}


class Partition:
    """One hosted partition over its log.

    Thread-safe.  _state is one frozen value, replaced in one assignment; a method reads it once and answers by what it
    read.  leader_isr_update_lock is read-held during an append and write-held while the state changes, so that no
    append with an old epoch can still be running once a change has returned; reads take no lock.  Order of locks:
    leader_isr_update_lock, then the log's.  state_store and on_isr_changed are called without these locks;
    the latter on the store's thread, when it has answered: the high watermark may have risen.  An append and a fetch
    say that by what they return.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        log: UnifiedLog,
        local_broker_id: int,
        time: Time,
        *,
        replica_lag_time_max_ms: int = DEFAULT_REPLICA_LAG_TIME_MAX_MS,
        state_store: PartitionStateStore | None = None,
        on_isr_changed: Callable[[TopicPartition], None] = lambda topic_partition: None,
        meters: ReplicaMeters | None = None,
        is_alive: Callable[[int], bool] = lambda broker_id: True,
    ) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.local_broker_id = local_broker_id
        self.leader_isr_update_lock = ReadWriteLock()
        self._time = time
        self._replica_lag_time_max_ms = replica_lag_time_max_ms
        self._state_store = state_store or RefusingStateStore()
        self._on_isr_changed = on_isr_changed
        #: Whether the metadata have a broker.
        self.is_alive = is_alive
        #: The log that will replace this one when it has moved to another data directory, if it moves.
        self.future_log: UnifiedLog | None = None
        #: Held during a follower's append, and while the future log takes the place of the log (PART-19).
        self.future_log_lock = threading.Lock()
        self._replica_meters = meters or ReplicaMeters()
        #: What is counted for the topic.
        self.meters = self._replica_meters.add_partition(topic_partition)
        self._state: PartitionState = FollowerState()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> PartitionState:
        """The current state, for callers that read several parts of it."""
        return self._state

    @property
    def replica_lag_time_max_ms(self) -> int:
        return self._replica_lag_time_max_ms

    @property
    def topic_id(self) -> UUID | None:
        """What the log says; None if it says nothing."""
        return self.log.topic_id

    def is_of_another_topic(self, topic_id: UUID | None) -> bool:
        """Whether the log was made for another topic of that name than the one with this id (KIP-516): the order to
        stop this one is still to come, or was lost.  False where either has no id."""
        known = self.log.topic_id
        return known is not topic_id and known is not None and topic_id not in (None, ZERO_UUID, known)

    @property
    def is_leader(self) -> bool:
        return isinstance(self._state, LeaderState)

    @property
    def leader_id(self) -> int:
        """The broker that leads, or NO_LEADER."""
        state = self._state
        return self.local_broker_id if isinstance(state, LeaderState) else state.leader_id

    @property
    def leader_epoch(self) -> int:
        return self._state.leader_epoch

    def has_led_since(self, leader_epoch: int) -> bool:
        """Whether this broker leads, and no other one can have led since that epoch."""
        state = self._state
        return isinstance(state, LeaderState) and state.led_since <= leader_epoch <= state.leader_epoch

    @property
    def isr(self) -> frozenset[int]:
        """The committed ISR; empty unless this broker leads."""
        state = self._state
        return state.isr.committed if isinstance(state, LeaderState) else frozenset()

    @property
    def is_followed(self) -> bool:
        """Whether this broker leads, and each other member of its ISR has fetched lately: then no other broker can have
        led and committed anything without its knowledge.  Rule: isr.are_following()."""
        state = self._state
        return isinstance(state, LeaderState) and isr_rules.are_following(
            state.isr, state.replicas, self._time.milliseconds(), self._replica_lag_time_max_ms
        )

    def local_log(self) -> UnifiedLog:
        """The log, whether this broker leads or follows.  Raises KafkaStorageError if it is offline."""
        log = self.log
        if log.is_offline:
            raise KafkaStorageError(f"{self.topic_partition}: the log in {log.directory} is offline")
        return log

    def make_leader(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> bool:
        """Lead from now on; True if this broker did not lead before (PART-06), or if another one may have meanwhile.

        An update with a lower partition epoch than the current one is skipped.  A new leader epoch starts at the log
        end (PART-02), and the followers' states are reset (PART-03, PART-04).  If the ISR has no other replica, the
        high watermark rises to the log end (PART-05).
        Raises KafkaStorageError; then the state is what it was.
        """
        with self.leader_isr_update_lock.write():
            old = self._state
            if update.partition_epoch < old.partition_epoch:
                return False
            log = self.log
            was_leader = isinstance(old, LeaderState)
            old_replicas = old.replicas if isinstance(old, LeaderState) else {}
            followers = [broker_id for broker_id in update.replicas if broker_id != self.local_broker_id]
            if isinstance(old, LeaderState) and update.leader_epoch <= old.leader_epoch:
                leader_epoch, epoch_start_offset = old.leader_epoch, old.epoch_start_offset
                replicas = {broker_id: old_replicas.get(broker_id) or Replica(broker_id) for broker_id in followers}
            else:
                leader_epoch, epoch_start_offset = update.leader_epoch, log.log_end_offset
                log.maybe_assign_epoch_start_offset(leader_epoch, epoch_start_offset)
                now_ms = self._time.milliseconds()
                # New objects: a fetch that began under the old epoch updates the old ones.
                replicas = {
                    broker_id: Replica(
                        broker_id,
                        (old_replicas.get(broker_id) or Replica(broker_id)).state.in_new_epoch(
                            now_ms,
                            epoch_start_offset,
                            is_in_sync=broker_id in update.isr,
                            is_new_leader=not was_leader or may_have_missed_a_leader(old.leader_epoch, leader_epoch),
                        ),
                    )
                    for broker_id in followers
                }
            begins_anew = not was_leader or may_have_missed_a_leader(old.leader_epoch, leader_epoch)
            state = LeaderState(
                leader_epoch,
                controller_epoch,
                update.partition_epoch,
                CommittedIsr(frozenset(update.isr)),
                replicas,
                epoch_start_offset,
                old.led_since if isinstance(old, LeaderState) and not begins_anew else leader_epoch,
            )
            log.is_served = True
            self._state = state
            self._maybe_increment_leader_hw(log, state)
            return begins_anew

    def make_follower(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> bool:
        """Follow update.leader from now on; False if leader and epoch are what they were (PART-07).

        An update with a lower partition epoch than the current one is skipped: False.
        """
        with self.leader_isr_update_lock.write():
            old = self._state
            if update.partition_epoch < old.partition_epoch:
                return False
            self._state = FollowerState(
                update.leader,
                update.leader_epoch,
                controller_epoch,
                update.partition_epoch,
                self.local_broker_id in update.adding_replicas,
            )
            self.log.is_served = False
            return (
                isinstance(old, LeaderState)
                or old.leader_id != update.leader
                or old.leader_epoch != update.leader_epoch
            )

    def resign(self) -> None:
        """Stop leading or following: appends and reads that start from now on are refused."""
        with self.leader_isr_update_lock.write():
            old = self._state
            self._state = FollowerState(NO_LEADER, old.leader_epoch, old.controller_epoch, old.partition_epoch)
            self.log.is_served = False

    # -- changes of the ISR ------------------------------------------------------------------------------------------

    def maybe_shrink_isr(self) -> None:
        """Ask the store to take who is out of sync out of the ISR (PART-16, PART-17); nothing while a change pends."""
        if not self._out_of_sync(self._state):
            return
        with self.leader_isr_update_lock.write():
            state = self._state
            broker_epochs = _broker_epochs(state)
            leaving = self._out_of_sync(state)
            if not leaving or not isinstance(state, LeaderState):
                return
            pending = self._begin_isr_change(state, state.isr.committed - leaving)
        self._store_isr(pending, broker_epochs)

    def maybe_expand_isr(self, broker_id: int) -> None:
        """Ask the store to let a follower into the ISR if it may join (PART-13)."""
        if not self._may_join(self._state, broker_id):
            return
        with self.leader_isr_update_lock.write():
            state = self._state
            # Before the rule looks at the fetch: a fetch of the next registration may come in between, and its epoch
            # must not be used for the fetch before it.
            broker_epochs = _broker_epochs(state)
            if not self._may_join(state, broker_id) or not isinstance(state, LeaderState):
                return
            pending = self._begin_isr_change(state, state.isr.committed | {broker_id})
        self._store_isr(pending, broker_epochs)

    def confirm_isr(self) -> None:
        """Take over the stored ISR if it is another one now; nothing while a change pends (not in Kafka).

        A broker that has lost records leaves the ISR itself before it registers (server/member/lost_records.py), and
        the controller need not notice: it seems to be a member that lives.
        """
        with self.leader_isr_update_lock.write():
            state = self._state
            if not isinstance(state, LeaderState) or isinstance(state.isr, PendingIsr):
                return
            broker_epochs = _broker_epochs(state)
            pending = self._begin_isr_change(state, state.isr.committed)
        self._store_isr(pending, broker_epochs)

    def _out_of_sync(self, state: PartitionState) -> frozenset[int]:
        if not isinstance(state, LeaderState) or len(state.isr.committed) <= 1:
            return frozenset()
        return isr_rules.out_of_sync_replicas(
            self.local_broker_id,
            self.log.log_end_offset,
            state.isr,
            state.replicas,
            self._time.milliseconds(),
            self._replica_lag_time_max_ms,
        )

    def _may_join(self, state: PartitionState, broker_id: int) -> bool:
        if not isinstance(state, LeaderState) or broker_id not in state.replicas:
            return False
        return isr_rules.may_join_isr(
            state.replicas[broker_id],
            state.isr,
            self.log.high_watermark,
            state.epoch_start_offset,
            self.log.log_start_offset,
            self.is_alive(broker_id),
        )

    def _begin_isr_change(self, state: LeaderState, proposed: frozenset[int]) -> LeaderState:
        # The store logs how many have changed: a broker that dies changes those of thousands of partitions.
        logger.debug(
            "%s: ISR %s to become %s, high watermark %d, log end %d",
            self.topic_partition,
            sorted(state.isr.committed),
            sorted(proposed),
            self.log.high_watermark,
            self.log.log_end_offset,
        )
        pending = state._replace(isr=PendingIsr(state.isr.committed, proposed))
        self._state = pending
        return pending

    def _store_isr(self, pending: LeaderState, broker_epochs: Mapping[int, int]) -> None:
        # Without the lock: the store may answer on this thread, and appends go on until it does.
        isr = pending.isr
        assert isinstance(isr, PendingIsr)
        self._state_store.change_isr(
            self.topic_partition,
            isr.proposed,
            pending.partition_epoch,
            lambda result: self._isr_stored(isr, result),
            broker_epochs={broker_id: epoch for broker_id, epoch in broker_epochs.items() if broker_id in isr.proposed},
            leader_epoch=pending.leader_epoch,
        )

    def _isr_stored(self, pending: PendingIsr, result: StoredIsr | ApiError) -> None:
        with self.leader_isr_update_lock.write():
            state = self._state
            if not isinstance(state, LeaderState) or state.isr is not pending:
                return  # a controller's update came first, and has the stored ISR
            if isinstance(result, StoredIsr):
                state = state._replace(isr=CommittedIsr(result.isr), partition_epoch=result.partition_epoch)
                self._state = state
                self._maybe_increment_leader_hw(self.log, state)
                meters = self._replica_meters
                if result.isr != pending.committed:
                    (meters.isr_expands if result.isr - pending.committed else meters.isr_shrinks).mark()
            elif isinstance(result, (OperationNotAttempted, IneligibleReplica)):
                self._state = state._replace(isr=CommittedIsr(pending.committed))
            # Else either set may be stored: the high watermark waits for both until the next update.
        if isinstance(result, ApiError):
            self._replica_meters.failed_isr_updates.mark()
            logger.debug("%s: ISR %s was not stored: %s", self.topic_partition, sorted(pending.proposed), result)
        self._on_isr_changed(self.topic_partition)

    # -- move to another data directory ------------------------------------------------------------------------------

    def maybe_replace_current_with_future_log(
        self, replace_log: Callable[[TopicPartition, Callable[[UnifiedLog], None]], object]
    ) -> bool:
        """Put the future log in the place of the log, if it has all its records but a few (DIR-06).

        replace_log is LogManager.replace_current_with_future_log; meanwhile nothing is appended.  What was appended
        since the last fetch is copied then, all of it or nothing, up to 4 MiB: a partition that always gets
        records would never be equal to its copy otherwise.
        True if there is no future log any more.  Raises KafkaStorageError.
        Source: Partition.maybeReplaceCurrentWithFutureReplica, Kafka 3.9, where nothing is copied.
        """
        future = self.future_log
        if future is None:
            return True
        if not is_near_the_end(self.log, future):
            return False
        future.flush()  # so that there is little to sync under the lock
        with self.leader_isr_update_lock.write(), self.future_log_lock:
            log, future = self.log, self.future_log
            if future is None:
                return True
            if not copy_tail(log, future):
                return False
            replace_log(self.topic_partition, self._take_over_future_log)
        return True

    def _take_over_future_log(self, moved: UnifiedLog) -> None:
        """moved: what the future log is now."""
        old = self.log
        moved.is_served, old.is_served = old.is_served, False
        moved.on_log_start_raised = old.on_log_start_raised
        self.log, self.future_log = moved, None

    # -- append, read ------------------------------------------------------------------------------------------------

    def append_records_to_leader(
        self,
        records: bytes | bytearray | memoryview,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int | None = None,
    ) -> tuple[LogAppendInfo, bool]:
        """Append a producer's batches to the local log; the second value says whether the high watermark rose.

        leader_epoch: in which the records were made, None for any.
        Raises NotLeaderOrFollower if this broker does not lead, or has not led without a break since leader_epoch,
        NotEnoughReplicas if acks=-1 and the ISR is below min.insync.replicas (in these cases nothing was written), and
        what UnifiedLog.append_as_leader raises.
        Source: Partition.appendRecordsToLeader, Kafka 2.4.
        """
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            state = self._state
            if not isinstance(state, LeaderState):
                raise self._not_leader()
            if leader_epoch is not None and not state.led_since <= leader_epoch <= state.leader_epoch:
                raise self._not_leader_since(leader_epoch, state)
            log = self.log
            if required_acks == -1 and len(state.isr.committed) < log.config.min_insync_replicas:
                raise NotEnoughReplicas(self._below_minimum(state, log))
            try:
                info = log.append_as_leader(records, state.leader_epoch, origin)
            except NoRecordBatch:
                # LOG-04: what reaches a partition without a whole batch is answered with offset -1 and no error.
                return LogAppendInfo(-1, -1, -1, -1, log_start_offset=log.log_start_offset), False
            # If the ISR is only this broker, its own append moves the high watermark.
            return info, self._maybe_increment_leader_hw(log, state)
        finally:
            lock.release_read()

    def append_records_to_follower_or_future_replica(
        self, records: bytes | bytearray | memoryview, is_future: bool, leader_epoch: int = NO_EPOCH
    ) -> LogAppendInfo | None:
        """Append what a leader sent, offsets and epochs kept, to the log or to the future log (PART-19, PART-20).

        None if there is no future log (any more).  Raises what UnifiedLog.append_as_follower raises.
        Source: Partition.doAppendRecordsToFollowerOrFutureReplica, Kafka 3.9.
        """
        with self.future_log_lock:
            log = self.future_log if is_future else self.log
            if log is None:
                return None
            info = log.append_as_follower(records, leader_epoch)
        if not is_future:
            state = self._state
            is_reassignment = isinstance(state, FollowerState) and state.is_being_added
            self.meters.replicated_in(info.valid_bytes, is_reassignment)  # RFT-10
        return info

    def maybe_increment_high_watermark(self) -> bool:
        """Compute the high watermark of a leader again (PART-15); whether it rose.

        A follower outside the ISR may have died, or have fallen behind for too long, without a fetch or an append.
        """
        state, log = self._state, self.log
        if not isinstance(state, LeaderState) or log.high_watermark >= log.log_end_offset:
            return False
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            state = self._state
            return isinstance(state, LeaderState) and self._maybe_increment_leader_hw(self.log, state)
        finally:
            lock.release_read()

    def _maybe_increment_leader_hw(self, log: UnifiedLog, state: LeaderState) -> bool:
        """PART-15; never down.  Whether it rose."""
        if not state.replicas:
            return log.maybe_increment_high_watermark_to_log_end()
        candidate = isr_rules.high_watermark_candidate(
            log.log_end_offset_metadata,
            state.isr,
            state.replicas,
            self._time.milliseconds(),
            self._replica_lag_time_max_ms,
            self.is_alive,
        )
        return log.maybe_increment_high_watermark(candidate) is not None

    def check_enough_replicas_reach_offset(self, required_offset: int, leader_epoch: int | None = None) -> bool:
        """Whether a produce up to required_offset may be acknowledged to acks=-1 (PART-18).

        leader_epoch: in which it was appended, None for any.
        Raises NotLeaderOrFollower when leadership is lost, also if it is back: other records may be there then;
        NotEnoughReplicasAfterAppend when the records are replicated but the ISR has shrunk below min.insync.replicas
        meanwhile.
        """
        log = self.log
        # Before the state: later it may have risen for another record at the offset, or for an ISR below the minimum.
        high_watermark = log.high_watermark
        state = self._state
        if not isinstance(state, LeaderState):
            raise self._not_leader()
        if leader_epoch is not None and not state.led_since <= leader_epoch <= state.leader_epoch:
            raise self._not_leader_since(leader_epoch, state)
        if high_watermark < required_offset:
            return False
        if len(state.isr.committed) < log.config.min_insync_replicas:
            raise NotEnoughReplicasAfterAppend(self._below_minimum(state, log))
        return True

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> LeaderState:
        """The state, if this broker leads.

        Raises FencedLeaderEpoch or UnknownLeaderEpoch for another epoch than this broker's (RD-24; -1 is not checked),
        then NotLeaderOrFollower if this broker does not lead.
        """
        state = self._state
        if not isinstance(state, LeaderState) or 0 <= current_leader_epoch != state.leader_epoch:
            raise self._refusal(state, current_leader_epoch)
        return state

    def check_readable(self, current_leader_epoch: int, only_leader: bool, state: PartitionState | None = None) -> None:
        """Raises what check_leader raises; without only_leader not for a broker that follows a leader (RD-07)."""
        state = self._state if state is None else state
        is_readable = isinstance(state, LeaderState) or (not only_leader and state.leader_id != NO_LEADER)
        if not is_readable or 0 <= current_leader_epoch != state.leader_epoch:
            raise self._refusal(state, current_leader_epoch)

    def read_records(
        self,
        fetch_offset: int,
        max_bytes: int,
        isolation: FetchIsolation,
        min_one_message: bool,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        only_leader: bool = True,
    ) -> LogReadInfo:
        """Read from fetch_offset up to what the isolation level lets this reader see.

        last_fetched_epoch is that of the reader's record before fetch_offset: where this log has another one there,
        nothing is read, and diverging_epoch says from where the reader must truncate (KIP-595).
        Raises what check_readable raises, and OffsetOutOfRange (RD-30).
        """
        state = self._state
        if not isinstance(state, LeaderState) or 0 <= current_leader_epoch != state.leader_epoch:
            self.check_readable(current_leader_epoch, only_leader, state)
        log = self.log
        # Before the read: an append that comes meanwhile must not make a follower's lag look larger (RD-23).
        # The log start first: DeleteRecords may raise it to a high watermark that has just risen, and a follower
        # refuses an answer with a log start above its high watermark (RFT-08).
        log_start_offset = log.log_start_offset
        high_watermark = log.high_watermark
        log_end_offset = log.log_end_offset
        last_stable_offset = log.last_stable_offset
        diverging = None
        # The reader's last epoch is nearly always this log's last: then, up to the log end, the logs are the same.
        if last_fetched_epoch >= 0 and not (last_fetched_epoch == log.last_epoch and fetch_offset <= log_end_offset):
            diverging = diverging_epoch(fetch_offset, last_fetched_epoch, log.end_offset_for_epoch)
        if diverging is None:
            fetched = log.read(fetch_offset, max_bytes, isolation, min_one_message)
        else:
            fetched = FetchDataInfo(LogOffsetMetadata(fetch_offset), EMPTY)
        return LogReadInfo(fetched, high_watermark, log_start_offset, log_end_offset, last_stable_offset, diverging)

    def follower_replica(self, broker_id: int, current_leader_epoch: int = NO_EPOCH) -> Replica:
        """The leader's Replica of a follower; raises what check_leader raises, and UnknownTopicOrPartition for a
        broker that is not assigned to the partition (RD-10)."""
        state = self._state
        if not isinstance(state, LeaderState) or 0 <= current_leader_epoch != state.leader_epoch:
            state = self.check_leader(current_leader_epoch)
        replica = state.replicas.get(broker_id)
        if replica is None:
            raise UnknownTopicOrPartition(f"{self.topic_partition}: broker {broker_id} is no replica")
        return replica

    def update_follower_fetch_state(
        self,
        replica: Replica,
        read: LogReadInfo,
        follower_log_start_offset: int,
        fetch_time_ms: int,
        broker_epoch: int = -1,
    ) -> bool:
        """Take in what a follower's fetch says: its log ends where it read (PART-11).

        Returns whether the high watermark rose, or the low one may have: then waiting requests must be tried again.

        replica is what follower_replica() returned before the read: if a new leader epoch has begun meanwhile, nobody
        looks at it any more.  A fetch that failed or diverges says nothing, and must not come here (V22-15).  A
        follower that may join the ISR is proposed to the store (PART-13).  Of a member that has registered again the
        store is asked whether it still is one.
        Source: Partition.updateFollowerFetchState, Kafka 3.9.
        """
        old = replica.state
        if 0 <= broker_epoch < old.broker_epoch:
            # Sent before that broker started again; it may have lost records since.
            self._refuse_epoch(replica, broker_epoch, old.broker_epoch, fetch_time_ms)
        metadata = read.fetched.fetch_offset_metadata
        replica.state = old.after_fetch(
            metadata, follower_log_start_offset, fetch_time_ms, read.log_end_offset, broker_epoch
        )
        state = self._state
        if isinstance(state, LeaderState):
            if replica.broker_id not in state.isr.committed:
                self.maybe_expand_isr(replica.broker_id)
            elif 0 <= old.broker_epoch < broker_epoch:
                self.confirm_isr()
        is_log_start_higher = follower_log_start_offset > old.log_start_offset
        if metadata.message_offset == old.log_end_offset:
            return is_log_start_higher
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            # Read again: under this lock no follower's truncation can take place below the candidate.
            state = self._state
            rose = isinstance(state, LeaderState) and self._maybe_increment_leader_hw(self.log, state)
            return rose or is_log_start_higher
        finally:
            lock.release_read()

    def _refuse_epoch(self, replica: Replica, broker_epoch: int, highest: int, fetch_time_ms: int) -> NoReturn:
        """A fetch has a lower broker epoch than one before.  Unless that one had an epoch that the broker never got:
        the registration says so, and the next fetch is taken."""
        follower = f"{self.topic_partition}: broker {replica.broker_id}"
        replica.refused_epoch, replica.refused_ms = broker_epoch, fetch_time_ms

        def on_found(registered: int) -> None:
            if replica.correct_epoch(highest, registered):
                logger.warning("%s has broker epoch %d, a fetch came with %d", follower, registered, highest)

        self._state_store.look_up_registration(replica.broker_id, on_found)
        raise NotLeaderOrFollower(f"{follower} has restarted since: {highest} was its broker epoch, not {broker_epoch}")

    def repeat_idle_fetch(
        self, broker_id: int, data: FetchPartitionData, fetch_time_ms: int | None, broker_epoch: int = -1
    ) -> IdleFetch | None:
        """A follower's last fetch, if it was idle and this one gets the same answer; None: read.

        It is taken in like any other fetch, at fetch_time_ms (ms; None: it has been).
        """
        log, state = self.log, self._state
        if data.fetch_offset != log.log_end_offset or not isinstance(state, LeaderState):
            return None
        replica = state.replicas.get(broker_id)
        idle = None if replica is None else replica.idle_fetch
        if replica is None or idle is None or idle.data is not data or broker_id not in state.isr.committed:
            return None
        result, old = idle.answer[1], replica.state
        if (
            0 <= data.current_leader_epoch != state.leader_epoch
            or result.high_watermark != log.high_watermark
            or result.last_stable_offset != log.last_stable_offset
            or result.log_start_offset != log.log_start_offset
            or (broker_epoch, data.fetch_offset) != (old.broker_epoch, old.log_end_offset)
            or log.is_offline
        ):
            return None
        if fetch_time_ms is not None:
            replica.state = old.after_idle_fetch(fetch_time_ms)
        return idle

    def fetch_offset_for_timestamp(
        self, timestamp: int, isolation: FetchIsolation, current_leader_epoch: int = NO_EPOCH
    ) -> TimestampAndOffset | None:
        """The first record at or after timestamp (ms), or one of Kafka's negative specials; None if there is none.

        LATEST (-1) is the end of what this reader may read: LEO, HW or LSO by isolation.  A record beyond that end is
        not returned.  Raises what check_leader raises, and to a client OffsetNotAvailable: a leader that is new may not
        know yet how far the last one had got, and an offset must not seem to go back (KIP-207).
        Source: Partition.fetchOffsetForTimestamp, Kafka 3.9.
        """
        state = self.check_leader(current_leader_epoch)
        log = self.log
        last_fetchable_offset = self.last_fetchable_offset(isolation)
        lags = isolation is not FetchIsolation.LOG_END and log.high_watermark < state.epoch_start_offset
        too_early = f"{self.topic_partition}: high watermark below the start of leader epoch {state.leader_epoch}"
        if timestamp == LATEST_TIMESTAMP:
            if lags:
                raise OffsetNotAvailable(too_early)
            return TimestampAndOffset(-1, last_fetchable_offset, state.leader_epoch)
        record = log.fetch_offset_by_timestamp(timestamp)
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return record
        if record is not None and record.offset < last_fetchable_offset:
            return record
        if lags:
            raise OffsetNotAvailable(too_early)
        return None

    def legacy_fetch_offsets_for_timestamp(
        self, timestamp: int, max_num_offsets: int, isolation: FetchIsolation
    ) -> list[int]:
        """What ListOffsets version 0 answers: UnifiedLog.legacy_fetch_offsets_before, with the end of what this reader
        may read in place of whatever is beyond it.

        Raises NotLeaderOrFollower, KafkaStorageError.  Source: Partition.legacyFetchOffsetsForTimestamp, Kafka 3.9.
        """
        self.check_leader()
        offsets = self.log.legacy_fetch_offsets_before(timestamp, max_num_offsets)
        end = self.last_fetchable_offset(isolation)
        readable = [offset for offset in offsets if offset <= end]
        return [end, *readable] if len(readable) < len(offsets) else readable

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
        """Let the log start at offset, at the high watermark for -1; returns the offset that is meant.

        Raises OffsetOutOfRange beyond the high watermark or for another negative offset, PolicyViolation for a topic
        that only compacts, NotLeaderOrFollower.  Source: Partition.deleteRecordsOnLeader, Kafka 3.9.
        """
        lock = self.leader_isr_update_lock
        lock.acquire_read()
        try:
            self.check_leader()
            log = self.log
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
            return target
        finally:
            lock.release_read()

    def low_watermark(self) -> int:
        """The smallest log start offset over this leader and its live followers (HW-05); -1 while a follower has not
        fetched.  Raises NotLeaderOrFollower.  Source: Partition.lowWatermarkIfLeader, Kafka 3.9.
        """
        replicas = self.check_leader().replicas.values()
        starts = (replica.state.log_start_offset for replica in replicas if self.is_alive(replica.broker_id))
        return min((self.log.log_start_offset, *starts))

    def _refusal(self, state: PartitionState, current_leader_epoch: int) -> ApiError:
        """What check_leader raises: the epoch is compared first (RD-24)."""
        if 0 <= current_leader_epoch != state.leader_epoch:
            error = FencedLeaderEpoch if current_leader_epoch < state.leader_epoch else UnknownLeaderEpoch
            return error(
                f"{self.topic_partition}: request has epoch {current_leader_epoch}, ours is {state.leader_epoch}"
            )
        return self._not_leader()

    def _not_leader(self) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(f"{self.topic_partition}: broker {self.local_broker_id} is not the leader")

    def _not_leader_since(self, leader_epoch: int, state: LeaderState) -> NotLeaderOrFollower:
        return NotLeaderOrFollower(
            f"{self.topic_partition}: records of leader epoch {leader_epoch}, and broker {self.local_broker_id} leads "
            f"since epoch {state.led_since}"
        )

    def _below_minimum(self, state: LeaderState, log: UnifiedLog) -> str:
        minimum = log.config.min_insync_replicas
        return f"{self.topic_partition}: ISR {sorted(state.isr.committed)}, min.insync.replicas {minimum}"

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, {self._state})"
