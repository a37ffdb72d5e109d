"""LogValidator where records do not stay as they are: other magic, other codec, offsets that a client did not give."""

import random
import zlib

import pytest

import kcore
from kcore.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from kcore.log.log_config import LogConfig
from kcore.log.log_validator import assign_offsets, validate_records
from kcore.record.compression import CODECS, compress
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.record.batches import random_batch

NOW = 1_700_000_500_000
FOREVER = 2**63 - 1
OLD_CODECS = ("none", "gzip", "snappy", "lz4")


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
    records = data if isinstance(data, MemoryRecords) else MemoryRecords(bytearray(data))
    return validate_records(records, **(defaults | settings))


def messages(magic, codec="none", timestamps=(5, 9, 7), key=b"k", **options):
    builder = RecordBatchBuilder(magic=magic, compression=codec, **options)
    for i, timestamp in enumerate(timestamps):
        builder.append(b"v%d" % i, key, timestamp=timestamp if magic else -1)
    return bytes(builder.build())


def message(magic, offset, timestamp, key, value, attributes=0):
    """By hand: the builder writes no wrong ones."""

    def field(data):
        return (-1 if data is None else len(data)).to_bytes(4, "big", signed=True) + (data or b"")

    body = bytes([magic, attributes])
    body += timestamp.to_bytes(8, "big", signed=True) if magic else b""
    body += field(key) + field(value)
    body = zlib.crc32(body).to_bytes(4, "big") + body
    return offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body


def wrapper(magic, inner, offset, codec=1, timestamp=9, attributes=0):
    return message(magic, offset, timestamp, None, compress(codec, inner, magic=magic), codec | attributes)


def contents(records):
    return [(r.offset, r.timestamp, r.key, r.value) for r in records.records()]


def stored(got, data, base_offset=100):
    """What would be written: the rebuilt records, or the producer's own, with their offsets."""
    records = got.records if got.records is not None else data
    assert assign_offsets(records, base_offset, 3) == base_offset + got.record_count - 1
    return MemoryRecords(bytes(records.buffer))


@pytest.mark.parametrize("magic", [0, 1])
def test_VAL_02_plain_messages_of_the_same_magic_are_assigned_in_place(magic):
    data = MemoryRecords(bytearray(messages(magic)))
    before = [bytes(batch.buffer[8:]) for batch in data.batches]
    got = validate(data, target_magic=magic)
    assert got.records is None and got.converted_count == 0
    assert [bytes(batch.buffer[8:]) for batch in stored(got, data).batches] == before
    assert [offset for offset, *_ in contents(data)] == [100, 101, 102]
    assert (got.max_timestamp, got.offset_of_max_timestamp) == ((9, 1) if magic else (-1, 2))


@pytest.mark.parametrize(("magic", "target"), [(m, t) for m in range(3) for t in range(3) if m != t])
def test_VAL_02_plain_messages_of_another_magic_are_converted(magic, target):
    got = validate(messages(magic), target_magic=target)
    records = stored(got, None)
    assert {batch.magic for batch in records.batches} == {target}
    assert len(records.batches) == (1 if target == 2 else 3)
    timestamps = (5, 9, 7) if magic and target else (-1, -1, -1)
    assert contents(records) == [(100 + i, timestamps[i], b"k", b"v%d" % i) for i in range(3)]
    assert all(batch.is_valid() for batch in records.batches)


@pytest.mark.parametrize("codec", OLD_CODECS[1:])
@pytest.mark.parametrize("magic", [1, 2])
def test_VAL_04_a_compressed_batch_of_right_magic_codec_and_offsets_keeps_its_payload(magic, codec):
    data = MemoryRecords(bytearray(messages(magic, codec)))
    payload = bytes(data.buffer[61 if magic == 2 else 34 :])
    got = validate(data, target_magic=magic, compression_type=codec)
    assert got.records is None and (got.converted_count, got.conversion_ns) == (0, 0)
    (batch,) = stored(got, data).batches
    assert bytes(batch.buffer[61 if magic == 2 else 34 :]) == payload
    assert batch.is_valid() and batch.last_offset == 102
    assert contents(data) == [(100 + i, t, b"k", b"v%d" % i) for i, t in enumerate((5, 9, 7))]
    assert (got.max_timestamp, got.offset_of_max_timestamp) == (9, 2)


