"""LogDirClient: what the data directories of a cluster's brokers hold, and moves of logs between those of one broker.

Source of the requests: KIP-113, KIP-827 (sizes of file systems).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcore.client.admin_client import AdminClient, Node, error_of, raise_error
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.protocol.messages import alter_replica_log_dirs as al
from kcore.protocol.messages import describe_log_dirs as de


class Replica(NamedTuple):
    """size: in bytes.  offset_lag: of a future replica, which is being moved here, what it lacks of the current one;
    of a current one what it lacks of the high watermark; -1 where it is not known."""

    topic_partition: TopicPartition
    size: int
    offset_lag: int
    is_future: bool


class LogDir(NamedTuple):
    """error: of one that is offline.  total_bytes, usable_bytes: of its file system; None where it is not known."""

    path: str
    error: ApiError | None
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[Replica, ...]


class LogDirClient(AdminClient):
    """For one thread."""

    def log_dirs(self, broker: Node) -> list[LogDir]:
        """By path.  Raises ClusterAuthorizationFailed and so on."""
        with self._timed():
            request = de.DescribeLogDirsRequest(topics=None)
            response = self._send((broker.host, broker.port), request, de.DescribeLogDirsResponse)
        raise_error(response.error_code, None)
        return sorted(
            LogDir(
                result.log_dir,
                error_of(result.error_code, None),
                None if result.total_bytes < 0 else result.total_bytes,
                None if result.usable_bytes < 0 else result.usable_bytes,
                tuple(
                    Replica(
                        TopicPartition(topic.name, partition.partition_index),
                        partition.partition_size,
                        partition.offset_lag,
                        partition.is_future_key,
                    )
                    for topic in sorted(result.topics, key=lambda topic: topic.name)
                    for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
                ),
            )
            for result in response.results
        )

    def move_logs(
        self, broker: Node, topic_partitions: Iterable[TopicPartition], path: str
    ) -> dict[TopicPartition, ApiError | None]:
        """Begin to move logs of a broker to this data directory of it; a move to another one is cancelled.  The error
        of each, None where it was accepted."""
        topics: dict[str, list[int]] = {}
        for name, number in topic_partitions:
            topics.setdefault(name, []).append(number)
        moved = [al.AlterReplicaLogDirTopic(name=name, partitions=numbers) for name, numbers in topics.items()]
        request = al.AlterReplicaLogDirsRequest(dirs=[al.AlterReplicaLogDir(path=path, topics=moved)])
        with self._timed():
            response = self._send_repeatable((broker.host, broker.port), request, al.AlterReplicaLogDirsResponse)
        return {
            TopicPartition(topic.topic_name, partition.partition_index): error_of(partition.error_code, None)
            for topic in response.results
            for partition in topic.partitions
        }
