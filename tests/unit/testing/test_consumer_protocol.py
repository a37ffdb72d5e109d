"""What tests of programs see of groups whose members have group.protocol=consumer."""

import contextlib
import threading
import uuid

import confluent_kafka
import pytest

import kcore
from kcore.log.partition_metadata import format_topic_id
from kcore.testing import SkipTime, group_state, skip_time
from kcore.testing.kafka_fixture import KafkaFixture, WaitTimedOut
from kcore.testing.running_brokers import RunningBrokers
from tests.waiting import wait_until

SETTINGS = {"group.consumer.min.heartbeat.interval.ms": 50, "group.consumer.heartbeat.interval.ms": 100}


@pytest.fixture
def kafka():
    with kcore.Broker(time=SkipTime(), **SETTINGS) as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


@contextlib.contextmanager
def consumer(kafka, client_id, is_polled=True, **more):
    of = {"group_protocol": "consumer", "client_id": client_id, "enable_auto_commit": False} | more
    settings = kafka.confluent_consumer("shop", **of) | {"log_level": 0}
    made, ended = confluent_kafka.Consumer(settings), threading.Event()
    made.subscribe(["orders"])

    def poll():
        while not ended.is_set():
            made.poll(0.02)

    poller = threading.Thread(target=poll)
    if is_polled:
        poller.start()
    try:
        yield made
    finally:
        ended.set()
        if is_polled:
            poller.join()
        made.close()


def members(kafka):
    value = kafka.broker.group_coordinator.consumer_groups.describe("shop")
    return {member.client_id: member.member_id for member in value.members.values()}


def test_a_wait_for_the_group_ends_when_its_members_have_their_partitions(kafka):
    with consumer(kafka, "one"), consumer(kafka, "two"):
        kafka.wait_for_group("shop", members=2, partitions=2)
        assert sorted(members(kafka)) == ["one", "two"]
        assert list(kafka.lag("shop")) == [("orders", 0), ("orders", 1)]
    kafka.wait_for_group("shop", state="Empty", members=0)


def test_a_partition_of_a_topic_without_a_name_is_shown_as_one_of_a_deleted_topic(kafka):
    """Until its member has given it up."""
    with consumer(kafka, "one"):
        kafka.wait_for_group("shop", members=1, partitions=2)
        group = kafka.broker.group_coordinator.manager.get_group("shop")
        name = f"deleted topic {format_topic_id(kafka.broker.metadata_cache.topic_id('orders'))}"
        assert f"127.0.0.1 ({name}-0, {name}-1); 2" in group_state.describe(group, lambda topic_id: None)


def test_the_name_of_a_topic_is_that_of_any_broker_that_knows_it(kafka):
    topic_id = kafka.broker.metadata_cache.topic_id("orders")
    with kcore.Broker() as other:
        brokers = RunningBrokers(lambda: {0: other, 1: kafka.broker})
        assert brokers.topic_name(topic_id) == "orders"
        assert brokers.topic_name(uuid.uuid5(topic_id, "")) is None


def test_a_wait_that_fails_says_which_member_has_what_and_for_whom_the_others_wait(kafka):
    with consumer(kafka, "one"):
        kafka.wait_for_group("shop", members=1, partitions=2)
        one = members(kafka)["one"]
        with pytest.raises(WaitTimedOut) as raised:
            kafka.wait_for_group("shop", members=2, timeout=0)
        assert str(raised.value).endswith(
            f"it is Stable, epoch 1; members: {one} at 127.0.0.1 (orders-0, orders-1); 2 partitions assigned"
        )
    with consumer(kafka, "slow", is_polled=False) as slow:
        wait_until(lambda: slow.poll(0.02) or len(slow.assignment()) == 2)
        with consumer(kafka, "next"):
            # The slow one does not poll, so it gives nothing up.
            wait_until(lambda: kafka.broker.group_coordinator.consumer_groups.describe("shop").state == "Reconciling")
            waits = f"waits for {members(kafka)['slow']} to give up 1 partition"
            wait_until(lambda: waits in kafka.describe())
            wait_until(lambda: slow.poll(0.02) or len(slow.assignment()) == 1)
            kafka.wait_for_group("shop", members=2, partitions=2)


def test_a_member_that_is_alive_outlives_a_skip_of_hours_and_one_that_is_silent_does_not(kafka):
    with consumer(kafka, "alive"), consumer(kafka, "dead"):
        kafka.wait_for_group("shop", members=2, partitions=2)
        before = members(kafka)
        kafka.time.skip(hours=12)
        assert members(kafka) == before
        with kafka.fault(cut="before", client_id="dead"):
            kafka.time.skip(seconds=46)
            wait_until(lambda: members(kafka) == {"alive": before["alive"]})
            kafka.wait_for_group("shop", members=1, partitions=2)


CLASSIC = {"group_protocol": "classic", "heartbeat_interval_ms": 100, "session_timeout_ms": 240_000}


def test_a_classic_member_that_has_to_join_again_outlives_a_skip_beyond_its_rebalance_timeout(kafka, monkeypatch):
    monkeypatch.setattr(skip_time, "SILENCE_MS", 60_000)  # the skip waits for as long as the machine needs
    with consumer(kafka, "new"), consumer(kafka, "classic", is_polled=False, **CLASSIC) as classic:
        wait_until(lambda: classic.poll(0.02) or len(classic.assignment()) == 1)
        before = members(kafka)
        with consumer(kafka, "next"):
            sessions = kafka.broker.group_coordinator.manager.get_group("shop").consumer.sessions
            wait_until(lambda: sessions[before["classic"]].rejoin_task is not None)
            # It joins again when it is polled, which the skip has to wait for.
            ended = threading.Event()
            poller = threading.Timer(0.5, lambda: [classic.poll(0.02) for _ in iter(ended.is_set, True)])
            poller.start()
            kafka.time.skip(hours=1)
            now = members(kafka)
            ended.set()
            poller.join()
            assert now["classic"] == before["classic"]
