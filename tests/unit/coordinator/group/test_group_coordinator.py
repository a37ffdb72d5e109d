import itertools
import random
import struct
import threading

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinators import Coordinators
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.member_metadata import LeavingMember

from .harness import Harness, code_of

# -- who is answered at all


def test_a_group_whose_partition_is_led_elsewhere_answers_not_coordinator():
    harness = Harness(partitions=[])
    assert harness.join().error_code == errors.NotCoordinator.code
    assert code_of(harness.coordinator.heartbeat, "g", "m", None, 1) == errors.NotCoordinator.code
    assert harness.commit({("t", 0): 1}).result == {TopicPartition("t", 0): errors.NotCoordinator.code}
    assert code_of(harness.coordinator.offsets.fetch, "g", None) == errors.NotCoordinator.code
    assert harness.leave("m") == errors.NotCoordinator.code
    assert code_of(harness.coordinator.admin.describe_group, "g") == errors.NotCoordinator.code
    assert harness.delete_groups("g") == {"g": errors.NotCoordinator.code}


def test_an_empty_group_id_is_invalid_but_for_offsets_and_administration(harness):
    assert harness.join(group_id="").error_code == errors.InvalidGroupId.code
    assert code_of(harness.coordinator.heartbeat, "", "m", None, 1) == errors.InvalidGroupId.code
    assert harness.commit({("t", 0): 7}, group_id="").result == {("t", 0): 0}
    assert harness.committed(group_id="") == {("t", 0): 7}


def test_after_shutdown_everything_answers_coordinator_not_available(harness):
    harness.coordinator.shutdown()
    assert harness.join().error_code == errors.CoordinatorNotAvailable.code
    assert harness.coordinator.admin.list_groups() == (errors.CoordinatorNotAvailable.code, [])


@pytest.mark.parametrize("session_timeout_ms", [5_999, 1_800_001])
def test_a_session_timeout_outside_the_brokers_limits_is_refused(harness, session_timeout_ms):
    assert harness.join(session_timeout_ms=session_timeout_ms).error_code == errors.InvalidSessionTimeout.code


# -- joining


def test_the_first_rebalance_waits_for_the_initial_delay_and_makes_the_first_member_leader(harness):
    first = harness.join(protocols=[("range", b"one")])
    harness.advance(1_000)
    second = harness.join(protocols=[("range", b"two")])
    harness.advance(1_999)
    assert first.waits and second.waits
    assert harness.state() == "PreparingRebalance"
    harness.advance(1)  # 3 s since the first, but another member joined meanwhile: 3 s more
    assert first.waits
    harness.advance(3_000)
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.leader_id == second.leader_id == first.member_id
    assert {(m.member_id, m.metadata) for m in first.members} == {
        (first.member_id, b"one"),
        (second.member_id, b"two"),
    }
    assert second.members == []
    assert first.member_id.startswith("client-")
    assert harness.state() == "CompletingRebalance"


def test_the_initial_delay_is_extended_no_further_than_the_rebalance_timeout(harness):
    first = harness.join(rebalance_timeout_ms=7_000)
    for _ in range(6):
        harness.advance(1_000)
        harness.join(rebalance_timeout_ms=7_000)
        assert first.waits
    harness.advance(1_000)
    assert len(first.members) == 7


def test_without_an_initial_delay_a_lone_member_is_answered_at_once():
    harness = Harness(initial_rebalance_delay_ms=0)
    join = harness.join()
    harness.timer.advance()
    assert join.generation_id == 1


def test_a_dynamic_member_without_id_is_given_one_and_sent_back_to_join_with_it(harness):
    """KIP-394"""
    refusal = harness.join(require_known_member_id=True)
    assert refusal.error_code == errors.MemberIdRequired.code
    assert refusal.member_id.startswith("client-")
    assert harness.state() == "Empty"
    join = harness.join(refusal.member_id, require_known_member_id=True)
    harness.advance(3_000)
    assert (join.error_code, join.member_id) == (0, refusal.member_id)


def test_an_assigned_id_expires_after_the_session_timeout(harness):
    refusal = harness.join(require_known_member_id=True)
    harness.advance(10_000)
    assert harness.join(refusal.member_id).error_code == errors.UnknownMemberId.code


