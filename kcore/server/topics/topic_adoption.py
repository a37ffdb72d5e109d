"""TopicAdoption: what a start makes of the directories that it finds.

A directory belongs to a topic that the store knows, or to one that is being deleted, or to an earlier topic of the same
name (a stray), or the store does not know its topic: then Kafka or open_log() wrote it, and the topic is adopted.  A
member's directory is a stray, too, if its partition has no replica on this broker: a reassignment has ended while the
broker was down.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import NamedTuple
from uuid import UUID

from kcore.common import topic_names
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.store import MetadataStore, StoreError
from kcore.server.config.topic_configs import KEEP_ALL_RECORDS, TopicConfigs

logger = logging.getLogger(__name__)


class HostedLog(NamedTuple):
    """last_epoch: of the log's last batch that has one, None for none."""

    topic_id: UUID | None
    last_epoch: int | None


#: Topic -> partition -> log.
HostedLogs = Mapping[str, Mapping[int, HostedLog]]


def is_earlier_topic(node: znodes.TopicZNode, topic_id: UUID | None) -> bool:
    """Whether a directory with this topic id was made for another topic than the stored one."""
    return node.topic_id not in (None, ZERO_UUID) and topic_id not in (None, ZERO_UUID, node.topic_id)


def is_on_others(node: znodes.TopicZNode, partition: int, broker_id: int) -> bool:
    """Whether the stored partition has replicas, and none on this broker (LogManager.isStrayKraftReplica, Kafka 3.9).
    While a reassignment runs, the stored replicas are the old and the new ones."""
    replicas = node.assignment.get(partition) or []
    return bool(replicas) and broker_id not in replicas


