import errno
import os
import random
import re
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptIndex,
    CorruptMessage,
    LogClosed,
    LogSegmentOffsetOverflow,
)
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests import golden_data
from tests.unit.log.segments import Model, batch, entries, file_bytes, files_of, filled, random_batches, records
from tests.waiting import DEADLINE_S, wait_until


@contextmanager
def held_in(call, flush, *, error=0):
    """A flush in another thread, that waits in its first such call while the block runs; then the call fails with
    `error`.  OSError of the flush."""
    file.count_calls()
    if error:
        file.fail_next(call, error)
    file.hold(call)
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(flush)
        try:
            wait_until(lambda: file.calls(call) or flushed.done())
            assert not flushed.done()
            yield
        finally:
            file.clear_faults()
        flushed.result(DEADLINE_S)


def files_in_use():
    """The paths of this process's open files and of its mappings."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed by another thread
            paths.add(os.readlink(f"/proc/self/fd/{fd}"))
    return paths


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


@pytest.mark.parametrize("extension", ["index", "timeindex"])
def test_an_append_of_many_batches_has_blocks_for_all_its_index_entries_first(tmp_path, extension):
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=0)
    # Of 1,000 entries at least two pages: the first can be written.
    file.fail_next("pwrite", errno.ENOSPC, skip=1, under=str(tmp_path / f"{0:020d}.{extension}"))
    with pytest.raises(OSError, match=rf"\.{extension}"):
        segment.append(records(*(batch(n, timestamp=n) for n in range(1000))))
    assert file_bytes(segment) == b""
    assert len(segment.offset_index) == len(segment.time_index) == 0


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


@pytest.mark.parametrize("error", [0, errno.EIO])
@pytest.mark.parametrize(("call", "extension"), [("fsync", "log"), ("msync", "index")])
def test_SEG_13_a_flush_goes_on_with_the_files_of_a_segment_that_is_closed_meanwhile(tmp_path, call, extension, error):
    segment = filled(tmp_path, random_batches(random.Random(3), 40), index_interval_bytes=100)
    path = f"{segment.log_path.removesuffix('log')}{extension}"
    with (
        pytest.raises(OSError, match=re.escape(path)) if error else nullcontext(),
        held_in(call, segment.flush, error=error),
    ):
        segment.close(trim=False)
        assert path in files_in_use()
    assert path not in files_in_use()


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
