"""A produce with acks=-1 that waits for its records to be replicated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, RequestTimedOut
from kcore.replica.delayed.delayed_partitions import DelayedPartitions
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.replica_meters import ReplicaMeters

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProducePartitionStatus:
    """What became of one partition's records (APP-06).

    base_offset, log_append_time (ms) and log_start_offset are -1 where they say nothing; required_offset is the
    offset the high watermark must reach, and leader_epoch the one in which the records were appended, None for any.
    record_errors: (index of the record in its batch, message).
    """

    error: ApiError | None = None
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str]] = ()
    error_message: str | None = None
    required_offset: int = -1
    leader_epoch: int | None = None


ProduceCallback = Callable[[dict[TopicPartition, ProducePartitionStatus]], None]


class DelayedProduce(DelayedPartitions):
    """Answers once the high watermark has passed the records of every partition in `pending`, or with
    REQUEST_TIMED_OUT for those that it has not (PURG-07..09).  Partitions that failed already keep their error.
    """

    __slots__ = ("_callback", "_hosted_partitions", "_meters", "_statuses")

    def __init__(
        self,
        delay_ms: float,
        statuses: dict[TopicPartition, ProducePartitionStatus],
        pending: list[TopicPartition],
        hosted_partitions: HostedPartitions,
        meters: ReplicaMeters,
        callback: ProduceCallback,
    ) -> None:
        super().__init__(delay_ms, pending)
        self._statuses = statuses
        self._hosted_partitions = hosted_partitions
        self._meters = meters
        self._callback = callback

    def _must_wait(self, topic_partition: TopicPartition) -> bool:
        status = self._statuses[topic_partition]
        try:
            partition = self._hosted_partitions.get_or_exception(topic_partition)
            return not partition.check_enough_replicas_reach_offset(status.required_offset, status.leader_epoch)
        except ApiError as error:
            status.error = error
            return False

    def required_offset(self, topic_partition: TopicPartition) -> int | None:
        """What the partition's high watermark must reach; None if this request does not wait for it (any more)."""
        with self._lock:
            is_pending = topic_partition in self._pending
        return self._statuses[topic_partition].required_offset if is_pending else None

    def on_complete(self) -> None:
        with self._lock:
            for topic_partition in self._pending:
                # The records stay in the log, but the ISR has not replicated them in time.
                self._statuses[topic_partition].error = RequestTimedOut(f"{topic_partition}: not replicated in time")
        self._callback(self._statuses)

    def on_expiration(self) -> None:
        for topic_partition in self._pending:
            self._meters.produce_expired(topic_partition)
        logger.debug("produce expired with %s pending", self._pending)
