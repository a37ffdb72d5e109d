"""Sessions with the data source in them: of one's own, or made here for tests, tools and notebooks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcore.spark.java_runtime import use_java
from kcore.spark.packages import check_packages

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Spares Arrow's Java a check of bounds and of the buffer's life for every value that Spark looks at.
_UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"

#: What a session on one machine has by default: no web server, addresses that need no network.
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

    Where PYSPARK_PYTHON is not set, Spark's workers run whatever `python3` the PATH has, which may have no kcore.  A
    session on one machine then gets this interpreter, and PYSPARK_PYTHON is set; on a cluster, where paths may differ,
    a warning says so.  Raises ImportError without what kcore[spark] brings.
    """
    check_packages()
    from kcore.spark.data_source import PushingKcoreDataSource

    class SessionsDataSource(PushingKcoreDataSource):
        parallelism = _cores(spark)

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    _choose_python(spark)
    with _no_word_of_replacing(spark):
        spark.dataSource.register(SessionsDataSource)
    return spark


def _context(spark: SparkSession) -> SparkContext | None:
    """None for Spark Connect, which has none."""
    return getattr(spark, "sparkContext", None)


def _choose_python(spark: SparkSession) -> None:
    context = _context(spark)
    if context is None or "PYSPARK_PYTHON" in os.environ:
        return
    if str(context.master).split("[")[0] == "local":
        os.environ["PYSPARK_PYTHON"] = context.pythonExec = sys.executable
    else:
        warnings.warn(
            f"PYSPARK_PYTHON is not set: executors of {context.master} run `python3`, which must have kcore "
            f"(here it is {sys.executable}); set it before the session begins",
            stacklevel=3,
        )


@contextmanager
def _no_word_of_replacing(spark: SparkSession) -> Iterator[None]:
    """Spark warns that a format is registered which it has found by its name already (module pyspark_kcore): as meant.
    It is also here that it looks for the names, by the `python3` of the PATH where PYSPARK_PYTHON was not set in time:
    no need to read that this one has no kcore."""
    if _context(spark) is None:
        yield
        return
    log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    name = "org.apache.spark.sql.execution.datasources.DataSourceManager"
    level = log4j.LogManager.getLogger(name).getLevel()
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    try:
        yield
    finally:
        log4j.core.config.Configurator.setLevel(name, level)


def _cores(spark: SparkSession) -> int | None:
    context = _context(spark)
    if context is None or str(context.master).split("[")[0] != "local":
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
