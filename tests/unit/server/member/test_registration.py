"""How a broker joins a cluster: its registration, its id, and the data directories that it brings."""

import json
import threading

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import TopicPartition
from kcore.log import meta_properties
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import (
    Create,
    NodeExists,
)
from kcore.server.member import registration
from tests.unit.server.controller_client import ControllerClient, codes
from tests.unit.server.member.conftest import DEADLINE_S, TOPIC_ID, metadata, partition, run_now
from tests.waiting import wait_until


def test_a_member_registers_its_listeners_and_unregisters_when_it_stops(tree, store):
    settings = {
        "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "advertised.listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://broker.example:19092",
        "inter.broker.listener.name": "INTERNAL",
        "broker.rack": "r1",
        "broker.id": "4",
    }
    with kcore.Broker(store=store, **settings) as broker:
        node = store.get(znodes.broker_id(4))
        assert node.ephemeral_owner == store.session_id
        assert broker.cluster_member.broker_epoch == node.czxid
        body = json.loads(node.data)
        assert body["endpoints"] == [f"INTERNAL://127.0.0.1:{broker.port}", "EXTERNAL://broker.example:19092"]
        assert body["listener_security_protocol_map"] == {"INTERNAL": "PLAINTEXT", "EXTERNAL": "PLAINTEXT"}
        assert (body["rack"], body["version"]) == ("r1", 5)
        epoch = node.czxid
        broker.restart()
        assert broker.cluster_member.broker_epoch == store.get(znodes.broker_id(4)).czxid > epoch
    assert store.get(znodes.broker_id(4)) is None


def test_after_its_session_has_expired_a_member_registers_again_with_a_higher_epoch(broker, controller, tree, store):
    epoch = broker.cluster_member.broker_epoch
    store_of_others = MemoryStore(tree, executor=run_now)
    tree.expire(store.session_id)
    wait_until(lambda: broker.cluster_member.broker_epoch > epoch)
    assert store_of_others.get(znodes.broker_id(1)).czxid == broker.cluster_member.broker_epoch
    # Settings are followed in the new session too.
    controller.leader_and_isr({"t": [controller.state()]})
    store_of_others.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "2048"}))
    store_of_others.create(
        f"{znodes.CONFIG_CHANGES}/config_change_", b'{"version":2,"entity_path":"topics/t"}', sequential=True
    )
    wait_until(lambda: broker.log("t").config.segment_bytes == 2048)


def test_a_broker_whose_id_is_registered_waits_for_that_session_to_end_and_then_gives_up(tree, store, monkeypatch):
    other = MemoryStore(tree, executor=run_now)
    other.ensure_path(znodes.BROKER_IDS)
    other.create(znodes.broker_id(1), b"of another broker", ephemeral=True)
    monkeypatch.setattr(registration, "REGISTRATION_TIMEOUT_MS", 100)
    with pytest.raises(NodeExists, match=r"broker 1 is registered already.*of another broker"):
        kcore.Broker(store=store).start()
    monkeypatch.setattr(registration, "REGISTRATION_TIMEOUT_MS", DEADLINE_S * 1000)
    waiting = threading.Timer(0.2, other.close)
    waiting.start()
    with kcore.Broker(store=store):
        assert store.get(znodes.broker_id(1)).ephemeral_owner == store.session_id
    waiting.join()


def test_two_brokers_that_start_together_agree_on_the_clusters_id(tree):
    stores = [MemoryStore(tree, executor=run_now) for _ in range(2)]
    with kcore.Broker(store=stores[0], broker_id=1) as one, kcore.Broker(store=stores[1], broker_id=2) as two:
        assert one.cluster_id == two.cluster_id == znodes.decode_cluster_id(stores[0].get(znodes.CLUSTER_ID).data)


def test_logs_that_no_controller_names_are_left_alone(tmp_path, tree, monkeypatch):
    with kcore.Broker(tmp_path) as alone:
        alone.create_topic("old", retention_ms=1)
        alone.produce("old", "x")
    store = MemoryStore(tree, executor=run_now)
    store.multi([Create("/cluster"), Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(alone.cluster_id))])
    with kcore.Broker(tmp_path, store=store) as member:
        assert partition(member, TopicPartition("old", 0)) is None
        log = member.replica_manager.log_manager.get_log(TopicPartition("old", 0))
        assert log.log_end_offset == 1 and log.config.retention_ms == -1
        with pytest.raises(errors.UnknownTopicOrPartition):
            member.log("old")
        assert metadata(member).topics == []
    assert (tmp_path / "old-0").is_dir()


