"""Nothing on the network thread calls the metadata store or waits for a disk (decision 9).

Every API's requests go through a broker whose store and whose fsync and msync fail on that thread.  A request that is
handled there all the same is answered with an error, and a failed fsync takes the data directory offline.
"""

import errno
import functools
import threading

import pytest

import kcore
from kcore.common import file
from kcore.common.time import MockTime
from kcore.protocol.api_keys import SUPPORTED, ApiKey
from kcore.protocol.messages import add_partitions_to_txn as apt
from kcore.protocol.messages import alter_client_quotas as acq
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import alter_partition_reassignments as apr
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import delete_records as dr
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import describe_producers as dp
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import join_group as jg
from kcore.protocol.messages import leave_group as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import offset_delete as od
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import offset_for_leader_epoch as ofle
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import sync_group as sg
from kcore.protocol.messages import txn_offset_commit as toc
from kcore.protocol.messages import write_txn_markers as wtm
from kcore.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcore.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kcore.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcore.protocol.messages.delete_groups import DeleteGroupsRequest
from kcore.protocol.messages.describe_acls import DescribeAclsRequest
from kcore.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from kcore.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from kcore.protocol.messages.describe_transactions import DescribeTransactionsRequest
from kcore.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from kcore.protocol.messages.elect_leaders import ElectLeadersRequest
from kcore.protocol.messages.end_txn import EndTxnRequest
from kcore.protocol.messages.heartbeat import HeartbeatRequest
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.list_config_resources import ListConfigResourcesRequest
from kcore.protocol.messages.list_groups import ListGroupsRequest
from kcore.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kcore.protocol.messages.list_transactions import ListTransactionsRequest
from kcore.protocol.messages.update_features import UpdateFeaturesRequest
from kcore.replica.local_reads import LocalReads
from kcore.server.requests import kafka_apis
from kcore.server.requests.request_context import RequestContext
from tests.batches import batch
from tests.unit.server.client import Client

#: The broker's second one: that of an idempotent producer comes before.
TRANSACTIONAL_PRODUCER_ID = 1


def network_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("kcore-network")]


def refuse_to_wait(broker, monkeypatch):
    """From here on the broker's store, fsync and msync raise on its network thread.  Returns the list of complaints."""
    complaints = []

    def guarded(name, method):
        @functools.wraps(method)
        def call(*args, **kwargs):
            if threading.current_thread() in network_threads():
                complaints.append(f"{name} on the network thread")
                raise AssertionError(complaints[-1])
            return method(*args, **kwargs)

        return call

    for name in dir(broker.store):
        method = getattr(broker.store, name)
        if not name.startswith("_") and callable(method):
            monkeypatch.setattr(broker.store, name, guarded(f"store.{name}()", method))
    broker.on_fatal_error = lambda error: complaints.append(f"the only data directory failed: {error}")
    (thread,) = network_threads()
    file.fail_next(("fsync", "msync"), errno.EIO, times=-1, thread=thread.ident)
    return complaints


@pytest.fixture
def where_it_ran(monkeypatch):
    """Api key -> names of the threads on which its requests were answered."""
    threads = {}
    respond = RequestContext.respond

    def noting(self, *args, **kwargs):
        threads.setdefault(self.header.api_key, set()).add(threading.current_thread().name)
        return respond(self, *args, **kwargs)

    monkeypatch.setattr(RequestContext, "respond", noting)
    return threads


def produce(acks=1, topic="t", count=1):
    data = [p.PartitionProduceData(index=0, records=batch(b"x" * 50_000)) for _ in range(count)]
    return p.ProduceRequest(
        acks=acks, timeout_ms=60_000, topic_data=[p.TopicProduceData(name=topic, partition_data=data)]
    )


def fetch(**fields):
    partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return f.FetchRequest(
        min_bytes=1, max_bytes=1 << 20, topics=[f.FetchTopic(topic="t", partitions=[partition])], **fields
    )


def list_offsets(timestamp):
    partition = lo.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    return lo.ListOffsetsRequest(replica_id=-1, topics=[lo.ListOffsetsTopic(name="t", partitions=[partition])])


