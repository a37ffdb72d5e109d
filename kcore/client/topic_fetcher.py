"""TopicFetcher: reads a topic's partitions from their leaders, as a consumer without a group.

Each leader has one request under way; while its answer is used, the next one is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from kcore.client.admin_client import Node, explanation
from kcore.client.topic_leaders import BACKOFF_MS, TopicGone, TopicLeaders
from kcore.common.time import SYSTEM_TIME, Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    CorruptMessage,
    KafkaError,
    OffsetOutOfRange,
    for_code,
)
from kcore.protocol.messages import fetch as f
from kcore.record.memory_records import MemoryRecords

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
#: From 13 on a request names topics by their ids.
_NEWEST_BY_NAME = 12
_NO_END = (1 << 63) - 1


class Fetched(NamedTuple):
    """Whole batches of a partition.  The caller uses their records from first_offset on and below end_offset.

    aborted: transactions to leave out, as columns_of() takes them.  next_offset: after the last batch.
    """

    partition: int
    records: MemoryRecords
    first_offset: int
    end_offset: int
    aborted: list[tuple[int, int, int]]
    next_offset: int


class FetchSizes(NamedTuple):
    """Of one request: how long the leader waits for records, and at most how many bytes it sends."""

    max_wait_ms: int = 500
    max_bytes: int = 32 << 20
    partition_max_bytes: int = 4 << 20


DEFAULT_SIZES = FetchSizes()


class TopicFetcher:
    """For one thread.  positions: partition -> the first offset to read; ends: partition -> the offset to stop at, for
    those that have an end.

    earliest(partition): the first offset that its log has now.  Raises OSError, KafkaError.
    on_lost(partition, first offset, offset where it goes on): called when records that were to be read are not in the
    log any more.
    timeout_ms: so long a partition's leader may be away, or answer with errors that pass.
    """

    def __init__(
        self,
        leaders: TopicLeaders,
        positions: Mapping[int, int],
        ends: Mapping[int, int],
        *,
        timeout_ms: int,
        earliest: Callable[[int], int],
        isolation_level: int = READ_UNCOMMITTED,
        sizes: FetchSizes = DEFAULT_SIZES,
        on_lost: Callable[[int, int, int], None] = lambda partition, first, next_offset: None,
        time: Time = SYSTEM_TIME,
    ) -> None:
        self._leaders = leaders
        self._ends = dict(ends)
        self._positions = {number: at for number, at in positions.items() if at < self._ends.get(number, _NO_END)}
        self._timeout_ms = timeout_ms
        self._earliest = earliest
        self._isolation_level = isolation_level
        self._sizes = sizes
        self._on_lost = on_lost
        self._time = time
        self._in_flight: dict[Future[f.FetchResponse], tuple[Node, dict[int, int]]] = {}
        #: Since when a partition fails, and why.
        self._failing: dict[int, tuple[float, Exception | str]] = {}
        self._not_before_ms: dict[int, float] = {}

    @property
    def is_done(self) -> bool:
        """Whether each partition is read up to its end."""
        return not self._positions

    def poll(self) -> list[Fetched]:
        """What has come since the last call; waits until a leader has answered, so that an empty list is no end.

        Raises TopicGone; the ApiError of a partition that does not pass; after timeout_ms of a partition's failures
        the last one, TimeoutError where a leader does not answer.
        """
        self._send()
        now_ms = self._time.hi_res_clock_ms()
        if not self._in_flight:
            if self._positions:
                self._time.sleep(max(1.0, min(self._not_before_ms.values(), default=now_ms) - now_ms))
                self._refresh()
            return []
        pauses = [at - now_ms for number, at in self._not_before_ms.items() if number in self._positions]
        done, _ = wait(self._in_flight, max(1.0, min(pauses)) / 1000 if pauses else None, FIRST_COMPLETED)
        fetched = [item for future in done for item in self._take(future)]
        if any(number in self._not_before_ms for number in self._positions):
            self._refresh()
        self._send()
        return fetched

    # -- requests -----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        """A request to each leader that has none under way."""
        now_ms = self._time.hi_res_clock_ms()
        busy = {number for _, asked in self._in_flight.values() for number in asked}
        busy_nodes = {node for node, _ in self._in_flight.values()}
        by_leader: dict[Node, dict[int, int]] = {}
        for number, position in self._positions.items():
            if number in busy or self._not_before_ms.get(number, 0) > now_ms:
                continue
            leader = self._leaders.leader(number)
            if leader is None:
                self._note_failure(number, "it has no leader that is alive")
            elif leader not in busy_nodes:
                by_leader.setdefault(leader, {})[number] = position
        for leader, asked in by_leader.items():
            request = self._request(asked)
            self._in_flight[self._leaders.send(leader, request, f.FetchResponse, _NEWEST_BY_NAME)] = leader, asked
            # The leader fills its answer in their order: those that came last are first the next time.
            for number in asked:
                self._positions[number] = self._positions.pop(number)

    def _request(self, asked: Mapping[int, int]) -> f.FetchRequest:
        partitions = [
            f.FetchPartition(
                partition=number,
                current_leader_epoch=self._leaders.leader_epoch(number),
                fetch_offset=position,
                partition_max_bytes=self._sizes.partition_max_bytes,
            )
            for number, position in asked.items()
        ]
        return f.FetchRequest(
            max_wait_ms=self._sizes.max_wait_ms,
            min_bytes=1,
            max_bytes=self._sizes.max_bytes,
            isolation_level=self._isolation_level,
            topics=[f.FetchTopic(topic=self._leaders.topic, partitions=partitions)],
        )

    def _take(self, future: Future[f.FetchResponse]) -> list[Fetched]:
        node, asked = self._in_flight.pop(future)
        try:
            response = future.result()
            if response.error_code != NONE:
                kind = for_code(response.error_code)
                raise kind(f"{node.host}:{node.port}: {kind.__name__}: {explanation(kind)}")
        except (OSError, KafkaError) as error:
            for number in asked:
                self._note_failure(number, error)
            return []
        answers = [data for topic in response.responses for data in topic.partitions]
        return [item for data in answers if (item := self._take_partition(node, data, asked)) is not None]

    def _take_partition(self, node: Node, data: f.PartitionData, asked: Mapping[int, int]) -> Fetched | None:
        number, tp = data.partition_index, TopicPartition(self._leaders.topic, data.partition_index)
        position = asked.get(number)
        if position is None or position != self._positions.get(number):
            return None
        source = f"{tp} of {node.host}:{node.port}"
        if data.error_code == OffsetOutOfRange.code:
            self._go_on_at_the_start(number, position)
            return None
        if data.error_code != NONE:
            kind = for_code(data.error_code)
            self._note_failure(number, kind(f"{source}, offset {position}: {kind.__name__}: {explanation(kind)}"))
            return None
        try:
            records = MemoryRecords(b"" if data.records is None else data.records, source=source)
            if not len(records) and data.records:
                raise CorruptMessage(
                    f"{source}, offset {position}: a batch is larger than {self._sizes.partition_max_bytes} bytes, "
                    "and the broker sends only a part of it"
                )
        except KafkaError as error:
            self._note_failure(number, error)
            return None
        self._failing.pop(number, None)
        self._not_before_ms.pop(number, None)
        if not len(records):
            return None
        end = self._ends.get(number, _NO_END)
        aborted = aborted_transactions(records, data.aborted_transactions or ())
        self._move(number, records.last_offset + 1)
        return Fetched(number, records, position, end, aborted, min(records.last_offset + 1, end))

    def _go_on_at_the_start(self, number: int, position: int) -> None:
        """Raises OffsetOutOfRange where the position is not below the log's start, TopicGone."""
        try:
            self._leaders.refresh()
            start = self._earliest(number)
        except TopicGone:
            raise
        except (OSError, KafkaError) as error:
            self._note_failure(number, error)
            return
        if start <= position:
            tp = TopicPartition(self._leaders.topic, number)
            raise OffsetOutOfRange(f"{tp}: offset {position} is after the end of the log, which starts at {start}")
        self._on_lost(number, position, start)
        self._move(number, start)

    def _move(self, number: int, position: int) -> None:
        if position >= self._ends.get(number, _NO_END):
            del self._positions[number]
            self._not_before_ms.pop(number, None)
        else:
            self._positions[number] = position

    # -- failures -----------------------------------------------------------------------------------------------

    def _note_failure(self, number: int, error: Exception | str) -> None:
        """Raises the error if it does not pass, or has lasted for too long."""
        now_ms = self._time.hi_res_clock_ms()
        since_ms, _ = self._failing.get(number, (now_ms, error))
        self._failing[number] = since_ms, error
        self._not_before_ms[number] = now_ms + BACKOFF_MS
        self._leaders.check_failure(number, error, now_ms - since_ms, self._timeout_ms, "no records")

    def _refresh(self) -> None:
        """Raises TopicGone."""
        error = self._leaders.refresh_later()
        if error is not None:
            # The partitions fail as well, and end the wait.
            for number in self._not_before_ms:
                since_ms, _ = self._failing.get(number, (self._time.hi_res_clock_ms(), error))
                self._failing[number] = since_ms, error


def aborted_transactions(
    records: MemoryRecords, transactions: Sequence[f.AbortedTransaction]
) -> list[tuple[int, int, int]]:
    """(producer id, first offset, last offset) of each: the last one is that of its marker, or where the marker is not
    among the records, has no end."""
    if not transactions:
        return []
    markers: dict[int, list[int]] = {}
    for batch in records.batches:
        if batch.is_control:
            markers.setdefault(batch.producer_id, []).append(batch.base_offset)
    return [
        (
            transaction.producer_id,
            transaction.first_offset,
            next((at for at in markers.get(transaction.producer_id, ()) if at >= transaction.first_offset), _NO_END),
        )
        for transaction in transactions
    ]
