"""Queries of a topic's files by kcore.open_topic(), beside the same logs read one after the other."""

import shutil

import numpy as np
import pytest

import kcore
from kcore.bulk.bulk_load import BulkLoad

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")

PARTITIONS, RECORDS = 4, 2_000_000


@pytest.fixture(scope="module")
def topic(bench_dir):
    root = bench_dir / "topic"
    root.mkdir()
    values = [bytes(value) for value in np.random.default_rng(7).integers(0, 64, (1000, 100), np.uint8)]
    with BulkLoad(str(root), topic="t", partitions=PARTITIONS, compression="lz4") as load:
        for first in range(0, RECORDS, 100_000):
            numbers = range(first, first + 100_000)
            columns = {
                "key": pa.array([b"key-%d" % (n % 5000) for n in numbers]),
                "value": pa.array([values[n % 1000] for n in numbers]),
                "timestamp": pa.array([1_700_000_000_000 + n for n in numbers]),
            }
            load.append(pa.RecordBatch.from_pydict(columns))
        load.commit()
    with kcore.open_topic(root, "t") as opened:
        yield opened
    shutil.rmtree(root)


def one_after_another(topic):
    return sum(batch.num_rows for log in topic.partitions.values() for batch in log.iter_arrow(columns=["key"]))


@pytest.mark.benchmark(group="all keys of a topic")
@pytest.mark.parametrize("way", ["open_topic", "one log after another"])
def bench_all_keys(benchmark, topic, way):
    benchmark.extra_info.update(records=RECORDS, bytes=sum(log.size for log in topic.partitions.values()))
    read = one_after_another if way != "open_topic" else lambda topic: topic.to_table(columns=["key"]).num_rows
    assert benchmark(read, topic) == RECORDS


@pytest.mark.benchmark(group="100 offsets of one partition of a topic")
@pytest.mark.parametrize("way", ["open_topic", "the log's own range"])
def bench_few_offsets(benchmark, topic, way):
    first = topic.partitions[2].log_end_offset // 2
    offset = ds.field("offset")
    condition = (ds.field("partition") == 2) & (offset >= first) & (offset < first + 100)

    def by_range():
        return topic.partitions[2].to_arrow(first, first + 100, ["key", "value"]).num_rows

    def by_filter():
        return topic.to_table(columns=["key", "value"], filter=condition).num_rows

    assert benchmark(by_filter if way == "open_topic" else by_range) == 100
