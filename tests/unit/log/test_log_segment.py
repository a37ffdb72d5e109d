import errno
import os
import random
import shutil
import struct
import threading

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptIndex,
    CorruptMessage,
    LogClosed,
    LogSegmentOffsetOverflow,
    ReadOnlyLog,
)
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests import golden_data
from tests.reference import record_batch as model
from tests.reference.disk import calls, place, recorded


def batch(base_offset, count=1, *, size=100, timestamp=1_000, epoch=0, **options):
    """count records of `size` bytes; record i has timestamp + i."""
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=epoch, **options)
    for i in range(count):
        builder.append(bytes([base_offset % 251]) * size, timestamp=timestamp + i)
    return bytes(builder.build())


def records(*batches):
    return MemoryRecords(b"".join(batches))


def filled(directory, batches, base_offset=0, **options):
    """A segment with one append per batch."""
    segment = LogSegment(str(directory), base_offset, **options)
    for one in batches:
        segment.append(records(one))
    return segment


def random_batches(rng, count, base_offset=0):
    """Batches as a log may hold them: gaps between offsets, timestamps up and down, sizes from 80 bytes to 6 KiB."""
    batches = []
    offset = base_offset
    for _ in range(count):
        offset += rng.choice([0, 0, 0, 1, 5])
        n = rng.randint(1, 6)
        batches.append(batch(offset, n, size=rng.choice([1, 50, 1000]), timestamp=rng.randint(0, 5_000)))
        offset += n
    return batches


class Model:
    """A segment as a list: (position, size, batch) of each batch, and the rule for index entries, batch by batch."""

    def __init__(self, batches, base_offset=0, interval=4096):
        self.base_offset = base_offset
        self.rows = []
        position = 0
        for one in batches:
            self.rows.append((position, len(one), model.decode_batch(one)))
            position += len(one)
        self.size = position
        self.index, self.time_index = [], []
        since, self.max_timestamp, self.offset_of_max = 0, -1, base_offset
        for position, size, one in self.rows:
            last = one.base_offset + one.last_offset_delta
            if one.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max = one.max_timestamp, last
            if since > interval:
                self.index.append((last, position))
                self.note_time()
                since = 0
            since += size

    def note_time(self):
        if self.max_timestamp > (self.time_index[-1][0] if self.time_index else -1):
            self.time_index.append((self.max_timestamp, self.offset_of_max))

    def translate(self, offset):
        for position, size, one in self.rows:
            if one.base_offset + one.last_offset_delta >= offset:
                return (one.base_offset + one.last_offset_delta, position, size)
        return None

    def by_timestamp(self, timestamp, starting_offset):
        for _, _, one in self.rows:
            for record in one.records:
                if record.timestamp >= timestamp and record.offset >= starting_offset:
                    return (record.timestamp, record.offset, one.leader_epoch)
        return None


def entries(index):
    return [index.entry(n) for n in range(len(index))]


def file_bytes(segment, extension="log"):
    with open(segment.log_path.replace(".log", f".{extension}"), "rb") as opened:
        return opened.read()


def files_of(directory):
    return sorted(os.listdir(directory))


# --- golden ---------------------------------------------------------------------------------------------------------


def golden_segment(partition, name, **options):
    return LogSegment(str(golden_data.partition_dir(partition)), int(name[:20]), writable=False, **options)


@pytest.mark.parametrize("partition,name", golden_data.files(".log"))
def test_SEG_10_every_batch_of_a_segment_that_kafka_wrote_is_found_by_each_of_its_offsets(partition, name):
    expected = golden_data.expected_file(partition, name)
    segment = golden_segment(partition, name)
    assert segment.size == expected["size"]
    positions = [b["position"] for b in expected["batches"]] + [expected["size"]]
    for one, end in zip(expected["batches"], positions[1:], strict=True):
        batch_place = (one["lastOffset"], one["position"], end - one["position"])
        for offset in range(one["baseOffset"], one["lastOffset"] + 1):
            assert segment.translate_offset(offset) == batch_place
    next_offset = expected["batches"][-1]["lastOffset"] + 1 if expected["batches"] else int(name[:20])
    assert segment.translate_offset(next_offset) is None
    assert segment.read_next_offset() == next_offset


@pytest.mark.parametrize("partition,name", golden_data.files(".log"))
def test_IDX_17_indexes_that_kafka_wrote_agree_with_the_log_and_so_do_rebuilt_ones(partition, name, tmp_path):
    shutil.copy(golden_data.partition_dir(partition) / name, tmp_path)
    os.chmod(tmp_path / name, 0o644)
    rebuilt = LogSegment(str(tmp_path), int(name[:20]), index_interval_bytes=128)
    rebuilt.recover()
    for segment in (golden_segment(partition, name), rebuilt):
        for offset, position in entries(segment.offset_index):
            assert segment.translate_offset(offset, position)[:2] == (offset, position)
            assert segment.translate_offset(offset)[1] == position


@pytest.mark.parametrize("partition,name", golden_data.files(".log"))
def test_SEG_11_a_scan_finds_nothing_wrong_in_a_segment_that_kafka_wrote_and_changes_nothing(partition, name):
    expected = golden_data.expected_file(partition, name)
    segment = golden_segment(partition, name)
    batches = []
    result = segment.scan(lambda table: batches.extend((b.base_offset, b.last_offset, b.position) for b in table))
    assert batches == [(b["baseOffset"], b["lastOffset"], b["position"]) for b in expected["batches"]]
    assert result[:3] == (expected["size"], 0, None)


# --- append ---------------------------------------------------------------------------------------------------------


def test_SEG_01_a_segment_is_files_named_by_the_base_offset_in_20_digits(tmp_path):
    segment = LogSegment(str(tmp_path), 42)
    assert files_of(tmp_path) == [f"{42:020d}.{extension}" for extension in ("index", "log", "timeindex")]
    assert segment.log_path == str(tmp_path / f"{42:020d}.log")


