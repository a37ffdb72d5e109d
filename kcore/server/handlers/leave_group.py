"""LeaveGroup (13): one member, from version 3 several."""

from __future__ import annotations

from kcore.coordinator.group.member_metadata import LeaveGroupResult, LeavingMember
from kcore.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from kcore.server.requests.coordinator_writes import group_writes_run_on
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self.runs_on = group_writes_run_on(services.admin_manager)
        self._group_coordinator = services.group_coordinator

    def handle(self, context: RequestContext, body: LeaveGroupRequest) -> None:
        one_member = context.api_version < 3
        leaving = (
            [LeavingMember(body.member_id)]
            if one_member
            else [LeavingMember(member.member_id, member.group_instance_id, member.reason) for member in body.members]
        )

        def respond(result: LeaveGroupResult) -> None:
            if result.error_code:
                context.respond(LeaveGroupResponse(error_code=result.error_code))
                return
            if one_member:
                context.respond(LeaveGroupResponse(error_code=result.members[0].error_code))
                return
            context.respond(
                LeaveGroupResponse(
                    members=[
                        MemberResponse(
                            member_id=member.member_id,
                            group_instance_id=member.group_instance_id,
                            error_code=member.error_code,
                        )
                        for member in result.members
                    ],
                )
            )

        self._group_coordinator.leave_group(body.group_id, leaving, respond)

    def error_response(self, body: LeaveGroupRequest, error_code: int, version: int) -> LeaveGroupResponse:
        return LeaveGroupResponse(error_code=error_code)
