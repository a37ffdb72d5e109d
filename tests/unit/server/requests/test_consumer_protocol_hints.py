"""The warning for consumers that wait for the groups of KIP-848, with librdkafka itself."""

import logging
import time

import confluent_kafka
import pytest

import kcore
from kcore.server.requests import consumer_protocol_hints
from kcore.server.requests.consumer_protocol_hints import _may_use_consumer_protocol

DEADLINE_S = 60


@pytest.mark.parametrize(
    ("software", "expected"),
    [
        ("librdkafka 2.16.0", True),
        ("librdkafka 2.3.0", False),
        ("librdkafka 3.0", True),
        ("confluent-kafka-python 2.16.1-rdkafka-2.16.0", True),
        ("confluent-kafka-python 2.2.0-rdkafka-2.2.0", False),
        ("apache-kafka-java 4.3.1", False),
        ("", False),
    ],
)
def test_only_librdkafka_from_2_4_on_may_wait_without_a_word(software, expected):
    assert _may_use_consumer_protocol(software) is expected


def test_a_consumer_that_waits_for_a_group_of_kip_848_is_named_once_and_one_that_joins_is_not(caplog, monkeypatch):
    monkeypatch.setattr(consumer_protocol_hints, "WAIT_MS", 3_000)
    caplog.set_level(logging.WARNING, "kcore.server.requests.consumer_protocol_hints")
    with kcore.Broker(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0) as broker:
        broker.create_topic("t")

        def consumer(protocol):
            settings = {"group.id": protocol, "client.id": f"c-{protocol}", "group.protocol": protocol}
            made = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, **settings})
            made.subscribe(["t"])
            return made

        classic, consumers = consumer("classic"), []
        deadline = time.monotonic() + DEADLINE_S
        while not classic.assignment():
            assert time.monotonic() < deadline
            classic.poll(0.05)
        try:
            consumers = [consumer("consumer"), consumer("consumer")]
            while not caplog.records:
                assert time.monotonic() < deadline
                for one in (classic, *consumers):
                    one.poll(0.05)
        finally:
            for one in (classic, *consumers):
                one.close()
    (record,) = caplog.records
    assert "'c-consumer' at 127.0.0.1" in record.getMessage() and "group.protocol=classic" in record.getMessage()
