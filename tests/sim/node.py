"""A broker of a simulation: LogManager, ReplicaManager and a fetcher for each leader, without threads and sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from kcore.common.executors import inline
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError, RequestTimedOut, UnexpectedAppendOffset, UnknownTopicOrPartition
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.unified_log import UnifiedLog
from kcore.purgatory.timer import Timer
from kcore.replica import isr as isr_rules
from kcore.replica.fetch_params import FetchPartitionData
from kcore.replica.fetcher_state import AppendedRecords, FetcherConfig, FetcherState, InitialFetchState, Wait
from kcore.replica.leader_endpoint import (
    EpochEndOffset,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    LeaderReply,
    LeaderRequest,
    ListedOffset,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
)
from kcore.replica.offset_truncation import diverging_epoch
from kcore.replica.partition import Partition
from kcore.replica.partition_state import NO_LEADER, LeaderAndIsrUpdate, LeaderState, PendingIsr
from kcore.replica.replica_manager import ReplicaManager

LAG_TIME_MAX_MS = 1500
REQUEST_TIMEOUT_MS = 300
PRODUCE_TIMEOUT_MS = 5000


@dataclass(frozen=True, slots=True)
class AlterIsr:
    """A leader asks the controller to store an ISR; broker -> epoch of its registration."""

    topic_partition: TopicPartition
    leader_epoch: int
    partition_epoch: int
    isr: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    fetcher: FetcherState
    request: LeaderRequest
    deadline_ms: float


class NodeLogs:
    """FollowerLogs over the broker's LogManager."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager

    def _log(self, tp: TopicPartition) -> UnifiedLog:
        log = self._manager.get_log(tp)
        assert log is not None
        return log

    def log_end_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).log_end_offset

    def log_start_offset(self, tp: TopicPartition) -> int:
        return self._log(tp).log_start_offset

    def latest_epoch(self, tp: TopicPartition) -> int:
        return self._log(tp).last_epoch

    def end_offset_for_epoch(self, tp: TopicPartition, epoch: int) -> tuple[int, int]:
        return self._log(tp).end_offset_for_epoch(epoch)

    def truncate_to(self, tp: TopicPartition, offset: int, is_completed: bool) -> None:
        self._manager.truncate_to({tp: offset})

    def truncate_fully_and_start_at(self, tp: TopicPartition, offset: int) -> None:
        self._manager.truncate_fully_and_start_at(tp, offset)

    def append(self, tp: TopicPartition, records: bytes | bytearray | memoryview) -> AppendedRecords | None:
        log = self._log(tp)
        try:
            info = log.append_as_follower(records)
        except UnexpectedAppendOffset as error:
            # The leader's log starts inside a batch (DeleteRecords), and ours ends there: PART-21.
            if not error.first_offset < log.log_end_offset <= error.last_offset:
                raise
            if log.log_start_offset == log.log_end_offset:
                self._manager.truncate_fully_and_start_at(tp, error.first_offset)
            else:
                # Not in Kafka: a leader epoch that began with this batch seems to begin at the log start, so a follower
                # with another record below it was not cut far enough.
                self._manager.truncate_to({tp: error.first_offset})
            info = log.append_as_follower(records)
        return AppendedRecords(info.last_offset, info.last_leader_epoch) if info.last_offset >= 0 else None

    def update_high_watermark(self, tp: TopicPartition, offset: int) -> None:
        self._log(tp).update_high_watermark(offset)

    def maybe_increment_log_start_offset(self, tp: TopicPartition, offset: int) -> None:
        if self._log(tp).maybe_increment_log_start_offset(offset):
            # At once, because the leader epochs below it are forgotten at once.  After a crash with the old log start,
            # the records would be there without their epochs, and truncations would go by the wrong ones.
            self._manager.checkpoint_log_start_offsets()


