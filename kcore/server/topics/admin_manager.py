"""AdminManager: what a request to change topics must satisfy, where new replicas go, and what is answered.

Rules and messages are those of Kafka's controller (ReplicationControlManager, 4.x; AdminManager, 3.9).  A TopicChanges
carries the change out.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple
from uuid import UUID

from kcore.common import topic_names
from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.topic_partition import ZERO_UUID
from kcore.errors import (
    ApiError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicException,
    LeaderNotAvailable,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.log.log_config import MAX_LONG, LogConfig
from kcore.metadata.metadata_cache import MetadataCache, TopicInfo
from kcore.metadata.store import StoreError
from kcore.metadata.store_errors import store_errors_for_clients
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.purgatory.timer import Timer
from kcore.server.config.config_changes import ConfigOperation, topic_config_changes
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.topic_configs import TopicConfigs
from kcore.server.topics.coordinator_types import coordinator_type_of, is_auto_created
from kcore.server.topics.replica_assignment import assign_replicas_to_brokers
from kcore.server.topics.topic_changes import DelayedTopicChange, IsDone, TopicChanges

logger = logging.getLogger(__name__)

#: Partitions that one request may create, of all its topics together; more would be a mistake, or an attack.  Kafka's
#: MAX_PARTITIONS_PER_BATCH.
MAX_PARTITIONS_PER_REQUEST = 10_000
#: How long calls in the broker's own process wait for the controller: Kafka's request.timeout.ms.
WAIT_MS = 30_000
#: How long a request waits for the first metadata of a broker that has just started.
_FIRST_METADATA_MS = 10_000
_ANY_TOPIC = "any topic"
#: Topics of which is remembered why they could not be created automatically.
_MAX_REFUSALS = 1000


class CreatedTopic(NamedTuple):
    """topic_id is ZERO_UUID if nothing was created because the request only validates."""

    topic_id: UUID
    num_partitions: int
    replication_factor: int
    config: LogConfig


def check_num_partitions(count: int) -> None:
    """Raises PolicyViolation for more than one request may create."""
    if count > MAX_PARTITIONS_PER_REQUEST:
        raise PolicyViolation(
            f"Excessively large number of partitions per request: {count}, at most {MAX_PARTITIONS_PER_REQUEST} are "
            "allowed."
        )


class AdminManager:
    """Thread-safe: one change of topics at a time, so that what was validated is still so when it is carried out.

    create_topic(), create_partitions() and delete_topic() may wait for the store and for disks.
    """

    def __init__(
        self,
        broker_id: int,
        config: KafkaConfig,
        metadata_cache: MetadataCache,
        changes: TopicChanges,
        topic_configs: TopicConfigs,
        timer: Timer,
        random: Random = SYSTEM_RANDOM,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._cache = metadata_cache
        self._changes = changes
        self._random = random
        self._waiting = DelayedOperationPurgatory("Topic", timer)
        self._topic_configs = topic_configs
        #: Topics that have flush.messages, and whether those without it have it from the broker: a request that writes
        #: to such a topic may wait for the disk.
        self.flushing_topics = topic_configs.flushing
        self.flushes_by_default = False
        self.read_flush_default()
        self._lock = threading.RLock()
        #: Topic -> why it could not be created automatically: logged when it changes, not at each request.
        self._refusals: dict[str, str] = {}

    def topic_config(self, name: str) -> Mapping[str, str]:
        """A topic's own settings, by Kafka's names; empty if it has none."""
        return self._topic_configs.get(name)

    def flushes_on_append(self, name: str) -> bool:
        """Whether an append to the topic may wait for an fsync: flush.messages is set, for it or for all topics."""
        return self.flushes_by_default or name in self.flushing_topics

    def read_flush_default(self) -> None:
        """To be called after a change of log.flush.interval.messages."""
        self.flushes_by_default = self._config.log_config.flush_messages < MAX_LONG

    @property
    def is_controller(self) -> bool:
        """Whether this broker answers requests to change topics; any other answers NOT_CONTROLLER."""
        return self._changes.is_controller

    # -- waiting for the metadata -------------------------------------------------------------------------

    def when_done(
        self, changes: Mapping[str, IsDone], timeout_ms: float, on_done: Callable[[Collection[str]], None]
    ) -> None:
        """Call on_done, now or later on another thread, once the metadata have the changes (topic -> has it?), with the
        topics whose change they do not have after timeout_ms."""
        operation = DelayedTopicChange(max(timeout_ms, 0), self._cache, changes, on_done)
        self._waiting.try_complete_else_watch(operation, [_ANY_TOPIC])

    def when_there_are_brokers(self, on_done: Callable[[], None]) -> None:
        """Call on_done, now or later on another thread, once the metadata name a broker, and after 10 s in any case.

        A member of a cluster has no metadata before the controller's first request."""
        if self._cache.snapshot.broker_ids():
            on_done()
        else:
            changes = {"": lambda snapshot: bool(snapshot.broker_ids())}
            self.when_done(changes, _FIRST_METADATA_MS, lambda missing: on_done())

    def wait_for(self, name: str, is_done: IsDone, timeout_ms: float = WAIT_MS) -> None:
        """Return when the metadata have a change.  Raises RequestTimedOut."""
        missing: list[str] = []
        answered = threading.Event()

        def on_done(names: Collection[str]) -> None:
            missing.extend(names)
            answered.set()

        self.when_done({name: is_done}, timeout_ms, on_done)
        # Longer than the timer: that ends with the broker, and then nobody calls on_done.
        if not answered.wait((timeout_ms + 1000) / 1000) or missing:
            raise RequestTimedOut(f"{name}: the controller has not carried the change out after {timeout_ms} ms")

    def metadata_changed(self) -> None:
        """To be called after a change of the metadata by the controller, without a lock."""
        self._waiting.check_and_complete(_ANY_TOPIC)

    # -- create -----------------------------------------------------------------------------------------

    def num_created(self, num_partitions: int, num_assignments: int) -> int:
        """How many partitions a topic of a request would get, at most: it may be refused for another reason.

        Source: ReplicationControlManager.validateTotalNumberOfPartitions, Kafka 4.x.
        """
        if num_assignments:
            return num_assignments
        return self._config["num.partitions"] if num_partitions == -1 else max(num_partitions, 0)

    def num_auto_created(self, name: str) -> int:
        """How many partitions auto_create_topic() would give a topic, at most."""
        kind = coordinator_type_of(name)
        if kind is not None:
            num_partitions: int = self._config[kind.num_partitions]
            return num_partitions
        return self.num_created(-1, 0) if is_auto_created(name) else 0

    def num_added(self, name: str, count: int) -> int:
        """How many partitions a topic that grows to `count` would get, at most."""
        topic = self._cache.topic(name)
        return 0 if topic is None else max(count - len(topic.partitions), 0)

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
        InvalidReplicationFactor, InvalidReplicaAssignment, InvalidConfig, InvalidRequest, PolicyViolation;
        RequestTimedOut if the store cannot be reached.
        """
        with store_errors_for_clients(f"creation of topic {name}"):
            return self._create_topic(name, num_partitions, replication_factor, assignments, configs, validate_only)

    def _create_topic(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        with self._lock:
            topic_names.validate(name)
            if name == topic_names.CLUSTER_METADATA_TOPIC:
                raise TopicAuthorizationFailed(f"Creation of internal topic {name} is prohibited.")
            snapshot = self._cache.snapshot
            if snapshot.topic(name) is not None:
                raise TopicAlreadyExists(f"Topic '{name}' already exists.")
            colliding = topic_names.colliding_topics(name, snapshot.topic_names())
            if colliding:
                raise InvalidTopicException(f"Topic '{name}' collides with existing topic: {colliding[0]}")
            try:
                placement = self._placement(num_partitions, replication_factor, assignments)
            except (InvalidReplicationFactor, InvalidReplicaAssignment) as error:
                # The broker that is missing may be the one that a deletion of this name waits for.
                self._check_is_free(name, error)
                raise
            overrides = self._overrides(name, configs or {})
            config = LogConfig.from_kafka(overrides, self._config.log_config)
            replicas = len(next(iter(placement.values())))
            if validate_only:
                self._check_is_free(name)
                return CreatedTopic(ZERO_UUID, len(placement), replicas, config)
            topic_id = self._changes.create_topic(name, placement, overrides)
            logger.info("created topic %s with %d partitions, id %s", name, len(placement), topic_id)
            return CreatedTopic(topic_id, len(placement), replicas, config)

    def _check_is_free(self, name: str, error: ApiError | None = None) -> None:
        """That the store has no topic of the name, which the metadata do not have.  Raises TopicAlreadyExists, because
        of `error`."""
        reason = self._why_taken(name)
        if reason is not None:
            raise TopicAlreadyExists(reason) from error

    def _why_taken(self, name: str) -> str | None:
        return self._changes.waiting_deletion(name) or self._changes.why_unknown(name)

    def auto_create_topic(self, name: str) -> bool:
        """Create a topic because a client requests it; whether it is there, or will be once the controller has seen it.
        False if the broker's settings or its state forbid it.

        Any broker of a cluster does this, not only the controller.  Raises InvalidTopicException, LeaderNotAvailable
        if the store cannot be reached.
        """
        if not is_auto_created(name):
            return False
        kind, config = coordinator_type_of(name), self._config
        try:
            if kind is None:
                self._create_topic(name)
            else:
                num_partitions, factor = config[kind.num_partitions], config[kind.replication_factor]
                self._create_topic(name, num_partitions, factor, configs=kind.topic_configs(config))
        except TopicAlreadyExists:
            pass  # another request was faster
        except InvalidReplicationFactor as error:
            self._refuse(name, error)
            return False
        except StoreError as error:
            # Retriable: a client that has another error would take it for a statement about the topic.
            self._refuse(name, error)
            raise LeaderNotAvailable(f"{name}: the metadata store: {error}") from error
        self._refusals.pop(name, None)
        return True

    def _refuse(self, name: str, error: Exception) -> None:
        """Log why a topic could not be created automatically, once: clients ask again and again."""
        reason = str(error)
        if self._refusals.get(name) != reason:
            if len(self._refusals) >= _MAX_REFUSALS:
                self._refusals.clear()
            self._refusals[name] = reason
            logger.warning("topic %s could not be created automatically: %s", name, reason)

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
            check_num_partitions(len(assignments))
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
        check_num_partitions(count)
        self._check_replication_factor(factor)
        return assign_replicas_to_brokers(self._racks(), count, factor, self._random)

    def _racks(self) -> dict[int, str | None]:
        """Live broker -> rack.  A broker alone, without a listener, has only itself."""
        return {broker.node_id: broker.rack for broker in self._cache.snapshot.brokers()} or {self._broker_id: None}

    def _check_replication_factor(self, factor: int) -> None:
        brokers = len(self._cache.snapshot.broker_ids())
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
        broker_ids = self._cache.snapshot.broker_ids()
        for broker in replicas:
            if broker not in broker_ids:
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

        Raises UnknownTopicOrPartition, InvalidPartitions, InvalidReplicaAssignment, PolicyViolation; RequestTimedOut if
        the store cannot be reached.
        """
        with self._lock, store_errors_for_clients(f"new partitions of topic {name}"):
            topic = self._cache.topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            current = len(topic.partitions)
            if sorted(topic.partitions) != list(range(current)):
                missing = next(number for number in range(current) if number not in topic.partitions)
                raise InvalidPartitions(
                    f"The topic {name} has {current} partition(s), but none with the number {missing}: new ones are "
                    "numbered by how many there are, so that it cannot get any."
                )
            if count == current:
                raise InvalidPartitions(f"Topic already has {count} partition(s).")
            if count < current:
                raise InvalidPartitions(
                    f"The topic {name} currently has {current} partition(s); {count} would not be an increase."
                )
            check_num_partitions(count - current)
            added = list(range(current, count))
            first = topic.partitions[0].replicas or (self._broker_id,)
            if assignments is None:
                self._check_replication_factor(len(first))
                racks = self._racks()
                # Where the brokers of partition 0 began: the new partitions go on from there.
                start = bisect.bisect_left(sorted(racks), first[0]) % len(racks)
                placement = assign_replicas_to_brokers(racks, len(added), len(first), self._random, current, start)
            else:
                if len(assignments) != len(added):
                    raise InvalidReplicaAssignment(
                        f"Attempted to add {len(added)} additional partition(s), but only {len(assignments)} "
                        "assignment(s) were specified."
                    )
                placement = {
                    number: self._checked_replicas(replicas, first)
                    for number, replicas in zip(added, assignments, strict=True)
                }
            if validate_only:
                return
            self._changes.create_partitions(name, placement)

    # -- settings ---------------------------------------------------------------------------------------

    def alter_topic_config(
        self, name: str, operations: Iterable[ConfigOperation], validate_only: bool = False, replace: bool = False
    ) -> None:
        """Set and delete settings of a topic; those that are not named stay, but with replace.

        Raises UnknownTopicOrPartition, InvalidTopicException, InvalidConfig, InvalidRequest; RequestTimedOut if the
        store cannot be reached.
        """
        with self._lock, store_errors_for_clients(f"settings of topic {name}"):
            topic_names.validate(name)
            if self._cache.topic(name) is None:
                raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
            in_force = self.topic_config(name)
            changes = topic_config_changes({} if replace else in_force, operations, self._config.log_config)
            if (changes or replace) and not validate_only:
                self._changes.change_config(name, changes, in_force, replace)
                logger.info("topic %s: settings %s: %s", name, "replaced" if replace else "changed", changes)

    # -- delete -----------------------------------------------------------------------------------------

    def delete_topic(self, name: str) -> TopicInfo:
        """Delete a topic with its data; what it was.  Raises UnknownTopicOrPartition, InvalidRequest for an internal
        topic, RequestTimedOut if the store cannot be reached."""
        with self._lock, store_errors_for_clients(f"deletion of topic {name}"):
            topic = self._cache.topic(name)
            if topic is None:
                topic_names.validate(name)
                topic = self._changes.leaderless_topic(name)
            if topic is None:
                raise UnknownTopicOrPartition(self._why_taken(name) or f"The topic '{name}' does not exist.")
            if topic_names.is_internal(name):
                raise InvalidRequest(f"The topic '{name}' is internal: the brokers need it, it cannot be deleted.")
            self._changes.delete_topic(topic)
            logger.info("deleted topic %s", name)
            return topic
