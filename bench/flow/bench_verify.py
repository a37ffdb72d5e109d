"""kcore verify of a data directory beside a plain read of the same bytes from memory."""

import shutil

import numpy as np
import pytest

from bench.conftest import record_role
from bench.micro.bench_log_segment import KIB, batch_of_size, batches_from
from kcore.inspect.verifier import Summary, verify
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

SEGMENTS = 4
SEGMENT_BYTES = 128 << 20
SIZES = (KIB, 16 * KIB)


def write_partition(directory, batch, count):
    """SEGMENTS closed segments, `count` batches of one offset each in every one."""
    directory.mkdir(parents=True)
    for base in range(0, SEGMENTS * count, count):
        segment = LogSegment(str(directory), base, max_segment_bytes=2**31 - 1)
        for offset in range(base, base + count, 1024):
            segment.append(
                MemoryRecords(batches_from(batch, offset, min(1024, base + count - offset)), check_crc=False)
            )
        segment.on_become_inactive()
        segment.close()


def cases(name):
    for size in SIZES:
        yield pytest.param(
            size, id=f"{size // KIB} KiB", marks=pytest.mark.benchmark(group=f"{name}, {size // KIB} KiB")
        )


@pytest.fixture(scope="module")
def data_dirs(bench_dir):
    """Batch size -> a data directory of half a GiB, its pages cached."""
    root = bench_dir / "verify"
    found = {}
    for size in SIZES:
        write_partition(root / str(size) / "t-0", batch_of_size(size), SEGMENT_BYTES // size)
        found[size] = root / str(size)
    yield found
    shutil.rmtree(root)


def mapped(data_dir):
    return [np.memmap(path, np.int64, "r") for path in sorted((data_dir / "t-0").glob("*.log"))]


def verified(data_dir, records):
    summary = Summary()
    problems = list(verify(str(data_dir), summary, records=records, jobs=2))
    assert not problems
    return summary


@pytest.mark.parametrize("size", cases("verify 512 MiB, CRCs and indexes"))
def bench_verify(benchmark, data_dirs, size):
    goal = {"vs": "limit", "at_most": 1 / 0.7}
    record_role(benchmark, "ours", per_round=SEGMENTS * SEGMENT_BYTES, unit="byte", goal=goal, label="two threads")
    summary = benchmark.pedantic(verified, (data_dirs[size], False), rounds=7, warmup_rounds=1)
    assert summary.batches == SEGMENTS * SEGMENT_BYTES // size


@pytest.mark.parametrize("size", cases("verify 512 MiB, CRCs and indexes"))
def bench_read_stream(benchmark, data_dirs, size):
    """One thread that adds up what is there: what memory gives a single reader."""
    words = mapped(data_dirs[size])
    record_role(benchmark, "limit", per_round=SEGMENTS * SEGMENT_BYTES, unit="byte", label="numpy sum of the mappings")
    benchmark.pedantic(lambda: [part.sum() for part in words], rounds=7, warmup_rounds=1)


@pytest.mark.benchmark(group="verify with records, 100 bytes each in 16 KiB batches")
def bench_verify_records(benchmark, bench_dir, record_values):
    """The default of `kcore verify`: every record parsed and counted, too."""
    builder = RecordBatchBuilder()
    count = 0
    while builder.size_in_bytes < 16 * KIB:
        builder.append(record_values[count], timestamp=1_700_000_000_000)
        count += 1
    batch = bytes(builder.build())
    directory = bench_dir / "verify-records"
    (directory / "t-0").mkdir(parents=True)
    segment = LogSegment(str(directory / "t-0"), 0)
    batches = (64 << 20) // len(batch)
    data = bytearray(batch * batches)
    for n in range(batches):
        data[n * len(batch) : n * len(batch) + 8] = (n * count).to_bytes(8, "big")
    segment.append(MemoryRecords(data))
    segment.on_become_inactive()
    segment.close()
    record_role(benchmark, "ours", per_round=batches * count, unit="record")
    summary = benchmark.pedantic(verified, (directory, True), rounds=7, warmup_rounds=1)
    assert summary.records == batches * count
    shutil.rmtree(directory)
