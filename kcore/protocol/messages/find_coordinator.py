"""FindCoordinator (10): the broker of a group or transactional id."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(Message):
    """Which broker coordinates a group (key type 0) or a transactional id (1); several keys from version 4."""

    api_key = ApiKey.FIND_COORDINATOR
    min_version, max_version, flexible_version = 0, 6, 3

    key: str = string("0-3")
    key_type: int = int8("1+")
    coordinator_keys: list[str] = array("string", "4+")


class Coordinator(Struct):
    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Message):
    """The coordinators; one in the outer fields up to version 3, a list from version 4."""

    api_key = ApiKey.FIND_COORDINATOR
    min_version, max_version, flexible_version = 0, 6, 3

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
