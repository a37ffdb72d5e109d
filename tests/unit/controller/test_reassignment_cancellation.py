"""A reassignment that is cancelled or replaced by another one leaves no trace, and loses no record."""

import pytest

from kcore.controller.controller_context import ReplicaAssignment, ReplicaState
from kcore.errors import (
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownServerError,
)
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost, StoreError
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.stop_replica import StopReplicaRequest
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


def test_a_cancelled_reassignment_leaves_no_trace(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[1, 2]])
    before = topic(world)
    reassign(world, (3, 4))
    catch_up(world, 3)
    world.requests.take()
    reassign(world, None)
    assert_ended(world, [1, 2])
    assert topic(world) == before
    assert deleted_from(world.requests.take()) == {3, 4}
    assert (world.state("t").leader, world.state("t").isr) == (1, [1, 2])
    with pytest.raises(NoReassignmentInProgress):
        reassign(world, None)


def test_a_reassignment_is_replaced_by_another_one(world):
    world.start(1, 2, 3, 4, 5)
    world.create_topic("t", [[1, 2]])
    reassign(world, (3, 4))
    world.requests.take()
    reassign(world, (5, 3))
    assert deleted_from(world.requests.take()) == {4}
    assert running(world) == {T0: ReplicaAssignment((5, 3, 1, 2), (5, 3), (1, 2))}
    catch_up(world, 3, 5)
    assert_ended(world, [5, 3])


def test_a_replica_that_leads_hands_over_before_a_cancellation_deletes_it(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    reassign(world, (2, 3))
    catch_up(world, 2)
    world.kill(1)
    assert world.state("t").leader == 2
    # Broker 1 is not in sync: to delete broker 2's log would lose what was acknowledged since.
    with pytest.raises(InvalidReplicaAssignment, match="records would be lost"):
        reassign(world, None)
    assert running(world) and world.state("t").isr == [2]
    world.start(1)
    with pytest.raises(InvalidReplicaAssignment, match="records would be lost"):
        reassign(world, None)
    catch_up(world, 1)
    world.requests.take()
    reassign(world, None)
    assert_ended(world, [1])
    sent = [(b, r) for b, r in world.requests.take() if isinstance(r, LeaderAndIsrRequest | StopReplicaRequest)]
    assert isinstance(sent[0][1], LeaderAndIsrRequest) and partitions_of(sent[0][1])[T0].leader == 1
    assert deleted_from(sent) == {2, 3}


def test_replicas_are_deleted_before_the_assignment_without_them_is_stored(world, monkeypatch):
    """The next controller would not know that they are to be deleted."""
    world.start(1, 2, 3)
    world.create_topic("t", [[2]])
    reassign(world, (3,))

    def dies(replicas, target):
        raise StoreError("the controller is dead")

    monkeypatch.setattr(world.active.replica_state_machine, "handle_state_changes", dies)
    answers = []
    world.active.alter_partition_reassignments({T0: None}, answers.append)
    world.controllers[1].events._take().run()  # one event: the next election would fail, too
    assert isinstance(answers[0], UnknownServerError) and topic(world).adding == {0: [3]}


def test_a_replica_that_joins_the_isr_while_it_is_deleted_does_not_stay_in_it(world):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    reassign(world, (2,))
    machine = world.active.replica_state_machine
    real = machine.handle_state_changes

    def joins_afterwards(replicas, target):
        real(replicas, target)
        if target is ReplicaState.NON_EXISTENT:
            world.set_isr("t", 0, [1, 2])

    machine.handle_state_changes = joins_afterwards
    reassign(world, None)
    assert_ended(world, [1])


def test_no_log_is_deleted_before_its_replica_has_left_the_isr(world, monkeypatch):
    """Here the controller dies in between: the leader would go on with an empty log in the ISR."""
    world.start(1, 2)
    world.create_topic("t", [[1]])
    reassign(world, (1, 2))
    controller, requests = world.active, world.requests
    requests.take()
    change_states = controller._store.change_states

    def dies(states):
        if states:
            raise ConnectionLost("the store cannot be reached")
        return change_states(states)

    monkeypatch.setattr(controller._store, "change_states", dies)
    answers = []
    controller.alter_partition_reassignments({T0: None}, answers.append)
    controller.events._take().run()
    assert isinstance(answers[0], RequestTimedOut) and topic(world).adding == {0: [2]}
    assert deleted_from(requests.take()) == set()


def test_an_announcement_leaves_the_isr_to_those_that_are_assigned_also_if_they_stop(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 3]])
    reassign(world, (1, 3, 2))
    world.active.context.shutting_down.add(1)
    reassign(world, None)
    assert set(world.state("t").isr) == {1, 3}


