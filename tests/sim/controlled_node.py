"""A broker of a simulated cluster that has the product's controller: a member of the cluster, with a session in the
store, the doors for the controller's requests, and a KafkaController of its own.

Without threads: the controller's events, and what the store reports, are steps of the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Protocol

from kcore.client.broker_channel import BrokerChannel, OnReply, QueuedRequest, Wait
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import LiveBroker
from kcore.controller.kafka_controller import ControllerSettings, KafkaController, OnControlledShutdown, OnResult
from kcore.controller.partition_reassignment import Targets
from kcore.coordinator.coordinators import Coordinators
from kcore.errors import ApiError
from kcore.log.unified_log import UnifiedLog
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint
from kcore.network.listener import SecurityProtocol
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.stop_replica import StopReplicaRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from kcore.protocol.schema import Message
from kcore.replica.partition_state_store import PartitionStateStore
from kcore.replication.metadata_partition_state_store import MetadataPartitionStateStore
from kcore.server.config.config_changes import config_change_notifications
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.handlers.leader_and_isr import Handler as LeaderAndIsrHandler
from kcore.server.handlers.stop_replica import Handler as StopReplicaHandler
from kcore.server.handlers.update_metadata import Handler as UpdateMetadataHandler
from kcore.server.member.cluster_member import ClusterMember
from kcore.server.member.leadership_certainty import LeadershipCertainty
from kcore.server.topics.topic_adoption import TopicAdoption
from tests.sim.ensemble import Session
from tests.sim.events import Settings
from tests.sim.node import Node, Surroundings

#: A controller's request without an answer is sent again after it.
CONTROLLER_REQUEST_TIMEOUT_MS = 400
#: Between two attempts to open offline replicas.
RETRY_MS = 1000

_DOORS = {
    LeaderAndIsrRequest: LeaderAndIsrHandler,
    StopReplicaRequest: StopReplicaHandler,
    UpdateMetadataRequest: UpdateMetadataHandler,
}


class ControlledSurroundings(Surroundings, Protocol):
    def send_controller_request(
        self, source: int, target: int, request: Message, reply: Callable[[Message], None]
    ) -> None: ...


class NodeChannel:
    """Drives a BrokerChannel, as a RequestSendThread does."""

    def __init__(self, node: ControlledNode, target: int) -> None:
        self._node = node
        self._target = target
        self._channel = BrokerChannel()
        self._is_closed = False

    def put(self, request: Message, on_reply: OnReply | None) -> None:
        self._channel.put(request, on_reply)
        self._turn()

    def close(self) -> None:
        self._is_closed = True

    def _turn(self) -> None:
        if self._is_closed:
            return
        node = self._node
        step = self._channel.next_request(node.now_ms)
        if isinstance(step, Wait):
            if step.until_ms is not None:
                self._later(max(1, int(step.until_ms) - node.now_ms), self._turn)
            return
        is_answered = False

        def on_reply(reply: Message) -> None:
            nonlocal is_answered
            if is_answered or self._is_closed:
                return  # of a connection that was closed, or a second copy
            is_answered = True
            self._channel.on_reply(step)
            if step.on_reply is not None:
                step.on_reply(reply)
            self._turn()

        def give_up() -> None:
            nonlocal is_answered
            if not is_answered and not self._is_closed:
                is_answered = True
                self._fail(step)

        node.around.send_controller_request(node.broker_id, self._target, step.request, on_reply)
        self._later(CONTROLLER_REQUEST_TIMEOUT_MS, give_up)

    def _fail(self, step: QueuedRequest) -> None:
        self._channel.on_failure(step, self._node.now_ms)
        self._turn()

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        name = f"channel {self._node.broker_id} to {self._target}"
        self._node.around.call_later(self._node.broker_id, delay_ms, name, action)


class NodeChannels:
    """ControllerChannels over the simulated network."""

    def __init__(self, node: ControlledNode) -> None:
        self._node = node
        self._channels: dict[int, NodeChannel] = {}

    def add_broker(self, broker: LiveBroker) -> None:
        if broker.broker_id not in self._channels:
            self._channels[broker.broker_id] = NodeChannel(self._node, broker.broker_id)

    def remove_broker(self, broker_id: int) -> None:
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def send_request(self, broker_id: int, request: Message, on_reply: OnReply | None = None) -> None:
        channel = self._channels.get(broker_id)
        if channel is not None:
            channel.put(request, on_reply)

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


class _WithoutThread:
    """What a ClusterMember needs of its controller."""

    def __init__(self, controller: KafkaController) -> None:
        self._controller = controller
        self.controlled_shutdown = controller.controlled_shutdown
        self.shutdown = controller.shutdown
        self.abandon = controller.abandon

    @property
    def is_active(self) -> bool:
        return self._controller.is_active

    def startup(self) -> None:
        self._controller.startup(start_thread=False)


class ControlledNode(Node):
    """One life of a broker.  start() registers it; nobody may be registered with its id."""

    around: ControlledSurroundings

    def __init__(
        self,
        broker_id: int,
        directory: str,
        time: MockTime,
        around: ControlledSurroundings,
        settings: Settings,
        session: Session,
        boot_id: str,
    ) -> None:
        self.session = session
        self.boot_id = boot_id
        #: ISR changes, and what is tried again when the store is back.
        self.control_scheduler = MockScheduler(time)
        self.control_scheduler.startup()
        #: Whether a step for it is on the agenda.
        self.has_store_events = self.has_turn = False
        super().__init__(broker_id, session.session_id, directory, time, around, settings)
        self._config_changes = config_change_notifications(session, self.control_scheduler, time)
        self._stored_topic_configs = StoredTopicConfigs(
            session, TopicConfigs(), self.log_manager, self._config_changes.read_later
        )
        self.member = ClusterMember(
            broker_id,
            session,
            self.control_scheduler,
            time,
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            log_manager=self.log_manager,
            coordinators=Coordinators({}),
            stored_topic_configs=self._stored_topic_configs,
            leadership=LeadershipCertainty(session),
            make_controller=lambda register_again: _WithoutThread(self._make_controller(settings, register_again)),
            controller_wait_ms=0,  # a step does not wait
        )
        self.replica_manager.damage_checks.on_given_up = lambda tp: self.member.log_dir_failed()
        self.control_scheduler.schedule("offline-replicas", self.member.offline_replicas.retry, RETRY_MS, RETRY_MS)
        services = SimpleNamespace(member=self.member)
        self._doors = {kind: handler(services) for kind, handler in _DOORS.items()}

    def _make_controller(self, settings: Settings, register_again: Callable[[], bool]) -> KafkaController:
        self.controller = KafkaController(
            self.broker_id,
            self.session,
            NodeChannels(self),
            ControllerSettings(
                unclean_leader_election_enable=lambda: settings.unclean, rebalance_interval_ms=settings.rebalance_ms
            ),
            register_again,
            self._time,
            self.control_scheduler,
        )
        return self.controller

    @property
    def broker_epoch(self) -> int:
        return self.member.broker_epoch

    def is_alive(self, broker: int) -> bool:
        return self.metadata_cache.snapshot.broker(broker) is not None

    def _adoption(self) -> TopicAdoption:
        return TopicAdoption(self.broker_id, self.session, self.log_manager, TopicConfigs(), is_member=True)

    def _is_stray(self, log: UnifiedLog) -> bool:
        return self._adoption().is_stray(log.topic_partition, log.topic_id)

    def _make_state_store(self) -> PartitionStateStore:
        return MetadataPartitionStateStore(self.broker_id, self.session, self.control_scheduler, self._time)

    def start(self) -> None:
        self._config_changes.start([self._stored_topic_configs])
        self.log_manager.forget_gone_logs(self._adoption().not_of_this_broker(self.log_manager.gone_logs()))
        endpoints = {"PLAINTEXT": Endpoint(f"broker-{self.broker_id}", 9092)}
        self.member.start(BrokerInfo(self.broker_id, endpoints), {"PLAINTEXT": SecurityProtocol.PLAINTEXT})
        self.log_manager.record_boot_id()

    # -- as a controller --------------------------------------------------------------------------------------------

    @property
    def has_controller_events(self) -> bool:
        return bool(self.controller.events._events)

    def process_controller_event(self) -> Exception | None:
        """The next event of the controller's queue; what it raised, which its thread would log."""
        event = self.controller.events._take()
        if event is None:
            return None
        event._started.set()
        try:
            event.process()
        except Exception as error:
            return error
        return None

    def controlled_shutdown(self, broker: int, broker_epoch: int, on_done: OnControlledShutdown) -> None:
        self.controller.controlled_shutdown(broker, broker_epoch, on_done)

    def alter_reassignments(
        self, targets: Targets, on_done: OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None:
        self.controller.alter_partition_reassignments(targets, on_done)

    # -- as a broker ------------------------------------------------------------------------------------------------

    def serve_controller(self, request: Message, answer: Callable[[Message], None]) -> None:
        context = SimpleNamespace(api_version=request.max_version, respond=answer)
        self._doors[type(request)].handle(context, request)

    def decided(self) -> list[object]:
        """See Node; also the metadata, which are replaced by each update."""
        return [*super().decided(), self.metadata_cache.snapshot]

    def next_due_ms(self, disk_waits_until_ms: int) -> int | None:
        times = [super().next_due_ms(disk_waits_until_ms), self.control_scheduler._queue.next_due_ms()]
        due = [time for time in times if time is not None]
        return -int(-min(due) // 1) if due else None

    def tick(self, *, disk_is_slow: bool) -> None:
        super().tick(disk_is_slow=disk_is_slow)
        self.control_scheduler.tick()

    def leave(self) -> None:
        """The end of a clean stop: the controller finds other leaders, if it has not yet."""
        self.session.dies_after = 0
        self.member.stop()
        self.stop()
        self.session.close()

    def has_log(self, tp: TopicPartition) -> bool:
        return self.log_manager.get_log(tp) is not None or self.replica_manager.get_partition(tp) is not None

    def leads(self, tp: TopicPartition) -> int | None:
        """The leader epoch with which it leads."""
        partition = self.replica_manager.get_partition(tp)
        return partition.leader_epoch if partition is not None and getattr(partition, "is_leader", False) else None
