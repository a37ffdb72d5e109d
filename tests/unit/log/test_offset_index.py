import bisect
import errno
import os
import random
import struct
import tempfile
import threading

import numpy as np
import pytest

from kcore.common import file
from kcore.errors import CorruptIndex, IndexFull, InvalidOffset, LogClosed, LogSegmentOffsetOverflow, ReadOnlyLog
from kcore.log.offset_index import OffsetIndex
from kcore.log.time_index import TimeIndex
from tests import golden_data
from tests.own_process import in_own_process


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "00000000000000000045.index")


def index_of(path, entries, base_offset=45, **options):
    index = OffsetIndex(path, base_offset, **options)
    for offset, position in entries:
        index.append(offset, position)
    return index


def all_entries(index):
    return [index.entry(n) for n in range(len(index))]


@pytest.mark.parametrize("partition,name", golden_data.files(".index"))
def test_IDX_01_indexes_that_kafka_wrote_hold_the_entries_that_kafka_reads(partition, name):
    expected = golden_data.expected_file(partition, name)
    index = OffsetIndex(str(golden_data.partition_dir(partition) / name), int(name[:20]), writable=False)
    index.sanity_check()
    assert all_entries(index) == [(e["offset"], e["position"]) for e in expected["entries"]]


def test_IDX_01_an_entry_is_two_big_endian_int32(path):
    index_of(path, [(46, 7), (45 + 2**31 - 1, 2**31 - 1)]).close()
    with open(path, "rb") as written:
        assert written.read() == struct.pack(">iiii", 1, 7, 2**31 - 1, 2**31 - 1)


@pytest.mark.parametrize("offset", [44, 0, -1, 45 + 2**31, 2**62])
def test_IDX_03_an_offset_that_no_int32_can_express_is_refused(path, offset):
    index = OffsetIndex(path, 45)
    with pytest.raises(LogSegmentOffsetOverflow):
        index.append(offset, 0)
    assert len(index) == 0


@pytest.mark.parametrize("position", [-1, 2**31])
def test_a_position_that_no_int32_can_express_is_refused(path, position):
    index = OffsetIndex(path, 45)
    with pytest.raises(ValueError):
        index.append(46, position)


def test_IDX_04_a_new_file_is_preallocated_sparse_rounded_down_and_trimmed_on_close(path):
    index = OffsetIndex(path, 45, max_index_size=10_000_005)
    assert os.path.getsize(path) == 10_000_000
    assert os.stat(path).st_blocks < 64
    index.append(50, 100)
    index.close()
    assert os.path.getsize(path) == 8


def test_IDX_04_a_trimmed_index_grows_again_when_it_is_appended_to(path):
    index = index_of(path, [(50, 100)], max_index_size=4096)
    index.trim_to_valid_size()
    assert os.path.getsize(path) == 8
    assert not index.is_full
    index.append(51, 200)
    assert os.path.getsize(path) == 4096
    index.close()
    assert all_entries(OffsetIndex(path, 45, writable=False)) == [(50, 100), (51, 200)]


def test_IDX_05_IDX_06_a_full_index_is_full_and_refuses_another_entry(path):
    index = index_of(path, [(46 + n, n) for n in range(3)], max_index_size=8 * 3 + 7)
    assert (index.is_full, index.max_entries) == (True, 3)
    with pytest.raises(IndexFull):
        index.append(100, 100)
    assert len(index) == 3


@pytest.mark.parametrize("offset", [51, 50, 45])
def test_IDX_06_an_offset_not_above_the_last_one_is_refused(path, offset):
    index = index_of(path, [(50, 1), (51, 2)])
    with pytest.raises(InvalidOffset):
        index.append(offset, 3)
    assert all_entries(index) == [(50, 1), (51, 2)]


@pytest.mark.parametrize("target", [-(2**63), 0, 45, 10**12, 2**63 - 1])
def test_IDX_08_a_lookup_in_an_empty_index_gives_base_offset_and_position_zero(path, target):
    assert OffsetIndex(path, 45).lookup(target) == (45, 0)


@pytest.mark.parametrize("seed", range(20))
def test_IDX_08_lookup_agrees_with_bisect(path, seed):
    rng = random.Random(seed)
    offsets = sorted(rng.sample(range(46, 10_000), rng.randint(0, 300)))
    index = index_of(path, [(offset, 7 * offset) for offset in offsets])
    for target in rng.choices(range(10_100), k=200):
        at = bisect.bisect_right(offsets, target) - 1
        expected = (offsets[at], 7 * offsets[at]) if at >= 0 else (45, 0)
        assert index.lookup(target) == expected, f"seed={seed} target={target}"


