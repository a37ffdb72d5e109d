"""AddPartitionsToTxn (24): partitions that a transaction is about to write to.

Up to version 3 from the producer; from version 4 on from the leaders of partitions, which may only ask, or
add what a producer of transaction version 2 writes to (KIP-890).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kcore.common.topic_names import is_internal
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION, Producer
from kcore.errors import (
    NONE,
    ClusterAuthorizationFailed,
    InvalidTxnState,
    OperationNotAttempted,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages.add_partitions_to_txn import (
    FIRST_VERSION_OF_BROKERS,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import code_for_version, may_write_transactions, transaction_writes_run_on


class Handler:
    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self.runs_on = transaction_writes_run_on(services.admin_manager)
        self._transaction_coordinator = services.transaction_coordinator
        self._auth = services.auth
        self._config = services.config

    def handle(self, context: RequestContext, body: AddPartitionsToTxnRequest) -> None:
        if context.api_version >= FIRST_VERSION_OF_BROKERS:
            self._handle_broker(context, body)
        else:
            self._handle_producer(context, body)

    def _handle_broker(self, context: RequestContext, body: AddPartitionsToTxnRequest) -> None:
        if not self._auth.authorize_cluster(context, AclOperation.CLUSTER_ACTION):
            context.respond(self.error_response(body, ClusterAuthorizationFailed.code, context.api_version))
            return
        transactions = body.transactions
        codes: list[Mapping[TopicPartition, int]] = [{} for _ in transactions]
        lock, num_left = threading.Lock(), len(transactions) + 1

        def decided(number: int, results: Mapping[TopicPartition, int]) -> None:
            nonlocal num_left
            with lock:
                codes[number] = results or codes[number]
                num_left -= 1
                if num_left:
                    return
            context.respond(
                AddPartitionsToTxnResponse(
                    results_by_transaction=[
                        AddPartitionsToTxnResult(
                            transactional_id=transaction.transactional_id,
                            topic_results=_topic_results(transaction.topics, of_transaction),
                        )
                        for transaction, of_transaction in zip(transactions, codes, strict=True)
                    ]
                )
            )

        for number, transaction in enumerate(transactions):
            self._decide(transaction, context.api_version, partial(decided, number))
        if transactions:
            decided(0, {})
        else:
            context.respond(AddPartitionsToTxnResponse())

    def _decide(
        self,
        transaction: AddPartitionsToTxnTransaction,
        version: int,
        decided: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        partitions = frozenset(_partitions_of(transaction.topics))
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        coordinator, transactional_id = self._transaction_coordinator, transaction.transactional_id
        if not transaction.verify_only:
            # Only for producers of transaction version 2: those before add their partitions themselves.
            coordinator.add_partitions(
                transactional_id,
                producer,
                partitions,
                lambda code: decided(dict.fromkeys(partitions, code)),
                TRANSACTION_VERSION,
            )
            return
        errors = coordinator.verify_partitions(transactional_id, producer, partitions)
        # Version 4 does not know TRANSACTION_ABORTABLE.
        old = {TransactionAbortable.code: InvalidTxnState.code} if version < 5 else {}
        codes = {tp: NONE if error is None else error.code for tp, error in errors.items()}
        decided({tp: old.get(code, code) for tp, code in codes.items()})

    def _handle_producer(self, context: RequestContext, body: AddPartitionsToTxnRequest) -> None:
        transactional_id = body.v3_and_below_transactional_id
        if not may_write_transactions(self._auth, context, transactional_id):
            code = TransactionalIdAuthorizationFailed.code
            context.respond(self.error_response(body, code, context.api_version))
            return
        partitions = _partitions_of(body.v3_and_below_topics)
        codes = self._refused(context, partitions)
        if any(codes.values()):
            # All or nothing: the others are not added either.
            codes = {tp: code or OperationNotAttempted.code for tp, code in codes.items()}
            context.respond(_response(body, codes))
            return

        def respond(error_code: int) -> None:
            code = code_for_version(error_code, context.api_version, fenced_since=2)
            context.respond(_response(body, dict.fromkeys(partitions, code)))

        producer = Producer(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        self._transaction_coordinator.add_partitions(
            transactional_id,
            producer,
            frozenset(partitions),
            respond,
            max_wait_ms=self._config["add.partitions.to.txn.retry.backoff.max.ms"],
        )

    def _refused(self, context: RequestContext, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """An error code for each partition, NONE where it may be added."""
        cache = self._cache.snapshot
        names = {tp.topic for tp in partitions if not is_internal(tp.topic)}
        permitted = self._auth.filter_by_authorized(context, AclOperation.WRITE, ResourceType.TOPIC, names)
        return {
            tp: TopicAuthorizationFailed.code
            if tp.topic not in permitted
            else NONE
            if cache.contains(tp)
            else UnknownTopicOrPartition.code
            for tp in partitions
        }

    def error_response(
        self, body: AddPartitionsToTxnRequest, error_code: int, version: int
    ) -> AddPartitionsToTxnResponse:
        if version >= FIRST_VERSION_OF_BROKERS:
            return AddPartitionsToTxnResponse(error_code=error_code)
        return _response(body, dict.fromkeys(_partitions_of(body.v3_and_below_topics), error_code))


def _partitions_of(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


def _response(body: AddPartitionsToTxnRequest, codes: Mapping[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topic_results(body.v3_and_below_topics, codes))


def _topic_results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Mapping[TopicPartition, int]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=codes[TopicPartition(topic.name, number)]
                )
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]
