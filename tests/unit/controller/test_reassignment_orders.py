"""Orders in /admin/reassign_partitions, and topics that are deleted or cannot be reassigned."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import PartitionReplica, ReplicaAssignment, ReplicaState
from kcore.errors import (
    InvalidReplicaAssignment,
    LeaderNotAvailable,
    NotController,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.reassigning import (
    T0,
    T1,
    alter,
    assert_ended,
    catch_up,
    deleted_from,
    reassign,
    running,
    topic,
)
from tests.unit.controller.world import partitions_of

# -- topics ---------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_while_it_is_reassigned_leaves_no_trace(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    world.create_topic("u", [[1]])
    u0 = TopicPartition("u", 0)
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2,), u0: (3,)}))
    world.settle()
    world.requests.take()
    world.delete_topic("t")
    assert world.admin.get(znodes.topic("t")) is None and world.admin.get(znodes.delete_topic("t")) is None
    assert deleted_from(world.requests.take()) == {1, 2}
    assert running(world).keys() == {u0}
    assert znodes.decode_reassignment(world.admin.get(znodes.REASSIGN_PARTITIONS).data) == {u0: (3,)}
    world.create_topic("t", [[3]])
    assert_not_moving = topic(world)
    assert (assert_not_moving.assignment, assert_not_moving.adding) == ({0: [3]}, {})


@pytest.mark.parametrize("others", [{}, {TopicPartition("u", 0): (1, 2)}])
def test_an_order_that_the_controller_has_not_heard_of_goes_with_its_topic(world, monkeypatch, others):
    """The next topic of this name would be reassigned (found by the simulator, seed 760005742)."""
    world.start(1, 2)
    world.create_topic("t", [[1]])
    world.create_topic("u", [[1]])
    store = world.active._store
    delete_topic = store.delete_topic

    def comes_before(name):
        world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2,), **others}))
        delete_topic(name)

    monkeypatch.setattr(store, "delete_topic", comes_before)
    world.delete_topic("t")
    assert world.admin.get(znodes.topic("t")) is None
    world.create_topic("t", [[1]])
    assert topic(world).assignment == {0: [1]} and running(world).keys() == others.keys()


def test_a_topic_that_is_being_deleted_is_not_reassigned(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2]])
    reassign(world, (3,))
    world.channels[1].codes[3, "t", 0] = 56  # its log cannot be deleted
    world.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition):
        reassign(world, (1,))
    with pytest.raises(UnknownTopicOrPartition):
        reassign(world, None)
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (1,)}))
    world.settle()
    assert world.admin.get(znodes.REASSIGN_PARTITIONS) is None
    world.kill(1)  # the next controller does not go on with the reassignment either
    assert world.admin.get(znodes.topic("t")) is None


def test_the_return_of_a_broker_resumes_the_deletion_of_a_topic_and_not_its_reassignment(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2]])
    reassign(world, (3,))
    world.channels[1].codes[3, "t", 0] = 56
    world.delete_topic("t")  # broker 2 has deleted its log
    world.channels[1].codes.clear()
    world.kill(3)
    world.requests.take()
    world.start(3)
    led = [broker for broker, request in world.requests.take(LeaderAndIsrRequest) if T0 in partitions_of(request)]
    assert led == [] and world.admin.get(znodes.topic("t")) is None


@pytest.mark.parametrize("code", [0, 56])
def test_a_deletion_does_not_take_the_answer_to_a_reassignment_for_its_own(world, monkeypatch, code):
    """Broker 2 is to delete its log, to make it anew, and to delete it with the topic: only the first is answered."""
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    channels = world.channels[1]
    with monkeypatch.context() as context:
        context.setattr(channels, "answer", lambda: 0)
        reassign(world, (1,))
        reassign(world, (1, 2))
        world.delete_topic("t")
    stops = [(r, on_reply) for broker, r, on_reply in channels.waiting if deleted_from([(broker, r)]) == {2}]
    assert len(stops) == 2
    request, on_reply = stops[0]
    channels.codes[2, "t", 0] = code
    on_reply(channels._reply(2, request))
    world.process()
    assert world.active.context.replica_state(PartitionReplica(T0, 2)) is ReplicaState.DELETION_STARTED
    channels.codes.clear()
    world.settle()
    assert world.admin.get(znodes.topic("t")) is None


def test_a_partition_that_never_had_a_leader_is_not_reassigned(world):
    world.start(1, 2)
    world.create_topic("t", [[7]])
    with pytest.raises(LeaderNotAvailable):
        reassign(world, (1,))
    assert topic(world).assignment == {0: [7]}


def test_another_broker_than_the_controller_answers_NOT_CONTROLLER(world):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    answers = []
    world.controllers[2].alter_partition_reassignments({T0: (2,)}, answers.append)
    world.controllers[2].list_partition_reassignments(None, answers.append)
    world.settle()
    assert [type(answer) for answer in answers] == [NotController, NotController]


# -- the node -------------------------------------------------------------------------------------------


def test_CTRL_12_an_order_in_the_node_is_carried_out_and_stays_until_its_end(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1], [1]])
    for _ in range(2):  # the watch is there again afterwards
        start = topic(world).assignment[0]
        (target,) = {2, 1} - set(start)
        world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (target,), T1: (3,)}))
        world.settle()
        assert T0 in running(world)
        epoch = world.state("t").leader_epoch
        catch_up(world, 3, tp=T1)
        node = world.admin.get(znodes.REASSIGN_PARTITIONS)
        assert znodes.decode_reassignment(node.data) == {T0: (target,)}
        assert world.state("t").leader_epoch == epoch, "what is left is not begun again"
        catch_up(world, target)
        assert_ended(world, [target])


def test_CTRL_18_an_order_that_came_while_there_was_no_controller_is_carried_out(world):
    world.start(1)
    world.create_topic("t", [[1]])
    world.start(2)
    world.controllers[2].events.process_all()
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2,)}))
    world.controllers[1]._move(None)
    world.settle()
    assert running(world) == {T0: ReplicaAssignment((2, 1), (2,), (1,))}


def test_CTRL_18_an_order_to_a_broker_that_died_is_resumed_not_refused(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2]])
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (3,)}))
    world.settle()
    world.kill(3)
    world.kill(1)
    assert world.admin.get(znodes.REASSIGN_PARTITIONS) is not None and running(world)
    world.start(3)
    catch_up(world, 3)
    assert_ended(world, [3])


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"partitions": 3}', b'{"partitions": [{"topic": "t"}]}', b'{"version": 1}'],
)
def test_an_order_that_cannot_be_read_is_removed_and_the_next_one_carried_out(world, body):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    world.admin.create(znodes.REASSIGN_PARTITIONS, body)
    world.settle()
    assert world.admin.get(znodes.REASSIGN_PARTITIONS) is None
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2,)}))
    world.settle()
    assert running(world)


def test_orders_that_are_refused_are_removed_and_the_others_carried_out(world, caplog):
    world.start(1, 2)
    world.create_topic("t", [[1], [1]])
    no = TopicPartition("no", 0)
    world.admin.create(
        znodes.REASSIGN_PARTITIONS,
        znodes.encode_reassignment({T0: (9,), no: (1,), T1: (2,), TopicPartition("t", 5): ()}),
    )
    world.settle()
    assert running(world).keys() == {T1}
    assert znodes.decode_reassignment(world.admin.get(znodes.REASSIGN_PARTITIONS).data) == {T1: (2,)}
    assert "not alive" in caplog.text


def test_a_request_replaces_an_order_of_the_node(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2,)}))
    world.settle()
    reassign(world, (3,))
    assert world.admin.get(znodes.REASSIGN_PARTITIONS) is None
    assert running(world) == {T0: ReplicaAssignment((3, 1), (3,), (1,))}
    catch_up(world, 3)
    assert_ended(world, [3])


def test_a_request_that_is_refused_leaves_the_order_of_its_partition(world):
    """The order went, and the reassignment that it had begun remained."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1], [1]])
    world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (2, 3), T1: (2, 3)}))
    world.settle()
    # Broker 2 leads without broker 1: records would be lost if this one alone remained.
    world.admin.set(znodes.partition_state("t", 0), world.state("t")._replace(leader=2, isr=[2]).encode())
    world.settle()
    results = alter(world, {T0: None, T1: None})
    assert isinstance(results[T0], InvalidReplicaAssignment) and results[T1] is None
    assert running(world).keys() == {T0}
    orders = znodes.decode_reassignment(world.admin.get(znodes.REASSIGN_PARTITIONS).data)
    assert orders == {T0: (2, 3)}


def test_an_order_that_comes_while_the_earlier_move_of_its_partition_ends_is_carried_out(world, monkeypatch):
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    reassign(world, (2,))
    store = world.active.partition_reassignment._store
    real = store.change_assignments

    def another_order_comes(assignments):
        real(assignments)
        assert assignments == {T0: ReplicaAssignment((2,))}, "the end of the move"
        monkeypatch.undo()
        world.admin.create(znodes.REASSIGN_PARTITIONS, znodes.encode_reassignment({T0: (3,)}))

    monkeypatch.setattr(store, "change_assignments", another_order_comes)
    catch_up(world, 2)
    assert running(world) == {T0: ReplicaAssignment((3, 2), (3,), (2,))}
    catch_up(world, 3)
    assert_ended(world, [3])
