"""Reassignments and elections over sockets, in a cluster of three brokers."""

import os
import threading
import time

import pytest

import kcore
from kcore.errors import ElectionNotNeeded, InvalidReplicaAssignment, NoReassignmentInProgress, NotController
from kcore.protocol.messages import alter_partition_reassignments as apr
from kcore.protocol.messages import elect_leaders as el
from kcore.protocol.messages import list_partition_reassignments as lpr
from tests.batches import batch
from tests.cluster_sessions import LONG_MS
from tests.unit.server.client import Client
from tests.unit.server.test_every_version import produce_request
from tests.waiting import wait_until

DEADLINE_S = 60


@pytest.fixture(scope="module")
def cluster():
    settings = {"log_segment_delete_delay_ms": 100, "replica_fetch_max_bytes": 1000}
    # Leaders move when a test says so.
    settings |= {"auto_leader_rebalance_enable": False, "zookeeper_session_timeout_ms": LONG_MS}
    # The records of batch() are old: retention would delete them once the brokers have run for 30 s.
    settings |= {"replica_lag_time_max_ms": 10_000, "log_retention_ms": -1}
    with kcore.Cluster(3, offsets_topic_num_partitions=1, **settings) as cluster:
        yield cluster


def ask_controller(cluster, request, version):
    """The answer of the controller; asked again while another one is elected."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        controller = cluster.controller()
        if controller is not None:
            with Client(cluster.brokers[controller]) as client:
                response = client.ask(request, version)
            if response.error_code != NotController.code:
                return response
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alter(cluster, topic, targets):
    """Error code of each partition."""
    partitions = [apr.ReassignablePartition(partition_index=n, replicas=replicas) for n, replicas in targets.items()]
    request = apr.AlterPartitionReassignmentsRequest(topics=[apr.ReassignableTopic(name=topic, partitions=partitions)])
    response = ask_controller(cluster, request, 0)
    return {p.partition_index: p.error_code for t in response.responses for p in t.partitions}


def running(cluster):
    response = ask_controller(cluster, lpr.ListPartitionReassignmentsRequest(), 0)
    return {
        (t.name, p.partition_index): (p.replicas, p.adding_replicas, p.removing_replicas)
        for t in response.topics
        for p in t.partitions
    }


def directories(cluster, name):
    """The brokers that have a log of the partition, with those whose deletion is not done yet."""
    return {
        broker
        for broker in range(3)
        for entry in os.listdir(os.path.join(cluster.data_dir, str(broker)))
        if entry == name or entry.startswith(f"{name}.")
    }


class Producer(threading.Thread):
    """Sends one record after the other with acks=all to whoever leads; acked: values that were acknowledged."""

    def __init__(self, cluster, topic):
        super().__init__()
        self.cluster, self.topic = cluster, topic
        self.acked, self.failure = [], None
        self.stopping = threading.Event()

    def run(self):
        number = 0
        while not self.stopping.is_set():
            value = b"%d" % number
            try:
                leader = self.cluster.leader(self.topic)
                if leader is None:
                    continue
                with Client(self.cluster.brokers[leader]) as client:
                    while not self.stopping.is_set():
                        value = b"%d" % number
                        request = produce_request(self.cluster.brokers[leader], self.topic, 0, batch(value), acks=-1)
                        (answer,) = client.ask(request, 9).responses[0].partition_responses
                        if answer.error_code:
                            break
                        self.acked.append((answer.base_offset, value))
                        number += 1
                        self.stopping.wait(0.001)  # a new replica, which fetches little at a time, is to catch up
            except (OSError, EOFError, KeyError):
                pass
            except BaseException as error:
                self.failure = error
                raise
            time.sleep(0.01)


def test_CTRL_18_a_partition_moves_under_a_producer_and_ends_with_exactly_the_target_replicas(cluster):
    cluster.create_topic("moving", replication_factor=1)
    (start,) = cluster.isr("moving")
    producer = Producer(cluster, "moving")
    producer.start()
    try:
        for target in ([(start + 1) % 3], [start, (start + 2) % 3], [(start + 2) % 3, (start + 1) % 3]):
            count = len(producer.acked)
            wait_until(lambda count=count: len(producer.acked) > count + 20)
            assert alter(cluster, "moving", {0: target}) == {0: 0}
            wait_until(lambda: running(cluster) == {})
            wait_until(lambda t=target: sorted(cluster.isr("moving")) == sorted(t))
            assert cluster.leader("moving") in target
            for broker in cluster.brokers.values():
                wait_until(
                    lambda b=broker, t=target: list(b.metadata_cache.topic("moving").partitions[0].replicas) == t
                )
            wait_until(lambda t=target: directories(cluster, "moving-0") == set(t))
        count = len(producer.acked)
        wait_until(lambda: len(producer.acked) > count + 20)
    finally:
        producer.stopping.set()
        producer.join()
    assert producer.failure is None

    def are_all_readable():
        records = cluster.brokers[cluster.leader("moving")].consume("moving", 0)
        stored = {record.offset: bytes(record.value) for record in records}
        return [stored.get(offset) for offset, _ in producer.acked] == [value for _, value in producer.acked]

    wait_until(are_all_readable)


def test_a_cancelled_reassignment_leaves_the_old_replicas_and_no_directory(cluster):
    cluster.create_topic("stays", replication_factor=1, follower_replication_throttled_replicas="*")
    leader = cluster.leader("stays")
    other = (leader + 1) % 3
    # A new replica that may copy next to nothing: a fetch brings one of the batches, and uses the throttle up for
    # the 10 s over which it is measured.
    for broker in cluster.brokers.values():
        broker.config.reconfigure({"follower.replication.throttled.rate": 1})
    try:
        with Client(cluster.brokers[leader]) as client:
            for _ in range(30):
                client.ask(produce_request(cluster.brokers[leader], "stays", 0, batch(b"x" * 10_000)), 9)
        assert alter(cluster, "stays", {0: [other]}) == {0: 0}
        assert running(cluster) == {("stays", 0): ([other, leader], [other], [leader])}
        wait_until(lambda: directories(cluster, "stays-0") == {leader, other})
        assert alter(cluster, "stays", {0: None}) == {0: 0}
    finally:
        for broker in cluster.brokers.values():
            broker.config.reconfigure({"follower.replication.throttled.rate": None})
    assert running(cluster) == {}
    wait_until(lambda: directories(cluster, "stays-0") == {leader})
    # A leader that has not heard of the end may have taken the new replica in; it takes it out again.
    wait_until(lambda: (cluster.leader("stays"), cluster.isr("stays")) == (leader, [leader]))
    assert alter(cluster, "stays", {0: None}) == {0: NoReassignmentInProgress.code}
    assert alter(cluster, "stays", {0: [9]}) == {0: InvalidReplicaAssignment.code}


def test_a_broker_that_is_not_the_controller_says_so(cluster):
    wait_until(lambda: cluster.controller() is not None)
    other = next(number for number in cluster.brokers if number != cluster.controller())
    topics = [el.TopicPartitions(topic="t", partitions=[0])]
    with Client(cluster.brokers[other]) as client:
        altered = client.ask(apr.AlterPartitionReassignmentsRequest(topics=[]), 1)
        listed = client.ask(lpr.ListPartitionReassignmentsRequest(), 0)
        elected = client.ask(el.ElectLeadersRequest(topic_partitions=topics), 2)
    assert (altered.error_code, listed.error_code) == (NotController.code, NotController.code)
    # As Kafka: with each partition.
    assert elected.error_code == 0
    assert elected.replica_election_results[0].partition_result[0].error_code == NotController.code


def test_PSM_07_the_preferred_leader_is_elected_and_known_when_the_answer_comes(cluster):
    cluster.create_topic("led", replication_factor=3)
    replicas = list(cluster.brokers[0].metadata_cache.topic("led").partitions[0].replicas)
    wait_until(lambda: sorted(cluster.isr("led")) == [0, 1, 2])
    target = [*replicas[1:], replicas[0]]
    assert alter(cluster, "led", {0: target}) == {0: 0}
    wait_until(lambda: running(cluster) == {})
    wait_until(lambda: sorted(cluster.isr("led")) == [0, 1, 2])
    assert cluster.leader("led") == replicas[0]
    request = el.ElectLeadersRequest(topic_partitions=[el.TopicPartitions(topic="led", partitions=[0])])

    def elect():
        (result,) = ask_controller(cluster, request, 2).replica_election_results[0].partition_result
        return result.error_code

    assert elect() == 0
    known = cluster.brokers[cluster.controller()].metadata_cache.topic("led").partitions[0].leader
    assert (cluster.leader("led"), known) == (target[0], target[0])
    assert elect() == ElectionNotNeeded.code


def test_CTRL_18_the_controller_is_killed_and_the_next_one_ends_the_reassignment(cluster):
    wait_until(lambda: len(cluster.brokers) == 3 and cluster.controller() is not None)
    controller = cluster.controller()
    start, target = (number for number in range(3) if number != controller)
    topic = "taken-over"
    settings = {"follower_replication_throttled_replicas": "*", "max_message_bytes": 20_000}
    cluster.create_topic(topic, replication_factor=1, **settings)
    assert alter(cluster, topic, {0: [start]}) == {0: 0}
    wait_until(lambda: running(cluster) == {} and cluster.leader(topic) == start)
    wait_until(lambda: directories(cluster, f"{topic}-0") == {start})
    for broker in cluster.brokers.values():
        broker.config.reconfigure({"follower.replication.throttled.rate": 1})
    with Client(cluster.brokers[start]) as client:
        for _ in range(10):
            client.ask(produce_request(cluster.brokers[start], topic, 0, batch(b"x" * 10_000)), 9)
    assert alter(cluster, topic, {0: [target]}) == {0: 0}
    assert (topic, 0) in running(cluster)
    cluster.kill(controller)
    try:
        wait_until(lambda: cluster.controller() in (start, target))
        assert running(cluster) == {(topic, 0): ([target, start], [target], [start])}
        for broker in cluster.brokers.values():
            broker.config.reconfigure({"follower.replication.throttled.rate": None})
        wait_until(lambda: running(cluster) == {})
        assert (cluster.leader(topic), cluster.isr(topic)) == (target, [target])
        wait_until(lambda: directories(cluster, f"{topic}-0") == {target})
        assert cluster.brokers[target].log(topic).log_end_offset == 10
    finally:
        cluster.start(controller)
