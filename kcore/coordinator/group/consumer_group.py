"""The rules of a consumer group of KIP-848, as functions over values: no clock, no lock, no record.

The group epoch counts changes of the members, their subscriptions and the topics.  Each has a target assignment, of the
assignment epoch.  Each member moves to its target on its own, at its heartbeats: first it gives up what the target has
not, staying in its epoch; then it is in the epoch of the target and gets what no other member has any more.  A member
"holds" what it is assigned and what it has still to give up; no partition is ever held by two.
Source: GroupMetadataManager, CurrentAssignmentBuilder and TargetAssignmentBuilder, Kafka 4.2 (KIP-848).
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kcore.coordinator.group.consumer_assignors import ASSIGNORS, Partitions, Subscriber, TopicIdPartition, TopicOfGroup
from kcore.errors import FencedInstanceId, FencedMemberEpoch, UnknownMemberId, UnreleasedInstanceId

#: Member epochs of requests that are no epochs.
JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2

_NOTHING: Partitions = frozenset()


class MemberState(enum.IntEnum):
    """Values are those of the records."""

    STABLE = 0  # has its target
    UNREVOKED_PARTITIONS = 1  # has to give up partitions, and stays in its epoch until then
    UNRELEASED_PARTITIONS = 2  # in the epoch of its target, but others have partitions of it
    UNKNOWN = 127  # written by a newer broker


class ClassicMember(NamedTuple):
    """What a member that uses the classic protocol has said.  protocols: (name, metadata), in its order of preference,
    at least one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """topics: subscribed names, in order, each once.  regex: it wants the topics that match this too; None or "" for
    none.  epoch: the member's; -2 for a static member that is away.

    assigned and revoking (what it has to give up) are disjoint; it holds both.  assignment_epochs: of each partition
    that it holds, the epoch since which it has it.  classic: None for a member of the new protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] = ()
    assignor: str | None = None
    regex: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = _NOTHING
    revoking: Partitions = _NOTHING
    classic: ClassicMember | None = None
    assignment_epochs: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    @property
    def held(self) -> Partitions:
        return self.assigned | self.revoking


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression has matched, in order, and when, in ms since the epoch."""

    topics: tuple[str, ...]
    time_ms: int


#: Kafka's names of the states.
CONSUMER_GROUP_STATES = ("Empty", "Assigning", "Reconciling", "Stable")


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """members and targets by member id.  metadata_hash: of the subscribed topics when the epoch last rose for them.
    resolved: by regular expression of a member, where its topics have been looked up.
    """

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    members: Mapping[str, ConsumerMember] = field(default_factory=dict)
    targets: Mapping[str, Partitions] = field(default_factory=dict)
    resolved: Mapping[str, ResolvedRegex] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """One of CONSUMER_GROUP_STATES."""
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        if any(
            member.epoch != self.assignment_epoch or member.state is not MemberState.STABLE
            for member in self.members.values()
        ):
            return "Reconciling"
        return "Stable"

    @property
    def subscribed_topics(self) -> frozenset[str]:
        names = {name for member in self.members.values() for name in member.topics}
        for regex in self.resolved.values():
            names.update(regex.topics)
        return frozenset(names)

    @property
    def regexes(self) -> frozenset[str]:
        return frozenset(member.regex for member in self.members.values() if member.regex)

    def topics_of(self, member: ConsumerMember) -> Collection[str]:
        """Of its names and its regular expression."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else {*member.topics, *resolved.topics}

    def member_of_instance(self, instance_id: str) -> ConsumerMember | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def assignor_name(self, default: str) -> str:
        """What most members ask for."""
        wanted = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return max(sorted(wanted), key=lambda name: wanted[name]) if wanted else default


class Heartbeat(NamedTuple):
    """What a member says; None, and -1 as the timeout, where nothing has changed.  epoch >= 0.  assignor and regex: ""
    for none."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: Sequence[str] | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    regex: str | None = None
    #: Of a JoinGroup of the classic protocol.  Such a heartbeat carries the member's current epoch, and
    #: may take the place of a static member that is not away.
    classic: ClassicMember | None = None

    @property
    def is_full(self) -> bool:
        """Whether it says everything that makes the coordinator answer with the assignment."""
        has_subscription = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != -1 and has_subscription and self.owned is not None


