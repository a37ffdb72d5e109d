"""One thread, one event at a time."""

import threading

from kcore.common.scheduler import MockScheduler
from kcore.common.time import MockTime
from kcore.controller import kafka_controller
from kcore.controller.controller_event_manager import ControllerEvent, ControllerEventManager
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.kafka_controller import RETRY_MS, KafkaController
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import SessionEvent
from tests.unit.controller.world import FakeChannels

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
    assert events.await_started(late, DEADLINE_S)
    assert calls == ["skipped"]


def test_a_wait_for_an_event_ends_when_its_processing_begins_or_at_its_deadline():
    events, release = ControllerEventManager("events"), threading.Event()
    events.start()
    event = ControllerEvent("e", lambda: release.wait(DEADLINE_S))
    events.put(event)
    assert events.await_started(event, DEADLINE_S)
    later = ControllerEvent("later", lambda: None)
    events.put(later)
    assert not events.await_started(later, 0.01)
    release.set()
    assert events.await_started(later, DEADLINE_S)
    events.close()


def test_CTRL_08_a_session_that_expires_during_a_long_event_begins_after_it_and_keeps_no_thread_of_the_store(
    monkeypatch,
):
    monkeypatch.setattr(kafka_controller, "EVENT_WAIT_S", 0.01)
    store, time = MemoryStore(MemoryTree()), MockTime()
    scheduler = MockScheduler(time)
    controller = KafkaController(1, store, FakeChannels(), ControllerSettings(), int, time, scheduler)
    sessions, runs, release = [], threading.Event(), threading.Event()
    monkeypatch.setattr(store, "new_session", lambda: sessions.append("new session"))
    controller.startup()
    controller.events.put(ControllerEvent("long", lambda: (runs.set(), release.wait(DEADLINE_S))))
    assert runs.wait(DEADLINE_S)
    controller._session_changed(SessionEvent.EXPIRED)
    for _ in range(3):
        time.sleep(RETRY_MS)
        scheduler.tick()
        assert sessions == []
    release.set()
    ended = ControllerEvent("ended", lambda: None)
    controller.events.put(ended)
    assert controller.events.await_started(ended, DEADLINE_S)  # after Expire
    time.sleep(RETRY_MS)
    scheduler.tick()
    assert sessions == ["new session"]
    controller.events.close()
