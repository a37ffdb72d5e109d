import errno
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from uuid import UUID

import pytest

from kcore.common import file
from kcore.common.executors import inline
from kcore.common.futures import submit
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DirectoryInUse, InconsistentTopicId, KafkaStorageError
from kcore.log import log_loader
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from tests.reference.disk import calls, place, recorded
from tests.unit.log.logs import Logs, batch, idempotent, offsets

A, B = TopicPartition("a", 0), TopicPartition("b", 7)


class Managers:
    def __init__(self, *dirs, **options):
        self.dirs = dirs
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.topic_configs = {}
        self.options = options

    def build(self):
        return LogManager(
            self.dirs,
            LogConfig(segment_bytes=1000),
            topic_configs=lambda topic: self.topic_configs.get(topic, {}),
            time=self.time,
            scheduler=self.scheduler,
            **self.options,
        )

    def start(self):
        manager = self.build()
        manager.startup()
        return manager

    def handle_failures(self, manager):
        """What the broker's handler thread does; returns the directories that it took out of the channel."""
        taken = []
        while (log_dir := manager.log_dir_failure_channel.poll_offline_log_dir()) is not None:
            manager.handle_log_dir_failure(log_dir)
            taken.append(log_dir)
        return taken

    def pass_time(self, ms):
        self.time.sleep(ms)
        self.scheduler.tick()


@pytest.fixture
def managers(tmp_path):
    return Managers(tmp_path)


def written(manager, *tps):
    for tp in tps:
        log = manager.get_or_create_log(tp)
        log.append_as_leader(batch(3), 0)
        log.update_high_watermark(3)
    return manager


def test_logs_survive_a_clean_stop_with_offsets_settings_and_topic_ids(managers, tmp_path):
    managers.topic_configs["b"] = {"segment.bytes": "500"}
    manager = managers.start()
    manager.get_or_create_log(A, topic_id=UUID(int=99))
    written(manager, A, B)
    manager.checkpoint_high_watermarks({A: 3, B: 2})
    manager.get_log(B).maybe_increment_log_start_offset(2)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    manager.shutdown(broker_epoch=380)
    manager.shutdown()
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":380}'
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n1\nb 7 2\n"

    again = managers.start()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert {log.topic_partition for log in again.all_logs()} == {A, B}
    log_a, log_b = again.get_log(A), again.get_log(B)
    assert (log_a.topic_id, log_b.topic_id) == (UUID(int=99), None)
    assert (log_a.high_watermark, log_b.high_watermark, log_b.log_start_offset) == (3, 2, 2)
    assert (log_a.config.segment_bytes, log_b.config.segment_bytes) == (1000, 500)
    assert log_a.recovery_point == 3 and offsets(log_a) == [0, 1, 2]
    again.shutdown()


def test_with_an_inline_executor_and_a_seed_a_start_needs_no_thread_and_names_repeat(tmp_path, monkeypatch):
    names = []
    for life in ("first", "second"):
        managers = Managers(tmp_path / life, executors=inline, random=Random(7))
        manager = written(managers.start(), A, B)
        manager.async_delete(B)
        names.append(sorted(path.name for path in (tmp_path / life).glob("b-7.*")))
        manager.shutdown()
        (tmp_path / life / ".kafka_cleanshutdown").unlink()
        with monkeypatch.context() as no_threads:
            no_threads.setattr(threading.Thread, "start", None)
            manager = managers.start()
            assert list(manager.all_logs()) == [manager.get_log(A)] and manager.get_log(A).log_end_offset == 3
            manager.shutdown()
    assert names[0] == names[1] and len(names[0]) == 1


def test_a_second_manager_on_the_directory_is_refused(managers):
    manager = managers.start()
    with pytest.raises(DirectoryInUse):
        managers.start()
    manager.shutdown()
    managers.start().shutdown()


def test_without_the_marker_logs_are_recovered_from_the_recovery_points(managers, tmp_path, caplog):
    manager = written(managers.start(), A, B)
    manager.get_log(A).flush()
    manager.checkpoint_recovery_offsets()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n2\na 0 3\nb 7 0\n"
    with open(tmp_path / "b-7" / f"{0:020d}.log", "ab") as file:
        file.write(b"torn")
    crashed(manager)
    again = managers.start()
    assert "no clean shutdown, recovering 2 logs" in caplog.text
    assert "cut 4 bytes off segment 0 from offset 3 on" in caplog.text
    assert offsets(again.get_log(B)) == [0, 1, 2]
    again.shutdown()


def test_a_deleted_log_goes_at_once_and_its_files_later(managers, tmp_path):
    manager = written(managers.start(), A, B)
    manager.checkpoint_recovery_offsets()
    manager.async_delete(A)
    manager.async_delete(A)
    assert manager.get_log(A) is None
    assert "a 0" not in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    (going,) = [p.name for p in tmp_path.iterdir() if p.name.startswith("a-0.")]
    assert going.endswith("-delete")
    fresh = manager.get_or_create_log(A)
    assert fresh.log_end_offset == 0
    managers.pass_time(59_000)
    assert (tmp_path / going).exists()
    managers.pass_time(1_000)
    assert not (tmp_path / going).exists() and (tmp_path / "a-0").exists()
    manager.shutdown()


