"""A broker that is a member of a cluster; the tests are its controller."""

import threading
from uuid import UUID

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.protocol.messages import metadata as m
from kcore.server.topics import admin_manager
from tests.unit.server.absent_controller import be_the_controller
from tests.unit.server.client import Client
from tests.unit.server.controller_client import ControllerClient

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = UUID(int=77)
DEADLINE_S = 60


def run_now(call):
    threading.Thread(target=call).start()


@pytest.fixture
def tree():
    return MemoryTree()


@pytest.fixture
def store(tree):
    return MemoryStore(tree, executor=run_now)


@pytest.fixture(autouse=True)
def _members(monkeypatch):
    be_the_controller(monkeypatch)
    monkeypatch.setattr(admin_manager, "_FIRST_METADATA_MS", 0)


@pytest.fixture
def broker(store):
    with kcore.Broker(store=store, offsets_topic_num_partitions=1) as broker:
        yield broker


@pytest.fixture
def controller(broker):
    with ControllerClient(broker) as controller:
        yield controller


def with_broker_2(broker):
    """The live brokers; no broker listens at the second's address."""
    return {1: {"PLAINTEXT": ("127.0.0.1", broker.port)}, 2: {"PLAINTEXT": ("127.0.0.1", 1)}}


def partition(broker, topic_partition=T0):
    return broker.replica_manager.get_partition(topic_partition)


def metadata(broker, version=12, names=None):
    with Client(broker) as client:
        topics = None if names is None else [m.MetadataRequestTopic(name=name) for name in names]
        return client.ask(m.MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4), version)