def test_SEG_02_append_writes_the_bytes_as_given_at_the_end_and_returns_where_they_begin(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    first, second = batch(0, 3), batch(3, 2) + batch(5, 1)
    assert segment.append(MemoryRecords(first)) == 0
    assert segment.append(MemoryRecords(bytearray(second))) == len(first)
    assert segment.append(MemoryRecords(b"")) == len(first + second)
    assert file_bytes(segment) == first + second
    assert segment.size == len(first + second)


def test_SEG_02_one_append_is_one_pwrite_however_many_batches_it_has(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    segment.append(records(batch(0)))
    segment.append(records(*(batch(n, size=5000) for n in range(1, 9))))  # backs the indexes' first pages
    file.count_calls()
    segment.append(records(*(batch(n, size=1000) for n in range(9, 73))))
    assert file.calls("pwrite") == 1
    segment.append(records(batch(73)))
    assert file.calls("pwrite") == 2


def test_a_partial_batch_at_the_end_of_the_records_is_not_written(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    segment.append(MemoryRecords(batch(0) + batch(1)[:-1]))
    assert file_bytes(segment) == batch(0)


def test_SEG_03_the_first_batch_gives_the_timestamp_that_time_rolling_counts_from(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    assert segment.first_batch_timestamp is None
    segment.append(records(batch(0, 3, timestamp=500), batch(3, 1, timestamp=900)))
    segment.append(records(batch(4, 1, timestamp=2000)))
    assert segment.first_batch_timestamp == 502
    segment.close()
    assert LogSegment(str(tmp_path), 0).first_batch_timestamp == 502


@pytest.mark.parametrize("offset", [99, 100 + 2**31, 2**40])
def test_SEG_04_an_offset_that_the_indexes_cannot_express_is_refused_before_anything_is_written(tmp_path, offset):
    segment = filled(tmp_path, [batch(100)], base_offset=100)
    with pytest.raises(LogSegmentOffsetOverflow):
        segment.append(records(batch(101), batch(offset)))
    assert file_bytes(segment) == batch(100)
    assert segment.append(records(batch(100 + 2**31 - 1))) == len(batch(100))


def test_SEG_05_the_greatest_timestamp_and_the_last_offset_of_its_batch_are_known(tmp_path):
    segment = LogSegment(str(tmp_path), 7)
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (-1, 7)
    segment.append(records(batch(7, 2, timestamp=100), batch(9, 3, timestamp=300), batch(12, 1, timestamp=302)))
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (302, 11)
    segment.append(records(batch(13, 1, timestamp=5)))
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (302, 11)
    segment.close()
    reopened = LogSegment(str(tmp_path), 7)
    assert (reopened.max_timestamp_so_far, reopened.offset_of_max_timestamp) == (302, 11)


@pytest.mark.parametrize("interval", [0, 150, 10_000])
@pytest.mark.parametrize("opened", ["again", "read only", "without indexes", "recovered", "cut"])
def test_SEG_05_of_several_batches_with_the_greatest_timestamp_the_first_counts_also_after_reopening(
    tmp_path, opened, interval
):
    timestamps = [100, 300, 300, 200, 300, 250]
    segment = filled(
        tmp_path, [batch(10 + n, timestamp=t) for n, t in enumerate(timestamps)], 10, index_interval_bytes=interval
    )
    maximum = (300, 11)
    if opened == "cut":
        for end in (16, 15, 14, 13, 12):
            segment.truncate_to(end)
            assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == maximum
    else:
        segment.close()
        if opened == "without indexes":
            for extension in ("index", "timeindex"):
                os.unlink(segment.log_path.replace(".log", f".{extension}"))
        writable = opened not in ("read only", "without indexes")
        segment = LogSegment(str(tmp_path), 10, writable=writable, index_interval_bytes=interval)
        if opened == "recovered":
            segment.recover()
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == maximum
    assert segment.find_offset_of_max_timestamp() == (300, 11, 0)
    if segment.writable:
        segment.append(records(batch(20, timestamp=300)))
        assert segment.offset_of_max_timestamp == 11
        segment.append(records(batch(21, timestamp=301)))
        assert segment.offset_of_max_timestamp == 21


@pytest.mark.parametrize("mapped", [False, True])
def test_an_index_entry_into_a_value_that_looks_like_a_batch_does_not_move_the_end(tmp_path, mapped):
    """Of a producer's making: the entry is damaged, and what it names has an offset above the entry's."""
    forged = batch(1_000_000)
    builder = RecordBatchBuilder(base_offset=2)
    builder.append(forged, timestamp=5)
    carrier = bytes(builder.build())
    segment = filled(tmp_path, [batch(0), batch(1), carrier], index_interval_bytes=0)
    size = segment.size
    segment.close()
    path = segment.log_path.replace(".log", ".index")
    with open(path, "r+b") as index:
        index.seek(-4, os.SEEK_END)
        index.write(struct.pack(">i", size - len(carrier) + carrier.index(forged)))
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=0)
    segment.sanity_check()
    if mapped:
        segment.translate_offset(0)  # maps the file: the end is then walked to in the mapping
    assert segment.read_next_offset() == 3
    assert not segment.ends_inside_a_batch()
    assert segment.translate_offset(2) == (2, size - len(carrier), len(carrier))


def test_after_a_wrong_last_offset_in_the_time_index_its_entries_still_ascend(tmp_path):
    """No check at opening sees it: so no entry is added until the offsets have passed it."""
    segment = filled(tmp_path, [batch(n, timestamp=100 * n) for n in range(4)], index_interval_bytes=0)
    segment.close()
    path = segment.log_path.replace(".log", ".timeindex")
    with open(path, "r+b") as index:
        index.seek(-4, os.SEEK_END)
        index.write(struct.pack(">i", 6))
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=0)
    segment.sanity_check()
    for n in range(4, 9):
        segment.append(records(batch(n, timestamp=100 * n)))
    # (The first append after opening gets no entry in any case: the interval's counter begins anew.)
    assert entries(segment.time_index) == [(100, 1), (200, 2), (300, 6), (600, 6), (700, 7), (800, 8)]
    assert segment.find_offset_by_timestamp(650) == (700, 7, 0)


@pytest.mark.parametrize("seed", range(10))
def test_SEG_06_each_batch_after_more_than_the_interval_gets_an_entry_however_appends_are_cut(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 120)
    expected = Model(batches, interval=2000)
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=2000)
    rest = list(batches)
    while rest:
        n = rng.randint(1, 7)
        segment.append(records(*rest[:n]))
        rest = rest[n:]
    assert entries(segment.offset_index) == expected.index, f"seed={seed}"
    assert entries(segment.time_index) == expected.time_index, f"seed={seed}"


def test_SEG_06_the_older_rule_gives_one_entry_per_append_with_its_last_offset_and_first_position(tmp_path):
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=300, per_append_index=True)
    size = len(batch(0))
    segment.append(records(*(batch(n, timestamp=n) for n in range(4))))  # the first append never gets one
    assert entries(segment.offset_index) == []
    segment.append(records(*(batch(n, timestamp=n) for n in range(4, 8))))
    segment.append(records(batch(8, timestamp=8)))
    assert entries(segment.offset_index) == [(7, 4 * size), (8, 8 * size)]
    assert entries(segment.time_index) == [(7, 7), (8, 8)]
    assert segment.first_batch_timestamp == 3


