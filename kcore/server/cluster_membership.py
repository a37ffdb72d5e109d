"""ClusterMembership: the Membership of a broker that shares its store with others.

It imports what only such a broker has, a third of all modules, with the controller, the fetchers and the client for
other brokers; Broker imports this module when it starts as one, so that a broker alone starts without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from kcore.common.metrics import Metrics
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.metadata.change_notifications import Consumer
from kcore.network.listener import Listener
from kcore.server.config.config_changes import config_change_notifications
from kcore.server.config.features import Features, supported_transaction_version
from kcore.server.config.listeners import advertised
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.member.cluster_controller import controlled_shutdown, make_controller
from kcore.server.member.cluster_member import ClusterMember, Controller
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.server.member.leadership_certainty import LeadershipCertainty
from kcore.server.member.marker_channels import MarkerChannels
from kcore.server.member.member_metrics import member_metrics
from kcore.server.member.registration import NO_BROKER_EPOCH
from kcore.server.member.replica_fetchers import replica_fetchers
from kcore.server.member.verification_channels import VerificationChannels
from kcore.server.membership import RETRY_OFFLINE_MS, BrokerBase
from kcore.server.topics.store_topic_changes import StoreTopicChanges
from kcore.server.topics.topic_adoption import TopicAdoption

logger = logging.getLogger(__name__)


class ClusterMembership:
    """Topics change by way of the store, in which a controller sees it; that may be this broker's."""

    def __init__(self, base: BrokerBase) -> None:
        self._base = base
        self._connections = InterBrokerConnections(base.config, base.metadata_cache, base.background.clients_time)
        self.fetchers = base.replica_manager.fetchers = replica_fetchers(
            base.config,
            self._connections,
            base.replica_manager,
            base.logs,
            base.metadata_cache,
            base.replication_quotas.follower,
            self._broker_epoch,
            base.parts,
        )
        self.topic_changes = StoreTopicChanges(base.store, self._is_controller)
        self.is_certain = LeadershipCertainty(base.store)
        self.marker_sender = MarkerChannels(base.broker_id, self._connections)
        base.parts.callback(self.marker_sender.shutdown)
        self.verification_sender = VerificationChannels(base.broker_id, self._connections)
        base.parts.callback(self.verification_sender.shutdown)
        self.cluster_member: ClusterMember | None = None

    def _broker_epoch(self) -> int:
        return self.cluster_member.broker_epoch if self.cluster_member else NO_BROKER_EPOCH

    def features(self) -> Features:
        return self.cluster_member.features.current if self.cluster_member else Features()

    def _is_controller(self) -> bool:
        return self.cluster_member is not None and self.cluster_member.is_controller

    def follow_settings(self, consumers: Sequence[Consumer[str]]) -> None:
        base = self._base
        # A scheduler of its own: a slow reading delays nothing else.
        scheduler = base.background.start_scheduler("stored-settings")
        changes = config_change_notifications(base.store, scheduler, base.background.clients_time)
        self._topic_configs = StoredTopicConfigs(base.store, base.topic_configs, base.logs, changes.read_later)
        changes.start([self._topic_configs, base.broker_configs, *consumers])

    def load_topics(
        self, adoption: TopicAdoption, coordinators: Coordinators, listeners: Sequence[Listener], *, unclean: bool
    ) -> int:
        """The controller's requests say which topics there are: until then none is led or followed."""
        base = self._base
        scheduler = base.background.start_scheduler("cluster-member")
        self.cluster_member = member = ClusterMember(
            base.broker_id,
            base.store,
            scheduler,
            base.background.clients_time,
            metadata_cache=base.metadata_cache,
            replica_manager=base.replica_manager,
            log_manager=base.logs,
            coordinators=coordinators,
            stored_topic_configs=self._topic_configs,
            leadership=self.is_certain,
            make_controller=partial(
                make_controller, base.broker_id, base.store, base.config, self._connections, scheduler, base.parts
            ),
            transaction_version=supported_transaction_version(base.config),
        )

        def give_up(topic_partition: TopicPartition) -> None:
            coordinators.partitions_lost([topic_partition])
            member.log_dir_failed()

        base.replica_manager.damage_checks.on_given_up = give_up
        retry = member.offline_replicas.retry
        base.background.disk_scheduler.schedule("kcore-offline-replicas", retry, RETRY_OFFLINE_MS, RETRY_OFFLINE_MS)
        return -1

    @property
    def _member(self) -> ClusterMember:
        assert self.cluster_member is not None, "after load_topics()"
        return self.cluster_member

    def partition_admin(self) -> Controller:
        return self._member.controller

    def join(self, metrics: Metrics, listeners: Sequence[Listener]) -> None:
        member, base = self._member, self._base
        for source in member_metrics(member, base.store):
            metrics.add_source(source)
        base.parts.callback(member.stop)
        protocols = {listener.name: listener.security_protocol for listener in listeners}
        member.start(advertised(base.broker_id, base.config, listeners), protocols)
        base.logs.record_boot_id()  # the ISRs are left
        base.parts.callback(self._hand_over)
        if not member.wait_for_metadata(base.config["zookeeper.session.timeout.ms"]):
            logger.warning("broker %d has not received metadata from a controller yet", base.broker_id)

    def why_not_ready(self) -> str | None:
        if not self.is_certain():
            return "its session with the metadata store has ended, or may have"
        if not self._member.orders.has_metadata.is_set():
            return "it has not received metadata from a controller yet"
        return None

    def _hand_over(self) -> None:
        """At a clean stop: others take over what this broker leads, before it stops to answer."""
        if self._member.hands_over:
            self._base.replica_manager.begin_shutdown()
            controlled_shutdown(
                self._member.registration, self._base.metadata_cache, self._base.config, self._connections
            )

    def cancel_start(self) -> None:
        if self.cluster_member is not None:
            self.cluster_member.registration.cancel_start()

    def log_dir_failed(self) -> None:
        if self.cluster_member is not None:
            self.cluster_member.log_dir_failed()

    def abandon(self) -> None:
        self._member.abandon()
