"""Members of the classic protocol in a consumer group of KIP-848: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

For such a member a generation is its own epoch.  JoinGroup is its heartbeat of the new protocol: it says what the
member wants and owns, and is answered at once; SyncGroup gets what the member is assigned.  Heartbeats tell it to join
again when there is more to do.
Source: GroupMetadataManager.classicGroupJoinToConsumerGroup and the like, Kafka 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random
from typing import NoReturn

from kcore.coordinator.group.consumer_group import (
    JOIN_EPOCH,
    ClassicMember,
    ConsumerMember,
    FindTopic,
    Heartbeat,
    heartbeat,
    member_by_id,
    member_by_instance,
    without_members,
)
from kcore.coordinator.group.consumer_group_coordinator import ConsumerGroupCoordinator
from kcore.coordinator.group.group_metadata import CONSUMER_PROTOCOL_TYPE, GroupMetadata
from kcore.coordinator.group.group_migration import (
    assignment_bytes,
    may_sync,
    must_rejoin,
    partitions_of,
    supports_protocols,
    topic_names_of,
)
from kcore.coordinator.group.live_consumer_group import LiveConsumerGroup
from kcore.coordinator.group.member_metadata import (
    UNKNOWN_MEMBER_ID,
    GroupMember,
    JoinCallback,
    JoinGroupResult,
    LeaveCallback,
    LeaveGroupResult,
    LeaveMemberResult,
    LeavingMember,
    MemberMetadata,
    SyncCallback,
    SyncGroupResult,
)
from kcore.errors import (
    NONE,
    ApiError,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from kcore.protocol.messages.consumer_protocol import read_subscription

logger = logging.getLogger(__name__)


class ClassicMembers:
    """Requests of the classic protocol to a group of KIP-848 that has members (GroupMetadata.consumer).

    Call each method under the group's lock.  An error that is the answer to the request is raised as an ApiError.
    """

    def __init__(self, consumer_groups: ConsumerGroupCoordinator, find_topic: FindTopic, random: Random) -> None:
        self._groups = consumer_groups
        self._find_topic = find_topic
        self._random = random

    # -- JoinGroup ---------------------------------------------------------------------------------------------------

    def join(
        self, group: GroupMetadata, joining: MemberMetadata, require_known_member_id: bool, callback: JoinCallback
    ) -> None:
        """Raises InconsistentGroupProtocol, GroupMaxSizeReached, InvalidRequest, UnknownMemberId, FencedInstanceId."""
        live, instance_id = self._live(group), joining.group_instance_id
        has_id = joining.member_id != UNKNOWN_MEMBER_ID
        is_known = joining.member_id in live.value.members or (
            instance_id is not None and live.value.member_of_instance(instance_id) is not None
        )
        names = [name for name, _ in joining.supported_protocols]
        if not supports_protocols(live.value, joining.member_id, joining.protocol_type, names):
            raise InconsistentGroupProtocol(f"{joining.protocol_type} of {joining}")
        if not is_known:
            self._groups.check_new_classic_member(live.value)
        if not has_id:
            joining.member_id = group.generate_member_id(joining.client_id, instance_id, self._random)
            if instance_id is None and require_known_member_id:
                required = JoinGroupResult(MemberIdRequired.code, joining.member_id)
                group.after_unlock(lambda: callback(required))
                return
        if instance_id is not None and has_id:
            epoch = self._certain_member(live, joining.member_id, instance_id).epoch
        else:
            known = live.value.members.get(joining.member_id)
            epoch = JOIN_EPOCH if known is None else known.epoch
        beat = self._beat_of(joining, epoch)
        may_assign = self._groups.may_assign(live)
        after = heartbeat(live.value, beat, self._find_topic, self._groups.default_assignor, may_assign=may_assign)
        member = after.members[joining.member_id]
        result = JoinGroupResult(NONE, member.member_id, member.epoch, CONSUMER_PROTOCOL_TYPE, names[0])
        if not is_known:
            logger.info("group %s: member %s joins, group epoch %d", group.group_id, member.member_id, after.epoch)

        def stored(error: ApiError | None) -> None:
            callback(result if error is None else JoinGroupResult(error.code, joining.member_id))

        if self._groups.shall_downgrade(group, live, after):
            # It has taken the place of the last member of the new protocol: it is answered at the end of the rebalance.
            self._groups.change(group, live, after, lambda error: None)
            group.update_member(
                group.members[joining.member_id],
                joining.supported_protocols,
                joining.rebalance_timeout_ms,
                joining.session_timeout_ms,
                callback,
            )
            return
        self._groups.change(group, live, after, stored)
        session = self._groups.reset_session(group, live, joining.member_id)
        session.set_task("rejoin_task", None)
        self._groups.watch(group, live, member, "sync_task", "has sent no SyncGroup in time")

    def _beat_of(self, joining: MemberMetadata, epoch: int) -> Heartbeat:
        """What a JoinGroup says, as a heartbeat of the new protocol.  Raises InvalidRequest."""
        subscription = read_subscription(joining.supported_protocols[0][1])
        return Heartbeat(
            joining.member_id,
            epoch,
            joining.group_instance_id,
            subscription.rack_id,
            joining.rebalance_timeout_ms,
            subscription.topics,
            # A JoinGroup has neither: those of its time with the new protocol end.
            assignor="",
            regex="",
            # A member that revokes everything before it joins names nothing.
            owned=partitions_of(subscription.owned_partitions, self._find_topic),
            client_id=joining.client_id,
            client_host=joining.client_host,
            classic=ClassicMember(joining.session_timeout_ms, tuple(joining.supported_protocols)),
        )

    # -- SyncGroup, Heartbeat ----------------------------------------------------------------------------------------

    def sync(
        self, group: GroupMetadata, who: GroupMember, protocol: tuple[str | None, str | None], callback: SyncCallback
    ) -> None:
        """protocol: (type, name), None where the request has none.

        Raises as heartbeat() does, and InconsistentGroupProtocol.
        """
        live, member = self._member(group, who)
        assert member.classic is not None
        session = self._groups.reset_session(group, live, member.member_id)
        if not may_sync(live.value, member):
            # Its protocol may still be the one of the classic group that this was when it joined.
            self._await_rejoin(group, live, member)
        name, metadata = member.classic.protocols[0]
        if protocol[0] not in (None, CONSUMER_PROTOCOL_TYPE) or protocol[1] not in (None, name):
            raise InconsistentGroupProtocol(f"{protocol}")
        session.set_task("sync_task", None)
        names = topic_names_of(live.value, self._find_topic)
        assignment = assignment_bytes(member.assigned, names, metadata)
        result = SyncGroupResult(NONE, CONSUMER_PROTOCOL_TYPE, name, assignment)

        def stored(error: ApiError | None) -> None:
            callback(result if error is None else SyncGroupResult(error.code))

        self._groups.change(group, live, live.value, stored)  # after what is on its way to the log

    def heartbeat(self, group: GroupMetadata, who: GroupMember) -> None:
        """Raises RebalanceInProgress: the member has to join again; UnknownMemberId, FencedInstanceId,
        IllegalGeneration."""
        live, member = self._member(group, who)
        self._groups.reset_session(group, live, member.member_id)
        # Perhaps no member of the new protocol, whose heartbeats do the same, is there to hear of changed topics.
        self._groups.refresh(group, live)
        if group.consumer is not live:
            raise RebalanceInProgress(f"group {group.group_id} is a classic group from now on")
        if must_rejoin(live.value, member):
            self._await_rejoin(group, live, member)

    def _await_rejoin(self, group: GroupMetadata, live: LiveConsumerGroup, member: ConsumerMember) -> NoReturn:
        """Tell the member to join again, for which it has its rebalance timeout.  Raises RebalanceInProgress."""
        session = live.sessions[member.member_id]
        session.set_task("sync_task", None)
        if session.rejoin_task is None:
            self._groups.watch(group, live, member, "rejoin_task", "has not joined again in time")
        raise RebalanceInProgress(group.group_id)

    # -- LeaveGroup --------------------------------------------------------------------------------------------------

    def leave(self, group: GroupMetadata, leaving: Iterable[LeavingMember], callback: LeaveCallback) -> None:
        """Members of either protocol: administrators remove them by this request too."""
        live = self._live(group)
        results, gone = [], []
        for one in leaving:
            error_code = NONE
            try:
                member = self._leaving(live, one)
                gone.append(member.member_id)
                reason = one.reason or "not provided"
                logger.info("group %s: member %s leaves; client reason: %s", group.group_id, member.member_id, reason)
            except ApiError as error:
                error_code = error.code
            results.append(LeaveMemberResult(one.member_id, one.group_instance_id, error_code))

        def stored(error: ApiError | None) -> None:
            callback(LeaveGroupResult(NONE, results) if error is None else LeaveGroupResult(error.code, []))

        self._groups.change(group, live, without_members(live.value, gone), stored)

    def _leaving(self, live: LiveConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
        member_id, instance_id, _ = leaving
        if instance_id is None:
            return member_by_id(live.value, member_id)
        if member_id != UNKNOWN_MEMBER_ID:
            return self._certain_member(live, member_id, instance_id)
        member = live.value.member_of_instance(instance_id)
        if member is None:
            raise UnknownMemberId(f"no member has the instance id {instance_id}")
        return member

    # -- who it is ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _live(group: GroupMetadata) -> LiveConsumerGroup:
        assert group.consumer is not None, group
        return group.consumer

    def _certain_member(self, live: LiveConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
        with self._groups.uncertain_fences(live.value.group_id):
            return member_by_instance(live.value, member_id, instance_id)

    def _member(self, group: GroupMetadata, who: GroupMember) -> tuple[LiveConsumerGroup, ConsumerMember]:
        live = self._live(group)
        if who.group_instance_id is None:
            member = member_by_id(live.value, who.member_id)
        else:
            member = self._certain_member(live, who.member_id, who.group_instance_id)
        if member.classic is None:
            raise UnknownMemberId(f"Member {who.member_id} does not use the classic protocol.")
        if who.generation_id != member.epoch:
            raise IllegalGeneration(f"{who.generation_id}, member {member.member_id} is in epoch {member.epoch}")
        return live, member