#: The topic of a name, None where there is none.
FindTopic = Callable[[str], TopicOfGroup | None]


def heartbeat(
    group: ConsumerGroup, beat: Heartbeat, find_topic: FindTopic, default_assignor: str, *, may_assign: bool = True
) -> ConsumerGroup:
    """The group after a member's heartbeat; the same object if it has changed nothing.

    may_assign: whether there may be a new target, else the members go on with the old one.
    Raises UnknownMemberId, FencedMemberEpoch, FencedInstanceId, UnreleasedInstanceId.
    """
    before = group
    if beat.epoch == JOIN_EPOCH:
        group = _with_joining_member(group, beat)
    member = _checked_member(group, beat)
    updated = _updated(member, beat)
    group = _without_unused_regexes(_with_member(group, updated))
    known = before.members.get(beat.member_id)
    # A static member that is back has the place of the one that was away.
    came_from = known or (beat.instance_id is not None and before.member_of_instance(beat.instance_id)) or None
    is_rejoin = known is not None and known.epoch > JOIN_EPOCH and member.epoch == JOIN_EPOCH
    has_changed = came_from is None or is_rejoin or _wishes(came_from) != _wishes(updated)
    group = refreshed(group, find_topic, default_assignor, has_changed=has_changed, may_assign=may_assign)
    return _with_member(group, _reconciled(group, group.members[beat.member_id], beat.owned))


def refreshed(
    group: ConsumerGroup,
    find_topic: FindTopic,
    default_assignor: str,
    *,
    has_changed: bool = False,
    may_assign: bool = True,
) -> ConsumerGroup:
    """One epoch on if has_changed or if the subscribed topics are others than when the epoch last rose; with the target
    of its epoch if it may_assign."""
    topics = _existing_topics(group, find_topic)
    metadata_hash = hash_of_topics(topics)
    if has_changed or metadata_hash != group.metadata_hash:
        group = replace(group, epoch=group.epoch + 1, metadata_hash=metadata_hash)
    if group.assignment_epoch == group.epoch or not may_assign:
        return group
    subscribers = {
        member_id: Subscriber(
            member.instance_id,
            frozenset(topics[name].topic_id for name in group.topics_of(member) if name in topics),
            group.targets.get(member_id, _NOTHING),
        )
        for member_id, member in group.members.items()
    }
    assign = ASSIGNORS[group.assignor_name(default_assignor)]
    targets = assign(subscribers, {topic.topic_id: topic.num_partitions for topic in topics.values()})
    return replace(group, assignment_epoch=group.epoch, targets=targets)


def without_members(group: ConsumerGroup, member_ids: Iterable[str]) -> ConsumerGroup:
    """One epoch on, without members that have left or are fenced: they hold nothing any more.

    The target of the others is computed at the next heartbeat of one of them.
    """
    gone = {member_id for member_id in member_ids if member_id in group.members}
    if not gone:
        return group
    members = {member_id: member for member_id, member in group.members.items() if member_id not in gone}
    targets = {member_id: target for member_id, target in group.targets.items() if member_id in members}
    metadata_hash = group.metadata_hash if members else 0
    return _without_unused_regexes(
        replace(group, epoch=group.epoch + 1, metadata_hash=metadata_hash, members=members, targets=targets)
    )


