"""Time that a test moves, with clients whose own clocks stay real."""

import asyncio
import contextlib
import socket
import threading
from types import SimpleNamespace

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka as kafka_python
import pytest

import kcore
from kcore.protocol.api_keys import ApiKey
from kcore.testing import SkipTime, skip_time
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture
from tests.waiting import wait_until

#: Longer than any test waits.  Without commits: aiokafka ends none while it has lost its coordinator.
#: Heartbeats more often than a skip needs them: on a loaded machine they are late.
SESSION = {"session_timeout_ms": 240_000, "heartbeat_interval_ms": 1000, "enable_auto_commit": False}


@pytest.fixture
def kafka():
    with kcore.Broker(time=SkipTime(), group_initial_rebalance_delay_ms=0) as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


@contextlib.contextmanager
def confluent_consumer(kafka, client_id, **settings):
    """It is polled: now and then one that never was does not return from close()."""
    settings = kafka.confluent_consumer("shop", client_id=client_id, **SESSION | settings)
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["orders"])
    with polled(lambda: consumer.poll(0.05)):
        yield
    consumer.close()


@contextlib.contextmanager
def kafka_python_consumer(kafka, client_id, **settings):
    settings = kafka.kafka_python_consumer("shop", client_id=client_id, **SESSION | settings)
    consumer = kafka_python.KafkaConsumer("orders", **settings)
    # One that joins before it knows the topic joins again, and now and then sends no heartbeat ever after (3.0.12).
    assert consumer.partitions_for_topic("orders") == {0, 1}
    with polled(lambda: consumer.poll(50)):
        yield
    consumer.close()


