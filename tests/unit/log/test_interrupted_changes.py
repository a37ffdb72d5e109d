"""What the next start makes of a log whose process was killed inside a truncation or a roll."""

import errno
import logging

import pytest

from kcore.common import file
from kcore.errors import KafkaStorageError
from kcore.log.open_log import open_log
from tests.unit.log.logs import batch, file_names, idempotent, offsets, small_segments


def killed(log, action, calls_before):
    """Whether the process was killed: from that call on nothing changes on the disk any more."""
    file.fail_next(file.CHANGES, errno.EIO, skip=calls_before, times=-1, under=log.directory)
    try:
        action()
    except (KafkaStorageError, OSError):
        return True
    finally:
        file.clear_faults()
    return False


def test_TRUNC_07_TRUNC_11_no_producer_of_a_removed_log_comes_back_after_a_kill_inside_its_truncation(tmp_path):
    deaths = 0
    for calls_before in range(100):
        (tmp_path / str(calls_before)).mkdir()
        logs = small_segments(tmp_path / str(calls_before))
        log = logs.open()
        for n in range(8):
            log.append_as_leader(idempotent(7, n, is_transactional=True))
        if not killed(log, lambda log=log: log.truncate_fully_and_start_at(100), calls_before):
            break
        deaths += 1
        log = logs.open(clean=False, recovery_point=0)
        if log.log_end_offset < 100:
            continue  # some of the old segments were there, or nothing at all
        for _ in range(2):
            assert not log.producer_state_manager.producers, f"killed before call {calls_before}"
            log.append_as_leader(batch())
            end = log.append_as_leader(batch()).last_offset + 1
            assert (log.last_stable_offset, log.high_watermark) == (end, end)
            log.close()
            log = logs.open()
        assert offsets(log, isolation="read_committed") == [100, 101, 102, 103]
    assert deaths > 10


@pytest.mark.parametrize("clean", [True, False])
def test_TRUNC_07_snapshots_that_a_truncation_left_are_not_used_for_the_new_log(tmp_path, clean):
    logs = small_segments(tmp_path)
    log = logs.open()
    for n in range(8):
        log.append_as_leader(idempotent(7, n, is_transactional=True))
    log.close()
    kept = {name: (logs.directory / name).read_bytes() for name in file_names(logs, ".snapshot")}
    assert len(kept) == 3
    log = logs.open()
    log.truncate_fully_and_start_at(100)
    log.close()
    for name, data in kept.items():
        (logs.directory / name).write_bytes(data)
    log = logs.open(clean=clean, mode="r")
    assert not log.producer_state_manager.producers and log.last_stable_offset == 100
    log = logs.open(clean=clean)
    assert not log.producer_state_manager.producers and log.last_stable_offset == 100
    assert not file_names(logs, ".snapshot")


def test_LOG_22_a_roll_of_an_empty_segment_at_no_moment_leaves_the_log_without_one(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    log.truncate_fully_and_start_at(325)
    deaths = 0
    while killed(log, log.roll, deaths):
        deaths += 1
        assert file_names(logs, ".log") == [f"{325:020d}.log"]
        log = logs.open(clean=False, log_start_offset=10)
        assert (log.log_start_offset, log.log_end_offset) == (325, 325)
    assert deaths > 0
    assert log.append_as_leader(batch()).first_offset == 325
    log.close()
    assert offsets(logs.open()) == [325]


def test_LOG_22_an_empty_segment_that_is_rolled_has_room_in_its_indexes_again_and_a_new_age(tmp_path):
    logs = small_segments(tmp_path)
    logs.time.sleep(1000)
    log = logs.open()
    segment = log.active_segment
    logs.time.sleep(5000)
    segment.resize_indexes(0)
    assert segment.should_roll(1, 0, -1, logs.time.milliseconds(), segment_bytes=1000, segment_ms=10**9)
    log.roll()
    segment = log.active_segment
    assert segment.created_ms == logs.time.milliseconds()
    assert not segment.should_roll(1, 0, -1, logs.time.milliseconds(), segment_bytes=1000, segment_ms=10**9)
    assert len(log.segments) == 1


def test_the_removal_of_leftover_files_is_one_line_of_the_log(tmp_path, caplog):
    open_log(tmp_path / "t-0", "a").close()
    names = [f"{n:020}.log.deleted" for n in range(1, 600)] + [f"{n:020}.index.cleaned" for n in range(1, 4)]
    for name in names:
        (tmp_path / "t-0" / name).touch()
    with caplog.at_level(logging.INFO):
        open_log(tmp_path / "t-0", "a").close()
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.name in names]
    (line,) = [message for message in caplog.messages if "leftover" in message]
    assert "removing 602 leftover files: " in line and len(line) < 400
