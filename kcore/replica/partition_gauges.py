"""What the partitions of a broker are now, for the metrics; what they count is in replica_meters.py."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.metrics import Measured, MetricName
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition_state import LeaderState


def partition_gauges(hosted_partitions: HostedPartitions) -> Iterator[tuple[MetricName, Measured]]:
    """What the partitions are now, summed up and one by one."""
    hosted = hosted_partitions.all()
    partitions = hosted_partitions.online()
    leaders = under_replicated = under_min_isr = at_min_isr = 0
    for partition in partitions:
        topic, number = partition.topic_partition
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
        values: tuple[tuple[str, str, str, float], ...] = (
            ("kafka.cluster", "Partition", "UnderReplicated", lacks_replicas),
            ("kafka.cluster", "Partition", "UnderMinIsr", is_below),
            ("kafka.cluster", "Partition", "AtMinIsr", is_at),
            ("kafka.cluster", "Partition", "InSyncReplicasCount", in_sync),
            ("kafka.cluster", "Partition", "ReplicasCount", replicas),
            ("kafka.cluster", "Partition", "LastStableOffsetLag", log.high_watermark - log.last_stable_offset),
            ("kafka.log", "Log", "LogStartOffset", log.log_start_offset),
            ("kafka.log", "Log", "LogEndOffset", log.log_end_offset),
            ("kafka.log", "Log", "Size", log.size),
        )
        for group, type_name, name, value in values:
            yield MetricName(group, type_name, name, topic=topic, partition=number), float(value)
    for name, value in (
        ("LeaderCount", leaders),
        ("PartitionCount", len(hosted)),
        ("OfflineReplicaCount", len(hosted) - len(partitions)),
        ("UnderReplicatedPartitions", under_replicated),
        ("UnderMinIsrPartitionCount", under_min_isr),
        ("AtMinIsrPartitionCount", at_min_isr),
    ):
        yield MetricName("kafka.server", "ReplicaManager", name), float(value)
