import struct

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus

from .harness import Answer, Harness


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
    assert harness.delete_groups("g", "none") == {
        "g": errors.NonEmptyGroup.code,
        "none": errors.GroupIdNotFound.code,
    }
    harness.leave(join.member_id)
    assert harness.delete_groups("g") == {"g": 0}
    assert harness.state() == "Dead"
    assert harness.committed() == {}
    assert [(r.key[:2], r.value) for r in harness.records()[-2:]] == [(b"\x00\x01", None), (b"\x00\x02", None)]
    assert harness.delete_groups("g") == {"g": errors.GroupIdNotFound.code}


def test_a_group_with_more_offsets_than_a_batch_has_room_for_stays_deleted_after_a_restart(harness):
    for start in range(0, 200, 20):
        harness.commit({("t", start + number): number for number in range(20)})
    harness.commit({("t", 0): 1}, group_id="other")
    for log in harness.replica_manager.logs.values():
        log.config = LogConfig(max_message_bytes=2000)
    assert harness.delete_groups("g") == {"g": 0}
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
        assert harness.delete_groups("g") == {"g": 0}
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
    assert harness.delete_offsets(TopicPartition("t", 0), TopicPartition("u", 0)) == {
        ("t", 0): errors.GroupSubscribedToTopic.code,
        ("u", 0): 0,
    }
    assert harness.committed() == {("t", 0): 1}
    assert harness.delete_offsets(TopicPartition("t", 0), group_id="none") == errors.GroupIdNotFound.code


def test_an_unreadable_subscription_protects_all_offsets(harness):
    harness.commit({("t", 0): 1})
    harness.stable_group(protocols=[("range", b"\x00\x01\xff\xff\xff\xff garbage")])
    results = harness.delete_offsets(TopicPartition("t", 0))
    assert results == {("t", 0): errors.GroupSubscribedToTopic.code}


def test_a_group_that_is_not_of_consumers_keeps_its_offsets_while_it_has_members(harness):
    join = harness.join(protocol_type="connect")
    harness.advance(3_000)
    harness.sync(join, {}, protocol_type="connect")
    assert harness.delete_offsets(TopicPartition("t", 0)) == errors.NonEmptyGroup.code


# -- answers wait for the log

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def delete_group(harness, answer):
    harness.coordinator.admin.delete_groups(["g", "none"], answer)
    return lambda: answer.result["g"]


def delete_offsets(harness, answer):
    harness.coordinator.admin.delete_offsets("g", [T0], answer)
    return lambda: answer.result.error_code or answer.result.partitions[T0]


@pytest.fixture(params=[delete_group, delete_offsets])
def delete(request):
    return request.param


def restarted(harness):
    again = Harness(harness.replica_manager, partitions=[])
    for partition in range(4):
        again.coordinator.on_election(partition, 1)
    again.scheduler.tick()
    return again


def test_a_deletion_is_answered_when_its_tombstones_are_committed(harness, delete):
    harness.commit({T0: 1})
    harness.replica_manager.held, answer = [], Answer()
    code = delete(harness, answer)
    assert answer.waits
    harness.replica_manager.release()
    assert code() == 0
    assert restarted(harness).committed() == harness.committed() == {}


@pytest.mark.parametrize(
    "error, expected",
    [
        (errors.NotEnoughReplicas, errors.CoordinatorNotAvailable),
        (errors.NotLeaderOrFollower, errors.NotCoordinator),
        (errors.MessageTooLarge, errors.UnknownServerError),
    ],
)
def test_what_could_not_be_deleted_in_the_log_is_still_there_and_the_answer_says_so(harness, delete, error, expected):
    """As at a coordinator that takes over."""
    (join,) = harness.stable_group()
    harness.commit({T0: 1}, join.member_id, join.generation_id)
    harness.leave(join.member_id)
    before = harness.group().state_timestamp
    harness.time.sleep(1_000)
    harness.replica_manager.error = error("")
    assert delete(harness, Answer())() == expected.code
    assert harness.state() == "Empty" and harness.group().state_timestamp == before
    assert restarted(harness).committed() == harness.committed() == {T0: 1}
    harness.replica_manager.error = None
    assert delete(harness, Answer())() == 0
    assert restarted(harness).committed() == harness.committed() == {}


