"""RequestHandlerPool: threads when needed, order where the caller wants it, an end."""

import threading
import time

import pytest

from kcore.server.request_handler_pool import RequestHandlerPool


class FakeRequest:
    """What the pool needs of kcore.network.connection.Request."""

    def __init__(self):
        self.on_abandoned = None
        self.closed = None
        self.connection = type("Connection", (), {"peer_host": "a client"})

    @property
    def is_done(self):
        return self.closed is not None

    def close_connection(self, reason):
        self.closed = reason


def pool_threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(("kcore-request", "kcore-controller")))


@pytest.fixture
def pool():
    pool = RequestHandlerPool("7", 2)
    yield pool
    pool.shutdown()
    assert pool_threads() == []


def eventually(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def test_threads_start_when_a_request_finds_none_idle_and_no_more_than_allowed(pool):
    assert pool_threads() == []
    go, running = threading.Event(), []

    def task():
        running.append(threading.current_thread().name)
        go.wait(60)

    for expected in (1, 2, 2):
        pool.submit(FakeRequest(), task)
        eventually(lambda expected=expected: len(running) == expected, "the task does not run")
    assert pool_threads() == ["kcore-request-handler-7-0", "kcore-request-handler-7-1"]
    go.set()
    eventually(lambda: len(running) == 3, "the third task never ran")


def test_an_idle_thread_takes_the_next_request(pool):
    for _ in range(3):
        done = threading.Event()
        pool.submit(FakeRequest(), done.set)
        assert done.wait(60)
        eventually(lambda: pool._any_order._idle == 1, "the thread does not wait for the next request")
    assert len(pool_threads()) == 1


def test_controller_requests_run_one_after_the_other_in_the_order_of_their_arrival(pool):
    order, active = [], []

    def task(number):
        active.append(number)
        assert len(active) == 1
        time.sleep(0.001)
        order.append(active.pop())

    requests = [FakeRequest() for _ in range(20)]
    for number, request in enumerate(requests):
        pool.submit_in_order(request, lambda number=number: task(number))
    eventually(lambda: len(order) == 20, "not all ran")
    assert order == list(range(20))
    assert all(request.closed is None for request in requests)


def test_controller_requests_do_not_wait_for_the_others(pool):
    go, done = threading.Event(), threading.Event()
    for _ in range(5):
        pool.submit(FakeRequest(), lambda: go.wait(60))
    pool.submit_in_order(FakeRequest(), done.set)
    assert done.wait(60)
    go.set()


def test_a_task_that_raises_ends_its_connection_and_no_other_request(pool, caplog):
    bad, done = FakeRequest(), threading.Event()
    pool.submit_in_order(bad, lambda: 1 / 0)
    pool.submit_in_order(FakeRequest(), done.set)
    assert done.wait(60)
    assert bad.closed == "its request failed"
    assert "division by zero" in caplog.text


def test_a_request_whose_connection_closes_while_it_waits_never_runs(pool):
    go, ran = threading.Event(), []
    pool.submit_in_order(FakeRequest(), lambda: go.wait(60))
    gone, there = FakeRequest(), FakeRequest()
    pool.submit_in_order(gone, lambda: ran.append("gone"))
    pool.submit_in_order(there, lambda: ran.append("there"))
    gone.on_abandoned(gone)
    go.set()
    eventually(lambda: ran, "nothing ran")
    assert ran == ["there"]
    there.on_abandoned(there)  # no longer waits: nothing happens


def test_shutdown_drops_what_waits_and_returns_when_what_runs_has_ended():
    pool = RequestHandlerPool("7", 1)
    started, go, ran = threading.Event(), threading.Event(), []

    def task():
        started.set()
        go.wait(60)
        ran.append("running")

    pool.submit(FakeRequest(), task)
    pool.submit(FakeRequest(), lambda: ran.append("waiting"))
    assert started.wait(60)
    threading.Timer(0.05, go.set).start()
    pool.shutdown()
    assert ran == ["running"]
    pool.submit(FakeRequest(), lambda: ran.append("too late"))
    pool.submit_in_order(FakeRequest(), lambda: ran.append("too late"))
    time.sleep(0.02)
    assert ran == ["running"] and pool_threads() == []


def test_a_pool_that_grows_takes_the_requests_that_wait_and_one_that_shrinks_ends_its_idle_threads(pool):
    go, running = threading.Event(), []

    def task():
        running.append(threading.current_thread())
        go.wait(60)

    for _ in range(4):
        pool.submit(FakeRequest(), task)
    eventually(lambda: len(running) == 2, "two threads do not run")
    pool.resize(4)
    eventually(lambda: len(running) == 4, "the requests that waited do not run")
    go.set()
    pool.resize(1)
    eventually(lambda: len(pool_threads()) == 1, "the threads too many do not end")
    done = threading.Event()
    pool.submit(FakeRequest(), done.set)
    assert done.wait(60)


def test_no_request_is_left_while_the_pool_changes_its_size(pool):
    done = []
    for number in range(300):
        pool.submit(FakeRequest(), lambda number=number: done.append(number))
        pool.resize(1 + number % 3)
    eventually(lambda: len(done) == 300, "a request was left")
    pool.resize(1)
    eventually(lambda: len(pool_threads()) <= 1, "a thread too many does not end")