def with_resolved(
    group: ConsumerGroup, topics_by_regex: Mapping[str, Collection[str]], time_ms: int, find_topic: FindTopic
) -> ConsumerGroup:
    """After a look at all topics.  One epoch on if a regular expression of a member has other topics now.

    The target is computed at the next heartbeat of a member.
    """
    resolved = dict(group.resolved)
    is_changed = False
    for regex in sorted(group.regexes & topics_by_regex.keys()):
        topics = tuple(sorted(topics_by_regex[regex]))
        before = resolved.get(regex)
        is_changed |= topics != (() if before is None else before.topics)
        resolved[regex] = ResolvedRegex(topics, time_ms)
    group = replace(group, resolved=resolved)
    if not is_changed:
        return group
    return replace(group, epoch=group.epoch + 1, metadata_hash=hash_of_topics(_existing_topics(group, find_topic)))


def _existing_topics(group: ConsumerGroup, find_topic: FindTopic) -> dict[str, TopicOfGroup]:
    return {name: topic for name in group.subscribed_topics if (topic := find_topic(name)) is not None}


def _without_unused_regexes(group: ConsumerGroup) -> ConsumerGroup:
    if group.resolved.keys() <= group.regexes:
        return group
    return replace(group, resolved={regex: group.resolved[regex] for regex in group.resolved.keys() & group.regexes})


def _wishes(member: ConsumerMember) -> tuple[object, ...]:
    """What of a member decides about its target."""
    return member.topics, member.regex or None, member.assignor


def leave(group: ConsumerGroup, member_id: str, epoch: int, instance_id: str | None) -> ConsumerGroup:
    """After the leave of a member, with epoch -1 for good, with -2 (static members) for as long as its session lasts.

    Raises UnknownMemberId, FencedInstanceId.
    """
    if instance_id is not None:
        member = member_by_instance(group, member_id, instance_id)
    else:
        member = member_by_id(group, member_id)
    if epoch == LEAVE_EPOCH:
        return without_members(group, [member.member_id])
    # Its process has ended: what it had to give up, it has given up.
    away = replace(
        member,
        epoch=LEAVE_STATIC_EPOCH,
        state=MemberState.STABLE,
        revoking=_NOTHING,
        assignment_epochs=dict.fromkeys(member.assigned, 0),
    )
    return _with_member(group, away)


def hash_of_topics(topics: Mapping[str, TopicOfGroup]) -> int:
    """A signed 64-bit number, another one when topics appear, disappear or get more partitions; 0 for no topics.

    Kafka computes another one: who takes a group over from it, or gives one to it, goes one epoch on.
    """
    if not topics:
        return 0
    text = "\n".join(f"{name} {topics[name].topic_id} {topics[name].num_partitions}" for name in sorted(topics))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _with_joining_member(group: ConsumerGroup, beat: Heartbeat) -> ConsumerGroup:
    """With the member of a heartbeat of epoch 0, which owns nothing.  Raises UnreleasedInstanceId."""
    if beat.instance_id is not None:
        static = group.member_of_instance(beat.instance_id)
        if static is not None and static.member_id != beat.member_id:
            uses_classic = beat.classic is not None or static.classic is not None
            if static.epoch != LEAVE_STATIC_EPOCH and not uses_classic:
                raise UnreleasedInstanceId(f"instance id {beat.instance_id} is owned by member {static.member_id}")
            return _with_replaced_member(group, static, beat.member_id)
    member = group.members.get(beat.member_id)
    if member is None:
        return _with_member(group, ConsumerMember(beat.member_id, beat.instance_id))
    if member.epoch == LEAVE_STATIC_EPOCH:
        return _with_replaced_member(group, member, beat.member_id)
    if member.previous_epoch == JOIN_EPOCH and not member.revoking:
        return group  # the answer to its join was lost
    # It has given up all it had, as a member that was fenced does, and begins anew.
    return _with_member(group, ConsumerMember(beat.member_id, beat.instance_id))


