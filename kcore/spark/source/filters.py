"""Filters on topic, partition, offset and timestamp, and the range of records that they leave."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import datasource as spark

from kcore.common.topic_partition import TopicPartition

_MIN, _MAX = -(2**63), 2**63 - 1
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


@dataclass
class Restriction:
    """Records that can pass: predicates on the partition, offset_from <= offset < offset_to, and
    time_from <= timestamp <= time_to in ms."""

    topics: list[Callable[[Any], bool]] = field(default_factory=list)
    partitions: list[Callable[[Any], bool]] = field(default_factory=list)
    offset_from: int = 0
    offset_to: int = _MAX
    time_from: int = _MIN
    time_to: int = _MAX

    def admits(self, tp: TopicPartition) -> bool:
        return all(test(tp.topic) for test in self.topics) and all(test(tp.partition) for test in self.partitions)

    def add(self, filters: Iterable[spark.Filter]) -> list[spark.Filter]:
        """Applies the filters that it can; returns those that Spark has to apply."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: spark.Filter) -> bool:
        """True if the restriction covers the filter completely, so that Spark need not apply it."""
        name = _column(one)
        if name in ("topic", "partition"):
            test = _predicate(one)
            if test is None:
                return False
            (self.topics if name == "topic" else self.partitions).append(test)
            return True
        if name not in ("offset", "timestamp"):
            return False
        if isinstance(one, spark.IsNotNull):
            return True
        if name == "offset":
            bounds = _interval(one, _whole)
            if bounds is not None:
                self.offset_from = max(self.offset_from, bounds[0])
                self.offset_to = min(self.offset_to, bounds[1] + 1)
        else:
            bounds = _interval(one, _microseconds)
            if bounds is not None:
                # Records have milliseconds: both ends move to the nearest one inside.
                self.time_from = max(self.time_from, -(-bounds[0] // 1000))
                self.time_to = min(self.time_to, bounds[1] // 1000)
        return bounds is not None and not isinstance(one, spark.In)


def _column(one: spark.Filter) -> str | None:
    inner = one.child if isinstance(one, spark.Not) else one
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else None


_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    spark.EqualTo: lambda value, operand: value == operand,
    spark.EqualNullSafe: lambda value, operand: value == operand,
    spark.GreaterThan: lambda value, operand: value > operand,
    spark.GreaterThanOrEqual: lambda value, operand: value >= operand,
    spark.LessThan: lambda value, operand: value < operand,
    spark.LessThanOrEqual: lambda value, operand: value <= operand,
    spark.In: lambda value, operand: value in operand,
    spark.StringStartsWith: lambda value, operand: value.startswith(operand),
    spark.StringEndsWith: lambda value, operand: value.endswith(operand),
    spark.StringContains: lambda value, operand: operand in value,
}


def _predicate(one: spark.Filter) -> Callable[[Any], bool] | None:
    """A filter as a function of a value that is never null; None if it cannot be expressed."""
    if isinstance(one, spark.IsNotNull):
        return lambda value: True
    if isinstance(one, spark.IsNull):
        return lambda value: False
    if isinstance(one, spark.Not):
        inner = _predicate(one.child)
        return None if inner is None else lambda value: not inner(value)
    compare = _COMPARISONS.get(type(one))
    operand = getattr(one, "value", None)
    # A comparison with null is neither true nor false: Spark applies such a filter.
    if compare is None or operand is None or (isinstance(operand, (list, tuple)) and None in operand):
        return None
    return lambda value: compare(value, operand)


def _interval(one: spark.Filter, number: Callable[[Any], int | None]) -> tuple[int, int] | None:
    """[least, greatest]: values outside it do not pass the filter.  number() turns a value into an integer, or None."""
    operand: Any = getattr(one, "value", None)
    if isinstance(one, spark.In):
        numbers = [number(value) for value in operand or () if value is not None]
        integers = [value for value in numbers if value is not None]
        return (min(integers), max(integers)) if integers and len(integers) == len(numbers) else None
    value = number(operand)
    if value is None:
        return None
    if isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
        return value, value
    if isinstance(one, spark.GreaterThan):
        return value + 1, _MAX
    if isinstance(one, spark.GreaterThanOrEqual):
        return value, _MAX
    if isinstance(one, spark.LessThan):
        return _MIN, value - 1
    if isinstance(one, spark.LessThanOrEqual):
        return _MIN, value
    return None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _microseconds(value: object) -> int | None:
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
