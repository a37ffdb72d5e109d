"""The groups this broker coordinates, and their records in __consumer_offsets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from kcore.common.scheduler import ScheduledTask, Scheduler
from kcore.common.time import Time
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_metadata import CommittedOffset, GroupMetadata, GroupState, OffsetAndMetadata
from kcore.coordinator.group.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberValue,
    OffsetCommitKey,
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
    read_group_metadata_value,
    read_key,
    read_offset_commit_value,
)
from kcore.coordinator.group.member_metadata import MemberMetadata
from kcore.errors import (
    NONE,
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    InvalidCommitOffsetSize,
    InvalidFetchSize,
    InvalidGroupId,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import RecordBatch
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.delayed_produce import ProducePartitionStatus
from kcore.replica.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

INVALID_OFFSET = -1

#: What a failed append of an offsets record means to a group's client.
#: Source: GroupMetadataManager.storeGroup and maybeConvertOffsetCommitError, Kafka 3.9.
_APPEND_ERRORS: dict[type[ApiError], type[ApiError]] = {
    UnknownTopicOrPartition: CoordinatorNotAvailable,
    NotEnoughReplicas: CoordinatorNotAvailable,
    NotEnoughReplicasAfterAppend: CoordinatorNotAvailable,
    NotLeaderOrFollower: NotCoordinator,
    KafkaStorageError: NotCoordinator,
}
_TOO_LARGE = (MessageTooLarge, RecordListTooLarge, InvalidFetchSize)


class OffsetFetchResult(NamedTuple):
    """A committed offset; offset -1 and leader epoch -1 where there is none."""

    offset: int = INVALID_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error_code: int = NONE


class _Loaded:
    """The state read so far from one partition of the offsets topic."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupMetadataValue] = {}
        self.offsets: dict[OffsetCommitKey, CommittedOffset] = {}
        #: By producer id: commits inside a transaction whose end has not been read yet.
        self.open_transactions: dict[int, dict[OffsetCommitKey, CommittedOffset | None]] = {}


