"""A segment of another process, read with pread, beside the same segment through a mapping (docs/decisions/0007).

Each round opens the segment, as a reader does that comes once: a mapping pays for its pages then."""

import pytest

from bench.conftest import record_role
from bench.micro.bench_log_segment import KIB, batch_of_size, batches_from
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_columns import ColumnsReader

SIZE = 256 * KIB * KIB
#: Bytes that become one set of columns, as in a task of kcore.spark.
COLUMN_BYTES = 2 * KIB * KIB


@pytest.fixture(scope="module")
def directory(bench_dir):
    directory = bench_dir / "foreign"
    directory.mkdir()
    segment = LogSegment(str(directory), 0)
    batch = batch_of_size(KIB)
    for base_offset in range(0, SIZE // KIB, 1024):
        segment.append(MemoryRecords(batches_from(batch, base_offset, 1024), check_crc=False))
    segment.close()
    yield str(directory)
    LogSegment(str(directory), 0).delete()
    directory.rmdir()


def scan(segment):
    assert segment.scan(None).truncated_bytes == 0


def scan_headers(segment):
    assert segment.scan(None, check_crc=False).truncated_bytes == 0


def read_columns(segment):
    reader = ColumnsReader()
    while segment.read_columns(reader, reader.previous + 1, 2**62, COLUMN_BYTES) is not None:
        pass


GROUP = "256 MiB of 1 KiB batches, another process's, "
OPERATIONS = [
    pytest.param(scan, marks=pytest.mark.benchmark(group=GROUP + "scan with CRC")),
    pytest.param(scan_headers, marks=pytest.mark.benchmark(group=GROUP + "scan of headers")),
    pytest.param(read_columns, marks=pytest.mark.benchmark(group=GROUP + "columns")),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def bench_foreign_segment(benchmark, directory, operation):
    run(benchmark, directory, operation, writable=False)


@pytest.mark.parametrize("operation", OPERATIONS)
def bench_own_segment(benchmark, directory, operation):
    run(benchmark, directory, operation, writable=True)


def run(benchmark, directory, operation, *, writable):
    def once():
        segment = LogSegment(directory, 0, writable=writable)
        operation(segment)
        segment.close(trim=False)

    if writable:
        record_role(benchmark, "limit", per_round=SIZE, unit="byte", label="through a mapping")
    else:
        record_role(benchmark, "ours", per_round=SIZE, unit="byte", goal={"vs": "limit", "at_most": 3})
    benchmark.pedantic(once, rounds=5, warmup_rounds=1)
