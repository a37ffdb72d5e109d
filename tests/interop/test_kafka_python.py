"""kafka-python against our broker."""

import threading
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic
from kafka.codec import has_snappy
from kafka.structs import OffsetAndMetadata

from tests.interop.conftest import CODECS
from tests.waiting import wait_until


def subscribed(servers, topic, **options):
    """A consumer from the topic's beginning on.  The first metadata request of this client (3.0) may leave before it
    has noted the topic, and the response then ends its wish for another one, for as long as metadata may be old."""
    return KafkaConsumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", metadata_max_age_ms=500, **options
    )


def take(consumer, count, timeout=60):
    records = []
    deadline = time.monotonic() + timeout
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        for batch in consumer.poll(timeout_ms=200).values():
            records.extend(batch)
    return records


def produce(servers, topic, values, **config):
    producer = KafkaProducer(bootstrap_servers=servers, **config)
    try:
        futures = [producer.send(topic, value) for value in values]
        return [future.get(60).offset for future in futures]
    finally:
        producer.close()


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_with_every_codec(servers, name, codec):
    if codec == "snappy" and not has_snappy():
        pytest.skip("kafka-python needs another package for snappy")
    producer = KafkaProducer(bootstrap_servers=servers, compression_type=None if codec == "none" else codec)
    expected = [
        (b"k%d" % i if i % 3 else None, b"v%d" % i * (i % 30) if i % 3 == 0 or i % 7 else None, (("h", b"%d" % i),))
        for i in range(1, 300)
    ]
    for i, (key, value, headers) in enumerate(expected):
        producer.send(name, value, key, headers=list(headers), timestamp_ms=1_700_000_000_000 + i)
    producer.flush()
    producer.close()
    consumer = subscribed(servers, name)
    records = take(consumer, len(expected))
    consumer.close()
    assert [(r.key, r.value, tuple(r.headers)) for r in records] == expected
    assert [r.timestamp for r in records] == [1_700_000_000_000 + i for i in range(len(expected))]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_level_delivers(servers, name, acks):
    produce(servers, name, [b"a", b"b"], acks=acks)
    consumer = subscribed(servers, name)
    assert [r.value for r in take(consumer, 2)] == [b"a", b"b"]
    consumer.close()


def test_an_idempotent_producer_writes_each_record_once_and_in_order(servers, name):
    offsets = produce(servers, name, [b"%d" % i for i in range(2000)], enable_idempotence=True, batch_size=500)
    assert offsets == list(range(2000))


def test_two_members_share_a_group_and_resume_where_it_committed(broker, servers, name):
    broker.create_topic(name, partitions=2)
    assignments = {}
    stop = threading.Event()

    def member(number):
        consumer = KafkaConsumer(
            bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )  # fmt: skip
        # A leader that joins before it has metadata assigns nothing and joins again with the next metadata, and there
        # this client (3.0) can forget its SyncGroup: the broker has answered, and nothing more ever comes from it.
        assert consumer.partitions_for_topic(name) == {0, 1}
        consumer.subscribe([name])
        try:
            while not stop.is_set():
                consumer.poll(timeout_ms=100)
                assignments[number] = sorted(p.partition for p in consumer.assignment())
        finally:
            consumer.close()

    threads = [threading.Thread(target=member, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(
            lambda: sorted(assignments.values()) == [[0], [1]], "two members do not share two partitions", timeout_s=60
        )
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    produce(servers, name, [b"%d" % i for i in range(40)])
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
    )
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    consumer.commit({partition: OffsetAndMetadata(7, "note", -1)})
    assert consumer.committed(partition) == 7
    consumer.close()


def test_offsets_are_found_by_time(servers, name):
    producer = KafkaProducer(bootstrap_servers=servers)
    for i in range(20):
        producer.send(name, b"%d" % i, timestamp_ms=1_700_000_000_000 + 1000 * i)
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=servers)
    partition = TopicPartition(name, 0)
    offset = consumer.offsets_for_times({partition: 1_700_000_004_500})[partition]
    assert (offset.offset, offset.timestamp) == (5, 1_700_000_005_000)
    assert consumer.offsets_for_times({partition: 1_800_000_000_000})[partition] is None
    assert consumer.beginning_offsets([partition])[partition] == 0
    assert consumer.end_offsets([partition])[partition] == 20
    consumer.close()


def test_topics_are_created_grown_listed_and_deleted(servers, name):
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(name, 2, 1)])
    assert name in admin.list_topics()
    admin.create_partitions({name: NewPartitions(3)})
    (described,) = admin.describe_topics([name])
    assert len(described["partitions"]) == 3
    admin.delete_topics([name])
    assert name not in admin.list_topics()
    admin.close()
