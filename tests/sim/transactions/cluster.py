"""A simulated cluster with transactions: the topics of the coordinators, their requests over the network, and what
must hold when all is quiet."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

from kcore.common.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from kcore.protocol.schema import Message as Request
from kcore.replica.partition import Partition
from tests.sim import invariants as of_replicas
from tests.sim.cluster import ANSWER_GRACE_MS, Cluster
from tests.sim.ensemble import Killed
from tests.sim.events import Crash, Event, History
from tests.sim.invariants import BrokenInvariant
from tests.sim.network import Message
from tests.sim.transactions import invariants
from tests.sim.transactions.clients import TransactionalClients
from tests.sim.transactions.events import (
    GROUP_OFFSETS,
    TRANSACTION_STATE,
    DieInAppend,
    FetchOffset,
    LateMessages,
    NewClient,
    ReadCommitted,
    Transact,
)
from tests.sim.transactions.ledger import Ledger
from tests.sim.transactions.node import COORDINATOR_PARTITIONS, REQUEST_TIMEOUT_MS, TransactionalNode

#: A request that waits for another broker and for its replicas has an answer after so long, also if the broker stands
#: still twice meanwhile.
ANSWERED_WITHIN_MS = REQUEST_TIMEOUT_MS + 6000
#: After the last fault, and the timeout of transactions: a fail-over, and the markers.
ENDS_WITHIN_MS = 10_000


class TransactionalCluster(Cluster):
    nodes: dict[int, TransactionalNode]  # type: ignore[assignment]

    def __init__(self, directory: str, history: History) -> None:
        self._store = MemoryStore()
        self.ledger = Ledger()
        self.transactional_clients = TransactionalClients(self)
        self._down_ms: dict[int, int] = {}
        #: Kind of request -> by how much the next ones are late.
        self._late: defaultdict[str, deque[int]] = defaultdict(deque)
        #: Broker -> number of a request -> its answer, of those that are not answered yet.
        self._served: dict[int, dict[int, Callable[[Request | OSError], None]]] = {}
        super().__init__(directory, history)

    def _partitions(self) -> list[TopicPartition]:
        internal = [
            TopicPartition(topic, number)
            for topic in (TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC)
            for number in range(COORDINATOR_PARTITIONS)
        ]
        return super()._partitions() + internal

    def tp(self, number: int) -> TopicPartition:
        if number == TRANSACTION_STATE:
            return TopicPartition(TRANSACTION_STATE_TOPIC, 0)
        if number == GROUP_OFFSETS:
            return TopicPartition(GROUP_METADATA_TOPIC, 0)
        return super().tp(number)

    def data_partitions(self) -> list[TopicPartition]:
        return super()._partitions()

    def _make_node(self, broker: int, broker_epoch: int) -> TransactionalNode:
        path = self.disks[broker].path
        node = TransactionalNode(broker, broker_epoch, path, self.time, self, self.settings, self._store)
        counts = {"t": self.settings.partitions}
        counts |= dict.fromkeys((TRANSACTION_STATE_TOPIC, GROUP_METADATA_TOPIC), COORDINATOR_PARTITIONS)
        node.learn_topics({name: (self.world.topic_ids[name], count) for name, count in counts.items()})
        return node

    # -- events -----------------------------------------------------------------------------------------------------

    def _do(self, event: Event) -> None:
        match event:
            case Transact():
                self.transactional_clients.transact(event)
            case NewClient():
                self.transactional_clients.begin(event.client)
            case ReadCommitted():
                self.transactional_clients.read(self.tp(event.partition), event.consumer)
            case FetchOffset():
                self.transactional_clients.fetch_offset(event.client)
            case LateMessages():
                self._late[event.kind].extend([event.by_ms] * event.count)
            case DieInAppend():
                if event.broker in self.nodes:
                    self.nodes[event.broker].dies_after = event.moments
                    self._down_ms[event.broker] = event.down_ms
            case _:
                super()._do(event)

    def _next(self) -> str:
        try:
            return super()._next()
        except Killed as killed:
            broker, now_ms = killed.broker, self.agenda.now_ms
            self.tell(f"broker {broker} is killed in an append of its coordinators")
            self._crash(Crash(now_ms, broker, "is killed", down_ms=self._down_ms[broker]))
            return f"broker {broker} is killed"

    # -- requests ---------------------------------------------------------------------------------------------------

    def send_between_brokers(
        self, source: int, target: int, request: Request, version: int, reply: Callable[[Request | OSError], None]
    ) -> None:
        """See node.TransactionalSurroundings."""
        reply = self._while_alive(source, reply)
        name = type(request).__name__

        def answer(response: Request | OSError) -> None:
            self._send(Message(f"{name} answer", target, source, lambda: reply(response)))

        def deliver() -> None:
            self._serve(target, request, version, answer)

        if isinstance(request, WriteTxnMarkersRequest) and any(m.transaction_version < 2 for m in request.markers):
            # The next transaction may have the same epoch: who sends it again waits until this one is gone.
            deliver = self._once(deliver)
        # It arrives also when its sender has died since: another coordinator may be at work by then.
        self._send(Message(name, source, target, deliver, survives=True))

    def send_of_client(
        self,
        source: int,
        target: int,
        make: Callable[[], Request],
        version: int,
        reply: Callable[[Request | OSError], None],
        *,
        may_be_repeated: bool,
    ) -> None:
        """reply() is called with each copy of the answer; make(): the request, for each copy of it."""
        name = type(make()).__name__

        def answer(response: Request | OSError) -> None:
            self._send(Message(f"{name} answer", target, source, lambda: reply(response)))

        def deliver() -> None:
            self._serve(target, make(), version, answer)

        self._send(Message(name, source, target, deliver if may_be_repeated else self._once(deliver)))

    def _send(self, message: Message) -> None:
        late = self._late[message.name.replace("Request", "")]
        if late:
            self.agenda.after(late.popleft(), f"late {message.name}", lambda: self.network.send(message))
        else:
            self.network.send(message)

    @staticmethod
    def _once(deliver: Callable[[], None]) -> Callable[[], None]:
        has_come = False

        def deliver_once() -> None:
            nonlocal has_come
            if not has_come:
                has_come = True
                deliver()

        return deliver_once

    def _serve(self, broker: int, request: Request, version: int, answer: Callable[[Request | OSError], None]) -> None:
        """A broker that is down, or dies meanwhile, answers by the end of the connection."""
        node = self.nodes.get(broker)
        if node is None:
            answer(ConnectionRefusedError(f"broker {broker} is down"))
            return
        self._requests += 1
        number = self._requests
        name = f"{type(request).__name__} at broker {broker} (request {number})"
        answers = 0
        served = self._served.setdefault(broker, {})
        served[number] = answer

        def answered(response: Request) -> None:
            nonlocal answers
            answers += 1
            served.pop(number, None)
            if answers > 1:
                self._found(
                    BrokenInvariant("a_waiting_request_is_answered_once", f"{name} was answered {answers} times")
                )
            answer(response)

        def check() -> None:
            of_replicas.a_waiting_request_is_answered_once(name, answers)

        def deadline() -> None:
            # The broker may just be back from a pause; its own clock comes first.
            self.call_later(broker, ANSWER_GRACE_MS, f"deadline of {name}", check)

        node.serve_request(request, version, answered)
        if not answers:
            self.call_later(broker, ANSWERED_WITHIN_MS, f"deadline of {name}", deadline)

    def _crash(self, event: Crash) -> None:
        is_up = event.broker in self.nodes
        super()._crash(event)
        served = self._served.pop(event.broker, {})
        if is_up and event.how != "loses power":
            for answer in served.values():
                answer(ConnectionResetError(f"broker {event.broker} has died"))

    # -- the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """All transactions end, and consumers see the records of those that were answered as committed, no others."""
        self._down_ms.clear()
        self._late.clear()
        for node in self.nodes.values():
            node.dies_after = 0
        self.transactional_clients.begin_nothing_more()
        self.network.heal()
        super().settle()
        deadline_ms = self.agenda.now_ms + self.settings.transaction_timeout_ms + ENDS_WITHIN_MS
        while (open_ones := self._open_transactions()) or self.transactional_clients.are_busy:
            if self.agenda.now_ms > deadline_ms:
                invariants.no_transaction_stays_open(open_ones)
                break
            self.step()
        for tp in self.data_partitions():
            self.transactional_clients.read_to_the_end(tp)
        self.transactional_clients.fetch_last_offsets()
        self.ledger.check()

    @property
    def counts(self) -> dict[str, int]:
        """How often each answer came to the clients; of errors by their names."""
        errors = self.transactional_clients.errors
        return {**self.ledger.counts, **{f"answer {name}": number for name, number in errors.items()}}

    def _open_transactions(self) -> list[str]:
        """What is still open, in the logs of leaders and in the coordinators."""
        found = []
        for tp, state in self.controller.partitions.items():
            node = self.nodes[state.leader]
            partition = node.replica_manager.get_partition(tp)
            if not isinstance(partition, Partition) or not partition.is_leader:
                found.append(f"{tp} has no leader")
            elif partition.log.last_stable_offset < partition.log.high_watermark:
                log = partition.log
                found.append(f"{tp}: stable up to {log.last_stable_offset}, committed up to {log.high_watermark}")
        for node in self.nodes.values():
            if node.groups.manager.is_loading or node.transactions.manager.is_loading:
                found.append(f"broker {node.broker_id} loads what it coordinates")
            for entry in node.transactions.manager.entries():
                if entry.metadata.is_prepared or entry.metadata.state.name == "ONGOING" or entry.pending is not None:
                    found.append(f"broker {node.broker_id}: {entry.transactional_id} is {entry.metadata.state.name}")
        return found
