"""kcore.Cluster over a real ZooKeeper server: life as on SQLite, and a server that restarts or is away."""

import threading

import pytest

import kcore
from kcore.errors import KafkaError, RequestTimedOut, TopicAlreadyExists
from kcore.metadata import znodes
from kcore.metadata.open_store import open_store
from kcore.protocol.messages import produce as p
from tests import zookeeper_server
from tests.batches import batch
from tests.unit.metadata.zookeeper_sessions import end_session, expire, identity, wait_for_store
from tests.unit.server.client import Client

#: Longer than any pause of the machine and than the restart of a server.
LONG_MS = 40_000
#: Longer than any test waits.
ENDLESS_MS = 1_000_000


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    reason = zookeeper_server.missing()
    if reason is not None:
        pytest.skip(reason)
    server = zookeeper_server.ZooKeeperServer(tmp_path_factory.mktemp("own-zookeeper"), ENDLESS_MS)
    yield server.start()
    server.stop()


def produce(cluster, topic, value):
    """With acks=all, once the leader is known; whether it was acknowledged."""
    leader = next((b for b in cluster.brokers.values() if is_leader(b, topic)), None)
    if leader is None:
        return False
    data = [p.PartitionProduceData(index=0, records=batch(value))]
    request = p.ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[p.TopicProduceData(name=topic, partition_data=data)]
    )
    with Client(leader) as client:
        return client.ask(request, 9).responses[0].partition_responses[0].error_code == 0


def is_leader(broker, topic):
    known = broker.metadata_cache.topic(topic)
    return known is not None and known.partitions[0].leader == broker.broker_id


def is_created(cluster, topic):
    """Create a topic, and ask again if a connection to the store was not yet there."""
    try:
        cluster.create_topic(topic)
    except TopicAlreadyExists:
        return True
    except RequestTimedOut:
        return False
    return True


def they_agree(cluster):
    """Whether each running broker knows all of them, and that one of them is the controller."""
    running = set(cluster.brokers)
    snapshots = [broker.metadata_cache.snapshot for broker in cluster.brokers.values()]
    return all(running <= set(s.broker_ids()) and s.controller_id in running for s in snapshots)


def values(cluster, topic):
    """Of partition 0, as its leader has them up to the high watermark, and once what was produced again after an error;
    nothing while there is no leader."""
    leader = next((b for b in cluster.brokers.values() if is_leader(b, topic)), None)
    try:
        log = leader.log(topic, 0) if leader is not None else None
        records = log.records(end_offset=log.high_watermark) if log is not None else ()
        return list(dict.fromkeys(record.value for record in records))
    except KafkaError:
        return []


def test_a_cluster_over_zookeeper_takes_over_from_a_controller_that_was_killed(zookeeper):
    with kcore.Cluster(3, store=zookeeper, zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("orders", partitions=3)
        wait_for_store(lambda: produce(cluster, "orders", b"before"))
        controller = cluster.controller()
        session = identity(cluster.brokers[controller].store)
        cluster.kill(controller)
        end_session(session)  # instead of its timeout
        wait_for_store(lambda: cluster.controller() not in (None, controller))
        wait_for_store(lambda: all(cluster.leader("orders", n) not in (None, controller) for n in range(3)))
        wait_for_store(lambda: produce(cluster, "orders", b"after"))
        cluster.start(controller)
        wait_for_store(lambda: cluster.isr("orders") == [0, 1, 2])
        wait_for_store(lambda: values(cluster, "orders") == [b"before", b"after"])
        store = open_store(zookeeper)
        names = store.children("/")
        store.close()
    assert {"brokers", "cluster", "config", "controller_epoch", "admin"} <= set(names)


def test_produce_and_fetch_do_not_notice_that_the_store_is_away(own_server):
    address = f"{own_server.address}/away"
    # The records are old: they would be deleted once the brokers have run for 30 s.
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "log_retention_ms": -1}
    with kcore.Cluster(3, store=address, **settings) as cluster:
        cluster.create_topic("t")
        wait_for_store(lambda: produce(cluster, "t", b"0"))
        wait_for_store(lambda: cluster.isr("t") == [0, 1, 2])
        own_server.stop()
        for broker in cluster.brokers.values():
            wait_for_store(lambda broker=broker: not broker.store._session._is_connected)
        for number in range(1, 4):
            assert produce(cluster, "t", b"%d" % number)
        wait_for_store(lambda: values(cluster, "t") == [b"0", b"1", b"2", b"3"])
        own_server.start()
        for broker in cluster.brokers.values():
            # A connection that the starting server has taken and does not answer costs two thirds of the timeout.
            wait_for_store(lambda broker=broker: broker.store._session._is_connected, 150)
        # Whoever is the controller now, it works.
        wait_for_store(lambda: is_created(cluster, "afterwards"))
        wait_for_store(lambda: produce(cluster, "afterwards", b"x"))
        wait_for_store(lambda: values(cluster, "t") == [b"0", b"1", b"2", b"3"])


