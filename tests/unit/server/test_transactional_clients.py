"""Transactional producers of client libraries, on a cluster whose leaders ask the coordinators."""

import asyncio

import aiokafka
import confluent_kafka
import kafka as kafka_python
import pytest

import kcore
from tests.unit.server.transactions import SETTINGS


@pytest.fixture(scope="module")
def cluster():
    with kcore.Cluster(3, **SETTINGS) as cluster:
        yield cluster


def committed(cluster, topic):
    return sorted(record.value for record in cluster.consume(topic, isolation="read_committed"))


def end_markers(cluster, transactional_id):
    """A producer is answered before its markers are written; the next one of its id waits for them."""
    cluster.transaction(transactional_id)


def test_confluent_kafka_reads_and_writes_in_transactions(cluster):
    cluster.create_topic("in", 2)
    cluster.create_topic("out", 3)
    for number in range(20):
        cluster.produce("in", str(number))
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "copiers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["in"])
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "copier", "linger.ms": 0}
    )
    producer.init_transactions()
    copied = 0
    while copied < 20:
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        producer.begin_transaction()
        producer.produce("out", message.value())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        copied += 1
    producer.begin_transaction()
    producer.produce("out", b"aborted")
    producer.abort_transaction()
    consumer.close()
    end_markers(cluster, "copier")
    assert committed(cluster, "out") == sorted(str(number).encode() for number in range(20))


def test_aiokafka_commits_and_aborts(cluster):
    cluster.create_topic("aio", 3)

    async def run():
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="aio", linger_ms=0
        )
        async with producer:
            for number in range(10):
                await producer.begin_transaction()
                for partition in range(3):
                    await producer.send_and_wait("aio", b"%d" % number, partition=partition)
                await (producer.abort_transaction() if number % 3 == 2 else producer.commit_transaction())

    asyncio.run(run())
    end_markers(cluster, "aio")
    assert committed(cluster, "aio") == sorted(3 * [b"%d" % number for number in range(10) if number % 3 != 2])


def test_kafka_python_commits_and_aborts(cluster):
    cluster.create_topic("python", 3)
    producer = kafka_python.KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="python")
    producer.init_transactions()
    for number in range(10):
        producer.begin_transaction()
        for partition in range(3):
            producer.send("python", b"%d" % number, partition=partition)
        if number % 3 == 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()
    end_markers(cluster, "python")
    assert committed(cluster, "python") == sorted(3 * [b"%d" % number for number in range(10) if number % 3 != 2])
