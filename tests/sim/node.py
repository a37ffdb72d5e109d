"""A broker of a simulation: LogManager, ReplicaManager and a fetcher for each leader, without threads and sockets.

All that decides is the product's; time, network, disk and controller are the simulation's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Protocol

from kcore.common.executors import inline
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, KafkaError, RequestTimedOut, StaleControllerEpoch
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.unified_log import UnifiedLog
from kcore.metadata.metadata_cache import MetadataCache
from kcore.protocol.messages.fetch import FetchRequest as FetchMessage
from kcore.protocol.messages.fetch import FetchResponse
from kcore.purgatory.timer import Timer
from kcore.replica.fetcher.fetcher_state import FetcherConfig, FetcherState, Wait
from kcore.replica.fetcher.fetchers import FetchSource
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.leader_endpoint import (
    EpochEndOffset,
    FetchReply,
    FetchRequest,
    LeaderReply,
    LeaderRequest,
    ListedOffset,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
)
from kcore.replica.fetcher.partition_fetch_state import PartitionFetchState
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replica.partition_state_store import OnIsrChanged, PartitionStateStore, StoredIsr
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_manager_config import ClusterView, ReplicaManagerConfig, ReplicaSchedulers
from kcore.replication.remote_leader_endpoint import RemoteLeaderEndPoint, SentFetch
from kcore.server.handlers.fetch import Handler as FetchHandler
from kcore.server.quotas.replication_quota_manager import UNBOUNDED, ReplicationQuotaManager
from kcore.server.requests.auth_helper import AuthHelper
from kcore.server.requests.fetch_session import FetchSessionCache
from tests.sim.events import Settings

LAG_TIME_MAX_MS = 1500
REQUEST_TIMEOUT_MS = 1500
FETCH_WAIT_MS = 500
PRODUCE_TIMEOUT_MS = 1000
#: Whom an end point would send to: its messages are sent by what is around the node.
_NOBODY = SimpleNamespace(__str__=lambda: "nobody")
#: A change of the ISR is sent this often before its outcome counts as unknown.
ISR_CHANGE_ATTEMPTS = 4
ISR_CHANGE_TIMEOUT_MS = 200


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A leader's ISR change; broker_epochs: the registration of each member that the leader has."""

    topic_partition: TopicPartition
    isr: frozenset[int]
    broker_epochs: Mapping[int, int]
    leader_epoch: int
    expected_version: int


class Surroundings(Protocol):
    """What a node needs of what is around it."""

    def call_later(self, broker: int, delay_ms: int, name: str, action: Callable[[], None]) -> None:
        """Unless the broker has crashed by then; after its pause."""

    def send_request(
        self, follower: int, leader: int, request: LeaderRequest, reply: Callable[[LeaderReply], None]
    ) -> None: ...

    def send_fetch(
        self, follower: int, leader: int, sent: SentFetch, reply: Callable[[FetchResponse], None]
    ) -> None: ...

    def send_isr_change(self, broker: int, change: IsrChange, reply: OnIsrChanged) -> None: ...

    def check_within_a_step(self) -> None:
        """Check the invariants now."""

    def must_be_answered(self, broker: int, name: str, within_ms: int) -> Callable[[], None]:
        """Notes a request that may wait; what comes back is called with each answer."""
        ...

    def check_timeout(self, node: Node, tp: TopicPartition, name: str, is_done: Callable[[], bool]) -> None:
        """A request has waited in vain; is_done: whether what it waited for is there."""


class NodeLogs(ReplicaLogs):
    """The product's, looked at by the invariants also between a reply's high watermark and the truncation after it."""

    def __init__(self, node: Node) -> None:
        manager = node.replica_manager
        super().__init__(
            manager.get_partition_or_exception, node.log_manager, manager.complete_waiting, quota=node.follower_quota
        )
        self._check = node.around.check_within_a_step

    def truncate_to(self, tp: TopicPartition, offset: int, is_completed: bool) -> None:
        self._check()
        super().truncate_to(tp, offset, is_completed)


