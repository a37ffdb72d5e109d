"""Groups of both protocols where a write does not fit the log or takes too long, and where nobody of the new protocol
sends a heartbeat."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.group_config import MigrationPolicy
from kcore.coordinator.group.member_metadata import LeavingMember
from kcore.log.log_config import LogConfig

from .harness import OFFSETS_TOPIC, MixedGroup, T, of_t

#: Bytes of a subscription that no batch of __consumer_offsets can take.
TOO_MANY_BYTES = 1_100_000


@pytest.fixture
def mixed():
    return MixedGroup()


def large_classic(mixed, member_id="", num_bytes=TOO_MANY_BYTES):
    """JoinGroup of a member whose subscription is so large."""
    name = "n" * 1000
    return mixed.join_classic(member_id, topics=[f"{name}{number}" for number in range(num_bytes // 1000)])


# -- writes that are too large


def test_a_member_whose_record_fits_no_batch_is_refused_and_the_group_goes_on(mixed):
    mixed.join_new("new")
    before = mixed.value()
    assert large_classic(mixed).error_code == errors.UnknownServerError.code
    assert mixed.value() is before
    assert mixed.join_new("other").error_code == 0
    assert set(mixed.restarted().value().members) == {"new", "other"}


def test_a_member_that_wants_more_than_fits_a_batch_keeps_what_it_had(mixed):
    mixed.join_new("new")
    join = mixed.join_classic()
    before = mixed.value()
    assert large_classic(mixed, join.member_id).error_code == errors.UnknownServerError.code
    assert mixed.value() is before
    assert mixed.join_new("other").error_code == 0
    assert set(mixed.restarted().value().members) == {"new", "other", join.member_id}


def test_a_classic_group_that_fits_no_batch_as_one_of_the_new_protocol_stays_as_it_is(mixed):
    """Its own record has each member's subscription once; those of the new protocol have the topics besides."""
    join = large_classic(mixed, num_bytes=600_000)
    mixed.advance(3_000)
    assert mixed.sync(join, {join.member_id: b""}).error_code == 0
    answer = mixed.join_new("new")
    assert answer.error_code == errors.UnknownServerError.code
    assert "fit no batch of __consumer_offsets" in answer.error_message
    assert (mixed.state(), mixed.heartbeat(join)) == ("Stable", 0)
    assert mixed.restarted().state() == "Stable"


