"""Several listeners: each client is sent to the addresses of the listener that it came by; the request's context."""

import logging
import time

import pytest

import kcore
from kcore.errors import InvalidConfig
from kcore.network.listener import Listener, SecurityProtocol
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.messages import find_coordinator as fc
from kcore.protocol.messages import metadata as m
from kcore.protocol.messages import produce as p
from kcore.protocol.messages.describe_cluster import DescribeClusterRequest
from kcore.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.requests.request_handler_pool import RunsOn
from tests.batches import batch
from tests.unit.server.client import Client

TWO = {
    "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
}


class At:
    """What a Client needs of a broker."""

    def __init__(self, port):
        self.port = port


def ports(broker):
    return {listener.name: listener.port for listener in broker.running.server.listeners}


def addresses(port):
    """The broker's address in the response of each API that has one, for a client of this port."""
    with Client(At(port)) as client:
        (broker,) = client.ask(m.MetadataRequest(topics=[]), 5).brokers
        yield broker.host, broker.port
        (broker,) = client.ask(DescribeClusterRequest(), 0).brokers
        yield broker.host, broker.port
        coordinator = client.ask(fc.FindCoordinatorRequest(key="g"), 1)
        assert coordinator.error_code == 0
        yield coordinator.host, coordinator.port
        (coordinator,) = client.ask(fc.FindCoordinatorRequest(coordinator_keys=["g"]), 4).coordinators
        yield coordinator.host, coordinator.port


def test_each_client_is_sent_to_the_listener_that_it_came_by():
    with kcore.Broker(**TWO) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{ports(broker)['INTERNAL']}"
        assert len(set(ports(broker).values())) == 2
        for port in ports(broker).values():
            assert set(addresses(port)) == {("127.0.0.1", port)}


def test_each_listener_has_its_advertised_address():
    advertised = "EXTERNAL://broker.example:19092,INTERNAL://127.0.0.1:0"
    with kcore.Broker(**TWO, advertised_listeners=advertised) as broker:
        assert set(addresses(ports(broker)["EXTERNAL"])) == {("broker.example", 19092)}
        assert set(addresses(ports(broker)["INTERNAL"])) == {("127.0.0.1", ports(broker)["INTERNAL"])}


def test_a_restart_keeps_the_ports_of_all_listeners():
    with kcore.Broker(**TWO) as broker:
        before = ports(broker)
        broker.restart()
        assert ports(broker) == before
        for port in before.values():
            assert set(addresses(port)) == {("127.0.0.1", port)}


