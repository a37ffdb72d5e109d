"""SyncGroup (14)."""

from __future__ import annotations

from kcore.coordinator.group.member_metadata import SyncGroupResult
from kcore.errors import InconsistentGroupProtocol
from kcore.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._group_coordinator = services.group_coordinator

    def handle(self, context: RequestContext, body: SyncGroupRequest) -> None:
        def respond(result: SyncGroupResult) -> None:
            context.respond(
                SyncGroupResponse(
                    error_code=result.error_code,
                    protocol_type=result.protocol_type,
                    protocol_name=result.protocol_name,
                    assignment=result.assignment,
                )
            )

        if context.api_version >= 5 and (body.protocol_type is None or body.protocol_name is None):
            # Nullable in the schema for older versions' sake only.
            respond(SyncGroupResult(InconsistentGroupProtocol.code))
            return
        self._group_coordinator.sync_group(
            body.group_id,
            body.generation_id,
            body.member_id,
            body.protocol_type,
            body.protocol_name,
            body.group_instance_id,
            {item.member_id: item.assignment for item in body.assignments},
            respond,
        )

    def error_response(self, body: SyncGroupRequest, error_code: int, version: int) -> SyncGroupResponse:
        return SyncGroupResponse(error_code=error_code)
