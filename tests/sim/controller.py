"""The decisions of a controller, and the store in which a leader changes its ISR: who leads each partition, who is in
sync, and which brokers get a LeaderAndIsr request."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, FencedLeaderEpoch, IneligibleReplica
from kcore.replica.partition_state import NO_LEADER, LeaderAndIsrUpdate
from kcore.replica.partition_state_store import StoredIsr
from tests.sim.node import IsrChange

#: tell(broker, broker epoch, update, controller epoch) sends a LeaderAndIsr request.
Tell = Callable[[int, int, LeaderAndIsrUpdate, int], None]
#: tell_alive(broker, broker epoch, live brokers, version) sends an UpdateMetadata request.
TellAlive = Callable[[int, int, frozenset[int], int], None]


class SimController:
    """Leaders come from the ISR; with unclean elections any live replica may lead.

    A broker whose failure is noticed leaves each ISR unless it is the last member.  Its state is never wrong: what is
    late or lost are the messages.
    """

    def __init__(self, tell: Tell, tell_alive: TellAlive, *, unclean: bool) -> None:
        self._tell_broker = tell
        self._tell_alive = tell_alive
        self._unclean = unclean
        self.epoch = 1
        self.partitions: dict[TopicPartition, LeaderAndIsrUpdate] = {}
        #: All states so far, with the registrations and the controller's epoch then: what an old controller sends.
        self.past: dict[TopicPartition, list[tuple[LeaderAndIsrUpdate, dict[int, int], int]]] = {}
        #: Live brokers and the epoch of their registration: it differs after each start.
        self.broker_epochs: dict[int, int] = {}
        #: How often they have changed.
        self.metadata_version = 0
        self._last_broker_epoch = 0

    def create(self, tp: TopicPartition, replicas: list[int], topic_id: UUID) -> None:
        self._set(LeaderAndIsrUpdate(tp, replicas[0], 0, replicas, replicas, topic_id=topic_id, is_new=True))
        self.partitions[tp] = self.partitions[tp]._replace(is_new=False)

    def next_broker_epoch(self) -> int:
        self._last_broker_epoch += 1
        return self._last_broker_epoch

    def register(self, broker: int, broker_epoch: int) -> None:
        """The broker has started.  If its end was not noticed before, it is processed first (KIP-380)."""
        if broker in self.broker_epochs:
            self.broker_failed(broker)
        self.broker_epochs[broker] = broker_epoch
        self._live_brokers_changed()
        for tp, state in list(self.partitions.items()):
            if broker not in state.replicas:
                continue
            if state.leader == NO_LEADER and (broker in state.isr or self._unclean):
                self._change(tp, leader=broker, isr=list(state.isr) if broker in state.isr else [broker])
            else:
                self._tell_broker(broker, self.broker_epochs[broker], state, self.epoch)

    def broker_failed(self, broker: int) -> None:
        del self.broker_epochs[broker]
        self._live_brokers_changed()
        for tp, state in list(self.partitions.items()):
            isr = [member for member in state.isr if member != broker] or list(state.isr)
            leader = state.leader
            if leader == broker:
                live = [member for member in isr if member in self.broker_epochs]
                if not live and self._unclean:
                    live = [replica for replica in state.replicas if replica in self.broker_epochs][:1]
                    isr = live or isr
                leader = live[0] if live else NO_LEADER
            if leader != state.leader or isr != list(state.isr):
                self._change(tp, leader=leader, isr=isr)

    def elect(self, tp: TopicPartition, leader: int) -> bool:
        """Move the leadership, as a preferred replica election does; whether that may be."""
        state = self.partitions[tp]
        allowed = leader in self.broker_epochs and (leader in state.isr or self._unclean)
        if allowed:
            self._change(tp, leader=leader, isr=list(state.isr) if leader in state.isr else [leader])
        return allowed

    def move(self) -> None:
        """Another controller takes over: its requests carry the next epoch."""
        self.epoch += 1
        for state in self.partitions.values():
            for broker in state.replicas:
                if broker in self.broker_epochs:
                    self._tell_broker(broker, self.broker_epochs[broker], state, self.epoch)

    def change_isr(self, leader: int, change: IsrChange) -> StoredIsr | ApiError:
        """A leader's ISR change (PartitionStateStore.change_isr).

        Its broker_epochs: the registration that each member had when the leader proposed it.  A member that has
        started again since is refused: what it had may be gone (KIP-903).
        """
        tp, isr, version = change.topic_partition, change.isr, change.expected_version
        state = self.partitions[tp]
        if state.leader != leader or state.leader_epoch != change.leader_epoch:
            return FencedLeaderEpoch(f"{tp}: broker {state.leader} leads with epoch {state.leader_epoch}")
        if state.partition_epoch != version:
            return StoredIsr(frozenset(state.isr), state.partition_epoch)
        if any(is_outdated(self.broker_epochs.get(member), change.broker_epochs.get(member)) for member in isr):
            return IneligibleReplica(f"{tp}: of {sorted(isr)} some have started again")
        self.partitions[tp] = state._replace(isr=sorted(isr), partition_epoch=version + 1)
        return StoredIsr(isr, version + 1)

    def _live_brokers_changed(self) -> None:
        self.metadata_version += 1
        self.send_metadata()

    def send_metadata(self) -> None:
        """Send the live brokers to every live broker."""
        for broker, broker_epoch in self.broker_epochs.items():
            self._tell_alive(broker, broker_epoch, frozenset(self.broker_epochs), self.metadata_version)

    def _change(self, tp: TopicPartition, *, leader: int, isr: list[int]) -> None:
        state = self.partitions[tp]
        epochs = {"leader_epoch": state.leader_epoch + 1, "partition_epoch": state.partition_epoch + 1}
        self._set(state._replace(leader=leader, isr=isr, **epochs))

    def _set(self, state: LeaderAndIsrUpdate) -> None:
        tp = state.topic_partition
        self.partitions[tp] = state
        self.past.setdefault(tp, []).append((state, dict(self.broker_epochs), self.epoch))
        for broker in state.replicas:
            if broker in self.broker_epochs:
                self._tell_broker(broker, self.broker_epochs[broker], state, self.epoch)


def is_outdated(broker_epoch: int | None, proposed_epoch: int | None) -> bool:
    """Whether a member of a proposed ISR is down, or has started again since the fetch that its leader has (KIP-903).

    With an unknown broker epoch (-1) a leader only keeps the member in the ISR.
    """
    return broker_epoch is None or (proposed_epoch not in (None, -1) and broker_epoch != proposed_epoch)
