"""Runs work on files as Spark tasks: few large tasks with small results, progress on stderr."""

from __future__ import annotations

import heapq
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from kcore.common.progress import Progress
from kcore.errors import KafkaError
from kcore.spark.source.task import spare_the_collector

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

#: Target size of a task: it takes some hundredths of a second; the task itself costs one hundredth.
TARGET_BYTES = 512 << 20
#: Smaller work is not worth a task of its own.
_SMALLEST_BYTES = 32 << 20
_TICK_SECONDS = 0.1

T = TypeVar("T")
R = TypeVar("R")


def checked(paths: Sequence[str]) -> Iterator[str]:
    """The directories, checked before the job begins.  Raises for one that does not exist or is none: OSError;
    ValueError without a path."""
    if not paths:
        raise ValueError("no path given")
    for path in paths:
        os.listdir(path)
    yield from paths


class Sized(NamedTuple, Generic[T]):
    """A piece of work, and how many bytes it reads."""

    size: int
    work: T


def balanced(pieces: Sequence[Sized[T]], parallelism: int, target: int = TARGET_BYTES) -> list[Sized[list[T]]]:
    """The pieces as tasks of some `target` bytes, as even as they can be; at least `parallelism`, if there are pieces
    for them.  The largest come first, so that the last to end is a small one."""
    total = sum(piece.size for piece in pieces)
    count = min(len(pieces), max(parallelism, -(-total // target)))
    tasks: list[list[T]] = [[] for _ in range(count)]
    heap = [(0, n) for n in range(count)]
    sizes = [0] * count
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        size, n = heapq.heappop(heap)
        tasks[n].append(piece.work)
        sizes[n] = size + piece.size
        heapq.heappush(heap, (sizes[n], n))
    order = sorted(range(count), key=lambda n: -sizes[n])
    return [Sized(sizes[n], tasks[n]) for n in order]


def target_bytes(total: int, parallelism: int) -> int:
    """The task size with which all parallel tasks have the same amount of work."""
    return max(_SMALLEST_BYTES, min(TARGET_BYTES, -(-total // parallelism)))


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time.  Raises RuntimeError for a Spark Connect session, which runs no plain tasks."""
    return int(_context(spark).defaultParallelism)


def run_tasks(
    spark: SparkSession, what: str, tasks: Sequence[Sized[T]], work: Callable[[T], R], *, quiet: bool = False
) -> list[R]:
    """The results of work(task), in the order of the tasks.

    work is a function of a module, or a functools.partial of one: it goes to the executors.  Raises what it raised of
    OSError, KafkaError, ImportError and ValueError, on the first task in order; anything else as Spark raises it.
    """
    if not tasks:
        return []
    context = _context(spark)
    progress = Progress(what, sum(task.size for task in tasks), quiet=quiet)
    with _shown(context, what, len(tasks), progress):
        works = context.parallelize([task.work for task in tasks], len(tasks))
        outcomes: list[_Outcome] = works.map(_Guarded(work)).collect()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.result for outcome in outcomes]


def collected(frame: DataFrame, what: str, count: int, total_bytes: int, quiet: bool) -> list[Row]:
    """The rows of a frame whose first stage has `count` tasks; progress as in run_tasks()."""
    with _shown(_context(frame.sparkSession), what, count, Progress(what, total_bytes, quiet=quiet)):
        return frame.collect()


def frame_of(spark: SparkSession, rows: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    """The result of a job as a DataFrame; the rows are already in the memory of the driver."""
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema))


class _Outcome(NamedTuple):
    result: Any
    error: Exception | None


class _Guarded:
    """Returns expected errors as values.  Raised in a task, they would come back with a page of Java frames."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def __call__(self, task: Any) -> _Outcome:
        spare_the_collector()
        try:
            return _Outcome(self._work(task), None)
        except (OSError, KafkaError, ImportError, ValueError) as error:
            return _Outcome(None, error)


def _context(spark: SparkSession) -> SparkContext:
    try:
        return spark.sparkContext
    except Exception as error:  # Connect's own class, which is not always installed
        raise RuntimeError(f"this job needs a session of its own, not one of Spark Connect: {error}") from None


@contextmanager
def _shown(context: SparkContext, what: str, count: int, progress: Progress) -> Iterator[None]:
    """Shows while the body runs how many of its tasks are done; cancels them if the body raises."""
    group = f"kcore-{what}-{uuid.uuid4()}"
    before = [(name, context.getLocalProperty(name)) for name in ("spark.jobGroup.id", "spark.job.description")]
    context.setJobGroup(group, f"kcore {what}", interruptOnCancel=False)
    done = threading.Event()

    def tick() -> None:
        tracker = context.statusTracker()
        while not done.wait(_TICK_SECONDS):
            completed = 0
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                stages = [tracker.getStageInfo(stage) for stage in (info.stageIds if info else ())]
                completed += sum(stage.numCompletedTasks for stage in stages if stage)
            progress.done = progress.total * min(completed, count) // count
            progress.show()

    ticker = threading.Thread(target=tick, name=f"kcore-{what}-progress", daemon=True)
    ticker.start()
    try:
        yield
    except BaseException:
        context.cancelJobGroup(group)
        raise
    finally:
        done.set()
        ticker.join()
        progress.clear()
        for name, value in before:
            context.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it away
