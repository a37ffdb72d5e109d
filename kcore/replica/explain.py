"""Why a partition is as it is: which rule keeps a replica in or out of the ISR, what bounds the high watermark, what a
fetch would get, and what a waiting request waits for.

Frozen values with a readable str().  The rules are those of isr.py, called with what the partition holds now, so an
explanation cannot say anything else than the broker does; nothing is counted or changed by asking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from kcore.common.text import counted, date_of
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import FetchIsolation, LogOffsetMetadata
from kcore.log.lost_records import meaning_of
from kcore.replica import isr as isr_rules
from kcore.replica.delayed.delayed_delete_records import DelayedDeleteRecords
from kcore.replica.delayed.delayed_fetch import DelayedFetch
from kcore.replica.delayed.delayed_produce import DelayedProduce
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.partition_state import CommittedIsr, LeaderState, PendingIsr
from kcore.replica.partition_watch import WatchingFetch
from kcore.replica.replica import Replica, ReplicaState
from kcore.replica.replica_quota import ReplicaQuota, leader_throttles

if TYPE_CHECKING:
    from kcore.replica.partition import Partition
    from kcore.replica.replica_manager import ReplicaManager

#: Isolation -> the end of what such a reader may read.
_LIMITS = {
    FetchIsolation.LOG_END: "log end",
    FetchIsolation.HIGH_WATERMARK: "high watermark",
    FetchIsolation.TXN_COMMITTED: "last stable offset",
}


@dataclass(frozen=True, slots=True)
class ReplicaExplanation:
    """One assigned broker.  Offsets are -1 while unknown; ms_since_... are None for never, and on the leader.

    holds_high_watermark: its log end is the lowest of those that the high watermark waits for, and below the leader's.
    rule: why it is in the ISR or not, and what would change that.  held_back_by: what keeps it from getting records, as
    far as the leader knows.
    """

    broker_id: int
    is_leader: bool
    is_in_isr: bool
    log_end_offset: int
    ms_since_last_fetch: int | None
    ms_since_caught_up: int | None
    holds_high_watermark: bool
    rule: str
    held_back_by: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A produce or fetch in a purgatory.  ms_left: until its deadline; 0 if that is now."""

    kind: str
    ms_left: int
    waits_for: str


