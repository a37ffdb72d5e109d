"""HostedPartitions: the partitions of this broker, and what a lookup of one raises (RM-30, RM-31)."""

from __future__ import annotations

from collections.abc import Callable

from kcore.common.topic_partition import TopicPartition
from kcore.errors import NotLeaderOrFollower, ReplicaNotAvailable, UnknownTopicOrPartition
from kcore.replica.partition import OfflinePartition, Partition


class HostedPartitions:
    """Thread-safe: lookups take no lock, and each method sees or changes the map in one step.  Only ReplicaManager
    changes it, with its state_change_lock held.

    is_known says whether the cluster's metadata have a partition that is not hosted here.
    """

    def __init__(
        self, broker_id: int, is_known: Callable[[TopicPartition], bool] = lambda topic_partition: False
    ) -> None:
        self.broker_id = broker_id
        self._is_known = is_known
        self._partitions: dict[TopicPartition, Partition | OfflinePartition] = {}
        #: Those that were given up for damage and not hosted again since, also after the controller's order to stop.
        self._given_up: dict[TopicPartition, OfflinePartition] = {}
        #: The hosted partition, whether this broker leads it or follows; None if it is not hosted (RM-30).  The dict's
        #: own method: each partition of each request is looked up.
        self.get: Callable[[TopicPartition], Partition | OfflinePartition | None] = self._partitions.get

    def get_or_exception(self, topic_partition: TopicPartition, expect_leader: bool = True) -> Partition:
        """The hosted partition, whether this broker leads it or follows.

        Raises KafkaStorageError for an offline one.  Not hosted: NotLeaderOrFollower if the metadata know it
        (ReplicaNotAvailable unless a leader was expected), else UnknownTopicOrPartition (RM-31).
        Source: ReplicaManager.getPartitionOrException, Kafka 2.4-3.9.
        """
        partition = self._partitions.get(topic_partition)
        if isinstance(partition, Partition):
            return partition
        if partition is not None:
            partition.local_log()
        if not self._is_known(topic_partition):
            raise UnknownTopicOrPartition(f"{topic_partition}: no such partition")
        error = NotLeaderOrFollower if expect_leader else ReplicaNotAvailable
        raise error(f"{topic_partition}: broker {self.broker_id} has no replica")

    def check_given_up(self, topic_partition: TopicPartition) -> None:
        """Raises KafkaStorageError if its log was given up for damage, and the partition was not hosted again since."""
        given_up = self._given_up.get(topic_partition)
        if given_up is not None:
            given_up.local_log()

    def forget_given_up(self, topic_partition: TopicPartition) -> None:
        """Its log is deleted."""
        self._given_up.pop(topic_partition, None)

    def all(self) -> list[Partition | OfflinePartition]:
        return list(self._partitions.values())

    def online(self) -> list[Partition]:
        return [partition for partition in self.all() if isinstance(partition, Partition)]

    def put(self, partition: Partition | OfflinePartition) -> None:
        """In place of what is hosted under its name now, if anything is."""
        self._partitions[partition.topic_partition] = partition
        if isinstance(partition, OfflinePartition) and partition.given_up_epoch is not None:
            self._given_up[partition.topic_partition] = partition
        else:
            self._given_up.pop(partition.topic_partition, None)

    def remove(self, topic_partition: TopicPartition) -> Partition | OfflinePartition | None:
        """Host it no longer; what was hosted."""
        return self._partitions.pop(topic_partition, None)
