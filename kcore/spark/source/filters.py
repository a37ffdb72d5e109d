"""What filters on topic, partition, offset and timestamp leave to be read."""

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
        """Take in what can be; gives back those that Spark has to apply."""
        return [one for one in filters if not self._take(one)]

    def _take(self, one: spark.Filter) -> bool:
        """Whether the filter has nothing more to do."""
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
    spark.EqualTo: lambda value, told: value == told,
    spark.EqualNullSafe: lambda value, told: value == told,
    spark.GreaterThan: lambda value, told: value > told,
    spark.GreaterThanOrEqual: lambda value, told: value >= told,
    spark.LessThan: lambda value, told: value < told,
    spark.LessThanOrEqual: lambda value, told: value <= told,
    spark.In: lambda value, told: value in told,
    spark.StringStartsWith: lambda value, told: value.startswith(told),
    spark.StringEndsWith: lambda value, told: value.endswith(told),
    spark.StringContains: lambda value, told: told in value,
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
    told = getattr(one, "value", None)
    # A null in a comparison makes it neither true nor false: Spark knows better.
    if compare is None or told is None or (isinstance(told, (list, tuple)) and None in told):
        return None
    return lambda value: compare(value, told)


def _interval(one: spark.Filter, number: Callable[[Any], int | None]) -> tuple[int, int] | None:
    """[least, greatest] outside which nothing passes, of values that are the numbers that `number` gives."""
    told: Any = getattr(one, "value", None)
    if isinstance(one, spark.In):
        values = [number(value) for value in told or () if value is not None]
        known = [value for value in values if value is not None]
        return (min(known), max(known)) if known and len(known) == len(values) else None
    value = number(told)
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