def cluster_store(tree, cluster_id=None):
    """A store that has the cluster's id, if it is given."""
    store = MemoryStore(tree, executor=run_now)
    if cluster_id is not None:
        store.create_recursive(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id))
    return store


def test_a_members_directories_are_refused_without_the_store_until_they_leave_the_cluster(tmp_path, tree):
    dirs = [tmp_path / "a", tmp_path / "b"]
    settings = {"log_dirs": ",".join(map(str, dirs)), "broker_id": 1}
    with kcore.Broker(store=cluster_store(tree), **settings) as member, ControllerClient(member) as controller:
        controller.leader_and_isr({"t": [controller.state()]}, 7, {"t": TOPIC_ID})
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        member.produce("t", "x")
        cluster_id = member.cluster_id
    before = [sorted(path.name for path in directory.iterdir()) for directory in dirs]
    # The marker in one of the directories is enough.
    for arguments in (settings, {"data_dir": dirs[0]}, {"data_dir": dirs[1]}):
        with pytest.raises(errors.InvalidConfig, match=f"broker 1 of cluster {cluster_id}.*--store.*meta.properties"):
            kcore.Broker(**arguments).start()
    assert [sorted(path.name for path in directory.iterdir()) for directory in dirs] == before
    with kcore.Broker(store=cluster_store(tree), **settings):
        pass
    for directory in dirs:
        (directory / "meta.properties").unlink()
    with kcore.Broker(**settings) as alone:
        assert [record.value for record in alone.consume("t")] == [b"x"]
        assert alone.cluster_id != cluster_id
    # What it wrote alone cannot come into the cluster again.
    with pytest.raises(errors.InconsistentClusterId):
        kcore.Broker(store=cluster_store(tree), **settings).start()


def test_a_members_directory_is_refused_with_a_store_that_is_not_the_clusters(tmp_path, tree):
    with kcore.Broker(tmp_path, store=cluster_store(tree)) as member:
        cluster_id = member.cluster_id
    new = MemoryTree()
    with pytest.raises(errors.InconsistentClusterId, match=f"member of cluster {cluster_id}, and the .* store is new"):
        kcore.Broker(tmp_path, store=cluster_store(new)).start()
    assert cluster_store(new).get(znodes.CLUSTER_ID) is None
    with pytest.raises(errors.InconsistentClusterId, match="this is another"):
        kcore.Broker(tmp_path, store=cluster_store(MemoryTree(), "another")).start()
    with kcore.Broker(tmp_path, store=cluster_store(tree)) as member:
        assert member.cluster_id == cluster_id


def test_a_directory_that_joins_a_cluster_keeps_the_other_names_of_its_meta_properties(tmp_path, tree):
    text = "#\nversion=1\nnode.id=1\ndirectory.id=7Nl1SiE0GxT4yu_wdvLaUg\ncluster.id=c"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.properties").write_text(text)
    settings = {"log_dirs": f"{tmp_path / 'a'},{tmp_path / 'b'}"}
    for _ in range(2):
        with kcore.Broker(store=cluster_store(tree), **settings):
            pass
        assert (tmp_path / "a" / "meta.properties").read_text() == f"{text}\nkcore.cluster.member=true\n"
        assert meta_properties.read(str(tmp_path / "b")) == (0, "c", 1, None, True)


def test_a_log_from_before_the_cluster_is_no_replica_of_a_topic_of_the_same_name(tmp_path, tree):
    with kcore.Broker(tmp_path) as alone:
        alone.create_topic("t")
        alone.produce("t", "stale")
    with pytest.raises(errors.InconsistentClusterId):
        kcore.Broker(tmp_path, store=cluster_store(tree, "another")).start()
    store = cluster_store(MemoryTree(), alone.cluster_id)
    with kcore.Broker(tmp_path, store=store) as member, ControllerClient(member) as controller:
        response = controller.leader_and_isr({"t": [controller.state()]}, 7, {"t": TOPIC_ID})
        assert codes(response) == {(TOPIC_ID, 0): errors.InconsistentTopicId.code}
        with pytest.raises(errors.KafkaError):
            list(member.consume("t"))
        with pytest.raises(errors.KafkaError):
            member.log("t")


def test_a_registration_that_was_left_in_the_same_session_is_replaced(store):
    store.ensure_path(znodes.BROKER_IDS)
    store.create(znodes.broker_id(1), b"before a restart", ephemeral=True)
    epoch = store.get(znodes.broker_id(1)).czxid
    with kcore.Broker(store=store) as broker:
        # With the same epoch the controller would not notice that the broker was away.
        assert store.get(znodes.broker_id(1)).czxid == broker.cluster_member.broker_epoch > epoch
