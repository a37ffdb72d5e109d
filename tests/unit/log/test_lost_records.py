"""The mark of a log that lacks records which it once had, and how the log loses its hole."""

import errno
import os
from contextlib import contextmanager

import pytest

from kcore.common import file
from kcore.errors import CorruptFile, LogIsServed
from kcore.log.log_manager import LogManager
from kcore.log.log_manager_config import LogManagerConfig
from kcore.log.lost_records import LostRecords, read_mark, remove_mark, write_mark
from tests.unit.log.logs import SIZE, TP, batch, offsets, small_segments

MARK = "lost-records"


@pytest.fixture
def logs(tmp_path):
    return small_segments(tmp_path)


def filled(logs, count=12):
    log = logs.open()
    for _ in range(count):
        log.append_as_leader(batch())
    return log


def opened(logs, **options):
    return logs.open(**{"sole_replica": False, "marks_lost_records": True, **options})


def flip_a_bit(logs, offset, *, position=SIZE - 1, base=None):
    """In the batch of this offset; segments have three batches of one record each."""
    base = offset - offset % 3 if base is None else base
    path = logs.directory / f"{base:020d}.log"
    data = bytearray(path.read_bytes())
    data[(offset - base) * SIZE + position] ^= 1
    path.write_bytes(data)


def without_index(logs, base):
    (logs.directory / f"{base:020d}.index").unlink()


def test_a_segment_that_is_cut_before_others_leaves_a_mark_at_its_first_lost_offset(logs):
    filled(logs).close()
    flip_a_bit(logs, 4)
    without_index(logs, 3)
    log = opened(logs, high_watermark=12)
    assert offsets(log) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert log.lost_records == LostRecords(4)
    assert (logs.directory / MARK).read_text() == "version: 0\nfirst_lost_offset: 4\n"
    log.close()
    # The next start sees no damage any more, but the mark.
    assert opened(logs, high_watermark=12).lost_records == LostRecords(4)


def test_the_mark_is_on_the_disk_before_the_damage_is_cut_off(logs):
    filled(logs).close()
    flip_a_bit(logs, 4)
    without_index(logs, 3)
    file.fail_next("ftruncate", errno.EIO)
    try:
        with pytest.raises(OSError, match="Input/output"):
            opened(logs)
    finally:
        file.clear_faults()
    assert read_mark(str(logs.directory)) == 4


def test_the_lowest_of_several_gaps_is_marked(logs):
    filled(logs).close()
    for offset, base in ((1, 0), (7, 6)):
        flip_a_bit(logs, offset)
        without_index(logs, base)
    assert opened(logs).lost_records == LostRecords(1)
    assert read_mark(str(logs.directory)) == 1


@pytest.mark.parametrize(("offset", "high_watermark"), [(10, 11), (10, 10), (7, 12), (7, 0)])
def test_a_log_whose_end_is_cut_off_is_marked_there(logs, offset, high_watermark):
    """Also above the checkpointed high watermark: what was acknowledged since the checkpoint is not known."""
    filled(logs).close()
    flip_a_bit(logs, offset)
    log = opened(logs, clean=False, high_watermark=high_watermark, recovery_point=6)
    assert log.log_end_offset == offset and log.lost_records == LostRecords(offset)
    assert read_mark(str(logs.directory)) == offset


def test_the_mark_of_an_end_is_on_the_disk_before_it_is_cut_off(logs):
    filled(logs).close()
    flip_a_bit(logs, 10)
    file.fail_next("ftruncate", errno.EIO)
    try:
        with pytest.raises(OSError, match="Input/output"):
            opened(logs, clean=False, recovery_point=9)
    finally:
        file.clear_faults()
    assert read_mark(str(logs.directory)) == 10


@pytest.mark.parametrize(
    ("high_watermark", "recovery_point", "lost"), [(11, 0, 10), (0, 11, 10), (10, 10, None), (0, 0, None)]
)
def test_a_log_that_ends_below_its_checkpointed_offsets_is_marked_at_its_end(
    logs, high_watermark, recovery_point, lost
):
    filled(logs).close()
    os.truncate(logs.directory / f"{9:020d}.log", SIZE)
    log = opened(logs, clean=False, high_watermark=high_watermark, recovery_point=recovery_point)
    assert log.log_end_offset == 10 and log.lost_records == (None if lost is None else LostRecords(lost))
    assert (logs.directory / MARK).exists() is (lost is not None)


