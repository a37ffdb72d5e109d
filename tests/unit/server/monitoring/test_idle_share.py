"""How much of their time threads were idle."""

import os
import threading
import time

from kcore.server.monitoring.idle_share import WINDOW_MS, IdleShare
from kcore.testing import MockTime

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def busy_for_ticks(ticks):
    """CPU time of this thread in ms, which has grown by some ticks."""
    end = time.thread_time() + ticks * TICK_MS / 1000
    while time.thread_time() < end:
        pass


def test_a_thread_that_computes_is_not_idle_and_one_that_waits_is():
    clock, this = MockTime(), [threading.get_native_id()]
    share = IdleShare(clock, lambda: this)
    clock.sleep(1000)
    share.read(1)  # what this thread did before counts once
    clock.sleep(WINDOW_MS)
    share.read(1)
    clock.sleep(WINDOW_MS)
    assert share.read(1) == 1.0
    busy_for_ticks(20)
    clock.sleep(WINDOW_MS)
    idle = share.read(1)
    assert 0 < 1 - idle < 0.5
    clock.sleep(1)
    assert share.read(2) > idle, "of two threads the other one did nothing"


def test_threads_that_have_ended_count_nothing_more():
    clock, ids = MockTime(), []
    share = IdleShare(clock, lambda: ids)
    thread = threading.Thread(target=lambda: ids.append(threading.get_native_id()))
    thread.start()
    thread.join()
    clock.sleep(10)
    assert share.read(4) == 1.0
