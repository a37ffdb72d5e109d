"""Metrics and explanations of brokers that replicate each other."""

import pytest

import kcore
from kcore.common.metrics import MetricName
from tests.cluster_sessions import LONG_MS
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(3, min_insync_replicas=2, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t")
        yield cluster


def leader_and_followers(cluster):
    leader = cluster.leader("t")
    return cluster.brokers[leader], [broker for number, broker in cluster.brokers.items() if number != leader]


def counts(broker, name):
    return broker.metrics()[MetricName("kafka.server", "BrokerTopicMetrics", name)]["Count"]


def by_prefix(broker, prefix):
    return {name: attributes for name, attributes in broker.metrics().items() if name.startswith(prefix)}


def test_METRIC_01_bytes_that_followers_copy_are_counted_on_both_sides_and_not_as_a_consumers(cluster):
    leader, followers = leader_and_followers(cluster)
    before = [counts(broker, "ReplicationBytesInPerSec") for broker in followers]
    sent, consumed = counts(leader, "ReplicationBytesOutPerSec"), counts(leader, "BytesOutPerSec")
    size = leader.log("t").size
    leader.produce("t", b"x" * 1000)
    wait_until(lambda: all(broker.log("t").log_end_offset == leader.log("t").log_end_offset for broker in followers))
    size = leader.log("t").size - size
    wait_until(lambda: counts(leader, "ReplicationBytesOutPerSec") == sent + 2 * size)
    for broker, count in zip(followers, before, strict=True):
        wait_until(lambda broker=broker, count=count: counts(broker, "ReplicationBytesInPerSec") == count + size)
    assert counts(leader, "BytesOutPerSec") == consumed
    assert [counts(broker, "BytesInPerSec") for broker in followers] == [0, 0]


def test_METRIC_01_FMGR_11_a_follower_has_the_lag_of_each_partition_and_its_fetchers_requests(cluster):
    leader, (follower, _) = leader_and_followers(cluster)
    prefix = "kafka.server:type=FetcherLagMetrics,name=ConsumerLag,clientId=ReplicaFetcherThread-0-"
    name = f"{prefix}{leader.broker_id},topic=t,partition=0"
    wait_until(lambda: by_prefix(follower, prefix) == {name: {"Value": 0.0}})
    port = leader.bootstrap_servers.rpartition(":")[2]
    requests = (
        f"kafka.server:type=FetcherStats,name=RequestsPerSec,clientId=ReplicaFetcherThread-0-{leader.broker_id},"
        f"brokerHost=127.0.0.1,brokerPort={port}"
    )
    before = follower.metrics()[requests]["Count"]
    wait_until(lambda: follower.metrics()[requests]["Count"] > before)
    manager = "kafka.server:type=ReplicaFetcherManager,name={},clientId=Replica"
    values = {name: follower.metrics()[manager.format(name)]["Value"] for name in ("MaxLag", "DeadThreadCount")}
    assert values == {"MaxLag": 0, "DeadThreadCount": 0}
    wait_until(lambda: follower.metrics()[manager.format("MinFetchRate")]["Value"] > 0)


def test_METRIC_01_a_broker_that_stops_leaves_the_isr_and_is_counted(cluster):
    leader, (_, stopped) = leader_and_followers(cluster)

    def replica_metric(name, attribute):
        return leader.metrics()[MetricName("kafka.server", "ReplicaManager", name)][attribute]

    assert replica_metric("UnderReplicatedPartitions", "Value") == 0
    expands = replica_metric("IsrExpandsPerSec", "Count")
    number = stopped.broker_id
    cluster.stop(number)
    wait_until(lambda: replica_metric("UnderReplicatedPartitions", "Value") == 1)
    assert replica_metric("AtMinIsrPartitionCount", "Value") == 1
    assert replica_metric("UnderMinIsrPartitionCount", "Value") == 0
    explained = leader.explain_isr("t")
    assert number not in explained.isr and explained.replicas[0].is_leader
    assert {replica.broker_id: replica.is_in_isr for replica in explained.replicas}[number] is False
    cluster.start(number)
    wait_until(lambda: number in leader.explain_isr("t").isr)
    wait_until(lambda: replica_metric("IsrExpandsPerSec", "Count") == expands + 1)
    wait_until(lambda: replica_metric("UnderReplicatedPartitions", "Value") == 0)


def test_METRIC_01_one_broker_of_a_cluster_is_its_active_controller(cluster):
    def of(broker, name):
        return broker.metrics()[MetricName("kafka.controller", "KafkaController", name)]["Value"]

    (active,) = [broker for broker in cluster.brokers.values() if of(broker, "ActiveControllerCount")]
    wait_until(lambda: of(active, "ActiveBrokerCount") == 3)
    assert of(active, "GlobalTopicCount") == 1 and of(active, "OfflinePartitionsCount") == 0
    for broker in cluster.brokers.values():
        expired = MetricName("kafka.server", "SessionExpireListener", "ZooKeeperExpiresPerSec")
        assert broker.metrics()[expired]["Count"] == 0
