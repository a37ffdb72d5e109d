"""One CreateTopics or CreatePartitions creates at most 10,000 partitions, of all its topics together.

The sums are those of ReplicationControlManagerTest (testExcessiveNumberOfTopicsCannotBeCreated), Kafka 4.x.
"""

import pytest

import kcore
from kcore.errors import InvalidPartitions, InvalidRequest, PolicyViolation, TopicAuthorizationFailed
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.server.acl import AclOperation, ResourceType
from kcore.server.admin_manager import MAX_PARTITIONS_PER_REQUEST
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules

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
