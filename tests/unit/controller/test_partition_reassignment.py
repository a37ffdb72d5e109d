"""Reassignments: the rules over values, and every step of the controller on a store without threads (KIP-455)."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import PartitionReplica, ReplicaAssignment, ReplicaState
from kcore.controller.partition_reassignment import (
    is_complete,
    may_drop_replicas,
    reassigned_to,
    requested_assignment,
)
from kcore.errors import (
    InvalidReplicaAssignment,
    LeaderNotAvailable,
    NoReassignmentInProgress,
    NotController,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost, StoreError
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.stop_replica import StopReplicaRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from tests.unit.controller.world import partitions_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def alter(world, targets):
    results = []
    world.active.alter_partition_reassignments(targets, results.append)
    world.process()
    world.settle()
    (result,) = results
    return result


def reassign(world, target, tp=T0):
    """Begin or cancel one; what is wrong with it is raised."""
    error = alter(world, {tp: target})[tp]
    if error is not None:
        raise error


def running(world, topic_partitions=None):
    results = []
    world.active.list_partition_reassignments(topic_partitions, results.append)
    world.process()
    return results[0]


def topic(world, name="t"):
    return znodes.TopicZNode.decode(world.admin.get(znodes.topic(name)).data)


def catch_up(world, *brokers, tp=T0):
    """The leader takes brokers into the ISR."""
    isr = world.state(*tp).isr
    world.set_isr(*tp, [*isr, *(broker for broker in brokers if broker not in isr)])
    world.settle()


def assert_ended(world, replicas, tp=T0):
    """Exactly these replicas, and no trace of a reassignment, in the store and with the controller."""
    node, context = topic(world, tp.topic), world.active.context
    assert (node.assignment[tp.partition], node.adding, node.removing) == (replicas, {}, {})
    assert context.assignments[tp] == ReplicaAssignment(tuple(replicas))
    assert {r.broker_id for r in context.replica_states if r.topic_partition == tp} == set(replicas)
    assert running(world) == {}
    assert set(world.state(*tp).isr) <= set(replicas)
    assert world.state(*tp).leader in replicas
    assert world.admin.get(znodes.REASSIGN_PARTITIONS) is None


def deleted_from(sent, tp=T0):
    """The brokers that have been sent the order to delete the partition's log."""
    stops = [(b, partitions_of(r)) for b, r in sent if isinstance(r, StopReplicaRequest)]
    return {broker for broker, partitions in stops if tp in partitions and partitions[tp].delete_partition}


# -- rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "current, target, expected",
    [
        # The examples of KIP-455.
        (((1, 2, 3),), (4, 5, 6), ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))),
        (((1, 2, 3),), (3, 4, 2), ((3, 4, 2, 1), (4,), (1,))),
        (((1, 2, 3),), (3, 2, 1), ((3, 2, 1), (), ())),
        (((1,),), (1, 2, 3), ((1, 2, 3), (2, 3), ())),
        (((1, 2, 3),), (2,), ((2, 1, 3), (), (1, 3))),
        # Another target while one runs: what only the first would have added goes.
        (((4, 5, 1, 2), (4, 5), (1, 2)), (4, 6), ((4, 6, 1, 2), (4, 6), (1, 2))),
        (((4, 5, 1, 2), (4, 5), (1, 2)), (1, 2), ((1, 2), (), ())),
    ],
)
def test_the_replicas_while_a_partition_moves(current, target, expected):
    assert reassigned_to(ReplicaAssignment(*current), target) == ReplicaAssignment(*expected)
    assert ReplicaAssignment(*expected).target == target


@pytest.mark.parametrize(
    "target, error",
    [
        ((), InvalidReplicaAssignment),
        ((1, 1), InvalidReplicaAssignment),
        ((-1,), InvalidReplicaAssignment),
        ((1, 9), InvalidReplicaAssignment),
        (None, NoReassignmentInProgress),
    ],
)
def test_what_a_request_must_satisfy(target, error):
    with pytest.raises(error):
        requested_assignment(ReplicaAssignment((1, 2)), target, {1, 2, 3})
    # Broker 2 is dead, but has its replica already.
    assert requested_assignment(ReplicaAssignment((1, 2)), (2, 3), {1, 3}).adding == (3,)


def test_a_reassignment_is_complete_when_all_target_replicas_are_in_sync_and_one_can_lead():
    moving = ReplicaAssignment((3, 4, 1), adding=(3, 4), removing=(1,))
    assert not is_complete(moving, (1, 3), {1, 3, 4})
    assert is_complete(moving, (1, 3, 4), {1, 4})
    assert not is_complete(moving, (1, 3, 4), {1})
    assert is_complete(ReplicaAssignment((1, 2)), (1,), {1})


