"""AlterPartitionReassignments (45): move partitions to other replicas, or stop moving them (KIP-455)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int16, int32, string


class ReassignablePartition(Struct):
    """replicas: the new ones, the preferred leader first; None cancels the reassignment that runs."""

    partition_index: int = int32()
    replicas: list[int] | None = array("int32", nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Message):
    """The answer does not wait for the end of a reassignment, thus timeout_ms changes nothing."""

    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    min_version, max_version, flexible_version = 0, 1, 0

    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Message):
    """error_code: of the whole request; then there are no partitions."""

    api_key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
    min_version, max_version, flexible_version = 0, 1, 0

    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
