"""A broker on MockTime: what depends on a record's age happens when the clock is moved, before sleep() returns."""

import threading
import time as system_time

import pytest

import kcore
from kcore.common.scheduler import Scheduler
from kcore.common.time import SYSTEM_TIME
from kcore.protocol.messages import fetch as f
from kcore.testing import MockTime
from tests.unit.server.client import Client

DAY_MS = 86_400_000


def values(broker, topic):
    return [record.value for record in broker.consume(topic)]


def test_records_beyond_their_retention_are_gone_when_sleep_returns():
    time = MockTime()
    with kcore.Broker(time=time) as broker:
        broker.create_topic("t", retention_ms=DAY_MS)
        broker.create_topic("kept", retention_ms=-1)
        broker.produce("t", b"old")
        broker.produce("kept", b"old")
        time.sleep(DAY_MS // 2)
        broker.produce("t", b"young")
        assert values(broker, "t") == [b"old", b"young"]
        time.sleep(DAY_MS // 2 + 600_000)
        # The segment's youngest record decides.
        assert values(broker, "t") == [b"old", b"young"]
        time.sleep(DAY_MS // 2)
        assert values(broker, "t") == []
        assert broker.log("t").log_start_offset == 2
        assert values(broker, "kept") == [b"old"]
        assert broker.produce("t", b"new").offset == 2


def test_segments_roll_by_time_and_go_one_by_one_and_their_files_after_them(tmp_path):
    time = MockTime()
    with kcore.Broker(tmp_path, time=time) as broker:
        broker.create_topic("t", retention_ms=3 * DAY_MS, segment_ms=DAY_MS)
        for day in range(5):
            broker.produce("t", b"%d" % day)
            time.sleep(DAY_MS + 1)
        assert values(broker, "t") == [b"3", b"4"]
        time.sleep(120_000)  # file.delete.delay.ms is a minute
        assert [path.name for path in sorted((tmp_path / "t-0").glob("*.log*"))] == [f"{3:020}.log", f"{4:020}.log"]


def test_a_compacted_topic_is_cleaned_by_the_age_that_the_clock_gives():
    time = MockTime()
    with kcore.Broker(time=time, log_cleaner_backoff_ms=5) as broker:
        broker.create_topic("t", cleanup_policy="compact", min_compaction_lag_ms=DAY_MS, segment_ms=1000)
        for value in (b"1", b"2"):
            broker.produce("t", value, b"k")
            time.sleep(2000)
        broker.produce("t", b"3", b"other")
        system_time.sleep(0.1)
        assert values(broker, "t") == [b"1", b"2", b"3"]
        time.sleep(2 * DAY_MS)
        deadline = system_time.monotonic() + 60
        while values(broker, "t") != [b"2", b"3"] and system_time.monotonic() < deadline:
            system_time.sleep(0.01)
        assert values(broker, "t") == [b"2", b"3"]


def test_a_client_waits_in_real_time():
    with kcore.Broker(time=MockTime()) as broker, Client(broker) as client:
        broker.create_topic("t")
        partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        request = f.FetchRequest(max_wait_ms=100, topics=[f.FetchTopic(topic="t", partitions=[partition])])
        request.min_bytes = 1
        assert client.ask(request, 11).responses[0].partitions[0].high_watermark == 0


def test_a_member_of_a_group_outlives_a_move_of_the_clock():
    confluent_kafka = pytest.importorskip("confluent_kafka")
    time = MockTime(int(system_time.time() * 1000))
    with kcore.Broker(time=time) as broker:
        broker.produce("t", b"a")
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        lost = []
        consumer.subscribe(["t"], on_revoke=lambda _, partitions: lost.append(partitions))
        assert consumer.poll(60).value() == b"a"
        time.sleep(DAY_MS)
        broker.produce("t", b"b")
        assert consumer.poll(60).value() == b"b"
        assert lost == []
        consumer.close()


def test_a_restart_goes_on_with_the_same_clock():
    time = MockTime()
    with kcore.Broker(time=time) as broker:
        broker.create_topic("t", retention_ms=DAY_MS)
        broker.produce("t", b"x")
        broker.restart()
        assert values(broker, "t") == [b"x"]
        time.sleep(2 * DAY_MS)
        assert values(broker, "t") == []
    assert time._listeners == []  # nobody runs anything any more


def test_sleep_returns_when_the_tasks_that_are_due_have_run_and_each_has_run_once():
    time = MockTime()
    scheduler = Scheduler("test", time)
    runs = []

    def task():
        system_time.sleep(0.05)
        time.sleep(0)  # a task that sleeps does not wait for itself
        runs.append(threading.current_thread().name)

    scheduler.startup()
    scheduler.schedule("periodic", task, 10, 10)
    scheduler.schedule("at every instant", lambda: None, 0, 0)
    scheduler.schedule("later", lambda: runs.append("later"), 1000)
    time.sleep(9)
    assert runs == []
    time.sleep(500)
    assert runs == ["test"]
    time.sleep(600)
    assert runs == ["test", "later", "test"] or runs == ["test", "test", "later"]
    scheduler.shutdown()
    time.sleep(10_000)
    assert len(runs) == 3


def test_sleep_returns_when_the_last_task_has_ended_not_when_it_has_begun():
    time = MockTime()
    scheduler = Scheduler("test", time)
    begun, ended = threading.Event(), []

    def slow():
        begun.set()
        system_time.sleep(0.1)
        ended.append(True)

    scheduler.startup()
    scheduler.schedule("slow", slow)
    assert begun.wait(60)
    time.sleep(0)
    assert ended == [True]
    scheduler.shutdown()


def test_threads_that_move_the_clock_lose_no_millisecond():
    time = MockTime(0)
    threads = [threading.Thread(target=lambda: [time.sleep(1) for _ in range(1000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (time.milliseconds(), time.hi_res_clock_ms()) == (4000, 4000.0)


def test_the_clock_does_not_go_back():
    time = MockTime(1000)
    with pytest.raises(ValueError, match="ms -500"):
        time.sleep(-500)
    assert time.milliseconds() == 1000


def test_without_a_time_of_its_own_the_clock_begins_now_so_that_what_clients_write_expires():
    before_ms = SYSTEM_TIME.milliseconds()
    clock = MockTime()
    assert before_ms <= clock.milliseconds() <= SYSTEM_TIME.milliseconds()
    assert MockTime(5).milliseconds() == 5
    with kcore.Broker(time=clock) as broker:
        broker.create_topic("orders", retention_ms=86_400_000)
        broker.produce("orders", "of a client", timestamp=SYSTEM_TIME.milliseconds())
        clock.sleep(2 * 86_400_000)
        assert list(broker.consume("orders")) == []
