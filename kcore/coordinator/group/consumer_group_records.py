"""The records of consumer groups of KIP-848 in __consumer_offsets, byte for byte as Kafka writes and reads them.

A group is as the last record of each key says.  Types (versions of the key): 3 the group epoch, 5 a member, 6 the epoch
of the target assignment, 7 a member's target, 8 what a member has, 16 the topics that a regular expression of a member
matches.  A null value is a tombstone.  Type 4, the
partitions of the subscribed topics, was written by Kafka up to 4.0; what it said is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kcore.coordinator.group.consumer_assignors import Partitions, TopicIdPartition
from kcore.coordinator.group.consumer_group import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    ResolvedRegex,
)
from kcore.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMemberRecordKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRecordKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    TargetTopicPartitions,
    read_key,
    read_value,
)

GROUP_EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT = range(3, 9)
REGEX = 16

_OF_GROUP = (GROUP_EPOCH, PARTITION_METADATA, TARGET_EPOCH)

#: A key, and a value or None.
Record = tuple[bytes, bytes | None]


class Touched(NamedTuple):
    """Members, and regular expressions, of which writes had records: what a failed one may have left as it was."""

    members: frozenset[str] = frozenset()
    regexes: frozenset[str] = frozenset()

    def union(self, *others: Touched) -> Touched:
        return Touched(
            self.members.union(*(other.members for other in others)),
            self.regexes.union(*(other.regexes for other in others)),
        )


class ConsumerGroupKey(NamedTuple):
    """record_type: one of those above.  name: the member's id, of type 16 the regular expression, of others ""."""

    record_type: int
    group_id: str
    name: str = ""


def read_consumer_group_key(data: bytes) -> ConsumerGroupKey | None:
    """None for a record of another type.  Raises CorruptMessage."""
    record_type = int.from_bytes(data[:2], "big")
    if record_type == REGEX:
        of_regex = read_key(ConsumerGroupRegularExpressionKey, data)
        return ConsumerGroupKey(record_type, of_regex.group_id, of_regex.regular_expression)
    if not GROUP_EPOCH <= record_type <= CURRENT:
        return None
    if record_type in _OF_GROUP:
        return ConsumerGroupKey(record_type, read_key(ConsumerGroupRecordKey, data).group_id)
    key = read_key(ConsumerGroupMemberRecordKey, data)
    return ConsumerGroupKey(record_type, key.group_id, key.member_id)


# -- writing ---------------------------------------------------------------------------------------------------------


def records_between(old: ConsumerGroup | None, new: ConsumerGroup, unsaved: Touched | None = None) -> list[Record]:
    """What turns the records of old (None: there are none) into those of new.

    unsaved: what of the records of before did not reach the log, if any did not: it is written as it is now, and so are
    the epochs.  Members that are gone come first, since what they had may be another's now.
    """
    group_id = new.group_id
    before = old if old is not None else ConsumerGroup(group_id)
    again, regexes = unsaved or Touched()
    records: list[Record] = []
    for member_id in [m for m in {**before.members, **dict.fromkeys(sorted(again))} if m not in new.members]:
        records += [(_key(record_type, group_id, member_id), None) for record_type in (CURRENT, TARGET, MEMBER)]
    known = {member_id: member for member_id, member in before.members.items() if member_id not in again}
    records += _changed_members(MEMBER, group_id, known, new, _member_value)
    resolved = before.resolved if unsaved is None else {}
    records += [(_regex_key(group_id, r), None) for r in sorted({*before.resolved, *regexes}) if r not in new.resolved]
    records += [(_regex_key(group_id, r), _regex_value(v)) for r, v in new.resolved.items() if resolved.get(r) != v]
    if old is None or unsaved is not None or (old.epoch, old.metadata_hash) != (new.epoch, new.metadata_hash):
        epoch = ConsumerGroupMetadataValue(epoch=new.epoch, metadata_hash=new.metadata_hash)
        records.append((_key(GROUP_EPOCH, group_id), epoch.encode(0)))
    for member_id, target in new.targets.items():
        if member_id in again or before.targets.get(member_id) != target:
            value = ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[
                    TargetTopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic(target)
                ]
            )
            records.append((_key(TARGET, group_id, member_id), value.encode(0)))
    if old is None or unsaved is not None or old.assignment_epoch != new.assignment_epoch:
        target_epoch = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=new.assignment_epoch)
        records.append((_key(TARGET_EPOCH, group_id), target_epoch.encode(0)))
    records += _changed_members(CURRENT, group_id, known, new, _current_value)
    return [(key, value if value is None else b"\0\0" + value) for key, value in records]