class TopicAdoption:
    """Used once, at a start, in the order of its methods.  is_stray() alone is called from several threads."""

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        log_manager: LogManager,
        topic_configs: TopicConfigs,
        random: Random = SYSTEM_RANDOM,
        *,
        is_member: bool = False,
    ) -> None:
        self._broker_id = broker_id
        self._is_member = is_member
        self._store = store
        self._log_manager = log_manager
        self._topic_configs = topic_configs
        self._random = random
        # Topic id -> name, of deletions that the last stop has interrupted.
        self._interrupted_deletions: dict[UUID, str] = {}
        # The topics that have directories, None for those that the store does not know: decoded once, not for each log.
        self._stored: dict[str, znodes.TopicZNode | None] = {}

    # -- before the logs are opened ---------------------------------------------------------------------

    def prepare(self, topics_on_disk: Collection[str]) -> None:
        """Read which deletions were interrupted, and give topics that the store does not know settings that keep their
        data."""
        self._interrupted_deletions = self._read_deletions()
        names = [name for name in topics_on_disk if topic_names.is_legal(name)]
        nodes = dict(zip(names, self._store.get_many([znodes.topic(name) for name in names]), strict=True))
        for name, node in nodes.items():
            with suppress(StoreError):  # is_stray() says what is wrong
                self._stored[name] = znodes.TopicZNode.decode(node.data) if node is not None else None
            if node is None and not self._topic_configs.get(name):
                self._topic_configs.set(name, KEEP_ALL_RECORDS)

    def is_stray(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether a directory belongs to an earlier topic of the name, or to other members alone.  False for a topic
        that is not in the store (it is adopted), and for the rest of an interrupted deletion (it is deleted)."""
        name = topic_partition.topic
        if name not in self._stored:
            self._stored[name] = self._stored_topic(name)
        if not self._is_stray(topic_partition, topic_id, self._stored[name]):
            return False
        # Rarely comes here: the topic may have changed since prepare() has read it.
        return self._is_stray(topic_partition, topic_id, self._stored_topic(name))

    def not_of_this_broker(self, topic_partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of which the store says that they have no replica on this broker, or that there is no such topic."""
        names = sorted({tp.topic for tp in topic_partitions})
        nodes = dict(zip(names, self._store.get_many([znodes.topic(name) for name in names]), strict=True))
        topics = {}
        for name, node in nodes.items():
            try:
                topics[name] = znodes.TopicZNode.decode(node.data) if node is not None else None
            except StoreError as error:
                logger.error("%s cannot be read: %s", znodes.topic(name), error)
        return [tp for tp in topic_partitions if tp.topic in topics and not self._is_replica(tp, topics[tp.topic])]

    def _is_replica(self, topic_partition: TopicPartition, node: znodes.TopicZNode | None) -> bool:
        return node is not None and self._broker_id in node.assignment.get(topic_partition.partition, ())

    def _is_stray(self, topic_partition: TopicPartition, topic_id: UUID | None, node: znodes.TopicZNode | None) -> bool:
        if node is None:
            return False
        if is_earlier_topic(node, topic_id):
            return topic_id not in self._interrupted_deletions
        return self._is_member and is_on_others(node, topic_partition.partition, self._broker_id)

    # -- with the logs open -----------------------------------------------------------------------------

    def partition_count(self, name: str) -> int:
        """How many partitions a topic has, in the store or else in the directories; 0 if there is no such topic."""
        node = self._stored_topic(name)
        if node is not None:
            return len(node.assignment)
        here = [log.topic_partition for log in self._log_manager.all_logs()]
        return max((partition + 1 for topic, partition in here if topic == name), default=0)

    def finish_deletions(self) -> None:
        """Delete what is left of topics whose deletion the last stop interrupted.

        Otherwise their directories would be adopted as another broker's.  The topic id distinguishes them from the
        directories of a topic of the same name that was created since.
        """
        for topic_id, name in self._interrupted_deletions.items():
            logs = [log for log in self._log_manager.all_logs() if log.topic_partition.topic == name]
            left = [log.topic_partition for log in logs if log.topic_id == topic_id]
            for error in self._log_manager.async_delete_logs(left).values():
                raise error
            if self._store.get(znodes.topic(name)) is None and len(left) == len(logs):
                self._topic_configs.remove(name)  # what prepare() gave it
            logger.info("topic %s: its deletion was interrupted, %d partitions were left", name, len(left))
            self._forget_deletion(topic_id, name)
        self._interrupted_deletions = {}

    def hosted_logs(self) -> HostedLogs:
        hosted: dict[str, dict[int, HostedLog]] = defaultdict(dict)
        for log in self._log_manager.all_logs():
            name = log.topic_partition.topic
            if name != topic_names.CLUSTER_METADATA_TOPIC:
                hosted[name][log.topic_partition.partition] = HostedLog(log.topic_id, log.last_epoch)
        return hosted

    def adopted_topics(
        self, stored: Mapping[str, znodes.TopicZNode], hosted: HostedLogs
    ) -> dict[str, znodes.TopicZNode]:
        """The topics that are in directories but not in the store, as nodes for the store.

        Partitions that are missing here, because another broker had them, are listed without a replica.
        """
        taken = {node.topic_id for node in stored.values()}
        adopted = {}
        for name in sorted(hosted.keys() - stored.keys()):
            logs = hosted[name]
            topic_id = next((log.topic_id for log in logs.values() if log.topic_id not in (None, ZERO_UUID)), None)
            if topic_id is None or topic_id in taken:
                topic_id = znodes.random_id(self._random)
            taken.add(topic_id)
            numbers = range(max(logs) + 1)
            adopted[name] = znodes.TopicZNode(
                {number: [self._broker_id] if number in logs else [] for number in numbers}, topic_id
            )
            logger.info("topic %s was found in the data directory: %d partitions of %d", name, len(logs), len(numbers))
        return adopted

    def largest_producer_id(self, topics: Iterable[str], hosted: HostedLogs) -> int:
        """Of the producers at work in the logs of these topics; -1 for none."""
        logs = [self._log_manager.get_log(TopicPartition(name, number)) for name in topics for number in hosted[name]]
        return max((log.max_producer_id for log in logs if log), default=-1)

    def _stored_topic(self, name: str) -> znodes.TopicZNode | None:
        """None, too, for a node that is half-written or foreign: it says nothing about a directory."""
        node = self._store.get(znodes.topic(name))
        try:
            return znodes.TopicZNode.decode(node.data) if node is not None else None
        except StoreError as error:
            logger.error("%s cannot be read: %s", znodes.topic(name), error)
            return None

    # -- notes of deletions -----------------------------------------------------------------------------

    def _read_deletions(self) -> dict[UUID, str]:
        """Topic id -> name, of deletions that have begun and not ended."""
        deletions = {}
        for text in self._store.children(znodes.TOPIC_DELETIONS):
            node = self._store.get(f"{znodes.TOPIC_DELETIONS}/{text}")
            if node is not None:
                deletions[znodes.id_from_string(text)] = znodes.decode_deletion(node.data)
        for name in self._store.children(znodes.DELETE_TOPICS):
            node = self._store.get(f"{znodes.DELETE_TOPICS}/{name}")
            topic_id = znodes.decode_old_deletion(node.data) if node is not None else None
            if topic_id is not None:
                deletions[topic_id] = name
        return deletions

    def _forget_deletion(self, topic_id: UUID, name: str) -> None:
        self._store.delete_recursive(znodes.topic_deletion(topic_id))
        old = f"{znodes.DELETE_TOPICS}/{name}"
        node = self._store.get(old)
        if node is not None and znodes.decode_old_deletion(node.data) == topic_id:
            self._store.delete(old, node.version)
