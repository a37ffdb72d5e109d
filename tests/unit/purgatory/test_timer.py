import threading
import time as system_time

import pytest

from kcore.common.time import SYSTEM_TIME, MockTime
from kcore.purgatory.timer import Timer, TimerThread


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def timer(time):
    return Timer(time)


def test_tasks_run_in_the_order_of_their_deadlines_and_ties_in_the_order_they_came(time, timer):
    ran = []
    for name, delay_ms in [("c", 30), ("a", 10), ("b1", 20), ("b2", 20)]:
        timer.add(lambda name=name: ran.append(name), delay_ms)
    time.sleep(9)
    assert timer.advance() == 0
    time.sleep(11)
    assert timer.advance() == 3
    assert ran == ["a", "b1", "b2"]
    time.sleep(10)
    timer.advance()
    assert ran == ["a", "b1", "b2", "c"]
    assert timer.size == 0


def test_a_cancelled_task_never_runs_and_cancelling_late_or_twice_does_no_harm(time, timer):
    ran = []
    first = timer.add(lambda: ran.append(1), 10)
    second = timer.add(lambda: ran.append(2), 10)
    first.cancel()
    first.cancel()
    assert timer.size == 1
    time.sleep(10)
    timer.advance()
    second.cancel()
    assert ran == [2]
    assert timer.size == 0


def test_a_task_may_add_and_cancel_tasks(time, timer):
    ran = []
    other = timer.add(lambda: ran.append("never"), 20)

    def task():
        other.cancel()
        timer.add(lambda: ran.append("due at once"), 0)

    timer.add(task, 10)
    time.sleep(20)
    timer.advance()
    timer.advance()
    assert ran == ["due at once"]


def test_a_task_that_raises_does_not_stop_the_others(time, timer, caplog):
    ran = []
    timer.add(lambda: 1 // 0, 1)
    timer.add(lambda: ran.append(1), 2)
    time.sleep(2)
    assert timer.advance() == 2
    assert ran == [1]
    assert "a timer task failed" in caplog.text


def test_PURG_06_cancelled_tasks_with_far_deadlines_do_not_pile_up(timer):
    for _ in range(100_000):
        timer.add(int, 3_600_000).cancel()
    assert timer.size == 0
    assert len(timer._heap) < 5_000


def test_the_timer_thread_runs_tasks_in_real_time_and_is_woken_by_an_earlier_one():
    timer = Timer(SYSTEM_TIME)
    thread = TimerThread(timer)
    thread.start()
    try:
        timer.add(int, 60_000)
        done = threading.Event()
        system_time.sleep(0.02)  # let it fall asleep until the far deadline
        timer.add(done.set, 5)
        assert done.wait(60)
    finally:
        thread.shutdown()
    assert not thread.is_running


def test_the_timer_thread_sleeps_while_nothing_is_due():
    timer = Timer(SYSTEM_TIME)
    wake_ups = []
    advance = timer.advance
    timer.advance = lambda: wake_ups.append(1) or advance()
    thread = TimerThread(timer)
    thread.start()
    for _ in range(100):
        timer.add(int, 60_000)
    try:
        system_time.sleep(0.2)
        # One by the first task, if the thread slept before it came.
        assert len(wake_ups) <= 1
    finally:
        thread.shutdown()


def test_shutting_down_a_timer_thread_never_hangs():
    for _ in range(200):
        thread = TimerThread(Timer(SYSTEM_TIME))
        thread.start()
        thread.shutdown()


def test_a_wake_up_that_comes_before_the_sleep_ends_it_and_only_the_next_one():
    timer = Timer(SYSTEM_TIME)
    timer.wake_up()
    first = threading.Thread(target=timer.await_next_deadline, daemon=True)
    first.start()
    first.join(60)
    assert not first.is_alive()
    second = threading.Thread(target=timer.await_next_deadline, daemon=True)
    second.start()
    second.join(0.1)
    assert second.is_alive()
    timer.wake_up()
    second.join(60)
    assert not second.is_alive()
