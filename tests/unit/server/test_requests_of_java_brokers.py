"""What Java brokers of a newer inter-broker version ask a controller: AlterPartition, AllocateProducerIds."""

import pytest

import kcore
from kcore.errors import NONE, NotController, StaleBrokerEpoch, UnknownTopicId, UnknownTopicOrPartition
from kcore.protocol.messages import allocate_producer_ids as ap
from kcore.protocol.messages import alter_partition as alter
from tests.cluster_sessions import LONG_MS
from tests.unit.server.client import Client
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(2, offsets_topic_num_partitions=1, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=1)
        wait_until(lambda: cluster.controller() is not None)
        yield cluster


@pytest.fixture
def controller(cluster):
    wait_until(lambda: any(broker.cluster_member.is_controller for broker in cluster.brokers.values()))
    return next(broker for broker in cluster.brokers.values() if broker.cluster_member.is_controller)


def request(version, broker, topics):
    """topics: (name, id, partition, leader epoch, partition epoch, ISR)."""
    epoch = broker.cluster_member.broker_epoch
    data = []
    for name, topic_id, number, leader_epoch, partition_epoch, isr in topics:
        fields = {"topic_id": topic_id} if version >= 2 else {"topic_name": name}
        members = [alter.BrokerState(broker_id=member, broker_epoch=-1) for member in isr]
        isr_fields = {"new_isr_with_epochs": members} if version >= 3 else {"new_isr": isr}
        partition = alter.AlterPartitionPartitionData(
            partition_index=number, leader_epoch=leader_epoch, partition_epoch=partition_epoch, **isr_fields
        )
        data.append(alter.AlterPartitionTopicData(partitions=[partition], **fields))
    return alter.AlterPartitionRequest(broker_id=broker.broker_id, broker_epoch=epoch, topics=data)


@pytest.mark.parametrize("version", range(4))
def test_each_version_of_alter_partition_is_answered_with_the_stored_state(cluster, controller, version):
    topic = controller.metadata_cache.topic("t")
    topic_id = topic.topic_id
    number = 0
    leader = cluster.brokers[cluster.leader("t", number)]
    asked = [("t", topic_id, number, 0, 0, [leader.broker_id]), ("none", kcore_uuid(), 0, 0, 0, [0])]
    with Client(controller) as client:
        response = client.ask(request(version, leader, asked), version)
        stale = request(version, leader, asked)
        stale.broker_epoch -= 1
        assert client.ask(stale, version).error_code == StaleBrokerEpoch.code
    (first,), (second,) = (topic.partitions for topic in response.topics)
    assert response.error_code == NONE
    assert (first.error_code, first.leader_id, first.isr) == (NONE, leader.broker_id, [leader.broker_id])
    assert (first.leader_epoch, first.partition_epoch) == (0, 0)
    assert second.error_code == (UnknownTopicId if version >= 2 else UnknownTopicOrPartition).code
    if version >= 2:
        assert [topic.topic_id for topic in response.topics] == [topic_id, kcore_uuid()]
    else:
        assert [topic.topic_name for topic in response.topics] == ["t", "none"]


def kcore_uuid():
    from uuid import UUID

    return UUID(int=12345)


def test_blocks_of_producer_ids_are_given_to_registered_brokers_and_never_twice(cluster, controller):
    other = next(broker for broker in cluster.brokers.values() if broker is not controller)
    blocks = []
    with Client(controller) as client:
        for broker in (controller, other, other):
            epoch = broker.cluster_member.broker_epoch
            asked = ap.AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=epoch)
            response = client.ask(asked, 0)
            assert (response.error_code, response.producer_id_len) == (NONE, 1000)
            blocks.append(response.producer_id_start)
        for broker_id, epoch in ((other.broker_id, other.cluster_member.broker_epoch - 1), (7, -1)):
            asked = ap.AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=epoch)
            assert client.ask(asked, 0).error_code == StaleBrokerEpoch.code
    assert len(set(blocks)) == 3 and all(start % 1000 == 0 for start in blocks)
    with Client(other) as client:
        assert client.ask(asked, 0).error_code == NotController.code
        answer = client.ask(request(3, other, []), 3)
        assert answer.error_code == NotController.code
