"""The brokers of a test as one: which topics and groups they have, and which broker leads or coordinates what."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.coordinator.transaction.transaction_state import TransactionMetadata, TransactionState
from kcore.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from kcore.log.unified_log import UnifiedLog
from kcore.metadata.metadata_cache import MetadataCache, PartitionInfo
from kcore.server.broker import Broker
from kcore.server.call_arguments import string

#: In DeleteRecords the offset that stands for it.
_HIGH_WATERMARK = -1
#: How long a clear() waits for the followers' logs to start there too.
_CLEAR_MS = 30_000
_OPEN = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class RunningBrokers:
    """running(): the brokers that run now, by id.  Thread-safe, as the brokers are."""

    def __init__(self, running: Callable[[], Mapping[int, Broker]]) -> None:
        self.running = running

    @property
    def metadata(self) -> MetadataCache:
        """As one of the brokers has them.  Raises RuntimeError when none runs."""
        for broker in self.running().values():
            return broker.metadata_cache
        raise RuntimeError("no broker runs")

    def topic_name(self, topic_id: UUID) -> str | None:
        """As any of the brokers has it: one may not have heard of a topic yet."""
        names = (broker.metadata_cache.snapshot.topic_name(topic_id) for broker in self.running().values())
        return next((name for name in names if name is not None), None)

    def has_topic(self, topic: str) -> bool:
        return self.metadata.topic(topic) is not None

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """Raises UnknownTopicOrPartition, and TypeError for a name that is no str."""
        info = self.metadata.topic(string("topic", topic))
        if info is None:
            raise UnknownTopicOrPartition(f"{topic}: no such topic")
        return info.partitions

    def leader(self, topic: str, partition: int) -> Broker | None:
        """None for a partition that no running broker leads, and for one that does not exist."""
        info = self.metadata.topic(topic)
        state = info.partitions.get(partition) if info is not None else None
        return None if state is None else self.running().get(state.leader)

    def readable_offsets(self, tp: TopicPartition) -> tuple[int, int] | tuple[None, None]:
        """The first offset that a consumer can read and the one after the last; None while no running broker leads."""
        log = self._led_log(tp)
        return (None, None) if log is None else (log.log_start_offset, log.high_watermark)

    def records_left(self, tp: TopicPartition, offset: int | None, enough: int | None) -> int | None:
        """How many records read_committed has from this offset on (None: all); None while that cannot be said.

        enough: the count may end once it is greater than this.  Where a batch is damaged, offsets are counted.
        """
        log = self._led_log(tp)
        if log is None:
            return None
        first, end = max(offset or 0, log.log_start_offset), log.last_stable_offset
        try:
            return _count_records(log, first, end, enough) if first < end else 0
        except CorruptMessage:
            return end - first
        except (OffsetOutOfRange, KafkaStorageError):  # records were deleted meanwhile, or the disk fails
            return None

    def _led_log(self, tp: TopicPartition) -> UnifiedLog | None:
        leader = self.leader(*tp)
        try:
            return leader.log(*tp) if leader is not None else None
        except (UnknownTopicOrPartition, KafkaStorageError):
            return None

    def groups(self) -> list[GroupMetadata]:
        """By id, each as its coordinator has it."""
        by_id = {
            group.group_id: group
            for broker in self.running().values()
            for group in broker.group_coordinator.manager.groups()
        }
        return [by_id[group_id] for group_id in sorted(by_id)]

    def group(self, group_id: str) -> GroupMetadata | None:
        """None where no running broker coordinates one of this id.  Raises TypeError for an id that is no str."""
        string("group_id", group_id)
        groups = (broker.group_coordinator.manager.get_group(group_id) for broker in self.running().values())
        return next((group for group in groups if group is not None), None)

    def open_transactions(self) -> list[TransactionMetadata]:
        """Those that have begun and not ended, by transactional id."""
        by_id = {
            transaction.transactional_id: transaction
            for broker in self.running().values()
            for transaction in open_transactions(broker)
        }
        return [by_id[transactional_id] for transactional_id in sorted(by_id)]

    def clear(self, topic: str) -> None:
        """Delete the records of a topic that consumers can read: its partitions start at their high watermarks.

        Raises UnknownTopicOrPartition, PolicyViolation for a topic that only compacts, LeaderNotAvailable,
        RequestTimedOut.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for number, state in self.partitions(topic).items():
            by_leader.setdefault(state.leader, []).append(TopicPartition(topic, number))
        for broker_id, led in by_leader.items():
            leader = self.running().get(broker_id)
            if leader is None:
                raise LeaderNotAvailable(f"{led[0]}: no running broker leads it")
            answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
            leader.replica_manager.delete_records(dict.fromkeys(led, _HIGH_WATERMARK), answers.put, _CLEAR_MS)
            for result in answers.get().values():
                if result.error is not None:
                    raise result.error


def open_transactions(broker: Broker) -> list[TransactionMetadata]:
    """Those that this broker coordinates and that have begun and not ended."""
    try:
        return broker.running.services.transaction_coordinator.list_transactions(_OPEN, (), -1)
    except (CoordinatorNotAvailable, CoordinatorLoadInProgress):
        return []


def _count_records(log: UnifiedLog, first: int, end: int, enough: int | None) -> int:
    count = 0
    for batch in log.batches(first, end, "read_committed"):
        if batch.is_control:
            continue
        if batch.base_offset < first or batch.count < 0:
            count += sum(record.offset >= first for record in batch.records())
        else:
            count += batch.count
        if enough is not None and count > enough:
            break
    return count
