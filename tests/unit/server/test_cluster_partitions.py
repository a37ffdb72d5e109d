"""Cluster.wait_until_led(), wait_until_in_sync() and move_leader()."""

import pytest

import kcore
from kcore.errors import LeaderNotAvailable, NotLeaderOrFollower, RequestTimedOut, UnknownTopicOrPartition
from kcore.testing.kafka_fixture import KafkaClusterFixture, WaitTimedOut


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(3) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_run(request):
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").start()


def test_a_partition_is_led_again_after_its_leader_was_killed_and_in_sync_after_that_came_back(cluster):
    cluster.create_topic("orders", 3)
    leader = cluster.leader("orders", 1)
    cluster.kill(leader)
    cluster.wait_until_led("orders")
    assert leader not in [cluster.leader("orders", number) for number in range(3)]
    for broker in cluster.brokers.values():
        topic = broker.metadata_cache.topic("orders")
        assert [topic.partitions[n].leader for n in range(3)] == [cluster.leader("orders", n) for n in range(3)]
    with pytest.raises(RequestTimedOut, match=rf"waited 0 ms for .* in sync: orders-0: broker {leader} does not run;"):
        cluster.wait_until_in_sync("orders", timeout=0)
    with pytest.raises(WaitTimedOut, match=rf"in sync: orders-0: broker {leader} does not run;"):
        KafkaClusterFixture(cluster).wait_until_in_sync("orders", timeout=0)
    cluster.start(leader)
    cluster.wait_until_in_sync("orders")
    KafkaClusterFixture(cluster).wait_until_in_sync("orders", timeout=0)
    assert [cluster.isr("orders", number) for number in range(3)] == [[0, 1, 2]] * 3


def test_a_replica_whose_broker_does_not_run_is_not_in_sync_though_the_isr_has_it_still(cluster, monkeypatch):
    cluster.create_topic("shrinks")
    cluster.wait_until_in_sync("shrinks")
    follower = next(number for number in range(3) if number != cluster.leader("shrinks"))
    cluster.kill(follower)
    cluster.wait_until_led("shrinks")
    monkeypatch.setattr(cluster, "isr", lambda topic, partition=0: [0, 1, 2])
    with pytest.raises(RequestTimedOut, match=rf"in sync: shrinks-0: broker {follower} does not run$"):
        cluster.wait_until_in_sync("shrinks", timeout=0)


def test_a_wait_for_a_leader_that_cannot_be_says_why(cluster):
    cluster.create_topic("single", replication_factor=1)
    leader = cluster.leader("single")
    cluster.wait_until_led("single", 0, timeout=0)
    cluster.kill(leader)
    for wait, error in (
        (cluster.wait_until_led, RequestTimedOut),
        (KafkaClusterFixture(cluster).wait_until_led, WaitTimedOut),
    ):
        with pytest.raises(error, match="for single to be led: single-0: "):
            wait("single", timeout=0)
        with pytest.raises(error, match="absent-0: no running broker has the topic in its metadata"):
            wait("absent", timeout=0)
        with pytest.raises(error, match="single-7: no leader; ISR "):
            wait("single", 7, timeout=0)


def test_a_leader_is_moved_and_stays_there(cluster):
    cluster.create_topic("moved", 2)
    cluster.brokers[cluster.leader("moved", 1)].produce("moved", "a book", partition=1)
    for _ in range(2):
        target = next(number for number in (0, 1, 2) if number != cluster.leader("moved", 1))
        cluster.move_leader("moved", 1, to=target)
        assert cluster.leader("moved", 1) == target
        for broker in cluster.brokers.values():
            state = broker.metadata_cache.topic("moved").partitions[1]
            assert (state.leader, state.replicas[0]) == (target, target)
        (record,) = cluster.brokers[target].consume("moved", 1, max_records=1, timeout=30)
        assert record.value == b"a book"
        cluster.move_leader("moved", 1, to=target)
        assert cluster.leader("moved", 1) == target


