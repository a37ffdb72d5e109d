import errno
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from kcore.common import file
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DirectoryInUse, KafkaStorageError
from kcore.log.checkpoints import OffsetCheckpointFile
from kcore.log.log_dir import LogDir
from kcore.log.log_manager import LogManager
from tests.reference.disk import calls, recorded
from tests.unit.log.logs import batch

A, B = TopicPartition("a", 0), TopicPartition("b", 7)


@pytest.fixture
def log_dir(tmp_path):
    return LogDir(str(tmp_path), time=MockTime())


@pytest.fixture(autouse=True)
def no_faults_stay():
    yield
    file.clear_faults()


def log_of(tp, *, recovery_point=0, log_start_offset=0, base_offset=0, forget_offsets=None):
    """As much of a log as a checkpoint needs; the offsets of forget_below() go to forget_offsets."""
    forget_offsets = [] if forget_offsets is None else forget_offsets
    first = SimpleNamespace(base_offset=base_offset)
    return SimpleNamespace(
        topic_partition=tp,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        segments=SimpleNamespace(first=first),
        leader_epoch_cache=SimpleNamespace(forget_below=forget_offsets.append),
    )


def test_a_directory_is_made_and_locked_until_it_is_released(tmp_path):
    first, second = (LogDir(str(tmp_path / "data")) for _ in range(2))
    first.lock()
    with pytest.raises(DirectoryInUse):
        second.lock()
    first.release()
    first.release()
    second.lock()
    second.release()


def test_leader_epochs_below_a_log_start_are_removed_when_it_is_on_the_disk(log_dir, monkeypatch):
    forget_offsets = []
    log = log_of(A, log_start_offset=5, forget_offsets=forget_offsets)
    with monkeypatch.context() as patch:
        patch.setattr(log_dir.log_starts, "write", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        log_dir.checkpoint_log_starts(lambda: [log])
    assert forget_offsets == []
    log_dir.checkpoint_log_starts(lambda: [log])
    assert forget_offsets == [5]


def test_TRUNC_10_lowered_offsets_are_written_for_one_log_and_only_where_a_file_has_higher_ones(log_dir, tmp_path):
    log_dir.checkpoint_recovery_points(lambda: [log_of(A, recovery_point=6), log_of(B, recovery_point=9)])
    log_dir.checkpoint_log_starts(lambda: [log_of(A, log_start_offset=5), log_of(B, log_start_offset=8)])
    with recorded() as record:
        log_dir.lower_offsets(log_of(A, recovery_point=6, log_start_offset=5))
        log_dir.lower_offsets(log_of(TopicPartition("unknown", 0)))
        assert calls(record, tmp_path) == []
    log_dir.lower_offsets(log_of(A, recovery_point=2, log_start_offset=4))
    assert log_dir.recovery_points.read() == {A: 2, B: 9}
    assert log_dir.log_starts.read() == {A: 4, B: 8}
    log_dir.lower_offsets(log_of(A, recovery_point=1, log_start_offset=1, base_offset=1))
    assert log_dir.recovery_points.read() == {A: 1, B: 9}
    assert log_dir.log_starts.read() == {B: 8}, "the first segment's name says it"


def test_TRUNC_10_a_checkpoint_in_progress_does_not_write_the_old_recovery_point_after_the_lower_one(log_dir):
    truncation = None

    class Log(SimpleNamespace):
        @property
        def recovery_point(self):
            """Truncated just after the checkpoint has read it."""
            nonlocal truncation
            if truncation is not None:
                return 3
            truncation = threading.Thread(target=log_dir.lower_offsets, args=[self])
            truncation.start()
            truncation.join(0.1)
            return 6

    log_dir.recovery_points.write({A: 6})
    first = SimpleNamespace(base_offset=0)
    log_dir.checkpoint_recovery_points(
        lambda: [Log(topic_partition=A, log_start_offset=0, segments=SimpleNamespace(first=first))]
    )
    truncation.join()
    assert log_dir.recovery_points.read() == {A: 3}


@pytest.mark.parametrize("synced_before", [0, 1], ids=["file", "directory"])
def test_TRUNC_10_a_checkpoint_that_was_renamed_but_whose_write_failed_is_lowered_too(log_dir, synced_before):
    """The second fsync is the directory's: the file has its new content then, which may be on the disk or not."""
    log_dir.checkpoint_recovery_points(lambda: [log_of(A, recovery_point=3)])
    file.fail_next("fsync", errno.ENOSPC, skip=synced_before, under=log_dir.path)
    log_dir.checkpoint_recovery_points(lambda: [log_of(A, recovery_point=10)])
    assert log_dir.recovery_points.read() == {A: 10 if synced_before else 3}
    log_dir.lower_offsets(log_of(A, recovery_point=4))
    assert log_dir.recovery_points.read() == {A: 4 if synced_before else 3}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_TRUNC_10_a_log_whose_lowered_recovery_point_cannot_be_written_is_offline_at_once(tmp_path, error):
    """A start would not scan what would be appended below it."""
    manager = LogManager([tmp_path], time=MockTime())
    manager.startup()
    log = manager.get_or_create_log(A)
    log.append_as_leader(batch(3), 0)
    log.append_as_leader(batch(3), 0)
    log.flush()
    manager.checkpoint_recovery_offsets()
    file.fail_next("pwrite", error, under=str(tmp_path / "recovery-point-offset-checkpoint"))
    with pytest.raises(KafkaStorageError):
        manager.truncate_to({A: 3})
    assert log.is_offline and manager.offline_log_dirs == [str(tmp_path)]
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch(), 0)
    manager.shutdown()


