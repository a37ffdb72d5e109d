"""The coordinators of a broker, by the internal topic whose partitions they keep their state in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.replica.partition import Partition


class Coordinator(Protocol):
    """Coordinates what is kept in the partitions of one internal topic that this broker leads.

    on_election() and on_resignation() are called in the order of the changes, and must not wait for a disk.
    """

    def partition_for(self, key: str) -> int:
        """The partition of its topic that has what is kept of a key, as the id of a group."""

    def on_election(self, partition: int, epoch: int) -> None:
        """This broker leads the partition since this leader epoch: load what is in it (API-04)."""

    def on_resignation(self, partition: int, epoch: int | None) -> None:
        """Another broker leads it since this epoch, or this broker has it no more (None): forget what is in it, unless
        it is led here since a higher epoch (API-05)."""

    def partitions_deleted(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Partitions, of any topic, are gone for good.  Those of its own topic it has resigned from."""


class Coordinators:
    """Calls the coordinator that a partition concerns.  What concerns none is ignored."""

    def __init__(self, by_topic: Mapping[str, Coordinator]) -> None:
        self._by_topic = by_topic

    def partition_for(self, topic: str, key: str) -> int:
        """Of an internal topic that has a coordinator."""
        return self._by_topic[topic].partition_for(key)

    def leadership_changed(self, new_leaders: Iterable[Partition], new_followers: Iterable[Partition]) -> None:
        """A LeadershipCallback of ReplicaManager.

        A leader that may have missed another one (Partition.make_leader) begins anew with what is in its log: the other
        one's coordinator may have sent markers, with an epoch that is higher than the one that this broker had.
        """
        for partition in new_leaders:
            self.on_resignation(partition.topic_partition, partition.leader_epoch)
            self.on_election(partition.topic_partition, partition.leader_epoch)
        for partition in new_followers:
            self.on_resignation(partition.topic_partition, partition.leader_epoch)

    def on_election(self, topic_partition: TopicPartition, epoch: int) -> None:
        coordinator = self._by_topic.get(topic_partition.topic)
        if coordinator is not None:
            coordinator.on_election(topic_partition.partition, epoch)

    def on_resignation(self, topic_partition: TopicPartition, epoch: int | None) -> None:
        coordinator = self._by_topic.get(topic_partition.topic)
        if coordinator is not None:
            coordinator.on_resignation(topic_partition.partition, epoch)

    def partitions_lost(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """This broker has them no more, whoever leads them."""
        for topic_partition in topic_partitions:
            self.on_resignation(topic_partition, None)

    def partitions_deleted(self, topic_partitions: Collection[TopicPartition]) -> None:
        """They are gone for good."""
        if not topic_partitions:
            return
        self.partitions_lost(topic_partitions)
        for coordinator in self._by_topic.values():
            coordinator.partitions_deleted(topic_partitions)
