import errno
import os
import random
import threading

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptMessage,
    InvalidOffset,
    InvalidRecord,
    KafkaStorageError,
    LogClosed,
    MessageTooLarge,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordListTooLarge,
    UnexpectedAppendOffset,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.log.logs import Logs, batch, idempotent, marker, offsets, old_message, old_wrapper

SIZE = len(batch())


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0")


@pytest.fixture
def log(logs):
    return logs.open()


def small_segments(tmp_path, batches_each=3, **config):
    return Logs(tmp_path / "orders-0", segment_bytes=batches_each * SIZE, index_interval_bytes=0, **config)


def file_names(logs, suffix):
    return sorted(path.name for path in logs.directory.iterdir() if path.name.endswith(suffix))


# -- append ----------------------------------------------------------------------------------------------


def test_LOG_01_segments_are_ordered_and_only_the_last_is_written(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(batch())
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    sizes = [segment.size for segment in log.segments]
    log.append_as_leader(batch())
    assert [segment.size for segment in log.segments] == [*sizes[:-1], 2 * SIZE]


def test_LOG_02_a_leader_assigns_offsets_without_gaps_and_a_follower_keeps_them(tmp_path):
    leader, follower = Logs(tmp_path / "a-0").open(), Logs(tmp_path / "b-0").open()
    for count in (1, 3, 2):
        info = leader.append_as_leader(batch(count), 4)
        follower.append_as_follower(leader.read(info.first_offset, 1 << 20).records.read())
    assert offsets(leader) == list(range(6)) == offsets(follower)
    assert (tmp_path / "a-0" / f"{0:020d}.log").read_bytes() == (tmp_path / "b-0" / f"{0:020d}.log").read_bytes()
    assert follower.last_epoch == 4


def test_offsets_are_assigned_in_the_callers_buffer_unless_it_is_read_only(log):
    writable = batch(2)
    log.append_as_leader(writable)
    log.append_as_leader(writable_copy := batch(2))
    assert MemoryRecords(writable).first_offset == 0
    assert MemoryRecords(writable_copy).first_offset == 2
    frozen = bytes(batch(2))
    assert log.append_as_leader(frozen).first_offset == 4
    assert MemoryRecords(frozen).first_offset == 0
    assert offsets(log) == list(range(6))


def test_LOG_03_a_produced_batch_starts_at_offset_0(log):
    with pytest.raises(InvalidRecord, match="base offset 7"):
        log.append_as_leader(batch(base_offset=7))
    assert log.log_end_offset == 0 and log.size == 0


def test_LOG_03_the_crc_is_checked_before_anything_is_written(log):
    damaged = batch()
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append_as_leader(damaged)
    with pytest.raises(CorruptMessage):
        log.append_as_follower(damaged)
    assert log.size == 0


def test_LOG_03_the_answer_tells_offsets_timestamps_and_counts(log):
    log.append_as_leader(batch(2))
    info = log.append_as_leader(batch(3, timestamp=1_700_000_000_123), 5)
    assert (info.first_offset, info.last_offset) == (2, 4)
    assert info.max_timestamp == 1_700_000_000_123
    assert (info.batch_count, info.record_count, info.log_append_time) == (1, 3, -1)
    assert (info.log_start_offset, info.last_leader_epoch, info.is_duplicate) == (0, 5, False)


def test_LOG_04_nothing_valid_is_nothing_written(log):
    for empty in (b"", batch()[:-1], batch()[:11]):
        info = log.append_as_leader(empty)
        assert (info.first_offset, info.batch_count) == (-1, 0)
        assert log.append_as_follower(empty).first_offset == -1
    assert log.log_end_offset == 0 and log.size == 0


def test_LOG_05_a_partial_batch_at_the_end_is_cut_off_and_garbage_is_corrupt(log):
    assert log.append_as_leader(batch(2) + batch()[:30]).last_offset == 1
    assert log.size == len(batch(2))
    with pytest.raises(CorruptMessage):
        log.append_as_leader(bytes(8) + b"\xff\xff\xff\xfe" + bytes(100))
    assert log.log_end_offset == 2


def test_LOG_06_a_batch_above_max_message_bytes_is_refused_from_a_producer_only(tmp_path):
    logs = Logs(tmp_path / "orders-0", max_message_bytes=SIZE)
    log = logs.open()
    log.append_as_leader(batch())
    with pytest.raises(MessageTooLarge, match=f"max.message.bytes is {SIZE}"):
        log.append_as_leader(batch(size=21))
    log.append_as_follower(batch(size=21, base_offset=1))
    assert log.log_end_offset == 2


def test_LOG_07_a_leader_checks_records_and_a_follower_does_not(tmp_path):
    logs = Logs(tmp_path / "orders-0", cleanup_policy=("compact",))
    log = logs.open()
    with pytest.raises(InvalidRecord):
        log.append_as_leader(batch(key=None))
    log.append_as_follower(batch(key=None))
    assert log.log_end_offset == 1


def test_VAL_01_only_a_leaders_append_is_validated_and_changed(tmp_path):
    config = {"compression_type": "gzip", "message_timestamp_type": "LogAppendTime", "max_message_bytes": 100}
    followers = Logs(tmp_path / "a-0", **config)
    follower = followers.open()
    # Gaps, an old timestamp, another codec, no key, too large: what a leader of such a topic would refuse or change.
    made = RecordBatchBuilder(leader_epoch=9, base_offset=4)
    made.append(bytes(200), timestamp=5, offset=6)
    made.append(b"x", timestamp=3, offset=9)
    as_sent = bytes(made.build())
    follower.append_as_follower(as_sent)
    assert (followers.directory / f"{0:020d}.log").read_bytes() == as_sent
    leader = Logs(tmp_path / "b-0", **config | {"max_message_bytes": 1000}).open()
    leader.append_as_leader(batch(2), 9)
    (stored,) = leader.batches()
    assert (stored.compression, stored.timestamp_type, stored.leader_epoch) == ("gzip", "LogAppendTime", 9)


def test_LOG_08_a_followers_offsets_ascend_and_start_at_the_log_end(log):
    log.append_as_follower(batch(3, base_offset=5))
    with pytest.raises(UnexpectedAppendOffset) as caught:
        log.append_as_follower(batch(2, base_offset=6))
    assert (caught.value.first_offset, caught.value.last_offset) == (6, 7)
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(batch(2, base_offset=10) + batch(base_offset=11))
    assert log.log_end_offset == 8


def test_LOG_09_gaps_are_legal_for_a_follower(log):
    log.append_as_follower(batch(base_offset=10) + batch(base_offset=20))
    assert log.log_end_offset == 21
    assert offsets(log) == [10, 20]


def test_LOG_10_an_append_above_segment_bytes_is_refused_from_a_leader(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_bytes=SIZE).open()
    log.append_as_leader(batch())
    with pytest.raises(RecordListTooLarge, match=f"segment.bytes is {SIZE}"):
        log.append_as_leader(batch(2))
    assert (log.log_end_offset, log.size) == (1, SIZE)


def test_V22_14_a_follower_takes_what_its_leader_took_however_small_its_segment_bytes_became(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=SIZE)
    log = logs.open()
    log.append_as_follower(batch(size=1))
    large = batch(5, size=1_000_000, base_offset=1)
    log.append_as_follower(large)
    log.append_as_follower(batch(base_offset=6) + batch(base_offset=7))
    assert [(s.base_offset, s.size) for s in log.segments] == [(0, len(batch(size=1))), (1, len(large)), (6, 2 * SIZE)]
    for again in (log, logs.open(clean=False)):
        assert [r.offset for r in again.records() if len(r.value) == 1_000_000] == [1, 2, 3, 4, 5]
        assert again.log_end_offset == 8


def test_LOG_11_EPOCH_02_a_higher_epoch_adds_an_entry_before_the_write(log):
    log.append_as_leader(batch(2), 3)
    log.append_as_leader(batch(), 3)
    log.append_as_leader(batch(), 7)
    assert log.leader_epoch_cache.entries == ((3, 0), (7, 3))
    log.append_as_follower(batch(base_offset=4, leader_epoch=8) + batch(base_offset=9, leader_epoch=11))
    assert log.leader_epoch_cache.entries == ((3, 0), (7, 3), (8, 4), (11, 9))
    assert log.last_epoch == 11


@pytest.mark.parametrize(
    "old", [old_message(3), old_message(3, magic=0), old_wrapper(3, 5), old_wrapper(3, 5, magic=0)]
)
def test_EPOCH_03_a_message_of_an_old_format_clears_the_leader_epochs(logs, log, old):
    log.append_as_leader(batch(3), 4)
    assert log.leader_epoch_cache.entries == ((4, 0),)
    log.append_as_follower(old)
    assert log.leader_epoch_cache.entries == () and log.last_epoch == -1
    assert log.end_offset_for_epoch(4) == (-1, -1)
    # No restart brings the epoch back: by it a follower would be told to keep records that the leader may not have.
    assert logs.open(clean=False).leader_epoch_cache.entries == ()
    end = log.log_end_offset
    log.append_as_follower(batch(base_offset=end, leader_epoch=6))
    assert log.leader_epoch_cache.entries == ((6, end),)
    assert logs.open(clean=False).leader_epoch_cache.entries == ((6, end),)


def test_LOG_12_an_append_never_spans_two_segments(tmp_path):
    log = small_segments(tmp_path).open()
    log.append_as_leader(batch())
    log.append_as_follower(batch(base_offset=1) + batch(base_offset=2) + batch(base_offset=3))
    assert [(s.base_offset, s.size) for s in log.segments] == [(0, SIZE), (1, 3 * SIZE)]


def test_LOG_13_the_log_end_is_advanced_although_the_transaction_index_fails(log, monkeypatch):
    log.append_as_leader(idempotent(7, 0, is_transactional=True))

    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("kcore.log.transaction_index.TransactionIndex.append", fail)
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 2


def test_LOG_16_flush_messages_flushes_inside_the_append(tmp_path, monkeypatch):
    logs = Logs(tmp_path / "orders-0", flush_messages=3)
    log = logs.open()
    for expected in (0, 0, 3, 3, 3, 6):
        log.append_as_leader(batch())
        assert log.recovery_point == expected


def test_LOG_02_LOG_26_appends_of_many_threads_get_disjoint_offsets_and_readers_see_whole_batches(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_bytes=4000).open()
    seen, stop = [], threading.Event()

    def append():
        for _ in range(100):
            info = log.append_as_leader(batch(3))
            seen.append((info.first_offset, info.last_offset))

    def read():
        while not stop.is_set():
            got = offsets(log)
            assert got == list(range(len(got)))

    writers = [threading.Thread(target=append) for _ in range(4)]
    errors = []

    def guarded():
        try:
            read()
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=guarded)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not errors
    assert sorted(seen) == [(3 * i, 3 * i + 2) for i in range(400)]
    assert offsets(log) == list(range(1200))


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
    """Its header tells only its last offset; a base above the first one would not hold it."""
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


