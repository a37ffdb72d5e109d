"""ApiVersions (18): which APIs and versions this broker serves.  Source: KIP-35, KIP-511."""

from __future__ import annotations

import re

from kcore.errors import InvalidRequest
from kcore.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, api_versions_response
from kcore.server.config.features import Features
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: What a client may call itself: its name ends up in logs and metrics.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Handler:
    runs_on = RunsOn.NETWORK_THREAD

    def __init__(self, services: Services) -> None:
        self._served = services.served_apis
        self._features = services.features
        #: By the version of the request, 3 or 4: the response, and the features that it has.
        self._responses: dict[int, tuple[ApiVersionsResponse, Features]] = {}

    def handle(self, context: RequestContext, body: ApiVersionsRequest) -> None:
        if context.api_version >= 3 and not (
            _SOFTWARE.fullmatch(body.client_software_name) and _SOFTWARE.fullmatch(body.client_software_version)
        ):
            context.respond(ApiVersionsResponse(error_code=InvalidRequest.code))
            return
        software = f"{body.client_software_name} {body.client_software_version}".strip()
        context.request.connection.context.client_software = software
        context.respond(self._response(4 if context.api_version >= 4 else 3))

    def _response(self, version: int) -> ApiVersionsResponse:
        features = self._features()
        response, of_features = self._responses.get(version, (None, None))
        if response is None or of_features != features:
            response = api_versions_response(self._served, version=version, transaction_version=features)
            self._responses[version] = response, features
        return response

    def error_response(self, body: ApiVersionsRequest, error_code: int, version: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(error_code=error_code)