class NodeFetcher:
    """Drives the FetcherState of one leader, as a fetcher thread does: one request in flight, then the next.

    Fetches go in an incremental session, by the end point that a broker has; what is late or lost is its messages.
    """

    def __init__(self, node: Node, leader: int, config: FetcherConfig) -> None:
        self._logs = NodeLogs(node)
        self.state = FetcherState(self._logs, config, node.follower_quota)
        self._end_point = RemoteLeaderEndPoint(
            _NOBODY,
            node.broker_id,
            lambda: node.broker_epoch,
            lambda: node.metadata_cache.snapshot.has_topic_ids,
        )
        self._node = node
        self._leader = leader
        self._wakes_at_ms: int | None = None
        self._in_flight: LeaderRequest | None = None

    def wake_up(self, delay_ms: int = 0) -> None:
        """Take a turn after delay_ms, unless one comes earlier."""
        at_ms = self._node.now_ms + delay_ms
        if self._in_flight is None and (self._wakes_at_ms is None or at_ms < self._wakes_at_ms):
            self._wakes_at_ms = at_ms
            broker = self._node.broker_id
            self._node.around.call_later(broker, delay_ms, f"fetcher {broker} of {self._leader}", self._turn)

    def _turn(self) -> None:
        now_ms = self._node.now_ms
        if self._in_flight is not None or self._wakes_at_ms is None or now_ms < self._wakes_at_ms:
            return  # the call of an earlier wake_up()
        self._wakes_at_ms = None
        if not self.state.states:
            return
        request = self.state.next_request(now_ms)
        if isinstance(request, Wait):
            self.wake_up(max(1, int(request.until_ms - now_ms)))
            return
        self._in_flight = request
        around, broker = self._node.around, self._node.broker_id
        if isinstance(request, FetchRequest):
            sent = self._end_point.begin_fetch(request, FetchMessage.max_version)
            if sent is None:
                self._take(request, FetchReply())
                return
            around.send_fetch(broker, self._leader, sent, lambda response: self._on_response(sent, response))
        else:
            around.send_request(broker, self._leader, request, lambda reply: self._take(request, reply))
        around.call_later(broker, REQUEST_TIMEOUT_MS, f"timeout of fetcher {broker}", lambda: self._give_up(request))

    def _on_response(self, sent: SentFetch, response: FetchResponse) -> None:
        if self._in_flight is not sent.request:
            return  # of a connection that was closed, or a second copy
        try:
            reply = self._end_point.end_fetch(sent, response)
        except ApiError as error:
            self.state.on_failure(sent.request, error, self._node.now_ms)
            self._go_on(sent.request)
        else:
            self._take(sent.request, reply)

    def _take(self, request: LeaderRequest, reply: LeaderReply) -> None:
        # A reply that was given up, or came before, is the machine's to refuse.
        self.state.on_reply(request, reply, self._node.now_ms)
        self._logs.complete_waiting()
        self._go_on(request)

    def _give_up(self, request: LeaderRequest) -> None:
        if self._in_flight is request:
            if isinstance(request, FetchRequest):
                self._end_point.abandon_fetch()
            self.state.on_failure(request, RequestTimedOut("no reply"), self._node.now_ms)
            self._go_on(request)

    def _go_on(self, request: LeaderRequest) -> None:
        if self._in_flight is request:
            self._in_flight = None
            self.wake_up()


