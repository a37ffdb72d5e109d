import random
import threading

import pytest

from kcore.common.time import MockTime
from kcore.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from kcore.purgatory.timer import Timer


class Op(DelayedOperation):
    """Completes when `ready` is set; notes what was called."""

    def __init__(self, delay_ms=1000, ready=False):
        super().__init__(delay_ms)
        self.ready = ready
        self.tries = 0
        self.calls = []

    def try_complete(self):
        self.tries += 1
        return self.ready and self.force_complete()

    def on_complete(self):
        self.calls.append("complete")

    def on_expiration(self):
        self.calls.append("expire")


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def timer(time):
    return Timer(time)


@pytest.fixture
def purgatory(timer):
    return DelayedOperationPurgatory("test", timer)


def test_PURG_01_however_many_threads_try_an_operation_completes_once(purgatory):
    for _ in range(50):
        op = Op()
        purgatory.try_complete_else_watch(op, ["key"])
        op.ready = True
        barrier = threading.Barrier(4)

        def attempt(op=op, barrier=barrier):
            barrier.wait()
            op.force_complete()
            purgatory.check_and_complete("key")

        threads = [threading.Thread(target=attempt) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert op.calls == ["complete"]
        assert purgatory.delayed == 0


def test_PURG_02_an_event_between_the_first_try_and_the_watch_is_not_missed(purgatory, timer):
    class ReadyBetween(Op):
        def try_complete(self):
            done = super().try_complete()
            self.ready = True
            return done

    op = ReadyBetween()
    assert purgatory.try_complete_else_watch(op, ["a", "b"])
    assert (op.tries, op.calls) == (2, ["complete"])
    assert purgatory.delayed == 0
    assert timer.size == 0


def test_PURG_06_an_operation_that_another_thread_completes_before_it_is_timed_leaves_nothing_behind(
    purgatory, timer, monkeypatch
):
    op, add = Op(), timer.add

    def add_late(callback, delay_ms):
        op.ready = True
        other = threading.Thread(target=purgatory.check_and_complete, args=("b",))
        other.start()
        other.join()
        return add(callback, delay_ms)

    monkeypatch.setattr(timer, "add", add_late)
    assert purgatory.try_complete_else_watch(op, ["a", "b"])
    assert op.calls == ["complete"]
    assert (purgatory.delayed, timer.size) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_PURG_02_no_wake_up_is_lost_between_threads(seed):
    rng = random.Random(seed)
    purgatory = DelayedOperationPurgatory("test", Timer(MockTime()))
    limit = 0
    done = []

    class Until(DelayedOperation):
        def __init__(self, target):
            super().__init__(1e9)
            self.target = target

        def try_complete(self):
            return limit >= self.target and self.force_complete()

        def on_complete(self):
            done.append(self.target)

    targets = [rng.randint(1, 500) for _ in range(2000)]

    def watch():
        for target in targets:
            purgatory.try_complete_else_watch(Until(target), ["k"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    while limit < 500:
        limit += 1
        purgatory.check_and_complete("k")
    watcher.join()
    assert sorted(done) == sorted(targets), f"seed={seed}"
    assert purgatory.delayed == 0


def test_PURG_03_an_operation_that_completes_at_the_first_try_is_neither_watched_nor_timed(purgatory, timer):
    op = Op(ready=True)
    assert purgatory.try_complete_else_watch(op, ["a"])
    assert (op.tries, op.calls) == (1, ["complete"])
    assert not purgatory.operations("a")
    assert timer.size == 0


def test_PURG_04_check_and_complete_tries_what_waits_under_the_key_and_returns_how_many_completed(purgatory):
    ops = [Op() for _ in range(3)]
    for op in ops:
        purgatory.try_complete_else_watch(op, ["a"])
    other = Op()
    purgatory.try_complete_else_watch(other, ["b"])
    ops[0].ready = ops[2].ready = other.ready = True
    assert purgatory.check_and_complete("a") == 2
    assert len(purgatory.operations("a")) == 1
    assert other.calls == []
    assert purgatory.check_and_complete("a") == 0
    assert purgatory.check_and_complete("nobody") == 0


def test_PURG_05_at_the_deadline_on_complete_runs_then_on_expiration(purgatory, time, timer):
    op = Op(delay_ms=100)
    purgatory.try_complete_else_watch(op, ["a"])
    time.sleep(99)
    timer.advance()
    assert op.calls == []
    time.sleep(1)
    timer.advance()
    assert op.calls == ["complete", "expire"]
    assert purgatory.delayed == 0


def test_PURG_05_an_operation_completed_in_time_never_expires(purgatory, time, timer):
    op = Op(delay_ms=100)
    purgatory.try_complete_else_watch(op, ["a"])
    op.ready = True
    purgatory.check_and_complete("a")
    time.sleep(200)
    timer.advance()
    assert op.calls == ["complete"]


def test_PURG_06_an_operation_done_elsewhere_leaves_no_trace_in_any_list_or_timer(purgatory, timer):
    keys = [f"key{n}" for n in range(10)]
    ops = [Op(delay_ms=1e9) for _ in range(1000)]
    for op in ops:
        purgatory.try_complete_else_watch(op, keys)
    assert purgatory.delayed == 1000
    for n, op in enumerate(ops):
        op.ready = True
        if n % 2:
            op.force_complete()
    purgatory.check_and_complete("key0")
    assert purgatory.delayed == 0
    assert purgatory.watchers == {}
    assert timer.size == 0


def test_an_operation_that_raises_does_not_keep_others_waiting(purgatory, caplog):
    class Broken(Op):
        def on_complete(self):
            raise RuntimeError("broken")

    broken, sound = Broken(), Op()
    for op in (broken, sound):
        purgatory.try_complete_else_watch(op, ["a"])
        op.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert sound.calls == ["complete"]
    assert "an operation waiting for a failed" in caplog.text
