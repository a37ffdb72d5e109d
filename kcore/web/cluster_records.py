"""The records of a running cluster's partitions, from their leaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kcore.client.group_client import EARLIEST, LATEST, GroupClient, LogEnd
from kcore.client.topic_fetcher import FetchSizes, TopicFetcher
from kcore.client.topic_leaders import TopicLeaders
from kcore.common.topic_partition import TopicPartition
from kcore.errors import BrokerNotAvailable, UnknownTopicOrPartition
from kcore.web.cluster_reader import CLIENT_ID, ClusterReader
from kcore.web.records import Bounds, Slice, Taker

#: Of one request for a page; a larger batch comes nevertheless.
_PAGE_SIZES = FetchSizes(max_wait_ms=100, max_bytes=1 << 20, partition_max_bytes=1 << 18)


class ClusterPartition:
    """A PartitionRecords.  Thread-safe."""

    def __init__(self, reader: ClusterReader, topic_partition: TopicPartition) -> None:
        self._reader = reader
        self._tp = topic_partition

    def bounds(self) -> Bounds:
        """Raises UnknownTopicOrPartition, BrokerNotAvailable where a leader does not say it, OSError."""
        starts, ends = self._reader.offsets([self._tp])
        if starts[self._tp].offset is None:
            self._reader.ask(self._check_exists)
        return Bounds(known_offset(self._tp, starts[self._tp]), known_offset(self._tp, ends[self._tp]))

    def _check_exists(self, client: GroupClient) -> None:
        topic, number = self._tp
        if number not in client.describe_cluster([topic]).topics[topic].partitions:
            raise UnknownTopicOrPartition(f"topic {topic} has no partition {number}")

    def offset_at(self, timestamp_ms: int) -> int:
        def listed(client: GroupClient, timestamp: int) -> int:
            return known_offset(self._tp, client.listed_offsets({self._tp: timestamp})[self._tp])

        found = self._reader.ask(lambda client: listed(client, timestamp_ms))
        return found if found >= 0 else self._reader.ask(lambda client: listed(client, LATEST))

    def read(self, offset: int, most: int) -> Slice:
        bounds, number = self.bounds(), self._tp.partition
        taker = Taker(max(offset, bounds.start), most, bounds.end)
        if taker.is_full:
            return taker.slice
        spans = {number: Bounds(taker.slice.next_offset, bounds.end)}

        def ask(client: GroupClient) -> Slice:
            with topic_fetcher(client, self._tp.topic, spans, self._reader.timeout_ms, _PAGE_SIZES) as fetcher:
                while not fetcher.is_done and not taker.is_full:
                    for fetched in fetcher.poll():
                        for batch in fetched.records.batches:
                            taker.take(batch)
            return taker.slice

        return self._reader.ask(ask)


def known_offset(topic_partition: TopicPartition, found: LogEnd) -> int:
    """Raises BrokerNotAvailable with the reason why it is not known."""
    if found.offset is None:
        raise BrokerNotAvailable(f"{topic_partition}: {found.problem}")
    return found.offset


@contextmanager
def topic_fetcher(
    client: GroupClient, topic: str, spans: Mapping[int, Bounds], timeout_ms: int, sizes: FetchSizes
) -> Iterator[TopicFetcher]:
    """Reads these offsets of these partitions while the block runs.  Raises OSError, KafkaError."""
    leaders = TopicLeaders(
        client, topic, client_id=CLIENT_ID, request_timeout_ms=timeout_ms, on_silence=lambda address, silence: None
    )

    def earliest(number: int) -> int:
        tp = TopicPartition(topic, number)
        return known_offset(tp, client.listed_offsets({tp: EARLIEST})[tp])

    try:
        yield TopicFetcher(
            leaders,
            {number: span.start for number, span in spans.items()},
            {number: span.end for number, span in spans.items()},
            timeout_ms=timeout_ms,
            earliest=earliest,
            sizes=sizes,
        )
    finally:
        leaders.close()
