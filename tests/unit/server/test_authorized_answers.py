"""What a client is answered that may do something and not everything: Kafka's answers, resource by resource."""

from uuid import UUID

import pytest

import kcore
from kcore.errors import (
    NONE,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import offset_delete as od
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import request_class
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.list_groups import ListGroupsRequest
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tests.batches import batch
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules, error_codes
from tests.waiting import wait_until

READ, WRITE, CREATE, DELETE, ALTER = (AclOperation(code) for code in range(3, 8))
DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS = (AclOperation(code) for code in range(8, 12))
TOPIC_DENIED, GROUP_DENIED = TopicAuthorizationFailed.code, GroupAuthorizationFailed.code
UNKNOWN_ID = UUID(int=99)


def cluster(operation):
    return (operation, ResourceType.CLUSTER, CLUSTER_NAME)


def topic(operation, name):
    return (operation, ResourceType.TOPIC, name)


def group(operation, name):
    return (operation, ResourceType.GROUP, name)


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules):
    with kcore.Broker(authorizer=rules, offsets_topic_num_partitions=1) as broker:
        broker.create_topic("a")
        broker.create_topic("b")
        with Client(broker) as client:
            client.ask(request_class(ApiKey.FIND_COORDINATOR)(key="g"), 0)
            for group_id in ("g", "h"):
                assert error_codes(client.ask(commit("a", "b", group_id=group_id), 8)) == set()
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


@pytest.fixture(autouse=True)
def only(rules, broker):
    """only(permission, ...): from now on to the end of the test nothing else is allowed."""
    yield lambda *permissions: setattr(rules, "allowed", set(permissions))
    rules.allowed = None


def commit(*names, group_id="g", offset=5):
    partition = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topics = [oc.OffsetCommitRequestTopic(name=name, partitions=[partition]) for name in names]
    return oc.OffsetCommitRequest(group_id=group_id, topics=topics)


def versions(api_key, least=0):
    return range(max(least, SUPPORTED[api_key][0]), SUPPORTED[api_key][1] + 1)


# -- Produce


def produce(broker, version, *names, acks=1):
    topics = []
    for name in names:
        by = {"name": name} if version < 13 else {"topic_id": broker.metadata_cache.topic_id(name) or UNKNOWN_ID}
        topics.append(p.TopicProduceData(**by, partition_data=[p.PartitionProduceData(index=0, records=batch(b"x"))]))
    return p.ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE, 3))
def test_a_produce_writes_to_the_topics_that_it_may_write_to(broker, client, only, version):
    only(topic(WRITE, "b"), topic(READ, "a"))
    before = broker.log("a").log_end_offset, broker.log("b").log_end_offset
    if version < 13:
        response = client.ask(produce(broker, version, "a", "b", "no-such-topic"), version)
        # Whether the last one exists is not said.
        expected = [TOPIC_DENIED, NONE, TOPIC_DENIED]
    else:
        request = produce(broker, version, "a", "b")
        request.topic_data.append(p.TopicProduceData(topic_id=UNKNOWN_ID, partition_data=[]))
        request.topic_data[-1].partition_data = [p.PartitionProduceData(index=0, records=batch(b"x"))]
        response = client.ask(request, version)
        expected = [TOPIC_DENIED, NONE, UnknownTopicId.code]
    assert [t.partition_responses[0].error_code for t in response.responses] == expected
    assert (broker.log("a").log_end_offset, broker.log("b").log_end_offset) == (before[0], before[1] + 1)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE, 3))
@pytest.mark.parametrize("names", [["a"], ["b", "a"]])
def test_a_denied_produce_without_an_answer_ends_the_connection(broker, client, only, version, names):
    only(topic(WRITE, "b"))
    client.send(produce(broker, version, *names, acks=0), version)
    assert client.is_closed()


def test_what_an_authorizer_gives_instead_of_a_result_denies_and_is_named_once(
    broker, client, rules, monkeypatch, caplog
):
    monkeypatch.setattr(rules, "authorize", lambda context, actions: [True] * len(actions))
    for _ in range(3):
        assert error_codes(client.ask(produce(broker, 9, "a", "b"), 9)) == {TOPIC_DENIED}
    (line,) = [record.getMessage() for record in caplog.records if "AuthorizationResult" in record.getMessage()]
    assert line == "Rules.authorize() gives True, which is no AuthorizationResult: it counts as DENIED"