def test_a_cluster_stops_while_the_store_is_away(own_server):
    address = f"{own_server.address}/stop"
    cluster = kcore.Cluster(2, store=address, zookeeper_session_timeout_ms=LONG_MS).start()
    brokers = list(cluster.brokers.values())
    cluster.create_topic("t")
    own_server.stop()
    try:
        for broker in brokers:
            wait_for_store(lambda broker=broker: not broker.store._session._is_connected)
        cluster.stop()
    finally:
        own_server.start()
    assert all(broker.has_stopped for broker in brokers)


def leader_of(broker, partition):
    topic = broker.metadata_cache.topic("t")
    return topic.partitions[partition].leader if topic is not None and partition in topic.partitions else None


@pytest.fixture
def standing_still(own_server, monkeypatch):
    """Called with what must come to its end while the server stands still.  By themselves connections are lost after
    two thirds of ENDLESS_MS."""
    for module in ("cluster", "member.registration"):
        monkeypatch.setattr(f"kcore.server.{module}.STOP_PING_MS", 500)

    def run(stop):
        stopping = threading.Thread(target=stop, daemon=True)
        own_server.pause()
        try:
            stopping.start()
            wait_for_store(lambda: not stopping.is_alive())
        finally:
            own_server.resume()

    return run


def test_a_cluster_stops_while_the_store_stands_still(own_server, standing_still):
    address = f"{own_server.address}/still"
    cluster = kcore.Cluster(2, store=address, zookeeper_session_timeout_ms=ENDLESS_MS).start()
    brokers = list(cluster.brokers.values())
    cluster.create_topic("t")
    wait_for_store(lambda: produce(cluster, "t", b"0"))
    assert cluster.controller() in (0, 1)
    standing_still(cluster.stop)
    assert all(broker.has_stopped for broker in brokers)


def test_brokers_with_leaders_stop_while_the_store_stands_still(own_server, standing_still, tmp_path):
    """Here the first one waited for the controller, which waited for the store."""
    settings = {"store": f"{own_server.address}/leaders", "zookeeper_session_timeout_ms": ENDLESS_MS}
    brokers = [kcore.Broker(tmp_path / f"{number}", broker_id=number, **settings).start() for number in (0, 1)]
    for number in (0, 1):
        wait_for_store(lambda number=number: brokers[number].metadata_cache.snapshot.broker_ids() == [0, 1])
    brokers[0].create_topic("t", partitions=4, replication_factor=2)
    # So that the second has something to hand over.
    wait_for_store(lambda: {leader_of(brokers[1], number) for number in range(4)} == {0, 1})
    assert brokers[0].cluster_member.is_controller
    standing_still(lambda: [broker.stop() for broker in reversed(brokers)])
    assert all(broker.has_stopped for broker in brokers)


def test_brokers_whose_sessions_have_expired_register_again(own_server):
    with kcore.Cluster(2, store=f"{own_server.address}/expiry", zookeeper_session_timeout_ms=LONG_MS) as cluster:
        cluster.create_topic("t")
        wait_for_store(lambda: produce(cluster, "t", b"0"))
        for number in (cluster.controller(), 1 - cluster.controller()):
            broker = cluster.brokers[number]
            epoch = broker.cluster_member.broker_epoch
            expire(broker.store)
            wait_for_store(lambda broker=broker, epoch=epoch: broker.cluster_member.broker_epoch > epoch)
            wait_for_store(lambda: they_agree(cluster))
        wait_for_store(lambda: produce(cluster, "t", b"1"))
        wait_for_store(lambda: cluster.isr("t") == [0, 1])
        wait_for_store(lambda: values(cluster, "t") == [b"0", b"1"])


def test_a_second_broker_with_the_same_id_is_refused(zookeeper, tmp_path, monkeypatch):
    monkeypatch.setattr("kcore.server.member.registration.REGISTRATION_TIMEOUT_MS", 500)
    with kcore.Broker(tmp_path / "a", store=zookeeper, broker_id=7):
        with pytest.raises(KafkaError, match="broker 7 is registered already"):
            kcore.Broker(tmp_path / "b", store=zookeeper, broker_id=7).start()
        store = open_store(zookeeper)
        node = znodes.BrokerZNode.decode(store.get(znodes.broker_id(7)).data)
        store.close()
    assert node.endpoints.keys() == {"PLAINTEXT"}
    wait_for_store(lambda: not any("zookeeper" in thread.name for thread in threading.enumerate()))