def _changed_members(
    record_type: int,
    group_id: str,
    known: Mapping[str, ConsumerMember],
    new: ConsumerGroup,
    value_of: Callable[[ConsumerMember], bytes],
) -> list[Record]:
    return [
        (_key(record_type, group_id, member_id), value)
        for member_id, member in new.members.items()
        if (before := known.get(member_id)) is not member
        and (value := value_of(member)) != (None if before is None else value_of(before))
    ]


def is_group_epoch(record: Record) -> bool:
    key, _ = record
    return int.from_bytes(key[:2], "big") == GROUP_EPOCH


def tombstones(group: ConsumerGroup, others: Touched | None = None) -> list[Record]:
    """What removes all records of a group.  others: what else may still have records in the log."""
    group_id, (other_members, other_regexes) = group.group_id, others or Touched()
    members = dict.fromkeys((*group.members, *sorted(other_members)))
    return [
        *((_key(t, group_id, member_id), None) for t in (CURRENT, TARGET) for member_id in members),
        (_key(TARGET_EPOCH, group_id), None),
        *((_key(MEMBER, group_id, member_id), None) for member_id in members),
        *((_regex_key(group_id, regex), None) for regex in dict.fromkeys((*group.resolved, *sorted(other_regexes)))),
        (_key(GROUP_EPOCH, group_id), None),
    ]


def by_topic(partitions: Partitions) -> list[tuple[UUID, list[int]]]:
    """In order, for each topic."""
    numbers: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    return list(numbers.items())


def _key(record_type: int, group_id: str, member_id: str | None = None) -> bytes:
    if member_id is None:
        data = ConsumerGroupRecordKey(group_id=group_id).encode(0)
    else:
        data = ConsumerGroupMemberRecordKey(group_id=group_id, member_id=member_id).encode(0)
    return record_type.to_bytes(2, "big") + data


def _regex_key(group_id: str, regex: str) -> bytes:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return REGEX.to_bytes(2, "big") + key.encode(0)


def _regex_value(resolved: ResolvedRegex) -> bytes:
    # No version of the metadata: a broker of Kafka that takes the group over looks at the topics anew.
    return ConsumerGroupRegularExpressionValue(topics=list(resolved.topics), timestamp=resolved.time_ms).encode(0)


def _member_value(member: ConsumerMember) -> bytes:
    classic = None
    if member.classic is not None:
        classic = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in member.classic.protocols],
        )
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    ).encode(0)


def _current_value(member: ConsumerMember) -> bytes:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_current_partitions(member, member.assigned),
        partitions_pending_revocation=_current_partitions(member, member.revoking),
    ).encode(0)


