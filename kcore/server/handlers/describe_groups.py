"""DescribeGroups (15)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, GroupAuthorizationFailed, GroupIdNotFound
from kcore.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.auth_helper import NOT_ASKED
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # as many members as the groups have

    def __init__(self, services: Services) -> None:
        self._group_admin = services.group_coordinator.admin
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeGroupsRequest) -> None:
        groups = []
        # Each group once: many times one with many members would make a very large response.
        group_ids = list(dict.fromkeys(body.groups))
        permitted = self._auth.filter_by_authorized(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_ids)
        for group_id in group_ids:
            if group_id not in permitted:
                groups.append(DescribedGroup(error_code=GroupAuthorizationFailed.code, group_id=group_id))
                continue
            try:
                group = self._group_admin.describe_group(group_id)
            except ApiError as error:
                groups.append(DescribedGroup(error_code=error.code, group_id=group_id))
                continue
            error_code, error_message = NONE, None
            if group.state == "Dead" and context.api_version >= 6:
                # Older versions say only that it is dead.  Source: KIP-1043.
                error_code, error_message = GroupIdNotFound.code, f"Group {group_id} not found."
            groups.append(
                DescribedGroup(
                    error_code=error_code,
                    error_message=error_message,
                    group_id=group_id,
                    group_state=group.state,
                    protocol_type=group.protocol_type,
                    protocol_data=group.protocol_name,
                    members=[
                        DescribedGroupMember(
                            member_id=member.member_id,
                            group_instance_id=member.group_instance_id,
                            client_id=member.client_id,
                            client_host=member.client_host,
                            member_metadata=member.metadata,
                            member_assignment=member.assignment,
                        )
                        for member in group.members
                    ],
                    authorized_operations=(
                        self._auth.authorized_operations(context, ResourceType.GROUP, group_id)
                        if body.include_authorized_operations and error_code == NONE
                        else NOT_ASKED
                    ),
                )
            )
        context.respond(DescribeGroupsResponse(groups=groups))

    def error_response(self, body: DescribeGroupsRequest, error_code: int, version: int) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[DescribedGroup(error_code=error_code, group_id=group_id) for group_id in body.groups]
        )
