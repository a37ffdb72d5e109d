"""DeleteAcls (31)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, SecurityDisabled
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kcore.security.acl import AclBinding
from kcore.server.requests.acl_requests import NO_AUTHORIZER, acl_filter
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.SETTING_CHANGES

    def __init__(self, services: Services) -> None:
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DeleteAclsRequest) -> None:
        results = [self._delete(context, wanted) for wanted in body.filters]
        context.respond(DeleteAclsResponse(filter_results=results))

    def _delete(self, context: RequestContext, wanted: DeleteAclsFilter) -> DeleteAclsFilterResult:
        try:
            if self._auth.authorizer is None:
                raise SecurityDisabled(NO_AUTHORIZER)
            with store_errors_for_clients("ACLs"):
                deleted = self._auth.authorizer.delete_acls(context, acl_filter(wanted))
        except ApiError as error:
            return DeleteAclsFilterResult(error_code=error.code, error_message=str(error))
        return DeleteAclsFilterResult(
            error_code=NONE, error_message=None, matching_acls=[_matching(binding) for binding in deleted]
        )

    def error_response(self, body: DeleteAclsRequest, error_code: int, version: int) -> DeleteAclsResponse:
        return DeleteAclsResponse(
            filter_results=[DeleteAclsFilterResult(error_code=error_code, error_message=None) for _ in body.filters]
        )


def _matching(binding: AclBinding) -> DeleteAclsMatchingAcl:
    pattern, entry = binding
    return DeleteAclsMatchingAcl(
        error_code=NONE,
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )
