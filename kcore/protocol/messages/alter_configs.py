"""AlterConfigs (33): replace all settings of topics and brokers (KIP-133)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    name: str = string()
    value: str | None = string(nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class AlterConfigsRequest(Message):
    """Give topics (resource type 2) or brokers (4) these settings; those that are not named are deleted."""

    api_key = ApiKey.ALTER_CONFIGS
    min_version, max_version, flexible_version = 0, 2, 2

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class AlterConfigsResponse(Message):
    """One result for each resource."""

    api_key = ApiKey.ALTER_CONFIGS
    min_version, max_version, flexible_version = 0, 2, 2

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
