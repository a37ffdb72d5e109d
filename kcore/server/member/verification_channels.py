"""VerificationChannels: what coordinators on other brokers are asked about the partitions of transactions."""

from __future__ import annotations

from collections.abc import Set

from kcore.common.text import plain_error
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.coordinator.transaction.transaction_verifier import OnVerified, VerificationResults
from kcore.errors import (
    NONE,
    ApiError,
    ClusterAuthorizationFailed,
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


class VerificationChannels:
    """A VerificationSender.  Thread-safe.  Where there is no answer each partition gets NetworkException: the producer
    sends its batches again, and they are asked about again."""

    def __init__(self, broker_id: int, connections: InterBrokerConnections) -> None:
        self._channels = RequestChannels(
            broker_id, connections, "txn-verification", lowest_version=FIRST_VERSION_OF_BROKERS
        )
        self.shutdown = self._channels.shutdown

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
        def answered(answer: Message | OSError | KafkaError) -> None:
            if adds and isinstance(answer, UnsupportedVersion):
                refusal = InvalidTxnState(f"the coordinator of {transactional_id} adds no partitions for other brokers")
                on_answered(dict.fromkeys(partitions, refusal))
            else:
                on_answered(_results(answer, transactional_id, partitions))

        self._channels.send(broker_id, _request(transactional_id, producer, partitions, adds=adds), answered)


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
