"""PartitionReassignment: moves partitions to other replicas.

While one runs, a partition's replicas are the old and the new ones together, and the topic's node says which are adding
and which are removing.  It ends when all of its target replicas are in sync.  What is stored is enough for the next
controller to go on.
Source: KafkaController.onPartitionReassignment, Kafka 3.9; KIP-455; behaviours CTRL-12, CTRL-18, PSM-06.  What differs
is in docs/decisions/0019-a-reassignment-is-continued-from-what-is-stored.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ControllerContext, PartitionReplica, PartitionState, ReplicaAssignment
from kcore.controller.controller_context import ReplicaState as State
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import ElectionStrategy, LeaderAndIsr
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.controller.replica_state_machine import ReplicaStateMachine
from kcore.errors import (
    ApiError,
    InvalidReplicaAssignment,
    LeaderNotAvailable,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.metadata.store import BadVersion, StoreError, Watch

logger = logging.getLogger(__name__)

#: Partition -> its replicas after the reassignment, None to cancel the one that runs.
Targets = Mapping[TopicPartition, Sequence[int] | None]


# -- rules ----------------------------------------------------------------------------------------------


def reassigned_to(current: ReplicaAssignment, target: Sequence[int]) -> ReplicaAssignment:
    """The assignment while `current` moves to the target.  The replicas that the partition had before a reassignment
    that already runs remain; those that only that one would have added go."""
    origin = current.origin
    replicas = tuple(dict.fromkeys((*target, *origin)))
    return ReplicaAssignment(
        replicas,
        adding=tuple(replica for replica in replicas if replica not in origin),
        removing=tuple(replica for replica in replicas if replica not in target),
    )


def requested_assignment(
    current: ReplicaAssignment, target: Sequence[int] | None, live: Collection[int]
) -> ReplicaAssignment:
    """The assignment that a request leads to.  live: the brokers to which replicas may be added.

    Raises InvalidReplicaAssignment, and NoReassignmentInProgress where there is nothing to cancel.
    """
    if target is None:
        if not current.is_being_reassigned:
            raise NoReassignmentInProgress("No partition reassignment is in progress.")
        return reassigned_to(current, current.origin)
    if not target:
        raise InvalidReplicaAssignment("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(
            f"Duplicate replica ids in partition reassignment replica list: {_listed(target)}"
        )
    if min(target) < 0:
        raise InvalidReplicaAssignment(f"Invalid broker id in replica list: {_listed(target)}")
    assignment = reassigned_to(current, target)
    if not set(assignment.adding) <= set(live):
        raise InvalidReplicaAssignment(
            f"Replica assignment has brokers that are not alive. Replica list: {_listed(assignment.adding)}, "
            f"live broker list: {_listed(sorted(live))}"
        )
    return assignment


def may_drop_replicas(remaining: Collection[int], isr: Collection[int], online: Collection[int], leader: int) -> bool:
    """Whether all replicas but the remaining ones can be deleted without the loss of an acknowledged record: an in-sync
    replica remains.  If the leader goes, that one must be online, to lead at once."""
    in_sync = set(remaining) & set(isr)
    return leader in in_sync or bool(in_sync & set(online)) or (leader < 0 and bool(in_sync))


def is_complete(assignment: ReplicaAssignment, isr: Collection[int], online: Collection[int]) -> bool:
    """Whether the replicas that are being removed can go: all target replicas are in sync, and one of them is online
    to lead."""
    target = set(assignment.target)
    return not assignment.is_being_reassigned or (target <= set(isr) and bool(target & set(online)))


# -- what is done about it ------------------------------------------------------------------------------


class PartitionReassignment:
    """Used by the event thread.  watch(name, process): a watch that puts an event of that name."""

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        batch: ControllerBrokerRequestBatch,
        replicas: ReplicaStateMachine,
        partitions: PartitionStateMachine,
        watch: Callable[[str, Callable[[], None]], Watch],
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._replicas = replicas
        self._partitions = partitions
        self._watch = watch

    # -- requests ---------------------------------------------------------------------------------------

    def alter(self, targets: Targets) -> dict[TopicPartition, ApiError | None]:
        """Begin, change or cancel reassignments; the error of each partition, None where it has begun."""
        accepted: dict[TopicPartition, ReplicaAssignment] = {}
        results: dict[TopicPartition, ApiError | None] = {}
        for tp, target in targets.items():
            try:
                current = self._assignment(tp)
                accepted[tp] = requested_assignment(current, target, self._context.live_ids)
            except ApiError as error:
                results[tp] = error
        # The last word counts, whichever way it came.
        self._remove_orders(lambda tp, target: tp in accepted)
        return {tp: results[tp] if tp in results else self._begin(tp, accepted[tp]) for tp in targets}

    def list(self, topic_partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, ReplicaAssignment]:
        """The assignments of those that are being reassigned, of all for None."""
        context = self._context
        wanted = context.being_reassigned if topic_partitions is None else topic_partitions
        return {tp: context.assignments[tp] for tp in sorted(context.being_reassigned.intersection(wanted))}

    def watch_orders(self) -> bytes | None:
        """CTRL-12."""
        return self._store.watch_node(
            znodes.REASSIGN_PARTITIONS, self._watch("ZkPartitionReassignment", self.process_orders)
        )

    def process_orders(self) -> None:
        """Begin what /admin/reassign_partitions orders and does not run yet (CTRL-18).

        The node keeps a partition until its reassignment has ended; one that is refused is logged and removed.
        """
        data = self.watch_orders()
        if data is None:
            return
        try:
            orders = znodes.decode_reassignment(data)
        except StoreError as error:
            logger.error("%s: %s", znodes.REASSIGN_PARTITIONS, error)
            self._store.delete_node(znodes.REASSIGN_PARTITIONS)
            return
        ended = set()
        for tp, target in orders.items():
            try:
                current = self._assignment(tp)
                # A broker that has died since its replica was added may come back.
                assignment = requested_assignment(current, target, {*self._context.live_ids, *current.replicas})
            except ApiError as error:
                logger.error("%s: the reassignment to %s is refused: %s", tp, _listed(target), error)
                ended.add(tp)
                continue
            if assignment != current or not current.is_being_reassigned:
                refused = self._begin(tp, assignment)
                if refused is not None:
                    logger.error("%s: the reassignment to %s is refused: %s", tp, _listed(target), refused)
                if not self._context.assignments[tp].is_being_reassigned or refused is not None:
                    ended.add(tp)
        if ended:
            self._remove_orders(lambda tp, target: tp in ended)

    def resume(self, broker_ids: Collection[int] | None = None) -> None:
        """Take the next step of reassignments that run: of those to one of these brokers, of all for None."""
        context = self._context
        for tp in sorted(context.being_reassigned):
            if broker_ids is None or not set(broker_ids).isdisjoint(context.assignments[tp].target):
                self._advance(tp)

    def topics_deleted(self, names: Collection[str]) -> None:
        """A topic that is being deleted is not reassigned any more: all of its replicas are deleted."""
        self._remove_orders(lambda tp, target: tp.topic in names)

    def _assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        """Of a partition that can be reassigned."""
        context = self._context
        if tp not in context.assignments or context.is_queued_for_deletion(tp.topic):
            raise UnknownTopicOrPartition("The partition does not exist.")
        if tp not in context.leadership:
            raise LeaderNotAvailable("The partition has never had a leader.")
        return context.assignments[tp]

    # -- steps ------------------------------------------------------------------------------------------

    def _begin(self, tp: TopicPartition, assignment: ReplicaAssignment) -> ApiError | None:
        """Store the assignment and take its first step; why it is refused.

        Replicas that only the reassignment before this one would have added are deleted now.
        """
        context = self._context
        current = context.assignments[tp]
        if assignment != current:
            unneeded = [replica for replica in current.replicas if replica not in assignment.replicas]
            try:
                self._keep_an_in_sync_replica(tp, assignment, unneeded)
            except ApiError as error:
                return error
            logger.info("%s is reassigned: %s", tp, assignment)
            context.set_assignment(tp, assignment)
            # Before the assignment without them is stored: the next controller would not know of their logs.
            self._delete_replicas(tp, unneeded)
            self._store.change_assignment(tp, assignment)
        self._advance(tp)
        return None

    def _keep_an_in_sync_replica(
        self, tp: TopicPartition, assignment: ReplicaAssignment, unneeded: Collection[int]
    ) -> None:
        """Let a remaining replica lead before others are deleted.  Raises InvalidReplicaAssignment."""
        context = self._context
        state = self._store.states([tp]).get(tp)
        if state is None or not unneeded:
            return
        online = context.online_replicas(assignment.replicas, tp)
        if not may_drop_replicas(assignment.replicas, state.isr, online, state.leader):
            raise InvalidReplicaAssignment(
                f"None of the replicas {_listed(assignment.replicas)} is alive and in sync, the ISR is "
                f"{_listed(state.isr)}: records would be lost."
            )
        if state.leader in unneeded:
            current = context.assignments[tp]
            context.set_assignment(tp, assignment)
            failed = self._partitions.handle_state_changes([tp], PartitionState.ONLINE, ElectionStrategy.OFFLINE)
            if failed:
                context.set_assignment(tp, current)
                raise InvalidReplicaAssignment(f"No other replica can lead: {failed[tp]}")

    def _advance(self, tp: TopicPartition) -> None:
        """Wait for the target replicas (Kafka's phase A), or end the reassignment if they are in sync (phase B)."""
        context = self._context
        if context.is_queued_for_deletion(tp.topic):
            return
        assignment = context.assignments[tp]
        if self._is_complete(tp):
            self._complete(tp, assignment)
        elif self._announce(tp):  # A1
            # A2.  After a fail-over they have a state already.
            new = [PartitionReplica(tp, replica) for replica in assignment.adding]
            new = [replica for replica in new if context.replica_state(replica) is State.NON_EXISTENT]
            self._replicas.handle_state_changes(new, State.NEW)

    def _is_complete(self, tp: TopicPartition) -> bool:
        """From the stored ISR, which is watched as long as the answer is no."""
        context = self._context
        assignment = context.assignments[tp]
        if not assignment.is_being_reassigned:
            return True
        watch = self._watch(f"PartitionReassignmentIsrChange {tp}", partial(self._isr_changed, tp))
        self._store.watch_node(znodes.partition_state(*tp), watch)
        state = self._store.states([tp]).get(tp)
        online = context.online_replicas(assignment.replicas, tp)
        return state is not None and is_complete(assignment, state.isr, online)

    def _isr_changed(self, tp: TopicPartition) -> None:
        context = self._context
        if tp in context.being_reassigned and not context.is_queued_for_deletion(tp.topic) and self._is_complete(tp):
            self._complete(tp, context.assignments[tp])

    def _complete(self, tp: TopicPartition, assignment: ReplicaAssignment) -> None:
        context = self._context
        added = [PartitionReplica(tp, replica) for replica in context.online_replicas(assignment.adding, tp)]
        # B1 to B3: in memory first, so that the requests have the target replicas only.
        self._replicas.handle_state_changes(added, State.ONLINE)
        completed = ReplicaAssignment(assignment.target)
        context.set_assignment(tp, completed)
        if not self._lead_by_a_target_replica(tp):
            context.set_assignment(tp, assignment)
            return
        # B4, B5: whoever stops between these and B6 leaves what the next controller does once more.
        self._delete_replicas(tp, assignment.removing)
        # B6
        if assignment.is_being_reassigned:
            self._store.change_assignment(tp, completed)
            logger.info("%s: the reassignment is complete, its replicas are %s", tp, _listed(completed.replicas))
        # B7, B8
        self._remove_orders(lambda ordered, target: (ordered, tuple(target)) == (tp, completed.replicas))
        self._batch.add_update_metadata(context.live_or_shutting_down_ids, [tp])
        self._batch.send()

    def _lead_by_a_target_replica(self, tp: TopicPartition) -> bool:
        """Whether there is a leader among the partition's replicas now; all of them know what has changed."""
        context = self._context
        state = self._store.states([tp]).get(tp)
        if state is not None and state.leader in context.online_replicas(context.replicas_of(tp), tp):
            return self._announce(tp)
        failed = self._partitions.handle_state_changes([tp], PartitionState.ONLINE, ElectionStrategy.REASSIGNMENT)
        return not failed

    def _announce(self, tp: TopicPartition) -> bool:
        """Raise the leader epoch, take who is not assigned out of the ISR, and send the replicas both; False if another
        controller wrote since."""
        context = self._context
        assignment = context.assignments[tp]
        state = self._raise_leader_epoch(tp)
        if state is None:
            return False
        context.leadership[tp] = state
        # A new replica may be made in any data directory, also where another one has failed.
        self._batch.add_leader_and_isr(assignment.origin, tp, state, is_new=False)
        self._batch.add_leader_and_isr(assignment.adding, tp, state, is_new=True)
        self._batch.send()
        return True

    def _raise_leader_epoch(self, tp: TopicPartition) -> LeaderAndIsr | None:
        epoch = self._context.epoch
        while True:
            stored = self._store.states([tp]).get(tp)
            if stored is None or stored.controller_epoch > epoch:
                logger.error("%s: its leader epoch is not raised, stored is %s", tp, stored)
                return None
            # The leader may just have taken in a replica that is not assigned any more.
            isr = tuple(member for member in stored.isr if member in self._context.replicas_of(tp)) or stored.isr
            state = replace(stored, leader_epoch=stored.leader_epoch + 1, isr=isr, controller_epoch=epoch)
            error = self._store.change_states({tp: state})[tp]
            if error is None:
                return replace(state, partition_epoch=state.partition_epoch + 1)
            if not isinstance(error, BadVersion):
                raise error

    def _delete_replicas(self, tp: TopicPartition, broker_ids: Collection[int]) -> None:
        """They leave the ISR, stop, and delete their logs; nobody waits for that."""
        replicas = [PartitionReplica(tp, broker_id) for broker_id in broker_ids]
        if replicas:
            for state in (State.OFFLINE, State.DELETION_STARTED, State.DELETION_SUCCESSFUL, State.NON_EXISTENT):
                self._replicas.handle_state_changes(replicas, state)

    def _remove_orders(self, is_removed: Callable[[TopicPartition, Sequence[int]], bool]) -> None:
        """Take partitions out of /admin/reassign_partitions; without any the node is deleted."""
        try:
            orders = self._store.reassignment_orders()
        except StoreError:
            return  # process_orders() deletes it
        left = {tp: target for tp, target in orders.items() if not is_removed(tp, target)}
        if len(left) < len(orders):
            self._store.set_reassignment_orders(left)


def _listed(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))
