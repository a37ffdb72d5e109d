import threading

from kcore.common.scheduler import MockScheduler, Scheduler
from kcore.common.time import MockTime


def test_tasks_run_in_the_order_of_their_due_times():
    time = MockTime()
    scheduler = MockScheduler(time)
    ran = []
    scheduler.schedule("late", lambda: ran.append("late"), 20)
    scheduler.schedule("early", lambda: ran.append("early"), 10)
    scheduler.schedule("early too", lambda: ran.append("early too"), 10)
    assert scheduler.tick() == 0
    time.sleep(20)
    assert scheduler.tick() == 3
    assert ran == ["early", "early too", "late"]


def test_a_periodic_task_runs_once_per_period_until_cancelled():
    time = MockTime()
    scheduler = MockScheduler(time)
    ran = []
    task = scheduler.schedule("tick", lambda: ran.append(1), 5, 10)
    time.sleep(25)
    scheduler.tick()
    assert len(ran) == 3
    task.cancel()
    time.sleep(100)
    assert scheduler.tick() == 0


def test_a_failing_task_is_logged_and_runs_again(caplog):
    time = MockTime()
    scheduler = MockScheduler(time)
    ran = []

    def fail():
        ran.append(1)
        raise ValueError("no luck")

    scheduler.schedule("unlucky", fail, 0, 10)
    time.sleep(10)
    scheduler.tick()
    assert len(ran) == 2
    assert "background task unlucky failed" in caplog.text


def test_the_real_scheduler_runs_a_task_soon_and_stops_on_shutdown():
    scheduler = Scheduler()
    done = threading.Event()
    again = threading.Semaphore(0)
    scheduler.schedule("before startup", done.set)
    scheduler.schedule("never", lambda: None, float(2**63))
    scheduler.startup()
    assert done.wait(60)
    scheduler.schedule("periodic", again.release, 0, 1)
    assert again.acquire(timeout=60) and again.acquire(timeout=60)
    scheduler.shutdown()
    while again.acquire(blocking=False):
        pass
    assert not again.acquire(timeout=0.02)


def test_a_task_may_shut_its_scheduler_down():
    scheduler = Scheduler()
    scheduler.startup()
    done = threading.Event()

    def stop():
        scheduler.shutdown()
        done.set()

    scheduler.schedule("stop", stop)
    assert done.wait(60)


class CountingCondition(threading.Condition):
    notified = 0

    def notify_all(self):
        self.notified += 1
        super().notify_all()


def test_a_task_that_is_due_after_another_does_not_wake_the_thread():
    scheduler = Scheduler()
    scheduler._condition = condition = CountingCondition()
    first = scheduler.schedule("first", lambda: None, 50_000)
    scheduler.schedule("later", lambda: None, 60_000)
    assert condition.notified == 1
    scheduler.schedule("earlier", lambda: None, 40_000).cancel()
    assert condition.notified == 2
    first.cancel()
    scheduler.schedule("before the only one that is left", lambda: None, 55_000)
    assert condition.notified == 3


def test_a_task_that_is_due_before_the_one_that_the_thread_waits_for_runs_at_its_time():
    scheduler = Scheduler()
    scheduler.startup()
    scheduler.schedule("in a day", lambda: None, 86_400_000)
    for delay_ms in (0, 1):
        done = threading.Event()
        scheduler.schedule("soon", done.set, delay_ms)
        assert done.wait(60)
    scheduler.shutdown()
