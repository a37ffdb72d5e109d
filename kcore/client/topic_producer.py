"""TopicProducer: writes records to a topic's leaders with acks=all, and loses none without saying so.

Each leader has one request under way, with at most one batch of each partition, so that records stay in order and a
batch that is sent again keeps its sequence: a leader that has it already does not append it twice (KIP-98).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, NamedTuple

from kcore.client.admin_client import Node, explanation
from kcore.client.topic_leaders import BACKOFF_MS, TopicLeaders
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    ApiError,
    ClusterAuthorizationFailed,
    DuplicateSequenceNumber,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnsupportedVersion,
    for_code,
)
from kcore.protocol.messages import produce as p
from kcore.record.record_batch_builder import RecordBatchBuilder

if TYPE_CHECKING:
    from kcore.record.record_batch import CompressionType

#: From 13 on a request names the topic by its id: a leader refuses what was meant for a topic that is deleted, also if
#: another one has its name by now.
_NEWEST_BY_NAME, _NEWEST = 12, 13
#: Before a batch is sent the topic's id is looked at again after so long: older leaders take it by the name.
_ID_CHECK_MS = 1000
_ACKS_ALL = -1
#: Half of the default of message.max.bytes, uncompressed: compression may make a batch larger.
_BATCH_BYTES = 512 << 10
#: What a record takes beside its strings, about.
_RECORD_OVERHEAD = 24
#: Below socket.request.max.bytes of Kafka's brokers, which cut the connection above it.
_LARGEST_RECORD = 99 << 20
#: As the answer to a batch: one of its records is to blame.
_REFUSALS = (MessageTooLarge, RecordListTooLarge, InvalidRecord, InvalidTimestamp)
#: After these the leader may have appended the batch.
_UNCERTAIN = (RequestTimedOut, NotEnoughReplicasAfterAppend, UnknownServerError)


class Record(NamedTuple):
    """A record to write.  tag: what the caller knows it by; tags ascend.  timestamp: ms, -1 for none."""

    tag: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int

    @property
    def size(self) -> int:
        """About as many bytes as it takes in a batch."""
        size = _RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        if self.headers:
            size += sum([len(name) + len(value or b"") for name, value in self.headers])
        return size


class _Batch:
    """Records of a partition.  encoded: once it was sent, so that it is the same when it is sent again."""

    __slots__ = ("encoded", "is_uncertain", "records", "sent_ms", "size")

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.size = sum([record.size for record in records])
        self.encoded: bytearray | None = None
        self.sent_ms: float | None = None
        self.is_uncertain = False


class TopicProducer:
    """For one thread, which calls poll() while it has nothing else to do.

    on_acknowledged(partition, first offset or -1, records): called for each batch that all replicas in sync have.
    on_refused(record, error): the leader does not take this record, and was not asked to again.
    timeout_ms: so long a batch may be without an acknowledgement since it was first sent.
    Raises OSError, KafkaError where no producer id can be had.
    """

    def __init__(
        self,
        leaders: TopicLeaders,
        *,
        timeout_ms: int,
        request_timeout_ms: int,
        on_acknowledged: Callable[[int, int, int], None],
        on_refused: Callable[[Record, ApiError], None],
        compression: CompressionType = "none",
        time: Time = SYSTEM_TIME,
    ) -> None:
        self._leaders = leaders
        self._timeout_ms = timeout_ms
        # The leader's own time-out comes first, so that its answer is here in time.
        self._replication_timeout_ms = max(1, request_timeout_ms - min(1000, request_timeout_ms // 4))
        self._on_acknowledged = on_acknowledged
        self._on_refused = on_refused
        self._compression = compression
        self._time = time
        self._batch_bytes = _BATCH_BYTES
        self._open: dict[int, _Batch] = {}
        self._queues: dict[int, deque[_Batch]] = {}
        self._in_flight: dict[Future[p.ProduceResponse], tuple[Node, dict[int, _Batch]]] = {}
        self._not_before_ms: dict[int, float] = {}
        self._sequences: dict[int, int] = {}
        self._pending_bytes = 0
        self._id_checked_ms = time.hi_res_clock_ms()
        #: Whether every batch so far was written to the topic with the id that it was meant for.  If not, leaders took
        #: batches by the topic's name, and those of the last second before TopicGone may be in a new one.
        self.is_by_id = True
        #: How often a batch was sent again that the leader may have had.
        self.uncertain_retries = 0
        self._producer_id, self._producer_epoch = self._new_producer_id()

    @property
    def is_idempotent(self) -> bool:
        """Whether a batch that is sent again is appended once: not with brokers before 0.11, nor without permission."""
        return self._producer_id >= 0

    @property
    def pending_bytes(self) -> int:
        """Of the records that are not acknowledged yet, about."""
        return self._pending_bytes

    def first_pending(self) -> tuple[int, int] | None:
        """The lowest tag of a record that is not acknowledged."""
        batches = [*self._open.values(), *(batch for queue in self._queues.values() for batch in queue)]
        batches += [batch for _, sent in self._in_flight.values() for batch in sent.values()]
        return min((batch.records[0].tag for batch in batches), default=None)

    def append(self, partition: int, record: Record) -> bool:
        """Whether the partition's batch is full with this record, and will be sent.  A record that no request can carry
        is refused at once."""
        size = record.size
        if size > _LARGEST_RECORD:
            self._on_refused(record, MessageTooLarge(f"MessageTooLarge: {size} bytes are more than a request may have"))
            return False
        self._pending_bytes += size
        batch = self._open.get(partition)
        if batch is None:
            batch = self._open[partition] = _Batch([])
        batch.records.append(record)
        batch.size += size
        if batch.size < self._batch_bytes:
            return False
        self._close_batch(partition)
        return True

    def close_batches(self) -> None:
        """Have all records sent, also those in batches that are not full."""
        for partition in list(self._open):
            self._close_batch(partition)

    def poll(self, wait_ms: float) -> None:
        """Send what can be sent, and take answers; waits for one up to wait_ms.

        Raises TopicGone; the ApiError of a partition that does not pass; for a batch that is not acknowledged in time
        the last error, TimeoutError where the leader does not answer.
        """
        self._send()
        now_ms = self._time.hi_res_clock_ms()
        pauses = [at - now_ms for number, at in self._not_before_ms.items() if self._queues.get(number)]
        wait_ms = min([wait_ms, *(max(1.0, pause) for pause in pauses)])
        if self._in_flight:
            done, _ = wait(self._in_flight, wait_ms / 1000, FIRST_COMPLETED)
            for future in done:
                self._take(future)
        elif pauses and wait_ms > 0:
            self._time.sleep(wait_ms)
        if pauses:
            self._refresh()
        self._send()

    def finish_requests(self) -> None:
        """Wait for the answers to what is under way, and send nothing else.  Raises as poll()."""
        while self._in_flight:
            done, _ = wait(self._in_flight, None, FIRST_COMPLETED)
            for future in done:
                self._take(future)

    # -- requests -----------------------------------------------------------------------------------------------

    def _new_producer_id(self) -> tuple[int, int]:
        """(-1, -1) where the cluster gives none.  Raises OSError, KafkaError."""
        deadline_ms = self._time.hi_res_clock_ms() + self._timeout_ms
        while True:
            try:
                return self._leaders.client.new_producer_id()
            except (UnsupportedVersion, ClusterAuthorizationFailed):
                return -1, -1
            except ApiError as error:
                if not error.retriable or self._time.hi_res_clock_ms() >= deadline_ms:
                    raise
            self._time.sleep(BACKOFF_MS)

    def _close_batch(self, partition: int) -> None:
        self._queues.setdefault(partition, deque()).append(self._open.pop(partition))

    def _send(self) -> None:
        """A request to each leader that has none under way."""
        now_ms = self._time.hi_res_clock_ms()
        if any(self._queues.values()) and now_ms - self._id_checked_ms >= _ID_CHECK_MS:
            self._refresh()
        busy = {number for _, sent in self._in_flight.values() for number in sent}
        busy_nodes = {node for node, _ in self._in_flight.values()}
        by_leader: dict[Node, dict[int, _Batch]] = {}
        for number, queue in self._queues.items():
            if not queue or number in busy or self._not_before_ms.get(number, 0) > now_ms:
                continue
            leader = self._leaders.leader(number)
            if leader is None:
                batch = queue[0]
                batch.sent_ms = now_ms if batch.sent_ms is None else batch.sent_ms
                self._note_failure(number, batch, "it has no leader that is alive")
            elif leader not in busy_nodes:
                by_leader.setdefault(leader, {})[number] = queue.popleft()
        for leader, sent in by_leader.items():
            request = self._request(sent, now_ms)
            newest = _NEWEST_BY_NAME if self._leaders.topic_id is None else _NEWEST
            self._in_flight[self._leaders.send(leader, request, p.ProduceResponse, newest)] = leader, sent

    def _request(self, sent: dict[int, _Batch], now_ms: float) -> p.ProduceRequest:
        partitions = []
        for number, batch in sent.items():
            batch.sent_ms = now_ms if batch.sent_ms is None else batch.sent_ms
            self.uncertain_retries += batch.is_uncertain
            if batch.encoded is None:
                batch.encoded = self._encoded(number, batch)
            partitions.append(p.PartitionProduceData(index=number, records=batch.encoded))
        topic = p.TopicProduceData(name=self._leaders.topic, partition_data=partitions)
        if self._leaders.topic_id is not None:
            topic.topic_id = self._leaders.topic_id
        return p.ProduceRequest(acks=_ACKS_ALL, timeout_ms=self._replication_timeout_ms, topic_data=[topic])

    def _encoded(self, number: int, batch: _Batch) -> bytearray:
        builder = RecordBatchBuilder(
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._sequences.get(number, 0) if self.is_idempotent else -1,
            initial_size=batch.size + 64,
        )
        for record in batch.records:
            builder.append(record.value, record.key, timestamp=record.timestamp, headers=record.headers)
        return builder.build()

    # -- answers ------------------------------------------------------------------------------------------------

    def _take(self, future: Future[p.ProduceResponse]) -> None:
        node, sent = self._in_flight.pop(future)
        try:
            response = future.result()
        except (OSError, KafkaError) as error:
            failures: dict[int, Exception | str] = dict.fromkeys(sent, error)
            answers: dict[int, p.PartitionProduceResponse] = {}
        else:
            answers = {data.index: data for topic in response.responses for data in topic.partition_responses}
            self.is_by_id &= all(topic.topic_id.int for topic in response.responses)
            unanswered = f"{node.host}:{node.port} has not answered for it"
            failures = dict.fromkeys([number for number in sent if number not in answers], unanswered)
        for number in failures:
            sent[number].is_uncertain = True
        for number in [number for number in sent if number in answers]:
            refusal = self._take_partition(node, number, sent[number], answers[number])
            if refusal is not None:
                failures[number] = refusal
        # Only when all of them are in their queues again: one that is raised ends the work.
        for number in failures:
            self._queues[number].appendleft(sent[number])
        for number, failure in failures.items():
            self._note_failure(number, sent[number], failure)

    def _take_partition(
        self, node: Node, number: int, batch: _Batch, data: p.PartitionProduceResponse
    ) -> ApiError | None:
        """The error after which the batch may be sent again."""
        if data.error_code in (NONE, DuplicateSequenceNumber.code):
            self._not_before_ms.pop(number, None)
            self._pending_bytes -= batch.size
            count = len(batch.records)
            self._sequences[number] = (self._sequences.get(number, 0) + count) & 0x7FFF_FFFF
            self._on_acknowledged(number, data.base_offset if data.error_code == NONE else -1, count)
            return None
        kind = for_code(data.error_code)
        if issubclass(kind, _REFUSALS):
            self._split(number, batch, kind, data)
            return None
        tp = TopicPartition(self._leaders.topic, number)
        error = kind(f"{tp} of {node.host}:{node.port}: {kind.__name__}: {explanation(kind, data.error_message)}")
        batch.is_uncertain |= isinstance(error, _UNCERTAIN)
        return error

    def _split(self, number: int, batch: _Batch, kind: type[ApiError], data: p.PartitionProduceResponse) -> None:
        """Nothing of the batch was appended: find the record that is to blame, and send the others again."""
        refused = {
            error.batch_index: error.batch_index_error_message
            for error in data.record_errors
            if error.batch_index < len(batch.records)
        }
        if len(batch.records) == 1:
            refused = {0: refused.get(0)}
        elif issubclass(kind, MessageTooLarge):
            self._batch_bytes = min(self._batch_bytes, max(1, batch.size // 2))
        for index, reason in refused.items():
            record = batch.records[index]
            self._pending_bytes -= record.size
            text = reason or explanation(kind, data.error_message)
            self._on_refused(record, kind(f"{kind.__name__}: {text}"))
        records = [record for index, record in enumerate(batch.records) if index not in refused]
        middle = len(records) if refused else len(records) // 2
        for part in (records[middle:], records[:middle]):
            if part:
                self._queues[number].appendleft(_Batch(part))

    def _note_failure(self, number: int, batch: _Batch, error: Exception | str) -> None:
        """Raises the error if it does not pass, or has lasted for too long."""
        now_ms = self._time.hi_res_clock_ms()
        self._not_before_ms[number] = now_ms + BACKOFF_MS
        lasted_ms = 0.0 if batch.sent_ms is None else now_ms - batch.sent_ms
        self._leaders.check_failure(number, error, lasted_ms, self._timeout_ms, "not acknowledged")

    def _refresh(self) -> None:
        """Raises TopicGone.  After another error the batches that wait for their leader end this."""
        self._id_checked_ms = self._time.hi_res_clock_ms()
        self._leaders.refresh_later()