# -- read ----------------------------------------------------------------------------------------------


def test_LOG_24_a_read_goes_on_in_the_next_segment_where_compaction_left_nothing(tmp_path):
    log = small_segments(tmp_path, 1).open()
    log.append_as_follower(batch(base_offset=0))
    log.append_as_follower(batch(base_offset=10))
    log.append_as_follower(batch(base_offset=30))
    info = log.read(11, 1 << 20)
    assert info.fetch_offset_metadata == (11, 30, 0)
    assert [r.offset for r in info.records.records()] == [30]


def test_LOG_25_LOG_28_a_read_ends_at_its_limit_and_may_start_inside_a_batch(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    for _ in range(4):
        log.append_as_leader(batch(2))
    log.update_high_watermark(4)
    info = log.read(1, 1 << 20, FetchIsolation.HIGH_WATERMARK)
    assert [r.offset for r in info.records.records()] == [0, 1, 2, 3]
    assert info.fetch_offset_metadata == (1, 0, 0)
    assert log.read(4, 100, FetchIsolation.HIGH_WATERMARK).records.size_in_bytes == 0
    assert log.read(6, 100, FetchIsolation.HIGH_WATERMARK).records.size_in_bytes == 0
    assert len(list(log.read(1, 1 << 20).records.records())) == 8
    # A watermark inside a batch holds back the whole batch.
    log.update_high_watermark(3)
    assert [r.offset for r in log.read(0, 1 << 20, FetchIsolation.HIGH_WATERMARK).records.records()] == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_LOG_28_no_read_reaches_its_limit_and_none_leaves_out_a_record_before_it(tmp_path, seed):
    rng = random.Random(seed)
    log = Logs(tmp_path / "orders-0", segment_bytes=1500, index_interval_bytes=200).open(sole_replica=False)
    for _ in range(60):
        count = rng.randint(1, 5)
        if rng.random() < 0.3:
            gap = rng.randint(0, 4)
            log.append_as_follower(batch(count, size=rng.randint(0, 90), base_offset=log.log_end_offset + gap))
        else:
            log.append_as_leader(batch(count, size=rng.randint(0, 90)))
    batches = [(b.base_offset, b.last_offset) for b in log.batches()]
    for _ in range(300):
        limit = log.update_high_watermark(rng.randint(0, log.log_end_offset))
        start, size = rng.randint(0, log.log_end_offset), rng.choice([0, 100, 400, 5000])
        info = log.read(start, size, FetchIsolation.HIGH_WATERMARK, min_one_message=rng.random() < 0.5)
        data = info.records.read() if info.records.size_in_bytes else b""
        found = [(b.base_offset, b.last_offset) for b in MemoryRecords(data).batches]
        visible = [b for b in batches if b[1] >= start and b[1] < limit]
        assert found == visible[: len(found)], f"seed={seed} start={start} limit={limit}"
        if found:
            assert found[0][0] <= start or found[0] == visible[0]
        if size == 5000 and visible:
            assert found, f"seed={seed} start={start} limit={limit}"


def test_LOG_26_a_read_takes_no_lock_and_sees_the_log_end_of_its_start(log):
    log.append_as_leader(batch(2))
    got = []
    with log.lock:
        reader = threading.Thread(target=lambda: got.append(log.read(0, 1 << 20)))
        reader.start()
        reader.join(10)
        assert not reader.is_alive()
        assert got[0].records.size_in_bytes == log.size
    log.append_as_leader(batch(3))
    # What the reader holds is still what it was when it asked.
    assert [r.offset for r in got[0].records.records()] == [0, 1]


def test_reads_outside_the_log_are_refused_and_at_its_end_are_empty(log):
    log.append_as_leader(batch(3))
    assert log.read(3, 100).records.size_in_bytes == 0
    assert log.read(3, 100).fetch_offset_metadata == log.log_end_offset_metadata
    log.maybe_increment_log_start_offset(2)
    for offset in (-1, 0, 1, 4):
        with pytest.raises(OffsetOutOfRange, match=r"\[2, 3\]"):
            log.read(offset, 100)


def test_one_message_comes_whole_when_asked_for(log):
    log.append_as_leader(batch(size=500))
    whole = log.read(0, 10)
    assert whole.records.size_in_bytes == len(batch(size=500)) and not whole.first_entry_incomplete
    cut = log.read(0, 10, min_one_message=False)
    assert cut.records.size_in_bytes == 10 and cut.first_entry_incomplete


def test_LOG_27_when_all_later_data_are_gone_a_read_in_range_is_empty_at_the_log_end(log):
    log.append_as_follower(batch(base_offset=0) + batch(base_offset=9))
    log.truncate_to(7)
    info = log.read(3, 1 << 20)
    assert info.records.size_in_bytes == 0
    assert info.fetch_offset_metadata == log.log_end_offset_metadata == (7, 0, SIZE)
    assert offsets(log, start_offset=3) == []


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


def test_offsets_by_timestamp_of_an_empty_log(log):
    assert log.fetch_offset_by_timestamp(-3) is None
    assert log.fetch_offset_by_timestamp(5) is None
    assert log.fetch_offset_by_timestamp(-1) == (-1, 0, -1)


def test_records_can_be_limited_at_both_ends_and_wrong_starts_are_refused(log):
    log.append_as_leader(batch(5))
    log.append_as_leader(batch(5))
    assert offsets(log, start_offset=3, end_offset=7) == [3, 4, 5, 6]
    assert offsets(log, end_offset=0) == []
    assert offsets(log, start_offset=10) == []
    with pytest.raises(OffsetOutOfRange):
        offsets(log, start_offset=11)


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


def test_TRUNC_04_the_log_start_never_lies_behind_the_end(log):
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
    log.truncate_to(3)
    assert log.recovery_point == 3 and logs.lowered == [3]
    log.truncate_fully_and_start_at(1)
    assert log.recovery_point == 1 and logs.lowered == [3, 1]


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
def test_LOG_29_after_a_failed_append_truncation_roll_or_flush_nobody_sees_half_of_it(logs, log, call, operation):
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


def test_LOG_29_a_full_disk_fails_the_append_and_not_the_log(logs, log, monkeypatch, caplog):
    log.append_as_leader(batch(3))

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kcore.log.local_log.LogSegment", fail)
        for _ in range(3):
            with pytest.raises(KafkaStorageError, match="No space left"):
                log.roll()
    # Whoever looks at the broker sees it, once a minute and not with each of the producers' retries.
    assert [record.levelname for record in caplog.records if "No space left" in record.message] == ["ERROR"]
    assert not log.is_offline and logs.failures == []
    assert log.append_as_leader(batch()).first_offset == 3
    assert offsets(log) == [0, 1, 2, 3]


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


def test_LOG_29_a_full_disk_where_an_empty_segment_was_to_be_replaced_takes_the_log_offline(logs, log):
    log.append_as_leader(batch(3))
    log.roll()
    file.fail_next("open_write", errno.ENOSPC)
    try:
        with pytest.raises(KafkaStorageError, match="No space left"):
            log.roll()  # the old one is gone, the new one is not there
    finally:
        file.clear_faults()
    assert log.is_offline and [error.errno for error in logs.failures] == [errno.ENOSPC]
    again = logs.open(clean=False)
    assert offsets(again) == [0, 1, 2]
    assert again.append_as_leader(batch()).first_offset == 3


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


def test_a_flush_beside_a_change_of_names_is_done_again_when_that_is_over(logs, log):
    log.append_as_leader(batch(3))
    file.fail_next("fsync", errno.ENOENT)
    try:
        log.flush()
    finally:
        file.clear_faults()
    assert log.recovery_point == 3 and not log.is_offline and logs.failures == []


def test_a_flush_of_a_log_that_is_being_deleted_is_no_failure_of_the_disk(logs, log, monkeypatch):
    log.append_as_leader(batch(3))

    def flush_segments(*args):
        log.rename_dir("orders-0.0123456789abcdef0123456789abcdef-delete")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(log.local, "flush_segments", flush_segments)
    log.flush()
    assert log.is_closed and not log.is_offline and logs.failures == []


def test_a_closed_log_says_so(log):
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
