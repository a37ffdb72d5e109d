"""Who answers requests to reassign partitions and to elect leaders: the active controller of a cluster, or a broker
alone, where every partition already has the only replica and leader that it can have."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ReplicaAssignment
from kcore.controller.leader_elections import ElectionType
from kcore.controller.partition_reassignment import Targets, requested_assignment
from kcore.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    NotController,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kcore.metadata.metadata_cache import NO_LEADER, MetadataCache
from kcore.server.requests.services import Services

_T = TypeVar("_T")
_OnResult = Callable[[_T | ApiError], None]


class PartitionAdmin(Protocol):
    """A KafkaController, which has the meaning of the methods, or one of the two below."""

    def alter_partition_reassignments(
        self, targets: Targets, on_done: _OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None: ...

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: _OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None: ...

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: _OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None: ...


def partition_admin(services: Services) -> PartitionAdmin:
    """Of this broker."""
    member = services.cluster_member
    if member is None:
        return LonePartitionAdmin(services.broker_id, services.metadata_cache)
    return member.controller or NoPartitionAdmin(services.broker_id)


class NoPartitionAdmin:
    """Of a member that takes no part in the controller's election."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def alter_partition_reassignments(
        self, targets: Targets, on_done: _OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None:
        on_done(self._error())

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: _OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None:
        on_done(self._error())

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: _OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None:
        on_done(self._error())

    def _error(self) -> NotController:
        return NotController(f"broker {self._broker_id} takes no part in elections")


class LonePartitionAdmin:
    """Of a broker alone: only an order that changes nothing is accepted."""

    def __init__(self, broker_id: int, metadata_cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._cache = metadata_cache

    def alter_partition_reassignments(
        self, targets: Targets, on_done: _OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None:
        on_done({tp: self._obstacle(tp, target) for tp, target in targets.items()})

    def _obstacle(self, tp: TopicPartition, target: Iterable[int] | None) -> ApiError | None:
        if not self._cache.contains(tp):
            return UnknownTopicOrPartition("The partition does not exist.")
        only = ReplicaAssignment((self._broker_id,))
        try:
            requested_assignment(only, None if target is None else tuple(target), only.replicas)
        except ApiError as error:
            return error
        return None

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: _OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None:
        on_done({})

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: _OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None:
        on_done({tp: self._no_election(election_type, tp) for tp in topic_partitions})

    def _no_election(self, election_type: ElectionType, tp: TopicPartition) -> ApiError:
        topic = self._cache.topic(tp.topic)
        partition = topic.partitions.get(tp.partition) if topic is not None else None
        if partition is None:
            return UnknownTopicOrPartition("The partition does not exist.")
        is_preferred = election_type is ElectionType.PREFERRED
        if partition.leader != NO_LEADER:
            reason = ElectionNotNeeded.PREFERRED_LEADS if is_preferred else ElectionNotNeeded.LEADER_IS_ALIVE
            return ElectionNotNeeded(reason)
        error = PreferredLeaderNotAvailable if is_preferred else EligibleLeadersNotAvailable
        return error("Its only replica is not available.")
