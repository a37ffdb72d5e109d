"""aiokafka against our broker."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.interop.conftest import CODECS


async def take(consumer, count):
    records = []
    while len(records) < count:
        polled = await asyncio.wait_for(consumer.getmany(timeout_ms=500), 60)
        for batch in polled.values():
            records.extend(batch)
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed_with_every_codec(servers, name, codec):
    expected = [
        (b"k%d" % i if i % 3 else None, b"v%d" % i * (i % 30) if i % 3 == 0 or i % 7 else None, (("h", b"%d" % i),))
        for i in range(1, 300)
    ]

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=servers, compression_type=None if codec == "none" else codec)
        await producer.start()
        futures = [await producer.send(name, value, key, headers=list(headers)) for key, value, headers in expected]
        await asyncio.gather(*futures)
        await producer.stop()
        consumer = AIOKafkaConsumer(name, bootstrap_servers=servers, auto_offset_reset="earliest")
        await consumer.start()
        records = await take(consumer, len(expected))
        await consumer.stop()
        return records

    assert [(r.key, r.value, r.headers) for r in asyncio.run(run())] == expected


def test_an_idempotent_producer_writes_each_record_once_and_in_order(servers, name):
    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True, max_batch_size=500)
        await producer.start()
        futures = [await producer.send(name, b"%d" % i) for i in range(2000)]
        results = await asyncio.gather(*futures)
        await producer.stop()
        return [result.offset for result in results]

    assert asyncio.run(run()) == list(range(2000))


def test_two_members_share_a_group_and_the_next_resumes_where_it_committed(broker, servers, name):
    broker.create_topic(name, partitions=2)

    def member():
        return AIOKafkaConsumer(
            name, bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=30_000, heartbeat_interval_ms=300,
        )  # fmt: skip

    async def run():
        first, second = member(), member()
        await first.start()
        await second.start()
        for _ in range(600):
            if {len(first.assignment()), len(second.assignment())} == {1}:
                break
            await asyncio.sleep(0.1)
        assert first.assignment() | second.assignment() == {TopicPartition(name, 0), TopicPartition(name, 1)}
        assert len(first.assignment()) == 1
        producer = AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()
        for i in range(20):
            await producer.send_and_wait(name, b"%d" % i, partition=i % 2)
        await producer.stop()
        for consumer in (first, second):
            assert len(await take(consumer, 10)) == 10
            await consumer.commit()
        await first.stop()
        await second.stop()
        third = member()
        await third.start()
        committed = [await third.committed(TopicPartition(name, number)) for number in (0, 1)]
        positions = [await third.position(TopicPartition(name, number)) for number in (0, 1)]
        await third.stop()
        return committed, positions

    assert asyncio.run(run()) == ([10, 10], [10, 10])


def test_offsets_are_found_by_time(servers, name):
    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=servers)
        await producer.start()
        for i in range(10):
            await producer.send_and_wait(name, b"%d" % i, timestamp_ms=1_700_000_000_000 + 1000 * i)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=servers)
        await consumer.start()
        partition = TopicPartition(name, 0)
        offsets = await consumer.offsets_for_times({partition: 1_700_000_004_500})
        ends = await consumer.end_offsets([partition])
        await consumer.stop()
        return offsets[partition].offset, ends[partition]

    assert asyncio.run(run()) == (5, 10)


def test_topics_are_created_described_and_deleted(servers, name):
    async def run():
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        await admin.create_topics([NewTopic(name, 2, 1)])
        (described,) = await admin.describe_topics([name])
        await admin.delete_topics([name])
        left = await admin.list_topics()
        await admin.close()
        return len(described["partitions"]), name in left

    assert asyncio.run(run()) == (2, False)
