"""InitProducerId (22): an id for an idempotent producer."""

from __future__ import annotations

import logging

from kcore.errors import CoordinatorLoadInProgress, InvalidRequest, TransactionalIdAuthorizationFailed
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcore.server.handlers import Services
from kcore.server.request_context import RequestContext
from kcore.server.store_errors import STORE_AWAY

logger = logging.getLogger(__name__)

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1


class Handler:
    may_block = True  # may take a block of ids from the metadata store

    def __init__(self, services: Services) -> None:
        self._producer_ids = services.producer_ids

    def handle(self, context: RequestContext, body: InitProducerIdRequest) -> None:
        if body.transactional_id == "" or (body.producer_id == NO_PRODUCER_ID) != (
            body.producer_epoch == NO_PRODUCER_EPOCH
        ):
            context.respond(self.error_response(body, InvalidRequest.code, context.api_version))
        elif body.transactional_id is not None:
            # No transaction coordinator: docs/compatibility.md says why it is this error.
            context.respond(self.error_response(body, TransactionalIdAuthorizationFailed.code, context.api_version))
        else:
            # An idempotent producer that lost its place gets a new id, as in Kafka; its epoch matters to nobody.
            try:
                producer_id = self._producer_ids.generate_producer_id()
            except STORE_AWAY as error:
                # Retriable, as in Kafka: with UNKNOWN_SERVER_ERROR a producer gives up.
                logger.warning("no producer id: the metadata store cannot be reached: %s", error)
                context.respond(self.error_response(body, CoordinatorLoadInProgress.code, context.api_version))
                return
            context.respond(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    def error_response(self, body: InitProducerIdRequest, error_code: int, version: int) -> InitProducerIdResponse:
        return InitProducerIdResponse(error_code=error_code, producer_id=NO_PRODUCER_ID, producer_epoch=0)
