"""Topics that are created, changed and deleted through a member of a cluster."""

import threading
from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common import file
from kcore.metadata import znodes
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.controlled_shutdown import ControlledShutdownRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from tests.unit.server.client import Client
from tests.unit.server.controller_client import CONTROLLER_ID, ControllerClient
from tests.unit.server.member.conftest import DEADLINE_S, metadata, with_broker_2
from tests.unit.server.test_network_thread import refuse_to_wait
from tests.waiting import wait_until


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


def test_the_offsets_topic_waits_until_there_are_as_many_brokers_as_other_topics_have_replicas(store):
    """The brokers of a cluster start one after the other, and the first consumer may be faster."""
    name = "offsets.topic.replication.factor"
    with (
        kcore.Broker(store=store, default_replication_factor=3, offsets_topic_num_partitions=1) as broker,
        ControllerClient(broker) as controller,
        Client(broker) as client,
    ):
        resource = dc.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=[name])
        (described,) = client.ask(dc.DescribeConfigsRequest(resources=[resource]), 4).results
        assert [(config.name, config.value) for config in described.configs] == [(name, "3")]
        brokers = with_broker_2(broker)
        for known in ({1: brokers[1]}, brokers, {**brokers, 3: {"PLAINTEXT": ("127.0.0.1", 2)}}):
            controller.update_metadata(brokers=known)
            assert store.get(znodes.topic("__consumer_offsets")) is None
            response = client.ask(fc.FindCoordinatorRequest(key="g"), 3)
            assert response.error_code == errors.CoordinatorNotAvailable.code
        (replicas,) = znodes.TopicZNode.decode(store.get(znodes.topic("__consumer_offsets")).data).assignment.values()
        assert sorted(replicas) == [1, 2, 3]


def test_the_offsets_topic_is_created_through_the_store(broker, controller, store):
    controller.update_metadata()
    answer = controller.client.ask(fc.FindCoordinatorRequest(key="g"), 1)
    assert answer.error_code == errors.CoordinatorNotAvailable.code
    assert znodes.TopicZNode.decode(store.get(znodes.topic("__consumer_offsets")).data).assignment == {0: [1]}


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


def test_changes_of_topics_are_answered_when_the_metadata_have_them_or_their_time_is_up(broker, controller, store):
    broker.cluster_member.controller.is_active = True
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


def test_a_topic_whose_node_cannot_be_read_is_neither_free_nor_unknown(broker, controller, store):
    """A creation said that there is one, a deletion that there is none."""
    broker.cluster_member.controller.is_active = True
    controller.update_metadata()
    store.create_recursive(znodes.topic("broken"), b'{"version":1,"partit')
    topic = ct.CreatableTopic(name="broken", num_partitions=1, replication_factor=1)
    sentence = "Topic 'broken' exists, but its node /brokers/topics/broken in the metadata store cannot be read: "
    with Client(broker) as client:
        for is_dry_run in (False, True):
            (created,) = client.ask(ct.CreateTopicsRequest(topics=[topic], validate_only=is_dry_run), 5).topics
            assert created.error_code == errors.TopicAlreadyExists.code
            assert created.error_message.startswith(sentence)
        (deleted,) = client.ask(dt.DeleteTopicsRequest(topic_names=["broken"]), 5).responses
        assert deleted.error_code == errors.UnknownTopicOrPartition.code
        assert deleted.error_message.startswith(sentence)
        # As if the metadata had it from before.
        controller.update_metadata({"broken": {0: {}}})
        grown = cp.CreatePartitionsTopic(name="broken", count=2, assignments=None)
        (result,) = client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results
        assert result.error_code == errors.UnknownServerError.code
        assert result.error_message.startswith("The node /brokers/topics/broken in the metadata store cannot be read: ")
        controller.update_metadata({"broken": {0: {"leader": -2}}})
        store.create_recursive(znodes.delete_topic("broken"))
        (created,) = client.ask(ct.CreateTopicsRequest(topics=[topic]), 5).topics
        assert created.error_message == "Topic 'broken' is being deleted."


