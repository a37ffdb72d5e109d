import random
import struct

import pytest

from kcore.log.offset_map import OffsetMap, siphash128
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

MASK = 2**64 - 1


class NoTransactions:
    def on_control_batch_read(self, batch):
        raise AssertionError

    on_batch_read = on_control_batch_read


def siphash128_by_the_paper(key, data):
    """SipHash-2-4 with 128 bits of output, as Aumasson and Bernstein describe it."""

    def rotate(v, bits):
        return (v << bits | v >> (64 - bits)) & MASK

    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count):
        for _ in range(count):
            for a, b, first, second, c, d in ((0, 1, 13, 16, 2, 3), (2, 1, 17, 21, 0, 3)):
                v[a] = (v[a] + v[b]) & MASK
                v[c] = (v[c] + v[d]) & MASK
                v[b] = rotate(v[b], first) ^ v[a]
                v[d] = rotate(v[d], second) ^ v[c]
                v[a] = rotate(v[a], 32)

    padded = data + bytes(-(len(data) + 1) % 8) + bytes([len(data) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, v[0] ^ v[1] ^ v[2] ^ v[3])


@pytest.mark.parametrize(
    "size,expected",
    [  # of the reference implementation's vectors for SipHash-2-4-128
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
    ],
)
def test_keys_are_hashed_to_the_published_vectors(size, expected):
    assert siphash128(bytes(range(16)), bytes(range(size))).hex() == expected


@pytest.mark.parametrize("size", [*range(40), 255, 256, 1000])
def test_keys_of_every_length_are_hashed_as_in_the_paper(size):
    rng = random.Random(size)
    secret, data = rng.randbytes(16), rng.randbytes(size)
    assert siphash128(secret, data) == siphash128_by_the_paper(secret, data)


@pytest.mark.parametrize("seed", range(10))
def test_get_agrees_with_a_dict(seed):
    rng = random.Random(seed)
    offset_map, expected = OffsetMap(24 * 2000), {}
    offset_map.clear()
    for offset in range(4000):
        key = rng.randbytes(rng.choice([0, 1, 8, 16, 40])) if rng.random() < 0.5 else b"%d" % rng.randrange(300)
        if len(expected) < offset_map.limit:
            assert offset_map.put(key, offset), f"seed={seed}"
            expected[key] = offset
    assert len(offset_map) == len(expected)
    for key, offset in expected.items():
        assert offset_map.get(key) == offset, f"seed={seed}"
    for _ in range(1000):
        key = rng.randbytes(20)
        assert offset_map.get(key) == expected.get(key, -1), f"seed={seed}"


def test_a_table_that_grows_keeps_every_key():
    offset_map = OffsetMap(24 * 1_000_000)
    offset_map.clear()
    for n in range(100_000):
        offset_map.put(b"%d" % n, n)
    assert [offset_map.get(b"%d" % n) for n in range(100_000)] == list(range(100_000))
    assert offset_map.utilization == 0.1


def test_a_full_map_takes_no_offset_and_a_cleared_one_does():
    offset_map = OffsetMap(24 * 10, load_factor=0.5)
    offset_map.clear()
    assert offset_map.slots == 10 and offset_map.limit == 5
    assert all(offset_map.put(b"%d" % n, n) for n in range(5))
    assert not offset_map.put(b"5", 5)
    assert not offset_map.put(b"0", 6)
    assert offset_map.get(b"0") == 0 and offset_map.latest_offset == 4
    offset_map.clear()
    assert len(offset_map) == 0 and offset_map.latest_offset == -1 and offset_map.get(b"0") == -1
    assert offset_map.put(b"5", 5)


@pytest.mark.parametrize("memory,load_factor", [(0, 0.9), (24, 0.9), (48, 0.4), (240, 0), (240, 1.1)])
def test_a_map_too_small_for_a_key_is_refused(memory, load_factor):
    with pytest.raises(ValueError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        OffsetMap(memory, load_factor)


def test_a_map_before_clear_raises_value_error():
    offset_map = OffsetMap(2400)
    for use in (lambda: offset_map.get(b"k"), lambda: offset_map.put(b"k", 1)):
        with pytest.raises(ValueError, match="clear"):
            use()


def records_of(batches, compression="none"):
    data, offset = b"", 0
    for keys in batches:
        builder = RecordBatchBuilder(base_offset=offset, compression=compression)
        for key in keys:
            builder.append(b"v", key)
        data += builder.build()
        offset += len(keys)
    return MemoryRecords(data)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("seed", range(3))
def test_batches_are_added_like_their_records(seed, compression):
    rng = random.Random(seed)
    batches = [[rng.choice([None, b"%d" % rng.randrange(50)]) for _ in range(rng.randint(1, 90))] for _ in range(20)]
    keys = [key for keys in batches for key in keys]
    start = rng.randrange(len(keys))
    offset_map = OffsetMap(24 * 1000)
    offset_map.clear()
    read, is_full = offset_map.add(records_of(batches, compression), start, NoTransactions())
    expected = {key: offset for offset, key in enumerate(keys) if key is not None and offset >= start}
    assert (read, is_full) == (len(keys), False), f"seed={seed}"
    assert {key: offset_map.get(key) for key in expected} == expected, f"seed={seed}"
    assert len(offset_map) == len(expected), f"seed={seed}"
    assert offset_map.latest_offset == len(keys) - 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_map_that_fills_up_inside_a_batch_has_all_keys_below_its_latest_offset(compression):
    offset_map = OffsetMap(24 * 100, load_factor=0.5)
    offset_map.clear()
    keys = [b"%d" % n for n in range(90)]
    _, is_full = offset_map.add(records_of([keys[:20], keys[20:]], compression), 0, NoTransactions())
    assert is_full and len(offset_map) == 50 and offset_map.latest_offset == 49
    assert [offset_map.get(key) for key in keys] == [*range(50), *[-1] * 40]