def test_a_rebalance_waits_for_members_whose_ids_were_assigned(harness):
    (leader,) = harness.stable_group()
    refusal = harness.join(require_known_member_id=True)
    rejoined = harness.join(leader.member_id)
    assert rejoined.waits
    harness.join(refusal.member_id)
    assert len(rejoined.members) == 2


def test_an_unknown_member_id_is_refused(harness):
    assert harness.join("nobody").error_code == errors.UnknownMemberId.code
    harness.stable_group()
    assert harness.join("nobody").error_code == errors.UnknownMemberId.code


def test_a_member_without_a_common_protocol_is_refused(harness):
    harness.stable_group()
    for settings in (
        {"protocols": [("roundrobin", b"")]},
        {"protocol_type": "connect"},
        {"protocols": []},
    ):
        assert harness.join(**settings).error_code == errors.InconsistentGroupProtocol.code
    for settings in ({"protocols": []}, {"protocol_type": ""}):
        assert harness.join(group_id="other", **settings).error_code == errors.InconsistentGroupProtocol.code


def test_the_protocol_most_members_prefer_among_those_all_support_is_chosen(harness):
    joins = [
        harness.join(protocols=[("a", b""), ("b", b""), ("c", b"")]),
        harness.join(protocols=[("x", b""), ("c", b""), ("b", b"")]),
        harness.join(protocols=[("c", b""), ("b", b"")]),
    ]
    harness.advance(6_000)
    harness.advance(3_000)
    assert {join.protocol_name for join in joins} == {"c"}


def test_a_new_member_makes_the_others_rejoin_by_their_heartbeats(harness):
    joins = harness.stable_group(2)
    third = harness.join()
    assert harness.state() == "PreparingRebalance"
    assert [harness.heartbeat(join) for join in joins] == [errors.RebalanceInProgress.code] * 2
    rejoins = [harness.join(join.member_id) for join in joins]
    assert {answer.generation_id for answer in [third, *rejoins]} == {2}
    assert {answer.leader_id for answer in [third, *rejoins]} == {joins[0].member_id}


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_out(harness):
    joins = harness.stable_group(2, session_timeout_ms=100_000)
    third = harness.join(session_timeout_ms=100_000)
    harness.join(joins[1].member_id, session_timeout_ms=100_000)
    harness.advance(59_999)
    assert third.waits
    harness.advance(1)
    assert third.generation_id == 2
    assert third.leader_id in (third.member_id, joins[1].member_id)  # the old leader did not come
    assert harness.heartbeat(joins[0]) == errors.UnknownMemberId.code
    assert len(harness.group().members) == 2


def test_a_leader_that_rejoins_a_stable_group_forces_a_rebalance_and_a_follower_does_not(harness):
    leader, follower = harness.stable_group(2)
    again = harness.join(follower.member_id)
    assert (again.generation_id, again.leader_id, again.members) == (1, leader.member_id, [])
    assert harness.state() == "Stable"
    assert harness.join(leader.member_id).waits
    assert harness.state() == "PreparingRebalance"


def test_a_follower_with_changed_metadata_forces_a_rebalance(harness):
    leader, follower = harness.stable_group(2)
    again = harness.join(follower.member_id, protocols=[("range", b"changed")])
    assert again.waits
    rejoined = harness.join(leader.member_id)
    assert {m.member_id: m.metadata for m in rejoined.members}[follower.member_id] == b"changed"
    assert again.generation_id == 2


def test_a_member_that_lost_its_join_answer_gets_it_again_while_assignments_are_awaited(harness):
    first, second = harness.join(), harness.join()
    harness.advance(3_000)
    harness.advance(3_000)
    assert harness.state() == "CompletingRebalance"
    assert len(harness.join(first.member_id).members) == 2
    assert harness.join(second.member_id).members == []
    changed = harness.join(second.member_id, protocols=[("range", b"changed")])
    assert changed.waits
    assert harness.state() == "PreparingRebalance"


def test_group_max_size_refuses_further_members_but_not_those_who_are_in():
    harness = Harness(max_size=2)
    joins = [harness.join() for _ in range(3)]
    assert (joins[2].error_code, joins[2].member_id) == (errors.GroupMaxSizeReached.code, "")
    harness.advance(3_000)
    harness.advance(3_000)
    assert [join.error_code for join in joins[:2]] == [0, 0]
    assert harness.join().error_code == errors.GroupMaxSizeReached.code
    assert harness.join(joins[1].member_id).error_code == 0