@pytest.mark.parametrize("count", [1023, 1024, 1025, 1026, 1027, 5000])
def test_IDX_10_the_warm_section_changes_no_answer(path, count):
    offsets = [46 + 3 * n for n in range(count)]
    index = index_of(path, [(offset, offset) for offset in offsets])
    for target in range(40, 46 + 3 * count + 5):
        at = bisect.bisect_right(offsets, target) - 1
        assert index.lookup(target) == ((offsets[at], offsets[at]) if at >= 0 else (45, 0)), f"target={target}"


@pytest.mark.parametrize("seed", range(10))
def test_IDX_11_truncation_keeps_exactly_the_entries_below_the_offset(path, seed):
    rng = random.Random(seed)
    entries = [(offset, offset * 2) for offset in sorted(rng.sample(range(46, 3000), 1500))]
    target = rng.randint(0, 3100)
    index = index_of(path, entries)
    index.truncate_to(target)
    assert all_entries(index) == [e for e in entries if e[0] < target], f"seed={seed} target={target}"
    index.append(5000, 10_000)
    assert index.last_offset == 5000


def test_truncate_removes_all_entries_and_keeps_the_file_size(path):
    index = index_of(path, [(46, 1)], max_index_size=800)
    index.truncate()
    assert (len(index), index.last_offset, os.path.getsize(path)) == (0, 45, 800)


def test_IDX_12_a_length_that_is_no_multiple_of_the_entry_size_is_corrupt(path):
    for length in range(17):
        with open(path, "wb") as out:
            out.write(struct.pack(">iiii", 1, 1, 2, 2)[:length])
        for writable in (False, True):
            index = OffsetIndex(path, 45, writable=writable)
            if length % 8:
                with pytest.raises(CorruptIndex, match=f"{path}: length {length}"):
                    index.sanity_check()
            else:
                index.sanity_check()
                assert len(index) == length // 8
            index.lookup(46)


def test_IDX_12_a_last_offset_below_the_base_offset_is_corrupt(path):
    with open(path, "wb") as out:
        out.write(struct.pack(">iiii", 1, 1, -5, 2))
    with pytest.raises(CorruptIndex, match="40"):
        OffsetIndex(path, 45, writable=False).sanity_check()


def test_IDX_13_an_untrimmed_file_ends_at_its_length_and_fails_the_sanity_check(path):
    index = index_of(path, [(46, 1), (47, 2)], max_index_size=800)
    index.flush()
    for reopened in (OffsetIndex(path, 45, writable=False), OffsetIndex(path, 45, max_index_size=800)):
        assert len(reopened) == 100
        with pytest.raises(CorruptIndex):
            reopened.sanity_check()


def test_IDX_14_the_upper_bound_is_the_first_entry_at_or_after_the_end_of_the_fetch(path):
    index = index_of(path, [(50, 100), (60, 200), (70, 300)])
    assert index.fetch_upper_bound_offset(0, 50) == (50, 100)
    assert index.fetch_upper_bound_offset(0, 100) == (50, 100)
    assert index.fetch_upper_bound_offset(100, 1) == (60, 200)
    assert index.fetch_upper_bound_offset(100, 200) == (70, 300)
    assert index.fetch_upper_bound_offset(100, 201) is None
    assert OffsetIndex(path + "2", 45).fetch_upper_bound_offset(0, 0) is None


