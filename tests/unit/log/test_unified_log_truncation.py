import random
import shutil
import threading

import pytest

from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from tests.reference.disk import Disk, recorded
from tests.unit.log.logs import (
    Logs,
    batch,
    file_names,
    idempotent,
    marker,
    offsets,
    removed,
    renamed_and_synced,
    small_segments,
)

# -- truncation ----------------------------------------------------------------------------------------------


def test_TRUNC_01_a_truncation_at_or_beyond_the_end_changes_nothing(log):
    log.append_as_leader(batch(3), 1)
    assert log.truncate_to(3) is False and log.truncate_to(9) is False
    assert offsets(log) == [0, 1, 2] and log.leader_epoch_cache.entries == ((1, 0),)


def test_TRUNC_01_an_epoch_without_records_goes_all_the_same(log):
    log.append_as_leader(batch(3), 1)
    log.maybe_assign_epoch_start_offset(2, 3)
    log.truncate_to(3)
    assert log.leader_epoch_cache.entries == ((1, 0),)


def test_EPOCH_01_a_new_leaders_epoch_costs_no_file_and_a_killed_broker_reads_it_from_the_records(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open(sole_replica=False)
    log.append_as_leader(batch(3), 1)
    log.flush()
    with recorded() as record:
        log.maybe_assign_epoch_start_offset(4, 3)
        log.maybe_assign_epoch_start_offset(5, 3)
        assert record.changes() == []
    assert log.leader_epoch_cache.entries == ((1, 0), (5, 3))
    log.append_as_leader(batch(2), 5)
    log.maybe_assign_epoch_start_offset(7, 5)
    # As after kill -9: what was written is there, and nothing was closed.
    (tmp_path / "killed").mkdir()
    shutil.copytree(tmp_path / "orders-0", tmp_path / "killed" / "orders-0")
    killed = Logs(tmp_path / "killed" / "orders-0").open(clean=False, sole_replica=False)
    assert killed.leader_epoch_cache.entries == ((1, 0), (5, 3))
    # With the flush they are in the file, before the recovery point passes them.
    log.flush()
    assert (tmp_path / "orders-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:] == ["1 0", "5 3", "7 5"]


def test_TRUNC_02_a_truncation_below_the_first_segment_starts_anew(log):
    log.append_as_leader(batch(3))
    log.truncate_fully_and_start_at(100)
    log.append_as_leader(batch())
    assert log.truncate_to(50) is True
    assert (log.log_start_offset, log.log_end_offset, log.size) == (50, 50, 0)


def test_TRUNC_03_TRUNC_04_later_segments_go_and_the_rest_is_cut(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for i in range(10):
        log.append_as_leader(idempotent(5, i), i // 2)
    assert log.truncate_to(4) is True
    assert [s.base_offset for s in log.segments] == [0, 3]
    assert (log.log_end_offset, log.high_watermark, log.log_start_offset) == (4, 4, 0)
    assert log.leader_epoch_cache.entries == ((0, 0), (1, 2))
    assert log.producer_state_manager.producers[5].last_sequence == 3
    assert offsets(log) == [0, 1, 2, 3]
    assert log.append_as_leader(idempotent(5, 4)).first_offset == 4
    assert len(file_names(logs, ".log.deleted")) == 2
    logs.time.sleep(60_000)
    logs.scheduler.tick()
    assert file_names(logs, ".deleted") == []


def test_TRUNC_03_segments_go_from_the_last_one_down_and_that_is_on_disk_before_the_next_append(tmp_path):
    """In another order a crash leaves a gap; without the sync, names that come back overlap what was appended since."""
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(batch())
    with recorded() as record:
        log.truncate_to(4)
        assert renamed_and_synced(record, logs.directory) == [*removed(9, 6), "fsync ."]
    log.append_as_leader(batch())
    with recorded() as record:
        log.truncate_fully_and_start_at(20)
        assert renamed_and_synced(record, logs.directory) == [*removed(3, 0), "fsync ."]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("target", [7, 4, 3])
def test_TRUNC_11_a_crash_at_any_call_of_a_truncation_leaves_a_log_without_gap_that_can_go_on(tmp_path, target, power):
    """power: what was not synced may be lost.  All ten records were flushed, so none below the target is."""
    logs = small_segments(tmp_path, segment_index_bytes=120)
    with recorded() as record:
        log = logs.open()
        for n in range(10):
            log.append_as_leader(idempotent(5, n), n // 4)
        log.flush()
        before = record.size
        log.truncate_to(target)
        done = record.size
        log.append_as_leader(idempotent(5, target), 9)
        changes = record.changes()
    disk = Disk(str(logs.directory))
    crashes = 0
    for number, change in enumerate(changes):
        if change.end > before and change.call != "stores":
            directory = tmp_path / f"crash-{number}" / "orders-0"
            directory.mkdir(parents=True)
            disk.write_to(str(directory), random.Random(number) if power else None)
            note = f"before call {number}: {change.call} {change.paths}"
            crashed = Logs(directory, segment_index_bytes=120)
            with recorded():  # so that nothing waits for a real disk
                again = crashed.open(clean=False, recovery_point=10 if change.end <= done else target)
            remaining = offsets(again)
            # The append after the truncation is on its way at the last call.
            assert remaining == list(range(len(remaining))) and target <= len(remaining) <= 10, note
            assert again.log_end_offset == len(remaining), note
            for segment in again.segments:
                for entry in range(len(segment.offset_index)):
                    offset, position = segment.offset_index.entry(entry)
                    assert position < segment.size and segment.translate_offset(offset).position == position, note
            assert again.producer_state_manager.producers[5].last_sequence == len(remaining) - 1, note
            assert again.append_as_leader(idempotent(5, len(remaining)), 10).first_offset == len(remaining), note
            again.close()
            crashes += 1
        disk.apply(change)
    assert crashes > 5


def test_TRUNC_04_the_log_start_is_never_above_the_end(log):
    log.append_as_leader(batch(3), 1)
    log.append_as_leader(batch(3), 2)
    log.maybe_increment_log_start_offset(5)
    log.truncate_to(3)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 3, 3)
    assert offsets(log) == []
    log.append_as_leader(batch(), 3)
    assert offsets(log) == [3] and log.leader_epoch_cache.entries[-1] == (3, 3)


def test_TRUNC_05_a_negative_target_is_an_error(log):
    with pytest.raises(ValueError, match="-1"):
        log.truncate_to(-1)
    with pytest.raises(ValueError, match="-1"):
        log.truncate_fully_and_start_at(-1)


def test_TRUNC_06_a_batch_that_spans_the_target_goes_whole_and_leaves_a_gap(log):
    log.append_as_leader(batch(3))
    log.append_as_leader(batch(4))
    log.truncate_to(5)
    assert offsets(log) == [0, 1, 2]
    assert log.log_end_offset == 5
    assert log.append_as_leader(batch()).first_offset == 5
    assert offsets(log) == [0, 1, 2, 5]


@pytest.mark.parametrize("segment_batches", [100, 2, 1])
@pytest.mark.parametrize(("start", "target"), [(12, 12), (12, 13), (12, 11), (14, 12), (11, 11), (12, 10)])
def test_TRUNC_06_deleted_records_stay_deleted_when_the_truncation_ends_inside_a_batch(
    tmp_path, start, target, segment_batches
):
    """The batch of 10 to 14 goes whole, so the data ends below the log start."""
    size = len(batch(5))
    logs = Logs(tmp_path / "orders-0", segment_bytes=segment_batches * size)
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch(5), 1)
    log.maybe_increment_log_start_offset(start)
    log.truncate_to(target)
    assert (log.log_end_offset, offsets(log)) == (target, [])
    unclean_copy = tmp_path / "killed" / "orders-0"
    shutil.copytree(logs.directory, unclean_copy)
    checkpointed = {"log_start_offset": log.log_start_offset, "recovery_point": log.recovery_point}
    log.close()
    for mode in "ra":
        again = logs.open(**checkpointed, mode=mode)
        assert (again.log_start_offset, again.log_end_offset, offsets(again)) == (target, target, []), mode
        if mode == "a":
            assert again.append_as_leader(batch(5), 2).first_offset == target
            assert offsets(again) == list(range(target, target + 5))
        again.close()
        killed = Logs(unclean_copy)
        again = killed.open(**checkpointed, mode=mode, clean=False)
        assert (again.log_start_offset, again.log_end_offset, offsets(again)) == (target, target, []), mode
        again.close()
    assert not list(tmp_path.glob("**/*-stray"))


@pytest.mark.parametrize("segment_batches", [100, 2, 1])
@pytest.mark.parametrize(("start", "target"), [(11, 12), (12, 12), (13, 14), (11, 11)])
@pytest.mark.parametrize("flushed", [False, True])
def test_TRUNC_06_records_deleted_after_a_truncation_inside_a_batch_stay_deleted(
    tmp_path, start, target, segment_batches, flushed
):
    """The truncation removes the batch of 10 to 14 whole: the data ends at 10, below the new log start."""
    logs = Logs(tmp_path / "orders-0", segment_bytes=segment_batches * len(batch(5)))
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch(5), 1)
    if flushed:
        log.flush()
    log.truncate_to(target)
    assert log.maybe_increment_log_start_offset(start)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (target, target, target)
    unclean_copy = tmp_path / "killed" / "orders-0"
    shutil.copytree(logs.directory, unclean_copy)
    killed = Logs(unclean_copy)
    for checkpointed in (0, log.log_start_offset):
        again = killed.open(log_start_offset=checkpointed, recovery_point=log.recovery_point, clean=False)
        assert (again.log_start_offset, again.log_end_offset, offsets(again)) == (target, target, [])
        again._close_files()
    log.close()
    again = logs.open(log_start_offset=log.log_start_offset, recovery_point=log.recovery_point)
    assert (again.log_start_offset, again.log_end_offset, offsets(again)) == (target, target, [])
    assert again.append_as_leader(batch(5), 2).first_offset == target
    assert offsets(again) == list(range(target, target + 5))
    again.close()
    assert not list(tmp_path.glob("**/*-stray"))


def test_TRUNC_06_a_log_emptied_at_its_end_has_its_high_watermark_there(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    for _ in range(3):
        log.append_as_leader(batch(5), 1)
    log.truncate_to(13)
    log.update_high_watermark(11)
    log.maybe_increment_log_start_offset(11)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (13, 13, 13)


def test_TRUNC_06_deleted_records_are_removed_durably_once_another_segment_has_the_end(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch(5))
    log.maybe_increment_log_start_offset(12)
    with recorded() as record:
        log.truncate_to(12)
        assert renamed_and_synced(record, logs.directory) == [*removed(0), "fsync ."]
    assert file_names(logs, ".log") == [f"{12:020d}.log"]


@pytest.mark.parametrize("power", [False, True])
def test_TRUNC_11_a_crash_at_any_call_of_a_truncation_below_the_start_leaves_a_log_that_ends_where_it_did(
    tmp_path, power
):
    """power: what was not synced may be lost.  The log start may have been checkpointed or not."""
    logs = Logs(tmp_path / "orders-0", segment_bytes=len(batch(5)), segment_index_bytes=120)
    with recorded() as record:
        log = logs.open()
        for _ in range(4):
            log.append_as_leader(batch(5), 1)
        log.flush()
        log.maybe_increment_log_start_offset(12)
        before = record.size
        log.truncate_to(12)
        done = record.size
        log.append_as_leader(batch(5), 2)
        changes = record.changes()
    disk = Disk(str(logs.directory))
    crashes = 0
    for number, change in enumerate(changes):
        if change.end > before and change.call != "stores":
            for checkpointed in (0, 12):
                directory = tmp_path / f"crash-{number}-{checkpointed}" / "orders-0"
                directory.mkdir(parents=True)
                disk.write_to(str(directory), random.Random(number) if power else None)
                note = f"before call {number}: {change.call} {change.paths}, log start {checkpointed}"
                with recorded():  # so that nothing waits for a real disk
                    again = Logs(directory, segment_index_bytes=120).open(
                        clean=False, recovery_point=20 if change.end <= done else 12, log_start_offset=checkpointed
                    )
                remaining = offsets(again)
                # The append after the truncation is on its way at the last calls.
                if change.end > done:
                    assert remaining in ([], list(range(12, 17))) and again.log_start_offset == 12, note
                assert [offset for offset in remaining if offset < again.log_start_offset] == [], note
                assert again.log_end_offset >= (10 if checkpointed == 0 else 12), note
                assert again.append_as_leader(batch(), 3).first_offset == max([again.log_end_offset - 1, *remaining]), (
                    note
                )
                again.close()
                crashes += 1
        disk.apply(change)
    assert crashes > 5


def test_TRUNC_07_full_truncation_leaves_one_empty_segment(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for i in range(7):
        log.append_as_leader(idempotent(5, i), 1)
    log.truncate_fully_and_start_at(20)
    assert [(s.base_offset, s.size) for s in log.segments] == [(20, 0)]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (20, 20, 20)
    assert log.leader_epoch_cache.entries == ()
    assert log.producer_state_manager.producers == {}
    assert log.producer_state_manager.first_unstable_offset is None
    assert file_names(logs, ".snapshot") == []
    assert log.append_as_leader(idempotent(5, 77)).first_offset == 20


def test_full_truncation_to_the_active_base_replaces_the_segment(log):
    log.append_as_leader(batch(3))
    log.truncate_fully_and_start_at(0)
    assert (log.size, log.log_end_offset) == (0, 0)
    assert log.append_as_leader(batch()).first_offset == 0


def test_TRUNC_09_a_truncation_waits_for_the_log_lock(log):
    log.append_as_leader(batch(3))
    done = threading.Event()
    with log.lock:
        thread = threading.Thread(target=lambda: (log.truncate_to(1), done.set()))
        thread.start()
        assert not done.wait(0.05)
        assert log.append_as_leader(batch()).first_offset == 3
    thread.join()
    assert log.log_end_offset == 1


def test_TRUNC_10_the_recovery_point_comes_down_and_is_checkpointed_at_once(logs, log):
    log.append_as_leader(batch(3))
    log.append_as_leader(batch(3))
    log.flush()
    assert log.recovery_point == 6
    other = log.topic_partition._replace(partition=9)
    logs.log_dir.recovery_points.write({log.topic_partition: 6, other: 9})
    log.truncate_to(3)
    assert log.recovery_point == 3
    assert logs.log_dir.recovery_points.read() == {log.topic_partition: 3, other: 9}
    log.truncate_fully_and_start_at(1)
    assert log.recovery_point == 1
    assert logs.log_dir.recovery_points.read() == {log.topic_partition: 1, other: 9}


def test_TRUNC_04_truncation_removes_aborted_transactions_and_reopens_the_cut_one(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    for sequence in (0, 1):
        log.append_as_leader(idempotent(1, sequence, is_transactional=True))
        log.append_as_leader(marker(1, commit=False), origin=AppendOrigin.COORDINATOR)
    log.truncate_to(3)
    assert log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED).aborted_transactions == [(1, 0, 1, 2)]
    assert log.last_stable_offset == 2
    log.append_as_leader(marker(1, commit=True), origin=AppendOrigin.COORDINATOR)
    assert offsets(log, isolation="read_committed") == [2]
