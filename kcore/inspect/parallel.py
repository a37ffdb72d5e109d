"""Reading several segments at a time, with their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import TypeVar

from kcore.common.progress import Progress
from kcore.inspect.gap_checks import may_have_gaps
from kcore.inspect.partition_checks import PartitionFiles, end_of_segment
from kcore.inspect.segment_scan import ScannedSegment, scan_segment
from kcore.log.log_file_names import LOG_SUFFIX

_POLL_SECONDS = 0.1

T = TypeVar("T")
#: A function, and whether the main thread must run it after all the work before it.
Work = tuple[Callable[[], T], bool]


def in_order(work: Iterator[Work[T]], jobs: int, progress: Progress) -> Iterator[T]:
    """The results in the order of the work, which `jobs` threads do.  Shows progress.  Leaving early, as Ctrl-C does,
    stops the threads at the next megabyte."""
    pending: deque[Future[T] | Callable[[], T]] = deque()
    with ThreadPoolExecutor(jobs, "kcore-read") as threads:
        try:
            more = True
            while pending or more:
                # 2 * jobs pieces keep all threads busy and limit the results in memory.
                while more and len(pending) < 2 * jobs:
                    task, waits = next(work, (None, False))
                    more = task is not None
                    if task is not None:
                        pending.append(task if waits else threads.submit(task))
                if pending:
                    yield _result(pending.popleft(), progress)
        except BaseException:
            progress.stop()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _result(pending: Future[T] | Callable[[], T], progress: Progress) -> T:
    if not isinstance(pending, Future):
        return pending()
    while True:
        progress.show()
        try:
            return pending.result(_POLL_SECONDS)
        except NotYet:
            # Done by now; or the work itself raised a TimeoutError, which result() raises again.
            if pending.done():
                return pending.result()


def scan_segment_of(
    partition: PartitionFiles, base: int, progress: Progress, *, records: bool = False, compacted: bool = False
) -> ScannedSegment:
    """A segment, read with what the other files of its partition say about its end and its gaps.  Raises OSError."""
    return scan_segment(
        partition.file(base, LOG_SUFFIX),
        records=records,
        progress=progress,
        end_offset=end_of_segment(partition, base),
        may_have_gaps=lambda: may_have_gaps(partition, base, compacted=compacted),
    )


def scan_all(
    partition: PartitionFiles, jobs: int, progress: Progress, *, records: bool = False, compacted: bool = False
) -> list[ScannedSegment]:
    """The segments of a partition in order, read by several threads.  compacted: gaps between offsets are no damage.
    Raises OSError."""

    def scan(base: int) -> ScannedSegment | OSError:
        try:
            return scan_segment_of(partition, base, progress, records=records, compacted=compacted)
        except OSError as error:  # raised at the end: leaving early stops all readers that report to this progress
            return error

    work = ((partial(scan, base), False) for base in partition.bases)
    results = list(in_order(work, jobs, progress))
    for result in results:
        if isinstance(result, OSError):
            raise result
    return [result for result in results if isinstance(result, ScannedSegment)]