@pytest.mark.parametrize("checkpoint", ["recovery-point-offset", "log-start-offset", "replication-offset"])
def test_a_checkpoint_that_waits_while_a_log_is_deleted_leaves_no_offset_for_a_new_log(managers, tmp_path, checkpoint):
    manager = written(managers.start(), A, B)
    for tp in (A, B):
        manager.get_log(tp).flush()
        manager.get_log(tp).maybe_increment_log_start_offset(2)
    writes = {
        "recovery-point-offset": manager.checkpoint_recovery_offsets,
        "log-start-offset": manager.checkpoint_log_start_offsets,
        "replication-offset": lambda: manager.checkpoint_high_watermarks({A: 3, B: 3}),
    }
    log_dir = manager._dirs[str(tmp_path)]
    lock = log_dir._checkpoint_lock

    class DeletesFirst:
        """The deletion gets the lock before the checkpoint does."""

        def __enter__(self):
            log_dir._checkpoint_lock = lock
            manager.async_delete(A)
            lock.acquire()

        def __exit__(self, *exc):
            lock.release()

    log_dir._checkpoint_lock = DeletesFirst()
    writes[checkpoint]()
    text = (tmp_path / f"{checkpoint}-checkpoint").read_text()
    assert "b 7" in text and "a 0" not in text
    manager.shutdown()


def test_a_directory_to_be_deleted_is_removed_after_a_restart_and_foreign_ones_stay(managers, tmp_path, caplog):
    (tmp_path / f"a-0.{'0' * 32}-delete").mkdir()
    (tmp_path / f"a-1.{'0' * 32}-future").mkdir()
    (tmp_path / f"a-2.{'0' * 32}-stray").mkdir()
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file").touch()
    manager = managers.start()
    assert manager.all_logs() == []
    managers.pass_time(60_000)
    left = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert left == {f"a-1.{'0' * 32}-future", f"a-2.{'0' * 32}-stray", "__cluster_metadata-0", "lost+found"}
    assert "belongs to no partition" in caplog.text
    assert manager.get_log(TopicPartition("a", 1), is_future=True).log_end_offset == 0
    manager.shutdown()


def test_a_log_of_another_topic_id_is_refused(managers):
    manager = managers.start()
    manager.get_or_create_log(A, topic_id=UUID(int=1))
    manager.get_or_create_log(A, topic_id=UUID(int=1))
    with pytest.raises(InconsistentTopicId):
        manager.get_or_create_log(A, topic_id=UUID(int=2))
    manager.shutdown()


def test_new_logs_go_to_the_emptiest_directory(tmp_path):
    managers = Managers(tmp_path / "x", tmp_path / "y")
    manager = managers.start()
    for partition in range(4):
        manager.get_or_create_log(TopicPartition("t", partition))
    assert len(os.listdir(tmp_path / "x")) == len(os.listdir(tmp_path / "y"))
    assert {os.path.dirname(log.directory) for log in manager.all_logs()} == {str(tmp_path / "x"), str(tmp_path / "y")}
    manager.shutdown()


@pytest.mark.parametrize(
    ("calls", "error"),
    [(file.CHANGES, errno.EROFS), (file.CHANGES, errno.EIO), ("ftruncate", errno.EIO), ("rename", errno.EIO)],
)
def test_LOG_29_a_failing_directory_goes_offline_alone(tmp_path, calls, error):
    managers = Managers(tmp_path / "x", tmp_path / "y")
    manager = written(managers.start(), A, B)
    log_a, log_b = manager.get_log(A), manager.get_log(B)
    lost = os.path.dirname(log_a.directory)
    file.fail_next(calls, error, under=lost, times=-1)
    with pytest.raises(KafkaStorageError):
        log_a.roll()
    assert manager.offline_log_dirs == [lost]
    assert managers.handle_failures(manager) == [lost]
    assert manager.live_log_dirs == [os.path.dirname(log_b.directory)]
    assert log_a.is_offline and not log_b.is_offline
    for call in (lambda: log_a.append_as_leader(batch(), 0), lambda: log_a.read(0, 100)):
        with pytest.raises(KafkaStorageError):
            call()
    assert log_b.append_as_leader(batch(), 0).first_offset == 3
    with pytest.raises(KafkaStorageError):
        manager.get_or_create_log(TopicPartition("maybe-there", 0))
    created = manager.get_or_create_log(TopicPartition("new", 0), is_new=True)
    assert os.path.dirname(created.directory) != lost
    manager.shutdown()
    assert not os.path.exists(os.path.join(lost, ".kafka_cleanshutdown"))
    assert os.path.exists(os.path.join(os.path.dirname(log_b.directory), ".kafka_cleanshutdown"))


def test_background_work_deletes_old_segments_flushes_and_checkpoints(tmp_path):
    managers = Managers(tmp_path, config=LogManagerConfig(flush_check_ms=1000))
    managers.topic_configs["a"] = {"retention.ms": "1000", "flush.ms": "5000"}
    manager = written(managers.start(), A, B)
    log = manager.get_log(A)
    assert log.recovery_point == 0
    managers.pass_time(30_000)
    assert log.recovery_point == 3 and manager.get_log(B).recovery_point == 0
    managers.pass_time(60_000)
    assert "a 0 3" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    managers.pass_time(300_000)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    manager.shutdown()


