"""Broker.restart(): the same port and data, for clients a connection that was closed."""

import gc
import itertools
import os
import shutil
import signal
import socket
import threading
import time

import pytest

import kcore
from kcore.errors import LogClosed, LogIsServed
from kcore.protocol.messages import metadata as m
from kcore.testing import MockTime
from tests.own_process import in_own_process
from tests.unit.server.client import Client


def values(broker, topic):
    return [record.value for record in broker.consume(topic)]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_restarted_broker_has_its_port_identity_topics_records_and_settings(tmp_path, keeps):
    with kcore.Broker(tmp_path if keeps else None, broker_id=7, num_partitions=2) as broker:
        before = broker.port, broker.data_dir, broker.cluster_id, broker.bootstrap_servers
        topic_id = broker.create_topic("t", retention_ms=12345)
        for life in range(3):
            broker.produce("t", b"%d" % life)
            broker.restart()
            assert (broker.port, broker.data_dir, broker.cluster_id, broker.bootstrap_servers) == before
            assert broker.broker_id == 7
            assert broker.log("t").topic_id == topic_id
            assert broker.log("t").config.retention_ms == 12345
            assert broker.metadata_cache.topic("t").partitions[0].leader_epoch == 0  # the stop was a clean one
            assert values(broker, "t") == [b"%d" % n for n in range(life + 1)]
        broker.produce("u", b"x")
        assert len(broker.metadata_cache.topic("u").partitions) == 2
        directory = broker.data_dir
    assert os.path.exists(directory) == keeps
    if keeps:
        with kcore.open_log(tmp_path / "t-0") as log:
            assert log.log_end_offset == 3


def test_a_client_loses_its_connection_and_gets_a_new_one():
    with kcore.Broker() as broker:
        old = Client(broker)
        old.ask(m.MetadataRequest(topics=[]), 1)
        broker.restart()
        assert old.is_closed()
        with Client(broker) as client:
            assert client.ask(m.MetadataRequest(topics=[]), 1).brokers[0].port == broker.port


def test_what_belongs_to_the_life_before_is_closed():
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        log = broker.log("t")
        broker.restart()
        assert log.is_closed and broker.log("t") is not log
        with pytest.raises(LogClosed):
            list(log.records())


@in_own_process
def test_restarts_leave_no_threads_files_or_exit_handlers_behind():
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        broker.restart()
        gc.collect()
        fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for _ in range(3):
            broker.restart()
        deadline = time.monotonic() + 60
        # A thread of the first life may have been about to end when they were counted, and one of the last may be now.
        while threading.active_count() > threads:
            assert time.monotonic() < deadline, threading.enumerate()
            time.sleep(0.01)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= fds


def test_a_restart_that_fails_leaves_a_broker_that_has_stopped():
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        directory, taken = broker.data_dir, socket.socket()
        # Somebody takes the port between the stop and the start.
        start = broker._start

        def start_too_late():
            taken.bind(("127.0.0.1", broker.port))
            taken.listen()
            start()

        broker._start = start_too_late
        with taken:
            with pytest.raises(OSError, match=str(broker.port)):
                broker.restart()
            for use in (broker.restart, lambda: broker.produce("t", b"x")):
                with pytest.raises(RuntimeError, match="has stopped"):
                    use()
    assert not os.path.exists(directory)


def test_a_broker_that_does_not_run_is_not_restarted(tmp_path):
    broker = kcore.Broker(tmp_path)
    with pytest.raises(RuntimeError, match="has not started"):
        broker.restart()
    with broker, pytest.raises(RuntimeError, match=r"starts only once; restart\(\)"):
        broker.start()
    with pytest.raises(RuntimeError, match="has stopped"):
        broker.restart()
    with pytest.raises(RuntimeError, match=r"has stopped.* make a new Broker"):
        broker.start()


