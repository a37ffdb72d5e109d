"""The state of one of a broker's partitions, as frozen values: Partition._state is one of them, replaced whole.

A method of Partition reads `state = self._state` once and works with what it read, so that no answer mixes two states.
Source: Partition.partitionState, LeaderAndIsr, Kafka 3.9; KIP-497.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.errors import InvalidRequest
from kcore.replica.replica import Replica

#: The epoch of a partition that no update has reached yet.
NO_EPOCH = -1
#: The leader of a partition without a leader, or whose leader is unknown.
NO_LEADER = -1


class LeaderAndIsrUpdate(NamedTuple):
    """A controller's decision about one partition, for a broker that has a replica of it.

    leader: broker id, or NO_LEADER.  partition_epoch: version of the stored state.  is_new: the topic was just
    created, so this broker is expected to have no log of it.  adding_replicas: of the replicas, those that a
    reassignment adds.
    """

    topic_partition: TopicPartition
    leader: int
    leader_epoch: int
    isr: Sequence[int]
    replicas: Sequence[int]
    partition_epoch: int = 0
    topic_id: UUID | None = None
    is_new: bool = False
    adding_replicas: Sequence[int] = ()


def check_is_possible(update: LeaderAndIsrUpdate) -> None:
    """Raises InvalidRequest for an ISR without a member, and for a leader that is no replica.

    No controller decides so.  With an empty ISR the high watermark would wait for no replica.  The ISR may have
    members that are no replicas any more: a reassignment takes those away first.  Kafka's broker does not check.
    """
    if not update.isr:
        raise InvalidRequest(f"{update.topic_partition}: the ISR is empty")
    if update.leader >= 0 and update.leader not in update.replicas:
        raise InvalidRequest(f"{update.topic_partition}: the leader {update.leader} is not in {update.replicas}")


class StopReplica(NamedTuple):
    """A controller's order to no longer host a partition; with delete, its log goes too.

    leader_epoch: the one that the controller knows; a negative one is not compared.
    """

    topic_partition: TopicPartition
    delete: bool
    leader_epoch: int = NO_EPOCH


class CommittedIsr(NamedTuple):
    """The broker ids that are in sync, as the stored state has them."""

    committed: frozenset[int]

    @property
    def maximal(self) -> frozenset[int]:
        """Whom the high watermark waits for."""
        return self.committed


class PendingIsr(NamedTuple):
    """The leader has requested to store `proposed` in place of `committed`, and has no answer yet."""

    committed: frozenset[int]
    proposed: frozenset[int]

    @property
    def maximal(self) -> frozenset[int]:
        """Whom the high watermark waits for: either set may be the stored one (KIP-497)."""
        return self.committed | self.proposed


Isr = CommittedIsr | PendingIsr


class LeaderState(NamedTuple):
    """This broker leads.

    partition_epoch: version of the stored state; the next ISR change is conditional on it.  epoch_start_offset: the
    log end when this broker began to lead with leader_epoch.  replicas: the other assigned brokers, by id.
    led_since: the leader epoch since which this broker leads, and no other one can have led in between.
    """

    leader_epoch: int
    controller_epoch: int
    partition_epoch: int
    isr: Isr
    replicas: Mapping[int, Replica]
    epoch_start_offset: int
    led_since: int


class FollowerState(NamedTuple):
    """Another broker leads, or none.  is_being_added: a reassignment gives this broker its replica."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    controller_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH
    is_being_added: bool = False


PartitionState = LeaderState | FollowerState