def test_TRUNC_10_truncation_writes_the_lowered_recovery_point_at_once(managers, tmp_path):
    manager = written(managers.start(), A)
    manager.get_log(A).flush()
    manager.checkpoint_recovery_offsets()
    manager.truncate_to({A: 0, B: 0})
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 0\n"
    manager.shutdown()


def test_TRUNC_10_a_log_start_that_comes_down_is_on_disk_before_new_data(managers, tmp_path):
    """Else the start in the checkpoint would hide after a crash what was appended below it."""
    manager = written(managers.start(), A, B)
    for tp in (A, B):
        manager.get_log(tp).maybe_increment_log_start_offset(3)
    manager.checkpoint_log_start_offsets()
    checkpoint = tmp_path / "log-start-offset-checkpoint"
    assert {"a 0 3", "b 7 3"} <= set(checkpoint.read_text().splitlines())
    with recorded() as record:
        manager.truncate_to({A: 0})
        assert "a 0" not in checkpoint.read_text()
        manager.truncate_fully_and_start_at(B, 1)
        assert "b 7" not in checkpoint.read_text()
        assert place(calls(record, tmp_path), "fsync log-start-offset-checkpoint.tmp")
        manager.get_log(A).append_as_leader(batch(3))
        manager.get_log(B).append_as_leader(batch(3))
    crashed(manager)
    again = managers.start()
    assert (offsets(again.get_log(A)), offsets(again.get_log(B))) == ([0, 1, 2], [1, 2, 3])
    again.shutdown()


def test_LOG_30_the_clean_shutdown_marker_is_gone_for_good_before_anything_else_changes(managers, tmp_path):
    """A marker that comes back after a lost power would vouch for files that were changed since."""
    written(managers.start(), A).shutdown()
    with recorded() as record:
        manager = managers.start()
        manager.get_log(A).append_as_leader(batch())
        done = calls(record, tmp_path)
    at = place(done, "unlink .kafka_cleanshutdown")
    assert [line for line in done[:at] if ".lock" not in line] == []
    assert done[at + 1] == "fsync ."
    manager.shutdown()


def test_the_stop_before_a_directory_is_removed_flushes_nothing_and_closes_every_file(managers, tmp_path):
    manager = written(managers.start(), A, B)
    logs = manager.all_logs()
    manager.discard_data()
    with recorded() as record:
        manager.checkpoint_high_watermarks({A: 3, B: 2})
        manager.shutdown()
        done = calls(record, tmp_path)
    assert not [call for call in done if call.startswith(("fsync", "created", "renamed"))], done
    assert all(log.is_closed for log in logs)
    open_files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in open_files if path.startswith(str(tmp_path))]


def test_a_clean_stop_leaves_its_marker_last(managers, tmp_path):
    """What it vouches for must be on disk before: data, snapshots and checkpoints."""
    manager = managers.start()
    log = manager.get_or_create_log(A)
    log.append_as_leader(idempotent(5, 0, 2), 3)
    log.update_high_watermark(2)
    log.maybe_increment_log_start_offset(1)
    with recorded() as record:
        manager.shutdown()
        done = calls(record, tmp_path)
    marker = place(done, "created .kafka_cleanshutdown.tmp")
    for before in (
        f"fsync a-0/{0:020d}.log",
        f"fsync a-0/{2:020d}.snapshot",
        "* a-0/leader-epoch-checkpoint",
        "* recovery-point-offset-checkpoint",
        "* log-start-offset-checkpoint",
    ):
        assert place(done, before) < marker
    assert done[marker:] == [
        "created .kafka_cleanshutdown.tmp",
        "pwrite .kafka_cleanshutdown.tmp",
        "fsync .kafka_cleanshutdown.tmp",
        "rename .kafka_cleanshutdown.tmp .kafka_cleanshutdown",
        "fsync .",
    ]


def test_a_snapshot_is_on_disk_before_the_recovery_point_passes_it(managers, tmp_path):
    """A start from that recovery point reads the producers' state from it."""
    manager = managers.start()
    log = manager.get_or_create_log(A)
    log.append_as_leader(idempotent(5, 0))
    log.roll()
    log.append_as_leader(idempotent(5, 1))
    with recorded() as record:
        managers.scheduler.tick()  # the flush that the roll scheduled
        assert log.recovery_point == 1
        manager.checkpoint_recovery_offsets()
        done = calls(record, tmp_path)
    snapshot = place(done, f"fsync a-0/{1:020d}.snapshot")
    assert snapshot < place(done, "* recovery-point-offset-checkpoint")
    assert place(done, f"fsync a-0/{0:020d}.log") < place(done, "* recovery-point-offset-checkpoint")
    manager.shutdown()


def test_a_damaged_checkpoint_costs_a_longer_recovery_and_nothing_else(managers, tmp_path, caplog):
    written(managers.start(), A).shutdown()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("junk")
    (tmp_path / "replication-offset-checkpoint").write_bytes(b"\xff")
    again = managers.start()
    assert offsets(again.get_log(A)) == [0, 1, 2]
    assert "going on without a checkpoint" in caplog.text
    again.shutdown()