@dataclass(frozen=True, slots=True)
class IsrExplanation:
    """The state of one partition on this broker; replicas is empty unless it leads.

    pending_isr: the ISR that the store was requested to keep, and has not answered about; None if no change is pending.
    high_watermark_candidate: what the high watermark would rise to now; it never falls, so it may be above.
    held_back_by: why a follower does not get records, None if nothing is known to be wrong.
    lost_records: what the log lacks, or may lack; None if it has all its records.
    damage: where its records are damaged that it leads on, as far as that was found; None if it was not.
    """

    topic: str
    partition: int
    broker_id: int
    leader_id: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    pending_isr: tuple[int, ...] | None
    min_insync_replicas: int
    replica_lag_time_max_ms: int
    epoch_start_offset: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    high_watermark_candidate: int
    log_end_offset: int
    replicas: tuple[ReplicaExplanation, ...]
    waiting: tuple[WaitingRequest, ...]
    held_back_by: str | None = None
    lost_records: str | None = None
    damage: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.topic}-{self.partition} on broker {self.broker_id}: {self._role()}"]
        lines.append(
            f"  log [{self.log_start_offset}, {self.log_end_offset}), high watermark {self.high_watermark}, "
            f"last stable offset {self.last_stable_offset}"
        )
        if self.broker_id == self.leader_id:
            lines.append(f"  high watermark: {self._high_watermark_rule()}")
            lines.append(f"  ISR {list(self.isr)}: {self._isr_rule()}")
            for replica in self.replicas:
                in_isr = "in the ISR" if replica.is_in_isr else "out of the ISR"
                lines.append(f"  broker {replica.broker_id}, {in_isr}: {replica.rule}")
                if replica.held_back_by is not None:
                    lines.append(f"    held back: {replica.held_back_by}")
        elif self.leader_id >= 0:
            lines.append(
                f"  the ISR is known to the leader, broker {self.leader_id}: `kcore explain isr {self.topic} "
                f"{self.partition} --bootstrap HOST:PORT` asks that broker"
            )
        else:
            lines.append(f"  no leader knows the ISR: `kcore topics describe {self.topic}` shows the stored one")
        if self.lost_records is not None:
            lines.append(f"  lost records: {self.lost_records}")
        if self.damage is not None:
            lines.append(f"  damaged: {self.damage}")
        if self.held_back_by is not None:
            lines.append(f"  held back: {self.held_back_by}")
        lines += _waiting_lines(self.waiting)
        return "\n".join(lines)

    def _role(self) -> str:
        if self.broker_id == self.leader_id:
            return f"leader with epoch {self.leader_epoch} since offset {self.epoch_start_offset}"
        leader = "without a leader" if self.leader_id < 0 else f"follower of broker {self.leader_id}"
        return f"{leader}, epoch {self.leader_epoch}"

    def _high_watermark_rule(self) -> str:
        lowest = [replica.broker_id for replica in self.replicas if replica.holds_high_watermark]
        if self.high_watermark_candidate < 0:
            return f"waits for broker {_listed(lowest)}, whose log end is unknown until it fetches (PART-15)"
        if self.high_watermark_candidate < self.high_watermark:
            return f"stays at {self.high_watermark}, it never falls; broker {_listed(lowest)} is below it"
        if lowest:
            return f"waits for broker {_listed(lowest)}, which ends at {self.high_watermark_candidate} (PART-15)"
        if self.high_watermark < self.high_watermark_candidate:
            return f"it rises to {self.high_watermark_candidate} at the next check (PART-15)"
        return "it is at the log end; no replica in the ISR is behind (PART-15)"

    def _isr_rule(self) -> str:
        if self.pending_isr is not None:
            return (
                f"the store was requested to keep {list(self.pending_isr)} and has not answered; until then the high "
                "watermark waits for both, and no other change begins"
            )
        margin = len(self.isr) - self.min_insync_replicas
        below = "acks=all is refused (PART-09)" if margin < 0 else "acks=all is accepted"
        return f"min.insync.replicas is {self.min_insync_replicas}, {below}"


@dataclass(frozen=True, slots=True)
class FetchExplanation:
    """What a fetch of one partition would get now, and why.

    readable_limit: the offset below which this reader may read, and limit: what it is.  readable_bytes: what the answer
    would hold.  error: the name of the error instead, or None.  answered_now: else it waits; rule says for what.
    damage: see IsrExplanation.
    """

    topic: str
    partition: int
    broker_id: int
    reader: str
    fetch_offset: int
    limit: str
    readable_limit: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    readable_bytes: int
    error: str | None
    answered_now: bool
    rule: str
    waiting: tuple[WaitingRequest, ...]
    damage: str | None = None

    def __str__(self) -> str:
        verdict = "answered at once" if self.answered_now else "waits"
        lines = [
            f"{self.topic}-{self.partition} on broker {self.broker_id}: {self.reader} at offset {self.fetch_offset}",
            f"  may read below offset {self.readable_limit}, the {self.limit}",
            f"  log [{self.log_start_offset}, {self.log_end_offset}), high watermark {self.high_watermark}, "
            f"last stable offset {self.last_stable_offset}",
            f"  {verdict}: {self.rule}",
        ]
        if self.damage is not None:
            lines.append(f"  damaged: {self.damage}")
        return "\n".join(lines + _waiting_lines(self.waiting))


def _waiting_lines(waiting: Iterable[WaitingRequest]) -> list[str]:
    lines = [f"  {request.kind} waits, {request.ms_left} ms left: {request.waits_for}" for request in waiting]
    return lines or ["  no request waits for it"]


def _listed(broker_ids: Iterable[int]) -> str:
    return ", ".join(map(str, broker_ids))


# -- the ISR -----------------------------------------------------------------------------------------------------------


