"""The format "kcore": the classes that Spark calls to plan a query, and in its tasks.

Spark imports this module wherever it runs Python: in the driver, in planning processes and in the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from kcore.common.optional_packages import missing_package

try:
    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        Filter,
        InputPartition,
    )
    from pyspark.sql.types import StructType
except ImportError as error:
    raise missing_package("kcore.spark", "spark", error) from None

from kcore.errors import ClusterMemberDirectory, DirectoryInUse, InvalidPartitions
from kcore.spark.columns import arrow_schema, spark_schema
from kcore.spark.options import OptionError, default_columns, read_options
from kcore.spark.source.batch_plan import BatchPlan
from kcore.spark.source.reader import read_ranges
from kcore.spark.source.stream_reader import StreamReader
from kcore.spark.source.task import Task, spare_the_collector

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Errors in the query or its options.  Their message is enough, without a traceback.
_MISTAKES = (
    OptionError,
    FileNotFoundError,
    NotADirectoryError,
    ClusterMemberDirectory,
    DirectoryInUse,
    InvalidPartitions,
)


def _without_traceback(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Raises errors in options without the inner frames: Spark would print them all before the message."""

    @wraps(method)
    def without_traceback(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except _MISTAKES as error:
            raise error.with_traceback(None) from None

    return without_traceback


class KcoreDataSource(DataSource):
    """Filters are applied by Spark unless option pushdown says otherwise: a reader that takes filters fails where
    spark.sql.python.filterPushdown.enabled is not set."""

    pushes_filters = False
    #: How many tasks run at once; None if only Spark knows it: its planning Python process does not get it.
    parallelism: int | None = None

    @classmethod
    def name(cls) -> str:
        return "kcore"

    @_without_traceback
    def schema(self) -> StructType:
        return spark_schema(default_columns(self.options))

    @_without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        pushes = self.pushes_filters if options.pushdown is None else options.pushdown
        return (PushingReader if pushes else Reader)(BatchPlan(options, self.parallelism), arrow_schema(schema))

    @_without_traceback
    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(read_options(self.options, streaming=True), arrow_schema(schema), self.parallelism)

    @_without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from kcore.spark.sink.writer import make_writer

        return make_writer(self.options, schema, overwrite)

    @_without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from kcore.spark.sink.writer import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


class PushingKcoreDataSource(KcoreDataSource):
    """The source that kcore.spark.enable() registers; enable() also sets the configuration that it needs."""

    pushes_filters = True


class Reader(DataSourceReader):
    def __init__(self, plan: BatchPlan, schema: pa.Schema) -> None:
        self.plan = plan
        self.schema = schema
        self.fail_on_data_loss = plan.options.fail_on_data_loss

    def __getstate__(self) -> dict[str, object]:
        # Only what the tasks need, not the plan of the driver.
        return {"schema": self.schema, "fail_on_data_loss": self.fail_on_data_loss}

    @_without_traceback
    def partitions(self) -> Sequence[InputPartition]:
        return [Task(ranges) for ranges in self.plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there are no partitions, Spark makes one of its own class.
        spare_the_collector()
        ranges = partition.ranges if isinstance(partition, Task) else ()
        return read_ranges(ranges, self.schema, fail_on_data_loss=self.fail_on_data_loss)


class PushingReader(Reader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self.plan.push(filters)