def test_idle_producers_expire_at_the_check_interval(managers):
    managers.options["config"] = LogManagerConfig(producer_id_expiration_ms=1000, producer_expiry_check_ms=5000)
    manager = managers.start()
    log = manager.get_or_create_log(A)
    log.append_as_leader(idempotent(9, 0, timestamp=managers.time.milliseconds()), 0)
    managers.pass_time(4999)
    assert set(log.producer_state_manager.producers) == {9}
    managers.pass_time(1)
    assert log.producer_state_manager.producers == {}
    manager.shutdown()


def crashed(manager):
    """As if killed: the locks go, nothing else happens."""
    for log_dir in manager._dirs.values():
        log_dir.release()


@pytest.fixture
def two_dirs(tmp_path):
    return Managers(tmp_path / "x", tmp_path / "y")


def other_dir(managers, log):
    (other,) = {str(path) for path in managers.dirs} - {os.path.dirname(log.directory)}
    return other


def test_DIR_01_a_future_log_is_in_another_directory_than_the_current_one_and_survives_a_restart(two_dirs):
    manager = written(two_dirs.start(), A)
    current = manager.get_log(A)
    future = manager.get_or_create_log(A, is_future=True)
    assert os.path.dirname(future.directory) == other_dir(two_dirs, current)
    assert manager.get_or_create_log(A, is_future=True) is future is manager.get_log(A, is_future=True)
    manager.async_delete(A, is_future=True)
    with pytest.raises(ValueError, match="already"):
        manager.get_or_create_log(A, is_future=True, log_dir=os.path.dirname(current.directory))
    future = manager.get_or_create_log(A, is_future=True, log_dir=other_dir(two_dirs, current))
    future.append_as_leader(batch(2), 0)
    manager.shutdown()
    again = two_dirs.start()
    assert again.get_log(A, is_future=True).log_end_offset == 2
    assert [log.directory for log in again.all_logs()] == [current.directory]
    again.truncate_to({A: 1}, is_future=True)
    again.truncate_fully_and_start_at(A, 3, is_future=True)
    assert again.get_log(A, is_future=True).log_start_offset == 3 and again.get_log(A).log_end_offset == 3
    again.shutdown()


def test_DIR_06_a_future_log_takes_the_place_of_the_current_one_which_goes_later(two_dirs, tmp_path):
    manager = two_dirs.start()
    log = manager.get_or_create_log(A, topic_id=UUID(int=7))
    future = manager.get_or_create_log(A, topic_id=UUID(int=7), is_future=True)
    for each in (log, future):
        each.append_as_leader(batch(5), 0)
    log.update_high_watermark(4)
    log.maybe_increment_log_start_offset(2)
    moved = manager.replace_current_with_future_log(A)
    assert manager.get_log(A) is moved and manager.get_log(A, is_future=True) is None
    assert moved.directory == os.path.join(other_dir(two_dirs, log), "a-0")
    assert (moved.log_start_offset, moved.high_watermark, moved.log_end_offset) == (2, 4, 5)
    assert moved.topic_id == UUID(int=7)
    assert moved.append_as_leader(batch(), 0).first_offset == 5
    assert log.directory.endswith("-delete") and os.path.exists(log.directory)
    two_dirs.pass_time(60_000)
    assert not os.path.exists(log.directory)
    with pytest.raises(ValueError, match="no future log"):
        manager.replace_current_with_future_log(A)
    manager.shutdown()
    again = two_dirs.start()
    assert offsets(again.get_log(A)) == [2, 3, 4, 5]
    again.shutdown()


def test_a_move_that_a_crash_interrupts_anywhere_keeps_every_record(tmp_path):
    step = 0
    while True:
        managers = Managers(tmp_path / f"{step}x", tmp_path / f"{step}y")
        manager = managers.start()
        for is_future in (False, True):
            manager.get_or_create_log(A, is_future=is_future).append_as_leader(batch(5), 0)
        manager.get_log(A).update_high_watermark(5)
        file.fail_next(file.CHANGES, errno.EIO, skip=step, times=-1)
        try:
            manager.replace_current_with_future_log(A)
            done = not manager.offline_log_dirs
        except KafkaStorageError:
            done = False
        file.clear_faults()
        crashed(manager)
        again = managers.start()
        assert offsets(again.get_log(A)) == [0, 1, 2, 3, 4], f"step {step}"
        again.shutdown()
        if done:
            assert step > 3
            return
        step += 1


def test_of_two_directories_of_a_partition_the_longer_log_is_served_and_the_other_set_aside(two_dirs, tmp_path, caplog):
    manager = written(two_dirs.start(), A)
    longer = manager.get_log(A)
    shutil.copytree(longer.directory, os.path.join(other_dir(two_dirs, longer), "a-0"))
    longer.append_as_leader(batch(), 0)
    manager.shutdown()
    again = two_dirs.start()
    assert again.get_log(A).directory == longer.directory and offsets(again.get_log(A)) == [0, 1, 2, 3]
    (aside,) = [name for name in os.listdir(other_dir(two_dirs, longer)) if name.startswith("a-0")]
    assert aside.endswith("-stray") and "Nothing was deleted" in caplog.text
    again.shutdown()


