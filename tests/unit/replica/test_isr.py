"""Who is in sync, and how far a partition is replicated: the rules on values alone."""

import random

import pytest

from kcore.log.log_offset_metadata import LogOffsetMetadata
from kcore.replica.isr import (
    are_following,
    high_watermark_candidate,
    is_caught_up,
    may_join_isr,
    out_of_sync_replicas,
)
from kcore.replica.partition_state import CommittedIsr, PendingIsr
from kcore.replica.replica import Replica, ReplicaState

LEADER, NOW, LAG = 0, 100_000, 30_000
LONG_AGO = NOW - LAG - 1


def end(offset):
    return LogOffsetMetadata(offset, 0, 100 * offset)


def committed(*members):
    return CommittedIsr(frozenset(members))


def pending(before, after):
    return PendingIsr(frozenset(before), frozenset(after))


def followers(**states):
    """b1=(log end, last caught up)"""
    replicas = {}
    for name, (offset, caught_up_ms) in states.items():
        state = ReplicaState(log_end_offset_metadata=end(offset), last_caught_up_time_ms=caught_up_ms)
        replicas[int(name[1:])] = Replica(int(name[1:]), state)
    return replicas


def candidate(leader_end, isr, replicas):
    return high_watermark_candidate(end(leader_end), isr, replicas, NOW, LAG)


# -- high watermark


def test_PART_15_a_leader_alone_has_everything_replicated():
    assert candidate(7, committed(0), {}) == end(7)


def test_PART_15_the_high_watermark_waits_for_every_member_of_the_isr_however_slow():
    replicas = followers(b1=(5, LONG_AGO), b2=(6, NOW))
    assert candidate(7, committed(0, 1, 2), replicas) == end(5)


def test_PART_15_it_waits_for_a_follower_outside_the_isr_that_was_caught_up_lately_and_for_no_other():
    assert candidate(7, committed(0), followers(b1=(5, NOW - LAG))) == end(5)
    assert candidate(7, committed(0), followers(b1=(5, LONG_AGO))) == end(7)


def test_PART_15_a_dead_follower_outside_the_isr_does_not_count_and_a_dead_member_does():
    """Who stops in order fetches once from the next leader, and is caught up outside the ISR when it dies."""
    replicas = followers(b1=(5, NOW), b2=(6, NOW))
    alive = {LEADER, 2}.__contains__
    assert high_watermark_candidate(end(7), committed(0), replicas, NOW, LAG, alive) == end(6)
    assert high_watermark_candidate(end(7), committed(0, 1), replicas, NOW, LAG, alive) == end(5)
    assert high_watermark_candidate(end(7), pending({0}, {0, 1}), replicas, NOW, LAG, alive) == end(5)


def test_PART_15_a_member_that_has_not_fetched_yet_holds_it_back():
    assert candidate(7, committed(0, 1), {1: Replica(1)}).message_offset == -1


@pytest.mark.parametrize(
    "isr",
    [pending({0}, {0, 1}), pending({0, 1}, {0})],
    ids=["while a follower joins", "while a follower leaves"],
)
def test_PART_15_while_a_change_is_pending_it_waits_for_both_sets(isr):
    assert candidate(7, isr, followers(b1=(5, LONG_AGO))) == end(5)


@pytest.mark.parametrize("seed", range(20))
def test_PART_15_it_is_the_smallest_end_of_the_replicas_that_count(seed):
    rng = random.Random(seed)
    for _ in range(50):
        ids = range(1, rng.randint(2, 6))
        ends = {broker: rng.randint(-1, 12) for broker in ids}
        times = {broker: rng.choice([0, LONG_AGO, NOW - LAG, NOW]) for broker in ids}
        before = {LEADER, *rng.sample(ids, rng.randint(0, len(ids)))}
        after = {LEADER, *rng.sample(ids, rng.randint(0, len(ids)))}
        isr = rng.choice([committed(*before), pending(before, after)])
        waits_for = before | (after if isinstance(isr, PendingIsr) else set())
        counted = [b for b in ids if b in waits_for or NOW - times[b] <= LAG or ends[b] == 12]
        replicas = followers(**{f"b{b}": (ends[b], times[b]) for b in ids})
        assert candidate(12, isr, replicas) == end(min([12, *(ends[b] for b in counted)])), f"seed={seed}"