class Node:
    """One life of a broker, from its start to its crash or clean stop.

    send_request(leader, fetcher, request) and alter_isr(AlterIsr) put messages on their way.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        directory: str,
        time: MockTime,
        random: Random,
        log_config: LogConfig,
        *,
        truncates_on_fetch: bool,
        send_request: Callable[[int, InFlight], None],
        alter_isr: Callable[[AlterIsr], None],
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.scheduler = MockScheduler(time)
        self.timer = Timer(time)
        self.log_manager = LogManager(
            [directory],
            log_config,
            time=time,
            random=random,
            executors=inline,
            scheduler=self.scheduler,
            num_recovery_threads=1,
            flush_checkpoint_ms=1000,
            start_offset_checkpoint_ms=1000,
            retention_check_ms=1000,
            initial_task_delay_ms=500,
        )
        self.replica_manager = ReplicaManager(
            broker_id,
            self.log_manager,
            time,
            self.scheduler,
            self.timer,
            high_watermark_checkpoint_interval_ms=700,
            replica_lag_time_max_ms=LAG_TIME_MAX_MS,
        )
        self.fetchers: dict[int, FetcherState] = {}
        self._fetcher_config = FetcherConfig(
            fetch_backoff_ms=50, partition_max_bytes=600, max_bytes=900, truncates_on_fetch=truncates_on_fetch
        )
        self._time = time
        self._send_request = send_request
        self._alter_isr = alter_isr
        self._in_flight: list[InFlight] = []
        self._pending_isr: dict[TopicPartition, AlterIsr] = {}
        #: What the last fetch of each follower said about its registration.
        self._follower_epochs: dict[int, int] = {}
        self.scheduler.startup()
        self.log_manager.startup()

    # -- what the controller says -----------------------------------------------------------------------------------

    def become_leader_or_follower(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> bool:
        """Whether the update was news, and this broker leads now."""
        tp = update.topic_partition
        hosted = self.replica_manager.get_partition(tp)
        if isinstance(hosted, Partition) and hosted.leader_epoch >= update.leader_epoch:
            return False
        for fetcher in self.fetchers.values():
            fetcher.remove_partitions([tp])
        self._pending_isr.pop(tp, None)
        result = self.replica_manager.become_leader_or_follower([update], controller_epoch)
        assert result == {tp: None}, result
        if update.leader == self.broker_id:
            return True
        if update.leader != NO_LEADER:
            fetcher = self.fetchers.get(update.leader)
            if fetcher is None:
                fetcher = self.fetchers[update.leader] = FetcherState(NodeLogs(self.log_manager), self._fetcher_config)
            log = self._partition(tp).log
            from_end = self._fetcher_config.truncates_on_fetch and log.last_epoch >= 0
            offset = log.log_end_offset if from_end else log.high_watermark
            fetcher.add_partitions({tp: InitialFetchState(offset, update.leader_epoch)})
        return False

    def isr_stored(self, asked: AlterIsr, stored: LeaderAndIsrUpdate) -> None:
        """The controller's answer to the ISR change that is pending; another one's is late."""
        tp = asked.topic_partition
        if self._pending_isr.get(tp) is not asked:
            return
        del self._pending_isr[tp]
        partition = self._partition(tp)
        if partition.is_leader and stored.leader_epoch == partition.leader_epoch:
            partition.make_leader(stored, 1)
            self._complete_waiting(tp)

    # -- following --------------------------------------------------------------------------------------------------

    def poll(self, leader: int) -> str:
        """One step of the fetcher thread of this leader, up to where it would block."""
        request = self.fetchers[leader].next_request(self._time.hi_res_clock_ms())
        if isinstance(request, Wait):
            return f"waits until {request.until_ms:.0f}"
        in_flight = InFlight(self.fetchers[leader], request, self._time.hi_res_clock_ms() + REQUEST_TIMEOUT_MS)
        self._in_flight.append(in_flight)
        self._send_request(leader, in_flight)
        return f"{type(request).__name__} {[str(tp) for tp in request.partitions]}"

    def take_reply(self, in_flight: InFlight, reply: LeaderReply) -> None:
        if in_flight in self._in_flight:
            self._in_flight.remove(in_flight)
        # A reply that was given up, or came before, is the machine's to refuse.
        in_flight.fetcher.on_reply(in_flight.request, reply, self._time.hi_res_clock_ms())

    # -- leading ----------------------------------------------------------------------------------------------------

    def serve(self, request: LeaderRequest, follower: int, follower_broker_epoch: int) -> LeaderReply:
        if isinstance(request, FetchRequest):
            self._follower_epochs[follower] = follower_broker_epoch
            return FetchReply({tp: self._read(tp, data, follower) for tp, data in request.partitions.items()})
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsReply(
                {tp: self._list_offset(tp, q.timestamp, q.current_leader_epoch) for tp, q in request.partitions.items()}
            )
        return OffsetForLeaderEpochReply(
            {tp: self._epoch_end(tp, q.leader_epoch, q.current_leader_epoch) for tp, q in request.partitions.items()}
        )

    def _read(self, tp: TopicPartition, data: FetchPartitionData, follower: int) -> FetchedPartition:
        """A follower's fetch of one partition (RD-09, RD-24, PART-11, PART-13)."""
        try:
            partition = self._partition(tp)
            state = partition.check_leader(data.current_leader_epoch)
            log = partition.log
            diverging = diverging_epoch(data.fetch_offset, data.last_fetched_epoch, log.end_offset_for_epoch)
            if diverging is not None:
                return FetchedPartition(
                    high_watermark=log.high_watermark,
                    log_start_offset=log.log_start_offset,
                    diverging_epoch=diverging,
                )
            read = partition.read_records(
                data.fetch_offset, data.max_bytes, FetchIsolation.LOG_END, True, data.current_leader_epoch
            )
            self._note_fetch(partition, state, follower, data, read.fetched.fetch_offset_metadata, read.log_end_offset)
            records = read.fetched.records
            return FetchedPartition(
                bytes(records.read()) if records.size_in_bytes else b"", read.high_watermark, read.log_start_offset
            )
        except KafkaError as error:
            return FetchedPartition(error=_api_error(error))

    def _note_fetch(self, partition, state, follower, data, fetch_offset_metadata, log_end_offset) -> None:
        replica = state.replicas.get(follower)
        if replica is None:
            raise UnknownTopicOrPartition(f"{partition.topic_partition}: broker {follower} is no replica")
        now_ms = self._time.milliseconds()
        replica.state = replica.state.after_fetch(fetch_offset_metadata, data.log_start_offset, now_ms, log_end_offset)
        if isr_rules.may_join_isr(replica, state.isr, partition.log.high_watermark, state.epoch_start_offset):
            self._propose_isr(partition, state, state.isr.committed | {follower})
        self._move_high_watermark(partition)

    def _move_high_watermark(self, partition: Partition) -> None:
        state = partition._state
        if not isinstance(state, LeaderState):
            return
        log = partition.log
        end = log.log_end_offset_metadata
        candidate = isr_rules.high_watermark_candidate(
            end, state.isr, state.replicas, self._time.milliseconds(), LAG_TIME_MAX_MS
        )
        if log.maybe_increment_high_watermark(candidate) is not None:
            self._complete_waiting(partition.topic_partition)

    def _propose_isr(self, partition: Partition, state: LeaderState, isr: frozenset[int]) -> None:
        own = {self.broker_id: self.broker_epoch}
        asked = AlterIsr(
            partition.topic_partition,
            state.leader_epoch,
            state.partition_epoch,
            own | {member: self._follower_epochs.get(member, -1) for member in sorted(isr - {self.broker_id})},
        )
        with partition.leader_isr_update_lock.write():
            partition._state = replace(state, isr=PendingIsr(state.isr.committed, isr))
        self._pending_isr[partition.topic_partition] = asked
        self._alter_isr(asked)

    def _shrink_isrs(self) -> None:
        for partition in self.led_partitions():
            state = partition._state
            assert isinstance(state, LeaderState)
            gone = isr_rules.out_of_sync_replicas(
                self.broker_id,
                partition.log.log_end_offset,
                state.isr,
                state.replicas,
                self._time.milliseconds(),
                LAG_TIME_MAX_MS,
            )
            if gone:
                self._propose_isr(partition, state, state.isr.committed - gone)

    def _epoch_end(self, tp: TopicPartition, leader_epoch: int, current_leader_epoch: int) -> EpochEndOffset:
        try:
            partition = self._partition(tp)
            return EpochEndOffset(*partition.last_offset_for_leader_epoch(leader_epoch, current_leader_epoch))
        except KafkaError as error:
            return EpochEndOffset(error=_api_error(error))

    def _list_offset(self, tp: TopicPartition, timestamp: int, current_leader_epoch: int) -> ListedOffset:
        try:
            partition = self._partition(tp)
            found = partition.fetch_offset_for_timestamp(timestamp, FetchIsolation.LOG_END, current_leader_epoch)
            return ListedOffset(-1 if found is None else found.offset)
        except KafkaError as error:
            return ListedOffset(error=_api_error(error))

    # -- clients and time -------------------------------------------------------------------------------------------

    def led_partitions(self) -> list[Partition]:
        return [partition for partition in self.replica_manager.partitions() if partition.is_leader]

    def produce(
        self, tp: TopicPartition, records: bytearray, on_answer: Callable[[ApiError | None, int], None]
    ) -> None:
        """acks=-1; on_answer(error, base offset) now or later."""
        self.replica_manager.append_records(
            PRODUCE_TIMEOUT_MS,
            -1,
            False,
            AppendOrigin.CLIENT,
            {tp: records},
            lambda statuses: on_answer(statuses[tp].error, statuses[tp].base_offset),
        )

    def tick(self) -> None:
        """Run what is due by now: requests that were given up, waiting produces, flushes, checkpoints, the ISR."""
        now_ms = self._time.hi_res_clock_ms()
        for in_flight in [one for one in self._in_flight if one.deadline_ms <= now_ms]:
            self._in_flight.remove(in_flight)
            in_flight.fetcher.on_failure(in_flight.request, RequestTimedOut("no reply"), now_ms)
        self.timer.advance()
        self.scheduler.tick()
        self._shrink_isrs()

    def stop(self) -> None:
        """A clean stop."""
        self.replica_manager.shutdown()
        self.log_manager.shutdown()

    def _partition(self, tp: TopicPartition) -> Partition:
        return self.replica_manager.get_partition_or_exception(tp)

    def _complete_waiting(self, tp: TopicPartition) -> None:
        self.replica_manager.delayed_produce_purgatory.check_and_complete(tp)
        self.replica_manager.delayed_fetch_purgatory.check_and_complete(tp)


def _api_error(error: KafkaError) -> ApiError:
    assert isinstance(error, ApiError), repr(error)
    return error
