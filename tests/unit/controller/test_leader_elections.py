"""Elections that somebody orders: ElectLeaders, preferred and unclean (KIP-183, KIP-460)."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.leader_elections import ElectionType
from kcore.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidTopicException,
    NotController,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from kcore.metadata import znodes
from kcore.metadata.store import ConnectionLost, NotAllowed
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.reassigning import reassign
from tests.unit.controller.world import partitions_of

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def elect(world, election_type, *topic_partitions):
    answers = []
    world.active.elect_leaders(election_type, topic_partitions, answers.append)
    world.process()
    world.settle()
    return answers[0]


def kinds(results):
    return {tp: result if isinstance(result, int) else type(result) for tp, result in results.items()}


def test_PSM_07_a_preferred_election_says_of_each_partition_who_leads_or_why_nobody_was_elected(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[2, 1], [3, 1], [1, 2]])
    world.kill(2)
    world.kill(3)
    assert [world.state("t", number).leader for number in range(3)] == [1, 1, 1]
    world.start(2)
    world.set_isr("t", 0, [1, 2])
    unknown = TopicPartition("no", 0)
    results = elect(world, ElectionType.PREFERRED, T0, T1, T2, unknown)
    assert kinds(results) == {
        T0: 2,
        T1: PreferredLeaderNotAvailable,  # not alive
        T2: ElectionNotNeeded,
        unknown: UnknownTopicOrPartition,
    }
    assert str(results[T1]).startswith("the preferred leader 3 may not lead: live [1], ISR [1]")
    assert [world.state("t", number).leader for number in range(3)] == [2, 1, 1]


def test_an_unclean_election_takes_a_replica_outside_the_isr_where_nobody_else_is_left(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[3, 2], [3], [2, 1]])
    for number, isr in enumerate([[3], [3], [2]]):
        world.set_isr("t", number, isr)
    world.kill(3)
    assert (world.state("t").leader, world.state("t").isr) == (-1, [3])
    results = elect(world, ElectionType.UNCLEAN, T0, T1, T2)
    assert kinds(results) == {T0: 2, T1: EligibleLeadersNotAvailable, T2: ElectionNotNeeded}
    assert str(results[T1]).startswith("unclean election: none of [3] may lead")
    assert (world.state("t").leader, world.state("t").isr) == (2, [2])
    assert world.active.unclean_leader_elections == 1
    assert elect(world, ElectionType.PREFERRED, T1).keys() == {T1}


def test_the_partitions_of_a_topic_that_is_being_deleted_have_no_elections(world):
    world.start(1, 2)
    world.create_topic("t", [[1, 2]])
    world.channels[1].codes[2, "t", 0] = 56  # its log cannot be deleted
    world.delete_topic("t")
    assert kinds(elect(world, ElectionType.UNCLEAN, T0)) == {T0: InvalidTopicException}


def test_a_broker_that_is_not_the_controller_elects_nobody(world):
    world.start(1, 2)
    answers = []
    world.controllers[2].elect_leaders(ElectionType.PREFERRED, [T0], answers.append)
    world.settle()
    assert isinstance(answers[0], NotController)


def test_CTRL_12_and_CTRL_18_an_order_that_waits_is_carried_out_by_the_next_controller(world, caplog):
    world.start(1, 2, 3)
    world.create_topic("t", [[3, 2], [1, 2]])
    world.set_isr("t", 0, [3, 2])
    world.kill(3)
    world.start(3)
    world.set_isr("t", 0, [2, 3])
    assert world.state("t").leader == 2
    world.controllers[1].events.process_all()
    body = znodes.encode_partitions([T0, T1, TopicPartition("no", 0)])
    world.admin.create(znodes.PREFERRED_REPLICA_ELECTION, body)
    world.kill(1)
    assert world.state("t").leader == 3
    assert world.admin.get(znodes.PREFERRED_REPLICA_ELECTION) is None
    assert "no-0" in caplog.text


def order_an_election(world, monkeypatch, error, *, is_done):
    """Broker 1, the controller, is to lead instead of 2; its first write of that fails, after or before it is done."""
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.active.alter_partition_reassignments({T0: (1, 2)}, lambda answer: None)
    world.settle()
    assert world.active.broker_id == 1 and world.state("t").leader == 2
    world.requests.take()
    multi, errors = world.stores[1].multi, [error]

    def fail_once(operations):
        results = multi(operations) if is_done or not errors else None
        if errors:
            raise errors.pop()
        return results

    monkeypatch.setattr(world.stores[1], "multi", fail_once)
    world.admin.create(znodes.PREFERRED_REPLICA_ELECTION, znodes.encode_partitions([T0]))
    world.settle()
    assert not errors and world.admin.get(znodes.PREFERRED_REPLICA_ELECTION) is None
    assert world.admin.get(znodes.CONTROLLER_EPOCH).data == b"2"


@pytest.mark.parametrize("is_done", [False, True])
def test_an_order_whose_election_was_not_answered_is_carried_out_by_the_next_controller(world, monkeypatch, is_done):
    """The controller went on without the new leader that it had stored, and no broker heard of it."""
    order_an_election(world, monkeypatch, ConnectionLost("away"), is_done=is_done)
    assert world.state("t").leader == world.active.context.leadership[T0].leader == 1
    sent = [pair for channels in world.channels.values() for pair in channels.take(LeaderAndIsrRequest)]
    assert {1, 2} == {broker for broker, request in sent if partitions_of(request)[T0].leader == 1}


def test_an_order_whose_election_the_store_refuses_ends_one_term_and_not_the_next(world, monkeypatch):
    order_an_election(world, monkeypatch, NotAllowed(znodes.partition_state("t", 0)), is_done=False)
    assert world.state("t").leader == world.active.context.leadership[T0].leader == 2


def test_CTRL_19_the_balancing_of_leaders_leaves_partitions_alone_that_are_being_reassigned(world):
    """Their leader is elected among the target replicas when the reassignment ends."""
    world.start(1, 2, 3)
    world.create_topic("t", [[1, 2], [1, 2]])
    world.kill(1)
    world.start(1)
    for number in (0, 1):
        world.set_isr("t", number, [1, 2])
    reassign(world, (1, 3), T0)
    world.active.leader_elections.rebalance(0)
    world.settle()
    assert [world.state("t", number).leader for number in (0, 1)] == [2, 1]
