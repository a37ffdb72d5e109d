"""Requests that only wait for a lock keep no thread from others (decision 9).

A creation of a topic holds AdminManager's lock until all its partitions are there: here until the test opens a gate.
"""

import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import InvalidTopicException
from kcore.metadata.producer_ids import ProducerIdManager
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import alter_client_quotas as acq
from kcore.protocol.messages import alter_configs as ac
from kcore.protocol.messages import alter_replica_log_dirs as ard
from kcore.protocol.messages import create_acls as ca
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_acls as da
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import fetch as f
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import incremental_alter_configs as iac
from kcore.protocol.messages import list_offsets as lo
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages.describe_groups import DescribeGroupsRequest
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.protocol.messages.list_groups import ListGroupsRequest
from kcore.server.quotas.client_quota_manager import QuotaEntity
from kcore.server.quotas.client_quotas import ClientQuotas
from kcore.server.quotas.stored_client_quotas import QuotaChange
from kcore.server.requests import kafka_apis
from kcore.server.requests.request_handler_pool import RunsOn
from kcore.server.topics.local_controller import LocalController
from tests.unit.server.client import Client

TOPIC, BROKER = 2, 4


@contextmanager
def held_up(monkeypatch, owner, name):
    """Calls of a method wait until open() is called, or the block ends.  Yields (an event: one is waiting; open)."""
    is_reached, may_go_on = threading.Event(), threading.Event()
    method = getattr(owner, name)

    def wait_and_call(*args, **kwargs):
        is_reached.set()
        assert may_go_on.wait(60)
        return method(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, wait_and_call)
        try:
            yield is_reached, may_go_on.set
        finally:
            may_go_on.set()


def await_waiting(broker, runs_on, count):
    waiting = broker.running.apis._pool._lanes[runs_on]._waiting
    deadline = time.monotonic() + 60
    while len(waiting) != count:
        assert time.monotonic() < deadline, f"{len(waiting)} of {count} requests wait on {runs_on}"
        time.sleep(0.002)


def create_topics(*names, **fields):
    topics = [ct.CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
    return ct.CreateTopicsRequest(topics=topics, timeout_ms=60_000, **fields)


def alter_topic(name):
    config = iac.AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resource = iac.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return iac.IncrementalAlterConfigsRequest(resources=[resource])


def alter_broker():
    config = iac.AlterableConfig(name="log.retention.ms", config_operation=0, value="5")
    resource = iac.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[config])
    return iac.IncrementalAlterConfigsRequest(resources=[resource])


def alter_quota(user="somebody"):
    op = acq.OpData(key="producer_byte_rate", value=1e9, remove=False)
    entry = acq.EntryData(entity=[acq.EntityData(entity_type="user", entity_name=user)], ops=[op])
    return acq.AlterClientQuotasRequest(entries=[entry], validate_only=False)


def create_acl():
    fields = {"resource_type": TOPIC, "resource_name": "there", "principal": "User:a", "host": "*"}
    return ca.CreateAclsRequest(creations=[ca.AclCreation(**fields, operation=3, permission_type=3)])


def requests_for_topic_changes():
    """(request, version) of what takes AdminManager's lock, or ReplicaManager's."""
    yield create_topics("small"), 5
    yield create_topics("only-validated", validate_only=True), 5
    grown = cp.CreatePartitionsTopic(name="there", count=3, assignments=None)
    yield cp.CreatePartitionsRequest(topics=[grown], timeout_ms=60_000), 1
    yield dt.DeleteTopicsRequest(topic_names=["gone"], timeout_ms=60_000), 3
    yield alter_topic("there"), 1
    replaced = ac.AlterConfigsResource(resource_type=TOPIC, resource_name="there", configs=[])
    yield ac.AlterConfigsRequest(resources=[replaced]), 1
    both = alter_broker()
    both.resources += alter_topic("there").resources
    yield both, 1
    yield ard.AlterReplicaLogDirsRequest(dirs=[]), 1
    yield m.MetadataRequest(topics=[m.MetadataRequestTopic(name="created-for-metadata")]), 5
    # Too large to be decoded on the network thread.
    many = [m.MetadataRequestTopic(name="there") for _ in range(kafka_apis.MAX_INLINE_ELEMENTS)]
    yield m.MetadataRequest(topics=[*many, m.MetadataRequestTopic(name="created-by-a-large-request")]), 5
    yield fc.FindCoordinatorRequest(key="group"), 1