def _current_partitions(member: ConsumerMember, partitions: Partitions) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=numbers,
            assignment_epochs=[member.assignment_epochs[topic_id, number] for number in numbers],
        )
        for topic_id, numbers in by_topic(partitions)
    ]


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ConsumerGroupReplay:
    """A group as the records read so far say.  read() may raise CorruptMessage, and then has changed nothing."""

    group_id: str
    epoch: ConsumerGroupMetadataValue | None = None
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    current: dict[str, ConsumerGroupCurrentMemberAssignmentValue] = field(default_factory=dict)
    resolved: dict[str, ResolvedRegex] = field(default_factory=dict)

    def read(self, key: ConsumerGroupKey, data: bytes | None) -> None:
        record_type, _, name = key
        if record_type == GROUP_EPOCH:
            self.epoch = None if data is None else read_value(ConsumerGroupMetadataValue, data)
        elif record_type == TARGET_EPOCH:
            self.target_epoch = (
                0 if data is None else read_value(ConsumerGroupTargetAssignmentMetadataValue, data).assignment_epoch
            )
        elif record_type == MEMBER:
            if data is None:
                self.members.pop(name, None)
            else:
                self.members[name] = _member_of(name, read_value(ConsumerGroupMemberMetadataValue, data))
        elif record_type == TARGET:
            if data is None:
                self.targets.pop(name, None)
            else:
                value = read_value(ConsumerGroupTargetAssignmentMemberValue, data)
                self.targets[name] = _partitions_of(value.topic_partitions)
        elif record_type == CURRENT:
            if data is None:
                self.current.pop(name, None)
            else:
                self.current[name] = read_value(ConsumerGroupCurrentMemberAssignmentValue, data)
        elif record_type == REGEX:
            if data is None:
                self.resolved.pop(name, None)
            else:
                of_regex = read_value(ConsumerGroupRegularExpressionValue, data)
                self.resolved[name] = ResolvedRegex(tuple(sorted(of_regex.topics)), of_regex.timestamp)

    def group(self) -> ConsumerGroup | None:
        """None if the records of its epoch have been removed."""
        if self.epoch is None:
            return None
        members = {}
        for member_id, member in self.members.items():
            current = self.current.get(member_id)
            if current is not None:
                member = replace(
                    member,
                    epoch=current.member_epoch,
                    previous_epoch=current.previous_member_epoch,
                    state=_state_of(current.state),
                    assigned=_partitions_of(current.assigned_partitions),
                    revoking=_partitions_of(current.partitions_pending_revocation),
                    assignment_epochs=_assignment_epochs_of(current),
                )
            members[member_id] = member
        targets = {member_id: self.targets[member_id] for member_id in members if member_id in self.targets}
        return ConsumerGroup(
            self.group_id,
            self.epoch.epoch,
            self.epoch.metadata_hash,
            self.target_epoch,
            members,
            targets,
            dict(self.resolved),
        )


def _member_of(member_id: str, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    of_classic = value.classic_member_metadata
    classic = None
    if of_classic is not None and of_classic.supported_protocols:
        protocols = tuple((protocol.name, protocol.metadata) for protocol in of_classic.supported_protocols)
        classic = ClassicMember(of_classic.session_timeout_ms, protocols)
    return ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        value.rebalance_timeout_ms,
        tuple(sorted(set(value.subscribed_topic_names))),
        value.server_assignor,
        value.subscribed_topic_regex,
        classic=classic,
    )


def _state_of(code: int) -> MemberState:
    try:
        return MemberState(code)
    except ValueError:
        return MemberState.UNKNOWN


def _assignment_epochs_of(current: ConsumerGroupCurrentMemberAssignmentValue) -> dict[TopicIdPartition, int]:
    """Where the record does not say (before Kafka 4.3), the epoch that the member is in."""
    epochs: dict[TopicIdPartition, int] = {}
    for topic in (*current.assigned_partitions, *current.partitions_pending_revocation):
        of_topic = topic.assignment_epochs
        if of_topic is None or len(of_topic) != len(topic.partitions):
            of_topic = [max(current.member_epoch, 0)] * len(topic.partitions)
        epochs |= {(topic.topic_id, number): epoch for number, epoch in zip(topic.partitions, of_topic, strict=True)}
    return epochs


def _partitions_of(topics: Iterable[TargetTopicPartitions | CurrentTopicPartitions]) -> Partitions:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)
