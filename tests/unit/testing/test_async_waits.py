"""Brokers and waits in an event loop of asyncio."""

import asyncio
import contextlib

import aiokafka
import pytest

import kcore
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture, WaitTimedOut


def test_a_client_of_the_same_loop_goes_on_while_a_test_waits():
    async def run():
        async with kcore.Broker() as broker:
            broker.create_topic("orders", 3)
            kafka = KafkaFixture(broker)
            settings = kafka.aiokafka_consumer("shop", enable_auto_commit=False)
            async with aiokafka.AIOKafkaConsumer("orders", **settings) as consumer:
                await kafka.aio.wait_for_group("shop", partitions=3)
                broker.produce("orders", "a book")
                (record,) = await kafka.aio.wait_for_records("orders", 1)
                waiting = asyncio.create_task(kafka.aio.wait_for_lag("shop"))
                message = await asyncio.wait_for(consumer.getone(), 30)
                assert message.value == record.value == b"a book"
                assert not waiting.done()
                await consumer.commit()
                await waiting
                with pytest.raises(WaitTimedOut, match="waited 0 s for 2 records in orders: it has 1"):
                    await kafka.aio.wait_for_records("orders", 2, timeout=0)
        assert broker.has_stopped

    asyncio.run(run())


def test_a_cancelled_wait_ends():
    async def run():
        async with kcore.Broker() as broker:
            waiting = asyncio.create_task(KafkaFixture(broker).aio.wait_for_group("shop", timeout=600))
            await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            return waiting.cancelled()

    assert asyncio.run(run())


def test_the_waits_of_a_cluster():
    async def run():
        async with kcore.Cluster(2) as cluster:
            cluster.create_topic("orders")
            kafka = KafkaClusterFixture(cluster)
            await kafka.aio.wait_until_in_sync("orders")
            leader = cluster.leader("orders")
            await asyncio.to_thread(cluster.kill, leader)
            await kafka.aio.wait_until_led("orders", 0)
            assert cluster.leader("orders") == 1 - leader
            with pytest.raises(WaitTimedOut, match=f"orders-0: broker {leader} does not run"):
                await kafka.aio.wait_until_in_sync("orders", timeout=0)

    asyncio.run(run())


def test_a_broker_that_cannot_start_raises_in_the_loop(tmp_path):
    async def run():
        with kcore.Broker(tmp_path):
            async with kcore.Broker(tmp_path):
                raise AssertionError("two brokers have one directory")

    with pytest.raises(kcore.errors.DirectoryInUse):
        asyncio.run(run())