@pytest.mark.parametrize(
    "remaining, isr, online, leader, expected",
    [
        ({1, 2}, {1, 3}, {1, 2}, 1, True),
        ({1, 2}, {1, 3}, {1, 2}, 3, True),
        ({1, 2}, {3}, {1, 2}, 3, False),
        ({1, 2}, {1, 3}, {2}, 3, False),  # 3 has what 1 may not get any more
        ({1, 2}, {1, 3}, {2}, -1, True),  # nobody leads: 1 has everything
        ({1, 2}, {3}, {1, 2}, -1, False),
    ],
)
def test_replicas_are_dropped_only_while_an_in_sync_one_remains(remaining, isr, online, leader, expected):
    assert may_drop_replicas(remaining, isr, online, leader) is expected


# -- phases ---------------------------------------------------------------------------------------------


def test_CTRL_18_phase_A_stores_both_sets_of_replicas_and_sends_the_new_ones_to_their_brokers(world):
    world.start(1, 2, 3, 4, 5, 6)
    world.create_topic("t", [[1, 2, 3]])
    before = world.state("t")
    world.requests.take()
    reassign(world, (4, 5, 6))
    node = topic(world)
    assert node.assignment == {0: [4, 5, 6, 1, 2, 3]}
    assert (node.adding, node.removing) == ({0: [4, 5, 6]}, {0: [1, 2, 3]})
    assert running(world) == {T0: ReplicaAssignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))}
    assert world.state("t")._replace(leader_epoch=before.leader_epoch) == before
    assert world.state("t").leader_epoch > before.leader_epoch
    sent = world.requests.take()
    first = {}
    for broker, request in sent:
        if isinstance(request, LeaderAndIsrRequest):
            first.setdefault(broker, partitions_of(request)[T0])
    assert {broker: state.is_new for broker, state in first.items()} == dict.fromkeys((1, 2, 3), False) | dict.fromkeys(
        (4, 5, 6), True
    )
    assert all(
        (s.replicas, s.adding_replicas, s.removing_replicas) == ([4, 5, 6, 1, 2, 3], [4, 5, 6], [1, 2, 3])
        for s in first.values()
    )
    assert deleted_from(sent) == set()
    states = {b: world.active.context.replica_state(PartitionReplica(T0, b)) for b in range(1, 7)}
    assert states == dict.fromkeys((1, 2, 3), ReplicaState.ONLINE) | dict.fromkeys((4, 5, 6), ReplicaState.NEW)


def test_CTRL_18_a_reassignment_waits_until_all_target_replicas_are_in_sync(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[1, 2]])
    reassign(world, (3, 4))
    epoch = world.state("t").leader_epoch
    catch_up(world, 3)
    assert running(world) and world.state("t").leader_epoch == epoch
    world.set_isr("t", 0, [1, 2, 4])  # 4 has come, 3 has gone
    world.settle()
    assert running(world)
    catch_up(world, 3, 4)
    assert_ended(world, [3, 4])


def test_PSM_06_phase_B_moves_the_leader_and_deletes_the_old_replicas(world):
    world.start(1, 2, 3, 4, 5, 6)
    world.create_topic("t", [[1, 2, 3]])
    reassign(world, (4, 5, 6))
    world.requests.take()
    catch_up(world, 4, 5, 6)
    assert_ended(world, [4, 5, 6])
    assert (world.state("t").leader, sorted(world.state("t").isr)) == (4, [4, 5, 6])
    sent = world.requests.take()
    assert deleted_from(sent) == {1, 2, 3}
    led = [(b, partitions_of(r)[T0]) for b, r in sent if isinstance(r, LeaderAndIsrRequest)]
    assert {broker for broker, _ in led} == {4, 5, 6}
    assert {(s.leader, tuple(s.replicas), tuple(s.adding_replicas)) for _, s in led} == {(4, (4, 5, 6), ())}
    last = {b: partitions_of(r)[T0] for b, r in sent if isinstance(r, UpdateMetadataRequest) and partitions_of(r)}
    assert {(b, tuple(s.replicas), s.leader) for b, s in last.items()} == {(b, (4, 5, 6), 4) for b in range(1, 7)}


def test_a_leader_among_the_target_replicas_remains_and_learns_of_the_end_with_a_new_epoch(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2]])
    reassign(world, (3, 1))
    epoch = world.state("t").leader_epoch
    world.requests.take()
    catch_up(world, 3)
    assert_ended(world, [3, 1])
    assert world.state("t").leader == 1 and world.state("t").leader_epoch > epoch
    last = {b: partitions_of(r)[T0] for b, r in world.requests.take(LeaderAndIsrRequest)}
    assert last.keys() == {1, 3} and all(s.replicas == [3, 1] and set(s.isr) == {1, 3} for s in last.values())


