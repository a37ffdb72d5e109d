"""Clients of the first Kafka versions: their Produce is converted up, their Fetch converted down."""

import itertools
import struct

import pytest

import kcore
from kcore.errors import (
    CorruptMessage,
    InvalidRecord,
    UnsupportedCompressionType,
    UnsupportedVersion,
)
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import produce as p
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.unit.server.client import Client

NOW = 1_700_000_000_000
RECORDS = [(b"k%d" % i if i % 3 else None, b"value %d" % i if i % 4 else None) for i in range(7)]


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker() as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


@pytest.fixture
def topic(broker, request):
    name = f"t{next(_NUMBERS)}"
    broker.create_topic(name, **getattr(request, "param", {}))
    return name


_NUMBERS = itertools.count()


def record_set(magic, codec="none", *, records=RECORDS, **options):
    builder = RecordBatchBuilder(magic=magic, compression=codec, **options)
    for i, (key, value) in enumerate(records):
        builder.append(value, key, timestamp=NOW + i)
    return bytes(builder.build())


def produce(client, topic, records, version, acks=1):
    request = p.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[p.TopicProduceData(name=topic, partition_data=[p.PartitionProduceData(index=0, records=records)])],
    )
    return client.ask(request, version).responses[0].partition_responses[0]


def fetch(client, topic, version, offset=0, max_bytes=1 << 20):
    partition = f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = f.FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[f.FetchTopic(topic=topic, partitions=[partition])]
    )
    return client.ask(request, version).responses[0].partitions[0]


def contents(records, *, timestamps=True):
    return [
        (r.offset, r.timestamp if timestamps else -1, r.key, r.value) for r in MemoryRecords(bytes(records)).records()
    ]


def expected(first, magic):
    return [(first + i, NOW + i if magic else -1, key, value) for i, (key, value) in enumerate(RECORDS)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_VAL_23_an_old_produce_is_stored_as_one_batch_of_magic_2(broker, client, topic, version, magic, codec):
    for first in (0, len(RECORDS)):
        answer = produce(client, topic, record_set(magic, codec), version)
        assert (answer.error_code, answer.base_offset) == (0, first)
    stored = MemoryRecords(bytes(fetch(client, topic, 4).records))
    assert [(b.magic, b.base_offset, b.last_offset, b.compression, b.leader_epoch) for b in stored.batches] == [
        (2, first, first + 6, codec, 0) for first in (0, 7)
    ]
    assert [(r.offset, r.timestamp, r.key, r.value) for r in stored.records()] == expected(0, magic) + expected(
        7, magic
    )


def test_an_old_produce_may_carry_a_new_batch_as_it_may_in_kafka(client, topic):
    assert produce(client, topic, record_set(2, "zstd"), 2).error_code == 0


@pytest.mark.parametrize("version", [3, 8, 9])
def test_a_newer_produce_takes_magic_2_only(client, topic, version):
    assert produce(client, topic, record_set(1), version).error_code == InvalidRecord.code


def test_an_old_produce_of_a_damaged_message_is_corrupt(client, topic):
    broken = bytearray(record_set(1))
    broken[-1] ^= 1
    assert produce(client, topic, bytes(broken), 2).error_code == CorruptMessage.code


def test_an_old_produce_of_two_magics_is_refused(client, topic):
    assert produce(client, topic, record_set(0) + record_set(1), 2).error_code == InvalidRecord.code


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [0, 2, 3, 9])
@pytest.mark.parametrize("data", [b"", b"hello world", record_set(1)[:30], record_set(2)[:-1]])
def test_LOG_04_a_produce_without_a_whole_batch_writes_nothing_and_fails_from_version_3_on(
    broker, client, topic, data, version, acks
):
    answer = produce(client, topic, data, version, acks)
    assert (answer.error_code, answer.base_offset) == (0 if version < 3 else InvalidRecord.code, -1)
    assert broker.log(topic).log_end_offset == 0


def test_a_message_that_is_cut_off_is_left_out_of_an_old_produce(client, topic):
    whole = record_set(1)
    assert produce(client, topic, whole + record_set(1)[:30], 2).error_code == 0
    assert contents(fetch(client, topic, 4).records) == expected(0, 1)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_VAL_23_API_12_an_old_fetch_gets_messages_that_it_can_read(client, topic, version, codec):
    builder = RecordBatchBuilder(compression=codec)
    for i, (key, value) in enumerate(RECORDS):
        builder.append(value, key, timestamp=NOW + i, headers=[("dropped", b"x")])
    produce(client, topic, bytes(builder.build()), 9)
    got = fetch(client, topic, version)
    assert (got.error_code, got.high_watermark) == (0, 7)
    magic = 0 if version < 2 else 1
    records = MemoryRecords(bytes(got.records))
    assert {(batch.magic, batch.compression) for batch in records.batches} == {(magic, codec)}
    assert len(records.batches) == (7 if codec == "none" else 1)
    assert contents(got.records) == expected(0, magic)


