"""A broker that is a member of a cluster obeys the requests of a controller, and of no older one (API, RM, CTRL-24)."""

import json
import logging
import queue
import random
import socket
import struct
import threading
import time
from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common import file
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.log import meta_properties
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.store import (
    BadVersion,
    ConnectionLost,
    Create,
    InvalidPath,
    MultiFailed,
    MultiTooLarge,
    NodeExists,
    NoNode,
    NotAllowed,
    QuotaExceeded,
    SessionExpired,
    StoreClosed,
    StoreError,
)
from kcore.protocol.api_keys import INTER_BROKER, SUPPORTED, ApiKey
from kcore.protocol.headers import encode_request_header
from kcore.protocol.messages import alter_client_quotas as cq
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import request_class
from kcore.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.replica.partition_state import CommittedIsr
from kcore.replica.replica import ReplicaState
from kcore.replica.replica_manager import ReplicaManager
from kcore.server import cluster_member
from kcore.server.handlers import describe_cluster
from kcore.server.handlers import metadata as metadata_handler
from kcore.server.request_context import RequestContext
from tests.unit.protocol.random_messages import random_struct
from tests.unit.replica.conftest import batch
from tests.unit.server.client import Client
from tests.unit.server.controller_client import CONTROLLER_ID, ControllerClient, codes
from tests.unit.server.test_network_thread import refuse_to_wait

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = UUID(int=77)
DEADLINE_S = 60


def wait_until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


def run_now(call):
    threading.Thread(target=call).start()


@pytest.fixture
def tree():
    return MemoryTree()


@pytest.fixture
def store(tree):
    return MemoryStore(tree, executor=run_now)


@pytest.fixture(autouse=True)
def _members(monkeypatch):
    # The tests are the controller.
    monkeypatch.setattr("kcore.server.broker.make_controller", lambda *args: None)
    monkeypatch.setattr(metadata_handler, "_FIRST_METADATA_MS", 0)


@pytest.fixture
def broker(store):
    with kcore.Broker(store=store, offsets_topic_num_partitions=1) as broker:
        yield broker


@pytest.fixture
def controller(broker):
    with ControllerClient(broker) as controller:
        yield controller


def with_broker_2(broker):
    """The live brokers; no broker listens at the second's address."""
    return {1: {"PLAINTEXT": ("127.0.0.1", broker.port)}, 2: {"PLAINTEXT": ("127.0.0.1", 1)}}


def partition(broker, topic_partition=T0):
    return broker.replica_manager.get_partition(topic_partition)


# -- LeaderAndIsr


@pytest.mark.parametrize("version", range(8))
def test_API_02_a_leader_and_isr_request_makes_leaders_and_followers(broker, controller, version):
    controller.update_metadata(brokers=with_broker_2(broker))
    topics = {"t": [controller.state(0), controller.state(1, leader=2, replicas=(1, 2), isr=(2,))]}
    response = controller.leader_and_isr(topics, version, {"t": TOPIC_ID})
    assert response.error_code == 0
    name = TOPIC_ID if version >= 5 else "t"
    assert codes(response) == {(name, 0): 0, (name, 1): 0}
    assert partition(broker, T0).is_leader
    assert not partition(broker, T1).is_leader and partition(broker, T1).leader_id == 2
    assert broker.log("t").topic_id == (TOPIC_ID if version >= 5 else None)


@pytest.mark.parametrize("version", [2, 3, 7])
def test_RFT_10_a_replica_that_is_being_added_is_marked_in_the_request(broker, controller, version):
    controller.update_metadata(brokers=with_broker_2(broker))
    state = controller.state(0, leader=2, replicas=(2, 1), isr=(2,), adding_replicas=[1])
    controller.leader_and_isr({"t": [state]}, version, {"t": TOPIC_ID})
    assert partition(broker, T0).state.is_being_added == (version >= 3)


def test_API_02_the_answer_to_the_controller_is_not_delayed_by_a_quota(controller, monkeypatch):
    throttles = []
    respond = RequestContext.respond
    monkeypatch.setattr(
        RequestContext,
        "respond",
        lambda self, *args, **kwargs: (throttles.append((args[1:], kwargs)), respond(self, *args, **kwargs)),
    )
    controller.leader_and_isr({"t": [controller.state()]})
    assert throttles == [((), {})]


def test_RM_02_CTRL_24_a_request_of_an_older_controller_is_refused_and_changes_nothing(broker, controller):
    controller.controller_epoch = 5
    controller.leader_and_isr({"t": [controller.state()]})
    controller.update_metadata({"t": {0: {}}})
    controller.controller_epoch = 4
    stale = errors.StaleControllerEpoch.code
    response = controller.leader_and_isr({"t": [controller.state(leader_epoch=7), controller.state(1)]})
    assert (response.error_code, codes(response)) == (stale, {})
    assert controller.stop_replica("t", leader_epoch=7, delete=True).error_code == stale
    assert controller.update_metadata({"t": {0: {"leader": -2}}}, brokers={}).error_code == stale
    assert partition(broker, T0).leader_epoch == 0
    assert partition(broker, T1) is None
    assert broker.metadata_cache.topic("t") is not None and broker.metadata_cache.snapshot.broker_ids() == [1]


def test_a_request_for_an_earlier_registration_of_the_broker_is_refused(broker, controller):
    stale = errors.StaleBrokerEpoch.code
    epoch = broker.cluster_member.broker_epoch
    controller.broker_epoch = epoch - 1
    assert controller.leader_and_isr({"t": [controller.state()]}).error_code == stale
    assert controller.stop_replica("t").error_code == stale
    assert controller.update_metadata().error_code == stale
    assert partition(broker) is None
    # The controller may know of a registration before the broker does; the first versions have no epoch.
    for broker_epoch in (epoch, epoch + 1, -1):
        controller.broker_epoch = broker_epoch
        assert controller.leader_and_isr({"t": [controller.state(leader_epoch=broker_epoch)]}).error_code == 0


