"""LocalController: decides about topics and leaders for a broker that is alone in its cluster.

The metadata store holds the truth, in Kafka's znodes.  What was decided reaches the broker as a controller's requests
do: as updates for ReplicaManager.become_leader_or_follower() and stop_replicas(), and as the next metadata snapshot.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple
from uuid import UUID

from kcore.common import topic_names
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import ApiError, TopicAlreadyExists, UnknownTopicOrPartition
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import NO_LEADER, MetadataCache, PartitionInfo, TopicInfo
from kcore.metadata.multi_builder import MultiBuilder
from kcore.metadata.store import MetadataStore, MultiFailed, NodeExists
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.config_changes import ConfigChanges, changed_config, store_config
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.topics.topic_adoption import HostedLogs, TopicAdoption
from kcore.server.topics.topic_changes import Assignment, unreadable_topic

logger = logging.getLogger(__name__)

#: Leader epoch of a partition that was just created.
INITIAL_LEADER_EPOCH = 0
#: There are no elections of controllers; this one is the first and the only one.
CONTROLLER_EPOCH = 1


class _Leadership(NamedTuple):
    """Partitions of one topic that this broker is to lead: number -> leader epoch, and number -> version of the stored
    state, where that is not 0."""

    name: str
    node: znodes.TopicZNode
    leader_epochs: Mapping[int, int]
    partition_epochs: Mapping[int, int] = {}


class LocalController:
    """A TopicChanges.  Thread-safe: one change at a time, from the store's write to the snapshot.

    Every method may wait for the store and for disks, so none of them is called on a network thread.
    """

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        topic_configs: TopicConfigs,
        random: Random = SYSTEM_RANDOM,
    ) -> None:
        self._broker_id = broker_id
        self._store = store
        self._cache = metadata_cache
        self._replica_manager = replica_manager
        self._topic_configs = topic_configs
        self._random = random
        self._lock = threading.RLock()
        # Topic -> partitions that could not be opened, and whether each was just made.
        self._offline: dict[str, dict[int, bool]] = {}
        #: Called when a topic's settings have changed: its logs are to follow them.
        self.on_config_change: Callable[[str], None] = lambda topic: None
        #: Called for each partition that this broker leads from now on, with its epoch (API-04).
        self.on_leadership: Callable[[TopicPartition, int], None] = lambda topic_partition, leader_epoch: None

    @property
    def is_controller(self) -> bool:
        """Always: there is no other broker."""
        return True

    # -- start ------------------------------------------------------------------------------------------

    def load_topics(self, adoption: TopicAdoption, unclean: bool) -> int:
        """Lead every partition that the store or a data directory has.

        Returns the largest producer id in the logs that are not in the store, -1 for none.  Another broker assigned it,
        and it must not be assigned again.

        unclean: the last stop was not a clean one, so data may be missing that a consumer has seen; a higher
        leader epoch lets it notice.
        """
        with self._lock:
            adoption.finish_deletions()
            hosted = adoption.hosted_logs()
            stored = self._stored_topics()
            adopted = adoption.adopted_topics(stored, hosted)
            builder = MultiBuilder(self._store)
            loaded = [
                _Leadership(name, node, *self._next_epochs(name, node, hosted, unclean, builder))
                for name, node in stored.items()
            ]
            for name, node in adopted.items():
                epochs = {number: _adopted_leader_epoch(log.last_epoch) for number, log in hosted[name].items()}
                self._put_topic(name, node, epochs, self._topic_configs.get(name), builder)
                loaded.append(_Leadership(name, node, epochs))
            # All at once: one write to the disk, and a start that is killed has adopted all or nothing.
            builder.commit()
            self._lead(loaded, is_new=False)
            return adoption.largest_producer_id(adopted, hosted)

    def _stored_topics(self) -> dict[str, znodes.TopicZNode]:
        topics = {}
        for name in self._store.children(znodes.TOPICS):
            if not topic_names.is_legal(name):
                # An earlier version may have adopted it; LogDirLoader names its directories.
                logger.info("%s is left out: no topic can have this name", znodes.topic(name))
                continue
            stored = self._store.get(znodes.topic(name))
            if stored is not None:
                topics[name] = znodes.decode_node(znodes.topic(name), stored.data, znodes.TopicZNode.decode)
        return topics

    def _next_epochs(
        self, name: str, node: znodes.TopicZNode, hosted: HostedLogs, unclean: bool, builder: MultiBuilder
    ) -> tuple[dict[int, int], dict[int, int]]:
        """(leader epochs, versions of the stored states) of this broker's partitions of a topic that the store has.

        Adds to builder the states that change.
        """
        epochs, versions = {}, {}
        logs = hosted.get(name, {})
        for number, replicas in node.assignment.items():
            if self._broker_id not in replicas:
                continue
            path = znodes.partition_state(name, number)
            stored = self._store.get(path)
            state = znodes.decode_node(path, stored.data, znodes.PartitionStateZNode.decode) if stored else None
            log = logs.get(number)
            is_continued = not unclean and log is not None and state is not None and state.leader == self._broker_id
            epoch = _next_leader_epoch(
                state.leader_epoch if state else INITIAL_LEADER_EPOCH, log.last_epoch if log else None, is_continued
            )
            version = stored.version if stored else 0
            if state is None or state.leader_epoch != epoch or state.leader != self._broker_id:
                builder.put(znodes.partition_state(name, number), self._state(epoch))
                version += 1 if stored else 0
            epochs[number], versions[number] = epoch, version
        return epochs, versions

    # -- changes ----------------------------------------------------------------------------------------

    def create_topic(self, name: str, assignment: Assignment, config: Mapping[str, str]) -> UUID:
        """Create a topic that was validated, and lead its partitions; its id.  Raises TopicAlreadyExists."""
        with self._lock:
            topic_id = znodes.random_id(self._random)
            node = znodes.TopicZNode({number: list(replicas) for number, replicas in assignment.items()}, topic_id)
            epochs = dict.fromkeys(assignment, INITIAL_LEADER_EPOCH)
            builder = MultiBuilder(self._store)
            self._put_topic(name, node, epochs, config, builder)
            try:
                builder.commit()
            except MultiFailed as error:
                if isinstance(error.cause, NodeExists):
                    raise TopicAlreadyExists(self.why_unknown(name) or f"Topic '{name}' already exists.") from error
                raise
            self._topic_configs.set(name, config)
            self._lead([_Leadership(name, node, epochs)], is_new=True)
            return topic_id

    def create_partitions(self, name: str, added: Assignment) -> None:
        """Give a topic more partitions, and lead them.  Raises UnknownTopicOrPartition."""
        with self._lock:
            stored = self._store.get(znodes.topic(name))
            if stored is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            node = znodes.decode_node(znodes.topic(name), stored.data, znodes.TopicZNode.decode)
            node = node._replace(
                assignment=node.assignment | {number: list(replicas) for number, replicas in added.items()}
            )
            epochs = dict.fromkeys(added, INITIAL_LEADER_EPOCH)
            builder = MultiBuilder(self._store)
            builder.set(znodes.topic(name), node.encode(), stored.version)
            for number, epoch in epochs.items():
                builder.put(znodes.partition_state(name, number), self._state(epoch))
            builder.commit()
            self._lead([_Leadership(name, node, epochs)], is_new=True)

    def change_config(
        self, name: str, changes: ConfigChanges, in_force: Mapping[str, str], replace: bool = False
    ) -> None:
        """Its logs follow the settings from their next operation on."""
        with self._lock:
            store_config(self._store, znodes.topic_config(name), changes, replace, in_force)
            kept = {} if replace else in_force
            self._topic_configs.set(name, changed_config(kept, changes))
            self.on_config_change(name)

    def delete_topic(self, topic: TopicInfo) -> None:
        """Delete a topic with its data.  Raises the error of a partition whose directory could not be deleted."""
        with self._lock:
            name, topic_id = topic.name, topic.topic_id
            # The directories follow one by one; should this process end before the last, the next one goes on.
            builder = MultiBuilder(self._store)
            builder.put(znodes.topic_deletion(topic_id), znodes.encode_deletion(name))
            builder.delete_recursive(znodes.topic(name))
            builder.delete_recursive(znodes.topic_config(name))
            builder.commit()
            # After the write, which may fail and then leaves the topic as it was; before the partitions stop, because
            # a response must not name a topic that cannot be read.
            self._cache.update(lambda snapshot: snapshot.without_topic(name))
            stops = [StopReplica(TopicPartition(name, number), delete=True) for number in sorted(topic.partitions)]
            results = self._replica_manager.stop_replicas(stops, CONTROLLER_EPOCH)
            self._cache.announce()
            error = next((error for error in results.values() if error is not None), None)
            if error is not None:
                raise error
            self._store.delete(znodes.topic_deletion(topic_id))
            self._topic_configs.remove(name)

    def waiting_deletion(self, name: str) -> str | None:
        """None: delete_topic() returns when all is gone."""
        return None

    def why_unknown(self, name: str) -> str | None:
        return unreadable_topic(self._store, name)

    def leaderless_topic(self, name: str) -> TopicInfo | None:
        """None: a topic has a leader when create_topic() returns."""
        return None

    def retry_offline_partitions(self) -> None:
        """Open the partitions that could not be opened: a full disk may have room again."""
        if not self._offline:
            return
        with self._lock:
            for name, numbers in self._offline.items():
                info, stored = self._cache.topic(name), self._store.get(znodes.topic(name))
                if info is None or stored is None:
                    numbers.clear()
                    continue
                node = znodes.decode_node(znodes.topic(name), stored.data, znodes.TopicZNode.decode)
                for number, is_new in list(numbers.items()):
                    state = self._store.get(znodes.partition_state(name, number))
                    versions = {number: state.version if state is not None else 0}
                    epochs = {number: info.partitions[number].leader_epoch}
                    self._lead([_Leadership(name, node, epochs, versions)], is_new)
                    led = self._cache.topic(name)
                    if led is not None and led.partitions[number].leader != NO_LEADER:
                        del numbers[number]
                        logger.info("%s-%d is online", name, number)
            self._offline = {name: numbers for name, numbers in self._offline.items() if numbers}

    # -- steps of a change ------------------------------------------------------------------------------

    def _put_topic(
        self,
        name: str,
        node: znodes.TopicZNode,
        leader_epochs: Mapping[int, int],
        config: Mapping[str, str],
        builder: MultiBuilder,
    ) -> None:
        builder.put(znodes.topic_config(name), znodes.encode_config(config))
        builder.create(znodes.topic(name), node.encode())
        for number, epoch in leader_epochs.items():
            builder.put(znodes.partition_state(name, number), self._state(epoch))

    def _state(self, leader_epoch: int) -> bytes:
        state = znodes.PartitionStateZNode(self._broker_id, leader_epoch, [self._broker_id], CONTROLLER_EPOCH)
        return state.encode()

    def _lead(self, topics: Sequence[_Leadership], is_new: bool) -> None:
        """Open the partitions and lead them, then let everybody see the topics."""
        updates = [
            LeaderAndIsrUpdate(
                TopicPartition(topic.name, number),
                self._broker_id,
                epoch,
                (self._broker_id,),
                topic.node.assignment[number],
                topic.partition_epochs.get(number, 0),
                topic_id=topic.node.topic_id,
                is_new=is_new,
            )
            for topic in topics
            for number, epoch in sorted(topic.leader_epochs.items())
        ]
        results = self._replica_manager.become_leader_or_follower(updates, CONTROLLER_EPOCH)
        self._note_offline(results, is_new)
        infos = [self._topic_info(topic, results) for topic in topics]
        self._cache.update(lambda snapshot: snapshot.with_topics(infos))
        for update in updates:
            if results[update.topic_partition] is None:
                self.on_leadership(update.topic_partition, update.leader_epoch)
        self._cache.announce()

    def _note_offline(self, results: Mapping[TopicPartition, ApiError | None], is_new: bool) -> None:
        """A partition that cannot be opened is offline; the others are served."""
        for topic_partition, error in results.items():
            if error is not None:
                numbers = self._offline.setdefault(topic_partition.topic, {})
                level = logging.DEBUG if topic_partition.partition in numbers else logging.ERROR
                logger.log(level, "%s is offline: %s", topic_partition, error)
                numbers.setdefault(topic_partition.partition, is_new)

    def _topic_info(self, topic: _Leadership, results: Mapping[TopicPartition, ApiError | None]) -> TopicInfo:
        """The topic for the next snapshot.  A partition that this change does not name is as it was; one of another
        broker has no leader, since that broker is not alive."""
        name, node, leader_epochs, _ = topic
        before = self._cache.topic(name)
        partitions = dict(before.partitions) if before is not None else {}
        for number, replicas in sorted(node.assignment.items()):
            if number in leader_epochs:
                leader = self._broker_id if results[TopicPartition(name, number)] is None else NO_LEADER
                isr = (self._broker_id,)
                offline = tuple(replica for replica in replicas if replica != leader)
                partitions[number] = PartitionInfo(leader, leader_epochs[number], tuple(replicas), isr, offline)
            elif number not in partitions:
                partitions[number] = PartitionInfo(NO_LEADER, -1, tuple(replicas), (), tuple(replicas))
        return TopicInfo(name, node.topic_id or ZERO_UUID, partitions)


def _next_leader_epoch(stored_epoch: int, last_epoch: int | None, is_continued: bool) -> int:
    """The leader epoch of a partition after a start.

    stored_epoch: of the stored state.  last_epoch: of the last batch in the log, which may be above it.
    is_continued: the same broker goes on with all that it had.
    """
    epoch = stored_epoch if last_epoch is None else max(stored_epoch, last_epoch)
    return epoch if is_continued else epoch + 1


def _adopted_leader_epoch(last_epoch: int | None) -> int:
    """The epoch after the last one that the former leader wrote."""
    return INITIAL_LEADER_EPOCH if last_epoch is None else last_epoch + 1
