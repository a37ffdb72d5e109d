"""A broker whose logs have lost records leaves the ISRs before it registers, so that no controller elects it.

So does one whose logs are gone (log/gone_logs.py).

It stays where no other broker is in the ISR: whatever is left of the records is here.  Kafka has no such step, and
its controller elects a registered member of the ISR whatever is left of its log.  KIP-966 is about the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kcore.common import topic_names
from kcore.common.text import counted, some_of
from kcore.common.topic_partition import TopicPartition
from kcore.metadata import znodes
from kcore.metadata.store import BadVersion, MetadataStore, MultiFailed, NoNode, SetData, StoreError

logger = logging.getLogger(__name__)

#: A leader that lives hears of a change of its ISR from its controller alone; so long that is waited for.
CONTROLLER_WAIT_MS = 10_000
#: States that are written with one multi().
_BATCH = 500
_NO_LEADER = -1


class _Member(NamedTuple):
    """The stored state of a partition whose ISR has this broker."""

    state: znodes.PartitionStateZNode
    version: int


def state_without(state: znodes.PartitionStateZNode, broker_id: int) -> znodes.PartitionStateZNode | None:
    """The state after a broker has left the ISR.  None if it is not in it, or nobody else is.

    The epochs stay: a leader epoch begins with an election.
    """
    isr = [member for member in state.isr if member != broker_id]
    if not isr or len(isr) == len(state.isr):
        return None
    return state._replace(isr=isr, leader=_NO_LEADER if state.leader == broker_id else state.leader)


def assigned_partitions(broker_id: int, store: MetadataStore) -> list[TopicPartition]:
    """Of which the store says that this broker has a replica, but for topics that can have no log.  Raises
    StoreError."""
    store.ensure_path(znodes.TOPICS)
    names = sorted(filter(topic_names.is_legal, store.children(znodes.TOPICS)))
    assigned = []
    for name, node in zip(names, store.get_many([znodes.topic(name) for name in names]), strict=True):
        if node is None:
            continue
        try:
            assignment = znodes.TopicZNode.decode(node.data).assignment
        except StoreError as error:
            logger.error("%s cannot be read: %s", znodes.topic(name), error)
            continue
        assigned += [TopicPartition(name, number) for number, replicas in assignment.items() if broker_id in replicas]
    return assigned


class IsrDeparture:
    """Used by the thread that registers the broker, which is not registered meanwhile."""

    def __init__(self, broker_id: int, store: MetadataStore) -> None:
        self._broker_id = broker_id
        self._store = store

    def leave(self, lost: Sequence[TopicPartition], *, may_wait: bool) -> list[TopicPartition]:
        """Take this broker out of the ISR of each of these partitions, of which it has lost records.

        may_wait: leave a partition alone whose leader is another broker that lives: what comes back are these.  The
        controller takes this broker out of their ISRs because its registration has ended, and the leader hears of it.
        It would not hear of a write of this broker: a kcore leader reads the state when its next change of the ISR is
        refused, a Kafka leader changes the ISR no more until the next leader epoch.
        Raises StoreError.
        """
        if lost:
            self._store.sync()
        while lost:
            members = self._memberships(lost)
            left = {
                tp: state for tp, member in members.items() if (state := state_without(member.state, self._broker_id))
            }
            waiting = [tp for tp in left if self._has_live_leader(members[tp])] if may_wait else []
            writes = [tp for tp in left if tp not in waiting][:_BATCH]
            if not writes:
                if not waiting:
                    self._report_alone([tp for tp in members if tp not in left])
                return waiting
            if self._write({tp: left[tp] for tp in writes}, members):
                logger.warning(
                    "broker %d lacks records of %s, or may: it left the ISRs, and copies them from the leaders: %s",
                    self._broker_id,
                    counted(len(writes), "partition"),
                    some_of(writes),
                )
            # Else a controller has changed one of them meanwhile: they are read again.
        return []

    def _memberships(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, _Member]:
        paths = [znodes.partition_state(*tp) for tp in topic_partitions]
        members = {}
        for tp, path, node in zip(topic_partitions, paths, self._store.get_many(paths), strict=True):
            if node is None:
                continue
            try:
                state = znodes.PartitionStateZNode.decode(node.data)
            except StoreError as error:
                logger.error("%s cannot be read: %s", path, error)
                continue
            if self._broker_id in state.isr:
                members[tp] = _Member(state, node.version)
        return members

    def _has_live_leader(self, member: _Member) -> bool:
        leader = member.state.leader
        if leader in (_NO_LEADER, self._broker_id):
            return False
        return self._store.get(znodes.broker_id(leader)) is not None

    def _write(
        self,
        states: Mapping[TopicPartition, znodes.PartitionStateZNode],
        members: Mapping[TopicPartition, _Member],
    ) -> bool:
        """False if one of the nodes is not what was read; then nothing was written."""
        try:
            self._store.multi(
                [
                    SetData(znodes.partition_state(*tp), state.encode(), members[tp].version)
                    for tp, state in states.items()
                ]
            )
        except MultiFailed as error:
            if isinstance(error.cause, BadVersion | NoNode):
                return False
            raise error.cause from None
        return True

    def _report_alone(self, topic_partitions: Sequence[TopicPartition]) -> None:
        if topic_partitions:
            logger.error(
                "broker %d lacks records of %s, or may, and no other broker is in the ISR: it may lead: %s",
                self._broker_id,
                counted(len(topic_partitions), "partition"),
                some_of(topic_partitions),
            )
