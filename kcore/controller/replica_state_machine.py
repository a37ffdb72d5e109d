"""ReplicaStateMachine: which replicas are online, offline, or being deleted.

The legal changes are VALID_REPLICA_STATES.  Source: ZkReplicaStateMachine, Kafka 3.9; behaviours RSM-01 to RSM-08.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import (
    VALID_REPLICA_STATES,
    ControllerContext,
    PartitionReplica,
    ReplicaState,
)
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import LeaderAndIsr, without_replica
from kcore.metadata.store import BadVersion

logger = logging.getLogger(__name__)


class ReplicaStateMachine:
    """Used by the event thread."""

    def __init__(self, context: ControllerContext, store: ControllerStore, batch: ControllerBrokerRequestBatch) -> None:
        self._context = context
        self._store = store
        self._batch = batch

    def startup(self) -> None:
        """Live replicas are online, and get a LeaderAndIsr; the others cannot be deleted now (RSM-02, RSM-03)."""
        context = self._context
        online, offline = [], []
        for replica in context.replicas_for(context.assignments):
            if context.is_online(replica.broker_id, replica.topic_partition):
                context.set_replica_state(replica, ReplicaState.ONLINE)
                online.append(replica)
            else:
                # If its topic is to be deleted, that has to wait for the broker.
                context.set_replica_state(replica, ReplicaState.DELETION_INELIGIBLE)
                offline.append(replica)
        self.handle_state_changes(online, ReplicaState.ONLINE)
        self.handle_state_changes(offline, ReplicaState.OFFLINE)

    def handle_state_changes(self, replicas: Iterable[PartitionReplica], target: ReplicaState) -> None:
        """Bring replicas into a state, then send the requests that follow from it.

        An illegal change is logged and left out, the others go on.  Raises ControllerMoved, StoreError: then nothing
        was sent.
        """
        try:
            valid = [replica for replica in replicas if self._is_valid(replica, target)]
            if target is ReplicaState.NEW:
                for replica in valid:
                    self._to_new(replica)
            elif target is ReplicaState.ONLINE:
                for replica in valid:
                    self._to_online(replica)
            elif target is ReplicaState.OFFLINE:
                self._to_offline(valid)
            else:
                for replica in valid:
                    if target is ReplicaState.DELETION_STARTED:
                        self._batch.add_stop_replica(replica.broker_id, replica.topic_partition, delete=True)
                    elif target is ReplicaState.NON_EXISTENT:
                        self._remove_from_assignment(replica)
                    self._context.set_replica_state(replica, target)
        except BaseException:
            self._batch.clear()
            raise
        self._batch.send()

    def _is_valid(self, replica: PartitionReplica, target: ReplicaState) -> bool:
        state = self._context.replica_state(replica)
        if state in VALID_REPLICA_STATES[target]:
            return True
        logger.error(
            "%s on broker %d: %s is no predecessor of %s",
            replica.topic_partition,
            replica.broker_id,
            state.value,
            target.value,
        )
        return False

    def _to_new(self, replica: PartitionReplica) -> None:
        """RSM-04: the partition has a leader if a reassignment adds the replica, and none if the topic is new."""
        tp, broker_id = replica
        state = self._context.leadership.get(tp)
        if state is not None and state.leader == broker_id:
            logger.error("%s: its leader, broker %d, cannot become a new replica", tp, broker_id)
            return
        if state is not None:
            self._batch.add_leader_and_isr([broker_id], tp, state, is_new=True)
        self._context.set_replica_state(replica, ReplicaState.NEW)

    def _to_online(self, replica: PartitionReplica) -> None:
        """RSM-05."""
        tp, broker_id = replica
        context = self._context
        state = context.leadership.get(tp)
        if context.replica_state(replica) is ReplicaState.NEW:
            assignment = context.assignments[tp]
            if broker_id not in assignment.replicas:
                context.set_assignment(tp, assignment._replace(replicas=(*assignment.replicas, broker_id)))
        elif state is not None:
            self._batch.add_leader_and_isr([broker_id], tp, state, is_new=False)
        context.set_replica_state(replica, ReplicaState.ONLINE)

    def _to_offline(self, replicas: list[PartitionReplica]) -> None:
        """RSM-06: the replica stops and leaves the ISR, and the other brokers get both changes."""
        context = self._context
        by_broker: dict[int, list[TopicPartition]] = {}
        for tp, broker_id in replicas:
            self._batch.add_stop_replica(broker_id, tp, delete=False)
            by_broker.setdefault(broker_id, []).append(tp)
        for broker_id, topic_partitions in by_broker.items():
            led = [tp for tp in topic_partitions if tp in context.leadership]
            changed = self._remove_from_isr(broker_id, led)
            for tp, state in changed.items():
                if not context.is_queued_for_deletion(tp.topic):
                    others = [replica for replica in context.replicas_of(tp) if replica != broker_id]
                    self._batch.add_leader_and_isr(others, tp, state, is_new=False)
            self._batch.add_update_metadata(
                context.live_or_shutting_down_ids, [tp for tp in topic_partitions if tp not in changed]
            )
            for tp in topic_partitions:
                context.set_replica_state(PartitionReplica(tp, broker_id), ReplicaState.OFFLINE)

    def _remove_from_isr(
        self, broker_id: int, topic_partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Write the ISRs without the replica; the states that have changed.  After a version conflict it reads
        again."""
        context = self._context
        changed: dict[TopicPartition, LeaderAndIsr] = {}
        remaining = list(topic_partitions)
        while remaining:
            states = {}
            for tp, stored in self._store.states(remaining).items():
                if stored.controller_epoch > context.epoch:
                    logger.error("%s: another controller has written its state, with %s", tp, stored)
                elif broker_id in stored.isr or stored.leader == broker_id or self._was_in_isr(broker_id, tp):
                    state = without_replica(stored, broker_id, context.replicas_of(tp))
                    states[tp] = replace(state, leader_epoch=stored.leader_epoch + 1, controller_epoch=context.epoch)
                else:
                    context.leadership[tp] = stored
            remaining = []
            for tp, error in self._store.change_states(states).items():
                if error is None:
                    changed[tp] = replace(states[tp], partition_epoch=states[tp].partition_epoch + 1)
                    context.leadership[tp] = changed[tp]
                elif isinstance(error, BadVersion):
                    remaining.append(tp)
                else:
                    logger.error("%s: broker %d could not be taken out of the ISR: %s", tp, broker_id, error)
        return changed

    def _was_in_isr(self, broker_id: int, topic_partition: TopicPartition) -> bool:
        """Whether it was when this controller last read the state.  If it is not any more, it may have left the ISR
        itself, which no leader hears of (server/member/lost_records.py).  A new leader epoch has the leader told."""
        known = self._context.leadership.get(topic_partition)
        return known is not None and broker_id in known.isr

    def _remove_from_assignment(self, replica: PartitionReplica) -> None:
        tp, broker_id = replica
        assignment = self._context.assignments.get(tp)
        if assignment is not None:
            self._context.set_assignment(tp, assignment.without([broker_id]))
