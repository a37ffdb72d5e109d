"""The clients of a simulated cluster: producers, idempotent ones, consumers, and an operator who deletes records.

Their requests and answers are messages.  They know the leader that the controller has elected.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, CorruptMessage, FencedLeaderEpoch, OffsetOutOfRange
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.log.special_timestamps import EARLIEST_TIMESTAMP
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.fetch_params import FetchParams, FetchPartitionData
from kcore.replica.fetcher.leader_endpoint import EpochEndOffset
from kcore.replica.partition import Partition
from tests.sim import invariants
from tests.sim.events import CONSUMER, PRODUCER, Consume, DeleteRecords, Produce, ProduceIdempotent
from tests.sim.model import CRC_AT, Batch
from tests.sim.network import Message
from tests.sim.node import Node

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster

RETRY_MS = 300
ATTEMPTS = 20
CONSUMER_WAIT_MS = 100


class Clients:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._values = 0
        self._idempotent: dict[tuple[int, TopicPartition], IdempotentProducer] = {}
        self.idempotent_payloads: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self._consumers: dict[tuple[int, TopicPartition], Consumer] = {}
        self.acknowledged = self.refused = self.consumed = self.retried = self.out_of_range = 0
        #: Of consumers: fenced by the epoch that they sent, and gone back because the leader's log is another one.
        self.fenced = self.truncations = 0

    def count_refusal(self, error: ApiError) -> None:
        self.fenced += isinstance(error, FencedLeaderEpoch)

    def forget(self, tp: TopicPartition) -> None:
        """Another topic of this name begins."""
        self.idempotent_payloads.pop(tp, None)
        for key in [key for key in self._idempotent if key[1] == tp]:
            del self._idempotent[key]

    # -- producers --------------------------------------------------------------------------------------------------

    def batch(self, records: int, size: int, **fields: int) -> bytearray:
        builder = RecordBatchBuilder(**fields)
        for _ in range(records):
            self._values += 1
            builder.append(b"%d" % self._values + b"." * size, None, timestamp=self._cluster.time.milliseconds())
        return builder.build()

    def produce(self, event: Produce) -> None:
        tp = self._cluster.tp(event.partition)
        batch = self.batch(event.records, event.size)
        payload = bytes(batch[CRC_AT:])

        def answered(error: ApiError | None, base_offset: int) -> None:
            if error is None and event.acks == -1:
                self.on_acknowledged(tp, base_offset, payload)
            elif error is not None:
                self.refused += 1
                self._cluster.tell(f"a producer gets {type(error).__name__}")

        self.send(tp, batch, event.acks, event.to, answered)

    def produce_idempotent(self, event: ProduceIdempotent) -> None:
        tp = self._cluster.tp(event.partition)
        producer = self._idempotent.get((event.producer, tp))
        if producer is None:
            producer = self._idempotent[event.producer, tp] = IdempotentProducer(
                self, self._cluster, event.producer, tp
            )
        producer.produce(event.records)

    def send(
        self,
        tp: TopicPartition,
        batch: bytes | bytearray,
        acks: int,
        to: int | None,
        on_answer: Callable[[ApiError | None, int], None],
    ) -> None:
        cluster = self._cluster
        broker = cluster.leader_of(tp) if to is None else to
        generation = cluster.generation(tp)

        def arrive(error: ApiError | None, base_offset: int) -> None:
            if cluster.generation(tp) == generation:
                on_answer(error, base_offset)

        def deliver() -> None:
            node = cluster.nodes.get(broker)
            if node is None:
                return

            hosted = node.replica_manager.get_partition(tp)
            if isinstance(hosted, Partition) and not cluster.world.is_of_this_topic(tp, hosted.log):
                # A producer names no topic id: the records go to the earlier topic, and nobody will miss them.
                node.produce(tp, bytearray(batch), acks, lambda error, base_offset: None)
                return

            def answer(error: ApiError | None, base_offset: int) -> None:
                if error is None and acks == -1:
                    minimum = cluster.settings.min_insync_replicas
                    cluster.check_later(
                        lambda: invariants.an_acknowledged_record_is_on_enough_replicas(
                            cluster.world, broker, tp, base_offset, minimum
                        )
                    )
                cluster.network.send(
                    Message(f"Produce answer {tp}", broker, PRODUCER, lambda: arrive(error, base_offset))
                )

            # A copy: the broker assigns offsets in it, and the message may arrive twice.
            node.produce(tp, bytearray(batch), acks, answer)

        cluster.network.send(Message(f"Produce {tp}", PRODUCER, broker, deliver))

    def on_acknowledged(self, tp: TopicPartition, base_offset: int, payload: bytes) -> None:
        self.acknowledged += 1
        self._cluster.tell(f"{tp}: offset {base_offset} is acknowledged")
        self._cluster.world.acknowledged[tp][base_offset] = payload
        invariants.an_acknowledged_record_is_committed(self._cluster.world, tp, base_offset, payload)

    # -- consumers --------------------------------------------------------------------------------------------------

    def consume(self, event: Consume) -> None:
        tp = self._cluster.tp(event.partition)
        consumer = self._consumers.get((event.consumer, tp))
        if consumer is None:
            consumer = self._consumers[event.consumer, tp] = Consumer(self, self._cluster, event.consumer, tp)
        consumer.consume(event.to)

    # -- DeleteRecords ----------------------------------------------------------------------------------------------

    def delete_records(self, event: DeleteRecords) -> None:
        cluster, tp = self._cluster, self._cluster.tp(event.partition)
        broker = cluster.leader_of(tp)

        def deliver() -> None:
            node = cluster.nodes.get(broker)
            if node is None:
                return
            partition = node.replica_manager.get_partition(tp)
            if partition is None:
                return
            start, end = partition.log.log_start_offset, partition.log.high_watermark
            offset = start + int((end - start) * event.share)
            if partition.is_leader:
                cluster.tell(f"{tp}: broker {broker} deletes the records below {offset}")
                cluster.world.allow_start_at(tp, offset)
            node.delete_records(tp, offset)

        cluster.network.send(Message(f"DeleteRecords {tp}", PRODUCER, broker, deliver))


def must_validate(last: Batch | None, known_epoch: int, leader_epoch: int) -> bool:
    """Whether a consumer first looks up at the leader where the epoch of its last record ends (KIP-320)."""
    return last is not None and known_epoch != leader_epoch


class Consumer:
    """One consumer of one partition.  Each consume() is one fetch at its position.

    It knows the leader epoch of its metadata, and sends it along.  After a change of the epoch it asks the new leader
    where the epoch of the last record that it has ends (OffsetForLeaderEpoch).  If that is below its position, the
    consumer goes back to there; if the leader does not know the epoch, to the start.
    """

    def __init__(self, clients: Clients, cluster: Cluster, number: int, tp: TopicPartition) -> None:
        self._clients = clients
        self._cluster = cluster
        self._number = number
        self._tp = tp
        self._generation = -1
        self._position = 0
        self._epoch = -1
        #: The last batch that it got, if it ends right below the position.
        self._last: Batch | None = None

    def consume(self, to: int | None) -> None:
        """to: whom it takes for the leader, by the metadata that it has; None, or before it has any: it gets new ones
        first."""
        generation = self._cluster.generation(self._tp)
        if generation != self._generation:
            self._generation, self._position, self._epoch, self._last = generation, 0, -1, None
        if to is not None and self._epoch >= 0:
            self._fetch(to)
            return
        state = self._cluster.partitions.get(self._tp)
        if state is None or state.leader < 0:
            return
        if must_validate(self._last, self._epoch, state.leader_epoch):
            self._validate(state.leader, state.leader_epoch)
        else:
            self._epoch = state.leader_epoch
            self._fetch(state.leader)

    # -- the position and a new leader ------------------------------------------------------------------------------

    def _validate(self, leader: int, leader_epoch: int) -> None:
        before = (self._generation, self._position, self._last)
        last = self._last
        assert last is not None

        def deliver() -> None:
            node = self._cluster.nodes.get(leader)
            if node is not None:
                end = node.epoch_end(self._tp, leader_epoch, last.leader_epoch)
                self._cluster.network.send(
                    Message(f"epoch end of {self._tp}", leader, CONSUMER, lambda: on_answer(end))
                )

        def on_answer(end: EpochEndOffset) -> None:
            if (self._cluster.generation(self._tp), self._position, self._last) != before:
                return  # a second copy of the answer
            if end.error is not None:
                self._clients.count_refusal(end.error)
                return
            self._epoch = leader_epoch
            if end.leader_epoch < last.leader_epoch or end.end_offset < self._position:
                self._clients.truncations += 1
                self._cluster.tell(
                    f"{self._tp}: consumer {self._number} at {self._position}, epoch {last.leader_epoch}, goes back: "
                    f"at the leader epoch {end.leader_epoch} ends at {end.end_offset}"
                )
                # The leader's end offset is where the logs diverge only if the leader has the epoch.  Kafka's consumer
                # compares the end offset alone, and misses other records of an older epoch there.
                has_epoch = end.leader_epoch == last.leader_epoch
                self._position, self._last = (end.end_offset if has_epoch else 0), None
            self._fetch(leader)

        name = f"OffsetForLeaderEpoch {self._tp} of consumer {self._number}"
        self._cluster.network.send(Message(name, CONSUMER, leader, deliver))

    # -- fetch ------------------------------------------------------------------------------------------------------

    def _fetch(self, broker: int) -> None:
        tp, position, last, epoch = self._tp, self._position, self._last, self._epoch
        generation = self._generation

        def arrive(error: ApiError | None, batches: list[Batch], earliest: int | None) -> None:
            if self._cluster.generation(tp) == self._generation == generation:
                self._on_fetched(position, error, batches, earliest)

        def deliver() -> None:
            node = self._cluster.nodes.get(broker)
            if node is not None:
                # A fetch that was meant for an earlier topic of this name begins in another history.
                of_this_topic = self._cluster.generation(tp) == generation
                self._serve(node, position, last if of_this_topic else None, epoch, reply)

        def reply(error: ApiError | None, batches: list[Batch], earliest: int | None) -> None:
            answer = Message(
                f"Fetch answer {tp}",
                broker,
                CONSUMER,
                lambda: arrive(error, batches, earliest),
            )
            self._cluster.network.send(answer)

        self._cluster.network.send(Message(f"Fetch {tp} from {position}", CONSUMER, broker, deliver))

    def _serve(
        self,
        node: Node,
        position: int,
        last: Batch | None,
        epoch: int,
        reply: Callable[[ApiError | None, list[Batch], int | None], None],
    ) -> None:
        """The broker's side."""
        tp = self._tp
        answered = self._cluster.must_be_answered(
            node.broker_id, f"a consumer's fetch at broker {node.broker_id}", CONSUMER_WAIT_MS
        )

        def on_fetched(results) -> None:
            answered()
            ((_, result),) = results
            earliest = None
            if isinstance(result.error, OffsetOutOfRange):
                try:
                    hosted = node.replica_manager.get_partition_or_exception(tp)
                    record = hosted.fetch_offset_for_timestamp(EARLIEST_TIMESTAMP, FetchIsolation.HIGH_WATERMARK, epoch)
                    earliest = None if record is None else record.offset
                except ApiError:
                    pass  # it does not lead any more
            batches = []
            if result.error is None and result.records.size_in_bytes:
                try:
                    for batch in MemoryRecords(bytes(result.records.read())).batches:
                        batch.ensure_valid()
                        data = bytes(batch.buffer)
                        batches.append(Batch(batch.base_offset, batch.last_offset, batch.leader_epoch, data))
                except CorruptMessage:
                    pass  # of what comes before the damage it takes the records
            if batches:
                self._cluster.check_later(
                    lambda: invariants.a_consumer_reads_one_history(self._cluster.world, node.broker_id, tp, last)
                )
            reply(result.error, batches, earliest)

        node.replica_manager.fetch_messages(
            FetchParams(max_wait_ms=CONSUMER_WAIT_MS, max_bytes=500),
            [(tp, FetchPartitionData(position, 500, current_leader_epoch=epoch))],
            on_fetched,
        )

    def _on_fetched(self, position: int, error: ApiError | None, batches: list[Batch], earliest: int | None) -> None:
        tp = self._tp
        for batch in batches:
            self._clients.consumed += 1
            self._cluster.world.consumed[tp][batch.base_offset] = batch.payload
            invariants.a_consumer_gets_committed_records(self._cluster.world, tp, batch)
        if self._position != position:
            return  # a second copy of the answer
        if batches:
            self._position, self._last = max(position, batches[-1].last_offset + 1), batches[-1]
        elif isinstance(error, OffsetOutOfRange):
            self._clients.out_of_range += 1
            if earliest is not None:
                self._position, self._last = earliest, None
        elif error is not None:
            self._clients.count_refusal(error)