def test_partitions_of_one_request_fail_by_themselves(broker, controller):
    controller.leader_and_isr({"t": [controller.state(0, leader_epoch=3)]}, topic_ids={"t": TOPIC_ID})
    other = UUID(int=78)
    topics = {
        "t": [controller.state(0, leader_epoch=3), controller.state(1, replicas=(2, 3)), controller.state(2)],
        "../evil": [controller.state(0)],
        "ok": [controller.state(-1), controller.state(0)],
    }
    response = controller.leader_and_isr(topics, 4)
    assert response.error_code == 0
    assert codes(response) == {
        ("t", 0): errors.StaleControllerEpoch.code,
        ("t", 1): errors.UnknownTopicOrPartition.code,
        ("t", 2): 0,
        ("../evil", 0): errors.InvalidTopicException.code,
        ("ok", -1): errors.InvalidPartitions.code,
        ("ok", 0): 0,
    }
    response = controller.leader_and_isr({"t": [controller.state(0, leader_epoch=9)]}, 7, {"t": other})
    assert codes(response) == {(other, 0): errors.InconsistentTopicId.code}
    assert partition(broker, TopicPartition("../evil", 0)) is None


def test_a_topics_settings_are_read_from_the_store_when_its_first_partition_comes(broker, controller, store):
    store.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "4096", "foreign": "x"}))
    controller.leader_and_isr({"t": [controller.state()]})
    assert broker.log("t").config.segment_bytes == 4096


def test_settings_that_the_store_did_not_give_are_read_until_it_does(broker, controller, store, monkeypatch):
    """Until then the topic keeps all records; it had the broker's retention, which deleted some."""
    monkeypatch.setattr(cluster_member, "_RETRY_MS", 1)
    settings = znodes.topic_config("t")
    store.create_recursive(settings, znodes.encode_config({"retention.ms": "12345"}))
    get, tries = store.get, []

    def get_but_not_the_settings(path, *args):
        if path == settings:
            tries.append(path)
            raise ConnectionLost("away")
        return get(path, *args)

    with monkeypatch.context() as store_is_away:
        store_is_away.setattr(store, "get", get_but_not_the_settings)
        controller.update_metadata()
        controller.leader_and_isr({"t": [controller.state(0)]})
        assert broker.log("t").config.retention_ms == -1
        wait_until(lambda: len(tries) > 3)
    wait_until(lambda: broker.log("t").config.retention_ms == 12345)


def test_changed_settings_reach_the_logs(broker, controller, store):
    controller.leader_and_isr({"t": [controller.state()], "u": [controller.state()]})
    for number, (body, size) in enumerate(
        [
            ({"version": 2, "entity_path": "topics/t"}, 2048),
            ({"version": 1, "entity_type": "topics", "entity_name": "t"}, 1024),
        ]
    ):
        store.create_or_set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": str(size)}))
        for change in (b"not JSON", b'{"version":2,"entity_path":"clients/c"}', json.dumps(body).encode()):
            store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
        wait_until(lambda size=size: broker.log("t").config.segment_bytes == size)
        assert broker.admin_manager.topic_config("t") == {"segment.bytes": str(size)}, number
    assert broker.log("u").config.segment_bytes == 1 << 30


class SlowStore(MemoryStore):
    """Its first answer about the settings of topic t is on its way until `arrives` is set."""

    def __init__(self, tree):
        super().__init__(tree, executor=run_now)
        self.is_read, self.arrives = threading.Event(), threading.Event()

    def get(self, path, watch=None):
        node = super().get(path, watch)
        if path == znodes.topic_config("t") and not self.is_read.is_set():
            self.is_read.set()
            assert self.arrives.wait(DEADLINE_S)
        return node


def test_settings_that_are_read_while_they_change_end_as_the_new_ones(tree, store):
    slow_store = SlowStore(tree)
    with kcore.Broker(store=slow_store) as broker, ControllerClient(broker) as controller:
        store.create_recursive(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "1024"}))
        controller.client.send(controller.leader_and_isr_request({"t": [controller.state()]}), 7)
        assert slow_store.is_read.wait(DEADLINE_S)
        store.set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": "2048"}))
        change = b'{"version":2,"entity_path":"topics/t"}'
        store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True)
        time.sleep(0.2)  # by now the change is read, or waits for the first answer
        slow_store.arrives.set()
        assert controller.client.receive(ApiKey.LEADER_AND_ISR, 7).error_code == 0
        wait_until(lambda: broker.admin_manager.topic_config("t") == {"segment.bytes": "2048"})
        wait_until(lambda: broker.log("t").config.segment_bytes == 2048)


# -- StopReplica


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("delete", [False, True])
def test_a_stopped_replica_is_gone_and_its_log_stays_unless_it_is_to_be_deleted(broker, controller, version, delete):
    controller.leader_and_isr({"t": [controller.state(leader_epoch=3), controller.state(1)]})
    response = controller.stop_replica("t", 0, 3, delete, version)
    assert (response.error_code, codes(response)) == (0, {("t", 0): 0})
    assert partition(broker, T0) is None and partition(broker, T1) is not None
    assert (broker.replica_manager.log_manager.get_log(T0) is None) == delete


def test_a_stop_replica_of_an_old_leader_epoch_is_fenced(broker, controller):
    controller.leader_and_isr({"t": [controller.state(leader_epoch=3)]})
    assert codes(controller.stop_replica("t", 0, 2, True)) == {("t", 0): errors.FencedLeaderEpoch.code}
    assert partition(broker).is_leader
    # -2: the topic is being deleted, whatever its epoch.
    assert codes(controller.stop_replica("t", 0, -2, True)) == {("t", 0): 0}
    assert partition(broker) is None
    assert codes(controller.stop_replica("unknown", 7, 0, True)) == {("unknown", 7): 0}


