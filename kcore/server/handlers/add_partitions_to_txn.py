"""AddPartitionsToTxn (24): partitions that a transaction is about to write to."""

from __future__ import annotations

from kcore.common.topic_names import is_internal
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.errors import (
    NONE,
    OperationNotAttempted,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
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

    def handle(self, context: RequestContext, body: AddPartitionsToTxnRequest) -> None:
        transactional_id = body.v3_and_below_transactional_id
        if not may_write_transactions(self._auth, context, transactional_id):
            code = TransactionalIdAuthorizationFailed.code
            context.respond(self.error_response(body, code, context.api_version))
            return
        partitions = [TopicPartition(topic.name, p) for topic in body.v3_and_below_topics for p in topic.partitions]
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
        self._transaction_coordinator.add_partitions(transactional_id, producer, frozenset(partitions), respond)

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
        partitions = [TopicPartition(topic.name, p) for topic in body.v3_and_below_topics for p in topic.partitions]
        return _response(body, dict.fromkeys(partitions, error_code))


def _response(body: AddPartitionsToTxnRequest, codes: dict[TopicPartition, int]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=p, partition_error_code=codes[TopicPartition(topic.name, p)]
                    )
                    for p in topic.partitions
                ],
            )
            for topic in body.v3_and_below_topics
        ]
    )