class IdempotentProducer:
    """One producer id and partition.  A batch is sent again, with its sequence, until it is answered."""

    def __init__(self, clients: Clients, cluster: Cluster, number: int, tp: TopicPartition) -> None:
        self._clients = clients
        self._cluster = cluster
        self._tp = tp
        self._producer_id = 1000 + number + 10 * cluster.generation(tp)
        self._epoch = 0
        self._next_sequence = 0
        self._waiting: deque[int] = deque()
        self._batch: bytearray | None = None
        self._attempts = 0

    def produce(self, records: int) -> None:
        self._waiting.append(records)
        if self._batch is None:
            self._next()

    def _next(self) -> None:
        self._batch = None
        if self._waiting:
            records = self._waiting.popleft()
            self._batch = self._clients.batch(
                records,
                1,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=self._next_sequence,
            )
            self._next_sequence += records
            self._attempts = 0
            self._clients.idempotent_payloads[self._tp].append(bytes(self._batch[CRC_AT:]))
            self._attempt(self._batch)

    def _attempt(self, batch: bytearray) -> None:
        if self._batch is not batch:
            return  # answered
        self._attempts += 1
        if self._attempts > ATTEMPTS:
            self._give_up()
            return
        self._clients.retried += self._attempts > 1
        attempt = self._attempts
        self._clients.send(
            self._tp, batch, -1, None, lambda error, offset: self._on_answer(batch, attempt, error, offset)
        )
        # Longer than a broker lets a produce wait: its answer is lost then.
        self._cluster.agenda.after(RETRY_MS * 5, "retry of an idempotent producer", lambda: self._retry(batch, attempt))

    def _retry(self, batch: bytearray, attempt: int) -> None:
        if self._batch is batch and self._attempts == attempt:
            self._attempt(batch)

    def _on_answer(self, batch: bytearray, attempt: int, error: ApiError | None, base_offset: int) -> None:
        if self._batch is not batch:
            return
        if error is None:
            self._clients.on_acknowledged(self._tp, base_offset, bytes(batch[CRC_AT:]))
            self._next()
        elif error.retriable:
            self._cluster.agenda.after(RETRY_MS, "retry of an idempotent producer", lambda: self._retry(batch, attempt))
        else:
            self._cluster.tell(f"idempotent producer {self._producer_id} gets {type(error).__name__}")
            self._give_up()

    def _give_up(self) -> None:
        """Begin anew with the next epoch, as InitProducerId gives it."""
        self._epoch += 1
        self._next_sequence = 0
        self._next()
