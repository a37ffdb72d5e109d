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
    run_pytest(pytester).assert_outcomes(passed=2)


def run_pytest(pytester, *arguments):
    return pytester.runpytest_subprocess(
        "-p", "kcore.testing.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers", *arguments
    )


def test_the_marker_takes_topics_and_settings_by_position(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka({"orders": 3}, {"auto.create.topics.enable": "false"})
        def test_orders(kafka):
            kafka.broker.produce("orders", "a book", partition=2)
            with pytest.raises(Exception, match="payments"):
                kafka.broker.produce("payments", "1")
    """)
    run_pytest(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("topic={'orders': 3}", "*it got an unexpected keyword argument 'topic'*"),
        ("{}, {}, 3", "*it takes from 0 to 2 positional arguments but 3 were given*"),
        ("['orders']", "*topics must be a dict, not ['orders']*"),
        ("{'orders': '3'}", "*topics must have a number of partitions for each name, not 'orders': '3'*"),
        ("config=3", "*config must be a dict, not 3*"),
    ],
)
def test_a_marker_with_wrong_arguments_is_an_error_that_names_the_test(pytester, arguments, reason):
    pytester.makepyfile(
        test_shop=f"""
        import pytest

        @pytest.mark.kafka({arguments})
        def test_orders(kafka):
            pass
    """
    )
    result = run_pytest(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["test_shop.py::test_orders: the marker kafka is wrong: " + reason.replace("[", "[[]")])


def test_a_test_without_the_fixture_may_have_a_marker_kafka_of_its_own(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka(reason="slow")
        def test_orders():
            pass
    """)
    run_pytest(pytester, "-m", "kafka").assert_outcomes(passed=1)


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


def test_a_wait_for_records_reads_each_record_once_and_no_more_than_it_waits_for(monkeypatch):
    with kcore.Broker() as broker:
        broker.create_topic("orders", 2)
        for number in range(20):
            broker.produce("orders", str(number), partition=number % 2)
        read = []
        consume = broker.consume

        def counted(*arguments, **keywords):
            for record in consume(*arguments, **keywords):
                read.append((record.partition, record.offset))
                if len(read) == 20:
                    broker.produce("orders", "20")
                yield record

        monkeypatch.setattr(broker, "consume", counted)
        kafka = KafkaFixture(broker)
        assert len(kafka.wait_for_records("orders", 21)) == 21
        assert len(read) == len(set(read)) == 21
        read.clear()
        records = kafka.wait_for_records("orders", 12)
        assert [(record.partition, record.offset) for record in records] == read
        assert len(read) == 12


def test_the_tests_of_the_page_pass(pytester):
    pytester.makepyfile("\n".join(example.parsed for example in python_examples("docs/testing.md")))
    run_pytest(pytester).assert_outcomes(passed=2)
