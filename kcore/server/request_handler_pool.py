"""Threads for requests that may wait: for a disk, the metadata store, another broker, or many partitions.

All other requests run on the network thread that read them (docs/decisions/0009-where-a-request-runs.md).  A connection
has one request in flight, so its answers keep their order whichever thread gives them.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from kcore.common.switch_interval import short_switch_interval
from kcore.network.connection import Request

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class RequestHandlerPool:
    """Up to num_threads threads for requests in any order, and one for those that must keep theirs.

    Thread-safe.  A thread starts when a request finds none idle, and stays until shutdown(): a broker that gets no such
    request has none.  At most one request per connection waits; one whose connection closes is taken out, so what
    waits is bounded by the connections, and its bytes count towards queued.max.request.bytes.  While a task runs,
    Python's switch interval is short, so that the network thread need not wait for its turn, nor the task for its own.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._any_order = _Lane(f"kcore-request-handler-{name}", num_threads)
        self._in_order = _Lane(f"kcore-controller-requests-{name}", 1)

    def submit(self, request: Request, task: Task) -> None:
        """Run task() on a thread of the pool.  It answers the request, then or later; if it raises, the request's
        connection is closed.  After shutdown() nothing happens."""
        self._any_order.submit(request, task)

    def submit_in_order(self, request: Request, task: Task) -> None:
        """The same, after every earlier task of this method has ended (for the controller's requests)."""
        self._in_order.submit(request, task)

    def resize(self, num_threads: int) -> None:
        """Requests in any order have up to num_threads threads from now on; one too many ends after its request."""
        self._any_order.resize(num_threads)

    def shutdown(self) -> None:
        """Drop the requests that wait; return when those that run have ended.  Not from a thread of the pool."""
        self._any_order.shutdown()
        self._in_order.shutdown()


class _Lane:
    """Requests, oldest first, and the threads that take them."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._changed = threading.Condition(threading.Lock())
        self._waiting: OrderedDict[Request, Task] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._stopping = False

    def submit(self, request: Request, task: Task) -> None:
        with self._changed:
            if self._stopping:
                return
            self._waiting[request] = task
            request.on_abandoned = self._forget
            if len(self._waiting) <= self._idle:
                self._changed.notify()
            elif len(self._threads) < self._max_threads:
                self._start_thread()

    def resize(self, max_threads: int) -> None:
        with self._changed:
            self._max_threads = max_threads
            self._changed.notify_all()
            if not self._stopping:
                for _ in range(min(max_threads - len(self._threads), len(self._waiting) - self._idle)):
                    self._start_thread()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forget(self, request: Request) -> None:
        with self._changed:
            self._waiting.pop(request, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping and len(self._threads) <= self._max_threads:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if self._stopping:
                    return
                if len(self._threads) > self._max_threads:
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
            del request, task  # an idle thread keeps nobody's records

    def shutdown(self) -> None:
        with self._changed:
            self._stopping = True
            self._waiting.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
