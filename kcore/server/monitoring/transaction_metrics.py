"""The metrics of transactions: of the coordinator, of what leaders ask it, and of the logs (TXN-77)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean as mean

from kcore.common.metrics import Measured, MetricName
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
from kcore.replica.hosted_partitions import HostedPartitions
from kcore.replica.partition_gauges import producer_gauges

#: A transaction is late when its producer has been silent for this much more than any transaction may take.
LATE_MS = 300_000


def transaction_metrics(
    coordinator: TransactionCoordinator, verifier: TransactionVerifier, hosted_partitions: HostedPartitions
) -> Iterator[tuple[MetricName, Measured]]:
    late_since_ms = coordinator.manager.now_ms() - coordinator.config.transaction_max_timeout_ms - LATE_MS
    yield from producer_gauges(hosted_partitions, late_since_ms)
    for name, value in (
        ("UnknownDestinationQueueSize", coordinator.completions.num_without_leader),
        ("LogAppendRetryQueueSize", coordinator.completions.num_unstored),
    ):
        yield MetricName("kafka.coordinator.transaction", "TransactionMarkerChannelManager", name), float(value)
    yield MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs"), verifier.times
    yield MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate"), verifier.failures
    times_ms = coordinator.manager.load_times_ms
    yield (
        MetricName("kafka.server", "transaction-coordinator-metrics", ""),
        {"partition-load-time-max": max(times_ms, default=0.0), "partition-load-time-avg": mean(times_ms or [0.0])},
    )