def explain_isr(
    replica_manager: ReplicaManager,
    topic_partition: TopicPartition,
    leader_quota: ReplicaQuota | None = None,
    offline_replicas: Callable[[TopicPartition], Collection[int]] = lambda topic_partition: (),
) -> IsrExplanation:
    """leader_quota: the throttle of what this broker sends.  offline_replicas(partition): brokers that are not alive,
    or whose log directory has failed.  Raises what HostedPartitions.get_or_exception raises."""
    replica_manager.hosted_partitions.check_given_up(topic_partition)
    partition = replica_manager.hosted_partitions.get_or_exception(topic_partition)
    state, log = partition.state, partition.local_log()
    now_ms = replica_manager.time.milliseconds()
    max_lag_ms = partition.replica_lag_time_max_ms
    end = log.log_end_offset_metadata
    leads = isinstance(state, LeaderState)
    candidate = log.high_watermark
    replicas: tuple[ReplicaExplanation, ...] = ()
    if isinstance(state, LeaderState):
        candidate = isr_rules.high_watermark_candidate(
            end, state.isr, state.replicas, now_ms, max_lag_ms, partition.is_alive
        ).message_offset
        replicas = explain_replicas(
            partition.local_broker_id,
            state,
            end,
            log.high_watermark,
            now_ms,
            max_lag_ms,
            log.log_start_offset,
            partition.is_alive,
        )
        offline = offline_replicas(topic_partition)
        replicas = tuple(
            replace(replica, held_back_by=_held_back_by(partition, replica, leader_quota, offline))
            for replica in replicas
        )
    isr = state.isr if isinstance(state, LeaderState) else CommittedIsr(frozenset())
    return IsrExplanation(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        broker_id=partition.local_broker_id,
        leader_id=partition.local_broker_id if isinstance(state, LeaderState) else state.leader_id,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=tuple(sorted(isr.committed)),
        pending_isr=tuple(sorted(isr.proposed)) if isinstance(isr, PendingIsr) else None,
        min_insync_replicas=log.config.min_insync_replicas,
        replica_lag_time_max_ms=max_lag_ms,
        epoch_start_offset=state.epoch_start_offset if isinstance(state, LeaderState) else -1,
        log_start_offset=log.log_start_offset,
        last_stable_offset=log.last_stable_offset,
        high_watermark=log.high_watermark,
        high_watermark_candidate=candidate,
        log_end_offset=end.message_offset,
        replicas=replicas,
        waiting=waiting_requests(replica_manager, topic_partition) if leads else (),
        held_back_by=None if leads else replica_manager.fetchers.delay_reason(topic_partition),
        lost_records=None if log.lost_records is None else meaning_of(log.lost_records.first_offset),
        damage=_damage(replica_manager, partition),
    )


def _held_back_by(
    partition: Partition,
    replica: ReplicaExplanation,
    leader_quota: ReplicaQuota | None,
    offline_replicas: Collection[int],
) -> str | None:
    """Of one of the replicas, on the leader."""
    if replica.is_leader:
        return None
    if replica.broker_id in offline_replicas:
        return _offline(partition.topic_partition, replica.broker_id) if partition.is_alive(replica.broker_id) else None
    refused = _refused_epoch(partition, replica.broker_id)
    if refused is not None:
        return refused
    if replica.log_end_offset >= partition.log.log_end_offset:
        return None
    return _leader_throttle(partition, replica.broker_id, leader_quota)


def _offline(topic_partition: TopicPartition, broker_id: int) -> str:
    """The metadata do not say why."""
    topic, number = topic_partition
    return (
        "its log is offline there: its directory has failed, or the log was found damaged and given up; "
        f"`kcore explain isr {topic} {number} --broker {broker_id}` asks that broker"
    )


def _refused_epoch(partition: Partition, broker_id: int) -> str | None:
    state = partition.state
    replica = state.replicas.get(broker_id) if isinstance(state, LeaderState) else None
    if replica is None or replica.refused_epoch is None or replica.refused_ms < replica.state.last_fetch_time_ms:
        return None
    refused, highest = replica.refused_epoch, replica.state.broker_epoch
    if refused >= highest:
        return None
    return f"its last fetch had broker epoch {refused}, and was refused: one before had {highest} (KIP-903)"