class NodeFetchers:
    """The Fetchers of a node: one for each leader."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        self._config = FetcherConfig(
            fetch_backoff_ms=50,
            max_wait_ms=FETCH_WAIT_MS,
            partition_max_bytes=settings.fetch_bytes,
            max_bytes=settings.fetch_bytes,
            truncates_on_fetch=settings.truncates_on_fetch,
            uses_sessions=True,
        )
        self._fetchers: dict[int, NodeFetcher] = {}

    def add_partitions(self, partitions: Mapping[TopicPartition, FetchSource]) -> None:
        for tp, (leader, initial) in partitions.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = NodeFetcher(self._node, leader, self._config)
            fetcher.state.add_partitions({tp: initial})
            fetcher.wake_up()

    def remove_partitions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionFetchState]:
        removed = {}
        for fetcher in self._fetchers.values():
            removed |= fetcher.state.remove_partitions(partitions)
        return removed

    def shutdown_idle(self) -> None:
        """An idle one takes no turns."""

    def close(self) -> None:
        self._fetchers.clear()


class NodeStateStore:
    """PartitionStateStore by messages to the controller: sent again if no answer comes, then of unknown outcome."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def change_isr(
        self,
        topic_partition: TopicPartition,
        isr: frozenset[int],
        expected_version: int,
        on_done: OnIsrChanged,
        *,
        broker_epochs: Mapping[int, int] | None = None,
        leader_epoch: int = -1,
    ) -> None:
        node = self._node
        epochs = {**(broker_epochs or {}), node.broker_id: node.broker_epoch}
        change = IsrChange(topic_partition, isr, epochs, leader_epoch, expected_version)
        is_done = False
        attempts = 0

        def done(result: StoredIsr | ApiError) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                on_done(result)

        def attempt() -> None:
            nonlocal attempts
            if is_done:
                return
            attempts += 1
            if attempts > ISR_CHANGE_ATTEMPTS:
                done(RequestTimedOut(f"{topic_partition}: whether ISR {sorted(isr)} is stored is not known"))
                return
            node.around.send_isr_change(node.broker_id, change, done)
            node.around.call_later(node.broker_id, ISR_CHANGE_TIMEOUT_MS, "timeout of an ISR change", attempt)

        attempt()

    def look_up_registration(self, broker_id: int, on_found: Callable[[int], None]) -> None:
        """No node of the simulation claims an epoch that it does not have."""


