"""ConsumerGroupDescribe (69): what consumer groups of the new protocol (KIP-848) are and do."""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int8, int16, int32, string, struct, uuid


class ConsumerGroupDescribeRequest(Message):
    api_key = ApiKey.CONSUMER_GROUP_DESCRIBE
    min_version, max_version, flexible_version = 0, 1, 0

    group_ids: list[str] = array("string")
    include_authorized_operations: bool = boolean()


class ConsumerGroupDescribeTopicPartitions(Struct):
    topic_id: UUID = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


class ConsumerGroupDescribeAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = array(ConsumerGroupDescribeTopicPartitions)


class ConsumerGroupDescribeMember(Struct):
    """member_type: 0 classic, 1 consumer, -1 unknown."""

    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: ConsumerGroupDescribeAssignment = struct(ConsumerGroupDescribeAssignment)
    target_assignment: ConsumerGroupDescribeAssignment = struct(ConsumerGroupDescribeAssignment)
    member_type: int = int8("1+", default=-1, ignorable=True)


class ConsumerGroupDescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[ConsumerGroupDescribeMember] = array(ConsumerGroupDescribeMember)
    authorized_operations: int = int32(default=-(2**31))


class ConsumerGroupDescribeResponse(Message):
    api_key = ApiKey.CONSUMER_GROUP_DESCRIBE
    min_version, max_version, flexible_version = 0, 1, 0

    throttle_time_ms: int = int32()
    groups: list[ConsumerGroupDescribedGroup] = array(ConsumerGroupDescribedGroup)
