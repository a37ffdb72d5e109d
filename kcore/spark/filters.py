"""What filters on topic, partition, offset and timestamp leave to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import datasource as spark

from kcore.common.topic_partition import TopicPartition

_MAX = 2**63 - 1


@dataclass
class Restriction:
    """Records that can pass: predicates on the partition, offset_from <= offset < offset_to."""

    topics: list[Callable[[Any], bool]] = field(default_factory=list)
    partitions: list[Callable[[Any], bool]] = field(default_factory=list)
    offset_from: int = 0
    offset_to: int = _MAX

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
        if name == "offset":
            if isinstance(one, spark.IsNotNull):
                return True
            bounds = _interval(one)
            if bounds is None:
                return False
            self.offset_from = max(self.offset_from, bounds[0])
            self.offset_to = min(self.offset_to, bounds[1])
            return not isinstance(one, spark.In)
        return False


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
    """A filter as a function of a value that is never null; None if it cannot be told."""
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


def _interval(one: spark.Filter) -> tuple[int, int] | None:
    """[from, to) outside which nothing passes."""
    told: Any = getattr(one, "value", None)
    if isinstance(one, spark.In):
        values = [value for value in told or () if value is not None]
        return (min(values), max(values) + 1) if values and all(map(_is_whole, values)) else None
    if not _is_whole(told):
        return None
    if isinstance(one, (spark.EqualTo, spark.EqualNullSafe)):
        return told, told + 1
    if isinstance(one, spark.GreaterThan):
        return told + 1, _MAX
    if isinstance(one, spark.GreaterThanOrEqual):
        return told, _MAX
    if isinstance(one, spark.LessThan):
        return 0, told
    if isinstance(one, spark.LessThanOrEqual):
        return 0, told + 1
    return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
