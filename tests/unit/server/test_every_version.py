"""Every API in every version that is announced: decoded, answered, encoded."""

from uuid import UUID

import pytest

import kcore
from kcore.errors import (
    ElectionNotNeeded,
    GroupIdNotFound,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kcore.metadata import znodes
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import alter_partition_reassignments as apr
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_records as dr
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import elect_leaders as el
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import join_group as jg
from kcore.protocol.messages import leave_group as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import list_partition_reassignments as lpr
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import offset_delete as od
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import offset_for_leader_epoch as ofle
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import request_class
from kcore.protocol.messages import sync_group as sg
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.heartbeat import HeartbeatRequest
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.list_groups import ListGroupsRequest
from tests.batches import batch
from tests.unit.server.client import Client

UNKNOWN_ID = UUID(int=77)


@pytest.fixture(scope="module")
def broker():
    # The records of batch() are old: retention would delete them once the broker has run for 30 s.
    with kcore.Broker(offsets_topic_num_partitions=2, log_initial_task_delay_ms=3_600_000) as broker:
        broker.create_topic("t", partitions=2, message_timestamp_type="CreateTime")
        with Client(broker) as client:
            client.ask(produce_request(broker, "t", 0, batch(b"a", b"b", b"c")), 9)
            client.ask(fc.FindCoordinatorRequest(key="g"), 0)
        yield broker


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def versions(api_key):
    first, last = SUPPORTED[api_key]
    return range(first, last + 1)


def every_version(api_key):
    return pytest.mark.parametrize("version", versions(api_key))


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.API_VERSIONS][1] + 1))
def test_api_versions_announces_exactly_what_is_supported(client, version):
    request = request_class(ApiKey.API_VERSIONS)(client_software_name="test", client_software_version="1.0")
    response = client.ask(request, version)
    assert response.error_code == 0
    assert {item.api_key: (item.min_version, item.max_version) for item in response.api_keys} == {
        int(key): value for key, value in SUPPORTED.items()
    }


def test_api_versions_wants_a_decent_software_name(client):
    request = request_class(ApiKey.API_VERSIONS)(client_software_name="-x-", client_software_version="1")
    assert client.ask(request, 3).error_code == InvalidRequest.code


@every_version(ApiKey.METADATA)
def test_metadata_has_brokers_topics_and_leaders(broker, client, version):
    response = client.ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name="t")]), version)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", broker.port)]
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (0, "t")
    assert sorted((x.partition_index, x.leader_id, x.isr_nodes) for x in topic.partitions) == [(0, 1, [1]), (1, 1, [1])]
    if version >= 2:
        assert response.cluster_id == broker.cluster_id
    if version >= 10:
        assert topic.topic_id == broker.metadata_cache.topic_id("t")
    everything = client.ask(m.MetadataRequest(topics=[] if version == 0 else None), version)
    assert {topic.name: topic.is_internal for topic in everything.topics} == {
        "t": False,
        "__consumer_offsets": version >= 1,
    }
    if version >= 1:
        assert client.ask(m.MetadataRequest(topics=[]), version).topics == []


@every_version(ApiKey.METADATA)
def test_metadata_of_a_bad_name_is_an_error_of_that_topic(client, version):
    response = client.ask(
        m.MetadataRequest(topics=[m.MetadataRequestTopic(name="bad name"), m.MetadataRequestTopic(name="t")]), version
    )
    assert [topic.error_code for topic in response.topics] == [17, 0]


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_finds_topics_by_id_from_version_12(broker, client, version):
    topic_of_an_id = m.MetadataRequestTopic(topic_id=broker.metadata_cache.topic_id("t"), name=None)
    unknown = m.MetadataRequestTopic(topic_id=UNKNOWN_ID, name=None)
    response = client.ask(m.MetadataRequest(topics=[topic_of_an_id, unknown]), version)
    if version < 12:
        assert [topic.error_code for topic in response.topics] == [InvalidRequest.code] * 2
    else:
        assert [(topic.error_code, topic.name) for topic in response.topics] == [(0, "t"), (UnknownTopicId.code, None)]


@every_version(ApiKey.METADATA)
def test_metadata_has_a_topic_once_however_often_it_is_requested(client, version):
    requested_topics = [m.MetadataRequestTopic(name=name) for name in ("t", "bad name", "t", "t", "bad name")]
    answer = client.ask(m.MetadataRequest(topics=requested_topics), version)
    assert [topic.name for topic in answer.topics] == ["t", "bad name"]


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_creates_a_topic_only_if_the_client_allows_it(broker, client, version):
    name = f"auto-{version}"
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    assert client.ask(request, version).topics[0].error_code == UnknownTopicOrPartition.code
    request.allow_auto_topic_creation = True
    assert client.ask(request, version).topics[0].error_code == 0
    broker.delete_topic(name)


