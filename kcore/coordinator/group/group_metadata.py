"""One group: its state machine, members and committed offsets."""

from __future__ import annotations

import enum
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from random import Random

from kcore.common.random_source import random_uuid
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import CommittedOffset, OffsetAndMetadata
from kcore.coordinator.group.live_consumer_group import LiveConsumerGroup
from kcore.coordinator.group.member_metadata import (
    JoinCallback,
    JoinGroupMember,
    JoinGroupResult,
    MemberMetadata,
    Protocols,
    SyncGroupResult,
)
from kcore.errors import FencedInstanceId, InvalidRequest
from kcore.protocol.messages.consumer_protocol import subscribed_topics
from kcore.purgatory.timer import TimerTask

logger = logging.getLogger(__name__)

CONSUMER_PROTOCOL_TYPE = "consumer"
PendingOffsets = dict[TopicPartition, list[OffsetAndMetadata]]
#: In bytes, of the strings in records and of older versions of requests.
MAX_STRING_SIZE = 2**15 - 1


class GroupState(enum.Enum):
    """Values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"  # no members; lives on until its offsets expire, or has only offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # JoinGroups are parked until all members have come, or time is up
    COMPLETING_REBALANCE = "CompletingRebalance"  # SyncGroups are parked until the leader's assignment is stored
    STABLE = "Stable"  # every member can have its assignment
    DEAD = "Dead"  # being removed or unloaded; a request that still holds it must look for the coordinator again


#: State -> the states it may be entered from.  Source: GroupState.validPreviousStates, Kafka 3.9.
VALID_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


class GroupMetadata:
    """Use as a context manager: inside it the group is locked.  Every method but the constructor needs the lock.

    What must not run under the lock (answers to clients, appends to the offsets topic) is handed to after_unlock().
    Those actions run in the order they were handed in, one at a time, by whichever thread comes out of the lock while
    no other thread runs them; so the records of a group reach the log in the order its state changed.
    The lock is not reentrant.  Source: GroupMetadata, Kafka 3.9.
    """

    def __init__(self, group_id: str, time: Time, state: GroupState = GroupState.EMPTY) -> None:
        self.group_id = group_id
        #: The epoch in which this broker coordinates it, as this object; the log takes its records in that one only.
        self.coordinator_epoch = -1
        self.state = state
        self.state_timestamp: int | None = time.milliseconds()
        #: Dead because its partition moved: the group goes on elsewhere, or here as another object.
        self.is_unloaded = False
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.members: dict[str, MemberMetadata] = {}
        self.static_members: dict[str, str] = {}
        #: Ids returned with MEMBER_ID_REQUIRED that have not joined yet, and when they expire.
        self.pending_members: dict[str, TimerTask] = {}
        #: Members that have got the JoinGroup response of this generation but have not sent SyncGroup.
        self.pending_sync_members: set[str] = set()
        self.sync_task: TimerTask | None = None
        self.join_task: TimerTask | None = None
        #: While the first rebalance of an empty group is held open for more members: how long it still may be.
        self.initial_delay_left_ms: float | None = None
        self.new_member_added = False
        self.num_awaiting_join = 0
        #: What a group of KIP-848 has, else None.  All members of such a group are in it, those of the classic protocol
        #: too; `members` has none then, and `state` is EMPTY or DEAD.
        self.consumer: LiveConsumerGroup | None = None
        #: Tombstones of the records of the other protocol, which the group had before: the next write begins with them,
        #: until one has reached the log.
        self.first_records: tuple[tuple[bytes, bytes | None], ...] = ()
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        #: Those that are on their way to the log, in the order of their commits.
        self.pending_offset_commits: PendingOffsets = {}
        #: By producer id: offsets of open transactions that are in the log.
        self.transactional_offsets: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        #: Those that are on their way to it; their producers are in transactional_offsets too.
        self.pending_transactional_commits: dict[int, PendingOffsets] = {}
        #: Why tombstones could not be stored, as logged; None once some were, or there are none to store.
        self.tombstone_error: str | None = None
        self._time = time
        self._supported_protocols: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._running_actions = False

    # -- the lock ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> GroupMetadata:
        self._lock.acquire()
        return self

    def __exit__(self, *exc_info: object) -> None:
        actions = self._actions
        if not actions or self._running_actions:
            self._lock.release()
            return
        self._running_actions = True
        while actions:
            action = actions.popleft()
            self._lock.release()
            try:
                action()
            except Exception:
                logger.exception("group %s: an answer or append failed", self.group_id)
            self._lock.acquire()
        self._running_actions = False
        self._lock.release()

    def after_unlock(self, action: Callable[[], None]) -> None:
        self._actions.append(action)

    # -- state -------------------------------------------------------------------------------------------------------

    def transition_to(self, state: GroupState) -> None:
        previous = VALID_PREVIOUS_STATES[state]
        assert self.state in previous, f"group {self.group_id} cannot go from {self.state} to {state}"
        self.state = state
        self.state_timestamp = self._time.milliseconds()

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, of either protocol."""
        return self.state is GroupState.EMPTY and (self.consumer is None or not self.consumer.value.members)

    @property
    def has_nothing(self) -> bool:
        """Whether no request has left anything in it since it was made."""
        return (
            self.is_empty
            and self.generation_id == 0
            and self.consumer is None
            and not (self.pending_members or self.first_records or self.all_offset_partitions())
        )

    @property
    def can_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS_STATES[GroupState.PREPARING_REBALANCE]

    def init_next_generation(self) -> None:
        """One generation on: Empty without members, else CompletingRebalance with the protocol most members like."""
        self.generation_id += 1
        self.pending_sync_members.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY)
        self.update_subscribed_topics()

    def forget_members(self) -> None:
        """Empty from now on, as one that never had a generation: the group goes on with the new protocol.

        Requests of members that wait are to be answered before.
        """
        for member_id in [*self.members, *self.pending_members]:
            self.remove(member_id)
        for task in (self.join_task, self.sync_task):
            if task is not None:
                task.cancel()
        self.join_task = self.sync_task = self.initial_delay_left_ms = None
        self.new_member_added = False
        self.state, self.state_timestamp = GroupState.EMPTY, self._time.milliseconds()
        self.generation_id = 0
        self.protocol_type, self.protocol_name, self.leader_id = CONSUMER_PROTOCOL_TYPE, None, None
        self.update_subscribed_topics()

    def adopt_members(self, members: Iterable[MemberMetadata], generation_id: int) -> None:
        """Stable with these from now on, without a leader: the group goes on with the classic protocol."""
        for member in members:
            self.add(member)
        self.leader_id = None  # the next rebalance has one
        self.generation_id, self.protocol_name = generation_id, self.select_protocol()
        self.state, self.state_timestamp = GroupState.STABLE, self._time.milliseconds()
        self.update_subscribed_topics()

    # -- members -----------------------------------------------------------------------------------------------------

    def add(self, member: MemberMetadata, callback: JoinCallback | None = None) -> None:
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._supported_protocols.update({name for name, _ in member.supported_protocols})
        self._await_join(member, callback)
        self.forget_pending(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forget a member or a pending member; the first of the others leads if the leader goes."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._supported_protocols.subtract({name for name, _ in member.supported_protocols})
            self._await_join(member, None)
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
            if member.heartbeat_task is not None:
                member.heartbeat_task.cancel()
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.forget_pending(member_id)
        self.pending_sync_members.discard(member_id)

    def forget_pending(self, member_id: str) -> None:
        task = self.pending_members.pop(member_id, None)
        if task is not None:
            task.cancel()

    def update_member(
        self,
        member: MemberMetadata,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        callback: JoinCallback | None,
    ) -> None:
        self._supported_protocols.subtract({name for name, _ in member.supported_protocols})
        member.supported_protocols = protocols
        self._supported_protocols.update({name for name, _ in protocols})
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self._await_join(member, callback)

    def _await_join(self, member: MemberMetadata, callback: JoinCallback | None) -> None:
        self.num_awaiting_join += (callback is not None) - (member.awaiting_join is not None)
        member.awaiting_join = callback

    def answer_join(self, member: MemberMetadata, result: JoinGroupResult) -> None:
        """Answer the parked JoinGroup of a member, if it has one."""
        callback = member.awaiting_join
        if callback is not None:
            self._await_join(member, None)
            self.after_unlock(lambda: callback(result))

    def answer_sync(self, member: MemberMetadata, result: SyncGroupResult) -> bool:
        """Answer the parked SyncGroup of a member; False if it has none."""
        callback = member.awaiting_sync
        if callback is None:
            return False
        member.awaiting_sync = None
        self.after_unlock(lambda: callback(result))
        return True

    def replace_static_member(self, group_instance_id: str, old_member_id: str, new_member_id: str) -> MemberMetadata:
        """Give a static member a new id; requests parked under the old one are fenced."""
        member = self.members.pop(old_member_id)
        self.answer_join(member, JoinGroupResult(FencedInstanceId.code, old_member_id))
        self.answer_sync(member, SyncGroupResult(FencedInstanceId.code))
        member.member_id = new_member_id
        self.members[new_member_id] = member
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        self.static_members[group_instance_id] = new_member_id
        return member

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    def maybe_elect_new_joined_leader(self) -> bool:
        """Whether a member that has rejoined leads, after electing one if need be; False also for an empty group."""
        if self.leader_id is not None and self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                if self.leader_id is not None:
                    logger.info("group %s: leader %s did not rejoin, now %s", self.group_id, self.leader_id, member)
                self.leader_id = member.member_id
                return True
        return False

    @property
    def has_all_members_joined(self) -> bool:
        return len(self.members) <= self.num_awaiting_join and not self.pending_members

    def not_yet_rejoined_members(self) -> list[MemberMetadata]:
        return [member for member in self.members.values() if member.awaiting_join is None]

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest of all members'."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def generate_member_id(self, client_id: str, group_instance_id: str | None, random: Random) -> str:
        """Raises InvalidRequest if it would be longer than a record can hold."""
        member_id = f"{client_id if group_instance_id is None else group_instance_id}-{random_uuid(random)}"
        size = len(member_id.encode())
        if size > MAX_STRING_SIZE:
            name = "client id" if group_instance_id is None else "group.instance.id"
            raise InvalidRequest(
                f"a member id of {size} bytes is made of this {name}, {MAX_STRING_SIZE} is the most: shorten the {name}"
            )
        return member_id

    def current_member_metadata(self) -> list[JoinGroupMember]:
        """Every member with its metadata for the chosen protocol: what the leader assigns by."""
        protocol = self.protocol_name
        assert protocol is not None, f"group {self.group_id} has no protocol in state {self.state}"
        return [
            JoinGroupMember(member.member_id, member.group_instance_id, member.metadata(protocol))
            for member in self.members.values()
        ]

    # -- protocols ---------------------------------------------------------------------------------------------------

    def select_protocol(self) -> str:
        """Of the protocols that all members support, the one that most prefer; between equals, the first voted for."""
        size = len(self.members)
        candidates = {name for name, count in self._supported_protocols.items() if count == size}
        return Counter(member.vote(candidates) for member in self.members.values()).most_common(1)[0][0]

    def supports_protocols(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Whether a member with these protocols could be in the group."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        size = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supported_protocols[name] == size for name in protocols
        )

    def is_subscribed_to_topic(self, topic: str) -> bool:
        """True also when the members' subscriptions are not known."""
        if self.consumer is not None:
            return topic in self.consumer.value.subscribed_topics
        return self.subscribed_topics is None or topic in self.subscribed_topics

    def update_subscribed_topics(self) -> None:
        """After the members or the protocol have changed."""
        self.subscribed_topics = self._compute_subscribed_topics()

    def _compute_subscribed_topics(self) -> frozenset[str] | None:
        """Topics of all members' ConsumerProtocol subscriptions; None where they are not known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(subscribed_topics(member.metadata(self.protocol_name)))
            except InvalidRequest as error:
                logger.warning("group %s: %s has an unreadable subscription: %s", self.group_id, member, error)
                return None
        return frozenset(topics)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def prepare_offset_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """A commit is on its way to the log."""
        _add_pending(self.pending_offset_commits, offsets)

    def complete_offset_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata], append_offset: int) -> None:
        """The commit is in the log at append_offset; a later record of a partition replaces an earlier one.

        What was deleted meanwhile stays deleted.
        """
        for topic_partition in _take_pending(self.pending_offset_commits, offsets):
            committed = self.offsets.get(topic_partition)
            if committed is None or committed.append_offset < append_offset:
                self.offsets[topic_partition] = CommittedOffset(append_offset, offsets[topic_partition])

    def fail_offset_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """It is no longer on its way; other commits of the same partitions may be."""
        _take_pending(self.pending_offset_commits, offsets)

    def prepare_transactional_commit(self, producer_id: int, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """A commit inside a transaction is on its way to the log."""
        self.transactional_offsets.setdefault(producer_id, {})
        _add_pending(self.pending_transactional_commits.setdefault(producer_id, {}), offsets)

    def complete_transactional_commit(
        self, producer_id: int, offsets: dict[TopicPartition, OffsetAndMetadata], append_offset: int
    ) -> None:
        """It is in the log at append_offset; unless the transaction has ended meanwhile, it waits for that."""
        for topic_partition in _take_pending(self.pending_transactional_commits.get(producer_id, {}), offsets):
            in_log = self.transactional_offsets[producer_id]
            before = in_log.get(topic_partition)
            if before is None or before.append_offset < append_offset:
                in_log[topic_partition] = CommittedOffset(append_offset, offsets[topic_partition])

    def fail_transactional_commit(self, producer_id: int, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """It is not in the log."""
        _take_pending(self.pending_transactional_commits.get(producer_id, {}), offsets)
        if not self.transactional_offsets.get(producer_id) and not self.pending_transactional_commits.get(producer_id):
            self.transactional_offsets.pop(producer_id, None)
            self.pending_transactional_commits.pop(producer_id, None)

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a producer's transaction is in the log, after its offsets."""
        in_log = self.transactional_offsets.pop(producer_id, {})
        self.pending_transactional_commits.pop(producer_id, None)
        if not is_commit:
            return
        for topic_partition, offset in in_log.items():
            committed = self.offsets.get(topic_partition)
            if committed is None or committed.append_offset < offset.append_offset:
                self.offsets[topic_partition] = offset

    def is_unstable(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition may have another offset soon."""
        return topic_partition in self.pending_offset_commits or self.has_transactional_offset(topic_partition)

    def has_transactional_offset(self, topic_partition: TopicPartition) -> bool:
        """Whether an open transaction has an offset of the partition."""
        return any(topic_partition in offsets for offsets in self._in_transactions())

    def _in_transactions(self) -> list[Collection[TopicPartition]]:
        """Partitions that open transactions have an offset of, also one on its way to the log."""
        return [*self.transactional_offsets.values(), *self.pending_transactional_commits.values()]

    def _pending(self) -> list[PendingOffsets]:
        return [self.pending_offset_commits, *self.pending_transactional_commits.values()]

    def all_offset_partitions(self) -> set[TopicPartition]:
        """Partitions that have an offset, also one on its way to the log or in an open transaction."""
        return {*self.offsets, *self.pending_offset_commits}.union(*self._in_transactions())

    def values_of(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[OffsetAndMetadata]]:
        """Of those of these partitions that have any: also what is on its way to the log or in an open transaction."""
        values = {}
        for topic_partition in topic_partitions:
            committed = [self.offsets, *self.transactional_offsets.values()]
            found = [offsets[topic_partition].value for offsets in committed if topic_partition in offsets]
            for pending in self._pending():
                found += pending.get(topic_partition, ())
            if found:
                values[topic_partition] = found
        return values

    def remove_offsets(self, values: Mapping[TopicPartition, Collection[OffsetAndMetadata]]) -> None:
        """Remove what values_of() has returned, wherever it is by now; others of the partitions stay."""
        for topic_partition, gone in values.items():
            ids = {id(value) for value in gone}
            for offsets in (self.offsets, *self.transactional_offsets.values()):
                if topic_partition in offsets and id(offsets[topic_partition].value) in ids:
                    del offsets[topic_partition]
            for pending in self._pending():
                left = [value for value in pending.get(topic_partition, ()) if id(value) not in ids]
                _set_or_remove(pending, topic_partition, left)

    def expired_offsets(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Offsets that no member uses and whose retention time is over.

        An empty group's count from when it became empty, a stable consumer group's unsubscribed topics and a group of
        simple consumers from the commit, and so do those of a group of KIP-848; no others expire.
        Source: GroupMetadata.removeExpiredOffsets (KIP-211), OffsetExpirationConditionImpl.
        """
        subscribed: frozenset[str] = frozenset()
        empty_since: int | None = None
        if self.consumer is not None:
            subscribed = self.consumer.value.subscribed_topics
        elif self.protocol_type is not None:
            if self.state is GroupState.EMPTY:
                empty_since = self.state_timestamp
            elif (
                self.protocol_type == CONSUMER_PROTOCOL_TYPE
                and self.state is GroupState.STABLE
                and self.subscribed_topics is not None
            ):
                subscribed = self.subscribed_topics
            else:
                return []
        expired = []
        for topic_partition, committed in self.offsets.items():
            value = committed.value
            if topic_partition.topic in subscribed or self.is_unstable(topic_partition):
                continue
            expires = value.expire_timestamp
            if expires is None:
                expires = (value.commit_timestamp if empty_since is None else empty_since) + retention_ms
            if now_ms >= expires:
                expired.append(topic_partition)
        return expired

    def __repr__(self) -> str:
        return f"GroupMetadata({self.group_id}, {self.state.value}, generation={self.generation_id})"


def _add_pending(pending: PendingOffsets, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    for topic_partition, value in offsets.items():
        pending.setdefault(topic_partition, []).append(value)


def _take_pending(pending: PendingOffsets, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[TopicPartition]:
    """A commit is no longer on its way; its partitions, without those that were deleted or whose transaction has ended
    meanwhile."""
    found = []
    for topic_partition, value in offsets.items():
        before = pending.get(topic_partition, [])
        left = [other for other in before if other is not value]
        if len(left) < len(before):
            found.append(topic_partition)
            _set_or_remove(pending, topic_partition, left)
    return found


def _set_or_remove(pending: PendingOffsets, topic_partition: TopicPartition, left: list[OffsetAndMetadata]) -> None:
    if left:
        pending[topic_partition] = left
    else:
        pending.pop(topic_partition, None)
