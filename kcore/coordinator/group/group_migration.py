"""How a group changes its protocol while it has members: the rules, as functions over values.

Upgrade: a member of the new protocol joins a classic group.  Its members are members of a consumer group then, each
with what it may own, and go on with JoinGroup, SyncGroup and Heartbeat: a generation is their member's epoch.
Downgrade: the last member of the new protocol leaves, and the others are a classic group again, which rebalances.
Nobody knows at these moments which answers the clients have heard.  So a member keeps all that it may own, until its
next JoinGroup says what it does own.  (Kafka keeps for it only what it has been assigned last.)
Source: ConsumerGroupMigrationPolicy, ConsumerGroup.fromClassicGroup, ClassicGroup.fromConsumerGroup, Kafka 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from kcore.coordinator.group.consumer_assignors import Partitions
from kcore.coordinator.group.consumer_group import (
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    FindTopic,
    MemberState,
)
from kcore.coordinator.group.consumer_group_records import by_topic
from kcore.coordinator.group.group_config import MigrationPolicy
from kcore.coordinator.group.member_metadata import MemberMetadata
from kcore.errors import InvalidRequest
from kcore.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
    read_assignment,
    read_subscription,
)

CONSUMER = "consumer"
#: The assignors that come with clients.  Nobody reads the user data of their assignments: librdkafka's leader copies
#: them from the subscription of the same member.
CLIENTS_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


# -- upgrade ---------------------------------------------------------------------------------------------------------


def why_not_upgraded(
    policy: MigrationPolicy,
    protocol_type: str | None,
    protocol_name: str | None,
    members: Collection[MemberMetadata],
    max_size: int,
) -> str | None:
    """Why a classic group with these members cannot become a consumer group; None if it can."""
    if not policy.may_upgrade:
        return f"it has members of the classic protocol, and group.consumer.migration.policy is {policy.value}"
    if protocol_type != CONSUMER:
        return f"its members use the protocol type {protocol_type}, not {CONSUMER}"
    if len(members) > max_size:
        return f"it has {len(members)} members, and group.consumer.max.size is {max_size}"
    try:
        has_data = any(read_assignment(member.assignment).user_data for member in members if member.assignment)
        if has_data and protocol_name not in CLIENTS_ASSIGNORS:
            return f"its members use an assignor of their own, {protocol_name}, whose data would be lost"
        for member in members:
            for _, metadata in member.supported_protocols:
                read_subscription(metadata)
    except InvalidRequest as error:
        return f"the metadata of a member cannot be read: {error}"
    return None


def upgraded(
    group_id: str,
    generation_id: int,
    protocol_name: str | None,
    members: Collection[MemberMetadata],
    find_topic: FindTopic,
) -> ConsumerGroup:
    """The members with what they were assigned last, and what they owned when they joined last, as far as no other was
    assigned that; all of them stable in one epoch, which is the generation.

    After why_not_upgraded().
    """
    epoch = max(generation_id, 1)  # a member that has joined is in one
    subscriptions, taken = {}, set[tuple[UUID, int]]()
    held: dict[str, Partitions] = {}
    for member in members:
        metadata = dict(member.supported_protocols).get(protocol_name or "", member.supported_protocols[0][1])
        subscriptions[member.member_id] = read_subscription(metadata)
        given = read_assignment(member.assignment).assigned_partitions if member.assignment else []
        # A client's assignor may have given one partition twice; no group of the new protocol can have that.
        held[member.member_id] = partitions_of(given, find_topic) - taken
        taken |= held[member.member_id]
    made: dict[str, ConsumerMember] = {}
    for member in members:
        subscription = subscriptions[member.member_id]
        assigned = held[member.member_id] | (partitions_of(subscription.owned_partitions, find_topic) - taken)
        taken |= assigned
        made[member.member_id] = ConsumerMember(
            member.member_id,
            member.group_instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            tuple(sorted(set(subscription.topics))),
            epoch=epoch,
            previous_epoch=epoch,
            assigned=assigned,
            classic=ClassicMember(member.session_timeout_ms, tuple(member.supported_protocols)),
            assignment_epochs=dict.fromkeys(assigned, epoch),
        )
    targets = {member_id: member.assigned for member_id, member in made.items()}
    return ConsumerGroup(group_id, epoch, 0, epoch, made, targets)


# -- members of the classic protocol in a consumer group -------------------------------------------------------------


def supports_protocols(group: ConsumerGroup, member_id: str, protocol_type: str, names: Collection[str]) -> bool:
    """Whether a member with these protocols could be in the group: all its classic members have one of them."""
    shared = set(names)
    for member in group.members.values():
        if member.classic is not None and member.member_id != member_id:
            shared &= {name for name, _ in member.classic.protocols}
    return protocol_type == CONSUMER and bool(shared)


def must_rejoin(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether a member of the classic protocol has to send JoinGroup: to come into the epoch of the target, to give up
    partitions, or to get those that others have given up."""
    if member.epoch < group.assignment_epoch:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    wanted = group.targets.get(member.member_id, frozenset()) - member.assigned
    others = (other.held for other in group.members.values() if other.member_id != member.member_id)
    return not wanted & frozenset[tuple[UUID, int]]().union(*others)


def may_sync(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether its assignment is of use: one that has still to give up partitions learns so by it."""
    return member.epoch >= group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS


def partitions_of(topics: Iterable[TopicPartition], find_topic: FindTopic) -> Partitions:
    """Of topics that exist."""
    return frozenset(
        (found.topic_id, number)
        for topic in topics
        if (found := find_topic(topic.topic)) is not None
        for number in topic.partitions
    )


def topic_names_of(group: ConsumerGroup, find_topic: FindTopic) -> dict[UUID, str]:
    """Of the subscribed topics that exist."""
    return {topic.topic_id: name for name in group.subscribed_topics if (topic := find_topic(name)) is not None}


def assignment_bytes(partitions: Partitions, names: Mapping[UUID, str], metadata: bytes) -> bytes:
    """For SyncGroup.  metadata: of the member, whose version the assignment has too."""
    (of_member,) = struct.unpack_from(">h", metadata)
    version = min(of_member, ConsumerProtocolAssignment.max_version)
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=names[topic_id], partitions=numbers)
            for topic_id, numbers in by_topic(partitions)
            if topic_id in names
        ]
    )
    return struct.pack(">h", version) + assignment.encode(version)


# -- downgrade -------------------------------------------------------------------------------------------------------


def shall_downgrade(policy: MigrationPolicy, group: ConsumerGroup, max_size: int) -> bool:
    """Whether the group has members, all of the classic protocol, and may be a classic group again."""
    return (
        policy.may_downgrade
        and 0 < len(group.members) <= max_size
        and all(member.classic is not None for member in group.members.values())
    )


def downgraded(group: ConsumerGroup, find_topic: FindTopic) -> list[MemberMetadata]:
    """Its members, all of the classic protocol, with what they hold as assignments."""
    names = topic_names_of(group, find_topic)
    members = []
    for member in group.members.values():
        assert member.classic is not None, member
        members.append(
            MemberMetadata(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                CONSUMER,
                list(member.classic.protocols),
                assignment_bytes(member.held, names, member.classic.protocols[0][1]),
            )
        )
    return members
