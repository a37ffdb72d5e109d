"""Which brokers get the replicas of new partitions: a rule over values.

The first replicas go round the brokers, the others follow at a shift that grows with each round, so that the partitions
of a dead broker are spread over all others.  If every broker has a rack, the replicas of a partition are in as many
racks as there are.
Source: AdminUtils.assignReplicasToBrokers, Kafka 3.9; KIP-36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random


def assign_replicas_to_brokers(
    racks: Mapping[int, str | None],
    num_partitions: int,
    replication_factor: int,
    random: Random,
    first_partition: int = 0,
    start_index: int | None = None,
) -> dict[int, list[int]]:
    """Partition -> broker ids, the preferred leader first.

    racks: of all brokers; at least replication_factor of them.  The rack-aware rule applies if none is None.
    first_partition, start_index: for partitions that are added, the first new number and where the first broker of
    partition 0 is among the sorted brokers; without a start_index chance decides.
    """
    rack_of = {broker: rack for broker, rack in racks.items() if rack is not None}
    is_rack_aware = len(rack_of) == len(racks)
    brokers = _alternating(rack_of) if is_rack_aware else sorted(racks)
    num_racks = len(set(rack_of.values())) if is_rack_aware else 1
    start = random.randrange(len(brokers)) if start_index is None else start_index
    shift = random.randrange(len(brokers)) if start_index is None else start_index
    assignment = {}
    for number in range(first_partition, first_partition + num_partitions):
        if number > 0 and number % len(brokers) == 0:
            shift += 1
        first = (number + start) % len(brokers)
        assignment[number] = (
            _replicas_in_racks(brokers, rack_of, num_racks, first, shift * num_racks, replication_factor)
            if is_rack_aware
            else [brokers[_index(first, shift, n, len(brokers))] for n in range(-1, replication_factor - 1)]
        )
    return assignment


def _index(first: int, shift: int, number: int, num_brokers: int) -> int:
    """Where the number-th follower is; -1 is the leader."""
    if number < 0:
        return first
    return (first + 1 + (shift + number) % (num_brokers - 1)) % num_brokers


def _alternating(rack_of: Mapping[int, str]) -> list[int]:
    """The brokers so that neighbours are in different racks as long as possible: one of each rack, again and again."""
    by_rack = {rack: sorted(b for b in rack_of if rack_of[b] == rack) for rack in sorted(set(rack_of.values()))}
    longest = max(map(len, by_rack.values()))
    return [brokers[n] for n in range(longest) for brokers in by_rack.values() if n < len(brokers)]


def _replicas_in_racks(
    brokers: Sequence[int], rack_of: Mapping[int, str], num_racks: int, first: int, shift: int, replication_factor: int
) -> list[int]:
    """Of one partition: a rack takes a second replica only when each has one."""
    replicas = [brokers[first]]
    racks_used = {rack_of[brokers[first]]}
    number = 0
    while len(replicas) < replication_factor:
        broker = brokers[_index(first, shift, number, len(brokers))]
        number += 1
        if broker not in replicas and (rack_of[broker] not in racks_used or len(racks_used) == num_racks):
            replicas.append(broker)
            racks_used.add(rack_of[broker])
    return replicas
