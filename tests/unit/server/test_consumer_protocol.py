"""Requests of the consumer group protocol of KIP-848, one by one."""

import uuid

import pytest

import kcore
from kcore.errors import (
    GroupIdNotFound,
    InvalidRegularExpression,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicId,
)
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kcore.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)
from kcore.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from kcore.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcore.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kcore.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcore.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.unit.server.client import Client
from tests.waiting import wait_until

GROUPS_SUPPORTED, GROUPS = ("group.version", 0, 1), ("group.version", 1, 1)
JOIN = {"member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": ["t"]}


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker(offsets_topic_num_partitions=1) as broker:
        broker.create_topic("t", partitions=2)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        wait_until(lambda: client.ask(FindCoordinatorRequest(key="g"), 3).error_code == 0)
        yield client


@pytest.mark.parametrize(
    ("release", "version", "supported", "finalized"),
    [
        (None, 4, [GROUPS_SUPPORTED, ("transaction.version", 0, 2)], [GROUPS, ("transaction.version", 2, 2)]),
        (None, 3, [], [GROUPS, ("transaction.version", 2, 2)]),
        ("4.0", 4, [GROUPS_SUPPORTED, ("transaction.version", 0, 2)], [GROUPS, ("transaction.version", 2, 2)]),
        ("3.9", 4, [], []),
        ("2.8", 4, [], []),
    ],
)
def test_CG_01_TXN_23_brokers_like_those_of_4_0_announce_the_features(release, version, supported, finalized):
    with kcore.Broker(act_like=release) as broker, Client(broker) as client:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = client.ask(request, version if release != "2.8" else 3)
    assert [(f.name, f.min_version, f.max_version) for f in answer.supported_features] == supported
    assert [(f.name, f.min_version_level, f.max_version_level) for f in answer.finalized_features] == finalized
    assert (answer.finalized_features_epoch >= 0) == bool(finalized)


def beat(client, group_id, version=1, **fields):
    return client.ask(ConsumerGroupHeartbeatRequest(group_id=group_id, **fields), version)


def describe(client, group_id, version=1):
    (group,) = client.ask(
        ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True), version
    ).groups
    return group


@pytest.mark.parametrize(
    "changed",
    [
        {"group_id": " "},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [ConsumerGroupHeartbeatTopicPartitions(partitions=[0])]},
        {"subscribed_topic_names": None},
    ],
    ids=str,
)
def test_CG_03_CG_04_a_request_that_says_too_little_or_the_wrong_thing_is_invalid(client, changed):
    answer = beat(client, **{"group_id": "invalid", **JOIN, **changed})
    assert answer.error_code == InvalidRequest.code and answer.error_message
    assert describe(client, "invalid").error_code == GroupIdNotFound.code


def test_CG_05_CG_14_version_0_gets_a_member_id_and_each_answer_the_heartbeat_interval(client):
    joined = beat(client, "ids", 0, **{**JOIN, "member_id": ""})
    assert (joined.error_code, joined.member_epoch, joined.heartbeat_interval_ms) == (0, 1, 5000)
    again = beat(client, "ids", 0, member_id=joined.member_id, member_epoch=1)
    assert (again.error_code, again.heartbeat_interval_ms, again.assignment) == (0, 5000, None)
    assert beat(client, "ids", 0, member_id="", member_epoch=1).error_code == InvalidRequest.code


def test_CG_11_a_leave_is_answered_with_its_epoch_and_leaves_the_group_empty(client):
    beat(client, "leaves", **JOIN)
    assert beat(client, "leaves", member_id="m", member_epoch=-1).member_epoch == -1
    group = describe(client, "leaves")
    assert (group.group_state, group.group_epoch, group.members) == ("Empty", 2, [])


PATTERN_JOIN = {**JOIN, "subscribed_topic_names": None}


def test_CG_31_CG_33_a_member_gets_the_topics_that_its_regular_expression_matches(client):
    refused = beat(client, "regex", **PATTERN_JOIN, subscribed_topic_regex="(")
    assert (refused.error_code, describe(client, "regex").error_code) == (
        InvalidRegularExpression.code,
        GroupIdNotFound.code,
    )
    joined = beat(client, "regex", **PATTERN_JOIN, subscribed_topic_regex="[st]")
    assert (joined.error_code, joined.assignment.topic_partitions) == (0, [])
    wait_until(lambda: describe(client, "regex").group_epoch == 2)
    answer = beat(client, "regex", member_id="m", member_epoch=1)
    assert [topic.partitions for topic in answer.assignment.topic_partitions] == [[0, 1]]
    (member,) = describe(client, "regex").members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ([], "[st]")


def test_CG_49_a_group_is_described_with_assignments_and_targets_and_others_are_not_found(client):
    beat(client, "described", **JOIN, instance_id="i", rack_id="r")
    beat(client, "described", **{**JOIN, "member_id": "n"})
    group = describe(client, "described")
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        *(0, "Reconciling", 2, 2),
        "uniform",
    )
    assert group.authorized_operations > 0
    m, n = group.members
    assert (m.member_id, m.instance_id, m.rack_id, m.member_epoch, m.client_id) == ("m", "i", "r", 1, "test")
    assert (m.client_host, m.subscribed_topic_names, m.member_type) == ("/127.0.0.1", ["t"], 1)

    def numbers(assignment):
        return [(topic.topic_name, topic.partitions) for topic in assignment.topic_partitions]

    assert (numbers(m.assignment), numbers(m.target_assignment)) == ([("t", [0, 1])], [("t", [0])])
    assert (numbers(n.assignment), numbers(n.target_assignment)) == ([], [("t", [1])])
    assert describe(client, "none").error_code == GroupIdNotFound.code
    assert describe(client, "described", 0).members[0].member_type == -1


