"""One CreateTopics, CreatePartitions or Metadata creates at most 10,000 partitions, of all its topics together.

The sums are those of ReplicationControlManagerTest (testExcessiveNumberOfTopicsCannotBeCreated), Kafka 4.x.
"""

import pytest

import kcore
from kcore.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidTopicException,
    PolicyViolation,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import metadata as m
from kcore.security.acl import AclOperation, ResourceType
from kcore.server.topics.admin_manager import MAX_PARTITIONS_PER_REQUEST, AdminManager
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.waiting import wait_until

LIMIT = 10_000
TOO_MANY = "Excessively large number of partitions per request: 10001, at most 10000 are allowed."


@pytest.fixture
def broker():
    with kcore.Broker() as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def names(broker):
    return {topic.name for topic in broker.metadata_cache.snapshot.topics()}


def counted(name, count):
    return ct.CreatableTopic(name=name, num_partitions=count, replication_factor=1)


def assigned(name, count):
    assignments = [ct.CreatableReplicaAssignment(partition_index=n, broker_ids=[1]) for n in range(count)]
    return ct.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)


def create_topics(client, *topics, validate_only=True):
    """(name, error code, message) of each."""
    request = ct.CreateTopicsRequest(topics=list(topics), timeout_ms=60_000, validate_only=validate_only)
    return [(topic.name, topic.error_code, topic.error_message) for topic in client.ask(request, 5).topics]


def create_partitions(client, counts, validate_only=True):
    """counts: {name: count}, or pairs where a name is there twice."""
    pairs = counts.items() if isinstance(counts, dict) else counts
    topics = [cp.CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in pairs]
    request = cp.CreatePartitionsRequest(topics=topics, timeout_ms=60_000, validate_only=validate_only)
    return [(result.name, result.error_code, result.error_message) for result in client.ask(request, 1).results]


def test_the_limit_is_kafkas():
    assert MAX_PARTITIONS_PER_REQUEST == LIMIT


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(
    "topics",
    [
        [counted("a", 5000), counted("b", 5000), counted("c", 1)],
        # num.partitions is 1.
        [counted("a", LIMIT), counted("b", -1)],
        [assigned("a", 5000), assigned("b", 5001)],
        [assigned("a", LIMIT), counted("b", 1)],
        [counted("a", LIMIT + 1)],
        [assigned("a", LIMIT + 1)],
        # What is refused for another reason counts, but never negatively.
        [counted("no/topic", LIMIT), counted("b", 1), counted("c", -LIMIT)],
    ],
)
def test_a_creation_of_more_partitions_is_refused_as_a_whole(broker, client, topics, validate_only):
    answers = create_topics(client, *topics, validate_only=validate_only)
    assert answers == [(topic.name, PolicyViolation.code, TOO_MANY) for topic in topics]
    assert names(broker) == set()


@pytest.mark.parametrize(
    "topics",
    [
        [counted("a", 5000), counted("b", 5000)],
        [assigned("a", 5000), assigned("b", 4999), counted("c", -1)],
        [assigned("a", LIMIT)],
    ],
)
def test_as_many_as_the_limit_are_created(client, topics):
    assert [code for _, code, _ in create_topics(client, *topics)] == [0] * len(topics)


def test_a_topic_that_is_there_twice_does_not_count(client):
    twice = [counted("twice", LIMIT), counted("twice", LIMIT)]
    answers = create_topics(client, *twice, counted("a", LIMIT))
    assert [(name, code) for name, code, _ in answers] == [("twice", InvalidRequest.code), ("a", 0)]


@pytest.mark.parametrize(
    "operation, ask",
    [
        (AclOperation.CREATE, lambda client, a, b: create_topics(client, counted("a", a), counted("b", b))),
        (AclOperation.ALTER, lambda client, a, b: create_partitions(client, {"there-a": a, "there-b": b})),
    ],
    ids=["CreateTopics", "CreatePartitions"],
)
def test_a_topic_that_the_client_may_not_create_or_grow_does_not_count(operation, ask):
    allowed = {(operation, ResourceType.TOPIC, name) for name in ("a", "there-a")}
    with kcore.Broker(authorizer=Rules(allowed)) as broker, Client(broker) as client:
        for name in ("there-a", "there-b"):
            broker.create_topic(name)
        answers = ask(client, LIMIT, LIMIT)
        assert [code for _, code, _ in answers] == [0, TopicAuthorizationFailed.code]
        answers = ask(client, LIMIT + 2, 2)
        assert {code for _, code, _ in answers} == {PolicyViolation.code}


def test_a_topic_that_is_to_grow_twice_does_not_count(broker, client):
    for name in ("twice", "a"):
        broker.create_topic(name)
    answers = create_partitions(client, [("twice", LIMIT), ("twice", LIMIT), ("a", LIMIT + 1)])
    assert [(name, code) for name, code, _ in answers] == [("twice", InvalidRequest.code), ("a", 0)]


