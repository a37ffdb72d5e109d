"""StopReplica (5): partitions that a broker is to host no more, from the controller.  Source: KIP-380, KIP-570.

Version 0 lists partitions, 1-2 group them by topic, 3 and above say for each whether its log is deleted.
"""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, boolean, int16, int32, int64, string


class StopReplicaPartitionV0(Struct):
    topic_name: str = string("0")
    partition_index: int = int32("0")


class StopReplicaTopicV1(Struct):
    name: str = string("1-2")
    partition_indexes: list[int] = array("int32", "1-2")


class StopReplicaPartitionState(Struct):
    """leader_epoch: -1 is not compared, -2 says that the topic is being deleted."""

    partition_index: int = int32("3+")
    leader_epoch: int = int32("3+", default=-1)
    delete_partition: bool = boolean("3+")


class StopReplicaTopicState(Struct):
    topic_name: str = string("3+")
    partition_states: list[StopReplicaPartitionState] = array(StopReplicaPartitionState, "3+")


class StopReplicaRequest(Message):
    """delete_partitions: of versions 0-2, for all partitions of the request."""

    api_key = ApiKey.STOP_REPLICA
    min_version, max_version, flexible_version = 0, 4, 2

    controller_id: int = int32()
    is_kraft_controller: bool = boolean("4+")
    controller_epoch: int = int32()
    broker_epoch: int = int64("1+", default=-1, ignorable=True)
    delete_partitions: bool = boolean("0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = array(StopReplicaPartitionV0, "0")
    topics: list[StopReplicaTopicV1] = array(StopReplicaTopicV1, "1-2")
    topic_states: list[StopReplicaTopicState] = array(StopReplicaTopicState, "3+")


class StopReplicaPartitionError(Struct):
    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16()


class StopReplicaResponse(Message):
    """An error of the whole request, or one code for each partition."""

    api_key = ApiKey.STOP_REPLICA
    min_version, max_version, flexible_version = 0, 4, 2

    error_code: int = int16()
    partition_errors: list[StopReplicaPartitionError] = array(StopReplicaPartitionError)
