"""The classic group protocol: who is in a group, when it rebalances, and the response to each member."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from random import Random

from kcore.common.random_source import SYSTEM_RANDOM
from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.classic_members import ClassicMembers
from kcore.coordinator.group.consumer_group import FindTopic
from kcore.coordinator.group.consumer_group_coordinator import ConsumerGroupCoordinator
from kcore.coordinator.group.group_admin import GroupAdmin
from kcore.coordinator.group.group_config import GroupConfig
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.coordinator.group.group_offsets import GroupOffsets
from kcore.coordinator.group.member_checks import MemberChecks
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
    Protocols,
    SyncCallback,
    SyncGroupResult,
)
from kcore.coordinator.group.regex_resolver import RegexResolver, TopicNames
from kcore.errors import (
    NONE,
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from kcore.purgatory.timer import Timer
from kcore.replica.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

#: A new member cannot send heartbeats while its JoinGroup is parked, and a client that gave up leaves no trace; so the
#: parked request itself expires.  Source: GroupCoordinator.NewMemberJoinTimeoutMs, Kafka 3.9.
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000


class GroupCoordinator:
    """Coordinates the groups whose offsets partition this broker leads.

    Thread-safe.  Each group has its own lock; callbacks run without it, on the calling thread or on the one that
    completed what they waited for.  Methods that can be answered at once return their answer, and raise an ApiError
    where that is an error.  Results that are passed to callbacks have error codes: Kafka's numbers, 0 for success.
    scheduler: for expirations.  disk_scheduler: for loading offsets; the same if None.
    is_certain: False while another broker may coordinate the same groups, of which this one has not heard.  Then
    OffsetFetch and deletions answer NOT_COORDINATOR, and so does what would be FENCED_INSTANCE_ID, at which a client
    ends.  All else goes on, so that consumers that run do not stop when the store is away: a commit has to reach the
    replicas, and a wrong UNKNOWN_MEMBER_ID or heartbeat costs a rebalance.
    find_topic: of the cluster, by name; for the groups of KIP-848, which the coordinator itself gives partitions.
    topic_names: all of the cluster; for the regular expressions of such groups.
    Source: GroupCoordinator, Kafka 3.9 (KIP-62, 134, 211, 345, 394, 735).
    """

    def __init__(
        self,
        broker_id: int,
        replica_manager: ReplicaManager,
        config: GroupConfig,
        time: Time,
        scheduler: Scheduler,
        timer: Timer,
        random: Random = SYSTEM_RANDOM,
        *,
        disk_scheduler: Scheduler | None = None,
        is_certain: Callable[[], bool] = lambda: True,
        find_topic: FindTopic = lambda name: None,
        topic_names: Callable[[], TopicNames] = TopicNames,
    ) -> None:
        self.broker_id = broker_id
        self.config = config
        self.manager = GroupMetadataManager(
            config, replica_manager, scheduler, time, disk_scheduler or scheduler, is_certain
        )
        self._time = time
        self._timer = timer
        self._random = random
        #: The groups of KIP-848.
        resolver = RegexResolver(disk_scheduler or scheduler, time, topic_names)
        self.consumer_groups = ConsumerGroupCoordinator(self.manager, config, time, timer, find_topic, resolver)
        self._checks = MemberChecks(self.manager)
        self._classic_members = ClassicMembers(self.consumer_groups, find_topic, random)
        self.consumer_groups.on_downgraded = self._on_downgraded
        #: Requests of administrators.
        self.admin = GroupAdmin(self.manager)
        self.offsets = GroupOffsets(self.manager, find_topic, self._checks.of_generation, self._reset_session)

    def startup(self) -> None:
        self.manager.startup()

    def shutdown(self) -> None:
        """From now on everything answers COORDINATOR_NOT_AVAILABLE."""
        self.manager.shutdown()

    def partition_for(self, group_id: str) -> int:
        return self.manager.partition_for(group_id)

    def on_election(self, partition: int, epoch: int) -> None:
        """This broker leads a partition of __consumer_offsets since epoch: load its groups (API-04)."""
        self.manager.load_partition(partition, epoch, self._on_group_loaded)

    def on_resignation(self, partition: int, epoch: int | None = None) -> None:
        """Another broker leads it since epoch, or it is gone (None): forget its groups (API-05)."""
        self.manager.unload_partition(partition, epoch, self._on_group_unloaded)

    # -- JoinGroup ---------------------------------------------------------------------------------------------------

    def join_group(
        self,
        group_id: str,
        member_id: str,
        group_instance_id: str | None,
        protocol_type: str,
        protocols: Protocols,
        *,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        client_id: str,
        client_host: str,
        require_known_member_id: bool,
        support_skipping_assignment: bool = False,
        reason: str | None = None,
        callback: JoinCallback,
    ) -> None:
        """Join or rejoin; the answer comes when the rebalance that this starts or meets has all its members.

        require_known_member_id: from version 4 on, a dynamic member first gets an id (KIP-394).
        support_skipping_assignment: from version 9 on (KIP-814).
        """
        try:
            self.manager.check_group_status(group_id)
            if not self.config.min_session_timeout_ms <= session_timeout_ms <= self.config.max_session_timeout_ms:
                raise InvalidSessionTimeout(f"{session_timeout_ms} ms")
            group = self._named_by_member(self.manager.find_group(group_id, create=member_id == UNKNOWN_MEMBER_ID))
        except ApiError as error:
            callback(JoinGroupResult(error.code, member_id))
            return
        joining = MemberMetadata(
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms,
            session_timeout_ms,
            protocol_type,
            protocols,
        )
        reason = reason or "not provided"
        with group:
            try:
                if group.state is GroupState.DEAD:
                    # Being removed, or moved to another broker: the member shall look for the coordinator again.
                    raise CoordinatorNotAvailable(group_id)
                self.consumer_groups.make_classic(group)
                if group.consumer is not None:
                    self._classic_members.join(group, joining, require_known_member_id, callback)
                elif member_id == UNKNOWN_MEMBER_ID:
                    self._check_join(group, joining)
                    self._join_new_member(
                        group, joining, require_known_member_id, support_skipping_assignment, reason, callback
                    )
                else:
                    self._check_join(group, joining)
                    self._join_current_member(group, joining, reason, callback)
            except ApiError as error:
                result = JoinGroupResult(error.code, joining.member_id)
                group.after_unlock(lambda: callback(result))
            self._maybe_complete_join(group)

    @staticmethod
    def _named_by_member(group: GroupMetadata | None) -> GroupMetadata:
        """A group that a member names.  Raises UnknownMemberId where there is none."""
        if group is None:
            raise UnknownMemberId("there is no such group")
        return group

    def _check_join(self, group: GroupMetadata, joining: MemberMetadata) -> None:
        if not self._accept_joining_member(group, joining.member_id):
            group.remove(joining.member_id)
            joining.member_id = UNKNOWN_MEMBER_ID
            raise GroupMaxSizeReached(f"group.max.size is {self.config.max_size}")
        if not group.supports_protocols(joining.protocol_type, [name for name, _ in joining.supported_protocols]):
            raise InconsistentGroupProtocol(f"{joining.protocol_type} of {joining}")

    def _accept_joining_member(self, group: GroupMetadata, member_id: str) -> bool:
        """Whether group.max.size leaves room.  While members gather, those who have come count, which also sheds the
        last to rejoin when the limit was lowered."""
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return True
        if group.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.awaiting_join is not None
            return waits or group.num_awaiting_join < self.config.max_size
        return member is not None or len(group.members) < self.config.max_size

    def _join_new_member(
        self,
        group: GroupMetadata,
        joining: MemberMetadata,
        require_known_member_id: bool,
        support_skipping_assignment: bool,
        reason: str,
        callback: JoinCallback,
    ) -> None:
        instance_id = joining.group_instance_id
        new_member_id = group.generate_member_id(joining.client_id, instance_id, self._random)
        if instance_id is not None:
            old_member_id = group.static_members.get(instance_id)
            if old_member_id is not None:
                self._replace_static_member(
                    group, joining, old_member_id, new_member_id, support_skipping_assignment, reason, callback
                )
                return
        elif require_known_member_id:
            group.pending_members[new_member_id] = self._timer.add(
                lambda: self._expire_pending_member(group, new_member_id), joining.session_timeout_ms
            )
            result = JoinGroupResult(MemberIdRequired.code, new_member_id)
            group.after_unlock(lambda: callback(result))
            return
        joining.member_id = new_member_id
        self._add_member_and_rebalance(group, joining, callback, reason)

    def _join_current_member(
        self, group: GroupMetadata, joining: MemberMetadata, reason: str, callback: JoinCallback
    ) -> None:
        """A member that knows its id."""
        member_id = joining.member_id
        if member_id in group.pending_members:
            if joining.group_instance_id is not None:
                # Ids of static members are never pending.
                raise UnknownMemberId(member_id)
            self._add_member_and_rebalance(group, joining, callback, reason)
            return
        self._checks.current(group, member_id, joining.group_instance_id)
        if group.state is GroupState.EMPTY:
            raise UnknownMemberId(member_id)
        member = group.members[member_id]
        changed = member.supported_protocols != joining.supported_protocols
        if (
            group.state is GroupState.PREPARING_REBALANCE
            or changed
            # A leader that rejoins a stable group has seen something that its members' metadata do not show.
            or (group.state is GroupState.STABLE and group.is_leader(member_id))
        ):
            group.update_member(
                member,
                joining.supported_protocols,
                joining.rebalance_timeout_ms,
                joining.session_timeout_ms,
                callback,
            )
            self._maybe_prepare_rebalance(group, f"member {member_id} rejoins; client reason: {reason}")
            return
        # Nothing new, perhaps the last answer was lost: answer with the current generation.
        result = self._join_result(group, member_id, with_members=group.state is GroupState.COMPLETING_REBALANCE)
        group.after_unlock(lambda: callback(result))

    def _join_result(
        self, group: GroupMetadata, member_id: str, *, with_members: bool = True, skip_assignment: bool = False
    ) -> JoinGroupResult:
        return JoinGroupResult(
            NONE,
            member_id,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            group.leader_id or "",
            group.current_member_metadata() if with_members and group.is_leader(member_id) else [],
            skip_assignment,
        )

    def _add_member_and_rebalance(
        self, group: GroupMetadata, member: MemberMetadata, callback: JoinCallback, reason: str
    ) -> None:
        member.is_new = True
        # Holds the first rebalance of an empty group open for longer.
        if group.state is GroupState.PREPARING_REBALANCE and group.generation_id == 0:
            group.new_member_added = True
        group.add(member, callback)
        self._reset_session(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._maybe_prepare_rebalance(group, f"new member {member.member_id}; client reason: {reason}")

    def _replace_static_member(
        self,
        group: GroupMetadata,
        joining: MemberMetadata,
        old_member_id: str,
        new_member_id: str,
        support_skipping_assignment: bool,
        reason: str,
        callback: JoinCallback,
    ) -> None:
        """A static member has come back without its id: it gets a new one, and its place (KIP-345)."""
        instance_id = joining.group_instance_id
        assert instance_id is not None
        old_leader_id = group.leader_id
        member = group.replace_static_member(instance_id, old_member_id, new_member_id)
        old = (member.supported_protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.update_member(
            member, joining.supported_protocols, joining.rebalance_timeout_ms, joining.session_timeout_ms, callback
        )
        member.client_id, member.client_host = joining.client_id, joining.client_host
        self._reset_session(group, member)
        why = f"static member {instance_id} rejoins; client reason: {reason}"
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may have assigned partitions to the old id already; no member would get them.
            self._prepare_rebalance(group, why)
            return
        if group.state is not GroupState.STABLE:
            return  # PreparingRebalance: it has joined like any other member
        if group.select_protocol() != group.protocol_name:
            self._maybe_prepare_rebalance(group, why)
            return

        generation_id = group.generation_id

        def stored(error: ApiError | None) -> None:
            with group:
                if (
                    group.members.get(new_member_id) is not member
                    or group.state is not GroupState.STABLE
                    or group.generation_id != generation_id
                ):
                    return  # a rebalance has begun meanwhile and answers
                if error is not None:
                    # The new id is not in the log: treat it as never assigned.
                    group.update_member(member, *old, None)
                    group.replace_static_member(instance_id, new_member_id, old_member_id)
                    result = JoinGroupResult(
                        error.code,
                        UNKNOWN_MEMBER_ID,
                        group.generation_id,
                        group.protocol_type,
                        group.protocol_name,
                        old_leader_id or "",
                    )
                    group.after_unlock(lambda: callback(result))
                elif support_skipping_assignment:
                    # The leader must know that it leads, to watch the metadata, but must not assign: its assignment
                    # would be ignored.
                    is_leader = group.is_leader(new_member_id)
                    group.answer_join(member, self._join_result(group, new_member_id, skip_assignment=is_leader))
                else:
                    # The response names the old id as the leader, so that an older client does not assign.
                    result = self._join_result(group, new_member_id, with_members=False)
                    result.leader_id = old_leader_id or ""
                    group.answer_join(member, result)

        # The chosen protocol stays, so no other member must rejoin, but the log must have the new id.
        self.manager.store_group(group, {m.member_id: m.assignment for m in group.members.values()}, stored)

    # -- rebalance ---------------------------------------------------------------------------------------------------

    def _maybe_prepare_rebalance(self, group: GroupMetadata, reason: str) -> None:
        if group.can_rebalance:
            self._prepare_rebalance(group, reason)

    def _prepare_rebalance(self, group: GroupMetadata, reason: str) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._propagate_assignment_error(group, RebalanceInProgress(reason))
        self._clear_pending_sync(group)
        if group.state is GroupState.EMPTY:
            delay_ms: float = self.config.initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        else:
            delay_ms = group.rebalance_timeout_ms
            group.initial_delay_left_ms = None
        group.transition_to(GroupState.PREPARING_REBALANCE)
        logger.info("group %s: preparing to rebalance generation %d (%s)", group.group_id, group.generation_id, reason)
        self._schedule_join(group, delay_ms)

    def _schedule_join(self, group: GroupMetadata, delay_ms: float) -> None:
        if group.join_task is not None:
            group.join_task.cancel()
        group.join_task = self._timer.add(lambda: self._join_time_is_up(group), delay_ms)

    def _join_time_is_up(self, group: GroupMetadata) -> None:
        with group:
            if group.state is not GroupState.PREPARING_REBALANCE or group.join_task is None:
                return
            if group.join_task.callback is not None:
                return  # a rebalance that began after this task was taken from the timer has its own
            left_ms = group.initial_delay_left_ms
            if left_ms and group.new_member_added:
                # Members keep coming to an empty group: hold it open, but never beyond the rebalance timeout.
                group.new_member_added = False
                delay_ms = min(self.config.initial_rebalance_delay_ms, left_ms)
                group.initial_delay_left_ms = max(left_ms - delay_ms, 0)
                self._schedule_join(group, delay_ms)
            else:
                self._complete_join(group)

    def _maybe_complete_join(self, group: GroupMetadata) -> None:
        """If everybody has joined; an empty group's first rebalance always waits for its delay."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.initial_delay_left_ms is None
            and group.has_all_members_joined
        ):
            self._complete_join(group)

    def _complete_join(self, group: GroupMetadata) -> None:
        """Go on with those who have joined; the others are out, except static members, whose sessions decide."""
        for member in group.not_yet_rejoined_members():
            if not member.is_static:
                logger.info("group %s: %s did not rejoin in time", group.group_id, member)
                group.remove(member.member_id)
        if group.members and not group.maybe_elect_new_joined_leader():
            logger.info("group %s: no member has rejoined, still waiting", group.group_id)
            group.initial_delay_left_ms = None
            self._schedule_join(group, group.rebalance_timeout_ms)
            return
        if group.join_task is not None:
            group.join_task.cancel()
            group.join_task = None
        group.init_next_generation()
        group_id, generation_id = group.group_id, group.generation_id
        if group.state is GroupState.EMPTY:
            logger.info("group %s: generation %d is empty", group_id, generation_id)
            # Should this fail, the last generation comes back after a restart, and its members' sessions expire.
            self.manager.store_group(group, {}, lambda error: None)
            return
        logger.info("group %s: generation %d has %d members", group_id, generation_id, len(group.members))
        for member in group.members.values():
            group.answer_join(member, self._join_result(group, member.member_id))
            self._reset_session(group, member)
            member.is_new = False
            group.pending_sync_members.add(member.member_id)
        group.sync_task = self._timer.add(
            lambda: self._expire_pending_sync(group, generation_id), group.rebalance_timeout_ms
        )

    # -- SyncGroup ---------------------------------------------------------------------------------------------------

    def sync_group(
        self,
        group_id: str,
        generation_id: int,
        member_id: str,
        protocol_type: str | None,
        protocol_name: str | None,
        group_instance_id: str | None,
        assignments: dict[str, bytes],
        callback: SyncCallback,
    ) -> None:
        """Ask for one's assignment; the leader brings everybody's, which are stored before anybody is answered.

        protocol_type and protocol_name are checked if present (version 5 on).
        """
        try:
            group = self._named_by_member(self.manager.find_group(group_id))
        except CoordinatorLoadInProgress:
            # The rebalance is lost with the last coordinator's state, and old clients do not expect this error.
            callback(SyncGroupResult(RebalanceInProgress.code))
            return
        except ApiError as error:
            callback(SyncGroupResult(error.code))
            return
        with group:
            try:
                if group.consumer is not None and group.state is not GroupState.DEAD:
                    who = GroupMember(member_id, group_instance_id, generation_id)
                    self._classic_members.sync(group, who, (protocol_type, protocol_name), callback)
                    return
                self._checks.sync(group, generation_id, member_id, protocol_type, protocol_name, group_instance_id)
            except ApiError as error:
                refused = SyncGroupResult(error.code)
                group.after_unlock(lambda: callback(refused))
                return
            member = group.members[member_id]
            self._remove_pending_sync(group, member_id)
            if group.state is GroupState.STABLE:
                result = SyncGroupResult(NONE, group.protocol_type, group.protocol_name, member.assignment)
                group.after_unlock(lambda: callback(result))
                self._reset_session(group, member)
                return
            member.awaiting_sync = callback
            if group.is_leader(member_id):
                missing = [other for other in group.members if other not in assignments]
                if missing:
                    logger.warning("group %s: the leader assigned nothing to %s", group_id, missing)
                self._store_assignment(group, {other: assignments.get(other, b"") for other in group.members})

    def _store_assignment(self, group: GroupMetadata, assignments: dict[str, bytes]) -> None:
        generation_id = group.generation_id

        def stored(error: ApiError | None) -> None:
            with group:
                # Somebody may have joined while the record was on its way.
                if group.state is not GroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
                    return
                if error is not None:
                    self._propagate_assignment_error(group, error)
                    self._maybe_prepare_rebalance(group, f"error {error.code} while storing the assignment")
                    self._maybe_complete_join(group)
                    return
                for member in group.members.values():
                    member.assignment = assignments[member.member_id]
                group.transition_to(GroupState.STABLE)
                for member in group.members.values():
                    result = SyncGroupResult(NONE, group.protocol_type, group.protocol_name, member.assignment)
                    if group.answer_sync(member, result):
                        self._reset_session(group, member)

        self.manager.store_group(group, assignments, stored)

    def _propagate_assignment_error(self, group: GroupMetadata, error: ApiError) -> None:
        for member in group.members.values():
            member.assignment = b""
            if group.answer_sync(member, SyncGroupResult(error.code)):
                # While it waited, its session could not expire; now it must be able to again.
                self._reset_session(group, member)

    def _remove_pending_sync(self, group: GroupMetadata, member_id: str) -> None:
        group.pending_sync_members.discard(member_id)
        if not group.pending_sync_members:
            self._clear_pending_sync(group)

    def _clear_pending_sync(self, group: GroupMetadata) -> None:
        group.pending_sync_members.clear()
        if group.sync_task is not None:
            group.sync_task.cancel()
            group.sync_task = None

    def _expire_pending_sync(self, group: GroupMetadata, generation_id: int) -> None:
        """Remove the members that got this generation but did not send SyncGroup in time."""
        with group:
            if group.generation_id != generation_id or group.state not in (
                GroupState.COMPLETING_REBALANCE,
                GroupState.STABLE,
            ):
                return
            late = [member_id for member_id in group.members if member_id in group.pending_sync_members]
            if late:
                for member_id in late:
                    group.remove(member_id)
                self._prepare_rebalance(group, f"{late} did not send SyncGroup in time")
                self._maybe_complete_join(group)

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int) -> None:
        """Keep the member alive.  Raises RebalanceInProgress: the member has to rejoin; UnknownMemberId and what else
        is wrong with it."""
        try:
            group = self._named_by_member(self.manager.find_group(group_id))
        except CoordinatorLoadInProgress:
            return  # there is nothing to say about the member yet, so it shall simply go on
        with group:
            if group.consumer is not None and group.state is not GroupState.DEAD:
                self._classic_members.heartbeat(group, GroupMember(member_id, group_instance_id, generation_id))
                return
            self._checks.of_generation(group, member_id, group_instance_id, generation_id)
            if group.state is GroupState.EMPTY:
                raise UnknownMemberId(member_id)
            self._reset_session(group, group.members[member_id])
            if group.state is GroupState.PREPARING_REBALANCE:
                raise RebalanceInProgress(group_id)

    def _reset_session(self, group: GroupMetadata, member: MemberMetadata, timeout_ms: float | None = None) -> None:
        """The member has this long (its session timeout) until it is taken for dead."""
        delay_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        member.session_deadline_ms = deadline_ms = self._time.hi_res_clock_ms() + delay_ms
        task = member.heartbeat_task
        if task is not None:
            if task.callback is not None and task.deadline_ms <= deadline_ms:
                return  # it will fire early, and wait on
            task.cancel()
        member.heartbeat_task = self._timer.add(lambda: self._check_session(group, member), delay_ms)

    def _check_session(self, group: GroupMetadata, member: MemberMetadata) -> None:
        with group:
            if group.members.get(member.member_id) is not member or group.state is GroupState.DEAD:
                return
            task = member.heartbeat_task
            if task is not None and task.callback is not None:
                return  # a newer task was set while this one waited for the lock
            left_ms = member.session_deadline_ms - self._time.hi_res_clock_ms()
            if left_ms > 0:
                member.heartbeat_task = self._timer.add(lambda: self._check_session(group, member), left_ms)
                return
            if not member.is_new and (member.awaiting_join is not None or member.awaiting_sync is not None):
                # The member waits for the coordinator's answer, which starts a new session.
                return
            logger.info("group %s: %s has failed, no heartbeat", group.group_id, member)
            self._remove_member(group, member, f"session of {member.member_id} expired")

    def _expire_pending_member(self, group: GroupMetadata, member_id: str) -> None:
        with group:
            if member_id in group.pending_members:
                # Also of a Dead group, which goes on if its removal fails.
                group.forget_pending(member_id)
                self._maybe_complete_join(group)

    # -- LeaveGroup --------------------------------------------------------------------------------------------------

    def leave_group(self, group_id: str, leaving: Iterable[LeavingMember], callback: LeaveCallback) -> None:
        """Remove members; each is answered on its own (version 3 on), of a group of KIP-848 when they are gone in the
        log."""
        try:
            group = self.manager.find_group(group_id)
        except ApiError as error:
            callback(LeaveGroupResult(error.code, []))
            return
        if group is None:
            unknown = [LeaveMemberResult(member[0], member[1], UnknownMemberId.code) for member in leaving]
            callback(LeaveGroupResult(NONE, unknown))
            return
        with group:
            if group.state is GroupState.DEAD:
                result = LeaveGroupResult(CoordinatorNotAvailable.code, [])
            elif group.consumer is not None:
                self._classic_members.leave(group, leaving, callback)
                return
            else:
                result = LeaveGroupResult(NONE, [self._leave(group, member) for member in leaving])
            group.after_unlock(lambda: callback(result))

    def _leave(self, group: GroupMetadata, leaving: LeavingMember) -> LeaveMemberResult:
        error_code = NONE
        try:
            self._remove_leaving(group, leaving)
        except ApiError as error:
            error_code = error.code
        return LeaveMemberResult(leaving.member_id, leaving.group_instance_id, error_code)

    def _remove_leaving(self, group: GroupMetadata, leaving: LeavingMember) -> None:
        member_id, instance_id, reason = leaving
        if member_id == UNKNOWN_MEMBER_ID:
            static_member_id = group.static_members.get(instance_id) if instance_id is not None else None
            if static_member_id is None:
                raise UnknownMemberId(f"no member has the instance id {instance_id}")
            member_id = static_member_id
        elif member_id in group.pending_members:
            group.forget_pending(member_id)
            self._maybe_complete_join(group)
            return
        else:
            self._checks.current(group, member_id, instance_id)
        self._remove_member(
            group, group.members[member_id], f"{member_id} leaves; client reason: {reason or 'not provided'}"
        )

    def _remove_member(self, group: GroupMetadata, member: MemberMetadata, reason: str) -> None:
        # Its JoinGroup may still be parked; a client that is still there shall try again.
        group.answer_join(member, JoinGroupResult(UnknownMemberId.code, UNKNOWN_MEMBER_ID))
        group.answer_sync(member, SyncGroupResult(UnknownMemberId.code))
        group.remove(member.member_id)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._maybe_prepare_rebalance(group, reason)
        self._maybe_complete_join(group)

    def partitions_deleted(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Partitions are gone for good, and so are all groups' offsets for them."""
        gone = frozenset(topic_partitions)
        for group in self.manager.groups():
            self.manager.remove_offsets(group, lambda group: group.all_offset_partitions() & gone)

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def _on_group_loaded(self, group: GroupMetadata) -> None:
        self.consumer_groups.on_loaded(group)
        for member in group.members.values():
            self._reset_session(group, member)
        if len(group.members) > self.config.max_size:
            self._prepare_rebalance(group, f"loaded with more than group.max.size={self.config.max_size} members")
        elif group.members and group.leader_id is None:
            # What the members that left had is nobody's yet.
            self._prepare_rebalance(group, "loaded as it was after the last member with group.protocol=consumer left")

    def _on_downgraded(self, group: GroupMetadata) -> None:
        for member in group.members.values():
            self._reset_session(group, member)
        self._prepare_rebalance(group, "the last member with group.protocol=consumer has left")

    def _on_group_unloaded(self, group: GroupMetadata) -> None:
        group.transition_to(GroupState.DEAD)
        self.consumer_groups.on_unloaded(group)
        self._clear_pending_sync(group)
        if group.join_task is not None:
            group.join_task.cancel()
        for task in group.pending_members.values():
            task.cancel()
        for member in group.members.values():
            group.answer_join(member, JoinGroupResult(NotCoordinator.code, member.member_id))
            group.answer_sync(member, SyncGroupResult(NotCoordinator.code))
            if member.heartbeat_task is not None:
                member.heartbeat_task.cancel()