@pytest.mark.parametrize("kind", [OffsetIndex, TimeIndex])
def test_IDX_15_lookups_beside_appends_find_whole_entries_and_all_that_were_there(path, kind):
    """Also while the file grows, block by block, from a trimmed one."""
    count = 20_000
    step = 3
    # Offset index: offset 3n at position 7n; time index: timestamp 3n at offset 7n.
    index = kind(path, 0, max_index_size=count * 12)
    append = index.append if kind is OffsetIndex else index.maybe_append
    append(step, 7)
    index.trim_to_valid_size()
    entries_written, failures = [1], []

    def look_up(seed):
        rng = random.Random(seed)
        while entries_written[0] < count - 2:
            least = entries_written[0]
            target = rng.randrange(step, step * (least + 50))
            key, value = index.lookup(target)
            if value * step != key * 7 or key > target or key < min(target // step, least) * step:
                failures.append((seed, least, target, key, value))

    threads = [threading.Thread(target=look_up, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for n in range(2, count - 1):
        append(step * n, 7 * n)
        entries_written[0] = n
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("seed", range(20))
def test_garbage_in_an_index_never_crashes_a_read_only_lookup(path, seed):
    rng = random.Random(seed)
    with open(path, "wb") as out:
        out.write(rng.randbytes(rng.randint(0, 20_000)))
    before = os.stat(path)
    index = OffsetIndex(path, 45, writable=False)
    for target in [rng.randint(-(2**63), 2**63 - 1) for _ in range(50)] + list(range(40, 50)):
        _, position = index.lookup(target)
        assert -(2**31) <= position < 2**31
    index.close()
    after = os.stat(path)
    assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)


def test_a_read_only_index_survives_the_file_being_cut_by_another_process(path):
    index_of(path, [(46 + n, n) for n in range(5000)]).close()
    before_load = OffsetIndex(path, 45, writable=False)
    after_load = OffsetIndex(path, 45, writable=False)
    assert after_load.lookup(5000) == (5000, 4954)
    os.truncate(path, 800)
    assert after_load.lookup(5000) == (5000, 4954)
    assert before_load.lookup(5000) == (145, 99)


def test_a_read_only_index_refuses_every_change_and_creates_nothing(path):
    with pytest.raises(FileNotFoundError):
        OffsetIndex(path, 45, writable=False)
    assert not os.path.exists(path)
    index_of(path, [(46, 1)]).close()
    index = OffsetIndex(path, 45, writable=False)
    for change in (
        lambda: index.append(50, 50),
        lambda: index.truncate(),
        lambda: index.truncate_to(46),
        lambda: index.resize(800),
        lambda: index.trim_to_valid_size(),
    ):
        with pytest.raises(ReadOnlyLog):
            change()
    index.flush()
    assert all_entries(index) == [(46, 1)]


def test_an_index_in_memory_touches_no_file(path):
    index = index_of(path, [(46, 1), (50, 2)], in_memory=True, max_index_size=16)
    assert index.lookup(49) == (46, 1)
    with pytest.raises(IndexFull):
        index.append(51, 3)
    index.truncate_to(50)
    index.trim_to_valid_size()
    index.flush()
    index.close()
    assert not os.path.exists(path)


def test_a_closed_index_raises_log_closed(path):
    index = index_of(path, [(46, 1)])
    index.close()
    index.close()
    for call in (lambda: index.lookup(46), lambda: index.append(50, 1), lambda: index.truncate()):
        with pytest.raises(LogClosed):
            call()


@in_own_process
def test_an_index_that_was_made_larger_after_its_first_use_has_its_new_entries_in_the_file():
    """In a process of its own: they would be stored after the end of the mapping."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/{45:020d}.index"
        expected = [(45 + n, n) for n in range(1, 2001)]
        index = index_of(path, expected[:500], max_index_size=4096)
        index.resize(16_384)
        for offset, position in expected[500:]:
            index.append(offset, position)
        index.flush()
        assert all_entries(index) == expected
        index.close()
        assert all_entries(OffsetIndex(path, 45, writable=False)) == expected


def test_resize_never_loses_entries_and_returns_whether_it_changed_the_file(path):
    index = index_of(path, [(46, 1), (47, 2)], max_index_size=80)
    assert index.resize(8007)
    assert not index.resize(8000)
    assert (os.path.getsize(path), index.max_entries) == (8000, 1000)
    for n in range(100):
        index.append(50 + n, n + 3)
    assert index.lookup(149) == (149, 102)
    with pytest.raises(ValueError):
        index.resize(800)
    assert index.lookup(46) == (46, 1)


def test_a_full_disk_is_an_error_and_not_a_crash(path):
    index = index_of(path, [(46, 1)], max_index_size=16384)
    for n in range(511):
        index.append(47 + n, 2 + n)
    file.fail_next("pwrite", errno.ENOSPC)
    with pytest.raises(OSError) as raised:
        index.append(1000, 1000)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, path)
    assert len(index) == 512
    index.append(1000, 1000)  # space is back
    assert index.lookup(2000) == (1000, 1000)


def test_a_failed_flush_and_a_failed_trim_raise_and_lose_nothing(path):
    index = index_of(path, [(46, 1)], max_index_size=800)
    file.fail_next("msync", errno.EIO)
    with pytest.raises(OSError, match="msync"):
        index.flush()
    file.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError, match="ftruncate"):
        index.trim_to_valid_size()
    assert index.lookup(46) == (46, 1)
    assert os.path.getsize(path) == 800


def test_to_numpy_gives_absolute_offsets(path):
    array = index_of(path, [(46, 1), (45 + 2**31 - 1, 2)]).to_numpy()
    assert array.dtype == np.dtype([("offset", np.int64), ("position", np.int32)])
    assert array.tolist() == [(46, 1), (45 + 2**31 - 1, 2)]
    assert OffsetIndex(path + "2", 45).to_numpy().tolist() == []


@pytest.mark.parametrize("n", [-1, 2])
def test_an_entry_that_is_not_there_is_an_index_error(path, n):
    with pytest.raises(IndexError):
        index_of(path, [(46, 1), (47, 2)]).entry(n)
