"""Groups that change their protocol while they have members, on MockTime: what each kind of member is answered, what is
in the log, and what another broker makes of it."""

import struct
import uuid
from types import SimpleNamespace

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.consumer_group_records import read_consumer_group_key
from kcore.coordinator.group.group_config import MigrationPolicy
from kcore.coordinator.group.member_metadata import GroupMember
from kcore.errors import NotLeaderOrFollower

from .harness import Answer, MixedGroup, assigned_numbers, assignment, of_t, subscription

REBALANCE = errors.RebalanceInProgress.code


@pytest.fixture
def mixed():
    return MixedGroup()


def held(mixed):
    """By member id, the partitions of t that it holds."""
    return {member_id: {n for _, n in member.held} for member_id, member in mixed.value().members.items()}


def commit(mixed, join, offset=7, generation_id=None):
    generation_id = join.generation_id if generation_id is None else generation_id
    return set(mixed.commit({("t", 0): offset}, join.member_id, generation_id).result.values())


def owner(join, owned=()):
    """A member as its process sees it."""
    return SimpleNamespace(member_id=join.member_id, generation_id=join.generation_id, owned=set(owned))


# -- upgrade


def test_CG_54_a_classic_group_is_upgraded_by_a_member_of_the_new_protocol_and_nobody_loses_what_it_has(mixed):
    one, two = mixed.classic_group({0, 1}, {2, 3})
    assert commit(mixed, one) == {0}
    answer = mixed.join_new("new")
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, one.generation_id + 1, frozenset())
    assert held(mixed) == {one.member_id: {0, 1}, two.member_id: {2, 3}, "new": set()}
    assert {m.epoch for m in mixed.value().members.values() if m.classic} == {one.generation_id}
    assert mixed.committed() == {("t", 0): 7}
    # What they have processed until they join again they can commit.
    assert commit(mixed, two, 8) == {0}
    assert mixed.state() == "Dead" and mixed.value().state == "Reconciling"


def test_CG_55_classic_members_that_keep_what_they_own_give_up_a_part_in_two_steps(mixed):
    one, two = mixed.classic_group({0, 1}, {2, 3})
    mixed.join_new("new")
    assert mixed.heartbeat(one) == mixed.heartbeat(two) == REBALANCE
    generation, kept = mixed.rejoin_and_sync(one, {0, 1})
    if kept == {0, 1}:  # two has to give up one
        one, two, mine, its = two, one, {2, 3}, {0, 1}
        generation, kept = mixed.rejoin_and_sync(one, mine)
    else:
        mine, its = {0, 1}, {2, 3}
    assert len(kept) == 1 and generation == one.generation_id
    (freed,) = mine - kept
    assert mixed.beat("new", one.generation_id + 1).assignment in (None, frozenset())
    assert mixed.heartbeat(one) == REBALANCE
    assert mixed.rejoin_and_sync(one, kept) == (one.generation_id + 1, kept)
    assert mixed.beat("new", one.generation_id + 1).assignment == of_t(freed)
    assert mixed.rejoin_and_sync(two, its) == (two.generation_id + 1, its)
    for join in (one, two):
        assert mixed.heartbeat(join, generation_id=join.generation_id + 1) == 0
    assert mixed.value().state == "Stable"


