"""What the report of a failing test says about its brokers, and what the log of the others does not."""

import logging
import re

import pytest

import kcore
from kcore.testing.kafka_fixture import KafkaFixture
from kcore.testing.kafka_report import MAX_LINES
from kcore.testing.log_tail import LogTail
from tests.unit.testing.test_pytest_plugin import run_pytest

pytest_plugins = ["pytester"]


def test_the_report_of_a_failing_test_shows_topics_offsets_groups_explanations_and_the_log(pytester):
    pytester.makepyfile("""
        import confluent_kafka
        import pytest

        @pytest.mark.kafka({"orders": 2})
        def test_orders(kafka):
            kafka.broker.produce("orders", "a book", partition=1)
            consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop"))
            consumer.subscribe(["orders"])
            kafka.wait_for_group("shop", partitions=2)
            assert False
    """)
    result = run_pytest(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.no_fnmatch_line("*- Captured log*")
    result.stdout.fnmatch_lines(
        [
            "*- kafka -*",
            "broker * on 127.0.0.1:*",
            "orders-0: offsets from 0, end 0, leader *",
            "orders-1: offsets from 0, end 1, leader *",
            "group shop: *, generation 1; members: rdkafka-*",
            "  orders-1: end 1, nothing committed, lag 1",
            "orders-1 on broker *: leader with epoch 0 since offset 0",
            "  log [[]0, 1), high watermark 1, last stable offset 1",
            "*- log of kafka -*",
            "*INFO kcore.server.topics.admin_manager: created topic orders with 2 partitions*",
            "*INFO kcore.coordinator.group.group_coordinator: group shop: generation 1 has 1 members",
        ]
    )


def test_the_report_of_a_failing_test_says_that_clients_are_left_that_go_on_to_look_for_the_broker(pytester):
    pytester.makepyfile("""
        import confluent_kafka

        KEPT = []

        def test_left(kafka):
            KEPT.append(confluent_kafka.Consumer(kafka.confluent_consumer("shop", log_level=2)))
            KEPT[0].list_topics(timeout=60)
            assert False

        def test_closed(kafka):
            with confluent_kafka.Consumer(kafka.confluent_consumer("shop")) as consumer:
                consumer.list_topics(timeout=60)
            assert False

        def test_passes(kafka):
            KEPT.append(confluent_kafka.Consumer(kafka.confluent_consumer("shop", log_level=2)))
            KEPT[1].list_topics(timeout=60)
    """)
    result = run_pytest(pytester, "-rA")
    result.assert_outcomes(failed=2, passed=1)
    (line,) = [line for line in result.outlines if "clients of this test" in line]
    assert line.startswith("clients of this test were still connected when its broker stopped: ")
    result.stdout.fnmatch_lines(["*_ test_left _*", "*- Captured kafka teardown -*", line, "*_ test_closed _*"])
    result.stdout.no_fnmatch_line("*Connection refused (after*")  # log_level=2


def test_the_report_names_open_transactions():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        assert "transaction" not in kafka.describe()
        transaction = broker.transaction("shop")
        for number in range(2):
            transaction.produce("orders", "a book", partition=number)
        (line,) = [line for line in kafka.describe().splitlines() if line.startswith("transaction")]
        assert re.fullmatch(
            r"transaction shop: Ongoing since \d{4}-.*, in orders-0, orders-1; "
            "consumers with read_committed wait for its end",
            line,
        )
        transaction.commit()
        assert "transaction shop" not in kafka.describe()


def test_tests_that_pass_and_tests_without_a_broker_have_no_such_section(pytester):
    pytester.makepyfile("""
        def test_passes(kafka):
            pass

        def test_without_a_broker():
            assert False
    """)
    result = run_pytest(pytester, "-rA")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*kafka -*")
    result.stdout.no_fnmatch_line("broker *")


def test_the_report_of_a_failing_fixture_and_of_a_shared_broker_and_of_a_stopped_one(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def order(kafka_session):
            kafka_session.broker.produce("orders", "a book")
            raise LookupError("no such book")

        @pytest.mark.kafka({"orders": 1})
        def test_orders(order):
            pass

        @pytest.mark.kafka({"prices": 1})
        def test_prices(kafka):
            kafka.broker.stop()
            assert False

        @pytest.mark.kafka({"stock": 1}, brokers=2)
        def test_stock(kafka_cluster):
            kafka_cluster.cluster.wait_until_in_sync("stock")
            kafka_cluster.cluster.stop(1)
            assert False
    """)
    result = run_pytest(pytester)
    result.assert_outcomes(errors=1, failed=2)
    result.stdout.fnmatch_lines(["*- kafka_session -*", "broker * on *", "orders-0: offsets from 0, end 1, leader *"])
    result.stdout.fnmatch_lines(["*- kafka -*", "no broker runs"])
    result.stdout.fnmatch_lines(
        ["*- kafka_cluster -*", "broker 0 on *", "stock-0: offsets from 0, end 0, leader 0, replicas [[]*], ISR [[]*]"]
    )


def test_a_report_of_many_partitions_says_how_many_it_leaves_out():
    with kcore.Broker() as broker:
        broker.create_topic("orders", MAX_LINES + 3)
        broker.produce("orders", "a book", partition=MAX_LINES + 2)
        lines = KafkaFixture(broker).describe().splitlines()
        assert lines[1 + MAX_LINES] == "... and 3 partitions more"
        explained = f"orders-{MAX_LINES + 2} on broker {broker.broker_id}: leader with epoch 0 since offset 0"
        assert explained in lines


@pytest.fixture
def logger():
    """One of kcore's, for this test."""
    return logging.getLogger("kcore.of_a_test")


def test_the_lines_of_a_broker_are_kept_and_other_handlers_get_what_they_got_before(logger, caplog):
    caplog.set_level(logging.WARNING)
    with LogTail() as log:
        logger.debug("too fine")
        logger.info("for the report")
        logger.warning("for all")
    assert [line.split(" ", 1)[1] for line in log.lines] == [
        "INFO kcore.of_a_test: for the report",
        "WARNING kcore.of_a_test: for all",
    ]
    assert caplog.messages == ["for all"]
    logger.info("after it")
    logger.warning("after it")
    assert caplog.messages == ["for all", "after it"]
    assert len(log.lines) == 2


@pytest.mark.parametrize("name", [None, "kcore", "kcore.of_a_test"])
def test_a_test_that_sets_the_level_of_kcores_loggers_gets_their_records(logger, caplog, name):
    with LogTail(), caplog.at_level(logging.INFO, name):
        logger.info("wanted")
        logger.debug("too fine")
    assert caplog.messages == ["wanted"]
    assert logging.getLogger("kcore").level == logging.NOTSET


def test_a_level_that_was_set_before_stays(logger, caplog):
    caplog.set_level(logging.ERROR, "kcore")
    with LogTail() as log:
        logger.warning("not wanted")
        logger.error("wanted")
    assert caplog.messages == ["wanted"]
    assert len(log.lines) == 1
    assert logging.getLogger("kcore").level == logging.ERROR
