"""RecordBatchBuilder against the slow model and the builders of aiokafka and kafka-python."""

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference import record_batch as model
from tests.unit.record.batches import as_model, random_batch


def append_all(builder, records):
    for record in records:
        headers = [(name.decode("utf-8", "surrogateescape"), value) for name, value in record.headers]
        assert record.offset == builder.append(
            record.value, record.key, timestamp=record.timestamp, headers=headers, offset=record.offset
        )


@pytest.mark.parametrize("seed", range(30))
def test_the_batch_is_the_models_byte_for_byte(seed):
    rng = random.Random(seed)
    base_offset = rng.choice([0, 1000])
    batch = random_batch(rng, base_offset, gaps=seed % 2 == 1, codec="none")
    batch.last_offset_delta = batch.records[-1].offset - base_offset
    builder = RecordBatchBuilder(base_offset=base_offset, leader_epoch=batch.leader_epoch)
    append_all(builder, batch.records)
    want = model.encode_batch(batch)
    assert builder.size_in_bytes == len(want), f"seed={seed}"
    assert len(builder) == len(batch.records)
    assert bytes(builder.build()) == want, f"seed={seed}"


@pytest.mark.parametrize("codec", model.CODECS)
@pytest.mark.parametrize("seed", range(5))
def test_MRB_13_every_codec_reads_back_to_the_same_records(codec, seed):
    rng = random.Random(seed)
    batch = random_batch(rng, gaps=True, codec=codec)
    builder = RecordBatchBuilder(compression=codec)
    append_all(builder, batch.records)
    data = builder.build()
    assert isinstance(data, bytearray)
    assert model.decode_batch(data).records == batch.records, f"seed={seed}"
    assert [as_model(r) for r in MemoryRecords(data).records()] == batch.records


