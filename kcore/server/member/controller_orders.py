"""ControllerOrders: what LeaderAndIsr, StopReplica and UpdateMetadata of the controller bring about at this broker.

Source: KafkaApis, ZkMetadataCache, Kafka 3.9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

from kcore.common.scheduler import Scheduler
from kcore.common.text import some_of
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.errors import ApiError, FencedLeaderEpoch, KafkaStorageError, StaleControllerEpoch
from kcore.log.log_manager import LogManager
from kcore.metadata.metadata_cache import BrokerInfo, MetadataCache, MetadataSnapshot, PartitionInfo, TopicInfo
from kcore.replica.partition import OfflinePartition
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.member.late_deletions import LateDeletions
from kcore.server.member.offline_replicas import OfflineReplicas
from kcore.server.member.postponed_updates import PostponedUpdates
from kcore.server.member.topic_identity import TopicIdentity

logger = logging.getLogger(__name__)

#: After a call of the store that failed, before the next.
_RETRY_MS = 1000

#: A partition's metadata, None for one that is being deleted.
PartitionChanges = Mapping[int, PartitionInfo | None]


class ControllerOrders:
    """The requests come on one thread, in order; postponed ones are carried out on `scheduler`'s."""

    def __init__(
        self,
        broker_id: int,
        scheduler: Scheduler,
        *,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        coordinators: Coordinators,
        stored_topic_configs: StoredTopicConfigs,
        topic_identity: TopicIdentity,
        late_deletions: LateDeletions,
        offline_replicas: OfflineReplicas,
    ) -> None:
        self.broker_id = broker_id
        #: Set once a controller has sent this broker its metadata.
        self.has_metadata = threading.Event()
        self._scheduler = scheduler
        self._cache = metadata_cache
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._coordinators = coordinators
        self._configs = stored_topic_configs
        self._topic_identity = topic_identity
        self._late_deletions = late_deletions
        self._offline_replicas = offline_replicas
        self._postponed = PostponedUpdates()
        self._is_closed = False

    def close(self) -> None:
        """Nothing that was postponed is carried out any more."""
        self._is_closed = True

    def become_leader_or_follower(
        self, updates: Sequence[LeaderAndIsrUpdate], controller_epoch: int
    ) -> dict[TopicPartition, ApiError | None]:
        """ReplicaManager.become_leader_or_follower(), with the topics' settings and the coordinators."""
        names = {update.topic_partition.topic for update in updates}
        self._configs.load_topics(names, {update.topic_partition.topic for update in updates if update.is_new})
        topic_ids = {update.topic_partition: update.topic_id for update in updates}
        unread = self._topic_identity.set_deleted_topics_aside(topic_ids, controller_epoch)
        results = self._replica_manager.become_leader_or_follower(
            updates, controller_epoch, self._coordinators.leadership_changed
        )
        for update in updates:
            if isinstance(results[update.topic_partition], KafkaStorageError):
                self._note_offline(update)
        if unread:
            postponed = [update for update in updates if update.topic_partition.topic in unread]
            self._postponed.add(postponed, controller_epoch)
            self._scheduler.schedule("state-change", self._carry_out_postponed, _RETRY_MS)
        return results

    def _carry_out_postponed(self) -> None:
        """Updates that were refused while the store could not be reached: the controller does not send them again."""
        for controller_epoch, updates in self._postponed.take():
            has_another_topic = self._topic_identity.has_another_topic
            refused = [update for update in updates if has_another_topic(update.topic_partition, update.topic_id)]
            if refused and not self._is_closed:
                try:
                    self.become_leader_or_follower(refused, controller_epoch)
                except StaleControllerEpoch as error:
                    logger.info("%s: %s", some_of([update.topic_partition for update in refused]), error)

    def _note_offline(self, update: LeaderAndIsrUpdate) -> None:
        """Try later to make the log of a replica that could not be made, unless its data directory has failed."""
        tp = update.topic_partition
        hosted = self._replica_manager.get_partition(tp)
        if isinstance(hosted, OfflinePartition) and not hosted.is_permanent:
            make_log = partial(self._log_manager.get_or_create_log, tp, topic_id=update.topic_id, is_new=update.is_new)
            self._offline_replicas.add(tp, update.topic_id, make_log)

    def stop_replicas(
        self, stops: Sequence[StopReplica], controller_epoch: int
    ) -> dict[TopicPartition, ApiError | None]:
        """ReplicaManager.stop_replicas(), and the coordinator of a partition that is stopped resigns.

        A reassignment takes a leader's replica away with this alone: LeaderAndIsr goes to the replicas that stay.
        After an order of an older epoch alone it leads on; a partition that is offline, or whose log cannot be deleted,
        it does not lead either.  A log of the topic in use is not deleted by a request about an earlier one of its
        name: InconsistentTopicId.
        """
        late = self._late_deletions.refused(stops)
        stops = [stop for stop in stops if stop.topic_partition not in late]
        with self._offline_replicas.lock:
            results = self._replica_manager.stop_replicas(stops, controller_epoch)
            self._offline_replicas.remove(
                stop.topic_partition for stop in stops if stop.delete and results[stop.topic_partition] is None
            )
        self._postponed.remove(tp for tp, error in results.items() if error is None)
        for stop in stops:
            error = results[stop.topic_partition]
            if not isinstance(error, FencedLeaderEpoch):
                has_epoch = error is None and stop.leader_epoch >= 0
                self._coordinators.on_resignation(stop.topic_partition, stop.leader_epoch if has_epoch else None)
        return results | late

    def update_metadata(
        self,
        controller_id: int,
        controller_epoch: int,
        brokers: Iterable[BrokerInfo],
        topics: Mapping[str, tuple[UUID, PartitionChanges]],
    ) -> None:
        """Update the metadata: the live brokers, and the partitions in `topics`.

        topics: name -> (topic id, partitions that have changed); ZERO_UUID from a Java controller before 2.8: then
        the topic has no id any more, as the metadata of the Java brokers.
        Raises StaleControllerEpoch, and changes nothing, for a controller epoch below the last one.
        """
        before = self._cache.snapshot
        brokers = list(brokers)
        names = [name for name, (_, partitions) in topics.items() if any(partitions.values())]
        created = {name for name in names if before.topic(name) is None} if self.has_metadata.is_set() else ()
        self._configs.load_topics(names, created)
        changed, gone = changed_topics(before, topics)
        named = [
            (TopicPartition(name, number), topic_id, info)
            for name, (topic_id, partitions) in topics.items()
            for number, info in partitions.items()
            if info is not None
        ]
        self._topic_identity.set_deleted_topics_aside({tp: topic_id for tp, topic_id, _ in named}, controller_epoch)
        unassigned = {
            tp: info.leader_epoch
            for tp, topic_id, info in named
            if self.broker_id not in info.replicas and not self._topic_identity.has_another_topic(tp, topic_id)
        }
        resigned = self._replica_manager.update_metadata(
            controller_epoch,
            lambda: self._cache.update(
                lambda snapshot: (
                    snapshot.with_controller(controller_id).with_brokers(brokers).with_topics(changed, without=gone)
                )
            ),
            unassigned,
        )
        for topic_partition in resigned:
            self._coordinators.on_resignation(topic_partition, unassigned[topic_partition])
        for name in gone:
            self._configs.remove(name)
        if not {broker.node_id for broker in brokers}.issuperset(before.broker_ids()):
            self._replica_manager.increment_high_watermarks()
        self.has_metadata.set()
        self._cache.announce()


def changed_topics(
    snapshot: MetadataSnapshot, topics: Mapping[str, tuple[UUID, PartitionChanges]]
) -> tuple[list[TopicInfo], list[str]]:
    """(the topics as they are after the changes, the names of those that have no partition left)."""
    changed, gone = [], []
    for name, (topic_id, changes) in topics.items():
        old = snapshot.topic(name)
        if old is not None and topic_id != ZERO_UUID != old.topic_id != topic_id:
            old = None  # of a topic that was deleted
        partitions = dict(old.partitions) if old is not None else {}
        for number, info in changes.items():
            if info is None:
                partitions.pop(number, None)
            else:
                partitions[number] = info
        if partitions:
            changed.append(TopicInfo(name, topic_id, dict(sorted(partitions.items()))))
        elif old is not None:
            gone.append(name)
    return changed, gone
