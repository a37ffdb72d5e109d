"""What a leader knows of a follower (PART-11, PART-12), from the follower's fetches.

Source: Replica and ReplicaState, Kafka 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kcore.log.log_offset_metadata import UNKNOWN_OFFSET, LogOffsetMetadata

if TYPE_CHECKING:
    from kcore.common.topic_partition import TopicPartition
    from kcore.log.log_hot_path import FetchDataInfo
    from kcore.replica.fetch_params import FetchPartitionData, FetchPartitionResult

_UNKNOWN = LogOffsetMetadata(UNKNOWN_OFFSET)


class ReplicaState(NamedTuple):
    """One follower; offsets are -1 while unknown, times are ms, 0 for never.

    log_end_offset_metadata: the offset of its last fetch, which is where its log ends, and its place in our log.
    last_fetch_leader_log_end_offset: our log end at that fetch.  last_caught_up_time_ms: the latest time at which the
    follower had all records of this log.  broker_epoch: of the registration that the last fetch came from, -1 if the
    fetch does not say (KIP-903).
    """

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset_metadata: LogOffsetMetadata = _UNKNOWN
    last_fetch_leader_log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_time_ms: int = 0
    last_caught_up_time_ms: int = 0
    broker_epoch: int = -1

    @property
    def log_end_offset(self) -> int:
        return self.log_end_offset_metadata.message_offset

    def after_fetch(
        self,
        fetch_offset_metadata: LogOffsetMetadata,
        log_start_offset: int,
        fetch_time_ms: int,
        leader_log_end_offset: int,
        broker_epoch: int = -1,
    ) -> ReplicaState:
        """The state after a fetch at fetch_offset_metadata, read while our log ended at leader_log_end_offset."""
        fetch_offset = fetch_offset_metadata.message_offset
        caught_up_time_ms = self.last_caught_up_time_ms
        if fetch_offset >= leader_log_end_offset:
            caught_up_time_ms = max(caught_up_time_ms, fetch_time_ms)
        elif fetch_offset >= self.last_fetch_leader_log_end_offset:
            # Our log has grown since its last fetch, but it has what we had then.
            caught_up_time_ms = max(caught_up_time_ms, self.last_fetch_time_ms)
        return ReplicaState(
            log_start_offset,
            fetch_offset_metadata,
            leader_log_end_offset,
            fetch_time_ms,
            caught_up_time_ms,
            broker_epoch,
        )

    def after_idle_fetch(self, fetch_time_ms: int) -> ReplicaState:
        """The state after the last fetch came once more, at our log end, which is what it was."""
        return ReplicaState(
            self.log_start_offset,
            self.log_end_offset_metadata,
            self.last_fetch_leader_log_end_offset,
            fetch_time_ms,
            fetch_time_ms,
            self.broker_epoch,
        )

    def in_new_epoch(
        self, now_ms: int, leader_log_end_offset: int, *, is_in_sync: bool, is_new_leader: bool
    ) -> ReplicaState:
        """The state when our leader epoch begins (PART-03, PART-04); is_in_sync: the follower is in the ISR."""
        caught_up_time_ms = now_ms if is_in_sync else 0
        if is_new_leader:
            return ReplicaState(last_caught_up_time_ms=caught_up_time_ms)
        return self._replace(
            last_fetch_leader_log_end_offset=leader_log_end_offset,
            last_fetch_time_ms=caught_up_time_ms,
            last_caught_up_time_ms=caught_up_time_ms,
        )


class IdleFetch(NamedTuple):
    """A follower's fetch that found nothing to read at the log end, and its answer.

    Of 2,000 partitions nearly all are idle, and each is fetched twice a second: while the follower sends the same data
    and the answer is the same, nothing is read and no object is made but the follower's state.
    """

    data: FetchPartitionData
    fetched: FetchDataInfo
    answer: tuple[TopicPartition, FetchPartitionResult]


@dataclass(slots=True)
class RepeatedReads:
    """How often a reader was sent records from the same offset on, and since when (ms)."""

    offset: int
    count: int
    since_ms: int


class Replica:
    """A follower of a partition that this broker leads; `state` is replaced whole, so it is read without a lock.

    idle_fetch: the last fetch, if it was idle.  refused_epoch, refused_ms: the broker epoch of the last fetch that came
    with a lower one than a fetch before, and when (ms); None, 0 if there was none.  sent_from: the offset from which on
    it was sent records last, -1 for none; repeats: see DamageChecks.note_repeat().
    """

    __slots__ = ("broker_id", "idle_fetch", "refused_epoch", "refused_ms", "repeats", "sent_from", "state")

    def __init__(self, broker_id: int, state: ReplicaState | None = None) -> None:
        self.broker_id = broker_id
        self.idle_fetch: IdleFetch | None = None
        self.state = ReplicaState() if state is None else state
        self.refused_epoch: int | None = None
        self.refused_ms = 0
        self.sent_from = -1
        self.repeats: RepeatedReads | None = None

    def correct_epoch(self, claimed: int, registered: int) -> bool:
        """Take back a broker epoch that a fetch claimed to have, if the broker is registered with a lower one, which
        its fetches have: they would be refused for ever.  Whether it was taken back."""
        state = self.state
        if not registered < claimed == state.broker_epoch:
            return False
        self.state = state._replace(broker_epoch=registered)
        return True

    def __repr__(self) -> str:
        return f"Replica({self.broker_id}, {self.state})"
