"""RequestHandlerPool: threads when needed, order where a kind of request needs it, an end."""

import threading
import time
from types import SimpleNamespace

import pytest

from kcore.server.requests.request_handler_pool import RequestHandlerPool, RunsOn
from tests.waiting import wait_until

SUBMITTED = [runs_on for runs_on in RunsOn if runs_on is not RunsOn.NETWORK_THREAD]
PREFIXES = tuple(f"kcore-{runs_on.value}-7-" for runs_on in SUBMITTED)
IN_ORDER = [runs_on for runs_on in SUBMITTED if runs_on is not RunsOn.POOL]


class FakeRequest:
    """What the pool needs of kcore.network.connection.Request."""

    def __init__(self):
        self.on_abandoned = None
        self.closed = None
        self.connection = SimpleNamespace(peer_host="a client", request=self)

    @property
    def is_done(self):
        return self.closed is not None

    def close_connection(self, reason):
        self.closed = reason


def pool_threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(PREFIXES))


@pytest.fixture
def pool():
    pool = RequestHandlerPool("7", 2)
    yield pool
    pool.shutdown()
    assert pool_threads() == []


def test_threads_start_when_a_request_finds_none_idle_and_no_more_than_allowed(pool):
    assert pool_threads() == []
    go, running = threading.Event(), []

    def task():
        running.append(threading.current_thread().name)
        go.wait(60)

    for expected in (1, 2, 2):
        pool.submit(FakeRequest(), task)
        wait_until(lambda expected=expected: len(running) == expected, "the task does not run")
    assert pool_threads() == ["kcore-request-handler-7-0", "kcore-request-handler-7-1"]
    go.set()
    wait_until(lambda: len(running) == 3, "the third task never ran")


def test_an_idle_thread_takes_the_next_request(pool):
    for _ in range(3):
        done = threading.Event()
        pool.submit(FakeRequest(), done.set)
        assert done.wait(60)
        wait_until(lambda: pool._lanes[RunsOn.POOL]._idle == 1, "the thread does not wait for the next request")
    assert len(pool_threads()) == 1


@pytest.mark.parametrize("runs_on", IN_ORDER)
def test_requests_of_one_kind_run_one_after_the_other_in_the_order_of_their_arrival(pool, runs_on):
    order, active = [], []

    def task(number):
        active.append(number)
        assert len(active) == 1
        time.sleep(0.001)
        order.append(active.pop())

    requests = [FakeRequest() for _ in range(20)]
    for number, request in enumerate(requests):
        pool.submit(request, lambda number=number: task(number), runs_on)
    wait_until(lambda: len(order) == 20, "not all ran")
    assert order == list(range(20))
    assert all(request.closed is None for request in requests)
    assert pool_threads() == [f"kcore-{runs_on.value}-7-0"]


@pytest.mark.parametrize("busy", SUBMITTED)
def test_requests_that_wait_keep_no_other_kind_waiting(pool, busy):
    go = threading.Event()
    for _ in range(5):
        pool.submit(FakeRequest(), lambda: go.wait(60), busy)
    for runs_on in SUBMITTED:
        done = threading.Event()
        if runs_on is not busy:
            pool.submit(FakeRequest(), done.set, runs_on)
            assert done.wait(60), runs_on
    go.set()


def test_a_task_that_raises_ends_its_connection_and_no_other_request(pool, caplog):
    bad, done = FakeRequest(), threading.Event()
    pool.submit(bad, lambda: 1 / 0, RunsOn.CONTROLLER_REQUESTS)
    pool.submit(FakeRequest(), done.set, RunsOn.CONTROLLER_REQUESTS)
    assert done.wait(60)
    assert bad.closed == "its request failed"
    assert "division by zero" in caplog.text


@pytest.mark.parametrize("runs_on", IN_ORDER)
def test_a_request_whose_connection_closes_while_it_waits_never_runs(pool, runs_on):
    go, ran = threading.Event(), []
    pool.submit(FakeRequest(), lambda: go.wait(60), runs_on)
    gone, there = FakeRequest(), FakeRequest()
    pool.submit(gone, lambda: ran.append("gone"), runs_on)
    pool.submit(there, lambda: ran.append("there"), runs_on)
    gone.on_abandoned(gone)
    go.set()
    wait_until(lambda: ran, "nothing ran")
    assert ran == ["there"]
    there.on_abandoned(there)  # no longer waits: nothing happens


