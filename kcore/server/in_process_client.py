"""Records into and out of a running broker without a client library: Broker.produce() and Broker.consume()."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kcore.common import topic_names
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_state import Producer
from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
from kcore.errors import ApiError, InvalidTopicException, KafkaError, OffsetOutOfRange, UnknownTopicOrPartition
from kcore.log.log_iteration import Isolation, is_committed
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.metadata.metadata_cache import NO_LEADER, MetadataCache, TopicInfo
from kcore.record.partitioner import partition_for_key
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.requests.transactions import verification_error
from kcore.server.topics.admin_manager import AdminManager
from kcore.server.topics.topic_changes import has_partitions

if TYPE_CHECKING:
    from kcore.record.record_batch import Record, TimestampType

T = TypeVar("T")

Data = bytes | bytearray | memoryview | str
Headers = Mapping[str, Data | None] | Iterable[tuple[str, Data | None]]

#: How long a produce waits to be replicated: request.timeout.ms of Kafka's producer.
_REQUEST_TIMEOUT_MS = 30_000
#: How often it is looked whether the broker still runs that waits for another one.
_SERVING_CHECK_S = 0.1
#: How often a consume that waits looks for new records.
_POLL_MS = 5


class RecordMetadata(NamedTuple):
    """Where a record was written.  timestamp: ms; the time of the append in a topic with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ConsumerRecord(NamedTuple):
    """A record as a consumer gets it.  timestamp: ms since the epoch, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class OutgoingRecord(NamedTuple):
    """A record before it has an offset.  timestamp: ms since the epoch."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class InProcessClient:
    """Appends and reads through the partitions, as requests do.  Thread-safe.

    check_serving raises RuntimeError once the broker stops or restarts; a read that waits calls it again and again.
    """

    def __init__(
        self,
        time: Time,
        config: KafkaConfig,
        metadata_cache: MetadataCache,
        admin_manager: AdminManager,
        replica_manager: ReplicaManager,
        transaction_verifier: TransactionVerifier,
        check_serving: Callable[[], None],
    ) -> None:
        self._time = time
        self._config = config
        self._cache = metadata_cache
        self._admin_manager = admin_manager
        self._replica_manager = replica_manager
        self._transaction_verifier = transaction_verifier
        self._check_serving = check_serving
        self._lock = threading.Lock()
        self._turns: dict[str, int] = {}  # topic -> records without a key so far

    # -- produce ------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: Data | None,
        key: Data | None,
        headers: Headers | None,
        timestamp: int | None,
        partition: int | None,
    ) -> RecordMetadata:
        """See Broker.produce()."""
        record = self.record(value, key, headers, timestamp)
        topic_partition = self.partition_to_write(topic, record.key, partition)
        return self.append(topic_partition, record, RecordBatchBuilder())

    def record(
        self, value: Data | None, key: Data | None, headers: Headers | None, timestamp: int | None
    ) -> OutgoingRecord:
        """What produce() writes of its arguments.  Raises TypeError, ValueError."""
        value_bytes, key_bytes = _as_bytes("value", value), _as_bytes("key", key)
        header_list = _as_headers(headers)
        if timestamp is None:
            timestamp = self._time.milliseconds()
        elif not 0 <= timestamp < 1 << 63:
            raise ValueError(f"timestamp {timestamp}, expected ms since the epoch, 0 to 2**63 - 1")
        return OutgoingRecord(value_bytes, key_bytes, header_list, timestamp)

    def partition_to_write(
        self, topic: str, key: bytes | None, partition: int | None, *, creates_topic: bool = True
    ) -> TopicPartition:
        """Where produce() writes a record; creates_topic: a missing topic is created.  Raises as produce()."""
        info = self._topic_to_write(topic, creates_topic)
        if partition is None:
            partition = self._choose_partition(info, key)
        elif partition not in info.partitions:
            raise _no_partition(info, partition)
        return TopicPartition(topic, partition)

    def append(self, tp: TopicPartition, record: OutgoingRecord, builder: RecordBatchBuilder) -> RecordMetadata:
        """Write the record as a batch of its own.  builder: an empty one, with the producer."""
        builder.append(record.value, record.key, timestamp=record.timestamp, headers=record.headers)
        answers: queue.SimpleQueue[dict[TopicPartition, ProducePartitionStatus]] = queue.SimpleQueue()
        # acks=-1, so what was written here is below the high watermark, and fetches that wait have been answered.
        self._replica_manager.append_records(
            _REQUEST_TIMEOUT_MS, -1, False, AppendOrigin.CLIENT, {tp: builder.build()}, answers.put
        )
        status = answers.get()[tp]
        if status.error is not None:
            raise status.error
        appended_at = status.log_append_time
        return RecordMetadata(*tp, status.base_offset, appended_at if appended_at >= 0 else record.timestamp)

    def append_in_transaction(
        self,
        tp: TopicPartition,
        record: OutgoingRecord,
        transactional_id: str,
        producer: Producer,
        sequence: int,
        *,
        adds: bool,
    ) -> RecordMetadata:
        """append() in the producer's transaction.  sequence: of the record.  adds: as for TransactionVerifier.verify(),
        what that answers is raised, too."""
        answers: queue.SimpleQueue[dict[TopicPartition, ApiError]] = queue.SimpleQueue()
        self._transaction_verifier.verify(transactional_id, producer, {tp: sequence}, answers.put, adds=adds)
        error = self._answered(answers).get(tp)
        if error is not None:
            raise verification_error(error, abortable_known=True)
        builder = RecordBatchBuilder(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        return self.append(tp, record, builder)

    def _answered(self, answers: queue.SimpleQueue[T]) -> T:
        """Raises RuntimeError once the broker stops: what was asked of another one then stays without an answer."""
        while True:
            try:
                return answers.get(timeout=_SERVING_CHECK_S)
            except queue.Empty:
                self._check_serving()

    def _topic_to_write(self, topic: str, creates_topic: bool) -> TopicInfo:
        info = self._cache.topic(topic)
        if topic_names.is_internal(topic):
            raise InvalidTopicException(f"Cannot append to internal topic {topic}")
        if info is None:
            topic_names.validate(topic)
            if not creates_topic:
                raise UnknownTopicOrPartition(f"{topic}: no such topic")
            if not self._config["auto.create.topics.enable"]:
                raise UnknownTopicOrPartition(f"{topic}: no such topic, and auto.create.topics.enable is false")
            if self._admin_manager.auto_create_topic(topic):
                self._admin_manager.wait_for(topic, has_partitions(topic, 1))
                info = self._cache.topic(topic)
        if info is None:
            raise UnknownTopicOrPartition(f"{topic}: no such topic, and it could not be created")
        return info

    def _choose_partition(self, info: TopicInfo, key: bytes | None) -> int:
        if key is not None:
            return partition_for_key(key, len(info.partitions))
        led = [number for number, state in sorted(info.partitions.items()) if state.leader != NO_LEADER]
        candidates = led or sorted(info.partitions)
        with self._lock:
            turn = self._turns.get(info.name, 0)
            self._turns[info.name] = turn + 1
        return candidates[turn % len(candidates)]

    # -- consume ------------------------------------------------------------------------------------------------------

    def consume(
        self,
        topic: str,
        partition: int | None,
        start_offset: int | str,
        max_records: int | None,
        timeout: float,
        isolation: Isolation,
    ) -> Iterator[ConsumerRecord]:
        """See Broker.consume()."""
        level = FetchIsolation.TXN_COMMITTED if is_committed(isolation) else FetchIsolation.HIGH_WATERMARK
        if max_records is not None and max_records < 0:
            raise ValueError(f"max_records {max_records}, expected 0 or more")
        if not timeout >= 0:
            raise ValueError(f"timeout {timeout}, expected 0 or more seconds")
        info = self._cache.topic(topic)
        if info is None:
            raise UnknownTopicOrPartition(f"{topic}: no such topic")
        if partition is not None and partition not in info.partitions:
            raise _no_partition(info, partition)
        numbers = sorted(info.partitions) if partition is None else [partition]
        tps = [TopicPartition(topic, number) for number in numbers]
        positions = {tp: self._first_offset(tp, start_offset, level, len(tps)) for tp in tps}
        ends = self._ends(tps, level)
        return self._while_serving(self._read(positions, ends, level, isolation, max_records, timeout))

    def _first_offset(self, tp: TopicPartition, start_offset: int | str, level: FetchIsolation, partitions: int) -> int:
        led = self._led(tp)
        start = led.local_log().log_start_offset
        if start_offset == "earliest":
            return start
        end = led.last_fetchable_offset(level)
        if start_offset == "latest":
            return end
        if isinstance(start_offset, str):
            raise ValueError(f"start_offset {start_offset!r}, expected an offset, 'earliest' or 'latest'")
        if partitions > 1:
            raise ValueError(f"start_offset={start_offset} of which of {tp.topic}'s {partitions} partitions? Give one")
        if not start <= start_offset <= end:
            raise OffsetOutOfRange(f"{tp}: start_offset {start_offset}, readable is [{start}, {end}]")
        return start_offset

    def _led(self, tp: TopicPartition) -> Partition:
        partition = self._replica_manager.get_partition_or_exception(tp)
        partition.check_leader()
        return partition

    def _ends(self, tps: Iterable[TopicPartition], level: FetchIsolation) -> dict[TopicPartition, int]:
        return {tp: self._led(tp).last_fetchable_offset(level) for tp in tps}

    def _while_serving(self, records: Iterator[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """The records; a RuntimeError for whatever goes wrong because the broker has stopped meanwhile."""
        try:
            yield from records
        except KafkaError:
            self._check_serving()
            raise

    def _read(
        self,
        positions: dict[TopicPartition, int],
        ends: Mapping[TopicPartition, int] | None,
        level: FetchIsolation,
        isolation: Isolation,
        max_records: int | None,
        timeout: float,
    ) -> Iterator[ConsumerRecord]:
        left = max_records
        while ends is not None:
            for tp, end in ends.items():
                while positions[tp] < end:
                    if left == 0:
                        return
                    self._check_serving()
                    log = self._led(tp).local_log()
                    # What retention or DeleteRecords took meanwhile is passed over, as by auto.offset.reset=earliest.
                    positions[tp] = max(positions[tp], log.log_start_offset)
                    try:
                        for record in log.records(positions[tp], end, isolation):
                            positions[tp] = record.offset + 1
                            yield _consumer_record(tp, record)
                            if left is not None:
                                left -= 1
                                if left == 0:
                                    return
                        positions[tp] = end
                    except OffsetOutOfRange:
                        if log.log_start_offset <= positions[tp]:
                            raise
            ends = self._await_records(positions, level, timeout)

    def _await_records(
        self, positions: Mapping[TopicPartition, int], level: FetchIsolation, timeout: float
    ) -> dict[TopicPartition, int] | None:
        """How far can be read, once that is beyond some position; None if it is not within timeout seconds."""
        deadline_ms = self._time.hi_res_clock_ms() + timeout * 1000
        while (left_ms := deadline_ms - self._time.hi_res_clock_ms()) > 0:
            self._check_serving()
            ends = self._ends(positions, level)
            if any(end > positions[tp] for tp, end in ends.items()):
                return ends
            self._time.sleep(min(_POLL_MS, left_ms))
        return None


def _consumer_record(tp: TopicPartition, record: Record) -> ConsumerRecord:
    return ConsumerRecord(
        tp.topic,
        tp.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        record.key,
        record.value,
        tuple(record.headers),
    )


def _no_partition(info: TopicInfo, partition: int) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(
        f"{info.name}-{partition}: no such partition, the topic has {len(info.partitions)} of them"
    )


def _as_bytes(argument: str, data: Data | None) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"{argument} must be bytes, str or None, not {data!r}")


def _as_headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    if not isinstance(headers, Iterable) or isinstance(headers, str | bytes):
        raise TypeError(f"headers must be a mapping or (name, value) pairs, not {headers!r}")
    pairs = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers must be a mapping or (name, value) pairs; {pair!r} is no pair")
        name, data = pair
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be a str, not {name!r}")
        pairs.append((name, _as_bytes(f"header {name}", data)))
    return pairs