@pytest.mark.parametrize(
    "use",
    [
        lambda broker, _: broker.restart(),
        lambda broker, _: broker.produce("t", b"child"),
        lambda broker, _: broker.create_topic("u"),
        lambda broker, _: broker.delete_topic("t"),
        lambda broker, _: broker.consume("t"),
        lambda broker, _: broker.log("t"),
        lambda _, running: next(running),
    ],
    ids=["restart", "produce", "create_topic", "delete_topic", "consume", "log", "a consume that runs"],
)
def test_a_forked_child_cannot_use_the_broker(use):
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        running = broker.consume("t", timeout=60)
        next(running)
        with broker._lock:  # a child that waited for it would wait for ever
            child = os.fork()
            if child == 0:
                signal.alarm(100)
                status = 1
                try:
                    broker.bootstrap_servers.encode()
                    use(broker, running)
                except RuntimeError as error:
                    broker.stop()
                    status = 0 if "runs in the process that forked this one" in str(error) else 2
                finally:
                    os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert broker.produce("t", b"y").offset == 1
        assert values(broker, "t") == [b"x", b"y"]
        assert list(broker.metadata_cache.snapshot.topic_names()) == ["t"]


def test_a_forked_child_that_moves_the_clock_does_not_wait_for_the_brokers_threads():
    time = MockTime()
    with kcore.Broker(time=time) as broker:
        broker.produce("t", b"x")
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            status = 1
            try:
                time.sleep(120_000)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_a_directory_that_fails_while_the_old_life_stops_does_not_stop_the_new_one(tmp_path):
    with kcore.Broker(tmp_path / "data") as broker:
        broker.produce("t", b"x")
        shutil.rmtree(tmp_path / "data")
        broker.restart()
        for thread in threading.enumerate():
            if thread.name == "kcore-no-data-dir-left":
                thread.join(60)
        assert broker.produce("u", b"y").offset == 0


def test_a_stop_that_began_in_the_old_life_does_not_stop_the_new_one():
    with kcore.Broker() as broker:
        broker.on_fatal_error = pytest.fail
        old = broker.running.base
        broker.restart()
        broker._stop(old.parts)
        broker._no_data_dir_left(old, OSError("the old life's"))
        assert broker.produce("t", b"x").offset == 0


def test_calls_of_other_threads_during_a_restart_raise_a_runtime_error_or_do_what_they_promise():
    acknowledged, refused, others, numbers = [], [], [], itertools.count()
    with kcore.Broker() as broker:
        broker.create_topic("t")
        done = threading.Event()

        def call(number):
            calls = [
                lambda: acknowledged.append(broker.produce("t", b"x").offset),
                lambda: list(broker.consume("t")) and broker.log("t"),
                # A call that is refused may have created its topic all the same.
                lambda: broker.create_topic(f"topic-{next(numbers)}"),
            ]
            while not done.is_set():
                try:
                    calls[number]()
                except RuntimeError as error:
                    refused.append(str(error))
                    time.sleep(0.001)  # lets the restart go on
                except Exception as error:
                    others.append(error)
                    return

        threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        restarts = 0
        while restarts < 10 or (not refused and time.monotonic() < deadline):
            broker.restart()
            restarts += 1
        done.set()
        for thread in threads:
            thread.join()
        assert others == []
        assert all("the broker restarts" in text for text in refused)
        assert [record.offset for record in broker.consume("t")] == sorted(acknowledged)
    assert refused


def test_a_consume_that_waits_ends_with_a_runtime_error_when_the_broker_restarts():
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        running = broker.consume("t", timeout=60)
        assert next(running).value == b"x"
        broker.restart()
        with pytest.raises(RuntimeError, match="has restarted since"):
            next(running)


def test_the_log_of_a_running_broker_is_truncated_closed_and_deleted_by_its_broker_only():
    with kcore.Broker() as broker:
        broker.produce("t", b"x")
        for use in (
            lambda log: log.truncate_to(0),
            lambda log: log.truncate_fully_and_start_at(5),
            lambda log: log.close(),
            lambda log: log.delete(),
        ):
            with pytest.raises(LogIsServed, match="a partition leads this log"):
                use(broker.log("t"))
        with broker.log("t") as log:
            assert log.log_end_offset == 1
        assert broker.produce("t", b"y").offset == 1
        assert values(broker, "t") == [b"x", b"y"]
