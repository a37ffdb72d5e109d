"""Sessions with the data source in them: of one's own, or made here for tests, tools and notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kcore.spark.java_runtime import use_java
from kcore.spark.packages import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Spares Arrow's Java a check of bounds and of the buffer's life for every value that Spark looks at.
_UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"

#: What a session on one machine has unless told otherwise: no web server, addresses that need no network.
LOCAL_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Between JVM and Python: a fifth of the system time less than by TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": _UNCHECKED_ARROW,
    "spark.executor.extraJavaOptions": _UNCHECKED_ARROW,
}


def enable(spark: SparkSession) -> SparkSession:
    """Give a session the format "kcore" with filters pushed down to the files; returns the session.

    Without it the format is found too, as soon as kcore is installed where Spark's Python is (module pyspark_kcore),
    but Spark applies filters to rows that were read.  Sets spark.sql.python.filterPushdown.enabled.  A session on one
    machine (local[N]) cuts what there is to read for its cores; a cluster's executors come and go.
    """
    check_packages()
    from kcore.spark.data_source import PushingKcoreDataSource

    class SessionsDataSource(PushingKcoreDataSource):
        parallelism = _cores(spark)

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(SessionsDataSource)
    return spark


def _cores(spark: SparkSession) -> int | None:
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is None or context.master.split("[")[0] != "local":
        return None
    scala = context._jsc.sc()  # spark.default.parallelism would be something else
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def local_session(
    master: str = "local[*]", app_name: str = "kcore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on this machine, enabled, its Python workers run by this interpreter.  A running one is given back as
    it is, but for what can still be set.  Raises RuntimeError when there is no Java, ImportError
    without what kcore[spark] brings."""
    check_packages()
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**LOCAL_CONF, **(conf or {})}.items():
        builder = builder.config(name, value)
    return enable(builder.getOrCreate())
