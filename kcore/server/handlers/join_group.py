"""JoinGroup (11)."""

from __future__ import annotations

from kcore.coordinator.group.member_metadata import JoinGroupResult
from kcore.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._group_coordinator = services.group_coordinator

    def handle(self, context: RequestContext, body: JoinGroupRequest) -> None:
        version = context.api_version

        def respond(result: JoinGroupResult) -> None:
            protocol_name = result.protocol_name
            context.respond(
                JoinGroupResponse(
                    error_code=result.error_code,
                    generation_id=result.generation_id,
                    protocol_type=result.protocol_type,
                    protocol_name="" if protocol_name is None and version < 7 else protocol_name,
                    leader=result.leader_id,
                    skip_assignment=result.skip_assignment,
                    member_id=result.member_id,
                    members=[
                        JoinGroupResponseMember(
                            member_id=member.member_id,
                            group_instance_id=member.group_instance_id,
                            metadata=member.metadata,
                        )
                        for member in result.members
                    ],
                )
            )

        self._group_coordinator.join_group(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.protocol_type,
            [(protocol.name, protocol.metadata) for protocol in body.protocols],
            rebalance_timeout_ms=body.rebalance_timeout_ms if version >= 1 else body.session_timeout_ms,
            session_timeout_ms=body.session_timeout_ms,
            client_id=context.client_id,
            client_host=f"/{context.client_address}",
            require_known_member_id=version >= 4 and body.group_instance_id is None,
            support_skipping_assignment=version >= 9,
            reason=body.reason,
            callback=respond,
        )

    def error_response(self, body: JoinGroupRequest, error_code: int, version: int) -> JoinGroupResponse:
        return JoinGroupResponse(error_code=error_code, protocol_name="", member_id=body.member_id)
