"""Which member of a consumer group shall own which partitions: the server-side assignors of KIP-848."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID

#: (topic id, partition number)
TopicIdPartition = tuple[UUID, int]
Partitions = frozenset[TopicIdPartition]


class TopicOfGroup(NamedTuple):
    """A topic that exists.  Its partitions are numbered from 0 on."""

    topic_id: UUID
    num_partitions: int


class Subscriber(NamedTuple):
    """topics: the ids of those that the member wants and that exist.  target: what it shall own until now."""

    instance_id: str | None
    topics: frozenset[UUID]
    target: Partitions


#: (members by id, number of partitions by topic id) -> what each member shall own.  Each partition of a topic that has
#: a subscriber goes to one of its subscribers.
Assignor = Callable[[Mapping[str, Subscriber], Mapping[UUID, int]], dict[str, Partitions]]


def assign_uniform(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """As even as the subscriptions allow, and members keep what they have as far as that allows.

    No partition could go, directly or by a chain of members that each pass one on, to a member that would still have
    fewer than the giver has.  With equal subscriptions, sizes differ by one at most.
    """
    owned: dict[str, dict[UUID, list[int]]] = {member_id: {} for member_id in members}
    taken: set[tuple[UUID, int]] = set()
    for member_id, member in members.items():
        for topic_id, number in sorted(member.target - taken):
            if topic_id in member.topics and number < topics.get(topic_id, 0):
                owned[member_id].setdefault(topic_id, []).append(number)
                taken.add((topic_id, number))
    loads = {member_id: sum(map(len, of_member.values())) for member_id, of_member in owned.items()}
    subscribers = {topic_id: [m for m, member in members.items() if topic_id in member.topics] for topic_id in topics}
    # Topics with few subscribers first: the others can still go anywhere.
    for topic_id in sorted(topics, key=lambda topic_id: (len(subscribers[topic_id]), topic_id)):
        for number in range(topics[topic_id]):
            if subscribers[topic_id] and (topic_id, number) not in taken:
                least = min(subscribers[topic_id], key=lambda member_id: (loads[member_id], member_id))
                owned[least].setdefault(topic_id, []).append(number)
                loads[least] += 1
    while _move_one(owned, loads, subscribers):
        pass
    return {
        member_id: frozenset((topic_id, number) for topic_id, numbers in of_member.items() for number in numbers)
        for member_id, of_member in owned.items()
    }


def _move_one(
    owned: dict[str, dict[UUID, list[int]]], loads: dict[str, int], subscribers: Mapping[UUID, list[str]]
) -> bool:
    """Make the sizes more even by one partition, passed on along a chain of members; False if that cannot be."""
    least = min(loads.values(), default=0)
    for giver in sorted(loads, key=lambda member_id: (-loads[member_id], member_id)):
        if loads[giver] < least + 2:
            return False
        chain = _chain_to_smaller(giver, owned, loads, subscribers)
        if chain:
            for from_member, topic_id, to_member in chain:
                numbers = owned[from_member][topic_id]
                owned[to_member].setdefault(topic_id, []).append(numbers.pop())
            loads[giver] -= 1
            loads[chain[-1][2]] += 1
            return True
    return False


def _chain_to_smaller(
    giver: str,
    owned: Mapping[str, Mapping[UUID, list[int]]],
    loads: Mapping[str, int],
    subscribers: Mapping[UUID, list[str]],
) -> list[tuple[str, UUID, str]]:
    """The shortest way of a partition from giver to a member that has at least two fewer; [] if there is none."""
    came_by: dict[str, tuple[str, UUID, str] | None] = {giver: None}
    # Each topic once: all its subscribers are reached from the first member that has a partition of it.
    topics_seen: set[UUID] = set()
    waiting = deque([giver])
    while waiting:
        member_id = waiting.popleft()
        for topic_id, numbers in owned[member_id].items():
            if not numbers or topic_id in topics_seen:
                continue
            topics_seen.add(topic_id)
            for other in sorted(subscribers[topic_id], key=lambda other: (loads[other], other)):
                if other in came_by:
                    continue
                came_by[other] = (member_id, topic_id, other)
                if loads[other] <= loads[giver] - 2:
                    chain = []
                    step = came_by[other]
                    while step is not None:
                        chain.append(step)
                        step = came_by[step[0]]
                    return chain[::-1]
                waiting.append(other)
    return []


def assign_range(members: Mapping[str, Subscriber], topics: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Per topic contiguous ranges in the order of the members, static ones first; the first ones get one more.

    Topics with the same subscribers and as many partitions are divided alike.
    """
    order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m))
    assigned: dict[str, list[tuple[UUID, int]]] = {member_id: [] for member_id in members}
    for topic_id, num_partitions in topics.items():
        subscribers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        size, rest = divmod(num_partitions, len(subscribers))
        start = 0
        for place, member_id in enumerate(subscribers):
            end = start + size + (place < rest)
            assigned[member_id].extend((topic_id, number) for number in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


#: By Kafka's names.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
