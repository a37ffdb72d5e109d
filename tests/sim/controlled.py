"""A simulated cluster with the product's controller: one in each broker, on sessions of one store.

Why a session expires, which watches are late, and which requests of a controller are lost, late or repeated is in
the history.  A request of a controller is repeated or late, but never comes after a later one of the same controller:
it is one connection.  Another controller's come whenever they come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from random import Random

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_store import ControllerMoved
from kcore.errors import ApiError
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.metadata.store import ConnectionLost, NodeExists, SessionExpired
from kcore.protocol.schema import Message as Request
from kcore.replica.partition import Partition
from kcore.replica.partition_state import LeaderAndIsrUpdate, LeaderState
from kcore.replica.partition_state_store import OnIsrChanged
from tests.sim import invariants
from tests.sim.cluster import Cluster
from tests.sim.controlled_node import ControlledNode
from tests.sim.disk import DamagedBatch
from tests.sim.ensemble import Killed, Session, Tree
from tests.sim.events import (
    ADMIN,
    STORE,
    CancelReassignment,
    Crash,
    CreateTopic,
    Cut,
    DamageRecords,
    DeleteController,
    DeleteTopic,
    DieInWrite,
    Event,
    ExpireInReads,
    ExpireSession,
    FlipBit,
    LateRequests,
    LoseStoreAnswer,
    Pause,
    PreferredElection,
    Reassign,
    RemoveLog,
)
from tests.sim.invariants import BrokenInvariant
from tests.sim.model import Copy
from tests.sim.network import Message
from tests.sim.node import IsrChange
from tests.sim.reassignments import Reassignments

#: A broker that the store has not heard of for so long is dead.
SESSION_TIMEOUT_MS = 600
#: A broker whose registration is still there, or whose lost records the ISRs still count on, tries again to start.
START_RETRY_MS = 50
SHUTDOWN_RETRY_MS = 300
SHUTDOWN_ATTEMPTS = 4
#: After the last fault, until every partition that can have a leader has one; until all replicas are equal.
QUIET_WITHIN_MS = 10_000
SETTLES_WITHIN_MS = 20_000


class ControlledCluster(Cluster):
    """partitions: as they are stored, also those of topics that were deleted."""

    nodes: dict[int, ControlledNode]  # type: ignore[assignment]

    def _make_controller(self) -> None:
        self.partitions = {}
        self.tree = Tree(self._state_written, self._topic_written)
        self.admin = MemoryStore(self.tree)
        self._seen_changes = 0
        self.reassignments = Reassignments(self)
        #: How often a topic of this name was created, and the names whose deletion was ordered last.
        self._generations: dict[str, int] = {}
        self._deleted: dict[str, None] = {}
        #: (broker, partition) where records may be lost that the stored ISR counts on.
        self._tainted: set[tuple[int, TopicPartition]] = set()
        #: Brokers that lost power and have not started again: a leader may still take one into an ISR.
        self._without_power: set[int] = set()
        #: How often each broker's machine has booted.
        self._boots: dict[int, int] = {}
        #: Of brokers that run.
        self._damaged: dict[int, list[DamagedBatch]] = {}
        self._disks_well_at_ms = 0
        #: Brokers that are about to stop: they move what they lead to others.
        self._stopping: set[int] = set()
        self._disconnected_until_ms: dict[int, int] = {}
        self._down_ms: dict[int, int] = {}
        #: Of the requests from one controller to one broker.
        self._sent: dict[tuple[int, int], int] = {}
        self._delivered: dict[tuple[int, int], int] = {}
        #: By how much the next requests of a controller are late.
        self._late_ms: dict[int, deque[int]] = {}
        self._unexpected: Exception | None = None
        #: At the end nobody stays down.
        self._all_start = False

    def _begin(self) -> None:
        for broker in range(self.settings.brokers):
            self._start(broker)
        for topic in range(self.settings.partitions):
            self._create_topic(topic)
        self.agenda.after(1, "the controllers begin", lambda: None)

    # -- topics -----------------------------------------------------------------------------------------------------

    def tp(self, number: int) -> TopicPartition:
        """Clients use the first partition of each topic."""
        return TopicPartition(f"t{number}", 0)

    def generation(self, tp: TopicPartition) -> int:
        return self._generations.get(tp.topic, 0)

    def leader_of(self, tp: TopicPartition) -> int:
        return super().leader_of(tp) if self._exists(tp.topic) else -1

    def _exists(self, topic: str) -> bool:
        return self.admin.get(znodes.topic(topic)) is not None

    def _assignment(self, topic: str) -> dict[int, list[int]]:
        node = self.admin.get(znodes.topic(topic))
        return znodes.TopicZNode.decode(node.data).assignment if node is not None else {}

    def _keeps_records(self, topic: str) -> bool:
        return topic not in self._deleted and self._exists(topic)

    def _existing(self) -> Iterator[tuple[TopicPartition, list[int]]]:
        for topic in self.admin.children(znodes.TOPICS):
            for number, replicas in self._assignment(topic).items():
                yield TopicPartition(topic, number), replicas

    def _create_topic(self, topic: int) -> None:
        name = f"t{topic}"
        if self._exists(name):
            self.tell(f"{name} is still there")
            return
        if self.reassignments.may_have_logs(name):
            self.tell(f"there is still a log of an earlier {name}, which a reassignment has left")
            return
        brokers = self.settings.brokers
        generation = self._generations[name] = self._generations.get(name, 0) + 1
        self._deleted.pop(name, None)
        # Nobody counts on the records of an earlier topic of this name.
        self._tainted = {(broker, tp) for broker, tp in self._tainted if tp.topic != name}
        assignment = {
            number: [(topic + number + at) % brokers for at in range(min(brokers, 3))]
            for number in range(1 + topic % 2)
        }
        for number in assignment:
            tp = TopicPartition(name, number)
            self.partitions.pop(tp, None)
            self.world.forget(tp)
            self.clients.forget(tp)
        node = znodes.TopicZNode(assignment, znodes.random_id(Random(f"{name} {generation}")))
        self.world.topic_ids[name] = node.topic_id
        self.admin.ensure_path(znodes.TOPICS)
        self.admin.create(znodes.topic(name), node.encode())
        self.reassignments.topic_created(name, node)

    def _delete_topic(self, name: str) -> None:
        if self._exists(name) and self.admin.get(znodes.delete_topic(name)) is None:
            self.admin.create_recursive(znodes.delete_topic(name))
            self._deleted[name] = None
            self.world.doomed.add(name)

    def _reassign(self, name: str, replicas: tuple[int, ...] | None, *, is_ordered: bool) -> None:
        """replicas: None to cancel.  An operator waits until no log counts on records that a power failure took."""
        topic_partitions = [tp for tp, _ in self._existing() if tp.topic == name]
        if not topic_partitions:
            return
        if is_ordered and replicas is not None:
            if self._may_reassign(topic_partitions) and self.admin.get(znodes.REASSIGN_PARTITIONS) is None:
                targets = dict.fromkeys(topic_partitions, replicas)
                self._try_create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment(targets))
                self.reassignments.order(targets)
            return
        node = self.admin.get(znodes.CONTROLLER)
        if node is None:
            self.tell("nobody is the controller")
            return
        broker = znodes.ControllerZNode.decode(node.data).broker_id
        orders_before = self.reassignments.orders

        def deliver() -> None:
            node = self.nodes.get(broker)
            if node is None or not self._may_reassign(topic_partitions):
                return
            answered = self.reassignments.ask(broker, dict.fromkeys(topic_partitions, replicas), orders_before)

            def on_done(result: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
                answered(result)
                errors = [result] if isinstance(result, ApiError) else list(result.values())
                self.tell(f"broker {broker} answers: {', '.join(type(e).__name__ if e else 'none' for e in errors)}")

            node.alter_reassignments(dict.fromkeys(topic_partitions, replicas), on_done)

        self.network.send(Message(f"AlterPartitionReassignments {name}", ADMIN, broker, deliver))

    def _may_reassign(self, topic_partitions: Iterable[TopicPartition]) -> bool:
        lost = {tp for _, tp in self._tainted}
        if lost.isdisjoint(topic_partitions):
            return True
        self.tell("no reassignment: a broker has lost what its ISR counts on")
        return False

    def registration_of(self, broker: int) -> int | None:
        """See reassignments.World."""
        node = self.admin.get(znodes.broker_id(broker))
        return node.czxid if node is not None else None

    def controller_epoch(self) -> int:
        """See reassignments.World."""
        return self.tree.controller_epoch

    def has_log(self, broker: int, tp: TopicPartition) -> bool | None:
        """See reassignments.World."""
        node = self.nodes.get(broker)
        return node.has_log(tp) if node is not None else None

    def _topic_written(self, session_id: int, name: str, node: znodes.TopicZNode) -> None:
        broker = self._broker_of(session_id)
        live = self.nodes[broker].controller.context.live_brokers.values() if broker in self.nodes else ()
        for sentence in self.reassignments.topic_written(name, node, {b.broker_id: b.epoch for b in live}):
            self.trace.append(sentence)
            self.tell(f"{sentence} (by broker {broker})")

    # -- events -----------------------------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        match event:
            case CreateTopic():
                self._create_topic(event.topic)
            case DeleteTopic():
                self._delete_topic(f"t{event.topic}")
            case PreferredElection():
                partitions = [tp for tp, _ in self._existing() if tp.topic == f"t{event.partition}"]
                if partitions:
                    self._try_create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partitions(partitions))
            case Reassign():
                self._reassign(f"t{event.topic}", event.replicas, is_ordered=event.is_ordered)
            case CancelReassignment():
                self._reassign(f"t{event.topic}", None, is_ordered=False)
            case ExpireSession() | Pause() if not self.may_die(event.broker):
                self.tell(f"broker {event.broker} goes on: another one has lost what it has")
            case FlipBit():
                self._flip_bit(event.broker, TopicPartition(f"t{event.topic}", 0), event.share)
            case RemoveLog():
                self._remove_log(event.broker, TopicPartition(f"t{event.topic}", 0))
            case DamageRecords():
                self._damage_records(event.broker, TopicPartition(f"t{event.topic}", 0), event.share, event.for_ms)
            case ExpireSession():
                if event.broker in self.nodes:
                    self.tree.expire(self.nodes[event.broker].session.session_id)
            case ExpireInReads():
                if event.broker in self.nodes:
                    session = self.nodes[event.broker].session
                    session.reads_left = event.calls
                    session.on_read = lambda: self._end_session_of(event.victim)
            case DeleteController():
                if self.admin.get(znodes.CONTROLLER) is not None:
                    self.admin.delete(znodes.CONTROLLER)
            case DieInWrite():
                if event.broker in self.nodes:
                    self.nodes[event.broker].session.dies_after = event.writes
                    self._down_ms[event.broker] = event.down_ms
            case LateRequests():
                self._late_ms.setdefault(event.broker, deque()).extend([event.by_ms] * event.count)
            case LoseStoreAnswer():
                if event.broker in self.nodes:
                    self.nodes[event.broker].session.loses_answer_after = event.writes
            case Pause():
                super()._do(event)
                if event.broker in self.nodes:
                    self._expire_later(event.broker, lambda: self.network.paused_until_ms(event.broker))
            case Cut() if STORE in (event.a, event.b):
                self._disconnect(event.a if event.b == STORE else event.b, event.for_ms)
            case _:
                super()._do(event)

    def _try_create(self, path: str, data: bytes) -> None:
        try:
            self.admin.create_recursive(path, data)
        except NodeExists:
            pass

    # -- sessions ---------------------------------------------------------------------------------------------------

    def _disconnect(self, broker: int, for_ms: int) -> None:
        node = self.nodes.get(broker)
        if node is None or not self.may_die(broker):
            return
        until_ms = max(self._disconnected_until_ms.get(broker, 0), self.agenda.now_ms + for_ms)
        self._disconnected_until_ms[broker] = until_ms
        if node.session._is_connected:
            node.session.disconnect()
        self._expire_later(broker, lambda: self._disconnected_until_ms.get(broker, 0))

        def reconnect() -> None:
            is_over = self._disconnected_until_ms.get(broker, 0) <= self.agenda.now_ms
            if is_over and self.nodes.get(broker) is node and not node.session._is_connected:
                node.session.reconnect()

        self.agenda.after(for_ms, f"broker {broker} may reach the store", reconnect)

    def _end_session_of(self, broker: int) -> None:
        node = self.admin.get(znodes.broker_id(broker))
        if node is not None and self.may_die(broker):
            self.tell(f"the session of broker {broker} expires in the middle of another one's reads")
            self.tree.expire(node.ephemeral_owner)

    def _expire_later(self, broker: int, silent_until_ms: Callable[[], int]) -> None:
        """The broker says nothing from now on: if that lasts, its session ends."""
        session_id = self.nodes[broker].session.session_id

        def expire() -> None:
            if silent_until_ms() > self.agenda.now_ms:
                self.tree.expire(session_id)

        self.agenda.after(SESSION_TIMEOUT_MS, f"session of broker {broker} may expire", expire)

    def _state_written(
        self, session_id: int, tp: TopicPartition, state: znodes.PartitionStateZNode, version: int
    ) -> None:
        broker = self._broker_of(session_id)
        old = self.partitions.get(tp)
        if old is None or old.leader_epoch != state.leader_epoch:
            # A leader that changes its ISR leaves the epochs alone: this is a controller's.
            try:
                invariants.the_last_controller_alone_writes(
                    self.world, tp, state.controller_epoch, broker, self.tree.controller_epoch
                )
            except BrokenInvariant as error:
                self._found(error)
        replicas = self._assignment(tp.topic)[tp.partition]
        self.partitions[tp] = LeaderAndIsrUpdate(tp, state.leader, state.leader_epoch, state.isr, replicas, version)
        if old is not None and old.leader_epoch == state.leader_epoch:
            joined = frozenset(state.isr).difference(old.isr)
            registrations = {member: self.registration_of(member) for member in joined}
            live = {member: epoch for member, epoch in registrations.items() if epoch is not None}
            self._isr_changed_by_leader(broker, tp, joined, live)
        self._tainted -= {(other, of) for other, of in self._tainted if of == tp and other not in state.isr}
        # In a new partition there was nothing to lose.  An unclean election counts on nothing; if it chooses a broker
        # that is down, nobody else can end the wait for that one.
        if old is not None and not self.settings.unclean:
            joined = set(state.isr).difference(old.isr)
            self._tainted |= {(other, tp) for other in joined & self._without_power}
        text = f"leader {state.leader} epoch {state.leader_epoch} ISR {list(state.isr)}"
        self.trace.append(f"state {tp} {text} by {broker}")
        self.tell(f"{tp}: broker {broker} stores {text}")

    def _broker_of(self, session_id: int) -> int:
        session = self.tree._sessions.get(session_id)
        return session.broker if isinstance(session, Session) else -1

    # -- steps ------------------------------------------------------------------------------------------------------

    def _next(self) -> str:
        name = "a broker is killed"
        try:
            name = super()._next()
        except Killed as killed:
            self.tell(f"broker {killed.broker} is killed after a write")
            if killed.broker in self.nodes:
                self._die(killed.broker, "is killed", 1.0, SESSION_TIMEOUT_MS // 2, self._down_ms[killed.broker])
        if self._unexpected is not None:
            raise self._unexpected
        self.reassignments.check_leaving()
        changed = self.tree.changes != self._seen_changes
        self._seen_changes = self.tree.changes
        for broker, node in self.nodes.items():
            session = node.session
            if not node.has_store_events and (session._session_events or (changed and session._is_connected)):
                node.has_store_events = True
                self._tell_of_store_events(broker, node)
            if node.has_controller_events and not node.has_turn:
                node.has_turn = True
                self.call_later(broker, 1, f"controller of broker {broker}", lambda node=node: self._turn(node))
        return name

    def _tell_of_store_events(self, broker: int, node: ControlledNode) -> None:
        """What is late is all that comes after it, too: a session is one connection."""

        def deliver() -> None:
            node.has_store_events = False
            node.session.pump()

        self.network.send(Message("store events", STORE, broker, deliver, is_reliable=True))

    def _turn(self, node: ControlledNode) -> None:
        node.has_turn = False
        error = node.process_controller_event()
        if error is not None and not isinstance(error, ConnectionLost | SessionExpired | ControllerMoved):
            self._unexpected = self._unexpected or error

    def check(self) -> None:
        hosted = {broker: node.replica_manager for broker, node in self.nodes.items()}
        for broker, tp in list(self.observer.copies):
            if broker not in hosted or not isinstance(hosted[broker].get_partition(tp), Partition):
                del self.observer.copies[broker, tp]
        super().check()

    # -- lives ------------------------------------------------------------------------------------------------------

    def may_die(self, broker: int) -> bool:
        """Whether records that were acknowledged stay where an election can find them (KIP-966)."""
        for tp, _ in self._existing():
            state = self.partitions.get(tp)
            if state is None or broker not in state.isr or tp.topic in self._deleted:
                continue
            others = [member for member in state.isr if member != broker]
            is_tainted = any((member, tp) in self._tainted for member in others)
            if is_tainted and not self._safe(tp, others):
                return False
        return True

    def _may_lose_power(self, broker: int) -> bool:
        states = [state for tp, state in self.partitions.items() if self._keeps_records(tp.topic)]
        return all(
            self._safe(state.topic_partition, [member for member in state.isr if member != broker])
            for state in states
            if broker in state.isr
        )

    def _safe(self, tp: TopicPartition, members: list[int]) -> bool:
        return self._stays_untainted(tp, [member for member in members if self._is_well(member)])

    def _stays_untainted(self, tp: TopicPartition, members: list[int]) -> bool:
        """Whether one of these has all its records, and no reassignment takes it away."""
        return any((member, tp) not in self._tainted and self.reassignments.stays(member, tp) for member in members)

    def _is_well(self, broker: int) -> bool:
        node = self.nodes.get(broker)
        if node is None or broker in self._stopping or self.network.paused_until_ms(broker) > self.agenda.now_ms:
            return False
        registration = self.admin.get(znodes.broker_id(broker))
        is_registered = registration is not None and registration.czxid == node.broker_epoch
        return is_registered and node.session._is_connected

    def _crash(self, event: Crash) -> None:
        node = self.nodes.get(event.broker)
        if node is None:
            return
        if not self.may_die(event.broker):
            self.tell(f"broker {event.broker} goes on: another one has lost what it has")
        elif event.how == "stops":
            if event.broker not in self._stopping:
                self._stopping.add(event.broker)
                self._ask_to_stop(node, event, 0)
        else:
            how = event.how if self._may_lose_power(event.broker) else "is killed"
            self._die(event.broker, how, event.kept, min(event.noticed_ms, SESSION_TIMEOUT_MS), event.down_ms)

    def _ask_to_stop(self, node: ControlledNode, event: Crash, attempt: int) -> None:
        """A controlled shutdown: ask the controller until nothing is led here, or in vain."""
        broker = node.broker_id
        if self.nodes.get(broker) is not node:
            return
        controller = node.metadata_cache.snapshot.controller_id
        if attempt >= SHUTDOWN_ATTEMPTS or controller < 0:
            self._leave(node, event)
            return

        def reply(error: ApiError | None, remaining: int) -> None:
            if self.nodes.get(broker) is node and error is None and not remaining:
                self._leave(node, event)

        def deliver() -> None:
            target = self.nodes.get(controller)
            if target is not None:
                target.controlled_shutdown(broker, node.broker_epoch, on_done)

        def on_done(error: ApiError | None, remaining) -> None:
            answer = Message("ControlledShutdown reply", controller, broker, lambda: reply(error, len(remaining)))
            self.network.send(answer)

        self.network.send(Message("ControlledShutdown", broker, controller, deliver))
        self.call_later(
            broker, SHUTDOWN_RETRY_MS, f"shutdown of {broker}", lambda: self._ask_to_stop(node, event, attempt + 1)
        )

    def _leave(self, node: ControlledNode, event: Crash) -> None:
        broker = node.broker_id
        if not self.may_die(broker):
            self.call_later(broker, SHUTDOWN_RETRY_MS, f"shutdown of {broker}", lambda: self._leave(node, event))
            return
        if self.nodes.pop(broker, None) is not node:
            return
        self.tell(f"broker {broker} has stopped")
        self._mend(broker)
        node.leave()
        for name in self._unanswered.get(broker, ()):
            invariants.a_waiting_request_is_answered_once(f"at a clean stop {name}", 0)
        self._end_life(broker, event.down_ms)

    def _die(self, broker: int, how: str, kept: float, noticed_ms: int, down_ms: int) -> None:
        node = self.nodes.pop(broker)
        self._mend(broker)
        loses_power = how == "loses power"
        cut = self.disks[broker].crash(node.log_manager, loses_power=loses_power, kept=kept, may_leave_holes=True)
        self.trace.append(f"crash {broker} {cut}")
        if loses_power:
            self._without_power.add(broker)
            self._boots[broker] = self._boots.get(broker, 0) + 1
            self._tainted |= {(broker, tp) for tp, state in self.partitions.items() if broker in state.isr}
        session_id = node.session.session_id
        self.agenda.after(noticed_ms, f"session of broker {broker} ends", lambda: self.tree.expire(session_id))
        self._end_life(broker, down_ms)

    def _flip_bit(self, broker: int, tp: TopicPartition, share: float) -> None:
        if not self._may_lose_records(broker, tp):
            return
        offset = self.disks[broker].flip_bit(f"{tp.topic}-{tp.partition}", share)
        if offset is not None:
            self.tell(f"{tp}: the batch at {offset} is damaged on the disk of broker {broker}")
            self.trace.append(f"damage {broker} {tp} {offset}")
            self._taint(broker, tp)

    def _remove_log(self, broker: int, tp: TopicPartition) -> None:
        if not self._may_lose_records(broker, tp):
            return
        high_watermark = self.disks[broker].remove_log(tp)
        if high_watermark is not None:
            self.tell(f"{tp}: the log of broker {broker} is removed, with its records up to {high_watermark}")
            self.trace.append(f"remove {broker} {tp} {high_watermark}")
            self._taint(broker, tp)

    def _may_lose_records(self, broker: int, tp: TopicPartition) -> bool:
        """Whether a broker that is down may: not where an election could find them in no other replica.

        Unless another member is well, a controller may take all members but this one out of the ISR: because this one
        is still registered, or is the last one (RSM-08).  Where all brokers are down, a member starts first (_start()).
        """
        state = self.partitions.get(tp)
        if broker in self.nodes or state is None or not self._keeps_records(tp.topic):
            return False
        others = [member for member in state.isr if member != broker]
        is_registered = self.admin.get(znodes.broker_id(broker)) is not None
        may_be_down = not self.nodes and not self._tainted and not is_registered
        has_them = self._stays_untainted if may_be_down else self._safe
        if broker in state.isr and not has_them(tp, others):
            self.tell(f"{tp}: no other replica has what would be lost")
            return False
        return True

    def _taint(self, broker: int, tp: TopicPartition) -> None:
        if broker in self.partitions[tp].isr:
            self._tainted.add((broker, tp))

    def _damage_records(self, broker: int, tp: TopicPartition, share: float, for_ms: int) -> None:
        """Not where an election could find the records in no other replica."""
        node, state = self.nodes.get(broker), self.partitions.get(tp)
        leader = self.observer.copies.get((broker, tp))
        if node is None or state is None or leader is None or node.leads(tp) != state.leader_epoch:
            return
        if not isinstance(leader.state, LeaderState):
            return
        if not self._keeps_records(tp.topic) or not self._safe(tp, [m for m in state.isr if m != broker]):
            return
        # As the leader has heard last, also of followers that are down.
        ends = [follower.state.log_end_offset for follower in leader.state.replicas.values()]
        batches = list(leader.batches.since(max(0, min(ends)))) if ends else []
        if not batches or leader.log.is_offline:
            return
        batch = batches[min(int(share * len(batches)), len(batches) - 1)]
        segment = leader.log.segments.floor(batch.base_offset)
        place = segment.translate_offset(batch.base_offset)
        damage = DamagedBatch(leader.log, segment.log_path, place.position, bytes(batch.data))
        self._damaged.setdefault(broker, []).append(damage)
        self._tainted.add((broker, tp))
        self.tell(f"{tp}: the batch at {batch.base_offset} is damaged at broker {broker}")
        if for_ms:
            self._disks_well_at_ms = max(self._disks_well_at_ms, self.agenda.now_ms + for_ms)
            self.agenda.after(for_ms, f"the disk of broker {broker} is well again", lambda: self._mend(broker))

    def _mend(self, broker: int) -> None:
        """The disk returns what was written, where the broker has not noticed that it did not."""
        for damage in self._damaged.pop(broker, ()):
            if damage.log.lost_records is None:
                damage.mend()
                self.observer.read_again(broker, damage.log.topic_partition)
                self._tainted.discard((broker, damage.log.topic_partition))
                self.tell(f"{damage.log.topic_partition}: the disk of broker {broker} is well again")

    def _end_life(self, broker: int, down_ms: int) -> None:
        self.network.close_connections(broker)
        self.reassignments.broker_ended(broker)
        self._stopping.discard(broker)
        for of_broker in (self._slow_until_ms, self._ticks_at_ms, self._unanswered, self._disconnected_until_ms):
            of_broker.pop(broker, None)  # type: ignore[attr-defined]
        self._lives[broker] = self._lives.get(broker, 0) + 1
        self.observer.forget(broker)
        down_ms = START_RETRY_MS if self._all_start else down_ms
        self.agenda.after(down_ms, f"broker {broker} starts", lambda: self._start(broker))

    def _start(self, broker: int) -> None:
        if broker in self.nodes:
            return
        if self.admin.get(znodes.broker_id(broker)) is not None:
            # The product waits for the end of its old session.
            self.agenda.after(START_RETRY_MS, f"broker {broker} tries to start", lambda: self._start(broker))
            return
        if self._starts_after_a_member(broker):
            self.agenda.after(START_RETRY_MS, f"broker {broker} tries to start", lambda: self._start(broker))
            return
        session = Session(self.tree, broker, lambda: self.may_die(broker), lambda: self._disconnect(broker, 20))
        path = self.disks[broker].path
        boot_id = f"boot {self._boots.get(broker, 0)}"
        node = self.nodes[broker] = ControlledNode(broker, path, self.time, self, self.settings, session, boot_id)
        self.reassignments.broker_started(broker, {tp for tp, _ in self._existing()})
        node.start()
        # It is in no ISR that counts on its lost records, and none takes it in because of an earlier life.
        self._without_power.discard(broker)
        self.tell(f"broker {broker} is registered with epoch {node.broker_epoch}")

    def _starts_after_a_member(self, broker: int) -> bool:
        """Whether all brokers are down, and it is no member of an ISR of which one has lost records (decision 22)."""
        states = [self.partitions[tp] for _, tp in self._tainted if tp in self.partitions]
        return not self.nodes and any(len(state.isr) > 1 and broker not in state.isr for state in states)

    # -- messages ---------------------------------------------------------------------------------------------------

    def send_isr_change(self, broker: int, change: IsrChange, reply: OnIsrChanged) -> None:
        raise AssertionError("ISRs are changed in the store")

    def send_controller_request(
        self, source: int, target: int, request: Request, reply: Callable[[Request], None]
    ) -> None:
        """See ControlledSurroundings."""
        reply = self._while_alive(source, reply)
        link = (source, target)
        number = self._sent[link] = self._sent.get(link, 0) + 1
        name = type(request).__name__

        def answer(response: Request) -> None:
            self.network.send(Message(f"{name} reply", target, source, lambda: reply(response)))

        def deliver() -> None:
            node = self.nodes.get(target)
            if node is None or number < self._delivered.get(link, 0):
                return
            self._delivered[link] = number
            is_earlier = 0 <= request.broker_epoch < node.session.known_registration
            with self._unchanged_if_outdated(node, request.controller_epoch, is_earlier):
                node.serve_controller(request, answer)

        message = Message(f"{name} epoch {request.controller_epoch}", source, target, deliver)
        late_ms = self._late_ms.get(source)
        if late_ms:
            self.agenda.after(late_ms.popleft(), f"late {name}", lambda: self.network.send(message))
        else:
            self.network.send(message)

    # -- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults.  First with the brokers that run, then with all."""
        self.network.heal()
        self._slow_until_ms.clear()
        self._disconnected_until_ms.clear()
        self._late_ms.clear()
        for node in self.nodes.values():
            node.session.dies_after = node.session.loses_answer_after = node.session.reads_left = 0
            if not node.session._is_connected:
                node.session.reconnect()
        self.run_until(max(self.agenda.now_ms, self._disks_well_at_ms))
        self._wait("a_partition_with_a_live_isr_member_has_a_leader", self._leaderless, QUIET_WITHIN_MS)
        self._all_start = True
        for broker in range(self.settings.brokers):
            self._start(broker)
        # With the step what the brokers are to do is seen; the next event may be a minute away.
        self.agenda.after(0, "all brokers start", lambda: None)
        self._wait("a_partition_with_a_live_isr_member_has_a_leader", self._leaderless, QUIET_WITHIN_MS)
        self._wait("deleted_topics_stay_deleted", self._not_deleted, SETTLES_WITHIN_MS)
        self._wait("a_reassignment_ends_with_its_target_replicas", self._not_reassigned, SETTLES_WITHIN_MS)
        self._wait("the_replicas_become_equal", self._unequal, SETTLES_WITHIN_MS)
        for tp, replicas in self._existing():
            invariants.the_replicas_become_equal(tp, self._copies(tp, replicas))
            if not self.settings.unclean:
                leader = self.observer.copies[self.partitions[tp].leader, tp]
                invariants.an_idempotent_record_is_there_once(leader, self.clients.idempotent_payloads[tp])
        self.run_until(self.agenda.now_ms + 1000)
        self._wait("deleted_topics_stay_deleted", self._not_deleted, 0)
        self._wait("a_reassignment_ends_with_its_target_replicas", self._not_reassigned, 0)

    def _wait(self, name: str, missing: Callable[[], str | None], within_ms: int) -> None:
        end_ms = self.agenda.now_ms + within_ms
        while (what := missing()) is not None:
            if self.agenda.now_ms >= end_ms:
                raise BrokenInvariant(name, what)
            for _ in range(20):
                self.step()

    def _leaderless(self) -> str | None:
        active = [broker for broker, node in self.nodes.items() if node.controller.is_active]
        if len(active) != 1 and self.nodes:
            return f"active controllers: {active}"
        for tp, replicas in self._existing():
            if tp.topic in self._deleted:
                continue
            state = self.partitions.get(tp)
            members = replicas if state is None else state.isr
            live = [member for member in members if member in self.nodes]
            if not live:
                continue
            if state is None:
                return f"{tp} has no state, of its replicas {live} live"
            if state.leader not in self.nodes:
                return f"{tp} is led by {state.leader}, of its ISR {list(state.isr)} {live} live"
            if self.nodes[state.leader].leads(tp) != state.leader_epoch:
                return f"{tp}: broker {state.leader} does not lead with epoch {state.leader_epoch}"
            leaders = [broker for broker, node in self.nodes.items() if node.leads(tp) is not None]
            if leaders != [state.leader]:
                return f"{tp}: its leader is broker {state.leader}, and the brokers {leaders} lead"
        return None

    def _not_deleted(self) -> str | None:
        for name in self._deleted:
            if self._exists(name) or self.admin.get(znodes.delete_topic(name)) is not None:
                return f"{name} is still in the store"
            for broker, node in self.nodes.items():
                hosted = [p.topic_partition for p in node.replica_manager.hosted_partitions.all()]
                logs = [log.topic_partition for log in node.log_manager.all_logs()]
                left = [
                    tp for tp in (*hosted, *logs) if tp.topic == name and (broker, tp) not in self.reassignments.left
                ]
                if left:
                    return f"broker {broker} still has {left[0]}"
        return None

    def _unequal(self) -> str | None:
        if len(self.nodes) < self.settings.brokers:
            return f"running: {sorted(self.nodes)}"
        for tp, replicas in self._existing():
            state = self.partitions.get(tp)
            if state is None or set(state.isr) != set(replicas):
                return f"{tp}: ISR {None if state is None else list(state.isr)} of {replicas}"
            copies = self._copies(tp, replicas)
            text = "; ".join(str(copy) for copy in copies)
            if not self._are_equal(copies, self.observer.copies.get((state.leader, tp)), len(replicas)):
                return f"{tp}: {text}"
        return None

    def _not_reassigned(self) -> str | None:
        for tp, _ in self._existing():
            unfinished = self.reassignments.unfinished(tp, range(self.settings.brokers))
            if unfinished is not None:
                return unfinished
        if self.admin.get(znodes.REASSIGN_PARTITIONS) is not None:
            return f"{znodes.REASSIGN_PARTITIONS} is still in the store"
        return None

    def _copies(self, tp: TopicPartition, replicas: Collection[int]) -> list[Copy]:
        return [copy for copy in self.observer.of(tp) if copy.broker in replicas]

    def _are_equal(self, copies: list[Copy], leader: Copy | None, count: int) -> bool:
        offsets = {offset for copy in copies for offset in (copy.log_end_offset, copy.high_watermark)}
        if leader is None or len(copies) < count or len(offsets) != 1:
            return False
        return all(copy.log_start_offset >= leader.log_start_offset for copy in copies)

    def close(self) -> None:
        super().close()
        self.admin.close()