def _leader_throttle(partition: Partition, broker_id: int, quota: ReplicaQuota | None) -> str | None:
    """Why a follower gets no records although there are some; None if it gets them."""
    if quota is None or broker_id < 0:
        return None
    if not leader_throttles(quota, partition.topic_partition, broker_id, partition.isr):
        return None
    return "more was sent than leader.replication.throttled.rate allows, and it is not in the ISR (QUOTA-01)"


def explain_replicas(
    leader_id: int,
    state: LeaderState,
    leader_end: LogOffsetMetadata,
    high_watermark: int,
    now_ms: int,
    max_lag_ms: int,
    leader_start: int = 0,
    is_alive: Callable[[int], bool] = lambda broker_id: True,
) -> tuple[ReplicaExplanation, ...]:
    """The leader first, then the others by id, members of the ISR that are not assigned included."""
    end = leader_end.message_offset
    candidate = isr_rules.high_watermark_candidate(
        leader_end, state.isr, state.replicas, now_ms, max_lag_ms, is_alive
    ).message_offset
    explained = [
        ReplicaExplanation(
            leader_id, True, leader_id in state.isr.committed, end, None, None, False, "it leads, so it never leaves"
        )
    ]
    for broker_id in sorted(state.replicas.keys() | state.isr.committed - {leader_id}):
        replica = state.replicas.get(broker_id)
        if replica is None:
            rule = "it leaves at the next check: it is not assigned to the partition (PART-16)"
            explained.append(ReplicaExplanation(broker_id, False, True, -1, None, None, False, rule))
            continue
        follower = replica.state
        lives = is_alive(broker_id)
        is_waited_for = broker_id in state.isr.maximal or (
            isr_rules.is_caught_up(follower, end, now_ms, max_lag_ms) and lives
        )
        explained.append(
            ReplicaExplanation(
                broker_id=broker_id,
                is_leader=False,
                is_in_isr=broker_id in state.isr.committed,
                log_end_offset=follower.log_end_offset,
                ms_since_last_fetch=_since(follower.last_fetch_time_ms, now_ms),
                ms_since_caught_up=_since(follower.last_caught_up_time_ms, now_ms),
                holds_high_watermark=is_waited_for and follower.log_end_offset == candidate < end,
                rule=_isr_rule(
                    leader_id, state, replica, follower, leader_start, end, high_watermark, now_ms, max_lag_ms, lives
                ),
            )
        )
    return tuple(explained)


def _isr_rule(
    leader_id: int,
    state: LeaderState,
    replica: Replica,
    follower: ReplicaState,
    leader_start: int,
    leader_end: int,
    high_watermark: int,
    now_ms: int,
    max_lag_ms: int,
    is_alive: bool,
) -> str:
    broker_id = replica.broker_id
    isr = state.isr
    if isinstance(isr, PendingIsr) and (broker_id in isr.committed) != (broker_id in isr.proposed):
        return f"the store was requested to {'let it in' if broker_id in isr.proposed else 'take it out'}"
    # While another change is pending: what will be decided after it.
    committed = CommittedIsr(isr.committed)
    lag = "its log end is unknown: it has not fetched" if follower.log_end_offset < 0 else None
    lag = (
        lag or f"it ends at {follower.log_end_offset}, {counted(leader_end - follower.log_end_offset, 'record')} short"
    )
    caught_up_ms = _since(follower.last_caught_up_time_ms, now_ms)
    caught_up = "was never caught up" if caught_up_ms is None else f"was caught up {caught_up_ms} ms ago"
    if broker_id in isr.committed:
        if broker_id in isr_rules.out_of_sync_replicas(
            leader_id, leader_end, committed, state.replicas, now_ms, max_lag_ms
        ):
            return f"it leaves at the next check: {lag}, and {caught_up}, more than {max_lag_ms} ms (PART-16)"
        if follower.log_end_offset == leader_end:
            return "it stays: it has every record"
        return f"it stays: {lag}, but {caught_up}, at most {max_lag_ms} ms"
    if not is_alive:
        end = follower.log_end_offset
        known = "has fetched nothing from this leader" if end < 0 else f"its log ended at {end} at its last fetch"
        return f"it stays out: it is not alive, and {known} (PART-13)"
    if isr_rules.may_join_isr(replica, committed, high_watermark, state.epoch_start_offset, leader_start):
        return (
            f"it joins with its next fetch: it ends at {follower.log_end_offset}, not below the high watermark "
            f"{high_watermark} and the start of the epoch {state.epoch_start_offset} (PART-13)"
        )
    if follower.log_end_offset < high_watermark:
        return f"it stays out: {lag}, and is below the high watermark {high_watermark} (PART-13)"
    if follower.log_end_offset >= state.epoch_start_offset:
        return f"it stays out: all its records are below our log start {leader_start}, so that none was compared"
    return f"it stays out: {lag}, and is below the start of the epoch {state.epoch_start_offset} (PART-13)"


