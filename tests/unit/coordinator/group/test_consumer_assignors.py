"""The assignors of consumer groups of KIP-848."""

import itertools
import random
import uuid

import pytest

from kcore.coordinator.group.consumer_assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))


def member(*topics, target=(), instance_id=None):
    return Subscriber(instance_id, frozenset(topics), frozenset(target))


def numbers(partitions, topic_id):
    return sorted(number for topic, number in partitions if topic == topic_id)


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("name", ["uniform", "range"])
def test_CG_27_each_partition_goes_once_to_a_subscriber(name, seed):
    rng = random.Random(seed)
    topics = {uuid.UUID(int=n): rng.randrange(1, 9) for n in range(1, rng.randrange(2, 6))}
    members = {}
    for n in range(rng.randrange(1, 7)):
        wanted = rng.sample(sorted(topics), rng.randrange(1, len(topics) + 1))
        target = [(topic, rng.randrange(12)) for topic in topics]
        members[f"m{n}"] = member(*wanted, target=target, instance_id=rng.choice([None, f"i{n}"]))
    assigned = ASSIGNORS[name](members, topics)
    assert list(assigned) == list(members)
    everything = [partition for partitions in assigned.values() for partition in partitions]
    subscribed = {topic for one in members.values() for topic in one.topics}
    assert sorted(everything) == sorted((t, n) for t in subscribed for n in range(topics[t])), f"seed={seed}"
    for member_id, partitions in assigned.items():
        assert {topic for topic, _ in partitions} <= members[member_id].topics, f"seed={seed}"


def most_even(members, topics):
    """The sizes of the most even assignment there is, found by trying all."""
    partitions = [(topic, n) for topic, count in topics.items() for n in range(count)]
    eligible = [[m for m, one in members.items() if topic in one.topics] for topic, _ in partitions]
    sizes = (sorted(choice.count(m) for m in members) for choice in itertools.product(*eligible))
    return min(sum(size * size for size in of_all) for of_all in sizes)


@pytest.mark.parametrize("seed", range(40))
def test_CG_27_uniform_is_as_even_as_the_subscriptions_allow(seed):
    rng = random.Random(seed)
    topics = {A: rng.randrange(1, 4), B: rng.randrange(1, 3), C: rng.randrange(1, 3)}
    members = {f"m{n}": member(*rng.sample([A, B, C], rng.randrange(1, 4))) for n in range(3)}
    topics = {topic: n for topic, n in topics.items() if any(topic in one.topics for one in members.values())}
    # What the first member has gives the others little room at the start.
    members["m0"] = members["m0"]._replace(target=frozenset((t, n) for t in topics for n in range(topics[t])))
    assigned = assign_uniform(members, topics)
    assert sum(len(partitions) ** 2 for partitions in assigned.values()) == most_even(members, topics), f"seed={seed}"


def test_CG_26_equal_subscriptions_give_sizes_that_differ_by_one_and_a_newcomer_takes_no_more_than_its_share():
    topics = {A: 5, B: 5}
    first = assign_uniform({"a": member(A, B), "b": member(A, B)}, topics)
    assert sorted(map(len, first.values())) == [5, 5]
    members = {name: member(A, B, target=target) for name, target in first.items()}
    second = assign_uniform({**members, "c": member(A, B)}, topics)
    assert sorted(map(len, second.values())) == [3, 3, 4]
    assert all(second[name] <= first[name] for name in first)


def test_CG_28_range_gives_contiguous_ranges_and_the_same_numbers_of_topics_that_are_alike():
    members = {"x": member(A, B), "y": member(A, B), "z": member(A, B, instance_id="static")}
    assigned = assign_range(members, {A: 7, B: 7})
    assert [numbers(assigned[name], A) for name in ("z", "x", "y")] == [[0, 1, 2], [3, 4], [5, 6]]
    assert all(numbers(assigned[name], A) == numbers(assigned[name], B) for name in members)
