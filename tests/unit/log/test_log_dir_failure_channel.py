import errno
import threading

import pytest

from kcore.common import file
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import KafkaStorageError
from kcore.log.log_config import LogConfig
from kcore.log.log_dir_failure_channel import LogDirFailureChannel, LogDirFailureHandler
from kcore.log.log_manager import LogManager
from tests.unit.log.logs import batch

A, B = TopicPartition("a", 0), TopicPartition("b", 7)
BROKEN = OSError(errno.EIO, "broken")


def test_a_directory_fails_once_with_its_first_error_and_is_taken_once():
    channel = LogDirFailureChannel()
    assert channel.failure("/x") is None and channel.poll_offline_log_dir() is None
    assert channel.maybe_add_offline_log_dir("/x", BROKEN)
    assert not channel.maybe_add_offline_log_dir("/x", BROKEN)
    assert not channel.maybe_add_offline_log_dir("/x", OSError(errno.EROFS, "later"))
    assert channel.maybe_add_offline_log_dir("/y", OSError(errno.EROFS, "read-only"))
    assert [channel.take_next_offline_log_dir(), channel.poll_offline_log_dir()] == ["/x", "/y"]
    assert channel.poll_offline_log_dir() is None
    assert channel.failure("/x") is BROKEN, "it is offline for good"


def test_a_directory_that_goes_offline_is_logged_with_the_reason_and_the_file(caplog):
    error = OSError(errno.EIO, "Input/output error", "/x/log-start-offset-checkpoint")
    LogDirFailureChannel().maybe_add_offline_log_dir("/x", error)
    assert caplog.messages == ["/x: the log directory goes offline: /x/log-start-offset-checkpoint: Input/output error"]


def test_the_handler_deals_with_each_directory_on_its_own_thread_though_one_of_them_raises(caplog):
    channel = LogDirFailureChannel()
    handled, done = [], threading.Event()

    def handle(log_dir):
        handled.append((log_dir, threading.current_thread().name))
        if log_dir == "/x":
            raise ValueError("no luck")
        done.set()

    handler = LogDirFailureHandler("handler", channel, handle)
    handler.start()
    for log_dir in ("/x", "/y"):
        channel.maybe_add_offline_log_dir(log_dir, BROKEN)
    assert done.wait(60)
    handler.shutdown()
    assert handled == [("/x", "handler"), ("/y", "handler")]
    assert "/x: dealing with its failure stopped by an error" in caplog.text
    channel.maybe_add_offline_log_dir("/z", BROKEN)
    assert len(handled) == 2 and channel.poll_offline_log_dir() == "/z"


@pytest.fixture
def manager(tmp_path):
    manager = LogManager([tmp_path / "x"], LogConfig(), time=MockTime())
    manager.startup()
    for tp in (A, B):
        manager.get_or_create_log(tp).append_as_leader(batch(3), 0)
    yield manager
    file.clear_faults()
    manager.shutdown()


def test_RM_29_a_log_that_fails_is_offline_at_once_and_the_others_of_its_directory_when_it_is_taken(manager, tmp_path):
    failed, other = manager.get_log(A), manager.get_log(B)
    file.fail_next("pwrite", errno.EIO, under=str(tmp_path / "x" / "a-0"))
    with pytest.raises(KafkaStorageError):
        failed.append_as_leader(batch(), 0)
    assert failed.is_offline and manager.offline_log_dirs == manager.log_dirs
    with pytest.raises(KafkaStorageError, match="offline after"):
        failed.append_as_leader(batch(), 0)
    with pytest.raises(KafkaStorageError):
        manager.get_or_create_log(TopicPartition("c", 0), is_new=True)
    assert not other.is_offline
    log_dir = manager.log_dir_failure_channel.poll_offline_log_dir()
    manager.handle_log_dir_failure(log_dir)
    assert other.is_offline
    with pytest.raises(KafkaStorageError, match="offline after"):
        other.append_as_leader(batch(), 0)


def test_RM_29_no_lock_is_held_when_a_failed_directory_is_handled(manager, tmp_path):
    """A failed append holds its log's lock.  Whoever deals with the failure can take every lock of every log."""
    logs = [manager.get_log(tp) for tp in (A, B)]
    free = []

    def handle(log_dir):
        manager.handle_log_dir_failure(log_dir)
        for lock in (*(log.lock for log in logs), manager._lock, manager._logs._lock):
            with lock:
                free.append(lock)
        done.set()

    done = threading.Event()
    handler = LogDirFailureHandler("handler", manager.log_dir_failure_channel, handle)
    handler.start()
    file.fail_next("pwrite", errno.EIO, under=str(tmp_path / "x" / "a-0"))
    with logs[0].lock:
        with pytest.raises(KafkaStorageError):
            logs[0].append_as_leader(batch(), 0)
        assert not done.wait(0)
    assert done.wait(60)
    handler.shutdown()
    assert len(free) == 4


def test_a_directory_that_works_loses_no_log_to_a_handler(manager):
    manager.handle_log_dir_failure(manager.log_dirs[0])
    assert not manager.get_log(A).is_offline
