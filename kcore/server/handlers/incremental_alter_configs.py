"""IncrementalAlterConfigs (44): of topics, this broker, all brokers of the cluster, loggers and consumer groups."""

from __future__ import annotations

from kcore.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcore.server.config.config_changes import ConfigOperation
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.resource_configs import ResourceConfigs, refusals, responses
from kcore.server.requests.services import Services


class Handler:
    def __init__(self, services: Services) -> None:
        self._configs = ResourceConfigs(services)

    def runs_on(self, context: RequestContext, body: IncrementalAlterConfigsRequest) -> RunsOn:
        return self._configs.runs_on(body.resources)

    def handle(self, context: RequestContext, body: IncrementalAlterConfigsRequest) -> None:
        results = self._configs.alter(context, body.resources, _operations, body.validate_only)
        context.respond(IncrementalAlterConfigsResponse(responses=responses(AlterConfigsResourceResponse, results)))

    def error_response(
        self, body: IncrementalAlterConfigsRequest, error_code: int, version: int
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=refusals(AlterConfigsResourceResponse, body.resources, error_code)
        )


def _operations(resource: AlterConfigsResource) -> list[ConfigOperation]:
    return [ConfigOperation(config.name, config.config_operation, config.value) for config in resource.configs]
