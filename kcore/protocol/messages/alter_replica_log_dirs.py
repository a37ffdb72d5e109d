"""AlterReplicaLogDirs (34): move logs to other data directories of the broker."""

from __future__ import annotations

from kcore.protocol.api_keys import ApiKey
from kcore.protocol.schema import Message, Struct, array, int16, int32, string


class AlterReplicaLogDirTopic(Struct):
    name: str = string()
    partitions: list[int] = array("int32")


class AlterReplicaLogDir(Struct):
    path: str = string()
    topics: list[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


class AlterReplicaLogDirsRequest(Message):
    """Which logs are to be in which data directory of this broker."""

    api_key = ApiKey.ALTER_REPLICA_LOG_DIRS
    min_version, max_version, flexible_version = 0, 2, 2

    dirs: list[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = string()
    partitions: list[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


class AlterReplicaLogDirsResponse(Message):
    """Whether each move has begun, or is not needed."""

    api_key = ApiKey.ALTER_REPLICA_LOG_DIRS
    min_version, max_version, flexible_version = 0, 2, 2

    throttle_time_ms: int = int32()
    results: list[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)
