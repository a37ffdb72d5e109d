"""Topics: created, deleted, given more partitions; and found again when the broker starts.

The metadata store holds the truth, in Kafka's znodes; the metadata cache and the replica manager follow
it.  Rules and messages are those of Kafka's controller (ReplicationControlManager, 4.x; AdminManager, 3.9).
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple
from uuid import UUID

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    PolicyViolation,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.log.log_config import MAX_LONG, LogConfig
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.multi_builder import MultiBuilder
from kcore.metadata.store import MetadataStore
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.replica.replica_manager import ReplicaManager
from kcore.server import topic_names
from kcore.server.kafka_config import KafkaConfig
from kcore.server.metadata_cache import NO_LEADER, MetadataCache, PartitionInfo, TopicInfo

logger = logging.getLogger(__name__)

#: Leader epoch of a partition that was just created.
INITIAL_LEADER_EPOCH = 0
#: There is no elected controller yet; this broker decides about topics itself.
CONTROLLER_EPOCH = 1
#: Partitions one request may create; more would be a mistake, or an attack.
MAX_PARTITIONS_PER_REQUEST = 10_000

#: What a topic is given whose settings we do not know because another broker wrote its directory: a default
#: retention would delete data that its owner wanted to keep.
ADOPTED_TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1"}


class CreatedTopic(NamedTuple):
    """topic_id is ZERO_UUID if nothing was created because only validation was asked for."""

    topic_id: UUID
    num_partitions: int
    replication_factor: int
    config: LogConfig


class AdminManager:
    """Thread-safe: one change of topics at a time, under one lock, from the store's write to the cache's update."""

    def __init__(
        self,
        broker_id: int,
        config: KafkaConfig,
        store: MetadataStore,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        random: Random = SYSTEM_RANDOM,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._store = store
        self._cache = metadata_cache
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._random = random
        self._lock = threading.RLock()
        self._configs: dict[str, dict[str, str]] = {}
        # Topic id -> name, of deletions that the last stop has interrupted.
        self._interrupted_deletions: dict[UUID, str] = {}
        # Topic -> partitions that could not be opened, and whether each was just made.
        self._offline: dict[str, dict[int, bool]] = {}
        #: Told of each partition that this broker leads from now on, with its epoch (API-04).
        self.on_leadership: Callable[[TopicPartition, int], None] = lambda topic_partition, leader_epoch: None

    # -- start ------------------------------------------------------------------------------------------

    def topic_config(self, name: str) -> dict[str, str]:
        """A topic's own settings, by Kafka's names; empty if it has none."""
        return self._configs.get(name, {})

    def flushes_on_append(self, name: str) -> bool:
        """Whether an append to the topic may wait for an fsync: flush.messages is set, for it or for all topics."""
        by_default = self._config.log_config.flush_messages < MAX_LONG
        return by_default or "flush.messages" in self._configs.get(name, ())

    def is_stray(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether a directory belongs to an earlier topic of the name.  One that nobody knows is adopted, and what an
        interrupted deletion has left is deleted."""
        stored = self._store.get(znodes.topic(topic_partition.topic))
        known = znodes.TopicZNode.decode(stored.data).topic_id if stored is not None else None
        if known in (None, ZERO_UUID) or topic_id in (None, ZERO_UUID, known):
            return False
        return topic_id not in self._interrupted_deletions

    def load_configs(self) -> None:
        """Read every topic's settings, and which deletions were interrupted.  Before the logs are opened."""
        self._interrupted_deletions = self._read_deletions()
        for name in self._store.children(znodes.TOPIC_CONFIGS):
            node = self._store.get(znodes.topic_config(name))
            if node is not None:
                self._configs[name] = znodes.decode_config(node.data)

    def adopt_configs(self, topics: set[str]) -> None:
        """Give topics whose directories are here, but which the store does not know, settings that keep their data."""
        known = set(self._store.children(znodes.TOPICS))
        for name in topics - known:
            self._configs.setdefault(name, dict(ADOPTED_TOPIC_CONFIG))

    def stored_partition_count(self, name: str) -> int:
        """How many partitions a topic has that load_topics() will find; 0 if it will find none."""
        node = self._store.get(znodes.topic(name))
        if node is not None:
            return len(znodes.TopicZNode.decode(node.data).assignment)
        here = [log.topic_partition for log in self._log_manager.all_logs()]
        return max((partition + 1 for topic, partition in here if topic == name), default=0)

    def load_topics(self, unclean: bool) -> int:
        """Lead every partition that the store or a data directory has.

        Returns the largest producer id that is at work in a log the store did not know, -1 for none: it was given
        out by another broker, and must not be given out again.

        unclean: the last stop was not a clean one, so data may be missing that a consumer has seen; a higher
        leader epoch lets it notice.
        """
        self._finish_deletions()
        with self._lock:
            found: dict[str, dict[int, UUID | None]] = defaultdict(dict)
            for log in self._log_manager.all_logs():
                if log.topic_partition.topic != topic_names.CLUSTER_METADATA_TOPIC:
                    found[log.topic_partition.topic][log.topic_partition.partition] = log.topic_id
            builder = MultiBuilder(self._store)
            loaded: dict[str, tuple[znodes.TopicZNode, dict[int, int]]] = {}
            for name in self._store.children(znodes.TOPICS):
                stored = self._store.get(znodes.topic(name))
                assert stored is not None
                node = znodes.TopicZNode.decode(stored.data)
                loaded[name] = node, self._next_epochs(name, node, found.pop(name, {}), unclean, builder)
            topic_ids = {node.topic_id for node, _ in loaded.values()}
            for name, partitions in sorted(found.items()):
                node = self._adopted(name, partitions, topic_ids)
                topic_ids.add(node.topic_id)
                loaded[name] = node, self._adopt_topic(name, node, partitions, builder)
            # All at once: one write to the disk, and a start that is killed has adopted all or nothing.
            builder.commit()
            for name, (node, epochs) in loaded.items():
                self._lead(name, node, epochs, is_new=False)
            adopted = [self._log_manager.get_log(TopicPartition(name, n)) for name in found for n in found[name]]
            return max((log.max_producer_id for log in adopted if log), default=-1)

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

    def _finish_deletions(self) -> None:
        """Delete what is left of topics whose deletion the last stop interrupted.

        Their directories would else be adopted as another broker's.  The topic id tells them from those of a topic
        of the same name that was created since.
        """
        for topic_id, name in self._interrupted_deletions.items():
            logs = [log for log in self._log_manager.all_logs() if log.topic_partition.topic == name]
            left = [log.topic_partition for log in logs if log.topic_id == topic_id]
            for topic_partition in left:
                self._log_manager.async_delete(topic_partition)
            if self._store.get(znodes.topic(name)) is None and len(left) == len(logs):
                self._configs.pop(name, None)  # what adopt_configs() gave it
            logger.info("topic %s: its deletion was interrupted, %d partitions were left", name, len(left))
            self._forget_deletion(topic_id, name)
        self._interrupted_deletions = {}

    def _forget_deletion(self, topic_id: UUID, name: str) -> None:
        self._store.delete_recursive(znodes.topic_deletion(topic_id))
        old = f"{znodes.DELETE_TOPICS}/{name}"
        node = self._store.get(old)
        if node is not None and znodes.decode_old_deletion(node.data) == topic_id:
            self._store.delete(old, node.version)

    def _next_epochs(
        self,
        name: str,
        node: znodes.TopicZNode,
        hosted: Mapping[int, UUID | None],
        unclean: bool,
        builder: MultiBuilder,
    ) -> dict[int, int]:
        """The leader epochs of this broker's partitions of a topic that the store knows: they go on from where they
        were.  The states that change are added to builder."""
        epochs = {}
        for number, replicas in node.assignment.items():
            stored = self._store.get(znodes.partition_state(name, number))
            state = znodes.PartitionStateZNode.decode(stored.data) if stored else None
            if self._broker_id not in replicas:
                continue
            epoch = state.leader_epoch if state else INITIAL_LEADER_EPOCH
            log = self._log_manager.get_log(TopicPartition(name, number))
            last_epoch = log.last_epoch if log is not None else None
            if last_epoch is not None and last_epoch > epoch:
                epoch = last_epoch
            if unclean or number not in hosted or state is None or state.leader != self._broker_id:
                epoch += 1
            if state is None or state.leader_epoch != epoch or state.leader != self._broker_id:
                builder.put(znodes.partition_state(name, number), self._state(epoch))
            epochs[number] = epoch
        return epochs

    def _adopted(self, name: str, hosted: Mapping[int, UUID | None], taken: set[UUID | None]) -> znodes.TopicZNode:
        """The node of a topic that only directories know.  Partitions that are missing here, because another broker had
        them, are listed without a replica."""
        topic_id = next((value for value in hosted.values() if value not in (None, ZERO_UUID)), None)
        if topic_id is None or topic_id in taken:
            topic_id = znodes.random_id(self._random)
        return znodes.TopicZNode(
            {number: [self._broker_id] if number in hosted else [] for number in range(max(hosted) + 1)}, topic_id
        )

    def _adopt_topic(
        self, name: str, node: znodes.TopicZNode, hosted: Mapping[int, UUID | None], builder: MultiBuilder
    ) -> dict[int, int]:
        """Add a topic that only directories know, because Kafka or open_log() wrote them; the leader epochs."""
        logger.info("topic %s was found in the data directory: %d partitions of %d", name, len(hosted), max(hosted) + 1)
        builder.put(znodes.topic(name), node.encode())
        builder.put(znodes.topic_config(name), znodes.encode_config(self.topic_config(name)))
        epochs = {}
        for number in hosted:
            log = self._log_manager.get_log(TopicPartition(name, number))
            last_epoch = log.last_epoch if log is not None else None
            # The epoch after the last one that its former leader wrote.
            epochs[number] = INITIAL_LEADER_EPOCH if last_epoch is None else last_epoch + 1
            builder.put(znodes.partition_state(name, number), self._state(epochs[number]))
        return epochs

    def _state(self, leader_epoch: int) -> bytes:
        state = znodes.PartitionStateZNode(self._broker_id, leader_epoch, [self._broker_id], CONTROLLER_EPOCH)
        return state.encode()

    def _lead(self, name: str, node: znodes.TopicZNode, epochs: Mapping[int, int], is_new: bool) -> None:
        """Open the partitions of `epochs`, and let the cache know the whole topic."""
        topic_id = node.topic_id or ZERO_UUID
        isr = (self._broker_id,)
        partitions = dict((self._cache.topic(name) or TopicInfo(name, topic_id, {})).partitions)
        updates = [
            LeaderAndIsrUpdate(
                TopicPartition(name, number),
                self._broker_id,
                epochs[number],
                isr,
                replicas,
                topic_id=node.topic_id,
                is_new=is_new,
            )
            for number, replicas in sorted(node.assignment.items())
            if number in epochs
        ]
        results = self._replica_manager.become_leader_or_follower(updates, CONTROLLER_EPOCH)
        for number, replicas in sorted(node.assignment.items()):
            if number in epochs:
                error = results[TopicPartition(name, number)]
                if error is not None:
                    # A partition that cannot be opened is offline; the others are served.
                    known = self._offline.setdefault(name, {})
                    level = logging.DEBUG if number in known else logging.ERROR
                    logger.log(level, "%s-%d is offline: %s", name, number, error)
                    known.setdefault(number, is_new)
                    partitions[number] = PartitionInfo(NO_LEADER, epochs[number], tuple(replicas), isr)
                    continue
                partitions[number] = PartitionInfo(self._broker_id, epochs[number], tuple(replicas), isr)
            elif number not in partitions:
                partitions[number] = PartitionInfo(NO_LEADER, -1, tuple(replicas), ())
        self._cache.update_topic(TopicInfo(name, topic_id, partitions))
        for number, epoch in epochs.items():
            if partitions[number].leader == self._broker_id:
                self.on_leadership(TopicPartition(name, number), epoch)

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
                for number, is_new in list(numbers.items()):
                    epochs = {number: info.partitions[number].leader_epoch}
                    self._lead(name, znodes.TopicZNode.decode(stored.data), epochs, is_new)
                    led = self._cache.topic(name)
                    if led is not None and led.partitions[number].leader != NO_LEADER:
                        del numbers[number]
                        logger.info("%s-%d is online", name, number)
            self._offline = {name: numbers for name, numbers in self._offline.items() if numbers}

    # -- create -----------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic and lead its partitions; -1 stands for the broker's default.

        assignments: partition -> brokers, instead of a number of partitions and replicas.
        Raises what CreateTopics answers: InvalidTopicException, TopicAlreadyExists, InvalidPartitions,
        InvalidReplicationFactor, InvalidReplicaAssignment, InvalidConfig, InvalidRequest.
        """
        with self._lock:
            topic_names.validate(name)
            if name == topic_names.CLUSTER_METADATA_TOPIC:
                raise TopicAuthorizationFailed(f"Creation of internal topic {name} is prohibited.")
            if self._cache.topic(name) is not None:
                raise TopicAlreadyExists(f"Topic '{name}' already exists.")
            colliding = topic_names.colliding_topics(name, self._cache.topic_names())
            if colliding:
                raise InvalidTopicException(f"Topic '{name}' collides with existing topic: {colliding[0]}")
            placement = self._placement(num_partitions, replication_factor, assignments)
            overrides = self._overrides(name, configs or {})
            config = LogConfig.from_kafka(overrides, self._config.log_config)
            replicas = len(next(iter(placement.values())))
            if validate_only:
                return CreatedTopic(ZERO_UUID, len(placement), replicas, config)
            node = znodes.TopicZNode(placement, znodes.random_id(self._random))
            assert node.topic_id is not None
            epochs = dict.fromkeys(placement, INITIAL_LEADER_EPOCH)
            builder = MultiBuilder(self._store)
            builder.put(znodes.topic_config(name), znodes.encode_config(overrides))
            builder.create(znodes.topic(name), node.encode())
            for number in placement:
                builder.put(znodes.partition_state(name, number), self._state(INITIAL_LEADER_EPOCH))
            builder.commit()
            self._configs[name] = overrides
            self._lead(name, node, epochs, is_new=True)
            logger.info("created topic %s with %d partitions, id %s", name, len(placement), node.topic_id)
            return CreatedTopic(node.topic_id, len(placement), replicas, config)

    def auto_create_topic(self, name: str) -> TopicInfo | None:
        """Create a topic because a client asked for it; None if the broker's settings or its state forbid it.

        Raises InvalidTopicException.
        """
        try:
            if name == topic_names.GROUP_METADATA_TOPIC:
                self.create_topic(
                    name,
                    self._config["offsets.topic.num.partitions"],
                    self._config["offsets.topic.replication.factor"],
                    configs={
                        "cleanup.policy": "compact",
                        "compression.type": "producer",
                        "segment.bytes": str(self._config["offsets.topic.segment.bytes"]),
                    },
                )
            elif name == topic_names.TRANSACTION_STATE_TOPIC or name == topic_names.CLUSTER_METADATA_TOPIC:
                return None
            else:
                self.create_topic(name)
        except TopicAlreadyExists:
            pass  # another request was faster
        except InvalidReplicationFactor as error:
            logger.error("topic %s could not be created automatically: %s", name, error)
            return None
        return self._cache.topic(name)

    def _placement(
        self, num_partitions: int, replication_factor: int, assignments: Mapping[int, Sequence[int]] | None
    ) -> dict[int, list[int]]:
        if assignments:
            if num_partitions != -1:
                raise InvalidRequest(
                    "A manual partition assignment was specified, but numPartitions was not set to -1."
                )
            if replication_factor != -1:
                raise InvalidRequest(
                    "A manual partition assignment was specified, but replication factor was not set to -1."
                )
            if sorted(assignments) != list(range(len(assignments))):
                raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
            return {
                number: self._checked_replicas(assignments[number], assignments[0]) for number in sorted(assignments)
            }
        if replication_factor < -1 or replication_factor == 0:
            raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
        if num_partitions < -1 or num_partitions == 0:
            raise InvalidPartitions("Number of partitions must be larger than 0, or -1 to use the default value.")
        count = self._config["num.partitions"] if num_partitions == -1 else num_partitions
        factor = self._config["default.replication.factor"] if replication_factor == -1 else replication_factor
        if count > MAX_PARTITIONS_PER_REQUEST:
            raise PolicyViolation(f"Excessively large number of partitions per request: {count}.")
        self._check_replication_factor(factor)
        return {number: [self._broker_id] for number in range(count)}

    def _check_replication_factor(self, factor: int) -> None:
        brokers = len(self._cache.broker_ids())
        if factor > brokers:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} "
                f"cannot be reached because only {brokers} broker(s) are registered."
            )

    def _checked_replicas(self, replicas: Sequence[int], first: Sequence[int]) -> list[int]:
        if not replicas:
            raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) != len(replicas):
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes a broker more than once: {list(replicas)}."
            )
        known = self._cache.broker_ids()
        for broker in replicas:
            if broker not in known:
                raise InvalidReplicaAssignment(
                    f"The manual partition assignment includes broker {broker}, but no such broker is registered."
                )
        if len(replicas) != len(first):
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {len(first)} replica(s)."
            )
        return list(replicas)

    def _overrides(self, name: str, configs: Mapping[str, str | None]) -> dict[str, str]:
        overrides = {}
        for key, value in configs.items():
            if value is None:
                raise InvalidConfig(f"Null value not supported for topic configs: {key}")
            overrides[key] = value
        return overrides

    def create_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to `count` partitions.

        Raises UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment.
        """
        with self._lock:
            topic = self._cache.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            current = len(topic.partitions)
            if count == current:
                raise InvalidPartitions(f"Topic already has {count} partition(s).")
            if count < current:
                raise InvalidPartitions(
                    f"The topic {name} currently has {current} partition(s); {count} would not be an increase."
                )
            if count - current > MAX_PARTITIONS_PER_REQUEST:
                raise PolicyViolation(f"Excessively large number of partitions per request: {count - current}.")
            added = list(range(current, count))
            placement = {number: [self._broker_id] for number in added}
            if assignments is not None:
                if len(assignments) != len(added):
                    raise InvalidReplicaAssignment(
                        f"Attempted to add {len(added)} additional partition(s), but only {len(assignments)} "
                        "assignment(s) were specified."
                    )
                first = topic.partitions[0].replicas or (self._broker_id,)
                placement = {
                    number: self._checked_replicas(replicas, first)
                    for number, replicas in zip(added, assignments, strict=True)
                }
            if validate_only:
                return
            stored = self._store.get(znodes.topic(name))
            assert stored is not None
            node = znodes.TopicZNode.decode(stored.data)
            node = node._replace(assignment={**node.assignment, **placement})
            builder = MultiBuilder(self._store)
            builder.set(znodes.topic(name), node.encode(), stored.version)
            for number in added:
                builder.put(znodes.partition_state(name, number), self._state(INITIAL_LEADER_EPOCH))
            builder.commit()
            self._lead(name, node, dict.fromkeys(added, INITIAL_LEADER_EPOCH), is_new=True)

    # -- delete -----------------------------------------------------------------------------------------

    def delete_topic(self, name: str) -> TopicInfo:
        """Delete a topic with its data; what it was.  Raises UnknownTopicOrPartition."""
        with self._lock:
            topic = self._cache.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            # First nobody finds it any more, then it is gone: an answer must not name a topic that cannot be read.
            self._cache.remove_topic(name)
            # The directories follow one by one; should this process end before the last, the next one goes on.
            builder = MultiBuilder(self._store)
            builder.put(znodes.topic_deletion(topic.topic_id), znodes.encode_deletion(name))
            builder.delete_recursive(znodes.topic(name))
            builder.delete_recursive(znodes.topic_config(name))
            builder.commit()
            stops = [StopReplica(TopicPartition(name, number), delete=True) for number in sorted(topic.partitions)]
            results = self._replica_manager.stop_replicas(stops, CONTROLLER_EPOCH)
            error = next((error for error in results.values() if error is not None), None)
            if error is not None:
                raise error
            self._store.delete(znodes.topic_deletion(topic.topic_id))
            self._configs.pop(name, None)
            logger.info("deleted topic %s", name)
            return topic
