"""A coordinator of consumer groups of KIP-848 on MockTime: answers, sessions, records, and what is loaded again."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_config import ConsumerGroupSettings
from kcore.coordinator.group.member_metadata import GroupMember

from .harness import Answer, Consumers, MixedGroup, assigned_numbers, code_of, of_t

SESSION_MS = 45_000


@pytest.fixture
def consumers():
    return Consumers()


def test_CG_13_the_assignment_is_told_at_a_join_when_it_changes_and_after_a_full_request(consumers):
    assert consumers.join_new("a").assignment == of_t(0, 1, 2, 3)
    assert consumers.beat("a", 1).assignment is None
    assert consumers.beat("a", 1, of_t(0, 1, 2, 3)).assignment is None
    full = consumers.beat("a", 1, of_t(0, 1, 2, 3), ("t",), rebalance_timeout_ms=60_000)
    assert full.assignment == of_t(0, 1, 2, 3)
    assert consumers.join_new("b").assignment == frozenset()
    assert consumers.beat("a", 1).assignment == of_t(0, 1)
    assert consumers.beat("a", 1).assignment is None
    told = consumers.beat("a", 1, of_t(0, 1))
    assert (told.member_epoch, told.assignment) == (2, None)
    assert consumers.beat("a", 1, of_t(0, 1)).assignment == of_t(0, 1)  # that answer was lost


def test_CG_07_CG_08_unknown_groups_and_members_are_refused(consumers):
    for epoch in (1, 5):
        assert consumers.beat("a", epoch).error_code == errors.GroupIdNotFound.code
    assert consumers.leave_new("a").error_code == errors.GroupIdNotFound.code
    consumers.join_new("a")
    assert consumers.beat("b", 1).error_code == errors.UnknownMemberId.code
    assert consumers.leave_new("b").error_code == errors.UnknownMemberId.code


def test_CG_06_CG_25_an_assignor_that_is_not_configured_is_refused_with_the_names_of_those_that_are(consumers):
    answer = consumers.join_new("a", assignor="mine")
    assert answer.error_code == errors.UnsupportedAssignor.code
    assert "uniform, range" in answer.error_message
    assert consumers.join_new("a", assignor="range").error_code == 0


def test_CG_09_a_full_group_takes_no_new_member_but_serves_those_it_has():
    consumers = Consumers(consumer_max_size=1)
    consumers.join_new("a", instance_id="i")
    assert consumers.join_new("b").error_code == errors.GroupMaxSizeReached.code
    assert consumers.beat("a", 1, instance_id="i").error_code == 0
    consumers.leave_new("a", -2, "i")
    assert consumers.join_new("c", instance_id="i").error_code == 0


def test_CG_37_a_member_that_is_silent_for_its_session_is_fenced_and_heartbeats_prolong_it(consumers):
    consumers.two_members()
    for _ in range(3):
        consumers.advance(SESSION_MS - 1)
        kept = consumers.beat("b", 2)
        if kept.assignment is not None:
            break
    assert list(consumers.value().members) == ["b"]
    assert consumers.beat("a", 2).error_code == errors.UnknownMemberId.code
    assert kept.assignment == of_t(0, 1, 2, 3)


def test_CG_53_the_session_of_a_member_is_as_long_as_its_group_has_it(consumers):
    own = {}
    consumers.coordinator.consumer_groups.settings_of = lambda group_id: (
        own.get(group_id) or consumers.config.settings(group_id)
    )
    consumers.join_new("a")
    consumers.join_new("a", group_id="short")
    own["short"] = ConsumerGroupSettings(1000, 100)
    consumers.advance(30_000)
    consumers.beat("a", 1, group_id="short")
    consumers.advance(999)
    assert list(consumers.value("short").members) == ["a"]
    consumers.advance(1)
    assert list(consumers.value("short").members) == []
    assert list(consumers.value().members) == ["a"]


def test_CG_38_a_member_that_does_not_give_up_in_time_is_fenced_though_it_sends_heartbeats(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.advance(20_000)
    consumers.beat("a", 1)
    consumers.beat("b", 2)
    consumers.advance(29_999)
    assert consumers.beat("a", 1).error_code == 0
    consumers.beat("b", 2)
    consumers.advance(1)
    assert consumers.beat("a", 1).error_code == errors.UnknownMemberId.code
    assert consumers.beat("b", 2).assignment == of_t(0, 1, 2, 3)


def test_CG_38_one_that_gives_up_in_time_is_not(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.beat("a", 1)
    consumers.beat("a", 1, of_t(0, 1))
    consumers.advance(30_000)
    assert consumers.beat("a", 2).error_code == 0


def test_CG_38_the_time_to_give_up_begins_anew_with_each_epoch(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.beat("a", 1)
    consumers.advance(20_000)
    consumers.beat("a", 1, of_t(0, 1))
    consumers.join_new("c")
    consumers.join_new("d")
    consumers.beat("a", 2)
    consumers.advance(29_999)
    assert consumers.beat("a", 2).error_code == 0
    consumers.advance(1)
    assert consumers.beat("a", 2).error_code == errors.UnknownMemberId.code


def test_CG_38_the_time_to_give_up_begins_anew_with_other_partitions_in_the_same_epoch(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.beat("a", 1)
    consumers.advance(20_000)
    consumers.join_new("c")
    consumers.join_new("d")
    kept = consumers.beat("a", 1, of_t(0, 1)).assignment
    assert consumers.value().members["a"].epoch == 1 and kept < of_t(0, 1)
    consumers.advance(29_999)
    assert consumers.beat("a", 1).error_code == 0
    consumers.advance(1)
    assert consumers.beat("a", 1).error_code == errors.UnknownMemberId.code


def test_a_change_after_a_restart_writes_what_has_changed_and_no_more(consumers):
    consumers.two_members()
    again = consumers.restarted()
    before = len(again.records())
    again.leave_new("b")
    types = [record.key[1] for record in again.records()[before:]]
    assert types == [8, 7, 5, 3]


def test_CG_39_CG_56_a_restarted_coordinator_has_the_group_and_each_member_a_new_session(consumers):
    consumers.two_members()
    consumers.advance(SESSION_MS - 1)
    again = consumers.restarted()
    assert again.value() == consumers.value()
    again.advance(SESSION_MS - 1)
    assert again.beat("a", 2).error_code == 0
    again.advance(1)
    assert list(again.value().members) == ["a"]


def test_a_restarted_coordinator_goes_on_in_the_middle_of_a_rebalance(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.beat("a", 1)
    again = consumers.restarted()
    again.beat("a", 1, of_t(0, 1))
    assert again.beat("b", 2).assignment == of_t(2, 3)
    late = consumers.restarted()
    assert late.value().state == "Stable"


def test_CG_39_a_restarted_coordinator_fences_who_still_has_to_give_up(consumers):
    consumers.join_new("a", rebalance_timeout_ms=30_000)
    consumers.join_new("b")
    consumers.beat("a", 1)
    again = consumers.restarted()
    again.advance(30_000)
    assert list(again.value().members) == ["b"]


def test_the_partition_moves_away_and_its_members_look_for_the_coordinator(consumers):
    consumers.two_members()
    consumers.coordinator.on_resignation(consumers.coordinator.partition_for("g"), 1)
    assert consumers.beat("a", 2).error_code == errors.NotCoordinator.code
    consumers.advance(SESSION_MS)
    again = consumers.restarted()
    assert set(again.value().members) == {"a", "b"}


def test_a_member_is_answered_when_its_records_are_in_the_log_and_so_is_who_asks_again(consumers):
    consumers.replica_manager.held = []
    first, again = consumers.join_new("a"), consumers.join_new("a")
    assert first.waits and again.waits
    consumers.replica_manager.release()
    assert first.assignment == again.assignment == of_t(0, 1, 2, 3)


def test_what_could_not_be_stored_is_refused_and_stored_with_the_next_heartbeat(consumers):
    consumers.two_members()
    consumers.replica_manager.error = errors.NotEnoughReplicas("")
    assert consumers.leave_new("b").error_code == errors.CoordinatorNotAvailable.code
    assert consumers.join_new("c").error_code == errors.CoordinatorNotAvailable.code
    consumers.replica_manager.error = None
    assert consumers.beat("a", 2).error_code == 0
    assert consumers.restarted().value() == consumers.value()
    assert set(consumers.value().members) == {"a", "c"}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.RequestTimedOut, errors.CoordinatorNotAvailable),
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.MessageTooLarge, errors.UnknownServerError),
    ],
)
def test_CG_15_errors_of_the_log_are_those_at_which_a_client_tries_again(consumers, error, expected):
    consumers.replica_manager.error = error("")
    assert consumers.join_new("a").error_code == expected.code


def test_while_another_broker_may_have_the_group_no_client_ends_because_of_its_instance_id(consumers):
    consumers.join_new("a", instance_id="i")
    refused = {
        True: (errors.UnreleasedInstanceId.code, errors.FencedInstanceId.code),
        False: (errors.NotCoordinator.code, errors.NotCoordinator.code),
    }
    for is_certain, expected in refused.items():
        consumers.coordinator.manager.is_certain = lambda is_certain=is_certain: is_certain
        answers = consumers.join_new("b", instance_id="i"), consumers.beat("b", 1, instance_id="i")
        assert tuple(answer.error_code for answer in answers) == expected
        assert consumers.beat("a", 1).error_code == 0


# -- the other protocol


def test_CG_54_an_empty_classic_group_becomes_one_of_the_new_protocol_and_keeps_its_offsets(consumers):
    (join,) = consumers.stable_group()
    consumers.commit({("t", 0): 5}, join.member_id, join.generation_id)
    assert consumers.join_new("a").error_code == errors.GroupIdNotFound.code
    assert "is not a consumer group" in consumers.join_new("a").error_message
    consumers.leave(join.member_id)
    assert consumers.join_new("a").error_code == 0
    assert consumers.committed() == {("t", 0): 5}
    again = consumers.restarted()
    assert (again.value().state, again.committed()) == ("Stable", {("t", 0): 5})


def test_offsets_stay_when_an_empty_group_is_one_of_the_classic_protocol_again(consumers):
    consumers.join_new("a")
    assert commit(consumers, "a", 1, has_member_epochs=True) == 0
    consumers.leave_new("a")
    consumers.stable_group()
    assert consumers.state() == "Stable"
    again = consumers.restarted()
    assert (again.state(), again.committed()) == ("Stable", {("t", 0): 7})
    assert code_of(again.value) == errors.GroupIdNotFound.code


def test_a_group_that_had_members_of_the_new_protocol_is_gone_when_it_is_deleted_before_its_next_write(consumers):
    """A member of the classic protocol has asked for an id; no record of that protocol has been written."""
    consumers.join_new("a")
    consumers.leave_new("a")
    assert consumers.join(require_known_member_id=True).error_code == errors.MemberIdRequired.code
    assert consumers.delete_groups("g") == {"g": 0}
    assert consumers.restarted().group() is None
    assert set({record.key: record.value for record in consumers.records()}.values()) == {None}


def test_classic_requests_of_a_member_of_the_new_protocol_are_of_an_unknown_member(consumers):
    consumers.join_new("a")
    assert code_of(consumers.coordinator.heartbeat, "g", "a", None, 1) == errors.UnknownMemberId.code


def test_a_group_that_was_classic_once_is_gone_when_it_is_deleted(consumers):
    (join,) = consumers.stable_group()
    consumers.leave(join.member_id)
    consumers.join_new("a")
    again = consumers.restarted()
    again.leave_new("a")
    assert again.delete_groups("g") == {"g": 0}
    assert again.restarted().group() is None


# -- offsets


def commit(consumers, member_id, epoch, **more):
    answer = Answer()
    consumers.coordinator.offsets.commit(
        "g", member_id, None, epoch, {TopicPartition("t", 0): OffsetAndMetadata(7)}, answer, **more
    )
    return answer.result[TopicPartition("t", 0)]


def test_CG_43_CG_44_CG_45_offsets_are_taken_from_members_in_their_epoch_and_from_anybody_while_there_is_none(
    consumers,
):
    consumers.join_new("a")
    assert commit(consumers, "a", 1, has_member_epochs=True) == 0
    assert commit(consumers, "a", 0, has_member_epochs=True) == errors.StaleMemberEpoch.code
    assert commit(consumers, "a", 2, has_member_epochs=True) == errors.StaleMemberEpoch.code
    assert commit(consumers, "b", 1, has_member_epochs=True) == errors.UnknownMemberId.code
    assert commit(consumers, "", -1, has_member_epochs=True) == errors.UnknownMemberId.code
    assert commit(consumers, "a", 1) == errors.UnsupportedVersion.code
    consumers.leave_new("a")
    assert commit(consumers, "", -1, has_member_epochs=True) == 0
    answer = Answer()
    consumers.coordinator.offsets.commit(
        "none", "a", None, 1, {TopicPartition("t", 0): OffsetAndMetadata(7)}, answer, has_member_epochs=True
    )
    assert set(answer.result.values()) == {errors.GroupIdNotFound.code}


def test_CG_46_offsets_are_told_to_members_in_their_epoch_and_to_who_is_none(consumers):
    consumers.join_new("a")
    fetch = consumers.coordinator.offsets.fetch
    for member in ((None, -1), ("a", 1)):
        assert code_of(fetch, "g", None, False, member) == 0
    assert code_of(fetch, "g", None, False, ("a", 2)) == errors.StaleMemberEpoch.code
    assert code_of(fetch, "g", None, False, ("b", 1)) == errors.UnknownMemberId.code
    assert code_of(fetch, "g", None, False, (None, 1)) == errors.UnknownMemberId.code


def test_offsets_of_a_transaction_need_the_epoch_of_the_member(consumers):
    consumers.join_new("a")
    for epoch, expected in ((1, 0), (2, errors.IllegalGeneration.code)):
        answer = Answer()
        consumers.coordinator.offsets.commit_in_transaction(
            "g", GroupMember("a", None, epoch), (9, 0), {TopicPartition("t", 0): OffsetAndMetadata(7)}, answer
        )
        assert set(answer.result.values()) == {expected}


def test_CG_48_offsets_expire_by_their_commit_when_nobody_subscribes_and_the_group_goes_without_a_trace():
    consumers = Consumers(offsets_retention_minutes=1)
    consumers.join_new("a")
    assert commit(consumers, "a", 1, has_member_epochs=True) == 0
    for _ in range(4):
        consumers.advance(40_000)
        consumers.beat("a", 1)
    consumers.coordinator.manager.cleanup_expired_offsets()
    assert consumers.committed() == {("t", 0): 7}
    consumers.leave_new("a")
    consumers.coordinator.manager.cleanup_expired_offsets()
    assert consumers.group() is None
    again = consumers.restarted()
    assert again.group() is None
    assert {record.value for record in consumers.records()[-3:]} == {None}


# -- administration


def test_CG_51_groups_are_listed_with_type_and_state(consumers):
    consumers.join_new("a")
    consumers.commit({("t", 0): 5}, group_id="simple")
    listed = consumers.coordinator.admin.list_groups()[1]
    assert sorted((one.group_id, one.state, one.group_type) for one in listed) == [
        ("g", "Stable", "consumer"),
        ("simple", "Empty", "classic"),
    ]
    for states, types, expected in (
        (["STABLE"], [], ["g"]),
        ([], ["Consumer"], ["g"]),
        ([], ["classic"], ["simple"]),
        (["empty"], ["consumer"], []),
        ([], ["share"], []),
    ):
        assert [one.group_id for one in consumers.coordinator.admin.list_groups(states, types)[1]] == expected


def test_CG_52_only_a_group_without_members_is_deleted_and_subscribed_topics_keep_their_offsets(consumers):
    consumers.join_new("a")
    commit(consumers, "a", 1, has_member_epochs=True)
    assert consumers.delete_groups("g") == {"g": errors.NonEmptyGroup.code}
    tp = TopicPartition("t", 0)
    assert consumers.delete_offsets(tp) == {tp: errors.GroupSubscribedToTopic.code}
    consumers.leave_new("a")
    assert consumers.delete_groups("g") == {"g": 0}
    assert consumers.restarted().group() is None


def test_CG_50_the_classic_description_of_such_a_group_is_dead(consumers):
    consumers.join_new("a")
    assert consumers.state() == "Dead"


def test_CG_18_a_new_target_is_computed_at_a_heartbeat_after_the_interval_and_until_then_the_old_one_holds():
    consumers = Consumers(consumer_assignment_interval_ms=1000)
    assert consumers.join_new("a").assignment == of_t(0, 1, 2, 3)  # the first one at once
    consumers.advance(400)
    joined = consumers.join_new("b")
    assert (joined.member_epoch, joined.assignment) == (1, frozenset())
    assert (consumers.value().epoch, consumers.value().assignment_epoch, consumers.value().state) == (2, 1, "Assigning")
    consumers.join_new("c")
    assert consumers.beat("a", 1).assignment is None
    again = consumers.restarted()
    assert again.value() == consumers.value()
    consumers.advance(599)
    consumers.beat("a", 1)
    assert consumers.value().assignment_epoch == 1
    consumers.advance(1)
    assert len(consumers.beat("a", 1).assignment) == 2
    assert (consumers.value().epoch, consumers.value().assignment_epoch) == (3, 3)


def test_CG_18_topics_that_change_within_the_interval_raise_the_epoch_once():
    consumers = Consumers(consumer_assignment_interval_ms=1000)
    consumers.join_new("a")
    consumers.topics["t"] = consumers.topics["t"]._replace(num_partitions=6)
    for _ in range(3):
        consumers.beat("a", 1)
    assert (consumers.value().epoch, consumers.value().assignment_epoch) == (2, 1)
    consumers.advance(1000)
    assert consumers.beat("a", 1).assignment == of_t(0, 1, 2, 3, 4, 5)


def test_CG_18_a_classic_member_that_joins_within_the_interval_gets_its_share_after_it():
    mixed = MixedGroup(consumer_assignment_interval_ms=1000)
    mixed.join_new("a")
    mixed.advance(400)
    join = mixed.join_classic()
    synced = mixed.sync(join)
    assert (join.error_code, join.generation_id) == (0, 1)
    assert (synced.error_code, assigned_numbers(synced.assignment)) == (0, set())
    assert (mixed.value().epoch, mixed.value().assignment_epoch) == (2, 1)
    mixed.advance(599)
    assert mixed.heartbeat(join) == 0
    mixed.advance(1)
    assert mixed.heartbeat(join) == errors.RebalanceInProgress.code
    assert mixed.value().assignment_epoch == 2
    kept = mixed.beat("a", 1).assignment
    mixed.beat("a", 1, kept)
    assert mixed.rejoin_and_sync(join) == (2, set(range(4)) - {number for _, number in kept})


def test_CG_18_classic_members_are_told_to_join_again_when_there_is_a_target_for_it():
    """A JoinGroup before that changes nothing, and the next heartbeat would ask for another one."""
    mixed = MixedGroup(consumer_assignment_interval_ms=1000)
    mixed.join_new("a")
    mixed.advance(1000)
    join = mixed.join_classic()
    mixed.sync(join)
    mixed.join_new("b")
    assert (mixed.value().epoch, mixed.value().assignment_epoch) == (3, 2)
    assert mixed.heartbeat(join) == mixed.sync(join).error_code == 0
    mixed.advance(1000)
    assert mixed.heartbeat(join) == errors.RebalanceInProgress.code


def test_CG_12_what_a_heartbeat_leaves_out_is_unchanged_and_it_keeps_the_session_alive(consumers):
    consumers.join_new("a", instance_id="i", rack_id="r", assignor="range", regex="none")
    before = consumers.value()
    for _ in range(5):
        consumers.advance(SESSION_MS - 1)
        assert consumers.beat("a", before.members["a"].epoch).error_code == 0
        assert consumers.beat("a", before.members["a"].epoch, regex=None, assignor=None).error_code == 0
    assert (consumers.value().members, consumers.value().epoch) == (before.members, before.epoch)
    member = before.members["a"]
    assert (member.instance_id, member.rack_id, member.topics, member.assignor, member.regex) == (
        *("i", "r", ("t",)),
        "range",
        "none",
    )
    consumers.advance(SESSION_MS)
    assert consumers.value().members == {}


def test_CG_19_the_state_of_a_member_is_in_its_record(consumers):
    def states():
        """The state of each member, by the last record of type 8: an int8 after int16 version and two int32 epochs."""
        last = {bytes(r.key): r.value for r in consumers.records() if r.key[:2] == b"\0\x08"}
        return {key[-1:].decode(): value[10] for key, value in last.items()}

    consumers.join_new("a")
    assert states() == {"a": 0}
    consumers.join_new("b")
    assert states() == {"a": 0, "b": 2}
    consumers.beat("a", 1)
    assert states() == {"a": 1, "b": 2}
    assert {m.member_id: int(m.state) for m in consumers.restarted().value().members.values()} == {"a": 1, "b": 2}
    consumers.beat("a", 1, of_t(0, 1))
    consumers.beat("b", 2)
    assert states() == {"a": 0, "b": 0}


def test_CG_23_the_states_of_a_group(consumers):
    def listed():
        return [group.state for group in consumers.coordinator.admin.list_groups()[1]]

    consumers.join_new("a")
    assert (consumers.value().state, listed()) == ("Stable", ["Stable"])
    consumers.join_new("b")
    assert (consumers.value().state, listed()) == ("Reconciling", ["Reconciling"])
    consumers.leave_new("b")
    assert (consumers.value().state, listed()) == ("Assigning", ["Assigning"])
    consumers.beat("a", 1)
    assert consumers.value().state == "Stable"
    consumers.leave_new("a")
    assert (consumers.value().state, listed()) == ("Empty", ["Empty"])
    consumers.delete_groups("g")
    assert listed() == []
    assert code_of(consumers.value) == errors.GroupIdNotFound.code


# -- groups that a request would have made


def listed(consumers):
    return [group.group_id for group in consumers.coordinator.admin.list_groups()[1]]


def test_a_refused_join_makes_no_group(consumers):
    for refused in (consumers.join_new("m" * 40_000), consumers.join_new("a", topics=None, regex="(")):
        assert refused.error_code in (errors.UnknownServerError.code, errors.InvalidRegularExpression.code)
        assert listed(consumers) == [] and consumers.group() is None
    assert consumers.join_new("a").error_code == 0
    assert listed(consumers) == ["g"]


def test_a_refused_join_leaves_a_group_that_a_refused_classic_join_has_made():
    """In Kafka that writes a record of the empty group."""
    mixed = MixedGroup()
    assert mixed.join(protocols=[]).error_code == errors.InconsistentGroupProtocol.code
    assert listed(mixed) == ["g"]
    assert mixed.join_new("a", topics=None, regex="(").error_code == errors.InvalidRegularExpression.code
    assert listed(mixed) == ["g"]


@pytest.mark.parametrize("how", ["commit", "commit in a transaction", "join", "join without an id"])
def test_a_refused_join_leaves_a_group_that_another_request_makes_meanwhile(how):
    mixed, answers = MixedGroup(), []
    manager = mixed.coordinator.manager
    find_group = manager.find_group
    mixed.replica_manager.held = []

    def make_meanwhile(*args, create=False, **more):
        if create:
            manager.find_group = find_group
            if how == "commit":
                answers.append(mixed.commit({("t", 0): 1}))
            elif how == "commit in a transaction":
                answers.append(Answer())
                offsets = {TopicPartition("t", 0): OffsetAndMetadata(1)}
                mixed.coordinator.offsets.commit_in_transaction("g", GroupMember(), (7, 0), offsets, answers[0])
            else:
                answers.append(mixed.join(require_known_member_id=how == "join without an id"))
        return find_group(*args, create=create, **more)

    manager.find_group = make_meanwhile
    assert mixed.join_new("a", topics=None, regex="(").error_code == errors.InvalidRegularExpression.code
    assert listed(mixed) == ["g"]
    mixed.replica_manager.release()
    if how == "join without an id":
        assert mixed.join(answers[0].member_id).waits
    elif how == "join":
        mixed.advance(3_000)
        assert answers[0].error_code == 0
    else:
        assert answers[0].result == {("t", 0): 0}
        assert mixed.group().all_offset_partitions() == {("t", 0)}


def test_a_refused_join_leaves_a_group_whose_records_of_the_new_protocol_are_still_to_be_removed():
    """Of a member that came and left meanwhile, before a classic one that came and left too."""
    mixed = MixedGroup()
    manager = mixed.coordinator.manager
    find_group = manager.find_group

    def come_and_leave_meanwhile(*args, create=False, **more):
        if create:
            manager.find_group = find_group
            mixed.join_new("b")
            assert mixed.leave_new("b").error_code == 0
            classic = mixed.join(require_known_member_id=True)
            assert mixed.leave(classic.member_id) == 0
        return find_group(*args, create=create, **more)

    manager.find_group = come_and_leave_meanwhile
    assert mixed.join_new("a", topics=None, regex="(").error_code == errors.InvalidRegularExpression.code
    assert listed(mixed) == ["g"]
    assert mixed.delete_groups("g") == {"g": 0}
    assert mixed.restarted().group() is None


def test_a_request_that_has_found_a_group_which_a_refused_join_made_is_told_to_try_again(consumers):
    manager, answers, found = consumers.coordinator.manager, [], []
    find_group = manager.find_group

    def remember(*args, **more):
        found.append(find_group(*args, **more))
        return found[-1]

    manager.find_group = remember
    answers.append(consumers.join_new("a", topics=None, regex="("))
    manager.find_group = lambda *args, **more: found[-1]
    answers.append(consumers.join_new("a"))
    manager.find_group = find_group
    answers.append(consumers.join_new("a"))
    codes = [errors.InvalidRegularExpression.code, errors.CoordinatorNotAvailable.code, 0]
    assert [answer.error_code for answer in answers] == codes
    assert listed(consumers) == ["g"]