# -- UpdateMetadata


def metadata(broker, version=12, names=None):
    with Client(broker) as client:
        topics = None if names is None else [m.MetadataRequestTopic(name=name) for name in names]
        return client.ask(m.MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4), version)


@pytest.mark.parametrize("version", [0, 4, 12])
def test_a_metadata_request_waits_for_the_controllers_first_request(broker, controller, version, monkeypatch):
    # librdkafka forgets all brokers when a response names none.
    monkeypatch.setattr(metadata_handler, "_FIRST_METADATA_MS", DEADLINE_S * 1000)
    answers = queue.Queue()
    names = [None, ["t", "new"]] if version else [["t", "new"]]
    threads = [threading.Thread(target=lambda n=n: answers.put(metadata(broker, version, n))) for n in names]
    for thread in threads:
        thread.start()
    wait_until(lambda: broker.admin_manager._waiting.delayed == len(names))
    assert answers.empty()
    controller.update_metadata({"t": {0: {}}})
    for _ in names:
        answer = answers.get(timeout=DEADLINE_S)
        assert [info.node_id for info in answer.brokers] == [1]
        assert {topic.name: topic.error_code for topic in answer.topics}["t"] == 0
    for thread in threads:
        thread.join()
    # Creating it might wait for the store, on the thread of the controller's requests: the client asks again.
    assert broker.store.get(znodes.topic("new")) is None


@pytest.mark.parametrize("version", [1, 4, 12])
def test_without_a_controller_topics_have_no_leader_but_are_not_unknown(broker, version):
    answer = metadata(broker, version, ["t", "u"])
    assert {topic.name: topic.error_code for topic in answer.topics} == dict.fromkeys(
        ["t", "u"], errors.LeaderNotAvailable.code
    )
    assert answer.brokers == [] and broker.store.get(znodes.topic("t")) is None


@pytest.mark.parametrize("version", range(9))
def test_the_metadata_are_those_of_the_controllers_update(broker, controller, version):
    brokers = {
        1: {"PLAINTEXT": ("127.0.0.1", broker.port)},
        2: {"PLAINTEXT": ("two.example", 2002)},
    }
    state = {"leader": 2, "leader_epoch": 6, "isr": [2], "replicas": [2, 1, 4]}
    if version >= 4:
        state["offline_replicas"] = [4]
    assert controller.update_metadata({"t": {0: state}}, brokers, version, {"t": TOPIC_ID}).error_code == 0
    answer = metadata(broker)
    assert answer.controller_id == CONTROLLER_ID
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [
        (1, "127.0.0.1", broker.port),
        (2, "two.example", 2002),
    ]
    (topic,) = answer.topics
    assert (topic.name, topic.topic_id) == ("t", TOPIC_ID if version >= 7 else ZERO_UUID)
    (info,) = topic.partitions
    assert (info.leader_id, info.leader_epoch, info.isr_nodes, info.replica_nodes) == (2, 6, [2], [2, 1, 4])
    assert info.offline_replicas == ([4] if version >= 4 else [])
    with Client(broker) as client:
        cluster = client.ask(DescribeClusterRequest(), 0)
        assert [b.broker_id for b in cluster.brokers] == [1, 2] and cluster.controller_id == CONTROLLER_ID


def test_partial_updates_add_up_and_deleted_partitions_leave(broker, controller):
    controller.update_metadata({"t": {0: {}}, "u": {0: {}}}, topic_ids={"t": TOPIC_ID})
    controller.update_metadata({"t": {1: {"leader": -1}}})
    snapshot = broker.metadata_cache.snapshot
    assert [info.leader for info in snapshot.topic("t").partitions.values()] == [1, -1]
    assert snapshot.topic("t").topic_id == TOPIC_ID
    controller.update_metadata({"t": {1: {"leader": -2}}})
    assert list(broker.metadata_cache.topic("t").partitions) == [0]
    controller.update_metadata({"t": {0: {"leader": -2}}})
    assert broker.metadata_cache.topic("t") is None
    assert broker.metadata_cache.snapshot.topic_name(TOPIC_ID) is None
    assert [topic.name for topic in metadata(broker).topics] == ["u"]


def test_a_leader_that_the_client_cannot_reach_is_an_error_of_its_partition(broker, controller):
    brokers = {
        1: {"PLAINTEXT": ("127.0.0.1", broker.port)},
        2: {"OTHER": ("two.example", 2002)},
    }
    partitions = {
        0: {"leader": 1, "replicas": [1, 2]},
        1: {"leader": 2, "isr": [2]},
        2: {"leader": 3},
        3: {"leader": -1},
    }
    controller.update_metadata({"t": partitions}, brokers)

    def answers(version):
        answer = metadata(broker, version, ["t"])
        assert [b.node_id for b in answer.brokers] == [1]
        partitions = sorted(answer.topics[0].partitions, key=lambda info: info.partition_index)
        return [(info.error_code, info.leader_id, info.replica_nodes) for info in partitions]

    not_available, not_there = errors.LeaderNotAvailable.code, errors.ListenerNotFound.code
    assert answers(6) == [(0, 1, [1, 2]), (not_there, -1, [1]), (not_available, -1, [1]), (not_available, -1, [1])]
    assert [code for code, _, _ in answers(5)] == [0, not_available, not_available, not_available]
    assert answers(0)[0] == (errors.ReplicaNotAvailable.code, 1, [1])


# -- order


