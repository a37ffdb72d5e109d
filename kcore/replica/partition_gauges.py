"""What the partitions of a broker are now, for the metrics; what they count is in replica_meters.py."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.metrics import Measured, MetricName, Table
from kcore.common.topic_partition import TopicPartition
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition_state import LeaderState

#: (group, type, name) of what each partition has.
_OF_A_PARTITION = (
    ("kafka.cluster", "Partition", "UnderReplicated"),
    ("kafka.cluster", "Partition", "UnderMinIsr"),
    ("kafka.cluster", "Partition", "AtMinIsr"),
    ("kafka.cluster", "Partition", "InSyncReplicasCount"),
    ("kafka.cluster", "Partition", "ReplicasCount"),
    ("kafka.cluster", "Partition", "LastStableOffsetLag"),
    ("kafka.log", "Log", "LogStartOffset"),
    ("kafka.log", "Log", "LogEndOffset"),
    ("kafka.log", "Log", "Size"),
)


def partition_gauges(hosted_partitions: HostedPartitions) -> Iterator[tuple[MetricName, Measured] | Table]:
    """What the partitions are now, summed up and one by one."""
    hosted = hosted_partitions.all()
    partitions = hosted_partitions.online()
    rows: list[tuple[TopicPartition, tuple[int, ...]]] = []
    leaders = under_replicated = under_min_isr = at_min_isr = 0
    for partition in partitions:
        state, log = partition.state, partition.log
        leads = isinstance(state, LeaderState)
        in_sync = len(state.isr.committed) if isinstance(state, LeaderState) else 0
        replicas = len(state.replicas) + 1 if isinstance(state, LeaderState) else 0
        minimum = log.config.min_insync_replicas
        lacks_replicas, is_below, is_at = in_sync < replicas, leads and in_sync < minimum, leads and in_sync == minimum
        leaders += leads
        under_replicated += lacks_replicas
        under_min_isr += is_below
        at_min_isr += is_at
        values = (
            lacks_replicas,
            is_below,
            is_at,
            in_sync,
            replicas,
            log.high_watermark - log.last_stable_offset,
            log.log_start_offset,
            log.log_end_offset,
            log.size,
        )
        rows.append((partition.topic_partition, values))
    yield Table(_OF_A_PARTITION, "Value", ("topic", "partition"), rows)
    for name, value in (
        ("LeaderCount", leaders),
        ("PartitionCount", len(hosted)),
        ("OfflineReplicaCount", len(hosted) - len(partitions)),
        ("UnderReplicatedPartitions", under_replicated),
        ("UnderMinIsrPartitionCount", under_min_isr),
        ("AtMinIsrPartitionCount", at_min_isr),
    ):
        yield MetricName("kafka.server", "ReplicaManager", name), float(value)


def producer_gauges(hosted_partitions: HostedPartitions, late_since_ms: int) -> Iterator[tuple[MetricName, Measured]]:
    """Producers, and partitions whose oldest open transaction has had no batch since then (TXN-77)."""
    num_producers = num_late = 0
    for partition in hosted_partitions.online():
        state = partition.log.producer_state_manager
        num_producers += len(state.producers)
        num_late += state.has_silent_txn(late_since_ms)
    yield MetricName("kafka.server", "ReplicaManager", "ProducerIdCount"), float(num_producers)
    yield MetricName("kafka.server", "ReplicaManager", "PartitionsWithLateTransactionsCount"), float(num_late)
