"""The clients of a simulated cluster that have transactions, consumers of committed records, and who asks for offsets.

Their steps are generators: each yields what it waits for.
Source: TransactionManager, Fetcher, Kafka 3.9.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kcore.common.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Producer
from kcore.errors import (
    NONE,
    ApiError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    for_code,
)
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcore.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcore.protocol.messages.end_txn import EndTxnRequest
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcore.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcore.protocol.schema import Message
from kcore.record.control_record import ControlRecordType, control_record_type
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.server.requests.transactions import PRODUCE_THAT_ADDS, TXN_OFFSET_COMMIT_THAT_ADDS
from tests.sim import invariants as of_replicas
from tests.sim.events import CONSUMER, PRODUCER
from tests.sim.model import CRC_AT
from tests.sim.transactions.events import ABORT, COMMIT, NOTHING, Transact
from tests.sim.transactions.ledger import ClientLife, Transaction
from tests.sim.transactions.node import REQUEST_TIMEOUT_MS

if TYPE_CHECKING:
    from tests.sim.transactions.cluster import TransactionalCluster

RETRY_MS = 60
ATTEMPTS = 25
PRODUCE_TIMEOUT_MS = 1000
FETCHES = 3
READ_COMMITTED = 1
#: Of the offsets that transactions commit: that of which partition does not matter.
_OFFSET_OF = TopicPartition("t", 0)

#: Transaction version -> the versions of requests: with 1 as clients before Kafka 4.0 send them; of what has nothing to
#: do with transactions a recent one.
_VERSIONS: dict[int, dict[type[Message], int]] = {}
_VERSIONS[1] = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    AddOffsetsToTxnRequest: 3,
    TxnOffsetCommitRequest: 3,
    EndTxnRequest: 3,
    ProduceRequest: 11,
    FetchRequest: 12,
    OffsetFetchRequest: 9,
}
_VERSIONS[2] = _VERSIONS[1] | {
    InitProducerIdRequest: 5,
    TxnOffsetCommitRequest: TXN_OFFSET_COMMIT_THAT_ADDS,
    EndTxnRequest: 5,
    ProduceRequest: PRODUCE_THAT_ADDS,
}
#: With version 1 a late copy of these would be taken for one of the next transaction, which has the same epoch
#: (KIP-890): a client's connection does not repeat them, and who sends them again waits until they are gone.
_ARRIVE_ONCE = (TxnOffsetCommitRequest, EndTxnRequest)
#: Transaction version -> after so long without an answer a client asks again.
_ASKS_AGAIN_MS = {1: REQUEST_TIMEOUT_MS, 2: 700}
_FATAL = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)


@dataclass(frozen=True, slots=True)
class Wait:
    ms: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A request; what comes back is the response, None if none came in time."""

    broker: int
    make: Callable[[], Message]
    source: int = PRODUCER
    timeout_ms: int = REQUEST_TIMEOUT_MS
    transaction_version: int = 1


#: What a client's steps wait for.
Steps = Generator[Wait | Ask, Any, None]


class Fatal(Exception):
    """The client can do nothing more."""


class Abortable(Exception):
    """The transaction has to be aborted; needs_epoch: and the client needs another epoch after that."""