def test_a_new_member_whose_join_stays_parked_for_five_minutes_is_removed(harness):
    harness.stable_group(1, rebalance_timeout_ms=1_000_000, session_timeout_ms=1_000_000)
    new = harness.join()
    harness.advance(299_999)
    assert new.waits
    harness.advance(1)
    assert (new.error_code, new.member_id) == (errors.UnknownMemberId.code, "")


# -- syncing


def test_followers_wait_for_the_leaders_assignment_and_it_is_stored_before_they_hear_it(harness):
    first, second = harness.join(), harness.join()
    harness.advance(3_000)
    harness.advance(3_000)
    follower = harness.sync(second)
    assert follower.waits
    harness.replica_manager.held = []
    leader = harness.sync(first, {first.member_id: b"a", second.member_id: b"b"})
    assert leader.waits and follower.waits
    harness.replica_manager.release()
    assert (leader.assignment, follower.assignment) == (b"a", b"b")
    assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")
    assert harness.state() == "Stable"
    assert harness.sync(second).assignment == b"b"


def test_a_member_the_leader_forgot_gets_an_empty_assignment(harness):
    first, second = harness.join(), harness.join()
    harness.advance(3_000)
    harness.advance(3_000)
    follower = harness.sync(second)
    harness.sync(first, {first.member_id: b"all"})
    assert (follower.error_code, follower.assignment) == (0, b"")


def test_a_sync_is_refused_for_unknown_members_old_generations_and_other_protocols(harness):
    (join,) = harness.stable_group()
    assert harness.sync(join, generation_id=7).error_code == errors.IllegalGeneration.code
    assert harness.sync(join, protocol_name="other").error_code == errors.InconsistentGroupProtocol.code
    assert harness.sync(join, protocol_type="other").error_code == errors.InconsistentGroupProtocol.code
    assert harness.sync(join, protocol_type=None, protocol_name=None).error_code == 0
    assert harness.sync(join, group_id="no such group").error_code == errors.UnknownMemberId.code
    join.result.member_id = "nobody"
    assert harness.sync(join).error_code == errors.UnknownMemberId.code


def test_a_sync_during_a_rebalance_is_answered_rebalance_in_progress(harness):
    leader, follower = harness.stable_group(2)
    harness.join(leader.member_id)
    assert harness.sync(follower).error_code == errors.RebalanceInProgress.code


def test_waiting_syncs_are_answered_when_a_new_rebalance_begins(harness):
    _, second = harness.join(), harness.join()
    harness.advance(3_000)
    harness.advance(3_000)
    follower = harness.sync(second)
    harness.join()
    assert follower.error_code == errors.RebalanceInProgress.code


def test_an_assignment_that_arrives_in_the_log_after_the_next_rebalance_began_is_not_used(harness):
    join = harness.join()
    harness.advance(3_000)
    harness.replica_manager.held = []
    sync = harness.sync(join, {join.member_id: b"old"})
    harness.join()
    assert sync.error_code == errors.RebalanceInProgress.code
    harness.replica_manager.release()
    assert harness.state() == "PreparingRebalance"


def test_a_failed_append_of_the_assignment_is_answered_to_all_and_starts_a_rebalance(harness):
    join = harness.join()
    harness.advance(3_000)
    harness.replica_manager.error = errors.NotLeaderOrFollower("moved")
    assert harness.sync(join, {}).error_code == errors.NotCoordinator.code
    assert harness.state() == "PreparingRebalance"


@pytest.mark.parametrize(
    "append_error, expected",
    [
        (errors.NotEnoughReplicas, errors.CoordinatorNotAvailable),
        (errors.UnknownTopicOrPartition, errors.CoordinatorNotAvailable),
        (errors.KafkaStorageError, errors.NotCoordinator),
        (errors.DiskFull, errors.CoordinatorNotAvailable),
        (errors.RequestTimedOut, errors.RebalanceInProgress),
        (errors.MessageTooLarge, errors.UnknownServerError),
    ],
)
def test_append_errors_reach_the_members_as_kafka_translates_them(harness, append_error, expected):
    join = harness.join()
    harness.advance(3_000)
    harness.replica_manager.error = append_error("no")
    assert harness.sync(join, {}).error_code == expected.code


