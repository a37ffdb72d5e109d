"""Several brokers in this process: who is the controller, who leads, and what happens when one stops or fails."""

import contextlib
import gc
import logging
import os
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from uuid import UUID

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import InconsistentClusterId, InvalidConfig, InvalidReplicationFactor, NotController, RequestTimedOut
from kcore.log.clean_shutdown import was_clean_shutdown
from kcore.metadata.embedded_store import EmbeddedStore
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint, MetadataCache, PartitionInfo, TopicInfo
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownResponse, RemainingPartition
from kcore.server import cluster as cluster_module
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.member.cluster_controller import controlled_shutdown
from kcore.server.member.controller_orders import ControllerOrders
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from kcore.tools.main import main
from tests.cluster_sessions import LONG_MS
from tests.own_process import in_own_process
from tests.waiting import wait_until

DEADLINE_S = 60


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS, offsets_topic_num_partitions=2) as cluster:
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


def test_every_broker_has_a_topic_and_its_leaders_when_its_creation_returns(cluster):
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
        wait_until(lambda broker=broker: broker.metadata_cache.topic("short") is None)
    wait_until(lambda: not any("short-" in name for n in range(3) for name in live_logs(cluster, n)))
    with pytest.raises(InvalidReplicationFactor):
        cluster.create_topic("wide", replication_factor=4)


def test_what_happens_to_many_partitions_at_once_is_told_in_few_lines(cluster, caplog):
    many = 60
    with caplog.at_level("INFO"):
        cluster.create_topic("many", many, replication_factor=3)
        stopped = next(number for number in cluster.brokers if number != cluster.controller())
        cluster.stop(stopped)
        wait_until(lambda: all(stopped not in cluster.isr("many", number) for number in range(many)))
        cluster.start(stopped)
        wait_until(lambda: all(len(cluster.isr("many", number)) == 3 for number in range(many)))
    lines = [record.getMessage() for record in caplog.records if "many-" in record.getMessage()]
    # Before, each event was a line of each partition: some 60 times five.
    assert len(lines) < many, lines
    assert any("leads" in line and " more" in line for line in lines)


def test_a_broker_explains_with_its_own_throttle_and_the_controllers_news_of_failed_directories(cluster, monkeypatch):
    cluster.create_topic("explained", replication_factor=2)
    (partition,) = cluster.brokers[0].metadata_cache.topic("explained").partitions.values()
    leader, follower = (cluster.brokers[number] for number in partition.replicas)
    leader.produce("explained", b"x")
    assert all(replica.held_back_by is None for replica in leader.explain_isr("explained").replicas)
    wait_until(lambda: follower.explain_isr("explained").held_back_by is None)
    monkeypatch.setattr(leader.metadata_cache, "offline", lambda tp: (follower.broker_id,))
    assert "its log is offline there" in leader.explain_isr("explained").replicas[1].held_back_by
    asked = []
    monkeypatch.setattr("kcore.replica.explain.leader_throttles", lambda quota, *_: not asked.append(quota))
    rule = leader.explain_fetch("explained", replica_id=follower.broker_id).rule
    assert "leader.replication.throttled.rate" in rule and set(asked) == {
        leader.running.services.replication_quotas.leader
    }


def live_logs(cluster, number):
    names = os.listdir(os.path.join(cluster.data_dir, str(number)))
    return [name for name in names if not name.endswith("-delete")]


def test_a_broker_that_stops_hands_its_leaders_over_and_one_that_comes_back_follows(cluster):
    cluster.create_topic("handed", partitions=3)
    victim = cluster.leader("handed", 0)
    cluster.stop(victim)
    wait_until(lambda: victim not in [cluster.leader("handed", n) for n in range(3)])
    wait_until(lambda: victim not in cluster.isr("handed", 0))
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
    wait_until(lambda: cluster.controller() not in (None, controller))
    wait_until(lambda: all(cluster.leader("orphan", n) not in (None, controller) for n in range(3)))
    cluster.create_topic("after", partitions=2, replication_factor=2)
    cluster.start(controller)
    assert all(broker.metadata_cache.topic("after") for broker in cluster.brokers.values())


