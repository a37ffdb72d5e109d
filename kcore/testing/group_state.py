"""A consumer group, as a test waits for it and as a message shows it.  Each function takes the lock of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from kcore.common.text import counted, nearest
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.consumer_group import CONSUMER_GROUP_STATES
from kcore.coordinator.group.group_metadata import GroupMetadata, GroupState
from kcore.coordinator.group.member_metadata import MemberMetadata
from kcore.errors import KafkaError
from kcore.log.partition_metadata import format_topic_id
from kcore.protocol.messages.consumer_protocol import assigned_partitions
from kcore.server.call_arguments import string


class PartitionLag(NamedTuple):
    """Of a group in one partition.  committed_offset: None if it has committed none.  start_offset and end_offset are
    those between which a consumer can read, None for a partition without a leader.

    lag: how many records a consumer with read_committed has left to read, counted from start_offset where none is
    committed.  Markers of transactions do not count, nor does what comes after the last stable offset, nor records of
    aborted transactions: so it may be less than end_offset - committed_offset.
    """

    committed_offset: int | None
    start_offset: int | None
    end_offset: int | None
    lag: int | None

    def __str__(self) -> str:
        committed = "nothing committed" if self.committed_offset is None else f"committed {self.committed_offset}"
        if self.end_offset is None:
            return f"no leader, {committed}"
        return f"end {self.end_offset}, {committed}, lag {self.lag}"


#: The name of a topic by its id, None where there is none.
TopicName = Callable[[UUID], str | None]


class _Member(NamedTuple):
    member_id: str
    client_host: str
    partitions: list[TopicPartition]

    def __str__(self) -> str:
        partitions = ", ".join(map(str, self.partitions))
        return f"{self.member_id} at {self.client_host.lstrip('/')} ({partitions or 'no partition'})"


def check_state(state: str) -> None:
    """Raises TypeError, and ValueError unless it is a group's state by Kafka's name, of either protocol."""
    names = sorted({state.value for state in GroupState} | set(CONSUMER_GROUP_STATES))
    if string("state", state) not in names:
        raise ValueError(f"state {state!r}: expected one of {', '.join(names)}{nearest(state, names)}")


def has_settled(group: GroupMetadata, state: str, partitions: int | None, members: int | None) -> bool:
    """Whether it has this state and this number of members, all members their assignments, and these this number of
    partitions (None: any)."""
    with group:
        present = _members(group, lambda topic_id: None)
        is_assigned = partitions is None or _num_assigned(present) == partitions
        has_members = members is None or len(present) == members
        return _state(group) == state and not group.pending_sync_members and is_assigned and has_members


def committed_offsets(group: GroupMetadata) -> dict[TopicPartition, int]:
    with group:
        return {tp: committed.value.offset for tp, committed in sorted(group.offsets.items())}


def partitions_in_use(group: GroupMetadata, topic_name: TopicName) -> list[TopicPartition]:
    """Those with a committed offset, and those that members are assigned."""
    with group:
        assigned = (tp for member in _members(group, topic_name) for tp in member.partitions)
        return sorted({*group.offsets, *assigned})


def describe(group: GroupMetadata, topic_name: TopicName) -> str:
    """State, generation or epoch, members with their partitions, and what a rebalance waits for; in one line."""
    with group:
        members = _members(group, topic_name)
        consumer = group.consumer
        age = f"generation {group.generation_id}" if consumer is None else f"epoch {consumer.value.epoch}"
        texts = [
            f"{_state(group)}, {age}",
            f"members: {', '.join(map(str, members)) or 'none'}",
            f"{counted(_num_assigned(members), 'partition')} assigned",
            *_waits(group),
        ]
    return "; ".join(texts)


def describe_lags(lags: Mapping[TopicPartition, PartitionLag]) -> str:
    return "; ".join(f"{tp}: {lag}" for tp, lag in lags.items()) or "no partition committed or assigned"


def _state(group: GroupMetadata) -> str:
    return group.state.value if group.consumer is None else group.consumer.value.state


def _num_assigned(members: Iterable[_Member]) -> int:
    return sum(len(member.partitions) for member in members)


def _members(group: GroupMetadata, topic_name: TopicName) -> list[_Member]:
    """Of either protocol, by id.  A topic without a name is shown as a deleted one, with its id."""
    if group.consumer is None:
        found = [_Member(m.member_id, m.client_host, _partitions_of(m)) for m in group.members.values()]
    else:
        found = [
            _Member(
                member.member_id,
                member.client_host,
                sorted(
                    TopicPartition(topic_name(topic) or f"deleted topic {format_topic_id(topic)}", number)
                    for topic, number in member.assigned
                ),
            )
            for member in group.consumer.value.members.values()
        ]
    return sorted(found)


def _waits(group: GroupMetadata) -> list[str]:
    """What a rebalance waits for, for as long as it waits."""
    texts = []
    if group.consumer is not None:
        for member in group.consumer.value.members.values():
            if member.revoking:
                texts.append(f"waits for {member.member_id} to give up {counted(len(member.revoking), 'partition')}")
    if group.state is GroupState.PREPARING_REBALANCE:
        if group.initial_delay_left_ms is not None:
            texts.append("the first rebalance is held open for more members (group.initial.rebalance.delay.ms)")
        else:
            absent = sorted(member.member_id for member in group.not_yet_rejoined_members())
            if absent:
                texts.append(f"waits for JoinGroup of {', '.join(absent)}")
        if group.pending_members:
            texts.append(f"waits for the first JoinGroup of {', '.join(sorted(group.pending_members))}")
    if group.pending_sync_members:
        texts.append(f"waits for SyncGroup of {', '.join(sorted(group.pending_sync_members))}")
    if group.state is GroupState.COMPLETING_REBALANCE and group.leader_id in group.pending_sync_members:
        texts.append(f"{group.leader_id} leads and has sent no assignment")
    return texts


def _partitions_of(member: MemberMetadata) -> list[TopicPartition]:
    """Empty for bytes that are no assignment of partitions, as of another protocol."""
    try:
        topics = assigned_partitions(bytes(member.assignment))
    except KafkaError:
        return []
    return sorted(TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions)