def test_a_flushed_log_that_is_shorter_than_it_was_is_marked_after_a_clean_stop(logs):
    filled(logs).close()
    os.truncate(logs.directory / f"{9:020d}.log", SIZE)
    assert opened(logs, high_watermark=12, recovery_point=12).lost_records == LostRecords(10)


def test_a_log_that_lost_nothing_gets_no_mark(logs):
    log = filled(logs)
    log.close()
    for clean in (True, False):
        log = opened(logs, clean=clean, high_watermark=12, recovery_point=12)
        assert log.lost_records is None and not (logs.directory / MARK).exists()
        log.close()


def test_the_log_of_a_broker_alone_gets_no_mark(logs):
    filled(logs).close()
    flip_a_bit(logs, 4)
    without_index(logs, 3)
    assert opened(logs, high_watermark=12, marks_lost_records=False).lost_records is None
    assert not (logs.directory / MARK).exists()


def test_a_log_without_room_for_the_mark_is_loaded_and_remembers_it(logs, caplog):
    filled(logs).close()
    os.truncate(logs.directory / f"{9:020d}.log", SIZE)
    file.fail_next("open_write", errno.ENOSPC, under=str(logs.directory / MARK))
    try:
        log = opened(logs, high_watermark=12, recovery_point=12)
    finally:
        file.clear_faults()
    assert log.lost_records == LostRecords(10)
    assert "records from 10 on are lost, and no mark says so" in caplog.text


@pytest.mark.parametrize("text", ["", "version: 1\nfirst_lost_offset: 4\n", "version: 0\nfirst_lost_offset: x", "x"])
def test_of_a_log_with_a_mark_that_cannot_be_read_any_record_may_be_lost(logs, text, caplog):
    filled(logs).close()
    (logs.directory / MARK).write_text(text)
    with pytest.raises(CorruptFile, match="lost-records: line"):
        read_mark(str(logs.directory))
    assert opened(logs).lost_records == LostRecords(0)
    assert "any record of this log may be lost" in caplog.text


def test_what_was_deleted_is_not_missed(logs):
    filled(logs).close()
    write_mark(str(logs.directory), 4)
    assert opened(logs, log_start_offset=6, high_watermark=12).lost_records == LostRecords(6)


def test_a_reader_of_a_log_leaves_the_mark_alone(logs):
    filled(logs).close()
    write_mark(str(logs.directory), 4)
    log = opened(logs, mode="r")
    assert log.lost_records is None and offsets(log) == list(range(12))
    assert read_mark(str(logs.directory)) == 4


def test_a_mark_at_a_lower_offset_stays(logs):
    log = filled(logs)
    log.mark_lost_records(8)
    log.mark_lost_records(10)
    assert log.lost_records == LostRecords(8) and read_mark(str(logs.directory)) == 8
    log.mark_lost_records(3)
    assert log.lost_records == LostRecords(3) and read_mark(str(logs.directory)) == 3
    log.forget_lost_records()
    assert log.lost_records is None and read_mark(str(logs.directory)) is None
    remove_mark(str(logs.directory))  # there is none


def test_a_log_with_a_hole_is_cut_at_the_first_lost_offset_once(logs):
    filled(logs).close()
    flip_a_bit(logs, 4)
    without_index(logs, 3)
    log = opened(logs, high_watermark=12)
    log.cut_lost_records()
    assert (offsets(log), log.log_end_offset, log.high_watermark) == ([0, 1, 2, 3], 4, 4)
    assert log.lost_records == LostRecords(4, is_cut=True)
    log.append_as_leader(batch())
    log.cut_lost_records()
    assert offsets(log) == [0, 1, 2, 3, 4]
    log.close()
    # It is not known which of the records above the mark were copied since.
    assert opened(logs).lost_records == LostRecords(4)


