"""Load from many tasks at once: a barrier stage whose tasks start together and count together.

Every task sends the others its clock, all start a while after the latest, warm up, and count what they do in a window
they agreed on; if one began late or stopped early, all take the narrower window in which everybody worked.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TextIO

from kcore.common.optional_packages import missing_package

try:
    import pyarrow as pa
except ImportError as error:
    raise missing_package("kcore.spark", "spark", error) from None

from kcore.common.file import is_directory
from kcore.common.progress import Progress
from kcore.spark.load.latency_histogram import LatencyHistogram
from kcore.spark.load.load_options import LoadOptions
from kcore.spark.load.load_window import START_DELAY_NS, Counted, Window, WindowRecorder, common_window
from kcore.spark.load.load_workloads import WORKLOADS, Task, Workload, remove_data_dirs

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

#: What a session needs so that a load that does not fit is refused at once: by default Spark tries for ten minutes.
SESSION_CONF = {
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
}
PERCENTS = (50.0, 90.0, 99.0, 99.9, 99.99)

#: A task gives up after so many operations that failed one after the other.
_ERRORS_IN_A_ROW = 100
#: Executors of a cluster come one by one.
_WAIT_FOR_SLOTS_S = 60.0
_TICK_S = 1.0

_TEXTS = pa.map_(pa.string(), pa.string())
#: A row for each task.  Moments are ns since 1970.  Counts are those inside the window that all tasks have in common;
#: errors are all, cpu_s is that of the task's process from start_ns to stop_ns.
ROW = pa.schema(
    [
        ("run_id", pa.string()),
        ("task", pa.int32()),
        ("tasks", pa.int32()),
        ("mode", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int32()),
        ("began_ns", pa.int64()),
        ("start_ns", pa.int64()),
        ("stop_ns", pa.int64()),
        ("window_start_ns", pa.int64()),
        ("window_stop_ns", pa.int64()),
        ("operations", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("errors", pa.int64()),
        ("error", pa.string()),
        ("cpu_s", pa.float64()),
        ("latency_counts", pa.list_(pa.int64())),
        ("config", _TEXTS),
        ("versions", _TEXTS),
        ("spark_version", pa.string()),
        ("master", pa.string()),
        ("cores", pa.int32()),
        ("kernel", pa.string()),
    ]
)

_THIS_HOST = ("localhost", "127.0.0.1", "::1", "[::1]")

Row = dict[str, Any]
#: Hands one text to all tasks and gives back that of each.
Gather = Callable[[str], Sequence[str]]


class LoadFailed(RuntimeError):
    """The load could not run at all, or not to its end."""


# -- in a task --------------------------------------------------------------------------------------------------------


class _TaskFunction:
    """What goes to the executors."""

    def __init__(self, options: LoadOptions, count: int, run_id: str) -> None:
        self._options = options
        self._count = count
        self._run_id = run_id

    def __call__(self, nothing: Iterable[object]) -> Iterator[Row]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        task = Task(self._options, context.partitionId(), self._count, self._run_id)
        yield measure(task, WORKLOADS[self._options.mode], context.allGather)


def measure(task: Task, make: Callable[[Task], Workload], gather: Gather) -> Row:
    """Drive one task's workload in step with the others'; what its row holds (see ROW) but for what the driver knows.

    Nothing that goes wrong in a workload is raised: it is counted, and its first message kept.  If one task cannot
    begin, none does.
    """
    clock = task.clock
    began = start = stop = 0
    cpu_s = 0.0
    recorder = WindowRecorder(Window(0, 0))
    counted = recorder.within(Window(0, 0))
    with ExitStack() as stack:
        workload: Workload | None = None
        try:
            workload = stack.enter_context(make(task))
        except Exception as error:
            task.failed(error)
        answers = [json.loads(text) for text in gather(json.dumps([clock.now(), workload is not None]))]
        all_ready = all(ready for _, ready in answers)
        if workload is not None and all_ready:
            options = task.options
            meant = max(now for now, _ in answers) + START_DELAY_NS
            first = meant + round(options.warm_up * 1e9)
            recorder = WindowRecorder(Window(first, first + max(round(options.seconds * 1e9), 1)))
            clock.wait_until(meant)
            began = clock.now()
            healthy = _work_until(recorder.window.start, task, workload, recorder)
            cpu = time.process_time()
            start = max(recorder.window.start, began)
            healthy = healthy and _work_until(recorder.window.stop, task, workload, recorder)
            stop = recorder.window.stop if healthy else clock.now()
            cpu_s = time.process_time() - cpu
        try:
            stack.close()
        except Exception as error:
            task.failed(error)
    if all_ready:
        windows = [Window(*json.loads(text)) for text in gather(json.dumps([start, stop]))]
        counted = recorder.within(common_window(windows))
    return {
        "task": task.number,
        "tasks": task.count,
        "mode": task.options.mode,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "began_ns": began,
        "start_ns": start,
        "stop_ns": stop,
        **_counts(counted),
        "errors": task.errors,
        "error": task.first_error,
        "cpu_s": cpu_s,
        "versions": _versions(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _work_until(moment: int, task: Task, workload: Workload, recorder: WindowRecorder) -> bool:
    """False if too many errors in a row ended the work before this moment."""
    in_a_row = 0
    while task.clock.now() < moment:
        try:
            workload.step(recorder)
            in_a_row = 0
        except Exception as error:
            task.failed(error)
            in_a_row += 1
            if in_a_row == _ERRORS_IN_A_ROW:
                return False
    return True


def _counts(counted: Counted) -> Row:
    return {
        "window_start_ns": counted.window.start,
        "window_stop_ns": counted.window.stop,
        "operations": counted.operations,
        "records": counted.records,
        "bytes": counted.bytes,
        "latency_counts": counted.latencies.counts.tolist(),
    }


def _versions() -> dict[str, str]:
    # The package itself is always loaded; no module of it may be imported by a room (tests/test_layers.py).
    versions = {"kcore": sys.modules["kcore"].__version__, "python": platform.python_version()}
    try:
        versions["confluent-kafka"] = version("confluent-kafka")
    except PackageNotFoundError:
        pass
    return versions


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadRun:
    """One run of so many tasks: their rows (see ROW), and what follows from them."""

    rows: tuple[Row, ...]
    driver_host: str

    @property
    def run_id(self) -> str:
        return str(self.rows[0]["run_id"])

    @property
    def mode(self) -> str:
        return str(self.rows[0]["mode"])

    @property
    def tasks(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> float:
        """How long the window was that all tasks have in common."""
        return Window(self.rows[0]["window_start_ns"], self.rows[0]["window_stop_ns"]).seconds

    def total(self, column: str) -> Any:
        return sum(row[column] for row in self.rows)

    def rate(self, column: str) -> float:
        """Of all tasks together, a second; 0 when there was no common window."""
        return float(self.total(column) / self.seconds) if self.seconds else 0.0

    @cached_property
    def latencies(self) -> LatencyHistogram:
        merged = LatencyHistogram()
        for row in self.rows:
            merged.merge(LatencyHistogram(row["latency_counts"]))
        return merged

    @property
    def start_skew_ns(self) -> int:
        """Between the first task that began to work and the last."""
        began = [row["began_ns"] for row in self.rows]
        return max(began) - min(began)

    @property
    def cpu_share(self) -> float:
        """CPU-seconds of the tasks' processes by the seconds they measured: less than 1 for a task that waited for a
        disk, a broker or a core, more for a client with threads."""
        measured = sum(Window(row["start_ns"], row["stop_ns"]).seconds for row in self.rows)
        return float(self.total("cpu_s") / measured) if measured else 0.0

    @property
    def errors(self) -> list[str]:
        """The first error of each task that had some."""
        return [
            f"task {row['task']} on {row['host']}: {row['error']}"
            + (f" (and {row['errors'] - 1} more)" if row["errors"] > 1 else "")
            for row in self.rows
            if row["errors"]
        ]

    @property
    def notes(self) -> list[str]:
        """Remarks that a reader of the figures needs."""
        notes = []
        hosts: dict[str, list[Row]] = {}
        for row in self.rows:
            hosts.setdefault(row["host"], []).append(row)
        if self.driver_host in hosts:
            notes.append(
                f"Spark's driver ran on {self.driver_host}, on the cores that were measured: good for comparisons, not "
                "for absolute figures"
            )
        broker = self.rows[0]["config"].get("bootstrap_servers", "").rpartition(":")[0]
        if broker and (broker in hosts or broker in _THIS_HOST):
            notes.append("the broker ran on these cores too, and its CPU-seconds are not counted")
        for host, rows in hosts.items():
            if rows[0]["cores"] and len(rows) > rows[0]["cores"]:
                notes.append(f"{len(rows)} tasks shared the {rows[0]['cores']} cores of {host}")
        if len(hosts) > 1:
            notes.append("the window is as exact as the clocks of the hosts are synchronized")
        if len({json.dumps(row["versions"], sort_keys=True) for row in self.rows}) > 1:
            notes.append("the tasks did not run the same versions")
        wanted = float(self.rows[0]["config"]["seconds"])
        if self.seconds < 0.99 * wanted:
            notes.append(f"all tasks worked together for {self.seconds:.3g} s only, of {wanted:g} s")
        elif not self.total("operations"):
            notes.append("no operation ended within the window: --seconds is too short")
        return notes

    def summary(self) -> Row:
        """The totals, with errors and notes."""
        percentiles = {f"p{percent:g}": self.latencies.percentile(percent) for percent in PERCENTS}
        return {
            "type": "run",
            "run_id": self.run_id,
            "mode": self.mode,
            "tasks": self.tasks,
            "seconds": self.seconds,
            **{column: self.total(column) for column in ("operations", "records", "bytes", "errors", "cpu_s")},
            "records_per_s": self.rate("records"),
            "bytes_per_s": self.rate("bytes"),
            "latency_ns": {name: value and value.ns for name, value in percentiles.items()},
            "latency_error_ns": {name: value and value.error_ns for name, value in percentiles.items()},
            "cpu_share": self.cpu_share,
            "start_skew_ns": self.start_skew_ns,
            "first_errors": self.errors,
            "notes": self.notes,
            **{name: self.rows[0][name] for name in ("config", "spark_version", "master")},
        }

    def json_lines(self) -> Iterator[str]:
        """The tasks' rows (type "task"), after them the summary (type "run")."""
        for row in self.rows:
            yield json.dumps({"type": "task", **row})
        yield json.dumps(self.summary())

    def lines(self) -> list[str]:
        """The result as lines of text for people."""
        tasks = "1 task" if self.tasks == 1 else f"{self.tasks} tasks"
        lines = [
            f"{self.mode}, {tasks}: {self.rate('records'):,.0f} records/s, {self.rate('bytes') / 1e6:,.1f} MB/s, "
            f"{self.total('operations'):,} operations in {self.seconds:.2f} s, {self.total('cpu_s'):.2f} CPU-s "
            f"({self.cpu_share:.0%} of the tasks' time)",
        ]
        percentiles = [(percent, self.latencies.percentile(percent)) for percent in PERCENTS]
        shown = ", ".join(f"p{percent:g} {_duration(at.ns)}" for percent, at in percentiles if at is not None)
        if shown:
            lines.append(f"  latency (each within 1.6 %): {shown}")
        lines.append(f"  started within {self.start_skew_ns / 1e6:.2f} ms of each other")
        lines += [f"  error: {error}" for error in self.errors]
        lines += [f"  note: {note}" for note in self.notes]
        return lines


