"""Answers that a broker gave before it registered again, and that the controller processes after that."""

from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import PartitionReplica, ReplicaState
from kcore.errors import KafkaStorageError
from kcore.metadata import znodes
from kcore.protocol.messages.stop_replica import StopReplicaRequest

T0 = TopicPartition("t", 0)


def process_without_answers(world):
    while world.deliver() + world.process():
        pass


def answer_late(world, broker_id, name):
    """A broker answers what it was sent, and registers again: the controller processes that first."""
    path = znodes.broker_id(broker_id)
    node = world.admin.get(path)
    world.admin.delete(path)
    world.admin.create(path, node.data, ephemeral=True)
    world.deliver()
    world.requests.answer()
    names = [event.name for event in world.active.events._events]
    assert names.index("BrokerChange") < names.index(name)
    world.requests.codes.clear()
    world.requests.take()
    world.settle()


def test_a_failed_log_directory_is_not_that_of_the_brokers_next_registration(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    name = f"{znodes.LOG_DIR_EVENT_NOTIFICATION}/log_dir_event_"
    world.admin.create(name, znodes.encode_log_dir_event(2), sequential=True)
    process_without_answers(world)
    answer_late(world, 2, "LeaderAndIsrResponseReceived")
    # It was out of the ISR, and is sent nothing that stops it.
    assert world.active.context.replica_state(PartitionReplica(T0, 2)) is ReplicaState.ONLINE
    assert world.active.context.is_online(2, T0)
    assert world.requests.take(StopReplicaRequest) == []


def test_a_log_that_could_not_be_deleted_is_deleted_by_the_broker_that_has_started_again(world):
    world.start(1, 2)
    world.create_topic("t", [[2, 1]])
    world.requests.codes[2, "t", 0] = KafkaStorageError.code
    world.admin.create_recursive(znodes.delete_topic("t"))
    process_without_answers(world)
    answer_late(world, 2, "TopicDeletionStopReplicaResponseReceived")
    assert world.admin.get(znodes.topic("t")) is None
    assert world.admin.children(znodes.DELETE_TOPICS) == []
