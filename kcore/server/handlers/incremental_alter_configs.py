"""IncrementalAlterConfigs (44): of topics, of this broker, and of all brokers of the cluster."""

from __future__ import annotations

from collections import Counter

from kcore.errors import NONE, ApiError, InvalidRequest, code_of
from kcore.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcore.server.config_changes import ConfigOperation
from kcore.server.handlers import Services
from kcore.server.request_context import RequestContext

_TOPIC, _BROKER = 2, 4
_OTHERS = {8: "a broker's loggers", 16: "client metrics", 32: "a group"}


class Handler:
    may_block = True  # writes to the metadata store

    def __init__(self, services: Services) -> None:
        self._admin = services.admin_manager
        self._broker_configs = services.broker_configs

    def handle(self, context: RequestContext, body: IncrementalAlterConfigsRequest) -> None:
        counts = Counter((resource.resource_type, resource.resource_name) for resource in body.resources)
        resources = {(resource.resource_type, resource.resource_name): resource for resource in body.resources}
        responses = []
        for key, resource in resources.items():
            try:
                if counts[key] > 1:
                    raise InvalidRequest("Each resource must appear at most once.")
                self._alter(resource, body.validate_only)
                responses.append(_response(resource, None))
            except ApiError as error:
                responses.append(_response(resource, error))
        context.respond(IncrementalAlterConfigsResponse(responses=responses))

    def _alter(self, resource: AlterConfigsResource, validate_only: bool) -> None:
        operations = [ConfigOperation(c.name, c.config_operation, c.value) for c in resource.configs]
        if resource.resource_type == _TOPIC:
            self._admin.alter_topic_config(resource.resource_name, operations, validate_only)
        elif resource.resource_type == _BROKER:
            self._broker_configs.alter(resource.resource_name, operations, validate_only)
        else:
            kind = _OTHERS.get(resource.resource_type, f"resource type {resource.resource_type}")
            raise InvalidRequest(f"Only settings of topics and brokers can be changed, not of {kind}")

    def error_response(
        self, body: IncrementalAlterConfigsRequest, error_code: int, version: int
    ) -> IncrementalAlterConfigsResponse:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=error_code,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in body.resources
            ]
        )


def _response(resource: AlterConfigsResource, error: ApiError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=NONE if error is None else code_of(error),
        error_message=None if error is None else str(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