def test_the_replication_factor_grows_and_shrinks(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    reassign(world, (1, 2, 3))
    catch_up(world, 2, 3)
    assert_ended(world, [1, 2, 3])
    world.requests.take()
    # All that remain are in sync: there is nothing to wait for, and the leader moves.
    reassign(world, (2,))
    assert_ended(world, [2])
    assert deleted_from(world.requests.take()) == {1, 3}
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])


def test_another_order_of_the_same_replicas_moves_nothing(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.requests.take()
    reassign(world, (2, 1))
    assert_ended(world, [2, 1])
    assert world.state("t").leader == 1 and deleted_from(world.requests.take()) == set()


def test_many_partitions_move_at_once_and_each_gets_its_own_answer(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1], [2], [1]])
    unknown, third = TopicPartition("t", 9), TopicPartition("t", 2)
    results = alter(world, {T0: (2,), T1: (7,), unknown: (1,), third: (3,), TopicPartition("no", 0): None})
    assert (results[T0], results[third]) == (None, None)
    assert isinstance(results[T1], InvalidReplicaAssignment)
    assert isinstance(results[unknown], UnknownTopicOrPartition)
    assert isinstance(results[TopicPartition("no", 0)], UnknownTopicOrPartition)
    assert running(world).keys() == {T0, third}
    assert running(world, [T0, T1]).keys() == {T0}
    assert topic(world).assignment[1] == [2]
    catch_up(world, 2)
    catch_up(world, 3, tp=third)
    assert topic(world).assignment == {0: [2], 1: [2], 2: [3]}


def test_partitions_of_a_topic_that_begin_or_end_together_need_one_write_of_its_node(world):
    """The node has all partitions: a write for each would be quadratic.  A node's version counts its writes."""
    world.start(1, 2, 3)
    partitions = [TopicPartition("t", number) for number in range(40)]
    world.create_topic("t", [[1, 2]] * len(partitions))

    def writes():
        return world.admin.get(znodes.topic("t")).version

    assert alter(world, dict.fromkeys(partitions, (3, 2))) == dict.fromkeys(partitions)
    assert writes() == 1
    for tp in partitions[:20]:
        world.set_isr(*tp, [1, 2, 3])
    world.settle()
    assert writes() == 2
    assert set(running(world)) == set(partitions[20:])
    for tp in partitions[20:]:
        world.set_isr(*tp, [1, 2, 3])
    world.settle()
    assert writes() == 3
    for tp in partitions:
        assert_ended(world, [3, 2], tp)


def test_partitions_that_were_added_meanwhile_are_not_overwritten(world):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    store, path = world.active._store, znodes.topic("t")
    real, grown = store._multi, []

    def grow_first(operations):
        if not grown and any(o.path == path for o in operations):
            grown.append(world.admin.set(path, topic(world)._replace(assignment={0: [1], 1: [2]}).encode()))
        real(operations)

    store._multi = grow_first
    reassign(world, (2,))
    assert grown and topic(world).assignment == {0: [2, 1], 1: [2]}
    assert world.state("t", 1).leader == 2


# -- cancel and override --------------------------------------------------------------------------------


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
            raise ConnectionLost("the store is away")
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


# -- brokers that die -----------------------------------------------------------------------------------


def test_a_new_replica_whose_broker_dies_is_waited_for(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2]])
    reassign(world, (1, 3))
    world.kill(3)
    assert running(world)
    # An order to a dead broker is refused, one that repeats what it has begun too, as in Kafka.
    with pytest.raises(InvalidReplicaAssignment):
        reassign(world, (1, 3))
    world.start(3)
    last = {b: partitions_of(r)[T0] for b, r in world.requests.take(LeaderAndIsrRequest) if T0 in partitions_of(r)}
    assert last[3].is_new and last[3].adding_replicas == [3]
    catch_up(world, 3)
    assert_ended(world, [1, 3])


def test_the_leader_dies_and_the_reassignment_goes_on_under_the_next_one(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[2, 3]])
    reassign(world, (4, 3))
    world.kill(2)
    assert world.state("t").leader == 3 and running(world)
    catch_up(world, 4)
    assert_ended(world, [4, 3])
    # What is left on broker 2 is not part of the cluster any more.
    world.requests.take()
    world.start(2)
    assert not any(T0 in partitions_of(r) for b, r in world.requests.take(LeaderAndIsrRequest) if b == 2)


def test_target_replicas_that_are_in_sync_but_dead_do_not_end_it(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2]])
    reassign(world, (3,))
    world.end_session(world.stores.pop(3))
    del world.controllers[3], world.channels[3]
    # The leader has taken broker 3 in, and the controller learns of its death first.
    world.active.context.live_brokers.pop(3)
    world.set_isr("t", 0, [2, 3])
    world.deliver()
    world.active.partition_reassignment.resume()
    assert topic(world).removing == {0: [2]} and world.state("t").leader == 2