# -- leaving the ISR


@pytest.mark.parametrize(
    ("log_end", "caught_up_ms", "leaves"),
    [(7, 0, False), (6, NOW - LAG, False), (6, LONG_AGO, True), (-1, NOW, False), (8, LONG_AGO, True)],
    ids=["has all", "slow, not long", "stuck or slow too long", "has not fetched since the election", "other end"],
)
def test_PART_16_a_follower_that_is_not_caught_up_for_longer_than_the_lag_leaves(log_end, caught_up_ms, leaves):
    replicas = followers(b1=(log_end, caught_up_ms))
    assert is_caught_up(replicas[1].state, 7, NOW, LAG) is not leaves
    gone = out_of_sync_replicas(LEADER, 7, committed(0, 1), replicas, NOW, LAG)
    assert gone == ({1} if leaves else set())


def test_PART_16_only_members_leave_and_one_that_is_no_longer_assigned_does():
    replicas = followers(b1=(3, LONG_AGO), b2=(3, LONG_AGO))
    assert out_of_sync_replicas(LEADER, 7, committed(0, 2, 9), replicas, NOW, LAG) == {2, 9}


def test_PART_17_the_leader_never_leaves_and_no_replica_leaves_while_a_change_is_pending():
    replicas = followers(b1=(3, LONG_AGO))
    assert out_of_sync_replicas(LEADER, 7, committed(0, 1), replicas, NOW, LAG) == {1}
    assert out_of_sync_replicas(1, 7, committed(1), {}, NOW, LAG) == set()
    assert out_of_sync_replicas(LEADER, 7, pending({0, 1}, {0, 1, 2}), replicas, NOW, LAG) == set()


# -- joining the ISR


@pytest.mark.parametrize(
    ("log_end", "joins"), [(4, False), (5, True), (6, True), (-1, False)], ids=["below", "at", "above", "unknown"]
)
@pytest.mark.parametrize(("high_watermark", "epoch_start"), [(5, 0), (5, 5), (0, 5)])
def test_PART_13_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch(
    log_end, joins, high_watermark, epoch_start
):
    (replica,) = followers(b1=(log_end, 0)).values()
    assert may_join_isr(replica, committed(0), high_watermark, epoch_start) is joins


def test_PART_13_a_dead_follower_does_not_join():
    (replica,) = followers(b1=(9, NOW)).values()
    assert may_join_isr(replica, committed(0), 5, 5, 0, True)
    assert not may_join_isr(replica, committed(0), 5, 5, 0, False)


def test_PART_13_a_member_does_not_join_again_and_no_replica_joins_while_a_change_is_pending():
    (replica,) = followers(b1=(9, NOW)).values()
    assert may_join_isr(replica, committed(0), 5, 5)
    assert not may_join_isr(replica, committed(0, 1), 5, 5)
    assert not may_join_isr(replica, pending({0}, {0, 2}), 5, 5)
    assert not may_join_isr(replica, pending({0, 2}, {0}), 5, 5)


# -- the state of a follower


def fetched(state, offset, at_ms, leader_end):
    return state.after_fetch(end(offset), 0, at_ms, leader_end)


# -- whether another broker may lead


