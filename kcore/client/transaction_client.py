"""TransactionClient: asks a cluster about its transactions, and ends one that hangs in a partition.

Source of the requests: KIP-664 (ListTransactions, DescribeTransactions, DescribeProducers), and as Kafka's
kafka-transactions.sh uses it WriteTxnMarkers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from kcore.client.admin_client import RETRY_MS, AdminClient, Node, error_of, raise_error
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeaderOrFollower,
    TransactionalIdNotFound,
)
from kcore.protocol.messages import describe_producers as dp
from kcore.protocol.messages import describe_transactions as dt
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import list_transactions as lt
from kcore.protocol.messages import write_txn_markers as wtm

T = TypeVar("T")

_TRANSACTION_KEY = 1
#: Newer versions ask about several keys at once, in other fields.
_FIND_ONE_VERSION = 3
#: It moves, or has just moved: asked again.
_PASSING = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, NotLeaderOrFollower)


class ListedTransaction(NamedTuple):
    """state: Kafka's name, as Ongoing.  coordinator: a broker's id."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


class TransactionDescription(NamedTuple):
    """start_ms: since the epoch, None where no transaction has begun.  partitions: sorted; those that it may write to,
    until its markers are written."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


class OpenTransaction(NamedTuple):
    """A transaction of a partition that has no marker.  last_timestamp: ms, of the producer's last batch, -1 for none.
    coordinator_epoch: of the producer's last marker there, -1 for none."""

    topic_partition: TopicPartition
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int


