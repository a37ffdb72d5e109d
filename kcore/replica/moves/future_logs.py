"""FutureLogs: the logs that a mover copies into, and their step into the place of the current logs (DIR-04..08)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaError, KafkaStorageError
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.replica_quota import ReplicaQuota

if TYPE_CHECKING:
    from kcore.log.log_manager import LogManager
    from kcore.log.unified_log import UnifiedLog

logger = logging.getLogger(__name__)


class FutureLogs(ReplicaLogs):
    """FollowerLogs over the future logs of partitions (replica id -3 in Kafka).

    quota: the mover's own (DIR-10).  A future log that has come near the end of the current one takes its place in
    complete_waiting(), without the fetcher's lock; take_finished() has the partitions of which that was done or failed.
    Another move of the same partition may have begun by then.
    """

    _is_future = True

    def __init__(
        self,
        hosted_partitions: HostedPartitions,
        log_manager: LogManager,
        quota: ReplicaQuota | None,
    ) -> None:
        super().__init__(hosted_partitions.get, log_manager, quota=quota)
        self._advanced: list[TopicPartition] = []
        self._finished: list[tuple[TopicPartition, UnifiedLog | None]] = []

    def _log(self, tp: TopicPartition) -> UnifiedLog:
        log = self._partition(tp).future_log
        if log is None:
            raise KafkaStorageError(f"{tp}: it moves no longer")
        return log

    def update_high_watermark(self, tp: TopicPartition, offset: int) -> None:
        """Without a comparison with the former value: no request waits for a future log."""
        self._log(tp).update_high_watermark(offset)

    def maybe_increment_log_start_offset(self, tp: TopicPartition, offset: int) -> None:
        """The last call for an answer, so what was fetched is in the log now."""
        super().maybe_increment_log_start_offset(tp, offset)
        self._advanced.append(tp)

    def _note_change(self, tp: TopicPartition) -> None:
        """Nothing to note: no client reads a future log."""

    def complete_waiting(self) -> None:
        """Replace the current logs of which the future ones are complete (DIR-06)."""
        while self._advanced:
            tp = self._advanced.pop()
            future = None
            try:
                partition = self._partition(tp)
                future = partition.future_log
                is_finished = partition.maybe_replace_current_with_future_log(
                    self._log_manager.replace_current_with_future_log
                )
            except KafkaError as error:
                if self._future_log(tp) is future:  # else it was cancelled meanwhile (DIR-11)
                    logger.error("%s: its move has failed: %s", tp, error)
                is_finished = True
            if is_finished:
                self._finished.append((tp, future))

    def take_finished(self) -> list[TopicPartition]:
        """Partitions that the mover need not look at any more, once.  Called with the fetcher's lock held, so that no
        other move of them can begin meanwhile."""
        finished, self._finished = self._finished, []
        return [tp for tp, future in finished if self._future_log(tp) in (None, future)]

    def _future_log(self, tp: TopicPartition) -> UnifiedLog | None:
        try:
            return self._partition(tp).future_log
        except KafkaError:
            return None
