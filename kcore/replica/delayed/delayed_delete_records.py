"""A DeleteRecords that waits until the followers' logs start where the leader's does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, RequestTimedOut
from kcore.replica.delayed.delayed_partitions import DelayedPartitions
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.replica_meters import ReplicaMeters


@dataclass(slots=True)
class DeleteRecordsResult:
    """One partition's answer.

    low_watermark: the smallest log start over its live replicas, -1 where that is not known.  required_offset: what it
    must reach.
    """

    error: ApiError | None
    low_watermark: int = -1
    required_offset: int = -1


DeleteRecordsCallback = Callable[[dict[TopicPartition, DeleteRecordsResult]], None]


class DelayedDeleteRecords(DelayedPartitions):
    """Answers once the low watermark of every partition in `pending` has reached its required_offset (HW-05), or with
    REQUEST_TIMED_OUT for those whose has not.  Partitions that failed already keep their error.

    Source: DelayedDeleteRecords, Kafka 3.9.
    """

    __slots__ = ("_callback", "_hosted_partitions", "_meters", "_results")

    def __init__(
        self,
        delay_ms: float,
        results: dict[TopicPartition, DeleteRecordsResult],
        pending: list[TopicPartition],
        hosted_partitions: HostedPartitions,
        meters: ReplicaMeters,
        callback: DeleteRecordsCallback,
    ) -> None:
        super().__init__(delay_ms, pending)
        self._results = results
        self._hosted_partitions = hosted_partitions
        self._meters = meters
        self._callback = callback

    def _must_wait(self, topic_partition: TopicPartition) -> bool:
        result = self._results[topic_partition]
        try:
            result.low_watermark = self._hosted_partitions.get_or_exception(topic_partition).low_watermark()
            return result.low_watermark < result.required_offset
        except ApiError as error:
            result.error, result.low_watermark = error, -1
            return False

    def progress(self, topic_partition: TopicPartition) -> tuple[int, int] | None:
        """(low watermark, what it must reach); None if this request does not wait for the partition (any more)."""
        with self._lock:
            if topic_partition not in self._pending:
                return None
            result = self._results[topic_partition]
            return result.low_watermark, result.required_offset

    def on_complete(self) -> None:
        with self._lock:
            for topic_partition in self._pending:
                # The leader's records stay deleted; a follower may still have them.
                self._results[topic_partition].error = RequestTimedOut(
                    f"{topic_partition}: not deleted everywhere in time"
                )
        self._callback(self._results)

    def on_expiration(self) -> None:
        self._meters.delete_records_expirations.mark()
