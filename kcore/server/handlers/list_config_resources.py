"""ListConfigResources (74): the topics, brokers, groups and subscriptions whose settings can be described.

Source: KafkaApis.handleListConfigResources, Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcore.errors import UnsupportedVersion
from kcore.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

#: ConfigResource.Type, Kafka.
_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = _ALL = (2, 4, 8, 16, 32)


class Handler:
    runs_on = RunsOn.POOL  # the names of all topics

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._group_configs = services.group_configs
        self._client_metrics = services.client_metrics

    def handle(self, context: RequestContext, body: ListConfigResourcesRequest) -> None:
        wanted = set(body.resource_types) if context.api_version > 0 else {_CLIENT_METRICS}
        if not wanted <= set(_ALL):
            context.respond(self.error_response(body, UnsupportedVersion.code, context.api_version))
            return
        context.respond(
            ListConfigResourcesResponse(
                config_resources=[
                    ConfigResource(resource_name=name, resource_type=resource_type)
                    for resource_type in _ALL
                    if not wanted or resource_type in wanted
                    for name in self._names(context, resource_type)
                ]
            )
        )

    def _names(self, context: RequestContext, resource_type: int) -> Iterable[str]:
        snapshot = self._cache.snapshot
        if resource_type == _TOPIC:
            return sorted(snapshot.topic_names())
        if resource_type == _GROUP:
            return sorted(self._group_configs.configs)
        if resource_type == _CLIENT_METRICS:
            return sorted(self._client_metrics.configs)
        return [str(broker.node_id) for broker, _ in snapshot.endpoints(context.listener_name)]

    def error_response(
        self, body: ListConfigResourcesRequest, error_code: int, version: int
    ) -> ListConfigResourcesResponse:
        return ListConfigResourcesResponse(error_code=error_code)