def requests(group):
    """(request, version) of every API.  `group`: a member's group_id, generation_id and member_id."""
    committed = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    commit = oc.OffsetCommitRequest(
        group_id="c", topics=[oc.OffsetCommitRequestTopic(name="t", partitions=[committed])]
    )
    epoch = ofle.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    deleted = dr.DeleteRecordsPartition(partition_index=0, offset=1)
    yield ApiVersionsRequest(), 0
    yield m.MetadataRequest(topics=None), 5
    yield m.MetadataRequest(topics=[m.MetadataRequestTopic(name="created-for-metadata")]), 5
    # Segments of 100 kB: the log rolls more than once.
    yield from [(produce(), 9)] * 7
    yield produce(acks=-1), 9
    yield produce(topic="synced"), 9
    yield fetch(), 11
    yield fetch(max_wait_ms=50), 11
    yield fetch(), 3
    yield list_offsets(-1), 5
    yield list_offsets(1_700_000_000_000), 5
    yield list_offsets(-3), 7
    yield lo.ListOffsetsRequest(replica_id=-1, topics=[]), 0
    yield commit, 2
    yield of.OffsetFetchRequest(group_id="c", topics=[of.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]), 2
    yield of.OffsetFetchRequest(group_id="c", topics=None), 2
    yield HeartbeatRequest(**group), 2
    joining = {"member_id": "m", "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    yield ConsumerGroupHeartbeatRequest(group_id="new", subscribed_topic_names=["t"], **joining), 1
    yield ConsumerGroupDescribeRequest(group_ids=["new"]), 1
    mine = sg.SyncGroupRequestAssignment(member_id=group["member_id"], assignment=b"mine")
    yield sg.SyncGroupRequest(**group, assignments=[mine]), 2
    yield DescribeGroupsRequest(groups=["c", group["group_id"]]), 2
    yield ListGroupsRequest(), 2
    yield lg.LeaveGroupRequest(group_id=group["group_id"], member_id=group["member_id"]), 2
    yield od.OffsetDeleteRequest(group_id="c", topics=[]), 0
    yield DeleteGroupsRequest(groups_names=["c"]), 1
    yield InitProducerIdRequest(transactional_id=None), 1
    yield from transaction()
    yield (
        ofle.OffsetForLeaderEpochRequest(topics=[ofle.OffsetForLeaderTopic(topic="t", partitions=[epoch])]),
        2,
    )
    yield dr.DeleteRecordsRequest(topics=[dr.DeleteRecordsTopic(name="t", partitions=[deleted])], timeout_ms=60_000), 1
    yield dc.DescribeConfigsRequest(resources=[dc.DescribeConfigsResource(resource_type=2, resource_name="t")]), 1
    yield DescribeClusterRequest(), 0
    yield DescribeTopicPartitionsRequest(), 0
    yield UpdateFeaturesRequest(), 1
    yield DescribeUserScramCredentialsRequest(users=None), 0
    yield ListConfigResourcesRequest(), 1
    moved = apr.ReassignablePartition(partition_index=0, replicas=[1])
    yield (
        apr.AlterPartitionReassignmentsRequest(topics=[apr.ReassignableTopic(name="t", partitions=[moved])]),
        0,
    )
    yield ListPartitionReassignmentsRequest(), 0
    changed = iac.AlterConfigsResource(
        resource_type=2,
        resource_name="t",
        configs=[iac.AlterableConfig(name="retention.ms", config_operation=0, value="-1")],
    )
    yield iac.IncrementalAlterConfigsRequest(resources=[changed]), 1
    replaced = ac.AlterConfigsResource(resource_type=4, resource_name="1", configs=[])
    yield ac.AlterConfigsRequest(resources=[replaced]), 1
    yield ElectLeadersRequest(topic_partitions=None), 2
    yield AlterReplicaLogDirsRequest(dirs=[]), 1
    yield DescribeLogDirsRequest(topics=None), 2
    yield DescribeClientQuotasRequest(components=[], strict=False), 1
    quota = acq.EntryData(
        entity=[acq.EntityData(entity_type="user", entity_name="somebody")],
        ops=[acq.OpData(key="producer_byte_rate", value=1e9, remove=False)],
    )
    yield acq.AlterClientQuotasRequest(entries=[quota], validate_only=False), 1
    acl = ca.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    yield ca.CreateAclsRequest(creations=[acl]), 1
    filter_fields = {"resource_type_filter": 2, "resource_name_filter": "t", "operation": 1, "permission_type": 1}
    yield DescribeAclsRequest(**filter_fields), 1
    yield da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(**filter_fields)]), 1
    topic = ct.CreatableTopic(name="u", num_partitions=3, replication_factor=1)
    yield ct.CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 4
    yield (
        cp.CreatePartitionsRequest(
            topics=[cp.CreatePartitionsTopic(name="u", count=5, assignments=None)], timeout_ms=60_000
        ),
        1,
    )
    yield dt.DeleteTopicsRequest(topic_names=["u"], timeout_ms=60_000), 3


