import errno
import threading

import pytest

from kcore.common.file import clear_faults, fail_next
from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.errors import LogCleaningAborted
from kcore.log.log_cleaner import CleanerConfig, LogCleaner
from kcore.log.log_cleaner_manager import LogCleanerManager, find_log_to_clean
from kcore.log.log_dir import LogDir
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from tests.unit.log.logs import Logs, batch

TP = TopicPartition("orders", 0)
NOW = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0", cleanup_policy=("compact",), segment_bytes=1 << 20)


@pytest.fixture
def log(logs):
    with logs.open() as log:
        yield log


def manager_of(logs, *open_logs):
    by_name = {log.topic_partition: log for log in open_logs}
    return LogCleanerManager([LogDir(str(logs.directory.parent))], lambda: by_name, logs.time)


def checkpoint_of(logs):
    return logs.directory.parent / "cleaner-offset-checkpoint"


def append(log, count, *, key=b"k", roll=True, timestamp=NOW):
    for _ in range(count):
        log.append_as_leader(batch(1, key=key, timestamp=timestamp))
    if roll:
        log.roll()


# -- what can be cleaned --------------------------------------------------------------------------------------------


def test_everything_below_the_active_segment_can_be_cleaned(logs, log):
    append(log, 3)
    append(log, 2)
    append(log, 1, roll=False)
    to_clean, is_wrong = find_log_to_clean(log, None, NOW)
    assert (to_clean.first_dirty_offset, to_clean.first_uncleanable_offset, is_wrong) == (0, 5, False)
    assert to_clean.clean_bytes == 0 and to_clean.cleanable_ratio == 1.0
    assert to_clean.cleanable_bytes == log.size - log.active_segment.size
    to_clean, _ = find_log_to_clean(log, 3, NOW)
    assert (to_clean.clean_bytes, to_clean.cleanable_bytes) == (log.segments[0].size, log.segments[1].size)
    assert 0.3 < to_clean.cleanable_ratio < 0.5


def test_what_followers_lack_is_not_cleaned(logs):
    with logs.open(sole_replica=False) as log:
        append(log, 3)
        append(log, 2)
        log.update_high_watermark(4)
        to_clean, _ = find_log_to_clean(log, 0, NOW)
        assert to_clean.first_uncleanable_offset == 3, "whole segments only"
        log.update_high_watermark(5)
        assert find_log_to_clean(log, 0, NOW)[0].first_uncleanable_offset == 5


def test_segments_with_young_records_are_left_alone(tmp_path):
    logs = Logs(tmp_path / "orders-0", cleanup_policy=("compact",), min_compaction_lag_ms=1000)
    with logs.open() as log:
        append(log, 1, timestamp=NOW - 5000)
        append(log, 1, timestamp=NOW - 999)
        append(log, 1, timestamp=NOW - 5000)
        assert find_log_to_clean(log, 0, NOW)[0].first_uncleanable_offset == 1
        assert find_log_to_clean(log, 0, NOW + 1)[0].first_uncleanable_offset == 3


@pytest.mark.parametrize("checkpointed", [0, 1])
def test_a_checkpoint_below_the_log_start_is_moved_to_it(logs, log, checkpointed):
    append(log, 5)
    log.maybe_increment_log_start_offset(2)
    to_clean, is_wrong = find_log_to_clean(log, checkpointed, NOW)
    assert (to_clean.first_dirty_offset, is_wrong) == (2, True)


def test_a_checkpoint_beyond_the_log_end_means_that_all_is_dirty(logs, log):
    append(log, 5)
    to_clean, is_wrong = find_log_to_clean(log, 6, NOW)
    assert (to_clean.first_dirty_offset, is_wrong) == (0, True)
    assert find_log_to_clean(log, 5, NOW)[1] is False


def test_a_checkpoint_inside_the_active_segment_leaves_nothing_to_clean(logs, log):
    append(log, 2)
    append(log, 3, roll=False)
    to_clean, is_wrong = find_log_to_clean(log, 4, NOW)
    assert (to_clean.cleanable_bytes, is_wrong) == (0, False)
    assert to_clean.first_uncleanable_offset <= 4


