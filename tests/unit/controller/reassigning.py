"""What the tests of reassignments ask of a controller and look at."""

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import ReplicaAssignment
from kcore.metadata import znodes
from kcore.protocol.messages.stop_replica import StopReplicaRequest
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
