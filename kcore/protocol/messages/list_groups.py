"""ListGroups (16): the groups of a coordinator."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string


class ListGroupsRequest(Message):
    """List the groups that this broker coordinates, filtered by state and type."""

    api_key = ApiKey.LIST_GROUPS
    min_version, max_version, flexible_version = 0, 5, 3

    states_filter: list[str] = array("string", "4+")
    types_filter: list[str] = array("string", "5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string("4+", ignorable=True)
    group_type: str = string("5+", ignorable=True)


class ListGroupsResponse(Message):
    """Group ids with protocol type, state and type."""

    api_key = ApiKey.LIST_GROUPS
    min_version, max_version, flexible_version = 0, 5, 3

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
