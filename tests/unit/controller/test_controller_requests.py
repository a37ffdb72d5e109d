"""What brokers and clients are answered whose requests the controller could not carry out."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.alter_partition import IsrChange
from kcore.controller.leader_elections import ElectionType
from kcore.errors import NotController, RequestTimedOut
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost, SessionExpired, SetData

T0 = TopicPartition("t", 0)


def alter_partition_reassignments(controller, on_done):
    controller.alter_partition_reassignments({T0: (2, 1)}, on_done)


def elect_leaders(controller, on_done):
    controller.elect_leaders(ElectionType.PREFERRED, [T0], on_done)


def alter_partition(controller, on_done):
    state = controller.context.leadership[T0]
    change = IsrChange("t", 0, state.leader_epoch, state.partition_epoch, (2,))
    controller.isr_changes.request(2, controller.context.live_brokers[2].epoch, [change], on_done)


def controlled_shutdown(controller, on_done):
    controller.controlled_shutdown(2, -1, lambda error, led: on_done(error))


@pytest.fixture(params=[alter_partition_reassignments, elect_leaders, alter_partition, controlled_shutdown])
def request_of(request):
    """Each of them writes to the store: broker 2 leads, and 1 is to lead."""
    return request.param


def start_controller(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.active.alter_partition_reassignments({T0: (1, 2)}, lambda answer: None)
    world.settle()
    assert world.active.broker_id == 1 and world.state("t").leader == 2
    return world.active


def test_who_asks_while_another_controller_is_elected_is_to_ask_that_one(world, request_of):
    controller = start_controller(world)
    answers = []
    request_of(controller, answers.append)
    # Elected before the request is processed; the old one has not noticed.
    node = world.admin.get(znodes.CONTROLLER_EPOCH)
    body = znodes.ControllerZNode(2, 0).encode()
    world.admin.multi([SetData(znodes.CONTROLLER_EPOCH, b"2", node.version), SetData(znodes.CONTROLLER, body)])
    before = world.state("t")
    controller.events.process_all()
    assert [type(answer) for answer in answers] == [NotController] and world.state("t") == before
    assert not controller.is_active


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        # It has ended this broker's term: what waits in the queue then is answered so too.
        pytest.param(SessionExpired("expired"), NotController, id="session expired"),
        # Whether the change took place is not known.
        pytest.param(ConnectionLost("away"), RequestTimedOut, id="connection lost"),
    ],
)
def test_who_asks_while_the_store_goes_away_may_ask_again(world, request_of, monkeypatch, error, expected):
    controller = start_controller(world)
    answers = []
    request_of(controller, answers.append)

    def fail(operations):
        raise error

    monkeypatch.setattr(world.stores[1], "multi", fail)
    controller.events.process_all()
    assert [type(answer) for answer in answers] == [expected] and expected.retriable
