"""AlterPartition (56): a leader has the controller change its partitions' ISRs.

Java brokers send it from inter.broker.protocol.version 2.7 on; kcore's leaders write the state node themselves, as
older ones do.  Source: KIP-497, KIP-704, KIP-841, KIP-903.
"""

from __future__ import annotations

from uuid import UUID

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string, uuid


class BrokerState(Struct):
    """broker_epoch: of the registration with which the broker has fetched; -1 is not compared."""

    broker_id: int = int32("3+")
    broker_epoch: int = int64("3+", default=-1)


class AlterPartitionPartitionData(Struct):
    """partition_epoch: version of the state that the leader knows.  leader_recovery_state: 0 recovered, 1 not yet."""

    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array("int32", "0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, "3+")
    leader_recovery_state: int = int8("1+")
    partition_epoch: int = int32()


class AlterPartitionTopicData(Struct):
    topic_name: str = string("0-1", ignorable=True)
    topic_id: UUID = uuid("2+", ignorable=True)
    partitions: list[AlterPartitionPartitionData] = array(AlterPartitionPartitionData)


class AlterPartitionRequest(Message):
    api_key = ApiKey.ALTER_PARTITION
    min_version, max_version, flexible_version = 0, 3, 0

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[AlterPartitionTopicData] = array(AlterPartitionTopicData)


class AlterPartitionPartitionState(Struct):
    """The state as it is stored now; of a partition with an error only the index and the code count."""

    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array("int32")
    leader_recovery_state: int = int8("1+", ignorable=True)
    partition_epoch: int = int32()


class AlterPartitionTopicState(Struct):
    topic_name: str = string("0-1", ignorable=True)
    topic_id: UUID = uuid("2+", ignorable=True)
    partitions: list[AlterPartitionPartitionState] = array(AlterPartitionPartitionState)


class AlterPartitionResponse(Message):
    api_key = ApiKey.ALTER_PARTITION
    min_version, max_version, flexible_version = 0, 3, 0

    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[AlterPartitionTopicState] = array(AlterPartitionTopicState)