def test_a_member_that_does_not_fit_a_record_gets_an_error_instead_of_waiting_for_ever(harness):
    join = harness.join(client_host="x" * 32_768)
    harness.advance(3_000)
    assert harness.sync(join, {}).error_code == errors.UnknownServerError.code


def test_members_that_do_not_sync_within_the_rebalance_timeout_are_out(harness):
    joins = [harness.join(session_timeout_ms=100_000) for _ in range(2)]
    harness.advance(3_000)
    harness.advance(3_000)
    waiting = harness.sync(joins[0], {})  # the leader; the other never syncs
    assert waiting.error_code == 0
    harness.advance(59_999)
    assert harness.state() == "Stable"
    harness.advance(1)
    assert harness.state() == "PreparingRebalance"
    assert list(harness.group().members) == [joins[0].member_id]


# -- staying and leaving


def test_a_member_without_heartbeats_for_its_session_timeout_is_removed_and_the_others_rebalance(harness):
    leader, follower = harness.stable_group(2)
    for _ in range(3):
        harness.advance(4_000)
        assert harness.heartbeat(follower) in (0, errors.RebalanceInProgress.code)
    assert harness.heartbeat(leader) == errors.UnknownMemberId.code
    assert harness.state() == "PreparingRebalance"
    rejoined = harness.join(follower.member_id)
    assert (rejoined.generation_id, rejoined.leader_id) == (2, follower.member_id)


def test_a_session_ends_exactly_at_its_timeout_after_the_last_sign_of_life(harness):
    (join,) = harness.stable_group()
    harness.advance(9_999)
    assert harness.heartbeat(join) == 0
    harness.advance(9_999)
    assert len(harness.group().members) == 1
    harness.advance(1)
    assert len(harness.group().members) == 0
    assert harness.state() == "Empty"


def test_a_commit_is_a_sign_of_life(harness):
    (join,) = harness.stable_group()
    harness.advance(9_000)
    harness.commit({("t", 0): 1}, join.member_id, join.generation_id)
    harness.advance(9_000)
    assert harness.heartbeat(join) == 0


def test_a_member_that_waits_for_others_does_not_lose_its_session(harness):
    leader, follower = harness.stable_group(2, session_timeout_ms=10_000)
    waiting = harness.join(leader.member_id)
    for _ in range(5):
        harness.advance(9_000)
        assert harness.heartbeat(follower) == errors.RebalanceInProgress.code
    assert waiting.waits
    harness.advance(15_000)
    assert waiting.error_code == 0
    harness.advance(9_000)
    assert harness.heartbeat(waiting) == 0


def test_heartbeats_cost_no_timer_tasks(harness):
    (join,) = harness.stable_group()
    before = len(harness.timer._heap)
    for _ in range(10_000):
        assert harness.heartbeat(join) == 0
    assert len(harness.timer._heap) == before


def test_heartbeats_are_refused_for_unknown_members_and_other_generations(harness):
    (join,) = harness.stable_group()
    assert harness.heartbeat(join, generation_id=2) == errors.IllegalGeneration.code
    assert code_of(harness.coordinator.heartbeat, "g", "nobody", None, 1) == errors.UnknownMemberId.code
    assert code_of(harness.coordinator.heartbeat, "no such group", "nobody", None, 1) == errors.UnknownMemberId.code


def test_the_last_member_to_leave_leaves_an_empty_generation_and_the_group_can_be_joined_again(harness):
    (join,) = harness.stable_group()
    assert harness.leave(join.member_id) == 0
    assert harness.state() == "Empty"
    assert harness.group().generation_id == 2
    again = harness.join()
    harness.advance(3_000)
    assert again.generation_id == 3


def test_a_leaving_leader_hands_over_to_another_member(harness):
    leader, follower = harness.stable_group(2)
    assert harness.leave(leader.member_id) == 0
    assert harness.join(follower.member_id).leader_id == follower.member_id


def test_a_leave_answers_each_member_on_its_own(harness):
    (join,) = harness.stable_group()
    refusal = harness.join(require_known_member_id=True)
    left = harness.leave_together(
        [LeavingMember("nobody"), LeavingMember(refusal.member_id), LeavingMember(join.member_id, None, "done")],
    )
    assert [m.error_code for m in left.members] == [errors.UnknownMemberId.code, 0, 0]
    assert harness.leave("m", group_id="no such group") == errors.UnknownMemberId.code


