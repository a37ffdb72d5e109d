"""ListGroups (16)."""

from __future__ import annotations

from kcore.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # as many groups as there are

    def __init__(self, services: Services) -> None:
        self._group_admin = services.group_coordinator.admin
        self._auth = services.auth

    def handle(self, context: RequestContext, body: ListGroupsRequest) -> None:
        error_code, groups = self._group_admin.list_groups(body.states_filter, body.types_filter)
        # Who may describe the cluster sees all of them.
        if not self._auth.authorize_cluster(context, AclOperation.DESCRIBE, log_if_denied=False):
            group_ids = [group.group_id for group in groups]
            permitted = self._auth.filter_by_authorized(
                context, AclOperation.DESCRIBE, ResourceType.GROUP, group_ids, log_if_denied=False
            )
            groups = [group for group in groups if group.group_id in permitted]
        context.respond(
            ListGroupsResponse(
                error_code=error_code,
                groups=[
                    ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type,
                        group_state=group.state,
                        group_type=group.group_type,
                    )
                    for group in groups
                ],
            )
        )

    def error_response(self, body: ListGroupsRequest, error_code: int, version: int) -> ListGroupsResponse:
        return ListGroupsResponse(error_code=error_code)
