"""ControllerContext: the active controller's copy of the cluster's state."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.controller.election import LeaderAndIsr


class PartitionState(enum.Enum):
    """PSM-01.  VALID_PARTITION_STATES has the legal predecessors."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(enum.Enum):
    """RSM-01.  VALID_REPLICA_STATES has the legal predecessors."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


#: State -> the states from which it can be reached.
VALID_PARTITION_STATES: Mapping[PartitionState, frozenset[PartitionState]] = MappingProxyType(
    {
        PartitionState.NEW: frozenset({PartitionState.NON_EXISTENT}),
        PartitionState.ONLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
        PartitionState.OFFLINE: frozenset({PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE}),
        PartitionState.NON_EXISTENT: frozenset({PartitionState.OFFLINE}),
    }
)
VALID_REPLICA_STATES: Mapping[ReplicaState, frozenset[ReplicaState]] = MappingProxyType(
    {
        ReplicaState.NEW: frozenset({ReplicaState.NON_EXISTENT}),
        ReplicaState.ONLINE: frozenset(
            {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
        ),
        ReplicaState.OFFLINE: frozenset(
            {ReplicaState.NEW, ReplicaState.ONLINE, ReplicaState.OFFLINE, ReplicaState.DELETION_INELIGIBLE}
        ),
        ReplicaState.DELETION_STARTED: frozenset({ReplicaState.OFFLINE}),
        ReplicaState.DELETION_SUCCESSFUL: frozenset({ReplicaState.DELETION_STARTED}),
        ReplicaState.DELETION_INELIGIBLE: frozenset({ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED}),
        ReplicaState.NON_EXISTENT: frozenset({ReplicaState.DELETION_SUCCESSFUL}),
    }
)


class LiveBroker(NamedTuple):
    """A registered broker.  endpoints: listener name -> (host, port).  epoch: the czxid of its node, which is another
    one after each registration."""

    broker_id: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None
    epoch: int


class ReplicaAssignment(NamedTuple):
    """replicas: all that have the partition now, those that a reassignment adds or removes included."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    def without(self, broker_ids: Collection[int]) -> ReplicaAssignment:
        """Of the other replicas."""
        left = [tuple(replica for replica in part if replica not in broker_ids) for part in self]
        return ReplicaAssignment(*left)


class PartitionReplica(NamedTuple):
    """One replica of one partition."""

    topic_partition: TopicPartition
    broker_id: int