def test_a_member_that_leaves_while_its_join_is_parked_is_answered(harness):
    harness.stable_group(2)
    parked = harness.join()
    assert harness.leave(next(m for m in harness.group().members.values() if m.is_new).member_id) == 0
    assert parked.error_code == errors.UnknownMemberId.code


# -- static members (KIP-345)


def stable_static_group(harness, instances=("a", "b")):
    joins = [harness.join(instance_id=instance) for instance in instances]
    harness.advance(3_000)
    harness.advance(3_000)
    waiting = [harness.sync(j, instance_id=i) for j, i in zip(joins[1:], instances[1:], strict=True)]
    first = harness.sync(joins[0], {j.member_id: j.member_id.encode() for j in joins}, instance_id=instances[0])
    assert [answer.error_code for answer in [first, *waiting]] == [0] * len(joins)
    return joins


def test_a_static_member_that_comes_back_keeps_its_place_without_a_rebalance(harness):
    leader, follower = stable_static_group(harness)
    assert follower.member_id.startswith("b-")
    again = harness.join(instance_id="b")
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.member_id != follower.member_id
    assert harness.state() == "Stable"
    assert harness.sync(again, instance_id="b").assignment == follower.member_id.encode()
    assert harness.heartbeat(again, instance_id="b") == 0
    assert harness.heartbeat(follower, instance_id="b") == errors.FencedInstanceId.code
    assert harness.join(follower.member_id, instance_id="b").error_code == errors.FencedInstanceId.code
    assert harness.commit({("t", 0): 1}, follower.member_id, 1, instance_id="b").result == {
        ("t", 0): errors.FencedInstanceId.code
    }
    assert harness.heartbeat(leader, instance_id="a") == 0


def test_a_static_leader_that_comes_back_is_answered_with_the_old_leader_before_version_9(harness):
    leader, _ = stable_static_group(harness)
    again = harness.join(instance_id="a")
    assert (again.leader_id, again.members, again.skip_assignment) == (leader.member_id, [], False)


def test_a_static_leader_that_comes_back_skips_the_assignment_from_version_9_on(harness):
    stable_static_group(harness)
    again = harness.join(instance_id="a", support_skipping_assignment=True)
    assert (again.leader_id, again.skip_assignment) == (again.member_id, True)
    assert {m.group_instance_id for m in again.members} == {"a", "b"}
    follower = harness.join(instance_id="b", support_skipping_assignment=True)
    assert (follower.skip_assignment, follower.members) == (False, [])


def test_a_static_member_that_comes_back_with_another_protocol_forces_a_rebalance():
    harness = Harness(initial_rebalance_delay_ms=0)
    protocols = [("range", b""), ("sticky", b"")]
    join = harness.join(instance_id="a", protocols=protocols)
    harness.timer.advance()
    harness.sync(join, {}, instance_id="a")
    again = harness.join(instance_id="a", protocols=protocols[::-1])
    assert (again.generation_id, again.protocol_name) == (2, "sticky")


def test_a_static_members_new_id_is_taken_back_when_it_cannot_be_stored(harness):
    _, follower = stable_static_group(harness)
    harness.replica_manager.error = errors.NotEnoughReplicas("no")
    assert harness.join(instance_id="b").error_code == errors.CoordinatorNotAvailable.code
    assert harness.heartbeat(follower, instance_id="b") == 0


