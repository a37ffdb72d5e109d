"""Each served API asks the authorizer for what Kafka's asks, and without permission answers Kafka's error and changes
nothing.  Source: KafkaApis.scala, Kafka 3.9."""

from typing import NamedTuple
from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common.topic_names import GROUP_METADATA_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    NONE,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.api_keys import ApiKey, served_apis
from kcore.protocol.messages import add_partitions_to_txn as apt
from kcore.protocol.messages import alter_client_quotas as acq
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import alter_partition as alter
from kcore.protocol.messages import alter_partition_reassignments as apr
from kcore.protocol.messages import alter_replica_log_dirs as ald
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import delete_records as dr
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import describe_configs as dc
from kcore.protocol.messages import describe_producers as dp
from kcore.protocol.messages import describe_topic_partitions as dtp
from kcore.protocol.messages import elect_leaders as el
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import join_group as jg
from kcore.protocol.messages import leader_and_isr as li
from kcore.protocol.messages import leave_group as lg
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import offset_commit as oc
from kcore.protocol.messages import offset_delete as od
from kcore.protocol.messages import offset_fetch as of
from kcore.protocol.messages import offset_for_leader_epoch as ofle
from kcore.protocol.messages import produce as p
from kcore.protocol.messages import request_class
from kcore.protocol.messages import stop_replica as sr
from kcore.protocol.messages import txn_offset_commit as toc
from kcore.protocol.messages import update_metadata as um
from kcore.protocol.messages import write_txn_markers as wtm
from kcore.security.acl import CLUSTER_NAME, AclOperation, ResourceType
from tests.batches import batch
from tests.unit.server.client import Client
from tests.unit.server.rules_authorizer import Rules, error_codes
from tests.waiting import wait_until

DEADLINE_S = 60
READ, WRITE, CREATE, DELETE, ALTER = (AclOperation(code) for code in range(3, 8))
DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (AclOperation(c) for c in range(8, 13))


def cluster(operation):
    return (operation, ResourceType.CLUSTER, CLUSTER_NAME)


def topic(operation, name="t"):
    return (operation, ResourceType.TOPIC, name)


def transactional_id(operation, name="x"):
    return (operation, ResourceType.TRANSACTIONAL_ID, name)


def group(operation, name="g"):
    return (operation, ResourceType.GROUP, name)


@pytest.fixture(scope="module")
def rules():
    return Rules()


@pytest.fixture(scope="module")
def broker(rules, tmp_path_factory):
    """A member of a cluster of one, with two data directories."""
    dirs = [str(tmp_path_factory.mktemp(name)) for name in ("a", "b")]
    settings = {"log.dirs": ",".join(dirs), "offsets.topic.num.partitions": 1, "auto.leader.rebalance.enable": False}
    store = MemoryStore(executor=lambda call: call())
    with kcore.Broker(store=store, authorizer=rules, telemetry_receiver=print, **settings) as broker:
        wait_until(lambda: broker.cluster_member.is_controller)
        broker.create_topic("t")
        broker.create_topic("victim")
        broker.produce("t", b"a")
        with Client(broker) as client:
            client.ask(request_class(ApiKey.FIND_COORDINATOR)(key="g"), 0)
            wait_until(lambda: not error_codes(client.ask(commit(broker), 8)))
            # The coordinator may answer before the metadata have its topic.
            wait_until(lambda: broker.metadata_cache.topic(GROUP_METADATA_TOPIC) is not None)
            client.ask(commit(broker, "doomed"), 8)
        yield broker
    store.close()


@pytest.fixture
def client(broker):
    with Client(broker) as client:
        yield client


def state(broker):
    """All that a request may change."""
    nodes, paths = {}, ["/"]
    while paths:
        path = paths.pop()
        node = broker.store.get(path)
        if node is not None:
            nodes[path] = node
        paths += [f"{path.rstrip('/')}/{child}" for child in broker.store.children(path)]
    replicas = {
        (hosted.topic_partition, hosted.leader_epoch, hosted.is_leader, log.log_end_offset, log.log_start_offset)
        for hosted in broker.replica_manager.partitions()
        for log in [hosted.local_log()]
    }
    coordinator = broker.group_coordinator
    is_here = coordinator.manager.is_group_local("g")
    groups = coordinator.admin.list_groups()[1], coordinator.offsets.fetch("g", None) if is_here else None
    snapshot = broker.metadata_cache.snapshot
    metadata = {t.name: (t.topic_id, dict(t.partitions)) for t in snapshot.topics()}, set(snapshot.broker_ids())
    log_dirs = [(log_dir.path, log_dir.logs) for log_dir in broker.replica_manager.log_dir_moves.describe()]
    return nodes, replicas, groups, metadata, log_dirs