def transaction():
    """A transaction from its begin to its end, of the first producer of a transactional id."""
    yield InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 1
    producer = {"producer_id": TRANSACTIONAL_PRODUCER_ID, "producer_epoch": 0}
    names = {"transactional_id": "x", "group_id": "c"}
    partitions = [apt.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in ("t", "synced")]
    yield (
        apt.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=TRANSACTIONAL_PRODUCER_ID,
            v3_and_below_topics=partitions,
        ),
        1,
    )
    yield AddOffsetsToTxnRequest(**names, **producer), 1
    offset = toc.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [toc.TxnOffsetCommitRequestTopic(name="t", partitions=[offset])]
    yield toc.TxnOffsetCommitRequest(**names, **producer, topics=topics), 2
    yield DescribeTransactionsRequest(transactional_ids=["x"]), 0
    yield ListTransactionsRequest(), 1
    yield dp.DescribeProducersRequest(topics=[dp.TopicRequest(name="t", partition_indexes=[0])]), 0
    yield EndTxnRequest(transactional_id="x", committed=True, **producer), 1
    marked = [wtm.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    yield wtm.WriteTxnMarkersRequest(markers=[wtm.WritableTxnMarker(**producer, topics=marked)]), 1


def error_codes(value):
    """Every error code anywhere in a response."""
    if isinstance(value, list):
        return [code for item in value for code in error_codes(item)]
    slots = getattr(type(value), "__slots__", ())
    codes = [getattr(value, name) for name in slots if name in ("error_code", "partition_error_code")]
    return codes + [code for name in slots for code in error_codes(getattr(value, name))]


@pytest.mark.parametrize("settings", [{}, {"log_flush_interval_messages": 1}], ids=["no fsync", "fsync after each"])
def test_nothing_on_the_network_thread_calls_the_store_or_waits_for_the_disk(
    tmp_path, monkeypatch, where_it_ran, settings
):
    # An authorizer that reads its ACLs from the store, and lets the test do everything.
    acls = {"authorizer.class.name": "kcore.StoredAclAuthorizer", "super.users": "User:ANONYMOUS"}
    sizes = {"log.segment.bytes": 100_000, "offsets.topic.num.partitions": 2}
    sizes["transaction.state.log.num.partitions"] = 2
    # The records of batch() are old: they would be deleted once the broker has run for 30 s.
    with kcore.Broker(tmp_path, log_retention_ms=-1, **sizes, **acls, **settings) as broker:
        broker.create_topic("t")
        broker.create_topic("synced", flush_messages=1)
        broker.restart()
        complaints = refuse_to_wait(broker, monkeypatch)
        api_keys = {ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP}
        with Client(broker) as client:
            assert client.ask(fc.FindCoordinatorRequest(key="g"), 1).error_code == 0  # makes the offsets topic
            assert client.ask(fc.FindCoordinatorRequest(key="g"), 1).error_code == 0
            for _ in range(2):
                assert client.ask(fc.FindCoordinatorRequest(key="x", key_type=1), 1).error_code == 0
            protocol = jg.JoinGroupRequestProtocol(name="range", metadata=b"")
            join = jg.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                protocol_type="consumer",
                protocols=[protocol],
            )
            joined = client.ask(join, 2)
            assert joined.error_code == 0
            group = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
            for request, version in requests(group):
                api_keys.add(ApiKey(request.api_key))
                response = client.ask(request, version)
                assert set(error_codes(response)) <= {0}, response
        assert api_keys == set(SUPPORTED)
        assert complaints == []
        file.clear_faults()
    del where_it_ran[ApiKey.JOIN_GROUP]  # answered by the timer, which ends the wait for more members
    inline = {key for key, threads in where_it_ran.items() if all("network" in name for name in threads)}
    never_inline = {key for key, threads in where_it_ran.items() if not any("network" in name for name in threads)}
    assert never_inline == {
        *(ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_RECORDS),
        *(ApiKey.DESCRIBE_CONFIGS, ApiKey.INIT_PRODUCER_ID, ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS),
        *(ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_TOPIC_PARTITIONS),
        *(ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
        *(ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE, ApiKey.ALTER_REPLICA_LOG_DIRS, ApiKey.DESCRIBE_LOG_DIRS),
        *(ApiKey.ALTER_CLIENT_QUOTAS, ApiKey.ELECT_LEADERS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS),
        *(ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS),
        *(ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.WRITE_TXN_MARKERS),
        # A topic is synced, and the marker of a transaction may go there.
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN),
        *((ApiKey.TXN_OFFSET_COMMIT,) if settings else ()),
        *((ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP) if settings else ()),
        *((ApiKey.CONSUMER_GROUP_HEARTBEAT,) if settings else ()),
    }
    assert inline >= {ApiKey.API_VERSIONS, ApiKey.HEARTBEAT, ApiKey.DESCRIBE_CLUSTER, ApiKey.OFFSET_FOR_LEADER_EPOCH}


