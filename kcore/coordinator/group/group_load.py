"""The groups in a partition of __consumer_offsets, made of its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from kcore.common.text import counted
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import CommittedOffset
from kcore.coordinator.group.consumer_group_records import ConsumerGroupReplay, read_consumer_group_key
from kcore.coordinator.group.group_metadata import (
    CONSUMER_PROTOCOL_TYPE,
    GroupMetadata,
    GroupState,
)
from kcore.coordinator.group.group_records import (
    OFFSET_COMMIT_VERSIONS,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    read_group_metadata_value,
    read_key,
    read_offset_commit_key,
    read_offset_commit_value,
)
from kcore.coordinator.group.live_consumer_group import LiveConsumerGroup
from kcore.coordinator.group.member_metadata import MemberMetadata
from kcore.errors import CorruptMessage
from kcore.record.record_batch import Record, RecordBatch

logger = logging.getLogger(__name__)


class _Offsets:
    """Committed offsets by group.

    A group's id and a partition are decoded once for all the keys that have them, and groups share their partitions.
    """

    def __init__(self) -> None:
        self.by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: A key begins with its group: offsets by these first bytes.  Its last bytes are the partition: by these.
        self._of_group: dict[bytes, dict[TopicPartition, CommittedOffset]] = {}
        self._partitions: dict[bytes, TopicPartition] = {}

    def of_group(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return self.by_group.setdefault(group_id, {})

    def place_of(self, key: bytes) -> tuple[dict[TopicPartition, CommittedOffset], TopicPartition]:
        """(offsets of its group, its partition).  key: of an offset commit.  Raises CorruptMessage."""
        end = 4 + int.from_bytes(key[2:4], "big")
        start, rest = key[:end], key[end:]
        offsets, topic_partition = self._of_group.get(start), self._partitions.get(rest)
        if offsets is None or topic_partition is None:
            group_id, parsed = read_offset_commit_key(key)
            offsets = self._of_group.setdefault(start, self.of_group(group_id))
            topic_partition = self._partitions.setdefault(rest, parsed)
        return offsets, topic_partition


class GroupLoad:
    """A PartitionLoad.  publish(groups) is called under the lock of the partitions, on_loaded(group) under each group's
    lock, before requests can reach it.

    is_committed(producer id, offset): of the transaction that has this record, None if it is open; of the log.
    """

    acts = False

    def __init__(
        self,
        topic_partition: TopicPartition,
        time: Time,
        publish: Callable[[Collection[GroupMetadata]], None],
        on_loaded: Callable[[GroupMetadata], None],
        is_committed: Callable[[int, int], bool | None] = lambda producer_id, offset: None,
    ) -> None:
        self._topic_partition = topic_partition
        self._time = time
        self._publish = publish
        self._on_loaded = on_loaded
        self._is_committed = is_committed
        #: What the records read so far say.
        self._values: dict[str, GroupMetadataValue] = {}
        self._offsets = _Offsets()
        self._consumer_groups: dict[str, ConsumerGroupReplay] = {}
        #: By producer id: commits inside a transaction whose end has not been read yet.
        self._open_transactions: dict[int, dict[OffsetCommitKey, CommittedOffset | None]] = {}
        #: (producer id, commits) of transactions that were open where batches were left out: the marker may be there.
        self._uncertain: list[tuple[int, dict[OffsetCommitKey, CommittedOffset | None]]] = []
        #: Of records whose keys have unknown versions: how many there are, and the offset of the first.
        self._num_unknown = 0
        self._first_unknown = -1
        self._groups: dict[str, GroupMetadata] = {}

    def __str__(self) -> str:
        return f"{len(self._groups)} groups and {sum(map(len, self._offsets.by_group.values()))} offsets"

    def read_batch(self, batch: RecordBatch) -> None:
        if batch.is_control:
            self._end_transaction(batch)
            return
        in_transaction: dict[OffsetCommitKey, CommittedOffset | None] | None = None
        if batch.is_transactional:
            in_transaction = self._open_transactions.setdefault(batch.producer_id, {})
        append_offset = batch.base_offset
        for record in batch:
            try:
                if not self._read_offset(record, append_offset, in_transaction):
                    self._read_group(record)
            except CorruptMessage as error:
                logger.error("%s: offset %d skipped: %s", self._topic_partition, record.offset, error)

    def _read_offset(
        self,
        record: Record,
        append_offset: int,
        in_transaction: dict[OffsetCommitKey, CommittedOffset | None] | None,
    ) -> bool:
        """Whether it is an offset commit.  Raises CorruptMessage."""
        key, value = record.key, record.value
        if key is None or key[:2] not in OFFSET_COMMIT_VERSIONS:
            return False
        committed = None if value is None else CommittedOffset(append_offset, read_offset_commit_value(value))
        if in_transaction is not None:
            in_transaction[read_offset_commit_key(key)] = committed
            return True
        offsets, topic_partition = self._offsets.place_of(key)
        if committed is not None:
            offsets[topic_partition] = committed
        else:
            offsets.pop(topic_partition, None)
            if self._open_transactions or self._uncertain:
                # Deleted, also what a transaction has committed before.
                deleted = read_offset_commit_key(key)
                for commits in (*self._open_transactions.values(), *(commits for _, commits in self._uncertain)):
                    commits.pop(deleted, None)
        return True

    def _read_group(self, record: Record) -> None:
        """Raises CorruptMessage."""
        if self._read_consumer_group(record):
            return
        key = read_key(record.key or b"")
        if not isinstance(key, GroupMetadataKey):
            self._first_unknown = record.offset if self._num_unknown == 0 else self._first_unknown
            self._num_unknown += 1
        elif record.value is None:
            self._values.pop(key.group_id, None)
        else:
            self._values[key.group_id] = read_group_metadata_value(record.value)

    def _read_consumer_group(self, record: Record) -> bool:
        """Whether it is a record of a group of KIP-848.  Raises CorruptMessage."""
        key = read_consumer_group_key(record.key or b"")
        if key is None:
            return False
        replay = self._consumer_groups.get(key.group_id)
        if replay is None:
            replay = self._consumer_groups[key.group_id] = ConsumerGroupReplay(key.group_id)
        replay.read(key, record.value)
        return True

    def _end_transaction(self, batch: RecordBatch) -> None:
        offsets = self._open_transactions.pop(batch.producer_id, {})
        # The marker's key is int16 version, int16 type; 1 is COMMIT.
        committed = any((record.key or b"")[2:4] == b"\x00\x01" for record in batch)
        if not committed:
            return
        for key, value in offsets.items():
            self._commit(key, value)

    def _commit(self, key: OffsetCommitKey, value: CommittedOffset | None) -> None:
        """Of a transaction that is committed."""
        group_id, topic_partition = key
        of_group = self._offsets.of_group(group_id)
        current = of_group.get(topic_partition)
        if value is None:
            of_group.pop(topic_partition, None)
        elif current is None or current.append_offset < value.append_offset:
            of_group[topic_partition] = value

    def skip(self) -> None:
        self._uncertain += self._open_transactions.items()
        self._open_transactions = {}

    def _end_uncertain_transactions(self) -> None:
        """By what the log knows of their ends: else commits whose marker was left out would be pending for ever."""
        for producer_id, commits in self._uncertain:
            for key, value in commits.items():
                if value is None:
                    continue
                is_committed = self._is_committed(producer_id, value.append_offset)
                if is_committed:
                    self._commit(key, value)
                elif is_committed is None:
                    self._open_transactions.setdefault(producer_id, {}).setdefault(key, value)

    def finish(self) -> None:
        """Groups as their last record left them, and an empty one for each that has only offsets.

        Commits of transactions that are still open wait for the end of these.
        """
        if self._num_unknown:
            logger.warning(
                "%s: %s with a key of unknown version, from offset %d on: perhaps of share groups, "
                "which this broker does not serve",
                self._topic_partition,
                counted(self._num_unknown, "record"),
                self._first_unknown,
            )
        self._end_uncertain_transactions()
        groups = self._groups
        for group_id, value in self._values.items():
            state = GroupState.STABLE if value.members else GroupState.EMPTY
            group = groups[group_id] = GroupMetadata(group_id, self._time, state)
            group.generation_id = value.generation_id
            group.protocol_type = value.protocol_type or None
            group.protocol_name = (value.protocol_name or "") if value.members else value.protocol_name
            group.state_timestamp = None if value.state_timestamp == -1 else value.state_timestamp
            # By id, since nothing keeps a damaged record from naming a member twice.
            for member in {member.member_id: member for member in value.members}.values():
                group.add(
                    MemberMetadata(
                        member.member_id,
                        member.group_instance_id,
                        member.client_id,
                        member.client_host,
                        member.rebalance_timeout_ms,
                        member.session_timeout_ms,
                        value.protocol_type,
                        [(value.protocol_name or "", member.subscription)],
                        member.assignment,
                    )
                )
            if value.leader_id is None or value.leader_id in group.members:
                group.leader_id = value.leader_id
            group.update_subscribed_topics()
        for group_id, replay in self._consumer_groups.items():
            consumer = replay.group()
            if consumer is not None:
                group = groups[group_id] = GroupMetadata(group_id, self._time)
                group.protocol_type = CONSUMER_PROTOCOL_TYPE
                group.consumer = LiveConsumerGroup(consumer, is_stored=True)
        for group_id, of_group in self._offsets.by_group.items():
            if of_group:
                self._group(group_id).offsets = of_group
        for producer_id, offsets in self._open_transactions.items():
            for (group_id, topic_partition), open_commit in offsets.items():
                if open_commit is not None:
                    of_producer = self._group(group_id).transactional_offsets.setdefault(producer_id, {})
                    of_producer[topic_partition] = open_commit

    def _group(self, group_id: str) -> GroupMetadata:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupMetadata(group_id, self._time)
        return group

    def publish(self) -> None:
        self._publish(self._groups.values())

    def activate(self) -> None:
        for group in self._groups.values():
            with group:
                if not group.is_unloaded:
                    self._on_loaded(group)
