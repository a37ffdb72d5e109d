"""RecordBatchBuilder writes what MemoryRecordsBuilder of Kafka wrote, in every magic (MRB)."""

import random

import pytest
from kafka.record.legacy_records import LegacyRecordBatch

from kcore.record.compression import CODECS, decompress
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record
from kcore.record.record_batch_builder import RecordBatchBuilder, estimate_size_in_bytes
from tests.unit.record.test_old_formats import GOLDEN, NAMES, row

NOW = 1_700_000_000_000
OLD_CODECS = ("none", "gzip", "snappy", "lz4")
KINDS = [(m, c) for m in range(3) for c in (*OLD_CODECS, "zstd") if m == 2 or c != "zstd"]


def rebuilt(batch):
    """A batch of the golden data, built from its records alone."""
    records = list(batch.records())
    stamped = batch.timestamp_type == "LogAppendTime"
    builder = RecordBatchBuilder(
        magic=batch.magic,
        base_offset=records[0].offset,
        compression=batch.compression,
        timestamp_type=batch.timestamp_type,
        log_append_time=batch.max_timestamp if stamped else None,
        leader_epoch=batch.leader_epoch,
    )
    timestamps = [record.timestamp for record in records]
    if stamped and batch.compression != "none":
        # Inside a wrapper of LogAppendTime are the times that the producer gave.
        timestamps = [message.max_timestamp for message in MemoryRecords(unpacked(batch)).batches]
    for record, timestamp in zip(records, timestamps, strict=True):
        builder.append(record.value, record.key, timestamp=timestamp, headers=record.headers, offset=record.offset)
    return builder.build()


def unpacked(batch):
    """The records' bytes as they were before compression."""
    header = {0: 26, 1: 34, 2: 61}[batch.magic]
    return decompress(CODECS.index(batch.compression), batch.buffer[header:], magic=batch.magic)


@pytest.mark.parametrize("name", [name for name in NAMES if "none" in name or name == "mixed.log"])
def test_MRB_13_uncompressed_it_is_kafkas_byte_for_byte(name):
    for batch in MemoryRecords((GOLDEN / name).read_bytes()).batches:
        if batch.compression == "none":
            assert bytes(rebuilt(batch)) == bytes(batch.buffer)