def test_no_target_replica_that_leads_no_end(world, monkeypatch):
    world.start(1, 2)
    world.create_topic("t", [[1]])
    reassign(world, (2,))
    machine = world.active.partition_state_machine
    monkeypatch.setattr(machine, "handle_state_changes", lambda tps, *a, **k: dict.fromkeys(tps, "none"))
    catch_up(world, 2)
    assert topic(world).removing == {0: [1]} and running(world)[T0].removing == (1,)
    monkeypatch.undo()
    world.active.partition_reassignment.resume()
    assert_ended(world, [2])


def test_a_leader_epoch_is_raised_also_where_the_leader_has_just_changed_the_isr(world, monkeypatch):
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2]])
    world.requests.take()
    store = world.active._store
    change_states = store.change_states

    def interfere(states):
        monkeypatch.undo()
        assert states[T0].leader_epoch == 1
        world.set_isr("t", 0, [1])
        return change_states(states)

    monkeypatch.setattr(store, "change_states", interfere)
    reassign(world, (1, 3))
    assert (world.state("t").leader_epoch, world.state("t").isr) == (1, [1])
    sent = [(b, partitions_of(r)[T0]) for b, r in world.requests.take(LeaderAndIsrRequest)]
    assert {(broker, state.leader_epoch, tuple(state.isr)) for broker, state in sent} == {
        (broker, 1, (1,)) for broker in (1, 2, 3)
    }


# -- fail-over ------------------------------------------------------------------------------------------


def test_CTRL_18_an_isr_change_that_the_end_of_a_term_overtakes_does_not_hide_those_of_the_next(world):
    """The same broker is elected again while an ISR change waits to be processed."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1]])
    reassign(world, (2, 3))
    before = world.active.context.epoch
    # The watch was called, and the event that it has queued belongs to a term that is over.
    world.active.partition_reassignment._isr_changed(T0)
    world.active._resign()
    world.admin.delete(znodes.CONTROLLER)
    world.settle()
    assert world.active.broker_id == 1 and world.active.context.epoch == before + 1
    catch_up(world, 2)
    catch_up(world, 3)
    assert_ended(world, [2, 3])


def test_CTRL_14_and_CTRL_18_the_next_controller_goes_on_with_what_is_stored(world):
    world.start(1, 2, 3, 4)
    world.create_topic("t", [[2, 3]])
    reassign(world, (3, 4))
    world.kill(1)
    assert running(world) == {T0: ReplicaAssignment((3, 4, 2), (4,), (2,))}
    catch_up(world, 4)
    assert_ended(world, [3, 4])


@pytest.mark.parametrize("action", ["begin", "end", "cancel"])
def test_CTRL_18_a_controller_that_dies_at_any_of_its_writes_leaves_work_that_the_next_one_ends(
    tmp_path_factory, action, world
):
    for writes in range(30):
        name = f"t{writes}"
        tp = TopicPartition(name, 0)
        world.start(*({1, 2, 3, 4} - world.controllers.keys()))
        world.create_topic(name, [[2, 3]])
        if action != "begin":
            reassign(world, (4, 3), tp)
        controller, store = world.active, world.stores[world.active.broker_id]
        real, left = store.multi, [writes]

        def dies(operations, real=real, left=left):
            if not left[0]:
                raise StoreError("the controller is dead")
            left[0] -= 1
            return real(operations)

        store.multi = dies
        answers = []
        if action == "end":
            world.set_isr(name, 0, [*world.state(name).isr, 4])
            world.deliver()
        else:
            controller.alter_partition_reassignments({tp: (4, 3) if action == "begin" else None}, answers.append)
        controller.events.process_all()
        is_dead = not controller.is_active
        if is_dead and answers:
            assert isinstance(answers[0], UnknownServerError)
        store.multi = real
        world.kill(controller.broker_id)
        if running(world):
            # Before the first write nothing has happened; else it goes on to its end.
            assert world.state(name).leader in (2, 3, 4)
            world.start(*({2, 3, 4} - world.controllers.keys()))
            catch_up(world, 2, 3, 4, tp=tp)
        world.start(*({1, 2, 3, 4} - world.controllers.keys()))
        replicas = topic(world, name).assignment[0]
        # What both have comes in the target's order, also after a cancellation: the node has one list, as Kafka's.
        assert replicas in ([4, 3], [3, 2] if action == "cancel" else [2, 3]), (writes, replicas)
        assert_ended(world, replicas, tp)
        if not is_dead:
            assert replicas == ([3, 2] if action == "cancel" else [4, 3])
            break
    else:
        pytest.fail("it never came to its end")
    assert writes >= 2


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
