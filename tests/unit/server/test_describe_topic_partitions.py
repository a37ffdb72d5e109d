"""DescribeTopicPartitions: every partition once, page by page, and what Metadata says of it."""

import pytest

import kcore
from kcore.errors import (
    InvalidRequest,
    InvalidTopicException,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import describe_topic_partitions as dtp
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import request_class
from kcore.security.acl import AclOperation, ResourceType
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules
from tests.waiting import wait_until

TOPICS = {"a": 3, "b": 1, "c": 5, "d": 2}
ALL = [(name, number) for name, count in TOPICS.items() for number in range(count)]
SHOWN = ("partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "offline_replicas")


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules):
    with kcore.Broker(authorizer=rules) as broker:
        for name in reversed(TOPICS):
            broker.create_topic(name, partitions=TOPICS[name])
        yield broker


@pytest.fixture
def client(broker, rules):
    with Client(broker) as client:
        yield client
    rules.allowed = None


def page(client, *names, cursor=None, limit=2000):
    """(topics, next cursor), the cursors as (topic, partition)."""
    request = dtp.DescribeTopicPartitionsRequest(
        topics=[dtp.TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else dtp.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = client.ask(request, 0)
    following = answer.next_cursor
    return answer.topics, None if following is None else (following.topic_name, following.partition_index)


def partitions(topics):
    return [(topic.name, partition.partition_index) for topic in topics for partition in topic.partitions]


def test_ADM_01_topics_come_in_the_order_of_their_names_and_partitions_in_that_of_their_numbers(client):
    assert (partitions(page(client)[0]), page(client)[1]) == (ALL, None)
    assert partitions(page(client, "c", "a", "c")[0]) == [pair for pair in ALL if pair[0] in "ac"]


@pytest.mark.parametrize(("limit", "count"), [(3, 3), (0, 1), (-5, 1), (2000, 11), (2**31 - 1, 11)])
def test_ADM_01_a_page_has_at_most_the_partitions_of_its_limit_and_at_least_one(client, limit, count):
    assert partitions(page(client, limit=limit)[0]) == ALL[:count]


def test_ADM_01_the_broker_has_a_limit_too():
    with kcore.Broker(max_request_partition_size_limit=2) as broker, Client(broker) as client:
        broker.create_topic("t", partitions=3)
        topics, cursor = page(client)
        assert (partitions(topics), cursor) == ([("t", 0), ("t", 1)], ("t", 2))


@pytest.mark.parametrize("limit", range(1, 12))
@pytest.mark.parametrize("names", [(), ("d", "c", "a")], ids=["all", "named"])
def test_ADM_02_the_pages_together_have_each_partition_once(client, limit, names):
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        topics, cursor = page(client, *names, cursor=cursor, limit=limit)
        found += partitions(topics)
        pages += 1
    expected = [pair for pair in ALL if not names or pair[0] in names]
    assert (found, pages) == (expected, -(-len(expected) // limit))


def test_ADM_02_after_a_whole_topic_the_next_page_begins_with_the_next_one(client):
    assert page(client, limit=2)[1] == ("a", 2)
    assert page(client, limit=3)[1] == ("b", 0)
    assert page(client, "a", "zzz", limit=3)[1] == ("zzz", 0)


def test_ADM_03_a_page_begins_at_its_cursor(client):
    assert partitions(page(client, cursor=("c", 3))[0]) == [("c", 3), ("c", 4), ("d", 0), ("d", 1)]
    assert partitions(page(client, "a", "c", "d", cursor=("c", 3))[0]) == [("c", 3), ("c", 4), ("d", 0), ("d", 1)]
    assert partitions(page(client, cursor=("c", 5))[0]) == [("d", 0), ("d", 1)]


def test_ADM_03_when_the_topic_of_the_cursor_is_gone_the_page_begins_with_the_next_name(client):
    assert partitions(page(client, cursor=("bb", 4))[0]) == ALL[4:]
    topics, _ = page(client, "bb", "d", cursor=("bb", 4))
    assert [(topic.name, topic.error_code) for topic in topics] == [("bb", UnknownTopicOrPartition.code), ("d", 0)]


@pytest.mark.parametrize("cursor", [("c", -1), ("b", 0)], ids=["negative", "not among the topics"])
def test_ADM_03_a_cursor_that_cannot_be_is_an_invalid_request(client, cursor):
    topics, following = page(client, "a", "c", cursor=cursor)
    assert [(topic.name, topic.error_code, topic.partitions) for topic in topics] == [
        ("a", InvalidRequest.code, []),
        ("c", InvalidRequest.code, []),
    ]
    assert following is None


def test_ADM_04_a_topic_that_is_not_there_is_an_error_and_is_not_made(broker, client):
    topics, _ = page(client, "new", "a", "bad name")
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in topics] == [
        ("a", 0, 3),
        ("bad name", InvalidTopicException.code, 0),
        ("new", UnknownTopicOrPartition.code, 0),
    ]
    assert broker.metadata_cache.topic("new") is None


def test_ADM_04_a_topic_that_the_client_may_not_describe_is_refused_by_name_and_left_out_of_all(client, rules):
    rules.allowed = {(AclOperation.DESCRIBE, ResourceType.TOPIC, "c")}
    topics, _ = page(client, "a", "c", "new")
    denied = TopicAuthorizationFailed.code
    assert [(topic.name, topic.error_code, topic.topic_id.int > 0) for topic in topics] == [
        ("c", 0, True),
        ("a", denied, False),
        ("new", denied, False),
    ]
    # A page that is full at the last topic that the client may see is the last one.
    assert (partitions(page(client, limit=5)[0]), page(client, limit=5)[1]) == ([("c", n) for n in range(5)], None)


def metadata(client):
    request = m.MetadataRequest(topics=None, include_topic_authorized_operations=True)
    return sorted(client.ask(request, 12).topics, key=lambda topic: topic.name)


def described(topics):
    return [
        (topic.name, topic.topic_id, topic.is_internal, topic.topic_authorized_operations)
        + tuple(tuple(getattr(partition, name) for name in SHOWN) for partition in topic.partitions)
        for topic in topics
    ]


def test_ADM_05_operations_are_always_there_and_no_replica_is_merely_eligible(client, rules):
    rules.allowed = {(operation, ResourceType.TOPIC, "d") for operation in (AclOperation.DESCRIBE, AclOperation.READ)}
    (topic,) = page(client)[0]
    assert topic.topic_authorized_operations == 1 << AclOperation.DESCRIBE | 1 << AclOperation.READ
    # Kafka's admin client fails on null.
    assert [(p.eligible_leader_replicas, p.last_known_elr, p.error_code) for p in topic.partitions] == [([], [], 0)] * 2


@pytest.mark.parametrize(("release", "is_announced"), [("3.9", False), ("4.0", True), (None, True)])
def test_ADM_05_the_api_is_announced_as_by_the_release(release, is_announced):
    settings = {} if release is None else {"act_like": release}
    with kcore.Broker(**settings) as broker, Client(broker) as client:
        request = request_class(ApiKey.API_VERSIONS)(client_software_name="test", client_software_version="1")
        keys = {item.api_key for item in client.ask(request, 3).api_keys}
    assert (ApiKey.DESCRIBE_TOPIC_PARTITIONS in keys) == is_announced


def test_ADM_06_it_says_what_metadata_says_also_of_partitions_without_their_leader():
    with kcore.Cluster(3, offsets_topic_num_partitions=2) as cluster:
        cluster.create_topic("once", 3, replication_factor=1)
        cluster.create_topic("twice", 4, replication_factor=2)
        cluster.wait_until_in_sync("twice")
        client = Client(cluster.brokers[0])
        with client:
            client.ask(request_class(ApiKey.FIND_COORDINATOR)(key="g"), 0)
            cluster.kill(2)
            # Two updates, one for the partitions and one for the brokers that are alive.
            wait_until(lambda: [(p.replica_nodes, p.offline_replicas) for p in lost(metadata(client))] == [([2], [2])])
            wait_until(lambda: described(page(client)[0]) == described(metadata(client)))
            topics, _ = page(client)
        assert [topic.name for topic in topics if not topic.is_internal] == ["once", "twice"]
        assert [(p.replica_nodes, p.offline_replicas) for p in lost(topics)] == [([2], [2])]


def lost(topics):
    """The partitions of `once` without a leader."""
    return [p for topic in topics if topic.name == "once" for p in topic.partitions if p.leader_id == -1]