def produce_request(broker, topic, partition, records, acks=1):
    return p.ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            p.TopicProduceData(
                name=topic,
                topic_id=broker.metadata_cache.topic_id(topic) if topic != "unknown" else UNKNOWN_ID,
                partition_data=[p.PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


@every_version(ApiKey.PRODUCE)
def test_produce_appends_and_returns_the_offset(broker, client, version):
    end = broker.log("t", 1).log_end_offset
    response = client.ask(produce_request(broker, "t", 1, batch(b"x", b"y"), acks=-1), version)
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    assert (partition.error_code, partition.base_offset, partition.log_append_time_ms) == (0, end, -1)
    assert broker.log("t", 1).log_end_offset == end + 2


@every_version(ApiKey.PRODUCE)
def test_CFG_02_a_producers_acks_and_timeout_are_fields_of_produce(broker, client, version, monkeypatch):
    calls = []
    append_records = broker.replica_manager.append_records

    def spy(timeout_ms, required_acks, *rest):
        calls.append((timeout_ms, required_acks))
        append_records(timeout_ms, required_acks, *rest)

    monkeypatch.setattr(broker.replica_manager, "append_records", spy)
    for acks, timeout_ms in ((-1, 1234), (1, 5678)):
        request = produce_request(broker, "t", 1, batch(b"x"), acks)
        request.timeout_ms = timeout_ms
        client.ask(request, version)
    assert calls == [(1234, -1), (5678, 1)]


@every_version(ApiKey.PRODUCE)
def test_produce_to_an_unknown_topic_is_an_error_of_that_partition(broker, client, version):
    response = client.ask(produce_request(broker, "unknown", 0, batch(b"x")), version)
    code = response.responses[0].partition_responses[0].error_code
    assert code == (UnknownTopicId.code if version >= 13 else UnknownTopicOrPartition.code)


def fetch_request(broker, topic, partition, offset, **fields):
    return f.FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[
            f.FetchTopic(
                topic=topic,
                topic_id=broker.metadata_cache.topic_id(topic) if topic != "unknown" else UNKNOWN_ID,
                partitions=[f.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)],
            )
        ],
        **fields,
    )


@every_version(ApiKey.FETCH)
def test_fetch_returns_batches_and_watermarks(broker, client, version):
    response = client.ask(fetch_request(broker, "t", 0, 0), version)
    assert (response.error_code, response.session_id) == (0, 0)
    (partition,) = response.responses[0].partitions
    last_stable_offset = 3 if version >= 4 else -1
    assert (partition.error_code, partition.high_watermark) == (0, 3)
    assert partition.last_stable_offset == last_stable_offset
    records = list(kcore.MemoryRecords(bytes(partition.records)).records())
    assert [record.value for record in records] == [b"a", b"b", b"c"]
    if version < 4:
        return
    assert partition.aborted_transactions is None
    committed = client.ask(fetch_request(broker, "t", 0, 0, isolation_level=1), version)
    assert committed.responses[0].partitions[0].aborted_transactions == []


@every_version(ApiKey.FETCH)
def test_CFG_02_a_consumers_wait_and_byte_limits_are_fields_of_fetch(broker, client, version, monkeypatch):
    calls = []
    fetch_messages = broker.replica_manager.fetch_messages

    def spy(params, infos, callback, *more):
        calls.append((params.max_wait_ms, params.min_bytes, params.max_bytes, infos[0][1].max_bytes))
        fetch_messages(params, infos, callback, *more)

    monkeypatch.setattr(broker.replica_manager, "fetch_messages", spy)
    request = fetch_request(broker, "t", 0, 0)
    request.max_wait_ms, request.min_bytes = 60_000, 7
    request.topics[0].partitions[0].partition_max_bytes = 90_000
    if version >= 3:  # the first versions have no limit of the whole response
        request.max_bytes = 100_000
    client.ask(request, version)
    max_bytes = 100_000 if version >= 3 else broker.config["fetch.max.bytes"]
    assert calls == [(60_000, 7, max_bytes, 90_000)]


@every_version(ApiKey.FETCH)
def test_API_08_fetch_errors_belong_to_their_partition(broker, client, version):
    request = fetch_request(broker, "unknown", 0, 0)
    request.topics += fetch_request(broker, "t", 0, 99).topics + fetch_request(broker, "t", 0, 3).topics
    response = client.ask(request, version)
    codes = [topic.partitions[0].error_code for topic in response.responses]
    assert codes == [UnknownTopicId.code if version >= 13 else UnknownTopicOrPartition.code, 1, 0]


def test_API_09_a_fetch_of_nothing_that_exists_is_answered_at_once(broker, client):
    request = fetch_request(broker, "unknown", 0, 0)
    request.max_wait_ms = 60_000
    assert client.ask(request, 11).responses[0].partitions[0].error_code == 3
    request.topics = []
    assert client.ask(request, 11).responses == []


def test_API_13_a_fetch_is_capped_by_fetch_max_bytes_and_min_bytes_by_max_bytes():
    with kcore.Broker(fetch_max_bytes=5000) as broker, Client(broker) as client:
        broker.create_topic("big", partitions=2)
        for partition in range(2):
            for _ in range(10):
                client.ask(produce_request(broker, "big", partition, batch(b"x" * 900)), 9)
        request = fetch_request(broker, "big", 0, 0)
        request.topics += fetch_request(broker, "big", 1, 0).topics
        request.max_wait_ms, request.min_bytes = 60_000, 100_000
        sizes = [len(topic.partitions[0].records) for topic in client.ask(request, 11).responses]
        assert 4000 < sum(sizes) <= 5000
        # One batch comes even if it is larger than every limit (KIP-74).
        request.max_bytes = request.topics[0].partitions[0].partition_max_bytes = 10
        sizes = [len(topic.partitions[0].records) for topic in client.ask(request, 11).responses]
        assert sizes[0] > 900 and sizes[1] == 0


