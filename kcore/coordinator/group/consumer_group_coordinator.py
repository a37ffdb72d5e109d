"""Consumer groups of KIP-848: heartbeats, sessions, and the records that each change writes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from kcore.common.text import counted
from kcore.common.time import Time
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.coordinator.group.consumer_assignors import Partitions
from kcore.coordinator.group.consumer_group import (
    JOIN_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    FindTopic,
    Heartbeat,
    MemberState,
    heartbeat,
    leave,
    refreshed,
    with_resolved,
    without_members,
)
from kcore.coordinator.group.consumer_group_records import Record, Touched, is_group_epoch, records_between
from kcore.coordinator.group.group_config import ConsumerGroupSettings, GroupConfig
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager, error_for_consumers, metadata_record
from kcore.coordinator.group.group_migration import downgraded, shall_downgrade, upgraded, why_not_upgraded
from kcore.coordinator.group.group_records import group_metadata_key
from kcore.coordinator.group.live_consumer_group import LiveConsumerGroup, Session, Write, WriteCallback
from kcore.coordinator.group.member_metadata import JoinGroupResult, SyncGroupResult
from kcore.coordinator.group.regex_resolver import Permitted, RegexResolver
from kcore.coordinator.group.topic_patterns import compile_pattern
from kcore.errors import (
    NONE,
    ApiError,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    NotCoordinator,
    RebalanceInProgress,
    UnknownServerError,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from kcore.purgatory.timer import Timer

logger = logging.getLogger(__name__)


class HeartbeatResult(NamedTuple):
    """assignment: None if an earlier answer had the same one."""

    error_code: int = NONE
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    assignment: Partitions | None = None


HeartbeatCallback = Callable[[HeartbeatResult], None]


class ConsumerGroupCoordinator:
    """Thread-safe; the lock of a group is GroupMetadata's, which also has its offsets.

    A change counts at once, and the member is answered when its records are in the log.  Where they are not written,
    the member gets an error, and the next write of the group has them too.
    """

    def __init__(
        self,
        manager: GroupMetadataManager,
        config: GroupConfig,
        time: Time,
        timer: Timer,
        find_topic: FindTopic,
        resolver: RegexResolver,
    ) -> None:
        self._manager = manager
        self._config = config
        self._time = time
        self._timer = timer
        self._find_topic = find_topic
        self._resolver = resolver
        #: Of a group, by id: what it has of its own, and else the broker's.  Set before the first request.
        self.settings_of: Callable[[str], ConsumerGroupSettings] = config.settings
        #: Called under the lock of a group that has become a classic one, with its members.
        self.on_downgraded: Callable[[GroupMetadata], None] = lambda group: None

    @property
    def default_assignor(self) -> str:
        return self._config.consumer_assignors[0]

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(
        self, group_id: str, beat: Heartbeat, callback: HeartbeatCallback, permitted: Permitted = list
    ) -> None:
        """Join or stay in a group; the answer comes when what has changed is in the log.

        permitted: the topics, of those that regular expressions match, that the member may see.
        """

        def act(group: GroupMetadata) -> None:
            live = self._heartbeat(group, beat, callback)
            self._maybe_resolve(group, live, permitted)

        self._answered(group_id, beat.member_id, callback, act, beat)

    def leave(
        self, group_id: str, member_id: str, epoch: int, instance_id: str | None, callback: HeartbeatCallback
    ) -> None:
        """epoch -1: for good; -2: a static member that may come back."""

        def act(group: GroupMetadata) -> None:
            live = self._live(group)
            after = leave(live.value, member_id, epoch, instance_id)
            logger.info("group %s: member %s leaves with epoch %d", group_id, member_id, epoch)
            self.change(group, live, after, _answer(callback, HeartbeatResult(NONE, None, member_id, epoch)))

        self._answered(group_id, member_id, callback, act)

    def _answered(
        self,
        group_id: str,
        member_id: str,
        callback: HeartbeatCallback,
        act: Callable[[GroupMetadata], None],
        beat: Heartbeat | None = None,
    ) -> None:
        """Call act(group) under the group's lock; what it raises is the answer, and makes no group."""
        try:
            is_join = beat is not None and beat.epoch == JOIN_EPOCH
            if beat is not None and beat.assignor is not None and beat.assignor not in self._config.consumer_assignors:
                supported = ", ".join(self._config.consumer_assignors)
                raise UnsupportedAssignor(f"ServerAssignor {beat.assignor} is not supported. Supported: {supported}.")
            group = self._manager.find_group(group_id)
            is_made = group is None and is_join
            if is_made:
                group = self._manager.find_group(group_id, create=True)
            if group is None:
                raise GroupIdNotFound(f"Group {group_id} not found.")
        except ApiError as error:
            callback(_refusal(error, member_id))
            return
        with group:
            try:
                act(group)
            except ApiError as error:
                if isinstance(error, FencedInstanceId | UnreleasedInstanceId) and not self._manager.is_certain():
                    # A client ends at these, and perhaps another broker coordinates the group by now.
                    error = NotCoordinator(group_id)
                if is_made and group.has_nothing:
                    group.transition_to(GroupState.DEAD)
                    self._manager.remove_group(group)
                refusal = _refusal(error, member_id)
                group.after_unlock(lambda: callback(refusal))

    def _heartbeat(self, group: GroupMetadata, beat: Heartbeat, callback: HeartbeatCallback) -> LiveConsumerGroup:
        if group.state is GroupState.DEAD:
            # Being removed, or moved to another broker: the member shall look for the coordinator again.
            raise CoordinatorNotAvailable(group.group_id)
        if beat.regex and (group.consumer is None or beat.regex not in group.consumer.value.regexes):
            compile_pattern(beat.regex)
        is_classic = beat.epoch == JOIN_EPOCH and group.consumer is None
        before = self._value_after_upgrade(group) if is_classic else self._live(group).value
        is_new = beat.member_id not in before.members
        if is_new and beat.epoch == JOIN_EPOCH:
            self._check_size(before, beat)
        may_assign = is_classic or self.may_assign(self._live(group))
        after = heartbeat(before, beat, self._find_topic, self.default_assignor, may_assign=may_assign)
        if is_classic:
            self._checked_records(group, None, after)  # refused before the group has changed
        live = self._upgrade(group, before) if is_classic else self._live(group)
        member, known = after.members[beat.member_id], before.members.get(beat.member_id)
        if is_new:
            logger.info("group %s: member %s joins, group epoch %d", group.group_id, beat.member_id, after.epoch)
        # One that comes with another epoch than it had has not heard of what it was assigned.
        is_told = known is not None and known.assigned == member.assigned and beat.epoch == known.epoch
        assignment = None if is_told and not beat.is_full else member.assigned
        result = HeartbeatResult(NONE, None, beat.member_id, member.epoch, assignment)
        self.change(group, live, after, _answer(callback, result))
        self.reset_session(group, live, beat.member_id)
        return live

    def refresh(self, group: GroupMetadata, live: LiveConsumerGroup) -> None:
        """Take over changes of the subscribed topics, and compute the target if it is due.  May downgrade the group."""
        may_assign = self.may_assign(live)
        after = refreshed(live.value, self._find_topic, self.default_assignor, may_assign=may_assign)
        if after is not live.value:
            with suppress(UnknownServerError):  # it has been logged, and is no fault of the member
                self.change(group, live, after, lambda error: None)

    def may_assign(self, live: LiveConsumerGroup) -> bool:
        """Whether consumer.assignment.interval.ms has passed since the last target (KIP-1263)."""
        if live.assigned_at_ms is None:
            return True
        interval_ms = self.settings_of(live.value.group_id).assignment_interval_ms
        return self._time.hi_res_clock_ms() - live.assigned_at_ms >= interval_ms

    def _maybe_resolve(self, group: GroupMetadata, live: LiveConsumerGroup, permitted: Permitted) -> None:
        """Have the topics of the group's regular expressions looked up where it is time."""

        def resolved(topics: Mapping[str, Collection[str]]) -> None:
            with group:
                live.regexes.is_running = False
                if group.consumer is not live or group.state is GroupState.DEAD or not live.value.members:
                    return
                after = with_resolved(live.value, topics, self._time.milliseconds(), self._find_topic)
                if after.epoch != live.value.epoch:
                    logger.info("group %s: other topics match, group epoch %d", group.group_id, after.epoch)
                with suppress(UnknownServerError):  # it has been logged; the group goes on with the topics of before
                    self.change(group, live, after, lambda error: None)

        self._resolver.maybe_start(
            live.regexes,
            live.value.regexes,
            live.value.resolved.keys(),
            self._config.consumer_regex_refresh_interval_ms,
            permitted,
            resolved,
        )

    def _check_size(self, group: ConsumerGroup, beat: Heartbeat) -> None:
        """Raises GroupMaxSizeReached.  A static member that is back takes no new place."""
        is_back = beat.instance_id is not None and group.member_of_instance(beat.instance_id) is not None
        if not is_back and len(group.members) >= self._config.consumer_max_size:
            raise GroupMaxSizeReached(f"group.consumer.max.size is {self._config.consumer_max_size}")

    @staticmethod
    def _live(group: GroupMetadata) -> LiveConsumerGroup:
        if group.is_unloaded:
            raise NotCoordinator(group.group_id)
        if group.consumer is None:
            raise GroupIdNotFound(f"Group {group.group_id} is not a consumer group.")
        return group.consumer

    # -- the other protocol ------------------------------------------------------------------------------------------

    def _value_after_upgrade(self, group: GroupMetadata) -> ConsumerGroup:
        """What a classic group would be as one of the new protocol.  Raises GroupIdNotFound."""
        members = list(group.members.values())
        if not members:
            return ConsumerGroup(group.group_id)
        why_not = why_not_upgraded(
            self._config.consumer_migration_policy,
            group.protocol_type,
            group.protocol_name,
            members,
            self._config.consumer_max_size,
        )
        if why_not is not None:
            raise GroupIdNotFound(f"Group {group.group_id} is not a consumer group: {why_not}.")
        return upgraded(group.group_id, group.generation_id, group.protocol_name, members, self._find_topic)

    def _upgrade(self, group: GroupMetadata, value: ConsumerGroup) -> LiveConsumerGroup:
        """A classic group becomes one of the new protocol, with its offsets and members.

        value: of _value_after_upgrade().
        """
        live = group.consumer = LiveConsumerGroup(ConsumerGroup(group.group_id))
        if group.generation_id > 0:
            group.first_records += ((group_metadata_key(group.group_id), None),)
        for member in group.members.values():
            group.answer_join(member, JoinGroupResult(RebalanceInProgress.code, member.member_id))
            group.answer_sync(member, SyncGroupResult(RebalanceInProgress.code))
        group.forget_members()
        live.value = value
        for member_id in value.members:
            self.reset_session(group, live, member_id)
        if value.members:
            logger.info(
                "group %s: upgraded to the consumer protocol with %s",
                group.group_id,
                counted(len(value.members), "member"),
            )
        return live

    def check_new_classic_member(self, group: ConsumerGroup) -> None:
        """Raises InconsistentGroupProtocol, GroupMaxSizeReached."""
        if not self._config.consumer_migration_policy.may_downgrade:
            raise InconsistentGroupProtocol(
                f"group {group.group_id} has members with group.protocol=consumer, and "
                f"group.consumer.migration.policy is {self._config.consumer_migration_policy.value}"
            )
        if len(group.members) >= self._config.consumer_max_size:
            raise GroupMaxSizeReached(f"group.consumer.max.size is {self._config.consumer_max_size}")

    def shall_downgrade(self, group: GroupMetadata, live: LiveConsumerGroup, after: ConsumerGroup) -> bool:
        """Whether change() makes it a classic group.

        Not where the records for that fit no batch: then it goes on with its members of the classic protocol.
        """
        policy, max_size = self._config.consumer_migration_policy, self._config.max_size
        if after is live.value or not shall_downgrade(policy, after, max_size):
            return False
        classic = GroupMetadata(group.group_id, self._time)
        classic.adopt_members(downgraded(after, self._find_topic), live.value.epoch)
        try:
            record = metadata_record(classic, _assignments(classic))
        except ValueError:
            return False
        return self._manager.fits_batch(group, [*live.tombstones(), record])

    def _downgrade(
        self, group: GroupMetadata, live: LiveConsumerGroup, after: ConsumerGroup, on_stored: WriteCallback
    ) -> None:
        """The group, whose members all use the classic protocol, is a classic group from now on."""
        for session in live.sessions.values():
            session.cancel()
        group.consumer = None
        # Not the epoch after the last leave, which no member is in: what they commit before they join again counts.
        group.adopt_members(downgraded(after, self._find_topic), live.value.epoch)
        group.first_records += tuple(live.tombstones())
        live.value = after
        logger.info("group %s: downgraded to the classic protocol, generation %d", group.group_id, group.generation_id)
        self._manager.store_group(group, _assignments(group), on_stored, error_for_consumers)
        self.on_downgraded(group)

    @contextmanager
    def uncertain_fences(self, group_id: str) -> Iterator[None]:
        """Raises NotCoordinator for an error at which a client ends, if another broker may coordinate the group."""
        try:
            yield
        except (FencedInstanceId, UnreleasedInstanceId):
            if not self._manager.is_certain():
                raise NotCoordinator(group_id) from None
            raise

    def make_classic(self, group: GroupMetadata) -> None:
        """For the JoinGroup of a classic client: if the group is an empty one of the new protocol."""
        live = group.consumer
        if live is None or live.value.members:
            return
        group.first_records += tuple(live.tombstones())
        group.consumer = group.protocol_type = None

    def describe(self, group_id: str) -> ConsumerGroup:
        """Raises GroupIdNotFound, and as GroupMetadataManager.check_group_status()."""
        group = self._manager.find_group(group_id)
        if group is None or (group.state is GroupState.DEAD and not group.is_unloaded):
            raise GroupIdNotFound(f"Group {group_id} not found.")
        with group:
            return self._live(group).value

    # -- changes -----------------------------------------------------------------------------------------------------

    def change(
        self, group: GroupMetadata, live: LiveConsumerGroup, after: ConsumerGroup, on_stored: WriteCallback
    ) -> None:
        """The group is `after` from now on; on_stored(error) runs without the lock, once that is in the log.

        A classic group, if it has only members of the classic protocol left and may be one.
        Raises UnknownServerError, and then has changed nothing, for what fits no record or makes too large a batch.
        """
        if self.shall_downgrade(group, live, after):
            self._downgrade(group, live, after, on_stored)
            return
        before, unsaved = live.value, live.unsaved
        if live.is_stored and group.first_records:
            # They remove records of this protocol too, if the group had it before; so all is written after them.
            unsaved = (unsaved or Touched()).union(Touched(frozenset(before.members)))
        stored = before if live.is_stored else None
        if after.members.keys() < before.members.keys():
            # Never refused: a member that is gone would keep its partitions.
            records = records_between(stored, after)
        else:
            records = self._checked_records(group, stored, after)
        if unsaved is not None:
            records = records_between(stored, after, unsaved)
        live.value = after
        if after.assignment_epoch != before.assignment_epoch:
            live.assigned_at_ms = self._time.hi_res_clock_ms()
        for member_id in [member_id for member_id in live.sessions if member_id not in after.members]:
            live.sessions.pop(member_id).cancel()
        for member_id, member in after.members.items():
            if member is not before.members.get(member_id):
                self._watch_revocation(group, live, member, before.members.get(member_id))
        if records and (after is not before or live.unsaved is not None):
            touched = _touched(stored or ConsumerGroup(group.group_id), after).union(unsaved or Touched())
            live.is_stored, live.unsaved = True, None
            self._write(group, live, records, touched, on_stored)
        elif live.waiting:
            # Nothing new, but what the answer says may not be in the log yet.
            next(reversed(live.waiting.values())).callbacks.append(on_stored)
        else:
            group.after_unlock(lambda: on_stored(None))

    def _checked_records(
        self, group: GroupMetadata, before: ConsumerGroup | None, after: ConsumerGroup
    ) -> list[Record]:
        """records_between().  Raises UnknownServerError for what fits no record or makes too large a batch."""
        try:
            records = records_between(before, after)
            if not self._manager.fits_batch(group, records):
                raise ValueError(
                    f"{counted(len(records), 'record')} of a change fit no batch of {GROUP_METADATA_TOPIC}: "
                    "subscribe to fewer topics, or raise its max.message.bytes"
                )
        except ValueError as error:
            logger.warning("group %s: a change is refused: %s", group.group_id, error)
            raise UnknownServerError(str(error)) from None
        return records

    def _write(
        self,
        group: GroupMetadata,
        live: LiveConsumerGroup,
        records: list[Record],
        touched: Touched,
        on_stored: WriteCallback,
    ) -> None:
        live.num_writes += 1
        number = live.num_writes
        write = live.waiting[number] = Write(touched, [on_stored])
        num_failed = live.num_failed

        def refusal() -> ApiError | None:
            """The records say what has changed since those of the writes before; without these they are wrong: a
            partition might have two members."""
            if live.num_failed == num_failed:
                return None
            return CoordinatorNotAvailable("a write of the group before this one has failed")

        def failed() -> None:
            """At the first batch that fails: what is written from now on must not build on this write."""
            live.unsaved = touched.union(live.unsaved or Touched())
            live.num_failed += 1

        def stored(error: ApiError | None) -> None:
            with group:
                del live.waiting[number]
                if error is None and group.is_unloaded:
                    error = NotCoordinator(group.group_id)
                for callback in write.callbacks:
                    group.after_unlock(partial(callback, error))

        if not self._manager.fits_batch(group, records):
            # Several batches, of which the last may be missing when another coordinator loads them.  With the epoch in
            # the first, that one computes a new target.
            records.sort(key=lambda record: not is_group_epoch(record))
        self._manager.store_records(group, records, stored, refusal, failed)

    # -- time --------------------------------------------------------------------------------------------------------

    def reset_session(self, group: GroupMetadata, live: LiveConsumerGroup, member_id: str) -> Session:
        """After a sign of life."""
        classic = live.value.members[member_id].classic
        if classic is not None:
            timeout_ms = classic.session_timeout_ms
        else:
            timeout_ms = self.settings_of(group.group_id).session_timeout_ms
        deadline_ms = self._time.hi_res_clock_ms() + timeout_ms
        session = live.sessions.get(member_id)
        if session is None:
            session = live.sessions[member_id] = Session(deadline_ms)
        session.deadline_ms = deadline_ms
        task = session.task
        if task is not None and task.deadline_ms <= deadline_ms:
            return session  # it fires early, and waits on
        if task is not None:
            task.cancel()
        session.task = self._timer.add(lambda: self._check_session(group, member_id, session), timeout_ms)
        return session

    def watch(
        self, group: GroupMetadata, live: LiveConsumerGroup, member: ConsumerMember, task_name: str, why: str
    ) -> None:
        """Fence a member that has not done what it has to within its rebalance timeout; with set_task() of its session
        that time is over."""
        session = live.sessions[member.member_id]

        def late() -> None:
            with group:
                # The session of a member that is gone, or of a group that is no more, has no tasks.
                if group.state is not GroupState.DEAD and getattr(session, task_name) is task:
                    self._fence(group, live, member.member_id, why)

        task = self._timer.add(late, member.rebalance_timeout_ms)
        session.set_task(task_name, task)

    def _check_session(self, group: GroupMetadata, member_id: str, session: Session) -> None:
        with group:
            live = group.consumer
            if live is None or group.state is GroupState.DEAD or live.sessions.get(member_id) is not session:
                return
            left_ms = session.deadline_ms - self._time.hi_res_clock_ms()
            if left_ms > 0:
                session.task = self._timer.add(lambda: self._check_session(group, member_id, session), left_ms)
                return
            self._fence(group, live, member_id, "has sent no heartbeat")

    def _watch_revocation(
        self, group: GroupMetadata, live: LiveConsumerGroup, member: ConsumerMember, before: ConsumerMember | None
    ) -> None:
        """A member that has to give up partitions has its rebalance timeout for that, and anew for others.

        before: as it was when this was called last; None the first time.
        """
        session = live.sessions.get(member.member_id)
        if session is None:
            session = live.sessions[member.member_id] = Session(self._time.hi_res_clock_ms())
        if member.classic is None:
            session.set_task("rejoin_task", None)
            session.set_task("sync_task", None)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            session.set_task("revocation_task", None)
        elif member.rebalance_timeout_ms >= 0 and (
            session.revocation_task is None or before is None or before.revoking != member.revoking
        ):
            why = "has not given up its partitions within its rebalance timeout"
            self.watch(group, live, member, "revocation_task", why)

    def _fence(self, group: GroupMetadata, live: LiveConsumerGroup, member_id: str, why: str) -> None:
        logger.info("group %s: member %s is fenced: it %s", group.group_id, member_id, why)
        self.change(group, live, without_members(live.value, [member_id]), lambda error: None)

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def on_loaded(self, group: GroupMetadata) -> None:
        live = group.consumer
        if live is not None:
            for member in live.value.members.values():
                self.reset_session(group, live, member.member_id)
                self._watch_revocation(group, live, member, None)

    @staticmethod
    def on_unloaded(group: GroupMetadata) -> None:
        if group.consumer is not None:
            for session in group.consumer.sessions.values():
                session.cancel()


def _refusal(error: ApiError, member_id: str) -> HeartbeatResult:
    return HeartbeatResult(error.code, str(error) or None, member_id)


def _answer(callback: HeartbeatCallback, result: HeartbeatResult) -> WriteCallback:
    def stored(error: ApiError | None) -> None:
        callback(result if error is None else _refusal(error, result.member_id))

    return stored


def _assignments(group: GroupMetadata) -> dict[str, bytes]:
    """Of the members of a classic group, by id."""
    return {member_id: member.assignment for member_id, member in group.members.items()}


def _touched(before: ConsumerGroup, after: ConsumerGroup) -> Touched:
    """That of which something may differ."""
    members = frozenset(
        member_id
        for member_id in {*before.members, *after.members}
        if before.members.get(member_id) is not after.members.get(member_id)
        or before.targets.get(member_id) != after.targets.get(member_id)
    )
    regexes = frozenset(
        regex
        for regex in {*before.resolved, *after.resolved}
        if before.resolved.get(regex) is not after.resolved.get(regex)
    )
    return Touched(members, regexes)
