"""What Spark hands to a task: pickled, so it names files and offsets only."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from kcore.spark.partition_plan import OffsetRange


class Task(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"Task({', '.join(f'{r.topic_partition} {r.start}..{r.end}' for r in self.ranges)})"
