"""A broker that acts like another release of Kafka, with the clients of today."""

import asyncio

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

import kcore
from kcore.errors import InvalidConfig
from kcore.testing.kafka_fixture import KafkaFixture

RELEASES = ["1.0", "2.8", "3.9", "4.3"]


@pytest.fixture(params=RELEASES)
def kafka(request):
    with kcore.Broker(act_like=request.param, group_initial_rebalance_delay_ms=0) as broker:
        broker.create_topic("orders")
        yield KafkaFixture(broker)


def test_confluent_kafka_writes_and_reads(kafka):
    producer = confluent_kafka.Producer(kafka.confluent(enable_idempotence=True))
    producer.produce("orders", b"a book")
    assert producer.flush(60) == 0
    with confluent_kafka.Consumer(kafka.confluent_consumer("shop")) as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(60).value() == b"a book"
        assert consumer.commit(asynchronous=False)[0].offset == 1


def test_kafka_python_writes_and_reads(kafka):
    producer = kafka_python.KafkaProducer(**kafka.kafka_python())
    producer.send("orders", b"a book").get(60)
    producer.close()
    consumer = kafka_python.KafkaConsumer("orders", **kafka.kafka_python_consumer("shop", consumer_timeout_ms=60_000))
    assert next(consumer).value == b"a book"
    consumer.commit()
    consumer.close()
    assert kafka.committed_offsets("shop") == {("orders", 0): 1}


def test_aiokafka_writes_and_reads(kafka):
    async def run():
        async with aiokafka.AIOKafkaProducer(**kafka.aiokafka()) as producer:
            await producer.send_and_wait("orders", b"a book")
        async with aiokafka.AIOKafkaConsumer("orders", **kafka.aiokafka_consumer("shop")) as consumer:
            value = (await consumer.getone()).value
            await consumer.commit()
            return value

    assert asyncio.run(run()) == b"a book"
    assert kafka.committed_offsets("shop") == {("orders", 0): 1}


@pytest.mark.parametrize("release", ["2.3", "2.8", "3.9"])
def test_kafka_python_takes_it_for_that_release(release):
    with kcore.Broker(**{"kcore.act.like": release}) as broker:
        consumer = kafka_python.KafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
        consumer.topics()
        assert consumer.config["api_version"] == tuple(map(int, release.split(".")))
        consumer.close()


def test_the_brokers_of_a_cluster_that_acts_like_another_release_replicate_each_other():
    with kcore.Cluster(2, act_like="2.8") as cluster:
        cluster.create_topic("orders")
        assert cluster.produce("orders", "a book").offset == 0
        cluster.wait_until_in_sync("orders")


@pytest.mark.parametrize("make", [kcore.Broker, kcore.Cluster])
def test_a_release_that_is_not_known_is_an_error_with_those_that_are(make):
    with pytest.raises(InvalidConfig, match=r"Invalid value 0.11 .*kcore.act.like: expected one of 1.0, 1.1, 2"):
        make(act_like="0.11")