def test_a_stray_directory_is_set_aside_logged_and_never_deleted(managers, tmp_path, caplog):
    written(managers.start(), A, B).shutdown()
    manager = managers.build()
    manager.startup(is_stray=lambda log: log.topic_partition == A)
    assert [log.topic_partition for log in manager.all_logs()] == [B]
    manager.async_delete(B, is_stray=True)
    managers.pass_time(300_000)
    assert sorted(p.name.split(".")[0] for p in tmp_path.iterdir() if p.name.endswith("-stray")) == ["a-0", "b-7"]
    assert "with the offsets [0, 3)" in caplog.text
    assert manager.get_or_create_log(A).log_end_offset == 0
    manager.shutdown()


def test_a_directory_that_could_not_be_loaded_is_not_replaced_by_an_empty_log(managers, tmp_path, caplog):
    written(managers.start(), A, B).shutdown()
    log_file = tmp_path / "a-0" / f"{0:020d}.log"
    data = log_file.read_bytes()
    log_file.unlink()
    os.mkfifo(log_file)
    manager = managers.start()
    assert [log.topic_partition for log in manager.all_logs()] == [B] and manager.offline_log_dirs == []
    with pytest.raises(KafkaStorageError, match="no regular file"):
        manager.get_or_create_log(A)
    manager.shutdown()
    log_file.unlink()
    log_file.write_bytes(data)
    again = managers.start()
    assert offsets(again.get_log(A)) == [0, 1, 2]
    again.shutdown()


def test_checkpoints_of_a_log_that_could_not_be_loaded_outlive_the_broker(managers, tmp_path):
    first = written(managers.start(), A, B)
    log = first.get_log(A)
    for _ in range(30):
        log.append_as_leader(batch(), 0)
    log.update_high_watermark(33)
    log.maybe_increment_log_start_offset(2)
    first.checkpoint_log_start_offsets()
    first.checkpoint_high_watermarks({A: 33, B: 3})
    first.checkpoint_recovery_offsets()
    crashed(first)
    log_file = tmp_path / "a-0" / f"{0:020d}.log"
    data = bytearray(log_file.read_bytes())
    log_file.unlink()
    os.mkfifo(log_file)
    second = managers.start()
    assert [log.topic_partition for log in second.all_logs()] == [B]
    second.checkpoint_log_start_offsets()
    second.checkpoint_high_watermarks({B: 3})
    second.checkpoint_recovery_offsets()
    second.shutdown()
    # Damage that the crash left, as only a recovery finds it.
    data[-1] ^= 1
    log_file.unlink()
    log_file.write_bytes(data)
    third = managers.start()
    log = third.get_log(A)
    assert (log.log_start_offset, log.high_watermark) == (2, log.log_end_offset)
    # Segment 0 ended inside its last batch: what comes after it went with it.
    assert len(log.segments) == 1 and offsets(log) == list(range(2, log.log_end_offset))
    third.shutdown()


@pytest.mark.parametrize("calls", [("open_write", "open", "mkdir"), "opendir"])
def test_a_directory_that_fails_at_the_start_is_offline_and_the_other_serves(two_dirs, calls):
    manager = written(two_dirs.start(), A, B)
    bad, good = (os.path.dirname(manager.get_log(tp).directory) for tp in (A, B))
    manager.shutdown()
    file.fail_next(calls, errno.EIO, under=bad, times=-1)
    manager = two_dirs.start()
    assert two_dirs.handle_failures(manager) == manager.offline_log_dirs == [bad] and manager.live_log_dirs == [good]
    assert [log.topic_partition for log in manager.all_logs()] == [B]
    manager.shutdown()
    file.fail_next(calls, errno.EIO, under=good, times=-1)
    with pytest.raises(OSError, match="Input/output"):
        two_dirs.start()
    file.clear_faults()
    two_dirs.start().shutdown()


def test_a_stop_on_a_full_disk_says_in_one_line_what_could_not_be_written(managers, caplog):
    """It was a traceback, and several where a start had failed for the same reason."""
    manager = managers.start()
    (path,) = manager.live_log_dirs
    file.fail_next("pwrite", errno.ENOSPC, times=-1)
    manager.shutdown()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is None
    assert record.getMessage().startswith(f"{path} will be recovered at the next start: {path}/")
    assert "No space left on device" in record.getMessage()


def test_a_full_disk_costs_the_creation_not_the_directory(two_dirs, caplog):
    manager = two_dirs.start()
    first, second = (str(path) for path in two_dirs.dirs)
    file.fail_next("mkdir", errno.ENOSPC, under=first, times=-1)
    assert os.path.dirname(manager.get_or_create_log(A).directory) == second
    file.fail_next("pwrite", errno.ENOSPC, times=-1)
    file.fail_next("open_write", errno.ENOSPC, times=-1)
    with pytest.raises(KafkaStorageError, match="No space left"):
        manager.get_or_create_log(B)
    manager.checkpoint_recovery_offsets()
    assert "recovery-point-offset-checkpoint: could not be written" in caplog.text
    assert manager.offline_log_dirs == []
    file.clear_faults()
    assert manager.get_or_create_log(B).log_end_offset == 0
    manager.shutdown()


