"""DescribeTransactions (65): the states of transactional ids."""

from __future__ import annotations

from kcore.errors import ApiError, TransactionalIdAuthorizationFailed
from kcore.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._transaction_coordinator = services.transaction_coordinator
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeTransactionsRequest) -> None:
        names = body.transactional_ids
        permitted = self._auth.filter_by_authorized(
            context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names
        )
        denied = TransactionalIdAuthorizationFailed.code
        context.respond(
            DescribeTransactionsResponse(
                transaction_states=[
                    self._described(context, name) if name in permitted else _error(name, denied) for name in names
                ]
            )
        )

    def _described(self, context: RequestContext, transactional_id: str) -> TransactionState:
        """Without the topics that the client may not describe."""
        try:
            found = self._transaction_coordinator.describe(transactional_id)
        except ApiError as error:
            return _error(transactional_id, error.code)
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(found.partitions):
            by_topic.setdefault(topic, []).append(number)
        permitted = self._auth.filter_by_authorized(
            context, AclOperation.DESCRIBE, ResourceType.TOPIC, by_topic, log_if_denied=False
        )
        return TransactionState(
            transactional_id=transactional_id,
            transaction_state=found.state.shown,
            transaction_timeout_ms=found.timeout_ms,
            transaction_start_time_ms=found.start_timestamp,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            topics=[
                TopicData(topic=topic, partitions=numbers) for topic, numbers in by_topic.items() if topic in permitted
            ],
        )

    def error_response(
        self, body: DescribeTransactionsRequest, error_code: int, version: int
    ) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(
            transaction_states=[_error(name, error_code) for name in body.transactional_ids]
        )


def _error(transactional_id: str, error_code: int) -> TransactionState:
    return TransactionState(transactional_id=transactional_id, error_code=error_code)
