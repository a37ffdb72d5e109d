"""A broker of a simulated cluster with transactions: the product's coordinators of transactions and of groups, and the
handlers of the clients' requests, without threads and sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, Protocol
from uuid import UUID

from kcore.common.time import MockTime
from kcore.common.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_coordinator import GroupCoordinator
from kcore.coordinator.transaction.marker_writer import MarkerWriter
from kcore.coordinator.transaction.transaction_completion import MarkerRoutes
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_verifier import AddRetry, TransactionVerifier, VerificationRoutes
from kcore.errors import KafkaError
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.metadata.metadata_cache import PartitionInfo, TopicInfo
from kcore.metadata.producer_ids import ProducerIdManager
from kcore.metadata.store import MetadataStore
from kcore.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcore.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from kcore.protocol.messages.end_txn import EndTxnRequest
from kcore.protocol.messages.fetch import FetchRequest, FetchResponse
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.offset_fetch import OffsetFetchRequest
from kcore.protocol.messages.produce import ProduceRequest
from kcore.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kcore.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from kcore.protocol.schema import Message
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replica.replica_manager import ProduceCallback
from kcore.server.handlers.add_offsets_to_txn import Handler as AddOffsetsHandler
from kcore.server.handlers.add_partitions_to_txn import Handler as AddPartitionsHandler
from kcore.server.handlers.end_txn import Handler as EndTxnHandler
from kcore.server.handlers.init_producer_id import Handler as InitProducerIdHandler
from kcore.server.handlers.offset_fetch import Handler as OffsetFetchHandler
from kcore.server.handlers.produce import Handler as ProduceHandler
from kcore.server.handlers.txn_offset_commit import Handler as TxnOffsetCommitHandler
from kcore.server.handlers.write_txn_markers import Handler as WriteTxnMarkersHandler
from kcore.server.member.marker_channels import MarkerChannels
from kcore.server.member.verification_channels import VerificationChannels
from kcore.server.requests.auth_helper import AuthHelper
from tests.sim.ensemble import Killed
from tests.sim.events import Settings
from tests.sim.node import PRODUCE_TIMEOUT_MS, Node, Surroundings

#: Longer than a message can be on its way to a broker that lives, and stands still for a while: what is sent again then
#: has arrived, or never will.
REQUEST_TIMEOUT_MS = 3500
#: Partitions of each of the coordinators' topics.
COORDINATOR_PARTITIONS = 1
ABORT_INTERVAL_MS = 500

_HANDLERS = {
    InitProducerIdRequest: InitProducerIdHandler,
    AddPartitionsToTxnRequest: AddPartitionsHandler,
    AddOffsetsToTxnRequest: AddOffsetsHandler,
    TxnOffsetCommitRequest: TxnOffsetCommitHandler,
    EndTxnRequest: EndTxnHandler,
    ProduceRequest: ProduceHandler,
    OffsetFetchRequest: OffsetFetchHandler,
    WriteTxnMarkersRequest: WriteTxnMarkersHandler,
}
#: Who asks: nobody to the parts that look.
_REQUEST = SimpleNamespace(buffer=b"", connection=SimpleNamespace(context=SimpleNamespace(sent_from=None)))


class TransactionalSurroundings(Surroundings, Protocol):
    def send_between_brokers(
        self, source: int, target: int, request: Message, version: int, reply: Callable[[Message | OSError], None]
    ) -> None: ...


class NodeRequestChannels:
    """RequestChannels over the simulated network: who gets no answer in time gets an OSError."""

    def __init__(self, node: TransactionalNode, version: int) -> None:
        self._node = node
        self._version = version

    def send(
        self,
        broker_id: int,
        request: Message,
        on_answer: Callable[[Message | OSError | KafkaError], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Nothing waits for its turn."""
        assert is_wanted()
        node = self._node
        is_answered = False

        def answered(answer: Message | OSError) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                on_answer(answer)

        node.around.send_between_brokers(node.broker_id, broker_id, request, self._version, answered)
        name = f"timeout of {type(request).__name__} to {broker_id}"
        timeout = TimeoutError(f"no answer of broker {broker_id}")
        node.around.call_later(node.broker_id, REQUEST_TIMEOUT_MS, name, lambda: answered(timeout))


