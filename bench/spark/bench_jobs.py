"""The jobs on Spark over 1 GiB in a warm session, local[2]: what Spark adds to what the plain commands take."""

import shutil

import pytest

pytest.importorskip("pyspark")

from bench.conftest import record_role
from kcore.inspect.verifier import Summary, verify
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.spark import jobs, local_session

KIB = 1 << 10
PARTITIONS, SEGMENTS = 2, 4
BATCH_SIZES = (KIB, 16 * KIB)


def batch_of_records(size, values):
    """100-byte records, as many as fit."""
    builder = RecordBatchBuilder()
    for n, value in enumerate(values):
        if builder.size_in_bytes + len(value) + 20 > size:
            break
        builder.append(value, b"key-%04d" % n, timestamp=1_700_000_000_000)
    return bytes(builder.build())


def write_partition(directory, batch, count):
    """Closed segments with `count` batches each, all of whose records have offsets of their own."""
    directory.mkdir(parents=True)
    (sound,) = MemoryRecords(batch).batches
    offset = 0
    for _ in range(SEGMENTS):
        segment = LogSegment(str(directory), offset)
        data = bytearray(batch * count)
        for n in range(count):
            data[n * len(batch) : n * len(batch) + 8] = offset.to_bytes(8, "big")
            offset += sound.count
        segment.append(MemoryRecords(data, check_crc=False))
        segment.on_become_inactive()
        segment.close()


@pytest.fixture(scope="module")
def data_dirs(bench_dir, record_values):
    """Batch size -> a data directory of 1 GiB, its pages cached, and how many bytes and records it has."""
    root = bench_dir / "jobs"
    found = {}
    for size in BATCH_SIZES:
        batch = batch_of_records(size, record_values)
        for partition in range(PARTITIONS):
            write_partition(
                root / str(size) / f"t-{partition}", batch, (1 << 30) // PARTITIONS // SEGMENTS // len(batch)
            )
        found[size] = root / str(size)
    yield found
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def spark():
    session = local_session("local[2]", "kcore bench", {"spark.driver.memory": "1g"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def cases():
    for size in BATCH_SIZES:
        for records in (True, False):
            what = "records too" if records else "CRCs and indexes"
            group = pytest.mark.benchmark(group=f"verify 1 GiB on two cores, {what}, {size // KIB} KiB")
            yield pytest.param(size, records, marks=group, id=f"{size // KIB} KiB, {what}")


CASES = list(cases())


@pytest.mark.parametrize(("size", "records"), CASES)
def bench_verify_on_spark(benchmark, spark, data_dirs, size, records):
    def run():
        rows = jobs.verify(spark, str(data_dirs[size]), records=records, quiet=True).collect()
        assert not any(row.findings for row in rows)
        return sum(row.bytes for row in rows)

    size_in_bytes = run()
    record_role(
        benchmark, "ours", per_round=size_in_bytes, unit="byte", goal={"at_least_per_s": 5e9}, label="Spark, local[2]"
    )
    # The JVM compiles what it runs often: the first rounds take twice as long.
    assert benchmark.pedantic(run, rounds=15, warmup_rounds=15) == size_in_bytes


@pytest.mark.parametrize(("size", "records"), CASES)
def bench_verify_with_threads(benchmark, data_dirs, size, records):
    def run():
        summary = Summary()
        assert not list(verify(str(data_dirs[size]), summary, records=records, jobs=2))
        return summary.bytes

    record_role(benchmark, "peer", per_round=run(), unit="byte", label="kcore verify, two threads")
    benchmark.pedantic(run, rounds=7, warmup_rounds=1)
