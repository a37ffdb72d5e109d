"""ListPartitionReassignments (46): the partitions that are moving to other replicas (KIP-455)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string


class ListPartitionReassignmentsTopics(Struct):
    name: str = string()
    partition_indexes: list[int] = array("int32")


class ListPartitionReassignmentsRequest(Message):
    """topics None asks for all."""

    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    min_version, max_version, flexible_version = 0, 0, 0

    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    """replicas: all current ones, including those that are being added or removed."""

    partition_index: int = int32()
    replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")


class OngoingTopicReassignment(Struct):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message):
    """Partitions of the request that are not being reassigned are left out."""

    api_key = ApiKey.LIST_PARTITION_REASSIGNMENTS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