@contextlib.contextmanager
def aiokafka_consumer(kafka, client_id, **settings):
    stop = threading.Event()

    async def consume():
        all_settings = kafka.aiokafka_consumer("shop", client_id=client_id, **SESSION | settings)
        async with aiokafka.AIOKafkaConsumer("orders", **all_settings) as consumer:
            while not stop.is_set():
                await consumer.getmany(timeout_ms=50)

    thread = threading.Thread(target=lambda: asyncio.run(consume()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def polled(poll):
    """poll() is called all the time by another thread, whatever becomes of its connection."""
    stop = threading.Event()

    def run():
        while not stop.is_set():
            with contextlib.suppress(kafka_python.errors.KafkaError):
                poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def members(kafka, group_id="shop"):
    """client id -> member id."""
    group = kafka.broker.group_coordinator.manager.get_group(group_id)
    if group is None:
        return {}
    with group:
        return {member.client_id: member_id for member_id, member in group.members.items()}


CLIENTS = pytest.mark.parametrize("client", [confluent_consumer, aiokafka_consumer, kafka_python_consumer])


@CLIENTS
def test_a_session_of_four_minutes_ends_at_once_and_only_of_the_member_that_is_silent(kafka, client):
    with client(kafka, "alive"), client(kafka, "dead"):
        wait_until(lambda: len(members(kafka)) == 2)
        kafka.wait_for_group("shop", partitions=2)
        before = members(kafka)
        with kafka.fault(cut="before", client_id="dead"):
            kafka.time.skip(seconds=241)
            kafka.wait_for_group("shop", partitions=2)
            wait_until(lambda: members(kafka) == {"alive": before["alive"]})


@CLIENTS
def test_a_member_that_is_alive_outlives_a_skip_of_hours(kafka, client):
    with client(kafka, "alive"):
        kafka.wait_for_group("shop", partitions=2)
        group = kafka.broker.group_coordinator.manager.get_group("shop")
        before = members(kafka), group.generation_id
        kafka.time.skip(hours=12)
        kafka.time.skip(hours=12)
        assert (members(kafka), group.generation_id) == before


def test_a_heartbeat_that_comes_while_the_clock_moves_does_not_end_its_members_session(kafka, monkeypatch):
    """It begins the session anew, by the clock as it was."""
    coordinator, time, comes = kafka.broker.group_coordinator, kafka.time, threading.Event()
    heartbeat, shift = coordinator.heartbeat, time._shift

    def noted(*arguments):
        comes.set()
        return heartbeat(*arguments)

    def late_shift(ms):
        comes.clear()
        assert comes.wait(60)
        threading.Event().wait(0.1)  # as long as it takes the coordinator to be done, if nothing keeps it
        shift(ms)

    with confluent_consumer(kafka, "alive"):
        kafka.wait_for_group("shop", partitions=2)
        before = members(kafka)
        monkeypatch.setattr(coordinator, "heartbeat", noted)
        monkeypatch.setattr(time, "_shift", late_shift)
        kafka.time.skip(hours=12)
        assert members(kafka) == before


def test_a_member_that_is_connected_and_silent_is_dead(kafka):
    """Its process stands still, or its network swallows what it sends."""
    with confluent_consumer(kafka, "silent"):
        kafka.wait_for_group("shop", partitions=2)
        with kafka.fault("Heartbeat", silent=True) as silence:
            silence.wait_for_hits()  # the one before it may be answered during a skip
            kafka.time.skip(seconds=241)
            assert members(kafka) == {}


def test_a_member_that_has_died_loses_its_partitions_at_once(kafka):
    """A static member that closes sends no LeaveGroup: it is removed when its session ends."""
    with confluent_consumer(kafka, "gone", group_instance_id="one"):
        kafka.wait_for_group("shop", partitions=2)
    kafka.time.skip(seconds=120)
    assert list(members(kafka)) == ["gone"]
    kafka.time.skip(seconds=121)
    assert members(kafka) == {}


def test_a_fetch_that_waits_is_answered_when_its_time_has_passed(kafka):
    with kafka.time.auto_skip():
        consumer = kafka_python.KafkaConsumer(
            **kafka.kafka_python(fetch_max_wait_ms=200_000, request_timeout_ms=290_000, connections_max_idle_ms=300_000)
        )
        consumer.assign([kafka_python.TopicPartition("orders", 0)])
        consumer.seek_to_beginning()
        began_ms = kafka.time.hi_res_clock_ms()
        wait_until(lambda: consumer.poll(10) == {} and kafka.time.hi_res_clock_ms() - began_ms >= 200_000)
        kafka.broker.produce("orders", "a book", partition=0)
        wait_until(lambda: consumer.poll(10))
        consumer.close()


@CLIENTS
def test_with_auto_skip_the_dead_leave_and_the_living_stay(kafka, client):
    """Each move ends a fetch, which waits for half a second: a session of minutes would be hundreds of moves."""
    session = {"session_timeout_ms": 30_000}
    with client(kafka, "alive", **session), client(kafka, "dead", **session):
        wait_until(lambda: len(members(kafka)) == 2)
        kafka.wait_for_group("shop", partitions=2)
        before = members(kafka)
        with kafka.fault(cut="before", client_id="dead"), kafka.time.auto_skip():
            wait_until(lambda: members(kafka) == {"alive": before["alive"]})
            kafka.wait_for_group("shop", partitions=2)


@pytest.mark.parametrize("api", [ApiKey.METADATA, ApiKey.CREATE_TOPICS], ids=["network thread", "pool"])
def test_auto_skip_moves_nothing_while_a_request_is_at_work(kafka, api):
    entered, go_on, due = threading.Event(), threading.Event(), threading.Event()
    admin = confluent_kafka.admin.AdminClient(kafka.confluent())
    kafka.broker.running.apis.replace_handler(api, lambda handler: SlowHandler(handler, entered, go_on))
    with kafka.time.auto_skip():
        asked = admin.create_topics([confluent_kafka.admin.NewTopic("prices", 1)])["prices"]
        assert entered.wait(30)
        kafka.broker.running.base.background.timer.add(due.set, 3_600_000)
        assert not due.wait(0.2)
        go_on.set()
        asked.result()
        assert due.wait(30)


class SlowHandler:
    def __init__(self, handler, entered, go_on):
        self.handler, self.entered, self.go_on = handler, entered, go_on
        self.runs_on, self.error_response = handler.runs_on, handler.error_response

    def handle(self, context, body):
        self.entered.set()
        self.go_on.wait(30)
        self.handler.handle(context, body)


def test_retention_and_the_expiry_of_producer_ids_follow_the_clock(kafka):
    kafka.broker.create_topic("prices", retention_ms=3_600_000, segment_ms=60_000)
    producer = confluent_kafka.Producer(kafka.confluent(enable_idempotence=True))
    producer.produce("prices", b"7.50")
    producer.flush(60)
    log = kafka.broker.log("prices", 0)
    assert len(log.producer_state_manager.producers) == 1
    kafka.time.skip(minutes=30)
    assert len(list(kafka.broker.consume("prices"))) == 1
    kafka.time.skip(hours=1)
    assert list(kafka.broker.consume("prices")) == []
    kafka.time.skip(days=1)
    assert not log.producer_state_manager.producers


def test_a_skip_closes_no_idle_connection(kafka):
    server = kafka.broker.running.server
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address) as idle:
        wait_until(lambda: server.connection_count == 1)
        kafka.time.skip(days=1)
        with socket.create_connection(address):  # the broker looks for idle connections when it has something to do
            wait_until(lambda: server.connection_count == 2)
        wait_until(lambda: server.connection_count == 1)
        idle.setblocking(False)
        with pytest.raises(BlockingIOError):
            idle.recv(1)


def test_records_of_the_broker_have_the_time_of_its_clock(kafka):
    before = kafka.broker.produce("orders", "a book").timestamp
    kafka.time.skip(days=1, hours=1, minutes=1, seconds=1, milliseconds=1)
    assert kafka.broker.produce("orders", "a pen").timestamp - before >= 86_400_000 + 3_600_000 + 60_000 + 1_001


@pytest.mark.parametrize("arguments", [{}, {"minutes": 0}, {"seconds": -1}])
def test_a_skip_goes_forward(kafka, arguments):
    with pytest.raises(ValueError, match=r"give a time to skip, as skip\(minutes=5\)"):
        kafka.time.skip(**arguments)


def test_a_broker_with_the_systems_clock_says_how_to_get_another(tmp_path):
    with kcore.Broker() as broker, pytest.raises(RuntimeError, match=r"time=kcore.testing.SkipTime\(\)"):
        _ = KafkaFixture(broker).time


def test_a_broker_that_was_restarted_has_the_clock_and_its_members_still(kafka):
    kafka.time.skip(hours=1)
    kafka.broker.restart()
    with confluent_consumer(kafka, "alive"):
        kafka.wait_for_group("shop", partitions=2)
        kafka.time.skip(hours=1)
        assert list(members(kafka)) == ["alive"]


def test_the_brokers_of_a_cluster_have_one_clock_and_keep_each_other():
    with kcore.Cluster(2, time=SkipTime()) as cluster:
        cluster.create_topic("orders")
        kafka = KafkaClusterFixture(cluster)
        cluster.produce("orders", "a book")
        kafka.time.skip(days=1)
        assert sorted(cluster.brokers) == [0, 1] and sorted(cluster.isr("orders")) == [0, 1]
        cluster.produce("orders", "a pen")


@pytest.fixture
def cluster():
    with kcore.Cluster(2, time=SkipTime(), replica_fetch_wait_max_ms=10_000) as cluster:
        cluster.create_topic("orders", 2)
        yield KafkaClusterFixture(cluster)


def test_with_auto_skip_a_fetch_from_a_cluster_is_answered_when_its_time_has_passed(cluster):
    settings = cluster.kafka_python(fetch_max_wait_ms=200_000, request_timeout_ms=290_000)
    consumer = kafka_python.KafkaConsumer(**settings, connections_max_idle_ms=300_000)
    consumer.assign([kafka_python.TopicPartition("orders", 0)])
    consumer.seek_to_beginning()
    with cluster.time.auto_skip():
        began_ms = cluster.time.hi_res_clock_ms()
        wait_until(lambda: consumer.poll(10) == {} and cluster.time.hi_res_clock_ms() - began_ms >= 200_000)
        cluster.cluster.produce("orders", "a book", partition=0)
        wait_until(lambda: consumer.poll(10))
    consumer.close()
    assert [cluster.cluster.isr("orders", number) for number in range(2)] == [[0, 1]] * 2


def test_auto_skip_moves_nothing_while_a_follower_copies(cluster):
    """A produce with acks=all waits for it, and must not be refused because its time has passed."""
    due, leader = threading.Event(), cluster.cluster.leader("orders", 0)
    with cluster.fault("Fetch", silent=True, from_broker=1 - leader), cluster.time.auto_skip():
        cluster.cluster.brokers[leader].running.base.background.timer.add(due.set, 60_000)
        producing = threading.Thread(target=cluster.cluster.produce, args=("orders", "a book"), kwargs={"partition": 0})
        producing.start()
        assert not due.wait(0.3)
    with cluster.time.auto_skip():
        producing.join(60)
        assert not producing.is_alive()
        assert due.wait(60)


@pytest.mark.parametrize("killed", ["leader", "follower"])
def test_with_auto_skip_a_broker_that_was_killed_costs_no_record(cluster, killed):
    """While it counts as alive a produce waits for it."""
    leader = cluster.cluster.leader("orders", 0)
    with cluster.time.auto_skip():
        for number in range(10):
            cluster.cluster.produce("orders", str(number), partition=0)
        cluster.cluster.kill(leader if killed == "leader" else 1 - leader)
        for number in range(10, 20):
            cluster.cluster.produce("orders", str(number), partition=0)
    assert len(cluster.wait_for_records("orders", 20)) == 20


@pytest.mark.parametrize(
    ("alive", "waiting", "is_idle", "expected"),
    [
        ([0, 1], 2, True, True),
        ([0, 1], 1, True, False),  # a follower copies
        ([0, 1, 2], 2, True, False),  # broker 2 was killed, and the others have not noticed
        ([0, 1], 2, False, False),
    ],
)
def test_brokers_are_idle_while_each_follower_waits_and_all_that_count_as_alive_run(alive, waiting, is_idle, expected):
    def broker(number, waiting):
        return SimpleNamespace(
            broker_id=number,
            is_idle=is_idle,
            alive_brokers=alive,
            num_waiting_followers=waiting,
            num_fetchers=lambda leaders: len(leaders - {number}),
        )

    assert skip_time._are_idle([broker(0, waiting), broker(1, 0)]) is expected
