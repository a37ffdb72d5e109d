"""MemoryRecords: one walk over a buffer, and what it refuses."""

import random
import struct

import numpy as np
import pytest

from kcore.errors import CorruptMessage, InvalidRecord
from kcore.record.layout import BATCH_DTYPE
from kcore.record.memory_records import EMPTY, MemoryRecords
from tests.reference import record_batch as model
from tests.unit.record.batches import as_model, random_batch, reseal

#: What a batch of the model and of kcore call alike.
FIELDS = (
    *("position", "size", "base_offset", "last_offset", "leader_epoch", "magic", "crc", "attributes"),
    *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "last_sequence"),
    *("count", "is_transactional", "is_control", "timestamp_type"),
)


def encoded(rng, batches, *, gaps=True):
    """Bytes of several batches with ascending offsets, and the model's picture of them."""
    data, models, offset = b"", [], 0
    for _ in range(batches):
        batch = random_batch(rng, offset, gaps=gaps)
        models.append(batch)
        data += model.encode_batch(batch)
        offset = batch.last_offset + 1 + rng.randint(0, 3)
    return data, models


def field(data, at, form, value):
    """data with one header field changed and the CRC made right again."""
    changed = bytearray(data)
    struct.pack_into(form, changed, at, value)
    return reseal(bytes(changed))


@pytest.mark.parametrize("seed", range(30))
def test_batches_and_records_are_those_of_the_model(seed):
    rng = random.Random(seed)
    data, _ = encoded(rng, rng.randint(1, 8))
    want = model.decode_batches(data)
    got = MemoryRecords(data)
    assert got.valid_bytes == got.size_in_bytes == len(data), f"seed={seed}"
    assert (got.first_offset, got.last_offset) == (want[0].base_offset, want[-1].last_offset)
    assert len(got) == len(got.batches) == len(want)
    for batch, expected in zip(got.batches, want, strict=True):
        for name in FIELDS:
            assert getattr(batch, name) == getattr(expected, name), f"seed={seed} {name}"
        assert batch.compression == expected.codec
        assert [as_model(record) for record in batch] == expected.records, f"seed={seed}"
        assert bytes(batch.buffer) == data[expected.position : expected.position + expected.size]
    assert [as_model(r) for r in got.records()] == [r for batch in want for r in batch.records]


@pytest.mark.parametrize("seed", range(30))
def test_a_table_has_gaps_where_an_offset_has_no_record(seed):
    rng = random.Random(seed)
    data, models = encoded(rng, rng.randint(1, 3), gaps=rng.random() < 0.3)
    table, models = MemoryRecords(data).batches, model.decode_batches(data)
    legacy = [batch for batch in models if batch.magic < 2]
    offsets = [offset for batch in models for offset in _offsets(batch)]
    assert table.has_gaps == (offsets != list(range(models[0].base_offset, models[-1].last_offset + 1))), f"seed={seed}"
    assert table.has_messages == bool(legacy)


def _offsets(batch):
    if batch.magic < 2:
        return range(batch.base_offset, batch.last_offset + 1)
    return [record.offset for record in batch.records]


def test_an_empty_buffer_holds_nothing():
    for records in (MemoryRecords(b""), EMPTY):
        assert not records
        assert len(records) == records.valid_bytes == 0
        assert (records.first_offset, records.last_offset) == (-1, -1)
        assert list(records.records()) == []
        assert len(records.batches.to_numpy()) == 0
        assert not records.batches.has_gaps and not records.batches.has_messages


@pytest.mark.parametrize("seed", range(3))
def test_LOG_05_a_partial_batch_at_the_end_is_left_out_wherever_the_cut_is(seed):
    rng = random.Random(seed)
    first = model.encode_batch(random_batch(rng))
    second = model.encode_batch(model.make_batch([model.Record(500, 5, b"k", b"v" * 60)]))
    for cut in range(len(second)):
        records = MemoryRecords(first + second[:cut])
        assert records.valid_bytes == len(first), f"seed={seed} cut={cut}"
        assert len(records.batches) == 1
        assert bytes(records.buffer) == first


@pytest.mark.parametrize("codec", model.CODECS)
def test_every_flipped_bit_is_noticed_or_leaves_the_records_as_they_were(codec):
    rng = random.Random(codec)
    records = [model.Record(i, 1000 + i, b"k%d" % i, rng.randbytes(5), [(b"h", None)]) for i in range(4)]
    batch = model.make_batch(records, codec=codec)
    data = model.encode_batch(batch)
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            try:
                parsed = MemoryRecords(broken)
                read = [as_model(record) for record in parsed.records()]
            except CorruptMessage:
                continue
            # Neither the base offset, nor the leader epoch, nor a length that cuts the batch off is in the CRC.
            if at < 8:
                shift = read[0].offset
                assert [(r.offset - shift, r.value) for r in read] == [(r.offset, r.value) for r in records], at
            elif at < 12:
                assert read == [] and parsed.valid_bytes == 0, at
            else:
                assert 12 <= at < 16 and read == records, at


