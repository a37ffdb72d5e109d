"""PartitionStateMachine: which partitions have a leader, and the election of the next one.

The legal changes are VALID_PARTITION_STATES; an election is a rule of election.py, and its result is written before
any broker receives it.  Source: ZkPartitionStateMachine, Kafka 3.9; behaviours PSM-01 to PSM-12.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import VALID_PARTITION_STATES, ControllerContext, PartitionState
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_store import ControllerStore
from kcore.controller.election import (
    INITIAL_LEADER_EPOCH,
    Election,
    ElectionStrategy,
    LeaderAndIsr,
    controlled_shutdown_election,
    full_disk_election,
    initial_election,
    offline_election,
    preferred_election,
    reassignment_election,
    with_room_first,
)
from kcore.errors import KafkaError
from kcore.metadata.store import BadVersion, NodeExists

logger = logging.getLogger(__name__)


class StateChangeFailed(KafkaError):
    """A partition or a replica stays in the state in which it is."""


class PartitionStateMachine:
    """Used by the event thread.  unclean_enabled(topic): whether a replica outside the ISR may lead.

    on_unclean_election is called for each one: the metric counts them.
    """

    def __init__(
        self,
        context: ControllerContext,
        store: ControllerStore,
        batch: ControllerBrokerRequestBatch,
        unclean_enabled: Callable[[str], bool],
        on_unclean_election: Callable[[TopicPartition], None] = lambda topic_partition: None,
    ) -> None:
        self._context = context
        self._store = store
        self._batch = batch
        self._unclean_enabled = unclean_enabled
        self._on_unclean_election = on_unclean_election

    def startup(self) -> None:
        """Derive the states from the stored ones, then elect leaders where there are none (PSM-02, PSM-03)."""
        context = self._context
        for tp in context.assignments:
            state = context.leadership.get(tp)
            if state is None:
                context.set_partition_state(tp, PartitionState.NEW)
            elif context.is_online(state.leader, tp):
                context.set_partition_state(tp, PartitionState.ONLINE)
            else:
                context.set_partition_state(tp, PartitionState.OFFLINE)
        self.trigger_online()

    def trigger_online(self) -> None:
        """Elect leaders of all partitions that are new or offline, but for those of topics to be deleted."""
        context = self._context
        waiting = [
            tp
            for tp, state in context.partition_states.items()
            if state in (PartitionState.OFFLINE, PartitionState.NEW) and not context.is_queued_for_deletion(tp.topic)
        ]
        self.handle_state_changes(waiting, PartitionState.ONLINE, ElectionStrategy.OFFLINE)

    def handle_state_changes(
        self,
        topic_partitions: Iterable[TopicPartition],
        target: PartitionState,
        strategy: ElectionStrategy | None = None,
        *,
        unclean: bool = False,
    ) -> dict[TopicPartition, StateChangeFailed]:
        """Bring partitions into a state, then send the requests that follow from it; the partitions that failed.

        strategy: for ONLINE, how leaders are elected.  unclean: elect outside the ISR whatever the topics' settings.
        Raises ControllerMoved, StoreError: then nothing was sent.
        """
        failed: dict[TopicPartition, StateChangeFailed] = {}
        try:
            valid = self._valid(topic_partitions, target, failed)
            if target is PartitionState.ONLINE:
                new = [tp for tp in valid if self._context.partition_state(tp) is PartitionState.NEW]
                others = [tp for tp in valid if self._context.partition_state(tp) is not PartitionState.NEW]
                self._initialise(new, failed)
                if others:
                    assert strategy is not None
                    self._elect(others, strategy, unclean, failed)
            else:
                for tp in valid:
                    self._context.set_partition_state(tp, target)
        except BaseException:
            self._batch.clear()
            raise
        self._batch.send()
        if failed:
            # It is normal that no other broker can lead the partitions of the last broker that stops.
            leadership, stopped = self._context.leadership, self._context.stopped
            # Nor that no other disk has room: the broker asks again.
            may_fail = (ElectionStrategy.CONTROLLED_SHUTDOWN, ElectionStrategy.FULL_DISK)
            is_expected = strategy in may_fail or all(
                tp in leadership and stopped.issuperset(leadership[tp].isr) for tp in failed
            )
            level = logging.INFO if is_expected else logging.WARNING
            tp, error = next(iter(failed.items()))
            logger.log(level, "%d partitions without change to %s: %s: %s", len(failed), target.value, tp, error)
        return failed

    def _valid(
        self,
        topic_partitions: Iterable[TopicPartition],
        target: PartitionState,
        failed: dict[TopicPartition, StateChangeFailed],
    ) -> list[TopicPartition]:
        valid = []
        for tp in topic_partitions:
            state = self._context.partition_state(tp)
            if state in VALID_PARTITION_STATES[target]:
                valid.append(tp)
            else:
                failed[tp] = StateChangeFailed(f"{state.value} is no predecessor of it")
        return valid

    def _initialise(
        self, topic_partitions: Iterable[TopicPartition], failed: dict[TopicPartition, StateChangeFailed]
    ) -> None:
        """The first leader of new partitions (PSM-04).

        A partition may have a state already: its topic's node was written after it, or written again.  Then
        it is elected from that; in Kafka it waits for the next controller.
        """
        context = self._context
        states = {}
        for tp in topic_partitions:
            replicas = context.replicas_of(tp)
            election = initial_election(replicas, context.online_replicas(replicas, tp))
            if election is None:
                failed[tp] = StateChangeFailed(f"no replica of {list(replicas)} is alive")
            else:
                states[tp] = LeaderAndIsr(election.leader, INITIAL_LEADER_EPOCH, election.isr, context.epoch)
        errors = self._store.create_states(states)
        conflicts = [tp for tp, error in errors.items() if isinstance(error, NodeExists)]
        existing = self._store.states(conflicts) if conflicts else {}
        for tp, error in errors.items():
            if tp in existing:
                context.set_partition_state(tp, PartitionState.OFFLINE)
            elif error is not None:
                failed[tp] = StateChangeFailed(f"its state could not be created: {error!r}")
            else:
                self._led(tp, states[tp], is_new=True)
        if existing:
            self._elect(list(existing), ElectionStrategy.OFFLINE, False, failed)

    def _elect(
        self,
        topic_partitions: Collection[TopicPartition],
        strategy: ElectionStrategy,
        unclean: bool,
        failed: dict[TopicPartition, StateChangeFailed],
    ) -> None:
        """Elect from the stored state, not from the one that is remembered: a leader may have changed its ISR since.

        A version conflict has the state read again (PSM-09).
        """
        remaining = list(topic_partitions)
        # Each topic's setting is read once, not for each partition.
        is_unclean_enabled = cache(self._unclean_enabled)
        while remaining:
            stored = self._store.states(remaining)
            elected: dict[TopicPartition, LeaderAndIsr] = {}
            unclean_elections = set()
            for tp in remaining:
                try:
                    state, election = self._election(tp, stored, strategy, unclean, is_unclean_enabled)
                except StateChangeFailed as error:
                    failed[tp] = error
                    continue
                if election.is_unclean:
                    unclean_elections.add(tp)
                elected[tp] = replace(
                    state,
                    leader=election.leader,
                    leader_epoch=state.leader_epoch + 1,
                    isr=election.isr,
                    controller_epoch=self._context.epoch,
                )
            remaining = []
            for tp, conflict in self._store.change_states(elected).items():
                if conflict is None:
                    if tp in unclean_elections:
                        logger.warning("%s: unclean election of broker %d", tp, elected[tp].leader)
                        self._on_unclean_election(tp)
                    self._led(tp, replace(elected[tp], partition_epoch=elected[tp].partition_epoch + 1), is_new=False)
                elif isinstance(conflict, BadVersion):
                    remaining.append(tp)
                else:
                    failed[tp] = StateChangeFailed(f"its state could not be written: {conflict!r}")

    def _election(
        self,
        tp: TopicPartition,
        stored: Mapping[TopicPartition, LeaderAndIsr],
        strategy: ElectionStrategy,
        unclean: bool,
        is_unclean_enabled: Callable[[str], bool],
    ) -> tuple[LeaderAndIsr, Election]:
        context = self._context
        state = stored.get(tp)
        if state is None:
            raise StateChangeFailed("it has no stored state")
        if state.controller_epoch > context.epoch:
            # PSM-11: another controller has decided about it since.
            raise StateChangeFailed(f"controller epoch {state.controller_epoch} is stored, ours is {context.epoch}")
        assignment = context.assignments[tp]
        live = context.online_replicas(assignment.replicas, tp)
        without_room = context.without_room(tp) if context.full_disks else set()
        in_order = with_room_first(assignment.replicas, without_room)
        election: Election | None
        if strategy is ElectionStrategy.OFFLINE:
            is_unclean_allowed = not set(live) & set(state.isr) and (unclean or is_unclean_enabled(tp.topic))
            election = offline_election(in_order, state.isr, live, is_unclean_allowed)
        elif strategy is ElectionStrategy.REASSIGNMENT:
            election = reassignment_election(assignment.target, state.isr, live)
        elif strategy is ElectionStrategy.PREFERRED:
            election = preferred_election(assignment.replicas, state.isr, live)
        elif strategy is ElectionStrategy.FULL_DISK:
            election = full_disk_election(assignment.replicas, state.isr, live, without_room)
        else:
            live = context.online_replicas(assignment.replicas, tp, include_shutting_down=True)
            election = controlled_shutdown_election(in_order, state.isr, live, context.shutting_down)
        if election is None:
            if strategy is ElectionStrategy.PREFERRED:
                raise StateChangeFailed(
                    f"the preferred leader {assignment.replicas[0]} may not lead: live {live}, ISR {list(state.isr)}"
                )
            kind = "unclean" if unclean else strategy.value
            raise StateChangeFailed(
                f"{kind} election: none of {list(assignment.replicas)} may lead, live {live}, ISR {list(state.isr)}"
            )
        return state, election

    def _led(self, tp: TopicPartition, state: LeaderAndIsr, *, is_new: bool) -> None:
        """A leader is stored: LeaderAndIsr to the live replicas, UpdateMetadata to all brokers (PSM-10)."""
        context = self._context
        context.leadership[tp] = state
        context.set_partition_state(tp, PartitionState.ONLINE)
        replicas = context.online_replicas(context.replicas_of(tp), tp, include_shutting_down=True)
        self._batch.add_leader_and_isr(replicas, tp, state, is_new=is_new)