def test_a_listener_named_in_lower_case_is_the_same_as_in_upper_case():
    config = KafkaConfig({"listeners": "plaintext://h:1", "advertised.listeners": "Plaintext://other:2"})
    assert config.listeners == [Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "h", 1)]
    assert config.advertised_listeners == [Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "other", 2)]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"listeners": "EXTERNAL://:1"}, "no security protocol for EXTERNAL"),
        ({"listeners": "PLAINTEXT://[::1:0"}, "'PLAINTEXT://.::1:0' is not NAME://host:port"),
        ({"listeners": "PLAINTEXT://::1]:0"}, "is not NAME://host:port"),
        ({"listeners": ""}, "listeners is empty: give NAME://host:port"),
        ({"listeners": " "}, "listeners is empty"),
        ({"advertised.listeners": ""}, "advertised.listeners is empty"),
        ({"listeners": "PLAINTEXT://:1,"}, "PLAINTEXT://:1,: there is a comma too many"),
        ({"listeners": "A://:1, B://:2", "controller.listener.names": "A,B"}, "has only listeners of controllers"),
        (
            {"listeners": "PLAINTEXT://:1,A://:2", "controller.listener.names": "A", "advertised.listeners": "A://h:2"},
            "advertised.listeners=A://h:2: it has only listeners of controllers",
        ),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:1", "advertised.listeners": "PLAINTEXT://0.0.0.0:9"},
            "clients cannot connect to 0.0.0.0",
        ),
        (TWO | {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SSL"}, "only PLAINTEXT .* not SSL"),
        (TWO | {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL"}, "not SASL_SSL"),
        ({"listeners": "SASL_PLAINTEXT://:1"}, "not SASL_PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "a different name"),
        ({"listener.security.protocol.map": "INTERNAL=PLAINTEXT"}, "is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "INTERNAL:TLS"}, "is not NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "INTERNAL:PLAINTEXT"}, "without listeners, .* needs PLAINTEXT:PLAINTEXT"),
        (TWO | {"advertised.listeners": "OTHER://h:1"}, "no security protocol for OTHER"),
        (TWO | {"advertised.listeners": "PLAINTEXT://h:1"}, "no security protocol for PLAINTEXT"),
        ({"listeners": "PLAINTEXT://:1", "advertised.listeners": "SSL://h:1"}, "not SSL"),
        (
            TWO | {"listener.security.protocol.map": "A:PLAINTEXT,INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"}
            | {"advertised.listeners": "A://h:1"},
            "advertised.listeners has A, which is none of listeners: INTERNAL, EXTERNAL",
        ),
        (TWO | {"inter.broker.listener.name": "PLAINTEXT"}, "none of the advertised listeners: INTERNAL, EXTERNAL"),
        (
            TWO | {"inter.broker.listener.name": "INTERNAL", "advertised.listeners": "EXTERNAL://h:1"},
            "none of the advertised listeners: EXTERNAL",
        ),
        ({"inter.broker.listener.name": ""}, "name= is none of the advertised listeners: PLAINTEXT"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
    ],
)  # fmt: skip
def test_listeners_that_cannot_be_are_refused_at_once(settings, complaint):
    with pytest.raises(InvalidConfig, match=complaint):
        kcore.Broker(**settings)


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::1", "::1"), ("", ""), ("0.0.0.0", "0.0.0.0")])
def test_an_ipv6_address_may_be_in_brackets(text, host):
    assert KafkaConfig({"listeners": f"PLAINTEXT://{text}:9092"}).listeners[0].host == host


@pytest.mark.parametrize("name", ["INTERNAL", "external"])
def test_the_inter_broker_listener_is_one_of_those_advertised(name):
    assert KafkaConfig(TWO | {"inter.broker.listener.name": name})["inter.broker.listener.name"] == name


def test_a_handler_gets_the_client_and_the_listener_of_a_request(monkeypatch, caplog):
    seen = []

    class Handler:
        runs_on = RunsOn.NETWORK_THREAD

        def handle(self, context, body):
            seen.append(context)
            context.respond(HeartbeatResponse())

    caplog.set_level(logging.DEBUG)
    with kcore.Broker(**TWO) as broker:
        broker.running.apis.replace_handler(ApiKey.HEARTBEAT, lambda _: Handler())
        with Client(At(ports(broker)["EXTERNAL"]), client_id="me") as client:
            client.ask(HeartbeatRequest(), 2)
            client.ask(HeartbeatRequest(), 3)
    first, second = seen
    assert (first.listener_name, first.security_protocol) == ("EXTERNAL", SecurityProtocol.PLAINTEXT)
    assert (str(first.principal), first.client_id, first.client_address) == ("User:ANONYMOUS", "me", "127.0.0.1")
    assert (first.api_version, second.api_version) == (2, 3)
    assert first.request.connection.context is second.request.connection.context


@pytest.mark.parametrize("version", [0, 1, 9])
def test_a_throttled_response_has_the_throttle_time_where_its_version_can_and_mutes_its_connection(version):
    with kcore.Broker() as broker, Client(broker) as client:
        broker.create_topic("t")
        handler = broker.running.apis.handler(ApiKey.PRODUCE)
        handle, contexts = handler.handle, []

        def throttled(context, body):
            contexts.append(context)
            respond = context.respond

            class Throttling:
                def __getattr__(self, name):
                    return getattr(context, name)

                def respond(self, response, throttle_ms):
                    respond(response, 100 if len(contexts) == 1 else throttle_ms)

            handle(Throttling(), body)

        holder = type("Holder", (), {"handle": staticmethod(throttled), "error_response": handler.error_response})
        broker.running.apis.replace_handler(ApiKey.PRODUCE, lambda _: holder())
        data = p.PartitionProduceData(index=0, records=batch(b"x"))
        request = p.ProduceRequest(
            acks=1, timeout_ms=1000, topic_data=[p.TopicProduceData(name="t", partition_data=[data])]
        )
        started = time.monotonic()
        response = client.ask(request, version)
        assert response.throttle_time_ms == (100 if version >= 1 else 0)
        assert client.ask(request, version).throttle_time_ms == 0
        assert time.monotonic() - started >= 0.1
