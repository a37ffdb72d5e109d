"""Validation of a leader's append: 100-byte records, the walk with its CRC included."""

import numpy as np
import pytest

from bench.conftest import record_role
from kcore.log.log_validator import validate_records
from kcore.record.compression import CODECS as CODEC_NUMBERS
from kcore.record.compression import decompress
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

NOW = 1_700_000_000_000
CODECS = ["none", "lz4", "zstd", "snappy", "gzip"]


def batch_of(values, count, codec):
    builder = RecordBatchBuilder(compression=codec)
    for i in range(count):
        builder.append(values[i % len(values)], timestamp=NOW + i)
    return bytes(builder.build())


def validate(data):
    return validate_records(
        MemoryRecords(data),
        from_client=True,
        compacted=False,
        timestamp_type="CreateTime",
        now_ms=NOW,
        before_max_ms=2**63 - 1,
        after_max_ms=3_600_000,
    )


def cases():
    # 160 records are a full producer batch of 16 KiB; 9,000 are close to a full request.
    for codec in CODECS:
        for count in (160, 9000) if codec == "none" else (9000,):
            label = f"{codec}, {count} records"
            yield pytest.param(codec, count, id=label, marks=pytest.mark.benchmark(group=f"validate, {label}"))


def many(function, data, times):
    for _ in range(times):
        function(data)


def times_of(count):
    return 50 if count < 1000 else 1


@pytest.mark.parametrize(("codec", "count"), cases())
def bench_validate(benchmark, record_values, codec, count):
    data = batch_of(record_values, count, codec)
    assert validate(data).record_count == count
    if codec != "none":
        goal = {"vs": "limit", "at_most": 1.5}
    elif count > 1000:
        goal = {"at_least_per_s": 100e6}
    else:
        goal = {"vs": "peer", "at_most": 0.1}
    record_role(benchmark, "ours", per_round=count * times_of(count), unit="record", goal=goal)
    benchmark(many, validate, data, times_of(count))


@pytest.mark.parametrize(("codec", "count"), cases())
def bench_validate_limit(benchmark, record_values, codec, count):
    """Reading the same bytes once; for compressed ones, decompressing them and no more."""
    data = batch_of(record_values, count, codec)
    if codec == "none":
        words = np.frombuffer(data[: len(data) // 8 * 8], np.int64)
        record_role(benchmark, "limit", per_round=count * times_of(count), unit="record", label="numpy sum")
        benchmark(many, np.sum, words, times_of(count))
    else:
        record_role(benchmark, "limit", per_round=count, unit="record", label="decompress")
        benchmark(decompress, CODEC_NUMBERS.index(codec), data[61:])


@pytest.mark.parametrize(("codec", "count"), cases())
def bench_validate_by_aiokafka(benchmark, record_values, codec, count):
    from aiokafka.record.default_records import DefaultRecordBatch

    def iterate(data):
        batch = DefaultRecordBatch(data)
        assert batch.validate_crc()
        for _ in batch:
            pass

    record_role(benchmark, "peer", per_round=count * times_of(count), unit="record", label="aiokafka")
    benchmark(many, iterate, batch_of(record_values, count, codec), times_of(count))


CONVERSIONS = [
    # 120 messages are 16 KiB, a full producer batch.
    pytest.param(count, id=f"{count} records", marks=pytest.mark.benchmark(group=f"magic 1 to 2, {count} records"))
    for count in (120, 9000)
]


def messages_of(values, count):
    builder = RecordBatchBuilder(magic=1)
    for i in range(count):
        builder.append(values[i % len(values)], timestamp=NOW + i)
    return bytes(builder.build())


@pytest.mark.parametrize("count", CONVERSIONS)
def bench_convert_up(benchmark, record_values, count):
    data = messages_of(record_values, count)
    assert validate(data).converted_count == count
    # Three times what LogValidator of Kafka 4.3 did on a quiet machine, which is without the CRC: 7.0 M records/s.
    goal = [{"at_least_per_s": 21e6}, {"vs": "peer", "at_most": 0.1}]
    record_role(benchmark, "ours", per_round=count * times_of(count), unit="record", goal=goal)
    benchmark(many, validate, data, times_of(count))


@pytest.mark.parametrize("count", CONVERSIONS)
def bench_convert_up_limit(benchmark, record_values, count):
    """Copying the same bytes once."""
    data = messages_of(record_values, count)
    record_role(benchmark, "limit", per_round=count * times_of(count), unit="record", label="memcpy")
    benchmark(many, bytearray, data, times_of(count))


@pytest.mark.parametrize("count", CONVERSIONS)
def bench_convert_up_by_aiokafka(benchmark, record_values, count):
    from aiokafka.record.default_records import DefaultRecordBatchBuilder
    from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords

    def convert(data):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, len(data))
        records = AiokafkaRecords(data)
        offset = 0
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            for record in batch:
                builder.append(offset, record.timestamp, record.key, record.value, [])
                offset += 1
        assert offset == count
        return builder.build()

    record_role(benchmark, "peer", per_round=count * times_of(count), unit="record", label="aiokafka")
    benchmark(many, convert, messages_of(record_values, count), times_of(count))
