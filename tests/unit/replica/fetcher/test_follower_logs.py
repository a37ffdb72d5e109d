"""What a fetcher does to the logs of this broker's partitions (PART-19..23, RFT-03..15)."""

import errno
import logging
import threading
from uuid import UUID

import pytest

from kcore import errors
from kcore.common import file
from kcore.common.topic_partition import ZERO_UUID
from kcore.replica.fetcher.follower_logs import AppendedRecords, ReplicaLogs
from tests import batches
from tests.unit.replica.conftest import TP, Node, update

DEADLINE_S = 60


def append(logs, records, leader_log_start_offset=0, leader_epoch=3):
    return logs.append(TP, records, leader_log_start_offset, leader_epoch)


def batch(base_offset, *values, epoch=1):
    return batches.batch(*values, base_offset=base_offset, leader_epoch=epoch)


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    node.become(update(TP, 1, 3, isr=(0, 1)))
    yield node
    file.clear_faults()
    node.shutdown()


@pytest.fixture
def partition(node):
    return node.replica_manager.get_partition(TP)


@pytest.fixture
def logs(node):
    node.advanced = []
    node.truncated = []
    return ReplicaLogs(
        node.replica_manager.get_partition,
        node.log_manager,
        node.advanced.append,
        lambda tp, offset: node.truncated.append((tp, offset)),
    )


def test_PART_19_RFT_06_an_append_keeps_the_leaders_offsets_and_epochs(logs, partition):
    assert append(logs, batch(5, b"a", b"b", epoch=2)) == AppendedRecords(6, 2)
    assert [record.offset for record in partition.log.records()] == [5, 6]
    assert (logs.log_end_offset(TP), logs.latest_epoch(TP), logs.end_offset_for_epoch(TP, 2)) == (7, 2, (2, 7))


def test_the_topic_id_is_the_logs_and_needs_no_metadata(logs, partition):
    assert logs.start_and_topic_id(TP) == (0, ZERO_UUID)
    partition.log.assign_topic_id(UUID(int=5))
    assert logs.start_and_topic_id(TP) == (0, UUID(int=5))


def test_the_log_start_offset_is_that_of_the_log(logs):
    append(logs, batch(0, b"a", b"b", b"c"))
    logs.update_high_watermark(TP, 3)
    logs.maybe_increment_log_start_offset(TP, 2)
    assert logs.start_and_topic_id(TP)[0] == logs.log_start_offset(TP) == 2


def test_PART_19_no_append_runs_while_a_future_log_takes_the_place_of_the_log(logs, partition):
    appended = threading.Event()
    thread = threading.Thread(target=lambda: append(logs, batch(0, b"a")) and appended.set())
    with partition.future_log_lock:
        thread.start()
        thread.join(0.05)
        assert not appended.is_set()
    thread.join(DEADLINE_S)
    assert appended.is_set()


def test_PART_20_records_for_a_future_log_that_is_gone_are_nobodys_and_no_error(partition):
    assert partition.append_records_to_follower_or_future_replica(batch(0, b"a"), is_future=True) is None
    assert partition.log.log_end_offset == 0


def test_PART_21_an_empty_log_inside_a_batch_begins_anew_at_the_batch(logs, partition):
    logs.truncate_fully_and_start_at(TP, 2)
    assert append(logs, batch(1, b"a", b"b", b"c")) == AppendedRecords(3, 1)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (1, 4)


def test_PART_21_a_log_that_ends_inside_a_batch_is_cut_to_its_first_offset(logs, partition):
    append(logs, batch(0, b"0"))
    append(logs, batch(1, b"x", b"y", b"z", epoch=1))
    logs.truncate_to(TP, 3, False)
    assert logs.log_end_offset(TP) == 3
    with pytest.raises(errors.UnexpectedAppendOffset):  # of a leader that has no reason to send it
        append(logs, batch(1, b"a", b"b", b"c", epoch=2))
    assert logs.log_end_offset(TP) == 3
    leader_starts_inside = 3
    assert append(logs, batch(1, b"a", b"b", b"c", epoch=2), leader_starts_inside) == AppendedRecords(3, 2)
    assert [record.value for record in partition.log.records()] == [b"0", b"a", b"b", b"c"]


@pytest.mark.parametrize("first", [0, 1])
def test_PART_21_other_unexpected_offsets_stay_errors(logs, first):
    append(logs, batch(0, b"0", b"1", b"2"))
    with pytest.raises(errors.UnexpectedAppendOffset):
        append(logs, batch(first, b"a", b"b"))  # ends below our end