def init_producer_id():
    return InitProducerIdRequest(transactional_id=None)


def requests_for_the_pool():
    partitions = [f.FetchPartition(partition=n % 2, partition_max_bytes=1) for n in range(301)]
    yield f.FetchRequest(max_wait_ms=0, topics=[f.FetchTopic(topic="there", partitions=partitions)]), 11
    times = [lo.ListOffsetsPartition(partition_index=0, timestamp=1_700_000_000_000)]
    yield lo.ListOffsetsRequest(replica_id=-1, topics=[lo.ListOffsetsTopic(name="there", partitions=times)]), 5
    yield DescribeGroupsRequest(groups=[]), 2
    yield ListGroupsRequest(), 2


def requests_for_setting_changes():
    yield alter_broker(), 1
    yield (
        ac.AlterConfigsRequest(
            resources=[ac.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[])]
        ),
        1,
    )
    yield alter_quota(), 1
    yield create_acl(), 1
    every = {"resource_type_filter": TOPIC, "resource_name_filter": "there", "operation": 1, "permission_type": 1}
    yield da.DeleteAclsRequest(filters=[da.DeleteAclsFilter(**every)]), 1


def error_codes(value):
    """Every error code anywhere in a response."""
    if isinstance(value, list):
        return {code for item in value for code in error_codes(item)}
    slots = getattr(type(value), "__slots__", ())
    codes = {value.error_code} if "error_code" in slots else set()
    return codes.union(*(error_codes(getattr(value, name)) for name in slots))


@pytest.fixture
def broker():
    settings = {"authorizer.class.name": "kcore.StoredAclAuthorizer", "super.users": "User:ANONYMOUS"}
    with kcore.Broker(**settings) as broker:
        for name in ("there", "gone"):
            broker.create_topic(name, partitions=2)
        yield broker


def test_a_creation_and_the_requests_that_wait_for_it_keep_no_others_waiting(broker, monkeypatch):
    with ExitStack() as stack:
        is_reached, open_gate = stack.enter_context(held_up(monkeypatch, LocalController, "create_topic"))
        first = stack.enter_context(Client(broker))
        first.send(create_topics("large"), 5)
        assert is_reached.wait(60)
        waiting = []
        for request, version in requests_for_topic_changes():
            client = stack.enter_context(Client(broker))
            client.send(request, version)
            waiting.append((client, request.api_key, version))
            await_waiting(broker, RunsOn.TOPIC_CHANGES, len(waiting))
        with Client(broker) as impatient:
            impatient.send(create_topics("of-a-client-that-is-gone"), 5)
            await_waiting(broker, RunsOn.TOPIC_CHANGES, len(waiting) + 1)
        await_waiting(broker, RunsOn.TOPIC_CHANGES, len(waiting))

        other = stack.enter_context(Client(broker))
        others = (init_producer_id(), 1), *requests_for_the_pool(), *requests_for_setting_changes()
        for request, version in others:
            assert error_codes(other.ask(request, version)) <= {0}, ApiKey(request.api_key).name
        assert broker.metadata_cache.topic("large") is None

        open_gate()
        for client, api_key, version in [(first, ApiKey.CREATE_TOPICS, 5), *waiting]:
            assert error_codes(client.receive(api_key, version)) <= {0}, ApiKey(api_key).name
        created = {"large", "small", "created-for-metadata", "created-by-a-large-request", "__consumer_offsets"}
        assert {topic.name for topic in broker.metadata_cache.snapshot.topics()} == {"there", *created}


