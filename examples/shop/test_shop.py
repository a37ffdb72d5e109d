"""The shop under test, with each library: pytest examples/shop.  Each fault here has its section in docs/testing.md.

pytest examples/shop -k aiokafka runs the tests of one form.  Those of a library that is not installed are skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import subprocess
import sys
import threading

import pytest

TOPICS = {"orders": 2, "invoices": 1}

#: How each form of the shop runs until `stop` is set.
RUN = {
    "shop_confluent": lambda shop, kafka, stop: shop.run(kafka.confluent(retry_backoff_ms=10), stop),
    "shop_aiokafka": lambda shop, kafka, stop: asyncio.run(shop.run(kafka.aiokafka(), stop)),
    "shop_faststream": lambda shop, kafka, stop: asyncio.run(shop.run(kafka.faststream(), stop)),
}


@pytest.fixture(params=RUN)
def shop(request):
    return pytest.importorskip(request.param)


@contextlib.contextmanager
def open_shop(shop, kafka):
    stop = threading.Event()
    worker = threading.Thread(target=RUN[shop.__name__], args=(shop, kafka, stop), daemon=True)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def invoices(kafka, count):
    return [record.value for record in kafka.wait_for_records("invoices", count)]


@pytest.mark.kafka(TOPICS)
def test_each_order_gets_an_invoice(shop, kafka):
    with open_shop(shop, kafka):
        kafka.broker.produce("orders", "a book", key="1")
        assert invoices(kafka, 1) == [b"invoice of a book"]
        kafka.wait_for_lag("shop")


@pytest.mark.kafka(TOPICS)
def test_another_shop_takes_over_when_one_dies(shop, kafka):
    with open_shop(shop, kafka):
        kafka.wait_for_group("shop", partitions=2)
        program = pathlib.Path(shop.__file__)
        with subprocess.Popen([sys.executable, program, kafka.bootstrap_servers]) as other:
            kafka.wait_for_group("shop", members=2)
            other.kill()
        kafka.time.skip(seconds=46)
        kafka.wait_for_group("shop", members=1, partitions=2)
        for key in "1234":
            kafka.broker.produce("orders", "a book", key=key)
        assert len(invoices(kafka, 4)) == 4


@pytest.mark.kafka(TOPICS)
def test_a_lost_answer_makes_no_second_invoice(shop, kafka):
    with open_shop(shop, kafka), kafka.fault("Produce", cut="after", topic="invoices", times=1) as fault:
        kafka.broker.produce("orders", "a book", key="1")
        kafka.wait_for_lag("shop")
    assert fault.hits == 1 and len(list(kafka.broker.consume("invoices"))) == 1


@pytest.mark.kafka(TOPICS)
def test_an_invoice_is_written_once_the_disk_has_room_again(shop, kafka):
    with open_shop(shop, kafka):
        with kafka.disk_fault("full", "invoices") as fault:
            kafka.broker.produce("orders", "a book", key="1")
            fault.wait_for_hits(2)
        assert invoices(kafka, 1) == [b"invoice of a book"]


@pytest.mark.kafka({"orders": 1, "invoices": 1}, brokers=2)
def test_the_shop_goes_on_while_a_broker_is_down(shop, kafka_cluster):
    with open_shop(shop, kafka_cluster):
        kafka_cluster.wait_for_group("shop", partitions=1)  # its topic is made while both brokers are there
        with kafka_cluster.down(kafka_cluster.cluster.leader("invoices")):
            kafka_cluster.cluster.produce("orders", "a book", key="1")
            assert invoices(kafka_cluster, 1) == [b"invoice of a book"]
        kafka_cluster.wait_until_in_sync("invoices")


@pytest.mark.kafka(TOPICS, config={"kcore.act.like": "2.8"})
def test_the_shop_works_with_a_broker_of_2_8(shop, kafka):
    with open_shop(shop, kafka):
        kafka.broker.produce("orders", "a book", key="1")
        assert invoices(kafka, 1) == [b"invoice of a book"]