@pytest.mark.parametrize("older", [False, True])
def test_V22_12_a_large_append_is_indexed_by_batch_unless_the_older_rule_is_set_and_both_are_valid(tmp_path, older):
    """A follower's fetch brings many batches at once: the older rule gave its index one entry for all of them."""
    batches = [batch(3 * n, 3, timestamp=5000 - n) for n in range(200)]
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=2000, per_append_index=older)
    for n in range(0, 200, 50):
        segment.append(records(*batches[n : n + 50]))
    model, by_batch = Model(batches), Model(batches, interval=2000).index
    appends = [model.rows[n][0] for n in range(0, 200, 50)]
    index_entries = entries(segment.offset_index)
    if older:
        assert index_entries == [(3 * n + 149, appends[n // 50]) for n in (50, 100, 150)]
    else:
        assert index_entries == by_batch
        assert len(index_entries) > 20
    # The rolling timestamp: of the first batch, or of the first append.
    assert segment.first_batch_timestamp == 5002
    for offset, position in index_entries:  # IDX-17
        row = next(row for row in model.rows if row[0] == position)
        assert row[2].base_offset <= offset
    for offset in range(600):
        assert segment.translate_offset(offset) == model.translate(offset)
    rebuilt = segment.recover()
    assert rebuilt.truncated_bytes == 0
    assert entries(segment.offset_index) == by_batch


@pytest.mark.parametrize(("older", "expected"), [(False, 100), (True, 900)])
def test_V22_12_the_rolling_timestamp_is_that_of_the_first_batch_or_by_the_older_rule_of_the_first_append(
    tmp_path, older, expected
):
    segment = LogSegment(str(tmp_path), 0, per_append_index=older)
    segment.append(records(batch(0, timestamp=100), batch(1, timestamp=900)))
    assert segment.first_batch_timestamp == expected
    settings = {"segment_bytes": 10**6, "segment_ms": 500}
    assert segment.should_roll(10, 2, 1000, 0, **settings) == (not older)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after_bytes", [0, 1, 100])
def test_LOG_29_a_failed_append_raises_and_leaves_file_and_memory_as_they_were(tmp_path, code, after_bytes):
    segment = filled(tmp_path, [batch(0)], index_interval_bytes=0)
    segment.append(records(batch(1)))
    before = (segment.size, entries(segment.offset_index), entries(segment.time_index), segment.max_timestamp_so_far)
    file.fail_next("pwrite", code, after_bytes=after_bytes)
    with pytest.raises(OSError) as raised:
        segment.append(records(batch(2, timestamp=9999), batch(3)))
    assert (raised.value.errno, raised.value.filename) == (code, segment.log_path)
    after = (segment.size, entries(segment.offset_index), entries(segment.time_index), segment.max_timestamp_so_far)
    assert after == before
    assert file_bytes(segment) == batch(0) + batch(1)
    segment.append(records(batch(2)))  # space is back
    assert file_bytes(segment) == batch(0) + batch(1) + batch(2)


def test_a_short_write_is_finished(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    segment.append(records(batch(0)))
    file.fail_next("pwrite", 0, after_bytes=70)
    segment.append(records(batch(1)))
    assert file.calls("pwrite") == 2
    assert file_bytes(segment) == batch(0) + batch(1)


def test_bytes_that_could_not_be_cut_off_after_a_failed_append_are_gone_before_the_next_one(tmp_path):
    segment = filled(tmp_path, [batch(0)])
    file.fail_next("pwrite", errno.EIO, after_bytes=150)
    file.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError):
        segment.append(records(batch(1, 5)))
    assert os.path.getsize(segment.log_path) > segment.size == len(batch(0))
    assert segment.translate_offset(1) is None
    file.clear_faults()
    segment.append(records(batch(1, size=1)))
    assert file_bytes(segment) == batch(0) + batch(1, size=1)


def test_no_page_of_an_index_is_touched_that_has_no_block_on_a_full_disk(tmp_path):
    segment = filled(tmp_path, [batch(0)], index_interval_bytes=0)
    file.fail_next("pwrite", errno.ENOSPC)
    with pytest.raises(OSError, match="index"):
        segment.append(records(batch(1)))
    assert file_bytes(segment) == batch(0)
    assert len(segment.offset_index) == 0
    segment.append(records(batch(1)))
    assert len(segment.offset_index) == 1


def test_an_index_that_is_full_stays_sparse_and_the_append_succeeds(tmp_path):
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=0, max_index_size=24)
    segment.append(records(*(batch(n, timestamp=n) for n in range(10))))
    assert entries(segment.offset_index) == [(n, n * len(batch(0))) for n in (1, 2, 3)]
    assert entries(segment.time_index) == [(1, 1)]
    assert segment.translate_offset(9).position == 9 * len(batch(0))
    segment.on_become_inactive()
    assert entries(segment.time_index) == [(1, 1), (9, 9)]


def test_a_segment_of_2_GiB_takes_no_more(tmp_path):
    segment = filled(tmp_path, [batch(0)])
    segment.close()
    os.truncate(segment.log_path, 2**31 - 100)
    segment = LogSegment(str(tmp_path), 0)
    with pytest.raises(ValueError, match="segment"):
        segment.append(records(batch(1)))
    assert segment.size == 2**31 - 100


# --- reads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_SEG_10_translate_offset_agrees_with_a_walk_from_the_start(tmp_path, seed):
    rng = random.Random(seed)
    base = rng.choice([0, 77, 2**40])
    batches = random_batches(rng, 150, base)
    expected = Model(batches, base)
    segment = filled(tmp_path, batches, base, index_interval_bytes=rng.choice([0, 500, 4096]))
    for offset in range(base - 2, base + 900):
        assert segment.translate_offset(offset) == expected.translate(offset), f"seed={seed} offset={offset}"
    some = expected.rows[60][0]
    assert segment.translate_offset(base, some).position == some
    assert segment.translate_offset(base, expected.size) is None


def test_SEG_07_a_negative_size_is_an_error_and_an_offset_beyond_the_end_is_none(tmp_path):
    segment = filled(tmp_path, [batch(0, 2)])
    with pytest.raises(ValueError):
        segment.read(0, -1)
    assert segment.read(2, 100) is None
    assert LogSegment(str(tmp_path), 9).read(9, 100) is None


def test_SEG_08_SEG_09_read_gives_a_slice_bounded_by_size_and_position_and_at_least_one_batch_if_asked(tmp_path):
    batches = [batch(0, 2), batch(2, 2), batch(4, 2)]
    a, b, c = (len(one) for one in batches)
    segment = filled(tmp_path, batches)

    def read(*args, **options):
        got = segment.read(*args, **options)
        return got.position, bytes(got.records.read()), got.first_entry_incomplete

    everything = b"".join(batches)
    assert read(0, 10**9) == (0, everything, False)
    assert read(3, 10**9) == (a, everything[a:], False)
    assert read(2, b) == (a, everything[a : a + b], False)
    assert read(2, b + 1) == (a, everything[a : a + b + 1], False)
    assert read(2, b - 1) == (a, everything[a : a + b - 1], True)
    assert read(2, 1, min_one_message=True) == (a, everything[a : a + b], False)
    assert read(2, 0) == (a, b"", True)
    assert read(2, 0, min_one_message=True) == (a, everything[a : a + b], False)
    assert read(0, 10**9, a + b) == (0, everything[: a + b], False)
    assert read(2, 10**9, a) == (a, b"", False)
    assert read(4, 10**9, a) == (a + b, b"", False)
    assert read(4, 10**9, c * 100) == (a + b, everything[a + b :], False)


@pytest.mark.parametrize("seed", range(5))
def test_SEG_09_the_length_is_the_smaller_of_limit_and_room_and_the_slice_is_no_copy(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 60)
    expected = Model(batches)
    segment = filled(tmp_path, batches, index_interval_bytes=500)
    for _ in range(200):
        start, max_size = rng.randint(0, 250), rng.choice([0, 1, 60, 61, 200, 5000, 10**6])
        max_position = rng.choice([segment.size, rng.randint(0, segment.size), 2**62])
        at_least_one = rng.random() < 0.5
        got = segment.read(start, max_size, max_position, at_least_one)
        batch_place = expected.translate(start)
        if batch_place is None:
            assert got is None
            continue
        _, position, first = batch_place
        limit = max(max_size, first) if at_least_one else max_size
        length = min(limit, max(0, min(max_position, segment.size) - position))
        note = f"seed={seed} start={start} size={max_size} to={max_position} one={at_least_one}"
        assert (got.position, got.records.position, got.records.size_in_bytes) == (position, position, length), note
        assert got.first_entry_incomplete == (limit < first), note
        assert got.records.path == segment.log_path


@pytest.mark.parametrize("seed", range(8))
def test_find_offset_by_timestamp_agrees_with_a_walk_over_all_records(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 80)
    expected = Model(batches)
    segment = filled(tmp_path, batches, index_interval_bytes=700)
    for timestamp in [-1, 0, expected.max_timestamp, expected.max_timestamp + 1] + rng.choices(range(5100), k=150):
        start = rng.choice([0, 0, rng.randint(0, 400)])
        got = segment.find_offset_by_timestamp(timestamp, start)
        assert got == expected.by_timestamp(timestamp, start), f"seed={seed} timestamp={timestamp} start={start}"
    assert segment.find_offset_of_max_timestamp() == expected.by_timestamp(expected.max_timestamp, 0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_find_offset_by_timestamp_looks_into_compressed_batches(tmp_path, codec):
    segment = filled(tmp_path, [batch(n, 10, timestamp=n, compression=codec, epoch=3) for n in range(0, 50, 10)])
    assert segment.find_offset_by_timestamp(37) == (37, 37, 3)
    assert segment.find_offset_of_max_timestamp() == (49, 49, 3)


def test_a_segment_without_timestamps_has_no_greatest_one(tmp_path):
    segment = filled(tmp_path, [batch(0, 1, timestamp=-1)])
    assert segment.find_offset_of_max_timestamp() is None
    assert segment.find_offset_by_timestamp(0) is None
    segment.close()
    assert file_bytes(segment, "timeindex") == b""


def test_SEG_14_the_next_offset_is_that_after_the_last_whole_batch(tmp_path):
    segment = LogSegment(str(tmp_path), 5)
    assert segment.read_next_offset() == 5
    segment.append(records(batch(5, 3), batch(10, 2)))
    assert segment.read_next_offset() == 12
    segment.close()
    with open(segment.log_path, "ab") as out:
        out.write(batch(12)[:-1])
    assert LogSegment(str(tmp_path), 5, writable=False).read_next_offset() == 12


def outcome(call):
    try:
        return call()
    except CorruptMessage as error:
        return str(error)


@pytest.mark.parametrize("seed", range(40))
def test_SEG_14_a_small_read_of_the_tail_finds_the_end_that_the_mapped_file_shows(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, rng.randint(1, 30), base_offset=rng.choice([0, 7]))
    filled(tmp_path, batches, 0, index_interval_bytes=rng.choice([500, 4096, 10**6])).close()
    paths = [tmp_path / f"{0:020d}.{extension}" for extension in ("log", "index")]
    sound = [path.read_bytes() for path in paths]
    for _ in range(25):
        log, index = map(bytearray, sound)
        for _ in range(rng.randint(0, 3)):
            log[rng.randrange(max(0, len(log) - 2_000), len(log))] ^= 1 << rng.randrange(8)
        if index and rng.random() < 0.3:
            index[rng.randrange(len(index))] ^= 1 << rng.randrange(8)
        del log[len(log) - rng.choice([0, 0, 1, rng.randrange(len(log))]) :]
        paths[0].write_bytes(log)
        paths[1].write_bytes(index)
        for writable in (True, False):
            by_read, by_mapping = (LogSegment(str(tmp_path), 0, writable=writable) for _ in range(2))
            by_mapping.scan(lambda batches: None)  # has it mapped
            file.count_calls()
            mapped_end = outcome(by_mapping.read_next_offset), outcome(by_mapping.ends_inside_a_batch)
            assert not writable or file.calls("pread") == 0
            assert (outcome(by_read.read_next_offset), outcome(by_read.ends_inside_a_batch)) == mapped_end
            file.clear_faults()
            by_read.close(trim=False)
            by_mapping.close(trim=False)


def test_IDX_15_reads_need_no_lock_while_another_thread_appends(tmp_path):
    segment = filled(tmp_path, [batch(0, size=1000)], index_interval_bytes=2000)
    failures = []
    done = threading.Event()

    def reader(seed):
        rng = random.Random(seed)
        while not done.is_set():
            offset = rng.randrange(batches_written[0])
            batch_place = segment.translate_offset(offset)
            if batch_place is None or batch_place.offset != offset:
                failures.append((seed, offset, batch_place))

    batches_written = [1]
    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for n in range(1, 3000):
        segment.append(records(batch(n, size=1000)))
        batches_written[0] = n + 1
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# --- truncation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_TRUNC_06_TRUNC_08_after_truncation_the_segment_is_as_if_the_later_batches_had_never_come(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 60)
    target = rng.randint(0, 300)
    segment = filled(tmp_path, batches, index_interval_bytes=600)
    before = segment.size
    removed = segment.truncate_to(target)
    kept = [one for one in batches if struct.unpack_from(">q", one)[0] + struct.unpack_from(">i", one, 23)[0] < target]
    expected = Model(kept, interval=600)
    note = f"seed={seed} target={target}"
    assert file_bytes(segment) == b"".join(kept), note
    assert removed == before - segment.size == before - expected.size
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (
        expected.max_timestamp,
        expected.offset_of_max,
    ), note
    assert all(offset < target for offset, _ in entries(segment.offset_index))
    for offset in range(310):
        assert segment.translate_offset(offset) == expected.translate(offset), note
    assert os.path.getsize(segment.log_path.replace(".log", ".index")) == 10 * 1024 * 1024
    segment.append(records(batch(1000)))
    assert segment.read_next_offset() == 1001


def test_TRUNC_08_the_byte_counter_of_the_index_interval_restarts(tmp_path):
    """As in Kafka: what was written before the truncation does not count towards the next entry."""
    size = len(batch(0))
    segment = filled(tmp_path, [batch(n) for n in range(4)], index_interval_bytes=2 * size)
    assert entries(segment.offset_index) == [(3, 3 * size)]
    segment.truncate_to(3)
    assert entries(segment.offset_index) == []
    for n in range(3, 8):
        segment.append(records(batch(n)))
    # After three batches the counter is above the interval: so the fourth gets the entry, not the one at the cut.
    assert entries(segment.offset_index) == [(6, 6 * size)]
    segment.truncate_to(7)
    segment.append(records(batch(7)))
    assert entries(segment.offset_index) == [(6, 6 * size)]


def test_TRUNC_08_both_indexes_lose_their_entries_before_the_file_is_cut_and_get_their_full_size_back(tmp_path):
    segment = filled(
        tmp_path, [batch(n, timestamp=n) for n in range(6)], index_interval_bytes=0, max_index_size=8 * 12 * 50
    )
    segment.on_become_inactive()
    sizes = [len(file_bytes(segment, extension)) for extension in ("index", "timeindex")]
    assert sizes == [5 * 8, 5 * 12]
    file.fail_next("ftruncate", errno.EIO, under=segment.log_path)
    with pytest.raises(OSError, match="ftruncate"):
        segment.truncate_to(3)
    file.clear_faults()
    # What failed is the cut: the entries are gone, the data are there, and a search finds them.
    assert entries(segment.offset_index) == [(n, n * len(batch(0))) for n in (1, 2)]
    assert segment.size == 6 * len(batch(0))
    assert entries(segment.time_index) == [(1, 1), (2, 2)]
    assert segment.translate_offset(5).offset == 5
    with recorded() as record:
        segment.truncate_to(3)
        done = calls(record, tmp_path)
    assert place(done, "ftruncate *.log") < place(done, "ftruncate *.index") < place(done, "ftruncate *.timeindex")
    assert [len(file_bytes(segment, extension)) for extension in ("index", "timeindex")] == [8 * 12 * 50] * 2
    assert (segment.size, segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (3 * len(batch(0)), 2, 2)


def test_TRUNC_08_an_emptied_segment_counts_its_age_anew(tmp_path):
    segment = filled(tmp_path, [batch(0)], now_ms=100)
    assert (segment.created_ms, segment.first_batch_timestamp) == (100, 1000)
    assert segment.truncate_to(5) == 0
    assert segment.created_ms == 100
    assert segment.truncate_to(0, now_ms=777) == len(batch(0))
    assert (segment.created_ms, segment.first_batch_timestamp, segment.max_timestamp_so_far) == (777, None, -1)


def test_LOG_29_a_truncation_that_fails_keeps_the_data_readable(tmp_path):
    segment = filled(tmp_path, [batch(n) for n in range(5)])
    file.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError, match="ftruncate"):
        segment.truncate_to(2)
    assert segment.size == 5 * len(batch(0))
    assert segment.read(4, 1000).position == 4 * len(batch(0))
    assert segment.truncate_to(2) == 3 * len(batch(0))


def test_TRUNC_09_readers_that_walk_the_file_during_a_truncation_see_the_old_or_the_new_end(tmp_path):
    size = len(batch(0, size=1000))
    segment = filled(tmp_path, [batch(n, size=1000) for n in range(400)])
    failures = []
    done = threading.Event()

    def reader():
        while not done.is_set():
            valid, _, reason, _ = segment.scan(None)
            if valid % size or reason is not None:
                failures.append((valid, reason))
            segment.translate_offset(399)
            segment.find_offset_by_timestamp(10**9)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        segment.truncate_to(20)
        segment.append(records(*(batch(n, size=1000) for n in range(20, 400))))
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# --- recovery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_IDX_18_recovery_rebuilds_a_byte_identical_index(tmp_path, seed):
    batches = random_batches(random.Random(seed), 150)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    segment.close()
    written = file_bytes(segment, "index"), file_bytes(segment, "timeindex")
    assert written[0]
    for extension in ("index", "timeindex"):
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=1000)
    with pytest.raises(FileNotFoundError):
        segment.sanity_check()
    result = segment.recover()
    assert result[:3] == (sum(map(len, batches)), 0, None)
    assert (file_bytes(segment, "index"), file_bytes(segment, "timeindex")) == written, f"seed={seed}"
    segment.sanity_check()


def assert_index_agrees_with_log(segment, note):
    """IDX-17: each entry is the last offset of a batch and its position; times are the greatest up to there."""
    batches = list(segment.slice(0, segment.size).memory_records().batches)
    last_offsets = {b.last_offset: b.position for b in batches}
    for offset, position in entries(segment.offset_index):
        assert last_offsets.get(offset) == position, note
    for timestamp, offset in entries(segment.time_index):
        up_to_there = [b.max_timestamp for b in batches if b.last_offset <= offset]
        assert offset in last_offsets and max(up_to_there) == up_to_there[-1] == timestamp, note


@pytest.mark.parametrize("seed", range(10))
def test_IDX_18_IDX_17_indexes_of_several_runs_and_truncations_and_rebuilt_ones_both_agree_with_the_log(tmp_path, seed):
    """They are not the same bytes: the interval's counter restarts at reopening and at a truncation."""
    rng = random.Random(seed)
    options = {"index_interval_bytes": 600}
    segment = LogSegment(str(tmp_path), 0, **options)
    rest, kept = random_batches(rng, 120), []
    while rest:
        n = rng.randint(1, 5)
        segment.append(records(*rest[:n]))
        kept, rest = kept + rest[:n], rest[n:]
        if rng.random() < 0.2:
            segment.close()
            segment = LogSegment(str(tmp_path), 0, **options)
        elif rng.random() < 0.15:
            target = model.decode_batch(kept[-rng.randint(1, min(6, len(kept)))]).base_offset
            segment.truncate_to(target)
            kept = [one for one in kept if model.decode_batch(one).base_offset < target]
    note = f"seed={seed}"
    assert_index_agrees_with_log(segment, note)
    assert len(segment.offset_index) > 5, note
    segment.close()
    for extension in ("index", "timeindex"):
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    segment = LogSegment(str(tmp_path), 0, **options)
    assert segment.recover().truncated_bytes == 0
    assert_index_agrees_with_log(segment, note)
    expected = Model(kept, interval=600)
    expected.note_time()  # the final entry
    assert (entries(segment.offset_index), entries(segment.time_index)) == (expected.index, expected.time_index), note


def test_SEG_11_a_flipped_byte_anywhere_stops_recovery_exactly_at_its_batch(tmp_path):
    batches = [batch(0, 2), batch(2, 3, compression="gzip"), batch(5, 1)]
    whole = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0] + batches[1])]
    lasts = [-1, 1, 4]
    path = tmp_path / f"{0:020d}.log"
    for at in range(len(whole)):
        for extension in ("index", "timeindex"):
            (tmp_path / f"{0:020d}.{extension}").unlink(missing_ok=True)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        n = max(i for i in range(3) if starts[i] <= at)
        segment = LogSegment(str(tmp_path), 0)
        result = segment.recover()
        in_batch = at - starts[n]
        if in_batch < 8:
            # The CRC does not cover the base offset.  One that is still in range shows at the next batch, or never.
            assert result.valid_bytes in [*starts[n:], len(whole)], f"byte {at}"
            segment.close()
            continue
        if 12 <= in_batch < 16:
            assert result.reason is None, f"byte {at}"  # leader epoch, not covered either
            segment.close()
            continue
        assert (result.valid_bytes, result.truncated_bytes) == (starts[n], len(whole) - starts[n]), f"byte {at}"
        assert result.last_offset == lasts[n]
        assert f"position {starts[n]}" in result.reason
        assert file_bytes(segment) == whole[: starts[n]]
        segment.close()


