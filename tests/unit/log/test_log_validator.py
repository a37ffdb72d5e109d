"""LogValidator: what a leader refuses, and offsets assigned in place."""

import dataclasses
import random
import struct

import pytest

from kcore.errors import CorruptMessage, InvalidRecord, InvalidTimestamp
from kcore.log.log_validator import assign_offsets, validate_records
from kcore.record.memory_records import MemoryRecords
from tests.reference import record_batch as model
from tests.unit.record.batches import random_batch, reseal

NOW = 1_700_000_500_000
FOREVER = 2**63 - 1
HOUR = 3_600_000


def validate(data, **settings):
    defaults = {
        "from_client": True,
        "compacted": False,
        "timestamp_type": "CreateTime",
        "now_ms": NOW,
        "before_max_ms": FOREVER,
        "after_max_ms": FOREVER,
        "source": "orders-0",
    }
    records = data if isinstance(data, MemoryRecords) else MemoryRecords(data)
    return validate_records(records, **(defaults | settings))


def batch_of(timestamps, *, key=b"k", **fields):
    records = [model.Record(i, timestamp, key, b"v%d" % i) for i, timestamp in enumerate(timestamps)]
    return model.encode_batch(model.make_batch(records, **fields))


@pytest.mark.parametrize("seed", range(40))
def test_VAL_21_count_and_max_timestamp_are_those_of_the_model(seed):
    batch = random_batch(random.Random(seed))
    got = validate(model.encode_batch(batch))
    timestamps = [record.timestamp for record in batch.records]
    want = max(timestamps)
    assert (got.record_count, got.max_timestamp) == (len(timestamps), want), f"seed={seed}"
    own = timestamps.index(want) if batch.codec == "none" and want >= 0 else len(timestamps) - 1
    assert got.offset_of_max_timestamp == own, f"seed={seed}"


def test_VAL_21_the_first_of_several_records_with_the_max_timestamp_counts_unless_compressed():
    assert validate(batch_of([5, 9, 7, 9])).offset_of_max_timestamp == 1
    assert validate(batch_of([5, 9, 7, 9], codec="lz4")).offset_of_max_timestamp == 3
    assert validate(batch_of([-1, -1])).max_timestamp == -1


@pytest.mark.parametrize("bits", [6, 13, 20, 27, 34, 41])
@pytest.mark.parametrize("base", [2**42, 0, -(2**40)])
def test_VAL_21_the_max_timestamp_is_right_on_both_sides_of_every_size_that_a_delta_can_have(bits, base):
    edges = [base + sign * 2**bits + step for sign in (-1, 1) for step in (-1, 0, 1)]
    for timestamps in ([base, edge, edge, base] for edge in edges):
        got = validate(batch_of(timestamps))
        want = max(-1, *timestamps)
        assert got.max_timestamp == want
        assert got.offset_of_max_timestamp == (timestamps.index(want) if want in timestamps else 3)
        if -1 not in timestamps and min(timestamps) != want:
            with pytest.raises(InvalidTimestamp) as refused:
                validate(batch_of(timestamps), now_ms=want, before_max_ms=0)
            assert refused.value.record_errors[0][0] == next(n for n, at in enumerate(timestamps) if at < want)