def test_growth_by_more_partitions_is_refused_as_a_whole(broker, client):
    for name in ("a", "b"):
        broker.create_topic(name, partitions=2)
    assert [code for _, code, _ in create_partitions(client, {"a": 5002, "b": 5002})] == [0, 0]
    for validate_only in (True, False):
        # "no" does not exist, so nothing would be added to it.
        answers = create_partitions(client, {"a": 5002, "no": 3, "b": 5003}, validate_only)
        assert answers == [(name, PolicyViolation.code, TOO_MANY) for name in ("a", "no", "b")]
    assert {len(topic.partitions) for topic in broker.metadata_cache.snapshot.topics()} == {2}


def test_a_topic_that_would_shrink_makes_no_room_for_another(broker, client):
    broker.create_topic("large", partitions=3)
    broker.create_topic("b")
    answers = create_partitions(client, {"large": 1, "b": LIMIT + 1})
    assert [(name, code) for name, code, _ in answers] == [("large", InvalidPartitions.code), ("b", 0)]
    answers = create_partitions(client, {"large": 1, "b": LIMIT + 2})
    assert answers == [(name, PolicyViolation.code, TOO_MANY) for name in ("large", "b")]


def test_calls_in_the_brokers_process_have_the_limit_too(broker):
    with pytest.raises(PolicyViolation, match="10001, at most 10000"):
        broker.create_topic("a", partitions=LIMIT + 1)
    with pytest.raises(PolicyViolation, match="10001, at most 10000"):
        broker.admin_manager.create_topic("a", assignments={number: [1] for number in range(LIMIT + 1)})
    assert names(broker) == set()


def metadata_request(*names):
    return m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in names])


def ask_metadata(client, *names):
    """{name: (error code, number of partitions)}"""
    response = client.ask(metadata_request(*names), 5)
    return {topic.name: (topic.error_code, len(topic.partitions)) for topic in response.topics}


def test_a_metadata_request_that_would_create_more_partitions_creates_none_and_describes_what_is_there():
    with kcore.Broker(num_partitions=5000) as broker, Client(broker) as client:
        broker.create_topic("there", partitions=2)
        assert ask_metadata(client, "a", "there", "b", "no/topic", "c", "__cluster_metadata") == {
            **dict.fromkeys("abc", (PolicyViolation.code, 0)),
            "there": (0, 2),
            "no/topic": (InvalidTopicException.code, 0),
            "__cluster_metadata": (UnknownTopicOrPartition.code, 0),
        }
        assert names(broker) == {"there"}


def test_a_metadata_request_creates_as_many_partitions_as_the_limit_and_counts_only_what_it_creates(monkeypatch):
    monkeypatch.setattr("kcore.server.topics.admin_manager.MAX_PARTITIONS_PER_REQUEST", 13)
    with kcore.Broker(num_partitions=5, offsets_topic_num_partitions=3) as broker, Client(broker) as client:
        broker.create_topic("there", partitions=13)
        asked = ["a", "b", "__consumer_offsets", "a", "there", "no/topic", "__cluster_metadata"]
        answers = ask_metadata(client, *asked)
        assert {name: count for name, (code, count) in answers.items() if code == 0} == {
            "a": 5,
            "b": 5,
            "__consumer_offsets": 3,
            "there": 13,
        }
        assert ask_metadata(client, "c", "d", "e")["c"] == (PolicyViolation.code, 0)


def test_topics_that_a_client_may_not_create_do_not_count_toward_its_metadata_request(monkeypatch):
    monkeypatch.setattr("kcore.server.topics.admin_manager.MAX_PARTITIONS_PER_REQUEST", 1)
    allowed = {(AclOperation.DESCRIBE, ResourceType.TOPIC, name) for name in "ab"}
    allowed.add((AclOperation.CREATE, ResourceType.TOPIC, "b"))
    with kcore.Broker(authorizer=Rules(allowed)) as broker, Client(broker) as client:
        answers = ask_metadata(client, "a", "b")
        assert answers == {"a": (TopicAuthorizationFailed.code, 0), "b": (0, 1)}


def test_a_metadata_request_creates_no_more_topics_once_its_client_has_hung_up(broker, monkeypatch):
    create = AdminManager.auto_create_topic

    def create_and_hang_up(self, name):
        if name == "b":
            hasty.sock.close()
            wait_until(lambda: broker.running.server.connection_count == 0, "the broker has not noticed")
        return create(self, name)

    monkeypatch.setattr(AdminManager, "auto_create_topic", create_and_hang_up)
    hasty = Client(broker)
    hasty.send(metadata_request("a", "b", "c", "d"), 5)
    wait_until(lambda: "b" in names(broker), "nothing is created")
    with Client(broker) as other:  # topics are created by one thread, in the order of the requests
        assert ask_metadata(other, "e") == {"e": (0, 1)}
    assert names(broker) == {"a", "b", "e"}