def test_an_authorizer_that_fails_refuses_the_request(broker, client, rules, monkeypatch):
    before = broker.log("a").log_end_offset
    for answer in ([], [True], RuntimeError("no")):

        def authorize(request_context, actions, answer=answer):
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(rules, "authorize", authorize)
        codes = error_codes(client.ask(produce(broker, 9, "a"), 9))
        assert codes == ({TOPIC_DENIED} if answer == [True] else {UnknownServerError.code})
    assert broker.log("a").log_end_offset == before


# -- Metadata


def metadata(client, version, *names, create=True, ids=(), **fields):
    topics = [m.MetadataRequestTopic(name=name) for name in names]
    topics += [m.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids]
    request = m.MetadataRequest(topics=topics or None, allow_auto_topic_creation=create, **fields)
    return client.ask(request, version)


@pytest.mark.parametrize("version", versions(ApiKey.METADATA, 1))
def test_metadata_of_all_topics_leave_out_what_the_client_may_not_describe(client, only, version):
    only(topic(DESCRIBE, "b"))
    response = metadata(client, version)
    assert [(t.name, t.error_code) for t in response.topics] == [("b", NONE)]
    assert len(response.brokers) == 1


@pytest.mark.parametrize("version", versions(ApiKey.METADATA, 1))
def test_metadata_of_named_topics_do_not_say_whether_a_denied_one_exists(broker, client, only, version):
    only(topic(DESCRIBE, "b"))
    response = metadata(client, version, "a", "b", "no-such-topic", "bad name")
    assert [(t.name, t.error_code, len(t.partitions)) for t in response.topics] == [
        ("a", TOPIC_DENIED, 0),
        ("b", NONE, 1),
        ("no-such-topic", TOPIC_DENIED, 0),
        ("bad name", TOPIC_DENIED, 0),
    ]
    assert {t.topic_id for t in response.topics if t.error_code} == {UUID(int=0)}
    assert broker.metadata_cache.topic("no-such-topic") is None


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_of_ids_do_not_say_the_name_of_a_denied_topic(broker, client, only, version):
    only(topic(DESCRIBE, "b"))
    a, b = broker.metadata_cache.topic_id("a"), broker.metadata_cache.topic_id("b")
    response = metadata(client, version, ids=(a, b, UNKNOWN_ID))
    assert [(t.topic_id, t.name, t.error_code) for t in response.topics] == [
        (a, None, TOPIC_DENIED),
        (b, "b", NONE),
        (UNKNOWN_ID, None, UnknownTopicId.code),
    ]


def test_metadata_create_a_missing_topic_only_with_the_permission(broker, client, only):
    only(topic(DESCRIBE, "auto"))
    assert error_codes(metadata(client, 9, "auto")) == {TOPIC_DENIED}
    assert broker.metadata_cache.topic("auto") is None
    assert error_codes(metadata(client, 9, "auto", create=False)) == {UnknownTopicOrPartition.code}
    for permission in (topic(CREATE, "auto"), cluster(CREATE)):
        only(topic(DESCRIBE, "auto"), permission)
        assert error_codes(metadata(client, 9, "auto")) == set()
        broker.delete_topic("auto")


# -- what a client may do


def bits(*operations):
    return sum(1 << operation for operation in operations)


