"""A log whose directory somebody has removed while no broker ran: its checkpointed high watermark says what is lost."""

import errno
import os
import shutil

import pytest

from kcore.common import file
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.lost_records import LostRecords, read_mark
from tests.unit.log.logs import batch

A, B = TopicPartition("a", 0), TopicPartition("b", 7)
HIGH_WATERMARKS = "replication-offset-checkpoint"


@pytest.fixture(autouse=True)
def no_faults_stay():
    yield
    file.clear_faults()


@pytest.fixture
def dirs(tmp_path):
    return [tmp_path / "one", tmp_path / "two"]


def started(*dirs, has_other_replicas=True):
    manager = LogManager(dirs, config=LogManagerConfig(has_other_replicas=has_other_replicas))
    manager.startup()
    return manager


def killed(manager):
    manager.abandon("killed")


def checkpoint(manager):
    manager.checkpoint_high_watermarks({log.topic_partition: log.high_watermark for log in manager.all_logs()})
    manager.checkpoint_recovery_offsets()


def filled(directory, *tps, count=3, **options):
    """A data directory with these logs, whose broker was killed."""
    manager = started(directory, **options)
    for tp in tps:
        log = manager.get_or_create_log(tp)
        for _ in range(count):
            log.append_as_leader(batch())
        log.flush()
        log.update_high_watermark(count)
    checkpoint(manager)
    killed(manager)


def line(directory, tp=A, name=HIGH_WATERMARKS):
    return OffsetCheckpointFile(str(directory / name)).read().get(tp)


def remove(directory, tp=A):
    shutil.rmtree(directory / f"{tp.topic}-{tp.partition}")


def test_a_log_that_takes_the_place_of_one_that_is_gone_has_the_mark(dirs, caplog):
    filled(dirs[0], A, B)
    remove(dirs[0])
    manager = started(dirs[0])
    assert manager.gone_logs() == manager.partitions_with_lost_records() == [A]
    log = manager.get_or_create_log(A)
    assert log.log_end_offset == 0 and log.lost_records == LostRecords(0)
    assert read_mark(str(dirs[0] / "a-0")) == 0
    assert "a-0: made anew and empty: its directory is gone, and had records up to offset 3" in caplog.text
    assert manager.gone_logs() == [] and manager.partitions_with_lost_records() == [A]
    checkpoint(manager)
    assert line(dirs[0]) == 0 and line(dirs[0], B) == 3
    manager.shutdown()


def test_what_says_that_a_log_is_gone_stays_until_it_is_made_anew(dirs):
    filled(dirs[0], A, B)
    remove(dirs[0])
    for end in (killed, LogManager.shutdown, killed):
        manager = started(dirs[0])
        assert manager.gone_logs() == [A]
        checkpoint(manager)
        assert line(dirs[0]) == 3
        end(manager)
    assert not (dirs[0] / ".kafka_cleanshutdown").exists()


def test_a_log_that_is_gone_needs_no_recovery(dirs):
    filled(dirs[0], A, B)
    remove(dirs[0])
    started(dirs[0]).shutdown()
    assert (dirs[0] / ".kafka_cleanshutdown").exists()


def test_the_next_start_finds_the_mark_or_the_line(dirs):
    """The broker is killed at each write of the mark's way to the disk."""
    for call in ("mkdir", "open", "rename", "fsync"):
        shutil.rmtree(dirs[0], ignore_errors=True)
        filled(dirs[0], A)
        remove(dirs[0])
        manager = started(dirs[0])
        file.fail_next(call, errno.EIO, under=str(dirs[0]), times=1000)
        try:
            manager.get_or_create_log(A)
        except KafkaStorageError:
            pass
        file.clear_faults()
        killed(manager)
        manager = started(dirs[0])
        assert manager.partitions_with_lost_records() == [A], call
        killed(manager)


def test_no_log_is_made_whose_mark_cannot_be_written(dirs):
    filled(dirs[0], A)
    remove(dirs[0])
    manager = started(dirs[0])
    file.fail_next("pwrite", errno.ENOSPC, under=str(dirs[0]), times=1000)
    with pytest.raises(KafkaStorageError, match="No space left"):
        manager.get_or_create_log(A)
    assert not (dirs[0] / "a-0").exists() and manager.gone_logs() == [A]
    file.clear_faults()
    assert manager.get_or_create_log(A).lost_records == LostRecords(0)
    manager.shutdown()


def test_a_new_log_gets_no_offset_of_the_one_that_is_gone(dirs):
    filled(dirs[0], A, B)
    starts = OffsetCheckpointFile(str(dirs[0] / "log-start-offset-checkpoint"))
    starts.write({A: 2})
    remove(dirs[0])
    killed(started(dirs[0]))
    names = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
    assert [line(dirs[0], name=name) for name in names] == [None, None]
    assert line(dirs[0], B, names[0]) == 3


