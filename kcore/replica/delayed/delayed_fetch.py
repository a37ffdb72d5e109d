"""A fetch that waits until there is enough to read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.purgatory.delayed_operation import DelayedOperation
from kcore.replica.fetch_params import FetchInfos, FetchParams, FetchPartitionResult
from kcore.replica.local_reads import LocalReads
from kcore.replica.replica_quota import leader_throttles

FetchCallback = Callable[[list[tuple[TopicPartition, FetchPartitionResult]]], None]
#: Runs a function, now or later, on this thread or another.
Run = Callable[[Callable[[], None]], None]


class DelayedFetch(DelayedOperation):
    """Completes when min_bytes can be read, when a partition's answer has become an error, or at its deadline, and
    then reads afresh (PURG-11..16, RD-16).

    start_offsets holds where each partition's reading starts, from the first read.  Only reads: may be tried
    on several threads.  `keys` is what it waits under, each with its last place in fetch_infos.  run: runs the last
    read and the callback; None: the thread that completes it does.
    Source: DelayedFetch, Kafka 2.4.
    """

    __slots__ = (
        "_any_record_completes",
        "_available",
        "_available_lock",
        "_callback",
        "_fetch_infos",
        "_local_reads",
        "_only_leader",
        "_params",
        "_run",
        "_start_offsets",
        "keys",
    )

    def __init__(
        self,
        params: FetchParams,
        fetch_infos: FetchInfos,
        start_offsets: list[LogOffsetMetadata],
        local_reads: LocalReads,
        callback: FetchCallback,
        run: Run | None = None,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._run = run
        self._params = params
        self._fetch_infos = fetch_infos
        self._start_offsets = start_offsets
        self._local_reads = local_reads
        self._callback = callback
        self._only_leader = params.only_leader
        self.keys = {topic_partition: at for at, (topic_partition, _) in enumerate(fetch_infos)}
        # And no partition is named twice.
        self._any_record_completes = params.min_bytes <= 1 and len(self.keys) == len(fetch_infos)
        # With min_bytes above 1: what each place had to read when it was last looked at, after a look at all of them.
        self._available: list[int] = []
        self._available_lock = threading.Lock() if params.min_bytes > 1 else None

    def try_complete(self) -> bool:
        if self._available_lock is not None:
            with self._available_lock:  # or another thread's older count could replace a newer one
                is_enough = self._is_enough()
            return is_enough and self.force_complete()
        for at in range(len(self._fetch_infos)):
            if self._readable_bytes(at) != 0:
                return self.force_complete()
        return False

    def _is_enough(self) -> bool:
        """Whether all partitions together have min_bytes, or one of them has an error."""
        counts = []
        accumulated = 0
        for at in range(len(self._fetch_infos)):
            available = self._readable_bytes(at)
            if available is None:
                return True
            counts.append(available)
            accumulated += available
            if accumulated >= self._params.min_bytes:
                return True
        self._available = counts
        return False

    def try_complete_for(self, key: Hashable) -> bool:
        if key not in self.keys:
            return self.try_complete()
        assert isinstance(key, TopicPartition)
        # With min_bytes 1 a partition completes the fetch or it does not, whatever is in the others: an append to one
        # of a follower's 2,000 partitions looks at this one.
        if self._any_record_completes:
            return self._readable_bytes(self.keys[key]) != 0 and self.force_complete()
        # A quota may throttle another partition no longer.
        if self._available_lock is None or self._params.quota is not None or len(self.keys) < len(self._fetch_infos):
            return self.try_complete()
        return self._may_be_enough(self.keys[key]) and self.try_complete()

    def _may_be_enough(self, at: int) -> bool:
        """False if the bytes of this partition, with those of the others when they were last looked at, are too few:
        each change of another has been reported for that one."""
        assert self._available_lock is not None
        with self._available_lock:
            counts = self._available
            if not counts:
                return True
            available = self._readable_bytes(at)
            if available is None:
                return True
            counts[at] = available
            return sum(counts) >= self._params.min_bytes

    def _readable_bytes(self, at: int) -> int | None:
        """How much this partition has to read, at most its limit; None where the fetch must be answered at once."""
        topic_partition, data = self._fetch_infos[at]
        start = self._start_offsets[at]
        params = self._params
        try:
            partition = self._local_reads.hosted_partitions.get_or_exception(topic_partition)
            partition.check_readable(data.current_leader_epoch, self._only_leader)
        except ApiError:
            return None  # Cases A to E: the fresh read will give the reason.
        # Equal offsets are no reason, even on different segments: a roll leaves the limit where it was (PURG-15).
        if partition.last_fetchable_offset(params.isolation) == start.message_offset:
            return 0
        end = partition.last_fetchable_offset_metadata(params.isolation)
        quota = params.quota
        if (
            quota is not None
            and end.message_offset > start.message_offset
            and leader_throttles(quota, topic_partition, params.replica_id, partition.isr)
        ):
            return 0
        if end.segment_base_offset != start.segment_base_offset:
            # Case F: the limit moved back by a truncation, or forward past the end of the start's segment.
            return None
        if end.message_offset < start.message_offset:
            return 0
        if end.relative_position_in_segment < 0 or start.relative_position_in_segment < 0:
            return None  # There is something to read, and counting it would cost the read itself.
        return min(end.relative_position_in_segment - start.relative_position_in_segment, data.max_bytes)

    @property
    def params(self) -> FetchParams:
        return self._params

    def fetch_offset(self, topic_partition: TopicPartition) -> int:
        """Where the request reads the partition from."""
        return self._fetch_infos[self.keys[topic_partition]][1].fetch_offset

    def readable_bytes(self, topic_partition: TopicPartition) -> int:
        """What it could read of the partition now."""
        return self._readable_bytes(self.keys[topic_partition]) or 0

    def on_complete(self) -> None:
        if self._run is None:
            self._answer()
        else:
            self._run(self._answer)

    def _answer(self) -> None:
        self._callback(self._local_reads.read_again(self._params, self._fetch_infos))

    def on_expiration(self) -> None:
        self._local_reads.meters.fetch_expired(is_follower=self._params.replica_id >= 0)
