"""Services: the parts of a broker that handlers call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kcore.common.time import Time
    from kcore.coordinator.coordinators import Coordinators
    from kcore.coordinator.group.group_coordinator import GroupCoordinator
    from kcore.coordinator.transaction.marker_writer import MarkerWriter
    from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
    from kcore.metadata.metadata_cache import MetadataCache
    from kcore.metadata.producer_ids import ProducerIdManager
    from kcore.protocol.api_keys import ApiKey
    from kcore.replica.replica_manager import ReplicaManager
    from kcore.server.config.broker_loggers import BrokerLoggers
    from kcore.server.config.features import Features
    from kcore.server.config.kafka_config import KafkaConfig
    from kcore.server.config.stored_broker_configs import StoredBrokerConfigs
    from kcore.server.config.stored_client_metrics import StoredClientMetrics
    from kcore.server.config.stored_group_configs import StoredGroupConfigs
    from kcore.server.member.cluster_member import ClusterMember
    from kcore.server.quotas.client_quotas import ClientQuotas
    from kcore.server.quotas.replication_quota_manager import ReplicationQuotas
    from kcore.server.quotas.stored_client_quotas import StoredClientQuotas
    from kcore.server.requests.auth_helper import AuthHelper
    from kcore.server.requests.client_telemetry import ClientTelemetry
    from kcore.server.requests.fetch_session import FetchSessionCache
    from kcore.server.requests.request_handler_pool import RequestHandlerPool
    from kcore.server.topics.admin_manager import AdminManager
    from kcore.server.topics.partition_admin import PartitionAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The parts of a broker that handlers call."""

    broker_id: int
    config: KafkaConfig
    time: Time
    metadata_cache: MetadataCache
    replica_manager: ReplicaManager
    coordinators: Coordinators
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transaction_verifier: TransactionVerifier
    marker_writer: MarkerWriter
    admin_manager: AdminManager
    partition_admin: PartitionAdmin
    producer_ids: ProducerIdManager
    request_handler_pool: RequestHandlerPool
    fetch_sessions: FetchSessionCache
    replication_quotas: ReplicationQuotas
    client_quotas: ClientQuotas
    stored_client_quotas: StoredClientQuotas
    broker_configs: StoredBrokerConfigs
    broker_loggers: BrokerLoggers
    group_configs: StoredGroupConfigs
    client_metrics: StoredClientMetrics
    auth: AuthHelper
    #: Of SCRAM credentials in the store: user -> mechanism -> iterations.  Waits for the store.  Raises StoreError.
    scram_iterations: Callable[[Collection[str] | None], Mapping[str, Mapping[int, int]]]
    #: The lowest and the highest version of each API.
    served_apis: Mapping[ApiKey, tuple[int, int]]
    features: Callable[[], Features]
    #: None for a broker alone, which the handlers of the controller's requests are not loaded for.
    cluster_member: ClusterMember | None = None
    #: None for a broker without a receiver of clients' metrics, which the handlers of telemetry are not loaded for.
    client_telemetry: ClientTelemetry | None = None

    @property
    def telemetry(self) -> ClientTelemetry:
        """For its handlers.  Raises RuntimeError for a broker without a receiver."""
        if self.client_telemetry is None:
            raise RuntimeError(f"broker {self.broker_id} has no receiver of clients' metrics")
        return self.client_telemetry

    @property
    def member(self) -> ClusterMember:
        """For the handlers of requests between brokers.  Raises RuntimeError for a broker alone."""
        if self.cluster_member is None:
            raise RuntimeError(f"broker {self.broker_id} is no member of a cluster")
        return self.cluster_member