class TransactionalClients:
    def __init__(self, cluster: TransactionalCluster) -> None:
        self._cluster = cluster
        self._lives: dict[int, list[TransactionalClient]] = defaultdict(list)
        self._consumers: dict[tuple[TopicPartition, int], CommittedConsumer] = {}
        self._values = self._lookups = 0
        #: Answers to requests with an error, by its name.
        self.errors: Counter[str] = Counter()
        self.is_over = False

    # -- events -----------------------------------------------------------------------------------------------------

    def transact(self, event: Transact) -> None:
        lives = self._lives[event.client]
        if event.by < len(lives) and (event.by or not lives[-1].is_dead):
            lives[-1 - event.by].transact(event)
        elif not event.by:
            self.begin(event.client).transact(event)

    def begin(self, number: int) -> TransactionalClient:
        lives = self._lives[number]
        client = TransactionalClient(self._cluster, self, ClientLife(f"x{number}", len(lives)))
        lives.append(client)
        client.start()
        return client

    def read(self, tp: TopicPartition, consumer: int) -> None:
        self._consumer(tp, consumer).read()

    def _consumer(self, tp: TopicPartition, number: int) -> CommittedConsumer:
        key = (tp, number)
        if key not in self._consumers:
            self._consumers[key] = CommittedConsumer(self._cluster, self, tp, number)
        return self._consumers[key]

    def fetch_offset(self, number: int) -> None:
        self.run(self._fetch_offset(f"x{number}"))

    def _fetch_offset(self, transactional_id: str) -> Steps:
        def make() -> Message:
            topics = [OffsetFetchRequestTopics(name=_OFFSET_OF.topic, partition_indexes=[_OFFSET_OF.partition])]
            return OffsetFetchRequest(
                groups=[OffsetFetchRequestGroup(group_id=group_of(transactional_id), topics=topics)],
                require_stable=True,
            )

        least = self._cluster.ledger.last_acknowledged_offset(transactional_id)
        response = yield Ask(self._cluster.leader_of(TopicPartition(GROUP_METADATA_TOPIC, 0)), make, CONSUMER)
        if response is not None and not response.groups[0].error_code:
            (partition,) = response.groups[0].topics[0].partitions
            if not partition.error_code:
                self._cluster.ledger.saw_offset(transactional_id, partition.committed_offset, least)

    # -- the end ----------------------------------------------------------------------------------------------------

    def begin_nothing_more(self) -> None:
        self.is_over = True

    @property
    def are_busy(self) -> bool:
        return any(life.is_busy for lives in self._lives.values() for life in lives)

    def read_to_the_end(self, tp: TopicPartition) -> None:
        """All consumers, and one that has read nothing before."""
        last = self._consumer(tp, 99)
        for (of, _), consumer in self._consumers.items():
            if of == tp and consumer is not last:
                consumer.read_directly()
        last.read_directly()

    def fetch_last_offsets(self) -> None:
        cluster = self._cluster
        leader = cluster.controller.partitions[TopicPartition(GROUP_METADATA_TOPIC, 0)].leader
        for number in self._lives:
            offsets = cluster.nodes[leader].groups.offsets.fetch(group_of(f"x{number}"), [_OFFSET_OF], True)
            cluster.ledger.last_offsets[f"x{number}"] = offsets[_OFFSET_OF].offset

    # -- steps ------------------------------------------------------------------------------------------------------

    def run(self, steps: Steps, on_end: Callable[[], None] = lambda: None) -> None:
        """Go through them, as what they wait for comes."""

        def go_on(result: Any) -> None:
            try:
                awaited = steps.send(result)
            except StopIteration:
                on_end()
                return
            if isinstance(awaited, Wait):
                self._cluster.agenda.after(awaited.ms, "a client goes on", lambda: go_on(None))
            else:
                self._ask(awaited, go_on)

        go_on(None)

    def _ask(self, ask: Ask, go_on: Callable[[Message | None], None]) -> None:
        is_answered = False

        def answered(response: Message | OSError | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                go_on(None if isinstance(response, OSError) else response)

        kind = type(ask.make())
        self._cluster.send_of_client(
            ask.source,
            ask.broker,
            ask.make,
            _VERSIONS[ask.transaction_version][kind],
            answered,
            may_be_repeated=ask.transaction_version == 2 or kind not in _ARRIVE_ONCE,
        )
        self._cluster.agenda.after(ask.timeout_ms, f"timeout of {kind.__name__}", lambda: answered(None))

    def leader_of(self, tp: TopicPartition) -> int:
        cluster = self._cluster
        if not cluster.settings.asks_any_broker or not cluster.nodes:
            return cluster.leader_of(tp)
        self._lookups += 1
        nodes = list(cluster.nodes.values())
        node = nodes[self._lookups % len(nodes)]
        leader = node.leader_of(tp)
        if leader is None or leader < 0:
            return cluster.leader_of(tp)
        return leader

    def new_value(self) -> bytes:
        self._values += 1
        return b"transactional %d" % self._values

    def failed(self, error: ApiError) -> None:
        self.errors[type(error).__name__] += 1


def group_of(transactional_id: str) -> str:
    return f"group of {transactional_id}"


class TransactionalClient:
    """A producer with a transactional id, one transaction after the other."""

    def __init__(
        self,
        cluster: TransactionalCluster,
        clients: TransactionalClients,
        life: ClientLife,
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self.life = life
        self._events: deque[Transact] = deque()
        versions = cluster.settings.transaction_versions
        self._version = versions[life.number % len(versions)]
        self._producer = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self._sequences: Counter[TopicPartition] = Counter()
        #: Whether a batch was not acknowledged: then what has become of it is not known.
        self._needs_epoch = False
        self.is_dead = False
        self.is_busy = False

    @property
    def _coordinator(self) -> int:
        return self._clients.leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, 0))

    # -- its life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._run(self._initialize())

    def transact(self, event: Transact) -> None:
        self._events.append(event)
        self._next()

    def _next(self) -> None:
        if self._events and not self.is_busy and not self.is_dead and not self._clients.is_over:
            self._run(self._transaction(self._events.popleft()))

    def _run(self, steps: Steps) -> None:
        self.is_busy = True

        def guarded() -> Steps:
            try:
                yield from steps
            except (Fatal, Abortable) as error:
                self.is_dead = True
                self._cluster.ledger.counts["fenced"] += isinstance(error, Fatal)
                self._cluster.tell(f"{self.life} ends: {error}")

        def ended() -> None:
            self.is_busy = False
            self._next()

        self._clients.run(guarded(), ended)

    # -- its requests -----------------------------------------------------------------------------------------------

    def _ask(
        self,
        find: Callable[[], int],
        make: Callable[[], Message],
        code_of: Callable[[Any], int],
        what: str,
        patience_ms: int = 0,
    ) -> Generator[Wait | Ask, Any, Any]:
        """The response without an error, in the end.  Raises Fatal, Abortable."""
        for _ in range(ATTEMPTS):
            timeout_ms = patience_ms or _ASKS_AGAIN_MS[self._version]
            response = yield Ask(find(), make, timeout_ms=timeout_ms, transaction_version=self._version)
            if response is None and patience_ms:
                raise Abortable(f"{what}: no answer")
            if response is not None:
                code = code_of(response)
                if code == NONE:
                    return response
                error = for_code(code)(what)
                self._clients.failed(error)
                if isinstance(error, _FATAL):
                    raise Fatal(f"{what}: {type(error).__name__}")
                if not error.retriable:
                    raise Abortable(f"{what}: {type(error).__name__}")
            yield Wait(RETRY_MS)
        raise Abortable(f"{what}: no end of errors")

    def _initialize(self) -> Steps:
        """Get an id and epoch; with those that it has, if it has any."""
        expected = self._producer

        def make() -> Message:
            return InitProducerIdRequest(
                transactional_id=self.life.transactional_id,
                transaction_timeout_ms=self._cluster.settings.transaction_timeout_ms,
                producer_id=expected.producer_id,
                producer_epoch=expected.epoch,
            )

        response = yield from self._ask(
            lambda: self._coordinator, make, lambda response: response.error_code, "InitProducerId"
        )
        self._go_on_as(Producer(response.producer_id, response.producer_epoch))

    def _go_on_as(self, producer: Producer) -> None:
        if producer != self._producer:
            self._sequences.clear()
        self._producer = producer
        self._needs_epoch = False
        self._cluster.tell(f"{self.life} is given {tuple(self._producer)}")
        self._cluster.ledger.producer_given(self.life, self._producer)

    def _transaction(self, event: Transact) -> Steps:
        transaction = self._cluster.ledger.begin(self.life, self._producer)
        begun: set[TopicPartition] = set()
        how = event.ends
        try:
            for number in event.partitions:
                tp = self._cluster.tp(number)
                if tp not in begun:
                    if self._version == 1:
                        yield from self._add_partition(tp)
                    begun.add(tp)
                    yield Wait(event.pause_ms)
                yield from self._produce(transaction, tp, event.records, event.patience_ms)
                yield Wait(event.pause_ms)
            if event.has_offsets:
                yield from self._commit_offset(transaction)
                yield Wait(event.pause_ms)
        except Abortable as error:
            self._cluster.tell(f"{transaction} is to be aborted: {error}")
            how = ABORT
        if how == NOTHING:
            self.is_dead = True
        elif begun or how == COMMIT:
            yield from self._end(transaction, how)
        if self._needs_epoch and not self.is_dead:
            yield from self._initialize()

    def _add_partition(self, tp: TopicPartition) -> Generator[Wait | Ask, Any, None]:
        def make() -> Message:
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.life.transactional_id,
                v3_and_below_producer_id=self._producer.producer_id,
                v3_and_below_producer_epoch=self._producer.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=tp.topic, partitions=[tp.partition])],
            )

        def code_of(response: Any) -> int:
            code: int = response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            return code

        yield from self._ask(lambda: self._coordinator, make, code_of, "AddPartitionsToTxn")

    def _produce(
        self, transaction: Transaction, tp: TopicPartition, records: int, patience_ms: int
    ) -> Generator[Wait | Ask, Any, None]:
        builder = RecordBatchBuilder(
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.epoch,
            base_sequence=self._sequences[tp],
            is_transactional=True,
        )
        for _ in range(records):
            value = self._clients.new_value()
            transaction.records[tp].append(value)
            self._cluster.ledger.by_value[value] = transaction
            builder.append(value, None, timestamp=self._cluster.time.milliseconds())
        batch = bytes(builder.build())

        def make() -> Message:
            # A copy: the broker assigns offsets in it, and the message may arrive twice.
            data = PartitionProduceData(index=tp.partition, records=memoryview(bytearray(batch)))
            return ProduceRequest(
                transactional_id=self.life.transactional_id,
                acks=-1,
                timeout_ms=PRODUCE_TIMEOUT_MS,
                topic_data=[TopicProduceData(name=tp.topic, partition_data=[data])],
            )

        self._needs_epoch = True
        try:
            response = yield from self._ask(
                lambda: self._clients.leader_of(tp),
                make,
                lambda response: response.responses[0].partition_responses[0].error_code,
                "Produce",
                patience_ms,
            )
        except Fatal as fatal:
            # Whether it is fenced its coordinator says.
            raise Abortable(str(fatal)) from fatal
        self._needs_epoch = False
        self._sequences[tp] += records
        base_offset = response.responses[0].partition_responses[0].base_offset
        payload = batch[CRC_AT:]
        self._cluster.world.acknowledged[tp][base_offset] = payload
        self._cluster.tell(f"{tp}: offset {base_offset} of {transaction} is acknowledged")
        of_replicas.an_acknowledged_record_is_committed(self._cluster.world, tp, base_offset, payload)

    def _commit_offset(self, transaction: Transaction) -> Generator[Wait | Ask, Any, None]:
        ids = {
            "transactional_id": self.life.transactional_id,
            "group_id": group_of(self.life.transactional_id),
            "producer_id": self._producer.producer_id,
            "producer_epoch": self._producer.epoch,
        }

        def make() -> Message:
            partition = TxnOffsetCommitRequestPartition(
                partition_index=_OFFSET_OF.partition, committed_offset=transaction.number, committed_metadata=""
            )
            topic = TxnOffsetCommitRequestTopic(name=_OFFSET_OF.topic, partitions=[partition])
            return TxnOffsetCommitRequest(**ids, topics=[topic])

        if self._version == 1:
            yield from self._ask(
                lambda: self._coordinator,
                lambda: AddOffsetsToTxnRequest(**ids),
                lambda response: response.error_code,
                "AddOffsetsToTxn",
            )
        yield from self._ask(
            lambda: self._clients.leader_of(TopicPartition(GROUP_METADATA_TOPIC, 0)),
            make,
            lambda response: response.topics[0].partitions[0].error_code,
            "TxnOffsetCommit",
        )
        transaction.has_offset = True

    def _end(self, transaction: Transaction, how: str) -> Generator[Wait | Ask, Any, None]:
        producer = self._producer

        def make() -> Message:
            return EndTxnRequest(
                transactional_id=self.life.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=how == COMMIT,
            )

        ledger = self._cluster.ledger
        ledger.ask(transaction, how)
        try:
            response = yield from self._ask(
                lambda: self._coordinator, make, lambda response: response.error_code, "EndTxn"
            )
        except (Fatal, Abortable) as error:
            ledger.counts["unknown ends"] += 1
            self._cluster.tell(f"{transaction}: nobody knows whether it has ended: {error}")
            raise
        self._cluster.tell(f"{transaction}: {how} is acknowledged")
        ledger.answered(transaction, how)
        if self._version == 2:
            self._go_on_as(Producer(response.producer_id, response.producer_epoch))


