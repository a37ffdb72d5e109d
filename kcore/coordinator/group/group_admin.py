"""What administrators do with the groups of a coordinator: list, describe and delete them, and delete their offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_metadata import CONSUMER_PROTOCOL_TYPE, GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.errors import (
    NONE,
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NotCoordinator,
)

CLASSIC_GROUP_TYPE, CONSUMER_GROUP_TYPE = "classic", "consumer"


class GroupOverview(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str = CLASSIC_GROUP_TYPE


class MemberDescription(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True)
class GroupDescription:
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: list[MemberDescription] = field(default_factory=list)


class OffsetDeleteResult(NamedTuple):
    """error_code: of the group; partitions have theirs where that is 0."""

    error_code: int
    partitions: dict[TopicPartition, int]


class GroupAdmin:
    """Thread-safe.  Takes the lock of one group at a time.

    Source: GroupCoordinator, Kafka 3.9.
    """

    def __init__(self, manager: GroupMetadataManager) -> None:
        self._manager = manager

    def list_groups(
        self, states: Iterable[str] = (), group_types: Iterable[str] = ()
    ) -> tuple[int, list[GroupOverview]]:
        """(error code, groups): some may be missing from them if there is an error.  Both filters are case-insensitive
        and match everything when empty."""
        if not self._manager.is_active:
            return CoordinatorNotAvailable.code, []
        # Before the groups are looked at: what is loaded after that need not be listed.
        is_loading = self._manager.is_loading
        wanted_states = {state.lower() for state in states}
        wanted_types = {group_type.lower() for group_type in group_types}
        overviews = []
        for group in self._manager.groups():
            with group:
                if group.state is GroupState.DEAD or group.is_unloaded:
                    continue
                state, group_type = group.state.value, CLASSIC_GROUP_TYPE
                if group.consumer is not None:
                    state, group_type = group.consumer.value.state, CONSUMER_GROUP_TYPE
            if (not wanted_states or state.lower() in wanted_states) and (
                not wanted_types or group_type in wanted_types
            ):
                overviews.append(GroupOverview(group.group_id, group.protocol_type or "", state, group_type))
        return CoordinatorLoadInProgress.code if is_loading else NONE, overviews

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group that does not exist is described as Dead, and so is one of KIP-848.

        Metadata and assignments are shown when stable.

        Raises as GroupMetadataManager.check_group_status().
        """
        group = self._manager.find_group(group_id, empty_id_allowed=True)
        if group is None:
            return GroupDescription(group_id, GroupState.DEAD.value)
        with group:
            if group.is_unloaded:
                raise NotCoordinator(group_id)
            if group.consumer is not None:
                return GroupDescription(group_id, GroupState.DEAD.value)
            protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
            return GroupDescription(
                group_id,
                group.state.value,
                group.protocol_type or "",
                protocol_name or "",
                [
                    MemberDescription(
                        member.member_id,
                        member.group_instance_id,
                        member.client_id,
                        member.client_host,
                        member.metadata(protocol_name) if protocol_name is not None else b"",
                        member.assignment if protocol_name is not None else b"",
                    )
                    for member in group.members.values()
                ],
            )

    def delete_groups(self, group_ids: Iterable[str], callback: Callable[[dict[str, int]], None]) -> None:
        """Remove groups that have no members, with all their offsets; answers an error code for each, once that is in
        the log."""
        asked = dict.fromkeys(group_ids)
        if not asked:
            callback({})
            return
        lock = threading.Lock()
        codes: dict[str, int] = {}

        def deleted(group_id: str, error: ApiError | None) -> None:
            with lock:
                codes[group_id] = NONE if error is None else error.code
                if len(codes) < len(asked):
                    return
            callback({group_id: codes[group_id] for group_id in asked})

        for group_id in asked:
            self._delete_group(group_id, partial(deleted, group_id))

    def _find_to_delete(self, group_id: str, *, empty_id_allowed: bool = False) -> GroupMetadata:
        """GroupMetadataManager.find_group().  Raises GroupIdNotFound, and NotCoordinator while another coordinator may
        have the group, where it would not be deleted."""
        if not self._manager.is_certain():
            raise NotCoordinator(group_id)
        group = self._manager.find_group(group_id, empty_id_allowed=empty_id_allowed)
        if group is None:
            raise GroupIdNotFound(group_id)
        return group

    def _delete_group(self, group_id: str, on_deleted: Callable[[ApiError | None], None]) -> None:
        def choose(group: GroupMetadata) -> Iterable[TopicPartition]:
            if not group.is_empty:
                raise NonEmptyGroup(group_id)
            return group.all_offset_partitions()

        try:
            group = self._find_to_delete(group_id, empty_id_allowed=True)
            self._manager.remove_offsets(group, choose, on_deleted)
        except ApiError as error:
            on_deleted(error)

    def delete_offsets(
        self,
        group_id: str,
        topic_partitions: Iterable[TopicPartition],
        callback: Callable[[OffsetDeleteResult], None],
    ) -> None:
        """A topic that a member consumes keeps its offsets.  Answers when the others are gone in the log."""
        codes: dict[TopicPartition, int] = {}

        def choose(group: GroupMetadata) -> Iterable[TopicPartition] | None:
            if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                raise NonEmptyGroup(group_id)
            for topic_partition in topic_partitions:
                is_consumed = not group.is_empty and group.is_subscribed_to_topic(topic_partition.topic)
                codes[topic_partition] = GroupSubscribedToTopic.code if is_consumed else NONE
            return [topic_partition for topic_partition, error_code in codes.items() if not error_code] or None

        def removed(error: ApiError | None) -> None:
            callback(OffsetDeleteResult(NONE, codes) if error is None else OffsetDeleteResult(error.code, {}))

        try:
            self._manager.remove_offsets(self._find_to_delete(group_id), choose, removed)
        except ApiError as error:
            removed(error)
