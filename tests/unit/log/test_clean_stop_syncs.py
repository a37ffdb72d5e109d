"""What a clean stop and the flush after it sync: the partitions that changed, and nothing of the others."""

import os
from collections import Counter
from uuid import UUID

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.partition_metadata import read_topic_id
from tests.reference.disk import recorded
from tests.unit.log.logs import batch

#: The record holds a copy of each mapped index at each call.
SMALL = LogConfig(segment_bytes=10_000, segment_index_bytes=120)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "data"


def started(directory, count, *, epoch=0):
    """A manager and its logs, each with the epoch of a new leader, as a broker assigns it at a start."""
    time = MockTime()
    manager = LogManager([directory], SMALL, time=time, scheduler=MockScheduler(time))
    manager.startup()
    logs = [manager.get_or_create_log(TopicPartition("t", n)) for n in range(count)]
    for log in logs:
        log.maybe_assign_epoch_start_offset(epoch, log.log_end_offset)
    return manager, logs


def syncs(record):
    """File name without .tmp, or "directory" -> number of fsyncs, for the files in partitions' directories."""
    counts = Counter()
    for change in record.changes():
        path = change.paths[0] if change.paths else ""
        if change.call in ("fsync", "msync") and "/t-" in path:
            name = os.path.basename(path).removesuffix(".tmp")
            counts["directory" if name.startswith("t-") else name] += 1
    return counts


def stop_syncs(directory, count, touched=0, **options):
    with recorded() as record:
        manager, logs = started(directory, count, **options)
        for log in logs[:touched]:
            log.append_as_leader(batch(), leader_epoch=0)
        size = len(record.changes())
        manager.shutdown()
        record_of_stop = record.changes()[size:]
    return syncs(type("Part", (), {"changes": lambda self: record_of_stop})())


def test_a_clean_stop_syncs_nothing_of_partitions_that_are_new_and_empty(directory):
    assert stop_syncs(directory, 20) == {}


def test_a_clean_stop_syncs_nothing_of_partitions_that_were_not_touched(directory):
    stop_syncs(directory, 10, touched=5)
    for _ in range(2):
        assert stop_syncs(directory, 10) == {}


def test_a_clean_stop_syncs_an_epoch_without_records_once(directory):
    stop_syncs(directory, 10, touched=5)
    assert stop_syncs(directory, 10, epoch=3) == {"leader-epoch-checkpoint": 5, "directory": 5}
    assert stop_syncs(directory, 10, epoch=3) == {}


def test_a_clean_stop_syncs_what_was_touched_alone(directory):
    stop_syncs(directory, 10, touched=10)
    syncs = stop_syncs(directory, 10, touched=3)
    first = f"{0:020}"
    assert syncs == {f"{first}.log": 3, f"{first}.timeindex": 3, f"{2:020}.snapshot": 3}


def test_the_epochs_that_an_empty_log_had_at_a_clean_stop_are_synced_before_its_data(directory):
    with recorded() as record:
        manager, _ = started(directory, 1)
        manager.shutdown()
        manager, (log,) = started(directory, 1)
        log.append_as_leader(batch(), leader_epoch=0)
        log.flush()
        assert syncs(record)["leader-epoch-checkpoint"] == 1
        assert log.recovery_point == 1
        manager.shutdown()


def test_epochs_that_were_not_synced_before_a_kill_are_synced_at_the_next_clean_stop(directory):
    manager, (log,) = started(directory, 1)
    log.append_as_leader(batch(), leader_epoch=0)
    manager._dirs[str(directory)].release()  # as the end of the process does
    assert stop_syncs(directory, 1)["leader-epoch-checkpoint"] == 1
    assert stop_syncs(directory, 1) == {}


def test_an_epoch_that_a_clean_start_leaves_in_the_file_is_gone_when_something_else_is_written(directory):
    stop_syncs(directory, 1, touched=1, epoch=0)
    stop_syncs(directory, 1, epoch=5)  # 5 at 1, without a record
    path = directory / "t-0" / "leader-epoch-checkpoint"
    time = MockTime()
    manager = LogManager([directory], SMALL, time=time, scheduler=MockScheduler(time))
    manager.startup()
    log = manager.get_log(TopicPartition("t", 0))
    assert log.leader_epoch_cache.entries == ((0, 0),)
    assert path.read_text() == "0\n2\n0 0\n5 1\n"
    log.append_as_follower(bytes(batch(base_offset=1, leader_epoch=0)))
    log.flush()
    assert path.read_text() == "0\n1\n0 0\n"
    manager.shutdown()


def test_many_new_partitions_are_made_without_a_sync(directory):
    with recorded() as record:
        manager, logs = started(directory, 20)
        for log in logs:
            log.assign_topic_id(UUID(int=5))
        assert syncs(record) == {}
        manager.shutdown()
        assert syncs(record) == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_the_topic_id_of_a_new_partition_is_synced_before_its_data_are_taken_for_flushed(directory, restarted):
    with recorded() as record:
        manager, (log,) = started(directory, 1)
        log.assign_topic_id(UUID(int=5))
        if restarted:
            manager.shutdown()
            manager, (log,) = started(directory, 1)
        log.append_as_leader(batch(), leader_epoch=0)
        assert syncs(record) == {}
        log.flush()
        changes = [(change.call, os.path.basename(change.paths[0])) for change in record.changes() if change.paths]
        synced = [name for call, name in changes if call == "fsync"]
        assert synced.index("partition.metadata") < synced.index("t-0")
        log.append_as_leader(batch(), leader_epoch=0)
        log.flush()
        assert syncs(record)["partition.metadata"] == 1
        manager.shutdown()


def test_the_topic_id_of_a_log_that_has_data_is_synced_at_once(directory):
    manager, (log,) = started(directory, 1)
    log.append_as_leader(batch(), leader_epoch=0)
    with recorded() as record:
        log.assign_topic_id(UUID(int=5))
        assert syncs(record) == {"partition.metadata": 1, "directory": 1}
    manager.shutdown()


def test_an_empty_partition_metadata_has_no_topic_id_and_gets_one(directory):
    manager, (log,) = started(directory, 1)
    manager.shutdown()
    path = directory / "t-0" / "partition.metadata"
    path.write_bytes(b"")
    manager, (log,) = started(directory, 1)
    assert log.topic_id is None
    log.assign_topic_id(UUID(int=5))
    assert [file.name for file in path.parent.glob("partition.metadata*")] == ["partition.metadata"]
    manager.shutdown()
    assert read_topic_id(str(path.parent)) == UUID(int=5)