def test_controller_requests_of_two_connections_are_carried_out_one_after_the_other_in_their_order(
    broker, controller, monkeypatch
):
    become = ReplicaManager.become_leader_or_follower
    is_inside, may_go_on, epochs = threading.Event(), threading.Event(), []

    def slow(self, updates, controller_epoch, *args):
        epochs.append(controller_epoch)
        if controller_epoch == 1:
            is_inside.set()
            assert may_go_on.wait(DEADLINE_S)
        return become(self, updates, controller_epoch, *args)

    monkeypatch.setattr(ReplicaManager, "become_leader_or_follower", slow)
    with ControllerClient(broker, controller_epoch=2) as second, Client(broker) as bystander:
        controller.client.send(controller.leader_and_isr_request({"t": [controller.state()]}), 7)
        assert is_inside.wait(DEADLINE_S)
        second.client.send(second.leader_and_isr_request({"t": [second.state(leader_epoch=1)]}), 7)
        # Only the second request waits.
        wait_until(lambda: len(broker._apis._pool._in_order._waiting) == 1)
        bystander.ask(m.MetadataRequest(topics=[]), 5)
        bystander.ask(DescribeGroupsRequest(groups=["g"]), 2)
        assert epochs == [1]
        may_go_on.set()
        assert controller.client.receive(ApiKey.LEADER_AND_ISR, 7).error_code == 0
        assert second.client.receive(ApiKey.LEADER_AND_ISR, 7).error_code == 0
    assert epochs == [1, 2] and partition(broker).leader_epoch == 1


def test_the_controllers_requests_never_run_on_the_network_thread(broker, controller, monkeypatch):
    threads = {}
    respond = RequestContext.respond

    def noting(self, *args, **kwargs):
        threads.setdefault(self.header.api_key, set()).add(threading.current_thread().name)
        return respond(self, *args, **kwargs)

    monkeypatch.setattr(RequestContext, "respond", noting)
    controller.leader_and_isr({"t": [controller.state()]})
    controller.update_metadata()
    controller.stop_replica("t")
    controller.client.ask(ControlledShutdownRequest(broker_id=1), 3)
    lane = {f"kcore-controller-requests-{broker.broker_id}-0"}
    assert threads[ApiKey.LEADER_AND_ISR] == threads[ApiKey.UPDATE_METADATA] == threads[ApiKey.STOP_REPLICA] == lane
    # Its answer waits for the controller, which sends requests of the lane meanwhile.
    (name,) = threads[ApiKey.CONTROLLED_SHUTDOWN]
    assert "request-handler" in name


@pytest.mark.parametrize("count", [2**31 - 1, 1_000_000, -2])
def test_an_impossible_number_of_partitions_ends_the_connection_and_nothing_else(broker, controller, count):
    header = encode_request_header(ApiKey.LEADER_AND_ISR, 1, 1, "x")
    for api_key, fixed in ((ApiKey.LEADER_AND_ISR, b"\0" * 8), (ApiKey.UPDATE_METADATA, b"\0" * 8)):
        header = encode_request_header(api_key, 1, 1, "x")
        with Client(broker) as client:
            client.send_frame(header + fixed + struct.pack(">i", count) + b"\0\1t")
            assert client.is_closed()
    assert controller.leader_and_isr({"t": [controller.state()]}).error_code == 0


# -- what is announced


def test_a_member_announces_the_controllers_requests_and_a_broker_alone_does_not_serve_them(controller, monkeypatch):
    def announced(client):
        keys = client.ask(ApiVersionsRequest(), 0).api_keys
        return {key.api_key: (key.min_version, key.max_version) for key in keys}

    assert announced(controller.client) == SUPPORTED | INTER_BROKER
    with kcore.Broker() as alone, ControllerClient(alone) as client:
        assert announced(client.client) == SUPPORTED
        client.client.send(LeaderAndIsrRequest(), 0)
        assert client.client.is_closed()


# -- requests to change topics


def test_a_broker_that_is_not_the_controller_answers_not_controller_and_metadata_name_the_controller(
    broker, controller
):
    controller.update_metadata({"t": {0: {}}})
    not_controller = errors.NotController.code
    client = controller.client
    topic = ct.CreatableTopic(name="n", num_partitions=1, replication_factor=1)
    assert client.ask(ct.CreateTopicsRequest(topics=[topic]), 5).topics[0].error_code == not_controller
    assert client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 3).responses[0].error_code == not_controller
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    assert client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results[0].error_code == not_controller
    assert metadata(broker).controller_id == CONTROLLER_ID


def test_a_topic_that_is_created_automatically_is_written_to_the_store_for_the_controller(broker, controller, store):
    controller.update_metadata()
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="new")])
    (topic,) = controller.client.ask(request, 5).topics
    assert topic.error_code == errors.LeaderNotAvailable.code
    assert znodes.TopicZNode.decode(store.get(znodes.topic("new")).data).assignment == {0: [1]}
    # Once more, as a client does while it waits for the leader.
    assert controller.client.ask(request, 5).topics[0].error_code == errors.LeaderNotAvailable.code
    controller.leader_and_isr({"new": [controller.state()]})
    controller.update_metadata({"new": {0: {}}})
    assert controller.client.ask(request, 5).topics[0].error_code == 0


def test_a_call_that_creates_a_topic_returns_when_the_metadata_have_it(broker, controller, store):
    controller.update_metadata()
    created = []
    thread = threading.Thread(target=lambda: created.append(broker.create_topic("mine", 2, retention_ms=7)))
    thread.start()
    wait_until(lambda: store.get(znodes.topic("mine")) is not None)
    assert znodes.decode_config(store.get(znodes.topic_config("mine")).data) == {"retention.ms": "7"}
    controller.update_metadata({"mine": {0: {}}})
    assert created == []
    controller.update_metadata({"mine": {1: {}}})
    thread.join(DEADLINE_S)
    assert created == [znodes.TopicZNode.decode(store.get(znodes.topic("mine")).data).topic_id]


