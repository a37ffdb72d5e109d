"""What a member of a cluster answers while its store is away or refuses a call."""

import logging

import pytest

from kcore import errors
from kcore.metadata.store import (
    BadVersion,
    ConnectionLost,
    InvalidPath,
    MultiFailed,
    MultiTooLarge,
    NoNode,
    NotAllowed,
    QuotaExceeded,
    SessionExpired,
    StoreClosed,
    StoreError,
)
from kcore.protocol.messages import alter_client_quotas as cq
from kcore.protocol.messages import create_partitions as cp
from kcore.protocol.messages import create_topics as ct
from kcore.protocol.messages import delete_topics as dt
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest
from kcore.server.handlers import describe_cluster
from tests.unit.server.client import Client
from tests.unit.server.member.conftest import with_broker_2
from tests.waiting import wait_until


@pytest.fixture
def away(broker, controller, store):
    """The broker, with topic t in its metadata, when its store has gone away."""
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    broker.cluster_member.controller.is_active = True
    store.disconnect()
    yield broker
    store.reconnect()


def test_without_the_store_only_the_topic_that_is_to_be_created_has_an_error_in_the_metadata(away, caplog):
    """All topics had UNKNOWN_SERVER_ERROR, and there were no brokers; each time with a traceback in the log."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name) for name in ("t", "new")])
    with Client(away) as client:
        for _ in range(3):
            response = client.ask(request, 5)
            assert {t.name: t.error_code for t in response.topics} == {"t": 0, "new": errors.LeaderNotAvailable.code}
            assert [broker.node_id for broker in response.brokers] == [1, 2]
    (record,) = [record for record in caplog.records if "new" in record.getMessage()]
    assert record.levelname == "WARNING" and record.exc_info is None


def test_without_the_store_an_idempotent_producer_is_to_ask_for_its_id_again(away, caplog):
    """UNKNOWN_SERVER_ERROR ends such a producer."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    with Client(away) as client:
        for _ in range(3):  # producers ask again and again
            response = client.ask(request, 4)
            assert (response.error_code, response.producer_id) == (errors.CoordinatorLoadInProgress.code, -1)
        away.store.reconnect()
        with caplog.at_level(logging.INFO):
            assert client.ask(request, 4).error_code == 0
    records = [record for record in caplog.records if record.name.endswith("producer_ids")]
    assert [record.levelname for record in records] == ["WARNING", "INFO"]
    assert not [record for record in caplog.records if record.exc_info]


def test_without_the_store_a_change_of_topics_is_answered_with_an_error_that_names_the_store(away, caplog):
    new = ct.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    setting = AlterableConfig(name="retention.ms", config_operation=0, value="1")
    altered = AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    with Client(away) as client:
        answers = [
            client.ask(ct.CreateTopicsRequest(topics=[new]), 5).topics,
            client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results,
            client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses,
            client.ask(IncrementalAlterConfigsRequest(resources=[altered]), 1).responses,
        ]
    for (answer,) in answers:
        assert answer.error_code == errors.RequestTimedOut.code
        assert "metadata store cannot be reached" in answer.error_message
    records = [r for r in caplog.records if "metadata store cannot be reached" in r.getMessage()]
    assert [(r.levelname, r.exc_info) for r in records] == [("WARNING", None)] * 4


