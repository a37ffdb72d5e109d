"""KafkaController: every broker of a cluster has one, and one of them is active.

All its work runs on one event thread.  The active controller reads the store once, at its fail-over, and from then on
follows watches.  Source: KafkaController, Kafka 2.4 and 3.9; behaviours CTRL-01 to CTRL-23.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from kcore.common.failure_log import FailureLog
from kcore.common.scheduler import ScheduledTask, Scheduler
from kcore.common.text import counted, some_of
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.controller.alter_partition import IsrChanges
from kcore.controller.controller_channel_manager import ControllerChannels
from kcore.controller.controller_context import (
    ControllerContext,
    LiveBroker,
    PartitionReplica,
    PartitionState,
    ReplicaAssignment,
    ReplicaState,
)
from kcore.controller.controller_event_manager import ControllerEvent, ControllerEventManager
from kcore.controller.controller_request_batch import ControllerBrokerRequestBatch
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.controller_store import ControllerMoved, ControllerStore
from kcore.controller.election import ElectionStrategy
from kcore.controller.election_backoff import RETRY_MS, ElectionAttempts, ElectionBackoff
from kcore.controller.leader_elections import ElectionType, LeaderElections
from kcore.controller.partition_reassignment import PartitionReassignment, Targets
from kcore.controller.partition_state_machine import PartitionStateMachine
from kcore.controller.replica_state_machine import ReplicaStateMachine
from kcore.controller.topic_deletion_manager import TopicDeletionManager
from kcore.errors import (
    NONE,
    ApiError,
    BrokerNotAvailable,
    KafkaStorageError,
    NotController,
    StaleBrokerEpoch,
    UnknownServerError,
)
from kcore.metadata import znodes
from kcore.metadata.api_errors import api_error
from kcore.metadata.store import (
    MetadataStore,
    NodeExists,
    SessionEvent,
    SessionExpired,
    StoreError,
    Watch,
    WatchEvent,
)

logger = logging.getLogger(__name__)

#: The active controller's id while there is none.
NO_CONTROLLER = -1
_FIRST_REBALANCE_MS = 5000
#: How long the store's thread waits for the running event to end before a new session begins (s).
EVENT_WAIT_S = 10.0

_T = TypeVar("_T")

#: Called once, on any thread, with what an event has brought, or with its error.
OnResult = Callable[[_T | ApiError], None]
#: (error, partitions that the broker still leads).
OnControlledShutdown = Callable[[ApiError | None, Collection[TopicPartition]], None]


class _Term:
    """The time between one fail-over and the resignation: events of an older term's watches are ignored."""

    def __init__(self) -> None:
        self.watches: dict[str, Watch] = {}