def test_CG_55_classic_members_that_revoke_all_first_get_their_share_at_once(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    generation, share = mixed.rejoin_and_sync(one)
    assert (generation, len(share)) == (one.generation_id + 1, 2)
    assert {n for _, n in mixed.beat("new", generation).assignment} == {0, 1, 2, 3} - share
    assert mixed.heartbeat(one, generation_id=generation) == 0


def test_CG_54_requests_that_wait_are_answered_with_a_rebalance(mixed):
    one, two = mixed.classic_group({0, 1}, {2, 3})
    parked = mixed.join_classic(one.member_id, {0, 1})
    assert parked.waits
    mixed.join_new("new")
    assert parked.error_code == REBALANCE
    assert mixed.rejoin_and_sync(two)[0] == two.generation_id + 1


def test_CG_54_a_sync_that_waits_for_the_leader_is_answered_with_a_rebalance(mixed):
    joins = [mixed.join_classic(), mixed.join_classic()]
    mixed.advance(3_000)
    mixed.advance(3_000)
    (follower,) = [join for join in joins if join.member_id != join.leader_id]
    parked = mixed.sync(follower)
    assert parked.waits
    mixed.join_new("new")
    assert parked.error_code == REBALANCE
    assert mixed.sync(joins[0]).error_code == REBALANCE


def test_what_a_client_may_still_own_is_given_to_nobody_else_until_it_has_joined_again(mixed):
    """Its JoinGroup said that it owns everything; whether it has heard that it shall keep 0 alone is not known."""
    (one,) = mixed.classic_group({0, 1, 2, 3})
    again = mixed.join_classic(one.member_id, {0, 1, 2, 3})
    assert assigned_numbers(mixed.sync(again, {one.member_id: assignment({0})}).assignment) == {0}
    assert mixed.join_new("new").assignment == frozenset()
    assert held(mixed) == {one.member_id: {0, 1, 2, 3}, "new": set()}
    generation, share = mixed.rejoin_and_sync(again)
    assert {n for _, n in mixed.beat("new", generation).assignment} == {0, 1, 2, 3} - share


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_CG_54_a_group_with_members_is_not_upgraded_where_the_policy_forbids_it(policy):
    mixed = MixedGroup(consumer_migration_policy=policy)
    (one,) = mixed.classic_group({0})
    answer = mixed.join_new("new")
    assert answer.error_code == errors.GroupIdNotFound.code
    assert f"group.consumer.migration.policy is {policy.value}" in answer.error_message
    assert (mixed.state(), mixed.heartbeat(one)) == ("Stable", 0)


def test_CG_54_an_empty_group_changes_its_protocol_whatever_the_policy():
    mixed = MixedGroup(consumer_migration_policy=MigrationPolicy.DISABLED)
    (one,) = mixed.classic_group({0})
    mixed.leave(one.member_id)
    assert mixed.join_new("new").error_code == 0
    mixed.leave_new("new")
    mixed.classic_group({0})
    assert mixed.restarted().state() == "Stable"


@pytest.mark.parametrize(
    ("why", "more", "given"),
    [
        ("protocol type connect", {"protocol_type": "connect"}, b"x"),
        ("an assignor of their own, mine", {"protocols": [("mine", subscription(["t"]))]}, assignment({0}, b"custom")),
        ("cannot be read", {"protocols": [("range", b"x")]}, b""),
        ("group.consumer.max.size is 1", {"num_members": 2}, assignment({0})),
    ],
)
def test_CG_54_groups_that_the_new_protocol_cannot_have_stay_as_they_are(why, more, given):
    mixed = MixedGroup(consumer_max_size=1)
    protocol_type = more.get("protocol_type", "consumer")
    num_members = more.pop("num_members", 1)
    joins = [mixed.join_classic(**more) for _ in range(num_members)]
    while any(join.waits for join in joins):
        mixed.advance(3_000)
    leader = next(join for join in joins if join.member_id == join.leader_id)
    assignments = {join.member_id: given for join in joins}
    mixed.sync(leader, assignments, protocol_type=protocol_type, protocol_name=leader.protocol_name)
    answer = mixed.join_new("new")
    assert answer.error_code == errors.GroupIdNotFound.code
    assert why in answer.error_message
    assert (mixed.state(), mixed.heartbeat(leader)) == ("Stable", 0)


def test_CG_54_what_the_assignors_of_clients_add_to_an_assignment_does_not_keep_a_group_as_it_is(mixed):
    """librdkafka's cooperative-sticky copies the user data of the member's subscription into its assignment."""
    one = mixed.join_classic(protocols=[("cooperative-sticky", subscription(["t"]))])
    mixed.advance(3_000)
    given = {one.member_id: assignment({0}, b"previous assignment")}
    assert mixed.sync(one, given, protocol_name="cooperative-sticky").error_code == 0
    assert mixed.join_new("new").error_code == 0
    assert held(mixed)[one.member_id] == {0}


def test_a_static_member_may_come_back_with_the_other_protocol(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3}, instance_id="i")
    answer = mixed.join_new("new", instance_id="i")
    assert (answer.error_code, answer.assignment) == (0, of_t(0, 1, 2, 3))
    assert mixed.heartbeat(one, instance_id="i") == errors.FencedInstanceId.code
    back = mixed.join_classic(instance_id="i")
    assert mixed.state() in ("PreparingRebalance", "CompletingRebalance")
    assert (back.error_code, back.leader_id) == (0, back.member_id)
    assert mixed.beat("new", answer.member_epoch, instance_id="i").error_code == errors.GroupIdNotFound.code