@pytest.mark.parametrize("error", [errors.RequestTimedOut, errors.NotEnoughReplicasAfterAppend])
def test_what_is_deleted_in_the_log_alone_is_not_there_any_more_and_the_answer_says_that_it_may_come_back(
    harness, delete, error
):
    harness.commit({T0: 1})
    append = harness.replica_manager._append

    def append_late(entries, response_callback):
        def late(statuses):
            response_callback({partition: ProducePartitionStatus(error("")) for partition in statuses})

        append(entries, late)

    harness.replica_manager._append = append_late
    assert delete(harness, Answer())() == errors.CoordinatorNotAvailable.code
    assert restarted(harness).committed() == harness.committed() == {}


def test_a_deletion_of_which_a_part_reaches_the_log_has_removed_that_part(harness):
    harness.commit({("t", number): number for number in range(200)})
    log = harness.replica_manager.logs[harness.coordinator.partition_for("g")]
    log.config = LogConfig(max_message_bytes=2000)
    append, appends = log.append, []

    def append_the_first(batch):
        appends.append(batch)
        if len(appends) > 1:
            raise errors.MessageTooLarge("as it happens")
        return append(batch)

    log.append = append_the_first
    assert harness.delete_groups("g") == {"g": errors.UnknownServerError.code}
    assert len(appends) == 2
    assert 0 < len(harness.committed()) < 200
    assert restarted(harness).committed() == harness.committed()
    log.append = append
    assert harness.delete_groups("g") == {"g": 0}
    assert restarted(harness).group() is None


def test_a_rebalance_does_not_wait_for_a_member_whose_time_to_join_ended_while_a_deletion_that_failed_was_under_way(
    harness,
):
    harness.commit({T0: 1})
    assert harness.join(require_known_member_id=True).error_code == errors.MemberIdRequired.code
    manager = harness.replica_manager
    append_records = manager.append_records

    def fail_after_the_session(*args):
        harness.advance(10_000)
        manager.error = errors.NotEnoughReplicas("")
        append_records(*args)

    manager.append_records = fail_after_the_session
    assert harness.delete_groups("g") == {"g": errors.CoordinatorNotAvailable.code}
    manager.append_records, manager.error = append_records, None
    assert not harness.group().pending_members
    (join,) = harness.stable_group()
    harness.join()
    again = harness.join(join.member_id)
    assert again.error_code == 0 and len(again.members) == 2


def test_a_commit_between_a_deletion_and_its_tombstones_stays(harness):
    harness.commit({T0: 1, T1: 1})
    append_records, commits = harness.replica_manager.append_records, []

    def append_after_a_commit(*args):
        if not commits:
            commits.append(None)
            commits[0] = harness.commit({T0: 2})
        append_records(*args)

    harness.replica_manager.append_records = append_after_a_commit
    assert harness.delete_offsets(T0) == {T0: 0}
    assert commits[0].result == {T0: 0}
    assert restarted(harness).committed() == harness.committed() == {T0: 2, T1: 1}


@pytest.mark.parametrize("is_in_log", [True, False])
def test_an_offset_that_is_deleted_while_its_commit_is_under_way_stays_deleted_though_a_newer_commit_is_under_way(
    harness, is_in_log
):
    harness.commit({T0: 1, T1: 1})
    manager, deleted = harness.replica_manager, Answer()
    manager.unanswered = []
    older = harness.commit({T0: 10})
    harness.coordinator.admin.delete_offsets("g", [T0], deleted)
    append_records = manager.append_records

    def fail_after_the_answers(timeout_ms, required_acks, internal, origin, entries, callback, leader_epochs):
        manager.append_records = append_records
        manager.answer(2)
        if is_in_log:
            append_records(timeout_ms, required_acks, internal, origin, entries, lambda statuses: None)
        error = (errors.RequestTimedOut if is_in_log else errors.NotEnoughReplicas)("")
        callback(dict.fromkeys(entries, ProducePartitionStatus(error)))

    manager.append_records = fail_after_the_answers
    newer = harness.commit({T0: 20})
    assert older.result == deleted.partitions == {T0: 0}
    assert newer.result[T0] != 0
    assert harness.committed() == {T1: 1}
    assert restarted(harness).committed() == ({T0: 20, T1: 1} if is_in_log else {T1: 1})