@pytest.mark.parametrize("version", range(7, 19))
def test_fetch_of_a_session_that_was_never_created_is_refused(broker, client, version):
    request = fetch_request(broker, "t", 0, 0, session_id=5, session_epoch=1)
    assert client.ask(request, version).error_code == 70


@pytest.mark.parametrize("version", [4, 14, 15, 18])
def test_fetch_from_a_broker_that_is_no_replica_is_refused(broker, client, version):
    request = fetch_request(broker, "t", 0, 0)
    if version < 15:
        request.replica_id = 2
    else:
        request.replica_state = f.ReplicaState(replica_id=2)
    assert client.ask(request, version).responses[0].partitions[0].error_code == UnknownTopicOrPartition.code


@pytest.mark.parametrize("version", [4, 9, 10, 18])
def test_API_11_a_topic_stored_in_zstd_needs_fetch_version_10(broker, client, version):
    name = f"zstd-{version}"
    broker.create_topic(name, compression_type="zstd")
    code = client.ask(fetch_request(broker, name, 0, 0), version).responses[0].partitions[0].error_code
    assert code == (76 if version < 10 else 0)
    broker.delete_topic(name)


def list_offsets(timestamp, topic="t"):
    partition = lo.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return lo.ListOffsetsRequest(replica_id=-1, topics=[lo.ListOffsetsTopic(name=topic, partitions=[partition])])


@every_version(ApiKey.LIST_OFFSETS)
def test_list_offsets_finds_both_ends(client, version):
    for timestamp, offset in ((-1, 3), (-2, 0)):
        (partition,) = client.ask(list_offsets(timestamp), version).topics[0].partitions
        assert partition.error_code == 0
        if version == 0:
            assert partition.old_style_offsets == [offset]
        else:
            assert partition.offset == offset


@every_version(ApiKey.LIST_OFFSETS)
def test_list_offsets_finds_times_and_refuses_specials_it_is_too_old_for(client, version):
    if version == 0:
        request = list_offsets(2**62)
        request.topics[0].partitions[0].max_num_offsets = 5
        assert client.ask(request, 0).topics[0].partitions[0].old_style_offsets == [0]
        return
    (partition,) = client.ask(list_offsets(1_700_000_000_000), version).topics[0].partitions
    assert (partition.offset, partition.timestamp) == (0, 1_700_000_000_000)
    assert client.ask(list_offsets(1_700_000_000_001), version).topics[0].partitions[0].offset == -1
    for timestamp, first, offset in ((-3, 7, 0), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
        (partition,) = client.ask(list_offsets(timestamp), version).topics[0].partitions
        expected = (0, offset) if version >= first else (UnsupportedVersion.code, -1)
        assert (partition.error_code, partition.offset) == expected, f"timestamp {timestamp}"
    assert client.ask(list_offsets(-1, "unknown"), version).topics[0].partitions[0].error_code == 3


def test_list_offsets_refuses_a_partition_that_the_request_names_twice(client):
    request = list_offsets(-1)
    request.topics[0].partitions *= 2
    assert [x.error_code for x in client.ask(request, 5).topics[0].partitions] == [InvalidRequest.code] * 2


@every_version(ApiKey.CREATE_TOPICS)
def test_topics_are_created_and_deleted_in_every_version(broker, client, version):
    name = f"made-{version}"
    topic = ct.CreatableTopic(
        name=name,
        num_partitions=2,
        replication_factor=1,
        configs=[ct.CreatableTopicConfig(name="retention.ms", value="1000")],
    )
    (result,) = client.ask(ct.CreateTopicsRequest(topics=[topic]), version).topics
    assert result.error_code == 0 and not result.error_message
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        assert {c.name: (c.value, c.config_source) for c in result.configs}["retention.ms"] == ("1000", 1)
    if version >= 7:
        assert result.topic_id == broker.metadata_cache.topic_id(name)
    (again,) = client.ask(ct.CreateTopicsRequest(topics=[topic]), version).topics
    assert again.error_code == 36
    delete_version = min(version, 6)
    if delete_version < 6:
        request = dt.DeleteTopicsRequest(topic_names=[name, "unknown"])
    else:
        request = dt.DeleteTopicsRequest(
            topics=[
                dt.DeleteTopicState(topic_id=broker.metadata_cache.topic_id(name)),
                dt.DeleteTopicState(name="unknown"),
                dt.DeleteTopicState(topic_id=UNKNOWN_ID),
                dt.DeleteTopicState(),
                dt.DeleteTopicState(name="t", topic_id=UUID(int=78)),
            ]
        )
    codes = [x.error_code for x in client.ask(request, delete_version).responses]
    assert codes == ([0, 3] if delete_version < 6 else [0, 3, 100, 42, 42])
    assert broker.metadata_cache.topic(name) is None


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (ct.CreatableTopic(name="a b", num_partitions=1, replication_factor=1), 17),
        (ct.CreatableTopic(name="", num_partitions=1, replication_factor=1), 17),
        (ct.CreatableTopic(name="__cluster_metadata", num_partitions=1, replication_factor=1), 29),
        (ct.CreatableTopic(name="__consumer.offsets", num_partitions=1, replication_factor=1), 17),
        (ct.CreatableTopic(name="n", num_partitions=0, replication_factor=1), 37),
        (ct.CreatableTopic(name="n", num_partitions=-2, replication_factor=1), 37),
        (ct.CreatableTopic(name="n", num_partitions=10_001, replication_factor=1), 44),
        (ct.CreatableTopic(name="n", num_partitions=1, replication_factor=0), 38),
        (ct.CreatableTopic(name="n", num_partitions=1, replication_factor=2), 38),
        (
            ct.CreatableTopic(
                name="n",
                num_partitions=1,
                replication_factor=-1,
                assignments=[ct.CreatableReplicaAssignment(partition_index=0, broker_ids=[1])],
            ),
            42,
        ),
    ]
    + [
        (
            ct.CreatableTopic(
                name="n",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[ct.CreatableReplicaAssignment(partition_index=i, broker_ids=b) for i, b in assignment],
            ),
            39,
        )
        for assignment in ([(0, [])], [(0, [1, 1])], [(0, [2])], [(1, [1])], [(0, [1]), (0, [1])])
    ]
    + [
        (
            ct.CreatableTopic(
                name="n",
                num_partitions=1,
                replication_factor=1,
                configs=[ct.CreatableTopicConfig(name=key, value=value)],
            ),
            40,
        )
        for key, value in (("no.such", "1"), ("retention.ms", "x"), ("retention.ms", None))
    ],
)
def test_a_topic_that_cannot_be_is_refused_as_kafka_refuses_it(broker, client, topic, code):
    (result,) = client.ask(ct.CreateTopicsRequest(topics=[topic]), 7).topics
    assert result.error_code == code, result.error_message
    assert result.error_message
    assert broker.metadata_cache.topic("n") is None