def test_operations_of_topics_groups_and_the_cluster_are_those_that_the_client_may_do(client, only):
    only(
        *(topic(operation, "b") for operation in (DESCRIBE, READ, ALTER_CONFIGS)),
        *(group(operation, "g") for operation in (DESCRIBE, DELETE)),
        *(cluster(operation) for operation in (DESCRIBE, CLUSTER_ACTION)),
    )
    response = metadata(
        client, 9, "a", "b", include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    assert [t.topic_authorized_operations for t in response.topics] == [-(2**31), bits(DESCRIBE, READ, ALTER_CONFIGS)]
    assert response.cluster_authorized_operations == bits(DESCRIBE, CLUSTER_ACTION)
    described = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    assert described.cluster_authorized_operations == bits(DESCRIBE, CLUSTER_ACTION)
    groups = client.ask(DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True), 4).groups
    assert [(g.group_id, g.error_code, g.authorized_operations) for g in groups] == [
        ("g", NONE, bits(DESCRIBE, DELETE)),
        ("h", GROUP_DENIED, -(2**31)),
    ]
    only(cluster(CLUSTER_ACTION))
    assert client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 1).brokers
    response = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    assert response.cluster_authorized_operations == 0


def test_without_an_authorizer_a_client_may_do_everything():
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("t")
        fields = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        response = metadata(client, 9, "t", **fields)
        assert response.topics[0].topic_authorized_operations == bits(*map(AclOperation, (3, 4, 5, 6, 7, 8, 10, 11)))
        assert response.cluster_authorized_operations == bits(*map(AclOperation, (5, 7, 8, 9, 10, 11, 12)))


# -- topics and their settings


def test_topics_are_created_with_the_permission_for_each_of_them(broker, client, only):
    only(topic(CREATE, "new"), topic(CREATE, "new-2"), topic(DESCRIBE_CONFIGS, "new-2"))
    topics = [ct.CreatableTopic(name=n, num_partitions=3, replication_factor=1) for n in ("new", "other", "new-2")]
    response = client.ask(ct.CreateTopicsRequest(topics=topics), 7)
    new, _, described = response.topics
    assert [(t.name, t.error_code) for t in response.topics] == [("new", 0), ("other", TOPIC_DENIED), ("new-2", 0)]
    assert broker.metadata_cache.topic("other") is None
    assert len(broker.metadata_cache.topic("new").partitions) == 3
    # The settings of a topic are another permission.
    assert (new.topic_config_error_code, new.num_partitions, new.replication_factor, new.configs) == (
        *(TOPIC_DENIED, -1, -1),
        None,
    )
    assert (described.topic_config_error_code, described.num_partitions, described.replication_factor) == (0, 3, 1)
    assert described.configs
    for name in ("new", "new-2"):
        broker.delete_topic(name)


def test_topics_are_deleted_by_id_without_their_names_being_said(broker, client, only):
    ids = {name: broker.create_topic(name) for name in ("x", "y", "z")}
    only(topic(DESCRIBE, "y"), topic(DESCRIBE, "z"), topic(DELETE, "z"))
    topics = [dt.DeleteTopicState(topic_id=topic_id, name=None) for topic_id in (*ids.values(), UNKNOWN_ID)]
    response = client.ask(dt.DeleteTopicsRequest(topics=topics, timeout_ms=60_000), 6)
    assert [(t.name, t.topic_id, t.error_code) for t in response.responses] == [
        (None, ids["x"], TOPIC_DENIED),
        ("y", ids["y"], TOPIC_DENIED),
        ("z", ids["z"], NONE),
        (None, UNKNOWN_ID, UnknownTopicId.code),
    ]
    assert [broker.metadata_cache.topic(name) is not None for name in ids] == [True, True, False]
    for name in ("x", "y"):
        broker.delete_topic(name)


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_topics_are_deleted_by_name_with_the_permission_for_each_of_them(broker, client, only, version):
    for name in ("x", "z"):
        broker.create_topic(name)
    only(topic(DELETE, "z"))
    names = ["x", "z", "no-such-topic"]
    by = {"topics": [dt.DeleteTopicState(name=name) for name in names]} if version >= 6 else {"topic_names": names}
    response = client.ask(dt.DeleteTopicsRequest(**by, timeout_ms=60_000), version)
    assert [t.error_code for t in response.responses] == [TOPIC_DENIED, NONE, TOPIC_DENIED]
    assert broker.metadata_cache.topic("z") is None
    broker.delete_topic("x")