class Node:
    """One life of a broker, from its start to its crash or clean stop."""

    #: Of a member of a cluster: which boot of its machine this is.
    boot_id: str | None = None

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        directory: str,
        time: MockTime,
        around: Surroundings,
        settings: Settings,
    ) -> None:
        self.broker_id = broker_id
        self._broker_epoch = broker_epoch
        self.around = around
        self._time = time
        self.metadata_cache = MetadataCache("sim", -1)
        #: Of the controllers' requests so far, the highest epoch; of each follower's fetches, the highest registration.
        #: Both are what the simulation has delivered, whatever the broker has noted.
        self.delivered_controller_epoch = -1
        self.delivered_registrations: dict[int, int] = {}
        #: As the controller has said last, and how often it had said it then.
        self.live_brokers: frozenset[int] = frozenset()
        self._live_brokers_version = 0
        #: Flushes, checkpoints and retention wait for the disk; the other one's tasks do not.
        self.disk_scheduler = MockScheduler(time)
        self.clock_scheduler = MockScheduler(time)
        self.timer = Timer(time)
        self.log_manager = LogManager(
            [directory],
            LogConfig(
                segment_bytes=settings.segment_bytes,
                index_interval_bytes=200,
                segment_index_bytes=240,
                retention_ms=settings.retention_ms,
                file_delete_delay_ms=500,
                min_insync_replicas=settings.min_insync_replicas,
            ),
            LogManagerConfig(
                num_recovery_threads=1,
                flush_checkpoint_ms=settings.flush_checkpoint_ms,
                start_offset_checkpoint_ms=settings.flush_checkpoint_ms,
                retention_check_ms=1000,
                initial_task_delay_ms=500,
                verifies_transactions=settings.transactions,
                has_other_replicas=self.boot_id is not None,
            ),
            boot_id=self.boot_id,
            time=time,
            random=Random(broker_id * 1_000_003 + broker_epoch),
            executors=inline,
            scheduler=self.disk_scheduler,
        )
        self.replica_manager = ReplicaManager(
            broker_id,
            self.log_manager,
            ReplicaSchedulers(time, self.disk_scheduler, self.clock_scheduler, self.timer),
            config=ReplicaManagerConfig(
                high_watermark_checkpoint_interval_ms=700, replica_lag_time_max_ms=LAG_TIME_MAX_MS
            ),
            cluster=ClusterView(partition_state_store=self._make_state_store(), is_alive=self.is_alive),
        )
        self.leader_quota, self.follower_quota = (
            ReplicationQuotaManager(5, 1, time, lambda tp: True, settings.throttled_rate or UNBOUNDED) for _ in range(2)
        )
        self._fetch_handler = self._make_fetch_handler(settings)
        self.replica_manager.fetchers = NodeFetchers(self, settings)
        self.disk_scheduler.startup()
        self.clock_scheduler.startup()
        self.log_manager.startup(self._is_stray)

    @property
    def now_ms(self) -> int:
        return int(self._time.hi_res_clock_ms())

    @property
    def broker_epoch(self) -> int:
        """Of the registration."""
        return self._broker_epoch

    def is_alive(self, broker: int) -> bool:
        """As far as this broker has heard."""
        return broker in self.live_brokers

    def _is_stray(self, log: UnifiedLog) -> bool:
        return False

    def _make_state_store(self) -> PartitionStateStore:
        return NodeStateStore(self)

    # -- the controller's updates ------------------------------------------------------------------------------------

    def become_leader_or_follower(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> str:
        """What became of it, in a word."""
        try:
            results = self.replica_manager.become_leader_or_follower(
                [update], controller_epoch, self.leadership_changed
            )
            (error,) = results.values()
        except StaleControllerEpoch as stale:
            error = stale
        if error is not None:
            assert isinstance(error, StaleControllerEpoch), repr(error)
            return "stale"
        return "leads" if update.leader == self.broker_id else "follows"

    def leadership_changed(self, new_leaders: Sequence[Partition], new_followers: Sequence[Partition]) -> None:
        """A LeadershipCallback; a node without coordinators has nobody to tell."""

    def decided(self) -> list[object]:
        """What the controllers have decided, as far as this broker has taken it: its replicas and their states."""
        hosted = self.replica_manager.hosted_partitions.all()
        return [(p, p.state if isinstance(p, Partition) else None) for p in hosted]

    def update_metadata(self, live_brokers: frozenset[int], version: int) -> None:
        """Who is alive.  Requests that waited for a broker that is gone are tried again (ClusterMember)."""
        if version > self._live_brokers_version:
            gone = self.live_brokers - live_brokers
            self.live_brokers, self._live_brokers_version = live_brokers, version
            if gone:
                self.replica_manager.increment_high_watermarks()

    # -- leading ----------------------------------------------------------------------------------------------------

    def _make_fetch_handler(self, settings: Settings) -> FetchHandler:
        """The broker's own, with what it needs of a broker's parts."""
        no_client_quotas = SimpleNamespace(is_enabled=False, fetch=SimpleNamespace(is_enabled=False))
        # No two sessions of one broker have the same id, whatever lives it had.
        random = Random(self.broker_id * 1_000_003 + self._broker_epoch)
        services = SimpleNamespace(
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            config={"replica.lag.time.max.ms": LAG_TIME_MAX_MS, "fetch.max.bytes": 1 << 30},
            request_handler_pool=None,
            fetch_sessions=FetchSessionCache(settings.fetch_sessions, self._time, random),
            time=self._time,
            replication_quotas=SimpleNamespace(leader=self.leader_quota),
            auth=AuthHelper(None),
            client_quotas=no_client_quotas,
            cluster_member=object(),  # a member's leader compares topic ids; nobody uses it here
        )
        return FetchHandler(services)

    def serve_fetch(self, sent: SentFetch, follower: int, answer: Callable[[FetchResponse], None]) -> None:
        """answer(response) comes now or later."""
        name = f"a fetch of broker {follower} at broker {self.broker_id}"
        answered = self.around.must_be_answered(self.broker_id, name, sent.message.max_wait_ms)

        def respond(response: FetchResponse, throttle_ms: int = 0) -> None:
            answered()
            for topic in response.responses:
                for data in topic.partitions:
                    if not isinstance(data.records, bytes):
                        data.records = bytes(data.records.read())
            answer(response)

        context = SimpleNamespace(api_version=sent.api_version, respond=respond)
        self._fetch_handler.handle(context, sent.message)

    def serve(self, request: LeaderRequest, answer: Callable[[LeaderReply], None]) -> None:
        """A lookup of a follower."""
        if isinstance(request, ListOffsetsRequest):
            offsets = {tp: self._list_offset(tp, *question) for tp, question in request.partitions.items()}
            answer(ListOffsetsReply(offsets))
        else:
            ends = {tp: self.epoch_end(tp, *question) for tp, question in request.partitions.items()}
            answer(OffsetForLeaderEpochReply(ends))

    def epoch_end(self, tp: TopicPartition, current_leader_epoch: int, leader_epoch: int) -> EpochEndOffset:
        try:
            hosted = self.replica_manager.get_partition_or_exception(tp)
            end = hosted.last_offset_for_leader_epoch(leader_epoch, current_leader_epoch)
            return EpochEndOffset(*end)
        except KafkaError as error:
            return EpochEndOffset(error=_api_error(error))

    def _list_offset(self, tp: TopicPartition, current_leader_epoch: int, timestamp: int) -> ListedOffset:
        try:
            hosted = self.replica_manager.get_partition_or_exception(tp)
            offset = hosted.fetch_offset_for_timestamp(timestamp, FetchIsolation.LOG_END, current_leader_epoch)
            return ListedOffset(-1 if offset is None else offset.offset)
        except KafkaError as error:
            return ListedOffset(error=_api_error(error))

    # -- clients and time -------------------------------------------------------------------------------------------

    def produce(
        self, tp: TopicPartition, records: bytearray, acks: int, on_answer: Callable[[ApiError | None, int], None]
    ) -> None:
        """on_answer(error, base offset) now or later."""
        name = f"a produce at broker {self.broker_id}"
        answered = self.around.must_be_answered(self.broker_id, name, PRODUCE_TIMEOUT_MS)

        def on_done(statuses) -> None:
            answered()
            status = statuses[tp]
            if isinstance(status.error, RequestTimedOut):
                self.around.check_timeout(self, tp, name, lambda: self._is_replicated(tp, status.required_offset))
            on_answer(status.error, status.base_offset)

        self.replica_manager.append_records(
            PRODUCE_TIMEOUT_MS, acks, False, AppendOrigin.CLIENT, {tp: records}, on_done
        )

    def delete_records(self, tp: TopicPartition, offset: int) -> None:
        name = f"a DeleteRecords at broker {self.broker_id}"
        answered = self.around.must_be_answered(self.broker_id, name, PRODUCE_TIMEOUT_MS)

        def on_done(results) -> None:
            answered()
            result = results[tp]
            if isinstance(result.error, RequestTimedOut):
                self.around.check_timeout(self, tp, name, lambda: self._is_deleted(tp, result.required_offset))

        self.replica_manager.delete_records({tp: offset}, on_done, PRODUCE_TIMEOUT_MS)

    def _is_replicated(self, tp: TopicPartition, offset: int) -> bool:
        partition = self.replica_manager.get_partition(tp)
        return isinstance(partition, Partition) and partition.is_leader and partition.log.high_watermark >= offset

    def _is_deleted(self, tp: TopicPartition, offset: int) -> bool:
        partition = self.replica_manager.get_partition(tp)
        return isinstance(partition, Partition) and partition.is_leader and partition.low_watermark() >= offset

    def next_due_ms(self, disk_waits_until_ms: int) -> int | None:
        """When the timer or a scheduler has something to do."""
        heap = self.timer._heap
        of_disk = self.disk_scheduler._queue.next_due_ms()
        times = [
            None if of_disk is None else max(of_disk, disk_waits_until_ms),
            self.clock_scheduler._queue.next_due_ms(),
        ]
        times.append(heap[0][0] if heap else None)
        due = [time for time in times if time is not None]
        return -int(-min(due) // 1) if due else None

    def tick(self, *, disk_is_slow: bool) -> None:
        """Run what is due by now: waiting requests, the ISR; flushes, checkpoints, retention."""
        self.timer.advance()
        self.clock_scheduler.tick()
        if not disk_is_slow:
            self.disk_scheduler.tick()

    def stop(self) -> None:
        """A clean stop."""
        self.replica_manager.shutdown()
        self.log_manager.shutdown()


def _api_error(error: KafkaError) -> ApiError:
    assert isinstance(error, ApiError), repr(error)
    return error
