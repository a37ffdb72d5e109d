"""Work that takes longer than a page may: with progress, and an end on demand.  It leaves the machine to a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kcore.common.executors import ExecutorFactory, background_pool
from kcore.common.text import plain_error
from kcore.common.time import Time
from kcore.errors import KafkaError

#: At the same time; others wait for their turn.
_THREADS = 2
#: So many may be unfinished, and so many are kept.
MOST_UNFINISHED = 6
_MOST_KEPT = 20


class TooManyJobs(KafkaError):
    """As many jobs as there may be are not finished yet."""


class Cancelled(Exception):
    """A job was cancelled: raised where it says how far it is."""


class Job:
    """One piece of work.  Written by the thread that does it, read by pages.

    kind: names the page that shows it.  total and done: in unit.  result: what the work has found so far.
    """

    def __init__(self, number: int, kind: str, title: str, started_ms: int) -> None:
        self.number = number
        self.kind = kind
        self.title = title
        self.started_ms = started_ms
        self.total = 0
        self.done = 0
        self.unit = "bytes"
        #: "waiting", "running", "done", "cancelled", "failed" (with a problem)
        self.state = "waiting"
        self.problem: str | None = None
        self.result: Any = None
        self._is_cancelled = threading.Event()

    @property
    def is_finished(self) -> bool:
        return self.state not in ("waiting", "running")

    def cancel(self) -> None:
        self._is_cancelled.set()

    def advance(self, size: int = 0) -> None:
        """So much more is done.  Raises Cancelled."""
        self.done += size
        if self._is_cancelled.is_set():
            raise Cancelled

    def run(self, work: Callable[[Job], None]) -> None:
        try:
            self.advance()
            self.state = "running"
            work(self)
            self.state = "done"
        except Cancelled:
            self.state = "cancelled"
        except (OSError, KafkaError, MemoryError) as error:
            self.problem, self.state = plain_error(error) or type(error).__name__, "failed"
        except BaseException as error:
            self.problem, self.state = repr(error), "failed"
            raise


class Jobs:
    """Thread-safe.  Lifetime: until close()."""

    def __init__(self, time: Time, make_executor: ExecutorFactory = background_pool) -> None:
        self._time = time
        self._executor = make_executor(_THREADS, "kcore-web-job")
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._last = 0

    def start(self, kind: str, title: str, work: Callable[[Job], None]) -> Job:
        """Raises TooManyJobs."""
        with self._lock:
            if sum(not job.is_finished for job in self._jobs.values()) >= MOST_UNFINISHED:
                raise TooManyJobs(f"{MOST_UNFINISHED} searches and checks are not finished: cancel one, or wait")
            finished = [number for number, job in self._jobs.items() if job.is_finished]
            for number in finished[: len(self._jobs) - _MOST_KEPT + 1]:
                del self._jobs[number]
            self._last += 1
            job = self._jobs[self._last] = Job(self._last, kind, title, self._time.milliseconds())
        self._executor.submit(job.run, work)
        return job

    def get(self, number: int) -> Job | None:
        with self._lock:
            return self._jobs.get(number)

    def newest_first(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())[::-1]

    def close(self) -> None:
        """Cancels those that are not finished, and waits for their threads."""
        for job in self.newest_first():
            job.cancel()
        self._executor.shutdown(wait=True, cancel_futures=True)
