"""DescribeConfigs (32): of topics, this broker, all brokers of the cluster, this broker's loggers, consumer groups, and
subscriptions to client metrics."""

from __future__ import annotations

from kcore.common import topic_names
from kcore.errors import NONE, ApiError, InvalidRequest, UnknownTopicOrPartition, code_of
from kcore.log.log_config import LogConfig
from kcore.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kcore.security.acl import AclOperation
from kcore.server.config.config_entries import (
    DEFAULT_CONFIG,
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    logger_entries,
    topic_entries,
)
from kcore.server.requests.config_access import check_config_access
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32


class Handler:
    runs_on = RunsOn.POOL  # some 200 settings for each topic or broker of the request

    def __init__(self, services: Services) -> None:
        self._cache = services.metadata_cache
        self._admin = services.admin_manager
        self._config = services.config
        self._broker_configs = services.broker_configs
        self._broker_loggers = services.broker_loggers
        self._group_configs = services.group_configs
        self._client_metrics = services.client_metrics
        self._auth = services.auth

    def handle(self, context: RequestContext, body: DescribeConfigsRequest) -> None:
        # Each resource once: one topic 20,000 times in a request of 0.1 MB would make a response of 87 MB.  The keys
        # are the last ones given for it, as in Kafka 2.4, which makes a map of the request; Kafka 4.x repeats it.
        resources = {(resource.resource_type, resource.resource_name): resource for resource in body.resources}
        context.respond(
            DescribeConfigsResponse(
                results=[self._describe(resource, body, context) for resource in resources.values()]
            )
        )

    def _describe(
        self, resource: DescribeConfigsResource, body: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResult:
        version = context.api_version
        try:
            check_config_access(self._auth, context, AclOperation.DESCRIBE_CONFIGS, resource)
            if resource.resource_type == _TOPIC:
                entries = self._topic(resource.resource_name)
            elif resource.resource_type == _BROKER:
                entries = self._broker(resource.resource_name)
            elif resource.resource_type == _BROKER_LOGGER:
                self._broker_loggers.check_name(resource.resource_name)
                entries = logger_entries(self._broker_loggers.levels())
            elif resource.resource_type == _GROUP:
                entries = self._group(resource.resource_name)
            elif resource.resource_type == _CLIENT_METRICS:
                entries = self._subscription(resource.resource_name)
            else:
                raise InvalidRequest(f"Unsupported resource type: {resource.resource_type}")
        except ApiError as error:
            return DescribeConfigsResult(
                error_code=code_of(error),
                error_message=str(error),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        wanted = set(resource.configuration_keys or ())
        return DescribeConfigsResult(
            error_code=NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[_result(entry, body, version) for entry in entries if not wanted or entry.name in wanted],
        )

    def _topic(self, name: str) -> list[ConfigEntry]:
        topic_names.validate(name)
        if self._cache.topic(name) is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        own = self._admin.topic_config(name)
        return topic_entries(LogConfig.of_topic(own, self._config.log_config), self._config)

    def _broker(self, name: str) -> list[ConfigEntry]:
        is_cluster = self._broker_configs.is_cluster(name)
        return cluster_entries(self._config) if is_cluster else broker_entries(self._config)

    def _group(self, group_id: str) -> list[ConfigEntry]:
        """Of any group: it needs not be there."""
        if not group_id:
            raise InvalidRequest("Group name must not be empty")
        return group_entries(self._group_configs.config_of(group_id), self._config)

    def _subscription(self, name: str) -> list[ConfigEntry]:
        if not name:
            raise InvalidRequest("Client metrics subscription name must not be empty")
        return client_metrics_entries(self._client_metrics.config_of(name))

    def error_response(self, body: DescribeConfigsRequest, error_code: int, version: int) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    error_code=error_code, resource_type=resource.resource_type, resource_name=resource.resource_name
                )
                for resource in body.resources
            ]
        )


def _result(entry: ConfigEntry, body: DescribeConfigsRequest, version: int) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=version == 0 and entry.source == DEFAULT_CONFIG,
        config_source=entry.source,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if body.include_synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.documentation if body.include_documentation else None,
    )
