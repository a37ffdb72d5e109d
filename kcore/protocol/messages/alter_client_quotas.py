"""AlterClientQuotas (49; KIP-546)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, float64, int16, int32, string


class EntityData(Struct):
    """entity_name: None for the default of the type."""

    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


class OpData(Struct):
    """remove: the quota no longer holds, and value means nothing."""

    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class EntryData(Struct):
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


class AlterClientQuotasRequest(Message):
    """Set and remove quotas of users and client ids."""

    api_key = ApiKey.ALTER_CLIENT_QUOTAS
    min_version, max_version, flexible_version = 0, 1, 1

    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class EntryResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    entity: list[EntityData] = array(EntityData)


class AlterClientQuotasResponse(Message):
    """One result for each entry, in the order of the request."""

    api_key = ApiKey.ALTER_CLIENT_QUOTAS
    min_version, max_version, flexible_version = 0, 1, 1

    throttle_time_ms: int = int32()
    entries: list[EntryResult] = array(EntryResult)
