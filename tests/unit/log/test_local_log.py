import errno

import pytest

from kcore.common import file
from kcore.errors import (
    InvalidOffset,
)
from tests.unit.log.logs import (
    SIZE,
    batch,
    file_names,
    small_segments,
)


def test_LOG_01_segments_are_ordered_and_only_the_last_is_written(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(batch())
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    sizes = [segment.size for segment in log.segments]
    log.append_as_leader(batch())
    assert [segment.size for segment in log.segments] == [*sizes[:-1], 2 * SIZE]


def test_LOG_23_leftovers_with_the_new_base_are_removed_and_an_impossible_base_is_refused(logs, log):
    log.append_as_leader(batch(3))
    leftover = logs.directory / f"{3:020d}.log"
    leftover.write_bytes(b"leftover")
    log.roll()
    assert leftover.read_bytes() == b""
    log.append_as_leader(batch())
    empty = log.roll()
    assert log.roll() is not empty
    assert [s.base_offset for s in log.segments] == [0, 3, 4]
    log.append_as_leader(batch())
    assert log.roll(100).base_offset == 100
    with pytest.raises(InvalidOffset):
        log.roll(50)
    assert [s.base_offset for s in log.segments] == [0, 3, 4, 100]


def test_slices_stay_readable_after_their_segment_is_gone(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch())
    records = log.read(0, 1 << 20).records
    log.truncate_fully_and_start_at(50)
    logs.time.sleep(60_000)
    logs.scheduler.tick()
    assert file_names(logs, ".deleted") == []
    assert [r.offset for r in records.records()] == [0, 1, 2]


def test_a_flush_beside_a_change_of_names_is_done_again_when_that_is_over(logs, log):
    log.append_as_leader(batch(3))
    file.fail_next("fsync", errno.ENOENT)
    try:
        log.flush()
    finally:
        file.clear_faults()
    assert log.recovery_point == 3 and not log.is_offline and logs.failures == []