def test_topics_of_a_regular_expression_that_fit_no_batch_are_left_out(mixed, caplog):
    mixed.join_new("new")
    name = "n" * 240
    mixed.topics |= {f"{name}{number:05}": mixed.topics["t"] for number in range(TOO_MANY_BYTES // 245)}
    mixed.join_new("pattern", topics=None, regex="n+[0-9]+")
    mixed.scheduler.tick()
    assert mixed.value().resolved == {}
    assert "a change is refused" in caplog.text
    assert mixed.join_new("other").error_code == 0
    assert set(mixed.restarted().value().members) == {"new", "pattern", "other"}


def test_members_whose_records_failed_one_by_one_are_written_again_in_as_many_batches_as_they_need(mixed):
    mixed.join_new("new")
    joins = [large_classic(mixed, num_bytes=200_000) for _ in range(4)]  # a record of 400 kB each: topics and metadata
    mixed.replica_manager.error = errors.NotEnoughReplicas("")
    for join in joins:
        assert large_classic(mixed, join.member_id, num_bytes=201_000).error_code != 0
    mixed.replica_manager.error = None
    assert mixed.beat("new", mixed.value().members["new"].epoch).error_code == 0
    assert mixed.restarted().value() == mixed.value()


def limited(mixed, max_message_bytes):
    for log in mixed.replica_manager.logs.values():
        log.config = LogConfig(max_message_bytes=max_message_bytes)


def many_members(mixed):
    """Ids of members, whose records a batch of 3000 bytes cannot take together."""
    mixed.topics["t"] = TopicOfGroup(T, 60)
    members = [f"member-{number:02}-{'m' * 40}" for number in range(30)]
    for member_id in members:
        assert mixed.join_new(member_id).error_code == 0
    limited(mixed, 3000)
    return members


def all_beat(mixed, members):
    """Error codes of a heartbeat of each, with another subscription."""
    epochs = {member_id: member.epoch for member_id, member in mixed.value().members.items()}
    return {mixed.beat(m, epochs[m], frozenset(), ["t", "u"]).error_code for m in members}


def test_targets_that_fit_no_batch_are_refused_until_the_topic_takes_them_or_members_have_left(mixed):
    """As Kafka does, whose coordinator writes a change as one batch or not at all."""
    members = many_members(mixed)
    all_beat(mixed, members)
    mixed.topics["t"] = TopicOfGroup(T, 200)
    mixed.advance(1_000)
    before = mixed.value()
    assert all_beat(mixed, members) == {errors.UnknownServerError.code}
    refusal = mixed.beat(members[0], mixed.value().members[members[0]].epoch)
    assert "raise its max.message.bytes" in refusal.error_message
    assert mixed.value() is before
    assert mixed.restarted().value() == before
    for member_id in members[3:]:
        assert mixed.leave_new(member_id).error_code == 0
    assert all_beat(mixed, members[:3]) == {0}
    assert mixed.value().targets != before.targets
    limited(mixed, 1_000_000)
    for member_id in members[3:]:
        assert mixed.join_new(member_id).error_code == 0
    mixed.advance(1_000)
    assert all_beat(mixed, members) == {0}
    assert mixed.restarted().value() == mixed.value()


def test_targets_whose_writes_failed_are_written_again_in_as_many_batches_as_they_need(mixed):
    members = many_members(mixed)
    mixed.replica_manager.error = errors.NotEnoughReplicas("")
    assert all_beat(mixed, members) == {errors.CoordinatorNotAvailable.code}
    mixed.replica_manager.error = None
    assert all_beat(mixed, members) == {0}
    assert mixed.restarted().value() == mixed.value()


def test_many_members_that_leave_by_one_request_are_removed_in_as_many_batches_as_that_needs(mixed):
    *gone, last = many_members(mixed)
    left = mixed.leave_together([LeavingMember(member_id, None) for member_id in gone])
    assert {result.error_code for result in left.members} == {0}
    assert set(mixed.restarted().value().members) == {last}
    assert all_beat(mixed, [last]) == {0}
    assert mixed.restarted().value() == mixed.value()


@pytest.mark.parametrize("num_written", range(1, 4))
def test_what_is_in_the_log_of_a_write_of_several_batches_is_its_first_part_and_a_new_target_follows(
    mixed, num_written
):
    members = many_members(mixed)
    manager = mixed.replica_manager
    manager.error = errors.NotEnoughReplicas("")
    all_beat(mixed, members)
    manager.error, manager.held = None, []
    answer = mixed.beat(members[0], mixed.value().members[members[0]].epoch)
    held, manager.held = manager.held, None
    assert len(held) > num_written + 1
    for append in held[:num_written]:
        append()
    manager.error = errors.NotEnoughReplicas("")
    for append in held[num_written:]:
        append()
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    manager.error = None
    again = mixed.restarted()
    assert again.value().epoch == mixed.value().epoch > again.value().assignment_epoch
    all_beat(again, members)
    assert again.value().assignment_epoch == again.value().epoch


def test_after_a_batch_that_could_not_be_appended_no_other_of_its_write_is(mixed):
    members = many_members(mixed)
    manager = mixed.replica_manager
    manager.error = errors.NotEnoughReplicas("")
    all_beat(mixed, members)
    before, log = mixed.records(), manager.logs[mixed.coordinator.partition_for("g")]
    manager.error, appends = None, []
    append = log.append

    def append_but_the_second(batch):
        appends.append(batch)
        if len(appends) == 2:
            raise errors.MessageTooLarge("as it happens")
        return append(batch)

    log.append = append_but_the_second
    answer = mixed.beat(members[0], mixed.value().members[members[0]].epoch)
    assert (answer.error_code, len(appends)) == (errors.UnknownServerError.code, 2)
    assert len(mixed.records()) > len(before)
    log.append = append
    assert all_beat(mixed, members) == {0}
    assert mixed.restarted().value() == mixed.value()


def test_an_answer_waits_for_all_batches_of_such_a_write_and_has_the_error_of_any(mixed):
    mixed.join_new("new")
    joins = [large_classic(mixed, num_bytes=200_000) for _ in range(6)]
    manager = mixed.replica_manager
    manager.error = errors.NotEnoughReplicas("")
    for join in joins:
        large_classic(mixed, join.member_id, num_bytes=201_000)
    manager.error, manager.held = None, []
    epoch = mixed.value().members["new"].epoch
    answer = mixed.beat("new", epoch)
    held, manager.held = manager.held, None
    assert len(held) > 2
    manager.error = errors.NotEnoughReplicas("")
    held[0]()
    manager.error = None
    for append in held[1:]:
        assert answer.waits
        append()
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    assert mixed.beat("new", epoch, frozenset()).error_code == 0
    assert mixed.restarted().value() == mixed.value()


def test_a_group_that_fits_no_batch_as_a_classic_one_goes_on_as_it_is_until_it_does(mixed):
    mixed.topics["t"] = TopicOfGroup(T, 6)
    mixed.join_new("new")
    joins = [large_classic(mixed, num_bytes=350_000) for _ in range(4)]
    assert mixed.leave_new("new").error_code == 0
    assert set(mixed.value().members) == {join.member_id for join in joins}
    assert mixed.restarted().value() == mixed.value()
    mixed.topics |= {f"{'n' * 1000}0": TopicOfGroup(T, 8)}
    for join in joins:
        again = large_classic(mixed, join.member_id, num_bytes=350_000)
        assert (again.error_code, mixed.sync(again).error_code) == (0, 0)
        assert mixed.heartbeat(again) in (0, errors.RebalanceInProgress.code)
    for join in joins[:2]:
        assert mixed.leave(join.member_id) == 0
    assert mixed.state() == mixed.restarted().state() == "PreparingRebalance"
    assert set(mixed.group().members) == {join.member_id for join in joins[2:]}


def test_a_group_whose_former_records_fit_no_batch_with_those_of_a_classic_one_goes_on_as_it_is(mixed):
    """The record of the classic group alone would fit, but the tombstones come before it in the same batch."""
    gone = [f"member-{number:02}-{'m' * 40}" for number in range(30)]
    for member_id in gone:
        mixed.join_new(member_id)
    join = mixed.join_classic()
    limited(mixed, 3000)
    left = mixed.leave_together([LeavingMember(member_id, None) for member_id in gone])
    assert {result.error_code for result in left.members} == {0}
    assert set(mixed.value().members) == {join.member_id}
    assert mixed.restarted().value() == mixed.value()
    mixed.topics["t"] = TopicOfGroup(T, 6)
    mixed.advance(1_000)
    again = mixed.join_classic(join.member_id)
    assert mixed.sync(again, {join.member_id: b""}).error_code == 0
    assert mixed.state() == mixed.restarted().state() == "Stable"


def test_tombstones_of_the_other_protocol_that_fit_no_batch_with_a_change_are_in_one_before_it(mixed):
    manager = mixed.coordinator.manager
    group, answers = manager.find_group("g", create=True), []
    record = (b"\0\x63", b"v" * 2000)
    log = mixed.replica_manager.get_partition(TopicPartition(OFFSETS_TOPIC, manager.partition_for("g"))).local_log()
    log.config = LogConfig(max_message_bytes=3000)
    with group:
        assert manager.fits_batch(group, [record])
        group.first_records = tuple((b"\0\x63" + b"k" * 500 + bytes([number]), None) for number in range(4))
        assert not manager.fits_batch(group, [record])
        manager.store_records(group, [record], answers.append)
    assert answers == [None]
    assert [record.value for record in log.records()] == [None] * 4 + [b"v" * 2000]
    assert group.first_records == ()


# -- writes that fail while others are under way


def during_the_next_append(mixed, act):
    """act() while the next write is being appended, as another thread could, and that write fails."""
    manager = mixed.replica_manager
    append_records = manager.append_records

    def append_and_fail(*args):
        manager.append_records = append_records
        act()
        manager.error = errors.NotEnoughReplicas("one is missing")
        append_records(*args)
        manager.error = None

    manager.append_records = append_and_fail


def holders(mixed):
    """Of each partition that a member has, as the next coordinator reads it, the members that have it."""
    found = {}
    for member in mixed.restarted().value().members.values():
        for _, number in member.held:
            found.setdefault(number, []).append(member.member_id)
    return found


def test_a_write_that_builds_on_one_that_failed_is_not_in_the_log_either(mixed):
    """Else b would have there what a, whose removal is not there, has too: both would read it after a move."""
    mixed.two_members()
    answers = []
    during_the_next_append(mixed, lambda: answers.append(mixed.beat("b", 2)))
    assert mixed.leave_new("a").error_code == errors.CoordinatorNotAvailable.code
    (answer,) = answers
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    assert holders(mixed) == {0: ["a"], 1: ["a"], 2: ["b"], 3: ["b"]}
    assert mixed.beat("b", 2, of_t(2, 3)).error_code == 0
    assert holders(mixed) == {number: ["b"] for number in range(4)}
    assert mixed.restarted().value() == mixed.value()


def leave_is_partly_refused(mixed, meanwhile=lambda: None):
    """a's leave is written as two batches: the first is in the log and waits for followers, the second is refused.

    meanwhile: done before the second.
    """
    manager = mixed.replica_manager
    append_records, appends = manager.append_records, []

    def append_the_first(*args):
        appends.append(args)
        if len(appends) == 1:
            append_records(*args)
            limited(mixed, 1_000_000)
            meanwhile()
        else:
            manager.append_records, manager.error = append_records, errors.NotEnoughReplicas("one is missing")
            append_records(*args)
            manager.error = None

    manager.append_records, manager.unanswered = append_the_first, []
    limited(mixed, 110)
    left = mixed.leave_new("a")
    assert (left.waits, len(appends)) == (True, 2)
    return left


def test_what_follows_a_write_of_which_a_batch_was_refused_does_not_build_on_it_though_another_batch_waits(mixed):
    mixed.two_members()
    left = leave_is_partly_refused(mixed)
    answer = mixed.beat("b", 2, of_t(2, 3))
    assert holders(mixed) == {number: ["b"] for number in range(4)}
    mixed.replica_manager.answer(2)
    assert (left.error_code, answer.error_code) == (errors.CoordinatorNotAvailable.code, 0)
    assert mixed.restarted().value() == mixed.value()
    before = len(mixed.records())
    mixed.replica_manager.unanswered = None
    assert mixed.beat("b", mixed.value().members["b"].epoch).error_code == 0
    assert len(mixed.records()) == before  # what the failed write should have brought was written once


def test_what_was_under_way_when_a_batch_before_it_was_refused_is_not_in_the_log_though_another_batch_waits(mixed):
    mixed.two_members()
    answers = []
    left = leave_is_partly_refused(mixed, lambda: answers.append(mixed.beat("b", 2, of_t(2, 3))))
    assert answers[0].error_code == errors.CoordinatorNotAvailable.code
    assert all(len(members) == 1 for members in holders(mixed).values())
    mixed.replica_manager.answer(1)
    assert left.error_code == errors.CoordinatorNotAvailable.code


def test_of_a_new_group_the_log_has_no_member_without_those_before_it(mixed):
    answers = []
    during_the_next_append(mixed, lambda: answers.append(mixed.join_new("b")))
    assert mixed.join_new("a").error_code == answers[0].error_code == errors.CoordinatorNotAvailable.code
    assert mixed.restarted().group() is None
    assert mixed.join_new("b").error_code == 0
    assert mixed.restarted().value() == mixed.value()


# -- writes that take too long


def test_CG_15_the_leave_that_downgrades_a_group_is_answered_as_each_leave_when_the_log_takes_too_long(mixed):
    mixed.classic_group({0, 1})
    mixed.join_new("new")
    mixed.replica_manager.error = errors.RequestTimedOut("")
    assert mixed.leave_new("new").error_code == errors.CoordinatorNotAvailable.code


def test_a_leave_group_of_a_group_of_the_new_protocol_is_answered_when_it_is_in_the_log(mixed):
    mixed.two_members()
    leaving = [LeavingMember("a"), LeavingMember("nobody")]
    mixed.replica_manager.held = []
    left = mixed.leave_together(leaving)
    assert left.waits
    mixed.replica_manager.release()
    assert (left.error_code, [one.error_code for one in left.members]) == (0, [0, errors.UnknownMemberId.code])
    assert set(mixed.restarted().value().members) == {"b"}


@pytest.mark.parametrize("is_downgrade", [False, True])
@pytest.mark.parametrize("error", [errors.NotEnoughReplicas, errors.RequestTimedOut])
def test_a_leave_group_that_does_not_reach_the_log_is_answered_with_an_error(mixed, error, is_downgrade):
    mixed.join_new("a")
    if is_downgrade:
        mixed.join_classic()
    mixed.replica_manager.error = error("")
    left = mixed.leave_together([LeavingMember("a")])
    assert (left.error_code, left.members) == (errors.CoordinatorNotAvailable.code, [])


# -- a group of the new protocol with classic members alone


def classic_members_alone(mixed):
    """Of a broker that may not downgrade the group: it, and the answer to the JoinGroup of the member that is left."""
    mixed.join_new("new")
    join = mixed.join_classic()
    strict = mixed.restarted(consumer_migration_policy=MigrationPolicy.UPGRADE)
    strict.leave_new("new")
    again = strict.join_classic(join.member_id)
    assert strict.sync(again).error_code == strict.heartbeat(again) == 0
    return strict, again


def test_CG_30_classic_members_alone_hear_of_new_partitions_at_their_next_heartbeat(mixed):
    mixed, join = classic_members_alone(mixed)
    mixed.topics["t"] = TopicOfGroup(T, 6)
    assert mixed.heartbeat(join) == errors.RebalanceInProgress.code
    assert mixed.rejoin_and_sync(join)[1] == {0, 1, 2, 3, 4, 5}


def test_a_heartbeat_of_a_classic_member_is_no_error_where_the_new_target_fits_no_batch(mixed, caplog):
    mixed, join = classic_members_alone(mixed)
    before = mixed.value()
    limited(mixed, 100)
    mixed.topics["t"] = TopicOfGroup(T, 6)
    assert mixed.heartbeat(join) == 0
    assert mixed.value() is before
    assert "a change is refused" in caplog.text


def test_a_member_that_is_silent_is_fenced_also_where_that_fits_no_batch(mixed):
    mixed, _ = classic_members_alone(mixed)
    limited(mixed, 100)
    mixed.time.sleep(100_000)
    mixed.timer.advance()
    assert not mixed.value().members


def test_CG_55_a_heartbeat_that_downgrades_the_group_says_that_it_rebalances(mixed):
    mixed, join = classic_members_alone(mixed)
    mixed = mixed.restarted(consumer_migration_policy=MigrationPolicy.BIDIRECTIONAL)
    mixed.topics["t"] = TopicOfGroup(T, 6)
    assert mixed.heartbeat(join) == errors.RebalanceInProgress.code
    assert mixed.state() == "PreparingRebalance"
    again = mixed.join_classic(join.member_id)
    assert (again.error_code, again.leader_id) == (0, join.member_id)
