import os
import signal
import subprocess
import sys
import threading

import pytest

from kcore.tools.stop_signals import stop_on_signal

WAITS_FOR_EVER = """
import threading
from kcore.tools.stop_signals import stop_on_signal
with stop_on_signal(lambda: print("stopping", flush=True)):
    print("ready", flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_calls_stop_and_raises_nothing_in_the_thread_that_holds_a_lock(number):
    stopping = threading.Event()
    with stop_on_signal(stopping.set) as stopped:
        with threading.Lock():
            os.kill(os.getpid(), number)
            assert stopping.wait(60)
        assert stopped.is_set()


def test_signals_that_whoever_started_the_process_has_blocked_stop_it_too():
    """A mirror that such a process had started went on for ever."""
    stopping = threading.Event()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with stop_on_signal(stopping.set):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopping.wait(60)
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_signal_that_has_another_handler_stops_nothing():
    numbers, stopping = [], threading.Event()
    previous = signal.signal(signal.SIGUSR1, lambda number, _: numbers.append(number))
    try:
        with stop_on_signal(stopping.set) as stopped:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert (numbers, stopping.is_set(), stopped.is_set()) == ([signal.SIGUSR1], False, False)
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_without_a_signal_stop_is_not_called_and_the_handlers_before_come_back():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyError), stop_on_signal(lambda: pytest.fail("no signal came")) as stopped:
        raise KeyError
    assert not stopped.is_set()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "stop-on-signal" not in {thread.name for thread in threading.enumerate()}


def test_a_second_signal_ends_a_process_that_does_not_stop():
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_EVER], stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in ("ready\n", "stopping\n"):
                assert process.stdout is not None and process.stdout.readline() == line
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
