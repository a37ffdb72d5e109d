"""One file per API: decode, check, call one method below, encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcore.common.time import Time
    from kcore.coordinator.group.group_coordinator import GroupCoordinator
    from kcore.replica.replica_manager import ReplicaManager
    from kcore.server.admin_manager import AdminManager
    from kcore.server.auth_helper import AuthHelper
    from kcore.server.client_quotas import ClientQuotas
    from kcore.server.cluster_member import ClusterMember
    from kcore.server.fetch_session import FetchSessionCache
    from kcore.server.kafka_config import KafkaConfig
    from kcore.server.metadata_cache import MetadataCache
    from kcore.server.producer_ids import ProducerIdManager
    from kcore.server.replication_quota_manager import ReplicationQuotas
    from kcore.server.request_handler_pool import RequestHandlerPool
    from kcore.server.stored_broker_configs import StoredBrokerConfigs


@dataclass(slots=True)
class Services:
    """The parts of a broker that handlers call."""

    broker_id: int
    config: KafkaConfig
    time: Time
    metadata_cache: MetadataCache
    replica_manager: ReplicaManager
    group_coordinator: GroupCoordinator
    admin_manager: AdminManager
    producer_ids: ProducerIdManager
    request_handler_pool: RequestHandlerPool
    fetch_sessions: FetchSessionCache
    replication_quotas: ReplicationQuotas
    client_quotas: ClientQuotas
    broker_configs: StoredBrokerConfigs
    auth: AuthHelper
    #: None for a broker alone, which the handlers of the controller's requests are not loaded for.
    cluster_member: ClusterMember | None = None
