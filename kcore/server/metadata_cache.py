"""What this broker knows of the cluster: what Metadata answers, and what every handler asks first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID, TopicPartition

#: The leader of a partition that nobody leads.
NO_LEADER = -1


class BrokerInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """leader: a broker's id or NO_LEADER."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicInfo(NamedTuple):
    """partitions: by number; numbers are 0 to len - 1."""

    name: str
    topic_id: UUID
    partitions: dict[int, PartitionInfo]


class MetadataCache:
    """Brokers, topics and leaders.  Readers take no lock: values are replaced, never changed.

    Writers are serialised by whoever decides about topics (AdminManager).
    """

    def __init__(self, cluster_id: str, controller_id: int) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self._brokers: dict[int, BrokerInfo] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._names: dict[UUID, str] = {}

    # -- brokers ----------------------------------------------------------------------------------------

    def update_broker(self, broker: BrokerInfo) -> None:
        self._brokers = {**self._brokers, broker.node_id: broker}

    def brokers(self) -> list[BrokerInfo]:
        """Live brokers, by id."""
        return [broker for _, broker in sorted(self._brokers.items())]

    def broker(self, node_id: int) -> BrokerInfo | None:
        return self._brokers.get(node_id)

    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    # -- topics -----------------------------------------------------------------------------------------

    def update_topic(self, topic: TopicInfo) -> None:
        old = self._topics.get(topic.name)
        if topic.topic_id != ZERO_UUID:
            self._names[topic.topic_id] = topic.name
        self._topics[topic.name] = topic
        if old is not None and old.topic_id != topic.topic_id:
            self._names.pop(old.topic_id, None)

    def remove_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.topic_id, None)

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topics(self) -> list[TopicInfo]:
        return list(self._topics.values())

    def topic_names(self) -> Iterable[str]:
        return list(self._topics)

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of a topic id, None for an id that no topic has."""
        return self._names.get(topic_id)

    def topic_id(self, name: str) -> UUID:
        """ZERO_UUID for an unknown topic and for one without id."""
        topic = self._topics.get(name)
        return topic.topic_id if topic is not None else ZERO_UUID

    def contains(self, topic_partition: TopicPartition) -> bool:
        topic = self._topics.get(topic_partition.topic)
        return topic is not None and topic_partition.partition in topic.partitions
