"""A simulated cluster: runs a history, step by step, and checks the invariants after each.

A step is an event of the history, a message that arrives, a turn of a fetcher, or what a clock makes due.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar
from uuid import UUID

from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.metadata.metadata_cache import PartitionInfo, TopicInfo
from kcore.protocol.messages.fetch import FetchResponse
from kcore.replica.fetcher.leader_endpoint import LeaderReply, LeaderRequest
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replica.partition_state_store import OnIsrChanged, StoredIsr
from kcore.replication.remote_leader_endpoint import SentFetch
from kcore.server.quotas.replication_quota_manager import UNBOUNDED
from tests.sim import invariants
from tests.sim.clients import Clients
from tests.sim.controller import SimController
from tests.sim.disk import Disk
from tests.sim.events import (
    CONTROLLER,
    Consume,
    Crash,
    Cut,
    Delay,
    DeleteRecords,
    Duplicate,
    Elect,
    Event,
    History,
    Lose,
    NewController,
    Pause,
    Produce,
    ProduceIdempotent,
    SlowDisk,
    StaleUpdate,
)
from tests.sim.invariants import BrokenInvariant, World
from tests.sim.model import Change, Observer
from tests.sim.network import Agenda, Message, Network
from tests.sim.node import IsrChange, Node

#: An answer may come this much after its time: the clock's next tick.
ANSWER_GRACE_MS = 50
#: Replicas that are not equal this long after the last fault never will be.
SETTLES_WITHIN_MS = 15_000
#: The faults last this long after the last event; then everything heals.
AFTERMATH_MS = 1000
_NEVER = 1 << 62
T = TypeVar("T")


class Cluster:
    """Brokers, a controller, the network between them, and clients; in a directory of its own.

    The controller is a script: controller.py.  controlled.py has a cluster with the product's.
    """

    #: The state of each partition, as it is stored.
    partitions: dict[TopicPartition, LeaderAndIsrUpdate]

    def __init__(self, directory: str, history: History) -> None:
        self.history = history
        self.settings = settings = history.settings
        self.time = MockTime()
        self.agenda = Agenda(self.time)
        self.network = Network(self.agenda, settings.latency_ms)
        self._make_controller()
        self.observer = Observer()
        self.world = World(settings.unclean, self.partitions, self.observer.copies)
        self.clients = Clients(self)
        self.disks = [Disk(os.path.join(directory, str(broker))) for broker in range(settings.brokers)]
        self.nodes: dict[int, Node] = {}
        self.steps = 0
        #: Events by kind, as far as they have happened.
        self.events: dict[str, int] = {}
        #: Everything that has happened, and what of it a reader wants to know.
        self.trace: list[str] = []
        self.story: list[str] = []
        self._broken: BrokenInvariant | None = None
        self._checks: list[Callable[[], None]] = []
        #: Crashes and stops so far, by broker.
        self._lives: dict[int, int] = {}
        self._slow_until_ms: dict[int, int] = {}
        self._ticks_at_ms: dict[int, int] = {}
        self._unanswered: dict[int, dict[str, None]] = {}
        self._requests = 0
        self._begin()
        for event in history.events:
            self.agenda.at(event.at_ms, type(event).__name__, lambda event=event: self._apply(event))

    def _make_controller(self) -> None:
        self.controller = SimController(self._send_update, self._send_metadata, unclean=self.settings.unclean)
        self.partitions = self.controller.partitions

    def _begin(self) -> None:
        """Start the brokers, make the partitions."""
        topics = dict.fromkeys(tp.topic for tp in self._partitions())
        self.world.topic_ids.update((topic, UUID(int=number)) for number, topic in enumerate(topics, start=1))
        for broker in range(self.settings.brokers):
            self._start(broker)
        for tp in self._partitions():
            self.controller.create(tp, self._replicas(tp.partition), self.world.topic_ids[tp.topic])

    def _partitions(self) -> list[TopicPartition]:
        return [self.tp(number) for number in range(self.settings.partitions)]

    def _replicas(self, number: int) -> list[int]:
        return [(number + at) % self.settings.brokers for at in range(self.settings.brokers)]

    @property
    def trace_hash(self) -> str:
        """Of everything that has happened so far."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def tp(self, number: int) -> TopicPartition:
        return TopicPartition("t", number % self.settings.partitions)

    def leader_of(self, tp: TopicPartition) -> int:
        """The broker that the controller has elected; the preferred one if there is none, -1 without a partition."""
        state = self.partitions.get(tp)
        if state is None:
            return -1
        return state.leader if state.leader >= 0 else state.replicas[0]

    def generation(self, tp: TopicPartition) -> int:
        """How often a topic of this name was made before: what a client asked of an earlier one is over."""
        return 0

    def tell(self, sentence: str) -> None:
        """Note something for the reader of a history."""
        self.story.append(f"{self.agenda.now_ms:6d} ms  {sentence}")

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole history, then settle()."""
        self.run_until(max((event.at_ms for event in self.history.events), default=0) + AFTERMATH_MS)
        self.settle()

    def run_until(self, at_ms: int) -> None:
        while (due_ms := self.agenda.next_due_ms()) is not None and due_ms <= at_ms:
            self.step()

    def step(self) -> None:
        name = self._next()
        self.steps += 1
        if self._broken is not None:
            raise self._broken
        self.trace.append(f"{self.agenda.now_ms} {name}")
        checks, self._checks = self._checks, []
        for broker, node in self.nodes.items():
            self._schedule_tick(broker, node)
        self.check()
        for check in checks:
            check()

    def _next(self) -> str:
        return self.agenda.step()

    def check(self) -> None:
        """Check the invariants of whatever has changed since the last time."""
        changes = self.observer.changes(self.nodes)
        for change in changes:
            self.disks[change.copy.broker].note_flushes(self.nodes[change.copy.broker].log_manager)
            self._note(change)
        if changes:
            invariants.check_changes(self.world, changes)

    def check_within_a_step(self) -> None:
        """See node.Surroundings."""
        try:
            self.check()
        except BrokenInvariant as error:
            self._found(error)

    def _found(self, error: BrokenInvariant) -> None:
        """step() raises it: between here and there the product may catch what is raised."""
        self._broken = self._broken or error

    def check_later(self, check: Callable[[], None]) -> None:
        """At the end of this step, when the copies are what the replicas are."""
        self._checks.append(check)

    def check_timeout(self, node: Node, tp: TopicPartition, name: str, is_done: Callable[[], bool]) -> None:
        """See node.Surroundings."""
        try:
            invariants.no_request_times_out_when_all_is_done(f"{tp}: {name}", is_done())
        except BrokenInvariant as error:
            self._found(error)

    def _note(self, change: Change) -> None:
        copy = change.copy
        tp = copy.topic_partition
        offsets = (copy.log_start_offset, copy.log_end_offset, copy.high_watermark)
        self.trace.append(f"{copy.broker} {tp.partition} {offsets}")
        if self.settings.retention_ms >= 0:
            self.world.allow_start_at(tp, copy.log_start_offset)
        if change.begins_to_lead or (change.was_opened and copy.log_end_offset):
            self.tell(f"{tp}: {copy}")
        elif change.was_rewritten and not change.was_opened:
            self.tell(f"{tp}: truncated from {change.old_log_end_offset}: {copy}")

    # -- time -------------------------------------------------------------------------------------------------------

    def _schedule_tick(self, broker: int, node: Node) -> None:
        due_ms = node.next_due_ms(self._slow_until_ms.get(broker, 0))
        if due_ms is not None and due_ms < self._ticks_at_ms.get(broker, _NEVER):
            self._ticks_at_ms[broker] = due_ms
            delay_ms = due_ms - self.agenda.now_ms
            self.call_later(broker, delay_ms, f"clock of broker {broker}", lambda: self._tick(broker))

    def _tick(self, broker: int) -> None:
        self._ticks_at_ms.pop(broker, None)
        self.nodes[broker].tick(disk_is_slow=self._slow_until_ms.get(broker, 0) > self.agenda.now_ms)
        self.disks[broker].note_flushes(self.nodes[broker].log_manager)

    def call_later(self, broker: int, delay_ms: int, name: str, action: Callable[[], None]) -> None:
        """See node.Surroundings."""
        life = self._lives.get(broker, 0)

        def call() -> None:
            if self._lives.get(broker, 0) != life:
                return
            paused_until_ms = self.network.paused_until_ms(broker)
            if paused_until_ms > self.agenda.now_ms:
                self.agenda.at(paused_until_ms, name, call)
            else:
                action()

        self.agenda.after(delay_ms, name, call)

    def _while_alive(self, broker: int, action: Callable[[T], None]) -> Callable[[T], None]:
        """The same until the broker crashes or stops: an answer to its next life is not one to this."""
        life = self._lives.get(broker, 0)

        def call(argument: T) -> None:
            if self._lives.get(broker, 0) == life:
                action(argument)

        return call

    def must_be_answered(self, broker: int, name: str, within_ms: int) -> Callable[[], None]:
        """See node.Surroundings."""
        self._requests += 1
        name = f"{name} (request {self._requests})"
        answers = 0
        waiting = self._unanswered.setdefault(broker, {})
        waiting[name] = None

        def answered() -> None:
            nonlocal answers
            answers += 1
            waiting.pop(name, None)
            if answers > 1:
                try:
                    invariants.a_waiting_request_is_answered_once(name, answers)
                except BrokenInvariant as error:
                    self._found(error)

        def check() -> None:
            invariants.a_waiting_request_is_answered_once(name, answers)

        def deadline() -> None:
            # The broker may just be back from a pause; its own clock comes first.
            self.call_later(broker, ANSWER_GRACE_MS, f"deadline of {name}", check)

        self.call_later(broker, within_ms, f"deadline of {name}", deadline)
        return answered

    # -- events -----------------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        name = type(event).__name__
        self.events[name] = self.events.get(name, 0) + 1
        self.tell(f"> {event}")
        self._do(event)

    def _do(self, event: Event) -> None:
        match event:
            case Produce():
                self.clients.produce(event)
            case ProduceIdempotent():
                self.clients.produce_idempotent(event)
            case Consume():
                self.clients.consume(event)
            case DeleteRecords():
                self.clients.delete_records(event)
            case Elect():
                self.controller.elect(self.tp(event.partition), event.broker)
            case NewController():
                self.controller.move()
            case StaleUpdate():
                past = self.controller.past[self.tp(event.partition)]
                update, broker_epochs, controller_epoch = past[max(0, len(past) - 1 - event.back)]
                if event.broker in broker_epochs:
                    self._send_update(event.broker, broker_epochs[event.broker], update, controller_epoch)
            case Crash():
                self._crash(event)
            case Pause():
                self.network.pause(event.broker, event.for_ms)
            case SlowDisk():
                self._slow_until_ms[event.broker] = self.agenda.now_ms + event.for_ms
            case Cut():
                self.network.cut(event.a, event.b, event.for_ms)
            case Lose():
                self.network.lose(event.source, event.target, event.count)
            case Delay():
                self.network.delay(event.source, event.target, event.by_ms, event.count)
            case Duplicate():
                self.network.duplicate(event.source, event.target, event.after_ms, event.count)
            case _:
                raise TypeError(repr(event))

    def _crash(self, event: Crash) -> None:
        broker = event.broker
        node = self.nodes.pop(broker, None)
        if node is None:
            return
        # The last member of an ISR keeps what it wrote: else an acknowledged record could be nowhere.
        is_last = any(
            broker in state.isr and not any(member in self.nodes for member in state.isr if member != broker)
            for state in self.controller.partitions.values()
        )
        if is_last:
            # It is the last one that has everything.  If the controller did not yet know that another one is down, it
            # would elect that one, which may have lost its tail; Kafka loses records then (KIP-966 is about that).
            for other in [other for other in self.controller.broker_epochs if other not in self.nodes]:
                if other != broker:
                    self.controller.broker_failed(other)
        self.network.close_connections(broker)
        self._slow_until_ms.pop(broker, None)
        self._ticks_at_ms.pop(broker, None)
        if event.how == "stops":
            node.stop()
            for name in self._unanswered.get(broker, ()):
                invariants.a_waiting_request_is_answered_once(f"at a clean stop {name}", 0)
        else:
            loses_power = event.how == "loses power" and (self.settings.unclean or not is_last)
            cut = self.disks[broker].crash(node.log_manager, loses_power=loses_power, kept=event.kept)
            self.trace.append(f"crash {broker} {cut}")
        self._lives[broker] = self._lives.get(broker, 0) + 1
        self._unanswered.pop(broker, None)
        self.observer.forget(broker)
        self.agenda.after(event.noticed_ms, f"broker {broker} is missed", lambda: self._notice(node))
        self.agenda.after(event.down_ms, f"broker {broker} starts", lambda: self._start(broker))

    def _notice(self, node: Node) -> None:
        if self.controller.broker_epochs.get(node.broker_id) == node.broker_epoch:
            self.controller.broker_failed(node.broker_id)

    def _start(self, broker: int) -> None:
        if broker in self.nodes:
            return
        epoch = self.controller.next_broker_epoch()
        self.nodes[broker] = self._make_node(broker, epoch)
        self.controller.register(broker, epoch)

    def _make_node(self, broker: int, broker_epoch: int) -> Node:
        node = Node(broker, broker_epoch, self.disks[broker].path, self.time, self, self.settings)
        # Leaders come from the leadership requests; a fetch uses the cache only for the names of topics.
        nobody = {number: PartitionInfo(-1, 0, (), ()) for number in range(self.settings.partitions)}
        topic = TopicInfo("t", self.world.topic_ids["t"], nobody)
        node.metadata_cache.update(lambda snapshot: snapshot.with_topics([topic]))
        return node

    # -- who sends what ---------------------------------------------------------------------------------------------

    def _send_update(self, broker: int, broker_epoch: int, update: LeaderAndIsrUpdate, controller_epoch: int) -> None:
        tp = update.topic_partition
        # As in a controller's queue, a broker gets the live brokers before their leadership.
        metadata = (frozenset(self.controller.broker_epochs), self.controller.metadata_version)

        def deliver() -> None:
            node = self.nodes.get(broker)
            # A request that was meant for an earlier life is refused at the broker's door (KIP-380): a broker that has
            # just started has no epochs yet, and would accept each as a new one.
            if node is not None and node.broker_epoch == broker_epoch:
                node.update_metadata(*metadata)
                with self._unchanged_if_outdated(node, controller_epoch):
                    outcome = node.become_leader_or_follower(update, controller_epoch)
                self.trace.append(f"{broker} {tp} {outcome}")

        name = f"LeaderAndIsr {tp} leader {update.leader} epoch {update.leader_epoch} ISR {list(update.isr)}"
        self.network.send(Message(name, CONTROLLER, broker, deliver, is_reliable=True))

    @contextmanager
    def _unchanged_if_outdated(self, node: Node, controller_epoch: int, is_earlier: bool = False) -> Iterator[None]:
        """Within it a broker processes a controller's request.  is_earlier: for an earlier registration of it."""
        why = None
        if is_earlier:
            why = "a request for an earlier registration"
        elif controller_epoch < node.delivered_controller_epoch:
            why = f"a request of controller epoch {controller_epoch} after {node.delivered_controller_epoch}"
        else:
            node.delivered_controller_epoch = controller_epoch
        before = None if why is None else node.decided()
        yield
        if why is not None:
            try:
                invariants.an_outdated_request_of_a_controller_changes_nothing(
                    node.broker_id, why, before, node.decided()
                )
            except BrokenInvariant as error:
                self._found(error)

    def _isr_changed_by_leader(
        self, leader: int, tp: TopicPartition, joined: frozenset[int], registrations: Mapping[int, int]
    ) -> None:
        """A leader's change of the ISR is stored.  registrations: of the live brokers, at that moment."""
        node = self.nodes.get(leader)
        if not joined or node is None:
            return
        try:
            for member in sorted(joined & registrations.keys()):
                fetched = node.delivered_registrations.get(member, -1)
                invariants.who_joins_the_isr_has_fetched_since_it_registered(tp, member, registrations[member], fetched)
        except BrokenInvariant as error:
            self._found(error)

        def check() -> None:
            if tp in self.partitions:
                invariants.who_joins_the_isr_has_all_that_its_leader_has_committed(self.world, tp, leader, joined)

        self.check_later(check)

    def _send_metadata(self, broker: int, broker_epoch: int, live_brokers: frozenset[int], version: int) -> None:
        def deliver() -> None:
            node = self.nodes.get(broker)
            if node is not None and node.broker_epoch == broker_epoch:
                node.update_metadata(live_brokers, version)

        name = f"UpdateMetadata {version} live {sorted(live_brokers)}"
        self.network.send(Message(name, CONTROLLER, broker, deliver, is_reliable=True))

    def send_isr_change(self, broker: int, change: IsrChange, reply: OnIsrChanged) -> None:
        """See node.Surroundings."""
        tp = change.topic_partition
        reply = self._while_alive(broker, reply)

        def deliver() -> None:
            before = self.controller.partitions[tp].isr
            result = self.controller.change_isr(broker, change)
            joined = frozenset(self.controller.partitions[tp].isr).difference(before)
            self._isr_changed_by_leader(broker, tp, joined, self.controller.broker_epochs)
            answer = f"{sorted(result.isr)} is stored" if isinstance(result, StoredIsr) else type(result).__name__
            self.tell(f"{tp}: broker {broker} proposes the ISR {sorted(change.isr)}: {answer}")
            self.network.send(Message(f"ISR answer {tp}", CONTROLLER, broker, lambda: reply(result)))

        name = f"ISR change {tp} {sorted(change.isr)}"
        self.network.send(Message(name, broker, CONTROLLER, deliver, survives=True))

    def send_request(
        self, follower: int, leader: int, request: LeaderRequest, reply: Callable[[LeaderReply], None]
    ) -> None:
        """See node.Surroundings."""
        name = type(request).__name__
        self._exchange(name, follower, leader, reply, lambda node, answer: node.serve(request, answer))

    def send_fetch(self, follower: int, leader: int, sent: SentFetch, reply: Callable[[FetchResponse], None]) -> None:
        """See node.Surroundings."""
        session, offsets = sent.session, [f"{tp.partition}@{d.fetch_offset}" for tp, d in sent.session.to_send.items()]
        name = f"Fetch {' '.join(offsets)} epoch {session.epoch}"
        registration = self.nodes[follower].broker_epoch

        def serve(node: Node, answer: Callable[[FetchResponse], None]) -> None:
            delivered = node.delivered_registrations
            delivered[follower] = max(delivered.get(follower, -1), registration)
            node.serve_fetch(sent, follower, answer)

        self._exchange(name, follower, leader, reply, serve)

    def _exchange(
        self,
        name: str,
        follower: int,
        leader: int,
        reply: Callable[[T], None],
        serve: Callable[[Node, Callable[[T], None]], None],
    ) -> None:
        reply = self._while_alive(follower, reply)

        def answer(result: T) -> None:
            self.network.send(Message(f"{name} reply", leader, follower, lambda: reply(result)))

        def deliver() -> None:
            node = self.nodes.get(leader)
            if node is not None:
                serve(node, answer)

        self.network.send(Message(name, follower, leader, deliver))

    # -- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No more faults: every broker runs, and in the end all replicas are equal to the last byte."""
        self.network.heal()
        self._slow_until_ms.clear()
        for broker in range(self.settings.brokers):
            self._start(broker)
        for node in self.nodes.values():
            node.leader_quota.bytes_per_second = node.follower_quota.bytes_per_second = UNBOUNDED
        self.check()
        # An ISR change of unknown outcome waits for the controller's next update.
        for tp, state in list(self.controller.partitions.items()):
            self.controller.elect(tp, state.leader)
        end_ms = self.agenda.now_ms + SETTLES_WITHIN_MS
        while not self._is_settled():
            for _ in range(20):
                self.step()
            if self.agenda.now_ms > end_ms:
                copies = "; ".join(str(copy) for copy in self.observer.copies.values())
                isrs = [list(state.isr) for state in self.controller.partitions.values()]
                raise BrokenInvariant("the_replicas_become_equal", f"not in time, ISR {isrs}: {copies}")
        for tp in self.controller.partitions:
            invariants.the_replicas_become_equal(tp, self.observer.of(tp))
            if not self.settings.unclean:
                leader = self.observer.copies[self.controller.partitions[tp].leader, tp]
                payloads = self.clients.idempotent_payloads[tp]
                invariants.an_idempotent_record_is_there_once(leader, payloads)

    def _is_settled(self) -> bool:
        for tp, state in self.controller.partitions.items():
            copies = self.observer.of(tp)
            offsets = {offset for copy in copies for offset in (copy.log_end_offset, copy.high_watermark)}
            if len(state.isr) < self.settings.brokers or len(copies) < self.settings.brokers or len(offsets) != 1:
                return False
            # A leader may have failed before its followers got a deletion of records; then they have more records.
            leader = self.observer.copies[state.leader, tp]
            if any(copy.log_start_offset < leader.log_start_offset for copy in copies):
                return False
        return True

    def close(self) -> None:
        for node in self.nodes.values():
            node.stop()