def _with_replaced_member(group: ConsumerGroup, static: ConsumerMember, member_id: str) -> ConsumerGroup:
    """A static member is back, perhaps with another id: it gets its place and its partitions."""
    back = replace(static, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    members = {key: member for key, member in group.members.items() if key != static.member_id}
    targets = {key: target for key, target in group.targets.items() if key != static.member_id}
    members[member_id] = back
    targets[member_id] = group.targets.get(static.member_id, _NOTHING)
    return replace(group, members=members, targets=targets)


def member_by_id(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    """Raises UnknownMemberId."""
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def member_by_instance(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """Raises UnknownMemberId, FencedInstanceId."""
    member = group.member_of_instance(instance_id)
    if member is None:
        raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise FencedInstanceId(f"Instance id {instance_id} belongs to member {member.member_id}, not {member_id}.")
    return member


def _checked_member(group: ConsumerGroup, beat: Heartbeat) -> ConsumerMember:
    if beat.instance_id is not None:
        member = member_by_instance(group, beat.member_id, beat.instance_id)
    else:
        member = member_by_id(group, beat.member_id)
    if beat.epoch == member.epoch:
        return member
    # The answer with its new epoch was lost: it sends the previous epoch, and owns only what is assigned to it.
    if (
        beat.epoch < member.epoch
        and beat.epoch == member.previous_epoch
        and beat.owned is not None
        and beat.owned <= member.assigned
    ):
        return member
    raise FencedMemberEpoch(
        f"Member {beat.member_id} is in epoch {member.epoch}, not {beat.epoch}. It must abandon all its partitions and "
        "rejoin."
    )


def _updated(member: ConsumerMember, beat: Heartbeat) -> ConsumerMember:
    """With what the heartbeat says about the member itself."""
    changes: dict[str, object] = {
        "client_id": beat.client_id,
        "client_host": beat.client_host,
        "classic": beat.classic,
    }
    if beat.rack_id is not None:
        changes["rack_id"] = beat.rack_id
    if beat.rebalance_timeout_ms != -1:
        changes["rebalance_timeout_ms"] = beat.rebalance_timeout_ms
    if beat.topics is not None:
        changes["topics"] = tuple(sorted(set(beat.topics)))
    if beat.assignor is not None:
        changes["assignor"] = beat.assignor or None
    if beat.regex is not None:
        changes["regex"] = beat.regex or None
    if all(getattr(member, name) == value for name, value in changes.items()):
        return member
    return replace(member, **changes)  # type: ignore[arg-type]  # by name


def _with_member(group: ConsumerGroup, member: ConsumerMember) -> ConsumerGroup:
    if group.members.get(member.member_id) is member:
        return group
    return replace(group, members={**group.members, member.member_id: member})


def _reconciled(group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None) -> ConsumerMember:
    """The member one step nearer to its target.  owned: what it says that it owns.  Raises FencedMemberEpoch."""
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        raise FencedMemberEpoch(f"The state of member {member.member_id} is unknown. It must rejoin.")
    if member.state is MemberState.STABLE and member.epoch == group.assignment_epoch:
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns(owned, member.revoking):
        return member
    target = group.targets.get(member.member_id, _NOTHING)
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and _owns(owned, revoking):
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    held_by_others: set[object] = set()
    for other in group.members.values():
        if other.member_id != member.member_id:
            held_by_others |= other.held
    wanted = target - kept
    free = frozenset(wanted - held_by_others)
    state = MemberState.UNRELEASED_PARTITIONS if free != wanted else MemberState.STABLE
    return _moved(member, group.assignment_epoch, state, kept | free, _NOTHING)


def _owns(owned: Partitions | None, partitions: Partitions) -> bool:
    """A member that does not say what it owns may own everything."""
    return owned is None or bool(owned & partitions)


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions
) -> ConsumerMember:
    if (epoch, state, assigned, revoking) == (member.epoch, member.state, member.assigned, member.revoking):
        return member
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
        assignment_epochs={
            partition: member.assignment_epochs.get(partition, epoch) for partition in assigned | revoking
        },
    )
