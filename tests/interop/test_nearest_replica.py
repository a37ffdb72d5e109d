"""Consumers with a rack read from the follower in it (KIP-392): each client that can."""

import asyncio
import contextlib

import confluent_kafka
import kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition

import kcore
from kcore.metadata.open_store import open_store
from tests.waiting import wait_until

RACKS = ["a", "b", "c"]
DEADLINE_S = 60
COUNT = 500


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """One in each rack; a broker's id is the place of its rack."""
    directory = tmp_path_factory.mktemp("racks")
    with contextlib.ExitStack() as stack:
        brokers = []
        for number, rack in enumerate(RACKS):
            settings = {
                "broker.id": number,
                "broker.rack": rack,
                "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                "controlled.shutdown.retry.backoff.ms": 200,
            }
            store = stack.enter_context(contextlib.closing(open_store(f"sqlite:{directory / 'store.db'}")))
            brokers.append(stack.enter_context(kcore.Broker(str(directory / str(number)), 0, store=store, **settings)))

        def all_know_all():
            return all(len(broker.metadata_cache.snapshot.brokers()) == len(RACKS) for broker in brokers)

        wait_until(all_know_all, "the brokers do not know each other")
        yield brokers


def read_with_librdkafka(servers, topic, rack):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": topic, "client.rack": rack, "log_level": 2}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    values = []
    while len(values) < COUNT:
        messages = consumer.consume(COUNT, timeout=DEADLINE_S)
        assert messages, len(values)
        values += [message.value() for message in messages if not message.error()]
    consumer.close()
    return values


def read_with_kafka_python(servers, topic, rack):
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers, client_rack=rack)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    values = []
    while len(values) < COUNT:
        records = consumer.poll(timeout_ms=DEADLINE_S * 1000)
        assert records, len(values)
        values += [record.value for record in records[partition]]
    consumer.close()
    return values


def read_with_aiokafka(servers, topic, rack):
    async def read():
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, client_rack=rack)
        partition = AioTopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.start()
        await consumer.seek_to_beginning(partition)
        values = []
        while len(values) < COUNT:
            records = await consumer.getmany(partition, timeout_ms=DEADLINE_S * 1000)
            assert records, len(values)
            values += [record.value for record in records[partition]]
        await consumer.stop()
        return values

    return asyncio.run(read())


def bytes_out(brokers, topic):
    name = f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={topic}"
    return [broker.metrics()[name]["Count"] for broker in brokers]


@pytest.mark.parametrize("read", [read_with_librdkafka, read_with_kafka_python, read_with_aiokafka])
def test_a_consumer_with_a_rack_is_served_by_the_follower_in_it_alone(brokers, name, read):
    servers = ",".join(broker.bootstrap_servers for broker in brokers)
    brokers[0].create_topic(name, 1, replication_factor=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 2})
    for number in range(COUNT):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(DEADLINE_S) == 0
    # The followers have the records; their metadata may have the topic later.
    wait_until(lambda: all(broker.metadata_cache.topic(name) for broker in brokers), "not all brokers know the topic")
    partition = producer.list_topics(name, timeout=DEADLINE_S).topics[name].partitions[0]
    assert sorted(partition.isrs) == [0, 1, 2]
    follower = (partition.leader + 1) % 3
    assert read(servers, name, RACKS[follower]) == [b"%d" % number for number in range(COUNT)]
    sent = bytes_out(brokers, name)
    assert sent[follower] > 0 and sum(sent) == sent[follower], (partition.leader, follower, sent)
