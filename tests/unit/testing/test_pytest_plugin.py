"""The pytest plugin, in runs of pytest of their own."""

import sys

import confluent_kafka
import pytest

import kcore
from kcore.errors import PolicyViolation, UnknownTopicOrPartition
from kcore.testing.kafka_fixture import KafkaFixture, WaitTimedOut
from kcore.testing.topic_reader import TopicReader
from tests.pages import ROOT, python_examples
from tests.waiting import wait_until

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
        ("time='real'", "*time must be \"skip\", or be left out, not 'real'*"),
        ("{}, {}, 3, 4", "*it takes from 0 to 3 positional arguments but 4 were given*"),
        ("['orders']", "*topics must be a dict, not ['orders']*"),
        ("{'orders': '3'}", "*topics must have a number of partitions for each name, not 'orders': '3'*"),
        ("{'or ders': 1}", "*Topic name is invalid: 'or ders' contains*"),
        ("{5: 1}", "*topics must be a str, not 5*"),
        ("config=3", "*config must be a dict, not 3*"),
        ("brokers=3", "*brokers is for the fixture kafka_cluster, not for kafka"),
        ("brokers=0", "*brokers must be a number of brokers, not 0*"),
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


def test_two_markers_in_one_place_are_an_error_and_one_of_a_test_replaces_that_of_its_class(pytester):
    pytester.makepyfile(
        test_shop="""
        import pytest

        @pytest.mark.kafka({"orders": 1})
        @pytest.mark.kafka(config={"num.partitions": 5})
        def test_orders(kafka):
            pass

        @pytest.mark.kafka({"orders": 1})
        class TestOrders:
            @pytest.mark.kafka({"prices": 2})
            def test_prices(self, kafka):
                assert [topic.name for topic in kafka.broker.metadata_cache.topics()] == ["prices"]
    """
    )
    result = run_pytest(pytester)
    result.assert_outcomes(errors=1, passed=1)
    says = "*there are 2 of it on test_orders, of which one would count: give all arguments to one"
    result.stdout.fnmatch_lines(["test_shop.py::test_orders: the marker kafka is wrong: " + says])


def test_a_test_without_the_fixture_may_have_a_marker_kafka_of_its_own(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka(reason="slow")
        def test_orders():
            pass
    """)
    run_pytest(pytester, "-m", "kafka").assert_outcomes(passed=1)


def test_the_tests_of_a_session_share_a_broker_and_see_no_records_topics_and_groups_of_each_other(pytester):
    pytester.makepyfile("""
        import confluent_kafka
        import pytest

        @pytest.fixture(scope="session")
        def kafka_session_config():
            return {"num.partitions": 2}

        @pytest.fixture(scope="session")
        def shop(kafka_session):
            kafka_session.broker.create_topic("prices", 2)
            kafka_session.broker.create_topic("stock", cleanup_policy="compact", min_insync_replicas=1)
            kafka_session.broker.produce("prices", "1", partition=0)
            return kafka_session.broker

        @pytest.fixture
        def order(kafka_session):
            kafka_session.broker.produce("orders", "a book", partition=1)

        @pytest.mark.kafka({"orders": 3})
        @pytest.mark.parametrize("run", range(3))
        def test_orders(shop, kafka_session, order, run):
            broker = kafka_session.broker
            assert shop is broker
            topics = {topic.name for topic in broker.metadata_cache.topics() if topic.name[0] != "_"}
            assert topics == {"orders", "prices", "stock"}
            assert broker.group_coordinator.manager.groups() == []
            for topic, count in (("orders", 1), ("prices", run == 0), ("stock", 0)):
                assert len(list(broker.consume(topic))) == count
            with confluent_kafka.Consumer(kafka_session.confluent_consumer("shop")) as consumer:
                consumer.subscribe(["orders"])
                message = consumer.poll(30)
                assert (message.partition(), message.offset()) == (1, 0)
                consumer.commit(message, asynchronous=False)
            broker.produce("prices", "2", partition=1)
            broker.produce("stock", "2", key="a")
            broker.produce("made-by-itself", "3")
            assert len(broker.metadata_cache.topic("made-by-itself").partitions) == 2
            assert broker.admin_manager.topic_config("stock")["cleanup.policy"] == "compact"
    """)
    run_pytest(pytester).assert_outcomes(passed=3)


def test_a_transaction_that_a_test_leaves_open_is_aborted_before_the_next_test(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.fixture(scope="session")
        def prices(kafka_session):
            kafka_session.broker.create_topic("prices")
            transaction = kafka_session.broker.transaction("of the session")
            transaction.produce("prices", "7.50")
            yield
            transaction.commit()

        @pytest.mark.parametrize("run", range(2))
        def test_orders(kafka_session, prices, run):
            broker = kafka_session.broker
            broker.create_topic("orders")
            broker.transaction("shop").produce("orders", "a book")

        @pytest.fixture(scope="session")
        def stock(kafka_session):
            kafka_session.broker.create_topic("stock")

        @pytest.mark.parametrize("run", range(2))
        def test_stock(kafka_session, stock, run):
            broker = kafka_session.broker
            broker.produce("stock", "1")
            assert len(list(broker.consume("stock", isolation="read_committed"))) == 1
            broker.transaction("shop").produce("stock", "2")
    """)
    run_pytest(pytester).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("config={'num.partitions': 3}", "*: config is not for kafka_session*"),
        ("{'orders': 1, 'prices': 3}", "*topic prices of the marker is to have 3 partitions, but was there before*"),
    ],
)
def test_what_a_test_cannot_have_of_a_shared_broker_is_an_error(pytester, arguments, reason):
    pytester.makepyfile(
        test_shop=f"""
        import pytest

        @pytest.fixture(scope="session", autouse=True)
        def prices(kafka_session):
            kafka_session.broker.create_topic("prices", 2)

        @pytest.mark.kafka({arguments})
        def test_orders(kafka_session):
            pass

        def test_nothing_is_left(kafka_session):
            assert [topic.name for topic in kafka_session.broker.metadata_cache.topics()] == ["prices"]
    """
    )
    result = run_pytest(pytester)
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines([reason])


