"""The Numba kernels, each beside the C that does the same: docs/spark.md says which of the two Spark's tasks run."""

import random

import numpy as np
import pytest

pytest.importorskip("numba")

from bench.conftest import record_role
from bench.micro.bench_memory_records import batch_of_size
from kcore.kernels.batch_scan import scan_batches
from kcore.kernels.index_scan import OffsetEntries, TimeEntries
from kcore.kernels.record_columns import record_columns
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of

SCAN_BYTES = 64 << 20
ENTRIES = 262_144  # one GiB of log at 4 KiB an entry
LOOKUPS = 1_000_000
NOW = 1_700_000_000_000
PER_BATCH, BATCHES = 140, 256

SIZES = [
    pytest.param(size, id=label, marks=pytest.mark.benchmark(group=f"headers as an array, {label} batches"))
    for label, size in (("1 KiB", 1024), ("16 KiB", 16 * 1024))
]


@pytest.mark.parametrize("size", SIZES)
def bench_headers_by_numba(benchmark, size):
    data = batch_of_size(size) * (SCAN_BYTES // size)
    record_role(benchmark, "ours", per_round=SCAN_BYTES // size, unit="batch", label="Numba")
    assert len(benchmark(scan_batches, data).batches) == SCAN_BYTES // size


@pytest.mark.parametrize("size", SIZES)
def bench_headers_by_c(benchmark, size):
    data = batch_of_size(size) * (SCAN_BYTES // size)
    record_role(benchmark, "peer", per_round=SCAN_BYTES // size, unit="batch", label="C")
    assert len(benchmark(lambda: MemoryRecords(data, check_crc=False).batches.to_numpy())) == SCAN_BYTES // size


def targets(order):
    rng = np.random.default_rng(20260)
    found = rng.integers(0, 4 * ENTRIES, LOOKUPS)
    return np.sort(found) if order == "sorted" else found


def orders(name):
    return pytest.mark.parametrize(
        "order",
        [
            pytest.param(order, id=order, marks=pytest.mark.benchmark(group=f"{name}, {order}"))
            for order in ("random", "sorted")
        ],
    )


KEYS = np.arange(ENTRIES) * 4 + 3


@orders("lookups in an offset index, all at once")
def bench_offsets_by_numba(benchmark, order):
    entries = OffsetEntries(0, KEYS.astype(np.int32), (KEYS * 1000).astype(np.int32))
    goal = {"at_least_per_s": 30e6 if order == "random" else 100e6}
    record_role(benchmark, "ours", per_round=LOOKUPS, unit="lookup", goal=goal, label="Numba")
    benchmark(entries.lookup, targets(order))


@orders("lookups in an offset index, all at once")
def bench_offsets_by_numpy(benchmark, order):
    keys, wanted = KEYS.astype(np.int32), targets(order).astype(np.int32)
    record_role(benchmark, "peer", per_round=LOOKUPS, unit="lookup", label="numpy searchsorted")
    benchmark(keys.searchsorted, wanted)


@orders("lookups in a time index, all at once")
def bench_timestamps_by_numba(benchmark, order):
    entries = TimeEntries(0, KEYS + NOW, KEYS.astype(np.int32))
    goal = {"at_least_per_s": 30e6 if order == "random" else 100e6}
    record_role(benchmark, "ours", per_round=LOOKUPS, unit="lookup", goal=goal, label="Numba")
    benchmark(entries.lookup, targets(order) + NOW)


@orders("lookups in a time index, all at once")
def bench_timestamps_by_numpy(benchmark, order):
    keys, wanted = KEYS + NOW, targets(order) + NOW
    record_role(benchmark, "peer", per_round=LOOKUPS, unit="lookup", label="numpy searchsorted")
    benchmark(keys.searchsorted, wanted)


@pytest.fixture(scope="module")
def data():
    rng, made = random.Random(4096), bytearray()
    for first in range(0, PER_BATCH * BATCHES, PER_BATCH):
        builder = RecordBatchBuilder(base_offset=first)
        for i in range(first, first + PER_BATCH):
            builder.append(rng.randbytes(100), timestamp=NOW + i)
        made += builder.build()
    return bytes(made)


@pytest.mark.benchmark(group="records of 100 bytes to extents")
def bench_records_by_numba(benchmark, data):
    batches = scan_batches(data).batches
    record_role(benchmark, "ours", per_round=PER_BATCH * BATCHES, unit="record", label="Numba")
    assert len(benchmark(record_columns, data, batches).offset) == PER_BATCH * BATCHES


@pytest.mark.benchmark(group="records of 100 bytes to extents")
def bench_records_by_c(benchmark, data):
    records = MemoryRecords(data)
    record_role(benchmark, "peer", per_round=PER_BATCH * BATCHES, unit="record", label="C")
    assert len(benchmark(columns_of, records, columns=["offset", "timestamp", "key", "value"])) == PER_BATCH * BATCHES
