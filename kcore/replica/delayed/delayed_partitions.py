"""What a produce and a DeleteRecords that wait have in common: they wait for some partitions of their request."""

from __future__ import annotations

import threading
from abc import abstractmethod

from kcore.common.topic_partition import TopicPartition
from kcore.purgatory.delayed_operation import DelayedOperation


class DelayedPartitions(DelayedOperation):
    """Completes when no partition of `pending` is waited for any more.

    _lock is held while `pending` and what becomes of its partitions change.  Without it, a thread that saw an older
    state could put a partition back into `pending` before another one answers, or set an error after the answer.
    """

    __slots__ = ("_lock", "_pending")

    def __init__(self, delay_ms: float, pending: list[TopicPartition]) -> None:
        super().__init__(delay_ms)
        self._pending = pending
        self._lock = threading.Lock()

    def try_complete(self) -> bool:
        with self._lock:
            if self.is_completed:
                return False
            self._pending = still_pending = [tp for tp in self._pending if self._must_wait(tp)]
        return not still_pending and self.force_complete()

    @abstractmethod
    def _must_wait(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition has neither arrived nor failed; notes its error.  Called under _lock."""
