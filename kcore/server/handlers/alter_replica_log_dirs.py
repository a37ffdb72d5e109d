"""AlterReplicaLogDirs (34): begin, redirect or cancel moves of logs between this broker's data directories."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, NotLeaderOrFollower, ReplicaNotAvailable, code_of
from kcore.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.TOPIC_CHANGES  # no partition comes or goes meanwhile

    def __init__(self, services: Services) -> None:
        self._moves = services.replica_manager.log_dir_moves

    def handle(self, context: RequestContext, body: AlterReplicaLogDirsRequest) -> None:
        results = self._moves.alter(_destinations(body))
        # Kafka's clients expect REPLICA_NOT_AVAILABLE for a partition that this broker does not have.
        codes = {
            tp: NONE
            if error is None
            else ReplicaNotAvailable.code
            if isinstance(error, NotLeaderOrFollower)
            else code_of(error)
            for tp, error in results.items()
        }
        context.respond(_response(codes))

    def error_response(
        self, body: AlterReplicaLogDirsRequest, error_code: int, version: int
    ) -> AlterReplicaLogDirsResponse:
        return _response(dict.fromkeys(_destinations(body), error_code))


def _destinations(body: AlterReplicaLogDirsRequest) -> dict[TopicPartition, str]:
    """Where each log is to be; of a partition that is named twice the last one counts."""
    return {
        TopicPartition(topic.name, number): log_dir.path
        for log_dir in body.dirs
        for topic in log_dir.topics
        for number in topic.partitions
    }


def _response(codes: dict[TopicPartition, int]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for tp, code in codes.items():
        result = AlterReplicaLogDirPartitionResult(partition_index=tp.partition, error_code=code)
        topics.setdefault(tp.topic, []).append(result)
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions) for name, partitions in topics.items()
        ]
    )
