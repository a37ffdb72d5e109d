"""The decisions of a controller, without a store: the leader and the ISR of each partition, and which brokers get a
LeaderAndIsr request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kcore.common.topic_partition import TopicPartition
from kcore.replica.partition_state import NO_LEADER, LeaderAndIsrUpdate

CONTROLLER_EPOCH = 1


class SimController:
    """Learns of every crash at once; its requests to the brokers arrive later.

    A broker that crashes leaves the ISR unless it is the last member.  Leaders come from the ISR; with unclean
    elections any live replica may lead.  tell(broker, update) sends a LeaderAndIsr request.
    """

    def __init__(self, tell: Callable[[int, LeaderAndIsrUpdate], None], *, unclean: bool) -> None:
        self._tell = tell
        self._unclean = unclean
        self.partitions: dict[TopicPartition, LeaderAndIsrUpdate] = {}
        #: Live brokers and the epoch of their registration: it differs after each start.
        self.broker_epochs: dict[int, int] = {}
        self._next_broker_epoch = 1

    def create(self, tp: TopicPartition, replicas: list[int]) -> None:
        self.partitions[tp] = LeaderAndIsrUpdate(tp, replicas[0], 0, replicas, replicas, is_new=True)
        self._tell_replicas(tp)

    def register(self, broker: int) -> None:
        self.broker_epochs[broker] = self._next_broker_epoch
        self._next_broker_epoch += 1
        for tp, state in list(self.partitions.items()):
            if broker not in state.replicas:
                continue
            if state.leader == NO_LEADER and (broker in state.isr or self._unclean):
                self._change(tp, leader=broker, isr=list(state.isr) if broker in state.isr else [broker])
            else:
                self._tell(broker, state)

    def broker_failed(self, broker: int) -> None:
        del self.broker_epochs[broker]
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

    def alter_isr(
        self, tp: TopicPartition, leader_epoch: int, partition_epoch: int, isr: Mapping[int, int]
    ) -> LeaderAndIsrUpdate:
        """Store a leader's ISR {broker: epoch of its registration} if nothing has changed; the state that is stored.

        A member that was started again since the leader heard of it is refused: what it had may be gone (KIP-903).
        """
        state = self.partitions[tp]
        is_current = (leader_epoch, partition_epoch) == (state.leader_epoch, state.partition_epoch)
        if is_current and all(self.broker_epochs.get(member) == epoch for member, epoch in isr.items()):
            state = replace(state, isr=sorted(isr), partition_epoch=partition_epoch + 1)
            self.partitions[tp] = state
        return state

    def _change(self, tp: TopicPartition, *, leader: int, isr: list[int]) -> None:
        state = self.partitions[tp]
        self.partitions[tp] = replace(
            state,
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            isr=isr,
            partition_epoch=state.partition_epoch + 1,
            is_new=False,
        )
        self._tell_replicas(tp)

    def _tell_replicas(self, tp: TopicPartition) -> None:
        state = self.partitions[tp]
        for broker in state.replicas:
            if broker in self.broker_epochs:
                self._tell(broker, state)