def test_SEG_11_a_file_cut_at_any_length_keeps_every_whole_batch(tmp_path):
    batches = [batch(0, 2), batch(2, 1), batch(3, 1)]
    whole = b"".join(batches)
    ends = [0, len(batches[0]), len(batches[0] + batches[1]), len(whole)]
    path = tmp_path / f"{0:020d}.log"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        segment = LogSegment(str(tmp_path), 0)
        result = segment.recover()
        valid = max(end for end in ends if end <= length)
        assert result[:2] == (valid, length - valid)
        assert (result.reason is None) == (valid == length)
        assert file_bytes(segment) == whole[:valid]
        assert segment.append(records(batch(9))) == valid
        segment.close()


def test_SEG_11_offsets_that_go_back_or_leave_the_segments_range_end_what_is_valid(tmp_path):
    for n, last in enumerate([batch(1), batch(3, 2), batch(4), batch(2**31 + 50)]):
        directory = tmp_path / str(n)
        directory.mkdir()
        good = batch(3) + batch(4)
        (directory / f"{3:020d}.log").write_bytes(good + last)
        result = LogSegment(str(directory), 3).recover()
        assert result[:2] == (len(good), len(last)), f"case {n}"
        assert result.last_offset == 4


def test_SEG_11_a_base_offset_that_is_too_high_ends_what_is_valid_before_its_batch(tmp_path):
    whole = [batch(3, 5), batch(8, 5), batch(13, 5), batch(18, 5)]
    start, size = len(whole[0]), sum(map(len, whole))
    for n, flipped in enumerate(8 ^ 1 << bit for bit in range(30)):
        directory = tmp_path / str(n)
        directory.mkdir()
        lying = flipped.to_bytes(8, "big") + whole[1][8:]
        (directory / f"{3:020d}.log").write_bytes(whole[0] + lying + whole[2] + whole[3])
        segment = LogSegment(str(directory), 3)
        for result in (segment.scan(None), segment.recover()):
            assert result[:2] == (start, size - start), f"base offset {flipped}"
            assert result.last_offset == 7 and f"position {start}" in result.reason
        segment.close()


