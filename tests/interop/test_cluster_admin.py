"""The admin clients of confluent-kafka and kafka-python against kcore.Cluster: growth, reassignments, elections."""

import contextlib

import pytest

import kcore
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka = pytest.importorskip("kafka")


@pytest.fixture(scope="module")
def cluster():
    settings = {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, **settings) as cluster:
        yield cluster


def await_replicas(cluster, topic, replicas):
    """Wait until all brokers say that partition 0 has these."""

    def found():
        return {broker.metadata_cache.topic(topic).partitions[0].replicas for broker in cluster.brokers.values()}

    wait_until(lambda: found() == {tuple(replicas)})


def test_confluent_kafka_grows_a_topic_and_elects_its_preferred_leader(cluster):
    from confluent_kafka.admin import AdminClient, NewPartitions

    cluster.create_topic("grown")
    wait_until(lambda: sorted(cluster.isr("grown")) == [0, 1, 2])
    # Another order of the same replicas: the leader remains, and is not the preferred one any more.
    old = cluster.leader("grown")
    target = [broker for broker in (0, 1, 2) if broker != old] + [old]
    with python_admin(cluster) as python:
        reassigned = python.alter_partition_reassignments({kafka.TopicPartition("grown", 0): target})
    assert list(reassigned.values()) == [None]
    await_replicas(cluster, "grown", target)
    assert cluster.leader("grown") == old
    wait_until(lambda: sorted(cluster.isr("grown")) == [0, 1, 2])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    partition = confluent_kafka.TopicPartition("grown", 0)

    def elect():
        ((_, error),) = admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [partition]).result(60).items()
        return error if error is None else error.name()

    assert elect() is None and cluster.leader("grown") == target[0]
    assert elect() == "ELECTION_NOT_NEEDED"
    for future in admin.create_partitions([NewPartitions("grown", 4)]).values():
        future.result(60)
    wait_until(lambda: [len(cluster.isr("grown", number)) for number in range(4)] == [3, 3, 3, 3])


def python_admin(cluster):
    """Its thread would go on trying to connect if it were not closed."""
    return contextlib.closing(kafka.KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(",")))


def test_kafka_python_moves_a_partition_and_cancels_what_does_not_run(cluster):
    cluster.create_topic("moved", replication_factor=1)
    old = cluster.leader("moved")
    target = [(old + 1) % 3, (old + 2) % 3]
    partition, unknown = kafka.TopicPartition("moved", 0), kafka.TopicPartition("moved", 7)
    with python_admin(cluster) as admin:
        results = admin.alter_partition_reassignments({partition: target, unknown: [0]})
        assert results[partition] is None
        assert results[unknown].errno == 3
        wait_until(lambda: not admin.list_partition_reassignments())
        wait_until(lambda: sorted(cluster.isr("moved")) == sorted(target) and cluster.leader("moved") in target)
        await_replicas(cluster, "moved", target)
        assert admin.alter_partition_reassignments({partition: None})[partition].errno == 85
        response = admin.elect_leaders(0, {"moved": [0]}, raise_errors=False)
        assert response.error_code == 0