def test_CG_50_the_classic_description_is_dead_and_from_version_6_on_not_found(client):
    beat(client, "described as classic", **JOIN)
    for version, expected in ((5, 0), (6, GroupIdNotFound.code)):
        (group,) = client.ask(DescribeGroupsRequest(groups=["described as classic"]), version).groups
        assert (group.error_code, group.group_state) == (expected, "Dead")


def test_CG_30_a_topic_that_is_created_and_grows_reaches_the_member_with_its_next_heartbeat(broker, client):
    assert beat(client, "grows", **{**JOIN, "subscribed_topic_names": ["late"]}).assignment.topic_partitions == []
    broker.create_topic("late", partitions=1)
    for epoch, partitions in ((1, [0]), (2, [0, 1, 2])):
        answer = beat(client, "grows", member_id="m", member_epoch=epoch)
        assert [topic.partitions for topic in answer.assignment.topic_partitions] == [partitions]
        topic = CreatePartitionsTopic(name="late", count=3, assignments=None)
        client.ask(CreatePartitionsRequest(topics=[topic], timeout_ms=60_000), 2)
    broker.delete_topic("late")
    assert beat(client, "grows", member_id="m", member_epoch=3).assignment is not None


def test_CG_12_a_heartbeat_with_only_group_member_and_epoch_changes_nothing(client):
    beat(client, "brief", **JOIN, instance_id="i", rack_id="r", server_assignor="range")
    before = describe(client, "brief")
    answer = beat(client, "brief", member_id="m", member_epoch=1)
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 1, None)
    after = describe(client, "brief")
    assert (after.members, after.assignor_name, after.group_epoch) == (before.members, "range", 1)


def test_CG_29_the_rack_of_a_member_is_stored_and_described_and_moves_nothing(broker, client):
    beat(client, "racks", **JOIN, rack_id="r")
    beat(client, "racks", **{**JOIN, "member_id": "n"}, rack_id="s")
    beat(client, "racks", member_id="m", member_epoch=1, rack_id="s")
    m, n = describe(client, "racks").members
    assert (m.rack_id, n.rack_id) == ("s", "s")
    assert describe(client, "racks").group_epoch == 2
    stored = broker.group_coordinator.consumer_groups.describe("racks")
    assert {member.rack_id for member in stored.members.values()} == {"s"}


def commit(client, topic_id, member_id, epoch, group_id="by id"):
    partition = OffsetCommitRequestPartition(partition_index=1, committed_offset=7)
    topic = OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    request = OffsetCommitRequest(
        group_id=group_id, member_id=member_id, generation_id_or_member_epoch=epoch, topics=[topic]
    )
    (answer,) = client.ask(request, 10).topics
    assert answer.topic_id == topic_id
    return answer.partitions[0].error_code


def fetched(client, topic_id, member_id, epoch):
    """(error code of the group, of the partition, offset)"""
    topic = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[1])
    group = OffsetFetchRequestGroup(group_id="by id", member_id=member_id, member_epoch=epoch, topics=[topic])
    (answer,) = client.ask(OffsetFetchRequest(groups=[group]), 10).groups
    if answer.error_code:
        return answer.error_code, None, None
    (answered,) = answer.topics
    assert answered.topic_id == topic_id
    return 0, answered.partitions[0].error_code, answered.partitions[0].committed_offset


def test_CG_47_members_commit_and_fetch_by_the_ids_of_topics(broker, client):
    topic_id, unknown = broker.metadata_cache.topic("t").topic_id, uuid.UUID(int=77)
    beat(client, "by id", **JOIN)
    assert commit(client, topic_id, "m", 1) == 0
    assert commit(client, unknown, "m", 1) == UnknownTopicId.code
    assert commit(client, topic_id, "m", 2) == StaleMemberEpoch.code
    assert fetched(client, topic_id, "m", 1) == (0, 0, 7)
    assert fetched(client, unknown, "m", 1) == (0, UnknownTopicId.code, -1)
    assert fetched(client, topic_id, "m", 2)[0] == StaleMemberEpoch.code
    assert fetched(client, topic_id, "n", 1)[0] == UnknownMemberId.code


def test_CG_49_CG_55_classic_members_of_such_a_group_are_described_as_such_and_removed_by_administrators(client):
    beat(client, "mixed", **JOIN)
    beat(client, "mixed", **{**JOIN, "member_id": "s"}, instance_id="static")
    metadata = b"\0\0" + ConsumerProtocolSubscription(topics=["t"]).encode(0)
    request = JoinGroupRequest(
        group_id="mixed",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )
    joined = client.ask(request, 3)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 3, "range")
    types = {member.member_id: member.member_type for member in describe(client, "mixed").members}
    assert types == {"m": 1, "s": 1, joined.member_id: 0}
    members = [
        MemberIdentity(member_id="m"),
        MemberIdentity(member_id="", group_instance_id="static"),
        MemberIdentity(member_id="nobody"),
    ]
    answer = client.ask(LeaveGroupRequest(group_id="mixed", members=members), 5)
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("m", None, 0),
        ("", "static", 0),
        ("nobody", None, UnknownMemberId.code),
    ]
    # Only the classic member is left.
    assert describe(client, "mixed").error_code == GroupIdNotFound.code
    (group,) = client.ask(DescribeGroupsRequest(groups=["mixed"]), 5).groups
    assert group.group_state == "PreparingRebalance"
