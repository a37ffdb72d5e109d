import traceback

import pytest

from kcore.log.open_log import open_log
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.spark.columns import spark_schema
from kcore.spark.data_source import KcoreDataSource
from kcore.spark.options import OptionError
from tests.unit.spark.data import FIRST_TIMESTAMP, make_records, write_partition


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(directory, rows): two topics, three partitions, many segments, all codecs."""
    directory = tmp_path_factory.mktemp("data")
    rows = []
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for topic, partition, count in (("orders", 0, 3000), ("orders", 1, 700), ("returns", 0, 50)):
        rows += write_partition(directory, make_records(topic, partition, count), codecs=codecs)
    return directory, rows


def as_tuple(row):
    return (
        row.topic,
        row.partition,
        row.offset,
        int(row.timestamp.timestamp() * 1000) if row.timestamp else None,
        None if row.key is None else bytes(row.key),
        None if row.value is None else bytes(row.value),
        [(header.key, None if header.value is None else bytes(header.value)) for header in row.headers or ()],
    )


def test_a_data_directory_is_read_with_the_schema_of_the_connector(spark, data):
    directory, rows = data
    frame = spark.read.format("kcore").option("includeHeaders", "true").load(str(directory))
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    read = frame.collect()
    assert sorted(map(as_tuple, read)) == sorted(map(tuple, rows))
    assert {row.timestampType for row in read} == {0}
    assert all(row.headers is None or row.headers for row in read), "no headers are null, as in the connector"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("offset >= 2995", lambda row: row.offset >= 2995),
        (
            "offset in (3, 699, 100000) and topic = 'orders'",
            lambda row: row.offset in (3, 699) and row.topic == "orders",
        ),
        ("partition = 1 and offset < 5", lambda row: row.partition == 1 and row.offset < 5),
        ("offset < -1", lambda row: False),
        ("offset > 9223372036854775806", lambda row: False),
        ("not (topic = 'orders') or offset = 12", lambda row: row.topic != "orders" or row.offset == 12),
        ("topic like 'ret%' and partition != 1", lambda row: row.topic == "returns"),
        (
            "timestamp >= timestamp'2023-11-14 22:13:25.0005'",
            lambda row: row.timestamp >= FIRST_TIMESTAMP + 5001,
        ),
    ],
)
def test_a_filter_finds_what_python_finds(spark, data, condition, expected):
    directory, rows = data
    frame = spark.read.format("kcore").schema("topic string, partition int, offset long, timestamp timestamp")
    rows_read = frame.load(str(directory)).where(condition).select("topic", "partition", "offset").collect()
    assert sorted(map(tuple, rows_read)) == sorted(row[:3] for row in rows if expected(row))


def test_only_what_a_record_may_be_without_can_be_null(spark, data):
    fields = spark.read.format("kcore").option("includeHeaders", "true").load(str(data[0])).schema.fields
    assert [field.name for field in fields if field.nullable] == ["key", "value", "headers"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("offset int", "column offset is bigint, not int"),
        ("offest long", "no column 'offest'; did you mean offset"),
        ("key binary NOT NULL", "column key can be null"),
        ("headers array<string>", "column headers is array<struct<key:string,value:binary>>"),
    ],
)
def test_a_schema_that_the_source_has_not_is_an_error(spark, data, schema, message):
    with pytest.raises(Exception, match=message):
        spark.read.format("kcore").schema(schema).load(str(data[0])).collect()


def test_the_format_is_found_without_being_registered(spark, data):
    frame = spark.newSession().read.format("kcore").schema("offset long").load(str(data[0]))
    assert frame.count() == len(data[1])


@pytest.mark.parametrize(
    "ask",
    [
        lambda options: KcoreDataSource(options | {"startingOffset": "earliest"}).reader(spark_schema(["offset"])),
        lambda options: KcoreDataSource(options | {"startingOffset": "a"}).streamReader(spark_schema(["offset"])),
        lambda options: KcoreDataSource(options | {"startingOffset": "a"}).writer(spark_schema(["value"]), False),
        lambda options: KcoreDataSource(options | {"startingOffset": "a"}).streamWriter(spark_schema(["value"]), False),
        lambda options: KcoreDataSource(options | {"columns": "startingOffset"}).schema(),
        lambda options: (
            KcoreDataSource(options | {"subscribe": "startingOffset"}).reader(spark_schema(["offset"])).partitions()
        ),
    ],
    ids=["reader", "streamReader", "writer", "streamWriter", "schema", "partitions"],
)
def test_a_mistake_in_an_option_is_raised_without_internal_frames(tmp_path, ask):
    write_partition(tmp_path, make_records("orders", 0, 1))
    with pytest.raises(OptionError, match="startingOffset") as failure:
        ask({"path": str(tmp_path)})
    # This test, the lambda, and the one that raises.
    assert len(list(traceback.walk_tb(failure.value.__traceback__))) <= 3
    assert failure.value.__cause__ is None and failure.value.__suppress_context__


def test_a_session_on_one_machine_has_a_task_for_each_core_and_others_go_by_bytes(spark, tmp_path):
    with open_log(tmp_path / "orders-0", "a") as log:
        for _ in range(40):
            builder = RecordBatchBuilder()
            builder.append(bytes(1_000_000))
            log.append_as_leader(builder.build())
    frame = spark.read.format("kcore").load(str(tmp_path))
    assert frame.rdd.getNumPartitions() == spark.sparkContext.defaultParallelism == 2
    assert len(KcoreDataSource({"path": str(tmp_path)}).reader(spark_schema(["offset"])).partitions()) == 1


def test_spark_prints_little_before_the_cause(spark, data):
    with pytest.raises(Exception, match="unknown option startingOffset; did you mean startingOffsets") as failure:
        spark.read.format("kcore").option("startingOffset", "earliest").load(str(data[0])).collect()
    lines = str(failure.value).splitlines()
    assert next(n for n, line in enumerate(lines) if "did you mean" in line) <= 5, lines
