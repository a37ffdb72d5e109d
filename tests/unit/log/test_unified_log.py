import errno
import os

import pytest

from kcore.common import file
from kcore.errors import (
    KafkaStorageError,
    LogClosed,
    OffsetOutOfRange,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from tests.reference.disk import recorded
from tests.unit.log.logs import (
    SIZE,
    Logs,
    batch,
    file_names,
    idempotent,
    marker,
    offsets,
    old_wrapper,
    removed,
    renamed_and_synced,
    small_segments,
)

# -- roll ----------------------------------------------------------------------------------------------


def test_LOG_17_a_segment_is_rolled_when_an_append_would_exceed_segment_bytes(tmp_path):
    log = small_segments(tmp_path, 2).open()
    for _ in range(5):
        log.append_as_leader(batch())
    assert [s.base_offset for s in log.segments] == [0, 2, 4]


def test_LOG_18_V22_09_a_segment_is_rolled_when_its_time_since_the_first_batch_is_over(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_ms=1000).open()
    for timestamp in (5000, 6000, 6001, 7001, 7002, 100):
        log.append_as_leader(batch(timestamp=timestamp))
    assert [s.base_offset for s in log.segments] == [0, 2, 4]


def test_LOG_18_without_timestamps_the_wall_clock_since_creation_counts(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_ms=1000)
    log = logs.open()
    log.append_as_leader(batch(timestamp=-1))
    logs.time.sleep(1000)
    log.append_as_leader(batch(timestamp=-1))
    assert len(log.segments) == 1
    logs.time.sleep(1)
    log.append_as_leader(batch(timestamp=-1))
    assert [s.base_offset for s in log.segments] == [0, 2]


def test_LOG_19_a_segment_is_rolled_when_an_index_is_full(tmp_path):
    # 24 bytes: three slots of the offset index, two of the time index, one of them in reserve.
    logs = Logs(tmp_path / "orders-0", segment_index_bytes=24, index_interval_bytes=0)
    log = logs.open()
    for i in range(12):
        log.append_as_leader(batch(timestamp=1000 + i))
    assert len(log.segments) > 2
    assert offsets(log) == list(range(12))


@pytest.mark.parametrize(("full", "expected"), [("time", [0, 2, 4, 6]), ("offset", [0, 4])])
def test_LOG_19_the_time_index_alone_and_the_offset_index_alone_roll_a_segment(tmp_path, full, expected):
    # The first batch of a segment gets no entry.  24 bytes: three slots of the offset index, two of the time index, one
    # of them in reserve; batches without timestamps get none in it.
    log = Logs(tmp_path / "orders-0", segment_index_bytes=24, index_interval_bytes=0).open()
    for i in range(8):
        log.append_as_leader(batch(timestamp=1000 + i if full == "time" else -1))
    assert [segment.base_offset for segment in log.segments] == expected


def test_LOG_21_the_new_base_is_the_first_offset_of_the_append_or_the_log_end(tmp_path):
    log = small_segments(tmp_path, 1).open()
    log.append_as_leader(batch())
    log.append_as_leader(batch())
    log.append_as_follower(batch(base_offset=9))
    assert [s.base_offset for s in log.segments] == [0, 1, 9]
    log.truncate_to(9)
    log.append_as_follower(batch(base_offset=9))
    assert log.roll().base_offset == 10


def test_LOG_21_the_base_for_an_old_wrapper_leaves_room_for_the_offsets_inside(tmp_path):
    """Its header has only its last offset; a segment's base above its first offset would be wrong."""
    log = Logs(tmp_path / "orders-0", segment_bytes=300).open()
    log.append_as_follower(old_wrapper(0, 10))
    log.append_as_follower(old_wrapper(10, 200))
    assert [s.base_offset for s in log.segments] == [0, 10]
    far = 2**31 + 500
    log.append_as_follower(old_wrapper(far, 50))
    assert log.segments[2].base_offset == far + 49 - 2**31 + 1
    assert offsets(log) == [*range(210), *range(far, far + 50)]


def test_LOG_20_LOG_21_a_segment_is_rolled_when_an_offset_would_not_fit(log):
    log.append_as_leader(batch())
    log.append_as_follower(batch(base_offset=2**31 - 1))
    assert len(log.segments) == 1
    log.append_as_follower(batch(base_offset=2**31 + 5))
    assert [s.base_offset for s in log.segments] == [0, 2**31 + 5]
    assert offsets(log, start_offset=1) == [2**31 - 1, 2**31 + 5]


def test_LOG_22_a_roll_trims_the_indexes_takes_a_snapshot_and_flushes_in_the_background(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for i in range(4):
        log.append_as_leader(batch(timestamp=1000 + i))
    old = log.segments[0]
    assert os.path.getsize(logs.directory / f"{0:020d}.index") == old.offset_index.size_in_bytes
    assert os.path.getsize(logs.directory / f"{0:020d}.timeindex") == old.time_index.size_in_bytes
    assert old.time_index.entry(len(old.time_index) - 1) == (1002, 2)
    assert file_names(logs, ".snapshot") == [f"{3:020d}.snapshot"]
    assert log.recovery_point == 0
    logs.scheduler.tick()
    assert log.recovery_point == 3


# -- read ----------------------------------------------------------------------------------------------


def test_offsets_by_timestamp(tmp_path):
    log = small_segments(tmp_path).open()
    for i in range(7):
        log.append_as_leader(batch(timestamp=1000 + 10 * i), 2)
    log.append_as_leader(batch(timestamp=1005), 3)
    assert log.fetch_offset_by_timestamp(-1) == (-1, 8, 3)
    assert log.fetch_offset_by_timestamp(-2) == (-1, 0, 2)
    assert log.fetch_offset_by_timestamp(-4) == (-1, 0, 2)
    assert log.fetch_offset_by_timestamp(-3) == (1060, 6, 2)
    assert log.fetch_offset_by_timestamp(0) == (1000, 0, 2)
    assert log.fetch_offset_by_timestamp(1001) == (1010, 1, 2)
    assert log.fetch_offset_by_timestamp(1060) == (1060, 6, 2)
    assert log.fetch_offset_by_timestamp(1061) is None
    log.maybe_increment_log_start_offset(4)
    assert log.fetch_offset_by_timestamp(0) == (1040, 4, 2)
    assert log.fetch_offset_by_timestamp(-2) == (-1, 4, 2)


def test_the_offsets_of_old_clients_are_base_offsets_of_segments_by_the_time_of_their_files(tmp_path):
    log = small_segments(tmp_path, 2).open()
    for _ in range(5):
        log.append_as_leader(batch())
    for segment, at_s in zip(log.segments, (100, 200, 300), strict=True):
        os.utime(segment.log_path, (at_s, at_s))
    before = log.legacy_fetch_offsets_before
    assert (before(-1, 10), before(-1, 2), before(-2, 10)) == ([5, 4, 2, 0], [5, 4], [0])
    assert (before(199_999, 10), before(200_000, 10), before(99_999, 10)) == ([0], [2, 0], [])
    log.maybe_increment_log_start_offset(1)
    assert before(-2, 1) == [1]
    os.rename(log.segments.first.log_path, log.segments.first.log_path + ".gone")  # as retention may, meanwhile
    assert before(150_000, 10) == []
    assert not log.is_offline


def test_offsets_by_timestamp_of_an_empty_log(log):
    assert log.legacy_fetch_offsets_before(-1, 10) == [0]
    assert log.fetch_offset_by_timestamp(-3) is None
    assert log.fetch_offset_by_timestamp(5) is None
    assert log.fetch_offset_by_timestamp(-1) == (-1, 0, -1)


def test_the_largest_producer_id_is_that_of_any_producer_with_state(log):
    assert log.max_producer_id == -1
    for producer_id in (7, 9, 3):
        log.append_as_leader(idempotent(producer_id, 0))
    assert log.max_producer_id == 9


# -- high watermark ----------------------------------------------------------------------------------------------


def test_HW_02_the_high_watermark_is_brought_into_the_log(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    log.append_as_leader(batch(10))
    assert log.high_watermark == 0
    assert log.update_high_watermark(5) == 5
    assert log.update_high_watermark(50) == 10
    log.maybe_increment_log_start_offset(4)
    assert log.update_high_watermark(1) == 4


def test_HW_03_the_high_watermark_only_rises_or_moves_to_a_newer_segment(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    log.append_as_leader(batch(2))
    end = log.log_end_offset_metadata
    assert log.maybe_increment_high_watermark(end).message_offset == 0
    assert log.maybe_increment_high_watermark(end) is None
    assert log.maybe_increment_high_watermark(LogOffsetMetadata(1)) is None
    with pytest.raises(ValueError, match="beyond log end"):
        log.maybe_increment_high_watermark(LogOffsetMetadata(3))
    log.roll()
    assert log.high_watermark_metadata == (2, 2, 0)


def test_HW_03_a_leader_alone_raises_it_to_the_log_end(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    assert log.maybe_increment_high_watermark_to_log_end() is False
    log.append_as_leader(batch(2))
    assert log.maybe_increment_high_watermark_to_log_end() is True
    assert log.high_watermark_metadata == log.log_end_offset_metadata
    assert log.maybe_increment_high_watermark_to_log_end() is False


def test_HW_03_the_same_offset_on_a_newer_segment_moves_the_high_watermark_there(tmp_path):
    """A follower that fetched just before a roll reported the position after the last batch of the older segment."""
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    log.append_as_leader(batch(2))
    before_roll = log.log_end_offset_metadata
    log.roll()
    after_roll = log.log_end_offset_metadata
    log.append_as_leader(batch())
    log.update_high_watermark(before_roll)
    assert log.high_watermark_metadata == before_roll == (2, 0, before_roll.relative_position_in_segment)
    assert log.maybe_increment_high_watermark(after_roll) == before_roll
    assert log.high_watermark_metadata == after_roll == (2, 2, 0)
    for same_or_older in (after_roll, before_roll):
        assert log.maybe_increment_high_watermark(same_or_older) is None
    assert log.high_watermark_metadata == after_roll


def test_HW_06_the_last_stable_offset_waits_for_the_oldest_open_transaction(tmp_path):
    log = Logs(tmp_path / "orders-0").open()
    log.append_as_leader(batch())
    log.append_as_leader(idempotent(1, 0, is_transactional=True))
    log.append_as_leader(idempotent(2, 0, is_transactional=True))
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    log.append_as_leader(marker(1, commit=False), origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 2
    log.append_as_leader(marker(2, commit=True), origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 5
    assert offsets(log, isolation="read_committed") == [0, 2]
    assert offsets(log) == [0, 1, 2]
    info = log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED)
    assert info.aborted_transactions == [(1, 1, 3, 2)]


def test_HW_06_an_ended_transaction_holds_back_the_lso_until_its_marker_is_replicated(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    log.append_as_leader(idempotent(1, 0, is_transactional=True))
    log.append_as_leader(marker(1, commit=True), origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(1)
    assert log.last_stable_offset == 0
    log.update_high_watermark(2)
    assert log.last_stable_offset == 2


def test_DeleteRecords_moves_the_log_start_up_to_the_high_watermark(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open(sole_replica=False)
    log.append_as_leader(batch(5), 1)
    log.append_as_leader(batch(5), 2)
    log.update_high_watermark(7)
    with pytest.raises(OffsetOutOfRange):
        log.maybe_increment_log_start_offset(8)
    assert log.maybe_increment_log_start_offset(6)
    assert not log.maybe_increment_log_start_offset(5)
    assert log.log_start_offset == 6
    assert log.leader_epoch_cache.entries == ((2, 6),)
    assert offsets(log) == [6, 7, 8, 9]


# -- retention ----------------------------------------------------------------------------------------------


def filled(tmp_path, count, **config):
    logs = small_segments(tmp_path, **config)
    log = logs.open()
    for i in range(count):
        log.append_as_leader(idempotent(5, i, timestamp=logs.time.milliseconds() + i))
    return logs, log


def test_retention_by_size_removes_the_oldest_whole_segments(tmp_path):
    logs, log = filled(tmp_path, 10, retention_bytes=4 * SIZE, retention_ms=-1)
    assert log.delete_old_segments() == 2
    assert log.log_start_offset == 6
    assert offsets(log) == [6, 7, 8, 9]
    assert file_names(logs, ".snapshot") == [f"{offset:020d}.snapshot" for offset in (6, 9)]
    assert log.delete_old_segments() == 0


def test_retention_removes_segments_from_the_first_one_up(tmp_path):
    logs, log = filled(tmp_path, 10, retention_bytes=0, retention_ms=-1)
    with recorded() as record:
        assert log.delete_old_segments() == 4
        assert renamed_and_synced(record, logs.directory) == removed(0, 3, 6, 9)


def test_retention_by_time_may_remove_everything_but_then_rolls(tmp_path):
    logs, log = filled(tmp_path, 4, retention_ms=1000)
    assert log.delete_old_segments() == 0
    logs.time.sleep(1003)
    assert log.delete_old_segments() == 1
    assert log.log_start_offset == 3
    logs.time.sleep(100)
    assert log.delete_old_segments() == 1
    assert (log.log_start_offset, log.log_end_offset, log.size) == (4, 4, 0)
    assert log.delete_old_segments() == 0
    assert log.append_as_leader(idempotent(5, 4)).first_offset == 4


def test_retention_below_the_log_start_offset_works_for_compacted_topics_too(tmp_path):
    _, log = filled(tmp_path, 10, cleanup_policy=("compact",), retention_ms=0)
    assert log.delete_old_segments() == 0
    log.maybe_increment_log_start_offset(7)
    assert log.delete_old_segments() == 2
    assert [s.base_offset for s in log.segments] == [6, 9]
    assert log.log_start_offset == 7


def test_retention_never_passes_the_high_watermark(tmp_path):
    logs = small_segments(tmp_path, retention_bytes=0, retention_ms=-1)
    log = logs.open(sole_replica=False)
    for _ in range(7):
        log.append_as_leader(batch())
    log.update_high_watermark(4)
    assert log.delete_old_segments() == 1
    assert log.log_start_offset == 3


# -- failures ----------------------------------------------------------------------------------------------


def test_LOG_29_a_failed_system_call_takes_the_log_offline_and_leaves_memory_whole(logs, log, monkeypatch):
    log.append_as_leader(batch(3), 1)

    def fail(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("kcore.log.local_log.LogSegment", fail)
    with pytest.raises(KafkaStorageError, match="could not roll"):
        log.roll()
    assert log.is_offline and [error.errno for error in logs.failures] == [errno.EIO]
    assert (log.log_end_offset, log.leader_epoch_cache.entries) == (3, ((1, 0),))
    for call in (lambda: log.append_as_leader(batch()), lambda: log.read(0, 10), log.flush, lambda: log.truncate_to(0)):
        with pytest.raises(KafkaStorageError):
            call()
    log.close()


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("pwrite", lambda log: log.append_as_leader(batch(2), 1)),
        ("pwrite", lambda log: log.append_as_follower(batch(2, base_offset=6, leader_epoch=1))),
        ("ftruncate", lambda log: log.truncate_to(2)),
        ("ftruncate", lambda log: log.roll()),
        ("fsync", lambda log: log.flush()),
    ],
)
def test_LOG_29_after_a_failed_append_truncation_roll_or_flush_no_part_of_it_is_visible(logs, log, call, operation):
    log.append_as_leader(batch(3), 1)
    log.append_as_leader(idempotent(7, 0, 3), 1)
    before = (
        log.log_end_offset,
        log.high_watermark,
        log.leader_epoch_cache.entries,
        log.producer_state_manager.producers,
    )
    file.fail_next(call, errno.EIO)
    try:
        with pytest.raises(KafkaStorageError):
            operation(log)
    finally:
        file.clear_faults()
    assert log.is_offline and [error.errno for error in logs.failures] == [errno.EIO]
    with pytest.raises(KafkaStorageError):
        log.read(0, 100)
    after = (
        log.log_end_offset,
        log.high_watermark,
        log.leader_epoch_cache.entries,
        log.producer_state_manager.producers,
    )
    assert after == before
    again = logs.open(clean=False)
    assert offsets(again) == list(range(6))
    assert again.append_as_leader(idempotent(7, 3)).first_offset == 6


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("mmap", lambda log: log.read(0, 1000)),
        ("mmap", lambda log: log.read(0, 1000, FetchIsolation.HIGH_WATERMARK)),
        ("mmap", lambda log: log.read(5, 1000, FetchIsolation.TXN_COMMITTED)),
        ("mmap", lambda log: log.high_watermark_metadata),
        ("mmap", lambda log: log.last_stable_offset_metadata),
        ("mmap", lambda log: log.fetch_offset_by_timestamp(5)),
        ("pread", lambda log: log.fetch_offset_by_timestamp(-3)),
        ("pread", lambda log: list(log.batches())),
        ("pread", lambda log: list(log.records(isolation="read_committed"))),
        ("mmap", lambda log: log.to_arrow()),
        ("pread", lambda log: log.to_arrow(isolation="read_committed")),
    ],
)
def test_LOG_29_a_log_that_cannot_be_read_goes_offline_and_changes_nothing(logs, log, call, operation):
    log.append_as_leader(batch(3), 1)
    log.append_as_leader(idempotent(7, 0, is_transactional=True), 1)
    log.append_as_leader(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(idempotent(7, 1, is_transactional=True), 1)
    log.append_as_leader(batch(3), 1)
    log.close()
    log = logs.open(sole_replica=False, high_watermark=7)  # known by its offset alone, as after each start
    before = (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.leader_epoch_cache.entries)
    file.fail_next(call, errno.EIO, under=str(logs.directory), times=-1)
    try:
        with pytest.raises(KafkaStorageError, match="Input/output error"):
            operation(log)
    finally:
        file.clear_faults()
    assert log.is_offline and [error.errno for error in logs.failures] == [errno.EIO]
    assert before == (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.leader_epoch_cache.entries)
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(batch())
    assert offsets(logs.open(clean=False)) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        ("open_write", lambda log: log.truncate_to(2)),
        ("open_write", lambda log: log.truncate_fully_and_start_at(9)),
        ("fsync", lambda log: log.flush()),
        ("rename", lambda log: log.delete_old_segments()),
    ],
)
def test_LOG_29_a_full_disk_in_the_middle_of_what_is_no_append_takes_the_log_offline(tmp_path, call, operation):
    logs = small_segments(tmp_path, retention_bytes=2 * SIZE)
    log = logs.open()
    for epoch in range(8):
        log.append_as_leader(batch(), epoch)
    file.fail_next(call, errno.ENOSPC, skip=call == "rename")  # that of the epochs' file comes first
    try:
        with pytest.raises(KafkaStorageError, match="No space left"):
            operation(log)
    finally:
        file.clear_faults()
    assert log.is_offline and [error.errno for error in logs.failures] == [errno.ENOSPC]
    again = logs.open(clean=False)
    assert offsets(again) == list(range(again.log_start_offset, again.log_end_offset))
    assert again.append_as_leader(batch(), 8).first_offset == again.log_end_offset - 1


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("call,skip", [("open_write", 4), ("open_write", 5), ("ftruncate", 2), ("ftruncate", 3)])
def test_LOG_29_a_roll_that_a_full_disk_ends_half_way_leaves_no_segment_that_the_next_start_would_find(
    tmp_path, call, skip, clean
):
    logs = Logs(tmp_path / "orders-0", segment_bytes=2000)
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch(size=400))
    file.fail_next(call, errno.ENOSPC, skip=skip, under=str(logs.directory))
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.append_as_leader(batch(size=400))
    file.clear_faults()
    assert not log.is_offline
    assert not (logs.directory / f"{4:020d}.log").exists()
    assert log.append_as_leader(batch(size=1)).first_offset == 4  # there is room for it in the segment before
    for _ in range(3):
        log.append_as_leader(batch(size=400))
    if clean:
        log.close()
    again = logs.open(clean=clean)
    assert [segment.base_offset for segment in again.segments] == [0, 5]
    assert offsets(again) == list(range(8))


def test_LOG_29_a_full_disk_where_an_empty_segment_is_rolled_fails_the_roll_and_not_the_log(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_ms=1000)
    log = logs.open()
    log.append_as_leader(batch())
    log.roll(7)
    log.active_segment.resize_indexes(0)
    file.fail_next("ftruncate", errno.ENOSPC, under=str(logs.directory))
    with pytest.raises(KafkaStorageError, match=r"index: No space left"):
        log.roll(7)
    file.clear_faults()
    assert not log.is_offline and (logs.directory / f"{7:020d}.log").exists()
    assert logs.open(clean=False).log_end_offset == 7
    assert log.roll(7).base_offset == 7


@pytest.mark.parametrize(
    ("number", "reason", "is_offline"),
    [(errno.ENOSPC, "No space left on device", False), (errno.EIO, "Input/output error", True)],
)
def test_a_disk_that_is_full_or_fails_is_named_by_its_reason_and_without_a_number(
    tmp_path, caplog, number, reason, is_offline
):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    file.fail_next("pwrite", number, under=str(logs.directory))
    with pytest.raises(KafkaStorageError, match=reason) as raised:
        log.append_as_leader(batch())
    file.clear_faults()
    assert log.is_offline == is_offline
    said = [str(raised.value), caplog.text]
    if is_offline:
        with pytest.raises(KafkaStorageError, match="the log is offline after: ") as later:
            log.append_as_leader(batch())
        said.append(str(later.value))
    assert all(reason in text and "Errno" not in text for text in said), said


def test_LOG_29_where_half_a_segment_cannot_be_removed_the_log_goes_offline(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=2000)
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch(size=400))
    file.fail_next("open_write", errno.ENOSPC, skip=4, under=str(logs.directory))
    file.fail_next("unlink", errno.EIO, skip=4, under=str(logs.directory))
    with pytest.raises(KafkaStorageError, match="No space left"):
        log.append_as_leader(batch(size=400))
    file.clear_faults()
    assert (logs.directory / f"{4:020d}.log").exists()
    assert log.is_offline


def test_a_full_disk_does_not_keep_retention_from_making_room(tmp_path, caplog):
    logs = small_segments(tmp_path, retention_bytes=2 * SIZE)
    log = logs.open()
    for epoch in range(8):
        log.append_as_leader(batch(), epoch)
    file.fail_next(("open_write", "pwrite"), errno.ENOSPC, times=-1)
    try:
        assert log.delete_old_segments() == 2
        with pytest.raises(KafkaStorageError, match="No space left"):
            log.flush()
    finally:
        file.clear_faults()
    assert "could not write the leader epochs" in caplog.text
    assert not log.is_offline and offsets(log) == [6, 7]
    log.append_as_leader(batch(), 9)
    log.flush()
    log.close()
    assert [entry.epoch for entry in logs.open(clean=False).leader_epoch_cache.entries] == [6, 7, 9]


def test_TRUNC_10_a_flush_during_a_truncation_does_not_count_the_records_appended_after_it_as_flushed(log, monkeypatch):
    for _ in range(10):
        log.append_as_leader(batch())
    flush_names = log.local.flush_names

    def truncated_after_the_sync(**options):
        flush_names(**options)
        monkeypatch.undo()
        log.truncate_to(4)
        for _ in range(10):
            log.append_as_leader(batch(key=b"other"))

    monkeypatch.setattr(log.local, "flush_names", truncated_after_the_sync)
    log.flush()
    assert log.recovery_point <= 4
    log.flush()
    assert log.recovery_point == 14


def test_a_flush_of_a_log_that_is_being_deleted_is_no_failure_of_the_disk(logs, log, monkeypatch):
    log.append_as_leader(batch(3))

    def flush_segments(*args):
        log.rename_dir("orders-0.0123456789abcdef0123456789abcdef-delete")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(log.local, "flush_segments", flush_segments)
    log.flush()
    assert log.is_closed and not log.is_offline and logs.failures == []


def test_a_closed_log_raises_log_closed(log):
    log.append_as_leader(batch())
    log.close()
    log.close()
    for call in (lambda: log.append_as_leader(batch()), lambda: log.read(0, 10), log.flush):
        with pytest.raises(LogClosed):
            call()


def test_the_topic_id_is_written_once(logs, log):
    from uuid import UUID

    topic_id = UUID(int=2**100)
    log.assign_topic_id(topic_id)
    log.assign_topic_id(topic_id)
    with pytest.raises(ValueError, match="belongs to"):
        log.assign_topic_id(UUID(int=7))
    log.close()
    assert logs.open().topic_id == topic_id
