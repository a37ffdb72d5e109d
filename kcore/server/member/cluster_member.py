"""ClusterMember: a broker of a cluster: its registration in the store, and the effects of the controller's requests.

The store has a broker's listeners under /brokers/ids/N as long as its session lives.  The controller reads them, and
decides about topics and leaders with LeaderAndIsr, StopReplica and UpdateMetadata, which the handlers bring here.
Source: KafkaZkClient.registerBroker, KafkaApis, ZkMetadataCache, Kafka 3.9; KIP-380.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from kcore.common.scheduler import Scheduler
from kcore.common.text import some_of
from kcore.common.time import Time
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.controller.alter_partition import IsrChanges
from kcore.coordinator.coordinators import Coordinators
from kcore.errors import (
    ApiError,
    FencedLeaderEpoch,
    KafkaStorageError,
    StaleBrokerEpoch,
    StaleControllerEpoch,
    StartCancelled,
)
from kcore.log.log_manager import LogManager
from kcore.metadata import znodes
from kcore.metadata.metadata_cache import BrokerInfo, MetadataCache, MetadataSnapshot, PartitionInfo, TopicInfo
from kcore.metadata.store import (
    STOP_PING_MS,
    ConnectionLost,
    MetadataStore,
    NodeExists,
    SessionEvent,
    SessionExpired,
    StoreError,
)
from kcore.network.listener import SecurityProtocol
from kcore.replica.partition import OfflinePartition, Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate, StopReplica
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.stored_topic_configs import StoredTopicConfigs
from kcore.server.member.late_deletions import LateDeletions
from kcore.server.member.leader_hand_over import LeaderHandOver
from kcore.server.member.leadership_certainty import LeadershipCertainty
from kcore.server.member.log_dir_notifications import LogDirNotifications
from kcore.server.member.lost_records import CONTROLLER_WAIT_MS, IsrDeparture
from kcore.server.member.offline_replicas import OfflineReplicas, is_assigned
from kcore.server.member.postponed_updates import PostponedUpdates
from kcore.server.topics.partition_admin import PartitionAdmin

logger = logging.getLogger(__name__)

#: The epoch of a broker that has not registered, and of a request that has none.
NO_BROKER_EPOCH = -1
#: After a call of the store that failed, before the next.
_RETRY_MS = 1000
#: How often it is asked whether a controller has taken this broker out of an ISR, and whether a start is cancelled.
_POLL_MS = 100
#: How long a start waits for the old registration of its id to end: zookeeper.session.timeout.ms, and a little.
REGISTRATION_TIMEOUT_MS = 20_000

#: (error, partitions that the broker still leads).
OnControlledShutdown = Callable[[ApiError | None, Collection[TopicPartition]], None]
#: A partition's metadata, None for one that is being deleted.
PartitionChanges = Mapping[int, PartitionInfo | None]


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

    The controller's requests come on one thread, in order.  Work after a change in the store runs on `scheduler`'s
    thread.  time: real time, in which sessions end.  make_controller: given register_again(), this broker's
    controller, which takes no part in elections before start().
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
        registration_timeout_ms: float | None = None,
        controller_wait_ms: float = CONTROLLER_WAIT_MS,
    ) -> None:
        self.broker_id = broker_id
        #: czxid of the registration; the next one has a higher.
        self.broker_epoch = NO_BROKER_EPOCH
        #: Whether others are to lead what this broker leads before it stops; not where all stop.
        self.hands_over = True
        #: Whether the connection to the store is lost, as far as this broker knows.
        self.is_store_away = False
        self.leadership = leadership
        self._store = store
        self._scheduler = scheduler
        self._time = time
        self._cache = metadata_cache
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._coordinators = coordinators
        self._configs = stored_topic_configs
        self._late_deletions = LateDeletions(broker_id, store, log_manager, metadata_cache)
        self._registration_timeout_ms = registration_timeout_ms or REGISTRATION_TIMEOUT_MS
        self._isr_departure = IsrDeparture(broker_id, store)
        self._controller_wait_ms = controller_wait_ms
        #: Until when the registration waits for a controller; None while it does not.
        self._wait_until_ms: float | None = None
        self._registration = b""
        self._is_stopping = False
        self._is_abandoned = False
        self._is_cancelled = False
        self._has_metadata = threading.Event()
        self._log_dir_notifications = LogDirNotifications(broker_id, store, scheduler)
        self._postponed = PostponedUpdates()
        refusals = replica_manager.disk_full_refusals
        self._leader_hand_over = LeaderHandOver(broker_id, store, scheduler, time, refusals)
        refusals.on_needed = self._leader_hand_over.begin
        self.controller = make_controller(self.register_again)
        #: Replicas whose logs could not be opened.
        self.offline_replicas = OfflineReplicas(
            lambda tp, topic_id: is_assigned(metadata_cache.snapshot, broker_id, tp, topic_id),
            lambda tp: isinstance(replica_manager.get_partition(tp), Partition),
            self._log_dir_notifications.notify,
        )

    # -- life -------------------------------------------------------------------------------------------

    def start(self, info: BrokerInfo, protocols: Mapping[str, SecurityProtocol]) -> None:
        """Register with these listeners, take part in the controller's election.

        If the id is registered already, wait until that session has ended: it may be this broker's from before a crash.
        Before it registers it leaves the ISRs of the partitions of which it has lost records.
        Raises NodeExists if it does not end, StartCancelled after cancel_start(), and what the store raises.
        """
        self._registration = znodes.BrokerZNode(
            {name: (endpoint.host, endpoint.port) for name, endpoint in info.endpoints.items()},
            info.rack,
            self._time.milliseconds(),
            {name: protocols[name].name for name in info.endpoints},
        ).encode()
        self._store.ensure_path(znodes.BROKER_IDS)
        self._store.add_session_listener(self._session_changed)
        self._wait_for_old_registration()
        while not self._leave_isrs():
            if self._is_cancelled:
                raise StartCancelled(f"broker {self.broker_id} waited for a controller to take it out of ISRs")
            self._time.sleep(_POLL_MS)
        self._register()
        self.controller.startup()

    @property
    def is_controller(self) -> bool:
        return self.controller.is_active

    def epoch_of(self, broker_id: int) -> int | None:
        """The epoch of a broker's registration in the store, None if it has none.  Raises StoreError."""
        node = self._store.get(znodes.broker_id(broker_id))
        return node.czxid if node is not None else None

    def wait_for_metadata(self, timeout_ms: float) -> bool:
        """Whether a controller has sent this broker its metadata, waiting for it if need be."""
        self._wait(self._has_metadata, self._time.hi_res_clock_ms() + timeout_ms)
        return self._has_metadata.is_set()

    def cancel_start(self) -> None:
        """End what start() and wait_for_metadata() wait for, from another thread."""
        self._is_cancelled = True

    def _wait(self, event: threading.Event, deadline_ms: float) -> None:
        """Until the event is set, the deadline, or the start is cancelled."""
        while not self._is_cancelled and (left_ms := deadline_ms - self._time.hi_res_clock_ms()) > 0:
            if event.wait(min(left_ms, _POLL_MS) / 1000):
                return

    def abandon(self) -> None:
        """Do nothing more, as a killed process; stop() then does nothing."""
        self._is_stopping = self._is_abandoned = True
        self.hands_over = False
        self._close_parts()
        self.controller.abandon()

    def stop(self) -> None:
        """Leave the cluster: the controller finds other leaders.  The scheduler is to be stopped after this."""
        if self._is_abandoned:
            return
        self._is_stopping = True
        self._close_parts()
        self.find_store()
        self.controller.shutdown()
        try:
            path = znodes.broker_id(self.broker_id)
            node = self._store.get(path)
            if node is not None and node.czxid == self.broker_epoch:
                self._store.delete(path)
        except StoreError as error:
            logger.warning("broker %d could not be unregistered: %s", self.broker_id, error)

    def _close_parts(self) -> None:
        self._log_dir_notifications.close()
        self._leader_hand_over.close()

    def find_store(self) -> None:
        """Before a stop: have a store that does not answer count as away now, instead of after two thirds of the
        session's timeout."""
        try:
            self._store.ping(STOP_PING_MS)
        except StoreError as error:
            if not self.is_store_away:
                logger.warning("broker %d stops without its store: %s", self.broker_id, error)
            self.is_store_away = True

    # -- registration -----------------------------------------------------------------------------------

    def _wait_for_old_registration(self) -> None:
        path = znodes.broker_id(self.broker_id)
        deadline_ms = self._time.hi_res_clock_ms() + self._registration_timeout_ms
        while True:
            changed = threading.Event()
            node = self._store.get(path, lambda event, changed=changed: changed.set())  # type: ignore[misc]
            if node is None:
                return
            if node.ephemeral_owner == self._store.session_id:
                # Of this broker before a restart: only with another epoch does the controller see that it was away.
                self._store.delete(path)
                return
            if self._is_cancelled:
                raise StartCancelled(f"broker {self.broker_id} waited for the last session of its id to end")
            if self._time.hi_res_clock_ms() >= deadline_ms:
                raise NodeExists(
                    f"broker {self.broker_id} is registered already, by session {node.ephemeral_owner}: "
                    f"{node.data.decode(errors='replace')}"
                )
            logger.info("broker %d waits for the session %d of its id to end", self.broker_id, node.ephemeral_owner)
            self._wait(changed, deadline_ms)

    def _leave_isrs(self) -> bool:
        """IsrDeparture.leave(); False: not yet, a controller is expected to do it.  Raises StoreError."""
        now_ms = self._time.hi_res_clock_ms()
        if self._wait_until_ms is None:
            self._wait_until_ms = now_ms + self._controller_wait_ms
        waiting = self._isr_departure.leave(self._log_manager.all_logs(), may_wait=now_ms < self._wait_until_ms)
        if not waiting:
            self._wait_until_ms = None
        return not waiting

    def _register(self) -> None:
        path = znodes.broker_id(self.broker_id)
        try:
            self._store.create(path, self._registration, ephemeral=True)
        except NodeExists:
            pass  # perhaps this broker's: the answer to an earlier create() was lost
        node = self._store.get(path)
        if node is None or node.ephemeral_owner != self._store.session_id:
            raise NodeExists(f"broker {self.broker_id} is registered already, by another session")
        self.broker_epoch = node.czxid
        logger.info("broker %d is registered, epoch %d", self.broker_id, self.broker_epoch)

    def _session_changed(self, event: SessionEvent) -> None:
        # On a thread of the store, which must go on: it delivers the watches.
        self.is_store_away = event is SessionEvent.SUSPENDED
        if event is SessionEvent.EXPIRED:
            self.leadership.session_ended(self.broker_epoch)

    def register_again(self) -> bool:
        """Register in a new session; False if the store fails, or a controller has to take this broker out of an ISR
        first, and then the caller tries again.  Raises nothing.

        What has changed while there was no session is read then, as often as it takes.
        """
        if self._is_stopping:
            return False
        try:
            if not self._leave_isrs():
                return False
            self._register()
        except StoreError as error:
            logger.error("broker %d is not registered: %s", self.broker_id, error)
            return False
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        if self._is_stopping:
            return
        try:
            self._forget_deleted_topics()
            self._leader_hand_over.session_began()
        except SessionExpired:
            return  # the next session reads it
        except StoreError as error:
            logger.error("broker %d does not know yet what has changed meanwhile: %s", self.broker_id, error)
            self._scheduler.schedule("catch-up", self._catch_up, _RETRY_MS)

    def _forget_deleted_topics(self) -> None:
        """Serve no topic that was deleted while this broker had no session: the controller does not name it again.

        The logs stay where they are.  A store without any topic is rather one that lost its nodes: nothing changes.
        """
        known = [topic for topic in self._cache.topics() if topic.topic_id != ZERO_UUID]
        self._store.sync()
        stored = set(self._store.children(znodes.TOPICS))
        gone = {topic.name: topic for topic in known if topic.name not in stored}
        if not gone:
            return
        if not stored:
            logger.error("the store has none of the %d topics that this broker knows: it serves them on", len(known))
            return
        logger.warning("topics deleted while this broker had no session: %s", some_of(sorted(gone)))
        hosted = [partition.topic_partition for partition in self._replica_manager.partitions()]
        self._replica_manager.resign({tp: gone[tp.topic].topic_id for tp in hosted if tp.topic in gone})
        ids = {topic.topic_id for topic in gone.values()}
        self._cache.update(
            lambda snapshot: snapshot.with_topics(
                (), without=[topic.name for topic in snapshot.topics() if topic.topic_id in ids]
            )
        )
        for name in gone:
            if self._cache.topic(name) is None:
                self._configs.remove(name)
        self._cache.announce()

    def log_dir_failed(self) -> None:
        """Have the controller find other leaders for the partitions of a data directory that has failed (RM-29).

        It sends LeaderAndIsr again; the errors in the answers name these partitions.  Returns at once.
        """
        self._log_dir_notifications.notify()

    # -- the controller's requests ----------------------------------------------------------------------

    def check_broker_epoch(self, broker_epoch: int) -> None:
        """Raises StaleBrokerEpoch for a request that was meant for an earlier registration of this broker.

        A higher epoch than this broker's is valid: the controller may know of a registration before the broker does.
        """
        if NO_BROKER_EPOCH < broker_epoch < self.broker_epoch:
            raise StaleBrokerEpoch(f"broker epoch {broker_epoch}, ours is {self.broker_epoch}")

    def become_leader_or_follower(
        self, updates: Sequence[LeaderAndIsrUpdate], controller_epoch: int
    ) -> dict[TopicPartition, ApiError | None]:
        """ReplicaManager.become_leader_or_follower(), with the topics' settings and the coordinators."""
        names = {update.topic_partition.topic for update in updates}
        self._configs.load_topics(names, {update.topic_partition.topic for update in updates if update.is_new})
        topic_ids = {update.topic_partition: update.topic_id for update in updates}
        unread = self._set_deleted_topics_aside(topic_ids, controller_epoch)
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
            refused = [update for update in updates if self._has_another_topic(update.topic_partition, update.topic_id)]
            if refused and not self._is_stopping:
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
            self.offline_replicas.add(tp, update.topic_id, make_log)

    def _set_deleted_topics_aside(
        self, topic_ids: Mapping[TopicPartition, UUID | None], controller_epoch: int
    ) -> set[str]:
        """The logs here of a topic that was deleted, and created again with one of these ids, become strays.

        This broker has not received the deletion: it was down or stood still, and its replicas had been moved away
        before; a late request may have made it a replica of the earlier topic once more.  Which of two topics is there
        now, the store says: this request may be the late one.  What comes back: the topics of which the store could not
        say it, because it cannot be reached.
        """
        named = {tp.topic: topic_id for tp, topic_id in topic_ids.items() if self._has_another_topic(tp, topic_id)}
        unread = set()
        deleted: dict[TopicPartition, UUID] = {}
        for name, topic_id in named.items():
            try:
                stored_id = self._stored_topic_id(name)
            except ConnectionLost as error:
                logger.error("whether topic %s was created again is not known: %s", name, error)
                unread.add(name)
                continue
            logs = [log for log in self._log_manager.all_logs() if log.topic_partition.topic == name]
            earlier = {log.topic_partition: log.topic_id for log in logs if log.topic_id not in (None, topic_id)}
            if stored_id == topic_id:
                logger.warning("%s: of a topic that was deleted and created again", some_of(earlier))
                deleted |= earlier
            else:
                logger.warning(
                    "topic %s with id %s is refused: its logs here have another id, the store has %s",
                    name,
                    topic_id,
                    stored_id or "none",
                )
        if deleted:
            self._coordinators.partitions_lost(self._replica_manager.set_aside(deleted, controller_epoch))
        return unread

    def _stored_topic_id(self, name: str) -> UUID | None:
        """None, too, for a node that cannot be read.  Raises ConnectionLost."""
        path = znodes.topic(name)
        try:
            self._store.sync()
            node = self._store.get(path)
            return znodes.decode_node(path, node.data, znodes.TopicZNode.decode).topic_id if node is not None else None
        except ConnectionLost:
            raise
        except StoreError as error:
            logger.error("whether topic %s was created again is not known: %s", name, error)
            return None

    def _has_another_topic(self, topic_partition: TopicPartition, topic_id: UUID | None) -> bool:
        """Whether the partition's log was made for another topic of that name than the one with this id."""
        log = self._log_manager.get_log(topic_partition)
        return log is not None and log.topic_id is not None and topic_id not in (None, ZERO_UUID, log.topic_id)

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
        with self.offline_replicas.lock:
            results = self._replica_manager.stop_replicas(stops, controller_epoch)
            self.offline_replicas.remove(
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

        topics: name -> (topic id, partitions that have changed); ZERO_UUID leaves the id that is known.
        Raises StaleControllerEpoch, and changes nothing, for a controller epoch below the last one.
        """
        before = self._cache.snapshot
        brokers = list(brokers)
        names = [name for name, (_, partitions) in topics.items() if any(partitions.values())]
        created = {name for name in names if before.topic(name) is None} if self._has_metadata.is_set() else ()
        self._configs.load_topics(names, created)
        changed, gone = changed_topics(before, topics)
        named = [
            (TopicPartition(name, number), topic_id, info)
            for name, (topic_id, partitions) in topics.items()
            for number, info in partitions.items()
            if info is not None
        ]
        self._set_deleted_topics_aside({tp: topic_id for tp, topic_id, _ in named}, controller_epoch)
        unassigned = {
            tp: info.leader_epoch
            for tp, topic_id, info in named
            if self.broker_id not in info.replicas and not self._has_another_topic(tp, topic_id)
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
        self._has_metadata.set()
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
            known_id = old.topic_id if old is not None else ZERO_UUID
            ordered = dict(sorted(partitions.items()))
            changed.append(TopicInfo(name, known_id if topic_id == ZERO_UUID else topic_id, ordered))
        elif old is not None:
            gone.append(name)
    return changed, gone
