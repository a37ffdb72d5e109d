"""The metrics of a whole broker: the registry with every part of it as a source."""

from __future__ import annotations

from collections.abc import Iterator

from kcore.common.metrics import Measured, Metrics, metric_name
from kcore.common.time import Time
from kcore.log.log_manager import LogManager
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_meters import partition_gauges
from kcore.server.kafka_apis import KafkaApis


def broker_metrics(
    time: Time, log_manager: LogManager, replica_manager: ReplicaManager, kafka_apis: KafkaApis
) -> Metrics:
    """The registry of a broker with these parts; rates count from now on."""
    metrics = Metrics(time)
    metrics.add_source(replica_manager.meters.measured)
    metrics.add_source(lambda: partition_gauges(replica_manager))
    metrics.add_source(lambda: _purgatories(replica_manager))
    metrics.add_source(lambda: _log_dirs(log_manager))
    metrics.add_source(kafka_apis.measured)
    return metrics


def _purgatories(replica_manager: ReplicaManager) -> Iterator[tuple[str, Measured]]:
    waiting: dict[str, list[DelayedOperationPurgatory]] = {
        "Produce": [replica_manager.delayed_produce_purgatory],
        # Kafka has one purgatory for the fetches of consumers and followers.
        "Fetch": [replica_manager.delayed_fetch_purgatory, replica_manager.delayed_log_end_fetch_purgatory],
    }
    for operation, purgatories in waiting.items():
        for name, value in (
            ("PurgatorySize", sum(purgatory.size for purgatory in purgatories)),
            ("NumDelayedOperations", sum(purgatory.delayed for purgatory in purgatories)),
        ):
            tags = {"delayedOperation": operation}
            yield metric_name("kafka.server", "DelayedOperationPurgatory", name, **tags), float(value)


def _log_dirs(log_manager: LogManager) -> Iterator[tuple[str, Measured]]:
    offline = log_manager.offline_log_dirs
    yield metric_name("kafka.log", "LogManager", "OfflineLogDirectoryCount"), float(len(offline))
    for path in log_manager.log_dirs:
        name = metric_name("kafka.log", "LogManager", "LogDirectoryOffline", logDirectory=path)
        yield name, float(path in offline)
    yield metric_name("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs"), log_manager.flush_times