# -- which log is next ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_logs(tmp_path):
    opened = []
    for name in ("a", "b"):
        logs = Logs(tmp_path / f"{name}-0", cleanup_policy=("compact",))
        log = logs.open()
        log.topic_partition = TopicPartition(name, 0)
        opened.append((logs, log))
    yield opened
    for _, log in opened:
        log.close()


def test_the_log_with_the_greatest_dirty_share_comes_first(two_logs):
    (logs, a), (_, b) = two_logs
    for log in (a, b):
        append(log, 10)
    append(b, 30)
    manager = manager_of(logs, a, b)
    checkpoint_of(logs).write_text("0\n2\na 0 5\nb 0 10\n")
    append(a, 9)
    grabbed = manager.grab_filthiest_compacted_log()
    assert grabbed.log is b and manager.state(b.topic_partition) == "cleaning"
    assert manager.max_dirty_ratio == grabbed.cleanable_ratio == 0.75
    following = manager.grab_filthiest_compacted_log()
    assert following is None or following.log is a


def test_a_log_that_is_not_dirty_enough_waits(logs, log):
    append(log, 10)
    append(log, 10)
    manager = manager_of(logs, log)
    checkpoint_of(logs).write_text("0\n1\norders 0 10\n")
    assert manager.grab_filthiest_compacted_log() is None, "a half is not more than min.cleanable.dirty.ratio"
    append(log, 1)
    assert manager.grab_filthiest_compacted_log().log is log


def test_max_compaction_lag_makes_a_log_cleanable_that_is_not_dirty_enough(tmp_path):
    logs = Logs(tmp_path / "orders-0", cleanup_policy=("compact",), max_compaction_lag_ms=1000)
    with logs.open() as log:
        append(log, 10)
        append(log, 1, timestamp=NOW)
        manager = manager_of(logs, log)
        checkpoint_of(logs).write_text("0\n1\norders 0 10\n")
        logs.time.sleep(1000)
        assert manager.grab_filthiest_compacted_log() is None
        logs.time.sleep(1)
        assert manager.grab_filthiest_compacted_log().compaction_delay_ms == 1


