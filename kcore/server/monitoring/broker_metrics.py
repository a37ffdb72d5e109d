"""The metrics of a whole broker: the registry with every part of it as a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcore.common.metrics import Measured, MetricName, Metrics, count
from kcore.common.time import Time
from kcore.log.log_manager import LogManager
from kcore.metadata.metadata_cache import Endpoint
from kcore.network.socket_server import SocketServer
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.replica.partition_gauges import partition_gauges
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.monitoring.idle_share import IdleShare
from kcore.server.requests.kafka_apis import KafkaApis
from kcore.server.requests.request_handler_pool import RequestHandlerPool

if TYPE_CHECKING:
    from kcore.replica.fetcher.replica_fetcher_manager import ReplicaFetcherManager


def broker_metrics(
    time: Time,
    log_manager: LogManager,
    replica_manager: ReplicaManager,
    fetchers: ReplicaFetcherManager | None,
    kafka_apis: KafkaApis,
    pool: RequestHandlerPool,
    server: SocketServer,
) -> Metrics:
    """The registry of a broker with these parts; rates count from now on.  fetchers: None for a broker alone."""
    metrics = Metrics(time)
    metrics.add_source(replica_manager.meters.measured)
    metrics.add_source(lambda: partition_gauges(replica_manager.hosted_partitions))
    metrics.add_source(lambda: _purgatories(replica_manager))
    metrics.add_source(lambda: _log_dirs(log_manager))
    start_ms = time.hi_res_clock_ms()
    metrics.add_source(lambda: _fetchers(fetchers, max(time.hi_res_clock_ms() - start_ms, 1.0) / 1000))
    metrics.add_source(kafka_apis.measured)
    metrics.add_source(lambda: _request_queues(pool))
    metrics.add_source(lambda: _connections(server))
    handlers = IdleShare(time, pool.thread_ids)
    processors = IdleShare(time, lambda: [p.native_id for p in server.processors if p.native_id is not None])
    metrics.add_source(lambda: _idle_shares(handlers, pool, processors, server))
    metrics.add_source(_disk_traffic)
    return metrics


def _purgatories(replica_manager: ReplicaManager) -> Iterator[tuple[MetricName, Measured]]:
    waiting: dict[str, list[DelayedOperationPurgatory]] = {
        "Produce": [replica_manager.delayed_produce_purgatory],
        # Kafka has one purgatory for the fetches of consumers and followers.
        "Fetch": [replica_manager.delayed_fetch_purgatory, replica_manager.delayed_log_end_fetch_purgatory],
        "DeleteRecords": [replica_manager.delayed_delete_records_purgatory],
    }
    for operation, purgatories in waiting.items():
        for name, value in (
            ("PurgatorySize", sum(purgatory.size for purgatory in purgatories)),
            ("NumDelayedOperations", sum(purgatory.delayed for purgatory in purgatories)),
        ):
            tags = {"delayedOperation": operation}
            yield MetricName("kafka.server", "DelayedOperationPurgatory", name, **tags), float(value)


def _fetchers(fetchers: ReplicaFetcherManager | None, elapsed_s: float) -> Iterator[tuple[MetricName, Measured]]:
    """Of the threads that copy from other brokers (FMGR-11, FT-15); a broker alone has none."""
    threads, addresses = (fetchers.threads(), fetchers.addresses()) if fetchers is not None else ({}, {})
    max_lag = 0
    for key, thread in threads.items():
        client_id = f"ReplicaFetcherThread-{key.fetcher_id}-{key.leader_id}"
        address = addresses.get(key)
        tags = {"clientId": client_id}
        if isinstance(address, Endpoint):
            tags |= {"brokerHost": address.host, "brokerPort": str(address.port)}
        yield MetricName("kafka.server", "FetcherStats", "RequestsPerSec", **tags), count(thread.requests)
        yield MetricName("kafka.server", "FetcherStats", "BytesPerSec", **tags), count(thread.bytes)
        for (topic, partition), state in thread.states().items():
            lag = state.lag or 0
            max_lag = max(max_lag, lag)
            of_partition = {"clientId": client_id, "topic": topic, "partition": partition}
            yield MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", **of_partition), float(lag)
    for name, value in (
        ("MaxLag", max_lag),
        ("MinFetchRate", min((thread.requests for thread in threads.values()), default=0) / elapsed_s),
        ("FailedPartitionsCount", fetchers.failed_partitions_count if fetchers is not None else 0),
        ("DeadThreadCount", fetchers.dead_thread_count if fetchers is not None else 0),
    ):
        yield MetricName("kafka.server", "ReplicaFetcherManager", name, clientId="Replica"), float(value)


def _request_queues(pool: RequestHandlerPool) -> Iterator[tuple[MetricName, Measured]]:
    """Requests that wait for a thread: of all lanes together as in Kafka, which has one queue, and of each."""
    sizes = pool.queue_sizes()
    yield MetricName("kafka.network", "RequestChannel", "RequestQueueSize"), float(sum(sizes.values()))
    for runs_on, size in sizes.items():
        yield MetricName("kafka.network", "RequestChannel", "LaneQueueSize", lane=runs_on.value), float(size)


def _connections(server: SocketServer) -> Iterator[tuple[MetricName, Measured]]:
    for index, processor in enumerate(server.processors):
        counts = processor.connections_by_listener()
        for listener in server.listeners:
            tags = {"listener": listener.name, "networkProcessor": str(index)}
            name = MetricName("kafka.server", "socket-server-metrics", "", **tags)
            yield name, {"connection-count": float(counts[listener.name])}


def _idle_shares(
    handlers: IdleShare, pool: RequestHandlerPool, processors: IdleShare, server: SocketServer
) -> Iterator[tuple[MetricName, Measured]]:
    """From 0 to 1, as Kafka has them in spite of their names; what a thread waits for the disk counts as idle."""
    name = MetricName("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent")
    yield name, {"OneMinuteRate": handlers.read(pool.num_threads)}
    name = MetricName("kafka.network", "SocketServer", "NetworkProcessorAvgIdlePercent")
    yield name, processors.read(len(server.processors))


def _disk_traffic() -> Iterator[tuple[MetricName, Measured]]:
    """What the process has read from disks and written to them since it began."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file)
    except OSError:  # the kernel or a container does not tell
        return
    for name, field in (("linux-disk-read-bytes", "read_bytes"), ("linux-disk-write-bytes", "write_bytes")):
        yield MetricName("kafka.server", "KafkaServer", name), float(fields[field])


def _log_dirs(log_manager: LogManager) -> Iterator[tuple[MetricName, Measured]]:
    offline = log_manager.offline_log_dirs
    yield MetricName("kafka.log", "LogManager", "OfflineLogDirectoryCount"), float(len(offline))
    for path in log_manager.log_dirs:
        name = MetricName("kafka.log", "LogManager", "LogDirectoryOffline", logDirectory=path)
        yield name, float(path in offline)
    yield MetricName("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs"), log_manager.flush_times
