"""A coordinator's load of committed offsets: 1,000 groups with an offset of each of 100 partitions, a batch a group."""

from __future__ import annotations

import pytest

from bench.conftest import record_role
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.group.committed_offset import OffsetAndMetadata
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.group_records import offset_commit_key, offset_commit_value
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

GROUPS, PARTITIONS = 1_000, 100
LOAD = "load of committed offsets"


@pytest.fixture(scope="module")
def offsets_log():
    data = bytearray()
    for number in range(GROUPS):
        builder = RecordBatchBuilder(base_offset=number * PARTITIONS)
        for partition in range(PARTITIONS):
            key = offset_commit_key(f"group-{number}", TopicPartition("orders", partition))
            builder.append(offset_commit_value(OffsetAndMetadata(number, "", -1, 1_000)), key, timestamp=1_000)
        data += builder.build()
    return MemoryRecords(bytes(data))


@pytest.mark.benchmark(group=LOAD)
def bench_load(benchmark, offsets_log):
    def load():
        group_load = GroupLoad(
            TopicPartition("__consumer_offsets", 0), MockTime(), lambda groups: None, lambda group: None
        )
        for batch in offsets_log.batches:
            group_load.read_batch(batch)
        group_load.finish()
        return group_load

    assert str(load()) == f"{GROUPS} groups and {GROUPS * PARTITIONS} offsets"
    record_role(benchmark, "ours", per_round=GROUPS * PARTITIONS, unit="op")
    benchmark.pedantic(load, rounds=9)


@pytest.mark.benchmark(group=LOAD)
def bench_copies_of_keys_and_values(benchmark, offsets_log):
    """What no load can do without: each record's key and value as an object."""

    def copy():
        return [(record.key, record.value) for batch in offsets_log.batches for record in batch]

    record_role(benchmark, "limit", per_round=GROUPS * PARTITIONS, unit="op", label="copy keys and values")
    benchmark.pedantic(copy, rounds=9)
