"""A coordinator that another broker may have replaced without its knowledge, as after its process stood still."""

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition

from .harness import Harness, code_of

TP = TopicPartition("t", 0)


@pytest.fixture
def certainty():
    """Change "is" to make the coordinator uncertain."""
    return {"is": True}


@pytest.fixture
def harness(certainty):
    harness = Harness()
    harness.coordinator.manager.is_certain = lambda: certainty["is"]
    return harness


@pytest.mark.parametrize("topic_partitions", [[TP], None])
@pytest.mark.parametrize("group_id", ["g", "none"])
def test_it_answers_no_offsets_but_not_coordinator(harness, certainty, group_id, topic_partitions):
    harness.commit({TP: 42})
    certainty["is"] = False
    assert code_of(harness.coordinator.offsets.fetch, group_id, topic_partitions) == errors.NotCoordinator.code
    certainty["is"] = True
    assert harness.coordinator.offsets.fetch("g", [TP])[TP].offset == 42


def test_offsets_that_were_read_before_the_process_stood_still_are_not_answered(harness, certainty):
    """The doubt counts that there is when the answer is made, not when the request came."""
    harness.commit({TP: 42})
    find_group = harness.coordinator.manager.find_group

    def stands_still(*args, **fields):
        certainty["is"] = False
        return find_group(*args, **fields)

    harness.coordinator.manager.find_group = stands_still
    assert code_of(harness.coordinator.offsets.fetch, "g", [TP]) == errors.NotCoordinator.code


def test_it_deletes_nothing_that_may_live_on_at_another_coordinator(harness, certainty):
    harness.commit({TP: 42})
    certainty["is"] = False
    before = len(harness.records())
    assert harness.delete_groups("g") == {"g": errors.NotCoordinator.code}
    assert harness.delete_offsets(TP) == errors.NotCoordinator.code
    assert len(harness.records()) == before
    certainty["is"] = True
    assert harness.delete_offsets(TP) == {TP: 0}


def test_it_fences_no_static_member_which_may_be_the_current_one_elsewhere(harness, certainty):
    (join,) = harness.stable_group(instance_id="a")
    member_id = "other"

    def answers():
        heartbeat = harness.coordinator.heartbeat
        return {
            "heartbeat": code_of(heartbeat, "g", member_id, "a", join.generation_id),
            "leave": harness.leave(member_id, "a"),
            "join": harness.join(member_id, instance_id="a").error_code,
            "commit": harness.commit({TP: 1}, member_id, join.generation_id, instance_id="a").result[TP],
        }

    assert set(answers().values()) == {errors.FencedInstanceId.code}
    certainty["is"] = False
    assert set(answers().values()) == {errors.NotCoordinator.code}


def test_members_go_on_so_that_a_store_that_is_away_stops_no_consumer(harness, certainty):
    (join,) = harness.stable_group()
    certainty["is"] = False
    assert harness.heartbeat(join) == errors.NONE
    assert harness.commit({TP: 1}, join.member_id, join.generation_id).result == {TP: errors.NONE}
    assert harness.state() == "Stable"
    assert harness.heartbeat(join, generation_id=99) == errors.IllegalGeneration.code
    assert code_of(harness.coordinator.heartbeat, "g", "unknown", None, 1) == errors.UnknownMemberId.code
    assert harness.leave(join.member_id) == errors.NONE