def test_where_no_broker_runs_none_leads_and_none_is_the_controller():
    with kcore.Cluster(2, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t", partitions=2)
        for number in (0, 1):
            cluster.kill(number)
            assert number not in [cluster.leader("t", partition) for partition in range(2)]
            assert cluster.controller() != number
        assert [cluster.leader("t", partition) for partition in range(2)] == [None, None]
        assert cluster.controller() is None and cluster.isr("t") != []
        cluster.start()
        wait_until(lambda: None not in [cluster.leader("t", partition) for partition in range(2)])


def test_a_leader_of_another_process_is_named_as_the_store_has_it(tmp_path):
    store = f"sqlite:{tmp_path / 'store.db'}"
    with kcore.Cluster(1, tmp_path / "data", store) as cluster, kcore.Broker(tmp_path / "5", broker_id=5, store=store):
        assert main(["topics", "create", "t", "--assign", "5", "--bootstrap", cluster.bootstrap_servers]) == 0
        wait_until(lambda: cluster.leader("t") == 5)


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
    for bad_id in ("0", 1.5, None, True):
        with pytest.raises(TypeError, match=r"brokers 0 to 2; the id must be an int"):
            cluster.kill(bad_id)
    with pytest.raises(InvalidConfig, match=r"x for configuration zookeeper\.session\.timeout\.ms"):
        kcore.Cluster(1, zookeeper_session_timeout_ms="x")


def test_a_stopped_cluster_starts_again_with_its_topics(tmp_path):
    settings = {"zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(2, tmp_path, f"sqlite:{tmp_path / 'store.db'}", **settings) as cluster:
        topic_id = cluster.create_topic("kept", partitions=2)
    assert cluster.brokers == {} and (tmp_path / "1" / "meta.properties").exists()
    with kcore.Cluster(2, tmp_path, f"sqlite:{tmp_path / 'store.db'}", **settings) as cluster:
        wait_until(lambda: all(broker.metadata_cache.topic("kept") for broker in cluster.brokers.values()))
        assert cluster.brokers[1].metadata_cache.topic_id("kept") == topic_id
        wait_until(lambda: None not in [cluster.leader("kept", n) for n in range(2)])
    # Alone a broker would give out leader epochs that the controller gives out too, for other records.
    with pytest.raises(InvalidConfig, match="broker 1 of cluster"):
        kcore.Broker(tmp_path / "1").start()


def calls_of(cluster):
    """Those that need a cluster that runs."""
    return (
        lambda: cluster.leader("t"),
        lambda: cluster.isr("t"),
        cluster.controller,
        lambda: cluster.create_topic("u"),
        lambda: cluster.produce("t", "x"),
        lambda: cluster.produce("t", "x", partition=0),
        lambda: cluster.consume("t"),
        lambda: cluster.consume("t", 0),
        lambda: cluster.wait_until_led("t", timeout=0),
        lambda: cluster.wait_until_in_sync("t", timeout=0),
        lambda: cluster.move_leader("t", to=0, timeout=0),
    )


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_broker_that_does_not_run_is_stopped_and_killed_without_an_error(end):
    cluster = kcore.Cluster(2, zookeeper_session_timeout_ms=LONG_MS)
    getattr(cluster, end)(1)  # before the start
    with cluster:
        for _ in range(2):
            getattr(cluster, end)(1)
        assert sorted(cluster.brokers) == [0]
        for _ in range(2):
            getattr(cluster, end)(0)
        with pytest.raises(RuntimeError, match="no broker of the cluster runs"):
            cluster.produce("t", "x")
    getattr(cluster, end)(1)


def test_a_cluster_that_has_not_started_says_so():
    for call in calls_of(kcore.Cluster(1)):
        with pytest.raises(RuntimeError, match="the cluster has not started"):
            call()


def test_a_stopped_cluster_is_not_asked_who_led_when_it_ran(tmp_path):
    cluster = kcore.Cluster(1, tmp_path)
    with cluster:
        cluster.create_topic("t")
        assert cluster.leader("t") == 0
    for call in calls_of(cluster):
        with pytest.raises(RuntimeError, match=r"the cluster has stopped: start\(\)"):
            call()
    assert cluster._store is None  # nor is the store opened again
    with cluster:
        wait_until(lambda: cluster.leader("t") == 0)


def test_a_mistyped_store_is_refused_and_not_made(tmp_path):
    store = f"sqlite:{tmp_path / 'store.db'}"
    with kcore.Cluster(1, tmp_path / "data", store):
        pass
    mistyped = tmp_path / "stroe.db"
    for start in (
        kcore.Cluster(1, tmp_path / "data", f"sqlite:{mistyped}").start,
        kcore.Broker(tmp_path / "data" / "0", store=f"sqlite:{mistyped}", broker_id=0).start,
    ):
        with pytest.raises(InconsistentClusterId, match=r"no store sqlite:.*stroe\.db yet: is its name right\?"):
            start()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "store.db"]
    with kcore.Cluster(1, tmp_path / "data", store):
        pass


def test_each_broker_of_a_cluster_has_a_rack_of_its_own():
    settings = {"default_replication_factor": 2, "zookeeper_session_timeout_ms": LONG_MS}
    with kcore.Cluster(3, racks=["a", None, "b"], **settings) as cluster:
        for broker in cluster.brokers.values():
            snapshot = broker.metadata_cache.snapshot
            assert [snapshot.broker(number).rack for number in range(3)] == ["a", None, "b"]
    for bad, error in [
        ({"racks": "ab"}, TypeError),
        ({"racks": ["a", 1, "b"]}, TypeError),
        ({"racks": ["a", "b"]}, ValueError),
        ({"broker_rack": "a"}, InvalidConfig),
    ]:
        with pytest.raises(error, match="racks"):
            kcore.Cluster(3, **bad)


def test_a_temporary_cluster_leaves_nothing_behind():
    with kcore.Cluster(1) as cluster:
        cluster.create_topic("t")
        data_dir = cluster.data_dir
        assert os.path.isdir(data_dir)
    assert not os.path.exists(data_dir)


@in_own_process
def test_the_logs_of_a_broker_that_was_killed_are_closed():
    def open_logs():
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        return sum(".log" in link for link in links)

    gc.disable()
    with kcore.Cluster(2, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t")
        cluster.produce("t", "x")
        cluster.wait_until_in_sync("t")
        before = open_logs()
        for number in (0, 1, 0, 1):
            cluster.kill(number)
            cluster.start(number)
            cluster.wait_until_in_sync("t")
        assert open_logs() == before


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


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_broker_that_was_not_stopped_by_the_cluster_is_left_out_until_it_starts_again(cluster, end):
    victim = cluster.controller()
    broker = cluster.brokers[victim]
    getattr(broker, end)()
    assert victim not in cluster.brokers and str(victim) not in repr(cluster).partition("running")[2].partition("]")[0]
    cluster.kill(victim)
    cluster.stop(victim)  # waits until the others know that it is gone
    assert live_brokers(cluster) == [sorted(cluster.brokers)] * 2 and cluster.controller() not in (None, victim)
    cluster.create_topic(f"without-{end}", replication_factor=1)
    cluster.start(victim)
    assert cluster.brokers[victim] is not broker and not cluster.brokers[victim].has_stopped
    cluster.brokers[victim].stop()
    cluster.start()
    assert sorted(cluster.brokers) == [0, 1, 2]


def live_brokers(cluster):
    return [broker.metadata_cache.snapshot.broker_ids() for broker in cluster.brokers.values()]


@pytest.fixture
def _slow_metadata(monkeypatch):
    """Brokers that process the controller's UpdateMetadata late."""
    update_metadata = ControllerOrders.update_metadata

    def slow_update(*args):
        time.sleep(0.5)
        update_metadata(*args)

    monkeypatch.setattr(ControllerOrders, "update_metadata", slow_update)


@pytest.mark.usefixtures("_slow_metadata")
@pytest.mark.parametrize("is_controller", [True, False])
def test_when_a_stop_or_start_returns_the_others_metadata_have_it(cluster, is_controller):
    victim = next(number for number in cluster.brokers if (number == cluster.controller()) is is_controller)
    cluster.stop(victim)
    others = sorted(cluster.brokers)
    assert live_brokers(cluster) == [others] * 2
    assert {broker.metadata_cache.snapshot.controller_id for broker in cluster.brokers.values()} == {
        cluster.controller()
    }
    topic = f"on-the-others-{is_controller}"
    cluster.create_topic(topic, partitions=4, replication_factor=1)
    assert sorted({cluster.leader(topic, n) for n in range(4)}) == others
    cluster.start(victim)
    assert live_brokers(cluster) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_topic_is_created_on_brokers_that_run_at_once_after_one_was_killed(cluster, is_controller):
    victim = next(number for number in cluster.brokers if (number == cluster.controller()) is is_controller)
    cluster.kill(victim)
    topic = f"not-on-the-killed-{is_controller}"
    cluster.create_topic(topic, partitions=4, replication_factor=1)
    assert sorted({cluster.leader(topic, n) for n in range(4)}) == sorted(cluster.brokers)


def test_a_broker_that_stops_after_the_controller_was_killed_hands_over_to_the_next_one(cluster, caplog):
    cluster.create_topic("handed-late", partitions=6)
    cluster.kill(cluster.controller())
    victim, last = cluster.brokers
    cluster.stop(victim)
    assert not warnings(caplog)
    assert cluster.controller() == last
    wait_until(lambda: all(cluster.leader("handed-late", n) == last for n in range(6)))


def warnings(caplog):
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in messages if "without a controlled shutdown" in message]


def test_all_brokers_stop_at_once_when_no_controller_can_elect_other_leaders(caplog):
    with kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t", partitions=3)
        cluster.kill(cluster.controller())
        left = list(cluster.brokers.values())
    assert not warnings(caplog) and all(broker.has_stopped for broker in left)


def test_a_healthy_cluster_stops_without_a_warning(caplog):
    """Partitions whose replicas are on the brokers that stop first have no leader in the end, and fetchers no one to
    fetch from: that is no news to anybody."""
    with caplog.at_level(logging.INFO), kcore.Cluster(3, zookeeper_session_timeout_ms=60_000) as cluster:
        cluster.create_topic("everywhere", partitions=4)
        cluster.create_topic("once", partitions=3, replication_factor=1)
        controller = cluster.controller()
        others = [number for number in range(3) if number != controller]
        cluster.brokers[controller].admin_manager.create_topic("not-there", assignments={0: others, 1: others[::-1]})
        wait_until(lambda: cluster.leader("not-there", 1) is not None)
        caplog.clear()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    # The test is about this: an election of which everybody knew that it would fail.
    assert [r for r in caplog.records if "without change to OnlinePartition: not-there" in r.getMessage()]


def test_a_cluster_whose_store_is_away_stops_and_says_so(tmp_path, caplog):
    with kcore.Cluster(3, tmp_path / "data", store=f"sqlite:{tmp_path / 'cluster.db'}") as cluster:
        cluster.create_topic("t", partitions=3)
        brokers = list(cluster.brokers.values())
        os.rename(tmp_path / "cluster.db", tmp_path / "aside.db")
    assert all(broker.has_stopped for broker in brokers)
    assert all(was_clean_shutdown(str(tmp_path / "data" / str(number))) for number in range(3))
    assert not [record for record in caplog.records if record.exc_info]
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("stops without its metadata store" in message for message in messages)


def test_a_member_whose_stores_file_is_locked_does_not_wait_for_it_with_each_write_of_its_stop(tmp_path, monkeypatch):
    """It took a minute: a read of the file, as the store's ping was, is held up by no other program."""
    monkeypatch.setitem(EmbeddedStore.__init__.__kwdefaults__, "busy_timeout_ms", 3 * 60_000)
    path = str(tmp_path / "cluster.db")
    broker = kcore.Broker(tmp_path / "data", store=f"sqlite:{path}", zookeeper_session_timeout_ms=LONG_MS).start()
    wait_until(lambda: broker.cluster_member.is_controller)
    with ThreadPoolExecutor(1) as executor, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        executor.submit(broker.stop).result(DEADLINE_S)
    assert was_clean_shutdown(str(tmp_path / "data"))


def test_a_stop_that_the_others_do_not_notice_raises_after_a_deadline(monkeypatch):
    with kcore.Cluster(2, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        with monkeypatch.context() as patch:
            patch.setattr(cluster_module, "WAIT_MS", 100 - LONG_MS)  # and the session's timeout
            patch.setattr(cluster, "_agree", lambda gone=(): False)
            with pytest.raises(RequestTimedOut, match="waited 100 ms for a controller"):
                cluster.stop(1)
            assert sorted(cluster.brokers) == [0, 1]
            patch.setattr(cluster, "_agree", lambda gone=(): not gone)
            with pytest.raises(RequestTimedOut, match="waited 100 ms for the others to know that broker 1 has stopped"):
                cluster.stop(1)
        assert sorted(cluster.brokers) == [0]
        cluster.stop(0)  # no other broker is left
        assert not cluster.brokers


def test_cluster_leader_answers_while_a_broker_starts(cluster, monkeypatch):
    entered, released, gave_up = threading.Event(), threading.Event(), []
    start = kcore.Broker.start

    def slow_start(broker):
        entered.set()
        gave_up.append(not released.wait(DEADLINE_S))
        return start(broker)

    cluster.create_topic("asked")
    cluster.stop(2)
    wait_until(lambda: cluster.leader("asked") in (0, 1))
    with monkeypatch.context() as patch:
        patch.setattr(kcore.Broker, "start", slow_start)
        starting = threading.Thread(target=cluster.start, args=(2,))
        starting.start()
        assert entered.wait(DEADLINE_S)
        assert cluster.leader("asked") in (0, 1) and cluster.controller() in (0, 1)
        assert sorted(cluster.brokers) == [0, 1] and cluster.isr("asked") and "running [0, 1]" in repr(cluster)
        cluster.create_topic("made-meanwhile", replication_factor=1)
        released.set()
        starting.join(DEADLINE_S)
    assert gave_up == [False] and sorted(cluster.brokers) == [0, 1, 2]


def test_a_stopped_temporary_cluster_makes_no_directory_when_it_is_asked():
    cluster = kcore.Cluster(1)
    with cluster:
        cluster.create_topic("t")
    for call in (*calls_of(cluster), lambda: cluster.start(0)):
        with pytest.raises(RuntimeError, match="temporary directory is gone"):
            call()
        assert cluster.data_dir is None
    with cluster:  # a new one
        assert cluster.leader("t") is None


def test_all_brokers_are_stopped_when_the_stop_of_one_raises(monkeypatch):
    cluster = kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS).start()
    brokers, data_dir = list(cluster.brokers.values()), cluster.data_dir
    stop, errors = kcore.Broker.stop, []

    def failing_stop(broker):
        stop(broker)
        errors.append(OSError(f"broker {broker.broker_id}"))
        raise errors[-1]

    with monkeypatch.context() as patch:
        patch.setattr(kcore.Broker, "stop", failing_stop)
        with pytest.raises(OSError, match="broker") as raised:
            cluster.stop()
    assert raised.value is errors[0] and len(errors) == 3
    assert all(broker.has_stopped for broker in brokers) and cluster.brokers == {}
    assert not os.path.exists(data_dir)


class _Metadata:
    """A broker's metadata: for so many readings they have the other brokers, and then this broker alone."""

    def __init__(self, readings, port):
        endpoint = {"PLAINTEXT": Endpoint("127.0.0.1", port)}
        alone = MetadataCache("cluster", controller_id=1).snapshot.with_brokers([BrokerInfo(0, endpoint, None)])
        self._alone = alone
        self._with_controller = alone.with_brokers([BrokerInfo(number, endpoint, None) for number in (0, 1)])
        self._readings = readings

    @property
    def snapshot(self):
        self._readings -= 1
        return self._with_controller if self._readings >= 0 else self._alone


def _member(is_store_away=False):
    return SimpleNamespace(
        broker_id=0, broker_epoch=1, is_store_away=is_store_away, is_store_locked=False, find_store=lambda: None
    )


def _shut_down(member, metadata, clock, make_sender=None):
    config = KafkaConfig()
    connections = InterBrokerConnections(config, metadata, clock)
    if make_sender is not None:
        connections.sender = lambda address, client_id, request_timeout_ms: make_sender(
            address, request_timeout_ms, clock
        )
    return controlled_shutdown(member, metadata, config, connections)


@pytest.mark.parametrize("is_store_away", [False, True])
def test_a_broker_that_stops_looks_for_seconds_for_a_controller_that_answers(is_store_away):
    """It waited 15 s for the next one, which was there after a second, or could not be elected."""
    clock = MockTime()
    start_ms = clock.hi_res_clock_ms()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # refuses connections
        metadata = _Metadata(100, closed.getsockname()[1])
        assert not _shut_down(_member(is_store_away), metadata, clock)
    assert clock.hi_res_clock_ms() - start_ms == 4000


class _SilentSender:
    """Of a controller that is paused."""

    def __init__(self, address, timeout_ms, time):
        self._timeout_ms, self._time = timeout_ms, time

    def api_versions(self):
        self._time.sleep(self._timeout_ms)
        raise TimeoutError("no answer")

    def close(self):
        pass


def test_a_controller_that_stands_still_is_waited_for_seconds():
    """It was for 30 s, and for 135 s unless another was elected meanwhile."""
    clock = MockTime()
    start_ms = clock.hi_res_clock_ms()
    assert not _shut_down(_member(), _Metadata(100, 1), clock, _SilentSender)
    assert 4000 <= clock.hi_res_clock_ms() - start_ms <= 4200


def test_where_no_controller_can_write_a_broker_that_stops_asks_none():
    clock, metadata, member = MockTime(), _Metadata(100, 1), _member(is_store_away=True)
    member.is_store_locked = True
    assert not _shut_down(member, metadata, clock, lambda *_: pytest.fail("a controller is asked"))
    assert clock.hi_res_clock_ms() == 0


def test_the_seconds_of_a_stop_begin_before_the_store_is_looked_for():
    """Three seconds of a locked file, and then four for a controller that it keeps waiting too, were a long stop."""
    clock = MockTime()
    start_ms = clock.hi_res_clock_ms()
    member = _member()

    def find_store():
        clock.sleep(3000)
        member.is_store_away = True

    member.find_store = find_store
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # refuses connections
        metadata = _Metadata(100, closed.getsockname()[1])
        assert not _shut_down(member, metadata, clock)
    assert clock.hi_res_clock_ms() - start_ms == 4000


class _AnsweringSender:
    """Of a controller that finds no other leader for partition 0 of "t"."""

    request_timeout_ms = 0.0

    def __init__(self, *args):
        pass

    def api_versions(self):
        return {ApiKey.CONTROLLED_SHUTDOWN: (0, 3)}

    def send(self, request, version):
        return ControlledShutdownResponse(remaining_partitions=[RemainingPartition(topic_name="t", partition_index=0)])

    def close(self):
        pass


@pytest.mark.parametrize(
    ("replicas", "offline", "took_ms"),
    [
        pytest.param([(0, 2)], (), 0, id="the other replica's broker is not alive"),
        pytest.param([(0, 1)], (1,), 0, id="the other replica's directory has failed"),
        pytest.param([(0, 1)], (), 15_000, id="the other replica may come into the ISR"),
        pytest.param([(0, 2, 1)], (), 15_000, id="one of the other replicas may"),
        pytest.param([], (), 15_000, id="the metadata do not have the partition yet"),
    ],
)
def test_a_controlled_shutdown_is_tried_again_only_where_another_replica_may_come_into_the_isr(
    replicas, offline, took_ms
):
    clock, metadata = MockTime(), _Metadata(100, 1)
    partitions = {number: PartitionInfo(0, 5, all_of_it, (0,), offline) for number, all_of_it in enumerate(replicas)}
    topic = TopicInfo("t", UUID(int=1), partitions)
    metadata._with_controller = metadata._with_controller.with_topics([topic])
    start_ms = clock.hi_res_clock_ms()
    assert not _shut_down(_member(), metadata, clock, _AnsweringSender)
    assert clock.hi_res_clock_ms() - start_ms == took_ms


def test_a_controlled_shutdown_does_not_wait_for_a_replica_whose_broker_stops_meanwhile():
    """Brokers that are all stopped at once: the last one waited 5 s, and the one before it 10."""
    clock, metadata = MockTime(), _Metadata(3, 1)
    topic = TopicInfo("t", UUID(int=1), {0: PartitionInfo(0, 5, (0, 1), (0,), ())})
    metadata._with_controller = metadata._with_controller.with_topics([topic])
    metadata._alone = metadata._alone.with_topics([topic])
    start_ms = clock.hi_res_clock_ms()
    assert not _shut_down(_member(), metadata, clock, _AnsweringSender)
    assert clock.hi_res_clock_ms() - start_ms == 400


class _DeposedSender(_AnsweringSender):
    """Of brokers of which only the one with port 2 is the controller."""

    def __init__(self, address, *args):
        self._port = address.port

    def send(self, request, version):
        return ControlledShutdownResponse(error_code=NotController.code if self._port != 2 else 0)


def test_a_controlled_shutdown_goes_to_the_next_controller_as_soon_as_the_metadata_have_it():
    """Where brokers are stopped at once, each met a controller that had just gone, and waited 5 s."""
    clock, metadata = MockTime(), _Metadata(2, 1)
    metadata._alone = _Metadata(1, 2).snapshot
    start_ms = clock.hi_res_clock_ms()
    assert _shut_down(_member(), metadata, clock, _DeposedSender)
    assert clock.hi_res_clock_ms() - start_ms == 400


@pytest.mark.parametrize(("readings", "warnings"), [(2, 0), (100, 1)])
def test_a_controlled_shutdown_warns_only_when_others_are_left_and_do_not_answer(readings, warnings, caplog):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # refuses connections
        metadata = _Metadata(readings, closed.getsockname()[1])
        with caplog.at_level(logging.INFO):
            assert not _shut_down(_member(), metadata, MockTime())
    # The brokers of the cluster that other tests here share go on, and log what they do: not on this thread.
    levels = [record.levelname for record in caplog.records if record.thread == threading.get_ident()]
    assert levels == ["INFO"] + ["WARNING"] * warnings


def test_followers_of_a_cluster_in_one_process_fetch_again_soon():
    """The first record with acks=all after create_topic() waited a second for them."""
    assert kcore.Cluster(1)._config["replica.fetch.backoff.ms"] == 100
    assert kcore.Cluster(1, replica_fetch_backoff_ms=7)._config["replica.fetch.backoff.ms"] == 7
