"""LeaderElections: elections that somebody orders, those that bring leaders back to their preferred replicas, and those
that take them away from brokers whose disks are full.

Each such broker has an ephemeral node below /kcore/full_disks with the partitions to which it cannot append
(server/member/leader_hand_over.py).  Not in Kafka.
Source: KafkaController.processReplicaLeaderElection, checkAndTriggerAutoLeaderRebalance, Kafka 3.9; KIP-183, KIP-460.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ControllerContext, PartitionState
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import ElectionStrategy
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.errors import (
    ApiError,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopicException,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.metadata.api_errors import STORE_AWAY
from kcore.metadata.store import StoreError, Watch

logger = logging.getLogger(__name__)


class ElectionType(enum.IntEnum):
    """Of ElectLeaders.  UNCLEAN: a partition without a live leader gets one, if need be one outside the ISR."""

    PREFERRED = 0
    UNCLEAN = 1


class LeaderElections:
    """Used by the event thread.  watch(name, process): a watch that puts an event of that name."""

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        partitions: PartitionStateMachine,
        watch: Callable[[str, Callable[[], None]], Watch],
    ) -> None:
        self._context = context
        self._store = store
        self._partitions = partitions
        self._watch = watch

    def elect(
        self, election_type: ElectionType, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | ApiError]:
        """The new leader of each partition, or why there is none."""
        results: dict[TopicPartition, int | ApiError] = {}
        electable = []
        for tp in topic_partitions:
            error = self._obstacle(election_type, tp)
            if error is None:
                electable.append(tp)
            else:
                results[tp] = error
        is_preferred = election_type is ElectionType.PREFERRED
        failed = self._partitions.handle_state_changes(
            electable,
            PartitionState.ONLINE,
            ElectionStrategy.PREFERRED if is_preferred else ElectionStrategy.OFFLINE,
            unclean=not is_preferred,
        )
        not_available = PreferredLeaderNotAvailable if is_preferred else EligibleLeadersNotAvailable
        for tp in electable:
            failure = failed.get(tp)
            results[tp] = self._context.leadership[tp].leader if failure is None else not_available(str(failure))
        return results

    def _obstacle(self, election_type: ElectionType, tp: TopicPartition) -> ApiError | None:
        context = self._context
        if tp not in context.assignments:
            return UnknownTopicOrPartition("The partition does not exist.")
        if context.is_queued_for_deletion(tp.topic):
            return InvalidTopicException("The topic is being deleted")
        state = context.leadership.get(tp)
        if election_type is ElectionType.PREFERRED:
            if state is None or state.leader == context.replicas_of(tp)[0]:
                return ElectionNotNeeded(ElectionNotNeeded.PREFERRED_LEADS)
        elif state is not None and state.leader in context.live_ids:
            return ElectionNotNeeded(ElectionNotNeeded.LEADER_IS_ALIVE)
        return None

    def watch_orders(self) -> bytes | None:
        """CTRL-12."""
        return self._store.watch_node(
            znodes.PREFERRED_REPLICA_ELECTION, self._watch("ReplicaLeaderElection", self.process_orders)
        )

    def process_orders(self) -> None:
        """Carry out what /admin/preferred_replica_election orders, and delete the order."""
        data = self.watch_orders()
        if data is None:
            return
        try:
            ordered = znodes.decode_partitions(data)
        except StoreError as error:
            logger.error("%s: %s", znodes.PREFERRED_REPLICA_ELECTION, error)
            ordered = []
        try:
            self._log_failures(self.elect(ElectionType.PREFERRED, ordered))
        except STORE_AWAY:
            raise  # what was stored is not known: the next controller reads it, and carries out the order
        except StoreError:
            self._store.delete_node(znodes.PREFERRED_REPLICA_ELECTION)  # or it would end the next term too
            raise
        self._store.delete_node(znodes.PREFERRED_REPLICA_ELECTION)

    def _log_failures(self, results: Mapping[TopicPartition, int | ApiError]) -> None:
        for tp, result in results.items():
            if isinstance(result, ApiError) and not isinstance(result, ElectionNotNeeded):
                logger.error("%s: its preferred replica does not lead: %s", tp, result)

    def rebalance(self, allowed_percentage: int) -> None:
        """Bring leaders back to their preferred replicas, for brokers that have lost more than the allowed share."""
        context = self._context
        preferred: dict[int, list[TopicPartition]] = {}
        for tp in context.leadership:
            if not context.is_queued_for_deletion(tp.topic) and context.replicas_of(tp):
                preferred.setdefault(context.replicas_of(tp)[0], []).append(tp)
        for broker_id, topic_partitions in preferred.items():
            lost = [tp for tp in topic_partitions if context.leadership[tp].leader != broker_id]
            if len(lost) * 100 <= len(topic_partitions) * allowed_percentage:
                continue
            # A broker whose disk is full would ask for another leader again.
            stored = self._store.states(
                [
                    tp
                    for tp in lost
                    if context.is_online(broker_id, tp)
                    and tp not in context.being_reassigned
                    and tp not in context.full_disks.get(broker_id, ())
                ]
            )
            self.elect(ElectionType.PREFERRED, [tp for tp, state in stored.items() if broker_id in state.isr])

    def read_full_disks(self) -> None:
        """Read the nodes of the brokers whose disks are full, and watch them."""
        self._context.full_disks = self._store.full_disks(self._watch("FullDisksChange", self._full_disks_changed))

    def _full_disks_changed(self) -> None:
        """A broker has asked for other leaders, or asks again, or has room again."""
        self.read_full_disks()
        self.hand_over()

    def hand_over(self) -> None:
        """Let other replicas lead where the leader's disk is full.

        Only one that is in sync and whose disk is not known to be full; else the leader stays.  The ISR stays.
        """
        context = self._context
        led = [
            tp
            for broker_id, topic_partitions in context.full_disks.items()
            for tp in sorted(topic_partitions)
            if tp in context.leadership
            and context.leadership[tp].leader == broker_id
            and not context.is_queued_for_deletion(tp.topic)
        ]
        if led:
            self._partitions.handle_state_changes(led, PartitionState.ONLINE, ElectionStrategy.FULL_DISK)
