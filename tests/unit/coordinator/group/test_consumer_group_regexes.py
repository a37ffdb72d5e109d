"""Members of consumer groups of KIP-848 that subscribe by a regular expression."""

import sys
import uuid

import pytest

from kcore import errors
from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.regex_resolver import NAMES_OF_A_TASK
from kcore.coordinator.group.topic_patterns import compile_pattern

from .harness import Answer, Consumers, of_t

A = uuid.UUID(int=11)
MIN_MS, REFRESH_MS = 10_000, 600_000
REGEX = 16


@pytest.fixture
def consumers():
    return Consumers()


def join(consumers, member_id="a", regex="t.*", **more):
    answer = consumers.join_new(member_id, (), regex=regex, **more)
    assert answer.error_code == 0
    return answer


def look_up(consumers):
    while consumers.scheduler.tick():
        pass


def regex_records(consumers):
    return [record for record in consumers.records() if record.key[1] == REGEX]


def test_CG_31_a_name_matches_as_a_whole_and_in_the_syntax_of_re2():
    matches = compile_pattern("t|orders[.][a-z]+")
    assert [name for name in ("t", "tt", "orders.eu", "orders.EU", "my-orders.eu") if matches(name)] == [
        "t",
        "orders.eu",
    ]
    assert compile_pattern("(?i)T\\pN")("t1")


@pytest.mark.parametrize("regex", ["(", "a**", "(?=t)t", "(t)\\1", "(a{1000}){1000}", "(((a{100}){100}){100}){100}"])
def test_CG_31_what_is_no_expression_of_re2_or_too_large_is_refused_with_the_reason(consumers, regex):
    answer = consumers.join_new("a", (), regex=regex)
    assert answer.error_code == errors.InvalidRegularExpression.code
    assert regex in answer.error_message
    assert consumers.group() is None or not consumers.group().consumer


