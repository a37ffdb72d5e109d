import bisect
import os
import random
import struct

import numpy as np
import pytest

from kcore.errors import CorruptIndex, IndexFull, InvalidOffset, InvalidTimestamp, LogSegmentOffsetOverflow, ReadOnlyLog
from kcore.log.time_index import TimeIndex
from tests import golden_data


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "00000000000000000045.timeindex")


def index_of(path, entries, base_offset=45, **options):
    index = TimeIndex(path, base_offset, **options)
    for timestamp, offset in entries:
        index.maybe_append(timestamp, offset)
    return index


def all_entries(index):
    return [index.entry(n) for n in range(len(index))]


@pytest.mark.parametrize("partition,name", golden_data.files(".timeindex"))
def test_IDX_02_time_indexes_that_kafka_wrote_hold_the_entries_that_kafka_reads(partition, name):
    expected = golden_data.expected_file(partition, name)
    index = TimeIndex(str(golden_data.partition_dir(partition) / name), int(name[:20]), writable=False)
    index.sanity_check()
    assert all_entries(index) == [(e["timestamp"], e["offset"]) for e in expected["entries"]]


def test_IDX_02_an_entry_is_an_int64_and_an_int32_big_endian(path):
    index_of(path, [(7, 46), (2**62, 45 + 2**31 - 1)]).close()
    with open(path, "rb") as written:
        assert written.read() == struct.pack(">qiqi", 7, 1, 2**62, 2**31 - 1)


def test_IDX_03_an_offset_that_no_int32_can_express_is_refused(path):
    index = TimeIndex(path, 45)
    for offset in (44, 45 + 2**31):
        with pytest.raises(LogSegmentOffsetOverflow):
            index.maybe_append(1, offset)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_IDX_12_an_index_that_its_owner_cuts_while_it_is_opened_for_reading_has_what_is_left(path, left):
    index_of(path, [(n, 45 + n) for n in range(10)]).close()
    index = TimeIndex(path, 45, writable=False)
    os.truncate(path, 12 * left)
    index.sanity_check()
    assert all_entries(index) == [(n, 45 + n) for n in range(left)]


def test_IDX_04_a_new_file_is_preallocated_and_rounded_down_to_whole_entries(path):
    index = TimeIndex(path, 45, max_index_size=1000)
    assert os.path.getsize(path) == 996
    index.close()
    assert os.path.getsize(path) == 0


def test_IDX_05_one_slot_is_kept_for_the_final_entry(path):
    index = index_of(path, [(n, 45 + n) for n in range(4)], max_index_size=12 * 5)
    assert index.is_full
    with pytest.raises(IndexFull):
        index.maybe_append(10, 60)
    index.maybe_append(10, 60, skip_full_check=True)
    assert len(index) == 5
    with pytest.raises(IndexFull):
        index.maybe_append(11, 61, skip_full_check=True)


def test_IDX_07_a_lower_entry_is_refused_and_an_equal_one_is_ignored(path):
    index = index_of(path, [(-1, 45)])
    assert (len(index), index.lookup(2**62)) == (0, (-1, 45))
    index.maybe_append(100, 50)
    with pytest.raises(InvalidOffset):
        index.maybe_append(200, 49)
    with pytest.raises(InvalidTimestamp):
        index.maybe_append(99, 51)
    index.maybe_append(100, 51)
    index.maybe_append(100, 50)
    index.maybe_append(101, 50)
    assert all_entries(index) == [(100, 50), (101, 50)]


@pytest.mark.parametrize("seed", range(20))
def test_IDX_09_lookup_agrees_with_bisect(path, seed):
    rng = random.Random(seed)
    timestamps = sorted(rng.sample(range(10_000), rng.choice([0, 1, 5, 681, 682, 683, 684, 685, 3000])))
    index = index_of(path, [(t, 46 + n) for n, t in enumerate(timestamps)])
    for target in [-(2**63), -1, 0, 2**63 - 1] + rng.choices(range(10_100), k=500):
        at = bisect.bisect_right(timestamps, target) - 1
        expected = (timestamps[at], 46 + at) if at >= 0 else (-1, 45)
        assert index.lookup(target) == expected, f"seed={seed} target={target}"


@pytest.mark.parametrize("seed", range(10))
def test_IDX_11_truncation_keeps_exactly_the_entries_below_the_offset(path, seed):
    rng = random.Random(seed)
    entries = [(1000 + n, offset) for n, offset in enumerate(sorted(rng.choices(range(46, 3000), k=500)))]
    target = rng.randint(0, 3100)
    index = index_of(path, entries)
    index.truncate_to(target)
    assert all_entries(index) == [e for e in entries if e[1] < target], f"seed={seed} target={target}"


def test_IDX_12_a_length_that_is_no_multiple_of_the_entry_size_is_corrupt(path):
    for length in range(37):
        with open(path, "wb") as out:
            out.write(struct.pack(">qiqiqi", 1, 1, 2, 2, 3, 3)[:length])
        index = TimeIndex(path, 45, writable=False)
        if length % 12:
            with pytest.raises(CorruptIndex, match=f"{path}: length {length}"):
                index.sanity_check()
        else:
            index.sanity_check()


@pytest.mark.parametrize(
    "entries",
    [
        [(100, 1), (99, 2)],  # last timestamp below the first
        [(100, 1), (101, -1)],  # last offset below the base offset
        [(100, 1), (102, 2), (102, 3)],  # two entries alike
        [(0, 0), (0, 0)],  # zeros of a file never trimmed
    ],
)
def test_IDX_12_IDX_13_a_time_index_that_cannot_be_right_is_corrupt(path, entries):
    with open(path, "wb") as out:
        out.writelines(struct.pack(">qi", *entry) for entry in entries)
    with pytest.raises(CorruptIndex, match="timeindex"):
        TimeIndex(path, 45, writable=False).sanity_check()


@pytest.mark.parametrize("seed", range(10))
def test_garbage_in_a_time_index_never_crashes_a_lookup(path, seed):
    rng = random.Random(seed)
    with open(path, "wb") as out:
        out.write(rng.randbytes(rng.randint(0, 20_000)))
    index = TimeIndex(path, 45, writable=False)
    for target in [rng.randint(-(2**63), 2**63 - 1) for _ in range(50)]:
        index.lookup(target)


def test_a_read_only_time_index_refuses_every_change(path):
    index_of(path, [(100, 46)]).close()
    index = TimeIndex(path, 45, writable=False)
    for change in (
        lambda: index.maybe_append(200, 50),
        lambda: index.truncate(),
        lambda: index.truncate_to(46),
        lambda: index.resize(1200),
    ):
        with pytest.raises(ReadOnlyLog):
            change()
    assert index.entry(len(index) - 1) == (100, 46)


def test_to_numpy_gives_absolute_offsets(path):
    array = index_of(path, [(7, 46), (8, 50)]).to_numpy()
    assert array.dtype == np.dtype([("timestamp", np.int64), ("offset", np.int64)])
    assert array.tolist() == [(7, 46), (8, 50)]
