"""The fetchers of a broker, as its settings want them: connections to leaders, limits, throttle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from kcore.client.blocking_sender import DEFAULT_MAX_RESPONSE_BYTES
from kcore.log.log_manager import LogManager
from kcore.metadata.metadata_cache import MetadataCache
from kcore.replica.fetcher.fetcher_state import FetcherConfig
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from kcore.replica.fetcher.replica_fetcher_manager import ReplicaFetcherManager
from kcore.replica.replica_manager import ReplicaManager
from kcore.replica.replica_quota import ReplicaQuota
from kcore.replication.remote_leader_endpoint import RemoteLeaderEndPoint
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.member.inter_broker_connections import InterBrokerConnections


def replica_fetchers(
    config: KafkaConfig,
    connections: InterBrokerConnections,
    replica_manager: ReplicaManager,
    log_manager: LogManager,
    metadata_cache: MetadataCache,
    quota: ReplicaQuota,
    broker_epoch: Callable[[], int],
    parts: ExitStack,
) -> ReplicaFetcherManager:
    """For ReplicaManager.fetchers.  Leaders are reached where the metadata say that they are when a thread starts.
    parts: when it is closed, the fetchers follow the settings no more."""
    broker_id = replica_manager.broker_id

    def make_end_point(address: tuple[str, int], fetcher_id: int) -> RemoteLeaderEndPoint:
        sender = connections.sender(
            address,
            f"broker-{broker_id}-fetcher-{fetcher_id}",
            request_timeout_ms=config["replica.socket.timeout.ms"],
            # One batch may be larger than the limit of a fetch, and as large as a produce request.
            max_response_bytes=max(DEFAULT_MAX_RESPONSE_BYTES, 2 * config["replica.fetch.response.max.bytes"]),
            receive_buffer_bytes=config["replica.socket.receive.buffer.bytes"],
        )
        return RemoteLeaderEndPoint(sender, broker_id, broker_epoch, lambda: metadata_cache.snapshot.has_topic_ids)

    fetchers = ReplicaFetcherManager(
        f"kcore-replica-fetcher-{broker_id}",
        config["num.replica.fetchers"],
        FetcherConfig(
            fetch_backoff_ms=config["replica.fetch.backoff.ms"],
            max_wait_ms=config["replica.fetch.wait.max.ms"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.response.max.bytes"],
            partition_max_bytes=config["replica.fetch.max.bytes"],
            uses_sessions=True,
        ),
        connections.time,
        make_logs=lambda: ReplicaLogs(
            replica_manager.hosted_partitions.get,
            log_manager,
            replica_manager.complete_waiting,
            replica_manager.log_dir_moves.mark_for_truncation,
            quota,
        ),
        make_end_point=make_end_point,
        address_of=connections.address_of,
        quota=quota,
    )
    parts.callback(config.on_change(("num.replica.fetchers",), lambda: fetchers.resize(config["num.replica.fetchers"])))
    return fetchers