# -- while the store is away


@pytest.fixture
def away(broker, controller, store):
    """The broker, with topic t in its metadata, when its store has gone away."""
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    broker.cluster_member.controller = ActiveController()
    store.disconnect()
    yield broker
    store.reconnect()
    broker.cluster_member.controller = None


def test_without_the_store_only_the_topic_that_is_to_be_created_has_an_error_in_the_metadata(away, caplog):
    """All topics had UNKNOWN_SERVER_ERROR, and there were no brokers; each time with a traceback in the log."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in ("t", "new")])
    with Client(away) as client:
        for _ in range(3):
            response = client.ask(request, 5)
            assert {t.name: t.error_code for t in response.topics} == {"t": 0, "new": errors.LeaderNotAvailable.code}
            assert [broker.node_id for broker in response.brokers] == [1, 2]
    (record,) = [record for record in caplog.records if "new" in record.getMessage()]
    assert record.levelname == "WARNING" and record.exc_info is None


def test_without_the_store_an_idempotent_producer_is_to_ask_for_its_id_again(away, caplog):
    """UNKNOWN_SERVER_ERROR ends such a producer."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    with Client(away) as client:
        for _ in range(3):  # producers ask again and again
            response = client.ask(request, 4)
            assert (response.error_code, response.producer_id) == (errors.CoordinatorLoadInProgress.code, -1)
        away.store.reconnect()
        with caplog.at_level(logging.INFO):
            assert client.ask(request, 4).error_code == 0
    records = [record for record in caplog.records if record.name.endswith("init_producer_id")]
    assert [record.levelname for record in records] == ["WARNING", "INFO"]
    assert not [record for record in caplog.records if record.exc_info]


def test_without_the_store_a_change_of_topics_is_answered_with_an_error_that_names_the_store(away, caplog):
    new = ct.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    setting = AlterableConfig(name="retention.ms", config_operation=0, value="1")
    altered = AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    with Client(away) as client:
        answers = [
            client.ask(ct.CreateTopicsRequest(topics=[new]), 5).topics,
            client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results,
            client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses,
            client.ask(IncrementalAlterConfigsRequest(resources=[altered]), 1).responses,
        ]
    for (answer,) in answers:
        assert answer.error_code == errors.RequestTimedOut.code
        assert "metadata store cannot be reached" in answer.error_message
    records = [r for r in caplog.records if "metadata store cannot be reached" in r.getMessage()]
    assert [(r.levelname, r.exc_info) for r in records] == [("WARNING", None)] * 4