@pytest.mark.parametrize(
    ("failure", "expected", "id_error"),
    [
        (SessionExpired("session 7"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (StoreClosed("cluster.db"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (BadVersion("/brokers/topics/t"), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (MultiFailed(1, NoNode("/brokers")), errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (NotAllowed("/brokers/topics"), errors.ClusterAuthorizationFailed, errors.ClusterAuthorizationFailed),
        (MultiTooLarge("2000 operations"), errors.PolicyViolation, errors.PolicyViolation),
        (QuotaExceeded("/brokers"), errors.PolicyViolation, errors.PolicyViolation),
        (InvalidPath("/a/."), errors.InvalidRequest, errors.InvalidRequest),
        (StoreError("/brokers: ZooKeeper answers MarshallingError"), errors.UnknownServerError, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, StoreError) else "",
)
def test_each_error_of_the_store_is_answered_with_a_fitting_one_and_no_traceback(
    broker, controller, store, monkeypatch, caplog, failure, expected, id_error
):
    controller.update_metadata({"t": {0: {}}}, with_broker_2(broker))
    broker.cluster_member.controller.is_active = True

    def fail(*args):
        raise failure

    new = ct.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    grown = cp.CreatePartitionsTopic(name="t", count=3, assignments=None)
    setting = AlterableConfig(name="retention.ms", config_operation=0, value="1")
    altered = AlterConfigsResource(resource_type=2, resource_name="t", configs=[setting])
    client_id = cq.EntityData(entity_type="client-id", entity_name="c")
    quota = cq.EntryData(entity=[client_id], ops=[cq.OpData(key="producer_byte_rate", value=1.0, remove=False)])
    with monkeypatch.context() as patch, Client(broker) as client:
        for name in ("get", "children", "multi", "get_many", "multi_many", "update"):
            patch.setattr(store, name, fail)
        answers = [
            client.ask(ct.CreateTopicsRequest(topics=[new]), 5).topics,
            client.ask(cp.CreatePartitionsRequest(topics=[grown]), 1).results,
            client.ask(dt.DeleteTopicsRequest(topic_names=["t"]), 5).responses,
            client.ask(IncrementalAlterConfigsRequest(resources=[altered]), 1).responses,
            client.ask(cq.AlterClientQuotasRequest(entries=[quota]), 0).entries,
        ]
        producer_id = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        block = client.ask(AllocateProducerIdsRequest(broker_id=2, broker_epoch=1), 0)
        request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name="new")])
        (topic,) = client.ask(request, 5).topics
    for (answer,) in answers:
        assert answer.error_code == expected.code
        assert "metadata" in answer.error_message and str(getattr(failure, "cause", failure)) in answer.error_message
    assert producer_id.error_code == (id_error or expected).code
    assert block.error_code in (expected.code, errors.NotController.code)
    assert topic.error_code == errors.LeaderNotAvailable.code
    assert not [record for record in caplog.records if record.exc_info]


def test_an_error_of_the_store_that_a_handler_does_not_expect_is_answered_without_a_traceback(
    broker, monkeypatch, caplog
):
    def fail(*args):
        raise ConnectionLost("zookeeper:2181")

    with Client(broker) as client:
        client.ask(DescribeClusterRequest(), 0)
        monkeypatch.setattr(describe_cluster.Handler, "handle", fail)
        assert client.ask(DescribeClusterRequest(), 0).error_code == errors.RequestTimedOut.code
    (record,) = [record for record in caplog.records if "zookeeper:2181" in record.getMessage()]
    assert record.levelname == "WARNING" and record.exc_info is None


def test_a_member_asks_its_store_for_an_answer_before_it_stops(broker, store, monkeypatch, caplog):
    """Each call of a store that stands still took as long as it takes to notice that."""
    calls = []

    def fail(timeout_ms):
        calls.append(timeout_ms)
        raise ConnectionLost("no answer")

    monkeypatch.setattr(store, "ping", fail)
    member = broker.cluster_member
    broker.stop()
    assert calls == [3000] and member.registration.is_store_away
    assert [r.levelname for r in caplog.records if r.getMessage().endswith("stops without its store: no answer")] == [
        "WARNING"
    ]


def test_a_member_knows_whether_its_store_is_away(broker, controller, store):
    member = broker.cluster_member
    assert not member.registration.is_store_away
    store.disconnect()
    wait_until(lambda: member.registration.is_store_away)
    store.reconnect()
    wait_until(lambda: not member.registration.is_store_away)
