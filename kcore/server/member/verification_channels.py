"""VerificationChannels: what coordinators on other brokers are asked about the partitions of transactions."""

from __future__ import annotations

import threading
from collections.abc import Set
from dataclasses import dataclass

from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.coordinator.transaction.transaction_verifier import OnVerified, VerificationResults
from kcore.errors import (
    NONE,
    ApiError,
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    UnsupportedVersion,
    for_code,
)
from kcore.protocol.messages.add_partitions_to_txn import (
    FIRST_VERSION_OF_BROKERS,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kcore.protocol.schema import Message
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.request_channels import RequestChannels


@dataclass(slots=True, eq=False)
class _Question:
    """is_refused: it has an answer, and is not sent."""

    transactional_id: str
    producer: Producer
    partitions: Set[TopicPartition]
    on_answered: OnVerified
    is_refused: bool = False

    def refuse(self, error: ApiError) -> None:
        self.on_answered(dict.fromkeys(self.partitions, error))


def _refusal(earlier: _Question, later: _Question) -> tuple[_Question, ApiError] | None:
    """Which of two questions about an id that wait for the same coordinator is not asked, and its answer.

    None: both are asked, as their producers have different ids.
    Source: AddPartitionsToTxnManager.addTxnData, Kafka 3.9, which compares the epochs of different producers too.
    """
    if earlier.producer.producer_id != later.producer.producer_id:
        return None
    if earlier.producer.epoch == later.producer.epoch:
        return earlier, NetworkException(f"{later.transactional_id} has asked again before this was sent")
    older = min(earlier, later, key=lambda question: question.producer.epoch)
    return older, InvalidProducerEpoch(f"{later.transactional_id} has a newer epoch than {older.producer.epoch}")


class VerificationChannels:
    """A VerificationSender.  Thread-safe.  Where there is no answer each partition gets NetworkException: the producer
    sends its batches again, and they are asked about again."""

    def __init__(self, broker_id: int, connections: InterBrokerConnections) -> None:
        self._channels = RequestChannels(
            broker_id, connections, "txn-verification", lowest_version=FIRST_VERSION_OF_BROKERS
        )
        self.shutdown = self._channels.shutdown
        self._lock = threading.Lock()
        #: The last question of each (broker id, transactional id) that has not been sent.
        self._waiting: dict[tuple[int, str], _Question] = {}

    def send(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        partitions: Set[TopicPartition],
        on_answered: OnVerified,
        *,
        adds: bool,
    ) -> None:
        question = _Question(transactional_id, producer, partitions, on_answered)
        if not self._enqueue(broker_id, question):
            return

        def answered(answer: Message | OSError | KafkaError) -> None:
            if adds and isinstance(answer, UnsupportedVersion):
                refusal = InvalidTxnState(f"the coordinator of {transactional_id} adds no partitions for other brokers")
                on_answered(dict.fromkeys(partitions, refusal))
            else:
                on_answered(_results(answer, transactional_id, partitions))

        request = _request(transactional_id, producer, partitions, adds=adds)
        self._channels.send(broker_id, request, answered, lambda: self._dequeue(broker_id, question))

    def _enqueue(self, broker_id: int, question: _Question) -> bool:
        """False if it is refused."""
        at = broker_id, question.transactional_id
        with self._lock:
            earlier = self._waiting.get(at)
            refusal = None if earlier is None else _refusal(earlier, question)
            if refusal is not None:
                refusal[0].is_refused = True
            if not question.is_refused:
                self._waiting[at] = question
        if refusal is not None:
            refused, error = refusal
            refused.refuse(error)
        return not question.is_refused

    def _dequeue(self, broker_id: int, question: _Question) -> bool:
        """Its turn has come: whether it is sent.  From then on nothing else refuses it."""
        at = broker_id, question.transactional_id
        with self._lock:
            if self._waiting.get(at) is question:
                del self._waiting[at]
            return not question.is_refused


def _request(
    transactional_id: str, producer: Producer, partitions: Set[TopicPartition], *, adds: bool
) -> AddPartitionsToTxnRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=not adds,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in by_topic.items()],
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _results(
    answer: Message | OSError | KafkaError, transactional_id: str, partitions: Set[TopicPartition]
) -> VerificationResults:
    if isinstance(answer, UnsupportedVersion):  # a broker before Kafka 3.6
        return dict.fromkeys(partitions)
    if not isinstance(answer, AddPartitionsToTxnResponse):
        assert not isinstance(answer, Message)
        return dict.fromkeys(partitions, NetworkException(plain_error(answer)))
    if answer.error_code == ClusterAuthorizationFailed.code:
        return dict.fromkeys(partitions, InvalidTxnState("the coordinator lets this broker not ask about transactions"))
    if answer.error_code != NONE:
        return dict.fromkeys(partitions, for_code(answer.error_code)(transactional_id))
    results: dict[TopicPartition, ApiError | None] = dict.fromkeys(
        partitions, NetworkException("the answer does not name the partition")
    )
    for transaction in answer.results_by_transaction:
        for topic in transaction.topic_results:
            for partition in topic.results_by_partition:
                tp, code = TopicPartition(topic.name, partition.partition_index), partition.partition_error_code
                if transaction.transactional_id == transactional_id and tp in results:
                    results[tp] = None if code == NONE else for_code(code)(f"{transactional_id}: {tp}")
    return results
