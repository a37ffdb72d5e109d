"""DescribeLogDirs (35)."""

from __future__ import annotations

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NONE, ClusterAuthorizationFailed, KafkaStorageError
from kcore.log.log_dir_descriptions import LogDescription, LogDirDescription
from kcore.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.requests.services import Services


class Handler:
    runs_on = RunsOn.POOL  # asks file systems, and there may be many logs

    def __init__(self, services: Services) -> None:
        self._moves = services.replica_manager.log_dir_moves

    def handle(self, context: RequestContext, body: DescribeLogDirsRequest) -> None:
        wanted = None
        if body.topics is not None:
            wanted = {TopicPartition(topic.topic, number) for topic in body.topics for number in topic.partitions}
        results = [_result(log_dir, wanted) for log_dir in self._moves.describe()]
        context.respond(DescribeLogDirsResponse(results=results))

    def error_response(self, body: DescribeLogDirsRequest, error_code: int, version: int) -> DescribeLogDirsResponse:
        # Below version 3 only a result can have an error; Kafka's clients take none at all for this one.
        is_denied = error_code == ClusterAuthorizationFailed.code
        results = [DescribeLogDirsResult(error_code=error_code)] if version < 3 and not is_denied else []
        return DescribeLogDirsResponse(error_code=error_code, results=results)


def _result(log_dir: LogDirDescription, wanted: set[TopicPartition] | None) -> DescribeLogDirsResult:
    if log_dir.is_offline:
        return DescribeLogDirsResult(error_code=KafkaStorageError.code, log_dir=log_dir.path)
    topics: dict[str, list[LogDescription]] = {}
    for log in log_dir.logs:
        if wanted is None or log.topic_partition in wanted:
            topics.setdefault(log.topic_partition.topic, []).append(log)
    return DescribeLogDirsResult(
        error_code=NONE,
        log_dir=log_dir.path,
        topics=[
            DescribeLogDirsTopic(
                name=name,
                partitions=[
                    DescribeLogDirsPartition(
                        partition_index=log.topic_partition.partition,
                        partition_size=log.size,
                        offset_lag=log.offset_lag,
                        is_future_key=log.is_future,
                    )
                    for log in logs
                ],
            )
            for name, logs in topics.items()
        ],
        total_bytes=log_dir.total_bytes,
        usable_bytes=log_dir.usable_bytes,
    )
