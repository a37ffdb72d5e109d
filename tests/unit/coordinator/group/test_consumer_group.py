"""Rules of a consumer group of KIP-848, step by step."""

import uuid

import pytest

from kcore.coordinator.group.consumer_assignors import TopicOfGroup
from kcore.coordinator.group.consumer_group import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    Heartbeat,
    MemberState,
    heartbeat,
    leave,
    refreshed,
    without_members,
)
from kcore.errors import FencedInstanceId, FencedMemberEpoch, UnknownMemberId, UnreleasedInstanceId

T = uuid.UUID(int=1)
TOPICS = {"t": TopicOfGroup(T, 4)}


def numbers(partitions):
    return sorted(number for _, number in partitions)


def of_t(*partitions):
    return frozenset((T, number) for number in partitions)


class Steps:
    """A group and the heartbeats of its members."""

    def __init__(self):
        self.group, self.topics = ConsumerGroup("g"), dict(TOPICS)

    def beat(self, member_id, epoch, owned=None, topics=None, **more):
        self.group = heartbeat(
            self.group, Heartbeat(member_id, epoch, topics=topics, owned=owned, **more), self.topics.get, "uniform"
        )
        return self.group.members[member_id]

    def join(self, member_id, topics=("t",), **more):
        return self.beat(member_id, 0, frozenset(), topics, rebalance_timeout_ms=1000, **more)


@pytest.fixture
def steps():
    return Steps()


def test_CG_16_CG_17_each_join_leave_and_change_is_one_epoch_and_other_heartbeats_none(steps):
    assert steps.join("a").epoch == 1
    steps.join("b")
    assert (steps.group.epoch, steps.group.assignment_epoch) == (2, 2)
    before = steps.group
    steps.beat("b", 2, frozenset())
    assert steps.group is before
    steps.beat("a", 1, topics=["t", "new"])
    assert steps.group.epoch == 3
    steps.topics["new"] = TopicOfGroup(uuid.UUID(int=2), 1)
    steps.beat("b", 2)
    assert steps.group.epoch == 4
    steps.group = leave(steps.group, "b", LEAVE_EPOCH, None)
    assert (steps.group.epoch, steps.group.assignment_epoch, steps.group.state) == (5, 4, "Assigning")


def test_CG_20_CG_21_a_member_gives_up_first_and_another_gets_the_partition_only_then(steps):
    assert numbers(steps.join("a").assigned) == [0, 1, 2, 3]
    b = steps.join("b")
    assert (b.epoch, b.state, b.assigned) == (2, MemberState.UNRELEASED_PARTITIONS, frozenset())
    a = steps.beat("a", 1)
    assert (a.epoch, a.state, numbers(a.assigned)) == (1, MemberState.UNREVOKED_PARTITIONS, [0, 1])
    # Both say "not yet": nothing about what it owns, and that it owns all.
    assert steps.beat("a", 1).epoch == 1
    assert steps.beat("a", 1, of_t(0, 1, 2, 3)).epoch == 1
    assert steps.beat("b", 2).assigned == frozenset()
    assert steps.beat("a", 1, of_t(0, 1)).epoch == 2
    b = steps.beat("b", 2)
    assert (b.epoch, b.state, numbers(b.assigned)) == (2, MemberState.STABLE, [2, 3])
    assert steps.group.state == "Stable"


def test_CG_10_the_previous_epoch_is_served_if_no_more_is_owned_than_assigned_and_others_are_fenced(steps):
    steps.join("a")
    steps.join("b")
    steps.beat("a", 1)
    steps.beat("a", 1, of_t(0, 1))
    assert steps.beat("a", 1, of_t(0)).epoch == 2  # its answer was lost
    for epoch, owned in ((3, of_t(0)), (1, of_t(0, 2)), (1, None)):
        with pytest.raises(FencedMemberEpoch, match="rejoin"):
            steps.beat("a", epoch, owned)


def test_a_join_whose_answer_was_lost_is_served_again_in_the_same_epoch(steps):
    steps.join("a")
    before = steps.group
    steps.join("a")
    assert steps.group is before


