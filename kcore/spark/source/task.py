"""The description of a task that Spark sends to a worker: it is pickled, so it has only file names and offsets."""

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
    """In a Spark worker, once: exclude all objects that exist now (the imported modules) from garbage collection.

    The worker collects after each task; to traverse the modules each time took a fifth of a scan's time in Python.
    """
    if not _spared and TaskContext.get() is not None:
        _spared.append(True)
        gc.freeze()