def test_a_cluster_has_the_brokers_topics_and_settings_of_the_marker(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka(
            {"orders": 3}, brokers=2, config={"num.partitions": 5, "zookeeper.session.timeout.ms": 60000}
        )
        def test_orders(kafka_cluster):
            cluster = kafka_cluster.cluster
            assert sorted(cluster.brokers) == [0, 1]
            assert [cluster.isr("orders", number) for number in range(3)] == [[0, 1]] * 3
            for number in range(3):
                cluster.brokers[cluster.leader("orders", number)].produce("orders", "a book", partition=number)
            assert len(kafka_cluster.wait_for_records("orders", 3)) == 3
            kafka_cluster.clear_topic("orders")
            for number in range(3):
                leader = cluster.brokers[cluster.leader("orders", number)]
                assert list(leader.consume("orders", number)) == []
                assert leader.produce("orders", "a pen", partition=number).offset == 1
            cluster.create_topic("prices", -1)
            assert len(cluster.brokers[0].metadata_cache.topic("prices").partitions) == 5
    """)
    run_pytest(pytester).assert_outcomes(passed=1)


def test_a_topic_is_cleared():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("stock", cleanup_policy="compact")
        kafka = KafkaFixture(broker)
        broker.produce("orders", "a book", partition=1)
        kafka.clear_topic("orders")
        assert list(broker.consume("orders")) == []
        assert broker.produce("orders", "a pen", partition=1).offset == 1
        with pytest.raises(PolicyViolation, match="stock-0"):
            kafka.clear_topic("stock")
        with pytest.raises(UnknownTopicOrPartition, match="prices"):
            kafka.clear_topic("prices")


def test_a_wait_for_a_group_ends_when_its_member_has_the_partitions():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 3)
        kafka = KafkaFixture(broker)
        consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop"))
        try:
            consumer.subscribe(["orders"])
            wait_until(lambda: consumer.poll(0) is None and consumer.assignment())
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
        with pytest.raises(WaitTimedOut, match="1 record in prices: there is no such topic"):
            kafka.wait_for_records("prices", 1, timeout=0)


def test_a_wait_for_records_begins_before_a_producer_makes_the_topic(monkeypatch):
    with kcore.Broker() as broker:
        kafka = KafkaFixture(broker)
        read = TopicReader.read

        def read_first(reader):
            found = read(reader)
            broker.produce("orders", "a book")
            return found

        monkeypatch.setattr(TopicReader, "read", read_first)
        (record,) = kafka.wait_for_records("orders", 1)
        assert record.value == b"a book"


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


def test_each_worker_of_xdist_has_brokers_of_its_own(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.kafka({"orders": 2})
        @pytest.mark.parametrize("run", range(4))
        def test_orders(kafka, kafka_session, run):
            for fixture in (kafka, kafka_session):
                fixture.broker.produce("orders", str(run))
                assert [record.value for record in fixture.broker.consume("orders")] == [b"%d" % run]
            assert run != 3
    """)
    result = run_pytest(pytester, "-n", "2")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*- kafka_session -*", "orders-*: offsets from 0, end 1, leader *"])


