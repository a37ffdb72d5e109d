"""ListTransactions (66): the transactional ids that this broker coordinates."""

from __future__ import annotations

from kcore.coordinator.transaction import transaction_state
from kcore.errors import ApiError
from kcore.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_STATES = {state.shown: state for state in transaction_state.TransactionState}


class Handler:
    runs_on = RunsOn.POOL  # there may be very many

    def __init__(self, services: Services) -> None:
        self._transaction_coordinator = services.transaction_coordinator
        self._auth = services.auth

    def handle(self, context: RequestContext, body: ListTransactionsRequest) -> None:
        states = [_STATES[name] for name in body.state_filters if name in _STATES]
        unknown = [name for name in body.state_filters if name not in _STATES]
        try:
            found = self._transaction_coordinator.list_transactions(
                states, body.producer_id_filters, body.duration_filter
            )
        except ApiError as error:
            context.respond(ListTransactionsResponse(error_code=error.code, unknown_state_filters=unknown))
            return
        if body.state_filters and not states:
            found = []
        names = [metadata.transactional_id for metadata in found]
        permitted = self._auth.filter_by_authorized(
            context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, names, log_if_denied=False
        )
        context.respond(
            ListTransactionsResponse(
                unknown_state_filters=unknown,
                transaction_states=[
                    TransactionState(
                        transactional_id=metadata.transactional_id,
                        producer_id=metadata.producer_id,
                        transaction_state=metadata.state.shown,
                    )
                    for metadata in found
                    if metadata.transactional_id in permitted
                ],
            )
        )

    def error_response(self, body: ListTransactionsRequest, error_code: int, version: int) -> ListTransactionsResponse:
        return ListTransactionsResponse(error_code=error_code)
