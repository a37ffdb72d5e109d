"""AllocateProducerIds (67): the controller gives a Java broker a block of producer ids."""

from __future__ import annotations

from kcore.errors import ApiError, NotController, StaleBrokerEpoch, code_of
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import StoreError
from kcore.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.PRODUCER_IDS

    def __init__(self, services: Services) -> None:
        self._member = services.member
        self._producer_ids = services.producer_ids

    def handle(self, context: RequestContext, body: AllocateProducerIdsRequest) -> None:
        try:
            if not self._member.is_controller:
                raise NotController(f"broker {self._member.broker_id} is not the controller")
            if self._member.registration.epoch_of(body.broker_id) != body.broker_epoch:
                raise StaleBrokerEpoch(f"broker {body.broker_id} is not registered with epoch {body.broker_epoch}")
            block = self._producer_ids.allocate_block(body.broker_id)
        except ApiError as error:
            context.respond(AllocateProducerIdsResponse(error_code=code_of(error)))
        except StoreError as error:
            context.respond(AllocateProducerIdsResponse(error_code=api_error(error).code))
        else:
            length = block.block_end - block.block_start + 1
            context.respond(AllocateProducerIdsResponse(producer_id_start=block.block_start, producer_id_len=length))

    def error_response(
        self, body: AllocateProducerIdsRequest, error_code: int, version: int
    ) -> AllocateProducerIdsResponse:
        return AllocateProducerIdsResponse(error_code=error_code)