def test_what_ends_a_client_is_not_said_while_another_broker_may_coordinate_the_group(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3}, instance_id="i")
    mixed.join_new("new")
    mixed.coordinator.manager.is_certain = lambda: False
    other = SimpleNamespace(member_id="other", generation_id=one.generation_id)
    not_coordinator = errors.NotCoordinator.code
    assert mixed.join_classic("other", instance_id="i").error_code == not_coordinator
    assert mixed.sync(other, instance_id="i").error_code == not_coordinator
    assert mixed.heartbeat(other, instance_id="i") == mixed.leave("other", "i") == not_coordinator


# -- classic members in a group of the new protocol


def test_CG_55_a_generation_is_the_epoch_of_the_member(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    for wrong in (one.generation_id - 1, one.generation_id + 1):
        assert mixed.heartbeat(one, generation_id=wrong) == errors.IllegalGeneration.code
        assert mixed.sync(one, generation_id=wrong).error_code == errors.IllegalGeneration.code
        assert commit(mixed, one, generation_id=wrong) == {errors.IllegalGeneration.code}
    assert mixed.sync(one).error_code == REBALANCE


def test_CG_55_classic_requests_of_members_that_are_none_of_the_classic_protocol_are_refused(mixed):
    mixed.join_new("new")
    for member_id in ("new", "other"):
        it = SimpleNamespace(member_id=member_id, generation_id=1)
        assert mixed.heartbeat(it) == mixed.sync(it).error_code == errors.UnknownMemberId.code


def test_a_classic_client_joins_a_group_of_the_new_protocol(mixed):
    mixed.join_new("new")
    needed = mixed.join_classic(require_known_member_id=True)
    assert needed.error_code == errors.MemberIdRequired.code
    join = mixed.join_classic(needed.member_id, require_known_member_id=True)
    assert (join.error_code, join.member_id, join.generation_id) == (0, needed.member_id, 2)
    assert (join.protocol_type, join.protocol_name, join.leader_id, join.members) == ("consumer", "range", "", [])
    assert assigned_numbers(mixed.sync(join).assignment) == set()
    assert mixed.beat("new", 1).assignment == of_t(0, 1) or mixed.beat("new", 1).assignment is not None
    mixed.beat("new", 1, mixed.value().members["new"].assigned)
    assert mixed.heartbeat(join) == REBALANCE  # now there is something to get
    assert len(mixed.rejoin_and_sync(join)[1]) == 2


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.UPGRADE])
def test_CG_55_a_classic_client_is_refused_where_the_policy_forbids_downgrades(policy):
    mixed = MixedGroup(consumer_migration_policy=policy)
    mixed.join_new("new")
    assert mixed.join_classic().error_code == errors.InconsistentGroupProtocol.code


def test_CG_55_classic_members_must_share_a_protocol_and_come_as_consumers(mixed):
    mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    for more in ({"protocols": [("other", subscription())]}, {"protocol_type": "connect"}, {"protocols": []}):
        assert mixed.join_classic(**more).error_code == errors.InconsistentGroupProtocol.code
    assert mixed.join_classic(protocols=[("other", subscription()), ("range", subscription())]).error_code == 0


def test_CG_55_sync_is_refused_for_another_protocol_than_the_members(mixed):
    mixed.join_new("new")
    join = mixed.join_classic()
    for more in ({"protocol_type": "connect"}, {"protocol_name": "other"}):
        assert mixed.sync(join, **more).error_code == errors.InconsistentGroupProtocol.code