def test_an_old_fetch_from_the_middle_skips_plain_records_below_its_offset(client, topic):
    produce(client, topic, record_set(2), 9)
    assert contents(fetch(client, topic, 2, offset=4).records) == expected(0, 1)[4:]
    assert contents(fetch(client, topic, 4, offset=4).records) == expected(0, 2)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 11])
def test_API_10_up_to_version_2_the_byte_limit_is_hard(client, topic, version):
    """Then the first batch does not come whole: the client gets 12 bytes of one, which ask it for a larger limit."""
    produce(client, topic, record_set(2), 9)
    got = fetch(client, topic, version, max_bytes=80)
    assert (got.error_code, got.high_watermark) == (0, 7)
    if version <= 2:
        assert len(got.records) == 12
    else:
        assert contents(got.records) == expected(0, 1 if version < 4 else 2)


@pytest.mark.parametrize("version", [1, 3])
def test_a_timestamp_that_old_messages_have_no_room_for_is_none(client, topic, version):
    batch = bytearray(record_set(2, records=RECORDS[:1]))
    struct.pack_into(">qq", batch, 27, -5, -5)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert produce(client, topic, bytes(batch), 9).error_code == 0
    assert contents(fetch(client, topic, version).records) == [(0, -1, *RECORDS[0])]


def test_an_old_fetch_from_the_middle_gets_a_whole_wrapper(client, topic):
    produce(client, topic, record_set(2, "gzip"), 9)
    assert contents(fetch(client, topic, 2, offset=4).records) == expected(0, 1)


@pytest.mark.parametrize("topic", [{"message_timestamp_type": "LogAppendTime"}], indirect=True)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_append_time_goes_to_an_old_fetch_too(client, topic, codec):
    assert produce(client, topic, record_set(1, codec), 2).log_append_time_ms > NOW
    new = fetch(client, topic, 4)
    old = fetch(client, topic, 2)
    assert contents(new.records) == contents(old.records)
    assert {r.timestamp_type for r in MemoryRecords(bytes(old.records)).records()} == {"LogAppendTime"}


@pytest.mark.parametrize("version", [0, 3])
def test_zstd_is_refused_where_it_would_have_to_be_converted(client, topic, version):
    produce(client, topic, record_set(2, "gzip"), 9)
    produce(client, topic, record_set(2, "zstd"), 9)
    assert contents(fetch(client, topic, version).records, timestamps=False) == expected(0, 0)
    assert fetch(client, topic, version, offset=7).error_code == UnsupportedCompressionType.code
    assert fetch(client, topic, 4, offset=7).error_code == 0


@pytest.mark.parametrize("topic", [{"compression_type": "zstd"}], indirect=True)
def test_a_zstd_topic_is_read_from_version_10_on(client, topic):
    produce(client, topic, record_set(1, "gzip"), 2)
    assert [fetch(client, topic, version).error_code for version in (0, 4, 9, 10)] == [
        UnsupportedCompressionType.code
    ] * 3 + [0]
    stored = MemoryRecords(bytes(fetch(client, topic, 10).records))
    assert [batch.compression for batch in stored.batches] == ["zstd"]


@pytest.mark.parametrize("topic", [{"message_downconversion_enable": "false"}], indirect=True)
def test_API_12_a_topic_may_refuse_conversion(client, topic):
    produce(client, topic, record_set(2), 9)
    assert fetch(client, topic, 3).error_code == UnsupportedVersion.code
    assert fetch(client, topic, 4).error_code == 0


def test_the_first_batch_is_converted_however_small_the_fetch(client, topic):
    produce(client, topic, record_set(2, records=[(b"k", bytes(2000))] * 10), 9)
    size = len(record_set(2, records=[(b"k", bytes(2000))] * 10))
    got = fetch(client, topic, 3, max_bytes=size)
    # Old messages take more bytes than the batch did.
    assert len(got.records) > size
    assert len(contents(got.records)) == 10


def test_an_old_fetch_gets_the_first_bytes_of_a_batch_that_was_cut_off(client, topic):
    produce(client, topic, record_set(2), 9)
    got = fetch(client, topic, 1, max_bytes=70)
    assert got.error_code == 0
    assert bytes(got.records) == struct.pack(">qi", -1, 61)
    assert contents(got.records) == []
