"""What the controller does about leaders whose disks are full; their brokers' nodes name the partitions."""

import pytest

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_settings import ControllerSettings
from kcore.controller.election import Election, full_disk_election, with_room_first
from kcore.metadata import znodes
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tests.unit.controller.reassigning import reassign
from tests.unit.controller.world import partitions_of

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


# -- rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("isr", "live", "without_room", "leader"),
    [
        ((1, 2, 3), (1, 2, 3), {1}, 2),
        ((3, 1), (1, 2, 3), {1}, 3),
        ((1, 2, 3), (1, 3), {1}, 3),
        ((1, 2, 3), (1, 2, 3), {1, 2}, 3),
        ((1, 2, 3), (1, 2, 3), {1, 2, 3}, None),
        ((1,), (1, 2, 3), {1}, None),
    ],
)
def test_the_next_leader_is_in_sync_and_alive_and_has_room_and_the_isr_stays(isr, live, without_room, leader):
    expected = None if leader is None else Election(leader, isr)
    assert full_disk_election((1, 2, 3), isr, live, without_room) == expected


def test_replicas_without_room_come_last():
    assert with_room_first((1, 2, 3, 4), {1, 3}) == [2, 4, 1, 3]
    assert with_room_first((1, 2, 3), set()) == [1, 2, 3]


# -- what is done about it ------------------------------------------------------------------------------


def fill(world, broker_id, *tps):
    """As the broker does; again and again as long as nothing has changed."""
    path = znodes.full_disk(broker_id)
    store, data = world.stores[broker_id], znodes.encode_partitions(tps)
    if store.get(path) is None:
        store.create(path, data, ephemeral=True)
    else:
        store.set(path, data)
    world.settle()


def has_room(world, broker_id):
    world.stores[broker_id].delete(znodes.full_disk(broker_id))
    world.settle()


@pytest.fixture
def three(world):
    """Broker 1 leads both partitions; the settings have the leaders rebalanced."""
    world.start(1, 2, 3, settings=ControllerSettings(rebalance_interval_ms=300_000))
    world.create_topic("t", [[1, 2, 3], [1, 2, 3]])
    return world


def leaders(world):
    return [world.state("t", number).leader for number in range(2)]


def test_another_replica_leads_what_a_broker_cannot_append_to_and_the_isr_stays(three):
    epoch = three.state("t").leader_epoch
    three.requests.take()
    fill(three, 1, T0)
    assert leaders(three) == [2, 1]
    assert (three.state("t").isr, three.state("t").leader_epoch) == ([1, 2, 3], epoch + 1)
    sent = {broker for broker, request in three.requests.take(LeaderAndIsrRequest) if T0 in partitions_of(request)}
    assert sent == {1, 2, 3}


def test_the_leadership_moves_to_each_broker_once_when_all_disks_are_full_and_then_stays(three):
    led = []
    for _ in range(3):
        leader = three.state("t").leader
        led.append(leader)
        fill(three, leader, T0)
    epoch = three.state("t").leader_epoch
    assert led == [1, 2, 3] and three.state("t").leader == 3
    for _ in range(5):
        for broker_id in (1, 2, 3):
            fill(three, broker_id, T0)  # asks again
    assert (three.state("t").leader, three.state("t").leader_epoch) == (3, epoch)
    assert three.state("t").isr == [1, 2, 3]
    has_room(three, 1)
    assert three.state("t").leader == 1


def test_a_broker_that_asks_again_gets_another_leader_once_one_is_in_sync(three):
    three.set_isr("t", 0, [1])
    fill(three, 1, T0)
    assert leaders(three) == [1, 1]
    three.set_isr("t", 0, [1, 3])
    fill(three, 1, T0)
    assert leaders(three) == [3, 1]


def test_the_balancing_brings_the_leader_back_only_when_there_is_room(three):
    fill(three, 1, T0)
    for _ in range(2):
        three.time.sleep(300_000)
        three.scheduler.tick()
        three.settle()
        assert leaders(three) == [2, 1]
    has_room(three, 1)
    assert leaders(three) == [2, 1]
    three.time.sleep(300_000)
    three.scheduler.tick()
    three.settle()
    assert leaders(three) == [1, 1]


def test_the_next_controller_carries_out_what_the_last_one_did_not(three):
    three.create_topic("u", [[2, 3]])
    assert three.active.broker_id == 1
    three.stores[2].create(znodes.full_disk(2), znodes.encode_partitions([TopicPartition("u", 0)]), ephemeral=True)
    three.kill(1)
    assert (three.state("u").leader, three.state("u").isr) == (3, [2, 3])


@pytest.mark.parametrize("how", ["is killed", "is stopped"])
def test_the_successor_of_a_leader_that_goes_has_room_if_there_is_one(three, how):
    three.create_topic("u", [[2, 3, 1]])
    fill(three, 3, TopicPartition("u", 0))
    epoch = three.state("u").leader_epoch
    if how == "is killed":
        three.kill(2)
    else:
        three.active.controlled_shutdown(2, -1, lambda error, left: None)
        three.settle()
    assert (three.state("u").leader, three.state("u").isr) == (1, [3, 1])
    assert three.state("u").leader_epoch == epoch + 1


def test_a_broker_whose_disk_is_full_leads_if_nobody_else_can(three):
    fill(three, 2, T0)
    three.set_isr("t", 0, [1, 2])
    three.kill(1)
    assert leaders(three)[0] == 2


def test_the_wish_of_a_broker_ends_with_its_session(three):
    fill(three, 2, T0)
    three.kill(2)
    three.start(2)
    three.set_isr("t", 0, [1, 2, 3])
    three.kill(1)
    assert leaders(three)[0] == 2


def test_a_partition_that_is_reassigned_is_handed_over_too(three):
    three.set_isr("t", 0, [1, 2])
    reassign(three, (1, 3))
    fill(three, 1, T0)
    assert leaders(three) == [2, 1]


@pytest.mark.parametrize("body", [b"{", b'{"version":1,"partitions":[{"topic":"nowhere","partition":0}]}', b"[]"])
def test_a_node_that_cannot_be_read_or_names_what_is_not_there_changes_nothing(three, body):
    three.stores[2].create(znodes.full_disk(1), body, ephemeral=True)
    three.stores[2].create(f"{znodes.FULL_DISKS}/x", znodes.encode_partitions([T0]), ephemeral=True)
    three.settle()
    assert leaders(three) == [1, 1] and three.active.context.without_room(T0) == set()
