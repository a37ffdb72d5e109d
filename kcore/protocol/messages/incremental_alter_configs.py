"""IncrementalAlterConfigs (44): set or delete single settings of topics and brokers (KIP-339)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, string


class AlterableConfig(Struct):
    """config_operation: 0 set, 1 delete, 2 append to a list, 3 take out of a list."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(Message):
    """Change settings of topics (resource type 2) or brokers (4); those that are not named stay."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    min_version, max_version, flexible_version = 0, 1, 1

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class AlterConfigsResourceResponse(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resource_type: int = int8()
    resource_name: str = string()


class IncrementalAlterConfigsResponse(Message):
    """One result for each resource."""

    api_key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    min_version, max_version, flexible_version = 0, 1, 1

    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
