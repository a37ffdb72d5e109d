"""AlterConfigs (33): replace all settings of topics, of this broker, or of all brokers of the cluster."""

from __future__ import annotations

from kcore.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from kcore.server.config.config_changes import AlterConfigOp, ConfigOperation
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.resource_configs import ResourceConfigs, refusals, responses
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self._configs = ResourceConfigs(services)

    def runs_on(self, context: RequestContext, body: AlterConfigsRequest) -> RunsOn:
        return self._configs.runs_on(body.resources)

    def handle(self, context: RequestContext, body: AlterConfigsRequest) -> None:
        results = self._configs.alter(context, body.resources, _operations, body.validate_only, replace=True)
        context.respond(AlterConfigsResponse(responses=responses(AlterConfigsResourceResponse, results)))

    def error_response(self, body: AlterConfigsRequest, error_code: int, version: int) -> AlterConfigsResponse:
        return AlterConfigsResponse(responses=refusals(AlterConfigsResourceResponse, body.resources, error_code))


def _operations(resource: AlterConfigsResource) -> list[ConfigOperation]:
    return [ConfigOperation(config.name, AlterConfigOp.SET, config.value) for config in resource.configs]
