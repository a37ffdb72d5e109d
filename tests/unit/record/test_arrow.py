"""Tables hold what the records hold, under the names of Spark's Kafka source."""

import datetime
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcore.record.column_batches import batches_of
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_columns import columns_of
from tests.unit.record.test_record_columns import random_log

pa = pytest.importorskip("pyarrow")

from kcore.record import arrow  # noqa: E402


def expected_rows(data, *names):
    return [
        {
            "key": record.key,
            "value": record.value,
            "offset": record.offset,
            "timestamp": None if record.timestamp == -1 else record.timestamp,
            "timestampType": int(record.timestamp_type == "LogAppendTime"),
            "headers": [
                {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
                for name, value in record.headers
            ],
        }
        for batch in MemoryRecords(data).batches
        if not batch.is_control
        for record in batch.records()
    ]


def as_rows(table):
    milliseconds = table.set_column(
        table.schema.get_field_index("timestamp"), "timestamp", table["timestamp"].cast(pa.int64())
    )
    return milliseconds.to_pylist()


@given(st.integers(0, 2**32))
def test_a_table_holds_what_the_records_hold(seed):
    data = random_log(seed)
    table = columns_of(data).to_arrow()
    table.validate(full=True)
    assert as_rows(table) == expected_rows(data)


def test_topic_and_partition_are_columns_once_they_are_known():
    data = random_log(1, count=3)
    table = columns_of(data).to_arrow(topic="orders", partition=7)
    assert table.column_names == list(arrow.DEFAULT_COLUMNS)
    assert set(table["topic"].to_pylist()) == {"orders"} and set(table["partition"].to_pylist()) == {7}
    with pytest.raises(ValueError, match="topic"):
        columns_of(data).to_arrow(["topic"])


def test_the_schema_is_that_of_sparks_source_after_a_cast():
    """Spark wants a plain string, and microseconds."""
    spark = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
    )
    data = random_log(2, count=3)
    table = columns_of(data).to_arrow(spark.names, topic="t", partition=0).cast(spark)
    assert table.num_rows == len(columns_of(data))


def test_every_column_can_be_requested_in_any_order():
    names = list(reversed(arrow.COLUMNS))
    table = columns_of(random_log(3, count=5)).to_arrow(names, topic="t", partition=0)
    table.validate(full=True)
    assert table.column_names == names and table.schema == arrow.schema(names)


def test_an_unknown_column_is_refused_by_name():
    with pytest.raises(ValueError, match="'ofset' is none of key, value"):
        columns_of(b"").to_arrow(["ofset"])
    with pytest.raises(TypeError, match="sequence of names"):
        columns_of(b"").to_arrow("offset")


def test_no_records_make_an_empty_table():
    assert columns_of(b"").to_arrow(topic="t", partition=0).schema == arrow.schema()


def test_columns_past_two_gigabytes_would_become_several_chunks(monkeypatch):
    monkeypatch.setattr(arrow, "_MAX_BYTES", 300)
    chunks = 0
    for seed in range(20):
        data = random_log(seed, count=5)
        table = columns_of(data).to_arrow()
        assert as_rows(table) == expected_rows(data)
        chunks = max(chunks, table["value"].num_chunks)
        for chunk in table["value"].chunks:
            assert len(chunk) == 1 or sum(len(value or b"") for value in chunk.to_pylist()) <= 300
    assert chunks > 3


def test_without_pyarrow_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"kcore\[arrow\]"):
        columns_of(b"").to_arrow()


@given(st.integers(0, 2**32))
def test_a_table_becomes_the_batches_it_came_from(seed):
    columns = columns_of(random_log(seed))
    table = columns.to_arrow()
    # As arrays come from elsewhere: sliced, in several chunks.
    pieces = pa.concat_tables([table.slice(0, 5), table.slice(5, 4), table.slice(9)])
    data = batches_of(pieces, base_offset=None)
    assert as_rows(columns_of(data).to_arrow()) == [{**row, "timestampType": 0} for row in as_rows(table)]


def test_columns_of_other_types_are_taken():
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    records = {
        "key": pa.array(["a", "b", None]).dictionary_encode(),
        "value": pa.array([b"1", None, b"3"], pa.large_binary()),
        "timestamp": pa.array([moment, None, moment], pa.timestamp("us", tz="UTC")),
        "headers": pa.array(
            [[{"value": b"1", "key": "h"}], None, []],
            pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())])),
        ),
        "more": [1, 2, 3],
    }
    records = [tuple(record)[1:] for record in MemoryRecords(batches_of(records)).records()]
    assert records == [
        (1_700_000_000_123, "CreateTime", b"a", b"1", [("h", b"1")]),
        (-1, "CreateTime", b"b", None, ()),
        (1_700_000_000_123, "CreateTime", None, b"3", ()),
    ]
    assert batches_of({"value": ["x"], "timestamp": [7]}) == batches_of(
        pa.record_batch({"value": [b"x"], "timestamp": pa.array([7], pa.int32())})
    )


def test_a_list_that_is_null_may_hide_headers():
    pairs = pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), pairs, mask=pa.array([True, False]))
    records = MemoryRecords(batches_of({"value": ["x", "y"], "headers": lists})).records()
    assert [list(record.headers) for record in records] == [[], [("b", b"2")]]


def test_a_table_without_key_and_value_is_refused():
    with pytest.raises(ValueError, match="neither key nor value among the columns valu"):
        batches_of({"valu": [b"x"]})
    with pytest.raises(ValueError, match="offset is null"):
        batches_of({"value": [b"x"], "offset": pa.array([None], pa.int64())}, base_offset=None)
