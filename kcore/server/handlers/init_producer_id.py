"""InitProducerId (22): an id for an idempotent producer, and id and epoch for a transactional one."""

from __future__ import annotations

from kcore.coordinator.transaction.transaction_coordinator import ProducerResult
from kcore.coordinator.transaction.transaction_state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from kcore.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services
from kcore.server.requests.transactions import code_for_version, may_write_transactions


class Handler:
    runs_on = RunsOn.PRODUCER_IDS

    def __init__(self, services: Services) -> None:
        self._producer_ids = services.producer_ids
        self._transaction_coordinator = services.transaction_coordinator
        self._auth = services.auth
        self._config = services.config

    def handle(self, context: RequestContext, body: InitProducerIdRequest) -> None:
        if body.transactional_id == "" or (body.producer_id == NO_PRODUCER_ID) != (
            body.producer_epoch == NO_PRODUCER_EPOCH
        ):
            context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
        elif body.transactional_id is not None:
            self._begin_transactions(context, body, body.transactional_id)
        elif not self._may_write_idempotently(context):
            context.respond(self.error_response(body, ClusterAuthorizationFailed.code, context.api_version))
        else:
            # An idempotent producer that lost its place gets a new id, as in Kafka; its epoch has no effect.
            try:
                producer_id = self._producer_ids.generate_producer_id()
            except ApiError as error:
                context.respond(self.error_response(body, error.code, context.api_version))
                return
            context.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    def _begin_transactions(self, context: RequestContext, body: InitProducerIdRequest, transactional_id: str) -> None:
        if not may_write_transactions(self._auth, context, transactional_id) or (
            body.enable_2pc and not self._may_leave_transactions_open(context, transactional_id)
        ):
            context.respond(self.error_response(body, TransactionalIdAuthorizationFailed.code, context.api_version))
            return
        if body.keep_prepared_txn:  # Kafka does not have it either
            context.respond(self.error_response(body, UnsupportedVersion.code, context.api_version))
            return
        expected = None
        if body.producer_id != NO_PRODUCER_ID:
            expected = Producer(body.producer_id, body.producer_epoch)

        def respond(result: ProducerResult) -> None:
            if result.error_code:
                error_code = code_for_version(result.error_code, context.api_version, fenced_since=4)
                context.respond(self.error_response(body, error_code, context.api_version))
            else:
                producer_id, epoch = result.producer_id, result.producer_epoch
                context.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch))

        timeout_ms = None if body.enable_2pc else body.transaction_timeout_ms
        self._transaction_coordinator.init_producer_id(transactional_id, timeout_ms, expected, respond)

    def _may_leave_transactions_open(self, context: RequestContext, transactional_id: str) -> bool:
        """Until somebody else has committed, for ever (KIP-939)."""
        operation, kind = AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID
        is_allowed = self._auth.authorize(context, operation, kind, transactional_id)
        return is_allowed and bool(self._config["transaction.two.phase.commit.enable"])

    def _may_write_idempotently(self, context: RequestContext) -> bool:
        """Who may write to a topic may (KIP-679)."""
        return self._auth.authorize_cluster(
            context, AclOperation.IDEMPOTENT_WRITE, log_if_denied=False
        ) or self._auth.authorize_by_resource_type(context, AclOperation.WRITE, ResourceType.TOPIC)

    def error_response(self, body: InitProducerIdRequest, error_code: int, version: int) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=0)
