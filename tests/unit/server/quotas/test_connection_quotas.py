"""connection_creation_rate: how many connections an IP address may open per second."""

import pytest

import kcore
from kcore.common.time import MockTime
from kcore.errors import InvalidRequest
from kcore.metadata import znodes
from kcore.metadata.memory_store import MemoryStore
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.server.config.kafka_config import KafkaConfig
from kcore.server.quotas.client_quota_manager import DEFAULT, QuotaEntity
from kcore.server.quotas.client_quotas import CONNECTION_CREATION_RATE, ClientQuotas
from kcore.server.quotas.connection_quotas import ConnectionQuotas
from kcore.server.quotas.stored_client_quotas import QuotaChange, StoredClientQuotas
from tests.unit.server.client import Client
from tests.unit.server.quotas.test_client_quotas import alter, describe

INVALID = InvalidRequest.code


def of_ip(address):
    return QuotaEntity(None, None, address)


def quotas(clock, limits):
    """Of eleven windows of a second each."""
    connections = ConnectionQuotas(11, 1, clock)
    connections.update({of_ip(address): limit for address, limit in limits.items()})
    return connections


def test_ADM_36_connections_beyond_the_rate_of_ten_seconds_are_throttled_and_do_not_count():
    clock = MockTime()
    connections = quotas(clock, {"10.0.0.1": 2.0})
    assert [connections.throttle_ms("10.0.0.1") for _ in range(20)] == [0] * 20, "2 a second for 10 s"
    assert [connections.throttle_ms("10.0.0.1") for _ in range(3)] == [500] * 3, "1 connection is half a second's"
    assert connections.throttle_ms("10.0.0.2") == 0
    clock.sleep(10_499)
    assert connections.throttle_ms("10.0.0.1") > 0
    clock.sleep(1)
    assert connections.throttle_ms("10.0.0.1") == 0, "21 in 10.5 s"


@pytest.mark.parametrize("rate", [0.01, 0.0])
def test_ADM_36_a_connection_is_throttled_for_a_window_at_most(rate):
    connections = quotas(MockTime(), {"10.0.0.1": rate})
    assert connections.throttle_ms("10.0.0.1") == 1000


def test_ADM_36_each_address_without_a_quota_of_its_own_has_the_default():
    connections = quotas(MockTime(), {DEFAULT: 0.1, "10.0.0.1": 0.2})
    for _ in range(2):
        assert connections.throttle_ms("10.0.0.1") == 0
    assert connections.throttle_ms("10.0.0.1") > 0
    for address in ("10.0.0.2", "10.0.0.3"):
        assert connections.throttle_ms(address) == 0
        assert connections.throttle_ms(address) > 0
    connections.update({})
    assert connections.throttle_ms("10.0.0.1") == 0


@pytest.mark.parametrize(
    ("quota", "host"),
    [("10.0.0.1", "::ffff:10.0.0.1"), ("0:0:0:0:0:0:0:1", "::1"), ("::1", "0:0::1")],
)
def test_ADM_36_an_address_has_one_quota_however_it_is_written(quota, host):
    connections = quotas(MockTime(), {quota: 0.1})
    assert connections.throttle_ms(host) == 0
    assert connections.throttle_ms(host) > 0


def test_ADM_36_rates_of_addresses_that_connect_no_more_are_dropped(monkeypatch):
    monkeypatch.setattr("kcore.server.quotas.connection_quotas._MAX_ADDRESSES", 3)
    clock = MockTime()
    connections = quotas(clock, {DEFAULT: 0.1})
    for number in range(3):
        connections.throttle_ms(f"10.0.0.{number}")
    clock.sleep(11_000)
    connections.throttle_ms("10.0.1.1")
    assert list(connections._rates) == ["10.0.1.1"]


def test_ADM_36_quotas_of_addresses_are_where_kafka_keeps_them():
    store = MemoryStore()

    def stored():
        stored = StoredClientQuotas(store, ClientQuotas(KafkaConfig(), MockTime()), is_member=True)
        stored.read_all()
        return stored

    for entity, path in ((of_ip("10.0.0.1"), "/config/ips/10.0.0.1"), (of_ip(DEFAULT), "/config/ips/<default>")):
        stored().alter(entity, [QuotaChange(CONNECTION_CREATION_RATE, 12.0)])
        assert znodes.decode_config(store.get(path).data) == {CONNECTION_CREATION_RATE: "12"}
        assert stored()._quotas.entities[entity] == {CONNECTION_CREATION_RATE: 12.0}
    follower = stored()
    stored().alter(of_ip("10.0.0.1"), [QuotaChange(CONNECTION_CREATION_RATE, None)])
    follower.read_changed(["/config/ips/10.0.0.1"])
    assert list(follower._quotas.entities) == [of_ip(DEFAULT)]


def test_ADM_36_addresses_are_altered_and_described_alone_and_with_their_one_quota():
    rate = {CONNECTION_CREATION_RATE: 1000.0}
    with kcore.Broker() as broker, Client(broker) as client:
        for entity in ({"ip": "10.0.0.300"}, {"ip": "no address"}, {"ip": ""}, {"ip": "1.2.3.4", "user": "u"}):
            assert alter(client, 1, entity, rate) == INVALID
        for entity, quota in (({"ip": "1.2.3.4"}, {"producer_byte_rate": 5.0}), ({"user": "u"}, rate)):
            assert alter(client, 1, entity, quota) == INVALID
        for value in (1.5, 2.0**31, -1.0):
            assert alter(client, 1, {"ip": "1.2.3.4"}, {CONNECTION_CREATION_RATE: value}) == INVALID
        assert describe(client, 1, ("ip", 2, None), ("user", 2, None)) == INVALID
        assert describe(client, 1) == []
        for address in ("1.2.3.4", None, "0:0::1"):
            assert alter(client, 1, {"ip": address}, rate) == 0
        assert alter(client, 1, {"user": "u"}, {"request_percentage": 5.0}) == 0
        one, default, six = [("ip", "1.2.3.4")], [("ip", "<default>")], [("ip", "::1")]
        assert describe(client, 1, ("ip", 0, "1.2.3.4"), strict=True) == [(one, rate)]
        assert describe(client, 1, ("ip", 1, None)) == [(default, rate)]
        assert describe(client, 1, ("ip", 2, None)) == [(one, rate), (six, rate), (default, rate)]
        assert describe(client, 1, ("user", 2, None)) == [([("user", "u")], {"request_percentage": 5.0})]
        assert len(describe(client, 1)) == 4


def test_ADM_36_a_connection_too_many_is_closed_unserved_and_the_others_stay():
    with kcore.Broker() as broker, Client(broker) as client:
        assert alter(client, 1, {"ip": "127.0.0.1"}, {CONNECTION_CREATION_RATE: 1.0}) == 0
        refused = []
        for _ in range(12):  # ten are those of ten seconds
            refused.append(connection := Client(broker))
            connection.send(ApiVersionsRequest(), 0)
        answers = []
        for connection in refused:
            with connection:
                try:
                    answers.append(connection.receive_frame() != b"")
                except (EOFError, ConnectionError):
                    answers.append(False)
        assert answers[:10] == [True] * 10 and not all(answers)
        assert alter(client, 1, {"ip": "127.0.0.1"}, {CONNECTION_CREATION_RATE: None}) == 0
        with Client(broker) as another:
            assert another.ask(ApiVersionsRequest(), 0).error_code == 0
