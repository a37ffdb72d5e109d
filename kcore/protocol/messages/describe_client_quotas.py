"""DescribeClientQuotas (48; KIP-546)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, float64, int8, int16, int32, string


class ComponentData(Struct):
    """match_type: 0 this name, 1 the default, 2 any that is named or default."""

    entity_type: str = string()
    match_type: int = int8()
    match: str | None = string(nullable="0+")


class DescribeClientQuotasRequest(Message):
    """Which quotas are set for entities that fit all components."""

    api_key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    min_version, max_version, flexible_version = 0, 1, 1

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean()


class EntityData(Struct):
    """entity_name: None for the default of the type."""

    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class ValueData(Struct):
    key: str = string()
    value: float = float64()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    values: list[ValueData] = array(ValueData)


class DescribeClientQuotasResponse(Message):
    """entries is None where there is an error."""

    api_key = ApiKey.DESCRIBE_CLIENT_QUOTAS
    min_version, max_version, flexible_version = 0, 1, 1

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entries: list[EntryData] | None = array(EntryData, nullable="0+")
