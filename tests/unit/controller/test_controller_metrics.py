"""What a controller measures, under Kafka's names."""

from dataclasses import replace

from kcore.controller.controller_context import ReplicaAssignment
from kcore.controller.controller_metrics import controller_metrics


def values(controller):
    return {name.name: value for name, value in controller_metrics(controller) if name.type_name == "KafkaController"}


def test_METRIC_01_the_active_controller_counts_what_its_cluster_has(world):
    world.start(1, 2, 3)
    world.create_topic("a", [[3, 2], [1, 3]])
    world.create_topic("b", [[3]])
    active = world.active
    assert values(active) == {
        "ActiveControllerCount": 1,
        "ActiveBrokerCount": 3,
        "GlobalTopicCount": 2,
        "GlobalPartitionCount": 3,
        "OfflinePartitionsCount": 0,
        "PreferredReplicaImbalanceCount": 0,
        "TopicsToDeleteCount": 0,
        "TopicsIneligibleToDeleteCount": 0,
        "ReplicasToDeleteCount": 0,
        "ReplicasIneligibleToDeleteCount": 0,
    }
    world.kill(3)
    after = values(active)
    assert after["ActiveBrokerCount"] == 2
    # b has no leader; a-0 is led by its second replica, b by nobody.
    assert (after["OfflinePartitionsCount"], after["PreferredReplicaImbalanceCount"]) == (1, 2)


def test_METRIC_01_a_topic_that_waits_for_its_deletion_counts_as_such_only(world):
    world.start(1, 2, 3)
    world.create_topic("a", [[3, 2]])
    world.kill(3)
    world.delete_topic("a")
    counted = values(world.active)
    assert (counted["TopicsToDeleteCount"], counted["TopicsIneligibleToDeleteCount"]) == (1, 1)
    # That on broker 2 is deleted.
    assert (counted["ReplicasToDeleteCount"], counted["ReplicasIneligibleToDeleteCount"]) == (1, 1)
    assert (counted["OfflinePartitionsCount"], counted["PreferredReplicaImbalanceCount"]) == (0, 0)


def test_a_replica_that_a_reassignment_adds_is_preferred_once_it_is_in_the_isr(world):
    world.start(1, 2, 3)
    world.create_topic("a", [[1, 2]])
    context = world.active.context
    (tp,) = context.assignments
    context.set_assignment(tp, ReplicaAssignment((3, 1, 2), adding=(3,), removing=(2,)))
    assert values(world.active)["PreferredReplicaImbalanceCount"] == 0
    context.leadership[tp] = replace(context.leadership[tp], isr=(1, 2, 3))
    assert values(world.active)["PreferredReplicaImbalanceCount"] == 1


def test_METRIC_01_who_is_not_active_knows_nothing_of_the_cluster(world):
    world.start(1, 2)
    world.create_topic("a", [[1, 2]])
    assert world.active is world.controllers[1]
    assert set(values(world.controllers[2]).values()) == {0}


def test_METRIC_01_requests_that_a_broker_has_not_answered_and_events_are_counted(world):
    world.start(1, 2)
    active, channels = world.active, world.channels[1]
    channels.send_request(2, object())
    active.events.put(object())
    measured = dict(controller_metrics(active))
    assert measured["kafka.controller:type=ControllerChannelManager,name=QueueSize,broker-id=2"] == 1
    assert measured["kafka.controller:type=ControllerChannelManager,name=QueueSize,broker-id=1"] == 0
    assert measured["kafka.controller:type=ControllerChannelManager,name=TotalQueueSize"] == 1
    assert measured["kafka.controller:type=ControllerEventManager,name=EventQueueSize"] == 1


def test_METRIC_01_an_unclean_election_is_counted(world):
    world.start(1, 2, 3)
    world.create_topic("t", [[3, 2]], {"unclean.leader.election.enable": "true"})
    world.set_isr("t", 0, [3])
    world.kill(3)
    (counted,) = [meter for name, meter in controller_metrics(world.active) if name.type_name == "ControllerStats"]
    assert counted.count == 1