def test_a_topic_named_twice_in_one_request_is_refused(client):
    topic = ct.CreatableTopic(name="twice", num_partitions=1, replication_factor=1)
    (result,) = client.ask(ct.CreateTopicsRequest(topics=[topic, topic]), 7).topics
    assert (result.error_code, result.error_message) == (InvalidRequest.code, "Duplicate topic name.")


def test_a_manual_assignment_and_defaults_are_honoured(broker, client):
    topic = ct.CreatableTopic(
        name="assigned",
        num_partitions=-1,
        replication_factor=-1,
        assignments=[ct.CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in (2, 0, 1)],
    )
    plain = ct.CreatableTopic(name="defaults", num_partitions=-1, replication_factor=-1)
    results = client.ask(ct.CreateTopicsRequest(topics=[topic, plain]), 7).topics
    assert [(x.error_code, x.num_partitions) for x in results] == [(0, 3), (0, 1)]
    broker.delete_topic("assigned")
    broker.delete_topic("defaults")


@every_version(ApiKey.CREATE_PARTITIONS)
def test_topics_grow_in_every_version(broker, client, version):
    name = f"grow-{version}"
    broker.create_topic(name)

    def grow(count, assignments=None, topic=name, validate_only=False):
        grown = cp.CreatePartitionsTopic(name=topic, count=count, assignments=assignments)
        request = cp.CreatePartitionsRequest(topics=[grown], validate_only=validate_only)
        return client.ask(request, version).results[0].error_code

    one = [cp.CreatePartitionsAssignment(broker_ids=[1])]
    assert grow(3, validate_only=True) == 0
    assert [grow(1), grow(0), grow(3, one), grow(2, topic="unknown")] == [37, 37, 39, 3]
    assert grow(2, one) == 0
    assert len(broker.metadata_cache.topic(name).partitions) == 2
    broker.delete_topic(name)


@every_version(ApiKey.INIT_PRODUCER_ID)
def test_each_idempotent_producer_gets_an_id_of_its_own(client, version):
    ids = set()
    for _ in range(3):
        response = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), version)
        assert (response.error_code, response.producer_epoch) == (0, 0)
        ids.add(response.producer_id)
    assert len(ids) == 3
    assert client.ask(InitProducerIdRequest(transactional_id=""), version).error_code == InvalidRequest.code


@every_version(ApiKey.DESCRIBE_CLUSTER)
def test_the_cluster_describes_itself(broker, client, version):
    response = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, broker.cluster_id, 1)
    assert [b.port for b in response.brokers] == [broker.port]
    assert response.cluster_authorized_operations > 0
    if version >= 1:
        assert client.ask(DescribeClusterRequest(endpoint_type=2), version).error_code == 114


