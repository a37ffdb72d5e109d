"""What the partitions of a broker count, and how that is read: traffic by topic, changes of the ISR, expirations.

A Partition has the TopicMeters of its topic; the topic's counts outlive its partitions, and those of a topic that this
broker hosts no more stay in the sum over all topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from kcore.common.meters import Meter, TimeHistogram, TopicMeters
from kcore.common.metrics import Measured, MetricName, Table, count
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ApiError,
    CorruptMessage,
    FencedLeaderEpoch,
    KafkaStorageError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RecordListTooLarge,
    ReplicaNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from kcore.replica.fetch_params import FetchPartitionResult

#: Answers that a healthy broker gives: they are no failed produce (APP-17) and no failed fetch (RD-21).
_EXPECTED_PRODUCE_ERRORS = (
    UnknownTopicOrPartition,
    NotLeaderOrFollower,
    MessageTooLarge,
    RecordListTooLarge,
    CorruptMessage,
    KafkaStorageError,
)
_EXPECTED_FETCH_ERRORS = (
    UnknownTopicOrPartition,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    FencedLeaderEpoch,
    ReplicaNotAvailable,
    KafkaStorageError,
    OffsetOutOfRange,
)

#: Attribute of TopicMeters -> Kafka's name.  Source: BrokerTopicMetrics, Kafka 3.9.
_OF_A_TOPIC = {
    "messages_in": "MessagesInPerSec",
    "bytes_in": "BytesInPerSec",
    "bytes_out": "BytesOutPerSec",
    "bytes_rejected": "BytesRejectedPerSec",
    "produce_requests": "TotalProduceRequestsPerSec",
    "fetch_requests": "TotalFetchRequestsPerSec",
    "failed_produce_requests": "FailedProduceRequestsPerSec",
    "failed_fetch_requests": "FailedFetchRequestsPerSec",
    "produce_message_conversions": "ProduceMessageConversionsPerSec",
    "fetch_message_conversions": "FetchMessageConversionsPerSec",
}
#: The same of those that Kafka has only for all topics together.
_OF_ALL_TOPICS = {
    "replication_bytes_in": "ReplicationBytesInPerSec",
    "replication_bytes_out": "ReplicationBytesOutPerSec",
    "reassignment_bytes_in": "ReassignmentBytesInPerSec",
}


class ReplicaMeters:
    """Counters of a ReplicaManager and its partitions.  Thread-safe: each method runs a few operations of a dict."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicMeters] = {}
        self._partitions: dict[str, set[int]] = {}
        #: Counts of topics that are hosted no more, and of requests for topics that never were: their names are the
        #: clients' choice, and must not fill the memory.
        self.other_topics = TopicMeters()
        self.isr_shrinks = Meter()
        self.isr_expands = Meter()
        self.failed_isr_updates = Meter()
        self.produce_expirations: dict[TopicPartition, Meter] = {}
        self.follower_fetch_expirations = Meter()
        self.consumer_fetch_expirations = Meter()
        self.delete_records_expirations = Meter()
        self.conversion_times = TimeHistogram()

    def add_partition(self, topic_partition: TopicPartition) -> TopicMeters:
        """The counters of the topic of a partition that is hosted from now on.  Caller holds the state change lock."""
        topic, number = topic_partition
        self._partitions.setdefault(topic, set()).add(number)
        return self._topics.setdefault(topic, TopicMeters())

    def topic(self, topic: str) -> TopicMeters:
        """The counters of a topic; of all other topics for one that is not hosted."""
        return self._topics.get(topic, self.other_topics)

    def partition_removed(self, topic_partition: TopicPartition) -> None:
        """The partition is hosted no more; with the last one the topic's counts go to those of other topics.

        Caller holds the state change lock.
        """
        topic = topic_partition.topic
        partitions = self._partitions.get(topic, set())
        partitions.discard(topic_partition.partition)
        if partitions:
            return
        self._partitions.pop(topic, None)
        removed = self._topics.pop(topic, None)
        if removed is not None:
            self.other_topics.add(removed)
        for topic_partition in [tp for tp in self.produce_expirations if tp.topic == topic]:
            # The sum over all partitions keeps them.
            self.produce_expirations.setdefault(_REMOVED, Meter()).mark(
                self.produce_expirations.pop(topic_partition).count
            )

    def produce_refused(self, topic: str, error: ApiError, size: int) -> None:
        """A producer's records of that many bytes were not appended, for this reason."""
        is_too_large = isinstance(error, (MessageTooLarge, RecordListTooLarge))
        self.topic(topic).produce_refused(not isinstance(error, _EXPECTED_PRODUCE_ERRORS), size if is_too_large else 0)

    def produce_converted(self, meters: TopicMeters, records: int, duration_ns: int) -> None:
        """A producer's records were rebuilt before they were appended (APP-07)."""
        meters.converted(produced=records)
        self.conversion_times.update(duration_ns)

    def not_sent(self, results: Iterable[tuple[TopicPartition, FetchPartitionResult]], replica_id: int) -> None:
        """What was read is not the answer: the fetch waits for more, and reads again."""
        for topic_partition, result in results:
            self.topic(topic_partition.topic).not_sent(result.records.size_in_bytes, replica_id)

    def read_failed(self, topic: str, error: ApiError) -> None:
        """A partition could not be read for a Fetch request, for this reason."""
        self.topic(topic).read_failed(not isinstance(error, _EXPECTED_FETCH_ERRORS))

    def produce_expired(self, topic_partition: TopicPartition) -> None:
        """A producer that waited for acks=-1 is answered REQUEST_TIMED_OUT for this partition (PURG-09)."""
        self.produce_expirations.setdefault(topic_partition, Meter()).mark()

    def fetch_expired(self, *, is_follower: bool) -> None:
        """A fetch that waited is answered at its deadline (PURG-16)."""
        (self.follower_fetch_expirations if is_follower else self.consumer_fetch_expirations).mark()

    def measured(self) -> Iterator[tuple[MetricName, Measured] | Table]:
        """All of them by Kafka's names."""
        everything = TopicMeters()
        everything.add(self.other_topics)
        rows = []
        counts_of = attrgetter(*_OF_A_TOPIC)
        for topic, meters in list(self._topics.items()):
            everything.add(meters)
            rows.append(((topic,), counts_of(meters)))
        columns = [("kafka.server", "BrokerTopicMetrics", name) for name in _OF_A_TOPIC.values()]
        yield Table(columns, "Count", ("topic",), rows)
        for attribute, name in (_OF_A_TOPIC | _OF_ALL_TOPICS).items():
            yield MetricName("kafka.server", "BrokerTopicMetrics", name), count(getattr(everything, attribute))
        yield MetricName("kafka.server", "ReplicaManager", "IsrShrinksPerSec"), self.isr_shrinks
        yield MetricName("kafka.server", "ReplicaManager", "IsrExpandsPerSec"), self.isr_expands
        yield MetricName("kafka.server", "ReplicaManager", "FailedIsrUpdatesPerSec"), self.failed_isr_updates
        expirations = list(self.produce_expirations.items())
        for topic_partition, meter in expirations:
            if topic_partition is not _REMOVED:
                topic, partition = topic_partition
                yield (
                    MetricName(
                        "kafka.server", "DelayedProduceMetrics", "ExpiresPerSec", topic=topic, partition=partition
                    ),
                    meter,
                )
        total = sum(meter.count for _, meter in expirations)
        yield MetricName("kafka.server", "DelayedProduceMetrics", "ExpiresPerSec"), count(total)
        name = MetricName("kafka.server", "DelayedDeleteRecordsMetrics", "ExpiresPerSec")
        yield name, self.delete_records_expirations
        for fetcher_type, meter in (
            ("follower", self.follower_fetch_expirations),
            ("consumer", self.consumer_fetch_expirations),
        ):
            name = MetricName("kafka.server", "DelayedFetchMetrics", "ExpiresPerSec", fetcherType=fetcher_type)
            yield name, meter
        yield (
            MetricName("kafka.network", "RequestMetrics", "MessageConversionsTimeMs", request="Produce"),
            self.conversion_times,
        )


_REMOVED = TopicPartition("", -1)