def test_coroutines_as_tests_and_fixtures_use_the_broker_with_anyio(pytester):
    pytester.makepyfile("""
        import aiokafka
        import pytest

        pytestmark = pytest.mark.anyio

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.fixture
        async def producer(kafka):
            async with aiokafka.AIOKafkaProducer(**kafka.aiokafka()) as producer:
                yield producer

        @pytest.mark.kafka({"orders": 1})
        async def test_orders(kafka, producer):
            await producer.send_and_wait("orders", b"a book")
            async with aiokafka.AIOKafkaConsumer("orders", **kafka.aiokafka_consumer("shop")) as consumer:
                assert (await consumer.getone()).value == b"a book"
                await consumer.commit()
                await kafka.aio.wait_for_lag("shop")
            await producer.send_and_wait("orders", b"a pen")
            await kafka.aio.wait_for_lag("shop", timeout=0.1)
    """)
    result = run_pytest(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *WaitTimedOut: *shop*"])


def test_a_wait_that_pytest_timeout_ends_is_reported_with_the_brokers(pytester):
    pytester.makepyfile("""
        import pytest

        @pytest.mark.timeout(0.1, func_only=True)
        @pytest.mark.kafka({"orders": 2})
        def test_orders(kafka):
            kafka.wait_for_records("orders", 1, timeout=600)

        def test_prices(kafka):
            kafka.broker.produce("prices", "7.50")
    """)
    result = run_pytest(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*from pytest-timeout*", "*- kafka -*", "orders-1: offsets from 0, end 0, *"])


def test_with_the_marker_the_clock_moves_on_by_itself_and_without_it_does_not(pytester):
    pytester.makepyfile("""
        import threading
        import time

        import pytest

        def waits(kafka, hours):
            due = threading.Event()
            kafka.broker.running.base.background.timer.add(due.set, hours * 3_600_000)
            return due

        @pytest.mark.kafka(time="skip")
        def test_alone(kafka):
            assert waits(kafka, 1).wait(30)

        @pytest.mark.kafka(time="skip")
        def test_shared(kafka_session):
            assert waits(kafka_session, 2).wait(30)

        def test_it_stands_still_after_that_test(kafka_session):
            due = waits(kafka_session, 3)
            assert not due.wait(0.2)
            kafka_session.time.skip(hours=3)
            assert due.is_set()

        @pytest.mark.kafka({"orders": 3}, brokers=2, time="skip")
        def test_of_a_cluster(kafka_cluster):
            def ahead_ms():
                # Of the system's clock.  Each move is the wait of a follower's fetch, half a second.
                return kafka_cluster.time.milliseconds() - time.time() * 1000

            kafka_cluster.cluster.produce("orders", "a book")
            began_ms, deadline = ahead_ms(), time.monotonic() + 60
            while ahead_ms() < began_ms + 5_000:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    """)
    run_pytest(pytester).assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("page", "tests"),
    [
        ("testing", 19),
        ("faults", 16),
        ("coming_from/testcontainers", 1),
        ("coming_from/kfake", 1),
        ("coming_from/librdkafka_mock", 2),
        ("coming_from/toxiproxy", 1),
    ],
)
def test_the_tests_of_the_page_pass(pytester, page, tests):
    pytester.makepyfile("\n".join(example.parsed for example in python_examples(f"docs/{page}.md")))
    run_pytest(pytester).assert_outcomes(passed=tests)


@pytest.mark.parametrize("library", ["confluent", "aiokafka", "faststream"])
def test_the_tests_of_the_example_pass_with_the_library(pytester, library):
    result = run_pytest(pytester, str(ROOT / "examples" / "shop"), "-k", library)
    result.assert_outcomes(passed=6, deselected=12)


@pytest.mark.parametrize("arguments", [[], ["-n", "1"]], ids=["one process", "a worker of xdist"])
def test_pytest_rewrites_the_asserts_of_tests_and_not_those_of_kcore(pytester, arguments):
    # pytest 9 marks kcore by itself, also where it is installed from a checkout; pytest 8 does not.
    pytester.makeconftest("""
        import pytest

        pytest.register_assert_rewrite("kcore.log", "kcore.server", "helpers")
        import kcore.log.log_config
        import helpers
    """)
    pytester.makepyfile(
        helpers="",
        test_orders="""
        import sys

        def test_orders(kafka):
            loaders = {name: type(getattr(module, "__loader__", None)) for name, module in sys.modules.items()}
            rewritten = {name for name, loader in loaders.items() if loader is type(__loader__)}
            assert rewritten >= {__name__, "conftest", "helpers"}
            assert {"kcore.log.log_config", "kcore.server.broker"} <= sys.modules.keys()
            # The plugin itself is imported before it can ask for anything.
            of_kcore = {name for name in rewritten if name.split(".")[0] == "kcore"}
            assert of_kcore <= {"kcore", "kcore.testing", "kcore.testing.pytest_plugin"}
    """,
    )
    run_pytest(pytester, *arguments).assert_outcomes(passed=1)


def test_a_test_of_the_users_own_in_a_folder_named_kcore_has_its_asserts_rewritten(pytester):
    folder = pytester.mkdir("kcore")
    (folder / "test_orders.py").write_text("def test_orders(kafka):\n    assert [1] == [2]\n")
    result = run_pytest(pytester, "--import-mode=importlib")
    result.stdout.fnmatch_lines(["*assert ?1? == ?2?"])
    assert "At index 0 diff: 1 != 2" in result.stdout.str()


def test_after_a_run_imports_are_as_they_were_before(pytester):
    pytester.makepyfile("def test_orders(kafka): pass")
    run = f"pytest.main(['-p', 'kcore.testing.pytest_plugin', '-p', 'no:cacheprovider', {str(pytester.path)!r}])"
    code = f"import sys, pytest; before = [*sys.meta_path]; code = {run}; print(code, sys.meta_path == before)"
    assert pytester.run(sys.executable, "-c", code).outlines[-1] == "0 True"


def test_a_run_without_the_fixtures_imports_only_the_plugin(pytester):
    pytester.makepyfile("""
        import sys

        def test_orders():
            of_kcore = {name for name in sys.modules if name.split(".")[0] == "kcore"}
            assert of_kcore == {"kcore", "kcore.testing", "kcore.testing.pytest_plugin"}
    """)
    run_pytest(pytester).assert_outcomes(passed=1)


def test_the_files_of_what_a_test_has_deleted_on_the_broker_of_all_tests_are_gone_soon(pytester):
    """They may be in memory: in the minute of Kafka's default a run would pile up those of hundreds of tests."""
    pytester.makepyfile("""
        import pathlib

        import pytest
        from tests.waiting import wait_until

        @pytest.mark.kafka({"orders": 1})
        def test_orders(kafka_session):
            kafka_session.broker.produce("orders", bytes(1000))
            kafka_session.clear_topic("orders")

        def test_what_is_left(kafka_session):
            directory = pathlib.Path(kafka_session.broker.data_dir)
            wait_until(lambda: not list(directory.glob("orders-0*")), timeout_s=20)
    """)
    run_pytest(pytester).assert_outcomes(passed=2)


@pytest.mark.parametrize("name", ["log.segment.delete.delay.ms", "log_segment_delete_delay_ms"])
def test_how_long_they_are_left_can_be_said(pytester, name):
    pytester.makepyfile(f"""
        import pytest

        @pytest.fixture(scope="session")
        def kafka_session_config():
            return {{"{name}": 60_000}}

        def test_setting(kafka_session):
            assert kafka_session.broker.config["log.segment.delete.delay.ms"] == 60_000
    """)
    run_pytest(pytester).assert_outcomes(passed=1)
