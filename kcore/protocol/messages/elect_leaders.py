"""ElectLeaders (43): elect the preferred leaders, or any replica where the in-sync ones are gone (KIP-183, KIP-460)."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int8, int16, int32, string


class TopicPartitions(Struct):
    topic: str = string()
    partitions: list[int] = array("int32")


class ElectLeadersRequest(Message):
    """election_type: 0 for preferred leaders, the only one of version 0, or 1 for unclean ones.  topic_partitions None
    stands for all."""

    api_key = ApiKey.ELECT_LEADERS
    min_version, max_version, flexible_version = 0, 2, 2

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message):
    """The partitions of the request; where it named none, those that got a leader or an error."""

    api_key = ApiKey.ELECT_LEADERS
    min_version, max_version, flexible_version = 0, 2, 2

    throttle_time_ms: int = int32()
    error_code: int = int16("1+", ignorable=True)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