class ControllerContext:
    """Not thread-safe: the event thread alone reads and changes it.  clear() empties it at a resignation."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        #: Of the controller; 0 before the first election.
        self.epoch = 0
        self.live_brokers: dict[int, LiveBroker] = {}
        #: Those that have announced that they stop; stopped: those of them that have done so.
        self.shutting_down: set[int] = set()
        self.stopped: set[int] = set()
        self.topic_ids: dict[str, UUID | None] = {}
        self.assignments: dict[TopicPartition, ReplicaAssignment] = {}
        self.being_reassigned: set[TopicPartition] = set()
        self._partitions: dict[str, set[int]] = {}
        self.leadership: dict[TopicPartition, LeaderAndIsr] = {}
        #: Broker -> partitions whose log it could not open.
        self.offline_dirs: dict[int, set[TopicPartition]] = {}
        #: Broker -> partitions to which it cannot append because its disk is full.
        self.full_disks: dict[int, frozenset[TopicPartition]] = {}
        self.partition_states: dict[TopicPartition, PartitionState] = {}
        self.replica_states: dict[PartitionReplica, ReplicaState] = {}
        self.topics_to_delete: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.topics_ineligible_for_deletion: set[str] = set()

    # -- brokers ----------------------------------------------------------------------------------------

    def note_gone(self, broker_ids: Collection[int]) -> None:
        """Their registrations have ended."""
        self.stopped |= self.shutting_down & set(broker_ids)
        self.shutting_down.difference_update(broker_ids)
        for broker_id in broker_ids:
            self.offline_dirs.pop(broker_id, None)

    def note_registered(self, broker_ids: Collection[int]) -> None:
        for broker_id in broker_ids:
            self.offline_dirs.pop(broker_id, None)
            self.shutting_down.discard(broker_id)
            self.stopped.discard(broker_id)

    # -- topics -----------------------------------------------------------------------------------------

    @property
    def topics(self) -> Set[str]:
        return self.topic_ids.keys()

    def set_assignment(self, topic_partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        self.assignments[topic_partition] = assignment
        if assignment.is_being_reassigned:
            self.being_reassigned.add(topic_partition)
        else:
            self.being_reassigned.discard(topic_partition)
        self._partitions.setdefault(topic_partition.topic, set()).add(topic_partition.partition)

    def remove_topic(self, name: str) -> None:
        for topic_partition in self.partitions_of(name):
            for broker_id in self.assignments.pop(topic_partition).replicas:
                self.replica_states.pop(PartitionReplica(topic_partition, broker_id), None)
            self.being_reassigned.discard(topic_partition)
            self.leadership.pop(topic_partition, None)
            self.partition_states.pop(topic_partition, None)
            for partitions in self.offline_dirs.values():
                partitions.discard(topic_partition)
        self._partitions.pop(name, None)
        self.topic_ids.pop(name, None)
        self.topics_to_delete.discard(name)
        self.topics_with_deletion_started.discard(name)
        self.topics_ineligible_for_deletion.discard(name)

    def partitions_of(self, name: str) -> list[TopicPartition]:
        return [TopicPartition(name, number) for number in sorted(self._partitions.get(name, ()))]

    def is_queued_for_deletion(self, name: str) -> bool:
        return name in self.topics_to_delete

    # -- replicas ---------------------------------------------------------------------------------------

    def replicas_of(self, topic_partition: TopicPartition) -> tuple[int, ...]:
        """In the order of the assignment; empty for a partition that is not assigned."""
        assignment = self.assignments.get(topic_partition)
        return assignment.replicas if assignment is not None else ()

    def replicas_for(self, topic_partitions: Iterable[TopicPartition]) -> list[PartitionReplica]:
        return [PartitionReplica(tp, broker_id) for tp in topic_partitions for broker_id in self.replicas_of(tp)]

    def replicas_on(self, broker_ids: Collection[int]) -> list[PartitionReplica]:
        return [
            PartitionReplica(tp, broker_id)
            for tp, assignment in self.assignments.items()
            for broker_id in assignment.replicas
            if broker_id in broker_ids
        ]

    def partitions_led_by(self, broker_id: int) -> list[TopicPartition]:
        return [tp for tp, state in self.leadership.items() if state.leader == broker_id]

    # -- brokers ----------------------------------------------------------------------------------------

    @property
    def live_ids(self) -> set[int]:
        """Without the brokers that are shutting down."""
        return self.live_brokers.keys() - self.shutting_down

    @property
    def live_or_shutting_down_ids(self) -> set[int]:
        return set(self.live_brokers)

    def is_online(
        self, broker_id: int, topic_partition: TopicPartition, *, include_shutting_down: bool = False
    ) -> bool:
        """Whether the broker is alive, and the partition's data directory there too."""
        is_alive = broker_id in self.live_brokers and (include_shutting_down or broker_id not in self.shutting_down)
        return is_alive and topic_partition not in self.offline_dirs.get(broker_id, ())

    def online_replicas(
        self, replicas: Sequence[int], topic_partition: TopicPartition, *, include_shutting_down: bool = False
    ) -> list[int]:
        return [
            replica
            for replica in replicas
            if self.is_online(replica, topic_partition, include_shutting_down=include_shutting_down)
        ]

    def without_room(self, topic_partition: TopicPartition) -> set[int]:
        """The brokers that cannot append to the partition because their disk is full."""
        return {broker_id for broker_id, partitions in self.full_disks.items() if topic_partition in partitions}

    # -- states -----------------------------------------------------------------------------------------

    def partition_state(self, topic_partition: TopicPartition) -> PartitionState:
        return self.partition_states.get(topic_partition, PartitionState.NON_EXISTENT)

    def set_partition_state(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        if state is PartitionState.NON_EXISTENT:
            self.partition_states.pop(topic_partition, None)
        else:
            self.partition_states[topic_partition] = state

    def replica_state(self, replica: PartitionReplica) -> ReplicaState:
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def set_replica_state(self, replica: PartitionReplica, state: ReplicaState) -> None:
        if state is ReplicaState.NON_EXISTENT:
            self.replica_states.pop(replica, None)
        else:
            self.replica_states[replica] = state

    def replicas_in_state(self, topic: str, state: ReplicaState) -> list[PartitionReplica]:
        return [r for r in self.replicas_for(self.partitions_of(topic)) if self.replica_state(r) is state]