def _duration(ns: float) -> str:
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= factor:
            return f"{ns / factor:.3g} {unit}"
    return f"{ns:.0f} ns"


@dataclass(frozen=True)
class LoadResult:
    """A run for each number of tasks in option tasks, in the same order."""

    runs: tuple[LoadRun, ...]
    spark: SparkSession | None = field(default=None, repr=False, compare=False)

    @property
    def rows(self) -> list[Row]:
        return [row for run in self.runs for row in run.rows]

    @property
    def dataframe(self) -> DataFrame:
        """A row for each task of each run (see ROW).  LoadFailed without a session."""
        if self.spark is None:
            raise LoadFailed("these results belong to no session")
        # One task cannot have all maps in Arrow's own form: pairs become maps by the schema.
        rows = [{**row, **{name: list(row[name].items()) for name in ("config", "versions")}} for row in self.rows]
        return self.spark.createDataFrame(pa.Table.from_pylist(rows, ROW))

    def json_lines(self) -> Iterator[str]:
        for run in self.runs:
            yield from run.json_lines()


# -- on the driver ----------------------------------------------------------------------------------------------------


def run(
    spark: SparkSession,
    options: LoadOptions,
    *,
    progress: TextIO | None = None,
    on_run: Callable[[LoadRun], None] | None = None,
) -> LoadResult:
    """Load as the options say, once for each number of tasks.

    progress: a stream for a line now and then; on_run is called with each run as it ends.  Errors of the tasks are in
    their rows.  Raises LoadFailed when the tasks do not fit or Spark ends them.
    """
    try:
        context = spark.sparkContext
    except Exception as error:  # Spark Connect's own class, which is not always there
        raise LoadFailed(f"a load needs a session of its own, not one of Spark Connect: {error}") from None
    check_slots(context, max(options.tasks))
    if str(context.master).startswith("local["):
        for path in options.paths:
            if not is_directory(path):
                raise LoadFailed(f"{path}: there is no such directory")
    runs = []
    for count in options.tasks:
        runs.append(_run_once(context, options, count, progress))
        if on_run is not None:
            on_run(runs[-1])
    return LoadResult(tuple(runs), spark)


