"""Offsets that a group gets by a transaction, from the commit to the end of the transaction."""

import struct

import pytest

from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.member_metadata import GroupMember
from kcore.record.record_batch_builder import RecordBatchBuilder

from .harness import Answer, Harness

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = (7, 0)
DAY_MS = 86_400_000


class TransactionHarness(Harness):
    def commit_in_transaction(self, offsets, producer=PRODUCER, member=GroupMember(), group_id="g"):  # noqa: B008
        answer = Answer()
        values = {tp: OffsetAndMetadata(offset, commit_timestamp=0) for tp, offset in offsets.items()}
        self.coordinator.offsets.commit_in_transaction(group_id, member, producer, values, answer)
        return answer

    def end(self, is_commit=True, producer=PRODUCER, group_id="g"):
        manager = self.coordinator.manager
        partition = manager.partition_for(group_id)
        manager.end_transaction(producer[0], {partition: manager.loaded_epoch(partition)}, is_commit)

    def offset(self, topic_partition=T0, *, require_stable=False):
        result = self.coordinator.offsets.fetch("g", [topic_partition], require_stable)[topic_partition]
        return result.error_code or result.offset


@pytest.fixture
def harness():
    return TransactionHarness()


def plain_commit(harness, offset):
    answer = Answer()
    values = {T0: OffsetAndMetadata(offset)}
    harness.coordinator.offsets.commit("g", "", None, -1, values, answer)
    assert answer.result == {T0: 0}


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_48_the_last_record_of_the_log_counts_and_not_the_last_end(harness, is_commit):
    assert harness.commit_in_transaction({T0: 10, T1: 20}).result == {T0: 0, T1: 0}
    plain_commit(harness, 5)
    harness.end(is_commit)
    assert (harness.offset(T0), harness.offset(T1)) == (5, 20 if is_commit else -1)


def test_TXN_48_each_producer_ends_its_own_offsets(harness):
    harness.commit_in_transaction({T0: 10})
    harness.commit_in_transaction({T0: 11}, producer=(8, 0))
    harness.end(False, producer=(8, 0))
    assert harness.offset(require_stable=True) == errors.UnstableOffsetCommit.code
    harness.end(True)
    assert harness.offset(require_stable=True) == 10


def test_TXN_48_an_end_of_other_partitions_leaves_the_offsets_open(harness):
    harness.commit_in_transaction({T0: 10})
    manager = harness.coordinator.manager
    manager.end_transaction(7, {manager.partition_for("g") ^ 1: 0}, True)
    assert harness.offset(require_stable=True) == errors.UnstableOffsetCommit.code


def test_TXN_47_offsets_that_could_not_be_appended_are_no_longer_pending(harness):
    harness.replica_manager.error = errors.NotEnoughReplicas("one is missing")
    assert harness.commit_in_transaction({T0: 10}).result == {T0: errors.CoordinatorNotAvailable.code}
    harness.replica_manager.error = None
    assert harness.offset(require_stable=True) == -1
    harness.end()
    assert harness.offset() == -1


def test_TXN_47_offsets_are_written_as_a_batch_of_the_transaction(harness):
    harness.commit_in_transaction({T0: 10})
    (log,) = [log for log in harness.replica_manager.logs.values() if log.batches]
    from kcore.record.memory_records import MemoryRecords

    (batch,) = MemoryRecords(log.batches[0][1]).batches
    assert (batch.is_transactional, batch.producer_id, batch.producer_epoch) == (True, *PRODUCER)


def test_TXN_52_offsets_of_an_open_transaction_keep_their_group(harness):
    harness.commit_in_transaction({T0: 10})
    harness.advance(30 * DAY_MS)
    assert harness.group() is not None
    harness.end(False)
    harness.advance(DAY_MS)
    assert harness.group() is None


def test_TXN_52_a_deleted_group_does_not_come_back_with_the_end_of_a_transaction(harness):
    harness.commit_in_transaction({T0: 10})
    assert harness.delete_groups("g") == {"g": 0}
    assert harness.group() is None
    harness.end()
    assert harness.group() is None and harness.offset() == -1


def test_TXN_50_a_generation_of_a_group_that_does_not_exist_is_illegal(harness):
    answer = harness.commit_in_transaction({T0: 1}, member=GroupMember("m", None, 3))
    assert answer.result == {T0: errors.IllegalGeneration.code}
    assert harness.group() is None


def test_TXN_50_without_a_generation_anybody_may_commit_while_the_group_is_empty(harness):
    """As OffsetCommit, also with the id of a member: for a group that does not exist, and for one without members."""
    members = [GroupMember("m"), GroupMember("m", "i"), GroupMember("", "i")]
    for offset, member in enumerate(members):
        assert harness.commit_in_transaction({T0: offset}, member=member).result == {T0: 0}
    harness.end()
    (join,) = harness.stable_group()
    for member in members:
        assert harness.commit_in_transaction({T0: 9}, member=member).result == {T0: errors.UnknownMemberId.code}
    harness.leave(join.member_id)
    stale = GroupMember(join.member_id, None, join.generation_id)
    assert harness.commit_in_transaction({T0: 9}, member=stale).result == {T0: errors.UnknownMemberId.code}
    assert harness.commit_in_transaction({T0: 7}, member=GroupMember(join.member_id)).result == {T0: 0}
    harness.end()
    assert harness.offset(require_stable=True) == 7