def _since(time_ms: int, now_ms: int) -> int | None:
    return max(now_ms - time_ms, 0) if time_ms > 0 else None


# -- a fetch -----------------------------------------------------------------------------------------------------------


def explain_fetch(
    replica_manager: ReplicaManager,
    topic_partition: TopicPartition,
    params: FetchParams,
    data: FetchPartitionData,
    leader_quota: ReplicaQuota | None = None,
) -> FetchExplanation:
    """Of a fetch of this partition alone.  Raises what HostedPartitions.get_or_exception raises."""
    replica_manager.hosted_partitions.check_given_up(topic_partition)
    partition = replica_manager.hosted_partitions.get_or_exception(topic_partition)
    log = partition.local_log()
    isolation = params.isolation
    limit = _LIMITS[isolation]
    readable_limit = partition.last_fetchable_offset(isolation)
    size, error, diverges = 0, None, False
    try:
        if params.replica_id >= 0:
            partition.follower_replica(params.replica_id, data.current_leader_epoch)
        read = partition.read_records(
            data.fetch_offset,
            min(data.max_bytes, params.max_bytes),
            isolation,
            not params.hard_max_bytes,
            data.current_leader_epoch,
            data.last_fetched_epoch,
        )
        diverges = read.diverging_epoch is not None
        if params.hard_max_bytes or not read.fetched.first_entry_incomplete:
            size = read.fetched.records.size_in_bytes
    except ApiError as raised:
        error = raised
    throttle = _leader_throttle(partition, params.replica_id, leader_quota) if size and error is None else None
    if throttle is not None:
        size = 0
    if error is not None:
        answered_now, rule = True, f"{type(error).__name__}: {error}"
    elif diverges:
        answered_now, rule = True, "the reader's log diverges from this one; the answer says where (RD-13)"
    elif params.max_wait_ms <= 0:
        answered_now, rule = True, f"{size} bytes; the request has no time to wait (RD-12)"
    elif size >= params.min_bytes:
        answered_now, rule = True, f"{size} bytes are there, min_bytes is {params.min_bytes} (RD-12)"
    else:
        answered_now = False
        rule = _missing(partition, data.fetch_offset, isolation, size, params.min_bytes)
    if throttle is not None:
        rule = f"without its records: {throttle}" if answered_now else f"for the throttle: {throttle}"
    return FetchExplanation(
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        broker_id=partition.local_broker_id,
        reader=_reader(params),
        fetch_offset=data.fetch_offset,
        limit=limit,
        readable_limit=readable_limit,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_end_offset=log.log_end_offset,
        readable_bytes=size,
        error=None if error is None else type(error).__name__,
        answered_now=answered_now,
        rule=rule,
        waiting=waiting_requests(replica_manager, topic_partition),
        damage=_damage(replica_manager, partition),
    )


def _damage(replica_manager: ReplicaManager, partition: Partition) -> str | None:
    """Of the leader."""
    known = replica_manager.damage_checks.known_damage(partition)
    if known is None:
        return None
    state = partition.state
    if isinstance(state, LeaderState) and not state.replicas:
        heals = "There is no other replica: `kcore repair` says what can be kept"
    else:
        heals = "No other replica was in sync; once one is, it leads, and this broker copies the records from it"
    return f"from {known.damage}; found at {date_of(known.since_ms)}.  Readers do not get past it.  {heals}"


