"""A consumer with group.protocol=consumer (KIP-848), librdkafka itself, ends with an error that says so."""

import logging
import time

import confluent_kafka
import pytest

import kcore

DEADLINE_S = 60


def consumer(broker, protocol):
    settings = {"group.id": protocol, "client.id": f"c-{protocol}", "group.protocol": protocol, "log_level": 0}
    made = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest", **settings}
    )
    made.subscribe(["t"])
    return made


def next_message(client):
    deadline = time.monotonic() + DEADLINE_S
    while (message := client.poll(0.1)) is None:
        assert time.monotonic() < deadline
    return message


@pytest.fixture
def broker():
    with kcore.Broker(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0) as broker:
        broker.produce("t", "value")
        yield broker


def test_a_consumer_of_the_new_protocol_gets_a_fatal_error_and_each_client_is_named_once(broker, caplog):
    for _ in range(2):
        client = consumer(broker, "consumer")
        try:
            error = next_message(client).error()
        finally:
            client.close()
        assert error.code() == confluent_kafka.KafkaError._FATAL
        assert "API version not supported" in error.str()
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    text = record.getMessage()
    assert "'c-consumer' at 127.0.0.1 (confluent-kafka-python " in text and "group.protocol=classic" in text


def test_a_consumer_of_the_classic_protocol_reads_and_no_line_names_it(broker, caplog):
    client = consumer(broker, "classic")
    try:
        assert next_message(client).value() == b"value"
    finally:
        client.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