def test_settings_of_brokers_belong_to_the_cluster_and_those_of_topics_to_the_topic(broker, client, only):
    describe = dc.DescribeConfigsRequest(
        resources=[
            dc.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in ((2, "a"), (2, "b"), (4, "1"))
        ]
    )
    setting = iac.AlterableConfig(name="log.retention.ms", config_operation=0, value="7")
    alter = iac.IncrementalAlterConfigsRequest(
        resources=[
            iac.AlterConfigsResource(resource_type=4, resource_name="1", configs=[setting]),
            iac.AlterConfigsResource(resource_type=2, resource_name="b", configs=[]),
        ]
    )
    only(topic(DESCRIBE_CONFIGS, "b"), topic(ALTER_CONFIGS, "b"))
    denied = ClusterAuthorizationFailed.code
    assert [r.error_code for r in client.ask(describe, 4).results] == [TOPIC_DENIED, NONE, denied]
    assert [r.error_code for r in client.ask(alter, 1).responses] == [denied, NONE]
    assert broker.config["log.retention.ms"] is None
    only(cluster(DESCRIBE_CONFIGS), cluster(ALTER_CONFIGS))
    assert [r.error_code for r in client.ask(describe, 4).results] == [TOPIC_DENIED, TOPIC_DENIED, NONE]


# -- groups


def test_list_groups_has_the_groups_that_the_client_may_describe(client, only):
    for permissions, expected in (
        ([group(DESCRIBE, "h")], {"h"}),
        ([cluster(DESCRIBE)], {"g", "h"}),
        ([], set()),
    ):
        only(*permissions)
        response = client.ask(ListGroupsRequest(), 4)
        assert (response.error_code, {g.group_id for g in response.groups}) == (NONE, expected)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_a_commit_keeps_the_offsets_of_the_topics_that_the_group_may_read(broker, client, only, version):
    only(group(READ, "g"), topic(READ, "b"))
    offset = 100 + version
    request = commit("a", "b", offset=offset)
    if version >= 10:
        for asked in request.topics:
            asked.topic_id = broker.metadata_cache.topic_id(asked.name)
    response = client.ask(request, version)
    assert [t.partitions[0].error_code for t in response.topics] == [TOPIC_DENIED, NONE]
    offsets = broker.group_coordinator.offsets.fetch("g", None)
    assert {tp.topic: result.offset for tp, result in offsets.items()} == {"a": 5, "b": offset}
    only(topic(READ, "b"))
    assert error_codes(client.ask(request, version)) == {GROUP_DENIED}


def fetched(response, version):
    topics = response.topics if version < 8 else response.groups[0].topics
    return [(t.partitions[0].committed_offset, t.partitions[0].error_code) for t in topics]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH))
def test_offsets_of_topics_that_the_client_may_not_describe_are_not_said(broker, client, only, version):
    if version < 8:
        topics = [of.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in ("a", "b")]
        request = of.OffsetFetchRequest(group_id="h", topics=topics)
    else:
        topics = [
            of.OffsetFetchRequestTopics(name=name, topic_id=broker.metadata_cache.topic_id(name), partition_indexes=[0])
            for name in ("a", "b")
        ]
        request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id="h", topics=topics)])
    only(group(DESCRIBE, "h"), topic(DESCRIBE, "b"))
    assert fetched(client.ask(request, version), version) == [(-1, TOPIC_DENIED), (5, NONE)]
    only(topic(DESCRIBE, "a"), topic(DESCRIBE, "b"))
    assert error_codes(client.ask(request, version)) == {GROUP_DENIED}
    if version >= 2:  # all offsets of the group
        only(group(DESCRIBE, "h"), topic(DESCRIBE, "b"))
        if version < 8:
            request.topics = None
        for asked in request.groups:
            asked.topics = None
        assert fetched(client.ask(request, version), version) == [(5, NONE)]


def test_offsets_are_deleted_of_the_topics_that_the_client_may_read(broker, client, only):
    client.ask(commit("a", "b", group_id="d"), 8)
    only(group(DELETE, "d"), topic(READ, "b"))
    partitions = [od.OffsetDeleteRequestPartition(partition_index=0)]
    topics = [od.OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in ("a", "b")]
    response = client.ask(od.OffsetDeleteRequest(group_id="d", topics=topics), 0)
    assert [t.partitions[0].error_code for t in response.topics] == [TOPIC_DENIED, NONE]
    assert [tp.topic for tp in broker.group_coordinator.offsets.fetch("d", None)] == ["a"]
    broker.group_coordinator.admin.delete_groups(["d"], lambda codes: None)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