def test_CG_31_without_the_package_a_member_hears_what_to_install(consumers, monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    answer = consumers.join_new("a", (), regex="t.*")
    assert answer.error_code == errors.InvalidRegularExpression.code
    assert "kcore[regex]" in answer.error_message


def test_CG_31_CG_16_an_empty_expression_removes_it_and_a_null_one_keeps_it(consumers):
    join(consumers)
    look_up(consumers)
    assert consumers.beat("a", 1).assignment == of_t(0, 1, 2, 3)
    assert consumers.beat("a", 2, regex=None).error_code == 0
    assert consumers.value().members["a"].regex == "t.*"
    epoch = consumers.value().epoch
    assert consumers.beat("a", 2, regex="").assignment == frozenset()
    assert consumers.value().members["a"].regex is None
    assert consumers.value().epoch == epoch + 1


def test_CG_32_names_and_expression_together_give_both(consumers):
    consumers.topics |= {"a": TopicOfGroup(A, 1), "other": TopicOfGroup(uuid.UUID(int=12), 1)}
    consumers.join_new("m", ("a",), regex="t")
    look_up(consumers)
    assert consumers.beat("m", 1).assignment == of_t(0, 1, 2, 3) | {(A, 0)}


def test_CG_32_topics_that_the_member_may_not_see_are_left_out(consumers):
    consumers.topics["t-secret"] = TopicOfGroup(A, 1)
    join(consumers, permitted=lambda names: [name for name in names if name != "t-secret"])
    look_up(consumers)
    assert consumers.value().resolved["t.*"].topics == ("t",)


def test_CG_33_the_heartbeat_is_answered_before_the_topics_are_looked_up(consumers):
    assert join(consumers).assignment == frozenset()
    assert regex_records(consumers) == []
    look_up(consumers)
    assert len(regex_records(consumers)) == 1
    assert (consumers.value().epoch, consumers.value().assignment_epoch) == (2, 1)
    assert consumers.beat("a", 1).assignment == of_t(0, 1, 2, 3)
    # The look-up has raised the epoch for these topics already.
    assert consumers.value().epoch == consumers.value().assignment_epoch == 2


def test_CG_33_an_expression_that_matches_nothing_is_looked_up_once_and_no_new_epoch(consumers):
    join(consumers, regex="none")
    look_up(consumers)
    assert (consumers.value().epoch, consumers.value().resolved["none"].topics) == (1, ())


def test_CG_34_an_expression_that_another_member_has_is_used_at_once(consumers):
    join(consumers)
    look_up(consumers)
    join(consumers, "b")
    assert len(consumers.value().targets["b"]) == 2
    consumers.time.sleep(MIN_MS + 1)
    consumers.beat("b", 3)
    look_up(consumers)
    assert len(regex_records(consumers)) == 1


def test_CG_34_one_look_up_serves_all_members_that_bring_an_expression_meanwhile(consumers):
    join(consumers)
    join(consumers, "b")
    look_up(consumers)
    assert len(regex_records(consumers)) == 1


def test_CG_35_a_new_expression_waits_for_ten_seconds_since_the_last_look_up(consumers):
    consumers.topics["a"] = TopicOfGroup(A, 1)
    join(consumers)
    look_up(consumers)
    join(consumers, "b", "a")
    look_up(consumers)
    assert "a" not in consumers.value().resolved
    consumers.advance(MIN_MS)
    consumers.beat("b", 3)
    look_up(consumers)
    assert "a" not in consumers.value().resolved
    consumers.advance(1)
    consumers.beat("b", 3)
    look_up(consumers)
    assert consumers.value().resolved["a"].topics == ("a",)


def test_CG_35_a_new_topic_is_found_at_a_heartbeat_after_ten_seconds(consumers):
    join(consumers)
    look_up(consumers)
    consumers.beat("a", 1)
    consumers.topics["t2"] = TopicOfGroup(A, 1)
    consumers.beat("a", 2)
    look_up(consumers)
    assert consumers.value().resolved["t.*"].topics == ("t",)
    consumers.advance(MIN_MS + 1)
    consumers.beat("a", 2)
    look_up(consumers)
    assert consumers.beat("a", 2).assignment == of_t(0, 1, 2, 3) | {(A, 0)}


def test_CG_35_without_new_topics_the_look_up_is_repeated_after_the_refresh_interval_only(consumers):
    permitted = ["t"]
    join(consumers, permitted=lambda names: permitted)
    look_up(consumers)
    permitted.clear()
    for waited in range(MIN_MS + 1, REFRESH_MS, MIN_MS + 1):
        consumers.advance(MIN_MS + 1)
        consumers.beat("a", consumers.value().members["a"].epoch, permitted=lambda names: permitted)
        look_up(consumers)
        assert len(regex_records(consumers)) == 1, waited
    consumers.advance(MIN_MS + 1)
    consumers.beat("a", consumers.value().members["a"].epoch, permitted=lambda names: permitted)
    look_up(consumers)
    assert consumers.value().resolved["t.*"].topics == ()


def test_CG_35_never_two_look_ups_at_once(consumers):
    join(consumers)
    consumers.time.sleep(MIN_MS + 1)
    join(consumers, "b", "u.*")
    look_up(consumers)
    assert set(consumers.value().resolved) == {"t.*"}


def test_CG_35_a_deleted_topic_is_not_assigned_though_it_still_matches(consumers):
    join(consumers)
    look_up(consumers)
    consumers.beat("a", 1)
    del consumers.topics["t"]
    consumers.beat("a", 2)
    assert consumers.value().targets["a"] == frozenset()


def test_CG_36_the_last_member_with_an_expression_ends_its_record(consumers):
    join(consumers)
    join(consumers, "b")
    look_up(consumers)
    consumers.leave_new("a")
    assert regex_records(consumers)[-1].value is not None
    consumers.leave_new("b")
    assert regex_records(consumers)[-1].value is None
    assert consumers.value().resolved == {}


def one_leaves_whose_expression_stays_in_the_log(consumers):
    """a, the only one with an expression; b stays."""
    join(consumers)
    consumers.join_new("b", ("u",))
    look_up(consumers)
    consumers.replica_manager.error = errors.NotEnoughReplicas("one is missing")
    assert consumers.leave_new("a").error_code == errors.CoordinatorNotAvailable.code
    consumers.replica_manager.error = None
    assert consumers.value().resolved == {} and regex_records(consumers)[-1].value is not None


@pytest.mark.parametrize("is_deleted", [False, True])
def test_CG_36_the_end_of_an_expression_that_could_not_be_stored_is_stored_with_the_next_change(consumers, is_deleted):
    one_leaves_whose_expression_stays_in_the_log(consumers)
    if is_deleted:
        assert consumers.leave_new("b").error_code == 0
        assert consumers.delete_groups("g") == {"g": 0}
        assert consumers.restarted().group() is None
        last = {record.key: record.value for record in consumers.records()}
        assert set(last.values()) == {None}
    else:
        assert consumers.beat("b", consumers.value().members["b"].epoch).error_code == 0
        assert consumers.restarted().value() == consumers.value()
    assert regex_records(consumers)[-1].value is None


def test_CG_36_a_group_that_is_deleted_while_the_end_of_an_expression_is_under_way_leaves_no_record(consumers):
    join(consumers)
    look_up(consumers)
    manager = consumers.replica_manager
    append_records = manager.append_records

    def fail_after_the_deletion(*args):
        manager.append_records = append_records
        consumers.coordinator.admin.delete_groups(["g"], Answer())
        manager.error = errors.NotEnoughReplicas("one is missing")
        append_records(*args)
        manager.error = None

    manager.append_records = fail_after_the_deletion
    assert consumers.leave_new("a").error_code == errors.CoordinatorNotAvailable.code
    assert consumers.restarted().group() is None
    last = {record.key: record.value for record in consumers.records()}
    assert set(last.values()) == {None}


def test_a_look_up_that_ends_after_the_member_has_left_writes_nothing(consumers):
    join(consumers)
    consumers.leave_new("a")
    before = len(consumers.records())
    look_up(consumers)
    assert len(consumers.records()) == before


def test_CG_39_a_restarted_coordinator_has_the_topics_and_looks_again(consumers):
    join(consumers)
    look_up(consumers)
    consumers.beat("a", 1)
    again = consumers.restarted()
    assert again.value() == consumers.value()
    again.topics["t2"] = TopicOfGroup(A, 1)
    again.beat("a", 2)
    look_up(again)
    assert again.value().resolved["t.*"].topics == ("t", "t2")


def test_many_topics_are_matched_by_many_short_tasks(consumers):
    consumers.topics |= {f"t{n}": TopicOfGroup(uuid.UUID(int=100 + n), 1) for n in range(3 * NAMES_OF_A_TASK)}
    join(consumers)
    join(consumers, "b", "t1.*")
    assert consumers.scheduler.tick() >= 4
    assert set(consumers.value().resolved["t.*"].topics) == set(consumers.topics)


def test_an_authorizer_that_fails_leaves_the_topics_as_they_were(consumers):
    join(consumers)
    look_up(consumers)

    def fails(names):
        raise RuntimeError("no authorizer")

    consumers.topics["t2"] = TopicOfGroup(A, 1)
    consumers.advance(MIN_MS + 1)
    consumers.beat("a", 1, permitted=fails)
    look_up(consumers)
    assert consumers.value().resolved["t.*"].topics == ("t",)
    assert not consumers.group().consumer.regexes.is_running


def test_a_group_is_subscribed_to_the_topics_that_match(consumers):
    join(consumers)
    look_up(consumers)
    assert consumers.group().is_subscribed_to_topic("t")