@every_version(ApiKey.DESCRIBE_CONFIGS)
def test_configs_are_described_with_their_sources(broker, client, version):
    request = dc.DescribeConfigsRequest(
        resources=[
            dc.DescribeConfigsResource(
                resource_type=2,
                resource_name="t",
                configuration_keys=["message.timestamp.type", "retention.ms"],
            ),
            dc.DescribeConfigsResource(
                resource_type=4, resource_name="1", configuration_keys=["offsets.topic.num.partitions"]
            ),
            dc.DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None),
            dc.DescribeConfigsResource(resource_type=2, resource_name="unknown", configuration_keys=None),
            dc.DescribeConfigsResource(resource_type=4, resource_name="2", configuration_keys=None),
            dc.DescribeConfigsResource(resource_type=4, resource_name="x", configuration_keys=None),
            dc.DescribeConfigsResource(resource_type=99, resource_name="t", configuration_keys=None),
        ],
        include_synonyms=version >= 1,
        include_documentation=version >= 3,
    )
    results = client.ask(request, version).results
    assert [r.error_code for r in results] == [0, 0, 0, 3, 42, 42, 42]
    topic = {c.name: c for c in results[0].configs}
    assert {name: c.value for name, c in topic.items()} == {
        "message.timestamp.type": "CreateTime",
        "retention.ms": "604800000",
    }
    partitions = results[1].configs[0]
    assert (partitions.value, partitions.read_only) == ("2", True)
    assert results[2].configs == []
    if version >= 1:
        assert [s.name for s in topic["retention.ms"].synonyms] == ["log.retention.hours"]
        assert [(s.name, s.source) for s in topic["message.timestamp.type"].synonyms] == [
            ("message.timestamp.type", 1),
            ("log.message.timestamp.type", 5),
        ]
        assert (topic["retention.ms"].config_source, partitions.config_source) == (5, 4)
    else:
        assert topic["retention.ms"].is_default and not partitions.is_default
    if version >= 3:
        assert partitions.documentation and partitions.config_type == 3


def test_a_resource_that_is_named_often_is_described_once_with_the_last_keys(client):
    def resource(resource_type, name, *keys):
        return dc.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=list(keys)
        )

    resources = [resource(2, "t")] * 20_000
    resources += [resource(4, "1", "num.partitions"), resource(2, "t", "retention.ms"), resource(2, "unknown")]
    results = client.ask(dc.DescribeConfigsRequest(resources=resources), 4).results
    assert [(r.resource_type, r.resource_name, r.error_code) for r in results] == [
        (2, "t", 0),
        (4, "1", 0),
        (2, "unknown", 3),
    ]
    assert [[c.name for c in r.configs] for r in results] == [["retention.ms"], ["num.partitions"], []]


def test_a_group_that_is_named_often_is_described_once(client):
    groups = client.ask(DescribeGroupsRequest(groups=["a", "b", "a", "a"]), 5).groups
    assert [group.group_id for group in groups] == ["a", "b"]


