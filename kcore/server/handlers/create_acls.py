"""CreateAcls (30)."""

from __future__ import annotations

from kcore.errors import NONE, ApiError, SecurityDisabled
from kcore.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from kcore.security.acl import AclBinding
from kcore.server.requests.acl_requests import NO_AUTHORIZER, acl_binding
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.SETTING_CHANGES

    def __init__(self, services: Services) -> None:
        self._auth = services.auth

    def handle(self, context: RequestContext, body: CreateAclsRequest) -> None:
        authorizer = self._auth.authorizer
        if authorizer is None:
            disabled = SecurityDisabled(NO_AUTHORIZER)
            context.respond(CreateAclsResponse(results=[_result(disabled) for _ in body.creations]))
            return
        parsed = [_parsed(creation) for creation in body.creations]
        bindings = [item for item in parsed if isinstance(item, AclBinding)]
        errors = iter(authorizer.create_acls(context, bindings))
        results = [_result(next(errors) if isinstance(item, AclBinding) else item) for item in parsed]
        context.respond(CreateAclsResponse(results=results))

    def error_response(self, body: CreateAclsRequest, error_code: int, version: int) -> CreateAclsResponse:
        results = [AclCreationResult(error_code=error_code, error_message=None) for _ in body.creations]
        return CreateAclsResponse(results=results)


def _parsed(creation: object) -> AclBinding | ApiError:
    try:
        return acl_binding(creation)  # type: ignore[arg-type]
    except ApiError as error:
        return error


def _result(error: ApiError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_code=NONE, error_message=None)
    return AclCreationResult(error_code=error.code, error_message=str(error))