def test_offsets_of_a_deleted_partition_do_not_come_with_the_end_of_a_transaction(harness):
    harness.commit_in_transaction({T0: 10, T1: 20})
    harness.coordinator.partitions_deleted([T0])
    harness.end()
    assert (harness.offset(T0), harness.offset(T1)) == (-1, 20)


def remove_group(harness):
    return harness.delete_groups("g")


def remove_offsets(harness):
    return harness.delete_offsets(T0)


def remove_partition(harness):
    harness.coordinator.partitions_deleted([T0])
    return None


@pytest.mark.parametrize("remove", [remove_group, remove_offsets, remove_partition])
@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_offsets_that_are_deleted_while_they_are_pending_stay_deleted_at_the_next_coordinator(
    harness, remove, is_in_transaction
):
    """Those of an open transaction, which is committed later, and those that are on their way to the log."""
    manager = harness.replica_manager
    if is_in_transaction:
        harness.commit_in_transaction({T0: 10})
    else:
        manager.held = []
        harness.commit({T0: 10})
    assert remove(harness) in (({"g": 0}, {T0: 0}, None) if is_in_transaction else (None,))
    if manager.held is not None:
        manager.release()
    marker = RecordBatchBuilder(
        producer_id=PRODUCER[0], producer_epoch=PRODUCER[1], is_transactional=True, is_control=True
    )
    marker.append(struct.pack(">hi", 0, 0), struct.pack(">hh", 0, 1), timestamp=1)
    manager.logs[harness.coordinator.partition_for("g")].append(marker.build())
    again = TransactionHarness(manager, partitions=[])
    for partition in range(4):
        again.coordinator.on_election(partition, 1)
    again.scheduler.tick()
    assert again.offset(require_stable=True) == -1
    assert again.group() is None


@pytest.mark.parametrize("others", [{}, {T1: 20}], ids=["all", "one-of-two"])
def test_offsets_of_a_transaction_that_are_deleted_on_their_way_to_the_log_do_not_come_with_its_end(harness, others):
    manager, deleted = harness.replica_manager, Answer()
    manager.held = []
    committed = harness.commit_in_transaction({T0: 10, **others})
    harness.coordinator.admin.delete_offsets("g", [T0], deleted)
    manager.release()
    assert committed.result[T0] == 0 and deleted.partitions == {T0: 0}
    assert harness.records()[-1].value is None
    harness.end()
    assert (harness.offset(T0), harness.offset(T1)) == (-1, others.get(T1, -1))


def test_a_commit_in_a_transaction_between_a_deletion_and_its_tombstones_stays(harness):
    harness.commit_in_transaction({T0: 1, T1: 1}, producer=(8, 0))
    append_records, commits = harness.replica_manager.append_records, []

    def append_after_a_commit(*args):
        if not commits:
            commits.append(None)
            commits[0] = harness.commit_in_transaction({T0: 2})
        append_records(*args)

    harness.replica_manager.append_records = append_after_a_commit
    assert harness.delete_offsets(T0) == {T0: 0}
    assert commits[0].result == {T0: 0}
    harness.end(True, producer=(8, 0))
    harness.end()
    assert (harness.offset(T0, require_stable=True), harness.offset(T1)) == (2, 1)


def test_TXN_47_a_commit_that_could_not_be_appended_leaves_the_one_before_it_in_the_transaction(harness):
    harness.commit_in_transaction({T0: 10})
    harness.replica_manager.error = errors.NotEnoughReplicas("one is missing")
    assert harness.commit_in_transaction({T0: 11, T1: 21}).result[T0] == errors.CoordinatorNotAvailable.code
    harness.replica_manager.error = None
    assert harness.offset(T0, require_stable=True) == errors.UnstableOffsetCommit.code
    assert harness.offset(T1, require_stable=True) == -1
    harness.end()
    assert (harness.offset(T0, require_stable=True), harness.offset(T1)) == (10, -1)


@pytest.mark.parametrize("order", ["first fails last", "second fails last", "second fails first"])
def test_TXN_47_of_two_commits_that_are_under_way_the_one_that_is_in_the_log_counts(harness, order):
    manager = harness.replica_manager
    manager.held = []
    answers = [harness.commit_in_transaction({T0: 10}), harness.commit_in_transaction({T0: 11})]
    (first, second), manager.held = manager.held, None
    fails, succeeds = (first, second) if order == "first fails last" else (second, first)
    for append in (succeeds, fails) if order.endswith("last") else (fails, succeeds):
        manager.error = errors.NotEnoughReplicas("one is missing") if append is fails else None
        append()
    manager.error = None
    expected = 11 if succeeds is second else 10
    assert [answer.result[T0] == 0 for answer in answers] == [expected == 10, expected == 11]
    assert harness.offset(require_stable=True) == errors.UnstableOffsetCommit.code
    harness.end()
    assert harness.offset(require_stable=True) == expected


def test_TXN_47_a_commit_that_reaches_the_log_after_its_transaction_is_not_one_of_the_next(harness):
    manager = harness.replica_manager
    manager.held = []
    harness.commit_in_transaction({T0: 10})
    harness.end(False)
    harness.commit_in_transaction({T0: 11})
    (first, second), manager.held = manager.held, None
    first()
    manager.error = errors.NotEnoughReplicas("one is missing")
    second()
    manager.error = None
    harness.end()
    assert harness.offset(require_stable=True) == -1
