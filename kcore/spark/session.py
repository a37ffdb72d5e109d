"""Adds the data source to Spark sessions, and makes local sessions for tests, tools and notebooks."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcore.common.progress import phase
from kcore.spark.java_runtime import use_java
from kcore.spark.packages import check_packages

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

#: Without it Arrow's Java code checks bounds and buffer lifetime at every value that Spark reads.
_UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"

#: Default settings of a local session: no web server, addresses that need no network.
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

    Without it Spark finds the format too, if kcore is installed in Spark's Python (module pyspark_kcore), but then
    Spark reads all rows and filters them itself.  Sets spark.sql.python.filterPushdown.enabled.  A session on one
    machine (local[N]) plans tasks for its cores; on a cluster the number of executors changes.

    Where PYSPARK_PYTHON is not set, Spark's workers run whatever `python3` the PATH has, which may have no kcore.  A
    session on one machine then gets this interpreter, and PYSPARK_PYTHON is set; on a cluster, where paths may differ,
    it warns.  Raises ImportError if packages of kcore[spark] are missing.
    """
    check_packages()
    from kcore.spark.data_source import PushingKcoreDataSource

    class SessionsDataSource(PushingKcoreDataSource):
        parallelism = _cores(spark)

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    _choose_python(spark)
    with _without_replacement_warning(spark):
        spark.dataSource.register(SessionsDataSource)
    return spark


def _context(spark: SparkSession) -> SparkContext | None:
    """The SparkContext; None for Spark Connect, which has none."""
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
def _without_replacement_warning(spark: SparkSession) -> Iterator[None]:
    """Suppresses two warnings of Spark.  It warns that the registered format replaces the one of module pyspark_kcore,
    which is intended.  It also searches for formats here; if PYSPARK_PYTHON was not set in time, it does so with the
    `python3` of the PATH and warns that this one has no kcore."""
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
    master: str = "local[*]", app_name: str = "kcore", conf: Mapping[str, str] | None = None, *, quiet: bool = False
) -> SparkSession:
    """An enabled session on this machine, whose Python workers run this interpreter.  Returns the running session if
    there is one; then only settings that can still change are applied.

    A start takes seconds, on a busy machine half a minute: stderr says so unless quiet.
    Raises RuntimeError without Java, ImportError if packages of kcore[spark] are missing."""
    check_packages()
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in {**LOCAL_CONF, **(conf or {})}.items():
        builder = builder.config(name, value)
    is_running = SparkSession.getActiveSession() is not None
    with phase(f"starting Java and Spark, {master}", quiet=quiet or is_running):
        return enable(builder.getOrCreate())