def test_a_topic_that_the_metadata_have_is_deleted_with_their_replicas_where_its_node_cannot_be_read(
    broker, controller, store, caplog
):
    """The controller may have left it out: it carried such an order out without the replicas, or not at all, and the
    client heard after its timeout that the topic is being deleted."""
    broker.cluster_member.controller.is_active = True
    topic_id = UUID(int=5)
    brokers = {number: {"PLAINTEXT": ("127.0.0.1", broker.port)} for number in (1, 2)}
    controller.update_metadata(
        {"t": {0: {"replicas": [1, 2]}, 1: {"replicas": [2, 1]}}}, brokers, topic_ids={"t": topic_id}
    )
    store.create_recursive(znodes.topic("t"), b"garb")
    with Client(broker) as client:
        (deleted,) = client.ask(dt.DeleteTopicsRequest(topic_names=["t"], timeout_ms=50), 5).responses
    assert deleted.error_code == errors.RequestTimedOut.code  # nobody carries it out here
    assert store.children(znodes.DELETE_TOPICS) == ["t"]
    stored = znodes.TopicZNode.decode(store.get(znodes.topic("t")).data)
    assert stored == znodes.TopicZNode({0: [1, 2], 1: [2, 1]}, topic_id)
    (line,) = [r.getMessage() for r in caplog.records if "/brokers/topics/t" in r.getMessage()]
    assert "cannot be read" in line and "b'garb'" in line


def test_a_topic_whose_replicas_are_all_on_dead_brokers_is_named_and_deleted(broker, controller, store):
    """The metadata do not have it: it has never had a leader.  A creation said that there is one, a deletion that there
    is none, and a trial of a creation that the name is free."""
    broker.cluster_member.controller.is_active = True
    controller.update_metadata()
    store.create_recursive(znodes.topic("t"), znodes.TopicZNode({0: [77], 1: [78, 77]}).encode())
    topic = ct.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    with Client(broker) as client:
        for is_dry_run in (False, True):
            (created,) = client.ask(ct.CreateTopicsRequest(topics=[topic], validate_only=is_dry_run), 5).topics
            assert created.error_code == errors.TopicAlreadyExists.code
            assert created.error_message == (
                "Topic 't' exists, but has no leader yet: its replicas are all on brokers 77, 78, not alive now."
            )
        (deleted,) = client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses
        assert (deleted.error_code, store.children(znodes.DELETE_TOPICS)) == (0, ["t"])
        (created,) = client.ask(ct.CreateTopicsRequest(topics=[topic]), 5).topics
        assert "that waits for brokers 77, 78, not alive now" in created.error_message
        (deleted,) = client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses
        assert deleted.error_code == errors.UnknownTopicOrPartition.code
        assert "that waits for brokers 77, 78, not alive now" in deleted.error_message


@pytest.mark.parametrize(("numbers", "missing"), [((0, 2), 1), ((1, 2), 0)])
def test_a_topic_with_a_gap_in_its_partitions_numbers_gets_no_more(broker, controller, store, numbers, missing):
    """The new ones would have had numbers that are there already, and their leaders were waited for."""
    broker.cluster_member.controller.is_active = True
    controller.update_metadata({"gap": {number: {} for number in numbers}})
    body = znodes.TopicZNode({key: [1] for key in numbers}).encode()
    store.create_recursive(znodes.topic("gap"), body)
    grown = cp.CreatePartitionsTopic(name="gap", count=4, assignments=None)
    with Client(broker) as client:
        (result,) = client.ask(cp.CreatePartitionsRequest(topics=[grown], timeout_ms=50), 1).results
    assert result.error_code == errors.InvalidPartitions.code
    assert f"has 2 partition(s), but none with the number {missing}" in result.error_message
    assert store.get(znodes.topic("gap")).data == body


def test_a_topic_that_is_being_deleted_gets_no_partitions(broker, controller, store, monkeypatch):
    broker.cluster_member.controller.is_active = True
    controller.update_metadata({"t": {0: {}}})
    store.create_recursive(znodes.topic("t"), znodes.TopicZNode({0: [1]}, UUID(int=1)).encode())
    store.create_recursive(znodes.delete_topic("t"))
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    (result,) = controller.client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results
    assert (result.error_code, result.error_message) == (
        errors.InvalidTopicException.code,
        "The topic is queued for deletion.",
    )
    assert znodes.TopicZNode.decode(store.get(znodes.topic("t")).data).assignment == {0: [1]}
