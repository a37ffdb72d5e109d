"""A member of a cluster obeys the requests of a controller, and of no older one (API, RM, CTRL-24)."""

import errno
import queue
import random
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common import file
from kcore.common.time import MockTime
from kcore.common.topic_partition import ZERO_UUID, TopicPartition
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.api_keys import INTER_BROKER, SUPPORTED, ApiKey
from kcore.protocol.headers import encode_request_header
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import request_class
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from kcore.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from kcore.replica import disk_full_refusals
from kcore.replica.partition_state import CommittedIsr
from kcore.replica.replica import ReplicaState
from kcore.replica.replica_manager import ReplicaManager
from kcore.server.requests.request_context import RequestContext
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.topics import admin_manager
from tests.batches import batch
from tests.unit.protocol.random_messages import random_struct
from tests.unit.server.client import Client
from tests.unit.server.controller_client import CONTROLLER_ID, ControllerClient, codes
from tests.unit.server.member.conftest import DEADLINE_S, T0, T1, TOPIC_ID, metadata, partition, with_broker_2
from tests.waiting import wait_until


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


@pytest.mark.parametrize("version", [0, 4, 12])
def test_a_metadata_request_waits_for_the_controllers_first_request(broker, controller, version, monkeypatch):
    # librdkafka forgets all brokers when a response names none.
    monkeypatch.setattr(admin_manager, "_FIRST_METADATA_MS", DEADLINE_S * 1000)
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
        # Unlike Metadata it names no controller that is none of the brokers (ADM-08).
        assert [b.broker_id for b in cluster.brokers] == [1, 2] and cluster.controller_id == -1


def test_partial_updates_add_up_and_deleted_partitions_leave(broker, controller):
    controller.update_metadata({"t": {0: {}}, "u": {0: {}}}, topic_ids={"t": TOPIC_ID})
    controller.update_metadata({"t": {1: {"leader": -1}}}, topic_ids={"t": TOPIC_ID})
    snapshot = broker.metadata_cache.snapshot
    assert [info.leader for info in snapshot.topic("t").partitions.values()] == [1, -1]
    assert snapshot.topic("t").topic_id == TOPIC_ID
    controller.update_metadata({"t": {1: {"leader": -2}}}, topic_ids={"t": TOPIC_ID})
    assert list(broker.metadata_cache.topic("t").partitions) == [0]
    controller.update_metadata({"t": {0: {"leader": -2}}})
    assert broker.metadata_cache.topic("t") is None
    assert broker.metadata_cache.snapshot.topic_name(TOPIC_ID) is None
    assert [topic.name for topic in metadata(broker).topics] == ["u"]


@pytest.mark.parametrize("version", [4, 6, 8])
def test_a_topic_loses_its_id_with_an_update_without_one_as_at_the_java_brokers(broker, controller, version):
    """Of a controller with inter.broker.protocol.version below 2.8: clients and followers must not use an id that the
    leaders do not know any more."""
    both = {"t": TOPIC_ID, "u": UUID(int=78)}
    controller.update_metadata({"t": {0: {}, 1: {}}, "u": {0: {}}}, topic_ids=both)
    assert broker.metadata_cache.snapshot.has_topic_ids
    controller.update_metadata({"t": {0: {}}}, version=version)
    snapshot = broker.metadata_cache.snapshot
    assert not snapshot.has_topic_ids and snapshot.topic_name(TOPIC_ID) is None
    assert [(topic.name, topic.topic_id, len(topic.partitions)) for topic in snapshot.topics()] == [
        ("t", ZERO_UUID, 2),
        ("u", both["u"], 1),
    ]
    controller.update_metadata({"t": {0: {}}}, topic_ids=both)
    assert broker.metadata_cache.snapshot.has_topic_ids and len(broker.metadata_cache.topic("t").partitions) == 2


