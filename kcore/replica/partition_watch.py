"""Which of many partitions have changed, as the purgatory reports it: an append, a high watermark, a log start, another
leader, a failure.  And the fetch that waits for such a change, and what it needs to know of a partition to do so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Protocol

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from kcore.replica.fetch_params import FetchParams, FetchPartitionData, FetchPartitionResult
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState
from kcore.replica.replica_manager import ReplicaManager


class PartitionWatch(DelayedOperation):
    """What has changed of these partitions, from one fetch to the next.

    Thread-safe.  Watches from the first cover() until close() and the end of the last wait; never completes.
    """

    __slots__ = ("_changed", "_guard", "_is_closed", "_keys", "_observed", "_waiting", "isolation")

    def __init__(self, purgatory: DelayedOperationPurgatory, isolation: FetchIsolation) -> None:
        super().__init__(0)
        self.isolation = isolation
        self._observed = purgatory
        self._guard = threading.Lock()
        self._keys: set[TopicPartition] = set()
        self._changed: dict[TopicPartition, None] = {}
        self._waiting: tuple[WatchingFetch, ...] = ()
        self._is_closed = False

    @classmethod
    def of(cls, replica_manager: ReplicaManager, isolation: FetchIsolation) -> PartitionWatch:
        """For readers of this isolation level."""
        if isolation is FetchIsolation.LOG_END:
            return cls(replica_manager.delayed_log_end_fetch_purgatory, isolation)
        return cls(replica_manager.delayed_fetch_purgatory, isolation)

    def cover(self, partitions: Iterable[TopicPartition]) -> None:
        """Watch these and no others."""
        wanted = set(partitions)
        with self._guard:
            added, removed = wanted - self._keys, self._keys - wanted
            self._keys = wanted
        if added:
            self._observed.observe(self, added)
        if removed:
            self._observed.end_observation(self, removed)

    def close(self) -> None:
        """End the watch: at once, or when no fetch waits any more."""
        with self._guard:
            self._is_closed = True
            is_over = not self._waiting
        if is_over:
            self.cover(())

    def take_changed(self) -> dict[TopicPartition, None]:
        """The partitions that have changed since the last call, in that order."""
        with self._guard:
            changed, self._changed = self._changed, {}
        return changed

    @property
    def waiting(self) -> tuple[WatchingFetch, ...]:
        """The fetches that wait now: the last one, and those that a client has given up."""
        return self._waiting

    def try_complete(self) -> bool:
        return False

    def try_complete_for(self, key: Hashable) -> bool:
        assert isinstance(key, TopicPartition)
        with self._guard:
            self._changed[key] = None
            waiting = self._waiting
        for fetch in waiting:
            fetch.partition_changed(key)
        return False

    def begin_wait(self, fetch: WatchingFetch) -> list[TopicPartition] | None:
        """Report changes to this fetch from now on; those since take_changed() come back.  None after close()."""
        with self._guard:
            if self._is_closed:
                return None
            self._waiting = (*self._waiting, fetch)
            return list(self._changed)

    def end_wait(self, fetch: WatchingFetch) -> None:
        with self._guard:
            self._waiting = tuple(waiting for waiting in self._waiting if waiting is not fetch)
            is_over = self._is_closed and not self._waiting
        if is_over:
            self.cover(())


class FetchedPartition(Protocol):
    """What is asked of a partition now."""

    data: FetchPartitionData


class WatchingFetch(DelayedOperation):
    """A fetch that waits until a watch reports that any of its partitions has something to read, or cannot be read, or
    until its deadline.

    params.min_bytes is 1 at most: any record is enough.  answer() then reads again, on the thread that ended the wait.
    Source of what ends it: DelayedFetch (PURG-11..16).
    """

    __slots__ = ("_answer", "_partitions", "_replica_manager", "_watch", "params")

    def __init__(
        self,
        params: FetchParams,
        partitions: Mapping[TopicPartition, FetchedPartition],
        watch: PartitionWatch,
        replica_manager: ReplicaManager,
        answer: Callable[[], None],
    ) -> None:
        super().__init__(params.max_wait_ms)
        self.params = params
        self._partitions = partitions
        self._watch = watch
        self._replica_manager = replica_manager
        self._answer = answer

    @property
    def keys(self) -> Collection[TopicPartition]:
        """What it waits for."""
        return self._partitions.keys()

    def fetch_offset(self, topic_partition: TopicPartition) -> int:
        return self._partitions[topic_partition].data.fetch_offset

    def readable_bytes(self, topic_partition: TopicPartition) -> int:
        """0 as long as it waits: any would end that."""
        return 0

    def begin(self) -> bool:
        """Wait, or answer now if a partition has changed since its watch's take_changed().

        False if the watch is closed: then it does neither.
        """
        changed = self._watch.begin_wait(self)
        if changed is None:
            return False
        for topic_partition in changed:
            self.partition_changed(topic_partition)
        if not self.is_completed:
            self._timer_task = self._replica_manager.timer.add(self._expire, self.delay_ms)
            if self.is_completed:
                self._timer_task.cancel()
        return True

    def partition_changed(self, topic_partition: TopicPartition) -> None:
        fetched = self._partitions.get(topic_partition)
        if fetched is None or self.is_completed:
            return
        data = fetched.data
        try:
            partition = self._replica_manager.hosted_partitions.get_or_exception(topic_partition)
            partition.check_leader(data.current_leader_epoch)
        except ApiError:
            self.force_complete()
            return
        if partition.last_fetchable_offset(self.params.isolation) > data.fetch_offset:
            self.force_complete()

    def on_complete(self) -> None:
        self._watch.end_wait(self)
        if self._timer_task is not None:
            self._timer_task.cancel()
        self._answer()

    def on_expiration(self) -> None:
        self._replica_manager.meters.fetch_expired(is_follower=self.params.replica_id >= 0)


def is_news(result: FetchPartitionResult) -> bool:
    """Whether there is anything to answer."""
    return (
        result.error is not None
        or result.records.size_in_bytes > 0
        or result.diverging_epoch is not None
        or result.preferred_read_replica != -1
    )


def repeats_idle_fetch(
    topic_partition: TopicPartition,
    params: FetchParams,
    data: FetchPartitionData,
    fetch_time_ms: int,
    hosted_partitions: HostedPartitions,
) -> bool:
    """Whether a follower's fetch of an idle partition gets the answer of its last one; then it is taken in (ms)."""
    partition = hosted_partitions.get(topic_partition)
    return (
        isinstance(partition, Partition)
        and partition.repeat_idle_fetch(params.replica_id, data, fetch_time_ms, params.replica_epoch) is not None
    )


def is_idle(
    topic_partition: TopicPartition, params: FetchParams, data: FetchPartitionData, replica_manager: ReplicaManager
) -> bool:
    """Whether a partition that was just read, with nothing to answer, needs no other read before it changes.

    Not a follower's that is not in the ISR: each of its fetches may let it join.  Once that is proposed, no fetch does
    before the store has answered, which is reported: of a broker that has come back a thousand partitions join at once,
    and reading all of them with each fetch keeps the thread that stores them from running.  Nor one of a consumer that
    may be sent elsewhere: no event says when a replica in its rack can serve it (RD-25).
    """
    may_be_sent_elsewhere = replica_manager.local_reads.preferred_read_replica is not None
    if may_be_sent_elsewhere and params.client is not None and params.client.rack:
        return False
    partition = replica_manager.hosted_partitions.get(topic_partition)
    if not isinstance(partition, Partition) or partition.last_fetchable_offset(params.isolation) != data.fetch_offset:
        return False
    state = partition.state
    return params.replica_id < 0 or (isinstance(state, LeaderState) and params.replica_id in state.isr.maximal)
