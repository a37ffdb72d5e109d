"""Work for a pool of threads that may have none to give."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar

_Result = TypeVar("_Result")


def submit(threads: Executor, run: Callable[..., _Result], *args: object, **options: object) -> Future[_Result]:
    """As threads.submit(), but where the pool has ended or a thread cannot be started the future is cancelled.

    Executors raise RuntimeError for both, and in the second case the work is in their queue all the same: a thread that
    becomes free would do it, and the caller would not notice.
    """
    future: Future[_Result] = Future()

    def fulfil() -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = run(*args, **options)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    try:
        threads.submit(fulfil)
    except RuntimeError:
        future.cancel()  # unless a thread has it already
    return future
