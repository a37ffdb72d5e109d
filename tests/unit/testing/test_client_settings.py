"""The settings of client libraries, with the libraries: they refuse names that they do not know."""

import asyncio

import aiokafka
import confluent_kafka
import faststream.confluent
import faststream.kafka
import kafka as kafka_python
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

import kcore
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture


@pytest.fixture
def kafka():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        yield KafkaFixture(broker)


def test_confluent_kafka(kafka):
    producer = confluent_kafka.Producer(kafka.confluent(linger_ms=0))
    producer.produce("orders", b"a book")
    producer.flush()
    assert "orders" in AdminClient(kafka.confluent(client_id="admin")).list_topics(timeout=30).topics
    with confluent_kafka.Consumer(kafka.confluent_consumer("shop", enable_auto_commit=False)) as consumer:
        consumer.subscribe(["orders"])
        assert consumer.poll(30).value() == b"a book"


def test_names_of_confluent_kafka_with_an_underscore_keep_it(kafka):
    def called(*_):
        pass

    settings = dict.fromkeys(("error_cb", "stats_cb", "throttle_cb", "on_delivery"), called)
    confluent_kafka.Producer(kafka.confluent(log_level=2, linger_ms=0, **settings)).list_topics(timeout=30)
    confluent_kafka.Consumer(kafka.confluent_consumer("shop", on_commit=called, log_level=2)).close()


def test_aiokafka(kafka):
    async def run():
        async with aiokafka.AIOKafkaProducer(**kafka.aiokafka(linger_ms=0)) as producer:
            await producer.send_and_wait("orders", b"a book")
        admin = AIOKafkaAdminClient(**kafka.aiokafka(client_id="admin"))
        await admin.start()
        assert "orders" in await admin.list_topics()
        await admin.close()
        settings = kafka.aiokafka_consumer("shop", enable_auto_commit=False)
        async with aiokafka.AIOKafkaConsumer("orders", **settings) as consumer:
            return (await asyncio.wait_for(consumer.getone(), 30)).value

    assert asyncio.run(run()) == b"a book"


@pytest.mark.parametrize("module", [faststream.kafka, faststream.confluent], ids=["aiokafka", "confluent"])
def test_faststream(kafka, module):
    assert asyncio.run(an_order_through_faststream(kafka, module)) == "a book"


async def an_order_through_faststream(kafka, module):
    broker = module.KafkaBroker(**kafka.faststream(client_id="shop"))
    sold = asyncio.Queue()

    @broker.subscriber("orders", **kafka.faststream_subscriber("shop", session_timeout_ms=10_000))
    async def sell(order: str):
        await sold.put(order)

    async with broker:
        await broker.start()
        await broker.publish("a book", "orders")
        return await asyncio.wait_for(sold.get(), 30)


@pytest.mark.parametrize("module", [faststream.kafka, faststream.confluent], ids=["aiokafka", "confluent"])
def test_faststream_with_several_brokers(module):
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders", 3)
        assert asyncio.run(an_order_through_faststream(KafkaClusterFixture(cluster), module)) == "a book"


def test_kafka_python(kafka):
    producer = kafka_python.KafkaProducer(**kafka.kafka_python(linger_ms=0))
    producer.send("orders", b"a book").get(30)
    producer.close()
    admin = KafkaAdminClient(**kafka.kafka_python(client_id="admin"))
    assert "orders" in admin.list_topics()
    admin.close()
    settings = kafka.kafka_python_consumer("shop", enable_auto_commit=False, consumer_timeout_ms=30_000)
    consumer = kafka_python.KafkaConsumer("orders", **settings)
    assert next(consumer).value == b"a book"
    consumer.close()


def test_a_setting_replaces_the_default(kafka):
    assert kafka.confluent_consumer("shop", auto_offset_reset="latest")["auto.offset.reset"] == "latest"
    assert kafka.aiokafka_consumer("shop", auto_offset_reset="latest")["auto_offset_reset"] == "latest"
    assert kafka.kafka_python_consumer("shop", auto_offset_reset="latest")["auto_offset_reset"] == "latest"
