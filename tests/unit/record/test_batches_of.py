"""batches_of() writes what RecordBatchBuilder would, and what columns_of() reads back."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcore.record.column_batches import batches_of
from kcore.record.columns import binary_column, make_columns
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.record.record_columns import columns_of
from tests.reference import record_batch as model
from tests.unit.record.test_record_columns import random_log

KINDS = ("CreateTime", "LogAppendTime")


def records_of(data):
    return [tuple(record) for record in MemoryRecords(data).records()]


def built(records, offsets, groups, codec, base_sequence, **options):
    """The same by RecordBatchBuilder: groups of so many records."""
    data, at = b"", 0
    for count in groups:
        sequence = -1 if base_sequence < 0 else (base_sequence + offsets[at] - offsets[0]) % 2**31
        builder = RecordBatchBuilder(base_offset=offsets[at], compression=codec, base_sequence=sequence, **options)
        for offset, (_, timestamp, _, key, value, headers) in zip(
            offsets[at : at + count], records[at : at + count], strict=True
        ):
            builder.append(value, key, timestamp=timestamp, headers=headers, offset=offset)
        data += builder.build()
        at += count
    return data


@given(st.integers(0, 2**32), st.sampled_from(model.CODECS), st.booleans())
def test_the_bytes_are_those_of_the_builder(seed, codec, keep_offsets):
    rng = random.Random(seed)
    source = random_log(seed)
    records = records_of_data(source)
    options = {
        "compression": codec,
        "timestamp_type": rng.choice(KINDS),
        "leader_epoch": rng.choice([-1, 3]),
        "producer_id": rng.choice([-1, 2**40]),
        "producer_epoch": rng.choice([-1, 7]),
        "base_sequence": rng.choice([-1, 0, 2**31 - 2]),
        "is_transactional": rng.random() < 0.5,
    }
    base_offset = rng.choice([0, 2**40])
    offsets = [r[0] for r in records] if keep_offsets else list(range(base_offset, base_offset + len(records)))
    data = batches_of(
        columns_of(source),
        base_offset=None if keep_offsets else base_offset,
        max_records=rng.choice([1, 3, 1000]),
        max_bytes=rng.choice([1, 500, 5000, 1 << 30]),
        **options,
    )
    groups = [batch.count for batch in MemoryRecords(data).batches]
    assert sum(groups) == len(records)
    assert data == built(records, offsets, groups, options.pop("compression"), options.pop("base_sequence"), **options)


def records_of_data(source):
    return [
        tuple(record) for batch in MemoryRecords(source).batches if not batch.is_control for record in batch.records()
    ]


@given(st.integers(0, 2**32), st.sets(st.sampled_from(["timestamp", "key", "value", "headers"])))
def test_a_column_that_is_missing_is_as_one_without_values(seed, names):
    rng = random.Random(seed)
    read = columns_of(random_log(seed))
    there = {name: getattr(read, name) for name in names - {"headers"}}
    if "headers" in names:
        there["headers"] = read.header_columns()
    limits = {"max_records": rng.choice([1, 3, 1000]), "max_bytes": rng.choice([1, 500, 1 << 30])}
    data = batches_of(make_columns(len(read), **there), base_offset=7, **limits)
    nothing = {"timestamp": -1, "headers": ()}
    records = [
        tuple(
            value if name in names or name == "offset" else nothing.get(name)
            for name, value in zip(("offset", "timestamp", "", "key", "value", "headers"), record, strict=True)
        )
        for record in records_of(batches_of(read, base_offset=7))
    ]
    offsets = list(range(7, 7 + len(records)))
    groups = [batch.count for batch in MemoryRecords(data).batches]
    assert sum(groups) == len(records)
    assert data == built(records, offsets, groups, "none", -1)


@given(st.integers(0, 2**32), st.sampled_from(model.CODECS))
def test_what_was_read_and_written_is_read_again(seed, codec):
    source = random_log(seed)
    data = batches_of(columns_of(source), base_offset=None, compression=codec)
    assert [r[:2] + r[3:] for r in records_of(data)] == [r[:2] + r[3:] for r in records_of_data(source)]


@pytest.mark.parametrize("max_bytes", [100, 150, 1000, 5000])
def test_a_batch_is_as_large_as_max_bytes_allows(max_bytes):
    rng = random.Random(1)
    records = [model.Record(i, 0, None, rng.randbytes(rng.choice([10, 30, 400])), []) for i in range(200)]
    columns = columns_of(model.encode_batch(model.make_batch(records)))
    batches = list(MemoryRecords(batches_of(columns, max_bytes=max_bytes)).batches)
    assert [record.value for batch in batches for record in batch.records()] == [record.value for record in records]
    for batch, following in itertools.pairwise(batches):
        assert batch.size <= max_bytes or batch.count == 1
        first = next(iter(following.records()))
        assert batch.size + len(first.value) + 7 > max_bytes
    assert batches[0].base_offset == 0 and all(
        a.last_offset + 1 == b.base_offset for a, b in itertools.pairwise(batches)
    )


def test_offsets_more_than_31_bits_apart_go_into_batches_of_their_own():
    columns = make_columns(3, offset=np.array([5, 5 + 2**31 - 1, 5 + 2**31]))
    batches = list(MemoryRecords(batches_of(columns, base_offset=None)).batches)
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(5, 5 + 2**31 - 1), (5 + 2**31,) * 2]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"offset": [3, 3]}, {"base_offset": None}, "offset of a record at position 1: expected 4, found 3"),
        ({"offset": [-1, 3]}, {"base_offset": None}, "offset of a record"),
        ({"offset": [3, 2**63 - 1]}, {"base_offset": None}, "offset of a record"),
        ({"timestamp": [5, -2]}, {}, "timestamp of a record at position 1"),
        ({"timestamp": [-1, 2**63 - 1]}, {}, "timestamp of a record at position 1"),
        ({}, {"base_offset": -1}, "base offset -1"),
        ({}, {"base_offset": None}, "need the column offset"),
        ({}, {"base_offset": 2**63 - 2}, "offset of a record"),
        ({}, {"compression": "bzip2"}, "bzip2"),
        ({}, {"timestamp_type": "Never"}, "Never"),
        ({}, {"max_bytes": 0}, "batches of 0 bytes"),
        ({"timestamp": [1]}, {}, "column timestamp has 1 values, expected 2"),
    ],
)
def test_what_no_batch_can_hold_is_refused(columns, options, message):
    with pytest.raises(ValueError, match=message):
        batches_of(make_columns(2, **{name: np.array(values) for name, values in columns.items()}), **options)


def strings(offsets, data, valid=None):
    return binary_column(np.array(offsets, np.int32), data, valid, 0, len(offsets) - 1)


def test_strings_outside_their_buffer_are_refused():
    for offsets in ([0, 3, 2], [-1, 2], [0, 6], [7, 7]):
        with pytest.raises(ValueError, match="offset of a string"):
            strings(offsets, b"hello")
    with pytest.raises(ValueError, match="2 offsets"):
        binary_column(np.array([0, 1], np.int32), b"a", None, 0, 2)
    with pytest.raises(ValueError, match="8 validity bits"):
        binary_column(np.zeros(11, np.int32), b"", b"\xff", 0, 10)
    column = strings([0, 2, 2, 5], b"hello")
    column.size[1] = 4
    with pytest.raises(ValueError, match="value of a record at position 1"):
        batches_of(make_columns(3, value=column))


def test_headers_that_do_not_fit_together_are_refused():
    key, value = strings([0, 1, 2], b"ab"), strings([0, 1, 2], b"cd")
    for offsets in ([0, 3], [-1, 2], [2, 1], []):
        with pytest.raises(ValueError, match="offsets of headers"):
            make_columns(1, headers=(np.array(offsets), key, value))
    with pytest.raises(ValueError, match="key is null"):
        make_columns(1, headers=(np.array([0, 2]), strings([0, 1, 2], b"ab", b"\x01"), value))
    columns = make_columns(2, headers=(np.array([0, 2, 2]), key, value))
    assert [record[5] for record in records_of(batches_of(columns))] == [[("a", b"c"), ("b", b"d")], ()]


def test_no_records_make_no_bytes():
    assert batches_of(columns_of(b"")) == batches_of(make_columns(0), compression="zstd") == b""