class KafkaController:
    """Thread-safe: what other threads call puts an event.  Lifetime: startup() once, shutdown() once.

    register_broker: registers this broker again, after the session has expired; whether it is registered now.  It is
    called until it is.  Before startup() the owner has registered the broker.
    """

    def __init__(
        self,
        broker_id: int,
        store: MetadataStore,
        channels: ControllerChannels,
        settings: ControllerSettings,
        register_broker: Callable[[], bool],
        time: Time,
        scheduler: Scheduler,
    ) -> None:
        self.broker_id = broker_id
        self._metadata_store = store
        self._store = ControllerStore(store)
        self._channels = channels
        self._settings = settings
        self._register_broker = register_broker
        self._time = time
        self._scheduler = scheduler
        self.events = ControllerEventManager(f"kcore-controller-events-{broker_id}")
        self.context = ControllerContext()
        batch = ControllerBrokerRequestBatch(
            broker_id,
            self.context,
            channels,
            settings.inter_broker_listener_name,
            self._leader_and_isr_answered,
            self._stop_replica_answered,
        )
        self._batch = batch
        self.replica_state_machine = ReplicaStateMachine(self.context, self._store, batch)
        is_unclean_enabled = partial(self._store.is_unclean_election_enabled, settings.unclean_leader_election_enable)
        self.partition_state_machine = PartitionStateMachine(
            self.context, self._store, batch, is_unclean_enabled, self._count_unclean_election
        )
        self.topic_deletion_manager = TopicDeletionManager(
            self.context,
            self._store,
            batch,
            self.replica_state_machine,
            self.partition_state_machine,
            settings.delete_topic_enable,
        )
        self.partition_reassignment = PartitionReassignment(
            self.context,
            self._store,
            batch,
            self.replica_state_machine,
            self.partition_state_machine,
            self._watch,
            lambda name, process: self._put_if_in_term(self._term, name, process),
        )
        self.leader_elections = LeaderElections(self.context, self._store, self.partition_state_machine, self._watch)
        #: The active controller as this broker knows it, NO_CONTROLLER for none.
        self.active_controller_id = NO_CONTROLLER
        #: Kafka's UncleanLeaderElectionsPerSec, as a count.
        self.unclean_leader_elections = 0
        self._term: _Term | None = None
        self._is_store_away = False
        self._has_started = False
        #: In the session that lives now.  A controller that is not registered could not be reached by any broker.
        self._is_registered = True
        self.isr_changes = IsrChanges(self.context, self._store, batch, self.put_call)
        self._tasks: list[ScheduledTask] = []
        #: After an error ended its term: it stands for no election, or brokers with one error would elect each other.
        self._backoff = ElectionBackoff(time)
        self._election_failures = FailureLog()
        self._attempts = ElectionAttempts(f"kcore-reelect-{broker_id}", scheduler, self._backoff, self._put_startup)

    # -- life -------------------------------------------------------------------------------------------

    def startup(self, *, start_thread: bool = True) -> None:
        """Take part in the election.  start_thread=False: the caller processes the events."""
        self._has_started = True
        self._metadata_store.add_session_listener(self._session_changed)
        self._attempts.begin()
        if start_thread:
            self.events.start()

    def shutdown(self) -> None:
        """Resign, if active, so that another broker can be elected before this one's session ends."""
        self.events.close()
        if self.is_active:
            self._move(None)

    def abandon(self) -> None:
        """End as a killed process does: without a request to the store or to brokers."""
        self.events.close()
        self._expire()

    @property
    def is_active(self) -> bool:
        return self._term is not None

    def queue_sizes(self) -> Mapping[int, int]:
        """Broker id -> requests to it that it has not answered; empty unless this is the active controller."""
        return self._channels.queue_sizes()

    def controlled_shutdown(self, broker_id: int, broker_epoch: int, on_done: OnControlledShutdown) -> None:
        """Move the leadership away from a broker that is about to stop (PSM-08).

        on_done: called once, on any thread, with None and the partitions that the broker still leads, or with
        NotController, StaleBrokerEpoch, BrokerNotAvailable, UnknownServerError.  broker_epoch: a negative one is not
        compared.
        """

        def answer(result: list[TopicPartition] | ApiError) -> None:
            if isinstance(result, ApiError):
                on_done(result, ())
            else:
                on_done(None, result)

        self.put_call("ControlledShutdown", partial(self._controlled_shutdown, broker_id, broker_epoch), answer)

    def alter_partition_reassignments(
        self, targets: Targets, on_done: OnResult[Mapping[TopicPartition, ApiError | None]]
    ) -> None:
        """Begin, change and cancel reassignments; what comes back says which have begun, not which have ended.

        on_done: with the error of each partition, or with NotController, UnknownServerError.
        """
        self.put_call("ApiPartitionReassignment", lambda: self.partition_reassignment.alter(targets), on_done)

    def list_partition_reassignments(
        self,
        topic_partitions: Collection[TopicPartition] | None,
        on_done: OnResult[Mapping[TopicPartition, ReplicaAssignment]],
    ) -> None:
        """Those that run, of these partitions or, for None, of all."""
        self.put_call("ListPartitionReassignments", lambda: self.partition_reassignment.list(topic_partitions), on_done)

    def elect_leaders(
        self,
        election_type: ElectionType,
        topic_partitions: Collection[TopicPartition],
        on_done: OnResult[Mapping[TopicPartition, int | ApiError]],
    ) -> None:
        """on_done: with the new leader of each partition or why there is none, or with NotController,
        UnknownServerError."""
        self.put_call(
            "ReplicaLeaderElection", lambda: self.leader_elections.elect(election_type, topic_partitions), on_done
        )

    # -- events -----------------------------------------------------------------------------------------

    def _put(self, name: str, process: Callable[[], None], preempt: Callable[[], None] | None = None) -> None:
        self.events.put(ControllerEvent(name, partial(self._guarded, process), preempt))

    def put_call(self, name: str, call: Callable[[], _T], on_done: OnResult[_T]) -> None:
        """Have the active controller do something; any other answers NotController, at once before startup().

        on_done: also with what api_error() makes of the store's error, e.g. RequestTimedOut.
        """

        def process() -> None:
            if not self.is_active:
                away = ", and its metadata store cannot be reached" if self._is_store_away else ""
                on_done(NotController(f"broker {self.broker_id} is not the controller{away}"))
                return
            try:
                result = call()
            except ApiError as error:
                on_done(error)
            except (ControllerMoved, SessionExpired) as error:
                # Another controller does it, or the next one: nothing that this one writes takes effect any more.
                on_done(NotController(f"broker {self.broker_id} is not the controller any more: {error}"))
                raise
            except Exception as error:
                on_done(api_error(error) if isinstance(error, StoreError) else UnknownServerError(f"{name}: {error}"))
                raise
            else:
                on_done(result)

        def preempt() -> None:
            on_done(NotController(f"broker {self.broker_id} is not the controller any more"))

        if self._has_started:
            self._put(name, process, preempt)
        else:
            process()  # which refuses it

    def _guarded(self, process: Callable[[], None]) -> None:
        """Process an event; whatever goes wrong in the store ends the term (CTRL-07)."""
        try:
            process()
        except ControllerMoved as error:
            logger.info("controller %d: %s", self.broker_id, error)
            self._resign_if_replaced()
        except SessionExpired as error:
            logger.info("controller %d: the session has expired: %s", self.broker_id, error)
        except Exception as error:
            if self.is_active:
                self._move(error)
            else:
                # The watch on the controller's node may not be set: this broker would never be elected again.
                self._attempts.retry()
            raise

    def _put_startup(self) -> None:
        self._put("Startup", self._startup, self._attempts.came)

    def _put_if_in_term(self, term: _Term | None, name: str, process: Callable[[], None]) -> None:
        def process_in_term() -> None:
            if self._term is term:
                process()

        self._put(name, process_in_term)

    def _watch(self, name: str, process: Callable[[], None]) -> Watch:
        """The watch of this term that puts an event of this name; the same one each time."""
        term = self._term
        assert term is not None
        watch = term.watches.get(name)
        if watch is None:

            def watch(event: WatchEvent) -> None:
                self._put_if_in_term(term, name, process)

            term.watches[name] = watch
        return watch

    # -- election ---------------------------------------------------------------------------------------

    def _startup(self) -> None:
        self._attempts.came()
        self._store.ensure_paths()
        self._controller_changed()

    def _controller_watch(self, event: WatchEvent) -> None:
        self._put("ControllerChange", self._controller_changed)

    def _controller_changed(self) -> None:
        # CTRL-03: the watch first, then the election.
        self._resign_if_replaced()
        if self.active_controller_id == self.broker_id and not self.is_active:
            # The answer to our election was lost.  The first broker to notice the deletion is elected, perhaps this
            # one.
            self._store.withdraw()
        elif self.active_controller_id == NO_CONTROLLER and self._backoff.pause is None and self._is_registered:
            self._elect()

    def _resign_if_replaced(self) -> None:
        was_active = self.is_active
        self.active_controller_id = self._store.controller_id(self._controller_watch)
        if was_active and self.active_controller_id != self.broker_id:
            self._resign()

    def _elect(self) -> None:
        """Become the controller unless there is one (CTRL-04 to CTRL-07)."""
        try:
            epoch = self._store.elect(self.broker_id, self._time.milliseconds())
        except (NodeExists, ControllerMoved):
            self._resign_if_replaced()
            logger.info("broker %d was elected, not %d", self.active_controller_id, self.broker_id)
            if self.active_controller_id == NO_CONTROLLER:
                # It is gone again, and the watch is not called for a node that has come and gone.
                self._put("ControllerChange", self._controller_changed)
            return
        except SessionExpired:
            raise
        except StoreError as error:
            if self._election_failures.is_logged(str(error), self._time.hi_res_clock_ms()):
                logger.error("broker %d could not take part in the election: %s", self.broker_id, error)
            self._move(error)
            return
        logger.info("broker %d is the controller, epoch %d", self.broker_id, epoch)
        self.active_controller_id = self.broker_id
        self.context.clear()
        self.context.epoch = epoch
        self._backoff.elected()
        self._election_failures.succeeded()
        try:
            self._fail_over()
        except SessionExpired:
            raise
        except Exception as error:
            is_fault = not isinstance(error, StoreError)  # of which the place counts
            logger.error("controller %d: the fail-over failed: %s", self.broker_id, error, exc_info=is_fault)
            self._move(error)

    def _move(self, error: BaseException | None) -> None:
        """CTRL-07: resign and delete /controller, so that another broker can be elected."""
        pause = self._backoff.begin() if self.is_active and error is not None else None
        try:
            if self.is_active:
                self._store.delete_controller()
        except (StoreError, ControllerMoved) as failure:
            logger.warning("controller %d: its node could not be deleted: %s", self.broker_id, failure)
            if error is not None:
                self._attempts.retry()  # Soon, not after the pause: while the node is there no controller is elected.
        self.active_controller_id = NO_CONTROLLER
        self._resign()
        if error is not None:
            # The node's deletion wakes up the watch; a store that failed may have lost that.
            self._attempts.retry(pause)

    def _resign(self) -> None:
        """Clear the context and close the connections; watches of this term are ignored from now on."""
        if self.is_active:
            logger.info("broker %d is not the controller any more", self.broker_id)
        self._term = None
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._batch.clear()
        self._channels.close()
        self.context.clear()

    # -- session ----------------------------------------------------------------------------------------

    def _session_changed(self, event: SessionEvent) -> None:
        """On a thread of the store."""
        self._is_store_away = event is not SessionEvent.CONNECTED
        if event is SessionEvent.EXPIRED:
            # CTRL-08: queued events belong to the old session, and must not be processed under the new one.
            expire = ControllerEvent("Expire", self._expire)
            self.events.clear_and_put(expire)
            self._begin_session_after(expire, EVENT_WAIT_S)
        elif event is SessionEvent.CONNECTED:
            self._put("ControllerChange", self._controller_changed)

    def _begin_session_after(self, expire: ControllerEvent, wait_s: float) -> None:
        """Begin a session once the event that runs has ended.  If that takes longer, look again later: watches and
        session events of this broker come on the thread that waits here."""
        if self.events.await_started(expire, wait_s):
            self._begin_session()
            return
        logger.error("broker %d begins no session yet: an event of its controller still runs", self.broker_id)
        self._scheduler.schedule(
            f"kcore-new-session-{self.broker_id}", lambda: self._begin_session_after(expire, 0), RETRY_MS
        )

    def _begin_session(self) -> None:
        try:
            self._metadata_store.new_session()
        except StoreError as error:
            logger.error("broker %d cannot begin a new session: %s", self.broker_id, error)
            self._scheduler.schedule(f"kcore-new-session-{self.broker_id}", self._begin_session, RETRY_MS)
        else:
            self._put_registration()

    def _put_registration(self) -> None:
        self._put("RegisterBrokerAndReelect", self._register_and_reelect)

    def _expire(self) -> None:
        self._is_registered = False
        self.active_controller_id = NO_CONTROLLER
        self._resign()

    def _register_and_reelect(self) -> None:
        """CTRL-09.  An event for each attempt: of a session that has expired meanwhile, it is dropped."""
        self._is_registered = self._register_broker()
        if not self._is_registered:
            self._scheduler.schedule(f"kcore-register-{self.broker_id}", self._put_registration, RETRY_MS)
        self._controller_changed()

    # -- fail-over --------------------------------------------------------------------------------------

    def _fail_over(self) -> None:
        """CTRL-10 to CTRL-19; the epoch was raised with the election."""
        # Another watch: that of before the election is not called if the node is gone again when it is compared.
        if self._store.controller_id(self._controller_watch) != self.broker_id:
            raise ControllerMoved("the node of this election is gone")
        self._term = _Term()
        context, store = self.context, self._store
        # CTRL-11: watches before reading, so that no change in between is missed.
        store.live_brokers(self._watch("BrokerChange", self._brokers_changed))
        store.watch_children(znodes.TOPICS, self._watch("TopicChange", self._topics_changed))
        deletions = store.watch_children(
            znodes.DELETE_TOPICS, self._watch("TopicDeletion", self._topic_deletions_changed)
        )
        log_dir_events = store.watch_children(
            znodes.LOG_DIR_EVENT_NOTIFICATION, self._watch("LogDirEventNotification", self._log_dirs_failed)
        )
        isr_changes = store.watch_children(
            znodes.ISR_CHANGE_NOTIFICATION, self._watch("IsrChangeNotification", self._isrs_changed)
        )
        # CTRL-12
        self.leader_elections.watch_orders()
        self.partition_reassignment.watch_orders()
        # CTRL-13: the states that they announce are read now.
        store.delete_children(znodes.LOG_DIR_EVENT_NOTIFICATION, log_dir_events)
        store.delete_children(znodes.ISR_CHANGE_NOTIFICATION, isr_changes)
        self._read_context()
        self.leader_elections.read_full_disks()
        ineligible = self._topics_with_offline_replicas(deletions)
        self.topic_deletion_manager.init(deletions, ineligible)
        # CTRL-16: a broker must know the live brokers before it can handle a LeaderAndIsr.
        self._send_update_metadata(context.live_or_shutting_down_ids, context.leadership)
        self.replica_state_machine.startup()
        self.partition_state_machine.startup()
        # CTRL-18
        self.partition_reassignment.resume()
        self.partition_reassignment.process_orders()
        self.topic_deletion_manager.resume()
        self.leader_elections.process_orders()
        self.leader_elections.hand_over()
        # CTRL-19
        if self._settings.rebalance_interval_ms:
            allowed_percentage = self._settings.leader_imbalance_per_broker_percentage
            rebalance = partial(self.leader_elections.rebalance, allowed_percentage)
            self._tasks.append(
                self._scheduler.schedule(
                    f"kcore-preferred-leaders-{self.broker_id}",
                    partial(self._put_if_in_term, self._term, "AutoPreferredReplicaLeaderElection", rebalance),
                    _FIRST_REBALANCE_MS,
                    self._settings.rebalance_interval_ms,
                )
            )

    def _read_context(self) -> None:
        """CTRL-14."""
        context, store = self.context, self._store
        context.live_brokers = store.live_brokers()
        self._read_topics(store.watch_children(znodes.TOPICS, self._watch("TopicChange", self._topics_changed)))
        context.leadership = store.states(context.assignments)
        for broker in context.live_brokers.values():
            self._channels.add_broker(broker)

    def _read_topics(self, names: Iterable[str]) -> list[TopicPartition]:
        """Read the topics' assignments, and watch them; the partitions that are new."""
        new = []
        for name, node in self._store.topics(names, self._topic_watch).items():
            self.context.topic_ids[name] = node.topic_id
            for number, replicas in sorted(node.assignment.items()):
                tp = TopicPartition(name, number)
                if tp not in self.context.assignments:
                    adding, removing = node.adding.get(number, ()), node.removing.get(number, ())
                    self.context.set_assignment(tp, ReplicaAssignment(tuple(replicas), tuple(adding), tuple(removing)))
                    new.append(tp)
        return new

    def _topic_watch(self, name: str) -> Watch:
        return self._watch(f"PartitionModifications {name}", partial(self._partitions_changed, name))

    # -- brokers ----------------------------------------------------------------------------------------

    def _brokers_changed(self) -> None:
        """CTRL-20.  A broker whose registration is a new one has failed and come back."""
        context = self.context
        current = self._store.live_brokers(self._watch("BrokerChange", self._brokers_changed))
        new = current.keys() - context.live_brokers.keys()
        dead = context.live_brokers.keys() - current.keys()
        bounced = {i for i in current.keys() - new if current[i].epoch != context.live_brokers[i].epoch}
        if new or dead or bounced:  # none: the watch is called for an ISR change too (CheckChildrenCreated)
            logger.info("brokers: new %s, dead %s, registered again %s", sorted(new), sorted(dead), sorted(bounced))
        for broker_id in dead | bounced:
            self._channels.remove_broker(broker_id)
            del context.live_brokers[broker_id]
        if dead | bounced:
            self._on_broker_failure(dead | bounced)
        if new | bounced:
            for broker_id in sorted(new | bounced):
                context.live_brokers[broker_id] = current[broker_id]
                self._channels.add_broker(current[broker_id])
            self._on_broker_startup(new | bounced)

    def _on_broker_startup(self, broker_ids: Collection[int]) -> None:
        context = self.context
        context.note_registered(broker_ids)
        # All others get the live brokers; the new ones need all metadata before they can follow a leader.
        self._send_update_metadata(context.live_or_shutting_down_ids - set(broker_ids), ())
        self._send_update_metadata(broker_ids, context.leadership)
        self._to_online(context.replicas_on(broker_ids))
        self.partition_state_machine.trigger_online()
        self.partition_reassignment.resume(broker_ids)
        self.topic_deletion_manager.resume_for({r.topic_partition.topic for r in context.replicas_on(broker_ids)})

    def _to_online(self, replicas: Iterable[PartitionReplica]) -> None:
        """Those of topics that are being deleted stay: their logs may be gone."""
        remaining = [r for r in replicas if r.topic_partition.topic not in self.context.topics_with_deletion_started]
        self.replica_state_machine.handle_state_changes(remaining, ReplicaState.ONLINE)

    def _on_broker_failure(self, broker_ids: Collection[int]) -> None:
        context = self.context
        context.note_gone(broker_ids)
        self._on_replicas_offline(context.replicas_on(broker_ids))

    def _on_replicas_offline(self, replicas: Collection[PartitionReplica]) -> None:
        """New leaders first, then the ISRs without the replicas."""
        context = self.context
        leaderless = [
            tp
            for tp, state in context.leadership.items()
            if not context.is_online(state.leader, tp, include_shutting_down=True)
            and not context.is_queued_for_deletion(tp.topic)
        ]
        self.partition_state_machine.handle_state_changes(leaderless, PartitionState.OFFLINE)
        self.partition_state_machine.trigger_online()
        deleted = [r for r in replicas if context.is_queued_for_deletion(r.topic_partition.topic)]
        others = [r for r in replicas if not context.is_queued_for_deletion(r.topic_partition.topic)]
        self.replica_state_machine.handle_state_changes(others, ReplicaState.OFFLINE)
        self.topic_deletion_manager.fail_replicas(deleted)
        if not leaderless:
            self._send_update_metadata(context.live_or_shutting_down_ids, ())

    def _controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        context = self.context
        broker = context.live_brokers.get(broker_id)
        if broker is None:
            raise BrokerNotAvailable(f"broker {broker_id} is not registered")
        if 0 <= broker_epoch < broker.epoch:
            raise StaleBrokerEpoch(f"broker {broker_id} has registered again: epoch {broker.epoch}, not {broker_epoch}")
        logger.info("broker %d shuts down", broker_id)
        context.shutting_down.add(broker_id)
        replicated = [
            tp
            for tp, assignment in context.assignments.items()
            if broker_id in assignment.replicas
            and len(assignment.replicas) > 1
            and tp in context.leadership
            and not context.is_queued_for_deletion(tp.topic)
        ]
        led = [tp for tp in replicated if context.leadership[tp].leader == broker_id]
        followed = [PartitionReplica(tp, broker_id) for tp in replicated if context.leadership[tp].leader != broker_id]
        self.partition_state_machine.handle_state_changes(
            led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        # OFFLINE stops the replica and takes it out of the ISR.
        self.replica_state_machine.handle_state_changes(followed, ReplicaState.OFFLINE)
        return [tp for tp in context.partitions_led_by(broker_id) if len(context.replicas_of(tp)) > 1]

    # -- topics -----------------------------------------------------------------------------------------

    def _topics_changed(self) -> None:
        """CTRL-21."""
        context = self.context
        names = set(self._store.watch_children(znodes.TOPICS, self._watch("TopicChange", self._topics_changed)))
        for name in context.topics - names:
            context.remove_topic(name)
        self._create_partitions(self._read_topics(sorted(names - context.topics)))

    def _partitions_changed(self, name: str) -> None:
        if self.context.is_queued_for_deletion(name):
            # Partitions that were added meanwhile go with the topic's node: they have neither states nor logs.
            logger.info("%s is being deleted: partitions that were added to it are not created", name)
            return
        self._create_partitions(self._read_topics([name]))
        self.partition_reassignment.topic_changed(name)

    def _create_partitions(self, new: Collection[TopicPartition]) -> None:
        if not new:
            return
        logger.info("%d new partitions: %s", len(new), ", ".join(map(str, list(new)[:10])))
        replicas = self.context.replicas_for(new)
        self.partition_state_machine.handle_state_changes(new, PartitionState.NEW)
        self.replica_state_machine.handle_state_changes(replicas, ReplicaState.NEW)
        self.partition_state_machine.handle_state_changes(new, PartitionState.ONLINE, ElectionStrategy.OFFLINE)
        self.replica_state_machine.handle_state_changes(replicas, ReplicaState.ONLINE)

    def _topic_deletions_changed(self) -> None:
        watch = self._watch("TopicDeletion", self._topic_deletions_changed)
        names = set(self._store.watch_children(znodes.DELETE_TOPICS, watch))
        # A topic may have been created and be deleted before its creation was noticed.
        self._topics_changed()
        unknown = names - self.context.topics - self._store.left_out(names - self.context.topics)
        self._store.delete_children(znodes.DELETE_TOPICS, sorted(unknown))
        names -= unknown
        if not self.topic_deletion_manager.is_enabled:
            self._store.delete_children(znodes.DELETE_TOPICS, sorted(names))
            return
        new = names - self.context.topics_to_delete
        if new:
            logger.info("topics to be deleted: %s", sorted(new))
            self.partition_reassignment.topics_deleted(new)
            self.topic_deletion_manager.enqueue(sorted(new))

    def _topics_with_offline_replicas(self, names: Iterable[str]) -> set[str]:
        context = self.context
        return {
            name
            for name in names
            for replica in context.replicas_for(context.partitions_of(name))
            if not context.is_online(replica.broker_id, replica.topic_partition)
        }

    # -- notifications and answers ----------------------------------------------------------------------

    def _isrs_changed(self) -> None:
        """CTRL-23."""
        watch = self._watch("IsrChangeNotification", self._isrs_changed)
        names = self._store.watch_children(znodes.ISR_CHANGE_NOTIFICATION, watch)
        if not names:
            return
        partitions = [tp for tp in self._store.notified_partitions(names) if tp in self.context.assignments]
        states = self._store.states(partitions)
        self.context.leadership.update(states)
        self._send_update_metadata(self.context.live_or_shutting_down_ids, states)
        self._store.delete_children(znodes.ISR_CHANGE_NOTIFICATION, names)

    def _log_dirs_failed(self) -> None:
        """CTRL-22: the answers to LeaderAndIsr say which replicas are offline, and which are online again."""
        watch = self._watch("LogDirEventNotification", self._log_dirs_failed)
        names = self._store.watch_children(znodes.LOG_DIR_EVENT_NOTIFICATION, watch)
        if not names:
            return
        brokers = self._store.notified_brokers(names) & self.context.live_ids
        self._to_online(self.context.replicas_on(brokers))
        self._store.delete_children(znodes.LOG_DIR_EVENT_NOTIFICATION, names)

    def _put_answer(self, name: str, broker: LiveBroker, process: Callable[[], None]) -> None:
        """On a sender's thread.  What a broker has answered says nothing about it once it has registered again."""

        def process_if_registered() -> None:
            registered = self.context.live_brokers.get(broker.broker_id)
            if registered is not None and registered.epoch == broker.epoch:
                process()

        if (term := self._term) is not None:
            self._put_if_in_term(term, name, process_if_registered)

    def _leader_and_isr_answered(self, broker: LiveBroker, codes: Mapping[TopicPartition, int], error: int) -> None:
        if error == NONE:
            process = partial(self._note_offline_dirs, broker.broker_id, codes)
            self._put_answer("LeaderAndIsrResponseReceived", broker, process)
        else:
            logger.error("broker %d refused a LeaderAndIsr request: error code %d", broker.broker_id, error)

    def _note_offline_dirs(self, broker_id: int, codes: Mapping[TopicPartition, int]) -> None:
        offline = self.context.offline_dirs.setdefault(broker_id, set())
        failed = {tp for tp, code in codes.items() if code == KafkaStorageError.code} & self.context.assignments.keys()
        new = failed - offline
        opened = {tp for tp in offline if codes.get(tp) == NONE}
        offline -= opened
        offline |= failed
        if new:
            self._on_replicas_offline([PartitionReplica(tp, broker_id) for tp in sorted(new)])
        if opened:
            self._on_replicas_opened(broker_id, opened)

    def _on_replicas_opened(self, broker_id: int, topic_partitions: Collection[TopicPartition]) -> None:
        """A broker could open logs that it could not open before: a full disk may have room again.

        They may be what a partition without a leader, or a reassignment, waits for.  Kafka does not look for those.
        """
        opened = sorted(topic_partitions)
        logger.info("broker %d has opened %s: %s", broker_id, counted(len(opened), "replica"), some_of(opened))
        self._send_update_metadata(self.context.live_or_shutting_down_ids, opened)
        self.partition_state_machine.trigger_online()
        self.partition_reassignment.resume([broker_id])

    def _stop_replica_answered(self, broker: LiveBroker, codes: Mapping[TopicPartition, int], error: int) -> None:
        """Replicas were deleted, or not."""
        process = partial(self._replicas_deleted, broker.broker_id, codes)
        self._put_answer("TopicDeletionStopReplicaResponseReceived", broker, process)

    def _replicas_deleted(self, broker_id: int, codes: Mapping[TopicPartition, int]) -> None:
        deleted = [PartitionReplica(tp, broker_id) for tp, code in codes.items() if code == NONE]
        failed = [PartitionReplica(tp, broker_id) for tp, code in codes.items() if code != NONE]
        self.topic_deletion_manager.fail_replicas(failed)
        self.topic_deletion_manager.complete_replicas(deleted)

    # -- helpers ----------------------------------------------------------------------------------------

    def _send_update_metadata(self, broker_ids: Iterable[int], topic_partitions: Iterable[TopicPartition]) -> None:
        self._batch.add_update_metadata(broker_ids, topic_partitions)
        self._batch.send()

    def _count_unclean_election(self, topic_partition: TopicPartition) -> None:
        self.unclean_leader_elections += 1
