"""Committed offsets of groups of both protocols: who may commit and fetch them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.consumer_group import FindTopic
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager, OffsetFetchResult
from kcore.coordinator.group.member_metadata import UNKNOWN_MEMBER_ID, GroupMember, MemberMetadata
from kcore.errors import (
    ApiError,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)

NO_MEMBER = GroupMember()


class GroupOffsets:
    """Thread-safe, as GroupCoordinator, whose part it is.

    find_topic: of the cluster, by name.
    check_member(group, member id, instance id, generation id), under the group's lock: raises for who is not a member
    of the classic protocol in this generation.  reset_session(group, member), likewise: after a sign of life.
    """

    def __init__(
        self,
        manager: GroupMetadataManager,
        find_topic: FindTopic,
        check_member: Callable[[GroupMetadata, str, str | None, int], None],
        reset_session: Callable[[GroupMetadata, MemberMetadata], None],
    ) -> None:
        self._manager = manager
        self._find_topic = find_topic
        self._check_member = check_member
        self._reset_session = reset_session

    def commit(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        generation_id: int,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: Callable[[dict[TopicPartition, int]], None],
        *,
        has_member_epochs: bool = False,
    ) -> None:
        """Store offsets; answers an error code for each partition once they are in the log.

        has_member_epochs: from version 9 on, generation_id may be the epoch of a member of a group of KIP-848.

        generation_id -1 with no member id is a consumer that does not use group management: it may commit while the
        group has no members, and creates the group.
        """
        try:
            group = self._manager.find_group(group_id, create=generation_id < 0, empty_id_allowed=True)
            if group is None:
                raise (GroupIdNotFound if has_member_epochs else IllegalGeneration)("there is no such group")
        except ApiError as error:
            callback(dict.fromkeys(offsets, error.code))
            return
        with group:
            refused: Mapping[TopicPartition, ApiError] = {}
            try:
                if group.consumer is None or group.state is GroupState.DEAD:
                    self._check_offset_commit(group, member_id, group_instance_id, generation_id)
                else:
                    refused = group.consumer.refused_commits(
                        member_id, generation_id, offsets, self._find_topic, has_member_epochs=has_member_epochs
                    )
            except ApiError as error:
                refused = dict.fromkeys(offsets, error)
            else:
                member = group.members.get(member_id)
                if member is not None:
                    self._reset_session(group, member)
            self._store(group, offsets, refused, callback)

    def commit_in_transaction(
        self,
        group_id: str,
        member: GroupMember,
        producer: tuple[int, int],
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: Callable[[dict[TopicPartition, int]], None],
    ) -> None:
        """Store offsets that count once the producer's transaction is committed; an error code for each partition.

        Clients of old versions say nothing of the member, so a group that has members takes offsets without one.  One
        that has none takes them from anybody who names no generation.
        producer: id and epoch.
        Source: GroupCoordinator.handleTxnCommitOffsets, Kafka 3.9; for an unknown or empty group 4.x (TXN-50).
        """
        try:
            group = self._manager.find_group(group_id, create=member.generation_id < 0)
            if group is None:
                raise IllegalGeneration("there is no such group")
        except ApiError as error:
            callback(dict.fromkeys(offsets, error.code))
            return
        with group:
            refused: Mapping[TopicPartition, ApiError] = {}
            try:
                if group.state is GroupState.DEAD:
                    raise CoordinatorNotAvailable(group_id)
                if member != NO_MEMBER and group.consumer is not None:
                    refused = group.consumer.refused_commits(
                        member.member_id, member.generation_id, offsets, self._find_topic
                    )
                elif member != NO_MEMBER and not (member.generation_id < 0 and group.state is GroupState.EMPTY):
                    self._check_member(group, member.member_id, member.group_instance_id, member.generation_id)
            except ApiError as error:
                refused = dict.fromkeys(offsets, error)
            # TxnOffsetCommit has no error of its own for an epoch.
            refused = {
                partition: IllegalGeneration(str(error)) if isinstance(error, StaleMemberEpoch) else error
                for partition, error in refused.items()
            }
            self._store(group, offsets, refused, callback, producer)

    def _store(
        self,
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        refused: Mapping[TopicPartition, ApiError],
        callback: Callable[[dict[TopicPartition, int]], None],
        producer: tuple[int, int] | None = None,
    ) -> None:
        """The offsets that are not refused; then answer for all."""
        accepted = {partition: value for partition, value in offsets.items() if partition not in refused}
        codes = {partition: error.code for partition, error in refused.items()}
        self._manager.store_offsets(group, accepted, lambda results: callback(codes | results), producer)

    def _check_offset_commit(
        self, group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> None:
        if group.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(group.group_id)
        if generation_id < 0 and group.state is GroupState.EMPTY:
            return
        if generation_id < 0 and member_id == UNKNOWN_MEMBER_ID and group_instance_id is None:
            raise UnknownMemberId("the group has members")
        self._check_member(group, member_id, group_instance_id, generation_id)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress(group.group_id)

    def fetch(
        self,
        group_id: str,
        topic_partitions: Iterable[TopicPartition] | None,
        require_stable: bool = False,
        member: tuple[str | None, int] = (None, -1),
    ) -> dict[TopicPartition, OffsetFetchResult]:
        """GroupMetadataManager.get_offsets(); None asks for all partitions that have one.

        member: the id and epoch of who asks, (None, -1) for anybody.  Raises UnknownMemberId and StaleMemberEpoch for
        one of a group of KIP-848.
        """
        if member != (None, -1):
            group = self._manager.find_group(group_id, empty_id_allowed=True)
            if group is not None:
                with group:
                    if group.consumer is not None and not group.is_unloaded:
                        group.consumer.check_member(*member)
        return self._manager.get_offsets(group_id, topic_partitions, require_stable)
