"""ConfigClient: reads and changes the settings of topics, brokers, groups and client metrics of a cluster.

Source of the requests: KIP-133 (DescribeConfigs), KIP-226 (where a value comes from), KIP-339
(IncrementalAlterConfigs).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, TypeVar

from kcore.client.admin_client import AdminClient, raise_error
from kcore.errors import BrokerNotAvailable
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.schema import Message

_M = TypeVar("_M", bound=Message)

_SET, _DELETE = 0, 1


class ResourceKind(IntEnum):
    """What has settings.  Source: org.apache.kafka.common.config.ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from.  Source: DescribeConfigsResponse.ConfigSource, Kafka."""

    UNKNOWN = -1
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigResource(NamedTuple):
    """name: of a broker its id, or "" for the settings that all brokers have."""

    kind: ResourceKind
    name: str

    @property
    def own_source(self) -> ConfigSource:
        """That of a value which the resource has itself."""
        if self.kind is ResourceKind.BROKER:
            return ConfigSource.BROKER if self.name else ConfigSource.ALL_BROKERS
        return ConfigSource[self.kind.name]


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: ConfigSource


class Setting(NamedTuple):
    """value: None also where the broker does not show it (is_sensitive).  synonyms: what the value is chosen from, the
    winner first.  documentation: None from brokers before 2.6."""

    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None
    synonyms: tuple[Synonym, ...]

    def without(self, source: ConfigSource) -> Synonym | None:
        """What holds once the value of this source is deleted; None if nothing does."""
        return next((synonym for synonym in self.synonyms if synonym.source is not source), None)


class ConfigClient(AdminClient):
    """For one thread.  What is about a broker's own settings goes to that broker; it raises BrokerNotAvailable where
    that one is not alive."""

    def settings(self, resource: ConfigResource) -> dict[str, Setting]:
        """By name.  Raises UnknownTopicOrPartition, InvalidRequest and so on."""
        asked = dc.DescribeConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
        )
        request = dc.DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
        response = self._ask_for(resource, request, dc.DescribeConfigsResponse)
        (result,) = response.results
        raise_error(result.error_code, result.error_message)
        return {config.name: _setting(config) for config in sorted(result.configs, key=lambda config: config.name)}

    def alter_settings(
        self, resource: ConfigResource, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set settings, None deletes one; with validate_only only say whether that is allowed.

        Raises InvalidConfig, InvalidRequest for a setting that a running broker cannot change, and so on.
        """
        configs = [
            iac.AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
            for name, value in changes.items()
        ]
        asked = iac.AlterConfigsResource(resource_type=resource.kind, resource_name=resource.name, configs=configs)
        request = iac.IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only)
        response = self._ask_for(resource, request, iac.IncrementalAlterConfigsResponse)
        for result in response.responses:
            raise_error(result.error_code, result.error_message)

    def _ask_for(self, resource: ConfigResource, request: Message, response_class: type[_M]) -> _M:
        if resource.kind is not ResourceKind.BROKER or not resource.name:
            return self._ask_any(request, response_class)
        brokers = self.describe_cluster(()).brokers
        node = brokers.get(int(resource.name))
        if node is None:
            alive = ", ".join(map(str, brokers)) or "none"
            raise BrokerNotAvailable(
                f"broker {resource.name} is not alive, and it alone knows its settings; alive: {alive}"
            )
        with self._timed():
            return self._send_repeatable((node.host, node.port), request, response_class)


def _setting(config: dc.DescribeConfigsResourceResult) -> Setting:
    source = _source(config.config_source)
    if source is ConfigSource.UNKNOWN and config.is_default:  # version 0
        source = ConfigSource.DEFAULT
    return Setting(
        config.value,
        source,
        config.read_only,
        config.is_sensitive,
        config.documentation,
        tuple(Synonym(synonym.name, synonym.value, _source(synonym.source)) for synonym in config.synonyms),
    )


def _source(code: int) -> ConfigSource:
    try:
        return ConfigSource(code)
    except ValueError:  # one of later versions
        return ConfigSource.UNKNOWN
