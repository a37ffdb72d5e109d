"""One thread, one event at a time."""

import threading

from kcore.controller.controller_event_manager import ControllerEvent, ControllerEventManager

DEADLINE_S = 60


def test_CTRL_02_one_thread_processes_the_events_one_at_a_time_in_order():
    events = ControllerEventManager("events")
    threads, running, order, done = set(), [], [], threading.Event()

    def process(number):
        running.append(number)
        assert len(running) == 1
        threads.add(threading.current_thread().name)
        order.append(number)
        running.remove(number)
        if number == 199:
            done.set()

    putters = [
        threading.Thread(
            target=lambda half=half: [
                events.put(ControllerEvent("e", lambda n=n: process(n))) for n in range(half, half + 100)
            ]
        )
        for half in (0, 100)
    ]
    events.put(ControllerEvent("broken", lambda: 1 / 0))
    events.start()
    for putter in putters:
        putter.start()
        putter.join()
    assert done.wait(DEADLINE_S)
    events.close()
    assert order == list(range(200)) and threads == {"events"}


def test_cleared_events_are_not_processed_and_their_preempt_is_called():
    events, calls = ControllerEventManager("events"), []
    events.put(ControllerEvent("old", lambda: calls.append("processed"), lambda: calls.append("skipped")))
    events.clear_and_put(ControllerEvent("new", lambda: calls.append("new")))
    assert events.process_all() == 1
    assert calls == ["skipped", "new"]


def test_after_the_end_events_are_skipped_and_no_thread_waits_for_them():
    events, calls = ControllerEventManager("events"), []
    events.start()
    events.close()
    late = ControllerEvent("late", lambda: calls.append("processed"), lambda: calls.append("skipped"))
    events.clear_and_put(late)
    events.await_started(late)
    assert calls == ["skipped"]


def test_a_wait_for_an_event_returns_when_its_processing_begins():
    events, release = ControllerEventManager("events"), threading.Event()
    events.start()
    event = ControllerEvent("e", lambda: release.wait(DEADLINE_S))
    events.put(event)
    events.await_started(event)
    release.set()
    events.close()
