"""Alone: the Membership of a broker whose store is its own."""

from __future__ import annotations

from collections.abc import Sequence

from kcore.common.metrics import Metrics
from kcore.coordinator.coordinators import Coordinators
from kcore.metadata.change_notifications import Consumer
from kcore.network.listener import Listener
from kcore.server.config.features import Features, supported_transaction_version
from kcore.server.config.listeners import advertised
from kcore.server.membership import RETRY_OFFLINE_MS, BrokerBase
from kcore.server.topics.local_controller import LocalController
from kcore.server.topics.partition_admin import LonePartitionAdmin
from kcore.server.topics.topic_adoption import TopicAdoption


class Alone:
    """It is the controller of its topics, and leads every partition that the store and the directories have."""

    fetchers = None
    cluster_member = None
    marker_sender = None
    verification_sender = None

    def __init__(self, base: BrokerBase) -> None:
        self._base = base
        self.local_controller = self.topic_changes = LocalController(
            base.broker_id, base.store, base.metadata_cache, base.replica_manager, base.topic_configs
        )

        level = supported_transaction_version(base.config)
        self._features = Features(level, level)

    def features(self) -> Features:
        return self._features

    def is_certain(self) -> bool:
        return True

    def follow_settings(self, consumers: Sequence[Consumer[str]]) -> None:
        for consumer in consumers:
            consumer.read_all()

    def load_topics(
        self, adoption: TopicAdoption, coordinators: Coordinators, listeners: Sequence[Listener], *, unclean: bool
    ) -> int:
        base, controller = self._base, self.local_controller
        info = advertised(base.broker_id, base.config, listeners)
        base.metadata_cache.update(lambda snapshot: snapshot.with_controller(base.broker_id).with_brokers([info]))
        controller.on_leadership = coordinators.on_election
        controller.on_config_change = base.logs.reconfigure_topic
        foreign_producer_id = controller.load_topics(adoption, unclean)
        base.background.disk_scheduler.schedule(
            "kcore-offline-partitions", controller.retry_offline_partitions, RETRY_OFFLINE_MS, RETRY_OFFLINE_MS
        )
        return foreign_producer_id

    def partition_admin(self) -> LonePartitionAdmin:
        return LonePartitionAdmin(self._base.broker_id, self._base.metadata_cache)

    def join(self, metrics: Metrics, listeners: Sequence[Listener]) -> None:
        pass

    def why_not_ready(self) -> None:
        return None

    def cancel_start(self) -> None:
        pass  # it waits for nobody

    def log_dir_failed(self) -> None:
        pass

    def abandon(self) -> None:
        pass
