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
    KafkaStorageError,
    NoReassignmentInProgress,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.metadata.store import StoreError
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
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


def test_a_reassignment_ends_when_the_log_of_its_new_replica_could_be_opened(world):
    """The answer that says so may come after the replica has joined the ISR."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2]])
    world.requests.codes[3, "t", 0] = KafkaStorageError.code
    reassign(world, (3,))
    catch_up(world, 3)
    assert running(world)
    world.requests.codes.clear()
    path = f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"
    world.admin.create(path, znodes.encode_log_dir_event(3), sequential=True)
    world.settle()
    assert_ended(world, [3])