class CoordinatorAppends:
    """The node's ReplicaManager, as its coordinators see it.  In their appends the node may be killed: DieInAppend."""

    def __init__(self, node: TransactionalNode) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.replica_manager, name)

    def append_records(
        self,
        timeout_ms: float,
        required_acks: int,
        internal_topics_allowed: bool,
        origin: AppendOrigin,
        entries: Mapping[TopicPartition, Any],
        response_callback: ProduceCallback,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        node = self._node

        def done(statuses: Any) -> None:
            node.may_die()
            response_callback(statuses)

        # The product's timeouts are longer than all that a history has.
        node.replica_manager.append_records(
            min(timeout_ms, PRODUCE_TIMEOUT_MS),
            required_acks,
            internal_topics_allowed,
            origin,
            entries,
            done,
            leader_epochs,
        )
        node.may_die()


class TransactionalNode(Node):
    """One life of a broker."""

    around: TransactionalSurroundings

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        directory: str,
        time: MockTime,
        around: TransactionalSurroundings,
        settings: Settings,
        store: MetadataStore,
    ) -> None:
        super().__init__(broker_id, broker_epoch, directory, time, around, settings)
        #: After so many further moments it is killed; 0: it is not.
        self.dies_after = 0
        appends: Any = CoordinatorAppends(self)
        self.groups = GroupCoordinator(
            broker_id,
            appends,
            GroupConfig(offsets_topic_num_partitions=COORDINATOR_PARTITIONS, offsets_commit_timeout_ms=1000),
            time,
            self.clock_scheduler,
            self.timer,
            Random(broker_epoch),
            disk_scheduler=self.disk_scheduler,
        )
        marker_writer = MarkerWriter(appends, time, self.groups.manager)
        nothing: Any = None
        markers, verifications = MarkerChannels(broker_id, nothing), VerificationChannels(broker_id, nothing)
        markers._channels = NodeRequestChannels(self, WriteTxnMarkersRequest.max_version)  # type: ignore[assignment]
        verifications._channels = NodeRequestChannels(  # type: ignore[assignment]
            self, AddPartitionsToTxnRequest.max_version
        )
        producer_ids = ProducerIdManager(broker_id, store)
        self.transactions = TransactionCoordinator(
            TransactionConfig(num_partitions=COORDINATOR_PARTITIONS, abort_timed_out_interval_ms=ABORT_INTERVAL_MS),
            appends,
            MarkerRoutes(broker_id=broker_id, leader_of=self.leader_of, here=marker_writer, others=markers),
            producer_ids.generate_producer_id,
            time,
            self.clock_scheduler,
            self.timer,
            disk_scheduler=self.disk_scheduler,
        )
        self.coordinators = Coordinators(
            {GROUP_METADATA_TOPIC: self.groups, TRANSACTION_STATE_TOPIC: self.transactions}
        )
        routes = VerificationRoutes(
            broker_id=broker_id, leader_of=self.leader_of, here=self.transactions, others=verifications
        )
        retry = AddRetry(timer=self.timer, backoff_ms=lambda: 20, max_ms=lambda: 100)
        disabled = SimpleNamespace(is_enabled=False)
        services: Any = SimpleNamespace(
            config={"add.partitions.to.txn.retry.backoff.max.ms": retry.max_ms()},
            metadata_cache=self.metadata_cache,
            replica_manager=self.replica_manager,
            coordinators=self.coordinators,
            group_coordinator=self.groups,
            transaction_coordinator=self.transactions,
            transaction_verifier=TransactionVerifier(self.replica_manager, routes, lambda: True, retry),
            marker_writer=marker_writer,
            producer_ids=producer_ids,
            admin_manager=SimpleNamespace(flushes_by_default=False, flushing_topics=frozenset()),
            client_quotas=SimpleNamespace(is_enabled=False, produce=disabled, fetch=disabled),
            auth=AuthHelper(None),
            time=time,
        )
        self._handlers = {kind: handler(services) for kind, handler in _HANDLERS.items()}
        for coordinator in (self.groups, self.transactions):
            coordinator.startup()

    # -- what it knows ----------------------------------------------------------------------------------------------

    def leader_of(self, tp: TopicPartition) -> int | None:
        """As far as this broker has heard."""
        return self.metadata_cache.snapshot.leader_of(tp)

    def learn_topics(self, topics: Mapping[str, tuple[UUID, int]]) -> None:
        """Name -> id and number of partitions; who leads them comes from the leadership requests."""
        nobody = PartitionInfo(-1, -1, (), ())
        infos = [TopicInfo(name, ident, dict.fromkeys(range(count), nobody)) for name, (ident, count) in topics.items()]
        self.metadata_cache.update(lambda snapshot: snapshot.with_topics(infos))

    def become_leader_or_follower(self, update: LeaderAndIsrUpdate, controller_epoch: int) -> str:
        outcome = super().become_leader_or_follower(update, controller_epoch)
        if outcome != "stale":
            self._learn_leader(update)
        return outcome

    def _learn_leader(self, update: LeaderAndIsrUpdate) -> None:
        tp = update.topic_partition
        topic = self.metadata_cache.topic(tp.topic)
        assert topic is not None
        if topic.partitions[tp.partition].leader_epoch <= update.leader_epoch:
            info = PartitionInfo(update.leader, update.leader_epoch, tuple(update.replicas), tuple(update.isr))
            changed = topic._replace(partitions={**topic.partitions, tp.partition: info})
            self.metadata_cache.update(lambda snapshot: snapshot.with_topics([changed]))

    def leadership_changed(self, new_leaders: Sequence[Partition], new_followers: Sequence[Partition]) -> None:
        self.coordinators.leadership_changed(new_leaders, new_followers)

    # -- requests ---------------------------------------------------------------------------------------------------

    def serve_request(self, request: Message, version: int, answer: Callable[[Message], None]) -> None:
        """answer(response) comes now or later."""

        def respond(response: Message, throttle_ms: int = 0) -> None:
            if isinstance(response, FetchResponse):
                _read(response)
            answer(response)

        context: Any = SimpleNamespace(
            api_version=version,
            respond=respond,
            header=SimpleNamespace(client_id="simulated"),
            request=_REQUEST,
            listener_name="PLAINTEXT",
        )
        handler: Any = self._fetch_handler if isinstance(request, FetchRequest) else self._handlers[type(request)]
        handler.handle(context, request)

    # -- its end ----------------------------------------------------------------------------------------------------

    def may_die(self) -> None:
        """A moment at which a coordinator's append has got so far, and nobody knows."""
        if self.dies_after:
            self.dies_after -= 1
            if not self.dies_after:
                raise Killed(self.broker_id)

    def stop(self) -> None:
        self.dies_after = 0
        for coordinator in (self.groups, self.transactions):
            coordinator.shutdown()
        super().stop()


def _read(response: FetchResponse) -> None:
    """The records now: a segment may be gone when they arrive."""
    for topic in response.responses:
        for data in topic.partitions:
            if data.records is not None and not isinstance(data.records, bytes):
                data.records = bytes(data.records.read())