class TransactionClient(AdminClient):
    """For one thread.  What goes to a coordinator or to a leader is sent again, within the timeout, as long as there is
    none, it is loading or another broker has become it."""

    def list_transactions(
        self, states: Collection[str] = (), producer_ids: Collection[int] = (), min_duration_ms: int = -1
    ) -> tuple[list[ListedTransaction], dict[int, OSError | ApiError]]:
        """By transactional id, and the error of each broker that could not be asked.  Empty, and -1, is no condition.

        Raises UnsupportedVersion for min_duration_ms at a broker that does not know it.
        """
        found: list[ListedTransaction] = []
        errors: dict[int, OSError | ApiError] = {}
        request = lt.ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=min_duration_ms
        )
        with self._timed():
            brokers = list(self.describe_cluster(()).brokers.values())
            for index, node in enumerate(brokers):
                try:
                    with self._timed(share=len(brokers) - index):
                        found += self._listed_by(node, request)
                except (OSError, ApiError) as error:
                    errors[node.broker_id] = error
        return sorted(found), errors

    def _listed_by(self, node: Node, request: lt.ListTransactionsRequest) -> list[ListedTransaction]:
        def ask() -> lt.ListTransactionsResponse:
            response = self._send((node.host, node.port), request, lt.ListTransactionsResponse)
            raise_error(response.error_code, None)
            return response

        return [
            ListedTransaction(state.transactional_id, state.producer_id, state.transaction_state, node.broker_id)
            for state in self._repeated(ask).transaction_states
        ]

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Raises TransactionalIdNotFound, TransactionalIdAuthorizationFailed and so on; CoordinatorNotAvailable."""

        def ask() -> TransactionDescription:
            if not self._has_topic(TRANSACTION_STATE_TOPIC):
                raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
            node = self._coordinator(transactional_id)
            request = dt.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            response = self._send((node.host, node.port), request, dt.DescribeTransactionsResponse)
            (state,) = response.transaction_states
            if state.error_code == TransactionalIdNotFound.code:
                raise TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
            raise_error(state.error_code, None)
            return TransactionDescription(
                transactional_id,
                state.transaction_state,
                node.broker_id,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                None if state.transaction_start_time_ms < 0 else state.transaction_start_time_ms,
                tuple(sorted(TopicPartition(topic.topic, n) for topic in state.topics for n in topic.partitions)),
            )

        with self._timed():
            return self._repeated(ask)

    def _coordinator(self, transactional_id: str) -> Node:
        response = self._ask_any(
            fc.FindCoordinatorRequest(key=transactional_id, key_type=_TRANSACTION_KEY),
            fc.FindCoordinatorResponse,
            max_version=_FIND_ONE_VERSION,
        )
        raise_error(response.error_code, response.error_message)
        return Node(response.node_id, response.host, response.port, None)

    def open_transactions(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> tuple[list[OpenTransaction], dict[TopicPartition, ApiError]]:
        """As the leaders of the partitions have them, by partition and first offset; and the error of each partition
        that has none, or whose producers may not be seen."""
        found: list[OpenTransaction] = []
        errors: dict[TopicPartition, ApiError] = {}
        left = set(topic_partitions)

        def ask() -> None:
            passing = None
            for node, led in self._by_leader(left).items():
                for tp, answer in self._producers_at(node, led).items():
                    left.discard(tp)
                    if isinstance(answer, _PASSING):
                        left.add(tp)
                        passing = answer
                    elif isinstance(answer, ApiError):
                        errors[tp] = answer
                    else:
                        found.extend(answer)
            if passing is not None:
                raise passing

        with self._timed():
            self._repeated(ask)
        return sorted(found), errors

    def _by_leader(self, topic_partitions: Collection[TopicPartition]) -> dict[Node, list[TopicPartition]]:
        """Raises LeaderNotAvailable for a partition without a leader."""
        cluster = self.describe_cluster({tp.topic for tp in topic_partitions})
        by_leader: dict[Node, list[TopicPartition]] = {}
        for tp in sorted(topic_partitions):
            node = cluster.brokers.get(cluster.topics[tp.topic].partitions[tp.partition].leader)
            if node is None:
                raise LeaderNotAvailable(f"{tp} has no leader")
            by_leader.setdefault(node, []).append(tp)
        return by_leader

    def _producers_at(
        self, node: Node, led: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, list[OpenTransaction] | ApiError]:
        by_topic: dict[str, list[int]] = {}
        for name, number in led:
            by_topic.setdefault(name, []).append(number)
        topics = [dp.TopicRequest(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        response = self._send(
            (node.host, node.port), dp.DescribeProducersRequest(topics=topics), dp.DescribeProducersResponse
        )
        answers: dict[TopicPartition, list[OpenTransaction] | ApiError] = {}
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                error = error_of(partition.error_code, partition.error_message)
                answers[tp] = error or [
                    OpenTransaction(
                        tp,
                        producer.current_txn_start_offset,
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.last_timestamp,
                    )
                    for producer in partition.active_producers
                    if producer.current_txn_start_offset >= 0
                ]
        return answers

    def coordinated(self, opened: Iterable[OpenTransaction]) -> dict[OpenTransaction, str]:
        """The transactional id of each whose coordinator has it too, and will end it.  The others hang, unless they
        have ended meanwhile: look again.  Raises the error of a broker that could not be asked."""
        opened = list(opened)
        if not opened:
            return {}
        listed, errors = self.list_transactions(producer_ids={transaction.producer_id for transaction in opened})
        if errors:
            raise next(iter(errors.values()))
        found: dict[OpenTransaction, str] = {}
        for transactional_id in (listed_one.transactional_id for listed_one in listed):
            try:
                described = self.describe_transaction(transactional_id)
            except TransactionalIdNotFound:  # removed meanwhile
                continue
            for transaction in opened:
                if (
                    transaction.producer_id == described.producer_id
                    and transaction.topic_partition in described.partitions
                ):
                    found[transaction] = transactional_id
        return found

    def abort_in_partition(self, transaction: OpenTransaction) -> None:
        """Write an ABORT marker to this partition alone; what the coordinator knows of the producer stays as it is.

        Raises ClusterAuthorizationFailed, TransactionCoordinatorFenced, InvalidProducerEpoch and so on.
        """
        tp = transaction.topic_partition
        marker = wtm.WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[wtm.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            # -1: the producer has no marker there yet, so any epoch will do.
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )

        def ask() -> None:
            (node,) = self._by_leader([tp])
            request = wtm.WriteTxnMarkersRequest(markers=[marker])
            response = self._send((node.host, node.port), request, wtm.WriteTxnMarkersResponse)
            raise_error(response.markers[0].topics[0].partitions[0].error_code, None)

        with self._timed():
            self._repeated(ask)

    def _repeated(self, ask: Callable[[], T]) -> T:
        """Within _timed().  Raises the last error that passes at the deadline."""
        deadline_ms = self._deadline_ms
        assert deadline_ms is not None
        while True:
            try:
                return ask()
            except _PASSING:
                if self._time.hi_res_clock_ms() + RETRY_MS > deadline_ms:
                    raise
            self._time.sleep(RETRY_MS)