def test_a_checkpoint_on_a_full_disk_is_logged_once_a_minute_and_leaves_the_directory_online(log_dir, caplog):
    file.fail_next("pwrite", errno.ENOSPC, under=log_dir.path, times=-1)
    for _ in range(5):
        log_dir.checkpoint_recovery_points(lambda: [log_of(A)])
        log_dir._time.sleep(20_000)
    assert log_dir.failure is None
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [" could not be written"] * 2
    file.clear_faults()
    file.fail_next("pwrite", errno.EIO, under=log_dir.path)
    log_dir.checkpoint_recovery_points(lambda: [log_of(A)])
    assert log_dir.failure.errno == errno.EIO
    with recorded() as record:
        log_dir.checkpoint_recovery_points(lambda: [log_of(A)])
        assert calls(record, log_dir.path) == []


@pytest.mark.parametrize("cleaner_offsets", [True, False])
def test_a_log_that_goes_leaves_no_offset_for_a_new_one_of_its_name(log_dir, tmp_path, cleaner_offsets):
    files = [log_dir.recovery_points, log_dir.log_starts, log_dir.high_watermarks, log_dir.cleaner_offsets]
    for each in files:
        each.write({A: 5, B: 6})
    log_dir.drop([A], cleaner_offsets=cleaner_offsets)
    assert [each.read() for each in files[:3]] == [{B: 6}] * 3
    assert log_dir.cleaner_offsets.read() == ({B: 6} if cleaner_offsets else {A: 5, B: 6})


def test_offsets_of_a_log_that_could_not_be_loaded_stay_in_every_checkpoint(log_dir, tmp_path):
    for checkpoint in (log_dir.recovery_points, log_dir.log_starts, log_dir.high_watermarks):
        checkpoint.write({A: 5, B: 6})
    log_dir.keep_checkpointed(A, log_dir.read_checkpoints())
    log_dir.checkpoint_recovery_points(lambda: [log_of(B, recovery_point=7)])
    log_dir.checkpoint_log_starts(list)
    log_dir.checkpoint_high_watermarks(lambda: {B: 7})
    assert log_dir.read_checkpoints() == ({A: 5, B: 7}, {A: 5}, {A: 5, B: 7})
    log_dir.write_clean_shutdown([log_of(B, recovery_point=8)], -1)
    assert OffsetCheckpointFile(str(tmp_path / "recovery-point-offset-checkpoint")).read() == {A: 5, B: 8}
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "the log may need a recovery"
    log_dir.had_clean_shutdown = True
    log_dir.write_clean_shutdown([], -1)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