def test_all_offsets_of_a_group_are_in_a_response_once(client):
    whole = of.OffsetFetchRequestGroup(group_id="a", topics=None)
    part = of.OffsetFetchRequestGroup(
        group_id="a", topics=[of.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    request = of.OffsetFetchRequest(groups=[whole, part, whole, whole])
    assert [len(group.topics) for group in client.ask(request, 8).groups] == [0, 1]


@every_version(ApiKey.FIND_COORDINATOR)
def test_the_coordinator_of_a_group_is_found(broker, client, version):
    if version >= 4:
        response = client.ask(fc.FindCoordinatorRequest(coordinator_keys=["g", "h"]), version)
        assert [(c.key, c.error_code, c.node_id, c.port) for c in response.coordinators] == [
            ("g", 0, 1, broker.port),
            ("h", 0, 1, broker.port),
        ]
        response = client.ask(fc.FindCoordinatorRequest(coordinator_keys=["x", "y"], key_type=1), version)
        assert [(c.key, c.error_code, c.port) for c in response.coordinators] == [
            ("x", 0, broker.port),
            ("y", 0, broker.port),
        ]
    else:
        response = client.ask(fc.FindCoordinatorRequest(key="g"), version)
        assert (response.error_code, response.node_id, response.port) == (0, 1, broker.port)
        if version >= 1:
            response = client.ask(fc.FindCoordinatorRequest(key="x", key_type=1), version)
            assert (response.error_code, response.node_id, response.port) == (0, 1, broker.port)


def join(client, version, group, member_id=""):
    return client.ask(
        jg.JoinGroupRequest(
            group_id=group,
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000 if version >= 1 else -1,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[jg.JoinGroupRequestProtocol(name="range", metadata=b"\0\x01\0\0\0\0\xff\xff\xff\xff")],
        ),
        version,
    )


@every_version(ApiKey.JOIN_GROUP)
def test_a_member_joins_syncs_beats_commits_and_leaves_in_every_version(broker, client, version):
    group = f"group-{version}"
    joined = join(client, version, group)
    if version >= 4:
        assert joined.error_code == 79  # MEMBER_ID_REQUIRED, with the id to come back with
        joined = join(client, version, group, joined.member_id)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id and [x.member_id for x in joined.members] == [joined.member_id]
    member = {"group_id": group, "generation_id": 1, "member_id": joined.member_id}

    sync_version = min(version, 5)
    names = {"protocol_type": "consumer", "protocol_name": "range"} if sync_version >= 5 else {}
    assignment = sg.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
    synced = client.ask(sg.SyncGroupRequest(**member, **names, assignments=[assignment]), sync_version)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if sync_version >= 5:
        assert client.ask(sg.SyncGroupRequest(**member, assignments=[]), 5).error_code == 23

    beat_version = min(version, 4)
    assert client.ask(HeartbeatRequest(**member), beat_version).error_code == 0
    stranger = HeartbeatRequest(group_id=group, generation_id=1, member_id="x")
    assert client.ask(stranger, beat_version).error_code == UnknownMemberId.code

    described_version = min(version, 6)
    described = client.ask(DescribeGroupsRequest(groups=[group]), described_version).groups[0]
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert described.members[0].client_host == "/127.0.0.1"
    assert described.members[0].member_assignment == b"mine"

    leave_version = min(version, 5)
    if leave_version >= 3:
        request = lg.LeaveGroupRequest(group_id=group, members=[lg.MemberIdentity(member_id=joined.member_id)])
        response = client.ask(request, leave_version)
        assert (response.error_code, [x.error_code for x in response.members]) == (0, [0])
    else:
        request = lg.LeaveGroupRequest(group_id=group, member_id=joined.member_id)
        assert client.ask(request, leave_version).error_code == 0
        assert client.ask(request, leave_version).error_code == UnknownMemberId.code


@every_version(ApiKey.OFFSET_COMMIT)
def test_offsets_are_committed_and_fetched_in_every_version(broker, client, version):
    group, topic_id = f"offsets-{version}", broker.metadata_cache.topic_id("t")
    partition = oc.OffsetCommitRequestPartition(partition_index=1, committed_offset=41, committed_metadata="note")
    unknown = oc.OffsetCommitRequestPartition(partition_index=9, committed_offset=1, committed_metadata=None)
    topics = [oc.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[partition, unknown])]
    topics.append(oc.OffsetCommitRequestTopic(name="unknown", topic_id=UNKNOWN_ID, partitions=[unknown]))
    response = client.ask(oc.OffsetCommitRequest(group_id=group, topics=topics), version)
    codes = [[x.error_code for x in topic.partitions] for topic in response.topics]
    assert codes == [[0, 3], [100 if version >= 10 else 3]]
    for fetch_version in versions(ApiKey.OFFSET_FETCH):
        if fetch_version < 8:
            topic = of.OffsetFetchRequestTopic(name="t", partition_indexes=[1, 0])
            response = client.ask(of.OffsetFetchRequest(group_id=group, topics=[topic]), fetch_version)
            partitions = response.topics[0].partitions
            if fetch_version >= 2:
                everything = client.ask(of.OffsetFetchRequest(group_id=group, topics=None), fetch_version)
                assert [x.partition_index for x in everything.topics[0].partitions] == [1]
        else:
            topic = of.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[1, 0])
            strange = of.OffsetFetchRequestTopics(name="unknown", topic_id=UNKNOWN_ID, partition_indexes=[0])
            request = of.OffsetFetchRequest(
                groups=[
                    of.OffsetFetchRequestGroup(group_id=group, topics=[topic, strange]),
                    of.OffsetFetchRequestGroup(group_id=group, topics=None),
                ]
            )
            first, second = client.ask(request, fetch_version).groups
            partitions = first.topics[0].partitions
            assert first.topics[1].partitions[0].error_code == (100 if fetch_version >= 10 else 0)
            assert [x.partition_index for x in second.topics[0].partitions] == [1]
        assert [(x.committed_offset, x.metadata, x.error_code) for x in partitions] == [(41, "note", 0), (-1, "", 0)]


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_an_unknown_group_is_dead_and_from_version_6_not_found(client, version):
    (group,) = client.ask(DescribeGroupsRequest(groups=["never"]), version).groups
    assert (group.group_state, group.error_code) == ("Dead", GroupIdNotFound.code if version >= 6 else 0)


@every_version(ApiKey.LIST_GROUPS)
def test_groups_are_listed(broker, client, version):
    commit = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    client.ask(
        oc.OffsetCommitRequest(group_id="listed", topics=[oc.OffsetCommitRequestTopic(name="t", partitions=[commit])]),
        2,
    )
    groups = {group.group_id: group for group in client.ask(ListGroupsRequest(), version).groups}
    assert "listed" in groups
    if version >= 4:
        assert groups["listed"].group_state == "Empty"
        assert client.ask(ListGroupsRequest(states_filter=["Stable"]), version).groups == []
    if version >= 5:
        assert groups["listed"].group_type == "classic"


@every_version(ApiKey.DELETE_GROUPS)
def test_a_group_without_members_is_deleted(client, version):
    commit = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topics = [oc.OffsetCommitRequestTopic(name="t", partitions=[commit])]
    client.ask(oc.OffsetCommitRequest(group_id="doomed", topics=topics), 2)
    request = request_class(ApiKey.DELETE_GROUPS)(groups_names=["doomed", "never"])
    assert [x.error_code for x in client.ask(request, version).results] == [0, GroupIdNotFound.code]


def test_offsets_of_a_group_are_deleted(client):
    commit = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    topics = [oc.OffsetCommitRequestTopic(name="t", partitions=[commit])]
    client.ask(oc.OffsetCommitRequest(group_id="forgetful", topics=topics), 2)
    topic = od.OffsetDeleteRequestTopic(
        name="t", partitions=[od.OffsetDeleteRequestPartition(partition_index=i) for i in (0, 9)]
    )
    response = client.ask(od.OffsetDeleteRequest(group_id="forgetful", topics=[topic]), 0)
    assert response.error_code == 0
    assert [x.error_code for x in response.topics[0].partitions] == [0, 3]
    assert client.ask(od.OffsetDeleteRequest(group_id="never", topics=[topic]), 0).error_code == 69