@pytest.mark.parametrize(
    ("failure", "expected", "id_error"),
    [
        (SessionExpired("session 7"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (StoreClosed("cluster.db"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (BadVersion("/brokers/topics/t"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (MultiFailed(1, NoNode("/brokers")), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (NotAllowed("/brokers/topics"), errors.ClusterAuthorizationFailed, errors.ClusterAuthorizationFailed),
        (MultiTooLarge("2000 operations"), errors.PolicyViolation, errors.PolicyViolation),
        (QuotaExceeded("/brokers"), errors.PolicyViolation, errors.PolicyViolation),
        (InvalidPath("/a/."), errors.InvalidRequest, errors.InvalidRequest),
        (StoreError("/brokers: ZooKeeper answers MarshallingError"), errors.UnknownServerError, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, StoreError) else "",
)
def test_each_error_of_the_store_is_answered_with_a_fitting_one_and_no_traceback(
    broker, controller, store, monkeypatch, caplog, failure, expected, id_error
):
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    broker.cluster_member.controller = ActiveController()

    def fail(*args):
        raise failure

    new = ct.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    setting = AlterableConfig(name="retention.ms", config_operation=0, value="1")
    altered = AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    client_id = cq.EntityData(entity_type="client-id", entity_name="c")
    quota = cq.EntryData(entity=[client_id], ops=[cq.OpData(key="producer_byte_rate", value=1.0, remove=False)])
    with monkeypatch.context() as patch, Client(broker) as client:
        for name in ("get", "children", "multi", "get_many", "multi_many", "update"):
            patch.setattr(store, name, fail)
        answers = [
            client.ask(ct.CreateTopicsRequest(topics=[new]), 5).topics,
            client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results,
            client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses,
            client.ask(IncrementalAlterConfigsRequest(resources=[altered]), 1).responses,
            client.ask(cq.AlterClientQuotasRequest(entries=[quota]), 0).entries,
        ]
        producer_id = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        block = client.ask(AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), 0)
        request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="new")])
        (topic,) = client.ask(request, 5).topics
    broker.cluster_member.controller = None
    for (answer,) in answers:
        assert answer.error_code == expected.code
        assert "metadata" in answer.error_message and str(getattr(failure, "cause", failure)) in answer.error_message
    assert producer_id.error_code == (id_error or expected).code
    assert block.error_code in (expected.code, errors.NotController.code)
    assert topic.error_code == errors.LeaderNotAvailable.code
    assert not [record for record in caplog.records if record.exc_info]


def test_an_error_of_the_store_that_a_handler_does_not_expect_is_answered_without_a_traceback(
    broker, monkeypatch, caplog
):
    def fail(*args):
        raise ConnectionLost("zookeeper:2181")

    with Client(broker) as client:
        client.ask(DescribeClusterRequest(), 0)
        monkeypatch.setattr(describe_cluster.Handler, "handle", fail)
        assert client.ask(DescribeClusterRequest(), 0).error_code == errors.RequestTimedOut.code
    (record,) = [record for record in caplog.records if "zookeeper:2181" in record.getMessage()]
    assert record.levelname == "WARNING" and record.exc_info is None


def test_a_missing_broker_for_the_offsets_topic_is_logged_once(store, caplog):
    """Every client asks for its coordinator twice a second."""
    settings = {"offsets.topic.replication.factor": 3}
    with (
        kcore.Broker(store=store, **settings) as broker,
        ControllerClient(broker) as controller,
        Client(broker) as client,
    ):
        controller.update_metadata()
        for _ in range(3):
            response = client.ask(fc.FindCoordinatorRequest(key="g"), 3)
            assert response.error_code == errors.CoordinatorNotAvailable.code
        # Another reason is another line.
        controller.update_metadata(brokers=with_broker_2(broker))
        client.ask(fc.FindCoordinatorRequest(key="g"), 3)
    refused = [r for r in caplog.records if "could not be created automatically" in r.getMessage()]
    assert [(r.levelname, f"only {n} broker" in r.getMessage()) for n, r in enumerate(refused, 1)] == [
        ("WARNING", True)
    ] * 2


def test_settings_of_something_else_than_topics_and_brokers_are_refused_by_its_name(controller):
    resource = AlterConfigsResource(resource_type=8, resource_name="1", configs=[])
    (response,) = controller.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert response.error_message == "Only settings of topics and brokers can be changed, not of a broker's loggers"


# -- groups


def test_API_04_API_05_groups_move_with_the_leadership_of_their_partition(broker, controller):
    offsets = "__consumer_offsets"
    controller.update_metadata({offsets: {0: {}}}, with_broker_2(broker))

    def describe():
        with Client(broker) as client:
            return client.ask(DescribeGroupsRequest(groups=["g"]), 2).groups[0].error_code

    assert describe() == errors.NotCoordinator.code
    controller.leader_and_isr({offsets: [controller.state(0, leader_epoch=4)]})
    wait_until(lambda: describe() == 0)
    assert broker.group_coordinator.manager._owned == {0: 4}
    controller.leader_and_isr({offsets: [controller.state(0, leader=2, leader_epoch=5, isr=(2,), replicas=(2, 1))]})
    wait_until(lambda: describe() == errors.NotCoordinator.code)
    controller.leader_and_isr({offsets: [controller.state(0, leader_epoch=6)]})
    wait_until(lambda: describe() == 0)
    # A reassignment that takes the replica away sends nothing but StopReplica.
    controller.stop_replica(offsets, 0, 6, delete=True)
    wait_until(lambda: describe() == errors.NotCoordinator.code)


def test_the_coordinator_is_the_leader_of_the_groups_partition(broker, controller):
    brokers = {1: {"PLAINTEXT": ("127.0.0.1", broker.port)}, 2: {"PLAINTEXT": ("two.example", 2002)}}
    find = fc.FindCoordinatorRequest(key="g")
    controller.update_metadata({"__consumer_offsets": {0: {"leader": 2}}}, brokers)
    answer = controller.client.ask(find, 1)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 2, "two.example", 2002)
    controller.update_metadata({"__consumer_offsets": {0: {"leader": 3}}}, brokers)
    assert controller.client.ask(find, 1).error_code == errors.CoordinatorNotAvailable.code


def test_the_offsets_topic_is_created_through_the_store(broker, controller, store):
    controller.update_metadata()
    answer = controller.client.ask(fc.FindCoordinatorRequest(key="g"), 1)
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    assert znodes.TopicZNode.decode(store.get(znodes.topic("__consumer_offsets")).data).assignment == {0: [1]}


# -- registration


def test_a_member_registers_its_listeners_and_unregisters_when_it_stops(tree, store):
    settings = {
        "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "advertised.listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://broker.example:19092",
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
    monkeypatch.setattr(cluster_member, "REGISTRATION_TIMEOUT_MS", 100)
    with pytest.raises(NodeExists, match=r"broker 1 is registered already.*of another broker"):
        kcore.Broker(store=store).start()
    monkeypatch.setattr(cluster_member, "REGISTRATION_TIMEOUT_MS", DEADLINE_S * 1000)
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


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_fetch_of_a_topic_whose_log_is_that_of_another_id_is_refused(broker, controller, session_epoch):
    """The topic was deleted and made anew, and the metadata came before the order to stop the old replica."""
    controller.leader_and_isr({"t": [controller.state()]}, topic_ids={"t": TOPIC_ID})
    new_id = UUID(int=TOPIC_ID.int + 1)

    def fetch(topic_id, version=13, **fields):
        topic = f.FetchTopic(topic="t", topic_id=topic_id, partitions=[f.FetchPartition(partition=0)])
        request = f.FetchRequest(session_epoch=session_epoch, topics=[topic], **fields)
        (answer,) = controller.client.ask(request, version).responses
        return answer.partitions[0].error_code

    controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
    assert fetch(TOPIC_ID) == 0
    controller.update_metadata({"t": {0: {}}}, topic_ids={"t": new_id})
    assert fetch(TOPIC_ID) == errors.UnknownTopicId.code
    assert fetch(new_id) == errors.InconsistentTopicId.code
    assert fetch(new_id, version=12) == 0  # by name, as in Kafka


def test_RM_29_the_controller_is_notified_of_a_data_directory_that_has_failed(tmp_path, store):
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    with kcore.Broker(store=store, log_dirs=",".join(dirs)) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({"t": [controller.state(number) for number in range(2)]})
        failed = broker.log("t", 1).parent_dir
        broker.replica_manager.log_manager.log_dir_failure_channel.maybe_add_offline_log_dir(
            failed, OSError("disk failure")
        )
        path = znodes.LOG_DIR_EVENT_NOTIFICATION
        wait_until(lambda: store.children(path))
        (name,) = store.children(path)
        assert znodes.decode_log_dir_event(store.get(f"{path}/{name}").data) == 1
        # What the controller does then: the errors tell it which partitions have failed.
        states = [controller.state(number, leader_epoch=1) for number in range(2)]
        response = controller.leader_and_isr({"t": states}, 4)
        assert sorted(codes(response).values()) == [0, errors.KafkaStorageError.code]


def test_a_registration_that_was_left_in_the_same_session_is_replaced(store):
    store.ensure_path(znodes.BROKER_IDS)
    store.create(znodes.broker_id(1), b"before a restart", ephemeral=True)
    epoch = store.get(znodes.broker_id(1)).czxid
    with kcore.Broker(store=store) as broker:
        # With the same epoch the controller would not notice that the broker was away.
        assert store.get(znodes.broker_id(1)).czxid == broker.cluster_member.broker_epoch > epoch


def test_the_settings_of_a_topic_that_is_created_again_are_the_new_ones(broker, controller, store):
    def create(size):
        store.create_or_set(znodes.topic_config("t"), znodes.encode_config({"segment.bytes": str(size)}))

    create(1024)
    controller.leader_and_isr({"t": [controller.state(is_new=True)]})
    controller.update_metadata({"t": {0: {}}})
    assert broker.log("t").config.segment_bytes == 1024
    controller.stop_replica("t", delete=True)
    create(2048)
    # Its deletion was not reported to this broker.
    controller.leader_and_isr({"t": [controller.state(is_new=True)]})
    assert broker.log("t").config.segment_bytes == 2048
    controller.update_metadata({"t": {0: {"leader": -2}}})
    assert broker.admin_manager.topic_config("t") == {}
    create(4096)
    controller.update_metadata({"t": {0: {"leader": 2}}})
    assert broker.admin_manager.topic_config("t") == {"segment.bytes": "4096"}


def test_no_request_of_a_client_to_a_member_calls_the_store_on_the_network_thread(broker, controller, monkeypatch):
    complaints = refuse_to_wait(broker, monkeypatch)
    controller.update_metadata({"t": {0: {}}})
    controller.leader_and_isr({"t": [controller.state()]})
    client = controller.client
    client.ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="created-for-metadata")]), 5)
    client.ask(m.MetadataRequest(topics=None), 5)
    for version in (1, 4):
        client.ask(fc.FindCoordinatorRequest(**({"key": "g"} if version < 4 else {"coordinator_keys": ["g"]})), version)
    client.ask(DescribeClusterRequest(), 0)
    client.ask(ApiVersionsRequest(), 0)
    topic = ct.CreatableTopic(name="n", num_partitions=1, replication_factor=1)
    client.ask(ct.CreateTopicsRequest(topics=[topic]), 5)
    client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 3)
    client.ask(ControlledShutdownRequest(broker_id=1), 3)
    controller.stop_replica("t", delete=True)
    assert complaints == []
    file.clear_faults()


