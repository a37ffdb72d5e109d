"""The headers that the kernel reads are those of the C walk, on sound and on broken bytes."""

import random

import numpy as np
import pytest

pytest.importorskip("numba")

from kcore.errors import CorruptMessage
from kcore.kernels.batch_scan import scan_batches
from kcore.record.memory_records import MemoryRecords
from tests import golden_data
from tests.reference import record_batch as model
from tests.unit.record.batches import random_batch

OLD_FORMATS = sorted(golden_data.golden_file("old-formats/README.md").parent.glob("*.log"))


def some_batches(rng, count):
    made, offset = b"", 0
    for _ in range(count):
        batch = random_batch(rng, offset, gaps=rng.random() < 0.3)
        made += model.encode_batch(batch)
        offset = batch.last_offset + 1
    return made


def assert_same_as_c(data):
    """Both read the same batches and stop at the same place for the same reason."""
    scan = scan_batches(data)
    sound = MemoryRecords(data[: scan.valid_bytes], check_crc=False)
    assert sound.valid_bytes == scan.valid_bytes
    assert (scan.batches == sound.batches.to_numpy()).all() and len(scan.batches) == len(sound)
    try:
        whole = MemoryRecords(data, check_crc=False)
    except CorruptMessage as error:
        assert scan.stopped == "damage" and scan.problem == str(error)
    else:
        assert whole.valid_bytes == scan.valid_bytes
        assert scan.stopped == ("end" if scan.valid_bytes == len(data) else "partial")


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".log"))
def test_the_headers_of_a_segment_that_kafka_wrote_are_those_of_the_c_walk(partition, file):
    path = golden_data.partition_dir(partition) / file
    assert_same_as_c(path.read_bytes())
    if path.stat().st_size:
        mapped = scan_batches(np.memmap(path, np.uint8, "r"))
        assert mapped.stopped == "end" and mapped.problem is None and mapped.valid_bytes == path.stat().st_size


@pytest.mark.parametrize("path", OLD_FORMATS, ids=lambda path: path.stem)
def test_messages_of_magic_0_and_1_count_as_batches(path):
    data = path.read_bytes()
    assert_same_as_c(data)
    assert len(scan_batches(data).batches) > 0


@pytest.mark.parametrize("seed", range(10))
def test_broken_bytes_stop_both_walks_at_the_same_place(seed):
    rng = random.Random(seed)
    data = some_batches(rng, 4)
    starts = [*scan_batches(data).batches["position"].tolist(), 0]
    for _ in range(400):
        broken = bytearray(data)
        at = rng.choice(starts) + rng.randrange(61)  # in a header: the rest is not looked at
        broken[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        assert_same_as_c(bytes(broken))
    for length in [*range(130), *rng.sample(range(len(data)), 100)]:
        assert_same_as_c(data[:length])


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_are_damage_and_nothing_worse(seed):
    rng = random.Random(seed)
    for size in range(200):
        assert_same_as_c(rng.randbytes(size))
        assert_same_as_c(
            bytes(8) + rng.choice([b"\x7f\xff\xff\xff", b"\0\0\0\x31"]) + bytes([0] * 4 + [2]) + bytes(size)
        )


def test_more_batches_than_the_first_room_are_all_there():
    """Small batches first, so that the guess at how many follow is wrong in both directions."""
    rng = random.Random(5)
    small, large = random_batch(rng, codec="none"), random_batch(rng, codec="none")
    while len(model.encode_batch(large)) < 3000:
        large = random_batch(rng, codec="none")
    for data in (
        model.encode_batch(small) * 9000 + model.encode_batch(large) * 300,
        model.encode_batch(large) * 4200 + model.encode_batch(small) * 20_000,
    ):
        scan = scan_batches(data)
        sizes = scan.batches["size"].astype(int)
        assert sizes.sum() == len(data) == scan.valid_bytes
        assert (scan.batches["position"][1:] == np.cumsum(sizes)[:-1]).all()
        assert set(scan.batches["base_offset"].tolist()) == {small.base_offset, large.base_offset}


def test_a_scan_may_begin_at_any_batch():
    data = some_batches(random.Random(6), 5)
    whole = scan_batches(data)
    third = int(whole.batches["position"][2])
    assert (scan_batches(data, third).batches == whole.batches[2:]).all()
    assert scan_batches(data, len(data)).stopped == "end"
    with pytest.raises(ValueError, match="not within"):
        scan_batches(data, len(data) + 1)
    with pytest.raises(ValueError, match="not within"):
        scan_batches(data, -1)