@every_version(ApiKey.OFFSET_FOR_LEADER_EPOCH)
def test_the_end_of_an_epoch_is_returned(broker, client, version):
    def ask(topic, epoch):
        partition_request = ofle.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        request = ofle.OffsetForLeaderEpochRequest(
            topics=[ofle.OffsetForLeaderTopic(topic=topic, partitions=[partition_request])]
        )
        return client.ask(request, version).topics[0].partitions[0]

    epoch_end = ask("t", 0)
    assert (epoch_end.error_code, epoch_end.end_offset) == (0, 3)
    assert ask("unknown", 0).error_code == 3


@every_version(ApiKey.DELETE_RECORDS)
def test_records_are_deleted_and_the_low_watermark_is_returned(broker, client, version):
    name = f"cut-{version}"
    broker.create_topic(name)
    client.ask(produce_request(broker, name, 0, batch(b"a", b"b", b"c")), 9)
    topic = dr.DeleteRecordsTopic(
        name=name,
        partitions=[
            dr.DeleteRecordsPartition(partition_index=0, offset=2),
            dr.DeleteRecordsPartition(partition_index=7, offset=0),
        ],
    )
    response = client.ask(dr.DeleteRecordsRequest(topics=[topic], timeout_ms=100), version)
    assert [(x.error_code, x.low_watermark) for x in response.topics[0].partitions] == [(0, 2), (3, -1)]
    assert broker.log(name).log_start_offset == 2
    broker.delete_topic(name)


@every_version(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
def test_a_broker_alone_moves_nothing(broker, client, version):
    partitions = [(0, [broker.broker_id]), (1, [broker.broker_id, 7]), (9, [1]), (0, None)]
    codes = []
    for number, replicas in partitions:
        partition = apr.ReassignablePartition(partition_index=number, replicas=replicas)
        topics = [apr.ReassignableTopic(name="t", partitions=[partition])]
        response = client.ask(apr.AlterPartitionReassignmentsRequest(topics=topics), version)
        assert response.error_code == 0
        codes.append(response.responses[0].partitions[0].error_code)
    assert codes == [0, InvalidReplicaAssignment.code, UnknownTopicOrPartition.code, NoReassignmentInProgress.code]


def test_a_broker_alone_has_no_reassignments(client):
    response = client.ask(lpr.ListPartitionReassignmentsRequest(), 0)
    assert (response.error_code, response.topics) == (0, [])


@every_version(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def test_settings_of_a_topic_are_set_deleted_and_changed_as_lists(broker, client, version):
    name = f"altered-{version}"
    broker.create_topic(name, retention_ms=5, segment_bytes=2_000_000)
    current = {"retention.ms": "5", "segment.bytes": "2000000"}
    cases = [
        ("retention.ms", 0, "7", 0, {"retention.ms": "7", "segment.bytes": "2000000"}),
        ("segment.bytes", 1, None, 0, {"retention.ms": "7"}),
        ("cleanup.policy", 2, "compact", 0, {"retention.ms": "7", "cleanup.policy": "delete,compact"}),
        ("cleanup.policy", 3, "delete", 0, {"retention.ms": "7", "cleanup.policy": "compact"}),
        ("retention.ms", 2, "8", InvalidConfig.code, None),
        ("retention.ms", 0, "soon", InvalidConfig.code, None),
        ("retention.millis", 0, "1", InvalidConfig.code, None),
        ("retention.ms", 0, None, InvalidRequest.code, None),
        ("retention.ms", 4, "1", InvalidRequest.code, None),
    ]
    for key, operation, value, code, expected in cases:
        config = iac.AlterableConfig(name=key, config_operation=operation, value=value)
        resource = iac.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config])
        for validate_only in (True, False):
            request = iac.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
            (result,) = client.ask(request, version).responses
            assert (result.error_code, result.resource_name) == (code, name), result
            if expected is not None and not validate_only:
                current = expected
            assert dict(broker.admin_manager.topic_config(name)) == current
            assert znodes.decode_config(broker.store.get(znodes.topic_config(name)).data) == current
    assert broker.log(name).config.retention_ms == 7 and broker.log(name).config.cleanup_policy == ("compact",)
    broker.delete_topic(name)


def test_settings_that_cannot_be_changed_are_refused(client):
    config = iac.AlterableConfig(name="retention.ms", config_operation=0, value="1")
    resources = [
        iac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        for kind, name, configs in [(2, "no", [config]), (4, "1", [config]), (2, "t", [config, config])]
    ]
    twice = [iac.AlterConfigsResource(resource_type=2, resource_name="a", configs=[])] * 2
    response = client.ask(iac.IncrementalAlterConfigsRequest(resources=[*resources, *twice]), 1)
    expected = [UnknownTopicOrPartition.code, InvalidConfig.code, InvalidRequest.code, InvalidRequest.code]
    assert [result.error_code for result in response.responses] == expected
    assert "log.retention.ms" in response.responses[1].error_message