@pytest.mark.parametrize("api_key", INTER_BROKER, ids=lambda key: key.name)
def test_mutated_requests_of_a_controller_are_answered_or_end_their_connection(broker, controller, api_key, seed):
    rng = random.Random(seed)
    controller.leader_and_isr({"t": [controller.state()]})
    for _ in range(60):
        version = rng.randint(*INTER_BROKER[api_key])
        body = bytearray(random_struct(rng, request_class(api_key), version).encode(version))
        for _ in range(rng.randint(0, 4)):
            if body:
                body[rng.randrange(len(body))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        with Client(broker) as client:
            try:
                client.send_frame(encode_request_header(api_key, version, 1, "mutant") + body)
                client.sock.shutdown(socket.SHUT_WR)
                while client.sock.recv(65536):
                    pass
            except ConnectionError:
                pass
    # Epochs are compared: one of the mutants may have been the last controller that there can be.
    controller.controller_epoch = 2**31 - 1
    states = [controller.state(leader_epoch=2**31 - 1)]
    assert controller.leader_and_isr({"bystander": states}, 4).error_code == 0
    assert partition(broker, TopicPartition("bystander", 0)).is_leader
    assert broker.replica_manager.log_manager.live_log_dirs


def test_a_follower_joins_the_isr_with_the_epoch_of_its_registration_and_with_no_older_one(broker, controller, store):
    store.create(znodes.broker_id(2), b"", ephemeral=True)
    epoch = store.get(znodes.broker_id(2)).czxid
    path = znodes.partition_state("t", 0)
    store.create_recursive(path, znodes.PartitionStateZNode(1, 0, [1], 1).encode())
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker), topic_ids={"t": TOPIC_ID})
    controller.leader_and_isr({"t": [controller.state(isr=(1,), replicas=(1, 2))]}, topic_ids={"t": TOPIC_ID})

    def fetch(replica_epoch):
        topic = f.FetchTopic(topic_id=TOPIC_ID, partitions=[f.FetchPartition(partition=0, partition_max_bytes=1)])
        replica = f.ReplicaState(replica_id=2, replica_epoch=replica_epoch)
        response = controller.client.ask(f.FetchRequest(replica_state=replica, topics=[topic]), 15)
        assert response.responses[0].partitions[0].error_code == 0

    def stored_isr():
        return znodes.PartitionStateZNode.decode(store.get(path).data).isr

    fetch(epoch - 1)
    # The change is refused, and with that no longer pending.
    wait_until(lambda: isinstance(partition(broker)._state.isr, CommittedIsr))
    assert stored_isr() == [1]
    fetch(epoch)
    wait_until(lambda: partition(broker).isr == {1, 2})
    assert stored_isr() == [1, 2]