def test_log_directories_are_not_said_in_any_version(client, only, version):
    only()
    response = client.ask(request_class(ApiKey.DESCRIBE_LOG_DIRS)(topics=None), version)
    # Below version 3 Kafka's clients take an answer without directories for this error.
    assert response.results == []
    assert version < 3 or response.error_code == ClusterAuthorizationFailed.code


# -- ConsumerGroupHeartbeat, ConsumerGroupDescribe


def test_CG_02_CG_49_a_member_needs_describe_on_all_topics_that_it_names_and_who_describes_the_group_too(client, only):
    joining = {"group_id": "new", "member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    heartbeat = request_class(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    describe = request_class(ApiKey.CONSUMER_GROUP_DESCRIBE)(group_ids=["new"])
    only(group(READ, "new"), group(DESCRIBE, "new"), topic(DESCRIBE, "a"))
    refused = client.ask(heartbeat(**joining, subscribed_topic_names=["a", "b"]), 1)
    assert refused.error_code == TopicAuthorizationFailed.code
    assert error_codes(client.ask(describe, 1)) == {GroupIdNotFound.code}
    joined = client.ask(heartbeat(**joining, subscribed_topic_names=["a"]), 1)
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    (described,) = client.ask(describe, 1).groups
    assert [member.member_id for member in described.members] == ["m"]
    only(group(DESCRIBE, "new"))
    (denied,) = client.ask(describe, 1).groups
    assert (denied.error_code, denied.members) == (TopicAuthorizationFailed.code, [])


def test_CG_32_a_regular_expression_does_not_show_topics_that_the_member_may_not_describe(client, only):
    joining = {"group_id": "by pattern", "member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    heartbeat = request_class(ApiKey.CONSUMER_GROUP_HEARTBEAT)
    describe = request_class(ApiKey.CONSUMER_GROUP_DESCRIBE)(group_ids=["by pattern"])
    only(group(READ, "by pattern"), group(DESCRIBE, "by pattern"), topic(DESCRIBE, "a"))
    assert client.ask(heartbeat(**joining, subscribed_topic_regex="a|b"), 1).error_code == 0
    wait_until(lambda: client.ask(describe, 1).groups[0].group_epoch == 2)
    beat = {"group_id": "by pattern", "member_id": "m", "member_epoch": 1}
    (assigned,) = client.ask(heartbeat(**beat), 1).assignment.topic_partitions
    (described,) = client.ask(describe, 1).groups
    (member,) = described.members
    assert [topic.topic_name for topic in member.assignment.topic_partitions] == ["a"]
    assert assigned.topic_id == member.assignment.topic_partitions[0].topic_id


def test_CG_53_settings_of_a_group_need_permissions_on_the_group(client, only):
    change = iac.AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value="50000")
    resource = iac.AlterConfigsResource(resource_type=32, resource_name="g", configs=[change])
    alter = iac.IncrementalAlterConfigsRequest(resources=[resource])
    asked = dc.DescribeConfigsResource(resource_type=32, resource_name="g", configuration_keys=None)
    describe = dc.DescribeConfigsRequest(resources=[asked])
    only(cluster(ALTER_CONFIGS), cluster(DESCRIBE_CONFIGS), group(DESCRIBE_CONFIGS, "other"))
    assert client.ask(alter, 1).responses[0].error_code == GroupAuthorizationFailed.code
    assert client.ask(describe, 4).results[0].error_code == GroupAuthorizationFailed.code
    only(group(ALTER_CONFIGS, "g"), group(DESCRIBE_CONFIGS, "g"))
    assert client.ask(alter, 1).responses[0].error_code == 0
    values = [config.value for config in client.ask(describe, 4).results[0].configs]
    assert values == ["50000", "5000", "0"]
