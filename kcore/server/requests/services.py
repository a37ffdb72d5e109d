"""What every handler is and gets: the protocol Handler, and the parts of a broker that handlers call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kcore.common.time import Time
    from kcore.coordinator.coordinators import Coordinators
    from kcore.coordinator.group.group_coordinator import GroupCoordinator
    from kcore.metadata.metadata_cache import MetadataCache
    from kcore.metadata.producer_ids import ProducerIdManager
    from kcore.protocol.schema import Message
    from kcore.replica.replica_manager import ReplicaManager
    from kcore.server.config.kafka_config import KafkaConfig
    from kcore.server.config.stored_broker_configs import StoredBrokerConfigs
    from kcore.server.member.cluster_member import ClusterMember
    from kcore.server.quotas.client_quotas import ClientQuotas
    from kcore.server.quotas.replication_quota_manager import ReplicationQuotas
    from kcore.server.quotas.stored_client_quotas import StoredClientQuotas
    from kcore.server.requests.auth_helper import AuthHelper
    from kcore.server.requests.fetch_session import FetchSessionCache
    from kcore.server.requests.request_context import RequestContext
    from kcore.server.requests.request_handler_pool import RequestHandlerPool, RunsOn
    from kcore.server.topics.admin_manager import AdminManager
    from kcore.server.topics.partition_admin import PartitionAdmin


class Handler(Protocol):
    """Each module of handlers/ has a class `Handler` like this."""

    #: The thread that its requests run on: NETWORK_THREAD only if they never wait for a disk, the metadata store, a
    #: lock that is held meanwhile, another broker or many partitions.  If that depends on the request's body, it is a
    #: method, called on the thread that has decoded it.
    runs_on: RunsOn | Callable[[RequestContext, Message], RunsOn]

    def __init__(self, services: Services) -> None: ...

    def handle(self, context: RequestContext, body: Message) -> None:
        """Answer, now or later.  What it raises is answered with error_response()."""

    def error_response(self, body: Message, error_code: int, version: int) -> Message | None:
        """The response that says error_code wherever this API can; None to close the connection instead."""


@dataclass(slots=True)
class Services:
    """The parts of a broker that handlers call."""

    broker_id: int
    config: KafkaConfig
    time: Time
    metadata_cache: MetadataCache
    replica_manager: ReplicaManager
    coordinators: Coordinators
    group_coordinator: GroupCoordinator
    admin_manager: AdminManager
    partition_admin: PartitionAdmin
    producer_ids: ProducerIdManager
    request_handler_pool: RequestHandlerPool
    fetch_sessions: FetchSessionCache
    replication_quotas: ReplicationQuotas
    client_quotas: ClientQuotas
    stored_client_quotas: StoredClientQuotas
    broker_configs: StoredBrokerConfigs
    auth: AuthHelper
    #: None for a broker alone, which the handlers of the controller's requests are not loaded for.
    cluster_member: ClusterMember | None = None