def test_VAL_04_a_wrapper_of_magic_0_is_always_built_anew_for_its_offsets_are_absolute():
    got = validate(messages(0, "gzip"), target_magic=0, base_offset=100)
    assert got.converted_count == 3
    assert [offset for offset, *_ in contents(stored(got, None))] == [100, 101, 102]


@pytest.mark.parametrize("offsets", [(0, 0, 0), (0, 2, 1), (5, 6, 7)])
def test_VAL_05_a_wrapper_whose_inner_offsets_are_wrong_is_built_anew(offsets):
    inner = b"".join(message(1, offset, 5 + i, None, b"%d" % i) for i, offset in enumerate(offsets))
    data = MemoryRecords(bytearray(wrapper(1, inner, 2)))
    got = validate(data, target_magic=1)
    assert got.converted_count == 3
    assert contents(stored(got, data)) == [(100 + i, 5 + i, None, b"%d" % i) for i in range(3)]


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("deltas", [(0, 0, 0), (2, 1, 0), (0, 2, 2**31 - 1)])
def test_VAL_05_a_compressed_batch_that_its_client_did_not_number_is_numbered(codec, deltas):
    batch = model.make_batch([model.Record(i, 5 + i, b"k", b"v%d" % i, [(b"h", b"x")]) for i in range(3)], codec=codec)
    payload = b"".join(
        model.encode_record(model.Record(delta, r.timestamp, r.key, r.value, r.headers), 0, 5)
        for delta, r in zip(deltas, batch.records, strict=True)
    )
    got = validate(model.encode_batch(batch, model.compress(codec, payload)))
    assert got.converted_count == 3
    (rebuilt,) = stored(got, None).batches
    assert rebuilt.is_valid() and rebuilt.compression == codec
    assert [tuple(r)[:2] + (r.value, list(r.headers)) for r in rebuilt] == [
        (100 + i, 5 + i, b"v%d" % i, [("h", b"x")]) for i in range(3)
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_VAL_06_a_batch_gets_the_codec_of_its_topic_and_nothing_else_changes(target, seed):
    batch = random_batch(random.Random(seed))
    data = model.encode_batch(batch)
    got = validate(data, compression_type=target)
    codec = "none" if target == "uncompressed" else target
    if codec == batch.codec:
        assert got.records is None
        return
    assert got.converted_count == len(batch.records)
    (rebuilt,) = got.records.batches
    decoded = model.decode_batch(bytes(rebuilt.buffer))
    assert (decoded.codec, decoded.records, decoded.max_timestamp) == (
        codec,
        batch.records,
        max(r.timestamp for r in batch.records),
    )
    for name in ("base_offset", "last_offset", "count", "producer_id", "producer_epoch", "base_sequence"):
        assert getattr(decoded, name) == getattr(model.decode_batch(data), name), name


def test_VAL_06_producer_keeps_the_codec_that_came():
    for codec in CODECS:
        assert validate(messages(2, codec)).records is None
    for codec in OLD_CODECS:
        assert [b.compression for b in validate(messages(1, codec)).records.batches] == [codec]


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", 1, 9), ("lz4", 1, 12), ("zstd", 1, 19)])
def test_VAL_06_the_topics_level_is_that_of_the_codec(codec, low, high):
    data = messages(2, timestamps=range(5000))
    sizes = []
    for level in (low, high):
        config = LogConfig.from_kafka({"compression.type": codec, f"compression.{codec}.level": level})
        got = validate(data, compression_type=config.compression_type, compression_level=config.compression_level)
        sizes.append(got.records.size_in_bytes)
        assert contents(got.records) == contents(MemoryRecords(data))
    assert sizes[0] > sizes[1]


def test_VAL_06_the_default_level_of_lz4_is_the_fast_compressor_as_in_kafka():
    assert LogConfig.from_kafka({"compression.type": "lz4"}).compression_level is None
    assert LogConfig.from_kafka({"compression.type": "gzip"}).compression_level is None
    assert LogConfig.from_kafka({"compression.type": "zstd"}).compression_level == 3
    assert LogConfig.from_kafka({"compression.type": "snappy"}).compression_level is None


def test_VAL_08_a_wrapper_comes_alone():
    for data in (messages(1, "gzip") * 2, messages(1) + messages(1, "gzip"), messages(0, "gzip") + messages(0)):
        with pytest.raises(InvalidRecord, match="comes alone"):
            validate(data)


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (0, 2), (1, 2)])
def test_VAL_09_messages_of_different_magic_are_refused(first, second):
    with pytest.raises(InvalidRecord, match="magic"):
        validate(messages(first) + messages(second))


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True},
        {"is_transactional": True},
    ],
)
def test_VAL_13_older_magics_have_no_idempotence_and_no_transactions(target, options):
    with pytest.raises(UnsupportedForMessageFormat, match="producer ids"):
        validate(messages(2, **options), target_magic=target)
    assert validate(messages(2, **options)).record_count == 3


