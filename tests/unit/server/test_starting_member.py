"""What a member of a cluster answers while its start still waits for the last session of its id."""

import threading

import pytest

import kcore
from kcore.errors import NotController, StartCancelled
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages.alter_partition import AlterPartitionRequest
from kcore.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kcore.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kcore.server.member import registration
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
