from concurrent.futures import Executor, ThreadPoolExecutor

import pytest

from kcore.common.futures import submit


class NoThread(Executor):
    """As a ThreadPoolExecutor for which no thread can be started: the work is in its queue, and the call fails."""

    def __init__(self, begun=False):
        self.begun = begun
        self.queue = []

    def submit(self, run):
        self.queue.append(run)
        if self.begun:
            run()
        raise RuntimeError("can't start new thread")


def test_the_result_and_the_error_are_those_of_the_work():
    with ThreadPoolExecutor(1) as threads:
        assert submit(threads, divmod, 7, 2).result() == (3, 1)
        assert submit(threads, sorted, [1, 3, 2], reverse=True).result() == [3, 2, 1]
        with pytest.raises(ZeroDivisionError):
            submit(threads, divmod, 7, 0).result()


def test_work_that_no_thread_could_be_started_for_is_called_off_for_good():
    threads, done = NoThread(), []
    future = submit(threads, done.append, 1)
    assert future.cancelled()
    threads.queue[0]()  # a thread that comes free
    assert done == []


def test_work_that_a_thread_took_meanwhile_counts():
    done = []
    future = submit(NoThread(begun=True), done.append, 1)
    assert not future.cancelled() and future.result() is None and done == [1]


def test_a_pool_that_has_ended_does_nothing():
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    assert submit(threads, divmod, 7, 2).cancelled()
