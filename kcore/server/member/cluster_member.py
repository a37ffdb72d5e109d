"""ClusterMember: a broker of a cluster, which the controller orders about.

The store has a broker's listeners as long as its session lives (registration.py).  The controller reads them, and
decides about topics and leaders with LeaderAndIsr, StopReplica and UpdateMetadata, which the handlers bring to
controller_orders.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.controller.alter_partition import IsrChanges
from kcore.controller.kafka_controller import OnControlledShutdown
from kcore.coordinator.coordinators import Coordinators
from kcore.log.log_manager import LogManager
from kcore.metadata.metadata_cache import BrokerInfo, MetadataCache
from kcore.metadata.store import MetadataStore, SessionExpired, StoreError
from kcore.network.listener import SecurityProtocol
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.features import TRANSACTION_VERSION
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.member.cluster_features import ClusterFeatures
from kcore.server.member.controller_orders import ControllerOrders
from kcore.server.member.late_deletions import LateDeletions
from kcore.server.member.leader_hand_over import LeaderHandOver
from kcore.server.member.leadership_certainty import LeadershipCertainty
from kcore.server.member.log_dir_notifications import LogDirNotifications
from kcore.server.member.lost_records import CONTROLLER_WAIT_MS
from kcore.server.member.offline_replicas import OfflineReplicas, is_assigned
from kcore.server.member.registration import Registration
from kcore.server.member.topic_identity import TopicIdentity
from kcore.server.topics.partition_admin import PartitionAdmin

logger = logging.getLogger(__name__)

#: After a call of the store that failed, before the next.
_RETRY_MS = 1000


class Controller(PartitionAdmin, Protocol):
    """The part of a broker that may be elected as the cluster's controller: controller.KafkaController.

    After the store's session has expired it begins the next one, and then calls ClusterMember.register_again() until
    the broker is registered; before that it takes part in no election.
    """

    @property
    def is_active(self) -> bool: ...

    @property
    def isr_changes(self) -> IsrChanges: ...

    def startup(self) -> None: ...

    def controlled_shutdown(self, broker_id: int, broker_epoch: int, on_done: OnControlledShutdown) -> None: ...

    def shutdown(self) -> None: ...

    def abandon(self) -> None: ...


class ClusterMember:
    """Thread-safe.  Lifetime: start() and stop(), once each.

    Work after a change in the store runs on `scheduler`'s thread.  time: real time, in which sessions end.
    transaction_version: the level of that feature that this broker knows.
    make_controller: given register_again(), this broker's controller, which takes no part in elections before start().
    """

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        scheduler: Scheduler,
        time: Time,
        *,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        coordinators: Coordinators,
        stored_topic_configs: StoredTopicConfigs,
        leadership: LeadershipCertainty,
        make_controller: Callable[[Callable[[], bool]], Controller],
        controller_wait_ms: float = CONTROLLER_WAIT_MS,
        transaction_version: int = 0,
    ) -> None:
        self.broker_id = broker_id
        self.features = ClusterFeatures(transaction_version, store, scheduler)
        #: Whether others are to lead what this broker leads before it stops; not where all stop.
        self.hands_over = True
        self.leadership = leadership
        self._scheduler = scheduler
        self._time = time
        self._is_stopping = False
        self._is_abandoned = False
        self._log_dir_notifications = LogDirNotifications(broker_id, store, scheduler)
        refusals = replica_manager.disk_full_refusals
        self._leader_hand_over = LeaderHandOver(broker_id, store, scheduler, time, refusals)
        refusals.on_needed = self._leader_hand_over.begin
        #: Replicas whose logs could not be opened.
        self.offline_replicas = OfflineReplicas(
            lambda tp, topic_id: is_assigned(metadata_cache.snapshot, broker_id, tp, topic_id),
            lambda tp: isinstance(replica_manager.get_partition(tp), Partition),
            self._log_dir_notifications.notify,
        )
        self.registration = Registration(broker_id, store, time, log_manager, leadership, controller_wait_ms)
        self._topic_identity = TopicIdentity(
            store, metadata_cache, replica_manager, log_manager, coordinators, stored_topic_configs
        )
        self.orders = ControllerOrders(
            broker_id,
            scheduler,
            metadata_cache=metadata_cache,
            replica_manager=replica_manager,
            log_manager=log_manager,
            coordinators=coordinators,
            stored_topic_configs=stored_topic_configs,
            topic_identity=self._topic_identity,
            late_deletions=LateDeletions(broker_id, store, log_manager, metadata_cache),
            offline_replicas=self.offline_replicas,
        )
        self.controller = make_controller(self.register_again)

    def start(self, info: BrokerInfo, protocols: Mapping[str, SecurityProtocol]) -> None:
        """Register with these listeners, take part in the controller's election.  Raises as Registration.start()."""
        supported = self.features.current.supported
        # Up to 3.2 a Java controller cannot read a registration with a level 0.
        features = {TRANSACTION_VERSION: (1, supported)} if supported else {}
        self.registration.start(info, protocols, features)
        self.features.read()
        self.controller.startup()

    @property
    def broker_epoch(self) -> int:
        """Of its registration; the next one has a higher."""
        return self.registration.broker_epoch

    @property
    def is_controller(self) -> bool:
        return self.controller.is_active

    def wait_for_metadata(self, timeout_ms: float) -> bool:
        """Whether a controller has sent this broker its metadata, waiting for it if need be."""
        has_metadata = self.orders.has_metadata
        self.registration.wait(has_metadata, self._time.hi_res_clock_ms() + timeout_ms)
        return has_metadata.is_set()

    def abandon(self) -> None:
        """Do nothing more, as a killed process; stop() then does nothing."""
        self._is_abandoned = True
        self.hands_over = False
        self._close_parts()
        self.controller.abandon()

    def stop(self) -> None:
        """Leave the cluster: the controller finds other leaders.  The scheduler is to be stopped after this."""
        if self._is_abandoned:
            return
        self._close_parts()
        self.registration.find_store()
        self.controller.shutdown()
        self.registration.remove()

    def _close_parts(self) -> None:
        self._is_stopping = True
        self.orders.close()
        self.features.close()
        self._log_dir_notifications.close()
        self._leader_hand_over.close()

    def register_again(self) -> bool:
        """Registration.renew().  What has changed while there was no session is read then, as often as it takes."""
        if self._is_stopping or not self.registration.renew():
            return False
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        if self._is_stopping:
            return
        try:
            self._topic_identity.forget_deleted_topics()
            self._leader_hand_over.session_began()
            self.features.read()
        except SessionExpired:
            return  # the next session reads it
        except StoreError as error:
            logger.error("broker %d does not know yet what has changed meanwhile: %s", self.broker_id, error)
            self._scheduler.schedule("catch-up", self._catch_up, _RETRY_MS)

    def log_dir_failed(self) -> None:
        """Have the controller find other leaders for the partitions of a data directory that has failed (RM-29).

        It sends LeaderAndIsr again; the errors in the answers name these partitions.  Returns at once.
        """
        self._log_dir_notifications.notify()
