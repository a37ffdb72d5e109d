"""Several brokers in this process: who is the controller, who leads, and what happens when one stops or fails."""

import os
import time

import pytest

import kcore
from kcore.errors import InvalidConfig, InvalidReplicationFactor
from kcore.log.clean_shutdown import was_clean_shutdown

DEADLINE_S = 60


def await_true(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(3, zookeeper_session_timeout_ms=6000, offsets_topic_num_partitions=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _all_run(request):
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").start()


def test_the_brokers_know_each_other_and_one_controller(cluster):
    snapshots = [broker.metadata_cache.snapshot for broker in cluster.brokers.values()]
    assert [snapshot.broker_ids() for snapshot in snapshots] == [[0, 1, 2]] * 3
    assert {snapshot.controller_id for snapshot in snapshots} == {cluster.controller()}
    assert len({snapshot.cluster_id for snapshot in snapshots}) == 1
    assert len(cluster.bootstrap_servers.split(",")) == 3


def test_a_topic_is_known_everywhere_with_its_leaders_when_it_was_created(cluster):
    topic_id = cluster.create_topic("spread", partitions=3, retention_ms=5)
    for broker in cluster.brokers.values():
        topic = broker.metadata_cache.topic("spread")
        assert topic.topic_id == topic_id
        assert sorted(partition.leader for partition in topic.partitions.values()) == [0, 1, 2]
        assert all(sorted(partition.replicas) == [0, 1, 2] for partition in topic.partitions.values())
        assert dict(broker.admin_manager.topic_config("spread")) == {"retention.ms": "5"}
    assert sorted(cluster.leader("spread", n) for n in range(3)) == [0, 1, 2]
    assert cluster.leader("spread", 3) is None and cluster.isr("unknown") == []


def test_any_broker_creates_and_deletes_topics(cluster):
    other = next(number for number in cluster.brokers if number != cluster.controller())
    broker = cluster.brokers[other]
    broker.create_topic("short", 2, replication_factor=2)
    assert all(len(p.replicas) == 2 for p in broker.metadata_cache.topic("short").partitions.values())
    broker.delete_topic("short")
    for broker in cluster.brokers.values():
        await_true(lambda broker=broker: broker.metadata_cache.topic("short") is None)
    await_true(lambda: not any("short-" in name for n in range(3) for name in live_logs(cluster, n)))
    with pytest.raises(InvalidReplicationFactor):
        cluster.create_topic("wide", replication_factor=4)


def live_logs(cluster, number):
    names = os.listdir(os.path.join(cluster.data_dir, str(number)))
    return [name for name in names if not name.endswith("-delete")]


def test_a_broker_that_stops_hands_its_leaders_over_and_one_that_comes_back_follows(cluster):
    cluster.create_topic("handed", partitions=3)
    victim = cluster.leader("handed", 0)
    cluster.stop(victim)
    # The others are the leaders by now; what the metadata of this process's brokers say follows.
    await_true(lambda: victim not in [cluster.leader("handed", n) for n in range(3)])
    await_true(lambda: victim not in cluster.isr("handed", 0))
    assert was_clean_shutdown(os.path.join(cluster.data_dir, str(victim)))
    servers = cluster.bootstrap_servers
    cluster.start(victim)
    assert cluster.bootstrap_servers == servers and victim in cluster.brokers


def test_the_others_take_over_from_a_controller_that_was_killed(cluster):
    cluster.create_topic("orphan", partitions=3)
    controller = cluster.controller()
    cluster.kill(controller)
    assert controller not in cluster.brokers
    assert not was_clean_shutdown(os.path.join(cluster.data_dir, str(controller)))
    await_true(lambda: cluster.controller() not in (None, controller))
    await_true(lambda: all(cluster.leader("orphan", n) not in (None, controller) for n in range(3)))
    cluster.create_topic("after", partitions=2, replication_factor=2)
    cluster.start(controller)
    assert all(broker.metadata_cache.topic("after") for broker in cluster.brokers.values())


def test_what_does_not_go_is_refused(cluster):
    with pytest.raises(ValueError, match="brokers 0 to 2"):
        cluster.kill(3)
    with pytest.raises(RuntimeError, match="broker 0 runs"):
        cluster.start(0)
    for bad, error in [({"brokers": 0}, ValueError), ({"brokers": "3"}, TypeError), ({"broker_id": 1}, InvalidConfig)]:
        with pytest.raises(error):
            kcore.Cluster(**bad)
    with pytest.raises(RuntimeError, match="not started"):
        _ = kcore.Cluster().bootstrap_servers
    with pytest.raises(InvalidConfig, match="sqlite:FILE"):
        kcore.Cluster(1, store="nowhere").start()


def test_a_stopped_cluster_starts_again_with_its_topics(tmp_path):
    with kcore.Cluster(2, tmp_path, f"sqlite:{tmp_path / 'store.db'}") as cluster:
        topic_id = cluster.create_topic("kept", partitions=2)
    assert cluster.brokers == {} and (tmp_path / "1" / "meta.properties").exists()
    with kcore.Cluster(2, tmp_path, f"sqlite:{tmp_path / 'store.db'}") as cluster:
        await_true(lambda: all(broker.metadata_cache.topic("kept") for broker in cluster.brokers.values()))
        assert cluster.brokers[1].metadata_cache.topic_id("kept") == topic_id
        await_true(lambda: None not in [cluster.leader("kept", n) for n in range(2)])
    # Alone a broker would give out leader epochs that the controller gives out too, for other records.
    with pytest.raises(InvalidConfig, match="broker 1 of cluster"):
        kcore.Broker(tmp_path / "1").start()


def test_a_temporary_cluster_leaves_nothing_behind():
    with kcore.Cluster(1) as cluster:
        cluster.create_topic("t")
        data_dir = cluster.data_dir
        assert os.path.isdir(data_dir)
    assert not os.path.exists(data_dir)


def test_a_forked_child_leaves_the_cluster_of_its_parent_alone():
    with kcore.Cluster(1) as cluster:
        child = os.fork()
        if child == 0:
            cluster.stop()
            try:
                cluster.kill(0)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        cluster.create_topic("t")
        assert os.path.isdir(cluster.data_dir)