# -- requests


def produce(broker):
    data = p.PartitionProduceData(index=0, records=batch(b"x"))
    return p.ProduceRequest(acks=1, timeout_ms=5000, topic_data=[p.TopicProduceData(name="t", partition_data=[data])])


def fetch(broker):
    partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return f.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[f.FetchTopic(topic="t", partitions=[partition])])


def commit(broker, group_id="g"):
    partition = oc.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    return oc.OffsetCommitRequest(
        group_id=group_id, topics=[oc.OffsetCommitRequestTopic(name="t", partitions=[partition])]
    )


def controller_header(broker):
    return {
        "controller_id": broker.broker_id,
        "controller_epoch": 1_000_000,
        "broker_epoch": broker.cluster_member.broker_epoch,
    }


def leader_and_isr(broker):
    partition = li.LeaderAndIsrPartitionState(
        partition_index=0, controller_epoch=1, leader=1, leader_epoch=9, isr=[1], replicas=[1], is_new=True
    )
    topics = [li.LeaderAndIsrTopicState(topic_name="by-client", partition_states=[partition])]
    return li.LeaderAndIsrRequest(**controller_header(broker), topic_states=topics)


def stop_replica(broker):
    partition = sr.StopReplicaPartitionState(partition_index=0, leader_epoch=99, delete_partition=True)
    topics = [sr.StopReplicaTopicState(topic_name="t", partition_states=[partition])]
    return sr.StopReplicaRequest(**controller_header(broker), topic_states=topics)


def update_metadata(broker):
    partition = um.UpdateMetadataPartitionState(partition_index=0, leader=-2, controller_epoch=1)
    topics = [um.UpdateMetadataTopicState(topic_name="t", partition_states=[partition])]
    return um.UpdateMetadataRequest(**controller_header(broker), topic_states=topics)


def alter_partition(broker):
    known = broker.metadata_cache.topic("t")
    members = [alter.BrokerState(broker_id=1, broker_epoch=-1)]
    partition = alter.AlterPartitionPartitionData(
        partition_index=0, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=members
    )
    return alter.AlterPartitionRequest(
        broker_id=1,
        broker_epoch=broker.cluster_member.broker_epoch,
        topics=[alter.AlterPartitionTopicData(topic_id=known.topic_id, partitions=[partition])],
    )


def join(broker):
    protocols = [jg.JoinGroupRequestProtocol(name="range", metadata=b"")]
    return jg.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )


def new_topic(broker):
    return ct.CreateTopicsRequest(topics=[ct.CreatableTopic(name="new", num_partitions=1, replication_factor=1)])


def config(resource_type, name):
    setting = iac.AlterableConfig(name="retention.ms", config_operation=0, value="77")
    return iac.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[setting])


def quota(broker):
    entity = [acq.EntityData(entity_type="user", entity_name="alice")]
    op = acq.OpData(key="producer_byte_rate", value=1000.0)
    return acq.AlterClientQuotasRequest(entries=[acq.EntryData(entity=entity, ops=[op])])


def make(api_key, **fields):
    return lambda broker: request_class(api_key)(**fields)


class Case(NamedTuple):
    """request(broker); the version that is sent; the error without any permission, None where what may not be seen is
    left out; asked: of whom may do nothing; enough: permissions, each of which alone is enough; () where the request is
    one that would do harm to the broker of these tests."""

    request: object
    version: int
    error: object
    asked: set
    enough: tuple = ()


