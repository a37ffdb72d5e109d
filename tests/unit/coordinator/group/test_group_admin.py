import struct

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig

from .harness import Harness


def subscription(*topics):
    """A ConsumerProtocol subscription of version 0."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def test_describing_a_stable_group_shows_members_with_metadata_and_assignment(harness):
    (join,) = harness.stable_group()
    described = harness.coordinator.admin.describe_group("g")
    assert described.state == "Stable"
    assert (described.protocol_type, described.protocol_name) == ("consumer", "range")
    (member,) = described.members
    assert tuple(member) == (
        join.member_id,
        None,
        "client",
        "/127.0.0.1",
        b"subscription",
        join.member_id.encode(),
    )
    harness.join()
    rebalancing = harness.coordinator.admin.describe_group("g")
    assert (rebalancing.state, rebalancing.protocol_name) == ("PreparingRebalance", "")
    assert {(m.metadata, m.assignment) for m in rebalancing.members} == {(b"", b"")}


def test_a_group_that_does_not_exist_is_described_as_dead(harness):
    described = harness.coordinator.admin.describe_group("none")
    assert (described.state, described.members) == ("Dead", [])


def test_listing_filters_by_state_and_type_without_regard_to_case(harness):
    harness.stable_group(group_id="s")
    harness.commit({("t", 0): 1}, group_id="e")

    def listed(**filters):
        return sorted(overview.group_id for overview in harness.coordinator.admin.list_groups(**filters)[1])

    assert listed() == ["e", "s"]
    assert listed(states=["stable"]) == ["s"]
    assert listed(states=["EMPTY", "Dead"]) == ["e"]
    assert listed(group_types=["Classic"]) == ["e", "s"]
    assert listed(group_types=["consumer"]) == []


def test_only_empty_groups_can_be_deleted_and_their_records_are_buried(harness):
    (join,) = harness.stable_group()
    harness.commit({("t", 0): 1}, join.member_id, join.generation_id)
    assert harness.coordinator.admin.delete_groups(["g", "none"]) == {
        "g": errors.NonEmptyGroup.code,
        "none": errors.GroupIdNotFound.code,
    }
    harness.leave(join.member_id)
    assert harness.coordinator.admin.delete_groups(["g"]) == {"g": 0}
    assert harness.state() == "Dead"
    assert harness.committed() == {}
    assert [(r.key[:2], r.value) for r in harness.records()[-2:]] == [(b"\x00\x01", None), (b"\x00\x02", None)]
    assert harness.coordinator.admin.delete_groups(["g"]) == {"g": errors.GroupIdNotFound.code}


def test_a_group_with_more_offsets_than_a_batch_has_room_for_stays_deleted_after_a_restart(harness):
    for start in range(0, 200, 20):
        harness.commit({("t", start + number): number for number in range(20)})
    harness.commit({("t", 0): 1}, group_id="other")
    for log in harness.replica_manager.logs.values():
        log.config = LogConfig(max_message_bytes=2000)
    assert harness.coordinator.admin.delete_groups(["g"]) == {"g": 0}
    again = Harness(harness.replica_manager, partitions=[])
    for partition in range(4):
        again.coordinator.on_election(partition, 1)
    again.scheduler.tick()
    assert (again.group("g"), again.committed("other")) == (None, {("t", 0): 1})


@pytest.mark.parametrize("expires", [True, False])
def test_tombstones_of_a_removed_group_come_before_the_records_of_the_next_one_of_its_id(harness, expires):
    """What another thread commits between the removal and the append of the tombstones is not lost."""
    harness.commit({("t", 0): 1})
    replica_manager = harness.replica_manager
    append_records, meanwhile = replica_manager.append_records, []

    def append_after_a_commit(*args):
        if not meanwhile:
            meanwhile.append(harness.coordinator.admin.list_groups()[1])
            meanwhile.append(harness.commit({("t", 0): 2}))
        append_records(*args)

    replica_manager.append_records = append_after_a_commit
    if expires:
        harness.advance(8 * 86_400_000)
    else:
        assert harness.coordinator.admin.delete_groups(["g"]) == {"g": 0}
    listed, answer = meanwhile
    assert listed == []
    if answer.result != {("t", 0): 0}:
        assert answer.result == {("t", 0): errors.CoordinatorNotAvailable.code}
        assert harness.commit({("t", 0): 2}).result == {("t", 0): 0}
    again = Harness(replica_manager, partitions=[])
    for partition in range(4):
        again.coordinator.on_election(partition, 1)
    again.scheduler.tick()
    assert again.committed() == harness.committed() == {("t", 0): 2}


def test_deleting_offsets_spares_topics_a_member_consumes(harness):
    harness.commit({("t", 0): 1, ("u", 0): 2})
    harness.stable_group(protocols=[("range", subscription("t"))])
    assert harness.coordinator.admin.delete_offsets("g", [TopicPartition("t", 0), TopicPartition("u", 0)]) == {
        ("t", 0): errors.GroupSubscribedToTopic.code,
        ("u", 0): 0,
    }
    assert harness.committed() == {("t", 0): 1}
    with pytest.raises(errors.GroupIdNotFound):
        harness.coordinator.admin.delete_offsets("none", [TopicPartition("t", 0)])


def test_an_unreadable_subscription_protects_all_offsets(harness):
    harness.commit({("t", 0): 1})
    harness.stable_group(protocols=[("range", b"\x00\x01\xff\xff\xff\xff garbage")])
    results = harness.coordinator.admin.delete_offsets("g", [TopicPartition("t", 0)])
    assert results == {("t", 0): errors.GroupSubscribedToTopic.code}


def test_a_group_that_is_not_of_consumers_keeps_its_offsets_while_it_has_members(harness):
    join = harness.join(protocol_type="connect")
    harness.advance(3_000)
    harness.sync(join, {}, protocol_type="connect")
    with pytest.raises(errors.NonEmptyGroup):
        harness.coordinator.admin.delete_offsets("g", [TopicPartition("t", 0)])
