import os
import sys
import threading

import pytest

from kcore.common.executors import background_pool, inline


def test_an_inline_executor_runs_each_task_in_its_submit():
    order = []
    with inline(3, "x") as executor:
        first = executor.submit(lambda: order.append((1, threading.current_thread())))
        order.append((2, threading.current_thread()))
        assert list(executor.map(lambda n: n * n, [1, 2, 3])) == [1, 4, 9]
    assert first.done() and order == [(1, threading.current_thread()), (2, threading.current_thread())]


def test_an_inline_executor_keeps_what_a_task_raised_for_its_future():
    def fail():
        raise OSError("no")

    with inline(1, "x") as executor, pytest.raises(OSError, match="no"):
        executor.submit(fail).result()


def test_an_inline_executor_does_not_keep_a_keyboard_interrupt_back():
    def interrupt():
        raise KeyboardInterrupt

    with inline(1, "x") as executor, pytest.raises(KeyboardInterrupt):
        executor.submit(interrupt)


@pytest.mark.skipif(sys.platform != "linux", reason="a priority of each thread")
def test_threads_of_a_background_pool_give_way_and_no_other_thread_does():
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = priority()
    with background_pool(1, "x") as executor:
        assert executor.submit(priority).result() == 19
    assert priority() == before < 19
