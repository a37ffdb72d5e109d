"""What pushed filters leave to be read, held to the filters themselves applied to every record."""

import datetime
import random

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from kcore.common.topic_partition import TopicPartition
from kcore.spark.options import read_options
from kcore.spark.source.batch_plan import BatchPlan
from kcore.spark.source.filters import Restriction
from kcore.spark.source.reader import read_ranges
from tests.unit.spark.data import FIRST_TIMESTAMP, make_records, schema_of, write_partition

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COLUMNS = ("topic", "partition", "offset", "timestamp")


def at(microseconds):
    return EPOCH + datetime.timedelta(microseconds=microseconds)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("data")
    rows = []
    for topic, partition in (("orders", 0), ("orders", 1), ("returns", 0)):
        made = make_records(topic, partition, 300, step_ms=7)
        random.Random(1).shuffle(made)  # timestamps do not ascend
        made = [row._replace(offset=offset) for offset, row in enumerate(made)]
        rows += write_partition(directory, made, codecs=("none", "zstd"))
    return directory, rows


TESTS = {
    EqualTo: lambda value, operand: value == operand,
    EqualNullSafe: lambda value, operand: value == operand,
    GreaterThan: lambda value, operand: value > operand,
    GreaterThanOrEqual: lambda value, operand: value >= operand,
    LessThan: lambda value, operand: value < operand,
    LessThanOrEqual: lambda value, operand: value <= operand,
    In: lambda value, operand: value in operand,
    StringStartsWith: lambda value, operand: value.startswith(operand),
    StringEndsWith: lambda value, operand: value.endswith(operand),
    StringContains: lambda value, operand: operand in value,
}


def passes(one, row):
    if isinstance(one, Not):
        return not passes(one.child, row)
    if isinstance(one, (IsNull, IsNotNull)):
        return isinstance(one, IsNotNull)
    name = one.attribute[0]
    value = at(row.timestamp * 1000) if name == "timestamp" else getattr(row, name)
    return TESTS[type(one)](value, one.value)


def random_filter(rng, rows):
    row = rng.choice(rows)
    name = rng.choice(["topic", "partition", "offset", "timestamp", "timestamp"])
    values = {
        "topic": ["orders", "returns", "ord", "s", "nothing"],
        "partition": [-1, 0, 1, 2],
        "offset": [row.offset, row.offset + 1, 0, -1, 299, 300, 2**63 - 1, -(2**63)],
        "timestamp": [at(row.timestamp * 1000 + rng.choice([-1, 0, 1, 500, 999])), at(0), at(-1), at(2**52)],
    }[name]
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNotNull]
    if name == "topic":
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    kind = rng.choice(kinds)
    if kind is IsNotNull:
        made = kind((name,))
    elif kind is In:
        made = In((name,), tuple(rng.sample(values, 2)))
    else:
        made = kind((name,), rng.choice(values))
    return Not(made) if rng.random() < 0.2 else made


@pytest.mark.parametrize("seed", range(150))
def test_no_record_is_lost_and_none_comes_that_a_taken_filter_stops(data, seed):
    directory, rows = data
    rng = random.Random(seed)
    filters = [random_filter(rng, rows) for _ in range(rng.randint(1, 4))]
    plan = BatchPlan(read_options({"path": str(directory)}, streaming=False))
    left = plan.push(filters)
    taken = [one for one in filters if not any(one is other for other in left)]
    passed = {
        (row["topic"], row["partition"], row["offset"])
        for ranges in plan.tasks()
        for batch in read_ranges(ranges, schema_of(*COLUMNS))
        for row in batch.to_pylist()
    }
    wanted = {row[:3] for row in rows if all(passes(one, row) for one in filters)}
    admitted = {row[:3] for row in rows if all(passes(one, row) for one in taken)}
    assert wanted <= passed <= admitted


def test_filters_that_the_files_cannot_decide_are_left_to_spark():
    left = [
        EqualTo(("value",), b"x"),
        IsNull(("key",)),
        EqualTo(("headers", "key"), "x"),
        Not(EqualTo(("offset",), 3)),
        In(("offset",), (3, None)),
        EqualTo(("partition",), None),
        LessThan(("timestamp",), datetime.datetime(2023, 1, 1)),
    ]
    restriction = Restriction()
    assert restriction.add(left) == left
    assert restriction.admits(TopicPartition("orders", 0))


def test_timestamps_between_milliseconds_move_to_the_nearest_inside():
    restriction = Restriction()
    assert restriction.add([GreaterThan(("timestamp",), at(5_000)), LessThan(("timestamp",), at(9_001))]) == []
    assert (restriction.time_from, restriction.time_to) == (6, 9)
    restriction = Restriction()
    restriction.add([EqualTo(("timestamp",), at(5_500))])
    assert restriction.time_from > restriction.time_to, "no record has half a millisecond"


def test_batches_before_a_window_of_time_are_not_read(data, monkeypatch):
    directory, _ = data
    plan = BatchPlan(read_options({"path": str(directory)}, streaming=False))
    plan.push([GreaterThanOrEqual(("timestamp",), at((FIRST_TIMESTAMP + 10**9) * 1000))])
    assert plan.tasks() == []