def killed_with_two_logs(managers):
    """The directory, after the kill of a broker that had a record in each of its two logs."""
    manager = managers.start()
    for tp in (A, B):
        log = manager.get_or_create_log(tp)
        log.maybe_assign_epoch_start_offset(3, 0)  # by a LeaderAndIsr: no flush has written it yet
        log.append_as_leader(batch(), 3)
    manager.abandon("killed")
    (path,) = manager.log_dirs
    return path


def test_a_start_after_a_kill_on_a_full_disk_serves_the_logs(managers, caplog):
    path = killed_with_two_logs(managers)
    for tp in (A, B):
        file.fail_next("pwrite", errno.ENOSPC, times=-1, under=os.path.join(path, str(tp), "leader-epoch-checkpoint"))
    manager = managers.start()
    for tp in (A, B):
        log = manager.get_log(tp)
        assert offsets(log) == [0]
        assert log.leader_epoch_cache.entries == ((3, 0),)
        assert f"{log.directory}: the leader epochs could not be written: " in caplog.text
    file.clear_faults()
    manager.get_log(A).append_as_leader(batch(), 4)
    manager.shutdown()
    manager = managers.start()
    assert manager.get_log(A).leader_epoch_cache.entries == ((3, 0), (4, 1))
    assert manager.get_log(B).leader_epoch_cache.entries == ((3, 0),)
    manager.shutdown()


def test_a_log_that_a_full_disk_keeps_from_being_loaded_is_named_and_loaded_once_there_is_room(managers, caplog):
    path = killed_with_two_logs(managers)
    file.fail_next("pwrite", errno.ENOSPC, times=-1, under=os.path.join(path, "a-0", f"{0:020d}."))
    os.truncate(os.path.join(path, "a-0", f"{0:020d}.index"), 0)
    manager = managers.start()
    assert manager.get_log(A) is None and offsets(manager.get_log(B)) == [0]
    assert manager.offline_log_dirs == []
    with pytest.raises(KafkaStorageError, match=r"its log is there but could not be loaded: .*No space left"):
        manager.get_or_create_log(A)
    file.clear_faults()
    assert offsets(manager.get_or_create_log(A)) == [0]
    manager.get_log(A).append_as_leader(batch(), 3)
    manager.shutdown()
    manager = managers.start()
    assert offsets(manager.get_log(A)) == [0, 1] and offsets(manager.get_log(B)) == [0]
    manager.shutdown()


def noted_progress(manager):
    progress_notes = []
    (log_dir,) = manager._dirs.values()
    note = log_dir.note_progress
    log_dir.note_progress = lambda **counts: (note(**counts), progress_notes.append(log_dir._progress))
    return progress_notes