@every_version(ApiKey.ALTER_CONFIGS)
def test_all_settings_of_a_topic_are_replaced(broker, client, version):
    name = f"replaced-{version}"
    broker.create_topic(name, retention_ms=5, segment_bytes=2_000_000)
    # A setting that another release has stored.
    other = {"of.another.release": "1"}
    broker.store.create_or_set(znodes.topic_config(name), znodes.encode_config({"retention.ms": "5", **other}))
    stored = {"retention.ms": "5", **other}
    cases = [
        ([("segment.bytes", "4000"), ("retention.ms", "soon")], InvalidConfig.code, None),
        ([("retention.millis", "1")], InvalidConfig.code, None),
        ([("retention.ms", None)], InvalidRequest.code, None),
        ([("retention.ms", "1"), ("retention.ms", "2")], InvalidRequest.code, None),
        ([("retention.ms", "7"), ("cleanup.policy", "compact")], 0, {"retention.ms": "7", "cleanup.policy": "compact"}),
        ([("segment.bytes", "4000")], 0, {"segment.bytes": "4000"}),
        ([], 0, {}),
    ]
    for settings, code, expected in cases:
        configs = [ac.AlterableConfig(name=key, value=value) for key, value in settings]
        resource = ac.AlterConfigsResource(resource_type=2, resource_name=name, configs=configs)
        for validate_only in (True, False):
            request = ac.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
            (result,) = client.ask(request, version).responses
            assert (result.error_code, result.resource_name) == (code, name), result
            if expected is not None and not validate_only:
                stored = expected
                assert dict(broker.admin_manager.topic_config(name)) == stored
            assert znodes.decode_config(broker.store.get(znodes.topic_config(name)).data) == stored
        if settings == [("segment.bytes", "4000")]:
            assert broker.log(name).config.segment_bytes == 4000
    assert broker.log(name).config.segment_bytes == 1 << 30
    broker.delete_topic(name)


def test_of_resources_whose_settings_cannot_be_replaced_each_has_its_error(broker, client):
    setting = [ac.AlterableConfig(name="retention.ms", value="1")]
    resources = [
        ac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=setting)
        for kind, name in [(2, "no"), (4, "1"), (4, "7"), (8, "1"), (2, "a"), (2, "a"), (2, "t")]
    ]
    response = client.ask(ac.AlterConfigsRequest(resources=resources), 1)
    expected = [UnknownTopicOrPartition.code, InvalidConfig.code, *[InvalidRequest.code] * 3, 0]
    assert [result.error_code for result in response.responses] == expected
    assert dict(broker.admin_manager.topic_config("t")) == {"retention.ms": "1"}
    # Back to what the other tests have: that is all that the topic had.
    configs = [ac.AlterableConfig(name="message.timestamp.type", value="CreateTime")]
    resource = ac.AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)
    client.ask(ac.AlterConfigsRequest(resources=[resource]), 1)


@every_version(ApiKey.ELECT_LEADERS)
def test_a_broker_alone_needs_no_elections(client, version):
    topics = [el.TopicPartitions(topic="t", partitions=[0, 1, 1]), el.TopicPartitions(topic="no", partitions=[0])]
    response = client.ask(el.ElectLeadersRequest(topic_partitions=topics), version)
    results = {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }
    assert results == {
        ("t", 0): ElectionNotNeeded.code,
        ("t", 1): ElectionNotNeeded.code,
        ("no", 0): UnknownTopicOrPartition.code,
    }
    # Of all partitions, those are named that got a leader, or an error.
    assert client.ask(el.ElectLeadersRequest(topic_partitions=None), version).replica_election_results == []
    if version > 0:
        bad = el.ElectLeadersRequest(topic_partitions=topics, election_type=2)
        assert client.ask(bad, version).error_code == InvalidRequest.code


@pytest.mark.parametrize("api_key", SUPPORTED, ids=lambda key: key.name)
def test_an_unforeseen_error_is_answered_with_unknown_server_error_in_every_version(broker, api_key, caplog):
    """The handler of each API raises: the response has the error code -1, or the connection ends."""
    apis = broker.running.apis
    with Client(broker) as client:
        client.ask(m.MetadataRequest(topics=[]), 1)
    handler = apis.handler(api_key)

    class Broken:
        error_response = staticmethod(handler.error_response)

        def handle(self, context, body):
            raise ZeroDivisionError("a bug")

    apis.replace_handler(api_key, lambda _: Broken())
    try:
        for version in versions(api_key):
            request = request_class(api_key)()
            with Client(broker) as client:
                if api_key is ApiKey.PRODUCE:
                    request = produce_request(broker, "t", 0, batch(b"x"))
                response = client.ask(request, version)
            if hasattr(response, "error_code") and not (api_key is ApiKey.FETCH and version < 7):
                silent = (
                    (api_key is ApiKey.METADATA and version < 13)
                    or (api_key is ApiKey.OFFSET_FETCH and (version < 2 or version > 7))
                    or (api_key is ApiKey.FIND_COORDINATOR and version >= 4)
                    or (api_key is ApiKey.DESCRIBE_LOG_DIRS and version < 3)
                    or (api_key is ApiKey.ELECT_LEADERS and version < 1)
                    or (api_key is ApiKey.ADD_PARTITIONS_TO_TXN and version < 4)
                )
                assert response.error_code == (0 if silent else -1), f"version {version}"
    finally:
        apis.replace_handler(api_key, lambda _: handler)
    assert "a bug" in caplog.text
    with Client(broker) as client:
        assert client.ask(m.MetadataRequest(topics=[]), 1).brokers