def big(request_class):
    """A request of more elements than the network thread handles."""
    count = kafka_apis.MAX_INLINE_ELEMENTS
    if request_class is f.FetchRequest:
        request = fetch()
        request.topics[0].partitions *= count
        return request
    if request_class is lo.ListOffsetsRequest:
        request = list_offsets(-1)
        request.topics[0].partitions *= count
        return request
    return m.MetadataRequest(topics=[m.MetadataRequestTopic(name=f"t-{i}") for i in range(count + 1)])


@pytest.mark.parametrize(
    ("request_class", "version"), [(f.FetchRequest, 11), (lo.ListOffsetsRequest, 5), (m.MetadataRequest, 3)]
)
def test_a_request_of_many_elements_leaves_the_network_thread(where_it_ran, request_class, version):
    with kcore.Broker(auto_create_topics_enable=False) as broker, Client(broker) as client:
        broker.create_topic("t")
        client.ask(big(request_class), version)
    assert ["request-handler" in name for name in where_it_ran[request_class.api_key]] == [True]


def test_the_markers_of_a_transaction_stay_on_the_network_thread_where_no_topic_is_synced(where_it_ran):
    topics = [wtm.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
    marker = wtm.WritableTxnMarker(producer_id=1, producer_epoch=0, transaction_result=True, topics=topics)
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("t")
        client.ask(wtm.WriteTxnMarkersRequest(markers=[marker]), 1)
    assert ["network" in name for name in where_it_ran[ApiKey.WRITE_TXN_MARKERS]] == [True]


def test_a_produce_of_more_than_a_megabyte_leaves_the_network_thread(where_it_ran):
    with kcore.Broker(message_max_bytes=3 << 20) as broker, Client(broker) as client:
        broker.create_topic("t")
        for size, place in ((1 << 19, "network"), (1 << 20, "request-handler")):
            where_it_ran.clear()
            data = p.PartitionProduceData(index=0, records=batch(b"x" * size))
            request = p.ProduceRequest(
                acks=1, timeout_ms=60_000, topic_data=[p.TopicProduceData(name="t", partition_data=[data])]
            )
            assert client.ask(request, 9).responses[0].partition_responses[0].error_code == 0
            assert [place in name for name in where_it_ran[ApiKey.PRODUCE]] == [True]


@pytest.mark.parametrize("topics", [None, ["many"]])
def test_a_metadata_answer_of_many_partitions_leaves_the_network_thread(where_it_ran, topics):
    requested_topics = None if topics is None else [m.MetadataRequestTopic(name=name) for name in topics]
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("few", partitions=2)
        client.ask(m.MetadataRequest(topics=requested_topics and [m.MetadataRequestTopic(name="few")]), 5)
        assert all("network" in name for name in where_it_ran[ApiKey.METADATA])
        where_it_ran.clear()
        broker.create_topic("many", partitions=301)
        client.ask(m.MetadataRequest(topics=requested_topics), 5)
        assert all("request-handler" in name for name in where_it_ran[ApiKey.METADATA])


def test_an_old_fetch_that_waited_is_converted_on_the_pool(where_it_ran):
    with kcore.Broker() as broker, Client(broker) as old, Client(broker) as producer:
        broker.create_topic("t")
        old.send(fetch(max_wait_ms=60_000), 3)
        while not broker.replica_manager.delayed_fetch_purgatory.delayed:
            pass
        producer.ask(produce(), 9)
        response = old.receive(ApiKey.FETCH, 3)
        assert len(response.responses[0].partitions[0].records) > 50_000
    assert ["request-handler" in name for name in where_it_ran[ApiKey.FETCH]] == [True]
    assert ["network" in name for name in where_it_ran[ApiKey.PRODUCE]] == [True]


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_fetch_of_many_partitions_that_waited_is_read_and_answered_on_the_pool(
    where_it_ran, session_epoch, monkeypatch
):
    """Else the producer whose append it waited for would wait for it."""
    readers, read = set(), LocalReads.read_again

    def read_again(manager, *args):
        readers.add(threading.current_thread().name)
        return read(manager, *args)

    monkeypatch.setattr(LocalReads, "read_again", read_again)
    with kcore.Broker() as broker, Client(broker) as reader, Client(broker) as producer:
        broker.create_topic("t")
        broker.create_topic("many", partitions=kafka_apis.MAX_INLINE_ELEMENTS)
        partitions = [f.FetchPartition(partition=n, partition_max_bytes=1) for n in range(300)]
        request = fetch(max_wait_ms=60_000, session_epoch=session_epoch)
        request.topics.append(f.FetchTopic(topic="many", partitions=partitions))
        reader.send(request, 11)
        while not broker.replica_manager.delayed_fetch_purgatory.delayed:
            pass
        producer.ask(produce(), 9)
        response = reader.receive(ApiKey.FETCH, 11)
        assert len(response.responses[0].partitions[0].records) > 50_000
        assert bool(response.session_id) == (session_epoch == 0)
    for names in (readers, where_it_ran[ApiKey.FETCH]):
        assert ["request-handler" in name for name in names] == [True]


def test_a_request_that_adds_a_partition_to_a_large_session_leaves_the_network_thread(where_it_ran):
    """The session is then read as a whole; else only now and then, by a clock that stands still here."""
    with kcore.Broker(time=MockTime()) as broker, Client(broker) as client:
        broker.create_topic("t")
        broker.create_topic("many", partitions=301)
        request = fetch(session_epoch=0)
        request.topics = [f.FetchTopic(topic="many", partitions=[f.FetchPartition(partition=n) for n in range(301)])]
        session_id = client.ask(request, 11).session_id
        steps = [
            ([], [], "request-handler"),
            ([], [], "network"),
            (fetch().topics, [], "request-handler"),
            (fetch().topics, [], "network"),
            ([], [f.ForgottenTopic(topic="t", partitions=[0])], "request-handler"),
        ]
        for epoch, (topics, forgotten, place) in enumerate(steps, 1):
            where_it_ran.clear()
            request = f.FetchRequest(session_id=session_id, session_epoch=epoch, min_bytes=1)
            request.topics, request.forgotten_topics_data = topics, forgotten
            assert client.ask(request, 11).error_code == 0
            assert (epoch, [place in name for name in where_it_ran[ApiKey.FETCH]]) == (epoch, [True])


def test_a_broker_has_no_handler_threads_until_a_request_may_wait():
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("t")
        client.ask(produce(), 9)
        client.ask(fetch(), 11)
        assert not [t.name for t in threading.enumerate() if "request-handler" in t.name]
        client.ask(ListGroupsRequest(), 2)
        assert [t.name for t in threading.enumerate() if "request-handler" in t.name] == ["kcore-request-handler-1-0"]
    assert not [t.name for t in threading.enumerate() if "request-handler" in t.name]


def test_a_default_of_flush_messages_that_changes_moves_produce_to_the_pool_and_back(where_it_ran):
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("t")
        for changes, place in (({}, "network"), ({"log.flush.interval.messages": 1}, "request-handler")):
            where_it_ran.clear()
            broker.config.reconfigure(changes)
            client.ask(produce(), 9)
            assert [place in name for name in where_it_ran[ApiKey.PRODUCE]] == [True]
        broker.config.reconfigure({"log.flush.interval.messages": None})
        where_it_ran.clear()
        client.ask(produce(), 9)
        assert ["network" in name for name in where_it_ran[ApiKey.PRODUCE]] == [True]
