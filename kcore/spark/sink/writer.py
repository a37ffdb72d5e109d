"""Chooses the writer of a sink: files if option path names a data directory, else a producer for a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcore.spark.sink.broker_writer import BrokerStreamWriter, BrokerWriter
from kcore.spark.sink.bulk_writer import BulkStreamWriter, BulkWriter
from kcore.spark.sink.write_options import FileOptions, check_columns, write_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """For df.write.format("kcore").  Raises OptionError, DirectoryInUse, InvalidPartitions, OSError."""
    wanted = write_options(options)
    check_columns(schema, wanted.topic)
    return BulkWriter(wanted, overwrite) if isinstance(wanted, FileOptions) else BrokerWriter(wanted, overwrite)


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """For df.writeStream.format("kcore"); overwrite: output mode complete.  Raises as make_writer() does."""
    wanted = write_options(options)
    check_columns(schema, wanted.topic)
    if isinstance(wanted, FileOptions):
        return BulkStreamWriter(wanted, overwrite)
    return BrokerStreamWriter(wanted, overwrite)