def test_a_full_group_takes_no_classic_member(mixed):
    mixed = MixedGroup(consumer_max_size=1)
    mixed.join_new("new")
    assert mixed.join_classic().error_code == errors.GroupMaxSizeReached.code


def test_a_classic_member_whose_subscription_cannot_be_read_is_refused(mixed):
    mixed.join_new("new")
    assert mixed.join_classic(protocols=[("range", b"x")]).error_code == errors.InvalidRequest.code
    assert list(mixed.value().members) == ["new"]


def test_a_classic_member_has_the_session_that_it_asked_for(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3}, session_timeout_ms=7_000)
    mixed.join_new("new")
    mixed.advance(5_000)
    assert mixed.heartbeat(one) == REBALANCE
    mixed.advance(6_999)
    assert one.member_id in mixed.value().members
    mixed.advance(1)
    assert one.member_id not in mixed.value().members


def beats_of(mixed, join, ms, **more):
    for _ in range(ms // 5_000):
        mixed.advance(5_000)
        mixed.heartbeat(join, **more)
    return mixed.value().members.keys()


def test_a_classic_member_that_is_told_to_join_again_has_its_rebalance_timeout_for_it(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3}, rebalance_timeout_ms=20_000)
    mixed.join_new("new")
    assert mixed.heartbeat(one) == REBALANCE
    assert one.member_id in beats_of(mixed, one, 15_000)
    assert one.member_id not in beats_of(mixed, one, 5_000)
    assert mixed.heartbeat(one) == errors.UnknownMemberId.code


def test_a_classic_member_that_joins_again_in_time_stays_if_it_syncs(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3}, rebalance_timeout_ms=20_000)
    mixed.join_new("new")
    assert mixed.heartbeat(one) == REBALANCE
    generation, _ = mixed.rejoin_and_sync(one, rebalance_timeout_ms=20_000)
    assert one.member_id in beats_of(mixed, one, 40_000, generation_id=generation)


def test_a_classic_member_that_joins_and_does_not_sync_is_fenced_after_its_rebalance_timeout(mixed):
    mixed.join_new("new")
    join = mixed.join_classic(rebalance_timeout_ms=20_000)
    beats_of(mixed, join, 15_000)
    # It asks again, and has its time from now on.
    join = mixed.join_classic(join.member_id, rebalance_timeout_ms=20_000)
    assert join.member_id in beats_of(mixed, join, 15_000)
    assert join.member_id not in beats_of(mixed, join, 5_000)


def test_a_member_that_has_come_over_to_the_new_protocol_is_not_asked_to_join_or_sync(mixed):
    mixed.join_new("new")
    join = mixed.join_classic(rebalance_timeout_ms=20_000)
    assert mixed.beat(join.member_id, join.generation_id, frozenset(), ("t",)).error_code == 0
    for _ in range(5):
        mixed.advance(5_000)
        epoch = mixed.value().members[join.member_id].epoch
        assert mixed.beat(join.member_id, epoch, frozenset()).error_code == 0


def test_after_a_move_of_the_coordinator_classic_members_have_their_sessions_and_times_again(mixed):
    one, two = mixed.classic_group({0, 1}, {2, 3}, rebalance_timeout_ms=20_000)
    mixed.join_new("new")
    assert mixed.heartbeat(one) == REBALANCE
    mixed.advance(9_000)
    again = mixed.restarted()
    assert again.value() == mixed.value()
    assert again.heartbeat(one) == REBALANCE
    assert one.member_id in beats_of(again, one, 15_000)
    assert two.member_id not in again.value().members  # silent for its session
    assert one.member_id not in beats_of(again, one, 5_000)


