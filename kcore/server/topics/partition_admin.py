"""Who answers requests to reassign partitions and to elect leaders: the active controller of a cluster, or a broker
alone, where every partition already has the only replica and leader that it can have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kcore.metadata.metadata_cache import NO_LEADER, MetadataCache

if TYPE_CHECKING:
    from kcore.controller.controller_context import ReplicaAssignment
    from kcore.controller.kafka_controller import OnResult
    from kcore.controller.leader_elections import ElectionType
    from kcore.controller.partition_reassignment import Targets


class PartitionAdmin(Protocol):
    """A KafkaController, which has the meaning of the methods, or a LonePartitionAdmin."""

    def alter_partition_reassignments(
        self, targets: Targets, on_done: OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None: ...

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None: ...

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None: ...


class LonePartitionAdmin:
    """Of a broker alone: only an order that changes nothing is accepted.

    It loads the controller's modules with the first order: a broker alone starts without them.
    """

    def __init__(self, broker_id: int, metadata_cache: MetadataCache) -> None:
        self._broker_id = broker_id
        self._cache = metadata_cache

    def alter_partition_reassignments(
        self, targets: Targets, on_done: OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None:
        on_done({tp: self._obstacle(tp, target) for tp, target in targets.items()})

    def _obstacle(self, tp: TopicPartition, target: Iterable[int] | None) -> ApiError | None:
        if not self._cache.contains(tp):
            return UnknownTopicOrPartition("The partition does not exist.")
        from kcore.controller.controller_context import ReplicaAssignment
        from kcore.controller.partition_reassignment import requested_assignment

        only = ReplicaAssignment((self._broker_id,))
        try:
            requested_assignment(only, None if target is None else tuple(target), only.replicas)
        except ApiError as error:
            return error
        return None

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None:
        on_done({})

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None:
        on_done({tp: self._no_election(election_type, tp) for tp in topic_partitions})

    def _no_election(self, election_type: ElectionType, tp: TopicPartition) -> ApiError:
        from kcore.controller.leader_elections import ElectionType

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
