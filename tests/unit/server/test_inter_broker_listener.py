"""The listener through which brokers call each other: one for requests of the controller, fetches and controlled
shutdown, refused at the start where a broker does not advertise it."""

import logging
import socket
from contextlib import ExitStack

import pytest

import kcore
from kcore.common.scheduler import Scheduler
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_partition import TopicPartition
from kcore.controller.controller_context import LiveBroker
from kcore.errors import InvalidConfig, NotLeaderOrFollower
from kcore.metadata.memory_store import MemoryStore, MemoryTree
from kcore.metadata.metadata_cache import BrokerInfo, Endpoint, MetadataCache
from kcore.network.listener import SecurityProtocol
from kcore.protocol.messages.update_metadata import UpdateMetadataRequest
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.config.listeners import inter_broker_listener_name
from kcore.server.member import inter_broker_connections
from kcore.server.member.cluster_controller import make_controller
from kcore.server.member.inter_broker_connections import InterBrokerConnections
from tests.waiting import wait_until

CLIENT = {"listeners": "CLIENT://127.0.0.1:0", "listener.security.protocol.map": "CLIENT:PLAINTEXT"}
TWO = {
    "listeners": "CLIENT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}


def test_a_member_that_does_not_advertise_the_listener_between_brokers_is_refused():
    """It started, and followers copied nothing."""
    refusal = "PLAINTEXT, through which brokers call each other, is none of the advertised listeners: CLIENT"
    with pytest.raises(InvalidConfig, match=f"{refusal}; set inter.broker.listener.name"):
        kcore.Broker(**CLIENT, store=MemoryStore(MemoryTree()))


def test_a_broker_alone_needs_no_listener_between_brokers():
    with kcore.Broker(**CLIENT) as broker:
        broker.create_topic("t")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "PLAINTEXT"),
        (TWO, "PLAINTEXT"),  # Kafka's default, not the first one
        (CLIENT | {"inter.broker.listener.name": "CLIENT"}, "CLIENT"),
        (CLIENT | {"inter.broker.listener.name": "client"}, "CLIENT"),
    ],
)
def test_the_listener_between_brokers_is_the_one_that_is_named_or_plaintext(settings, name):
    assert inter_broker_listener_name(KafkaConfig(settings, is_cluster_member=True)) == name


@pytest.mark.parametrize("settings", [CLIENT | {"inter.broker.listener.name": "client"}, TWO])
def test_brokers_with_a_listener_of_a_name_of_its_own_replicate_and_hand_over(tmp_path, settings):
    store, tp = f"sqlite:{tmp_path}/store", TopicPartition("t", 0)
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(kcore.Broker(tmp_path / str(n), store=store, broker_id=n, **settings)) for n in (0, 1)
        ]
        for broker in brokers:
            wait_until(lambda snapshot=broker.metadata_cache: snapshot.snapshot.broker_ids() == [0, 1])
        brokers[0].create_topic("t", replication_factor=2)
        leader = brokers[brokers[0].metadata_cache.snapshot.topic("t").partitions[0].leader]
        follower = brokers[1 - leader.broker_id]
        # The creation returns once broker 0 knows of it.
        wait_until(lambda: leader.produce("t", b"a", partition=0), ignoring=NotLeaderOrFollower)
        wait_until(lambda: follower.replica_manager.get_partition(tp).log.log_end_offset == 1)
        leader.stop()  # a controlled shutdown
        wait_until(lambda: follower.metadata_cache.topic("t").partitions[0].leader == follower.broker_id)


def test_a_broker_is_where_the_metadata_or_its_registration_have_it_on_this_listener():
    cache = MetadataCache("c", controller_id=1)
    brokers = [
        BrokerInfo(1, {"CLIENT": Endpoint("other", 1), "PLAINTEXT": Endpoint("one", 2)}),
        BrokerInfo(2, {"CLIENT": Endpoint("other", 3)}),
    ]
    cache.update(lambda snapshot: snapshot.with_brokers(brokers))
    connections = InterBrokerConnections(KafkaConfig(), cache, SYSTEM_TIME)
    assert [connections.address_of(broker_id) for broker_id in (1, 2, 3)] == [("one", 2), None, None]
    assert connections.registered_address(LiveBroker(4, {"PLAINTEXT": ("four", 5)}, None, 1)) == ("four", 5)
    with pytest.raises(ConnectionError, match="it has CLIENT"):
        connections.registered_address(LiveBroker(5, {"CLIENT": ("other", 6)}, None, 1))


def test_a_controller_calls_no_broker_through_another_listener_and_names_it(caplog):
    """It took any address of the broker."""
    caplog.set_level(logging.INFO)
    with ExitStack() as parts, socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        store = MemoryStore(MemoryTree())
        parts.callback(store.close)
        config = KafkaConfig()
        connections = InterBrokerConnections(config, MetadataCache("c", controller_id=1), SYSTEM_TIME)
        scheduler = Scheduler("t", SYSTEM_TIME)
        controller = make_controller(1, store, config, connections, scheduler, parts, lambda: True)
        channels = controller._channels
        parts.callback(channels.close)
        channels.add_broker(LiveBroker(2, {"CLIENT": other.getsockname()}, None, 7))
        channels.send_request(2, UpdateMetadataRequest())
        assert "broker 2 has no address on the listener PLAINTEXT, through which brokers call each other" in caplog.text
        with pytest.raises(BlockingIOError):
            other.accept()


def test_connections_are_made_as_the_protocol_of_the_listener_between_brokers_says(monkeypatch):
    class Unreachable(Exception):
        pass

    def refuse(sock, host):
        raise Unreachable(host)

    monkeypatch.setitem(inter_broker_connections._CONNECTION_FACTORIES, SecurityProtocol.PLAINTEXT, refuse)
    connections = InterBrokerConnections(KafkaConfig(), MetadataCache("cluster"), SYSTEM_TIME)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sender = connections.sender(listening.getsockname(), "test", request_timeout_ms=60_000)
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
            sender.api_versions()
