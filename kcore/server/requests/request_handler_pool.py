"""Threads for requests that may wait: for a disk, the metadata store, a lock, another broker, or many partitions.

All other requests run on the network thread that read them (docs/decisions/0009-where-a-request-runs.md).  A connection
has one request in flight, so its answers keep their order whichever thread gives them.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from kcore.common.switch_interval import short_switch_interval
from kcore.network.connection import Request

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class RunsOn(Enum):
    """The thread that a request runs on.  Each handler says it in `runs_on`, KafkaApis reads it there.

    Requests that would only wait for one another have a thread of their own, so that those that wait take no thread
    from others.
    """

    #: The thread that read the request: for what never waits, unless the request is large.
    NETWORK_THREAD = "network"
    #: Any of the num.io.threads threads, in any order.
    POOL = "request-handler"
    #: One thread, in the order of arrival, for the controller's requests: a broker carries them out in the order in
    #: which they came, whichever connection brought them.
    CONTROLLER_REQUESTS = "controller-requests"
    #: One thread, in the order of arrival, for what takes AdminManager's lock or ReplicaManager's state_change_lock:
    #: both are held for as long as the creation of a topic takes, a minute with 10,000 partitions on a slow disk.
    TOPIC_CHANGES = "topic-changes"
    #: One thread, in the order of arrival, for stored settings of brokers, quotas and ACLs: the store is called with
    #: the lock of their kind held.
    SETTING_CHANGES = "setting-changes"
    #: One thread, in the order of arrival, for producer ids: the lock is held while the store is asked for more.
    PRODUCER_IDS = "producer-ids"


#: For what every small request passes: Python 3.11 takes 0.1 us for an attribute of an Enum.
NETWORK_THREAD = RunsOn.NETWORK_THREAD


class RequestHandlerPool:
    """Up to num_threads threads for requests in any order, and one for each kind that keeps the order of arrival.

    Thread-safe.  A thread starts when a request finds none idle, and stays until shutdown(): a broker that gets no such
    request has none.  At most one request per connection waits; one whose connection closes is taken out, so what
    waits is bounded by the connections, and its bytes count towards queued.max.request.bytes.  While a task runs,
    Python's switch interval is short, so that the network thread need not wait for its turn, nor the task for its own.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._lanes: dict[RunsOn, _Lane] = {
            runs_on: _Lane(f"kcore-{runs_on.value}-{name}", num_threads if runs_on is RunsOn.POOL else 1)
            for runs_on in RunsOn
            if runs_on is not RunsOn.NETWORK_THREAD
        }

    def submit(self, request: Request, task: Task, runs_on: RunsOn = RunsOn.POOL) -> None:
        """Run task() on a thread of the pool.  It answers the request, then or later; if it raises, the request's
        connection is closed.  After shutdown() nothing happens."""
        self._lanes[runs_on].submit(request, task)

    def queue_sizes(self) -> dict[RunsOn, int]:
        """Requests that wait for a thread."""
        return {runs_on: lane.size for runs_on, lane in self._lanes.items()}

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for a thread or runs on one."""
        return all(lane.is_idle for lane in self._lanes.values())

    @property
    def num_threads(self) -> int:
        """Of those for requests in any order, started or not."""
        return self._lanes[RunsOn.POOL].max_threads

    def thread_ids(self) -> list[int]:
        """The system's numbers of those of them that were started."""
        return self._lanes[RunsOn.POOL].thread_ids()

    def resize(self, num_threads: int) -> None:
        """Requests in any order have up to num_threads threads from now on; one too many ends after its request."""
        self._lanes[RunsOn.POOL].resize(num_threads)

    def shutdown(self) -> None:
        """Drop the requests that wait; return when those that run have ended.  Not from a thread of the pool."""
        for lane in self._lanes.values():
            lane.begin_shutdown()
        for lane in self._lanes.values():
            lane.join()


class _Lane:
    """Requests, oldest first, and the threads that take them."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self.max_threads = max_threads
        self._changed = threading.Condition(threading.Lock())
        self._waiting: OrderedDict[Request, Task] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._started = 0
        self._idle = 0
        self._stopping = False

    @property
    def size(self) -> int:
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._waiting and self._idle == len(self._threads)

    def thread_ids(self) -> list[int]:
        with self._changed:
            return [thread.native_id for thread in self._threads if thread.native_id is not None]

    def submit(self, request: Request, task: Task) -> None:
        with self._changed:
            if self._stopping:
                return
            self._waiting[request] = task
            request.on_abandoned = self._forget
            if request.connection.request is not request:
                # Its connection was closed before (a request may come from another thread of the pool): without this
                # check nobody would take it out.
                del self._waiting[request]
                return
            if len(self._waiting) <= self._idle:
                self._changed.notify()
            elif len(self._threads) < self.max_threads:
                self._start_thread()

    def resize(self, max_threads: int) -> None:
        with self._changed:
            self.max_threads = max_threads
            self._changed.notify_all()
            if not self._stopping:
                for _ in range(min(max_threads - len(self._threads), len(self._waiting) - self._idle)):
                    self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True)
        self._started += 1
        self._threads.append(thread)
        thread.start()

    def _forget(self, request: Request) -> None:
        with self._changed:
            self._waiting.pop(request, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping and len(self._threads) <= self.max_threads:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if self._stopping:
                    return
                if len(self._threads) > self.max_threads:
                    self._threads.remove(threading.current_thread())
                    self._changed.notify()  # the notification may have been of a request
                    return
                request, task = self._waiting.popitem(last=False)
            try:
                with short_switch_interval():
                    task()
            except Exception:
                logger.exception("%s: a request failed", request.connection.peer_host)
                if not request.is_done:
                    request.close_connection("its request failed")
            del request, task  # an idle thread must not hold a request's buffer

    def begin_shutdown(self) -> None:
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """After begin_shutdown(): return when the requests that run have ended."""
        with self._changed:
            threads = list(self._threads)
        for thread in threads:
            thread.join()
