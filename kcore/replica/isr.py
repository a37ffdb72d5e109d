"""Who is in sync, and how far a partition is replicated (PART-13, PART-15, PART-16): rules without a log or a lock.

While a change of the ISR is pending, the high watermark waits for the maximal ISR, and min.insync.replicas counts the
committed one.  Times are ms.
Source: Partition.maybeIncrementLeaderHW, needsExpandIsr, isReplicaIsrEligible, getOutOfSyncReplicas, Kafka 3.9;
KIP-497.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.replica.partition_state import Isr, PendingIsr
from kcore.replica.replica import Replica, ReplicaState


def is_caught_up(follower: ReplicaState, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether a follower has everything, or had everything at most max_lag_ms ago (replica.lag.time.max.ms)."""
    return follower.log_end_offset == leader_end_offset or now_ms - follower.last_caught_up_time_ms <= max_lag_ms


def high_watermark_candidate(
    leader_end: LogOffsetMetadata,
    isr: Isr,
    replicas: Mapping[int, Replica],
    now_ms: int,
    max_lag_ms: int,
    is_alive: Callable[[int], bool] = lambda broker_id: True,
) -> LogOffsetMetadata:
    """Smallest log end over the leader, the maximal ISR, and replicas that are caught up and may join soon (PART-15).

    A follower outside the ISR counts, because the high watermark would else run ahead of it forever.  Not a dead one:
    it joins nothing.
    """
    candidate = leader_end
    maximal = isr.maximal
    for broker_id, replica in replicas.items():
        follower = replica.state
        end = follower.log_end_offset_metadata
        if end.message_offset < candidate.message_offset and (
            broker_id in maximal
            or (is_caught_up(follower, leader_end.message_offset, now_ms, max_lag_ms) and is_alive(broker_id))
        ):
            candidate = end
    return candidate


def out_of_sync_replicas(
    leader_id: int,
    leader_end_offset: int,
    isr: Isr,
    replicas: Mapping[int, Replica],
    now_ms: int,
    max_lag_ms: int,
) -> frozenset[int]:
    """Members of the ISR that must leave it (PART-16): stuck or slow for longer than max_lag_ms, or not assigned.

    Never the leader; none while a change is pending, since one change is stored at a time.
    """
    if isinstance(isr, PendingIsr):
        return frozenset()
    return frozenset(
        broker_id
        for broker_id in isr.committed
        if broker_id != leader_id
        and (
            broker_id not in replicas
            or not is_caught_up(replicas[broker_id].state, leader_end_offset, now_ms, max_lag_ms)
        )
    )


def are_following(isr: Isr, replicas: Mapping[int, Replica], now_ms: int, max_lag_ms: int) -> bool:
    """Whether the other members of the ISR follow this leader: each has fetched at most max_lag_ms ago (not in Kafka).

    One that was elected since commits nothing before it has taken this broker out of the ISR, and that takes as long.
    """
    return all(
        now_ms - replicas[broker_id].state.last_fetch_time_ms <= max_lag_ms
        for broker_id in isr.committed
        if broker_id in replicas
    )


def may_join_isr(
    replica: Replica,
    isr: Isr,
    high_watermark: int,
    epoch_start_offset: int,
    log_start_offset: int = 0,
    is_alive: bool = True,
) -> bool:
    """Whether a follower may enter the ISR (PART-13): alive, it has all that is committed, and has reached this epoch.

    A follower below the start of the leader's epoch may lack records that the epoch before had committed above the
    leader's high watermark: elected, it would lose them.  One that has only records below the leader's log start may
    have others than the leader had: the leader has no epochs there any more, so nothing was compared (not in Kafka).
    Its log first starts again at the leader's log start; a log start of -1 is unknown.  False while a change is
    pending.
    """
    if isinstance(isr, PendingIsr) or replica.broker_id in isr.committed or not is_alive:
        return False
    follower = replica.state
    if follower.log_end_offset <= log_start_offset and 0 <= follower.log_start_offset < follower.log_end_offset:
        return False
    return follower.log_end_offset >= max(high_watermark, epoch_start_offset)
