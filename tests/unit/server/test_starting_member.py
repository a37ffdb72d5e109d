"""A start that waits: for the store's file, or for the last session of the broker's id."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import kcore
from kcore.errors import NotController, RequestTimedOut, StartCancelled
from kcore.metadata import znodes
from kcore.metadata.embedded_store import FILE_NAME, EmbeddedStore
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import ConnectionLost
from kcore.protocol.messages.alter_partition import AlterPartitionRequest
from kcore.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kcore.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kcore.server.member import registration
from tests.cluster_sessions import LONG_MS
from tests.locked_store import locked_by_a_process
from tests.unit.server.client import Client
from tests.waiting import wait_until


def accepts_connections(broker):
    try:
        return broker.running is not None
    except RuntimeError:
        return False


@pytest.fixture
def starting(monkeypatch):
    """A broker that answers, and waits to register."""
    monkeypatch.setattr(registration, "REGISTRATION_TIMEOUT_MS", 10 * 60_000)
    tree = MemoryTree()
    other = MemoryStore(tree)
    other.ensure_path(znodes.BROKER_IDS)
    other.create(znodes.broker_id(1), b"of another broker", ephemeral=True)
    broker = kcore.Broker(store=MemoryStore(tree))
    cancelled = []

    def start():
        with pytest.raises(StartCancelled):
            broker.start()
        cancelled.append(True)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: accepts_connections(broker))
    yield broker
    wait_until(lambda: cancelled or broker.cancel_start())
    thread.join()


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (AlterPartitionRequest(broker_id=2, broker_epoch=1), 3),
        (ControlledShutdownRequest(broker_id=2, broker_epoch=1), 3),
        (AlterPartitionReassignmentsRequest(), 0),
        (ListPartitionReassignmentsRequest(topics=None), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_broker_that_is_not_registered_yet_answers_at_once_that_it_is_not_the_controller(starting, request_, version):
    with Client(starting) as client:
        assert client.ask(request_, version).error_code == NotController.code


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("is_member", [True, False])
def test_a_start_waits_for_a_locked_store_as_long_as_zookeeper_connection_timeout_ms_says(
    tmp_path, monkeypatch, has_store, is_member
):
    monkeypatch.setitem(EmbeddedStore.__init__.__kwdefaults__, "busy_timeout_ms", LONG_MS)
    file = tmp_path / "cluster.db" if is_member else tmp_path / "1" / FILE_NAME
    store = f"sqlite:{file}" if is_member else None
    start = partial(kcore.Broker, tmp_path / "1", store=store, zookeeper_connection_timeout_ms=500)
    if has_store:
        with start():
            pass
    file.parent.mkdir(exist_ok=True)
    with locked_by_a_process(file) as pid:
        expected = rf"^{file}: database is locked by process {pid} \(python[\d.]*\) \(waited ([\d.]+) s\)$"
        with pytest.raises(ConnectionLost, match=expected) as raised:
            start().start()
    waited = re.search(expected, str(raised.value))
    assert 500 <= float(waited[1]) * 1000 < LONG_MS


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("is_member", [True, False])
def test_a_start_that_waits_for_a_locked_store_can_be_cancelled(tmp_path, caplog, has_store, is_member):
    file = tmp_path / "cluster.db" if is_member else tmp_path / "1" / FILE_NAME
    store = f"sqlite:{file}" if is_member else None
    broker = kcore.Broker(tmp_path / "1", store=store, zookeeper_connection_timeout_ms=LONG_MS)
    file.parent.mkdir(exist_ok=True)
    if has_store:
        EmbeddedStore(str(file)).close()
    with locked_by_a_process(file) as pid, ThreadPoolExecutor(1) as executor:
        started = executor.submit(broker.start)
        wait_until(lambda: "waiting for it" in caplog.text or started.done())
        broker.cancel_start()
        with pytest.raises(StartCancelled, match=f"^{file} is locked by process {pid} "):
            started.result(timeout=LONG_MS / 2000)


@pytest.mark.parametrize("begin", ["start", "restart"])
def test_a_call_that_cancels_an_earlier_start_does_not_end_the_next_one(tmp_path, caplog, begin):
    broker = kcore.Broker(tmp_path, zookeeper_connection_timeout_ms=LONG_MS)
    EmbeddedStore(str(tmp_path / FILE_NAME)).close()
    if begin == "restart":
        broker.start()
    broker.cancel_start()
    try:
        with ThreadPoolExecutor(1) as executor:
            with locked_by_a_process(tmp_path / FILE_NAME):
                begun = executor.submit(getattr(broker, begin))
                wait_until(lambda: "waiting for it" in caplog.text or begun.done())
            begun.result(timeout=LONG_MS / 2000)
        broker.produce("t", "x")
    finally:
        broker.stop()


def test_a_broker_that_has_started_waits_for_a_locked_store_no_longer_than_clients_do(tmp_path, monkeypatch):
    monkeypatch.setitem(EmbeddedStore.__init__.__kwdefaults__, "busy_timeout_ms", 1)
    file = tmp_path / "cluster.db"
    settings = {"store": f"sqlite:{file}", "zookeeper_connection_timeout_ms": LONG_MS}
    expected = pytest.raises(RequestTimedOut, match="is locked by process")
    with kcore.Broker(tmp_path / "1", **settings) as broker, locked_by_a_process(file), expected:
        broker.create_topic("t")
