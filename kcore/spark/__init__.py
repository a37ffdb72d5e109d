"""Kafka's segments as DataFrames: `spark.read.format("kcore")`.  Needs `pip install 'kcore[spark]'`."""

from kcore.spark.session import enable as enable
from kcore.spark.session import local_session as local_session

__all__ = ["enable", "local_session"]