def _reader(params: FetchParams) -> str:
    if params.replica_id >= 0:
        return f"follower {params.replica_id}"
    committed = params.isolation is FetchIsolation.TXN_COMMITTED
    return f"a consumer ({'read_committed' if committed else 'read_uncommitted'})"


def _missing(partition: Partition, fetch_offset: int, isolation: FetchIsolation, size: int, min_bytes: int) -> str:
    """What a fetch waits for that has `size` bytes of its min_bytes."""
    limit, offset = _LIMITS[isolation], partition.last_fetchable_offset(isolation)
    if size:
        return f"{size} of min_bytes={min_bytes} bytes are below the {limit} {offset}"
    log = partition.log
    if fetch_offset < log.log_end_offset:
        return (
            f"for the {limit}, which is {offset}, to pass offset {fetch_offset}; the log ends at {log.log_end_offset}"
        )
    return f"for records at offset {fetch_offset}, where the log ends"


# -- who waits ---------------------------------------------------------------------------------------------------------


def waiting_requests(replica_manager: ReplicaManager, topic_partition: TopicPartition) -> tuple[WaitingRequest, ...]:
    """The requests that wait for this partition, oldest first: produces, fetches, DeleteRecords."""
    now_ms = replica_manager.timer.now_ms()
    waiting = []
    for purgatory in (
        replica_manager.delayed_produce_purgatory,
        replica_manager.delayed_fetch_purgatory,
        replica_manager.delayed_log_end_fetch_purgatory,
        replica_manager.delayed_delete_records_purgatory,
    ):
        for operation in chain.from_iterable(watched.waiting for watched in purgatory.operations(topic_partition)):
            deadline_ms = operation.deadline_ms
            if operation.is_completed or deadline_ms is None:
                continue
            ms_left = max(int(deadline_ms - now_ms), 0)
            if isinstance(operation, DelayedProduce):
                required = operation.required_offset(topic_partition)
                if required is not None:
                    waits_for = _replication(replica_manager, topic_partition, required)
                    waiting.append(WaitingRequest("a produce with acks=all", ms_left, waits_for))
            elif isinstance(operation, DelayedDeleteRecords):
                progress = operation.progress(topic_partition)
                if progress is not None:
                    waits_for = (
                        f"for the logs of all live replicas to start at {progress[1]} or later; the lowest starts at "
                        f"{progress[0]} (HW-05)"
                    )
                    waiting.append(WaitingRequest("a DeleteRecords", ms_left, waits_for))
            elif isinstance(operation, DelayedFetch | WatchingFetch):
                waiting.append(_waiting_fetch(replica_manager, topic_partition, operation, ms_left))
    return tuple(waiting)


def _replication(replica_manager: ReplicaManager, topic_partition: TopicPartition, required_offset: int) -> str:
    partition = replica_manager.hosted_partitions.get_or_exception(topic_partition)
    return f"for the high watermark, which is {partition.log.high_watermark}, to reach {required_offset} (PART-18)"


def _waiting_fetch(
    replica_manager: ReplicaManager,
    topic_partition: TopicPartition,
    operation: DelayedFetch | WatchingFetch,
    ms_left: int,
) -> WaitingRequest:
    partition = replica_manager.hosted_partitions.get_or_exception(topic_partition)
    params = operation.params
    fetch_offset = operation.fetch_offset(topic_partition)
    waits_for = _missing(
        partition, fetch_offset, params.isolation, operation.readable_bytes(topic_partition), params.min_bytes
    )
    throttle = _leader_throttle(partition, params.replica_id, params.quota)
    if throttle is not None and fetch_offset < partition.log.log_end_offset:
        waits_for = f"for the throttle: {throttle}"
    others = len(operation.keys) - 1
    if others:
        waits_for += f"; or for bytes of {counted(others, 'other partition')} of the request"
    return WaitingRequest(f"a fetch of {_reader(params)}", ms_left, waits_for)