def test_of_several_commits_that_are_under_way_a_deletion_removes_each(harness):
    harness.commit({T0: 1, T1: 1})
    manager, deleted = harness.replica_manager, Answer()
    manager.unanswered = []
    commits = [harness.commit({T0: offset}) for offset in (10, 11)]
    harness.coordinator.admin.delete_offsets("g", [T0], deleted)
    manager.answer(3)
    assert [commit.result for commit in commits] == [{T0: 0}] * 2 and deleted.partitions == {T0: 0}
    assert restarted(harness).committed() == harness.committed() == {T1: 1}


def test_no_offsets_to_delete_leave_an_empty_group_as_it_is(harness):
    (join,) = harness.stable_group()
    harness.leave(join.member_id)
    assert harness.delete_offsets() == {}
    assert harness.state() == "Empty"


def test_tombstones_that_are_tried_again_are_logged_once_and_when_the_reason_changes_and_at_the_end(harness, caplog):
    caplog.set_level("INFO", "kcore.coordinator.group.offset_removal")

    def logged(action):
        caplog.clear()
        action()
        return [record.getMessage() for record in caplog.records if "offset_removal" in record.name]

    def delete():
        return harness.delete_groups("g")

    def expire():
        harness.coordinator.manager.cleanup_expired_offsets()

    harness.commit({T0: 1})
    harness.commit({T0: 1}, group_id="other")
    harness.replica_manager.error = errors.NotEnoughReplicas("1 in sync")
    first = ["group g: tombstones were not stored: 1 in sync"]
    assert [logged(delete) for _ in range(3)] == [first, [], []]
    harness.time.sleep(8 * 86_400_000)
    assert [logged(expire) for _ in range(2)] == [["group other: tombstones were not stored: 1 in sync"], []]
    harness.replica_manager.error = errors.NotEnoughReplicas("none in sync")
    assert [logged(delete) for _ in range(2)] == [["group g: tombstones were not stored: none in sync"], []]
    harness.replica_manager.error = None
    assert logged(delete) == ["group g: its tombstones are stored now"]
    assert logged(expire) == ["group other: its tombstones are stored now"]
    harness.commit({T0: 1})
    assert logged(delete) == []


def test_tombstones_that_were_no_longer_needed_are_logged_when_they_fail_the_next_time(harness, caplog):
    harness.commit({T0: 1})
    harness.replica_manager.error = errors.NotEnoughReplicas("1 in sync")
    for _ in range(2):
        harness.time.sleep(8 * 86_400_000)
        caplog.clear()
        harness.coordinator.manager.cleanup_expired_offsets()
        assert "group g: tombstones were not stored: 1 in sync" in caplog.text
        harness.replica_manager.error, error = None, harness.replica_manager.error
        harness.commit({T0: 2})
        harness.coordinator.manager.cleanup_expired_offsets()
        harness.replica_manager.error = error


def test_a_deletion_whose_group_moves_before_the_tombstones_are_written_writes_none(harness):
    harness.commit({T0: 1})
    group, answer, partition = harness.group(), Answer(), harness.coordinator.partition_for("g")

    def move():
        harness.coordinator.on_resignation(partition, 1)
        harness.coordinator.on_election(partition, 2)
        harness.scheduler.tick()

    group.after_unlock(move)
    harness.coordinator.admin.delete_groups(["g"], answer)
    assert answer.result == {"g": errors.NotCoordinator.code}
    assert restarted(harness).committed() == harness.committed() == {T0: 1}