@pytest.mark.parametrize("name", [name for name in NAMES if "none" not in name])
def test_MRB_13_compressed_it_reads_back_as_kafkas_does(name):
    for batch in MemoryRecords((GOLDEN / name).read_bytes()).batches:
        (ours,) = MemoryRecords(rebuilt(batch)).batches
        assert ours.is_valid()
        for field in ("magic", "attributes", "base_offset", "last_offset", "count", "max_timestamp", "compression"):
            assert getattr(ours, field) == getattr(batch, field), field
        assert unpacked(ours) == unpacked(batch)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_MRB_13_kafka_python_reads_our_messages(magic, codec):
    builder = RecordBatchBuilder(magic=magic, compression=codec, base_offset=10)
    for i in range(20):
        builder.append(b"v%d" % i, b"k", timestamp=NOW + i)
    if codec == "snappy":
        pytest.importorskip("snappy")
    batch = LegacyRecordBatch(builder.build(), magic)
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.value) for r in batch] == [
        (10 + i, NOW + i if magic else None, b"v%d" % i) for i in range(20)
    ]


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_MRB_01_any_magic_is_written_with_offsets_assigned_anew(magic, codec):
    source = MemoryRecords((GOLDEN / "mixed.log").read_bytes())
    builder = RecordBatchBuilder(magic=magic, compression=codec, base_offset=1000)
    records = list(source.records())
    for i, record in enumerate(records):
        assert builder.append(record.value, record.key, timestamp=record.timestamp) == 1000 + i
    got = list(MemoryRecords(builder.build()).records())
    assert [row(record) for record in got] == [
        [1000 + i, record.timestamp if magic else -1, *row(record)[2:]] for i, record in enumerate(records)
    ]


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_MRB_02_the_estimate_is_exact_uncompressed_and_bounded_else(magic, codec):
    rng = random.Random(magic)
    for count in (1, 10, 3000):
        records = [
            Record(5 + i, NOW + rng.randrange(10**6), "CreateTime", None if i % 3 else b"key", rng.randbytes(i % 200))
            for i in range(count)
        ]
        if magic == 2:
            records[0] = Record(5, NOW, "CreateTime", b"k", None, [("name", b"value"), ("", None)])
        estimate = estimate_size_in_bytes(records, magic=magic, compression=codec, base_offset=5)
        builder = RecordBatchBuilder(magic=magic, compression=codec, base_offset=5, initial_size=estimate)
        for r in records:
            builder.append(r.value, r.key, timestamp=r.timestamp, headers=r.headers, offset=r.offset)
        built = builder.build()
        if codec == "none":
            assert estimate == len(built)
        else:
            plain = estimate_size_in_bytes(records, magic=magic, base_offset=5)
            assert estimate == min(max(plain // 2, 1024), 65536)
        # It grew where that was too little, and lost nothing.
        assert [(r.offset, r.key, r.value) for r in MemoryRecords(built).records()] == [
            (r.offset, r.key, r.value) for r in records
        ]


@pytest.mark.parametrize("magic", [0, 1])
def test_MRB_05_older_magics_take_no_headers(magic):
    builder = RecordBatchBuilder(magic=magic)
    with pytest.raises(ValueError, match=f"magic {magic} has no headers"):
        builder.append(b"v", headers=[("h", b"x")])
    builder.append(b"v", headers=[])
    assert [record.value for record in MemoryRecords(builder.build()).records()] == [b"v"]


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_MRB_09_the_max_timestamp_and_the_first_offset_with_it_are_tracked(magic, codec):
    builder = RecordBatchBuilder(magic=magic, compression=codec, base_offset=7)
    for timestamp in (5, 9, 7, 9):
        builder.append(b"v", timestamp=timestamp)
    if magic == 0:
        assert builder.info == (-1, 10)
    else:
        assert builder.info == (9, 8 if (magic, codec) == (1, "none") else 10)
    batches = MemoryRecords(builder.build()).batches
    assert max(batch.max_timestamp for batch in batches) == (9 if magic else -1)


@pytest.mark.parametrize(("magic", "codec"), [kind for kind in KINDS if kind[0]])
def test_MRB_10_with_log_append_time_that_is_the_max_timestamp(magic, codec):
    builder = RecordBatchBuilder(
        magic=magic, compression=codec, base_offset=7, timestamp_type="LogAppendTime", log_append_time=NOW
    )
    for timestamp in (5, 9, 7):
        builder.append(b"v", timestamp=timestamp)
    assert builder.info == (NOW, 7 if (magic, codec) == (1, "none") else 9)
    records = MemoryRecords(builder.build())
    assert {batch.max_timestamp for batch in records.batches} == {NOW}
    assert {(r.timestamp, r.timestamp_type) for r in records.records()} == {(NOW, "LogAppendTime")}


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_MRB_10_without_timestamps_the_offset_is_the_last(magic, codec):
    builder = RecordBatchBuilder(magic=magic, compression=codec, base_offset=7)
    for _ in range(3):
        builder.append(b"v")
    assert builder.info == (-1, 9)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"is_transactional": True},
        {"is_control": True},
        {"producer_id": 1},
        {"delete_horizon_ms": 5},
    ],
)
def test_what_older_magics_do_not_have_is_refused(magic, options):
    with pytest.raises(ValueError, match=f"magic {magic} has no"):
        RecordBatchBuilder(magic=magic, **options)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="magic 3"):
        RecordBatchBuilder(magic=3)
    with pytest.raises(ValueError, match="log append time with"):
        RecordBatchBuilder(log_append_time=5)
    with pytest.raises(ValueError, match="timestamp type"):
        RecordBatchBuilder(magic=1, timestamp_type="NoTimestampType")


@pytest.mark.parametrize("magic", [0, 1])
def test_MRB_12_messages_too_are_built_once(magic):
    builder = RecordBatchBuilder(magic=magic)
    assert len(builder) == 0
    builder.append(b"v")
    builder.build()
    with pytest.raises(ValueError, match="built"):
        builder.append(b"v")
    with pytest.raises(ValueError, match="built already"):
        builder.build()
    assert RecordBatchBuilder(magic=magic, compression="gzip").build() == b""