class GroupMetadataManager:
    """Thread-safe.  A partition of the offsets topic is loading, then owned, until it is removed; groups live in one
    dict for all partitions.  Order of locks: a group's, then the partition lock; appends happen under neither.
    Source: GroupMetadataManager, Kafka 3.9.
    """

    def __init__(
        self,
        config: GroupConfig,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        time: Time,
        disk_scheduler: Scheduler,
        is_certain: Callable[[], bool],
    ) -> None:
        self._config = config
        self._replica_manager = replica_manager
        self._scheduler = scheduler
        self._disk_scheduler = disk_scheduler
        #: Whether no other broker can coordinate the same groups by now.
        self.is_certain = is_certain
        self._time = time
        self._groups: dict[str, GroupMetadata] = {}
        self._partition_lock = threading.Lock()
        #: Partition -> coordinator epoch (the leader epoch of the offsets partition).
        self._loading: dict[int, int] = {}
        self._owned: dict[int, int] = {}
        self._expiration_task: ScheduledTask | None = None
        #: From startup() to shutdown().
        self.is_active = False
        self.partition_for = lru_cache(maxsize=10_000)(self._partition_for)

    def startup(self) -> None:
        interval_ms = self._config.offsets_retention_check_interval_ms
        self._expiration_task = self._scheduler.schedule(
            "delete-expired-group-metadata", self.cleanup_expired_offsets, interval_ms, interval_ms
        )
        self.is_active = True

    def shutdown(self) -> None:
        self.is_active = False
        if self._expiration_task is not None:
            self._expiration_task.cancel()

    def _partition_for(self, group_id: str) -> int:
        """The partition of the offsets topic that holds a group's records."""
        return java_abs(java_string_hash(group_id)) % self._config.offsets_topic_num_partitions

    def is_group_local(self, group_id: str) -> bool:
        return self.partition_for(group_id) in self._owned

    def is_group_loading(self, group_id: str) -> bool:
        return self.partition_for(group_id) in self._loading

    def validate_group_status(self, group_id: str, empty_id_allowed: bool = False) -> int:
        """NONE if this coordinator is responsible for the group and has loaded it; else the error code to answer."""
        if not group_id and not empty_id_allowed:
            return InvalidGroupId.code
        if not self.is_active:
            return CoordinatorNotAvailable.code
        if self.is_group_local(group_id):
            return NONE
        if self.is_group_loading(group_id):
            return CoordinatorLoadInProgress.code
        return NotCoordinator.code

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def groups(self) -> list[GroupMetadata]:
        return list(self._groups.values())

    def get_group(self, group_id: str) -> GroupMetadata | None:
        return self._groups.get(group_id)

    def find_group(
        self, group_id: str, *, create: bool = False, empty_id_allowed: bool = False
    ) -> tuple[int, GroupMetadata | None]:
        """(error code of validate_group_status(), the group); NONE and None: this coordinator has no such group.

        create: make it then.  Both are of one moment, so that "no such group" is not the answer about a group whose
        partition moves away.  It may move after that: whoever then takes the group's lock looks at is_unloaded, or
        refuses a Dead group with an error that makes the client look for the coordinator again.
        """
        with self._partition_lock:
            error_code = self.validate_group_status(group_id, empty_id_allowed)
            if error_code:
                return error_code, None
            group = self._groups.get(group_id)
            if group is None and create:
                group = self._groups[group_id] = GroupMetadata(group_id, self._time)
            return NONE, group

    def remove_group(self, group: GroupMetadata) -> None:
        with self._partition_lock:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]

    # -- storing -----------------------------------------------------------------------------------------------------

    def store_group(self, group: GroupMetadata, assignments: dict[str, bytes], callback: Callable[[int], None]) -> None:
        """Under the group's lock: write its metadata as they are now; callback(error code) runs without the lock."""
        protocol = group.protocol_name
        value = GroupMetadataValue(
            group.protocol_type or "",
            group.generation_id,
            protocol,
            group.leader_id,
            -1 if group.state_timestamp is None else group.state_timestamp,
            [
                MemberValue(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(protocol),
                    assignments[member.member_id],
                )
                for member in group.members.values()
                if protocol is not None
            ],
        )
        now_ms = self._time.milliseconds()
        builder = RecordBatchBuilder()
        try:
            builder.append(group_metadata_value(value), group_metadata_key(group.group_id), timestamp=now_ms)
        except ValueError as error:
            logger.warning("group %s: its metadata do not fit a record: %s", group.group_id, error)
            group.after_unlock(lambda: callback(UnknownServerError.code))
            return

        def appended(status: ProducePartitionStatus) -> None:
            error = status.error
            if error is None:
                callback(NONE)
                return
            logger.warning("group %s: storing generation %d failed: %s", group.group_id, value.generation_id, error)
            if isinstance(error, RequestTimedOut):
                callback(RebalanceInProgress.code)
            elif isinstance(error, _TOO_LARGE):
                callback(UnknownServerError.code)
            else:
                callback(_APPEND_ERRORS.get(type(error), type(error)).code)

        self._append_after_unlock(group, builder.build(), appended)

    def store_offsets(
        self,
        group: GroupMetadata,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: Callable[[dict[TopicPartition, int]], None],
    ) -> None:
        """Under the group's lock: write the offsets, then make them the committed ones.

        callback({partition: error code}) runs without the lock.  A partition whose metadata string is longer than
        offset.metadata.max.bytes is left out with OFFSET_METADATA_TOO_LARGE.
        """
        group_id = group.group_id
        now_ms = self._time.milliseconds()
        results: dict[TopicPartition, int] = {}
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        builder = RecordBatchBuilder()
        for topic_partition, value in offsets.items():
            if len(value.metadata) > self._config.offset_metadata_max_bytes:
                results[topic_partition] = OffsetMetadataTooLarge.code
                continue
            try:
                key, data = offset_commit_key(group_id, topic_partition), offset_commit_value(value)
            except ValueError:
                results[topic_partition] = OffsetMetadataTooLarge.code
                continue
            builder.append(data, key, timestamp=now_ms)
            accepted[topic_partition] = value
        if not accepted:
            group.after_unlock(lambda: callback(results))
            return

        def appended(status: ProducePartitionStatus) -> None:
            error = status.error
            with group:
                if error is None and group.is_unloaded:
                    # Led here again since: whether what was loaded has this record is not known.  The client looks for
                    # the coordinator and commits again.
                    error_code = NotCoordinator.code
                elif error is None:
                    group.complete_offset_commit(accepted, status.base_offset)
                    error_code = NONE
                else:
                    group.fail_offset_commit(accepted)
                    logger.warning("group %s: committing offsets failed: %s", group_id, error)
                    if isinstance(error, _TOO_LARGE):
                        error_code = InvalidCommitOffsetSize.code
                    else:
                        error_code = _APPEND_ERRORS.get(type(error), type(error)).code
            results.update(dict.fromkeys(accepted, error_code))
            callback(results)

        group.prepare_offset_commit(accepted)
        self._append_after_unlock(group, builder.build(), appended)

    def _append_after_unlock(
        self, group: GroupMetadata, batch: bytearray, appended: Callable[[ProducePartitionStatus], None]
    ) -> None:
        topic_partition = TopicPartition(GROUP_METADATA_TOPIC, self.partition_for(group.group_id))

        def append() -> None:
            self._replica_manager.append_records(
                self._config.offsets_commit_timeout_ms,
                -1,
                True,
                AppendOrigin.COORDINATOR,
                {topic_partition: batch},
                lambda statuses: appended(statuses[topic_partition]),
            )

        group.after_unlock(append)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def get_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition] | None, require_stable: bool
    ) -> tuple[int, dict[TopicPartition, OffsetFetchResult]]:
        """(error code of the group, committed offsets); of all partitions that have one for None.

        With require_stable a partition whose commit is on its way to the log answers UNSTABLE_OFFSET_COMMIT.
        NOT_COORDINATOR, which makes every client try again, while another coordinator may have newer offsets.
        """
        error_code, offsets = self._get_offsets(group_id, topic_partitions, require_stable)
        if not error_code and not self.is_certain():  # now, after they were read: they were the group's last ones
            return NotCoordinator.code, {}
        return error_code, offsets

    def _get_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition] | None, require_stable: bool
    ) -> tuple[int, dict[TopicPartition, OffsetFetchResult]]:
        error_code, group = self.find_group(group_id, empty_id_allowed=True)
        if error_code:
            return error_code, {}
        if group is None:
            return NONE, {topic_partition: OffsetFetchResult() for topic_partition in topic_partitions or ()}
        results = {}
        with group:
            if group.is_unloaded:
                return NotCoordinator.code, {}
            dead = group.state is GroupState.DEAD
            if topic_partitions is None:
                topic_partitions = [] if dead else list(group.offsets)
            for topic_partition in topic_partitions:
                committed = None if dead else group.offsets.get(topic_partition)
                if require_stable and not dead and topic_partition in group.pending_offset_commits:
                    results[topic_partition] = OffsetFetchResult(error_code=UnstableOffsetCommit.code)
                elif committed is None:
                    results[topic_partition] = OffsetFetchResult()
                else:
                    value = committed.value
                    results[topic_partition] = OffsetFetchResult(value.offset, value.leader_epoch, value.metadata)
        return NONE, results

    # -- removing ----------------------------------------------------------------------------------------------------

    def cleanup_expired_offsets(self) -> None:
        """Remove offsets whose time is over, and groups that have nothing left."""
        now_ms = self._time.milliseconds()
        retention_ms = self._config.offsets_retention_minutes * 60_000
        removed = sum(
            self.remove_offsets(group, lambda group: group.expired_offsets(now_ms, retention_ms))
            for group in self.groups()
        )
        if removed:
            logger.info("%d committed offsets expired", removed)

    def remove_offsets(self, group: GroupMetadata, choose: Callable[[GroupMetadata], Iterable[TopicPartition]]) -> int:
        """Remove the offsets that choose(group) names, with tombstones; how many there were.

        An empty group that has none left is removed too, and so is a group that is Dead already.  No request waits for
        the tombstones: one that is lost is written again, since the offset or group will come back and expire again.
        A group that was unloaded keeps everything: it lives at another coordinator, or at this one again.
        """
        with group:
            if group.is_unloaded:
                return 0
            removed = group.remove_offsets(list(choose(group)))
            if group.state is GroupState.EMPTY and not group.has_offsets:
                group.transition_to(GroupState.DEAD)
            builder = RecordBatchBuilder()
            now_ms = self._time.milliseconds()
            for topic_partition in removed:
                builder.append(None, offset_commit_key(group.group_id, topic_partition), timestamp=now_ms)
            if group.state is GroupState.DEAD:
                self.remove_group(group)
                # A group that never had a generation has no record to bury.
                if group.generation_id > 0:
                    builder.append(None, group_metadata_key(group.group_id), timestamp=now_ms)
            if len(builder):
                self._append_after_unlock(group, builder.build(), self._tombstones_appended)
        return len(removed)

    @staticmethod
    def _tombstones_appended(status: ProducePartitionStatus) -> None:
        if status.error is not None:
            logger.warning("tombstones of a group were not stored: %s", status.error)

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def load_partition(self, partition: int, epoch: int, on_loaded: Callable[[GroupMetadata], None]) -> None:
        """Begin to coordinate the groups of a partition that this broker leads since epoch.

        Until its records have been read, on the disk's scheduler, its groups answer COORDINATOR_LOAD_IN_PROGRESS; a
        partition without records is owned at once, and one whose log cannot be had (any more) not at all.
        on_loaded(group) runs under each group's lock, before requests can reach it.
        """
        with self._partition_lock:
            if epoch < max(self._loading.get(partition, -1), self._owned.get(partition, -1)):
                return
            if partition in self._owned:
                # Led before and still: what is in memory is newer than anything that could be read.
                self._owned[partition] = epoch
                return
            if self._is_empty(TopicPartition(GROUP_METADATA_TOPIC, partition)):
                self._loading.pop(partition, None)
                self._owned[partition] = epoch
                return
            if self._loading.get(partition) == epoch:
                return
            self._loading[partition] = epoch
        # A load for an older epoch that still waits or runs finds that it is no longer wanted.
        self._disk_scheduler.schedule(
            f"load-{GROUP_METADATA_TOPIC}-{partition}", lambda: self._load(partition, epoch, on_loaded), 0
        )

    def _is_empty(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition is hosted here and has no records."""
        replica = self._replica_manager.get_partition(topic_partition)
        if replica is None:
            return False
        try:
            log = replica.local_log()
        except KafkaStorageError:
            return False
        return log.log_start_offset == log.log_end_offset

    def _has_log(self, topic_partition: TopicPartition) -> bool:
        replica = self._replica_manager.get_partition(topic_partition)
        try:
            return replica is not None and replica.local_log() is not None
        except KafkaStorageError:
            return False

    def _load(self, partition: int, epoch: int, on_loaded: Callable[[GroupMetadata], None]) -> None:
        if self._loading.get(partition) != epoch:
            return  # resigned, or elected again, meanwhile
        topic_partition = TopicPartition(GROUP_METADATA_TOPIC, partition)
        started_ms = self._time.hi_res_clock_ms()
        loaded = _Loaded()
        try:
            self._read_partition(topic_partition, epoch, loaded)
        except Exception:
            # As Kafka: what was read counts, so that one bad place does not take all groups of the partition away.
            logger.exception("%s: reading the groups stopped by an error", topic_partition)
        groups = self._build_groups(loaded)
        with self._partition_lock:
            if self._loading.get(partition) != epoch:
                return
            if not self._has_log(topic_partition):
                # What was read may be a part.  If the log is lost from here on, unload_partition() is still to come.
                del self._loading[partition]
                logger.warning("%s: has no log, so its groups are not coordinated here", topic_partition)
                return
            for group in groups:
                self._groups[group.group_id] = group
        for group in groups:
            with group:
                if not group.is_unloaded:
                    on_loaded(group)
        with self._partition_lock:
            # Otherwise resigned just now; then the groups are gone again, too.
            if self._loading.get(partition) == epoch:
                self._owned[partition] = self._loading.pop(partition)
        logger.info(
            "%s: loaded %d groups and %d offsets in %.0f ms",
            topic_partition,
            len(groups),
            len(loaded.offsets),
            self._time.hi_res_clock_ms() - started_ms,
        )

    def _read_partition(self, topic_partition: TopicPartition, epoch: int, loaded: _Loaded) -> None:
        replica = self._replica_manager.get_partition(topic_partition)
        if replica is None:
            return
        log = replica.local_log()
        offset = log.log_start_offset
        while offset < log.log_end_offset and self._loading.get(topic_partition.partition) == epoch:
            fetched = log.read(offset, self._config.offsets_load_buffer_size, FetchIsolation.LOG_END, True)
            records = fetched.records
            if not isinstance(records, MemoryRecords):
                records = records.memory_records()
            if not records:
                return
            for batch in records.batches:
                self._read_batch(topic_partition, batch, loaded)
                offset = batch.next_offset

    def _read_batch(self, topic_partition: TopicPartition, batch: RecordBatch, loaded: _Loaded) -> None:
        if batch.is_control:
            self._end_transaction(batch, loaded)
            return
        offsets: dict[OffsetCommitKey, CommittedOffset | None] | None = None
        if batch.is_transactional:
            offsets = loaded.open_transactions.setdefault(batch.producer_id, {})
        for record in batch:
            try:
                key = read_key(record.key or b"")
                if isinstance(key, GroupMetadataKey):
                    if record.value is None:
                        loaded.groups.pop(key.group_id, None)
                    else:
                        loaded.groups[key.group_id] = read_group_metadata_value(record.value)
                elif isinstance(key, OffsetCommitKey):
                    committed = None
                    if record.value is not None:
                        committed = CommittedOffset(batch.base_offset, read_offset_commit_value(record.value))
                    if offsets is not None:
                        offsets[key] = committed
                    elif committed is not None:
                        loaded.offsets[key] = committed
                    else:
                        loaded.offsets.pop(key, None)
                else:
                    logger.warning("%s: offset %d has a key of unknown version", topic_partition, record.offset)
            except CorruptMessage as error:
                logger.error("%s: offset %d skipped: %s", topic_partition, record.offset, error)

    @staticmethod
    def _end_transaction(batch: RecordBatch, loaded: _Loaded) -> None:
        offsets = loaded.open_transactions.pop(batch.producer_id, {})
        # The marker's key is int16 version, int16 type; 1 is COMMIT.
        committed = any((record.key or b"")[2:4] == b"\x00\x01" for record in batch)
        if not committed:
            return
        for key, value in offsets.items():
            current = loaded.offsets.get(key)
            if value is None:
                loaded.offsets.pop(key, None)
            elif current is None or current.append_offset < value.append_offset:
                loaded.offsets[key] = value

    def _build_groups(self, loaded: _Loaded) -> list[GroupMetadata]:
        """Groups as their last record left them, and an empty one for each that has only offsets.

        Commits of transactions still open are not committed, so no client may see them.
        """
        groups: dict[str, GroupMetadata] = {}
        for group_id, value in loaded.groups.items():
            state = GroupState.STABLE if value.members else GroupState.EMPTY
            group = groups[group_id] = GroupMetadata(group_id, self._time, state)
            group.generation_id = value.generation_id
            group.protocol_type = value.protocol_type or None
            group.protocol_name = (value.protocol_name or "") if value.members else value.protocol_name
            if any(member.member_id == value.leader_id for member in value.members):
                group.leader_id = value.leader_id
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
            group.update_subscribed_topics()
        for (group_id, topic_partition), committed in loaded.offsets.items():
            owner = groups.get(group_id)
            if owner is None:
                owner = groups[group_id] = GroupMetadata(group_id, self._time)
            owner.offsets[topic_partition] = committed
        return list(groups.values())

    def unload_partition(self, partition: int, epoch: int | None, on_unloaded: Callable[[GroupMetadata], None]) -> None:
        """Stop coordinating a partition's groups; on_unloaded(group) runs under each group's lock.

        epoch is the one since which another broker leads, None when the partition is gone.
        """
        with self._partition_lock:
            if epoch is not None and epoch < max(self._loading.get(partition, -1), self._owned.get(partition, -1)):
                return
            self._loading.pop(partition, None)
            self._owned.pop(partition, None)
            # Of this moment: those of another election, which may come before these are unloaded, stay.
            groups = [group for group in self.groups() if self.partition_for(group.group_id) == partition]
        for group in groups:
            with group:
                group.is_unloaded = True
                on_unloaded(group)
                self.remove_group(group)


def java_string_hash(text: str) -> int:
    """String.hashCode of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def java_abs(value: int) -> int:
    """Utils.abs of Kafka: 0 for the one value that has no positive twin in 32 bits."""
    return 0 if value == -(1 << 31) else abs(value)
