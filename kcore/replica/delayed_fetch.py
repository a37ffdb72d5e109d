"""A fetch that waits until there is enough to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError
from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.purgatory.delayed_operation import DelayedOperation
from kcore.replica.fetch_params import FetchParams, FetchPartitionData, FetchPartitionResult

if TYPE_CHECKING:
    from kcore.replica.replica_manager import ReplicaManager

FetchInfos = list[tuple[TopicPartition, FetchPartitionData]]
FetchCallback = Callable[[list[tuple[TopicPartition, FetchPartitionResult]]], None]


class DelayedFetch(DelayedOperation):
    """Completes when min_bytes can be read, when a partition's answer has become an error, or at its deadline, and
    then reads afresh (PURG-11..16, RD-16).

    start_offsets holds where each partition's reading starts, from the first read.  Only reads: may be tried
    on several threads.  Source: DelayedFetch, Kafka 2.4.
    """

    __slots__ = ("_callback", "_fetch_infos", "_params", "_replica_manager", "_start_offsets")

    def __init__(
        self,
        params: FetchParams,
        fetch_infos: FetchInfos,
        start_offsets: list[LogOffsetMetadata],
        replica_manager: ReplicaManager,
        callback: FetchCallback,
    ) -> None:
        super().__init__(params.max_wait_ms)
        self._params = params
        self._fetch_infos = fetch_infos
        self._start_offsets = start_offsets
        self._replica_manager = replica_manager
        self._callback = callback

    def try_complete(self) -> bool:
        isolation = self._params.isolation
        min_bytes = self._params.min_bytes
        accumulated = 0
        for (topic_partition, data), start in zip(self._fetch_infos, self._start_offsets, strict=True):
            try:
                partition = self._replica_manager.get_partition_or_exception(topic_partition)
                partition.check_leader(data.current_leader_epoch)
            except ApiError:
                # Cases A to E: the fresh read will give the reason.
                return self.force_complete()
            end = partition.last_fetchable_offset_metadata(isolation)
            # Equal offsets are no reason, even on different segments: a roll leaves the limit where it was (PURG-15).
            if end.message_offset == start.message_offset:
                continue
            if end.segment_base_offset != start.segment_base_offset:
                # Case F: the limit moved back by a truncation, or forward past the end of the start's segment.
                return self.force_complete()
            if end.message_offset > start.message_offset:
                if end.relative_position_in_segment < 0 or start.relative_position_in_segment < 0:
                    # There is something to read, and counting it would cost the read itself.
                    return self.force_complete()
                available = end.relative_position_in_segment - start.relative_position_in_segment
                accumulated += min(available, data.max_bytes)
                if accumulated >= min_bytes:
                    return self.force_complete()
        return False

    def on_complete(self) -> None:
        self._callback(self._replica_manager.read_from_local_log(self._params, self._fetch_infos))