def test_nothing_is_deleted_if_nobody_can_tell_which_replicas_are_in_sync(world):
    world.start(1, 2)
    world.create_topic("t", [[1], [1]])
    assert list(alter(world, {T0: (2,), T1: (1, 2)}).values()) == [None, None]
    state = znodes.partition_state("t", 0)
    body = world.admin.get(state).data
    world.admin.set(state, b"garbage")
    world.requests.take()
    refused, done = alter(world, {T0: None, T1: None}).values()
    assert done is None and isinstance(refused, InvalidReplicaAssignment) and state in str(refused)
    stops = {tp for _, r in world.requests.take() if isinstance(r, StopReplicaRequest) for tp in partitions_of(r)}
    assert stops == {T1} and topic(world).adding == {0: [2]}
    world.admin.set(state, body)
    reassign(world, None)
    assert_ended(world, [1])


@pytest.mark.parametrize("remains", ["shutting down", "dead"])
def test_a_leader_that_goes_is_told_of_a_cancellation_too(world, remains):
    """Or it takes in the replica whose log is deleted, as long as it lives (found by the simulator, seed 700003750)."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 3]])
    world.kill(3)
    reassign(world, (1, 3, 2))
    world.active.context.shutting_down.add(1)
    if remains == "dead":
        world.kill(1)
    epoch = world.state("t").leader_epoch
    world.requests.take()
    reassign(world, None)
    assert topic(world).assignment == {0: [1, 3]} and running(world) == {}
    assert (world.state("t").isr, world.state("t").leader_epoch > epoch) == ([1], True)
    sent = world.requests.take()
    assert deleted_from(sent) == {2}
    if remains != "dead":
        told = [partitions_of(r)[T0] for b, r in sent if b == 1 and isinstance(r, LeaderAndIsrRequest)]
        assert told[-1].replicas == [1, 3] and told[-1].leader_epoch == world.state("t").leader_epoch


@pytest.mark.parametrize("target", [(1, 2), (2,), (2, 1)])
def test_a_member_of_the_isr_that_was_not_assigned_is_added_with_an_empty_log(world, target):
    """It was taken in by a leader that had not heard that its log was deleted."""
    world.start(1, 2)
    world.create_topic("t", [[1]])
    world.set_isr("t", 0, [1, 2])
    reassign(world, target)
    assert (world.state("t").leader, world.state("t").isr) == (1, [1]) and running(world)
    catch_up(world, 2)
    assert_ended(world, list(target))


def test_a_cancellation_that_meets_a_change_of_the_isr_is_refused_and_changes_nothing(world):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    reassign(world, (2,))
    node = topic(world)
    context = world.active.context
    # Broker 2 leads, and takes broker 1 out of the ISR between the controller's read and its write.
    world.admin.set(znodes.partition_state("t", 0), world.state("t")._replace(leader=2, isr=[2, 1]).encode())
    store = world.active._store
    real, interfered = store.change_states, []

    def after_the_leader(states):
        if not interfered:
            interfered.append(1)
            world.set_isr("t", 0, [2])
        return real(states)

    store.change_states = after_the_leader
    result = world.active.partition_reassignment.alter({T0: None})[T0]
    assert interfered and isinstance(result, InvalidReplicaAssignment)
    assert topic(world) == node and context.assignments[T0].adding == (2,)
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])
