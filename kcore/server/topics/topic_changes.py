"""TopicChanges: carries out changes of topics that AdminManager has validated.  DelayedTopicChange waits for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import MetadataCache, MetadataSnapshot, TopicInfo
from kcore.metadata.store import MetadataStore, StoreError
from kcore.purgatory.delayed_operation import DelayedOperation
from kcore.server.config.config_changes import ConfigChanges

#: Partition -> brokers, the preferred leader first.
Assignment = Mapping[int, Sequence[int]]


class TopicChanges(Protocol):
    """Implemented by LocalController, and by the store's writer of a broker in a cluster.

    When a method returns, the change is stored; the metadata of a cluster's brokers have it later, once the controller
    has carried it out.  Every method may wait for the store and for disks.
    """

    @property
    def is_controller(self) -> bool:
        """Whether requests to change topics are to come to this broker."""

    def create_topic(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> UUID:
        """Create a topic that was validated; its id.  Raises TopicAlreadyExists."""

    def create_partitions(self, name: str, added: Assignment) -> None:
        """Give a topic more partitions.  Raises UnknownTopicOrPartition."""

    def change_config(
        self, name: str, changes: ConfigChanges, in_force: Mapping[str, str], replace: bool = False
    ) -> None:
        """Change a topic's settings, which were validated; with replace it has no others afterwards.

        in_force: its settings now; they take the place of stored ones that cannot be read.
        """

    def delete_topic(self, topic: TopicInfo) -> None:
        """Delete a topic with its data."""

    def waiting_deletion(self, name: str) -> str | None:
        """Of a topic that the metadata do not have any more, but whose deletion has not ended: a sentence that says so,
        with the dead brokers that it waits for; None for every other."""

    def why_unknown(self, name: str) -> str | None:
        """Of a topic that the store has, but not the metadata, since its node cannot be read or all of its replicas are
        on dead brokers: a sentence that says so; None for every other."""

    def leaderless_topic(self, name: str) -> TopicInfo | None:
        """A topic that the store has, but not the metadata, since none of its partitions has had a leader yet; None if
        the store has no such topic that can be read, and while its deletion waits."""


#: Whether a change is in the metadata.
IsDone = Callable[[MetadataSnapshot], bool]


def unreadable_topic(store: MetadataStore, name: str) -> str | None:
    """Of a topic whose node cannot be read: a sentence that says so; None for every other."""
    path = znodes.topic(name)
    node = store.get(path)
    try:
        if node is not None:
            znodes.TopicZNode.decode(node.data)
    except StoreError as error:
        return f"Topic '{name}' exists, but its node {path} in the metadata store cannot be read: {error}"
    return None


def has_partitions(name: str, count: int) -> IsDone:
    def is_done(snapshot: MetadataSnapshot) -> bool:
        topic = snapshot.topic(name)
        return topic is not None and len(topic.partitions) >= count

    return is_done


def has_leader(topic_partition: TopicPartition, leader: int) -> IsDone:
    def is_done(snapshot: MetadataSnapshot) -> bool:
        topic = snapshot.topic(topic_partition.topic)
        partition = topic.partitions.get(topic_partition.partition) if topic is not None else None
        return partition is not None and partition.leader == leader

    return is_done


def is_gone(deleted: TopicInfo) -> IsDone:
    """Whether the topic is gone, or another of its name has taken its place."""

    def is_done(snapshot: MetadataSnapshot) -> bool:
        topic = snapshot.topic(deleted.name)
        return topic is None or topic.topic_id != deleted.topic_id

    return is_done


class DelayedTopicChange(DelayedOperation):
    """A request whose changes are stored, until this broker's metadata have them or its time is up.

    on_done gets the names of the topics whose change is not there yet.
    Source: DelayedCreatePartitions, DelayedDeleteTopics, Kafka 3.9.
    """

    __slots__ = ("_cache", "_changes", "_on_done")

    def __init__(
        self,
        timeout_ms: float,
        cache: MetadataCache,
        changes: Mapping[str, IsDone],
        on_done: Callable[[Collection[str]], None],
    ) -> None:
        super().__init__(timeout_ms)
        self._cache = cache
        self._changes = changes
        self._on_done = on_done

    def try_complete(self) -> bool:
        return not self._missing() and self.force_complete()

    def on_complete(self) -> None:
        self._on_done(self._missing())

    def _missing(self) -> list[str]:
        snapshot = self._cache.snapshot
        return [name for name, is_done in self._changes.items() if not is_done(snapshot)]
