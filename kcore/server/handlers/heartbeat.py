"""Heartbeat (12)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError
from kcore.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._group_coordinator = services.group_coordinator

    def handle(self, context: RequestContext, body: HeartbeatRequest) -> None:
        error_code = NONE
        try:
            self._group_coordinator.heartbeat(body.group_id, body.member_id, body.group_instance_id, body.generation_id)
        except ApiError as error:
            error_code = error.code
        context.respond(HeartbeatResponse(error_code=error_code))

    def error_response(self, body: HeartbeatRequest, error_code: int, version: int) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=error_code)