def test_SEG_11_a_torn_batch_after_a_gap_in_the_offsets_does_not_make_the_batch_before_it_wrong(tmp_path):
    whole = batch(3, 5) + batch(100, 5)
    for n, tail in enumerate([bytes(200), batch(8, 5)[:-1], (8).to_bytes(8, "big") + b"garbage" * 20]):
        directory = tmp_path / str(n)
        directory.mkdir()
        (directory / f"{3:020d}.log").write_bytes(whole + tail)
        result = LogSegment(str(directory), 3).recover()
        assert result[:2] == (len(whole), len(tail)) and result.last_offset == 104, f"case {n}"


def test_SEG_11_recovery_hands_over_the_batches_and_leaves_out_what_it_cuts(tmp_path):
    segment = filled(tmp_path, [batch(n, epoch=n // 10) for n in range(30)])
    segment.close()
    with open(segment.log_path, "ab") as out:
        out.write(b"\0" * 500)
    segment = LogSegment(str(tmp_path), 0)
    seen = []
    result = segment.recover(lambda table: seen.extend(b.base_offset for b in table))
    assert seen == list(range(30))
    assert (result.truncated_bytes, result.last_offset) == (500, 29)
    noteworthy = []
    segment.scan(lambda table: noteworthy.extend(b.base_offset for b in table), only_noteworthy=True)
    assert noteworthy == [0, 10, 20]


def test_a_scan_hands_over_what_producer_state_needs_and_can_start_anywhere(tmp_path):
    batches = [
        batch(0),
        batch(1, producer_id=7, producer_epoch=0, base_sequence=0),
        batch(2),
        batch(3, epoch=1),
        batch(4, epoch=1),
    ]
    segment = filled(tmp_path, batches)
    seen = []
    segment.scan(lambda table: seen.extend(b.base_offset for b in table), only_noteworthy=True)
    assert seen == [0, 1, 3]
    seen.clear()
    result = segment.scan(
        lambda table: seen.extend(b.base_offset for b in table), start_position=len(batches[0]), check_crc=False
    )
    assert seen == [1, 2, 3, 4]
    assert result == (segment.size, 0, None, 4)


def test_a_scan_of_many_batches_hands_them_over_in_order_and_whole(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    for start in range(0, 20_000, 1000):
        segment.append(records(*(batch(n, size=1) for n in range(start, start + 1000))))
    seen = []
    segment.scan(lambda table: seen.extend(table.to_numpy()["base_offset"].tolist()))
    assert seen == list(range(20_000))


def test_recovery_after_a_crash_replaces_untrimmed_indexes(tmp_path):
    batches = random_batches(random.Random(1), 100)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    expected = entries(segment.offset_index)
    segment.close(trim=False)
    crashed = LogSegment(str(tmp_path), 0, index_interval_bytes=1000)
    with pytest.raises(CorruptIndex):
        crashed.sanity_check()
    crashed.recover()
    crashed.sanity_check()
    assert entries(crashed.offset_index) == expected
    assert os.path.getsize(crashed.log_path.replace(".log", ".index")) == 8 * len(expected)
    crashed.append(records(*(batch(n) for n in range(10_000, 10_050))))
    assert crashed.translate_offset(10_049).offset == 10_049


@pytest.mark.parametrize("seed", range(30))
def test_garbage_in_a_log_never_crashes_a_reader(tmp_path, seed):
    rng = random.Random(seed)
    whole = bytearray(b"".join(random_batches(rng, 30)))
    for _ in range(rng.randint(1, 60)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    (tmp_path / f"{0:020d}.log").write_bytes(whole)
    (tmp_path / f"{0:020d}.index").write_bytes(rng.randbytes(8 * rng.randint(0, 20)))
    (tmp_path / f"{0:020d}.timeindex").write_bytes(rng.randbytes(12 * rng.randint(0, 20)))
    segment = LogSegment(str(tmp_path), 0, writable=False)
    for call in (
        *(lambda o=o: segment.translate_offset(o) for o in range(0, 150, 7)),
        *(lambda t=t: segment.find_offset_by_timestamp(t) for t in range(0, 5000, 500)),
        segment.read_next_offset,
        segment.find_offset_of_max_timestamp,
        lambda: segment.scan(None),
        segment.sanity_check,
    ):
        try:
            call()
        except (CorruptMessage, CorruptIndex, FileNotFoundError):
            pass
        except Exception as error:
            # A flipped magic is a format of its own.
            assert type(error).__name__ in {"UnsupportedForMessageFormat", "InvalidRecord"}, f"seed={seed}: {error!r}"


# --- read only ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [(), ("index",), ("timeindex",), ("index", "timeindex")])
def test_a_read_only_segment_rebuilds_missing_indexes_in_memory_and_writes_nothing(tmp_path, missing):
    batches = random_batches(random.Random(5), 100)
    expected = Model(batches, interval=1000)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    segment.close()
    for extension in missing:
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    before = {name: os.stat(tmp_path / name).st_mtime_ns for name in files_of(tmp_path)}
    segment = LogSegment(str(tmp_path), 0, writable=False, index_interval_bytes=1000)
    if missing:
        with pytest.raises(FileNotFoundError):
            segment.sanity_check()
    assert entries(segment.offset_index) == expected.index
    expected.note_time()
    assert entries(segment.time_index) == expected.time_index
    assert segment.max_timestamp_so_far == expected.max_timestamp
    for offset in range(300):
        assert segment.translate_offset(offset) == expected.translate(offset)
    segment.close()
    assert {name: os.stat(tmp_path / name).st_mtime_ns for name in files_of(tmp_path)} == before


def test_a_read_only_segment_refuses_every_change(tmp_path):
    filled(tmp_path, [batch(0)]).close()
    segment = LogSegment(str(tmp_path), 0, writable=False)
    for change in (
        lambda: segment.append(records(batch(1))),
        lambda: segment.truncate_to(0),
        segment.recover,
        segment.on_become_inactive,
        segment.flush,
        segment.delete,
        lambda: segment.change_file_suffixes("", ".deleted"),
    ):
        with pytest.raises(ReadOnlyLog):
            change()
    with pytest.raises(FileNotFoundError):
        LogSegment(str(tmp_path), 1, writable=False)


def test_a_file_that_another_process_cuts_does_not_kill_a_read_only_reader(tmp_path):
    batches = [batch(n, size=3000) for n in range(50)]
    filled(tmp_path, batches).close()
    segment = LogSegment(str(tmp_path), 0, writable=False)
    assert segment.translate_offset(49).offset == 49
    everything = segment.slice(0, segment.size)
    os.truncate(segment.log_path, 5 * len(batches[0]) + 17)
    assert segment.translate_offset(49) is None
    assert segment.translate_offset(3).offset == 3
    assert segment.scan(None).valid_bytes == 5 * len(batches[0])
    assert len(everything.read()) == 5 * len(batches[0]) + 17


# --- life cycle -----------------------------------------------------------------------------------------------------


def test_LOG_17_LOG_18_LOG_19_LOG_20_a_segment_decides_when_the_next_append_must_roll(tmp_path):
    def should_roll(segment, append_size=10, last_offset=5, max_timestamp=0, now_ms=0, **options):
        settings = {"segment_bytes": 1000, "segment_ms": 100, "jitter_ms": 0} | options
        return segment.should_roll(append_size, last_offset, max_timestamp, now_ms, **settings)

    empty = LogSegment(str(tmp_path), 0, now_ms=50)
    assert not should_roll(empty, append_size=1000, now_ms=10**6)
    assert should_roll(empty, append_size=1001)
    assert should_roll(empty, last_offset=2**31)
    assert not should_roll(empty, last_offset=2**31 - 1)
    empty.append(records(batch(0, timestamp=500)))
    room = 1000 - empty.size
    assert not should_roll(empty, append_size=room, max_timestamp=600)
    assert should_roll(empty, append_size=room + 1, max_timestamp=600)
    assert should_roll(empty, max_timestamp=601)
    assert should_roll(empty, max_timestamp=591, jitter_ms=10)
    timeless = filled(tmp_path, [batch(7, timestamp=-1)], base_offset=7, now_ms=50)
    assert not should_roll(timeless, last_offset=9, max_timestamp=-1, now_ms=150)
    assert should_roll(timeless, last_offset=9, max_timestamp=-1, now_ms=151)
    full = filled(tmp_path, [batch(20 + n, size=1) for n in range(4)], 20, index_interval_bytes=0, max_index_size=24)
    assert should_roll(full, last_offset=30, segment_bytes=10**6, max_timestamp=1000)


def test_SEG_12_becoming_inactive_completes_the_time_index_and_trims_both(tmp_path):
    segment = filled(tmp_path, [batch(0, 3, timestamp=10), batch(3, timestamp=5)])
    segment.on_become_inactive()
    assert file_bytes(segment, "timeindex") == struct.pack(">qi", 12, 2)
    assert file_bytes(segment, "index") == b""
    segment.close()
    assert file_bytes(segment, "timeindex") == struct.pack(">qi", 12, 2)


def test_SEG_13_flush_syncs_log_and_indexes(tmp_path):
    segment = filled(tmp_path, [batch(n) for n in range(3)], index_interval_bytes=0)
    file.count_calls()
    segment.flush()
    assert (file.calls("fsync"), file.calls("msync")) == (1, 2)
    file.fail_next("fsync", errno.EIO)
    with pytest.raises(OSError, match="fsync"):
        segment.flush()


def test_suffixes_change_on_all_four_files_and_slices_live_on(tmp_path):
    segment = filled(tmp_path, [batch(0)], index_interval_bytes=0)
    (tmp_path / f"{0:020d}.txnindex").write_bytes(b"")
    taken = segment.slice(0, segment.size)
    with pytest.raises(ValueError):
        segment.change_file_suffixes(".cleaned", ".swap")
    segment.change_file_suffixes("", ".deleted")
    extensions = ("index", "log", "timeindex", "txnindex")
    assert files_of(tmp_path) == [f"{0:020d}.{extension}.deleted" for extension in extensions]
    segment.append(records(batch(1), batch(2)))
    segment.truncate_to(2)
    assert os.path.exists(segment.log_path) and segment.log_path.endswith(".log.deleted")
    segment.close()
    reopened = LogSegment(str(tmp_path), 0, file_suffix=".deleted")
    assert entries(reopened.offset_index) == [(1, len(batch(0)))]
    reopened.delete()
    assert files_of(tmp_path) == []
    assert bytes(taken.read()) == batch(0)


def test_a_closed_segment_raises_and_its_slices_can_still_be_read(tmp_path):
    segment = filled(tmp_path, [batch(0)])
    taken = segment.read(0, 1000).records
    segment.close()
    segment.close()
    for call in (
        lambda: segment.append(records(batch(1))),
        lambda: segment.translate_offset(0),
        lambda: segment.read(0, 1000),
        lambda: segment.slice(0, 10),
        lambda: segment.scan(None),
        segment.recover,
        segment.flush,
    ):
        with pytest.raises(LogClosed):
            call()
    assert bytes(taken.read()) == batch(0)


def test_a_segment_closed_under_its_readers_ends_their_reads_and_nothing_else(tmp_path):
    batches = [batch(n, size=1000) for n in range(200)]
    filled(tmp_path, batches).close()
    failures = []

    def reader(segment, started):
        try:
            while True:
                started.set()
                segment.translate_offset(150)
                segment.find_offset_by_timestamp(10**9)
                segment.read_next_offset()
                segment.scan(None)
        except LogClosed:
            pass
        except BaseException as error:
            failures.append(error)

    for writable in (False, True) * 30:
        segment = LogSegment(str(tmp_path), 0, writable=writable)
        started = threading.Event()
        threads = [threading.Thread(target=reader, args=(segment, started)) for _ in range(2)]
        for thread in threads:
            thread.start()
        started.wait()
        segment.close()
        for thread in threads:
            thread.join()
    assert not failures


def test_indexes_of_an_empty_log_are_emptied(tmp_path):
    (tmp_path / f"{0:020d}.log").write_bytes(b"")
    (tmp_path / f"{0:020d}.index").write_bytes(struct.pack(">ii", 5, 500))
    (tmp_path / f"{0:020d}.timeindex").write_bytes(struct.pack(">qi", 5, 5))
    segment = LogSegment(str(tmp_path), 0)
    assert (len(segment.offset_index), segment.max_timestamp_so_far) == (0, -1)
    segment.append(records(batch(0)))
    assert segment.translate_offset(0).position == 0


def test_an_index_that_points_beyond_the_log_is_corrupt(tmp_path):
    segment = filled(tmp_path, [batch(n) for n in range(20)], index_interval_bytes=500)
    segment.close()
    os.truncate(segment.log_path, len(batch(0)))
    segment = LogSegment(str(tmp_path), 0)
    with pytest.raises(CorruptIndex, match="position"):
        segment.sanity_check()
    assert segment.translate_offset(19) is None
    assert segment.translate_offset(0).position == 0
    assert LogSegment(str(tmp_path), 0, writable=False).read_next_offset() == 1


@pytest.mark.parametrize("base_offset", [0, 10**12])
def test_a_renumbered_segment_is_the_one_that_its_batches_would_have_made_there(tmp_path, base_offset):
    rng = random.Random(base_offset)
    segment = filled(tmp_path, random_batches(rng, 300))
    expected = [(r.offset + base_offset, r.timestamp, r.value) for b in _batches(segment) for r in b.records()]
    segment.renumber(base_offset, 7)
    segment.close()
    for extension in ("log", "index", "timeindex"):
        (tmp_path / f"{0:020d}.{extension}").rename(tmp_path / f"{base_offset:020d}.{extension}")
    again = LogSegment(str(tmp_path), base_offset)
    again.sanity_check()
    indexes = [(tmp_path / f"{base_offset:020d}.{extension}").read_bytes() for extension in ("index", "timeindex")]
    assert again.recover().truncated_bytes == 0  # so every CRC holds
    again.close()
    assert indexes == [
        (tmp_path / f"{base_offset:020d}.{extension}").read_bytes() for extension in ("index", "timeindex")
    ]
    again = LogSegment(str(tmp_path), base_offset)
    assert [(r.offset, r.timestamp, r.value) for b in _batches(again) for r in b.records()] == expected
    assert {b.leader_epoch for b in _batches(again)} == {7}


@pytest.mark.parametrize("damage", ["cut", "old"])
def test_what_cannot_be_renumbered_as_a_whole_is_left_alone(tmp_path, damage):
    segment = filled(tmp_path, [batch(0, 3), batch(3, 3, magic=1, epoch=-1) if damage == "old" else batch(3, 3)])
    segment.close()
    path = tmp_path / f"{0:020d}.log"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    before = path.read_bytes()
    with pytest.raises(CorruptMessage, match=path.name):
        LogSegment(str(tmp_path), 0).renumber(100, 0)
    assert path.read_bytes() == before


def _batches(segment):
    return list(MemoryRecords(segment.slice(0, segment.size).read()).batches)


def test_the_greatest_timestamp_of_a_torn_log_is_that_of_the_batches_that_are_left(tmp_path):
    batches = [batch(n, timestamp=1000 + n) for n in range(10)]
    filled(tmp_path, batches).close()  # the time index has its final entry alone
    log = tmp_path / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - 5 - 3 * len(batches[0]))
    reader = LogSegment(str(tmp_path), 0, writable=False)
    assert reader.find_offset_of_max_timestamp() == (1005, 5, 0)
    assert (reader.max_timestamp_so_far, reader.offset_of_max_timestamp) == (1005, 5)