def check_slots(context: SparkContext, count: int, wait_s: float = _WAIT_FOR_SLOTS_S) -> None:
    """Raises LoadFailed unless so many tasks can run at the same time; waits for executors that are still coming."""
    if context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise LoadFailed("all tasks of a load start at once: set spark.dynamicAllocation.enabled=false")
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    until = time.monotonic() + (0 if str(context.master).startswith("local[") else wait_s)
    while (slots := scala.maxNumConcurrentTasks(profile)) < count:
        if time.monotonic() >= until:
            raise LoadFailed(
                f"--tasks {count}: {context.master} runs only {slots} at a time, and all tasks of a load have to run "
                f"at once: take fewer tasks or more cores (--master local[{count}], or more executors)"
            )
        time.sleep(0.2)


def _run_once(context: SparkContext, options: LoadOptions, count: int, progress: TextIO | None) -> LoadRun:
    from py4j.protocol import Py4JJavaError

    run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    work = context.parallelize(range(count), count).barrier().mapPartitions(_TaskFunction(options, count, run_id))
    what = f"{options.mode}, {count} task{'s' if count > 1 else ''}"

    def collect() -> list[Row]:
        # Without it the tasks of a cancelled job would continue to their end.
        context.setLocalProperty("spark.job.interruptOnCancel", "true")
        rows: list[Row] = work.collect()
        return rows

    try:
        task_rows = _wait_for(collect, what, options.warm_up + options.seconds + START_DELAY_NS / 1e9, progress)
    except Py4JJavaError as error:
        message = str(error.java_exception.getMessage()).strip()
        raise LoadFailed(f"Spark has ended the load: {message.splitlines()[0]}") from error
    finally:
        # Tasks remove their files unless they were killed, as Ctrl-C does.
        if not options.keep:
            remove_data_dirs(options.paths, run_id)
    common = {
        "run_id": run_id,
        "config": options.config(),
        "spark_version": context.version,
        "master": context.master,
    }
    rows = [
        {name: {**row, **common}[name] for name in ROW.names} for row in sorted(task_rows, key=lambda row: row["task"])
    ]
    return LoadRun(tuple(rows), socket.gethostname())


def _wait_for(collect: Callable[[], list[Row]], what: str, expected_s: float, stream: TextIO | None) -> list[Row]:
    """What collect() gives, and meanwhile how much of the expected time is over: a barrier stage is one wave of tasks,
    so Spark's own bar would stand at 0 to the end.

    It runs in a thread, so that Ctrl-C finds the main thread's connection to the JVM free to cancel the job.
    """
    started = time.monotonic()
    progress = Progress(f"load {what}", expected_s, unit="seconds", quiet=stream is None, stream=stream)
    with ThreadPoolExecutor(1, "kcore-load") as thread:
        future = thread.submit(collect)
        try:
            while True:
                try:
                    return future.result(_TICK_S)
                except NotYet:
                    if future.done():  # it was the work that raised this
                        raise
                # Spark's own work around the tasks takes longer than expected; the rest is not counted.
                progress.done = min(time.monotonic() - started, expected_s)
                progress.show()
        finally:
            progress.clear()
