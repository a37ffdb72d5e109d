"""DescribeAcls (29): which ACLs there are."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, SecurityDisabled
from kcore.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kcore.security.acl import AccessControlEntry, ResourcePattern
from kcore.server.requests.acl_requests import NO_AUTHORIZER, acl_filter
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # there may be many ACLs

    def __init__(self, services: Services) -> None:
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeAclsRequest) -> None:
        try:
            authorizer = self._auth.authorizer
            if authorizer is None:
                raise SecurityDisabled(NO_AUTHORIZER)
            entries_by_pattern: dict[ResourcePattern, list[AccessControlEntry]] = {}
            for pattern, entry in authorizer.acls(acl_filter(body)):
                entries_by_pattern.setdefault(pattern, []).append(entry)
        except ApiError as error:
            context.respond(DescribeAclsResponse(error_code=error.code, error_message=str(error)))
            return
        resources = [
            DescribeAclsResource(
                resource_type=pattern.resource_type,
                resource_name=pattern.name,
                pattern_type=pattern.pattern_type,
                acls=[
                    AclDescription(
                        principal=entry.principal,
                        host=entry.host,
                        operation=entry.operation,
                        permission_type=entry.permission_type,
                    )
                    for entry in entries
                ],
            )
            for pattern, entries in entries_by_pattern.items()
        ]
        context.respond(DescribeAclsResponse(error_code=NONE, error_message=None, resources=resources))

    def error_response(self, body: DescribeAclsRequest, error_code: int, version: int) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=error_code, error_message=None)
