"""The cleaner's offset map: keys of 16 bytes, put and looked up as a cleaning does, batch by batch.

Kafka 4.3 does this in 302 (put) and 315 ns (get) for each key with its MD5 table, `make bench-peers` says what on this
machine.  Ours includes parsing the records.
"""

import struct

import pytest

from bench.conftest import record_role
from kcore.log.batch_filter import BatchFilter
from kcore.log.offset_map import OffsetMap
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder

KEYS = 500_000
PER_BATCH = 500
GOAL = {"at_most_ns": 100, "text": ">= 3x Kafka's 302 / 315 ns"}


@pytest.fixture(scope="module")
def keyed():
    data = bytearray()
    for base in range(0, KEYS, PER_BATCH):
        builder = RecordBatchBuilder(base_offset=base)
        for n in range(base, base + PER_BATCH):
            builder.append(b"v", struct.pack(">QQ", n * 0x9E3779B97F4A7C15 % 2**64, n))
        data += builder.build()
    return MemoryRecords(bytes(data))


@pytest.mark.benchmark(group="offset map, put of a new key")
def bench_put(benchmark, keyed):
    offset_map = OffsetMap(64 << 20)

    def fresh():
        offset_map.clear()
        return (keyed, 0, None), {}

    record_role(benchmark, "ours", per_round=KEYS, goal=GOAL)
    benchmark.pedantic(offset_map.add, setup=fresh, rounds=10, warmup_rounds=2)
    assert len(offset_map) == KEYS


@pytest.mark.benchmark(group="offset map, get of a known key")
def bench_get(benchmark, keyed):
    """Through the filter: every record is looked up and, being the latest of its key, copied."""
    offset_map = OffsetMap(64 << 20)
    offset_map.clear()
    offset_map.add(keyed, 0, None)
    batch_filter = BatchFilter(offset_map, None, None, now_ms=0, delete_retention_ms=0)
    record_role(benchmark, "ours", per_round=KEYS, goal=GOAL)
    benchmark.pedantic(batch_filter.filter, args=(keyed,), rounds=10, warmup_rounds=2)
    assert batch_filter.records_kept == batch_filter.records_read