def test_a_member_that_rejoins_with_epoch_0_after_it_was_fenced_begins_anew(steps):
    steps.join("a")
    steps.join("b")
    steps.beat("a", 1)
    steps.beat("a", 1, of_t(0, 1))
    steps.beat("b", 2)
    a = steps.join("a")
    assert (steps.group.epoch, a.epoch, len(a.assigned)) == (3, 3, 2)


def test_CG_08_CG_11_an_unknown_member_is_refused_and_one_that_left_holds_nothing(steps):
    steps.join("a")
    with pytest.raises(UnknownMemberId):
        steps.beat("b", 1)
    with pytest.raises(UnknownMemberId):
        leave(steps.group, "b", LEAVE_EPOCH, None)
    steps.group = leave(steps.group, "a", LEAVE_EPOCH, None)
    assert (steps.group.state, steps.group.epoch, steps.group.targets) == ("Empty", 2, {})
    with pytest.raises(UnknownMemberId):
        steps.beat("a", 1)


def test_CG_37_what_a_fenced_member_had_goes_to_the_others_at_their_next_heartbeat(steps):
    steps.join("a")
    steps.join("b")
    steps.group = without_members(steps.group, ["a"])
    b = steps.beat("b", 2)
    assert (b.epoch, numbers(b.assigned)) == (3, [0, 1, 2, 3])


def test_CG_41_CG_42_a_static_member_that_comes_back_has_its_partitions_and_no_epoch_is_used(steps):
    steps.join("a", instance_id="i")
    steps.group = leave(steps.group, "a", LEAVE_STATIC_EPOCH, "i")
    assert (steps.group.members["a"].epoch, steps.group.epoch) == (-2, 1)
    # As in Kafka 4.3: who comes back in its place may commit what it has read before.
    assert set(steps.group.members["a"].assignment_epochs.values()) == {0}
    back = steps.join("c", instance_id="i")
    assert (back.epoch, numbers(back.assigned), list(steps.group.members)) == (1, [0, 1, 2, 3], ["c"])
    assert steps.group.epoch == 1
    steps.group = leave(steps.group, "c", LEAVE_STATIC_EPOCH, "i")
    steps.join("d", ["t", "other"], instance_id="i")
    assert steps.group.epoch == 2


def test_CG_40_an_instance_id_that_is_in_use_is_refused(steps):
    steps.join("a", instance_id="i")
    with pytest.raises(UnreleasedInstanceId):
        steps.join("b", instance_id="i")
    with pytest.raises(FencedInstanceId):
        steps.beat("b", 1, instance_id="i")
    with pytest.raises(UnknownMemberId):
        steps.beat("a", 1, instance_id="other")


def test_CG_30_a_topic_that_comes_grows_and_goes_changes_the_target(steps):
    steps.topics.clear()
    assert steps.join("a").assigned == frozenset()
    steps.topics["t"] = TopicOfGroup(T, 1)
    assert numbers(steps.beat("a", 1).assigned) == [0]
    steps.topics["t"] = TopicOfGroup(T, 3)
    assert numbers(steps.beat("a", 2).assigned) == [0, 1, 2]
    del steps.topics["t"]
    assert (steps.beat("a", 3).assigned, steps.group.epoch) == (frozenset(), 4)


def test_CG_24_a_member_in_a_state_of_a_newer_broker_has_to_rejoin(steps):
    steps.join("a")
    unknown = steps.group.members["a"]
    object.__setattr__(unknown, "state", MemberState.UNKNOWN)
    with pytest.raises(FencedMemberEpoch):
        steps.beat("a", 1, of_t(0))
    assert steps.beat("a", 1, frozenset()).state is MemberState.STABLE


def test_CG_25_the_assignor_that_most_members_want_is_taken(steps):
    assert steps.group.assignor_name("uniform") == "uniform"
    steps.join("a", assignor="range")
    steps.join("b")
    assert steps.group.assignor_name("uniform") == "range"
    steps.join("c", assignor="uniform")
    steps.join("d", assignor="uniform")
    assert steps.group.assignor_name("range") == "uniform"


def test_the_topics_of_a_group_that_was_loaded_are_no_change(steps):
    steps.join("a")
    assert refreshed(steps.group, steps.topics.get, "uniform") is steps.group
