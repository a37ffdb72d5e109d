"""What this broker knows of the cluster: what Metadata answers, and what every handler asks first."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import ZERO_UUID, TopicPartition

#: The leader of a partition that no broker leads.
NO_LEADER = -1


class Endpoint(NamedTuple):
    host: str
    port: int


class BrokerInfo(NamedTuple):
    """endpoints: by listener name, where clients of that listener find the broker."""

    node_id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """leader: a broker's id or NO_LEADER.  offline_replicas: those whose broker or log directory is not available."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """partitions: by number; numbers are 0 to len - 1, except between two requests of a controller that divides a topic
    among them.  Never changed: a topic that changes gets another value."""

    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The cluster at one moment.  A caller that reads several things reads them from one snapshot.

    controller_id: a broker's id, -1 for none.  serial: no other snapshot of this process has it.
    """

    cluster_id: str
    controller_id: int
    _brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    _topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    _names: Mapping[UUID, str] = field(default_factory=dict)
    serial: int = field(init=False, compare=False, default_factory=itertools.count(1).__next__)

    # -- brokers ----------------------------------------------------------------------------------------

    def brokers(self) -> list[BrokerInfo]:
        """Live brokers, by id."""
        return [broker for _, broker in sorted(self._brokers.items())]

    def broker(self, node_id: int) -> BrokerInfo | None:
        return self._brokers.get(node_id)

    def broker_ids(self) -> list[int]:
        return sorted(self._brokers)

    def endpoint(self, node_id: int, listener_name: str) -> Endpoint | None:
        """Where clients of this listener find a broker; None if it is not alive or has no such listener."""
        broker = self._brokers.get(node_id)
        return broker.endpoints.get(listener_name) if broker is not None else None

    def endpoints(self, listener_name: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """The live brokers that have a listener of this name, by id, and where it is."""
        return [(b, b.endpoints[listener_name]) for b in self.brokers() if listener_name in b.endpoints]

    # -- topics -----------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def topics(self) -> list[TopicInfo]:
        return list(self._topics.values())

    def partitions_gone(self, after: MetadataSnapshot) -> list[TopicPartition]:
        """The partitions that are in this snapshot and not in a later one."""
        if self._topics is after._topics:
            return []
        return [
            TopicPartition(name, number)
            for name, topic in self._topics.items()
            if (later := after._topics.get(name)) is not topic
            for number in topic.partitions
            if later is None or number not in later.partitions
        ]

    def topic_names(self) -> Collection[str]:
        return self._topics.keys()

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of a topic id, None for an id that no topic has."""
        return self._names.get(topic_id)

    def topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        name = self._names.get(topic_id)
        return self._topics.get(name) if name is not None else None

    def topic_id(self, name: str) -> UUID:
        """ZERO_UUID for an unknown topic and for one without id."""
        topic = self._topics.get(name)
        return topic.topic_id if topic is not None else ZERO_UUID

    @property
    def has_topic_ids(self) -> bool:
        """Whether all topics have one: controllers before Kafka 2.8 give none."""
        return len(self._names) == len(self._topics)

    def contains(self, topic_partition: TopicPartition) -> bool:
        topic = self._topics.get(topic_partition.topic)
        return topic is not None and topic_partition.partition in topic.partitions

    def leader_of(self, topic_partition: TopicPartition) -> int | None:
        """A broker's id or NO_LEADER; None for a partition that there is not."""
        topic = self._topics.get(topic_partition.topic)
        info = topic.partitions.get(topic_partition.partition) if topic is not None else None
        return None if info is None else info.leader

    # -- the next one -----------------------------------------------------------------------------------

    def with_brokers(self, brokers: Iterable[BrokerInfo]) -> MetadataSnapshot:
        """These and no other brokers are alive."""
        return replace(self, _brokers={broker.node_id: broker for broker in brokers})

    def with_controller(self, controller_id: int) -> MetadataSnapshot:
        return replace(self, controller_id=controller_id)

    def with_topics(self, topics: Iterable[TopicInfo], without: Iterable[str] = ()) -> MetadataSnapshot:
        """`topics` are new or have changed, those named by `without` are gone.  Copies the tables of topics: pass many
        at once."""
        table, names = dict(self._topics), dict(self._names)
        for name in without:
            gone = table.pop(name, None)
            if gone is not None:
                names.pop(gone.topic_id, None)
        for topic in topics:
            old = table.get(topic.name)
            if old is not None:
                names.pop(old.topic_id, None)
            if topic.topic_id != ZERO_UUID:
                names[topic.topic_id] = topic.name
            table[topic.name] = topic
        return replace(self, _topics=table, _names=names)

    def without_topic(self, name: str) -> MetadataSnapshot:
        return self.with_topics((), without=[name])


#: (the snapshot before an update, the one after it).
MetadataObserver = Callable[[MetadataSnapshot, MetadataSnapshot], None]


class MetadataCache:
    """snapshot: the current one, replaced whole.  Readers take no lock.

    The methods look one thing up in the current snapshot; two calls may see two snapshots.
    """

    def __init__(self, cluster_id: str, controller_id: int = NO_LEADER) -> None:
        self.snapshot = MetadataSnapshot(cluster_id, controller_id)
        self._update_lock = threading.Lock()
        self._observers: list[MetadataObserver] = []
        #: (snapshot before, snapshot after) of the updates that the observers have not heard of.
        self._unannounced: list[tuple[MetadataSnapshot, MetadataSnapshot]] = []

    def add_observer(self, observer: MetadataObserver) -> None:
        """From now on announce() calls observer(snapshot before, snapshot after) once for each update."""
        self._observers.append(observer)

    def update(self, change: Callable[[MetadataSnapshot], MetadataSnapshot]) -> None:
        """Put change(snapshot) in the place of the snapshot.  One update at a time.  announce() is to follow."""
        with self._update_lock:
            before, self.snapshot = self.snapshot, change(self.snapshot)
            if self._observers:
                self._unannounced.append((before, self.snapshot))

    def announce(self) -> None:
        """Call the observers.  Apart from update(), which runs under locks of its callers: an observer may write to
        logs and answer requests."""
        with self._update_lock:
            updates, self._unannounced = self._unannounced, []
        for before, after in updates:
            for observer in self._observers:
                observer(before, after)

    def topic(self, name: str) -> TopicInfo | None:
        return self.snapshot.topic(name)

    def topics(self) -> list[TopicInfo]:
        return self.snapshot.topics()

    def topic_id(self, name: str) -> UUID:
        return self.snapshot.topic_id(name)

    def offline(self, tp: TopicPartition) -> tuple[int, ...]:
        """Its replicas whose broker or log directory is not available."""
        topic = self.topic(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        return partition.offline_replicas if partition is not None else ()

    def contains(self, topic_partition: TopicPartition) -> bool:
        return self.snapshot.contains(topic_partition)
