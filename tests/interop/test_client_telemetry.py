"""librdkafka pushes its metrics where a broker has a receiver for them, and is silent where it has none."""

from collections.abc import Iterator

import confluent_kafka

import kcore
from tests.unit.server.client import Client
from tests.unit.server.config.test_altering_configs import METRICS, SET, alter, describe
from tests.waiting import wait_until

PRODUCER = "org.apache.kafka.producer."


def fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(number, value) of each field of a protobuf message; those of fixed size are left out."""

    def varint() -> int:
        nonlocal at
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    at = 0
    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 2:
            size = varint()
            assert at + size <= len(data)
            yield key >> 3, data[at : at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[kind]


def inside(messages: list[bytes], number: int) -> list[bytes]:
    return [value for message in messages for key, value in fields(message) if key == number]


def metric_names(metrics_data: bytes) -> set[str]:
    """Of an OTLP MetricsData: its resource_metrics (1), their scope_metrics (2), their metrics (2), their names (1).
    Source: opentelemetry/proto/metrics/v1/metrics.proto."""
    return {name.decode() for name in inside(inside(inside(inside([metrics_data], 1), 2), 2), 1)}


def telemetry_of(broker) -> dict[str, float]:
    """What it counts of its clients' telemetry."""
    return broker.metrics()["kafka.server:type=client-metrics"]


def were_asked(broker) -> bool:
    """Whether a client has asked for its subscription."""
    return any("request=GetTelemetrySubscriptions" in name for name in broker.metrics())


def one_client_pushes(broker, pushed):
    """A client pushes until it ends, beside one whose metrics nobody asks for."""
    before = len(pushed)
    of = {"bootstrap.servers": broker.bootstrap_servers}
    producer = confluent_kafka.Producer({**of, "client.id": "shop-1"})
    silent = confluent_kafka.Producer({**of, "client.id": "other"})
    for one in (producer, silent):
        one.produce("orders", b"a book")
        assert one.flush(60) == 0
    wait_until(lambda: len(pushed) >= before + 3)
    del producer, silent  # waits for the last push, but not for more than a second: it may come later


def test_ADM_24_librdkafka_pushes_the_metrics_that_a_subscription_asks_for_and_a_last_time_at_its_end():
    pushed = []
    with kcore.Broker(telemetry_receiver=pushed.append) as broker:
        with Client(broker) as client:
            change = ("metrics", SET, f"{PRODUCER}connection.creation."), ("interval.ms", SET, "100")
            assert alter(client, METRICS, "m", ("match", SET, "client_id=shop.*"), *change) == 0
        # librdkafka leaves the last push out while another one is on its way.
        num_clients = 0
        while num_clients < 20 and not any(payload.is_terminating for payload in list(pushed)):
            one_client_pushes(broker, pushed)
            num_clients += 1
        wait_until(lambda: telemetry_of(broker)["plugin-export-count"] == len(pushed))
        values = telemetry_of(broker)
        assert were_asked(broker)
    clients = [
        [payload for payload in pushed if payload.client_instance_id == client_id]
        for client_id in {payload.client_instance_id for payload in pushed}
    ]
    assert len(clients) == num_clients and any(payloads[-1].is_terminating for payloads in clients)
    expected = {f"{PRODUCER}connection.creation.{what}" for what in ("rate", "total")}
    for payloads in clients:
        assert {payload.client.client_id for payload in payloads} == {"shop-1"}
        assert payloads[0].client.client_software_name == "confluent-kafka-python"
        assert [metric_names(payload.data) for payload in payloads] == [expected] * len(payloads)
    assert values["plugin-error-count"] == 0


def test_ADM_24_librdkafka_works_as_ever_with_a_broker_without_a_receiver():
    with kcore.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("orders", b"a book")
        assert producer.flush(60) == 0
        assert not were_asked(broker)


def test_ADM_25_librdkafka_goes_on_with_another_broker_under_its_id_and_with_the_same_subscription():
    pushed = []
    with kcore.Cluster(2, telemetry_receiver=pushed.append) as cluster:
        with Client(cluster.brokers[0]) as client:
            assert alter(client, METRICS, "m", ("metrics", SET, "*"), ("interval.ms", SET, "100")) == 0
        for broker in cluster.brokers.values():
            with Client(broker) as client:
                wait_until(lambda client=client: describe(client, METRICS, "m")[1]["metrics"][0] == "*")
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        wait_until(lambda: pushed)
        (first,) = (number for number, broker in cluster.brokers.items() if telemetry_of(broker)["instance-count"])
        cluster.kill(first)
        (other,) = cluster.brokers.values()
        wait_until(lambda: telemetry_of(other)["plugin-export-count"] >= 2)
        assert telemetry_of(other)["unknown-subscription-request-count"] == 0
        del producer
    assert len({payload.client_instance_id for payload in pushed}) == 1
