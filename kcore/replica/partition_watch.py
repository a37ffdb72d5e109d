"""The fetch of a session of many partitions costs what has changed, and not all its partitions (SESS-08, SESS-15).

A partition is idle once its reader has all that it may read.  It is not read again before the purgatory reports a
change of it: an append, a high watermark, a log start, another leader, a failure.  Now and then the caller has all
partitions read: a follower's last fetch is known only from a read.  For a follower repeats_idle_fetch() stands for the
read where nothing has changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from kcore.replica.delayed_fetch import FetchCallback
from kcore.replica.fetch_params import FetchParams, FetchPartitionData, FetchPartitionResult
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderState
from kcore.replica.replica_manager import ReplicaManager

Results = list[tuple[TopicPartition, FetchPartitionResult]]


class PartitionWatch(DelayedOperation):
    """What has changed of a session's partitions, as the purgatory reports it, from one fetch to the next.

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
        self._waiting: tuple[SessionFetch, ...] = ()
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
    def waiting(self) -> tuple[SessionFetch, ...]:
        """The fetches of the session that wait now: one, and those that a client has given up."""
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

    def begin_wait(self, fetch: SessionFetch) -> list[TopicPartition] | None:
        """Report changes to this fetch from now on; those since take_changed() come back.  None after close()."""
        with self._guard:
            if self._is_closed:
                return None
            self._waiting = (*self._waiting, fetch)
            return list(self._changed)

    def end_wait(self, fetch: SessionFetch) -> None:
        with self._guard:
            self._waiting = tuple(waiting for waiting in self._waiting if waiting is not fetch)
            is_over = self._is_closed and not self._waiting
        if is_over:
            self.cover(())


class SessionFetch(DelayedOperation):
    """One fetch: reads what is not idle; if there is nothing to answer, waits until there is, or for its deadline, and
    then reads what has changed and what is still not idle.

    params.min_bytes is 1 at most: any record is enough.  to_read: of the session's partitions those that are not idle.
    idle: those of the answer that need no other read before they change.  take_changed() says when the wait ends which
    partitions this fetch has to read again: none if another fetch has continued the session, which then answers them.
    Source of what ends the wait: DelayedFetch (PURG-11..16).
    """

    __slots__ = (
        "_callback",
        "_idle_results",
        "_partitions",
        "_replica_manager",
        "_take_changed",
        "_to_read",
        "_watch",
        "idle",
        "params",
    )

    def __init__(
        self,
        params: FetchParams,
        partitions: Mapping[TopicPartition, FetchPartitionData],
        to_read: Iterable[TopicPartition],
        watch: PartitionWatch,
        take_changed: Callable[[], dict[TopicPartition, None]],
        replica_manager: ReplicaManager,
        callback: FetchCallback,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self.params = params
        self._partitions = partitions
        self.idle: set[TopicPartition] = set()
        self._to_read = dict.fromkeys(to_read)
        self._idle_results: Results = []
        self._watch = watch
        self._take_changed = take_changed
        self._replica_manager = replica_manager
        self._callback = callback

    @property
    def keys(self) -> Collection[TopicPartition]:
        """All partitions of the session: what it waits for."""
        return self._partitions.keys()

    def fetch_offset(self, topic_partition: TopicPartition) -> int:
        return self._partitions[topic_partition].fetch_offset

    def readable_bytes(self, topic_partition: TopicPartition) -> int:
        """0 as long as it waits: any would end that."""
        return 0

    def start(self) -> None:
        """Answer now, on this thread, or later."""
        infos = [(tp, self._partitions[tp]) for tp in self._to_read]
        results = self._replica_manager.fetch_now(self.params, infos) if infos else []
        has_news = self._note_idle(results)
        if self.params.max_wait_ms <= 0 or has_news:
            self._callback(results)
            return
        self._idle_results = [answer for answer in results if answer[0] in self.idle]
        for topic_partition in self.idle:
            del self._to_read[topic_partition]
        changed = self._watch.begin_wait(self)
        if changed is None:  # changes are not reported any more
            self._to_read = dict.fromkeys(self._partitions)
            self.force_complete()
            return
        for topic_partition in changed:
            self.partition_changed(topic_partition)
        if not self.is_completed:
            self._timer_task = self._replica_manager.timer.add(self._expire, self.delay_ms)
            if self.is_completed:
                self._timer_task.cancel()

    def partition_changed(self, topic_partition: TopicPartition) -> None:
        data = self._partitions.get(topic_partition)
        if data is None or self.is_completed:
            return
        try:
            partition = self._replica_manager.get_partition_or_exception(topic_partition)
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
        self._to_read.update(self._take_changed())
        infos = [(tp, self._partitions[tp]) for tp in self._to_read]
        results = self._replica_manager.read_from_local_log(self.params, infos) if infos else []
        unchanged = [answer for answer in self._idle_results if answer[0] not in self._to_read]
        self._note_idle(results)
        self._callback(unchanged + results)

    def on_expiration(self) -> None:
        self._replica_manager.meters.fetch_expired(is_follower=self.params.replica_id >= 0)

    def _note_idle(self, results: Results) -> bool:
        """Which of these are idle; whether there is anything to answer."""
        has_news = False
        for topic_partition, result in results:
            if _is_news(result):
                has_news = True
                self.idle.discard(topic_partition)
            elif _is_idle(topic_partition, self.params, self._partitions[topic_partition], self._replica_manager):
                self.idle.add(topic_partition)
            else:
                self.idle.discard(topic_partition)
        return has_news


def _is_news(result: FetchPartitionResult) -> bool:
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
    replica_manager: ReplicaManager,
) -> bool:
    """Whether a follower's fetch of an idle partition gets the answer of its last one; then it is taken in (ms)."""
    partition = replica_manager.get_partition(topic_partition)
    return (
        isinstance(partition, Partition)
        and partition.repeat_idle_fetch(params.replica_id, data, fetch_time_ms, params.replica_epoch) is not None
    )


def _is_idle(
    topic_partition: TopicPartition, params: FetchParams, data: FetchPartitionData, replica_manager: ReplicaManager
) -> bool:
    """Whether a partition that was just read, with nothing to answer, needs no other read before it changes.

    Not a follower's that is not in the ISR: each of its fetches may let it join.  Once that is proposed, no fetch does
    before the store has answered, which is reported: of a broker that has come back a thousand partitions join at once,
    and reading all of them with each fetch keeps the thread that stores them from running.  Nor one of a consumer that
    may be sent elsewhere: no event says when a replica in its rack can serve it (RD-25).
    """
    if params.client is not None and params.client.rack and replica_manager.preferred_read_replica is not None:
        return False
    partition = replica_manager.get_partition(topic_partition)
    if not isinstance(partition, Partition) or partition.last_fetchable_offset(params.isolation) != data.fetch_offset:
        return False
    state = partition.state
    return params.replica_id < 0 or (isinstance(state, LeaderState) and params.replica_id in state.isr.maximal)