def test_a_static_member_that_comes_back_begins_a_session(harness):
    """Its client sends the first heartbeat only after the join: what the old one had left may be over by then."""
    leader, _ = stable_static_group(harness)
    session_ms = harness.group().members[leader.member_id].session_timeout_ms
    harness.advance(session_ms * 2 // 3)
    harness.heartbeat(leader, instance_id="a")
    harness.join(instance_id="b")
    harness.advance(session_ms * 2 // 3)
    harness.heartbeat(leader, instance_id="a")
    assert set(harness.group().static_members) == {"a", "b"}


def test_a_parked_request_under_the_old_id_of_a_static_member_is_fenced(harness):
    stable_static_group(harness)
    harness.join()  # a rebalance begins
    parked = harness.join(instance_id="b")
    again = harness.join(instance_id="b")
    assert parked.error_code == errors.FencedInstanceId.code
    assert again.waits


def test_a_static_member_is_removed_by_its_instance_id_alone(harness):
    stable_static_group(harness)
    assert harness.leave("", "b") == 0
    assert harness.leave("", "b") == errors.UnknownMemberId.code
    assert harness.state() == "PreparingRebalance"


def test_a_static_member_outlives_a_rebalance_it_missed_until_its_session_ends(harness):
    leader, _ = stable_static_group(harness)
    for _ in range(6):
        harness.advance(9_900)
        harness.heartbeat(leader, instance_id="a")
    assert set(harness.group().static_members) == {"a"}


# -- offsets


def test_a_consumer_without_group_management_commits_and_fetches(harness):
    answer = harness.commit({("t", 0): 10, ("t", 1): 20})
    assert answer.result == {("t", 0): 0, ("t", 1): 0}
    assert harness.committed() == {("t", 0): 10, ("t", 1): 20}
    offsets = harness.coordinator.offsets.fetch("g", [TopicPartition("t", 1), TopicPartition("u", 0)])
    assert [tuple(result) for result in offsets.values()] == [(20, -1, "", 0), (-1, -1, "", 0)]
    assert harness.coordinator.admin.list_groups()[1] == [("g", "", "Empty", "classic")]


def test_a_commit_keeps_metadata_and_leader_epoch(harness):
    harness.commit({("t", 0): OffsetAndMetadata(5, "note", 3, harness.time.milliseconds())})
    offsets = harness.coordinator.offsets.fetch("g", [TopicPartition("t", 0)])
    assert offsets[TopicPartition("t", 0)] == (5, 3, "note", 0)


def test_a_group_that_does_not_exist_has_no_offsets(harness):
    assert harness.coordinator.offsets.fetch("none", None) == {}
    tp = TopicPartition("t", 0)
    assert harness.coordinator.offsets.fetch("none", [tp]) == {tp: (-1, -1, "", 0)}


def test_commits_are_accepted_from_members_of_the_generation_only(harness):
    (join,) = harness.stable_group()

    def error_of(member_id, generation_id, group_id="g"):
        return harness.commit({("t", 0): 1}, member_id, generation_id, group_id).result["t", 0]

    assert error_of(join.member_id, 1) == 0
    assert error_of(join.member_id, 2) == errors.IllegalGeneration.code
    assert error_of("nobody", 1) == errors.UnknownMemberId.code
    assert error_of("", -1) == errors.UnknownMemberId.code
    assert error_of("m", 1, "no such group") == errors.IllegalGeneration.code
    harness.join(join.member_id + "x")
    assert error_of(join.member_id, 1) == 0


def test_a_commit_during_a_rebalance_is_accepted_before_the_new_generation_and_refused_in_it(harness):
    leader, follower = harness.stable_group(2)
    harness.join(leader.member_id)
    assert harness.commit({("t", 0): 1}, follower.member_id, 1).result == {("t", 0): 0}
    harness.join(follower.member_id)
    assert harness.state() == "CompletingRebalance"
    assert harness.commit({("t", 0): 2}, follower.member_id, 2).result == {("t", 0): errors.RebalanceInProgress.code}


def test_metadata_longer_than_the_limit_fails_its_partition_alone():
    harness = Harness(offset_metadata_max_bytes=5)
    long = OffsetAndMetadata(1, "123456", -1, 0)
    assert harness.commit({("t", 0): long, ("t", 1): 2}).result == {
        ("t", 0): errors.OffsetMetadataTooLarge.code,
        ("t", 1): 0,
    }
    assert harness.commit({("t", 0): long}).result == {("t", 0): errors.OffsetMetadataTooLarge.code}
    assert harness.committed() == {("t", 1): 2}


def test_a_pending_commit_is_unstable_for_requests_of_stable_offsets_and_the_old_value_for_others(harness):
    harness.commit({("t", 0): 1})
    harness.replica_manager.held = []
    answer = harness.commit({("t", 0): 2})
    assert answer.waits
    assert harness.committed() == {("t", 0): 1}
    offsets = harness.coordinator.offsets.fetch("g", None, require_stable=True)
    assert offsets[TopicPartition("t", 0)].error_code == errors.UnstableOffsetCommit.code
    harness.replica_manager.release()
    assert harness.committed(require_stable=True) == {("t", 0): 2}


@pytest.mark.parametrize(
    "append_error, expected",
    [
        (errors.NotEnoughReplicasAfterAppend, errors.CoordinatorNotAvailable),
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.RecordListTooLarge, errors.InvalidCommitOffsetSize),
        (errors.RequestTimedOut, errors.RequestTimedOut),
    ],
)
def test_a_commit_that_cannot_be_stored_changes_nothing_and_answers_the_reason(harness, append_error, expected):
    harness.commit({("t", 0): 1})
    harness.replica_manager.error = append_error("no")
    assert harness.commit({("t", 0): 2}).result == {("t", 0): expected.code}
    assert harness.committed(require_stable=True) == {("t", 0): 1}


def test_concurrent_commits_end_with_the_last_one_in_the_log(harness):
    answers = []

    def commit(first):
        for offset in range(first, 300, 4):
            answers.append(harness.commit({("t", 0): offset}))

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # While it ran, one thread may have been answered by another.
    assert [answer.result for answer in answers] == [{("t", 0): 0}] * 300
    last = harness.records()[-1]
    assert struct.unpack_from(">q", last.value, 2)[0] == harness.committed()["t", 0]
    assert len(harness.records()) == 300


def test_deleted_partitions_take_the_offsets_of_all_groups_along(harness):
    for group_id in ("g", "h"):
        harness.commit({("t", 0): 1, ("u", 0): 2}, group_id=group_id)
    harness.coordinator.partitions_deleted([TopicPartition("t", 0)])
    assert harness.committed("g") == harness.committed("h") == {("u", 0): 2}


def test_groups_are_gone_with_the_partition_of_the_offsets_topic_that_kept_them(harness):
    harness.commit({("t", 0): 1})
    kept_in = harness.coordinator.partition_for("g")
    Coordinators({"__consumer_offsets": harness.coordinator}).partitions_deleted(
        [TopicPartition("__consumer_offsets", kept_in)]
    )
    assert harness.group() is None
    assert harness.commit({("t", 0): 2}).result == {("t", 0): errors.NotCoordinator.code}


# -- random histories


@pytest.mark.parametrize("seed", range(15))
def test_every_request_of_a_random_history_is_answered_once_and_generations_agree(seed):
    """Members with random delays and crashes.  The harness fails on a second answer; here: all members of a
    generation are told the same leader and protocol, the leader alone is told the members, and in the end those who
    live share a stable generation."""
    rng = random.Random(seed)
    harness = Harness()
    generations = {}
    members = [{"id": "", "join": None, "sync": None, "alive": True} for _ in range(rng.randint(1, 6))]

    def step(member):
        join, sync = member["join"], member["sync"]
        if join is None:
            member["join"] = harness.join(member["id"], require_known_member_id=True)
        elif join.waits:
            return
        elif join.error_code:
            member["id"] = join.member_id if join.error_code == errors.MemberIdRequired.code else ""
            member["join"] = None
        elif sync is None:
            member["id"] = join.member_id
            about = generations.setdefault(join.generation_id, (join.leader_id, join.protocol_name))
            assert about == (join.leader_id, join.protocol_name), f"seed={seed}"
            assert bool(join.members) == (join.leader_id == join.member_id), f"seed={seed}"
            member["sync"] = harness.sync(join, {m.member_id: m.member_id.encode() for m in join.members})
        elif sync.waits:
            return
        elif sync.error_code:
            member["join"] = member["sync"] = None
            if sync.error_code == errors.UnknownMemberId.code:
                member["id"] = ""
        else:
            assert sync.assignment == member["id"].encode(), f"seed={seed}"
            error_code = harness.heartbeat(join)
            if error_code:
                member["join"] = member["sync"] = None
                if error_code == errors.UnknownMemberId.code:
                    member["id"] = ""

    for _ in range(300):
        member = rng.choice(members)
        if member["alive"]:
            step(member)
        if rng.random() < 0.01:
            member["alive"] = not member["alive"]
        harness.advance(rng.choice([0, 10, 500]))
    members[0]["alive"] = True
    alive = [member for member in members if member["alive"]]
    for _, member in itertools.product(range(200), alive):
        step(member)
        harness.advance(200)
    generations = {member["join"].generation_id for member in alive}
    assert len(generations) == 1, f"seed={seed}"
    assert harness.state() == "Stable", f"seed={seed}"
    assert set(harness.group().members) == {member["id"] for member in alive}, f"seed={seed}"
