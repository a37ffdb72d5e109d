"""StoreTopicChanges: writes changes of topics into a cluster's store, where the controller's watches see them.

Any broker may write them: the controller answers clients, others create topics automatically.
Source: AdminZkClient, Kafka 2.4-3.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from random import Random
from uuid import UUID

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import InvalidTopicException, ReassignmentInProgress, TopicAlreadyExists, UnknownTopicOrPartition
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import NO_LEADER, PartitionInfo, TopicInfo
from kcore.metadata.multi_builder import MultiBuilder
from kcore.metadata.store import BadVersion, MetadataStore, MultiFailed, Node, NodeExists, StoreError
from kcore.server.config.config_changes import ConfigChanges, announce_config_change, store_config
from kcore.server.topics.topic_changes import Assignment, unreadable_topic

logger = logging.getLogger(__name__)


class StoreTopicChanges:
    """A TopicChanges.  Thread-safe, as the store is."""

    def __init__(self, store: MetadataStore, is_controller: Callable[[], bool], random: Random = SYSTEM_RANDOM) -> None:
        self._store = store
        self._is_controller = is_controller
        self._random = random

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller now."""
        return self._is_controller()

    def create_topic(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> UUID:
        """The new topic's id.  Raises TopicAlreadyExists, also while the last topic of the name is being deleted."""
        topic_id = znodes.random_id(self._random)
        node = znodes.TopicZNode({number: list(replicas) for number, replicas in assignment.items()}, topic_id)
        if self._store.get(znodes.topic(name)) is not None:
            reason = self.waiting_deletion(name) or self.why_unknown(name)
            raise TopicAlreadyExists(reason or f"Topic '{name}' already exists.")
        builder = MultiBuilder(self._store)
        builder.put(znodes.topic_config(name), znodes.encode_config(config))
        builder.create(znodes.topic(name), node.encode())
        try:
            builder.commit()
        except MultiFailed as error:
            if isinstance(error.cause, NodeExists | BadVersion):
                # The settings too may be those that another broker has just written for a topic of this name.
                raise TopicAlreadyExists(f"Topic '{name}' already exists.") from error
            raise
        return topic_id

    def create_partitions(self, name: str, added: Assignment) -> None:
        """Raises UnknownTopicOrPartition, ReassignmentInProgress; InvalidTopicException while it is being deleted."""
        if self._store.get(znodes.delete_topic(name)) is not None:
            raise InvalidTopicException("The topic is queued for deletion.")
        while True:
            stored = self._store.get(znodes.topic(name))
            if stored is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            node = znodes.decode_node(znodes.topic(name), stored.data, znodes.TopicZNode.decode)
            if node.adding or node.removing:
                raise ReassignmentInProgress(f"A partition reassignment is in progress for the topic '{name}'.")
            assignment = {number: list(replicas) for number, replicas in added.items()} | node.assignment
            try:
                self._store.set(znodes.topic(name), node._replace(assignment=assignment).encode(), stored.version)
            except BadVersion:
                continue
            return

    def change_config(
        self, name: str, changes: ConfigChanges, in_force: Mapping[str, str], replace: bool = False
    ) -> None:
        """All brokers follow the settings a moment later.  Raises UnknownTopicOrPartition."""
        if self._store.get(znodes.topic(name)) is None:
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        store_config(self._store, znodes.topic_config(name), changes, replace, in_force)
        announce_config_change(self._store, znodes.topic_config(name))

    def delete_topic(self, topic: TopicInfo) -> None:
        """Have the controller delete the topic; an order that is there already will do.

        A node that cannot be read gets the replicas that the metadata have: a controller that has left the topic out
        knows no others, and would delete its nodes without its logs.
        """
        path = znodes.topic(topic.name)
        stored = self._store.get(path)
        if stored is None:
            raise UnknownTopicOrPartition(f"The topic '{topic.name}' does not exist.")
        try:
            znodes.TopicZNode.decode(stored.data)
        except StoreError as error:
            assignment = {number: list(partition.replicas) for number, partition in topic.partitions.items()}
            topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else None
            self._store.set(path, znodes.TopicZNode(assignment, topic_id).encode(), stored.version)
            logger.warning("%s cannot be read, and is replaced for the topic's deletion: %s", path, error)
        try:
            self._store.create_recursive(znodes.delete_topic(topic.name))
        except NodeExists:
            pass

    def waiting_deletion(self, name: str) -> str | None:
        if self._store.get(znodes.delete_topic(name)) is None:
            return None
        stored = self._store.get(znodes.topic(name))
        if stored is None:
            return None
        if unreadable_topic(self._store, name) is not None:
            return f"Topic '{name}' is being deleted."
        dead = self._brokers(stored, alive=False)
        if not dead:  # or one whose session lasts on
            return f"Topic '{name}' is being deleted."
        brokers = _brokers_text(dead)
        return f"Topic '{name}' is being deleted; that waits for {brokers}, not alive now, to delete its replicas."

    def why_unknown(self, name: str) -> str | None:
        reason = unreadable_topic(self._store, name)
        stored = self._store.get(znodes.topic(name)) if reason is None else None
        if stored is None or self._brokers(stored, alive=True):
            return reason
        dead = self._brokers(stored, alive=False)
        if not dead:
            return f"Topic '{name}' exists, but has no partitions."
        brokers = _brokers_text(dead)
        return f"Topic '{name}' exists, but has no leader yet: its replicas are all on {brokers}, not alive now."

    def leaderless_topic(self, name: str) -> TopicInfo | None:
        stored = self._store.get(znodes.topic(name))
        if stored is None or self._store.get(znodes.delete_topic(name)) is not None:
            return None
        try:
            node = znodes.TopicZNode.decode(stored.data)
        except StoreError:
            return None
        partitions = {
            number: PartitionInfo(NO_LEADER, -1, tuple(replicas), ()) for number, replicas in node.assignment.items()
        }
        return TopicInfo(name, node.topic_id or ZERO_UUID, partitions)

    def _brokers(self, topic: Node, alive: bool) -> list[int]:
        """The live brokers, or the dead ones, that have replicas of a topic whose node can be read."""
        live = set(self._store.children(znodes.BROKER_IDS))
        replicas = {
            replica for of_one in znodes.TopicZNode.decode(topic.data).assignment.values() for replica in of_one
        }
        return sorted(replica for replica in replicas if (str(replica) in live) == alive)


def _brokers_text(broker_ids: Collection[int]) -> str:
    return f"{'broker' if len(broker_ids) == 1 else 'brokers'} {', '.join(map(str, broker_ids))}"
