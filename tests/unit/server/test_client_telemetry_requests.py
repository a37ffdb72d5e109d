"""GetTelemetrySubscriptions and PushTelemetry: who announces them, and what they carry."""

from uuid import UUID

import pytest

import kcore
from kcore import errors
from kcore.common.topic_partition import ZERO_UUID
from kcore.protocol.api_keys import TELEMETRY, ApiKey
from kcore.protocol.messages.api_versions import ApiVersionsRequest
from kcore.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
from kcore.protocol.messages.push_telemetry import PushTelemetryRequest
from kcore.record.compression import compress
from tests.unit.server.client import Client
from tests.unit.server.config.test_altering_configs import METRICS, SET, alter
from tests.waiting import wait_until

ZSTD = 4
RECEIVER = "kcore.telemetry.receiver"
#: What a broker gets that names receive() in its settings.
received = []


def receive(payload):
    received.append(payload)


def announced(broker):
    with Client(broker) as client:
        answer = client.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 3)
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def get(client, instance_id=ZERO_UUID):
    return client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)


def push(client, subscription, data, codec=0, **fields):
    request = PushTelemetryRequest(
        client_instance_id=subscription.client_instance_id,
        subscription_id=subscription.subscription_id,
        compression_type=codec,
        metrics=data,
        **fields,
    )
    return client.ask(request, 0).error_code


def test_ADM_24_without_a_receiver_a_broker_does_not_announce_them_and_closes_the_connection_that_asks():
    with kcore.Broker() as broker:
        assert announced(broker).keys().isdisjoint(TELEMETRY)
        assert not any("client-metrics" in name for name in broker.metrics())
        with Client(broker) as client:
            client.send(GetTelemetrySubscriptionsRequest(), 0)
            assert client.is_closed()


def test_ADM_24_with_a_receiver_a_broker_announces_them_but_not_where_it_acts_like_an_old_one():
    with kcore.Broker(telemetry_receiver=receive) as broker:
        assert {ApiKey(key): versions for key, versions in announced(broker).items() if key in TELEMETRY} == TELEMETRY
        assert any("client-metrics" in name for name in broker.metrics())
    with kcore.Broker(telemetry_receiver=receive, act_like="2.8") as broker:
        assert announced(broker).keys().isdisjoint(TELEMETRY)


def test_ADM_24_all_brokers_of_a_cluster_have_its_receiver():
    pushed = []
    with kcore.Cluster(2, telemetry_receiver=pushed.append) as cluster:
        for broker in cluster.brokers.values():
            with Client(broker) as client:
                assert push(client, get(client), b"from %d" % broker.broker_id) == 0
    assert [payload.data for payload in pushed] == [b"from 0", b"from 1"]


def test_ADM_24_the_settings_may_name_the_receiver():
    received.clear()
    with kcore.Broker(kcore_telemetry_receiver=f"{__name__}.receive") as broker, Client(broker) as client:
        assert push(client, get(client), b"metrics") == 0
    assert [payload.data for payload in received] == [b"metrics"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.such.module.receive", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}.no_such", "cannot be imported: AttributeError"),
        ("receive", "cannot be imported: ValueError"),
        (f"{__name__}.RECEIVER", "it cannot be called"),
    ],
)
def test_ADM_24_what_is_no_receiver_is_refused_by_the_name_of_the_setting(path, message):
    for make in (kcore.Broker, kcore.Cluster):
        with pytest.raises(errors.InvalidConfig, match=f"Invalid value {path} for configuration {RECEIVER}.*{message}"):
            make(**{RECEIVER: path})


def test_ADM_24_a_receiver_is_given_once_and_can_be_called():
    for make in (kcore.Broker, kcore.Cluster):
        with pytest.raises(TypeError, match="telemetry_receiver must be callable, not 5"):
            make(telemetry_receiver=5)
        with pytest.raises(errors.InvalidConfig, match="both given"):
            make(telemetry_receiver=receive, **{RECEIVER: f"{__name__}.receive"})


def test_ADM_25_a_client_hears_what_to_push_how_often_and_in_which_codecs():
    with kcore.Broker(telemetry_receiver=receive, telemetry_max_bytes=1000) as broker, Client(broker) as client:
        assert alter(client, METRICS, "m", ("metrics", SET, "b.,a."), ("interval.ms", SET, "1000")) == 0
        answer = get(client)
        assert (answer.error_code, answer.push_interval_ms, answer.telemetry_max_bytes) == (0, 1000, 1000)
        assert answer.accepted_compression_types == [4, 3, 1, 2]  # zstd, lz4, gzip, snappy
        assert answer.delta_temporality and answer.requested_metrics == ["a.", "b."]
        assert answer.client_instance_id != ZERO_UUID
        assert get(client, answer.client_instance_id).error_code == errors.ThrottlingQuotaExceeded.code
        assert get(client, UUID(int=1)).error_code == errors.InvalidRequest.code


def test_ADM_29_a_push_reaches_the_receiver_with_who_the_client_is():
    pushed = []
    with kcore.Broker(telemetry_receiver=pushed.append) as broker, Client(broker, "shop-1") as client:
        client.ask(ApiVersionsRequest(client_software_name="mine", client_software_version="1.2"), 3)
        subscription = get(client)
        assert push(client, subscription, bytes(compress(ZSTD, b"metrics")), ZSTD) == 0
        assert push(client, subscription, b"more") == errors.ThrottlingQuotaExceeded.code
        assert push(client, subscription, b"bye", terminating=True) == 0
        assert push(client, subscription, b"bye", terminating=True) == errors.InvalidRequest.code
        host, port = client.sock.getsockname()
        who = ("shop-1", "mine", "1.2", host, port)
        instance_id = subscription.client_instance_id
        assert pushed == [(instance_id, who, False, b"metrics"), (instance_id, who, True, b"bye")]
        assert type(pushed[0]) is kcore.ClientTelemetryPayload


def test_ADM_29_a_push_may_have_telemetry_max_bytes():
    with kcore.Broker(telemetry_receiver=receive, telemetry_max_bytes=10) as broker, Client(broker) as client:
        subscription = get(client)
        assert push(client, subscription, bytes(11)) == errors.TelemetryTooLarge.code
        assert push(client, subscription, bytes(10)) == 0


def test_ADM_28_every_broker_of_a_cluster_follows_a_change():
    with kcore.Cluster(2, telemetry_receiver=receive) as cluster:
        first, second = cluster.brokers.values()
        with Client(first) as client, Client(second) as other:
            before = get(other)
            assert before.requested_metrics == []
            assert alter(client, METRICS, "m", ("metrics", SET, "a.")) == 0
            wait_until(lambda: get(other).requested_metrics == ["a."])
            assert push(other, before, b"metrics") == errors.UnknownSubscriptionId.code
            assert get(other, before.client_instance_id).requested_metrics == ["a."]


def test_ADM_31_a_client_is_forgotten_when_it_closes_its_connection():
    def instances():
        return broker.metrics()["kafka.server:type=client-metrics"]["instance-count"]

    with kcore.Broker(telemetry_receiver=receive) as broker:
        with Client(broker) as client:
            get(client)
            assert instances() == 1
        wait_until(lambda: instances() == 0)
