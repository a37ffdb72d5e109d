"""Elections: who leads, who stays in the ISR."""

import itertools

import pytest

from kcore.controller.controller_context import (
    VALID_PARTITION_STATES,
    VALID_REPLICA_STATES,
    PartitionState,
    ReplicaState,
)
from kcore.controller.election import (
    NO_LEADER,
    Election,
    LeaderAndIsr,
    controlled_shutdown_election,
    initial_election,
    offline_election,
    preferred_election,
    reassignment_election,
    without_replica,
)

REPLICAS = (3, 1, 2)
#: Every ISR and every set of live brokers among three replicas and a stranger.
SUBSETS = [set(chosen) for n in range(4) for chosen in itertools.combinations(REPLICAS, n)]


def test_PSM_04_a_new_partition_is_led_by_its_first_live_replica_with_all_live_ones_in_sync():
    assert initial_election(REPLICAS, {1, 2, 3}) == Election(3, (3, 1, 2))
    assert initial_election(REPLICAS, {1, 2, 9}) == Election(1, (1, 2))
    assert initial_election(REPLICAS, {9}) is None


def test_PSM_05_the_first_live_replica_in_the_isr_leads_after_a_failure():
    assert offline_election(REPLICAS, (2, 1), {1, 2, 3}, unclean_enabled=False) == Election(1, (2, 1))
    assert offline_election(REPLICAS, (3, 1, 2), {1, 2}, unclean_enabled=True) == Election(1, (1, 2))


def test_PSM_05_only_an_unclean_election_takes_a_replica_outside_the_isr():
    assert offline_election(REPLICAS, (3,), {1, 2}, unclean_enabled=False) is None
    assert offline_election(REPLICAS, (3,), {2, 1}, unclean_enabled=True) == Election(1, (1,), is_unclean=True)
    assert offline_election(REPLICAS, (3,), {9}, unclean_enabled=True) is None


def test_PSM_06_a_reassigned_partition_is_led_by_the_first_target_replica_that_is_live_and_in_sync():
    assert reassignment_election((5, 6, 3), (3, 6), {3, 5, 6}) == Election(6, (3, 6))
    assert reassignment_election((5,), (3, 6), {3, 5, 6}) is None


def test_PSM_07_a_preferred_election_elects_the_first_replica_or_fails():
    assert preferred_election(REPLICAS, (1, 3), {1, 3}) == Election(3, (1, 3))
    assert preferred_election(REPLICAS, (1, 2), {1, 2, 3}) is None
    assert preferred_election(REPLICAS, (1, 3), {1, 2}) is None


def test_PSM_08_brokers_that_shut_down_neither_lead_nor_stay_in_the_isr():
    assert controlled_shutdown_election(REPLICAS, (3, 1, 2), {1, 2, 3}, {3}) == Election(1, (1, 2))
    assert controlled_shutdown_election(REPLICAS, (3, 2), {1, 2, 3}, {3}) == Election(2, (2,))
    assert controlled_shutdown_election(REPLICAS, (3,), {1, 2, 3}, {3}) is None


@pytest.mark.parametrize("unclean", [False, True])
def test_a_leader_is_alive_and_in_the_new_isr_which_is_never_empty(unclean):
    for isr, live in itertools.product(SUBSETS[1:], SUBSETS):
        elections = [
            initial_election(REPLICAS, live),
            offline_election(REPLICAS, tuple(isr), live, unclean),
            controlled_shutdown_election(REPLICAS, tuple(isr), live, {3}),
            preferred_election(REPLICAS, tuple(isr), live),
            reassignment_election((2, 3), tuple(isr), live),
        ]
        for election in filter(None, elections):
            assert election.leader in live and election.leader in election.isr
        for election in filter(None, elections[1:]):
            assert election.is_unclean == (election.leader not in isr)
            assert election.is_unclean or set(election.isr) <= isr


def test_RSM_08_a_replica_that_goes_offline_leaves_the_isr_and_the_leadership():
    state = LeaderAndIsr(3, 7, (3, 1), 1, 4)
    assert without_replica(state, 3, REPLICAS) == LeaderAndIsr(NO_LEADER, 7, (1,), 1, 4)
    assert without_replica(state, 1, REPLICAS) == LeaderAndIsr(3, 7, (3,), 1, 4)


def test_RSM_08_the_last_member_stays_in_the_isr():
    assert without_replica(LeaderAndIsr(3, 7, (3,), 1, 4), 3, REPLICAS) == LeaderAndIsr(NO_LEADER, 7, (3,), 1, 4)


def test_RSM_08_a_member_that_is_not_assigned_any_more_is_not_the_last_one():
    """It would never lead, and the replica that has every acknowledged record would not be in the ISR."""
    state = LeaderAndIsr(1, 7, (1, 9), 1, 4)
    assert without_replica(state, 1, REPLICAS) == LeaderAndIsr(NO_LEADER, 7, (1,), 1, 4)
    assert without_replica(state, 9, REPLICAS) == LeaderAndIsr(1, 7, (1,), 1, 4)
    assert without_replica(LeaderAndIsr(NO_LEADER, 7, (9,), 1, 4), 9, REPLICAS).isr == (9,)


def test_PSM_01_the_legal_predecessors_of_a_partitions_states():
    new, online, offline = PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE
    assert {
        new: {PartitionState.NON_EXISTENT},
        online: {new, online, offline},
        offline: {new, online, offline},
        PartitionState.NON_EXISTENT: {offline},
    } == VALID_PARTITION_STATES


def test_RSM_01_a_replica_is_deleted_only_after_it_has_stopped():
    assert set(VALID_REPLICA_STATES) == set(ReplicaState)
    assert VALID_REPLICA_STATES[ReplicaState.DELETION_STARTED] == {ReplicaState.OFFLINE}
    assert VALID_REPLICA_STATES[ReplicaState.DELETION_SUCCESSFUL] == {ReplicaState.DELETION_STARTED}
    assert VALID_REPLICA_STATES[ReplicaState.NON_EXISTENT] == {ReplicaState.DELETION_SUCCESSFUL}
