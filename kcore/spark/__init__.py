"""Kafka's segments as DataFrames: `spark.read.format("kcore")`.  Needs `pip install 'kcore[spark]'`."""

from kcore.spark.session import enable as enable
from kcore.spark.session import local_session as local_session
from kcore.spark.source.progress import lag as lag

__all__ = ["enable", "lag", "local_session"]