def test_a_log_without_a_record_that_was_read_is_not_missed(dirs):
    filled(dirs[0], A, count=0)
    assert line(dirs[0]) == 0
    remove(dirs[0])
    manager = started(dirs[0])
    assert manager.gone_logs() == [] and manager.get_or_create_log(A).lost_records is None
    manager.shutdown()


def test_a_log_that_was_deleted_is_not_missed(dirs):
    filled(dirs[0], A, B)
    manager = started(dirs[0])
    manager.async_delete(A)
    killed(manager)
    manager = started(dirs[0])
    assert manager.gone_logs() == []
    killed(manager)


def test_an_order_to_delete_a_log_that_is_gone_makes_it_forgotten(dirs):
    filled(dirs[0], A, B)
    remove(dirs[0])
    manager = started(dirs[0])
    manager.async_delete(A)
    assert manager.gone_logs() == [] and line(dirs[0]) is None and line(dirs[0], B) == 3
    assert manager.get_or_create_log(A).lost_records is None
    manager.shutdown()


def test_the_partition_of_a_new_topic_has_lost_nothing(dirs):
    filled(dirs[0], A)
    remove(dirs[0])
    manager = started(dirs[0])
    assert manager.get_or_create_log(A, is_new=True).lost_records is None
    assert manager.gone_logs() == [] and line(dirs[0]) is None
    manager.shutdown()


def test_a_log_that_has_moved_to_another_data_directory_is_not_missed(dirs):
    filled(dirs[0], A)
    manager = started(*dirs)
    future = manager.get_or_create_log(A, is_future=True, log_dir=dirs[1])
    for _ in range(3):
        future.append_as_leader(batch())
    before = (dirs[0] / HIGH_WATERMARKS).read_bytes()
    manager.replace_current_with_future_log(A)
    killed(manager)
    (dirs[0] / HIGH_WATERMARKS).write_bytes(before)  # as if it had been killed before the line was removed
    manager = started(*dirs)
    assert manager.gone_logs() == [] and manager.get_log(A).parent_dir == str(dirs[1])
    checkpoint(manager)
    assert line(dirs[0]) is None
    killed(manager)


def test_a_move_whose_directory_is_gone_has_lost_nothing(dirs):
    filled(dirs[0], A)
    manager = started(*dirs)
    future = manager.get_or_create_log(A, is_future=True, log_dir=dirs[1])
    future.append_as_leader(batch())
    future.update_high_watermark(1)
    checkpoint(manager)
    killed(manager)
    assert line(dirs[1]) == 1
    shutil.rmtree(future.directory)
    manager = started(*dirs)
    assert manager.gone_logs() == []
    killed(manager)


def test_a_log_that_moved_is_gone_even_if_its_copy_is_there(dirs):
    filled(dirs[0], A)
    manager = started(*dirs)
    manager.get_or_create_log(A, is_future=True, log_dir=dirs[1])
    killed(manager)
    remove(dirs[0])
    manager = started(*dirs)
    assert manager.gone_logs() == [A]
    assert manager.get_or_create_log(A, log_dir=dirs[0]).lost_records == LostRecords(0)
    manager.shutdown()


def test_the_new_log_may_be_in_another_data_directory(dirs):
    filled(dirs[0], A)
    remove(dirs[0])
    manager = started(*dirs)
    assert manager.get_or_create_log(A, log_dir=dirs[1]).lost_records == LostRecords(0)
    checkpoint(manager)
    assert line(dirs[0]) is None and line(dirs[1]) == 0
    manager.shutdown()


def test_a_log_that_cannot_be_loaded_is_not_gone(dirs):
    filled(dirs[0], A)
    log_file = dirs[0] / "a-0" / f"{0:020d}.log"
    log_file.unlink()
    os.mkfifo(log_file)
    manager = started(dirs[0])
    assert manager.get_log(A) is None and manager.gone_logs() == []
    killed(manager)


def test_without_the_checkpoint_nothing_is_known_of_a_log_that_is_gone(dirs):
    filled(dirs[0], A)
    shutil.rmtree(dirs[0])
    manager = started(dirs[0])
    assert manager.gone_logs() == []
    killed(manager)


def test_a_broker_without_others_makes_the_log_anew_and_says_so(dirs, caplog):
    filled(dirs[0], A, has_other_replicas=False)
    remove(dirs[0])
    manager = started(dirs[0], has_other_replicas=False)
    assert manager.get_or_create_log(A).lost_records is None and read_mark(str(dirs[0] / "a-0")) is None
    assert "a-0: made anew and empty: its directory is gone, and had records up to offset 3" in caplog.text
    manager.shutdown()
