"""The pytest plugin, in runs of pytest of their own."""

import confluent_kafka
import pytest

import kcore
from kcore.testing.kafka_fixture import KafkaFixture, WaitTimedOut
from tests.pages import python_examples

pytest_plugins = ["pytester"]


def test_each_test_has_a_broker_of_its_own_with_the_topics_of_its_marker(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka(topics={"orders": 3}, config={"auto.create.topics.enable": "false"})
        @pytest.mark.parametrize("run", range(2))
        def test_orders(kafka, run):
            assert list(kafka.broker.consume("orders", partition=2)) == []
            kafka.broker.produce("orders", "a book", partition=2)
            kafka.wait_for_records("orders", 1)
            with pytest.raises(Exception, match="payments"):
                kafka.broker.produce("payments", "1")
    """)
    result = pytester.runpytest_subprocess(
        "-p", "kcore.testing.pytest_plugin", "--strict-markers", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=2)


def test_a_wait_for_a_group_ends_when_its_member_has_the_partitions():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        kafka = KafkaFixture(broker)
        consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop"))
        try:
            consumer.subscribe(["orders"])
            consumer.poll(0)
            kafka.wait_for_group("shop", partitions=3)
            with pytest.raises(WaitTimedOut, match=r"Stable with 4 partitions: it is Stable.*3 partitions assigned"):
                kafka.wait_for_group("shop", partitions=4, timeout=0)
        finally:
            consumer.close()


def test_a_wait_that_times_out_says_what_there_is():
    with kcore.Broker() as broker:
        broker.create_topic("orders")
        kafka = KafkaFixture(broker)
        with pytest.raises(WaitTimedOut, match="2 records in orders: it has 0"):
            kafka.wait_for_records("orders", 2, timeout=0)
        with pytest.raises(WaitTimedOut, match="there is no such group"):
            kafka.wait_for_group("shop", timeout=0)


def test_the_tests_of_the_page_pass(pytester):
    pytester.makepyfile("\n".join(example.parsed for example in python_examples("docs/testing.md")))
    result = pytester.runpytest_subprocess("-p", "kcore.testing.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
