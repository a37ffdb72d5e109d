"""DeleteGroups (42)."""

from __future__ import annotations

from kcore.errors import GroupAuthorizationFailed
from kcore.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # may fsync, by flush.messages of the offsets topic

    def __init__(self, services: Services) -> None:
        self._group_admin = services.group_coordinator.admin
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DeleteGroupsRequest) -> None:
        group_ids = dict.fromkeys(body.groups_names)
        permitted = self._auth.filter_by_authorized(context, AclOperation.DELETE, ResourceType.GROUP, group_ids)
        codes = dict.fromkeys(group_ids, GroupAuthorizationFailed.code)

        def respond(deleted: dict[str, int]) -> None:
            results = [
                DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in (codes | deleted).items()
            ]
            context.respond(DeleteGroupsResponse(results=results))

        self._group_admin.delete_groups([group_id for group_id in group_ids if group_id in permitted], respond)

    def error_response(self, body: DeleteGroupsRequest, error_code: int, version: int) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[DeletableGroupResult(group_id=group_id, error_code=error_code) for group_id in body.groups_names]
        )
