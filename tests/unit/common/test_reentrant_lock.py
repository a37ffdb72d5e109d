"""ReentrantLock: one thread at a time, as often as that thread likes."""

import threading

import pytest

from kcore.common.reentrant_lock import ReentrantLock


def test_its_holder_may_take_it_again():
    lock = ReentrantLock()
    with lock:
        with lock:
            assert lock.locked()
        assert lock.locked()
    assert not lock.locked()


def test_another_thread_waits_until_the_outermost_release():
    lock = ReentrantLock()
    seen = []

    def other():
        with lock:
            seen.append("other")

    with lock, lock:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and seen == []
    thread.join()
    assert seen == ["other"]


def test_counting_under_it_loses_nothing():
    lock = ReentrantLock()
    count = 0

    def add():
        nonlocal count
        for _ in range(5_000):
            with lock, lock:
                before = count
                if before % 1000 == 0:
                    threading.Event().wait(0.0001)
                count = before + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 20_000


def test_it_is_released_when_the_block_raises():
    lock = ReentrantLock()
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0  # noqa: B018
    assert not lock.locked()


def test_a_release_by_somebody_else_is_an_error():
    lock = ReentrantLock()
    with pytest.raises(RuntimeError):
        lock.__exit__(None, None, None)
    with lock:
        errors = []

        def other():
            try:
                lock.__exit__(None, None, None)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1 and lock.locked()
