"""What differs between a broker alone and a member of a cluster: the protocol Membership, which Broker asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kcore.common.metrics import Metrics
    from kcore.coordinator.coordinators import Coordinators
    from kcore.coordinator.transaction.transaction_completion import MarkerSender
    from kcore.coordinator.transaction.transaction_verifier import VerificationSender
    from kcore.log.log_manager import LogManager
    from kcore.metadata.change_notifications import Consumer
    from kcore.metadata.metadata_cache import MetadataCache
    from kcore.metadata.store import MetadataStore
    from kcore.network.listener import Listener
    from kcore.replica.fetcher.replica_fetcher_manager import ReplicaFetcherManager
    from kcore.replica.replica_manager import ReplicaManager
    from kcore.server.broker_parts import Background
    from kcore.server.config.features import Features
    from kcore.server.config.kafka_config import KafkaConfig
    from kcore.server.config.stored_broker_configs import StoredBrokerConfigs
    from kcore.server.config.topic_configs import TopicConfigs
    from kcore.server.member.cluster_member import ClusterMember
    from kcore.server.quotas.replication_quota_manager import ReplicationQuotas
    from kcore.server.topics.partition_admin import PartitionAdmin
    from kcore.server.topics.topic_adoption import TopicAdoption
    from kcore.server.topics.topic_changes import TopicChanges


#: How often replicas that could not be opened are tried again: a disk that was full may have room.
RETRY_OFFLINE_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerBase:
    """What both have before a topic can change.  working_dirs: the data directories that can be had.  parts: stops
    what is started."""

    broker_id: int
    cluster_id: str
    working_dirs: Sequence[str]
    config: KafkaConfig
    store: MetadataStore
    broker_configs: StoredBrokerConfigs
    background: Background
    parts: ExitStack
    metadata_cache: MetadataCache
    topic_configs: TopicConfigs
    logs: LogManager
    replica_manager: ReplicaManager
    replication_quotas: ReplicationQuotas


class Membership(Protocol):
    """An Alone or a ClusterMembership.  Broker makes one with each start, and calls its methods in this order."""

    @property
    def topic_changes(self) -> TopicChanges:
        """Who carries out what the requests about topics ask for."""

    @property
    def fetchers(self) -> ReplicaFetcherManager | None:
        """What copies from other brokers; None for a broker alone."""

    @property
    def is_certain(self) -> Callable[[], bool]:
        """Whether no other broker may lead what this broker leads: see LeadershipCertainty."""

    @property
    def marker_sender(self) -> MarkerSender | None:
        """What ends transactions in partitions that other brokers lead; None for a broker alone."""

    @property
    def verification_sender(self) -> VerificationSender | None:
        """What asks transaction coordinators on other brokers; None for a broker alone."""

    def features(self) -> Features:
        """What clients may use now."""

    @property
    def cluster_member(self) -> ClusterMember | None:
        """None for a broker alone, and before load_topics()."""

    def follow_settings(self, consumers: Sequence[Consumer[str]]) -> None:
        """Have what the store says of settings and quotas in force, now and when others change it.

        consumers: of what is stored for clients and groups.
        """

    def load_topics(
        self, adoption: TopicAdoption, coordinators: Coordinators, listeners: Sequence[Listener], *, unclean: bool
    ) -> int:
        """Be ready for requests.  The highest producer id that the logs have from elsewhere, -1 for none.

        listeners: with the ports that they got.  unclean: whether the last stop was.
        """

    def partition_admin(self) -> PartitionAdmin: ...

    def join(self, metrics: Metrics, listeners: Sequence[Listener]) -> None:
        """Let the other brokers know this one, which answers requests now; when parts is closed, leave them."""

    def why_not_ready(self) -> str | None:
        """Why clients and other brokers cannot rely on this broker now, which has joined; None if they can."""

    def cancel_start(self) -> None:
        """From another thread: see Broker.cancel_start()."""

    def log_dir_failed(self) -> None:
        """A data directory has failed, and with it the partitions in it.  Returns at once."""

    def abandon(self) -> None:
        """Do nothing more, as a killed process."""
