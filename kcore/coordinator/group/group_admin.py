"""What administrators do with the groups of a coordinator: list, describe and delete them, and delete their offsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.group_metadata import CONSUMER_PROTOCOL_TYPE, GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.errors import (
    NONE,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NonEmptyGroup,
    NotCoordinator,
)

CLASSIC_GROUP_TYPE = "classic"


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
    error_code: int
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: list[MemberDescription] = field(default_factory=list)


class GroupAdmin:
    """Thread-safe.  Takes the lock of one group at a time.

    Source: GroupCoordinator, Kafka 3.9.
    """

    def __init__(self, manager: GroupMetadataManager) -> None:
        self._manager = manager

    def list_groups(
        self, states: Iterable[str] = (), group_types: Iterable[str] = ()
    ) -> tuple[int, list[GroupOverview]]:
        """(error code, groups); both filters are case-insensitive and match everything when empty."""
        if not self._manager.is_active:
            return CoordinatorNotAvailable.code, []
        # Before the groups are looked at: what is loaded after that need not be listed.
        is_loading = self._manager.is_loading
        wanted_states = {state.lower() for state in states}
        wanted_types = {group_type.lower() for group_type in group_types}
        overviews = []
        if not wanted_types or CLASSIC_GROUP_TYPE in wanted_types:
            for group in self._manager.groups():
                with group:
                    state = group.state.value
                    if not group.is_unloaded and (not wanted_states or state.lower() in wanted_states):
                        overviews.append(GroupOverview(group.group_id, group.protocol_type or "", state))
        return CoordinatorLoadInProgress.code if is_loading else NONE, overviews

    def describe_group(self, group_id: str) -> GroupDescription:
        """A group that does not exist is described as Dead.  Metadata and assignments are shown when stable."""
        error_code, group = self._manager.find_group(group_id, empty_id_allowed=True)
        if error_code:
            return GroupDescription(error_code, group_id)
        if group is None:
            return GroupDescription(NONE, group_id, GroupState.DEAD.value)
        with group:
            if group.is_unloaded:
                return GroupDescription(NotCoordinator.code, group_id)
            protocol_name = group.protocol_name if group.state is GroupState.STABLE else None
            return GroupDescription(
                NONE,
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

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, int]:
        """Remove groups that have no members, with all their offsets; an error code for each."""
        return {group_id: self._delete_group(group_id) for group_id in group_ids}

    def _find_to_delete(self, group_id: str, *, empty_id_allowed: bool = False) -> tuple[int, GroupMetadata | None]:
        """GroupMetadataManager.find_group(); NOT_COORDINATOR while another coordinator may have the group, where it
        would not be deleted."""
        if not self._manager.is_certain():
            return NotCoordinator.code, None
        return self._manager.find_group(group_id, empty_id_allowed=empty_id_allowed)

    def _delete_group(self, group_id: str) -> int:
        error_code, group = self._find_to_delete(group_id, empty_id_allowed=True)
        if group is None:
            return error_code or GroupIdNotFound.code
        with group:
            if group.is_unloaded:
                return NotCoordinator.code
            if group.state is GroupState.DEAD:
                return GroupIdNotFound.code
            if group.state is not GroupState.EMPTY:
                return NonEmptyGroup.code
            group.transition_to(GroupState.DEAD)
        self._manager.remove_offsets(group, lambda group: list(group.offsets))
        return NotCoordinator.code if group.is_unloaded else NONE

    def delete_offsets(
        self, group_id: str, topic_partitions: Iterable[TopicPartition]
    ) -> tuple[int, dict[TopicPartition, int]]:
        """(error code of the group, error code of each partition); a topic that a member consumes keeps its offsets."""
        error_code, group = self._find_to_delete(group_id)
        if group is None:
            return error_code or GroupIdNotFound.code, {}
        with group:
            if group.is_unloaded:
                return NotCoordinator.code, {}
            if group.state is GroupState.DEAD:
                return GroupIdNotFound.code, {}
            if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return NonEmptyGroup.code, {}
            results = {
                topic_partition: GroupSubscribedToTopic.code
                if group.state is not GroupState.EMPTY and group.is_subscribed_to_topic(topic_partition.topic)
                else NONE
                for topic_partition in topic_partitions
            }
        chosen = [topic_partition for topic_partition, error_code in results.items() if not error_code]
        if chosen:
            self._manager.remove_offsets(group, lambda group: chosen)
            if group.is_unloaded:
                return NotCoordinator.code, {}
        return NONE, results