@pytest.mark.parametrize("isr", [committed(0, 1, 2), pending([0, 1, 2], [0, 1]), pending([0, 1], [0, 1, 2])])
@pytest.mark.parametrize("last_fetch_ms", [NOW, NOW - LAG, LONG_AGO])
def test_a_leader_is_followed_while_each_member_of_its_isr_has_fetched_lately(isr, last_fetch_ms):
    replicas = followers(b1=(5, NOW), b2=(5, NOW))
    for replica, at_ms in zip(replicas.values(), (NOW, last_fetch_ms), strict=True):
        replica.state = replica.state._replace(last_fetch_time_ms=at_ms)
    is_member = 2 in isr.committed
    assert are_following(isr, replicas, NOW, LAG) is (last_fetch_ms != LONG_AGO or not is_member)


def test_a_leader_that_is_alone_in_its_isr_is_followed_whoever_does_not_fetch():
    assert are_following(committed(0), {}, NOW, LAG)
    assert are_following(committed(0), followers(b1=(5, LONG_AGO)), NOW, LAG)
    assert are_following(committed(0, 9), {}, NOW, LAG), "9 is no replica any more, and leaves"


def test_PART_11_the_fetch_offset_of_a_follower_is_its_log_end():
    state = ReplicaState().after_fetch(end(5), 2, 1000, 9)
    assert (state.log_end_offset_metadata, state.log_end_offset, state.log_start_offset) == (end(5), 5, 2)
    assert (state.last_fetch_leader_log_end_offset, state.last_fetch_time_ms) == (9, 1000)
    assert state.last_caught_up_time_ms == 0


def test_PART_12_a_follower_is_caught_up_if_its_fetch_offset_is_the_leaders_end_of_this_fetch_or_of_the_last():
    state = fetched(ReplicaState(), 7, 1000, 7)
    assert state.last_caught_up_time_ms == 1000
    state = fetched(state, 7, 2000, 9)  # the log grew, it still has what the fetch before could give
    assert state.last_caught_up_time_ms == 1000
    state = fetched(state, 9, 3000, 20)
    assert state.last_caught_up_time_ms == 2000
    state = fetched(state, 10, 4000, 30)  # slower than the log grows
    assert state.last_caught_up_time_ms == 2000
    assert fetched(state, 30, 1500, 30).last_caught_up_time_ms == 2000  # never back


def test_PART_03_a_new_epoch_counts_its_isr_as_caught_up_now_and_the_others_as_never():
    state = fetched(ReplicaState(), 7, 1000, 7)
    inside = state.in_new_epoch(5000, 12, is_in_sync=True, is_new_leader=False)
    assert (inside.last_caught_up_time_ms, inside.last_fetch_time_ms) == (5000, 5000)
    assert (inside.log_end_offset, inside.last_fetch_leader_log_end_offset) == (7, 12)
    outside = state.in_new_epoch(5000, 12, is_in_sync=False, is_new_leader=False)
    assert (outside.last_caught_up_time_ms, outside.last_fetch_time_ms) == (0, 0)


def test_PART_04_a_new_leader_has_no_end_offsets_of_followers():
    state = fetched(ReplicaState(), 7, 1000, 7)
    assert state.in_new_epoch(5000, 12, is_in_sync=True, is_new_leader=True) == ReplicaState(
        last_caught_up_time_ms=5000
    )
    # Its first fetch does not show what an earlier fetch could have returned.
    first = fetched(state.in_new_epoch(5000, 12, is_in_sync=False, is_new_leader=True), 7, 6000, 12)
    assert first.last_caught_up_time_ms == 0


@pytest.mark.parametrize(
    ("follower_start", "log_start", "joins"),
    [(0, 5, False), (4, 5, False), (5, 5, True), (0, 4, True), (-1, 5, True)],
    ids=["all deleted", "some deleted", "starts anew", "one record compared", "start unknown"],
)
def test_PART_13_a_follower_with_records_below_the_leaders_log_start_alone_does_not_join(
    follower_start, log_start, joins
):
    (replica,) = followers(b1=(5, NOW)).values()
    replica.state = replica.state._replace(log_start_offset=follower_start)
    assert may_join_isr(replica, committed(0), 5, 5, log_start) is joins
