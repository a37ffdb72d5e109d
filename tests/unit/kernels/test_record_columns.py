"""The kernel's columns are those of the C reader, on sound and on broken records."""

import random

import numpy as np
import pytest

pytest.importorskip("numba")

from kcore.errors import CorruptMessage
from kcore.kernels.batch_scan import scan_batches
from kcore.kernels.record_columns import binary_views, is_plain, record_columns
from kcore.record.record_columns import columns_of
from tests import golden_data
from tests.reference import record_batch as model
from tests.unit.record.batches import random_batch


def strings(data, position, size):
    return [None if n < 0 else bytes(data[at : at + n]) for at, n in zip(position.tolist(), size.tolist(), strict=True)]


def assert_same_as_c(data, batches):
    columns = record_columns(data, batches)
    plain = b"".join(data[row["position"] : row["position"] + row["size"]] for row in batches)
    expected = columns_of(plain, keep_control=True, check_crc=False)
    assert columns.offset.tolist() == expected.offset.tolist()
    assert columns.timestamp.tolist() == expected.timestamp.tolist()
    assert columns.header_count.tolist() == expected.header_count.tolist()
    assert strings(data, columns.key_position, columns.key_size) == list(expected.key)
    assert strings(data, columns.value_position, columns.value_size) == list(expected.value)
    return columns


@pytest.mark.parametrize(("partition", "file"), golden_data.files(".log"))
def test_the_columns_of_a_segment_that_kafka_wrote_are_those_of_the_c_reader(partition, file):
    data = (golden_data.partition_dir(partition) / file).read_bytes()
    batches = scan_batches(data).batches
    assert_same_as_c(data, batches[is_plain(batches)])
    uncompressed = batches[batches["attributes"] & 7 == 0]
    assert_same_as_c(data, uncompressed)  # markers included


@pytest.mark.parametrize("seed", range(20))
def test_random_batches_give_the_records_that_went_in(seed):
    rng = random.Random(seed)
    batches = [random_batch(rng, 1000 * n, gaps=n % 2 == 1, codec="none") for n in range(6)]
    data = b"".join(model.encode_batch(batch) for batch in batches)
    columns = assert_same_as_c(data, scan_batches(data).batches)
    records = [record for batch in batches for record in batch.records]
    assert columns.offset.tolist() == [record.offset for record in records]
    assert strings(data, columns.value_position, columns.value_size) == [record.value for record in records]


@pytest.mark.parametrize("seed", range(10))
def test_broken_records_are_refused_by_both_for_the_same_reason(seed):
    rng = random.Random(seed)
    batch = random_batch(rng, 0, gaps=True, codec="none")
    data = model.encode_batch(batch)
    broken_ones = 0
    for _ in range(600):
        broken = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            at = rng.randrange(61, min(len(data), rng.choice([80, 300, 1 << 20])))
            broken[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, broken[at] ^ 1, rng.randrange(256)])
        broken = bytes(broken)
        rows = scan_batches(broken).batches
        try:
            columns_of(broken, check_crc=False)
        except CorruptMessage as error:
            broken_ones += 1
            reason = str(error).partition(" at position")[0]
            with pytest.raises(CorruptMessage) as refused:
                record_columns(broken, rows)
            assert str(refused.value).startswith(reason), (str(refused.value), str(error))
        else:
            assert_same_as_c(broken, rows)
    assert broken_ones > 10


def test_the_header_of_a_batch_is_not_believed():
    rng = random.Random(1)
    data = model.encode_batch(random_batch(rng, 0, codec="none"))
    (row,) = scan_batches(data).batches.copy()

    def changed(**fields):
        rows = np.array([row])
        for name, value in fields.items():
            rows[name] = value
        return rows

    for fields, reason in (
        ({"count": row["count"] + 1}, "record count"),
        ({"count": 2**31 - 1}, "record count"),
        ({"count": -1}, "record count"),
        ({"count": row["count"] - 1}, "bytes after the last record|record count"),
        ({"size": len(data) + 1}, "batch at position 0"),
        ({"size": -5}, "batch at position 0"),
        ({"size": 60}, "batch at position 0"),
        ({"position": -1}, "batch at position -1"),
        ({"position": 2**63 - 1}, "batch at position"),
        ({"position": 1}, "batch at position 1"),
    ):
        with pytest.raises(CorruptMessage, match=reason):
            record_columns(data, changed(**fields))


def test_what_the_kernel_does_not_read_is_refused_by_name():
    zstd = model.encode_batch(random_batch(random.Random(2), 0, codec="zstd"))
    with pytest.raises(ValueError, match=r"position 0 is compressed \(codec 4\)"):
        record_columns(zstd, scan_batches(zstd).batches)
    old = golden_data.golden_file("old-formats/v1-none.log").read_bytes()
    with pytest.raises(ValueError, match="position 0 is magic 1"):
        record_columns(old, scan_batches(old).batches)
    rows = scan_batches(zstd + old).batches
    assert not is_plain(rows).any()
    assert len(record_columns(zstd, rows[:0]).offset) == 0


def test_timestamps_are_those_of_the_batch_with_log_append_time():
    batch = random_batch(random.Random(3), 0, codec="none")
    batch.attributes |= model.LOG_APPEND_TIME
    batch.max_timestamp = 77
    data = model.encode_batch(batch)
    assert set(assert_same_as_c(data, scan_batches(data).batches).timestamp.tolist()) == {77}


def test_arrow_views_point_at_the_strings_and_copy_none():
    pa = pytest.importorskip("pyarrow")
    rng = random.Random(4)
    data = np.frombuffer(
        b"".join(model.encode_batch(random_batch(rng, 100 * n, codec="none")) for n in range(8)), np.uint8
    )
    columns = record_columns(data, scan_batches(data).batches)
    values = binary_views(data, columns.value_position, columns.value_size)
    values.validate(full=True)
    assert values.to_pylist() == strings(data, columns.value_position, columns.value_size)
    assert values.buffers()[2].address == data.ctypes.data
    assert values.cast(pa.binary()).to_pylist() == values.to_pylist()
    assert len(binary_views(data, columns.value_position[:0], columns.value_size[:0])) == 0
    for position, size in ((-1, 3), (len(data), 1), (0, -2), (2**63 - 1, 2**31 - 1)):
        with pytest.raises(ValueError, match="string 0"):
            binary_views(data, np.array([position], np.int64), np.array([size], np.int32))