def test_PART_22_PART_23_a_recovery_point_above_the_cut_is_brought_down_on_disk(node, logs, partition, tmp_path):
    append(logs, batch(0, *[b"%d" % number for number in range(9)]))
    append(logs, batch(9, b"9"))
    partition.log.flush()
    node.log_manager.checkpoint_recovery_offsets()
    checkpoint = tmp_path / "recovery-point-offset-checkpoint"
    assert "t 0 10" in checkpoint.read_text()
    logs.truncate_to(TP, 9, True)
    node.log_manager.checkpoint_recovery_offsets()
    assert "t 0 9" in checkpoint.read_text() and partition.log.recovery_point <= 9
    logs.truncate_fully_and_start_at(TP, 4)
    assert "t 0 4" in checkpoint.read_text()
    assert (logs.log_start_offset(TP), logs.log_end_offset(TP)) == (4, 4)


def test_RFT_05_without_a_whole_batch_nothing_is_written(logs):
    assert append(logs, batch(0, b"abc")[:-1]) is None
    assert append(logs, b"") is None and logs.log_end_offset(TP) == 0


def test_batches_of_a_later_leader_epoch_than_the_followers_are_not_taken(logs, partition):
    """Its sender may have copied them from the next leader (KAFKA-18723)."""
    data = bytes(batch(0, b"a", epoch=2)) + bytes(batch(1, b"b", epoch=3)) + bytes(batch(2, b"c", epoch=4))
    assert append(logs, data, leader_epoch=3) == AppendedRecords(1, 3)
    with pytest.raises(errors.InvalidRecord, match="at offset 2 has leader epoch 4, its sender leads with epoch 3"):
        append(logs, batch(2, b"c", epoch=4), leader_epoch=3)
    assert (logs.log_end_offset(TP), partition.log.last_epoch) == (2, 3)
    assert append(logs, batch(2, b"c", epoch=4), leader_epoch=4) == AppendedRecords(2, 4)
    assert append(logs, batch(3, b"d", epoch=9), leader_epoch=-1) == AppendedRecords(3, 9)


def test_RFT_07_HW_01_the_high_watermark_is_the_leaders_but_no_higher_than_the_own_log_end(node, logs):
    append(logs, batch(0, b"a", b"b"))
    logs.update_high_watermark(TP, 9)
    assert logs.high_watermark(TP) == 2
    logs.complete_waiting()
    assert node.advanced == [TP]
    logs.update_high_watermark(TP, 2)
    logs.complete_waiting()
    assert node.advanced == [TP], "it did not rise"


def test_RFT_08_the_log_start_rises_with_the_leaders_and_epochs_below_it_stay_in_the_file_until_it_is_on_disk(
    logs, tmp_path
):
    append(logs, batch(0, b"a", b"b", b"c"))
    logs.update_high_watermark(TP, 2)
    logs.maybe_increment_log_start_offset(TP, 2)
    logs.maybe_increment_log_start_offset(TP, 1)
    assert logs.log_start_offset(TP) == 2
    assert not (tmp_path / "log-start-offset-checkpoint").exists()
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"
    with pytest.raises(errors.OffsetOutOfRange):
        logs.maybe_increment_log_start_offset(TP, 3)


def test_RFT_09_bytes_of_a_throttled_partition_are_recorded_in_the_quota(node):
    recorded, throttled = [], set()

    class Quota:
        is_throttled = throttled.__contains__
        record = recorded.append

    logs = ReplicaLogs(node.replica_manager.get_partition, node.log_manager, quota=Quota)
    append(logs, batch(0, b"a"))
    throttled.add(TP)
    append(logs, batch(1, b"bb"))
    assert recorded == [len(batch(1, b"bb"))]


def test_RFT_15_a_cut_below_the_high_watermark_is_logged_and_a_completed_one_reaches_the_log_dir_move(
    node, logs, caplog
):
    caplog.set_level(logging.WARNING)
    append(logs, batch(0, b"a"))
    append(logs, batch(1, b"b"))
    append(logs, batch(2, b"c"))
    logs.update_high_watermark(TP, 2)
    logs.truncate_to(TP, 2, False)
    assert not caplog.records and node.truncated == []
    logs.truncate_to(TP, 1, True)
    assert "below the high watermark 2" in caplog.text and node.truncated == [(TP, 1)]


def test_an_offline_partition_is_a_storage_error_for_each_call(node, logs, tmp_path):
    node.replica_manager.handle_log_dir_failure(str(tmp_path))
    for call in (
        lambda: append(logs, batch(0, b"a")),
        lambda: logs.log_end_offset(TP),
        lambda: logs.truncate_to(TP, 0, True),
        lambda: logs.truncate_fully_and_start_at(TP, 0),
        lambda: logs.update_high_watermark(TP, 0),
    ):
        with pytest.raises(errors.KafkaStorageError):
            call()


def test_a_full_disk_fails_the_append_and_the_next_one_may_succeed(logs, tmp_path):
    file.fail_next("pwrite", errno.ENOSPC, under=str(tmp_path))
    with pytest.raises((OSError, errors.KafkaStorageError)):
        append(logs, batch(0, b"a"))
    file.clear_faults()
    assert append(logs, batch(0, b"a")) == AppendedRecords(0, 1)