class CommittedConsumer:
    """A consumer of one partition with isolation.level=read_committed."""

    def __init__(
        self, cluster: TransactionalCluster, clients: TransactionalClients, tp: TopicPartition, number: int
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._tp = tp
        self._number = number
        self._position = 0
        self._is_busy = False

    def read(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._clients.run(self._fetch(), self._ended)

    def _ended(self) -> None:
        self._is_busy = False

    def _fetch(self) -> Steps:
        for _ in range(FETCHES):
            position = self._position
            response = yield Ask(self._clients.leader_of(self._tp), lambda: self._request(400), CONSUMER)
            if response is None or not response.responses:
                return
            data = response.responses[0].partitions[0]
            if data.error_code:
                self._clients.failed(for_code(data.error_code)(str(self._tp)))
                return
            if self._position == position:  # read_directly() may have been first
                self._take(data)

    def _request(self, max_bytes: int) -> Message:
        partition = FetchPartition(
            partition=self._tp.partition, fetch_offset=self._position, partition_max_bytes=max_bytes
        )
        topics = [FetchTopic(topic=self._tp.topic, partitions=[partition])]
        return FetchRequest(
            max_wait_ms=50, min_bytes=1, max_bytes=max_bytes, isolation_level=READ_COMMITTED, topics=topics
        )

    def _take(self, data: PartitionData) -> None:
        """As Fetcher does: records of aborted transactions are left out, and so are markers."""
        aborted = [(each.first_offset, each.producer_id) for each in data.aborted_transactions or ()]
        heapq.heapify(aborted)
        aborting: set[int] = set()
        records: Any = data.records
        for batch in MemoryRecords(bytes(records or b"")).batches:
            while aborted and aborted[0][0] <= batch.last_offset:
                aborting.add(heapq.heappop(aborted)[1])
            if batch.is_control:
                if any(control_record_type(record.key) is ControlRecordType.ABORT for record in batch):
                    aborting.discard(batch.producer_id)
            elif not (batch.is_transactional and batch.producer_id in aborting):
                for record in batch:
                    if record.offset >= self._position:
                        self._cluster.ledger.saw(self._tp, self._number, record.offset, bytes(record.value or b""))
            self._position = max(self._position, batch.next_offset)

    def read_directly(self) -> None:
        """From the leader, without the network, until its last stable offset."""
        leader = self._cluster.nodes[self._cluster.controller.partitions[self._tp].leader]
        partition = leader.replica_manager.get_partition_or_exception(self._tp)
        while self._position < partition.last_fetchable_offset(FetchIsolation.TXN_COMMITTED):
            answers: list[Any] = []
            leader.serve_request(self._request(1 << 20), _VERSIONS[1][FetchRequest], answers.append)
            self._take(answers[0].responses[0].partitions[0])
