"""What Spark hands to a task: pickled, so it names files and offsets only."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from kcore.spark.source.partition_plan import OffsetRange


class Task(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"Task({', '.join(f'{r.topic_partition} {r.start}..{r.end}' for r in self.ranges)})"


_spared: list[bool] = []


def spare_the_collector() -> None:
    """In a worker of Spark, once: leave out of garbage collection what is there now, which is all the imports.

    The worker collects after each task; going through the modules each time took a fifth of a scan's time in Python.
    """
    if not _spared and TaskContext.get() is not None:
        _spared.append(True)
        gc.freeze()