def test_administrators_remove_members_of_either_protocol(mixed):
    one, two = mixed.classic_group({0, 1}, {2, 3})
    mixed.join_new("new")
    mixed.join_new("static", instance_id="i")
    assert mixed.leave("nobody") == errors.UnknownMemberId.code
    assert mixed.leave("", "nobody") == errors.UnknownMemberId.code
    assert mixed.leave("nobody", "i") == errors.FencedInstanceId.code
    assert mixed.leave("", "i") == mixed.leave(one.member_id) == mixed.leave("new") == 0
    assert mixed.state() == "PreparingRebalance"  # only two is left
    assert mixed.beat("new", 2).error_code == errors.GroupIdNotFound.code
    assert mixed.join_classic(two.member_id).error_code == 0


# -- downgrade


def mixed_of_two(mixed):
    """(the classic member, the one of the new protocol): both have two partitions and the same epoch."""
    mixed.join_new("new")
    it = owner(mixed.join_classic())
    mixed.sync(it)
    mixed.beat("new", 1)
    mixed.beat("new", 1, mixed.value().members["new"].assigned)
    it.generation_id, it.owned = mixed.rejoin_and_sync(it)
    assert mixed.value().state == "Stable"
    return it, SimpleNamespace(member_id="new", epoch=mixed.value().members["new"].epoch)


@pytest.mark.parametrize("how", ["leaves", "is removed", "is silent"])
def test_CG_55_a_group_whose_last_member_of_the_new_protocol_is_gone_is_a_classic_group_that_rebalances(mixed, how):
    it, new = mixed_of_two(mixed)
    if how == "leaves":
        assert mixed.leave_new("new").error_code == 0
    elif how == "is removed":
        assert mixed.leave("new") == 0
    else:
        for _ in range(9):
            mixed.advance(5_000)
            mixed.heartbeat(it)
    assert mixed.state() == "PreparingRebalance"
    assert mixed.beat("new", new.epoch).error_code == errors.GroupIdNotFound.code
    # What it has processed it can commit in its generation.
    assert commit(mixed, it) == {0}
    assert mixed.heartbeat(it) == REBALANCE
    join = mixed.join_classic(it.member_id, it.owned)
    assert (join.error_code, join.generation_id, join.leader_id) == (0, it.generation_id + 1, it.member_id)
    assert [member.member_id for member in join.members] == [it.member_id]
    synced = mixed.sync(join, {it.member_id: assignment({0, 1, 2, 3})})
    assert assigned_numbers(synced.assignment) == {0, 1, 2, 3}
    again = mixed.restarted()
    assert (again.state(), again.committed(), again.heartbeat(join)) == ("Stable", {("t", 0): 7}, 0)


def test_CG_55_a_group_that_moves_before_it_has_rebalanced_rebalances_at_its_next_coordinator(mixed):
    it, _ = mixed_of_two(mixed)
    mixed.leave_new("new")
    again = mixed.restarted()
    assert commit(again, it) == {0}
    assert again.heartbeat(it) == REBALANCE
    join = again.join_classic(it.member_id, it.owned)
    assert (join.error_code, join.leader_id) == (0, it.member_id)
    assert again.sync(join, {it.member_id: assignment({0, 1, 2, 3})}).error_code == 0
    third = again.restarted()
    assert (third.state(), third.heartbeat(join)) == ("Stable", 0)


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_CG_54_a_group_stays_one_of_the_new_protocol_where_the_policy_forbids_downgrades(mixed, policy):
    mixed_of_two(mixed)
    other = mixed.restarted(consumer_migration_policy=policy)
    (it,) = [member for member in other.value().members.values() if member.classic]
    other.leave_new("new")
    assert list(other.value().members) == [it.member_id]
    again = SimpleNamespace(member_id=it.member_id, generation_id=it.epoch)
    assert other.heartbeat(again) == REBALANCE
    assert other.rejoin_and_sync(again)[1] == {0, 1, 2, 3}


def test_a_group_is_not_downgraded_above_the_size_of_classic_groups():
    mixed = MixedGroup(max_size=1)
    mixed.join_new("new")
    for _ in range(2):
        mixed.join_classic()
    mixed.leave_new("new")
    assert len(mixed.value().members) == 2


def test_a_static_member_that_is_away_keeps_the_group_as_it_is(mixed):
    mixed.join_new("new", instance_id="i")
    mixed.join_classic()
    mixed.leave_new("new", -2, "i")
    assert len(mixed.value().members) == 2