def test_the_offsets_of_all_groups_for_a_deleted_partition_are_deleted_too(broker, controller):
    offsets_topic = "__consumer_offsets"
    controller.update_metadata({"t": {0: {}, 1: {}}, offsets_topic: {0: {}}}, topic_ids={"t": TOPIC_ID})
    controller.leader_and_isr({offsets_topic: [controller.state()]})
    partitions = [
        oc.OffsetCommitRequestPartition(partition_index=number, committed_offset=5, committed_metadata="")
        for number in range(2)
    ]
    request = oc.OffsetCommitRequest(
        group_id="g", topics=[oc.OffsetCommitRequestTopic(name="t", partitions=partitions)]
    )

    def has_committed():
        (answer,) = controller.client.ask(request, 8).topics
        return {partition.error_code for partition in answer.partitions} == {0}

    wait_until(has_committed)  # once the group's partition is loaded
    committed = broker.group_coordinator.offsets.fetch
    assert set(committed("g", None)) == {T0, T1}
    controller.update_metadata({"t": {1: {"leader": -2}}})
    assert set(committed("g", None)) == {T0}
    controller.update_metadata({"t": {0: {"leader": -2}}})
    assert set(committed("g", None)) == set()


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


def test_ADM_06_a_leader_that_the_client_cannot_reach_is_no_leader(broker, controller):
    brokers = {1: {"PLAINTEXT": ("127.0.0.1", broker.port)}, 2: {"OTHER": ("two.example", 2002)}}
    controller.update_metadata(
        {"t": {0: {"leader": 1, "replicas": [1, 2]}, 1: {"leader": 2}, 2: {"leader": 3}}}, brokers
    )
    with Client(broker) as client:
        (topic,) = client.ask(DescribeTopicPartitionsRequest(), 0).topics
    assert [info.leader_id for info in topic.partitions] == [1, -1, -1]
    assert [info.leader_id for info in metadata(broker, 12, ["t"]).topics[0].partitions] == [1, -1, -1]


def test_ADM_06_a_description_of_topics_waits_for_the_controllers_first_request(broker, controller, monkeypatch):
    with Client(broker) as client:
        topics = [TopicRequest(name="t")]
        (unknown,) = client.ask(DescribeTopicPartitionsRequest(topics=topics), 0).topics
        assert unknown.error_code == errors.LeaderNotAvailable.code
        monkeypatch.setattr(admin_manager, "_FIRST_METADATA_MS", DEADLINE_S * 1000)
        client.send(DescribeTopicPartitionsRequest(topics=topics), 0)
        wait_until(lambda: broker.admin_manager._waiting.delayed == 1)
        controller.update_metadata({"t": {0: {}}})
        (topic,) = client.receive(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 1)


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
        wait_until(lambda: len(broker.running.apis._pool._lanes[RunsOn.CONTROLLER_REQUESTS]._waiting) == 1)
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


def test_a_member_announces_the_controllers_requests_and_a_broker_alone_does_not_serve_them(controller, monkeypatch):
    def announced(client):
        keys = client.ask(ApiVersionsRequest(), 0).api_keys
        return {key.api_key: (key.min_version, key.max_version) for key in keys}

    assert announced(controller.client) == SUPPORTED | INTER_BROKER
    with kcore.Broker() as alone, ControllerClient(alone) as client:
        assert announced(client.client) == SUPPORTED
        client.client.send(LeaderAndIsrRequest(), 0)
        assert client.client.is_closed()


def test_API_04_API_05_groups_move_with_the_leadership_of_their_partition(broker, controller):
    offsets = "__consumer_offsets"
    controller.update_metadata({offsets: {0: {}}}, with_broker_2(broker))

    def describe():
        with Client(broker) as client:
            return client.ask(DescribeGroupsRequest(groups=["g"]), 2).groups[0].error_code

    assert describe() == errors.NotCoordinator.code
    controller.leader_and_isr({offsets: [controller.state(0, leader_epoch=4)]})
    wait_until(lambda: describe() == 0)
    assert broker.group_coordinator.manager.partitions.owned == {0: 4}
    controller.leader_and_isr({offsets: [controller.state(0, leader=2, leader_epoch=5, isr=(2,), replicas=(2, 1))]})
    wait_until(lambda: describe() == errors.NotCoordinator.code)
    controller.leader_and_isr({offsets: [controller.state(0, leader_epoch=6)]})
    wait_until(lambda: describe() == 0)
    # A reassignment that takes the replica away sends nothing but StopReplica.
    controller.stop_replica(offsets, 0, 6, delete=True)
    wait_until(lambda: describe() == errors.NotCoordinator.code)
    controller.leader_and_isr({offsets: [controller.state(0, leader_epoch=7, is_new=True)]})
    wait_until(lambda: describe() == 0)
    # If that is lost with its controller, the next one's metadata say so.
    controller.update_metadata({offsets: {0: {"leader": 2, "replicas": [2], "isr": [2], "leader_epoch": 8}}})
    wait_until(lambda: describe() == errors.NotCoordinator.code)