@pytest.mark.parametrize("position", [SIZE - 1, 0, 7, 8, 11, 16, 23])
def test_a_damaged_batch_is_cut_off_whichever_of_its_bytes_is_wrong(logs, position):
    log = filled(logs)
    flip_a_bit(logs, 7, position=position)
    log.mark_lost_records(7)
    log.cut_lost_records()
    assert (log.log_end_offset, offsets(log)) == (7, list(range(7)))
    for _ in range(3):
        log.append_as_leader(batch())
    assert offsets(log) == list(range(10))
    log.close()
    assert offsets(logs.open()) == list(range(10))


def test_damage_below_the_mark_in_its_segment_lowers_the_cut(logs):
    log = filled(logs)
    flip_a_bit(logs, 6)
    log.mark_lost_records(8)
    log.cut_lost_records()
    assert (log.log_end_offset, log.lost_records) == (6, LostRecords(6, is_cut=True))


def test_a_mark_at_the_log_end_cuts_nothing(logs):
    log = filled(logs)
    log.mark_lost_records(12)
    log.cut_lost_records()
    assert (log.log_end_offset, log.lost_records) == (12, LostRecords(12, is_cut=True))


def test_the_log_of_a_leader_is_not_cut(logs):
    log = filled(logs)
    log.mark_lost_records(7)
    log.is_served = True
    with pytest.raises(LogIsServed):
        log.cut_lost_records()
    assert log.log_end_offset == 12 and log.lost_records == LostRecords(7)
    log.is_served = False


def test_the_mark_moves_with_the_log_to_another_data_directory(tmp_path):
    dirs = [tmp_path / name for name in "ab"]
    manager = LogManager(dirs, config=LogManagerConfig(has_other_replicas=True))
    manager.startup()
    log = manager.get_or_create_log(TP, log_dir=str(dirs[0]))
    log.append_as_leader(batch())
    future = manager.get_or_create_log(TP, is_future=True, log_dir=str(dirs[1]))
    future.append_as_leader(batch())
    log.mark_lost_records(1)
    moved = manager.replace_current_with_future_log(TP)
    assert moved.lost_records == LostRecords(1) and read_mark(str(dirs[1] / "orders-0")) == 1
    manager.shutdown()


# -- after a failure of the machine ----------------------------------------------------------------------------------


def test_after_a_failure_of_the_machine_the_end_of_any_log_may_be_lost(logs):
    filled(logs).close()
    log = opened(logs, clean=False, recovery_point=12, may_have_lost_unflushed=True)
    assert log.lost_records == LostRecords(12, has_mark=False) and not (logs.directory / MARK).exists()
    log.cut_lost_records()
    assert log.log_end_offset == 12
    log.forget_lost_records()
    log.close()
    # Not of one of a broker alone.
    assert opened(logs, clean=False, may_have_lost_unflushed=True, marks_lost_records=False).lost_records is None


@pytest.mark.parametrize(
    ("kept", "recovery_point", "lost"),
    [
        (1, 3, LostRecords(4)),  # of the segment at 3, not flushed, one batch is left; the next segment is whole
        (0, 3, LostRecords(3)),
        (1, 5, LostRecords(5)),  # what was flushed is there; the log may have been compacted below it
        (1, 6, LostRecords(12, has_mark=False)),
        (3, 3, LostRecords(12, has_mark=False)),
    ],
)
def test_an_unflushed_segment_that_ends_before_the_next_one_is_a_hole(logs, kept, recovery_point, lost):
    filled(logs).close()
    os.truncate(logs.directory / f"{3:020d}.log", kept * SIZE)
    options = {"clean": False, "recovery_point": recovery_point}
    assert opened(logs, may_have_lost_unflushed=True, **options).lost_records == lost
    assert (logs.directory / MARK).exists() is lost.has_mark


def started(tmp_path, boot_id, *, has_other_replicas=True):
    config = LogManagerConfig(has_other_replicas=has_other_replicas)
    manager = LogManager([tmp_path], config=config, boot_id=boot_id)
    manager.startup()
    return manager