def test_a_group_that_is_upgraded_again_before_its_members_have_joined_gives_away_nothing_of_theirs(mixed):
    it, _ = mixed_of_two(mixed)
    mixed.leave_new("new")
    assert mixed.join_new("newer").assignment == {p for p in of_t(0, 1, 2, 3) if p[1] not in it.owned}
    assert held(mixed)[it.member_id] == it.owned


def test_a_group_of_classic_members_alone_is_downgraded_with_its_first_change_once_the_policy_allows_it(mixed):
    it, _ = mixed_of_two(mixed)
    strict = mixed.restarted(consumer_migration_policy=MigrationPolicy.UPGRADE)
    strict.leave_new("new")
    it.generation_id, it.owned = strict.rejoin_and_sync(it)
    again = strict.restarted()
    assert again.rejoin_and_sync(it) == (it.generation_id, it.owned)
    assert again.value().members.keys() == {it.member_id}
    second = again.join_classic()
    assert again.state() == "PreparingRebalance" and second.waits
    assert again.join_classic(it.member_id, it.owned).error_code == second.error_code == 0


# -- the log


def types(records):
    """(type of the key, whether it is a tombstone) of each record."""
    return [(int.from_bytes(record.key[:2], "big"), record.value is None) for record in records]


def test_CG_56_an_upgrade_is_one_batch_that_begins_with_the_tombstone_of_the_classic_group(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    before = len(mixed.records())
    mixed.join_new("new")
    records = mixed.records()[before:]
    assert types(records)[0] == (2, True)
    assert {kind for kind, is_tombstone in types(records)[1:] if not is_tombstone} == {3, 5, 6, 7, 8}
    of_one = next(r for r in records if r.key[:2] == b"\0\5" and one.member_id.encode() in r.key)
    said = subscription()
    # As Kafka writes it: tag 0, its size, 1 for "not null", the session timeout, protocols.
    classic = struct.pack(">i", 10_000) + b"\2" + b"\6range" + bytes([len(said) + 1]) + said + b"\0\0"
    assert bytes(of_one.value).endswith(b"\1\0" + bytes([len(classic) + 1]) + b"\1" + classic)
    mixed.join_new("newer")
    assert not any(kind == 2 for kind, _ in types(mixed.records()[before + len(records) :]))
    again = mixed.restarted()
    assert again.value() == mixed.value()
    assert again.value().members[one.member_id].classic == (10_000, (("range", said),))


def test_CG_56_a_downgrade_is_one_batch_of_tombstones_in_kafkas_order_and_the_classic_group(mixed):
    mixed_of_two(mixed)
    before = len(mixed.records())
    mixed.leave_new("new")
    kinds = types(mixed.records()[before:])
    assert kinds == [(8, True)] * 2 + [(7, True)] * 2 + [(6, True)] + [(5, True)] * 2 + [(3, True), (2, False)]
    again = mixed.restarted()
    assert again.group().consumer is None
    assert (again.group().generation_id, set(again.group().members)) == (
        mixed.group().generation_id,
        set(mixed.group().members),
    )


def test_a_write_that_fails_is_made_up_for_by_the_next_one_whichever_protocol_that_has(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.replica_manager.error = NotLeaderOrFollower("down")
    assert mixed.join_new("new").error_code != 0
    assert mixed.restarted().state() == "Stable"  # the upgrade is not in the log
    mixed.replica_manager.error = None
    mixed.beat("new", 0, frozenset(), ("t",), rebalance_timeout_ms=60_000)
    assert mixed.restarted().value() == mixed.value()
    mixed.replica_manager.error = NotLeaderOrFollower("down")
    mixed.leave_new("new")
    mixed.replica_manager.error = None
    join = mixed.join_classic(one.member_id)
    assert mixed.sync(join, {one.member_id: assignment({0})}).error_code == 0
    again = mixed.restarted()
    assert (again.state(), again.heartbeat(join)) == ("Stable", 0)
    assert not [key for record in live_records(mixed) if (key := read_consumer_group_key(record.key))]


def test_an_upgrade_in_the_first_rebalance_whose_write_fails_is_written_whole_by_the_next_one(mixed):
    mixed.join_classic(topics=("none",))
    mixed.replica_manager.error = NotLeaderOrFollower("down")
    assert mixed.join_new("new").error_code != 0
    mixed.replica_manager.error = None
    assert mixed.join_new("newer").error_code == 0
    assert len(mixed.value().members) == 3
    assert mixed.restarted().value() == mixed.value()


def live_records(mixed):
    """The last record of each key, without tombstones: what compaction leaves."""
    return [record for record in {bytes(r.key): r for r in mixed.records()}.values() if record.value is not None]


def test_changes_while_the_first_write_of_an_upgrade_is_under_way_are_all_in_the_log(mixed):
    """The tombstones that the first write begins with are written again by those after it, and remove nothing."""
    it, _ = mixed_of_two(mixed)
    mixed.replica_manager.held = []
    mixed.leave_new("new")
    answers = [mixed.join_new("newer"), mixed.join_new("newest"), mixed.join_new("last")]
    mixed.leave_new("newest")
    assert all(answer.waits for answer in answers)
    mixed.replica_manager.release()
    assert all(answer.error_code == 0 for answer in answers)
    assert set(mixed.value().members) == {it.member_id, "newer", "last"}
    assert mixed.restarted().value() == mixed.value()


def test_an_upgraded_group_that_ends_leaves_nothing_in_the_log(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    mixed.leave(one.member_id)
    mixed.leave_new("new")
    assert mixed.delete_groups("g") == {"g": 0}
    assert live_records(mixed) == []
    assert mixed.restarted().group() is None


def test_commits_in_transactions_go_on_over_an_upgrade(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new")
    codes = []
    for generation in (one.generation_id, one.generation_id + 5):
        answer = Answer()
        offsets = {TopicPartition("t", 0): OffsetAndMetadata(5, "", -1, 0)}
        who = GroupMember(one.member_id, None, generation)
        mixed.coordinator.offsets.commit_in_transaction("g", who, (1, 0), offsets, answer)
        codes += answer.result.values()
    assert codes == [0, errors.IllegalGeneration.code]


# -- errors at which a client joins again, and fences


def selected_second(mixed):
    """The first of two classic members prefers another assignor than the group has; their join answers."""
    joins = [
        mixed.join(protocols=[("coop", subscription()), ("range", subscription())]),
        mixed.join(protocols=[("range", subscription())]),
    ]
    while any(join.waits for join in joins):
        mixed.advance(3_000)
    assert {join.protocol_name for join in joins} == {"range"}
    return joins


def test_CG_54_a_sync_after_the_upgrade_is_told_to_join_again_whichever_assignor_it_names(mixed):
    one, _ = selected_second(mixed)
    mixed.join_new("new")
    assert mixed.sync(one).error_code == REBALANCE


def test_CG_55_a_sync_after_the_downgrade_is_told_to_join_again_whichever_assignor_it_names(mixed):
    one, _ = selected_second(mixed)
    mixed.join_new("new")
    again = mixed.join(one.member_id, protocols=[("coop", subscription()), ("range", subscription())])
    assert again.protocol_name == "coop"
    mixed.leave_new("new")
    assert mixed.sync(again, protocol_name="coop").error_code == REBALANCE


# -- writes that end in another order, or fail


def test_writes_of_a_group_may_end_in_any_order_and_each_answer_waits_for_the_last(mixed):
    mixed.join_new("a")
    mixed.replica_manager.held = []
    mixed.join_new("b")
    full = {"owned": frozenset(), "topics": ("t",), "rebalance_timeout_ms": 60_000}
    third = mixed.join_new("c")
    first_write, second_write = mixed.replica_manager.held
    second_write()
    again = mixed.beat("c", third.member_epoch, **full)
    assert again.waits
    first_write()
    assert again.error_code == 0


TOO_LONG = "m" * 40_000


@pytest.mark.parametrize("first", ["none", "classic", "new"])
def test_a_member_that_fits_no_record_is_refused_and_the_group_stays_as_it_was(mixed, first):
    if first == "classic":
        mixed.classic_group({0, 1, 2, 3})
    elif first == "new":
        mixed.join_new("a")
    before = mixed.value() if first == "new" else mixed.state()
    for answer in (mixed.join_new(TOO_LONG), mixed.join_new("b", instance_id="i" * 40_000)):
        assert answer.error_code == errors.UnknownServerError.code
    if first != "none":
        assert (mixed.value() if first == "new" else mixed.state()) == before
    assert mixed.join_new("c").error_code == 0
    assert "c" in mixed.restarted().value().members


@pytest.mark.parametrize("requires_id", [False, True])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_client_id_that_makes_the_member_id_too_long_is_refused(mixed, is_mixed, requires_id):
    if is_mixed:
        mixed.join_new("new")
    longest = 32_767 - len("-00000000-0000-0000-0000-000000000000")
    too_long = mixed.join_classic(client_id="c" * (longest + 1), require_known_member_id=requires_id)
    assert (too_long.error_code, too_long.member_id) == (errors.InvalidRequest.code, "")
    mixed.join_classic(client_id="ü" * (longest // 2), require_known_member_id=requires_id)
    if is_mixed:
        assert mixed.join_new("other").error_code == 0


def member_records(mixed):
    """Keys of records of the new protocol that compaction would keep."""
    last = {bytes(record.key): record.value for record in mixed.records()}
    return [key for key, value in last.items() if value is not None and read_consumer_group_key(key) is not None]


@pytest.mark.parametrize("how", ["expired", "deleted"])
def test_a_group_that_is_removed_takes_members_with_it_whose_leave_did_not_reach_the_log(mixed, how):
    mixed.two_members()
    mixed.replica_manager.error = errors.NotEnoughReplicas("")
    mixed.leave_new("a")
    mixed.leave_new("b")
    mixed.replica_manager.error = None
    if how == "expired":
        mixed.coordinator.manager.cleanup_expired_offsets()
    else:
        mixed.delete_groups("g")
    assert mixed.group() is None
    assert member_records(mixed) == []
    mixed.join_new("c")
    assert list(mixed.restarted().value().members) == ["c"]


def test_a_downgrade_removes_members_whose_leave_fails_after_it(mixed):
    mixed.classic_group({0, 1})
    mixed.join_new("m1")
    mixed.join_new("m2")
    manager = mixed.replica_manager
    manager.held = []
    mixed.leave_new("m1")
    mixed.leave_new("m2")
    (first, second), manager.held = manager.held, None
    manager.error = errors.NotEnoughReplicas("")
    first()
    manager.error = None
    second()
    assert member_records(mixed) == []


def test_a_member_whose_sync_is_told_to_join_again_has_its_rebalance_timeout_for_that(mixed):
    (one,) = mixed.classic_group({0, 1, 2, 3})
    mixed.join_new("new", rebalance_timeout_ms=600_000)
    again = mixed.join_classic(one.member_id, session_timeout_ms=100_000)
    mixed.advance(40_000)
    mixed.beat("new", again.generation_id)
    mixed.join_new("other", rebalance_timeout_ms=600_000)
    mixed.advance(15_000)
    assert mixed.sync(again).error_code == REBALANCE
    mixed.advance(25_000)  # 80 s after its JoinGroup
    assert one.member_id in mixed.value().members


def test_a_static_member_that_comes_back_with_the_classic_protocol_wants_what_it_says_now(mixed):
    mixed.topics["u"] = TopicOfGroup(uuid.UUID(int=2), 2)
    mixed.join_new("other")
    mixed.join_new("a", topics=(), instance_id="i", regex="t.*", assignor="range")
    mixed.scheduler.tick()
    mixed.leave_new("a", -2, "i")
    back = mixed.join_classic(instance_id="i", topics=("u",))
    member = mixed.value().members[back.member_id]
    assert (member.topics, member.regex, member.assignor) == (("u",), None, None)
    assert mixed.value().targets[back.member_id] == {(uuid.UUID(int=2), 0), (uuid.UUID(int=2), 1)}