def test_a_leader_resigns_when_newer_metadata_say_that_the_partition_is_not_assigned_to_it(broker, controller):
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    state = controller.state(0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    controller.leader_and_isr({"t": [state]})
    elsewhere = {"leader": 2, "replicas": [2], "isr": [2]}
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(broker.produce, "t", b"x", partition=0)
        wait_until(lambda: broker.log("t").log_end_offset == 1)
        # Metadata of the leader's own epoch, newer ones that leave the replica here, and those of an older controller.
        controller.update_metadata({"t": {0: {**elsewhere, "leader_epoch": 3}}})
        controller.update_metadata({"t": {0: {"leader": 2, "replicas": [2, 1], "isr": [2], "leader_epoch": 4}}})
        controller.controller_epoch -= 1
        controller.update_metadata({"t": {0: {**elsewhere, "leader_epoch": 5}}})
        controller.controller_epoch += 1
        assert partition(broker, T0).is_leader and not waiting.done()
        controller.update_metadata({"t": {0: {**elsewhere, "leader_epoch": 4}}})
        with pytest.raises(errors.NotLeaderOrFollower):
            waiting.result(60)
    assert not partition(broker, T0).is_leader
    # The log is there until somebody orders to delete it.
    assert broker.log("t").log_end_offset == 1
    assert codes(controller.stop_replica("t", 0, 4, delete=True)) == {("t", 0): 0}
    assert partition(broker, T0) is None


def test_a_follower_asks_no_more_when_newer_metadata_say_that_the_partition_is_not_assigned_to_it(broker, controller):
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    follower = controller.state(leader=2, leader_epoch=3, isr=(2, 1), replicas=(2, 1))
    controller.leader_and_isr({"t": [follower]})
    fetchers = broker.replica_manager.fetchers
    elsewhere = {"leader": 2, "replicas": [2], "isr": [2]}
    controller.update_metadata({"t": {0: {**elsewhere, "leader_epoch": 3}}}, with_broker_2(broker))
    assert list(fetchers.states()) == [T0]
    controller.update_metadata({"t": {0: {**elsewhere, "leader_epoch": 4}}}, with_broker_2(broker))
    assert not fetchers.states() and not fetchers.threads()
    # Assigned again, it goes on from where it was.
    again = controller.state(leader=2, leader_epoch=5, isr=(2,), replicas=(2, 1))
    assert codes(controller.leader_and_isr({"t": [again]})) == {(ZERO_UUID, 0): 0}
    assert list(fetchers.states()) == [T0]


def test_the_coordinator_is_the_leader_of_the_groups_partition(broker, controller):
    brokers = {1: {"PLAINTEXT": ("127.0.0.1", broker.port)}, 2: {"PLAINTEXT": ("two.example", 2002)}}
    find = fc.FindCoordinatorRequest(key="g")
    controller.update_metadata({"__consumer_offsets": {0: {"leader": 2}}}, brokers)
    answer = controller.client.ask(find, 1)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 2, "two.example", 2002)
    controller.update_metadata({"__consumer_offsets": {0: {"leader": 3}}}, brokers)
    assert controller.client.ask(find, 1).error_code == errors.CoordinatorNotAvailable.code


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


