"""DescribeTopicPartitions (75): topics and their partitions, page by page."""

from __future__ import annotations

from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int16, int32, string, struct, uuid


class TopicRequest(Struct):
    name: str = string()


class Cursor(Struct):
    """Where the next page begins."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message):
    """Without topics: all.  cursor: the next_cursor of the page before, None for the first page."""

    api_key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    min_version, max_version, flexible_version = 0, 0, 0

    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1, ignorable=True)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    eligible_leader_replicas: list[int] | None = array("int32", nullable="0+", default=None)
    last_known_elr: list[int] | None = array("int32", nullable="0+", default=None)
    offline_replicas: list[int] = array("int32", ignorable=True)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="0+")
    topic_id: UUID = uuid(default=ZERO_UUID, ignorable=True)
    is_internal: bool = boolean(ignorable=True)
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=-(2**31))


class DescribeTopicPartitionsResponse(Message):
    """One page.  next_cursor: None after the last one."""

    api_key = ApiKey.DESCRIBE_TOPIC_PARTITIONS
    min_version, max_version, flexible_version = 0, 0, 0

    throttle_time_ms: int = int32(ignorable=True)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)