def test_VAL_21_records_after_the_first_megabyte_are_checked_too():
    timestamps = [NOW + n // 7 for n in range(20_000)]
    got = validate(batch_of(timestamps))
    assert (got.max_timestamp, got.offset_of_max_timestamp) == (timestamps[-1], timestamps.index(timestamps[-1]))


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_22_on_a_log_append_time_topic_the_max_timestamp_is_now(codec):
    got = validate(batch_of([5, 9, 7], codec=codec), timestamp_type="LogAppendTime", after_max_ms=0, before_max_ms=0)
    assert (got.max_timestamp, got.offset_of_max_timestamp) == (NOW, 2)


def test_VAL_07_no_batch_is_refused():
    with pytest.raises(InvalidRecord, match="no batch"):
        validate(b"")


def test_VAL_08_a_second_batch_is_refused():
    with pytest.raises(InvalidRecord, match="has 2"):
        validate(batch_of([1]) + batch_of([1]))


@pytest.mark.parametrize(("count", "last_offset_delta"), [(2, 2), (1, 5)])
def test_VAL_10_a_clients_offsets_have_no_gaps(count, last_offset_delta):
    data = batch_of(range(count), last_offset_delta=last_offset_delta)
    with pytest.raises(InvalidRecord, match=f"orders-0: {count} records in a batch of offsets"):
        validate(data)
    assert validate(data, from_client=False).record_count == count


def test_VAL_10_a_client_sends_no_batch_without_records():
    data = model.encode_batch(model.Batch(0, [], 0, 0, 0, count=0), b"")
    with pytest.raises(InvalidRecord, match="0 records"):
        validate(data)


def test_VAL_11_a_client_writes_no_control_batch():
    data = model.encode_batch(model.make_batch([model.control_record(0, 5, commit=True)], control=True))
    with pytest.raises(InvalidRecord, match="control"):
        validate(data)
    assert validate(data, from_client=False).record_count == 1


def test_VAL_12_a_clients_producer_id_comes_with_a_sequence():
    with pytest.raises(InvalidRecord, match="base sequence -1 of producer 7"):
        validate(batch_of([1], producer_id=7, producer_epoch=0))
    assert validate(batch_of([1], producer_id=7, producer_epoch=0, base_sequence=0))
    assert validate(batch_of([1], producer_id=7, producer_epoch=0), from_client=False)


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_16_a_compacted_topic_refuses_records_without_key_and_names_each(codec):
    records = [model.Record(i, 5, None if i in (1, 3) else b"", b"v") for i in range(5)]
    data = model.encode_batch(model.make_batch(records, codec=codec))
    with pytest.raises(InvalidRecord, match=r"orders-0: 2 bad records, the first at index 1: .*key") as e:
        validate(data, compacted=True)
    assert [index for index, _ in e.value.record_errors] == [1, 3]
    assert all("key" in message for _, message in e.value.record_errors)
    assert validate(data)


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_17_a_timestamp_too_far_from_now_is_refused_unless_it_is_none(codec):
    limits = {"before_max_ms": HOUR, "after_max_ms": 1000}
    fine = [NOW - HOUR, NOW + 1000, -1, NOW]
    assert validate(batch_of(fine, codec=codec), **limits).max_timestamp == NOW + 1000
    with pytest.raises(InvalidTimestamp) as e:
        validate(batch_of([NOW, NOW - HOUR - 1, NOW + 1001, -1, 0], codec=codec), **limits)
    assert [index for index, _ in e.value.record_errors] == [1, 2, 4]
    assert f"timestamp {NOW + 1001} is outside [{NOW - HOUR}, {NOW + 1000}]" in e.value.record_errors[1][1]


def test_VAL_17_limits_as_large_as_a_config_allows_do_not_overflow():
    far = [0, 1, 2**62]
    assert validate(batch_of(far)).max_timestamp == 2**62
    assert validate(batch_of(far), now_ms=2**62).max_timestamp == 2**62


@pytest.mark.parametrize("timestamp", [-(2**63), -(2**63) + 5, 2**63 - 1])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_VAL_17_the_largest_limits_are_none(timestamp, codec):
    batch = batch_of([timestamp, timestamp], codec=codec)
    for limits in ({}, {"before_max_ms": HOUR}, {"after_max_ms": HOUR}):
        beyond = ("before_max_ms" in limits and timestamp < 0) or ("after_max_ms" in limits and timestamp > 0)
        if beyond:
            with pytest.raises(InvalidTimestamp):
                validate(batch, **limits)
        else:
            validate(batch, **limits)


def test_VAL_18_a_producer_may_not_set_log_append_time():
    for timestamp_type in ("CreateTime", "LogAppendTime"):
        with pytest.raises(InvalidTimestamp, match="LogAppendTime") as e:
            validate(batch_of([1, 2], log_append_time=5), timestamp_type=timestamp_type)
        assert [index for index, _ in e.value.record_errors] == [0, 1]


def test_VAL_19_a_timestamp_among_the_faults_decides_the_error():
    records = [model.Record(0, NOW, None, b""), model.Record(1, 0, b"k", b"")]
    data = model.encode_batch(model.make_batch(records))
    with pytest.raises(InvalidTimestamp) as e:
        validate(data, compacted=True, before_max_ms=HOUR)
    assert [index for index, _ in e.value.record_errors] == [0, 1]


def test_VAL_19_of_very_many_faults_the_first_256_are_listed():
    with pytest.raises(InvalidRecord, match="1000 bad records") as e:
        validate(batch_of([NOW] * 1000, key=None), compacted=True)
    assert [index for index, _ in e.value.record_errors] == list(range(256))


@pytest.mark.parametrize("seed", range(60))
def test_VAL_17_VAL_21_hold_in_long_runs_of_records_of_the_same_sizes(seed):
    rng = random.Random(seed)
    key, size, count = (
        rng.choice([None, b"", b"key"]),
        rng.choice([0, 1, 30, 100, 9000]),
        rng.choice([9, 70, 200, 9000]),
    )
    step = rng.choice([0, 1, 3, 40])
    records = [model.Record(i, NOW + i * step // 4, key, bytes(size if count < 9000 else 3)) for i in range(count)]
    odd = sorted(rng.sample(range(count), rng.randint(0, 3)))
    for i in odd:
        change = rng.choice([("timestamp", NOW - 1), ("timestamp", -1), ("value", b"x"), ("headers", [(b"h", b"1")])])
        records[i] = dataclasses.replace(records[i], **{change[0]: change[1]})
    timestamps = [record.timestamp for record in records]
    data = model.encode_batch(model.make_batch(records))
    got = validate(data)
    assert (got.record_count, got.max_timestamp) == (count, max(timestamps))
    assert got.offset_of_max_timestamp == timestamps.index(max(timestamps))
    latest = NOW + rng.randrange(count * step // 4 + 1)
    late = [i for i, timestamp in enumerate(timestamps) if timestamp > latest]
    if not late:
        assert validate(data, now_ms=latest, after_max_ms=0).record_count == count
        return
    with pytest.raises(InvalidTimestamp, match=f"{len(late)} bad records") as e:
        validate(data, now_ms=latest, after_max_ms=0)
    assert [index for index, _ in e.value.record_errors] == late[:256]


_DAMAGE = {
    "a byte short": lambda payload: payload[:-1],
    "a byte too many": lambda payload: payload + b"\0",
    "first half twice": lambda payload: payload[: len(payload) // 2] * 2,
    "all ones": lambda payload: b"\xff" * len(payload),
    "nothing": lambda payload: b"",
}


@pytest.mark.parametrize(
    ("codec", "change"),
    # Records twice in a compressed batch only have their offsets wrong: they are numbered anew (VAL-05).
    [(codec, _DAMAGE[d]) for codec in ("none", "lz4") for d in _DAMAGE if (codec, d) != ("lz4", "first half twice")],
)
def test_bytes_that_are_not_the_counted_records_are_refused(codec, change):
    batch = model.make_batch([model.Record(i, 5, b"k", b"v") for i in range(4)], codec=codec)
    payload = b"".join(model.encode_record(r, 0, 5) for r in batch.records)
    data = model.encode_batch(batch, model.compress(codec, change(payload)))
    with pytest.raises(InvalidRecord, match="orders-0: ") as e:
        validate(data)
    assert e.value.record_errors == []


def test_bytes_that_the_codec_refuses_are_corrupt():
    batch = model.make_batch([model.Record(0, 5)], codec="zstd")
    with pytest.raises(CorruptMessage, match="zstd"):
        validate(model.encode_batch(batch, b"no zstd stream"))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_accepted_is_what_the_model_reads(seed):
    """Damage under a right CRC: accepted only if the model finds exactly 0, 1, 2, ... in it."""
    rng = random.Random(seed)
    data = model.encode_batch(random_batch(rng, codec="none" if seed % 2 else None))
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            broken[rng.randrange(23, min(len(broken), 300))] = rng.choice(
                [0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)]
            )
        broken = reseal(bytes(broken))
        try:
            got = validate(broken)
        except (CorruptMessage, InvalidRecord, InvalidTimestamp):
            continue
        # A compressed batch with wrong offsets is built anew.
        records = model.decode_batch(broken if got.records is None else bytes(got.records.buffer)).records
        assert [record.offset for record in records] == list(range(got.record_count)), f"seed={seed}"
        assert got.max_timestamp == max([-1, *(record.timestamp for record in records)]), f"seed={seed}"


def test_a_large_batch_is_checked_as_a_small_one_is():
    data = batch_of([NOW + i for i in range(3000)], key=bytes(200))
    assert len(data) > 256 * 1024  # the GIL is let go
    assert validate(data).max_timestamp == NOW + 2999
    with pytest.raises(InvalidTimestamp):
        validate(data, after_max_ms=2000)


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_03_assignment_rewrites_offsets_and_epoch_and_nothing_else(codec):
    data = batch_of([5, 9, 7], codec=codec)
    buffer = bytearray(data)
    records = MemoryRecords(buffer)
    validate(records)
    assert assign_offsets(records, 1000, 3) == 1002
    assert struct.unpack_from(">q", buffer, 0) == (1000,)
    assert struct.unpack_from(">i", buffer, 12) == (3,)
    assert buffer[8:12] + buffer[16:] == data[8:12] + data[16:]
    (batch,) = records.batches
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (1000, 1002, 3)
    assert [r.offset for r in MemoryRecords(buffer).records()] == [1000, 1001, 1002]


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_03_a_max_timestamp_that_is_not_the_records_is_put_right(codec):
    buffer = bytearray(batch_of([5, 9, 7], codec=codec, max_timestamp=4711))
    records = MemoryRecords(buffer)
    assert validate(records).max_timestamp == 9
    assert records.batches[0].max_timestamp == 9
    assert records.batches[0].is_valid()
    assign_offsets(records, 10, 0)
    (batch,) = MemoryRecords(buffer).batches  # the CRC is right again
    assert (batch.max_timestamp, batch.timestamp_type) == (9, "CreateTime")
    assert records.batches[0].crc == batch.crc


@pytest.mark.parametrize("codec", model.CODECS)
def test_VAL_22_log_append_time_is_written_with_its_type_and_a_new_crc(codec):
    buffer = bytearray(batch_of([5, 9, 7], codec=codec))
    records = MemoryRecords(buffer)
    validate(records, timestamp_type="LogAppendTime")
    assign_offsets(records, 10, 2, NOW)
    (batch,) = MemoryRecords(buffer).batches
    assert (batch.timestamp_type, batch.max_timestamp, batch.base_timestamp) == ("LogAppendTime", NOW, 5)
    assert [r.timestamp for r in batch] == [NOW] * 3
    assert batch.compression == codec
    ours = records.batches[0]
    assert (ours.timestamp_type, ours.max_timestamp, ours.crc) == (batch.timestamp_type, NOW, batch.crc)


def test_several_batches_follow_each_other_without_gaps():
    buffer = bytearray(batch_of([1, 2]) + batch_of([3]) + batch_of([4, 5, 6]))
    records = MemoryRecords(buffer)
    assert assign_offsets(records, 7, 1) == 12
    assert (records.first_offset, records.last_offset) == (7, 12)
    assert [r.offset for r in MemoryRecords(buffer).records()] == [7, 8, 9, 10, 11, 12]


def test_nothing_is_assigned_where_it_cannot_be():
    with pytest.raises(BufferError):
        assign_offsets(MemoryRecords(batch_of([1])), 0, 0)
    buffer = bytearray(batch_of([1, 2]))
    with pytest.raises(ValueError, match="63 bits"):
        assign_offsets(MemoryRecords(buffer), 2**63 - 2, 0)
    with pytest.raises(ValueError, match="slice"):
        assign_offsets(MemoryRecords(buffer, base_position=5), 1, 0)
    assert buffer == batch_of([1, 2])
    assert assign_offsets(MemoryRecords(bytearray()), 5, 0) == 4
