import threading

import pytest

from kcore import errors
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.log.special_timestamps import LATEST_TIMESTAMP, MAX_TIMESTAMP
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.batches import batch

from .conftest import TP, update


def test_PART_02_a_new_leader_epoch_starts_at_the_log_end_before_the_first_write(node):
    partition = node.lead(epoch=3)
    assert partition.log.last_epoch == 3
    node.produce(batch(b"a"))
    partition = node.lead(epoch=7)
    assert partition.log.end_offset_for_epoch(3) == (3, 1)


def test_PART_06_make_leader_returns_whether_leadership_is_new(node):
    partition = node.lead()
    assert partition.make_leader(update(epoch=1), 1) is False
    partition.resign()
    assert partition.make_leader(update(epoch=2), 1) is True


def test_a_leader_that_may_have_missed_another_one_leads_anew(node):
    """Its coordinators have to read what the other one may have changed, and need an epoch that is above its."""
    partition = node.lead(epoch=1)
    assert partition.make_leader(update(epoch=2, partition_epoch=1), 1) is False
    assert partition.make_leader(update(epoch=4, partition_epoch=2), 1) is True


def test_PART_08_PART_09_nothing_is_written_without_leadership(leader):
    partition = leader.replica_manager.get_partition(TP)
    partition.resign()
    with pytest.raises(errors.NotLeaderOrFollower, match="t-0: broker 0 is not the leader"):
        partition.append_records_to_leader(batch(), 1)
    with pytest.raises(errors.NotLeaderOrFollower):
        partition.read_records(0, 1, FetchIsolation.LOG_END, True)
    assert partition.log.log_end_offset == 0


def test_PART_10_an_append_moves_the_high_watermark_of_a_single_replica(leader):
    partition = leader.replica_manager.get_partition(TP)
    info, advanced = partition.append_records_to_leader(batch(b"a", b"b"), -1)
    assert (info.first_offset, info.last_offset, advanced) == (0, 1, True)
    assert partition.log.high_watermark == 2


def test_a_time_is_looked_up_below_the_end_of_what_the_reader_may_read(leader):
    partition = leader.replica_manager.get_partition(TP)
    for timestamp in (1000, 2000, 3000):
        builder = RecordBatchBuilder()
        builder.append(b"v", timestamp=timestamp)
        partition.log.append_as_leader(builder.build(), 0)
    partition.log.update_high_watermark(2)
    lookup = partition.fetch_offset_for_timestamp
    for isolation in (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED):
        assert [result and result.offset for result in (lookup(t, isolation) for t in (1000, 1001, 2001))] == [
            0,
            1,
            None,
        ]
        assert lookup(LATEST_TIMESTAMP, isolation).offset == 2
        assert lookup(MAX_TIMESTAMP, isolation) is None  # the record that has it is not replicated yet
    assert lookup(2001, FetchIsolation.LOG_END).offset == lookup(MAX_TIMESTAMP, FetchIsolation.LOG_END).offset == 2
    assert lookup(LATEST_TIMESTAMP, FetchIsolation.LOG_END).offset == 3


def test_old_clients_get_the_readable_end_instead_of_offsets_beyond_it(leader):
    partition = leader.replica_manager.get_partition(TP)
    partition.log.append_as_leader(batch(b"a", b"b"), 0)
    lookup = partition.legacy_fetch_offsets_for_timestamp
    assert lookup(LATEST_TIMESTAMP, 10, FetchIsolation.LOG_END) == [2, 0]
    assert lookup(LATEST_TIMESTAMP, 10, FetchIsolation.HIGH_WATERMARK) == [0, 0]
    partition.resign()
    with pytest.raises(errors.NotLeaderOrFollower):
        lookup(LATEST_TIMESTAMP, 10, FetchIsolation.LOG_END)


def test_a_change_of_leadership_waits_for_running_appends(leader):
    partition = leader.replica_manager.get_partition(TP)
    inside, go_on = threading.Event(), threading.Event()
    append = partition.log.append_as_leader

    def slow_append(*args):
        inside.set()
        assert go_on.wait(60)
        return append(*args)

    partition.log.append_as_leader = slow_append
    producer = threading.Thread(target=partition.append_records_to_leader, args=(batch(), 1))
    producer.start()
    assert inside.wait(60)
    resigner = threading.Thread(target=partition.resign)
    resigner.start()
    resigner.join(0.05)
    assert resigner.is_alive() and partition.is_leader
    go_on.set()
    producer.join(60)
    resigner.join(60)
    assert not partition.is_leader
    assert partition.log.log_end_offset == 1
    del partition.log.append_as_leader
