"""Throttles of replication: the rates and lists by themselves, then in the fetches of followers."""

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.common.topic_partition import TopicPartition
from kcore.log.log_offset_metadata import FetchIsolation
from kcore.protocol.messages import fetch as f
from kcore.replica.partition_state import LeaderAndIsrUpdate
from kcore.replica.replica_quota import follower_throttles, leader_throttles
from kcore.server.quotas.replication_quota_manager import UNBOUNDED, ReplicationQuotaManager, ThrottledReplicas
from tests.batches import batch
from tests.unit.replica.conftest import TP, Node
from tests.unit.server.client import Client

OTHER = TopicPartition("t", 1)


def quota(time=None, rate=100, listed=(TP,)):
    return ReplicationQuotaManager(10, 1, time or MockTime(), set(listed).__contains__, rate)


def exceeded(**arguments):
    manager = quota(rate=1, **arguments)
    manager.record(1000)
    assert manager.is_quota_exceeded()
    return manager


def test_QUOTA_05_the_quota_is_exceeded_while_the_bytes_of_the_windows_are_more_than_the_rate():
    time = MockTime()
    manager = quota(time)
    manager.record(100)
    assert manager.rate() == 100 and not manager.is_quota_exceeded()
    manager.record(100)
    assert manager.is_quota_exceeded()
    time.sleep(1999)
    assert manager.is_quota_exceeded()
    time.sleep(1)
    assert not manager.is_quota_exceeded()


def test_QUOTA_06_an_unbounded_quota_never_throttles():
    manager = quota(rate=UNBOUNDED)
    manager.record(2**70)
    assert not manager.is_bounded and not manager.is_quota_exceeded()


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [((), []), (("*",), [0, 1, 2]), (("0:5", "1:6", "2:5"), [0, 2]), (("1:6",), [])],
)
def test_QUOTA_04_a_list_has_some_partitions_of_this_broker_or_all(replicas, throttled):
    lists = ThrottledReplicas(5)
    for _ in range(2):
        assert [number for number in range(3) if lists.contains(replicas, number)] == throttled


def test_QUOTA_01_QUOTA_08_a_leader_throttles_a_replica_out_of_sync_if_the_partition_is_listed_and_the_quota_used_up():
    assert leader_throttles(exceeded(), TP, 2, {1})
    assert not leader_throttles(exceeded(), TP, 2, {1, 2}), "in sync"
    assert not leader_throttles(exceeded(), OTHER, 2, {1}), "not listed"
    assert not leader_throttles(quota(), TP, 2, {1}), "not used up"


def test_QUOTA_02_a_follower_leaves_out_what_is_listed_while_its_quota_is_used_up():
    assert follower_throttles(exceeded(), TP)
    assert not follower_throttles(exceeded(), OTHER)
    assert not follower_throttles(quota(), TP)


# -- in the fetches of followers ---------------------------------------------------------------------------------------


@pytest.fixture
def leader(tmp_path):
    node = Node(tmp_path)
    node.lead(TP, isr=(0,), replicas=(0, 2))
    node.lead(OTHER, isr=(0,), replicas=(0, 2))
    yield node
    node.shutdown()


def follow(node, offsets, manager, **params):
    return node.fetch(offsets, FetchIsolation.LOG_END, replica_id=2, quota=manager, **params)


def sizes(answer):
    assert all(result.error is None for _, result in answer.result)
    return {tp: result.records.size_in_bytes for tp, result in answer.result}


def test_RD_26_a_throttled_partition_is_answered_without_records_and_without_error(leader):
    size = len(batch(b"x"))
    leader.produce({TP: batch(b"x"), OTHER: batch(b"x")}, acks=1)
    assert sizes(follow(leader, {TP: 0, OTHER: 0}, exceeded())) == {TP: 0, OTHER: size}
    assert sizes(follow(leader, {TP: 0, OTHER: 0}, quota())) == {TP: size, OTHER: size}
    # What is left out uses nothing of the limit of the response: the other may still exceed it (RD-18).
    assert sizes(follow(leader, {TP: 0, OTHER: 0}, exceeded(), max_bytes=1)) == {TP: 0, OTHER: size}


def test_QUOTA_08_the_fetch_of_a_throttled_follower_still_updates_its_state(leader):
    leader.produce({TP: batch(b"a")}, acks=1)
    follow(leader, {TP: 1}, exceeded())
    partition = leader.replica_manager.get_partition(TP)
    assert partition.follower_replica(2, -1).state.log_end_offset == 1


def test_PURG_13_PURG_14_bytes_of_throttled_partitions_do_not_end_a_wait(leader):
    manager = exceeded()
    answer = follow(leader, {TP: 0, OTHER: 0}, manager, max_wait_ms=500)
    leader.produce({TP: batch(b"a")}, acks=1)
    assert answer.waits
    leader.replica_manager.get_partition(TP).log.roll()
    leader.produce({TP: batch(b"a")}, acks=1)
    assert answer.waits, "a limit on a later segment ends the wait only where nothing is throttled"
    leader.produce({OTHER: batch(b"a")}, acks=1)
    assert sizes(answer) == {TP: 0, OTHER: len(batch(b"a"))}


def as_follower(client, broker, offset=0):
    body = f.FetchRequest(
        replica_id=2,
        max_wait_ms=0,
        topics=[
            f.FetchTopic(
                topic=topic,
                partitions=[f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
            )
            for topic in ("listed", "free")
        ],
    )
    answers = {}
    for topic in client.ask(body, 12).responses:
        (partition,) = topic.partitions
        assert partition.error_code == 0
        answers[topic.topic] = len(partition.records) > 0
    return answers


def test_QUOTA_03_QUOTA_04_RD_26_rate_and_lists_hold_for_the_fetches_of_followers_and_change_while_the_broker_runs():
    time = MockTime()
    with kcore.Broker(time=time) as broker, Client(broker) as client:
        broker.create_topic("listed", leader_replication_throttled_replicas=f"0:{broker.broker_id}")
        broker.create_topic("free")
        replicas = (broker.broker_id, 2)
        for topic in ("listed", "free"):
            broker.produce(topic, b"x" * 1000)
            update = LeaderAndIsrUpdate(TopicPartition(topic, 0), broker.broker_id, 1, replicas[:1], replicas)
            assert broker.replica_manager.become_leader_or_follower([update], 1)[update.topic_partition] is None
        leader_quota = broker.running.services.replication_quotas.leader
        assert as_follower(client, broker) == {"listed": True, "free": True}
        assert leader_quota.rate() == 0, "nobody records without a rate"
        broker.config.reconfigure({"leader.replication.throttled.rate": 500})
        assert as_follower(client, broker) == {"listed": True, "free": True}
        assert 1000 < leader_quota.rate() < 1500, "the bytes of the listed partition"
        assert as_follower(client, broker) == {"listed": False, "free": True}
        broker.log("listed").config = broker.log("free").config
        assert as_follower(client, broker) == {"listed": True, "free": True}, "the topic's list is empty now"
        broker.config.reconfigure({"leader.replication.throttled.rate": None})
        assert not leader_quota.is_bounded
