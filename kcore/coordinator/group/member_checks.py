"""Whether who sends a request is the member that it says it is, of a group of the classic protocol."""

from __future__ import annotations

from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)


class MemberChecks:
    """Every method is called under the group's lock and raises what is wrong."""

    def __init__(self, manager: GroupMetadataManager) -> None:
        self._manager = manager

    def current(self, group: GroupMetadata, member_id: str, group_instance_id: str | None) -> None:
        """Raises FencedInstanceId if another member has the instance id, UnknownMemberId if either id is not known."""
        if group_instance_id is not None:
            current = group.static_members.get(group_instance_id)
            if current is None:
                raise UnknownMemberId(f"no member has the instance id {group_instance_id}")
            if current != member_id:
                raise (FencedInstanceId if self._manager.is_certain() else NotCoordinator)(group_instance_id)
        if member_id not in group.members:
            raise UnknownMemberId(member_id)

    def of_generation(
        self, group: GroupMetadata, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> None:
        """Raises as current(), and CoordinatorNotAvailable, IllegalGeneration."""
        if group.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(group.group_id)
        self.current(group, member_id, group_instance_id)
        if generation_id != group.generation_id:
            raise IllegalGeneration(f"{generation_id}, the group is at {group.generation_id}")

    def sync(
        self,
        group: GroupMetadata,
        generation_id: int,
        member_id: str,
        protocol_type: str | None,
        protocol_name: str | None,
        group_instance_id: str | None,
    ) -> None:
        """Raises as of_generation(), and InconsistentGroupProtocol, RebalanceInProgress."""
        self.of_generation(group, member_id, group_instance_id, generation_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # First: the group may have had another protocol when the member joined, as one of KIP-848.
            raise RebalanceInProgress(group.group_id)
        if (protocol_type is not None and protocol_type != group.protocol_type) or (
            protocol_name is not None and protocol_name != group.protocol_name
        ):
            raise InconsistentGroupProtocol(f"{protocol_type}, {protocol_name}")
        if group.state is GroupState.EMPTY:
            raise UnknownMemberId(member_id)