def test_segments_of_one_log_recover_in_parallel_to_the_same_log_with_progress(tmp_path, caplog):
    caplog.set_level("INFO")
    recovered_logs = []
    for threads in (1, 4):
        managers = Managers(tmp_path / str(threads), config=LogManagerConfig(threads))
        manager = managers.start()
        log = manager.get_or_create_log(A)
        for sequence in range(40):
            log.append_as_leader(idempotent(5, sequence, size=60), sequence // 10)
        assert len(log.segments) > 4
        crashed(manager)
        again = managers.build()
        progress_notes = noted_progress(again)
        again.startup()
        assert progress_notes[-1] == (1, 0, 0)
        assert progress_notes[0] == (1, 1, len(log.segments)) and [p.remaining_segments for p in progress_notes][
            -2:
        ] == [0, 0]
        log = again.get_log(A)
        recovered_logs.append(
            (
                offsets(log),
                log.leader_epoch_cache.entries,
                log.producer_state_manager.producers,
                [(segment.base_offset, segment.size) for segment in log.segments],
            )
        )
        again.shutdown()
    assert recovered_logs[0] == recovered_logs[1] and recovered_logs[0][0] == list(range(40))


@pytest.mark.parametrize("threads", [2, 3])
def test_logs_that_are_more_than_the_threads_recover_all_their_segments(tmp_path, threads):
    managers = Managers(tmp_path, config=LogManagerConfig(threads))
    manager = managers.start()
    logs = [TopicPartition("many", n) for n in range(7)]
    for tp in logs:
        for sequence in range(20):
            manager.get_or_create_log(tp).append_as_leader(idempotent(5, sequence, size=60))
    assert len(manager.get_log(logs[0]).segments) > 1
    crashed(manager)
    again = managers.start()
    assert [offsets(again.get_log(tp)) for tp in logs] == [list(range(20))] * 7
    again.shutdown()


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("call", ["mmap", "pwrite"])
def test_a_directory_that_fails_while_its_logs_recover_goes_offline_alone(tmp_path, caplog, call, threads):
    managers = Managers(tmp_path / "x", tmp_path / "y", config=LogManagerConfig(threads))
    manager = managers.start()
    for n in range(12):
        for _ in range(12):
            manager.get_or_create_log(TopicPartition("t", n)).append_as_leader(batch(3))
    crashed(manager)
    failures = 0
    for skip in range(0, 60, 4):
        again = managers.build()
        file.fail_next(call, errno.EIO, skip=skip, times=-1, under=str(tmp_path / "x" / "t-"))
        again.startup()
        file.clear_faults()
        failed = managers.handle_failures(again)
        assert failed == again.offline_log_dirs and failed in ([], [str(tmp_path / "x")])
        failures += len(failed)
        assert sum(log.directory.startswith(str(tmp_path / "y")) for log in again.all_logs()) == 6
        crashed(again)
    assert failures > 2
    assert "cannot schedule" not in caplog.text and "Traceback" not in caplog.text


def test_threads_that_are_no_more_leave_the_work_to_the_logs_own(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=3 * len(batch()))
    log = logs.open()
    for _ in range(12):
        log.append_as_leader(batch())

    class Ending(ThreadPoolExecutor):
        submitted = 0

        def submit(self, *args, **options):
            self.submitted += 1
            if self.submitted == 3:
                self.shutdown(wait=False)
            return super().submit(*args, **options)

    threads = Ending(2)
    again = logs.open(clean=False, segment_threads=threads)
    assert threads.submitted == 4 and offsets(again) == list(range(12))


def test_segments_that_no_thread_gets_to_are_recovered_by_the_logs_own(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=3 * len(batch()))
    log = logs.open()
    for _ in range(12):
        log.append_as_leader(batch())
    busy = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        threads.submit(busy.wait)
        again = logs.open(clean=False, segment_threads=threads)
        busy.set()
    assert offsets(again) == list(range(12)) and len(again.segments) == 4


def test_a_segment_after_the_cut_is_deleted_only_when_no_thread_scans_it_any_more(tmp_path, monkeypatch):
    logs = Logs(tmp_path / "orders-0", segment_bytes=3 * len(batch()))
    log = logs.open()
    for _ in range(12):
        log.append_as_leader(batch())
    first = log.segments.first.log_path
    with open(first, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")

    scans = []

    def submit_late(threads, recover, **options):
        late, begun = bool(scans), threading.Event()
        scans.append(submit(threads, lambda: (begun.set(), late and time.sleep(0.1), recover(**options))[2]))
        assert begun.wait(60)
        return scans[-1]

    monkeypatch.setattr(log_loader, "submit", submit_late)
    with ThreadPoolExecutor(4) as threads:
        again = logs.open(clean=False, segment_threads=threads)
    assert offsets(again) == [0, 1]
    assert [scan.result().truncated_bytes > 0 for scan in scans] == [True, False, False, False]


def test_a_log_start_beyond_a_cleanly_closed_log_is_not_believed(managers, tmp_path, caplog):
    written(managers.start(), A).shutdown()
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\na 0 7000\n")
    manager = managers.start()
    assert offsets(manager.get_log(A)) == [0, 1, 2]
    assert "the checkpoint of log starts says 7000: it is ignored" in caplog.text
    manager.shutdown()


@pytest.mark.parametrize("sole_replica", [True, False])
def test_a_log_start_beyond_a_cleanly_closed_log_is_believed_when_the_recovery_point_is_there_too(
    tmp_path, caplog, sole_replica
):
    """As Kafka leaves a log whose start is inside the batch that its last truncation removed."""
    logs = Logs(tmp_path / "a-0")
    log = logs.open()
    for _ in range(2):
        log.append_as_leader(batch(5), 1)
    log.close()
    checkpointed = {"log_start_offset": 12, "recovery_point": 12, "sole_replica": sole_replica}
    reader = logs.open(mode="r", **checkpointed)
    assert (reader.log_start_offset, reader.log_end_offset, offsets(reader)) == (12, 12, [])
    assert "ends at 10, below its start offset 12" in caplog.text
    reader.close()
    log = logs.open(**checkpointed)
    assert (log.log_start_offset, log.log_end_offset, offsets(log)) == (12, 12, [])
    assert log.append_as_leader(batch(), 1).first_offset == 12
    (aside,) = tmp_path.glob("*-stray")
    assert (aside / f"{0:020d}.log").stat().st_size > 0
    log.close()


def test_a_log_that_lost_its_end_below_its_start_starts_anew_and_its_segments_are_kept(managers, tmp_path, caplog):
    crashed(written(managers.start(), A))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\na 0 7000\n")
    manager = managers.start()
    log = manager.get_log(A)
    assert (log.log_start_offset, log.log_end_offset) == (7000, 7000)
    assert log.append_as_leader(batch(), 0).first_offset == 7000
    (aside,) = tmp_path.glob("a-0.*-stray")
    assert str(aside) in caplog.text
    assert (aside / f"{0:020d}.log").stat().st_size > 0
    manager.shutdown()


@pytest.mark.parametrize("name", ["lost+found", "notes", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint"])
@pytest.mark.parametrize("target", ["nowhere", "itself"])
def test_a_symbolic_link_that_leads_nowhere_fails_no_data_directory(tmp_path, managers, name, target):
    manager = managers.start()
    written(manager, A)
    manager.shutdown()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(name if target == "itself" else target)
    manager = managers.start()
    assert not manager.offline_log_dirs and manager.get_log(A).log_end_offset == 3
    manager.shutdown()


@pytest.mark.parametrize("kind", ["dangling link", "looping link", "file"])
def test_a_partition_that_is_no_directory_is_named_and_the_others_are_served(managers, tmp_path, kind, caplog):
    manager = managers.start()
    written(manager, A, B)
    manager.shutdown()
    lost = os.path.join(manager.log_dirs[0], "a-0")
    os.rename(lost, tmp_path / "elsewhere")
    if kind == "file":
        with open(lost, "w"):
            pass
    else:
        os.symlink(tmp_path / "not-mounted" if kind == "dangling link" else "a-0", lost)
    again = managers.start()
    assert [log.topic_partition for log in again.all_logs()] == [B]
    if kind == "file":
        assert "leaving a-0 alone, it is no directory" in caplog.text
    else:
        assert f"{lost}: not served, loading it failed" in caplog.text
        # The disk may come back: a new log must not take the place of what is on it.
        with pytest.raises(KafkaStorageError, match="could not be loaded"):
            again.get_or_create_log(A)
    again.shutdown()
    os.unlink(lost)
    os.rename(tmp_path / "elsewhere", lost)
    back = managers.start()
    assert offsets(back.get_log(A)) == [0, 1, 2]
    back.shutdown()


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_a_log_file_that_is_no_file_stops_this_log_alone(managers, kind, caplog):
    manager = managers.start()
    written(manager, A, B)
    manager.shutdown()
    log_file = os.path.join(manager.log_dirs[0], "a-0", f"{0:020}.log")
    os.unlink(log_file)
    os.mkfifo(log_file) if kind == "fifo" else os.mkdir(log_file)
    again = managers.start()
    assert [log.topic_partition for log in again.all_logs()] == [B]
    assert f"{log_file}" in caplog.text and not again.offline_log_dirs
    again.shutdown()


def test_a_new_partition_costs_few_calls_because_nothing_is_looked_for_in_its_empty_directory(managers):
    """A CreateTopics of 10,000 partitions shares the GIL with the network thread: most calls are a hand-over."""
    manager = managers.start()
    file.count_calls()
    try:
        for number in range(10):
            log = manager.get_or_create_log(TopicPartition("new", number), topic_id=UUID(int=7), is_new=True)
            log.maybe_assign_epoch_start_offset(0, 0)
        per_partition = {call: file.calls(call) / 10 for call in ("opendir", "pread", "open", "open_write", "rename")}
    finally:
        file.clear_faults()
    # .log, two indexes and partition.metadata; the leader epoch is written with the first flush.
    assert per_partition == {"opendir": 0, "pread": 0, "open": 0, "open_write": 4, "rename": 1}
    assert manager.get_log(TopicPartition("new", 3)).topic_id == UUID(int=7)
    manager.shutdown()
    again = managers.start()
    assert again.get_log(TopicPartition("new", 9)).topic_id == UUID(int=7)
    again.shutdown()


def test_deleting_many_logs_writes_each_checkpoint_once(managers, tmp_path):
    manager = managers.start()
    tps = [TopicPartition("many", number) for number in range(20)]
    written(manager, *tps, A)
    manager.checkpoint_recovery_offsets()
    manager.checkpoint_high_watermarks(dict.fromkeys([*tps, A], 1))
    with recorded() as record:
        assert manager.async_delete_logs([*tps, B]) == {}
        done = calls(record, tmp_path, "rename")
    checkpoints = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
    assert [sum(name in line for line in done) for name in checkpoints] == [1, 1]
    for name in checkpoints:
        lines = (tmp_path / name).read_text().splitlines()
        assert len(lines) == 3 and lines[2].startswith("a 0 "), lines
    assert manager.all_logs() == [manager.get_log(A)]
    manager.shutdown()


def test_deleting_many_logs_syncs_the_data_directory_once_after_the_last_and_before_the_checkpoints(managers, tmp_path):
    manager = managers.start()
    tps = [TopicPartition("many", number) for number in range(20)]
    written(manager, *tps, A)
    manager.checkpoint_recovery_offsets()
    with recorded() as record:
        assert manager.async_delete_logs(tps) == {}
        done = calls(record, tmp_path, "rename", "fsync")
    renamed = [number for number, line in enumerate(done) if "-delete" in line]
    syncs = [number for number, line in enumerate(done) if line == "fsync ."]
    checkpoint = next(number for number, line in enumerate(done) if "recovery-point" in line)
    assert len(renamed) == 20
    assert [number for number in syncs if number < checkpoint] == [renamed[-1] + 1], done
    manager.shutdown()


def test_a_sync_that_fails_after_a_deletion_takes_the_directory_offline_and_removes_nothing(managers, tmp_path):
    manager = written(managers.start(), A, B)
    file.fail_next("fsync", errno.EIO, under=str(tmp_path))
    try:
        failures = manager.async_delete_logs([A, B])
    finally:
        file.clear_faults()
    assert list(failures) == [A, B] and all(isinstance(error, KafkaStorageError) for error in failures.values())
    assert managers.handle_failures(manager) == [str(tmp_path)]
    managers.pass_time(10 * 60 * 1000)
    assert sum(path.name.endswith("-delete") for path in tmp_path.iterdir()) == 2


def test_of_several_logs_one_that_cannot_be_deleted_is_its_own_error(managers, tmp_path):
    manager = written(managers.start(), A, B)
    file.fail_next("rename", errno.EIO, under=manager.get_log(A).directory)
    try:
        failures = manager.async_delete_logs([A, B])
    finally:
        file.clear_faults()
    assert list(failures) == [A] and isinstance(failures[A], KafkaStorageError)
    assert manager.all_logs() == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith("a-")] == ["a-0"]
    manager.shutdown()
