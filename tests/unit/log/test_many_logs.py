"""What ten thousand logs must not each have: a broker with so many starts and stops in seconds, with 5 KiB for each."""

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from kcore.common.executors import InlineExecutor
from kcore.common.topic_partition import TopicPartition
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from tests.unit.log.logs import batch

TOPIC = "many-logs"
LOGS = 20


def start(path, **options) -> LogManager:
    manager = LogManager([path], **options)
    manager.startup()
    return manager


@pytest.fixture
def data_dir(tmp_path):
    manager = start(tmp_path)
    for number in range(LOGS):
        manager.get_or_create_log(TopicPartition(TOPIC, number)).append_as_leader(batch(), 0)
    manager.shutdown()
    return tmp_path


def test_logs_share_the_histogram_of_flush_times(data_dir):
    # It is 2 KiB. Logs that are still being loaded have no manager's.
    manager = start(data_dir)
    assert {id(log.flush_times) for log in manager.all_logs()} == {id(manager.flush_times)}
    manager.shutdown()


def test_logs_are_loaded_without_a_histogram_for_each(data_dir, monkeypatch):
    made = []
    monkeypatch.setattr("kcore.log.unified_log.TimeHistogram", lambda: made.append(1))
    start(data_dir).shutdown()
    assert made == []


def test_after_a_start_there_is_one_key_for_each_partition(data_dir):
    manager = start(data_dir)
    keys = [key for key in gc.get_objects() if type(key) is TopicPartition and key.topic == TOPIC]
    assert len({id(key) for key in keys}) == LOGS
    manager.shutdown()


class CountingExecutor(ThreadPoolExecutor):
    submitted = 0

    def submit(self, *args, **kwargs):
        CountingExecutor.submitted += 1
        return super().submit(*args, **kwargs)


def test_a_stop_has_a_task_for_each_thread_not_for_each_log(data_dir):
    manager = start(data_dir, executors=CountingExecutor, config=LogManagerConfig(3))
    CountingExecutor.submitted = 0
    logs = manager.all_logs()
    manager.shutdown()
    assert CountingExecutor.submitted == 3
    assert all(log.is_closed for log in logs) and was_clean_shutdown(str(data_dir))


class NoThreads(InlineExecutor):
    """As a pool is while the interpreter ends."""

    def submit(self, fn, /, *args, **kwargs):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")


def test_logs_are_closed_where_no_thread_can_be_started(data_dir):
    manager = start(data_dir)
    logs = manager.all_logs()
    manager._executors = lambda count, name: NoThreads()
    manager.shutdown()
    assert all(log.is_closed for log in logs) and was_clean_shutdown(str(data_dir))


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_log_that_does_not_close_is_no_clean_stop_of_its_directory(data_dir, monkeypatch, error):
    manager = start(data_dir)
    logs = manager.all_logs()

    def fail():
        raise error("a mistake of ours")

    monkeypatch.setattr(logs[3], "close", fail)
    with pytest.raises(error, match="a mistake of ours"):
        manager.shutdown()
    assert not was_clean_shutdown(str(data_dir))
    monkeypatch.undo()
    logs[3].close()
    assert all(log.is_closed for log in logs)


@pytest.mark.parametrize(("count", "threads"), [(1, []), (3, [(3, "kcore-log-dir")])])
def test_data_directories_are_loaded_side_by_side_and_a_single_one_without_a_thread(tmp_path, count, threads):
    made = []

    def executors(num_threads, name):
        made.append((num_threads, name))
        return ThreadPoolExecutor(num_threads, name)

    paths = [tmp_path / str(number) for number in range(count)]
    for path in paths:
        path.mkdir()
    manager = LogManager(paths, executors=executors)
    manager.startup()
    assert made == threads
    manager.shutdown()
