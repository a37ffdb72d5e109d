"""Where the replicas of new partitions go."""

import random
from collections import Counter

import pytest

from kcore.server.topics.replica_assignment import assign_replicas_to_brokers

#: KIP-36's example: six brokers in three racks.
RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_without_racks_it_is_the_table_of_kafkas_own_documentation():
    """The comment of AdminUtils.assignReplicasToBrokers: five brokers, ten partitions, three replicas."""
    assignment = assign_replicas_to_brokers(dict.fromkeys(range(5)), 10, 3, random.Random(1), start_index=0)
    columns = [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]
    assert assignment == {number: list(replicas) for number, replicas in enumerate(columns)}


def test_with_racks_each_partition_is_in_as_many_as_it_has_replicas():
    """The example of KIP-36: the brokers alternate 0, 3, 1, 5, 4, 2."""
    assignment = assign_replicas_to_brokers(RACKS, 7, 3, random.Random(1), start_index=0)
    columns = [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]
    assert assignment == {number: list(replicas) for number, replicas in enumerate(columns)}


@pytest.mark.parametrize("seed", range(20))
def test_replicas_are_different_brokers_in_different_racks_and_spread_evenly(seed):
    rng = random.Random(seed)
    num_racks = rng.randint(1, 4)
    racks = {broker: f"r{broker % num_racks}" for broker in rng.sample(range(100), num_racks * rng.randint(1, 4))}
    counts = Counter(racks.values())
    factor = rng.randint(1, len(racks))
    assignment = assign_replicas_to_brokers(racks, 3 * len(racks), factor, rng)
    for replicas in assignment.values():
        assert len(set(replicas)) == factor, f"seed={seed}"
        assert len({racks[broker] for broker in replicas}) == min(factor, len(counts)), f"seed={seed}"
    leaders = Counter(replicas[0] for replicas in assignment.values())
    assert leaders == dict.fromkeys(racks, 3), f"seed={seed}"


def test_a_broker_without_a_rack_makes_all_brokers_equal():
    assignment = assign_replicas_to_brokers({1: "a", 2: None, 3: "a"}, 1, 3, random.Random(1), start_index=0)
    assert assignment == {0: [1, 2, 3]}


def test_one_broker_gets_everything():
    assert assign_replicas_to_brokers({7: None}, 2, 1, random.Random(1), 3) == {3: [7], 4: [7]}


def test_added_partitions_go_on_where_the_topic_began():
    racks = dict.fromkeys(range(3))
    whole = assign_replicas_to_brokers(racks, 6, 2, random.Random(1), start_index=1)
    added = assign_replicas_to_brokers(racks, 3, 2, random.Random(2), first_partition=3, start_index=1)
    assert [replicas[0] for replicas in added.values()] == [whole[n][0] for n in (3, 4, 5)]
