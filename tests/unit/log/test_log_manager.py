import errno
import os
from uuid import UUID

import pytest

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import DirectoryInUse, InconsistentTopicId, KafkaStorageError
from kcore.log.log_config import LogConfig
from kcore.log.log_manager import LogManager
from tests.unit.log.logs import batch, idempotent, offsets

A, B = TopicPartition("a", 0), TopicPartition("b", 7)


class Managers:
    def __init__(self, *dirs, **options):
        self.dirs = dirs
        self.time = MockTime()
        self.scheduler = MockScheduler(self.time)
        self.topic_configs = {}
        self.failed = []
        self.options = options

    def start(self):
        manager = LogManager(
            self.dirs,
            LogConfig(segment_bytes=1000),
            topic_configs=lambda topic: self.topic_configs.get(topic, {}),
            time=self.time,
            scheduler=self.scheduler,
            on_log_dir_failure=lambda path, error: self.failed.append(path),
            **self.options,
        )
        manager.startup()
        return manager

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
    for log_dir in manager._dirs.values():  # as if killed: the locks go, nothing else happens
        log_dir.lock.release()
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
    managers.pass_time(60_000)
    assert not (tmp_path / going).exists() and (tmp_path / "a-0").exists()
    manager.shutdown()


def test_a_directory_to_be_deleted_is_removed_after_a_restart_and_foreign_ones_stay(managers, tmp_path):
    (tmp_path / f"a-0.{'0' * 32}-delete").mkdir()
    (tmp_path / f"a-1.{'0' * 32}-future").mkdir()
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file").touch()
    manager = managers.start()
    assert manager.all_logs() == []
    managers.pass_time(60_000)
    left = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert left == {f"a-1.{'0' * 32}-future", "__cluster_metadata-0", "lost+found"}
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


def test_LOG_29_a_failing_directory_goes_offline_alone(tmp_path, monkeypatch):
    managers = Managers(tmp_path / "x", tmp_path / "y")
    manager = written(managers.start(), A, B)
    log_a, log_b = manager.get_log(A), manager.get_log(B)

    def fail(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("kcore.log.local_log.LogSegment", fail)
        with pytest.raises(KafkaStorageError):
            log_a.roll()
    lost = os.path.dirname(log_a.directory)
    assert managers.failed == manager.offline_log_dirs == [lost]
    assert log_a.is_offline and not log_b.is_offline
    with pytest.raises(KafkaStorageError):
        manager.get_or_create_log(TopicPartition("maybe-there", 0))
    created = manager.get_or_create_log(TopicPartition("new", 0), is_new=True)
    assert os.path.dirname(created.directory) != lost
    manager.shutdown()
    assert not os.path.exists(os.path.join(lost, ".kafka_cleanshutdown"))
    assert os.path.exists(os.path.join(os.path.dirname(log_b.directory), ".kafka_cleanshutdown"))


def test_background_work_deletes_old_segments_flushes_and_checkpoints(tmp_path):
    managers = Managers(tmp_path, flush_check_ms=1000)
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
    manager.update_topic_config("a", {"retention.ms": "77"})
    assert log.config.retention_ms == 77 and manager.get_log(B).config.retention_ms == 604_800_000
    manager.shutdown()


def test_TRUNC_10_truncation_writes_the_lowered_recovery_point_at_once(managers, tmp_path):
    manager = written(managers.start(), A)
    manager.get_log(A).flush()
    manager.checkpoint_recovery_offsets()
    manager.truncate_to({A: 0, B: 0})
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 0\n"
    manager.shutdown()


def test_a_damaged_checkpoint_costs_a_longer_recovery_and_nothing_else(managers, tmp_path, caplog):
    written(managers.start(), A).shutdown()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("junk")
    (tmp_path / "replication-offset-checkpoint").write_bytes(b"\xff")
    again = managers.start()
    assert offsets(again.get_log(A)) == [0, 1, 2]
    assert "going on without a checkpoint" in caplog.text
    again.shutdown()


def test_idle_producers_are_forgotten_at_the_check_interval(managers):
    managers.options = {"producer_id_expiration_ms": 1000, "producer_expiry_check_ms": 5000}
    manager = managers.start()
    log = manager.get_or_create_log(A)
    log.append_as_leader(idempotent(9, 0, timestamp=managers.time.milliseconds()), 0)
    managers.pass_time(4999)
    assert set(log.producer_state_manager.producers) == {9}
    managers.pass_time(1)
    assert log.producer_state_manager.producers == {}
    manager.shutdown()
