"""A replica that has lost records is cut at the first of them before it is copied, and is whole once it caught up."""

import errno

import pytest

from kcore.common import file
from kcore.log.lost_records import LostRecords, read_mark
from kcore.replica.fetcher.fetchers import FetchSource, InitialFetchState
from kcore.replica.fetcher.follower_logs import ReplicaLogs
from tests.batches import batch

from .conftest import TP, Node, update
from .test_become_follower import RecordingFetchers


@pytest.fixture
def node(tmp_path):
    fetchers = RecordingFetchers()
    node = Node(tmp_path, fetchers=fetchers)
    node.fetchers = fetchers
    yield node
    file.clear_faults()
    node.shutdown()


def with_lost_records(node, first_offset=2, count=5):
    """A log of `count` records that was led, and lacks some from first_offset on."""
    partition = node.lead(isr=(0, 1))
    for _ in range(count):
        partition.append_records_to_leader(batch(), 1)
    partition.log.mark_lost_records(first_offset)
    return partition


def test_a_log_is_cut_before_it_is_copied_and_not_while_it_leads_or_has_no_leader(node):
    partition = with_lost_records(node)
    node.become(update(TP, 0, 1, isr=(0, 1)))
    assert partition.log.log_end_offset == 5
    node.become(update(TP, -1, 2, isr=(0, 1)))
    assert partition.log.log_end_offset == 5
    node.become(update(TP, 1, 3, isr=(1,), replicas=(0, 1)))
    assert partition.log.log_end_offset == 2
    assert node.fetchers.sources[TP] == FetchSource(1, InitialFetchState(partition.log.high_watermark, 3))
    assert read_mark(partition.log.directory) == 2


def test_what_was_copied_since_is_not_cut_again_when_the_leader_changes(node):
    partition = with_lost_records(node)
    node.become(update(TP, 1, 3, isr=(1,), replicas=(0, 1)))
    partition.append_records_to_follower_or_future_replica(batch(base_offset=2, leader_epoch=3), False)
    node.become(update(TP, 2, 4, isr=(2,), replicas=(0, 1, 2)))
    assert partition.log.log_end_offset == 3


def test_the_mark_goes_once_the_log_reaches_the_leaders_high_watermark(node):
    partition = with_lost_records(node)
    logs = ReplicaLogs(node.replica_manager.get_partition, node.log_manager)
    logs.update_high_watermark(TP, 5)
    assert partition.log.lost_records == LostRecords(2)  # the hole is still there
    node.become(update(TP, 1, 3, isr=(1,), replicas=(0, 1)))
    logs.update_high_watermark(TP, 3)
    assert partition.log.lost_records == LostRecords(2, is_cut=True)
    logs.append(TP, batch(base_offset=2, leader_epoch=3), 0, 3)
    logs.update_high_watermark(TP, 3)
    assert partition.log.lost_records is None and read_mark(partition.log.directory) is None


def test_the_only_replica_leads_with_what_it_has_and_the_mark_goes(node, caplog):
    partition = with_lost_records(node)
    node.become(update(TP, 0, 1, isr=(0,), replicas=(0, 1)))
    assert read_mark(partition.log.directory) == 2  # the other one may have the records
    node.become(update(TP, 0, 2, isr=(0,), replicas=(0,)))
    assert partition.is_leader and partition.log.log_end_offset == 5
    assert partition.log.lost_records is None and read_mark(partition.log.directory) is None
    assert "records from offset 2 on are lost, and no other broker has a replica" in caplog.text


def test_a_log_that_cannot_be_cut_is_not_copied(node, caplog):
    partition = with_lost_records(node)
    file.fail_next("ftruncate", errno.EIO, under=partition.log.directory)
    node.become(update(TP, 1, 3, isr=(1,), replicas=(0, 1)))
    assert TP not in node.fetchers.sources and "is not copied" in caplog.text
    assert partition.log.is_offline


def test_a_copy_that_moves_to_another_directory_is_cut_too(node, monkeypatch):
    partition = with_lost_records(node)
    marked = []
    monkeypatch.setattr(node.replica_manager.log_dir_moves, "mark_for_truncation", lambda *cut: marked.append(cut))
    node.become(update(TP, 1, 3, isr=(1,), replicas=(0, 1)))
    assert marked == [(TP, 2)] and partition.log.log_end_offset == 2