def test_a_leader_that_is_made_the_preferred_one_can_be_moved_at_once(cluster, monkeypatch):
    cluster.create_topic("back")
    first = cluster.leader("back")
    cluster.wait_until_in_sync("back")
    stale = cluster.brokers[first].metadata_cache.topic("back").partitions[0].replicas
    cluster.stop(first)
    cluster.wait_until_led("back")
    second = cluster.leader("back")
    cluster.start(first)
    cluster.wait_until_in_sync("back")
    cluster.move_leader("back", to=second)
    monkeypatch.setattr(cluster._partitions, "replicas", lambda topic, partition: stale)
    cluster.move_leader("back", to=first)
    assert cluster.leader("back") == first


def test_a_leader_goes_only_where_a_replica_is(cluster):
    cluster.create_topic("double", replication_factor=2)
    replicas = cluster.brokers[0].metadata_cache.topic("double").partitions[0].replicas
    (other,) = {0, 1, 2} - set(replicas)
    with pytest.raises(ValueError, match=f"double-0: broker {other} has no replica"):
        cluster.move_leader("double", to=other)
    with pytest.raises(UnknownTopicOrPartition, match="absent-0"):
        cluster.move_leader("absent", to=0)
    follower = next(number for number in replicas if number != cluster.leader("double"))
    cluster.wait_until_in_sync("double")
    cluster.stop(follower)
    cluster.wait_until_led("double")
    with pytest.raises(RequestTimedOut, match=f"waited 0 ms for broker {follower} to be in the ISR of double-0: "):
        cluster.move_leader("double", to=follower, timeout=0)


def test_records_go_to_the_leaders_of_their_partitions_and_come_from_them(cluster):
    cluster.create_topic("sold", 3)
    assert {cluster.leader("sold", number) for number in range(3)} == {0, 1, 2}
    without_key = [cluster.produce("sold", "a book") for _ in range(3)]
    assert {written.partition for written in without_key} == {0, 1, 2}
    by_key = cluster.produce("sold", "a pen", key="42", headers={"shop": "1"}, timestamp=7)
    broker = cluster.brokers[cluster.leader("sold", by_key.partition)]
    (record,) = broker.consume("sold", by_key.partition, by_key.offset)
    assert (record.key, record.headers, record.timestamp) == (b"42", (("shop", b"1"),), 7)
    # As Broker.produce() chooses, which a test compares with Kafka's partitioner.
    with kcore.Broker() as alone:
        alone.create_topic("sold", 3)
        assert alone.produce("sold", "a pen", key="42").partition == by_key.partition
    assert sorted(record.value for record in cluster.consume("sold")) == [b"a book"] * 3 + [b"a pen"]
    assert list(cluster.consume("sold", by_key.partition))[-1] == record
    for partition in (3, -1):
        with pytest.raises(UnknownTopicOrPartition, match=f"sold-{partition}"):
            cluster.produce("sold", "a book", partition=partition)
    with pytest.raises(UnknownTopicOrPartition, match="absent"):
        cluster.produce("absent", "a book")
    with pytest.raises(UnknownTopicOrPartition, match="absent"):
        cluster.consume("absent")


def test_a_record_waits_for_the_next_leader_of_its_partition(cluster):
    cluster.create_topic("next")
    cluster.wait_until_in_sync("next")
    leader = cluster.leader("next")
    cluster.kill(leader)
    assert cluster.produce("next", "a book").offset == 0
    assert cluster.leader("next") != leader
    assert [record.value for record in cluster.consume("next")] == [b"a book"]


def test_records_of_a_partition_without_a_leader_cannot_be_read(cluster):
    cluster.create_topic("only", replication_factor=1)
    leader = cluster.leader("only")
    cluster.kill(leader)
    with pytest.raises(LeaderNotAvailable, match="only-0: "):
        cluster.consume("only")


def test_a_record_waits_for_a_leader_that_does_not_know_yet_that_it_leads(cluster, monkeypatch):
    """The metadata of another broker may come before the leader's order."""
    cluster.create_topic("early")
    broker = cluster.brokers[cluster.leader("early")]
    answers, produce = [NotLeaderOrFollower("not yet")], broker.produce

    def early(*arguments):
        if answers:
            raise answers.pop()
        return produce(*arguments)

    monkeypatch.setattr(broker, "produce", early)
    assert cluster.produce("early", "a book").offset == 0
