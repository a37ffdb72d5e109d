"""Executors for work that may run side by side.  A simulation passes one that runs it in order on its own thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

#: (number of threads, prefix of their names) -> an executor; its maker shuts it down.
ExecutorFactory = Callable[[int, str], Executor]

thread_pool: ExecutorFactory = ThreadPoolExecutor


def background_pool(num_threads: int, name: str) -> Executor:
    """An ExecutorFactory of threads to which every other thread of the machine is preferred (Linux: nice 19)."""
    return ThreadPoolExecutor(num_threads, name, initializer=_give_way)


def _give_way() -> None:
    # Linux has a priority for each thread; elsewhere it would be the whole process's.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class InlineExecutor(Executor):
    """Runs each task inside submit(), on the caller's thread: the order of work is the order of the calls."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done; an Exception of fn is its result.  KeyboardInterrupt and SystemExit pass through."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def inline(num_threads: int, name: str) -> Executor:
    """An ExecutorFactory without threads."""
    return InlineExecutor()
