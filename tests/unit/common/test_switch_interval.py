"""short_switch_interval: the process's switch interval for the time of a block."""

import sys
import threading
from types import SimpleNamespace

import pytest

from kcore.common.switch_interval import SHORT_SWITCH_INTERVAL, short_switch_interval
from kcore.server.requests.request_handler_pool import RequestHandlerPool


@pytest.fixture(autouse=True)
def interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_the_interval_is_short_until_the_last_block_has_ended(interval):
    with short_switch_interval():
        with short_switch_interval():
            assert sys.getswitchinterval() == SHORT_SWITCH_INTERVAL
        assert sys.getswitchinterval() == SHORT_SWITCH_INTERVAL
    assert sys.getswitchinterval() == interval


def test_a_block_that_raises_ends_too(interval):
    with pytest.raises(ZeroDivisionError), short_switch_interval():
        1 / 0  # noqa: B018
    assert sys.getswitchinterval() == interval


def test_an_interval_that_is_short_already_stays():
    for _ in range(3):
        sys.setswitchinterval(0.00025)
        short = sys.getswitchinterval()
        with short_switch_interval():
            assert sys.getswitchinterval() == short
        assert sys.getswitchinterval() == short


def test_many_blocks_leave_the_interval_as_it_was():
    sys.setswitchinterval(0.0057)
    before = sys.getswitchinterval()
    for _ in range(100):
        with short_switch_interval():
            assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before


def test_what_the_embedder_sets_meanwhile_stays(interval):
    with short_switch_interval():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == 0.002
    with short_switch_interval():
        assert sys.getswitchinterval() == SHORT_SWITCH_INTERVAL
    assert sys.getswitchinterval() == 0.002


def test_a_task_of_the_request_handler_pool_runs_with_a_short_interval(interval):
    class Request:
        def __init__(self):
            self.connection = SimpleNamespace(request=self)

    pool = RequestHandlerPool("9", 1)
    intervals, done = [], threading.Event()

    def task():
        intervals.append(sys.getswitchinterval())
        done.set()

    pool.submit(Request(), task)
    assert done.wait(60)
    pool.shutdown()
    assert intervals == [SHORT_SWITCH_INTERVAL]
    assert sys.getswitchinterval() == interval
