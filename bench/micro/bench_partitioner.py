"""Keys to partitions, beside kafka-python; records by partition; and all of a bulk load but the disk's part."""

import numpy as np
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from bench.conftest import record_role
from kcore.bulk.bulk_load import SegmentWriter
from kcore.log.partition_counts import PartitionCounts
from kcore.record.arrow import columns_from_arrow
from kcore.record.partitioner import assign_partitions, group_by_partition

RECORDS = 10_000  # what Spark hands over at a time
PARTITIONS = 6
KEYS = "10,000 keys of 8 bytes to partitions"
LOAD = "10,000 records of 100 bytes to segments of 6 partitions"


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, RECORDS * 92, dtype=np.uint8)
    ends = pa.py_buffer(np.arange(0, len(values) + 1, 92, dtype=np.int32))
    return pa.record_batch(
        {
            "key": pa.array([b"k%07d" % i for i in rng.integers(0, 10**6, RECORDS)], pa.binary()),
            "value": pa.Array.from_buffers(pa.binary(), RECORDS, [None, ends, pa.py_buffer(values)]),
        }
    )


@pytest.mark.benchmark(group=KEYS)
def bench_assign_partitions(benchmark, batch):
    record_role(benchmark, "ours", per_round=RECORDS, unit="record")
    key = columns_from_arrow(batch).key
    benchmark(assign_partitions, RECORDS, PARTITIONS, key)


@pytest.mark.benchmark(group=KEYS)
def bench_murmur2_of_kafka_python(benchmark, batch):
    record_role(benchmark, "peer", per_round=RECORDS, unit="record", label="kafka-python")
    keys = batch["key"].to_pylist()
    benchmark(lambda: [(murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in keys])


@pytest.mark.benchmark(group="10,000 records by partition")
def bench_group_by_partition(benchmark, batch):
    record_role(benchmark, "ours", per_round=RECORDS, unit="record")
    of_record, _ = assign_partitions(RECORDS, PARTITIONS, columns_from_arrow(batch).key)
    benchmark(group_by_partition, of_record, PARTITIONS)


@pytest.mark.benchmark(group=LOAD)
def bench_write_segments(benchmark, batch, tmp_path):
    record_role(benchmark, "ours", per_round=RECORDS, unit="record")
    writer = SegmentWriter(str(tmp_path / "staged"), PartitionCounts(new=PARTITIONS), topic="t")
    benchmark.pedantic(writer.append, (batch,), rounds=200, warmup_rounds=5)
    writer.discard()
