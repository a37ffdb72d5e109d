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

from kcore.common.text import counted, some_of
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
from kcore.metadata.api_errors import api_error
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
    """Used by the event thread.  watch(name, process): a watch that puts an event of that name.  put(name, process):
    puts one.

    A step is done for all of its partitions together: the node of a topic has all of its partitions, so that one write
    for each partition would be quadratic.
    """

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        batch: ControllerBrokerRequestBatch,
        replicas: ReplicaStateMachine,
        partitions: PartitionStateMachine,
        watch: Callable[[str, Callable[[], None]], Watch],
        put: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._replicas = replicas
        self._partitions = partitions
        self._watch = watch
        self._put = put
        #: Partitions whose ISR has changed; an event that looks at all of them is queued if there is one.
        self._changed: dict[TopicPartition, None] = {}
        #: Topics of which reassignments wait until their nodes can be read.
        self._waiting_topics: set[str] = set()

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
        results.update(self._begin(accepted, replaces_orders=True))
        return {tp: results[tp] for tp in targets}

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
        begun: dict[TopicPartition, ReplicaAssignment] = {}
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
                begun[tp] = assignment
        for tp, refused in self._begin(begun).items():
            if refused is not None:
                logger.error("%s: the reassignment to %s is refused: %s", tp, _listed(orders[tp]), refused)
            if not self._context.assignments[tp].is_being_reassigned or refused is not None:
                ended.add(tp)
        if ended:
            self._store.remove_reassignment_orders(lambda tp, target: tp in ended)

    def resume(self, broker_ids: Collection[int] | None = None) -> None:
        """Take the next step of reassignments that run: of those to one of these brokers, of all for None."""
        context = self._context
        if broker_ids is None:
            self._changed.clear()  # of an earlier term, as these
            self._waiting_topics.clear()
        self._advance(
            tp
            for tp in sorted(context.being_reassigned)
            if broker_ids is None or not set(broker_ids).isdisjoint(context.assignments[tp].target)
        )

    def topic_changed(self, name: str) -> None:
        """The topic's node has changed: perhaps it can be read again."""
        if name in self._waiting_topics:
            self._waiting_topics.remove(name)
            self._advance(tp for tp in sorted(self._context.being_reassigned) if tp.topic == name)

    def topics_deleted(self, names: Collection[str]) -> None:
        """A topic that is being deleted is not reassigned any more: all of its replicas are deleted."""
        self._store.remove_reassignment_orders(lambda tp, target: tp.topic in names)

    def _assignment(self, tp: TopicPartition) -> ReplicaAssignment:
        """Of a partition that can be reassigned."""
        context = self._context
        if tp not in context.assignments or context.is_queued_for_deletion(tp.topic):
            raise UnknownTopicOrPartition("The partition does not exist.")
        if tp not in context.leadership:
            raise LeaderNotAvailable("The partition has never had a leader.")
        return context.assignments[tp]

    # -- steps ------------------------------------------------------------------------------------------

    def _begin(
        self, assignments: Mapping[TopicPartition, ReplicaAssignment], replaces_orders: bool = False
    ) -> dict[TopicPartition, ApiError | None]:
        """Store the assignments and take their first step; why those that are refused are, None for the others.

        Replicas that only the reassignment before this one would have added are deleted now.
        """
        context = self._context
        before = {tp: context.assignments[tp] for tp, new in assignments.items() if new != context.assignments[tp]}
        unreadable = self._store.unreadable_topics({tp.topic for tp in before})
        for name, error in unreadable.items():
            logger.error("no partition of %s is reassigned: %s", name, error)
        refused = {tp: api_error(unreadable[tp.topic]) for tp in before if tp.topic in unreadable}
        before = {tp: current for tp, current in before.items() if tp not in refused}
        unneeded = {tp: set(current.replicas) - set(assignments[tp].replicas) for tp, current in before.items()}
        remaining = {tp: current.without(unneeded[tp]) for tp, current in before.items()}
        refused |= self._keep_in_sync_replicas({tp: new for tp, new in remaining.items() if unneeded[tp]})
        begun = {tp: assignments[tp] for tp in before if tp not in refused}
        if replaces_orders:
            # The last word counts, whichever way it came; also for the next controller, so this is stored first.
            self._store.remove_reassignment_orders(lambda tp, target: tp in assignments and tp not in refused)
        if begun:
            logger.info("reassignment of %s begins: %s", counted(len(begun), "partition"), some_of(begun))
        for tp in begun:
            logger.debug("%s is reassigned: %s", tp, assignments[tp])
            context.set_assignment(tp, remaining[tp])
        # Both before the assignment without them is stored: the next controller would not know of them.
        self._announce_remaining([tp for tp in begun if unneeded[tp]], begun)
        self._delete_replicas(PartitionReplica(tp, replica) for tp in begun for replica in sorted(unneeded[tp]))
        for tp, new in begun.items():
            context.set_assignment(tp, new)
        self._store.change_assignments(begun)
        self._advance(tp for tp in assignments if tp not in refused)
        return {tp: refused.get(tp) for tp in assignments}

    def _announce_remaining(self, shrunk: Collection[TopicPartition], begun: Collection[TopicPartition]) -> None:
        """Tell the leaders which replicas remain, or one of those that go would come into the ISR with a deleted log.

        It may be there already, also since another controller; if it is to be added again now, it would count as in
        sync with an empty log.
        """
        states = self._store.states(begun)
        foreign = [tp for tp, state in states.items() if not set(state.isr) <= set(self._context.replicas_of(tp))]
        self._announce(dict.fromkeys((*shrunk, *foreign)))

    def _keep_in_sync_replicas(
        self, remaining: Mapping[TopicPartition, ReplicaAssignment]
    ) -> dict[TopicPartition, ApiError]:
        """Let remaining replicas lead before others are deleted; InvalidReplicaAssignment for each partition where none
        can."""
        context = self._context
        refused: dict[TopicPartition, ApiError] = {}
        states = self._store.states(remaining)
        for tp, assignment in remaining.items():
            state, left = states.get(tp), assignment.replicas
            if state is None:
                path = znodes.partition_state(tp.topic, tp.partition)
                refused[tp] = InvalidReplicaAssignment(
                    f"{path} cannot be read: which replicas are in sync is not known."
                )
            elif not may_drop_replicas(left, state.isr, context.online_replicas(left, tp), state.leader):
                refused[tp] = InvalidReplicaAssignment(
                    f"None of the replicas {_listed(left)} is alive and in sync, the ISR is "
                    f"{_listed(state.isr)}: records would be lost."
                )
            elif state.leader >= 0 and state.leader not in left:
                current = context.assignments[tp]
                context.set_assignment(tp, assignment)
                failed = self._partitions.handle_state_changes([tp], PartitionState.ONLINE, ElectionStrategy.OFFLINE)
                if failed:
                    context.set_assignment(tp, current)
                    refused[tp] = InvalidReplicaAssignment(f"No other replica can lead: {failed[tp]}")
        return refused

    def _advance(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Wait for the target replicas (Kafka's phase A), or end the reassignment if they are in sync (phase B)."""
        context = self._context
        advanced = [tp for tp in topic_partitions if not context.is_queued_for_deletion(tp.topic)]
        if not advanced:
            return
        complete = self._complete_ones(advanced)
        self._complete(complete)
        waiting = self._announce([tp for tp in advanced if tp not in complete])  # A1
        # A2.  After a fail-over they have a state already.
        new = [PartitionReplica(tp, replica) for tp in waiting for replica in context.assignments[tp].adding]
        new = [replica for replica in new if context.replica_state(replica) is State.NON_EXISTENT]
        self._replicas.handle_state_changes(new, State.NEW)

    def _complete_ones(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, None]:
        """Those that are complete, from the stored ISR, which is watched as long as the answer is no."""
        context = self._context
        running = [tp for tp in topic_partitions if context.assignments[tp].is_being_reassigned]
        states = self._store.states(running, self._isr_watch)
        waiting = set()
        for tp in running:
            assignment = context.assignments[tp]
            online = context.online_replicas(assignment.replicas, tp)
            if tp not in states or not is_complete(assignment, states[tp].isr, online):
                waiting.add(tp)
        return {tp: None for tp in topic_partitions if tp not in waiting}

    def _isr_watch(self, tp: TopicPartition) -> Watch:
        return self._watch(f"PartitionReassignmentIsrChange {tp}", partial(self._isr_changed, tp))

    def _isr_changed(self, tp: TopicPartition) -> None:
        """Those whose watches were called until now end together."""
        if not self._changed:
            self._put("PartitionReassignmentIsrChanges", self._isrs_changed)
        self._changed[tp] = None

    def _isrs_changed(self) -> None:
        context = self._context
        changed = [tp for tp in self._changed if not context.is_queued_for_deletion(tp.topic)]
        self._changed.clear()
        self._complete(self._complete_ones([tp for tp in changed if tp in context.being_reassigned]))

    def _complete(self, topic_partitions: Collection[TopicPartition]) -> None:
        context = self._context
        moved = {tp.topic for tp in topic_partitions if context.assignments[tp].is_being_reassigned}
        unreadable = self._store.unreadable_topics(moved) if moved else {}
        for name, error in unreadable.items():
            logger.error("the reassignment of %s waits: %s", name, error)
        self._waiting_topics.update(unreadable)
        before = {tp: context.assignments[tp] for tp in topic_partitions if tp.topic not in unreadable}
        if not before:
            return
        added = [
            PartitionReplica(tp, replica)
            for tp, assignment in before.items()
            for replica in context.online_replicas(assignment.adding, tp)
        ]
        # B1 to B3: in memory first, so that the requests have the target replicas only.
        self._replicas.handle_state_changes(added, State.ONLINE)
        for tp, assignment in before.items():
            context.set_assignment(tp, ReplicaAssignment(assignment.target))
        led = self._lead_by_target_replicas(before)
        for tp, assignment in before.items():
            if tp not in led:
                context.set_assignment(tp, assignment)
        # B4, B5: a controller that stops between these and B6 leaves what the next controller does once more.
        self._delete_replicas(PartitionReplica(tp, replica) for tp in led for replica in before[tp].removing)
        # B6
        completed = {tp: context.assignments[tp] for tp in led}
        self._store.change_assignments({tp: new for tp, new in completed.items() if before[tp].is_being_reassigned})
        if completed:
            logger.info("reassignment of %s is complete: %s", counted(len(completed), "partition"), some_of(completed))
        for tp, new in completed.items():
            logger.debug("%s: the reassignment is complete, its replicas are %s", tp, _listed(new.replicas))
        # B7, B8
        self._store.remove_reassignment_orders(
            lambda tp, target: tp in completed and tuple(target) == completed[tp].replicas
        )
        self._batch.add_update_metadata(context.live_or_shutting_down_ids, completed)
        self._batch.send()

    def _lead_by_target_replicas(self, topic_partitions: Collection[TopicPartition]) -> Sequence[TopicPartition]:
        """Those that have a leader among their replicas now; all replicas know what has changed."""
        context = self._context
        states = self._store.states(topic_partitions)
        led = {
            tp for tp, state in states.items() if state.leader in context.online_replicas(context.replicas_of(tp), tp)
        }
        announced = set(self._announce([tp for tp in topic_partitions if tp in led]))
        others = [tp for tp in topic_partitions if tp not in led]
        failed = self._partitions.handle_state_changes(others, PartitionState.ONLINE, ElectionStrategy.REASSIGNMENT)
        return [tp for tp in topic_partitions if tp in announced or (tp not in led and tp not in failed)]

    def _announce(self, topic_partitions: Collection[TopicPartition]) -> Sequence[TopicPartition]:
        """Raise the leader epochs, take who is not assigned out of the ISR, and send the replicas both; without those
        partitions to which another controller has written since."""
        context = self._context
        raised = self._raise_leader_epochs(topic_partitions)
        for tp, state in raised.items():
            assignment = context.assignments[tp]
            context.leadership[tp] = state
            # A new replica may be made in any data directory, also where another one has failed.
            self._batch.add_leader_and_isr(assignment.origin, tp, state, is_new=False)
            self._batch.add_leader_and_isr(assignment.adding, tp, state, is_new=True)
        self._batch.send()
        return list(raised)

    def _raise_leader_epochs(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        context = self._context
        raised = {}
        remaining = list(topic_partitions)
        while remaining:
            stored = self._store.states(remaining)
            states = {}
            for tp in remaining:
                state = stored.get(tp)
                if state is None or state.controller_epoch > context.epoch:
                    logger.error("%s: its leader epoch is not raised, stored is %s", tp, state)
                    continue
                # The leader may just have taken in a replica that is not assigned any more.
                isr = tuple(member for member in state.isr if member in context.replicas_of(tp)) or state.isr
                epoch = state.leader_epoch + 1
                states[tp] = replace(state, leader_epoch=epoch, isr=isr, controller_epoch=context.epoch)
            remaining = []
            for tp, error in self._store.change_states(states).items():
                if error is None:
                    raised[tp] = replace(states[tp], partition_epoch=states[tp].partition_epoch + 1)
                elif isinstance(error, BadVersion):
                    remaining.append(tp)
                else:
                    raise error
        return raised

    def _delete_replicas(self, replicas: Iterable[PartitionReplica]) -> None:
        """They leave the ISR, stop, and delete their logs; the reassignment does not wait for that."""
        deleted = list(replicas)
        if deleted:
            for state in (State.OFFLINE, State.DELETION_STARTED, State.DELETION_SUCCESSFUL, State.NON_EXISTENT):
                self._replicas.handle_state_changes(deleted, state)


def _listed(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))
