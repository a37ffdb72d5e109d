"""The table of coordinators: what another one needs for its topic and for FindCoordinator is a row, and itself."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import kcore
from kcore import errors
from kcore.coordinator.coordinators import Coordinators
from kcore.protocol.messages.find_coordinator import FindCoordinatorRequest
from kcore.security.acl import ResourceType
from kcore.server import running_broker
from kcore.server.topics.coordinator_types import (
    COORDINATOR_TYPES,
    TRANSACTION,
    CoordinatorType,
    is_auto_created,
)
from tests.unit.server.client import Client

SHARE, TOPIC = 2, "__share_group_state"


@pytest.fixture
def with_shares(monkeypatch):
    """What a broker calls of a coordinator of share groups."""
    calls = []
    coordinator = SimpleNamespace(
        partition_for=len,
        on_election=lambda partition, epoch: calls.append((partition, epoch)),
        partitions_deleted=lambda partitions: None,
    )
    kind = CoordinatorType(
        TOPIC,
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"cleanup.policy": "compact"},
        {"segment.bytes": "offsets.topic.segment.bytes"},
        ResourceType.GROUP,
        errors.GroupAuthorizationFailed("Group authorization failed."),
    )
    monkeypatch.setitem(COORDINATOR_TYPES, SHARE, kind)
    monkeypatch.setattr(running_broker, "Coordinators", lambda by_topic: Coordinators({**by_topic, TOPIC: coordinator}))
    return calls


def test_the_topic_of_another_coordinator_is_made_when_a_client_looks_for_it(with_shares):
    with kcore.Broker(offsets_topic_num_partitions=3, offsets_topic_segment_bytes=1 << 16) as broker:
        with Client(broker) as client:
            assert client.ask(FindCoordinatorRequest(key="id", key_type=SHARE), 1).error_code == errors.NONE
            # len() of the key, of three partitions.
            beyond = client.ask(FindCoordinatorRequest(key="ids", key_type=SHARE), 1)
            assert beyond.error_code == errors.CoordinatorNotAvailable.code
        assert list(broker.metadata_cache.snapshot.topic_names()) == [TOPIC]
        assert broker.admin_manager.topic_config(TOPIC) == {"cleanup.policy": "compact", "segment.bytes": "65536"}
        assert broker.admin_manager.num_auto_created(TOPIC) == 3
    assert sorted(with_shares) == [(0, 0), (1, 0), (2, 0)]


def test_an_internal_topic_without_a_coordinator_is_not_made_automatically(monkeypatch):
    names = ("t", "__consumer_offsets", "__transaction_state", "__cluster_metadata")
    assert [is_auto_created(name) for name in names] == [True, True, True, False]
    monkeypatch.delitem(COORDINATOR_TYPES, TRANSACTION)
    assert [is_auto_created(name) for name in names] == [True, True, False, False]


def test_TXN_05_the_topic_of_the_transaction_coordinator_has_kafkas_settings():
    settings = {"transaction.state.log.num.partitions": 3, "transaction.state.log.segment.bytes": 1 << 16}
    with kcore.Broker(**settings) as broker, Client(broker) as client:
        assert client.ask(FindCoordinatorRequest(key="id", key_type=TRANSACTION), 1).error_code == errors.NONE
        assert len(broker.metadata_cache.topic("__transaction_state").partitions) == 3
        assert broker.admin_manager.topic_config("__transaction_state") == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "65536",
            "unclean.leader.election.enable": "false",
        }


def test_a_key_type_without_a_coordinator_is_refused():
    with kcore.Broker() as broker, Client(broker) as client:
        assert client.ask(FindCoordinatorRequest(key="s", key_type=2), 1).error_code == errors.InvalidRequest.code
        assert list(broker.metadata_cache.snapshot.topic_names()) == []


def test_no_code_of_the_server_compares_a_topic_with_that_of_a_coordinator():
    """Coordinators and COORDINATOR_TYPES find the coordinator of a topic."""
    comparison = re.compile(r"[!=]= *(topic_names\.)?(GROUP_METADATA|TRANSACTION_STATE)_TOPIC")
    paths = list(Path(running_broker.__file__).parent.rglob("*.py"))
    assert len(paths) > 50
    assert [path.name for path in paths if comparison.search(path.read_text())] == []
