"""A damaged segment costs its own records, not those of the segments that were flushed after it."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from kcore.common import file
from kcore.log.local_log import corrected_across_gaps
from kcore.log.log_config import LogConfig
from kcore.log.log_offset_metadata import AbortedTxn, AppendOrigin
from kcore.log.open_log import open_log
from tests.golden_data import data_dir
from tests.unit.log.logs import SIZE, Logs, batch, idempotent, marker, offsets, small_segments

#: Of seven segments with 15 offsets each.
SEVEN = [0, 15, 30, 45, 60, 75, 90]


def seven_segments(directory):
    """With 15 batches each, closed cleanly; the second is cut inside its 13th batch, so before its last index entry."""
    partition = directory / "orders-0"
    with open_log(partition, "a", config=LogConfig(segment_bytes=4000, index_interval_bytes=300)) as log:
        for _ in range(105):
            log.append_as_leader(batch(size=190))
        assert [segment.base_offset for segment in log.segments] == SEVEN
    damaged = partition / f"{15:020d}.log"
    os.truncate(damaged, damaged.stat().st_size - 700)
    return partition


def test_LOG_30_a_flushed_segment_that_was_cut_short_costs_no_segment_after_it(tmp_path, caplog):
    partition = seven_segments(tmp_path)
    expected = [*range(27), *range(30, 105)]
    with open_log(partition, "r") as log:
        assert (offsets(log), log.log_end_offset) == (expected, 105)
    with open_log(partition, "a") as log:
        assert "cut 83 bytes off segment 15 from offset 27 on" in caplog.text
        assert "The log goes on at offset 30" in caplog.text
        assert (offsets(log), log.log_end_offset) == (expected, 105)
        assert [segment.base_offset for segment in log.segments] == SEVEN
        assert log.append_as_leader(batch()).first_offset == 105
    for mode in ("r", "a"):
        with open_log(partition, mode) as log:
            assert offsets(log) == [*expected, 105]
    assert not list(tmp_path.glob("*-stray"))


def cut_short(log_file: Path):
    os.truncate(log_file, 1500)


def one_bit_and_no_index(log_file: Path):
    log_file.with_suffix(".index").unlink()
    data = bytearray(log_file.read_bytes())
    data[len(data) // 2] ^= 1
    log_file.write_bytes(data)


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize(("damage", "end"), [(cut_short, 40), (one_bit_and_no_index, 45)])
def test_LOG_30_kafkas_segments_after_a_damaged_one_are_kept(tmp_path, damage, end, mode):
    shutil.copytree(data_dir(), tmp_path / "data")
    partition = tmp_path / "data" / "g-segments-0"
    damage(partition / f"{30:020d}.log")
    with open_log(partition, mode) as log:
        assert offsets(log) == [*range(end), *range(60, 100)]


@pytest.mark.parametrize("clean", [True, False])
def test_LOG_30_damage_above_the_recovery_point_ends_the_log_and_below_it_does_not(tmp_path, clean):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(20):
        log.append_as_leader(batch())
    log.close()
    for base in (3, 12):
        one_bit_and_no_index(logs.directory / f"{base:020d}.log")
    log = logs.open(clean=clean, recovery_point=10)
    kept = [0, 1, 2, 3, *range(6, 13)]
    assert offsets(log) == (kept + list(range(15, 20)) if clean else kept)
    assert log.log_end_offset == (20 if clean else 13)
    log.close()


@pytest.mark.parametrize("damage, lost_from", [(cut_short, 20), (one_bit_and_no_index, 22)])
def test_LOG_30_a_crash_while_a_damaged_old_segment_recovers_is_made_good_by_the_next_start(
    tmp_path, damage, lost_from
):
    expected = [*range(lost_from), *range(30, 105)]
    crashes = 0
    for calls_before in range(200):
        logs = Logs(tmp_path / f"orders-{calls_before}", segment_bytes=4000, index_interval_bytes=300)
        log = logs.open()
        for _ in range(105):
            log.append_as_leader(batch(size=190))
        log.close()
        damage(logs.directory / f"{15:020d}.log")
        file.fail_next(file.CHANGES, errno.EIO, skip=calls_before, times=-1, under=str(logs.directory))
        try:
            logs.open(clean=True, recovery_point=105)
        except OSError:
            crashes += 1
        else:
            break
        finally:
            file.clear_faults()
        log = logs.open(clean=False, recovery_point=105)
        assert [segment.base_offset for segment in log.segments] == SEVEN, f"crash before call {calls_before}"
        assert offsets(log) == expected, f"crash before call {calls_before}"
        log.close()
    assert crashes > 5


def test_LOG_30_producer_states_include_the_batches_after_a_damaged_segment(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for n in range(5):
        log.append_as_leader(idempotent(7, n))
    for n in range(4):
        log.append_as_leader(idempotent(8, n))
    log.close()
    one_bit_and_no_index(logs.directory / f"{3:020d}.log")
    log = logs.open(recovery_point=9)
    assert offsets(log) == [0, 1, 2, 3, 6, 7, 8]
    producer_entries = log.producer_state_manager.producers
    assert (producer_entries[7].last_sequence, producer_entries[8].last_sequence) == (3, 3)
    assert log.last_stable_offset == 9
    log.close()


def test_LSO_a_transaction_whose_marker_was_lost_does_not_hide_what_the_next_one_did(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()

    def append(records, origin=AppendOrigin.CLIENT):
        log.append_as_leader(records, 0, origin)

    for n in range(4):  # and a marker at offset 4, which will be lost
        append(idempotent(7, n, is_transactional=True))
    append(marker(7, commit=True), AppendOrigin.COORDINATOR)
    append(batch())
    log.roll()
    first_aborted = log.log_end_offset
    append(idempotent(7, 4, is_transactional=True))
    append(marker(7, commit=False), AppendOrigin.COORDINATOR)
    append(batch())
    log.close()
    path = logs.directory / f"{3:020d}.log"
    path.with_suffix(".index").unlink()
    os.truncate(path, SIZE + 10)
    for _ in range(2):
        log = logs.open(recovery_point=9)
        assert offsets(log, isolation="read_committed") == [0, 1, 2, 3, first_aborted + 2]
        log.close()


def test_LSO_a_marker_without_records_does_not_abort_what_a_lost_marker_had_committed(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    log.append_as_leader(idempotent(7, 0, is_transactional=True))
    log.append_as_leader(idempotent(7, 1, is_transactional=True))
    log.append_as_leader(marker(7, commit=True), 0, AppendOrigin.COORDINATOR)
    log.roll()
    log.append_as_leader(marker(7, commit=False), 0, AppendOrigin.COORDINATOR)  # the partition has none of its records
    log.append_as_leader(idempotent(9, 0, is_transactional=True))
    log.append_as_leader(marker(9, commit=False), 0, AppendOrigin.COORDINATOR)
    log.append_as_leader(batch())
    log.close()
    path = logs.directory / f"{0:020d}.log"
    path.with_suffix(".index").unlink()
    os.truncate(path, path.stat().st_size - 70)  # without the commit
    before = (logs.directory / f"{3:020d}.txnindex").read_bytes()
    for _ in range(2):
        log = logs.open(recovery_point=7)
        assert offsets(log, isolation="read_committed") == [0, 1, 6]
        log.close()
        assert (logs.directory / f"{3:020d}.txnindex").read_bytes() == before


def test_LSO_a_crash_while_an_index_is_made_anew_shows_no_aborted_record(tmp_path):
    """The segment had been flushed and is sound: but for its missing index, no start looks at its batches."""
    crashes = 0
    for calls_before in range(100):
        logs = Logs(tmp_path / f"orders-{calls_before}")
        log = logs.open()
        log.append_as_leader(batch())
        log.append_as_leader(idempotent(7, 0, is_transactional=True))
        log.append_as_leader(marker(7, commit=False), 0, AppendOrigin.COORDINATOR)
        log.append_as_leader(batch())
        log.roll()
        log.append_as_leader(batch())
        log.close()
        (logs.directory / f"{0:020d}.index").unlink()
        file.fail_next(file.CHANGES, errno.EIO, skip=calls_before, times=-1, under=str(logs.directory))
        try:
            logs.open(clean=True, recovery_point=5)
        except OSError:
            crashes += 1
        else:
            break
        finally:
            file.clear_faults()
        log = logs.open(clean=False, recovery_point=5)
        log.update_high_watermark(5)
        assert offsets(log, isolation="read_committed") == [0, 3, 4], f"crash before call {calls_before}"
        log.close()
    assert crashes > 5


def test_the_transaction_index_is_believed_where_batches_are_lost_before_it():
    file_says = [AbortedTxn(7, 60, 70, 61), AbortedTxn(8, 50, 71, 72)]
    batches_say = [AbortedTxn(7, 10, 70, 11), AbortedTxn(8, 45, 71, 72), AbortedTxn(9, 10, 72, 73)]
    corrected = [AbortedTxn(7, 60, 70, 11), batches_say[1]]  # the marker of producer 9 ended no record
    assert corrected_across_gaps(batches_say, file_says, [40]) == corrected
    assert corrected_across_gaps(batches_say, file_says, []) == batches_say
    assert corrected_across_gaps(batches_say, file_says, [5, 75]) == batches_say
