"""The metrics of transactions: of the coordinator, of what leaders ask it, and of the logs (TXN-77)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean as mean

from kcore.common.metrics import Measured, MetricName
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
from kcore.replica.hosted_partitions import HostedPartitions

#: A transaction is late when its producer has been silent for this much more than any transaction may take.
LATE_MS = 300_000


def transaction_metrics(
    coordinator: TransactionCoordinator, verifier: TransactionVerifier, hosted_partitions: HostedPartitions
) -> Iterator[tuple[MetricName, Measured]]:
    late_since_ms = coordinator.manager.now_ms() - coordinator.config.transaction_max_timeout_ms - LATE_MS
    states = [partition.log.producer_state_manager for partition in hosted_partitions.online()]
    completions = coordinator.completions
    for type_name, name, value in (
        ("ReplicaManager", "ProducerIdCount", sum(len(state.producers) for state in states)),
        ("ReplicaManager", "PartitionsWithLateTransactionsCount", sum(s.has_silent_txn(late_since_ms) for s in states)),
        ("TransactionMarkerChannelManager", "UnknownDestinationQueueSize", completions.num_without_leader),
        ("TransactionMarkerChannelManager", "LogAppendRetryQueueSize", completions.num_unstored),
    ):
        group = "kafka.server" if type_name == "ReplicaManager" else "kafka.coordinator.transaction"
        yield MetricName(group, type_name, name), float(value)
    yield MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs"), verifier.times
    yield MetricName("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate"), verifier.failures
    times_ms = coordinator.manager.load_times_ms
    yield (
        MetricName("kafka.server", "transaction-coordinator-metrics", ""),
        {"partition-load-time-max": max(times_ms, default=0.0), "partition-load-time-avg": mean(times_ms or [0.0])},
    )