def killed(manager):
    manager.abandon("killed")


def test_a_machine_has_failed_if_an_unclean_start_is_in_another_boot_than_the_last_one(tmp_path):
    manager = started(tmp_path, "a")
    manager.get_or_create_log(TP).append_as_leader(batch())
    manager.record_boot_id()
    killed(manager)
    manager = started(tmp_path, "a")
    assert manager.get_log(TP).lost_records is None
    killed(manager)
    for _ in range(2):  # until record_boot_id(), each start is one after the failure
        manager = started(tmp_path, "b")
        assert manager.get_log(TP).lost_records == LostRecords(1, has_mark=False)
        killed(manager)
    manager = started(tmp_path, "b")
    manager.record_boot_id()
    killed(manager)
    manager = started(tmp_path, "b")
    assert manager.get_log(TP).lost_records is None
    manager.shutdown()
    manager = started(tmp_path, "c")  # after a clean stop the boot does not matter
    assert manager.get_log(TP).lost_records is None
    manager.record_boot_id()
    assert (tmp_path / ".kcore_boot_id").read_text() == "c\n"
    killed(manager)
    manager = started(tmp_path, None)
    assert manager.get_log(TP).lost_records is None
    manager.record_boot_id()
    assert (tmp_path / ".kcore_boot_id").read_text() == "c\n"
    manager.shutdown()


def test_a_directory_without_a_boot_id_says_nothing_of_its_machine(tmp_path):
    manager = started(tmp_path, "a")
    manager.get_or_create_log(TP).append_as_leader(batch())
    killed(manager)
    manager = started(tmp_path, "b")
    assert manager.get_log(TP).lost_records is None
    manager.shutdown()


@pytest.mark.parametrize(("error", "is_offline"), [(errno.EIO, True), (errno.ENOSPC, False)])
def test_a_boot_id_that_cannot_be_written_is_no_reason_not_to_start(tmp_path, error, is_offline):
    manager = started(tmp_path, "a")
    file.fail_next("open_write", error, under=str(tmp_path / ".kcore_boot_id"))
    try:
        manager.record_boot_id()
    finally:
        file.clear_faults()
    assert bool(manager.offline_log_dirs) is is_offline
    manager.shutdown()


# -- beside other parts of the log ------------------------------------------------------------------------------------


def test_a_log_is_not_cut_below_a_log_start_that_has_risen_since(logs):
    log = filled(logs)
    log.mark_lost_records(3)
    log.maybe_increment_log_start_offset(7)
    log.cut_lost_records()
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_the_half_written_mark_of_a_crash_is_removed(logs):
    filled(logs).close()
    (logs.directory / f"{MARK}.tmp").write_text("vers")
    assert opened(logs).lost_records is None and not (logs.directory / f"{MARK}.tmp").exists()


def test_a_log_that_was_cut_before_it_moved_is_not_cut_again(tmp_path):
    dirs = [tmp_path / name for name in "ab"]
    manager = LogManager(dirs)
    manager.startup()
    log = manager.get_or_create_log(TP, log_dir=str(dirs[0]))
    log.mark_lost_records(0)
    log.cut_lost_records()
    for moving in (log, manager.get_or_create_log(TP, is_future=True, log_dir=str(dirs[1]))):
        moving.append_as_leader(batch())
    manager.replace_current_with_future_log(TP)
    assert manager.cut_lost_records(TP) is None and manager.get_log(TP).log_end_offset == 1
    manager.shutdown()


def test_no_cleaner_works_on_a_log_that_is_cut(tmp_path, monkeypatch):
    manager = LogManager([tmp_path])
    manager.startup()
    log = manager.get_or_create_log(TP)
    for _ in range(3):
        log.append_as_leader(batch())
    log.mark_lost_records(1)
    states = []

    @contextmanager
    def not_cleaned(log, is_future):
        states.append(log.log_end_offset)
        yield
        states.append(log.log_end_offset)

    monkeypatch.setattr(manager, "_not_cleaned", not_cleaned)
    assert manager.cut_lost_records(TP) == 1 and states == [3, 1]
    manager.shutdown()
