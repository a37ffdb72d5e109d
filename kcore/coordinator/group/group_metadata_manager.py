"""The groups this broker coordinates, and their records in __consumer_offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kcore.common.scheduler import ScheduledTask, Scheduler
from kcore.common.time import Time
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinator_partitions import CoordinatorPartitions
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_records import (
    GroupMetadataValue,
    MemberValue,
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
)
from kcore.coordinator.group.offset_removal import OffsetRemoval
from kcore.errors import (
    NONE,
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DiskFull,
    GroupIdNotFound,
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
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
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
    # The directory stays online, and this broker the coordinator.
    DiskFull: CoordinatorNotAvailable,
}
_TOO_LARGE = (MessageTooLarge, RecordListTooLarge, InvalidFetchSize)
#: Bytes that a record has beside its key and value, or a batch beside its records, at most.
_MOST_OVERHEAD = 64


def _error_for_members(error: ApiError) -> ApiError:
    """What the members of a group get whose metadata could not be stored."""
    if isinstance(error, RequestTimedOut):
        return RebalanceInProgress(str(error))
    if isinstance(error, _TOO_LARGE):
        return UnknownServerError(str(error))
    return _APPEND_ERRORS.get(type(error), type(error))(str(error))


def error_for_consumers(error: ApiError) -> ApiError:
    """What a member of a group of KIP-848 gets.  Source: CoordinatorOperationExceptionHelper, Kafka 4.2."""
    if isinstance(error, RequestTimedOut):
        return CoordinatorNotAvailable(str(error))
    return _error_for_members(error)


def metadata_record(group: GroupMetadata, assignments: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    """Key and value of a classic group as it is now, its members with these assignments.

    Raises ValueError for what fits no record.
    """
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
    return group_metadata_key(group.group_id), group_metadata_value(value)


class OffsetFetchResult(NamedTuple):
    """A committed offset; offset -1 and leader epoch -1 where there is none."""

    offset: int = INVALID_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error_code: int = NONE


class GroupMetadataManager:
    """Thread-safe.  Groups live in one dict for all partitions of the offsets topic.  Order of locks: a group's, then
    that of the partitions; appends happen under neither.
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
        self._scheduler = scheduler
        #: Of the offsets topic: which this broker coordinates.
        self.partitions = CoordinatorPartitions(
            GROUP_METADATA_TOPIC,
            config.offsets_topic_num_partitions,
            replica_manager,
            disk_scheduler,
            time,
            append_timeout_ms=config.offsets_commit_timeout_ms,
            load_buffer_size=config.offsets_load_buffer_size,
        )
        #: The partition of the offsets topic that holds a group's records.
        self.partition_for = self.partitions.partition_for
        #: Whether no other broker can coordinate the same groups by now.
        self.is_certain = is_certain
        self._time = time
        self._groups: dict[str, GroupMetadata] = {}
        #: Producer id -> groups that its open transaction has offsets of.  Under the lock of the partitions.
        self._groups_of_producers: dict[int, set[GroupMetadata]] = {}
        self._expiration_task: ScheduledTask | None = None
        #: From startup() to shutdown().
        self.is_active = False

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

    def loaded_epoch(self, partition: int) -> int | None:
        """Since which the groups of a partition are coordinated here, and loaded; None if they are not."""
        return self.partitions.owned.get(partition)

    def is_group_local(self, group_id: str) -> bool:
        return self.partition_for(group_id) in self.partitions.owned

    def is_group_loading(self, group_id: str) -> bool:
        return self.partition_for(group_id) in self.partitions.loading

    def check_group_status(self, group_id: str, empty_id_allowed: bool = False) -> None:
        """Raises InvalidGroupId, CoordinatorNotAvailable, CoordinatorLoadInProgress or NotCoordinator unless this
        coordinator is responsible for the group and has loaded it."""
        if not group_id and not empty_id_allowed:
            raise InvalidGroupId("the group id is empty")
        if not self.is_active:
            raise CoordinatorNotAvailable("the coordinator has stopped")
        if not self.is_group_local(group_id):
            raise (CoordinatorLoadInProgress if self.is_group_loading(group_id) else NotCoordinator)(group_id)

    @property
    def is_loading(self) -> bool:
        return bool(self.partitions.loading)

    def groups(self) -> list[GroupMetadata]:
        return list(self._groups.values())

    def get_group(self, group_id: str) -> GroupMetadata | None:
        return self._groups.get(group_id)

    def find_group(
        self, group_id: str, *, create: bool = False, empty_id_allowed: bool = False
    ) -> GroupMetadata | None:
        """The group, None where this coordinator has none of that id.  Raises as check_group_status().

        create: make it then.  Both are of one moment, so that "no such group" is not the answer about a group whose
        partition moves away.  It may move after that: whoever then takes the group's lock looks at is_unloaded, or
        refuses a Dead group with an error that makes the client look for the coordinator again.
        """
        with self.partitions.lock:
            self.check_group_status(group_id, empty_id_allowed)
            group = self._groups.get(group_id)
            if group is None and create:
                group = GroupMetadata(group_id, self._time)
                group.coordinator_epoch = self.partitions.epoch(self.partition_for(group_id))
                self._groups[group_id] = group
            return group

    def remove_group(self, group: GroupMetadata) -> None:
        with self.partitions.lock:
            if self._groups.get(group.group_id) is group:
                del self._groups[group.group_id]
            for producer_id in group.transactional_offsets:
                self._forget_producer(producer_id, {group})

    def _forget_producer(self, producer_id: int, groups: Collection[GroupMetadata]) -> None:
        """Under the lock of the partitions."""
        left = self._groups_of_producers.get(producer_id)
        if left is not None:
            left.difference_update(groups)
            if not left:
                del self._groups_of_producers[producer_id]

    # -- storing -----------------------------------------------------------------------------------------------------

    def store_group(
        self,
        group: GroupMetadata,
        assignments: dict[str, bytes],
        callback: Callable[[ApiError | None], None],
        error_for_client: Callable[[ApiError], ApiError] = _error_for_members,
    ) -> None:
        """Under the group's lock: write its metadata as they are now; callback(error) runs without the lock.

        error_for_client(error of a failed append): the error that the callback gets.
        """
        first, generation_id = group.first_records, group.generation_id
        try:
            batch = self._batch_of((*first, metadata_record(group, assignments)))
        except ValueError as error:
            logger.warning("group %s: its metadata do not fit a record: %s", group.group_id, error)
            refusal = UnknownServerError(str(error))
            group.after_unlock(lambda: callback(refusal))
            return

        def appended(status: ProducePartitionStatus) -> None:
            error = status.error
            if error is None:
                self._first_records_appended(group, first)
            else:
                logger.warning("group %s: storing generation %d failed: %s", group.group_id, generation_id, error)
                error = error_for_client(error)
            callback(error)

        group.after_unlock(lambda: self._append(group, batch, appended))

    def fits_batch(self, group: GroupMetadata, records: Collection[tuple[bytes, bytes | None]]) -> bool:
        """Under the group's lock: whether store_records() makes one batch of them, which the log takes."""
        limit = self.partitions.max_batch_size(self.partition_for(group.group_id))
        if limit is None:
            return True
        all_records = (*group.first_records, *records)
        fields = sum(len(key) + len(value or b"") for key, value in all_records)
        if fields + _MOST_OVERHEAD * (len(all_records) + 1) <= limit:
            return True
        return len(self._batch_of(all_records)) <= limit

    def store_records(
        self,
        group: GroupMetadata,
        records: Sequence[tuple[bytes, bytes | None]],
        callback: Callable[[ApiError | None], None],
        refusal: Callable[[], ApiError | None] = lambda: None,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Under the group's lock: write keys and values (None: a tombstone); callback(error) runs without the lock.

        Records that fit no single batch are written in order in as many as they need.  After a batch that could not be
        appended none follows, so what is in the log is all or the first part.
        refusal(), before each append: why there shall be none.
        on_failed(), under the group's lock: as soon as one batch has failed; others may still wait for their answers.
        """
        first = group.first_records
        if self.fits_batch(group, records):
            batches: list[Sequence[tuple[bytes, bytes | None]]] = [(*first, *records)]
        else:
            batches = self._batches(group, (*first, *records))
        statuses: list[ApiError | None] = []

        def appended(error: ApiError | None) -> None:
            with group:
                if error is not None and not any(statuses):
                    on_failed()
                statuses.append(error)
                if len(statuses) < len(batches):
                    return
            error = next((error for error in statuses if error is not None), None)
            if error is None:
                self._first_records_appended(group, first)
            else:
                logger.warning("group %s: storing its records failed: %s", group.group_id, error)
                error = error_for_consumers(error)
            callback(error)

        def append(batch: bytearray) -> None:
            failed = next((error for error in statuses if error is not None), None) or refusal()
            if failed is not None:
                appended(failed)
            else:
                self._append(group, batch, lambda status: appended(status.error))

        for batch in batches:
            group.after_unlock(partial(append, self._batch_of(batch)))

    def _batches(
        self, group: GroupMetadata, records: Iterable[tuple[bytes, bytes | None]]
    ) -> list[Sequence[tuple[bytes, bytes | None]]]:
        """The records, in order, in lists that each fit a batch; one that fits none is alone."""
        limit = self.partitions.max_batch_size(self.partition_for(group.group_id))
        batches: list[Sequence[tuple[bytes, bytes | None]]] = []
        batch: list[tuple[bytes, bytes | None]] = []
        size = _MOST_OVERHEAD
        for key, value in records:
            record_size = _MOST_OVERHEAD + len(key) + len(value or b"")
            if batch and limit is not None and size + record_size > limit:
                batches.append(batch)
                batch, size = [], _MOST_OVERHEAD
            batch.append((key, value))
            size += record_size
        return [*batches, batch] if batch else batches

    def _batch_of(self, records: Iterable[tuple[bytes, bytes | None]]) -> bytearray:
        now_ms = self._time.milliseconds()
        builder = RecordBatchBuilder()
        for key, value in records:
            builder.append(value, key, timestamp=now_ms)
        return builder.build()

    @staticmethod
    def _first_records_appended(group: GroupMetadata, first: tuple[tuple[bytes, bytes | None], ...]) -> None:
        """first: the group's first records when the write began, which is in the log now."""
        if first:
            with group:
                if group.first_records is first:
                    group.first_records = ()

    def store_offsets(
        self,
        group: GroupMetadata,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: Callable[[dict[TopicPartition, int]], None],
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Under the group's lock: write the offsets, then make them the committed ones.

        callback({partition: error code}) runs without the lock.  A partition whose metadata string is longer than
        offset.metadata.max.bytes is left out with OFFSET_METADATA_TOO_LARGE.
        producer: a transaction's, as (id, epoch); then the offsets wait for its end.
        """
        group_id = group.group_id
        now_ms = self._time.milliseconds()
        results: dict[TopicPartition, int] = {}
        accepted: dict[TopicPartition, OffsetAndMetadata] = {}
        if producer is None:
            builder = RecordBatchBuilder()
        else:
            builder = RecordBatchBuilder(producer_id=producer[0], producer_epoch=producer[1], is_transactional=True)
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
                    self._complete_commit(group, accepted, status.base_offset, producer)
                    error_code = NONE
                else:
                    self._fail_commit(group, accepted, producer)
                    logger.warning("group %s: committing offsets failed: %s", group_id, error)
                    if isinstance(error, _TOO_LARGE):
                        error_code = InvalidCommitOffsetSize.code
                    else:
                        error_code = _APPEND_ERRORS.get(type(error), type(error)).code
            results.update(dict.fromkeys(accepted, error_code))
            callback(results)

        if producer is None:
            group.prepare_offset_commit(accepted)
        else:
            group.prepare_transactional_commit(producer[0], accepted)
            with self.partitions.lock:
                self._groups_of_producers.setdefault(producer[0], set()).add(group)
        batch = builder.build()
        group.after_unlock(lambda: self._append(group, batch, appended))

    @staticmethod
    def _complete_commit(
        group: GroupMetadata,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        append_offset: int,
        producer: tuple[int, int] | None,
    ) -> None:
        if producer is None:
            group.complete_offset_commit(offsets, append_offset)
        else:
            group.complete_transactional_commit(producer[0], offsets, append_offset)

    @staticmethod
    def _fail_commit(
        group: GroupMetadata, offsets: dict[TopicPartition, OffsetAndMetadata], producer: tuple[int, int] | None
    ) -> None:
        if producer is None:
            group.fail_offset_commit(offsets)
        else:
            group.fail_transactional_commit(producer[0], offsets)

    def end_transaction(self, producer_id: int, epochs: Mapping[int, int], is_commit: bool) -> None:
        """A transaction's marker is in these partitions of the offsets topic: its offsets count now, or are gone.

        epochs: partition -> its loaded_epoch() before the marker was appended.  A load since then has read the marker.
        """
        with self.partitions.lock:
            ended = [
                group
                for group in self._groups_of_producers.get(producer_id, ())
                if group.coordinator_epoch <= epochs.get(self.partition_for(group.group_id), -1)
            ]
            self._forget_producer(producer_id, ended)
        for group in ended:
            with group:
                group.end_transaction(producer_id, is_commit)

    def _append(
        self, group: GroupMetadata, batch: bytearray, appended: Callable[[ProducePartitionStatus], None]
    ) -> None:
        """Under no lock.  NotCoordinator for a group that has been unloaded since it handed this in: where this broker
        leads the partition again, the records would come after those of the group that was loaded."""
        if group.is_unloaded:
            appended(ProducePartitionStatus(NotCoordinator(group.group_id)))
        else:
            self.partitions.append(self.partition_for(group.group_id), group.coordinator_epoch, batch, appended)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def get_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition] | None, require_stable: bool
    ) -> dict[TopicPartition, OffsetFetchResult]:
        """Committed offsets; of all partitions that have one for None.

        With require_stable a partition whose commit is on its way to the log, or inside an open transaction, answers
        UNSTABLE_OFFSET_COMMIT.
        Raises as check_group_status(), and NotCoordinator, which makes every client try again, while another
        coordinator may have newer offsets.
        """
        partition = self.partition_for(group_id)
        epoch = self.loaded_epoch(partition)
        offsets = self._get_offsets(group_id, topic_partitions, require_stable)
        # Now, after they were read: they were the group's last ones.  It may be certain again, but of newer ones.
        if not self.is_certain() or self.loaded_epoch(partition) != epoch:
            raise NotCoordinator(group_id)
        return offsets

    def _get_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition] | None, require_stable: bool
    ) -> dict[TopicPartition, OffsetFetchResult]:
        group = self.find_group(group_id, empty_id_allowed=True)
        if group is None:
            return {topic_partition: OffsetFetchResult() for topic_partition in topic_partitions or ()}
        results = {}
        with group:
            if group.is_unloaded:
                raise NotCoordinator(group_id)
            dead = group.state is GroupState.DEAD
            if topic_partitions is None:
                topic_partitions = [] if dead else list(group.offsets)
            for topic_partition in topic_partitions:
                committed = None if dead else group.offsets.get(topic_partition)
                if require_stable and not dead and group.is_unstable(topic_partition):
                    results[topic_partition] = OffsetFetchResult(error_code=UnstableOffsetCommit.code)
                elif committed is None:
                    results[topic_partition] = OffsetFetchResult()
                else:
                    value = committed.value
                    results[topic_partition] = OffsetFetchResult(value.offset, value.leader_epoch, value.metadata)
        return results

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

    def remove_offsets(
        self,
        group: GroupMetadata,
        choose: Callable[[GroupMetadata], Iterable[TopicPartition] | None],
        on_removed: Callable[[ApiError | None], None] = lambda error: None,
    ) -> int:
        """Remove the offsets that choose(group) names, with tombstones; how many there are.

        An empty group that would have none left is removed too.  on_removed(error) runs without the lock, once the
        tombstones are committed; what they could not be appended for stays.  It gets NotCoordinator for a group that
        was unloaded, which lives at another coordinator, or at this one again, and keeps everything; GroupIdNotFound
        for one that is being removed.
        Nothing is removed where choose() returns None.  Raises what it does.
        """
        with group:
            if group.state is GroupState.DEAD:
                refusal = (NotCoordinator if group.is_unloaded else GroupIdNotFound)(group.group_id)
                group.after_unlock(lambda: on_removed(refusal))
                return 0
            chosen = choose(group)
            values = group.values_of(chosen or ())
            removes_group = chosen is not None and group.is_empty and values.keys() >= group.all_offset_partitions()
            if not values and not removes_group:
                group.tombstone_error = None
                group.after_unlock(lambda: on_removed(None))
                return 0
            tombstones = [offset_commit_key(group.group_id, topic_partition) for topic_partition in values]
            if removes_group:
                tombstones += [key for key, _ in group.first_records]
                # A group that never had a generation has no record to bury.
                if group.generation_id > 0:
                    tombstones.append(group_metadata_key(group.group_id))
                if group.consumer is not None:
                    tombstones += [key for key, _ in group.consumer.tombstones()]
            OffsetRemoval(
                group,
                values,
                self._batches(group, [(key, None) for key in tombstones]),
                partial(self._append_records, group),
                self.remove_group if removes_group else None,
                lambda error: on_removed(None if error is None else error_for_consumers(error)),
            ).start()
        return len(values)

    def _append_records(
        self,
        group: GroupMetadata,
        records: Iterable[tuple[bytes, bytes | None]],
        callback: Callable[[ApiError | None], None],
    ) -> None:
        self._append(group, self._batch_of(records), lambda status: callback(status.error))

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def load_partition(self, partition: int, epoch: int, on_loaded: Callable[[GroupMetadata], None]) -> None:
        """Begin to coordinate the groups of a partition that this broker leads since epoch.

        Until its records have been read its groups answer COORDINATOR_LOAD_IN_PROGRESS.
        on_loaded(group) runs under each group's lock, before requests can reach it.
        """
        topic_partition = TopicPartition(GROUP_METADATA_TOPIC, partition)
        is_committed = partial(self.partitions.is_transaction_committed, partition)
        load = GroupLoad(topic_partition, self._time, partial(self._add_groups, epoch), on_loaded, is_committed)
        self.partitions.elect(partition, epoch, load)

    def _add_groups(self, epoch: int, groups: Iterable[GroupMetadata]) -> None:
        for group in groups:
            group.coordinator_epoch = epoch
            self._groups[group.group_id] = group
            for producer_id in group.transactional_offsets:
                self._groups_of_producers.setdefault(producer_id, set()).add(group)

    def unload_partition(self, partition: int, epoch: int | None, on_unloaded: Callable[[GroupMetadata], None]) -> None:
        """Stop coordinating a partition's groups; on_unloaded(group) runs under each group's lock.

        epoch is the one since which another broker leads, None when the partition is gone.
        """
        groups = self.partitions.resign(
            partition,
            epoch,
            lambda: [group for group in self.groups() if self.partition_for(group.group_id) == partition],
        )
        for group in groups:
            with group:
                group.is_unloaded = True
                on_unloaded(group)
                self.remove_group(group)