@pytest.mark.parametrize(("magic", "inner"), [(0, 1), (1, 0)])
def test_VAL_14_a_record_of_another_magic_than_its_wrapper_is_named(magic, inner):
    good, bad = message(magic, 0, 5, None, b"a"), message(inner, 1, 5, None, b"b")
    with pytest.raises(InvalidRecord, match="orders-0: 1 bad records, the first at index 1: magic") as e:
        validate(wrapper(magic, good + bad, 1))
    assert [index for index, _ in e.value.record_errors] == [1]


@pytest.mark.parametrize("magic", [0, 1])
def test_VAL_15_an_inner_message_with_a_wrong_crc_is_corrupt(magic):
    inner = bytearray(message(magic, 0, 5, None, b"abc") + message(magic, 1, 5, None, b"def"))
    inner[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC-32 of a message in a wrapper"):
        validate(wrapper(magic, bytes(inner), 1))


def test_VAL_15_a_plain_message_with_a_wrong_crc_is_corrupt():
    data = bytearray(messages(1))
    data[-1] ^= 1
    with pytest.raises(CorruptMessage, match="CRC-32 at position"):
        validate(bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_VAL_20_a_wrapper_inside_a_wrapper_is_refused(magic):
    nested = wrapper(magic, message(magic, 0, 5, None, b"x"), 0)
    with pytest.raises(InvalidRecord, match=r"compressed \(codec 1\) inside a compressed message") as e:
        validate(wrapper(magic, nested, 0))
    assert [index for index, _ in e.value.record_errors] == [0]


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_VAL_16_messages_without_key_on_a_compacted_topic_are_named(magic, codec):
    with pytest.raises(InvalidRecord, match="without a key") as e:
        validate(messages(magic, codec, key=None), compacted=True)
    assert [index for index, _ in e.value.record_errors] == [0, 1, 2]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_VAL_17_timestamps_of_messages_are_checked_against_the_limits(codec):
    with pytest.raises(InvalidTimestamp) as e:
        validate(messages(1, codec, timestamps=(NOW, NOW + 2, -1)), after_max_ms=1)
    assert [index for index, _ in e.value.record_errors] == [1]
    for timestamp in (-2, -(2**63), 2**63 - 1):
        with pytest.raises(InvalidTimestamp):
            validate(message(1, 0, -1, None, b"a") + message(1, 0, timestamp, None, b"b"))


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_VAL_18_a_producer_may_not_set_the_append_time_type_in_messages_either(codec):
    data = messages(1, codec, timestamp_type="LogAppendTime", log_append_time=NOW)
    with pytest.raises(InvalidTimestamp, match="LogAppendTime"):
        validate(data)


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_VAL_22_on_a_log_append_time_topic_every_record_has_that_time(magic, codec, target):
    data = MemoryRecords(bytearray(messages(magic, codec)))
    got = validate(data, timestamp_type="LogAppendTime", target_magic=target, base_offset=0)
    records = got.records if got.records is not None else data
    assert assign_offsets(records, 0, 3, NOW) == 2
    assert [r.timestamp for r in MemoryRecords(bytes(records.buffer)).records()] == [NOW if target else -1] * 3
    assert all(batch.is_valid() for batch in MemoryRecords(bytes(records.buffer)).batches)
    assert got.max_timestamp == (NOW if target else -1)


def test_VAL_23_down_conversion_drops_headers_and_in_magic_0_timestamps():
    builder = RecordBatchBuilder()
    builder.append(b"v", b"k", timestamp=5, headers=[("h", b"x")])
    data = bytes(builder.build())
    for magic, timestamp in ((1, 5), (0, -1)):
        (record,) = stored(validate(data, target_magic=magic), None).records()
        assert (record.timestamp, record.key, record.value, tuple(record.headers)) == (timestamp, b"k", b"v", ())


def test_VAL_24_conversion_is_counted_and_what_stays_is_not():
    got = validate(messages(1))
    assert got.converted_count == 3 and got.conversion_ns > 0
    assert got.temporary_bytes == got.records.size_in_bytes
    packed = validate(messages(1, "gzip"), compression_type="zstd")
    assert packed.temporary_bytes == got.temporary_bytes
    got = validate(messages(2))
    assert (got.converted_count, got.temporary_bytes, got.conversion_ns) == (0, 0, 0)


def test_zstd_is_no_codec_of_the_older_magics():
    with pytest.raises(UnsupportedCompressionType, match="zstd"):
        validate(messages(1), compression_type="zstd", target_magic=1)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "inner",
    [b"", b"\0" * 26, b"x" * 100, message(1, 0, 5, None, b"a")[:-1]],
    ids=["nothing", "zeros", "no message", "cut"],
)
def test_a_wrapper_of_anything_but_messages_is_refused(magic, inner):
    with pytest.raises((InvalidRecord, CorruptMessage), match="orders-0"):
        validate(wrapper(magic, inner, 0))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_without_a_value_is_corrupt(magic):
    with pytest.raises(CorruptMessage, match="value length of a wrapper"):
        validate(message(magic, 0, 5, None, None, 1))


@pytest.mark.parametrize("seed", range(30))
def test_VAL_15_damage_under_a_right_outer_crc_never_gives_a_wrong_record(seed):
    """Inner messages have CRCs of their own: what is accepted is what was there."""
    rng = random.Random(seed)
    magic = rng.choice([0, 1])
    inner = b"".join(message(magic, i, 5 + i, b"k", rng.randbytes(20)) for i in range(4))
    wanted = [record[1:] for record in contents(stored(validate(wrapper(magic, inner, 3)), None))]
    for _ in range(200):
        broken = bytearray(inner)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        try:
            got = validate(wrapper(magic, bytes(broken), 3))
        except (CorruptMessage, InvalidRecord, InvalidTimestamp):
            continue
        assert [record[1:] for record in contents(stored(got, None))] == wanted, f"seed={seed}"


def test_LOG_06_the_size_is_checked_again_after_conversion(tmp_path):
    limit = len(messages(1, "gzip", timestamps=range(2000)))
    config = LogConfig.from_kafka({"max.message.bytes": limit, "compression.type": "uncompressed"})
    with kcore.open_log(tmp_path / "t-0", "a", config=config) as log:
        with pytest.raises(MessageTooLarge):
            log.append_as_leader(messages(1, "gzip", timestamps=range(2000)))
        assert log.log_end_offset == 0
        info = log.append_as_leader(messages(1, timestamps=range(5)))
        assert (info.first_offset, info.last_offset, info.record_count) == (0, 4, 5)


def test_an_idempotent_producers_batch_keeps_its_sequence_when_it_is_compressed_anew(tmp_path):
    config = LogConfig.from_kafka({"compression.type": "lz4"})
    with kcore.open_log(tmp_path / "t-0", "a", config=config) as log:
        data = messages(2, "gzip", producer_id=7, producer_epoch=0, base_sequence=0)
        assert log.append_as_leader(data).first_offset == 0
        assert log.append_as_leader(data).is_duplicate
        (batch,) = log.batches()
        assert (batch.producer_id, batch.base_sequence, batch.last_sequence, batch.compression) == (7, 0, 2, "lz4")
