"""The parts of one start: whole as soon as they are there, and replaced by those of the next start."""

import dataclasses
import os
import socket

import pytest

import kcore
from kcore.common import file
from kcore.coordinator.coordinators import Coordinators
from kcore.errors import CoordinatorNotAvailable, NotCoordinator
from kcore.server.requests.request_handler_pool import RequestHandlerPool
from kcore.server.topics.admin_manager import AdminManager


def test_a_broker_has_parts_from_its_start_on_and_keeps_those_of_the_last_one():
    broker = kcore.Broker(telemetry_receiver=print)
    for name in ("running", "broker_id", "cluster_id", "store", "port", "bootstrap_servers", "metadata_cache"):
        with pytest.raises(RuntimeError, match="the broker has not started"):
            getattr(broker, name)
    with broker:
        first = broker.running
        assert (broker.store, broker.port) == (first.base.store, first.server.port)
        with pytest.raises(RuntimeError, match="no member of a cluster"):
            _ = broker.cluster_member
        broker.restart()
        second = broker.running
        # The settings, the identity and the clock are the broker's; everything else is made anew.
        kept = {"broker_id", "cluster_id", "working_dirs", "config", "time", "cluster_member"}
        for of in ("base", "services"):
            before, after = getattr(first, of), getattr(second, of)
            for field in dataclasses.fields(before):
                same = getattr(before, field.name) is getattr(after, field.name)
                equal = getattr(before, field.name) == getattr(after, field.name)
                assert equal if field.name in kept else not same, field.name
        assert first.server.port == second.server.port and first.server is not second.server
    assert broker.running is second


def test_a_start_that_failed_leaves_no_parts(tmp_path):
    (tmp_path / "file").touch()
    broker = kcore.Broker(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        broker.start()
    with pytest.raises(RuntimeError, match="the broker has stopped"):
        _ = broker.running


def test_who_waits_for_the_deletion_of_a_topic_is_answered_when_no_group_has_its_offsets(monkeypatch):
    calls = []
    for owner, name in ((Coordinators, "partitions_deleted"), (AdminManager, "metadata_changed")):
        real = getattr(owner, name)

        def noted(self, *arguments, real=real, name=name):
            calls.append(name)
            real(self, *arguments)

        monkeypatch.setattr(owner, name, noted)
    with kcore.Broker() as broker:
        broker.create_topic("t")
        calls.clear()
        broker.delete_topic("t")
    assert calls and calls == ["partitions_deleted", "metadata_changed"] * (len(calls) // 2)


@pytest.fixture
def fsyncs():
    """How many there were since the test began."""
    file.count_calls()
    yield lambda: file.calls("fsync")
    file.clear_faults()


def test_a_broker_whose_directory_is_removed_at_the_end_waits_for_no_disk(fsyncs, tmp_path):
    with kcore.Broker() as broker:
        broker.create_topic("t", 3)
        broker.produce("t", b"x")
    assert fsyncs() == 0
    with kcore.Broker(tmp_path) as broker:
        broker.produce("t", b"x")
    assert fsyncs() > 10


def test_nor_does_the_stop_of_a_cluster_with_such_a_directory(fsyncs):
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("t", replication_factor=2)
        cluster.brokers[cluster.leader("t")].produce("t", b"x")
        before = fsyncs()
    assert fsyncs() == before


def test_a_stop_ends_the_connections_before_the_parts_that_answer(monkeypatch):
    """Of what is answered later, a client would not know that the broker had stopped."""
    refused, shutdown, broker = [], RequestHandlerPool.shutdown, kcore.Broker()

    def noted(self):
        with socket.socket() as client:
            refused.append(client.connect_ex(("127.0.0.1", broker.port)) != 0)
        shutdown(self)

    monkeypatch.setattr(RequestHandlerPool, "shutdown", noted)
    with broker:
        pass
    assert refused == [True]


def test_after_a_stop_no_coordinator_is_available():
    with kcore.Broker() as broker, pytest.raises(NotCoordinator):
        broker.group_coordinator.manager.check_group_status("g")
    with pytest.raises(CoordinatorNotAvailable):
        broker.group_coordinator.manager.check_group_status("g")


def test_a_start_for_which_there_is_no_temporary_directory_can_be_tried_again(tmp_path):
    place = tmp_path / "later"
    broker = kcore.Broker(kcore_temporary_dir=place)
    with pytest.raises(FileNotFoundError, match=str(place)):
        broker.start()
    broker.stop()
    place.mkdir()
    with broker:
        assert broker.produce("t", b"x").offset == 0


def test_a_part_that_cannot_be_stopped_ends_a_restart_and_a_kill_too():
    def fail():
        raise OSError("it does not stop")

    for end in (kcore.Broker.restart, kcore.Broker.kill):
        broker = kcore.Broker().start()
        broker.running.base.parts.callback(fail)
        with pytest.raises(OSError, match="it does not stop"):
            end(broker)
        assert broker.has_stopped and not os.path.exists(broker.data_dir)
        with pytest.raises(RuntimeError, match="the broker has stopped"):
            broker.produce("t", b"x")
