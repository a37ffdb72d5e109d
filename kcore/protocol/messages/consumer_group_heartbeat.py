"""ConsumerGroupHeartbeat (68): be a member of a consumer group of the new protocol (KIP-848)."""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string, struct, uuid


class ConsumerGroupHeartbeatTopicPartitions(Struct):
    topic_id: UUID = uuid()
    partitions: list[int] = array("int32")


class ConsumerGroupHeartbeatRequest(Message):
    """Join, stay in or leave a group; fields that have not changed are null."""

    api_key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    min_version, max_version, flexible_version = 0, 1, 0

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array("string", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] | None = array(
        ConsumerGroupHeartbeatTopicPartitions, nullable="0+", default=None
    )


class ConsumerGroupHeartbeatAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = array(ConsumerGroupHeartbeatTopicPartitions)


class ConsumerGroupHeartbeatResponse(Message):
    """The member's epoch, and its assignment where that has changed."""

    api_key = ApiKey.CONSUMER_GROUP_HEARTBEAT
    min_version, max_version, flexible_version = 0, 1, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: ConsumerGroupHeartbeatAssignment | None = struct(
        ConsumerGroupHeartbeatAssignment, nullable="0+", default=None
    )
