"""AddOffsetsToTxn (25): a transaction is about to commit offsets of a group."""

from __future__ import annotations

from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.errors import GroupAuthorizationFailed, TransactionalIdAuthorizationFailed
from kcore.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import code_for_version, may_write_transactions, transaction_writes_run_on


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = transaction_writes_run_on(services.admin_manager)
        self._transaction_coordinator = services.transaction_coordinator
        self._coordinators = services.coordinators
        self._auth = services.auth
        self._config = services.config

    def handle(self, context: RequestContext, body: AddOffsetsToTxnRequest) -> None:
        def respond(error_code: int) -> None:
            code = code_for_version(error_code, context.api_version, fenced_since=2)
            context.respond(AddOffsetsToTxnResponse(error_code=code))

        if not may_write_transactions(self._auth, context, body.transactional_id):
            respond(TransactionalIdAuthorizationFailed.code)
            return
        if not self._auth.authorize(context, AclOperation.READ, ResourceType.GROUP, body.group_id):
            respond(GroupAuthorizationFailed.code)
            return
        number = self._coordinators.partition_for(GROUP_METADATA_TOPIC, body.group_id)
        self._transaction_coordinator.add_partitions(
            body.transactional_id,
            Producer(body.producer_id, body.producer_epoch),
            frozenset({TopicPartition(GROUP_METADATA_TOPIC, number)}),
            respond,
            max_wait_ms=self._config["add.partitions.to.txn.retry.backoff.max.ms"],
        )

    def error_response(self, body: AddOffsetsToTxnRequest, error_code: int, version: int) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=error_code)