@pytest.mark.parametrize("peer", [AiokafkaBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_other_libraries_builders_make_batches_that_read_the_same(peer, codec):
    theirs = peer(2, codec, False, -1, -1, -1, 1 << 20)
    rng = random.Random(codec)
    records = [
        model.Record(i, 1_700_000_000_000 + i, rng.choice([None, b"key"]), rng.randbytes(70), [(b"h", b"v")] * (i % 3))
        for i in range(50)
    ]
    for r in records:
        headers = [(name.decode(), value) for name, value in r.headers]
        theirs.append(r.offset, r.timestamp, r.key, r.value, headers)
    data = bytes(theirs.build())
    assert [as_model(r) for r in MemoryRecords(data).records()] == records
    if codec == 0:
        ours = RecordBatchBuilder(leader_epoch=model.decode_batch(data).leader_epoch)
        append_all(ours, records)
        assert bytes(ours.build()) == data


@pytest.mark.parametrize("peer", [AiokafkaBatch, KafkaPythonBatch])
@pytest.mark.parametrize("codec", model.CODECS)
def test_other_libraries_read_what_we_build(peer, codec):
    builder = RecordBatchBuilder(base_offset=10, compression=codec, producer_id=7, producer_epoch=1, base_sequence=0)
    for i in range(30):
        builder.append(b"v%d" % i, None if i % 2 else b"k", timestamp=1000 + i, headers=[("h", None)] * (i % 2))
    if peer is KafkaPythonBatch and codec == "snappy":
        pytest.skip("kafka-python takes snappy from a library that is not a dependency here")
    batch = peer(bytes(builder.build()))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in batch] == [
        (10 + i, 1000 + i, None if i % 2 else b"k", b"v%d" % i, [("h", None)] * (i % 2)) for i in range(30)
    ]


def test_every_header_field_is_where_it_was_put():
    builder = RecordBatchBuilder(
        base_offset=5,
        timestamp_type="LogAppendTime",
        leader_epoch=3,
        producer_id=2**40,
        producer_epoch=4,
        base_sequence=9,
        is_transactional=True,
    )
    builder.append(b"a", timestamp=100)
    builder.append(b"b", timestamp=90, offset=8)
    (batch,) = MemoryRecords(builder.build()).batches
    assert (batch.base_offset, batch.last_offset, batch.count, batch.leader_epoch) == (5, 8, 2, 3)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (2**40, 4, 9)
    assert (batch.base_timestamp, batch.max_timestamp, batch.timestamp_type) == (100, 100, "LogAppendTime")
    assert batch.is_transactional and not batch.is_control


def test_MRB_08_timestamps_are_deltas_to_the_first_one():
    builder = RecordBatchBuilder()
    for timestamp in (1000, 900, 1063):
        builder.append(b"v", timestamp=timestamp)
    built = bytes(builder.build())
    (batch,) = MemoryRecords(built).batches
    assert batch.base_timestamp == int.from_bytes(built[27:35], "big") == 1000
    # Length, attributes, the delta as a zigzag varint: 0, -100 and 63.
    assert list(built[61:64]) == [14, 0, 0]
    assert list(built[69:73]) == [16, 0, 199, 1]
    assert list(built[78:81]) == [14, 0, 126]
    assert [r.timestamp for r in batch] == [1000, 900, 1063]


def test_MRB_08_the_first_timestamp_is_the_base_unless_there_is_a_delete_horizon():
    builder = RecordBatchBuilder(delete_horizon_ms=5000)
    builder.append(None, b"k", timestamp=100)
    (batch,) = MemoryRecords(builder.build()).batches
    assert batch.delete_horizon_ms == batch.base_timestamp == 5000
    assert [r.timestamp for r in batch] == [100]


def test_MRB_10_without_timestamps_the_max_is_none():
    builder = RecordBatchBuilder()
    builder.append(b"v")
    (batch,) = MemoryRecords(builder.build()).batches
    assert batch.max_timestamp == -1
    assert [r.timestamp for r in batch] == [-1]


def test_MRB_11_a_batch_without_records_is_empty():
    assert RecordBatchBuilder().build() == b""


def test_MRB_12_nothing_is_appended_after_build():
    builder = RecordBatchBuilder()
    builder.append(b"v")
    builder.build()
    with pytest.raises(ValueError, match="built"):
        builder.append(b"v")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_MRB_12_a_batch_is_built_once(codec):
    builder = RecordBatchBuilder(compression=codec)
    builder.append(b"v")
    built = bytes(builder.build())
    with pytest.raises(ValueError, match="built already"):
        builder.build()
    with pytest.raises(TypeError, match="once"):
        builder.__init__()
    assert [record.value for record in MemoryRecords(built).records()] == [b"v"]


def test_headers_from_a_generator_that_appends_or_builds():
    builder = RecordBatchBuilder()

    def appending():
        builder.append(b"inner")
        yield "k", b"v"

    def building():
        batches.append(builder.build())
        yield "k", b"v"

    batches = []
    builder.append(b"outer", headers=appending())
    with pytest.raises(ValueError, match="was built"):
        builder.append(b"late", headers=building())
    records = [(record.offset, record.value) for record in MemoryRecords(batches[0]).records()]
    assert records == [(0, b"inner"), (1, b"outer")]


@pytest.mark.parametrize("key", [b"k", None, 1])
def test_a_header_key_is_text(key):
    with pytest.raises(TypeError, match="header key must be str"):
        RecordBatchBuilder().append(b"v", headers=[(key, b"v")])


@pytest.mark.parametrize("horizon", [None, -5])
def test_a_timestamp_whose_delta_does_not_fit_is_refused(horizon):
    builder = RecordBatchBuilder(delete_horizon_ms=horizon)
    builder.append(b"v", timestamp=-1)
    with pytest.raises(ValueError, match="too far above"):
        builder.append(b"w", timestamp=2**63 - 1)
    assert len(list(MemoryRecords(builder.build()).records())) == 1


@pytest.mark.parametrize("offset", [4, 5, 7])
def test_MRB_03_an_offset_must_be_above_the_previous(offset):
    builder = RecordBatchBuilder(base_offset=5)
    builder.append(b"v", offset=7)
    with pytest.raises(ValueError, match=f"offset {offset} is not above"):
        builder.append(b"v", offset=offset)
    assert len(builder) == 1
    assert builder.append(b"v") == 8


def test_MRB_04_a_negative_timestamp_other_than_none_is_refused():
    builder = RecordBatchBuilder()
    with pytest.raises(ValueError, match="timestamp -2"):
        builder.append(b"v", timestamp=-2)
    assert builder.build() == b""


@pytest.mark.parametrize("key", [None, b"", b"abc"])
def test_MRB_06_a_control_batch_takes_control_records_only(key):
    with pytest.raises(ValueError, match="control"):
        RecordBatchBuilder(is_control=True).append(b"v", key)


def test_MRB_07_an_offset_too_far_from_the_base_is_refused():
    builder = RecordBatchBuilder(base_offset=10)
    with pytest.raises(ValueError, match="too far"):
        builder.append(b"v", offset=10 + 2**31)
    assert builder.append(b"v", offset=10 + 2**31 - 1) == 10 + 2**31 - 1
    with pytest.raises(ValueError, match="too far"):
        builder.append(b"v")
    (batch,) = MemoryRecords(builder.build()).batches
    assert [r.offset for r in batch] == [10 + 2**31 - 1]


def test_values_may_be_any_bytes_but_no_text_and_no_number():
    builder = RecordBatchBuilder()
    builder.append(bytearray(b"a"), memoryview(b"b"), headers=[("h", memoryview(b"c"))])
    (record,) = MemoryRecords(builder.build()).records()
    assert (record.key, record.value, record.headers) == (b"b", b"a", [("h", b"c")])
    for wrong in ("text", 5, [1]):
        with pytest.raises(TypeError):
            RecordBatchBuilder().append(wrong)


@pytest.mark.parametrize(
    "wrong", [{"compression": "brotli"}, {"timestamp_type": "NoTimestampType"}, {"base_offset": -1}]
)
def test_settings_that_do_not_exist_are_refused(wrong):
    with pytest.raises(ValueError):
        RecordBatchBuilder(**wrong)


DATA = st.none() | st.binary(max_size=300)
RECORDS = st.lists(
    st.tuples(
        DATA,
        DATA,
        st.integers(-1, 2**63 - 1),
        st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3),
        st.integers(1, 10_000),
    ),
    min_size=1,
    max_size=20,
)


@given(RECORDS, st.integers(0, 2**62), st.sampled_from(model.CODECS))
def test_any_records_come_back_from_kcore_and_from_the_model(records, base_offset, codec):
    builder = RecordBatchBuilder(base_offset=base_offset, compression=codec)
    offset, want = base_offset - 1, []
    for key, value, timestamp, headers, step in records:
        offset += step
        builder.append(value, key, timestamp=timestamp, headers=headers, offset=offset)
        want.append(Record(offset, timestamp, "CreateTime", key, value, headers or ()))
    data = builder.build()
    assert list(MemoryRecords(data).records()) == want
    assert model.decode_batch(data).records == [as_model(record) for record in want]