LEADERS = [el.TopicPartitions(topic="t", partitions=[0])]
MOVES = [ald.AlterReplicaLogDirTopic(name="t", partitions=[0])]
ANY_ACL = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
ACL = ca.AclCreation(resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3)
GROUP_FIELDS = {"group_id": "g", "member_id": "m", "generation_id": 1}
#: Of a controller's requests this suite sends only what is refused: the broker has a controller, itself.
CASES = {
    ApiKey.PRODUCE: Case(produce, 9, TopicAuthorizationFailed, {topic(WRITE)}, (topic(WRITE),)),
    ApiKey.FETCH: Case(fetch, 12, TopicAuthorizationFailed, {topic(READ)}, (topic(READ),)),
    ApiKey.LIST_OFFSETS: Case(
        make(
            ApiKey.LIST_OFFSETS,
            replica_id=-1,
            topics=[
                lo.ListOffsetsTopic(name="t", partitions=[lo.ListOffsetsPartition(partition_index=0, timestamp=-1)])
            ],
        ),
        7,
        TopicAuthorizationFailed,
        {topic(DESCRIBE)},
        (topic(DESCRIBE),),
    ),
    ApiKey.METADATA: Case(
        make(ApiKey.METADATA, topics=[m.MetadataRequestTopic(name="t")]),
        12,
        TopicAuthorizationFailed,
        {topic(DESCRIBE)},
        (topic(DESCRIBE),),
    ),
    ApiKey.LEADER_AND_ISR: Case(leader_and_isr, 7, ClusterAuthorizationFailed, {cluster(CLUSTER_ACTION)}),
    ApiKey.STOP_REPLICA: Case(stop_replica, 4, ClusterAuthorizationFailed, {cluster(CLUSTER_ACTION)}),
    ApiKey.UPDATE_METADATA: Case(update_metadata, 8, ClusterAuthorizationFailed, {cluster(CLUSTER_ACTION)}),
    ApiKey.CONTROLLED_SHUTDOWN: Case(
        make(ApiKey.CONTROLLED_SHUTDOWN, broker_id=1, broker_epoch=-1),
        3,
        ClusterAuthorizationFailed,
        {cluster(CLUSTER_ACTION)},
    ),
    ApiKey.ALTER_PARTITION: Case(
        alter_partition, 3, ClusterAuthorizationFailed, {cluster(CLUSTER_ACTION)}, (cluster(CLUSTER_ACTION),)
    ),
    ApiKey.ALLOCATE_PRODUCER_IDS: Case(
        lambda broker: request_class(ApiKey.ALLOCATE_PRODUCER_IDS)(
            broker_id=1, broker_epoch=broker.cluster_member.broker_epoch
        ),
        0,
        ClusterAuthorizationFailed,
        {cluster(CLUSTER_ACTION)},
        (cluster(CLUSTER_ACTION),),
    ),
    ApiKey.OFFSET_COMMIT: Case(commit, 8, GroupAuthorizationFailed, {group(READ)}, (group(READ),)),
    ApiKey.OFFSET_FETCH: Case(
        make(ApiKey.OFFSET_FETCH, groups=[of.OffsetFetchRequestGroup(group_id="g", topics=None)]),
        8,
        GroupAuthorizationFailed,
        {group(DESCRIBE)},
        (group(DESCRIBE),),
    ),
    ApiKey.FIND_COORDINATOR: Case(
        make(ApiKey.FIND_COORDINATOR, key="g"), 3, GroupAuthorizationFailed, {group(DESCRIBE)}, (group(DESCRIBE),)
    ),
    ApiKey.JOIN_GROUP: Case(join, 3, GroupAuthorizationFailed, {group(READ)}, (group(READ),)),
    ApiKey.HEARTBEAT: Case(
        make(ApiKey.HEARTBEAT, **GROUP_FIELDS), 4, GroupAuthorizationFailed, {group(READ)}, (group(READ),)
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Case(
        make(ApiKey.CONSUMER_GROUP_HEARTBEAT, group_id="g"),
        1,
        GroupAuthorizationFailed,
        {group(READ)},
        (group(READ),),
    ),
    ApiKey.LEAVE_GROUP: Case(
        make(ApiKey.LEAVE_GROUP, group_id="g", members=[lg.MemberIdentity(member_id="m")]),
        4,
        GroupAuthorizationFailed,
        {group(READ)},
        (group(READ),),
    ),
    ApiKey.SYNC_GROUP: Case(
        make(ApiKey.SYNC_GROUP, **GROUP_FIELDS), 4, GroupAuthorizationFailed, {group(READ)}, (group(READ),)
    ),
    ApiKey.DESCRIBE_GROUPS: Case(
        make(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True),
        4,
        GroupAuthorizationFailed,
        {group(DESCRIBE)},
        (group(DESCRIBE),),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Case(
        make(ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["g"], include_authorized_operations=True),
        1,
        GroupAuthorizationFailed,
        {group(DESCRIBE)},
        (group(DESCRIBE),),
    ),
    ApiKey.LIST_GROUPS: Case(
        make(ApiKey.LIST_GROUPS), 4, None, {cluster(DESCRIBE), group(DESCRIBE), group(DESCRIBE, "doomed")}
    ),
    ApiKey.API_VERSIONS: Case(
        make(ApiKey.API_VERSIONS, client_software_name="test", client_software_version="1"), 3, None, set()
    ),
    ApiKey.CREATE_TOPICS: Case(
        new_topic,
        7,
        TopicAuthorizationFailed,
        {cluster(CREATE), topic(CREATE, "new"), topic(DESCRIBE_CONFIGS, "new")},
        (topic(CREATE, "new"), cluster(CREATE)),
    ),
    ApiKey.DELETE_TOPICS: Case(
        make(ApiKey.DELETE_TOPICS, topics=[dt.DeleteTopicState(name="victim")], timeout_ms=60_000),
        6,
        TopicAuthorizationFailed,
        {topic(DESCRIBE, "victim"), topic(DELETE, "victim")},
        (topic(DELETE, "victim"),),
    ),
    ApiKey.DELETE_RECORDS: Case(
        make(
            ApiKey.DELETE_RECORDS,
            topics=[
                dr.DeleteRecordsTopic(name="t", partitions=[dr.DeleteRecordsPartition(partition_index=0, offset=1)])
            ],
            timeout_ms=60_000,
        ),
        2,
        TopicAuthorizationFailed,
        {topic(DELETE)},
        (topic(DELETE),),
    ),
    ApiKey.INIT_PRODUCER_ID: Case(
        make(ApiKey.INIT_PRODUCER_ID, transactional_id=None),
        4,
        ClusterAuthorizationFailed,
        {cluster(IDEMPOTENT_WRITE), topic(WRITE, "hardcode")},
        (cluster(IDEMPOTENT_WRITE), topic(WRITE, "hardcode")),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(
        make(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            topics=[
                ofle.OffsetForLeaderTopic(
                    topic="t", partitions=[ofle.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                )
            ],
        ),
        4,
        TopicAuthorizationFailed,
        {cluster(CLUSTER_ACTION), topic(DESCRIBE)},
        (cluster(CLUSTER_ACTION), topic(DESCRIBE)),
    ),
    ApiKey.DESCRIBE_CONFIGS: Case(
        make(
            ApiKey.DESCRIBE_CONFIGS,
            resources=[dc.DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)],
        ),
        4,
        TopicAuthorizationFailed,
        {topic(DESCRIBE_CONFIGS)},
        (topic(DESCRIBE_CONFIGS),),
    ),
    ApiKey.DESCRIBE_ACLS: Case(
        make(ApiKey.DESCRIBE_ACLS, **ANY_ACL), 3, ClusterAuthorizationFailed, {cluster(DESCRIBE)}, (cluster(DESCRIBE),)
    ),
    ApiKey.CREATE_ACLS: Case(
        make(ApiKey.CREATE_ACLS, creations=[ACL]), 3, ClusterAuthorizationFailed, {cluster(ALTER)}, (cluster(ALTER),)
    ),
    ApiKey.DELETE_ACLS: Case(
        make(ApiKey.DELETE_ACLS, filters=[da.DeleteAclsFilter(**ANY_ACL)]),
        3,
        ClusterAuthorizationFailed,
        {cluster(ALTER)},
        (cluster(ALTER),),
    ),
    ApiKey.ALTER_CONFIGS: Case(
        make(
            ApiKey.ALTER_CONFIGS,
            resources=[
                ac.AlterConfigsResource(
                    resource_type=2, resource_name="t", configs=[ac.AlterableConfig(name="retention.ms", value="77")]
                )
            ],
        ),
        2,
        TopicAuthorizationFailed,
        {topic(ALTER_CONFIGS)},
        (topic(ALTER_CONFIGS),),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Case(
        lambda broker: ald.AlterReplicaLogDirsRequest(
            dirs=[ald.AlterReplicaLogDir(path=path, topics=MOVES) for path in broker.config.data_dirs]
        ),
        2,
        ClusterAuthorizationFailed,
        {cluster(ALTER)},
        (cluster(ALTER),),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Case(
        make(ApiKey.DESCRIBE_LOG_DIRS, topics=None),
        4,
        ClusterAuthorizationFailed,
        {cluster(DESCRIBE)},
        (cluster(DESCRIBE),),
    ),
    ApiKey.CREATE_PARTITIONS: Case(
        make(
            ApiKey.CREATE_PARTITIONS,
            topics=[cp.CreatePartitionsTopic(name="t", count=2, assignments=None)],
            timeout_ms=60_000,
        ),
        3,
        TopicAuthorizationFailed,
        {topic(ALTER)},
        (topic(ALTER),),
    ),
    ApiKey.DELETE_GROUPS: Case(
        make(ApiKey.DELETE_GROUPS, groups_names=["doomed"]),
        2,
        GroupAuthorizationFailed,
        {group(DELETE, "doomed")},
        (group(DELETE, "doomed"),),
    ),
    ApiKey.ELECT_LEADERS: Case(
        make(ApiKey.ELECT_LEADERS, topic_partitions=LEADERS),
        2,
        ClusterAuthorizationFailed,
        {cluster(ALTER)},
        (cluster(ALTER),),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(
        make(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[config(2, "t")]),
        1,
        TopicAuthorizationFailed,
        {topic(ALTER_CONFIGS)},
        (topic(ALTER_CONFIGS),),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(
        make(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            topics=[
                apr.ReassignableTopic(name="t", partitions=[apr.ReassignablePartition(partition_index=0, replicas=[1])])
            ],
        ),
        0,
        ClusterAuthorizationFailed,
        {cluster(ALTER)},
        (cluster(ALTER),),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        make(ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=None),
        0,
        ClusterAuthorizationFailed,
        {cluster(DESCRIBE)},
        (cluster(DESCRIBE),),
    ),
    ApiKey.OFFSET_DELETE: Case(
        make(
            ApiKey.OFFSET_DELETE,
            group_id="g",
            topics=[
                od.OffsetDeleteRequestTopic(name="t", partitions=[od.OffsetDeleteRequestPartition(partition_index=0)])
            ],
        ),
        0,
        GroupAuthorizationFailed,
        {group(DELETE)},
        (group(DELETE),),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Case(
        make(ApiKey.DESCRIBE_CLIENT_QUOTAS),
        1,
        ClusterAuthorizationFailed,
        {cluster(DESCRIBE_CONFIGS)},
        (cluster(DESCRIBE_CONFIGS),),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Case(
        quota, 1, ClusterAuthorizationFailed, {cluster(ALTER_CONFIGS)}, (cluster(ALTER_CONFIGS),)
    ),
    ApiKey.DESCRIBE_CLUSTER: Case(
        make(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True), 1, None, {cluster(DESCRIBE)}
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Case(
        make(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS),
        0,
        ClusterAuthorizationFailed,
        {cluster(DESCRIBE)},
        (cluster(DESCRIBE),),
    ),
    ApiKey.UPDATE_FEATURES: Case(
        make(ApiKey.UPDATE_FEATURES), 1, ClusterAuthorizationFailed, {cluster(ALTER)}, (cluster(ALTER),)
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Case(
        make(ApiKey.LIST_CONFIG_RESOURCES),
        1,
        ClusterAuthorizationFailed,
        {cluster(DESCRIBE_CONFIGS)},
        (cluster(DESCRIBE_CONFIGS),),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(
        make(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[dtp.TopicRequest(name="t")]),
        0,
        TopicAuthorizationFailed,
        {topic(DESCRIBE)},
        (topic(DESCRIBE),),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Case(
        make(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id="x",
            v3_and_below_topics=[apt.AddPartitionsToTxnTopic(name="t", partitions=[0])],
        ),
        3,
        TransactionalIdAuthorizationFailed,
        {transactional_id(WRITE)},
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Case(
        make(ApiKey.ADD_OFFSETS_TO_TXN, transactional_id="x", group_id="g"),
        3,
        TransactionalIdAuthorizationFailed,
        {transactional_id(WRITE)},
    ),
    ApiKey.END_TXN: Case(
        make(ApiKey.END_TXN, transactional_id="x"),
        3,
        TransactionalIdAuthorizationFailed,
        {transactional_id(WRITE)},
        (transactional_id(WRITE),),
    ),
    ApiKey.WRITE_TXN_MARKERS: Case(
        make(
            ApiKey.WRITE_TXN_MARKERS,
            markers=[
                wtm.WritableTxnMarker(
                    producer_id=1, topics=[wtm.WritableTxnMarkerTopic(name="t", partition_indexes=[0])]
                )
            ],
        ),
        1,
        ClusterAuthorizationFailed,
        {cluster(ALTER), cluster(CLUSTER_ACTION)},
        (cluster(ALTER), cluster(CLUSTER_ACTION)),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Case(
        make(
            ApiKey.TXN_OFFSET_COMMIT,
            transactional_id="x",
            group_id="g",
            topics=[
                toc.TxnOffsetCommitRequestTopic(
                    name="t", partitions=[toc.TxnOffsetCommitRequestPartition(partition_index=0)]
                )
            ],
        ),
        3,
        TransactionalIdAuthorizationFailed,
        {transactional_id(WRITE)},
    ),
    ApiKey.DESCRIBE_PRODUCERS: Case(
        make(ApiKey.DESCRIBE_PRODUCERS, topics=[dp.TopicRequest(name="t", partition_indexes=[0])]),
        0,
        TopicAuthorizationFailed,
        {topic(READ)},
        (topic(READ),),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Case(
        make(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["x"]),
        0,
        TransactionalIdAuthorizationFailed,
        {transactional_id(DESCRIBE)},
        (transactional_id(DESCRIBE),),
    ),
    ApiKey.LIST_TRANSACTIONS: Case(make(ApiKey.LIST_TRANSACTIONS), 1, None, set()),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Case(make(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS), 0, None, set()),
    # For no metrics every five minutes: see test_client_telemetry.py.
    ApiKey.PUSH_TELEMETRY: Case(
        make(
            ApiKey.PUSH_TELEMETRY,
            client_instance_id=UUID("0123456789abcdef8fedcba987654321"),
            subscription_id=1422351326,
        ),
        0,
        None,
        set(),
    ),
}


def test_each_served_api_has_a_case_here():
    assert CASES.keys() == served_apis(is_cluster_member=True, has_telemetry=True).keys()


@pytest.mark.parametrize("api_key", CASES, ids=lambda api_key: api_key.name)
def test_without_permission_each_request_is_refused_and_changes_nothing(broker, rules, client, api_key):
    case = CASES[api_key]
    before = state(broker)
    rules.asked.clear()
    rules.allowed = set()
    try:
        response = client.ask(case.request(broker), case.version)
    finally:
        rules.allowed = None
    assert error_codes(response) == ({case.error.code} if case.error is not None else set())
    assert rules.asked == case.asked
    assert state(broker) == before


@pytest.mark.parametrize(
    ("api_key", "permission"),
    [(api_key, permission) for api_key, case in CASES.items() for permission in case.enough],
    ids=lambda value: value.name if isinstance(value, ApiKey) else "_".join(map(str, value[::2])),
)
def test_one_permission_is_enough(broker, rules, client, api_key, permission):
    case = CASES[api_key]
    rules.allowed = {permission}
    try:
        response = client.ask(case.request(broker), case.version)
    finally:
        rules.allowed = None
    resource_error = {
        TopicAuthorizationFailed.code,
        GroupAuthorizationFailed.code,
        ClusterAuthorizationFailed.code,
        TransactionalIdAuthorizationFailed.code,
    }
    # A commit needs the topic too.
    needs_topic = api_key in (ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE)
    assert error_codes(response) & resource_error == ({TopicAuthorizationFailed.code} if needs_topic else set())


# -- API-01, API-06, API-07


def test_API_01_leader_and_isr_without_the_cluster_action_permission_is_refused_and_changes_nothing(tmp_path):
    rules = Rules(allowed={cluster(operation) for operation in AclOperation if operation is not CLUSTER_ACTION})
    store = MemoryStore(executor=lambda call: call())
    with kcore.Broker(str(tmp_path), store=store, authorizer=rules) as broker, Client(broker) as client:
        wait_until(lambda: broker.cluster_member.is_controller and broker.metadata_cache.snapshot.broker_ids())
        before = state(broker)[1:]
        for version in range(8):
            request = leader_and_isr(broker)
            if version < 2:
                (states,), request.topic_states = request.topic_states, []
                request.ungrouped_partition_states = states.partition_states
                request.ungrouped_partition_states[0].topic_name = "by-client"
            response = client.ask(request, version)
            assert response.error_code == ClusterAuthorizationFailed.code
            assert error_codes(response) == {ClusterAuthorizationFailed.code}
        assert state(broker)[1:] == before
        # With the permission the same request, of a controller epoch that was not taken over before, makes a leader.
        rules.allowed = {cluster(CLUSTER_ACTION)}
        assert client.ask(leader_and_isr(broker), 7).error_code == 0
        assert broker.replica_manager.get_partition(TopicPartition("by-client", 0)).is_leader
    store.close()


def fetch_request(broker, version, names, replica_id=-1, **session):
    """A Fetch of partition 0 of each topic, by name or by id."""
    topics = []
    for name in names:
        partition = f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        by = {"topic": name} if version < 13 else {"topic_id": broker.metadata_cache.topic_id(name)}
        topics.append(f.FetchTopic(**by, partitions=[partition]))
    request = f.FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics, **session)
    if version < 15:
        request.replica_id = replica_id
    else:
        request.replica_state = f.ReplicaState(replica_id=replica_id)
    return request


def partition_codes(broker, response):
    names = {topic.topic_id: topic.name for topic in broker.metadata_cache.topics()}
    return {
        topic.topic or names.get(topic.topic_id): (partition.error_code, bool(partition.records))
        for topic in response.responses
        for partition in topic.partitions
    }


DENIED = (TopicAuthorizationFailed.code, False)
READ_ONE = (0, True)


@pytest.fixture(scope="module")
def topics(broker):
    """Topics with a record each, more than a session reads in one go."""
    names = ["fetched-0", "fetched-1", "fetched-2", "fetched-3"]
    for name in names:
        broker.create_topic(name)
        broker.produce(name, b"a")
    return names


@pytest.fixture
def only(rules):
    """only(permission, ...): from now on to the end of the test nothing else is allowed."""
    yield lambda *permissions: setattr(rules, "allowed", set(permissions))
    rules.allowed = None


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("version", [*range(7), 12, 13, 18])
def test_API_06_a_followers_fetch_without_the_cluster_action_permission_gets_no_partition(
    broker, client, topics, only, version, session_epoch
):
    only(*(topic(READ, name) for name in topics))
    request = fetch_request(broker, version, topics, replica_id=7, session_epoch=session_epoch if version >= 7 else -1)
    response = client.ask(request, version)
    assert response.error_code == 0
    assert partition_codes(broker, response) == dict.fromkeys(topics, DENIED)
    only(cluster(CLUSTER_ACTION))
    codes = {code for code, _ in partition_codes(broker, client.ask(request, version)).values()}
    assert TopicAuthorizationFailed.code not in codes


@pytest.mark.parametrize("session_epoch", [-1, 0])
@pytest.mark.parametrize("version", [*range(7), 12, 13, 18])
def test_API_07_a_consumers_fetch_reads_the_topics_that_it_may_read_and_no_others(
    broker, client, topics, only, version, session_epoch
):
    only(topic(READ, topics[1]), *(topic(DESCRIBE, name) for name in topics), cluster(CLUSTER_ACTION))
    request = fetch_request(broker, version, topics, session_epoch=session_epoch if version >= 7 else -1)
    response = client.ask(request, version)
    assert partition_codes(broker, response) == dict.fromkeys(topics, DENIED) | {topics[1]: READ_ONE}


def test_API_07_what_the_client_may_not_read_it_does_not_learn_the_existence_of(broker, client, topics, only):
    only(topic(READ, topics[0]))
    request = fetch_request(broker, 12, [topics[0], topics[1], "no-such-topic"])
    codes = partition_codes(broker, client.ask(request, 12))
    assert codes == {topics[0]: READ_ONE, topics[1]: DENIED, "no-such-topic": DENIED}
    unknown = f.FetchTopic(
        topic_id=UUID(int=5), partitions=[f.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
    )
    by_id = f.FetchRequest(max_wait_ms=0, min_bytes=0, topics=[unknown])
    assert error_codes(client.ask(by_id, 13)) == {errors.UnknownTopicId.code}


@pytest.mark.parametrize("version", [12, 13])
def test_API_07_in_a_session_a_permission_counts_at_each_fetch(broker, client, topics, only, version):
    may_read = [topic(READ, name) for name in topics]
    only(*may_read)
    response = client.ask(fetch_request(broker, version, topics, session_epoch=0), version)
    session_id = response.session_id
    assert partition_codes(broker, response) == dict.fromkeys(topics, READ_ONE)
    seen = []
    for epoch, allowed in enumerate([may_read, may_read[1:], [], may_read], 1):
        only(*allowed)
        # Nothing is named: the partitions are the session's.
        request = f.FetchRequest(max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch)
        seen.append(partition_codes(broker, client.ask(request, version)))
    everything, nothing = dict.fromkeys(topics, READ_ONE), dict.fromkeys(topics, DENIED)
    assert seen == [everything, everything | {topics[0]: DENIED}, nothing, everything]


def test_API_07_an_idle_partition_is_not_read_by_a_waiting_fetch_once_the_permission_has_gone(
    broker, client, topics, only
):
    only(*(topic(READ, name) for name in topics))
    request = fetch_request(broker, 12, topics, session_epoch=0)
    for asked in request.topics:
        asked.partitions[0].fetch_offset = broker.log(asked.topic).log_end_offset
    session_id = client.ask(request, 12).session_id
    for epoch in (1, 2):  # the session learns that all are idle
        client.ask(f.FetchRequest(max_wait_ms=0, min_bytes=1, session_id=session_id, session_epoch=epoch), 12)
    only(*(topic(READ, name) for name in topics[1:]))
    waiting = f.FetchRequest(max_wait_ms=DEADLINE_S * 1000, min_bytes=1, session_id=session_id, session_epoch=3)
    client.send(waiting, 12)
    broker.produce(topics[0], b"secret")
    broker.produce(topics[1], b"b")
    codes = partition_codes(broker, client.receive(ApiKey.FETCH, 12))
    assert codes[topics[0]] == DENIED


# -- transactions


@pytest.mark.parametrize("version", range(1, 5))
def test_TXN_03_the_coordinator_of_an_id_is_told_to_who_may_describe_it(client, only, version):
    find = request_class(ApiKey.FIND_COORDINATOR)
    only(transactional_id(DESCRIBE, "mine"))
    if version < 4:
        codes = [client.ask(find(key=key, key_type=1), version).error_code for key in ("mine", "other")]
    else:
        answer = client.ask(find(coordinator_keys=["mine", "other"], key_type=1), version)
        codes = [coordinator.error_code for coordinator in answer.coordinators]
    # The topic of the coordinator may be being made.
    assert codes[0] in (NONE, CoordinatorNotAvailable.code)
    assert codes[1] == TransactionalIdAuthorizationFailed.code


@pytest.mark.parametrize("version", range(5))
def test_TXN_44_offsets_are_added_by_who_may_write_with_the_id_and_read_the_group(client, only, version):
    request = request_class(ApiKey.ADD_OFFSETS_TO_TXN)(transactional_id="x", group_id="g")
    only(group(READ))
    assert client.ask(request, version).error_code == TransactionalIdAuthorizationFailed.code
    only(transactional_id(WRITE))
    assert client.ask(request, version).error_code == GroupAuthorizationFailed.code
    only(transactional_id(WRITE), group(READ))
    assert client.ask(request, version).error_code not in (
        TransactionalIdAuthorizationFailed.code,
        GroupAuthorizationFailed.code,
    )


@pytest.mark.parametrize("version", range(6))
def test_TXN_79_a_producer_with_an_id_needs_the_right_to_write_with_it_and_no_other(client, only, version):
    init = request_class(ApiKey.INIT_PRODUCER_ID)
    idempotent = init(transactional_id=None, transaction_timeout_ms=60_000)
    transactional = init(transactional_id="x", transaction_timeout_ms=60_000)
    refused = ClusterAuthorizationFailed.code, TransactionalIdAuthorizationFailed.code
    for allowed, expected in (
        ((), refused),
        ((cluster(IDEMPOTENT_WRITE),), (NONE, refused[1])),
        ((topic(READ),), refused),
    ):
        only(*allowed)
        codes = client.ask(idempotent, version).error_code, client.ask(transactional, version).error_code
        assert codes == expected, allowed
    only(transactional_id(WRITE))
    assert client.ask(idempotent, version).error_code == refused[0]
    assert client.ask(transactional, version).error_code not in refused
