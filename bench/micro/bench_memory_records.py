"""Walking a buffer of batches: headers only, and with the CRC of every byte, beside what memory can stream."""

import numpy as np
import pytest

from bench.conftest import record_role
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

SCAN_BYTES = 256 * 1024 * 1024  # larger than any last-level cache


def batch_of_size(size):
    """One record whose batch has exactly this many bytes."""
    value = bytes(size)
    for cut in range(size):
        builder = RecordBatchBuilder()
        builder.append(value[cut:], timestamp=1_700_000_000_000)
        if builder.size_in_bytes == size:
            return bytes(builder.build())
    raise AssertionError(size)


@pytest.fixture(scope="module")
def segment():
    made = {}

    def make(size):
        if size not in made:
            made.clear()  # one at a time: they are large
            made[size] = batch_of_size(size) * (SCAN_BYTES // size)
        return made[size]

    yield make
    made.clear()


def sizes(name):
    for label, size in (("1 KiB", 1024), ("16 KiB", 16 * 1024)):
        yield pytest.param(size, id=label, marks=pytest.mark.benchmark(group=f"{name}, {label} batches"))


@pytest.mark.parametrize("size", sizes("header scan"))
def bench_header_scan(benchmark, segment, size):
    data = segment(size)
    goal = {"at_least_per_s": 60e6} if size == 1024 else {"at_least_per_s": 20e6}
    record_role(benchmark, "ours", per_round=len(data) // size, unit="batch", goal=goal)
    records = benchmark(MemoryRecords, data, check_crc=False)
    assert len(records) == len(data) // size


@pytest.mark.parametrize("size", sizes("header scan"))
def bench_header_scan_limit(benchmark, segment, size):
    """One load from each batch's header, at addresses known beforehand."""
    data = segment(size)
    lines = np.frombuffer(data, np.int64)[:: size // 8]
    record_role(benchmark, "limit", per_round=len(lines), unit="batch", label="one load a batch")
    benchmark(lines.sum)


@pytest.mark.parametrize("size", sizes("scan with CRC"))
def bench_scan_with_crc(benchmark, segment, size):
    data = segment(size)
    # 0.7x of the stream's rate is 1 / 0.7 of its time.
    record_role(benchmark, "ours", per_round=len(data), unit="byte", goal={"vs": "limit", "at_most": 1 / 0.7})
    records = benchmark(MemoryRecords, data)
    assert len(records) == len(data) // size


@pytest.mark.parametrize("size", sizes("scan with CRC"))
def bench_memory_read_stream(benchmark, segment, size):
    data = np.frombuffer(segment(size), np.int64)
    record_role(benchmark, "limit", per_round=data.nbytes, unit="byte", label="numpy sum")
    benchmark(data.sum)


RECORDS = 4096


@pytest.fixture(scope="module")
def batch(record_values):
    builder = RecordBatchBuilder()
    for i, value in enumerate(record_values):
        builder.append(value, timestamp=1_700_000_000_000 + i)
    return bytes(builder.build())


def read_all(make, data):
    for _ in make(data):
        pass


@pytest.mark.benchmark(group="records of 100 bytes as objects")
def bench_records(benchmark, batch):
    record_role(benchmark, "ours", per_round=RECORDS, unit="record", goal={"vs": "peer", "at_most": 0.5})
    benchmark(read_all, lambda data: MemoryRecords(data).records(), batch)


@pytest.mark.benchmark(group="records of 100 bytes as objects")
def bench_records_by_aiokafka(benchmark, batch):
    from aiokafka.record.default_records import DefaultRecordBatch

    def make(data):
        found = DefaultRecordBatch(data)
        assert found.validate_crc()
        return found

    record_role(benchmark, "peer", per_round=RECORDS, unit="record", label="aiokafka")
    benchmark(read_all, make, batch)


@pytest.mark.benchmark(group="batch of 100-byte records built")
def bench_build(benchmark, record_values):
    def build():
        builder = RecordBatchBuilder()
        for i, value in enumerate(record_values):
            builder.append(value, timestamp=1_700_000_000_000 + i)
        return builder.build()

    record_role(benchmark, "ours", per_round=RECORDS, unit="record", goal={"vs": "peer", "at_most": 1.0})
    assert MemoryRecords(benchmark(build)).batches[0].count == RECORDS


@pytest.mark.benchmark(group="batch of 100-byte records built")
def bench_build_by_aiokafka(benchmark, record_values):
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    def build():
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 24)
        for i, value in enumerate(record_values):
            builder.append(i, 1_700_000_000_000 + i, None, value, [])
        return builder.build()

    record_role(benchmark, "peer", per_round=RECORDS, unit="record", label="aiokafka")
    assert MemoryRecords(bytes(benchmark(build))).batches[0].count == RECORDS
