"""DeleteGroups (42)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string


class DeleteGroupsRequest(Message):
    """Delete empty groups and their offsets."""

    api_key = ApiKey.DELETE_GROUPS
    min_version, max_version, flexible_version = 0, 3, 2

    groups_names: list[str] = array("string")


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class DeleteGroupsResponse(Message):
    """One result for each group."""

    api_key = ApiKey.DELETE_GROUPS
    min_version, max_version, flexible_version = 0, 3, 2

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
