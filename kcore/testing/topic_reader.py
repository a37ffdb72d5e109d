"""The records that come into a topic, each read once."""

from __future__ import annotations

from kcore.errors import KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange, UnknownTopicOrPartition
from kcore.server.broker import Broker
from kcore.server.in_process_client import ConsumerRecord
from kcore.testing.running_brokers import RunningBrokers

#: The leader, or the start of the log, has just changed, or the leader is about to make the log: the next look sees it.
_PASSING = (KafkaStorageError, NotLeaderOrFollower, OffsetOutOfRange, UnknownTopicOrPartition)


class TopicReader:
    """Reads the first `limit` records of a topic.  For one thread."""

    def __init__(self, brokers: RunningBrokers, topic: str, limit: int) -> None:
        self._brokers = brokers
        self._topic = topic
        self._limit = limit
        #: Those that were read, of each partition in the order of offsets.
        self.records: list[ConsumerRecord] = []
        self._positions: dict[int, int] = {}

    def read(self) -> bool:
        """Read what has come since the last call; whether there are `limit` records.  A topic that does not exist has
        none: its first producer may be about to make it."""
        try:
            partitions = self._brokers.partitions(self._topic)
        except UnknownTopicOrPartition:
            partitions = {}
        for partition in sorted(partitions):
            leader = self._brokers.leader(self._topic, partition)
            if leader is not None and len(self.records) < self._limit:
                try:
                    self._read_partition(leader, partition)
                except _PASSING:
                    continue
                except RuntimeError:
                    if not leader.has_stopped:
                        raise
        return len(self.records) >= self._limit

    def describe(self) -> str:
        """What there is now, for people."""
        if self.records or self._brokers.has_topic(self._topic):
            return f"it has {len(self.records)}"
        return "there is no such topic"

    def _read_partition(self, leader: Broker, partition: int) -> None:
        log = leader.log(self._topic, partition)
        end = log.high_watermark
        position = max(self._positions.get(partition, 0), log.log_start_offset)
        if position >= end:
            return
        for record in leader.consume(self._topic, partition, position, self._limit - len(self.records)):
            self.records.append(record)
            self._positions[partition] = record.offset + 1
        if len(self.records) < self._limit:
            # What is left below it are no records: markers of transactions, or what compaction has removed.
            self._positions[partition] = max(self._positions.get(partition, 0), end)