def test_logs_that_are_not_compacted_are_not_cleaned(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    with logs.open() as log:
        append(log, 10)
        assert manager_of(logs, log).grab_filthiest_compacted_log() is None


@pytest.mark.parametrize(
    "content",
    ["", "0\n0\n", "junk", "1\n0\n", "0\n2\norders 0 5\n", "0\n1\norders 0 x\n", "0\n1\norders 0 -1\n", "\xff"],
)
def test_a_garbled_checkpoint_means_never_cleaned(logs, log, content):
    append(log, 3)
    checkpoint_of(logs).write_bytes(content.encode("latin-1"))
    manager = manager_of(logs, log)
    assert manager.cleaner_offsets() == {}
    grabbed = manager.grab_filthiest_compacted_log()
    assert grabbed.first_dirty_offset == 0
    manager.done_cleaning(log, log.parent_dir, 3)
    assert checkpoint_of(logs).read_text() == "0\n1\norders 0 3\n"


def test_a_wrong_checkpoint_is_corrected_on_disk(logs, log):
    append(log, 3)
    manager = manager_of(logs, log)
    checkpoint_of(logs).write_text("0\n2\norders 0 99\ngone 0 5\n")
    manager.grab_filthiest_compacted_log()
    assert checkpoint_of(logs).read_text() == "0\n1\norders 0 0\n", "and a log that is no more is forgotten"


# -- states ---------------------------------------------------------------------------------------------------------


def test_pauses_are_counted(logs, log):
    append(log, 3)
    manager = manager_of(logs, log)
    manager.abort_and_pause_cleaning(TP)
    manager.abort_and_pause_cleaning(TP)
    assert manager.state(TP) == 2
    assert manager.grab_filthiest_compacted_log() is None
    manager.resume_cleaning([TP])
    assert manager.state(TP) == 1 and manager.deletable_logs() == []
    manager.resume_cleaning([TP])
    assert manager.state(TP) is None
    assert manager.grab_filthiest_compacted_log() is not None
    with pytest.raises(ValueError, match="not paused"):
        manager.resume_cleaning([TP])


@pytest.mark.parametrize("waiters", [1, 2])
def test_an_abort_of_a_cleaning_waits_until_the_cleaner_has_stopped(logs, log, waiters):
    append(log, 3)
    manager = manager_of(logs, log)
    manager.grab_filthiest_compacted_log()
    manager.check_cleaning_aborted(TP)
    threads = [threading.Thread(target=manager.abort_and_pause_cleaning, args=(TP,)) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    for _ in range(10_000):
        if manager.state(TP) == "aborting":
            break
        threading.Event().wait(0.001)
    with pytest.raises(LogCleaningAborted):
        manager.check_cleaning_aborted(TP)
    assert all(thread.is_alive() for thread in threads)
    manager.done_cleaning(log, log.parent_dir, 3)
    for thread in threads:
        thread.join(60)
    assert manager.state(TP) == waiters
    assert manager.cleaner_offsets() == {}, "an aborted cleaning is not noted"


def test_aborting_a_log_that_is_not_being_cleaned_changes_nothing(logs, log):
    manager = manager_of(logs, log)
    manager.abort_cleaning(TP)
    assert manager.state(TP) is None


def test_releasing_a_log_that_is_not_being_cleaned_is_an_error(logs, log):
    manager = manager_of(logs, log)
    with pytest.raises(ValueError, match="it is not being cleaned"):
        manager.done_cleaning(log, log.parent_dir, 0)


def test_retention_pauses_the_cleaner_for_logs_that_are_not_compacted(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    with logs.open() as log:
        manager = manager_of(logs, log)
        assert manager.pause_cleaning_for_non_compacted_partitions() == []  # nothing to delete
        append(log, 1)
        assert manager.pause_cleaning_for_non_compacted_partitions() == [log]
        assert manager.state(TP) == 1
        assert manager.pause_cleaning_for_non_compacted_partitions() == []
        manager.resume_cleaning([TP])


def test_a_truncation_lowers_the_checkpoint_and_never_raises_it(logs, log):
    append(log, 5)
    manager = manager_of(logs, log)
    checkpoint_of(logs).write_text("0\n1\norders 0 4\n")
    manager.maybe_truncate_checkpoint(log.parent_dir, TP, 5)
    assert manager.cleaner_offsets() == {TP: 4}
    manager.maybe_truncate_checkpoint(log.parent_dir, TP, 2)
    assert manager.cleaner_offsets() == {TP: 2}


def test_a_log_that_moves_takes_its_offset_along(logs, log, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    manager = LogCleanerManager([LogDir(log.parent_dir), LogDir(str(other))], lambda: {TP: log}, logs.time)
    manager.update_checkpoints(log.parent_dir, update=(TP, 7))
    manager.mark_uncleanable(log, RuntimeError("as if"))
    manager.alter_checkpoint_dir(TP, log.parent_dir, str(other))
    assert checkpoint_of(logs).read_text() == "0\n0\n"
    assert (other / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 0 7\n"
    assert manager.uncleanable_partitions == [TP]


def test_logs_of_a_failed_directory_are_left_alone(logs, log):
    append(log, 3)
    manager = manager_of(logs, log)
    manager.handle_log_dir_failure(log.parent_dir)
    assert manager.grab_filthiest_compacted_log() is None
    manager.update_checkpoints(log.parent_dir, update=(TP, 3))
    assert not checkpoint_of(logs).exists()


def test_an_uncleanable_log_is_logged_and_not_cleaned_again(logs, log, caplog):
    append(log, 3)
    manager = manager_of(logs, log)
    manager.mark_uncleanable(log, RuntimeError("no idea"))
    assert "no idea" in caplog.text and str(logs.directory) in caplog.text
    assert manager.grab_filthiest_compacted_log() is None
    assert manager.uncleanable_partitions == [TP]
    manager.maintain_uncleanable_partitions()
    assert manager.uncleanable_partitions == [TP]
    manager._logs = dict
    manager.maintain_uncleanable_partitions()
    assert manager.uncleanable_partitions == []


# -- in a LogManager ------------------------------------------------------------------------------------------------


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Makes LogManagers whose cleaner threads do nothing on their own: a test calls their steps itself."""
    made = []

    def make(*dirs, policy="compact", **config):
        time = MockTime()
        manager = LogManager(
            [tmp_path / name for name in dirs or ("data",)],
            topic_configs=lambda topic: {"cleanup.policy": policy, "file.delete.delay.ms": 0} | config,
            time=time,
            scheduler=MockScheduler(time),
            config=LogManagerConfig(cleaner=CleanerConfig(dedupe_buffer_size=1 << 20)),
        )
        monkeypatch.setattr(manager.cleaner, "startup", lambda: None)
        manager.startup()
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.shutdown()


def create(manager):
    log = manager.get_or_create_log(TP)
    log._sole_replica = True
    return log


def offsets(log):
    return [record.offset for record in log.records()]


def test_the_cleaner_thread_cleans_and_notes_how_far(manager, tmp_path):
    manager = manager()
    log = create(manager)
    append(log, 5)
    (thread,) = manager.cleaner.threads
    assert thread.clean_filthiest_log()
    assert offsets(log) == [4]
    assert (tmp_path / "data" / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 0 5\n"
    assert not thread.clean_filthiest_log()
    assert thread.last_stats.records_kept == 1


def test_a_log_that_cannot_be_cleaned_does_not_stop_the_thread(manager, caplog):
    manager = manager()
    log = create(manager)
    append(log, 5)
    with open(log.segments[0].log_path, "r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff\xff")
    (thread,) = manager.cleaner.threads
    assert not thread.clean_filthiest_log()
    assert manager.cleaner.manager.uncleanable_partitions == [TP]
    assert "00000000000000000000.log" in caplog.text
    assert manager.cleaner.manager.state(TP) is None


@pytest.fixture
def faults():
    yield fail_next
    clear_faults()


def test_a_disk_that_fails_under_a_cleaning_takes_its_directory_offline(manager, tmp_path, faults):
    manager = manager("bad", "good")
    logs = [create(manager), manager.get_or_create_log(TopicPartition("orders", 1))]
    bad = next(log for log in logs if log.parent_dir.endswith("bad"))
    bad._sole_replica = True
    append(bad, 5)
    bad.flush()
    faults("pwrite", errno.EIO, times=-1, under=str(tmp_path / "bad"))
    (thread,) = manager.cleaner.threads
    assert not thread.clean_filthiest_log()
    assert manager.offline_log_dirs == [str(tmp_path / "bad")]
    assert bad.is_offline and manager.cleaner.manager.state(bad.topic_partition) is None
    assert not thread.clean_filthiest_log(), "it is left alone"


@pytest.fixture
def full_disk(manager, tmp_path, faults):
    """A manager, its log that could be cleaned, and the cleaner's thread; nothing can be written."""
    made = manager()
    log = create(made)
    append(log, 5)
    log.flush()
    faults("pwrite", errno.ENOSPC, times=-1, under=str(tmp_path))
    (thread,) = made.cleaner.threads
    return made, log, thread


def test_a_full_disk_only_ends_the_cleaning(full_disk, caplog):
    manager, log, thread = full_disk
    assert not thread.clean_filthiest_log()
    clear_faults()
    assert not log.is_offline and len(offsets(log)) == 5
    assert "orders-0: the cleaning ended, and is not tried again for 60 s: " in caplog.text
    assert not thread.clean_filthiest_log()
    manager._time.sleep(60_000)
    assert thread.clean_filthiest_log()
    assert offsets(log) == [4]


def test_a_disk_that_stays_full_has_the_log_read_more_and_more_seldom(full_disk):
    manager, log, thread = full_disk
    attempts, started_ms = [], manager._time.milliseconds()
    clean = thread._cleaner.clean
    thread._cleaner.clean = lambda cleanable: attempts.append(manager._time.milliseconds()) or clean(cleanable)
    for _ in range(4 * 60 * 4):
        thread.clean_filthiest_log()
        manager._time.sleep(15_000)
    minutes = [(at - started_ms) // 60_000 for at in attempts]
    assert minutes == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    clear_faults()
    manager._time.sleep(3_600_000)
    assert thread.clean_filthiest_log()
    append(log, 5)
    assert thread.clean_filthiest_log(), "what failed before the last success is forgotten"


def test_a_clock_that_is_set_back_does_not_put_a_log_off_for_longer(full_disk):
    manager, log, thread = full_disk
    assert not thread.clean_filthiest_log()
    clear_faults()
    manager._time._now_ms -= 86_400_000
    manager._time.sleep(59_999)
    assert not thread.clean_filthiest_log()
    manager._time.sleep(1)
    assert thread.clean_filthiest_log()
    assert offsets(log) == [4]


def test_other_logs_are_cleaned_and_retention_goes_on_while_one_is_put_off(manager, tmp_path, faults):
    manager = manager(policy="compact,delete", **{"retention.ms": 1000})
    log = create(manager)
    other = manager.get_or_create_log(TopicPartition("orders", 1))
    other._sole_replica = True
    append(log, 6, timestamp=NOW)
    append(other, 5, timestamp=NOW)
    log.flush()
    other.flush()
    faults("pwrite", errno.ENOSPC, times=-1, under=log.directory)
    (thread,) = manager.cleaner.threads
    while thread.clean_filthiest_log():
        pass
    thread.clean_filthiest_log()
    assert offsets(other) == [4] and len(offsets(log)) == 6
    manager._time.sleep(5000)
    clear_faults()
    thread._delete_old_segments()
    assert log.log_start_offset == 6


def test_a_full_disk_in_the_middle_of_a_swap_takes_the_directory_offline(manager, tmp_path, faults):
    manager = manager()
    log = create(manager)
    append(log, 5)
    log.flush()
    faults("rename", errno.ENOSPC, skip=2, under=str(tmp_path))
    (thread,) = manager.cleaner.threads
    assert not thread.clean_filthiest_log()
    assert log.is_offline and manager.offline_log_dirs == [str(tmp_path / "data")]


def test_compact_and_delete_is_the_cleaners_to_delete(manager):
    manager = manager(policy="compact,delete", **{"retention.ms": 1000})
    log = create(manager)
    append(log, 5, timestamp=NOW)
    append(log, 1, timestamp=NOW + 2000)
    manager._time.sleep(1001)
    manager.maintenance.cleanup_logs()
    assert log.log_start_offset == 0, "retention leaves compacted logs to the cleaner"
    (thread,) = manager.cleaner.threads
    manager.cleaner.manager.abort_and_pause_cleaning(TP)
    thread._delete_old_segments()
    assert log.log_start_offset == 0
    manager.cleaner.manager.resume_cleaning([TP])
    thread._delete_old_segments()
    assert log.log_start_offset == 5
    assert manager.cleaner.manager.state(TP) is None


def test_segments_below_the_log_start_of_a_compacted_log_go(manager):
    manager = manager()
    log = create(manager)
    append(log, 5)
    append(log, 1)
    log.maybe_increment_log_start_offset(5)
    (thread,) = manager.cleaner.threads
    thread._delete_old_segments()
    assert log.segments[0].base_offset == 5


def test_a_truncated_log_is_dirty_from_its_new_active_segment_on(manager):
    manager = manager()
    log = create(manager)
    for _ in range(3):
        append(log, 2)
    manager.cleaner.threads[0].clean_filthiest_log()
    assert manager.cleaner.manager.cleaner_offsets() == {TP: 6}
    manager.truncate_to({TP: 3})
    assert manager.cleaner.manager.cleaner_offsets() == {TP: log.active_segment.base_offset}
    assert manager.cleaner.manager.state(TP) is None


def test_an_emptied_log_is_dirty_from_its_start(manager):
    manager = manager()
    log = create(manager)
    append(log, 5)
    manager.cleaner.threads[0].clean_filthiest_log()
    manager.truncate_fully_and_start_at(TP, 2)
    assert manager.cleaner.manager.cleaner_offsets() == {TP: 2}


def test_a_deleted_log_is_removed_from_the_tables(manager):
    manager = manager()
    log = create(manager)
    append(log, 5)
    manager.cleaner.threads[0].clean_filthiest_log()
    manager.async_delete(TP)
    assert manager.cleaner.manager.cleaner_offsets() == {}
    assert manager.cleaner.manager.state(TP) is None


def test_DIR_03_a_log_that_moves_is_not_cleaned_meanwhile(manager, tmp_path):
    manager = manager("d1", "d2")
    log = create(manager)
    append(log, 5)
    manager.cleaner.threads[0].clean_filthiest_log()
    source = log.parent_dir
    future = manager.get_or_create_log(TP, is_future=True)
    assert manager.cleaner.manager.state(TP) == 1
    for chunk in log.batches():
        future.append_as_follower(bytes(chunk.buffer))
    moved = manager.replace_current_with_future_log(TP)
    assert manager.cleaner.manager.state(TP) is None
    assert manager.cleaner.manager.cleaner_offsets() == {TP: 5}
    assert moved.parent_dir != source
    assert (tmp_path / moved.parent_dir / "cleaner-offset-checkpoint").read_text() == "0\n1\norders 0 5\n"


def test_the_threads_clean_on_their_own_and_stop(tmp_path):
    manager = LogManager(
        [tmp_path / "data"],
        topic_configs=lambda topic: {"cleanup.policy": "compact"},
        config=LogManagerConfig(cleaner=CleanerConfig(num_threads=2, backoff_ms=1, dedupe_buffer_size=1 << 20)),
    )
    manager.startup()
    log = create(manager)
    append(log, 5, timestamp=-1)
    for _ in range(30_000):
        if manager.cleaner.manager.cleaner_offsets() == {TP: 5}:
            break
        threading.Event().wait(0.001)
    assert offsets(log) == [4]
    manager.shutdown()
    assert not any(thread._thread.is_alive() for thread in manager.cleaner.threads)


def test_a_wait_for_the_end_of_a_cleaning_gets_the_log_before_the_next_one_begins(logs, log):
    append(log, 3)
    append(log, 1, roll=False)
    manager = manager_of(logs, log)
    assert manager.grab_filthiest_compacted_log() is not None
    waiters = [threading.Thread(target=manager.abort_and_pause_cleaning, args=(TP,)) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    while manager._waiting.get(TP) != 2:
        pass
    # Both in one breath, as a cleaner thread does it.
    with manager._lock:
        manager.done_cleaning(log, log.parent_dir, 0)
        assert manager.grab_filthiest_compacted_log() is None
    for waiter in waiters:
        waiter.join(60)
    assert manager.state(TP) == 2
    manager.resume_cleaning([TP])
    assert manager.grab_filthiest_compacted_log() is None
    manager.resume_cleaning([TP])
    assert manager.grab_filthiest_compacted_log() is not None


def test_a_cleaner_goes_on_with_its_threads_when_none_can_be_made_with_other_settings():
    before = CleanerConfig(dedupe_buffer_size=1 << 20, max_io_bytes_per_second=1e6)
    cleaner = LogCleaner(before, [], dict)
    cleaner.startup()
    try:
        threads = cleaner.threads
        with pytest.raises(ValueError, match="too small to hold one key"):
            cleaner.reconfigure(CleanerConfig(dedupe_buffer_size=1, max_io_bytes_per_second=1))
        assert (cleaner.config, cleaner.threads) == (before, threads) and threads[0].is_running
        assert cleaner._throttler.rate_per_s == 1e6
        cleaner.reconfigure(before)
        assert cleaner.threads is threads
    finally:
        cleaner.shutdown()
