"""Batched lookups return the same as single lookups of OffsetIndex and TimeIndex, and as bisect."""

import bisect
import random
import struct

import numpy as np
import pytest

pytest.importorskip("numba")

from kcore.errors import CorruptIndex
from kcore.kernels.index_scan import floor_slots, offset_entries, time_entries
from kcore.log.offset_index import OffsetIndex
from kcore.log.time_index import TimeIndex
from tests import golden_data


def base_of(file):
    return int(file.partition(".")[0])


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".index"))
def test_offsets_are_found_as_by_the_index_that_kafka_wrote(partition, file):
    path, base = golden_data.partition_dir(partition) / file, base_of(file)
    index = OffsetIndex(str(path), base, writable=False)
    entries = offset_entries(path.read_bytes(), base)
    targets = [base - 1, -1, 2**63 - 1, -(2**63), *range(base, base + 200)]
    expected = [index.lookup(target) for target in targets if target >= 0]
    offsets, positions = entries.lookup([target for target in targets if target >= 0])
    assert list(zip(offsets.tolist(), positions.tolist(), strict=True)) == expected
    offsets, positions = entries.lookup([t for t in targets if t < 0])
    assert set(offsets.tolist()) == {base} and set(positions.tolist()) == {0}
    index.close()


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".timeindex"))
def test_timestamps_are_found_as_by_the_index_that_kafka_wrote(partition, file):
    path, base = golden_data.partition_dir(partition) / file, base_of(file)
    index = TimeIndex(str(path), base, writable=False)
    entries = time_entries(path.read_bytes(), base)
    near_entries = [entry + delta for entry in entries.timestamp.tolist() for delta in (-1, 0, 1)]
    targets = [0, 2**63 - 1, *near_entries]
    expected = [index.lookup(target) for target in targets]
    assert list(zip(*(column.tolist() for column in entries.lookup(targets)), strict=True)) == expected
    index.close()


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(3))
def test_a_floor_is_that_of_bisect_in_any_order_of_targets(dtype, seed):
    rng = random.Random(seed)
    for count in [*range(40), 63, 64, 65, 1000, 4095, 4096, 4097]:
        keys = sorted(rng.sample(range(-10, 5 * count + 10), count))
        base = rng.choice([0, 0, 7, 1 << 40])
        for wanted in (0, 1, 15, 16, 17, 50):
            targets = [base + rng.randrange(-20, 5 * count + 20) for _ in range(wanted)]
            targets += [2**63 - 1, -(2**63)] if wanted == 50 else []
            for order in (targets, sorted(targets), sorted(targets, reverse=True)):
                expected = [bisect.bisect_right(keys, target - base) - 1 for target in order]
                slots = floor_slots(np.array(keys, dtype), np.array(order, np.int64), base)
                assert slots.tolist() == expected, f"seed={seed} count={count} base={base}"


def test_keys_that_do_not_ascend_give_slots_that_exist():
    rng = np.random.default_rng(1)
    for count in range(1, 50):
        keys = rng.integers(-100, 100, count)
        for targets in (rng.integers(-120, 120, 40), np.arange(-120, 120)):
            slots = floor_slots(keys, targets)
            assert slots.min() >= -1 and slots.max() < count


def test_the_space_after_the_entries_of_an_index_in_use_is_left_out():
    slots = struct.pack(">iiii", 3, 100, 8, 900)
    assert offset_entries(slots + bytes(800), 0).position.tolist() == [100, 900]
    assert len(offset_entries(bytes(800), 0).position) == 0
    slots = struct.pack(">qiqi", 5, 1, 6, 2)
    assert time_entries(slots + bytes(120), 10).lookup([5, 6, 4])[1].tolist() == [11, 12, 10]


def test_an_index_that_breaks_its_rules_is_refused_with_the_entry_named():
    with pytest.raises(CorruptIndex, match="entry 1: relative offset 3 is not above 3"):
        offset_entries(struct.pack(">iiii", 3, 100, 3, 900), 0)
    with pytest.raises(CorruptIndex, match="12 bytes are no multiple of 8: 4 are left"):
        offset_entries(bytes(12), 0)
    with pytest.raises(CorruptIndex, match="entry 2: timestamp 4 is not above 6"):
        time_entries(struct.pack(">qiqiqi", 5, 1, 6, 2, 4, 3), 0)
    with pytest.raises(CorruptIndex, match="entry 1: relative offset 0 is not above 1"):
        time_entries(struct.pack(">qiqi", 5, 1, 6, 0), 0)
    with pytest.raises(ValueError, match="no segment begins at offset -5"):
        offset_entries(struct.pack(">ii", 3, 100), -5).lookup([1])