@pytest.mark.parametrize("seed", range(60))
def test_bytes_broken_under_a_right_crc_never_read_as_something_the_model_would_not_read(seed):
    rng = random.Random(seed)
    data = model.encode_batch(random_batch(rng, codec="none" if seed % 2 else None))
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            broken[rng.randrange(21, min(len(broken), 400))] = rng.choice(
                [0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        broken = reseal(bytes(broken))
        try:
            read = [as_model(record) for record in MemoryRecords(broken).records()]
        except (CorruptMessage, InvalidRecord):
            continue
        assert read == model.decode_batch(broken).records, f"seed={seed}"


@pytest.mark.parametrize("position", [0, 1 << 40])
def test_a_wrong_crc_is_reported_with_source_position_and_both_values(position):
    rng = random.Random(7)
    data, models = encoded(rng, 3)
    start = sum(len(model.encode_batch(batch)) for batch in models[:2])
    broken = bytearray(data)
    broken[start + 30] ^= 1
    crc = struct.unpack_from(">I", data, start + 17)[0]
    with pytest.raises(
        CorruptMessage, match=rf"x\.log: CRC-32C at position {position + start}: expected {crc}, found"
    ) as e:
        MemoryRecords(broken, source="x.log", base_position=position)
    assert (e.value.source, e.value.position) == ("x.log", position + start)
    unchecked = MemoryRecords(broken, source="x.log", base_position=position, check_crc=False)
    assert [batch.is_valid() for batch in unchecked.batches] == [True, True, False]
    assert unchecked.batches[2].position == position + start
    with pytest.raises(CorruptMessage) as e:
        unchecked.batches[2].ensure_valid()
    assert (e.value.position, e.value.offset) == (position + start, models[2].base_offset)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_that_claims_an_older_magic_has_not_its_crc(magic):
    data = bytearray(model.encode_batch(random_batch(random.Random(1))))
    data[16] = magic
    with pytest.raises(CorruptMessage, match="CRC-32 at position 0"):
        MemoryRecords(data)


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_an_unknown_magic_is_corrupt(magic):
    data = bytearray(model.encode_batch(random_batch(random.Random(1))))
    data[16] = magic
    with pytest.raises(CorruptMessage, match="magic"):
        MemoryRecords(data)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 14, 48, 2**31 - 12, 2**31 - 1])
def test_LOG_05_a_length_that_cannot_be_is_corrupt_even_at_the_end(length):
    data = bytearray(model.encode_batch(random_batch(random.Random(1))))
    struct.pack_into(">i", data, 8, length)
    for cut in (len(data), 17):
        with pytest.raises(CorruptMessage, match=r"batch length too (small|large)"):
            MemoryRecords(data[:cut])


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [(23, ">i", -1), (23, ">i", -(2**31)), (57, ">i", -1), (57, ">i", 5), (57, ">i", 2**31 - 1)],
    ids=["delta -1", "delta min", "count -1", "count above delta", "count max"],
)
def test_VAL_10_impossible_offsets_or_counts_are_the_makers_fault_when_the_crc_is_right(at, form, value):
    data = model.encode_batch(model.make_batch([model.Record(i, 1, b"k", b"v") for i in range(4)]))
    with pytest.raises(InvalidRecord):
        MemoryRecords(field(data, at, form, value))
    unsealed = bytearray(data)
    struct.pack_into(form, unsealed, at, value)
    with pytest.raises(CorruptMessage, match="CRC-32C"):
        MemoryRecords(unsealed)
    with pytest.raises(CorruptMessage):
        MemoryRecords(unsealed, check_crc=False)


def test_a_base_offset_that_would_overflow_is_refused():
    data = bytearray(model.encode_batch(model.make_batch([model.Record(i, 1) for i in range(4)])))
    for base_offset in (-1, -(2**63), 2**63 - 4):
        struct.pack_into(">q", data, 0, base_offset)
        with pytest.raises((CorruptMessage, InvalidRecord)):
            MemoryRecords(data)
    struct.pack_into(">q", data, 0, 2**63 - 5)
    assert MemoryRecords(data).last_offset == 2**63 - 2


def test_a_large_buffer_walks_as_a_small_one_does():
    one = model.encode_batch(model.make_batch([model.Record(0, 1, b"k", b"v" * 900)]))
    tiny = model.encode_batch(model.make_batch([model.Record(0, 1)]))
    data = one * 300 + tiny * 3000  # above 256 KiB, where the GIL is let go, and sizes that defeat the row estimate
    records = MemoryRecords(data)
    assert len(records.batches) == 3300
    assert [batch.size for batch in records.batches] == [len(one)] * 300 + [len(tiny)] * 3000
    assert records.batches[-1].position == len(data) - len(tiny)


def test_the_batch_table_is_a_sequence():
    data, models = encoded(random.Random(3), 5)
    table = MemoryRecords(data).batches
    offsets = [batch.base_offset for batch in models]
    assert [batch.base_offset for batch in table] == offsets
    assert [batch.base_offset for batch in table[1:4]] == offsets[1:4]
    assert table[-1].base_offset == offsets[-1]
    for index in (5, -6):
        with pytest.raises(IndexError):
            table[index]


def test_the_table_as_an_array_has_the_same_rows():
    data, _ = encoded(random.Random(4), 6)
    table = MemoryRecords(data, base_position=100).batches
    array = table.to_numpy()
    rows = np.frombuffer(memoryview(table), BATCH_DTYPE)
    assert (rows == array).all() and not rows.flags.writeable
    assert array.dtype == BATCH_DTYPE
    for row, batch in zip(array, table, strict=True):
        for name in BATCH_DTYPE.names:
            assert row[name] == getattr(batch, name), name
    array["count"] = 0  # a copy
    assert table[0].count > 0


def test_any_contiguous_buffer_will_do_and_stays_alive_with_its_batches():
    data, models = encoded(random.Random(5), 2)
    for buffer in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        records = MemoryRecords(buffer)
        assert records.readonly == (not isinstance(buffer, bytearray))
        assert len(records.batches) == 2
    with pytest.raises(BufferError):
        MemoryRecords(memoryview(data * 2)[::2])
    with pytest.raises(TypeError):
        MemoryRecords("text")
    buffer = bytearray(data)
    batch = MemoryRecords(buffer).batches[1]
    with pytest.raises(BufferError):
        buffer.clear()  # would free what the batch still shows
    assert bytes(batch.buffer) == model.encode_batch(models[1])
