"""EndTxn (26): commit or abort a transaction."""

from __future__ import annotations

from kcore.coordinator.transaction.transaction_coordinator import ProducerResult
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION, Producer
from kcore.errors import TransactionalIdAuthorizationFailed
from kcore.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import code_for_version, may_write_transactions, transaction_writes_run_on

#: The first version of a client at transaction version 2.
_RAISES_EPOCH = 5


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = transaction_writes_run_on(services.admin_manager)
        self._transaction_coordinator = services.transaction_coordinator
        self._auth = services.auth

    def handle(self, context: RequestContext, body: EndTxnRequest) -> None:
        def respond(result: ProducerResult) -> None:
            code = code_for_version(result.error_code, context.api_version, fenced_since=2)
            context.respond(
                EndTxnResponse(error_code=code, producer_id=result.producer_id, producer_epoch=result.producer_epoch)
            )

        if not may_write_transactions(self._auth, context, body.transactional_id):
            respond(ProducerResult(TransactionalIdAuthorizationFailed()))
            return
        producer = Producer(body.producer_id, body.producer_epoch)
        version = TRANSACTION_VERSION if context.api_version >= _RAISES_EPOCH else 0
        self._transaction_coordinator.end_transaction(body.transactional_id, producer, body.committed, respond, version)

    def error_response(self, body: EndTxnRequest, error_code: int, version: int) -> EndTxnResponse:
        return EndTxnResponse(error_code=error_code)