def test_a_request_whose_connection_was_closed_before_is_not_kept(pool):
    """Nobody would take it out, and its buffer no longer counts toward queued.max.request.bytes."""
    go = threading.Event()
    pool.submit(FakeRequest(), lambda: go.wait(60), RunsOn.TOPIC_CHANGES)
    gone, ran = FakeRequest(), []
    gone.connection.request = None  # what the network thread does when it closes the connection
    pool.submit(gone, lambda: ran.append("gone"), RunsOn.TOPIC_CHANGES)
    done = threading.Event()
    pool.submit(FakeRequest(), done.set, RunsOn.TOPIC_CHANGES)
    assert gone not in pool._lanes[RunsOn.TOPIC_CHANGES]._waiting
    go.set()
    assert done.wait(60) and ran == []


def test_shutdown_drops_what_waits_and_returns_when_what_runs_has_ended():
    pool = RequestHandlerPool("7", 1)
    started, go, ran = threading.Semaphore(0), threading.Event(), []

    def task(runs_on):
        started.release()
        go.wait(60)
        ran.append(runs_on)

    for runs_on in SUBMITTED:
        pool.submit(FakeRequest(), lambda runs_on=runs_on: task(runs_on), runs_on)
        pool.submit(FakeRequest(), lambda: ran.append("waiting"), runs_on)
        assert started.acquire(timeout=60)

    def let_them_end():
        # Not one kind after the other: nothing that waits is to begin while shutdown() waits for a long request.
        wait_until(lambda: not any(lane._waiting for lane in pool._lanes.values()), "what waits is not dropped")
        go.set()

    ending = threading.Thread(target=let_them_end)
    ending.start()
    pool.shutdown()
    ending.join()
    assert sorted(ran, key=SUBMITTED.index) == SUBMITTED
    for runs_on in SUBMITTED:
        pool.submit(FakeRequest(), lambda: ran.append("too late"), runs_on)
    time.sleep(0.02)
    assert len(ran) == len(SUBMITTED) and pool_threads() == []


def test_a_pool_that_grows_takes_the_requests_that_wait_and_one_that_shrinks_ends_its_idle_threads(pool):
    go, running = threading.Event(), []

    def task():
        running.append(threading.current_thread())
        go.wait(60)

    for _ in range(4):
        pool.submit(FakeRequest(), task)
    wait_until(lambda: len(running) == 2, "two threads do not run")
    pool.resize(4)
    wait_until(lambda: len(running) == 4, "the requests that waited do not run")
    go.set()
    pool.resize(1)
    wait_until(lambda: len(pool_threads()) == 1, "the threads too many do not end")
    done = threading.Event()
    pool.submit(FakeRequest(), done.set)
    assert done.wait(60)


def test_no_request_is_left_while_the_pool_changes_its_size(pool):
    done = []
    for number in range(300):
        pool.submit(FakeRequest(), lambda number=number: done.append(number))
        pool.resize(1 + number % 3)
    wait_until(lambda: len(done) == 300, "a request was left")
    pool.resize(1)
    wait_until(lambda: len(pool_threads()) <= 1, "a thread too many does not end")


def test_no_two_threads_have_one_name(pool):
    """The name of a thread that has ended is not given again: a log names threads."""
    names = []

    def fill(count, go):
        def task():
            names.append(threading.current_thread().name)
            go.wait(60)

        so_far = len(names)
        for _ in range(count):
            pool.submit(FakeRequest(), task)
        wait_until(lambda: len(names) == so_far + count, "not all run")

    go = threading.Event()
    pool.resize(3)
    fill(3, go)
    pool.resize(1)
    go.set()
    wait_until(lambda: len(pool_threads()) == 1, "the threads too many do not end")
    go = threading.Event()
    pool.resize(3)
    fill(3, go)
    assert len(set(names)) == 5, names  # the one that was left runs twice
    go.set()
