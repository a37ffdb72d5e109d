"""A fetch that waits until there is enough to read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.purgatory.delayed_operation import DelayedOperation
from kcore.replica.fetch_params import FetchParams, FetchPartitionData, FetchPartitionResult
from kcore.replica.replica_quota import leader_throttles

if TYPE_CHECKING:
    from kcore.replica.replica_manager import ReplicaManager

FetchInfos = list[tuple[TopicPartition, FetchPartitionData]]
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
        "_callback",
        "_fetch_infos",
        "_only_leader",
        "_params",
        "_replica_manager",
        "_run",
        "_start_offsets",
        "keys",
    )

    def __init__(
        self,
        params: FetchParams,
        fetch_infos: FetchInfos,
        start_offsets: list[LogOffsetMetadata],
        replica_manager: ReplicaManager,
        callback: FetchCallback,
        run: Run | None = None,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._run = run
        self._params = params
        self._fetch_infos = fetch_infos
        self._start_offsets = start_offsets
        self._replica_manager = replica_manager
        self._callback = callback
        self._only_leader = params.only_leader
        self.keys = {topic_partition: at for at, (topic_partition, _) in enumerate(fetch_infos)}
        # And no partition is named twice.
        self._any_record_completes = params.min_bytes <= 1 and len(self.keys) == len(fetch_infos)

    def try_complete(self) -> bool:
        min_bytes = self._params.min_bytes
        accumulated = 0
        for at in range(len(self._fetch_infos)):
            available = self._readable_bytes(at)
            if available is None:
                return self.force_complete()
            if available:
                accumulated += available
                if accumulated >= min_bytes:
                    return self.force_complete()
        return False

    def try_complete_for(self, key: Hashable) -> bool:
        # With min_bytes 1 a partition completes the fetch or it does not, whatever is in the others: an append to one
        # of a follower's 2,000 partitions looks at this one.
        if not self._any_record_completes or key not in self.keys:
            return self.try_complete()
        assert isinstance(key, TopicPartition)
        return self._readable_bytes(self.keys[key]) != 0 and self.force_complete()

    def _readable_bytes(self, at: int) -> int | None:
        """How much this partition has to read, at most its limit; None where the fetch must be answered at once."""
        topic_partition, data = self._fetch_infos[at]
        start = self._start_offsets[at]
        params = self._params
        try:
            partition = self._replica_manager.get_partition_or_exception(topic_partition)
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
        self._callback(self._replica_manager.read_from_local_log(self._params, self._fetch_infos))

    def on_expiration(self) -> None:
        self._replica_manager.meters.fetch_expired(is_follower=self._params.replica_id >= 0)
