"""Records of 100 bytes to columns and back, beside what memory and the CRC allow and beside aiokafka.

Kafka's own classes do the same in `make bench-peers`.
"""

import pytest

from bench.conftest import record_role
from kcore.record.column_batches import batches_of
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of

NOW = 1_700_000_000_000
PER_BATCH = 140  # what fits into a producer's 16 KiB
BATCHES = 256
RECORDS = PER_BATCH * BATCHES

COLUMNS = ["offset", "timestamp", "key", "value"]

READ = "records of 100 bytes to columns"
CHECKED = "records of 100 bytes to columns, CRC included"
ARROW = "records of 100 bytes to an Arrow table, CRC included"
WRITE = "columns of 100-byte records to batches, CRC included"


@pytest.fixture(scope="module")
def values(record_values):
    return [record_values[i % len(record_values)] for i in range(RECORDS)]


@pytest.fixture(scope="module")
def data(values):
    made = bytearray()
    for first in range(0, RECORDS, PER_BATCH):
        builder = RecordBatchBuilder(base_offset=first)
        for i in range(first, first + PER_BATCH):
            builder.append(values[i], timestamp=NOW + i)
        made += builder.build()
    return bytes(made)


@pytest.fixture(scope="module")
def table(values):
    pa = pytest.importorskip("pyarrow")
    return pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(range(NOW, NOW + RECORDS), pa.timestamp("ms", tz="UTC")),
        }
    )


@pytest.mark.benchmark(group=READ)
def bench_columns(benchmark, data):
    """Offset, timestamp, and where key and value lie."""
    records = MemoryRecords(data)
    goal = {"vs": "peer", "at_most": 1 / 15}
    record_role(benchmark, "ours", per_round=RECORDS, unit="record", goal=goal)
    assert len(benchmark(columns_of, records, columns=COLUMNS)) == RECORDS


@pytest.mark.benchmark(group=READ)
@pytest.mark.parametrize("columns", [["offset", "value"], [*COLUMNS, "headers"]], ids=" ".join)
def bench_columns_as_asked_for(benchmark, data, columns):
    records = MemoryRecords(data)
    record_role(benchmark, "ours", per_round=RECORDS, unit="record", label=" ".join(columns))
    benchmark(columns_of, records, columns=columns)


@pytest.mark.benchmark(group=CHECKED)
def bench_columns_with_crc(benchmark, data):
    goal = {"vs": "peer", "at_most": 1 / 15}
    record_role(benchmark, "ours", per_round=RECORDS, unit="record", goal=goal)
    assert len(benchmark(columns_of, data, columns=COLUMNS)) == RECORDS


@pytest.mark.benchmark(group=ARROW)
def bench_arrow_table(benchmark, data):
    pytest.importorskip("pyarrow")
    record_role(benchmark, "ours", per_round=RECORDS, unit="record")
    assert benchmark(lambda: columns_of(data).to_arrow()).num_rows == RECORDS


@pytest.mark.parametrize(
    "group", [pytest.param(g, marks=pytest.mark.benchmark(group=g)) for g in (READ, CHECKED, ARROW)]
)
def bench_columns_limit(benchmark, data, group):
    record_role(benchmark, "limit", per_round=RECORDS, unit="record", label="memcpy of the batches")
    benchmark(bytearray, data)


def read_fields(batches, check_crc):
    """The same four fields of each record; none is kept, so that the collector has nothing to do."""
    fields = None
    for batch in batches:
        if check_crc:
            assert batch.validate_crc()
        for record in batch:
            fields = record.offset, record.timestamp, record.key, record.value
    return fields


@pytest.mark.parametrize(
    "check_crc",
    [
        pytest.param(False, marks=pytest.mark.benchmark(group=READ)),
        pytest.param(True, marks=pytest.mark.benchmark(group=CHECKED)),
    ],
)
def bench_fields_by_aiokafka(benchmark, data, check_crc):
    from aiokafka.record.default_records import DefaultRecordBatch

    batches = [bytes(batch.buffer) for batch in MemoryRecords(data).batches]
    record_role(benchmark, "peer", per_round=RECORDS, unit="record", label="aiokafka")
    benchmark(lambda: read_fields([DefaultRecordBatch(batch) for batch in batches], check_crc))


@pytest.mark.benchmark(group=WRITE)
def bench_batches(benchmark, table):
    goal = {"vs": "peer", "at_most": 1 / 12}
    record_role(benchmark, "ours", per_round=RECORDS, unit="record", goal=goal)
    written = benchmark(batches_of, table, max_records=PER_BATCH)
    assert sum(batch.count for batch in MemoryRecords(written).batches) == RECORDS


@pytest.mark.benchmark(group=WRITE)
def bench_batches_limit(benchmark, data):
    """The same bytes copied, and their CRCs."""
    record_role(benchmark, "limit", per_round=RECORDS, unit="record", label="memcpy and CRC")
    benchmark(lambda: MemoryRecords(bytearray(data)))


@pytest.mark.benchmark(group=WRITE)
def bench_batches_by_aiokafka(benchmark, values):
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    def build():
        made = bytearray()
        for first in range(0, RECORDS, PER_BATCH):
            builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 24)
            for i in range(PER_BATCH):
                builder.append(i, NOW + first + i, None, values[first + i], [])
            made += builder.build()
        return made

    record_role(benchmark, "peer", per_round=RECORDS, unit="record", label="aiokafka")
    assert len(benchmark(build)) > 100 * RECORDS
