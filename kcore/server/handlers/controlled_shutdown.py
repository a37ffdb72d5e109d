"""ControlledShutdown (7): a broker that will stop has the controller move its leaders to other brokers."""

from __future__ import annotations

from collections.abc import Collection

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, code_of
from kcore.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    # Not CONTROLLER_REQUESTS: the controller sends some to this broker before it answers.
    runs_on = RunsOn.POOL

    def __init__(self, services: Services) -> None:
        self._member = services.member

    def handle(self, context: RequestContext, body: ControlledShutdownRequest) -> None:
        def on_done(error: ApiError | None, led: Collection[TopicPartition]) -> None:
            remaining = [RemainingPartition(topic_name=topic, partition_index=number) for topic, number in led]
            context.respond(ControlledShutdownResponse(error_code=code_of(error), remaining_partitions=remaining))

        self._member.controller.controlled_shutdown(body.broker_id, body.broker_epoch, on_done)

    def error_response(
        self, body: ControlledShutdownRequest, error_code: int, version: int
    ) -> ControlledShutdownResponse:
        return ControlledShutdownResponse(error_code=error_code)
