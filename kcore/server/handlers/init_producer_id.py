"""InitProducerId (22): an id for an idempotent producer."""

from __future__ import annotations

from kcore.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    TransactionalIdAuthorizationFailed,
)
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1


class Handler:
    runs_on = RunsOn.PRODUCER_IDS

    def __init__(self, services: Services) -> None:
        self._producer_ids = services.producer_ids
        self._auth = services.auth

    def handle(self, context: RequestContext, body: InitProducerIdRequest) -> None:
        if body.transactional_id == "" or (body.producer_id == NO_PRODUCER_ID) != (
            body.producer_epoch == NO_PRODUCER_EPOCH
        ):
            context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
        elif body.transactional_id is not None:
            # No transaction coordinator: docs/compatibility.md says why it is this error.
            context.respond(self.error_response(body, TransactionalIdAuthorizationFailed.code, context.api_version))
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

    def _may_write_idempotently(self, context: RequestContext) -> bool:
        """Who may write to a topic may (KIP-679)."""
        return self._auth.authorize_cluster(
            context, AclOperation.IDEMPOTENT_WRITE, log_if_denied=False
        ) or self._auth.authorize_by_resource_type(context, AclOperation.WRITE, ResourceType.TOPIC)

    def error_response(self, body: InitProducerIdRequest, error_code: int, version: int) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=0)
