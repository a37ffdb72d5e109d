"""What the checker of reassignments takes for a log that was left, and what for one that must not be there."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.metadata.znodes import TopicZNode
from tests.sim.reassignments import Reassignments

T0 = TopicPartition("t", 0)
LIVE = {0: 10, 1: 11, 2: 12}


class World:
    """Brokers that are up, and the logs that they have."""

    def __init__(self, *with_log):
        self.logs = {broker: broker in with_log for broker in LIVE}
        self.epoch = 1

    def registration_of(self, broker):
        return LIVE[broker]

    def controller_epoch(self):
        return self.epoch

    def has_log(self, broker, tp):
        return self.logs[broker]


@pytest.fixture
def world():
    return World(0, 1)


@pytest.fixture
def reassignments(world):
    reassignments = Reassignments(world)
    reassignments.topic_created("t", TopicZNode({0: [0, 1]}))
    reassignments.order({T0: [0]})
    return reassignments


def write(reassignments, replicas, adding=(), removing=()):
    node = TopicZNode({0: replicas}, None, {0: list(adding)}, {0: list(removing)})
    reassignments.topic_written("t", node, LIVE)
    reassignments.check_leaving()


def has_a_log(reassignments, world, broker, value):
    world.logs[broker] = value
    reassignments.check_leaving()


def test_a_log_that_the_controller_did_not_delete_breaks_the_invariant(reassignments):
    write(reassignments, [0, 1], removing=[1])
    write(reassignments, [0])
    assert reassignments.unfinished(T0, [0, 1]) == "t-0: broker 1 has a log, replicas [0]"


def test_a_log_that_comes_back_after_its_deletion_breaks_the_invariant(reassignments, world):
    write(reassignments, [0])
    has_a_log(reassignments, world, 1, False)
    assert reassignments.unfinished(T0, [0, 1]) is None
    has_a_log(reassignments, world, 1, True)
    world.epoch = 2
    reassignments.check_leaving()
    assert reassignments.unfinished(T0, [0, 1]) is not None


def test_a_log_may_stay_if_the_controller_ended_before_it_was_deleted(reassignments, world):
    write(reassignments, [0])
    world.epoch = 2
    reassignments.check_leaving()
    assert reassignments.unfinished(T0, [0, 1]) is None


def test_a_replica_that_is_removed_twice_before_the_broker_hears_of_it_is_deleted_twice(reassignments, world):
    """Else the first deletion would be taken for the second, which ends with the controller."""
    write(reassignments, [0])
    write(reassignments, [0, 1], adding=[1])
    write(reassignments, [0])
    has_a_log(reassignments, world, 1, False)
    has_a_log(reassignments, world, 1, True)
    assert reassignments.unfinished(T0, [0, 1]) is not None
    world.epoch = 2
    reassignments.check_leaving()
    assert reassignments.unfinished(T0, [0, 1]) is None


def test_a_replica_that_is_in_the_assignment_again_for_good_waits_for_no_earlier_deletion(reassignments, world):
    write(reassignments, [0])
    write(reassignments, [0, 1], adding=[1])
    write(reassignments, [0, 1])
    write(reassignments, [0])
    has_a_log(reassignments, world, 1, False)
    has_a_log(reassignments, world, 1, True)
    world.epoch = 2
    reassignments.check_leaving()
    assert reassignments.unfinished(T0, [0, 1]) is not None


@pytest.mark.parametrize("is_sent_first", [True, False])
def test_an_order_that_comes_while_a_request_is_on_its_way_may_be_carried_out_after_it(
    reassignments, world, is_sent_first
):
    """A controller that does not know of the next one answers a request for what there is (seed 820001989)."""
    write(reassignments, [0])
    has_a_log(reassignments, world, 1, False)
    orders_before = reassignments.orders
    reassignments.order({T0: [2]})
    answered = reassignments.ask(1, {T0: [0]}, orders_before if is_sent_first else reassignments.orders)
    write(reassignments, [2])
    has_a_log(reassignments, world, 2, True)
    has_a_log(reassignments, world, 0, False)
    answered({T0: None})
    assert reassignments.unfinished(T0, LIVE) == (None if is_sent_first else "t-0 has the replicas [2], not [0]")