def test_the_controller_is_notified_when_a_log_can_be_made_that_a_full_disk_had_refused(tmp_path, store):
    time, path = MockTime(), znodes.LOG_DIR_EVENT_NOTIFICATION
    with kcore.Broker(tmp_path, store=store, time=time) as broker, ControllerClient(broker) as controller:
        controller.update_metadata({"t": {0: {}, 1: {}}}, topic_ids={"t": TOPIC_ID})
        file.fail_next("mkdir", errno.ENOSPC, under=str(tmp_path / "t-0"), times=-1)
        states = [controller.state(number) for number in range(2)]
        response = controller.leader_and_isr({"t": states}, topic_ids={"t": TOPIC_ID})
        assert codes(response) == {(TOPIC_ID, 0): errors.KafkaStorageError.code, (TOPIC_ID, 1): 0}
        controller.stop_replica("t", 0)  # what a controller does then
        time.sleep(30_000)
        store.ensure_path(path)
        assert store.children(path) == []
        file.clear_faults()
        time.sleep(30_000)
        wait_until(lambda: store.children(path))
        response = controller.leader_and_isr({"t": states}, topic_ids={"t": TOPIC_ID})
        assert codes(response) == {(TOPIC_ID, 0): 0, (TOPIC_ID, 1): errors.StaleControllerEpoch.code}
        assert broker.produce("t", b"x", partition=0).offset == 0


def test_no_log_is_made_of_a_replica_that_was_to_be_deleted_while_its_disk_was_full(tmp_path, store):
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        file.fail_next("mkdir", errno.ENOSPC, under=str(tmp_path / "t-0"), times=-1)
        controller.leader_and_isr({"t": [controller.state()]}, topic_ids={"t": TOPIC_ID})
        controller.stop_replica("t", 0, delete=True)  # the metadata without it are still to come
        file.clear_faults()
        broker.cluster_member.offline_replicas.retry()
        assert broker.replica_manager.log_manager.get_log(T0) is None


def test_a_broker_whose_disk_is_full_asks_for_another_leader_in_its_next_session_too(
    tmp_path, tree, store, monkeypatch
):
    monkeypatch.setattr(disk_full_refusals, "HAND_OVER_AFTER_MS", 0)
    path, reader = znodes.full_disk(1), MemoryStore(tree)
    with kcore.Broker(tmp_path, store=store) as broker, ControllerClient(broker) as controller:
        controller.update_metadata({"t": {0: {}}}, topic_ids={"t": TOPIC_ID})
        controller.leader_and_isr({"t": [controller.state()]}, topic_ids={"t": TOPIC_ID})
        file.fail_next("pwrite", errno.ENOSPC, under=str(tmp_path / "t-0"), times=-1)
        with pytest.raises(errors.KafkaStorageError):
            broker.produce("t", b"x", partition=0)
        wait_until(lambda: reader.get(path) is not None)
        owner = reader.get(path).ephemeral_owner
        tree.expire(store.session_id)
        wait_until(lambda: (node := reader.get(path)) is not None and node.ephemeral_owner != owner)
        assert znodes.decode_partitions(reader.get(path).data) == [T0]


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


@pytest.mark.parametrize("version", range(4))
def test_a_controlled_shutdown_is_answered_with_the_controllers_result(broker, controller, version):
    active = broker.cluster_member.controller
    client, epoch = controller.client, 7 if version >= 2 else -1
    response = client.ask(ControlledShutdownRequest(broker_id=1, broker_epoch=epoch), version)
    assert response.error_code == 0
    assert [(each.topic_name, each.partition_index) for each in response.remaining_partitions] == [("t", 0)]
    response = client.ask(ControlledShutdownRequest(broker_id=2), version)
    assert (response.error_code, response.remaining_partitions) == (errors.StaleBrokerEpoch.code, [])
    assert active.shutdowns == [(1, epoch), (2, -1)]


def test_a_broker_that_stops_does_not_follow_the_new_leaders_of_what_it_has_led(broker, controller, monkeypatch):
    """It would come into their ISRs again, and after its end each produce with acks=all would wait for it."""
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    controller.leader_and_isr({"t": [controller.state(isr=(1, 2), replicas=(1, 2))]})
    seen = []

    def hand_over(*args):
        state = controller.state(leader=2, leader_epoch=1, isr=(2,), replicas=(1, 2))
        controller.leader_and_isr({"t": [state]})
        seen.append((partition(broker).is_leader, list(broker.replica_manager.fetchers.states())))

    monkeypatch.setattr("kcore.server.cluster_membership.controlled_shutdown", hand_over)
    broker.stop()
    assert seen == [(False, [])]
