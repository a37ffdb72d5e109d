"""The leader of a partition and its ISR after an election: rules over values.

An election returns None if no replica may lead; the partition then stays as it is.  Replicas are in the order of the
assignment, the preferred leader first.
Source: PartitionLeaderElectionAlgorithms and ZkPartitionStateMachine, Kafka 3.9; behaviours PSM-04 to PSM-08, RSM-08.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

#: The leader of a partition without a leader.
NO_LEADER = -1
#: What UpdateMetadata says of the leader while the topic is being deleted.
LEADER_DURING_DELETE = -2
INITIAL_LEADER_EPOCH = 0


@dataclass(frozen=True, slots=True)
class LeaderAndIsr:
    """A partition's stored state.  partition_epoch: version of its node; the next change is conditional on it."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int = 0


class ElectionStrategy(enum.Enum):
    """Why a leader is elected."""

    OFFLINE = "offline"
    REASSIGNMENT = "reassignment"
    PREFERRED = "preferred"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    FULL_DISK = "full disk"


@dataclass(frozen=True, slots=True)
class Election:
    """is_unclean: the leader was not in the ISR, so acknowledged records may be lost."""

    leader: int
    isr: tuple[int, ...]
    is_unclean: bool = False


def initial_election(replicas: Sequence[int], live: Collection[int]) -> Election | None:
    """Of a partition that has no leadership yet: all live replicas are in sync (PSM-04)."""
    isr = tuple(replica for replica in replicas if replica in live)
    return Election(isr[0], isr) if isr else None


def offline_election(
    replicas: Sequence[int], isr: Collection[int], live: Collection[int], unclean_enabled: bool
) -> Election | None:
    """Of a partition whose leader is gone (PSM-05)."""
    live_replicas = [replica for replica in replicas if replica in live]
    for replica in live_replicas:
        if replica in isr:
            return Election(replica, tuple(member for member in isr if member in live))
    if unclean_enabled and live_replicas:
        return Election(live_replicas[0], (live_replicas[0],), is_unclean=True)
    return None


def reassignment_election(
    target_replicas: Sequence[int], isr: Collection[int], live: Collection[int]
) -> Election | None:
    """Of a partition that moves to other replicas: the first of them that may lead (PSM-06)."""
    return _first_in_sync(target_replicas, isr, live)


def preferred_election(replicas: Sequence[int], isr: Collection[int], live: Collection[int]) -> Election | None:
    """The first assigned replica, or None (PSM-07)."""
    return _first_in_sync(replicas[:1], isr, live)


def controlled_shutdown_election(
    replicas: Sequence[int], isr: Collection[int], live: Collection[int], shutting_down: Collection[int]
) -> Election | None:
    """live includes the brokers that are shutting down; they leave the ISR (PSM-08)."""
    candidates = [replica for replica in replicas if replica not in shutting_down]
    election = _first_in_sync(candidates, isr, live)
    if election is None:
        return None
    return replace(election, isr=tuple(member for member in isr if member not in shutting_down))


def full_disk_election(
    replicas: Sequence[int], isr: Collection[int], live: Collection[int], without_room: Collection[int]
) -> Election | None:
    """Of a partition whose leader's disk is full: one whose disk is not.  The old leader stays in the ISR; it leaves
    like any other follower that does not keep up.  Not in Kafka."""
    return _first_in_sync([replica for replica in replicas if replica not in without_room], isr, live)


def with_room_first(replicas: Sequence[int], without_room: Collection[int]) -> list[int]:
    """The same replicas, those whose disk is full after the others."""
    return sorted(replicas, key=lambda replica: replica in without_room)


def without_replica(state: LeaderAndIsr, replica: int, assigned: Collection[int]) -> LeaderAndIsr:
    """The state after a replica has gone offline; its epochs are the caller's concern (RSM-08).

    The last member that may lead stays in the ISR: only it is certain to have every acknowledged record.  A member that
    is not assigned any more may not lead: the leader took it in before it received the cancellation of a reassignment.
    """
    in_sync = tuple(member for member in state.isr if member in assigned) or state.isr
    isr = tuple(member for member in in_sync if member != replica) or in_sync
    return replace(state, leader=NO_LEADER if state.leader == replica else state.leader, isr=isr)


def _first_in_sync(candidates: Sequence[int], isr: Collection[int], live: Collection[int]) -> Election | None:
    for replica in candidates:
        if replica in isr and replica in live:
            return Election(replica, tuple(isr))
    return None
