"""Where Spark looks for data sources by name: modules pyspark_* with a DefaultSource."""

from kcore.spark.data_source import KcoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
