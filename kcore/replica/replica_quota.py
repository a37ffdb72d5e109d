"""ReplicaQuota: what replication asks of a throttle (QUOTA-01..03, QUOTA-08), and the rules that ask.

server/quotas/replication_quota_manager.py has the rates.
Source: ReplicaQuota, ReplicaManager.shouldLeaderThrottle, Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from kcore.common.topic_partition import TopicPartition


class ReplicaQuota(Protocol):
    """The throttle of one kind of copying.  Thread-safe."""

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        """Whether this partition is in the list of those that are throttled here."""
        ...

    def is_quota_exceeded(self) -> bool: ...

    def record(self, size: int) -> None:
        """Bytes of records of throttled partitions that were copied."""
        ...


def leader_throttles(
    quota: ReplicaQuota, topic_partition: TopicPartition, replica_id: int, isr: Collection[int]
) -> bool:
    """Whether this follower gets no records of the partition now (QUOTA-01): one in the ISR always does (QUOTA-08)."""
    return replica_id not in isr and quota.is_throttled(topic_partition) and quota.is_quota_exceeded()


def follower_throttles(quota: ReplicaQuota, topic_partition: TopicPartition) -> bool:
    """Whether a partition that is not in sync is left out of a fetch now (QUOTA-02)."""
    return quota.is_throttled(topic_partition) and quota.is_quota_exceeded()