def test_QUOTA_07_what_a_request_waits_for_another_does_not_count_toward_a_request_quota(broker, monkeypatch):
    quotas, clock, counted = broker.running.services.client_quotas, MockTime(), []
    broker.running.services.stored_client_quotas.alter(
        QuotaEntity(None, "waits"), [QuotaChange("request_percentage", 1e9)]
    )

    def record(user, client_id, amount):
        if client_id == "waits":
            counted.append(amount)
        return 0

    with ExitStack() as stack:
        is_reached, open_gate = stack.enter_context(held_up(monkeypatch, LocalController, "create_topic"))
        first = stack.enter_context(Client(broker))
        first.send(create_topics("large"), 5)
        assert is_reached.wait(60)
        monkeypatch.setattr(quotas, "time", clock)
        monkeypatch.setattr(quotas.request, "record", record)
        waiting = []
        for request, version in requests_for_topic_changes():
            client = stack.enter_context(Client(broker, "waits"))
            client.send(request, version)
            waiting.append((client, request.api_key, version))
            await_waiting(broker, RunsOn.TOPIC_CHANGES, len(waiting))
        clock.sleep(5000)
        open_gate()
        for client, api_key, version in waiting:
            client.receive(api_key, version)
    assert counted == [0] * len(waiting)


def test_changes_of_settings_that_wait_for_one_another_keep_no_others_waiting(broker, monkeypatch):
    with ExitStack() as stack:
        # It holds the lock of the quotas; its store calls may take as long as a store that cannot be reached.
        is_reached, open_gate = stack.enter_context(held_up(monkeypatch, ClientQuotas, "use"))
        waiting = []
        for request, version in ((alter_quota("first"), 1), *requests_for_setting_changes()):
            client = stack.enter_context(Client(broker))
            client.send(request, version)
            assert is_reached.wait(60)
            await_waiting(broker, RunsOn.SETTING_CHANGES, len(waiting))
            waiting.append((client, request.api_key, version))
        other = stack.enter_context(Client(broker))
        for request, version in ((init_producer_id(), 1), *requests_for_the_pool(), *requests_for_topic_changes()):
            assert error_codes(other.ask(request, version)) <= {0}, ApiKey(request.api_key).name
        assert not broker.running.services.client_quotas.entities

        open_gate()
        for client, api_key, version in waiting:
            assert error_codes(client.receive(api_key, version)) <= {0}, ApiKey(api_key).name
        assert len(broker.running.services.client_quotas.entities) == 2


def test_producers_that_wait_for_more_ids_keep_no_others_waiting(broker, monkeypatch):
    with ExitStack() as stack:
        is_reached, open_gate = stack.enter_context(held_up(monkeypatch, ProducerIdManager, "allocate_block"))
        clients = [stack.enter_context(Client(broker)) for _ in range(6)]
        for number, client in enumerate(clients):
            client.send(init_producer_id(), 1)
            assert is_reached.wait(60)
            await_waiting(broker, RunsOn.PRODUCER_IDS, number)
        other = stack.enter_context(Client(broker))
        for request, version in (*requests_for_the_pool(), *requests_for_topic_changes()):
            assert error_codes(other.ask(request, version)) <= {0}, ApiKey(request.api_key).name
        await_waiting(broker, RunsOn.PRODUCER_IDS, len(clients) - 1)

        open_gate()
        answers = [client.receive(ApiKey.INIT_PRODUCER_ID, 1) for client in clients]
        assert [answer.error_code for answer in answers] == [0] * len(clients)
        assert len({answer.producer_id for answer in answers}) == len(clients)


@pytest.mark.parametrize("name", ["no/topic", ""])
def test_a_name_that_no_topic_can_have_waits_for_no_creation(broker, monkeypatch, name):
    with ExitStack() as stack:
        is_reached, _ = stack.enter_context(held_up(monkeypatch, LocalController, "create_topic"))
        first, other = stack.enter_context(Client(broker)), stack.enter_context(Client(broker))
        first.send(create_topics("large"), 5)
        assert is_reached.wait(60)
        response = other.ask(m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)]), 5)
        assert [topic.error_code for topic in response.topics] == [InvalidTopicException.code]