def test_PART_15_a_produce_does_not_wait_for_a_follower_that_is_gone_from_the_metadata(broker, controller):
    """It had caught up outside the ISR, as who stops in order does; nothing else happens at the partition."""
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    controller.leader_and_isr({"t": [controller.state(isr=(1,), replicas=(1, 2))]})
    led = partition(broker)
    read = led.read_records(0, 1, FetchIsolation.LOG_END, True)
    in_an_hour_ms = broker.replica_manager.time.milliseconds() + 3_600_000  # so that it stays caught up
    led.follower_replica(2).state = ReplicaState().after_fetch(
        read.fetched.fetch_offset_metadata, 0, in_an_hour_ms, read.log_end_offset
    )
    answers = queue.SimpleQueue()
    broker.replica_manager.append_records(DEADLINE_S * 1000, -1, False, AppendOrigin.CLIENT, {T0: batch()}, answers.put)
    controller.update_metadata(brokers=with_broker_2(broker))
    assert answers.empty() and led.log.high_watermark == 0
    controller.update_metadata()
    assert answers.get_nowait()[T0].error is None
    assert led.log.high_watermark == 1


def test_settings_that_cannot_be_read_keep_all_records_and_stop_nothing_else(store, caplog):
    combination = {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "5"}
    bodies = {
        "cut": b'{"version":1,"config":{"reten',
        "foreign": b'{"version":1,"config":["a"]}',
        "combination": znodes.encode_config(combination),
        "partly": znodes.encode_config({"segment.bytes": "2048", "retention.ms": "soon"}),
    }
    for name, body in bodies.items():
        store.create_recursive(znodes.topic_config(name), body)
    with kcore.Broker(store=store) as broker, ControllerClient(broker) as controller:
        controller.leader_and_isr({name: [controller.state(is_new=True)] for name in bodies})
        configs = {name: broker.log(name).config for name in bodies}
        assert [configs[name].retention_ms for name in ("cut", "foreign", "combination")] == [-1] * 3
        assert configs["partly"].segment_bytes == 2048 and configs["partly"].retention_ms > 0
        assert "cut cannot be read" in caplog.text
        # Once they are right, they hold; once they are not, the last right ones do.
        for body in (znodes.encode_config({"segment.bytes": "4096"}), b"not JSON"):
            store.set(znodes.topic_config("cut"), body)
            change = b'{"version":2,"entity_path":"topics/cut"}'
            name = store.create(f"{znodes.CONFIG_CHANGES}/config_change_", change, sequential=True).rpartition("/")[2]
            wait_until(lambda name=name: broker.cluster_member._configs._last_change == name)
            assert broker.admin_manager.topic_config("cut") == {"segment.bytes": "4096"}


class ActiveController:
    """What a member needs of a controller; it carries nothing out."""

    is_active = True

    def __init__(self):
        self.shutdowns = []

    def controlled_shutdown(self, broker_id, broker_epoch, on_done):
        self.shutdowns.append((broker_id, broker_epoch))
        if broker_id == 1:
            on_done(None, [T0])
        else:
            on_done(errors.StaleBrokerEpoch("another registration"), ())

    def shutdown(self):
        pass


def test_changes_of_topics_are_answered_when_the_metadata_have_them_or_their_time_is_up(broker, controller, store):
    broker.cluster_member.controller = ActiveController()
    controller.update_metadata({"old": {0: {}}})
    topic = ct.CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    create = ct.CreateTopicsRequest(topics=[topic], timeout_ms=50)
    timed_out = errors.RequestTimedOut.code
    with Client(broker) as client:
        assert client.ask(create, 5).topics[0].error_code == timed_out
        assert store.get(znodes.topic("new")) is not None  # it is created all the same
        create.topics[0].name, create.timeout_ms = "newer", 1000 * DEADLINE_S
        client.send(create, 5)
        wait_until(lambda: store.get(znodes.topic("newer")) is not None)
        controller.update_metadata({"newer": {0: {}, 1: {}}})
        assert client.receive(ApiKey.CREATE_TOPICS, 5).topics[0].error_code == 0
        create.validate_only = True
        create.topics[0].name = "newest"
        assert client.ask(create, 5).topics[0].error_code == 0

        grown = cp.CreatePartitionsTopic(name="newer", count=3, assignments=None)
        grow = cp.CreatePartitionsRequest(topics=[grown], timeout_ms=50)
        assert client.ask(grow, 1).results[0].error_code == timed_out
        assert sorted(znodes.TopicZNode.decode(store.get(znodes.topic("newer")).data).assignment) == [0, 1, 2]

        delete = dt.DeleteTopicsRequest(topic_names=["newer"], timeout_ms=50)
        assert client.ask(delete, 3).responses[0].error_code == timed_out
        assert store.children(znodes.DELETE_TOPICS) == ["newer"]
        delete.timeout_ms = 1000 * DEADLINE_S
        client.send(delete, 3)
        wait_until(lambda: broker.admin_manager._waiting.delayed == 1)
        controller.update_metadata({"newer": {number: {"leader": -2} for number in range(2)}})
        assert client.receive(ApiKey.DELETE_TOPICS, 3).responses[0].error_code == 0


@pytest.mark.parametrize("version", range(4))
def test_a_controlled_shutdown_is_answered_with_the_controllers_result(broker, controller, version):
    broker.cluster_member.controller = active = ActiveController()
    client, epoch = controller.client, 7 if version >= 2 else -1
    response = client.ask(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch), version)
    assert response.error_code == 0
    assert [(each.topic_name, each.partition_index) for each in response.remaining_partitions] == [("t", 0)]
    response = client.ask(ControlledShutdownRequest(broker_id=2), version)
    assert (response.error_code, response.remaining_partitions) == (errors.StaleBrokerEpoch.code, [])
    assert active.shutdowns == [(1, epoch), (2, -1)]
