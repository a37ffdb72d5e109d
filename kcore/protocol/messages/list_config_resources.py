"""ListConfigResources (74): names of what has settings.  Version 0 is ListClientMetricsResources of 3.7."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string

_CLIENT_METRICS = 16


class ListConfigResourcesRequest(Message):
    """resource_types: as in DescribeConfigs; empty for all."""

    api_key = ApiKey.LIST_CONFIG_RESOURCES
    min_version, max_version, flexible_version = 0, 1, 0

    resource_types: list[int] = array("int8", "1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8("1+", default=_CLIENT_METRICS, ignorable=True)


class ListConfigResourcesResponse(Message):
    """Resources by type and name."""

    api_key = ApiKey.LIST_CONFIG_RESOURCES
    min_version, max_version, flexible_version = 0, 1, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
