"""Transactional producers of librdkafka, aiokafka and kafka-python against a broker, and against kcore.Cluster."""

import asyncio
import time

import pytest

import kcore
from kcore.coordinator.transaction.transaction_state import TransactionState
from kcore.testing.request_faults import RequestChoice, make_fault
from tests.cluster_sessions import LONG_MS
from tests.unit.server.transactions import await_markers
from tests.waiting import wait_until

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
kafka = pytest.importorskip("kafka")

TIMEOUT_S = 60
STATES = "__transaction_state"


def producer(servers, transactional_id, **config):
    settings = {"bootstrap.servers": servers, "transactional.id": transactional_id, "log_level": 2}
    client = confluent_kafka.Producer({**settings, **config})
    client.init_transactions(TIMEOUT_S)
    return client


def consumer(servers, group, **config):
    settings = {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "log_level": 2}
    return confluent_kafka.Consumer({**settings, "enable.auto.commit": False, **config})


def committed(servers, topic, count, partitions=1):
    """The first `count` values that a consumer with read_committed gets."""
    client = consumer(servers, "reader", **{"isolation.level": "read_committed"})
    client.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    values, deadline = [], time.monotonic() + TIMEOUT_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count}"
        values += [message.value() for message in client.consume(count - len(values), 0.2) if not message.error()]
    client.close()
    return sorted(values)


def write(client, topic, values):
    client.begin_transaction()
    for number, value in enumerate(values):
        client.produce(topic, value, partition=number % 2)


# -- librdkafka


def test_librdkafka_commits_and_aborts_and_a_committed_reader_sees_all_or_nothing(broker, servers, name):
    broker.create_topic(name, 2)
    client = producer(servers, name)
    expected = []
    for number in range(10):
        values = [b"%d-%d" % (number, item) for item in range(20)]
        write(client, name, values)
        if number % 3 == 1:
            client.flush(TIMEOUT_S)  # so that there is something to abort
            client.abort_transaction(TIMEOUT_S)
        else:
            client.commit_transaction(TIMEOUT_S)
            expected += values
    assert committed(servers, name, len(expected), 2) == sorted(expected)
    records = [list(broker.log(name, number).records(isolation="read_committed")) for number in (0, 1)]
    assert sum(map(len, records)) == len(expected)


def test_librdkafka_is_fenced_by_a_second_producer_with_its_id(broker, servers, name):
    broker.create_topic(name, 2)
    first = producer(servers, name)
    write(first, name, [b"first"] * 4)
    first.flush(TIMEOUT_S)
    second = producer(servers, name)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        first.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].fatal()
    write(second, name, [b"second"] * 4)
    second.commit_transaction(TIMEOUT_S)
    assert committed(servers, name, 4, 2) == [b"second"] * 4


@pytest.mark.parametrize("is_commit", [True, False])
def test_librdkafka_moves_a_group_on_with_a_transaction_or_not_at_all(broker, servers, name, is_commit):
    broker.create_topic(name, 2)
    for number in (0, 1):
        for _ in range(5):
            broker.produce(name, b"in", partition=number)
    reader = consumer(servers, name)
    reader.subscribe([name])
    messages, deadline = [], time.monotonic() + TIMEOUT_S
    while len(messages) < 10:
        assert time.monotonic() < deadline
        messages += [message for message in reader.consume(10, 0.2) if not message.error()]
    client = producer(servers, name)
    client.begin_transaction()
    client.send_offsets_to_transaction(
        reader.position(reader.assignment()), reader.consumer_group_metadata(), TIMEOUT_S
    )
    if is_commit:
        client.commit_transaction(TIMEOUT_S)
    else:
        client.abort_transaction(TIMEOUT_S)
    offsets = [at.offset for at in reader.committed(reader.assignment(), TIMEOUT_S)]
    assert offsets == ([5, 5] if is_commit else [confluent_kafka.OFFSET_INVALID] * 2)
    reader.close()


# -- aiokafka


def test_aiokafka_copies_a_topic_exactly_once_with_offsets_in_the_transactions(broker, servers, name):
    source, target = f"{name}-in", f"{name}-out"
    broker.create_topic(source)
    broker.create_topic(target)
    for number in range(30):
        broker.produce(source, b"%d" % number)

    async def run():
        reader = aiokafka.AIOKafkaConsumer(
            source, bootstrap_servers=servers, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
        )
        writer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        await reader.start()
        await writer.start()
        copied = 0
        while copied < 30:
            polled = await reader.getmany(timeout_ms=500, max_records=7)
            for tp, records in polled.items():
                for is_commit in (False, True):  # each part is aborted once
                    await writer.begin_transaction()
                    for record in records:
                        await writer.send(target, record.value)
                    await writer.send_offsets_to_transaction({tp: records[-1].offset + 1}, name)
                    await (writer.commit_transaction() if is_commit else writer.abort_transaction())
                copied += len(records)
        position = await reader.committed(aiokafka.TopicPartition(source, 0))
        await writer.stop()
        await reader.stop()
        return position

    assert asyncio.run(run()) == 30
    await_markers(broker)
    values = [record.value for record in broker.log(target).records(isolation="read_committed")]
    assert values == [b"%d" % number for number in range(30)]


# -- kafka-python


def test_kafka_python_commits_and_aborts(broker, servers, name):
    broker.create_topic(name)
    client = kafka.KafkaProducer(bootstrap_servers=servers, transactional_id=name)
    client.init_transactions()
    for number in range(6):
        client.begin_transaction()
        client.send(name, b"%d" % number)
        client.flush()
        (client.abort_transaction if number % 2 else client.commit_transaction)()
    client.close()
    assert committed(servers, name, 3) == [b"0", b"2", b"4"]


# -- a cluster


@pytest.fixture
def cluster():
    settings = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    with kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS, **settings) as cluster:
        yield cluster


def state(cluster, transactional_id):
    leader = cluster.leader(STATES)
    coordinator = cluster.brokers[leader].running.services.transaction_coordinator
    return coordinator.describe(transactional_id).state


def test_a_transaction_across_brokers_is_committed_on_each_of_them(cluster):
    cluster.create_topic("t", 3)
    client = producer(cluster.bootstrap_servers, "x")
    assert len(cluster.isr(STATES)) == 3
    for is_commit in (True, False, True):
        client.begin_transaction()
        for number in range(3):
            client.produce("t", b"%d" % is_commit, partition=number)
        client.flush(TIMEOUT_S)
        (client.commit_transaction if is_commit else client.abort_transaction)(TIMEOUT_S)
    assert len({cluster.leader("t", number) for number in range(3)}) == 3
    assert committed(cluster.bootstrap_servers, "t", 6, 3) == [b"1"] * 6


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_67_the_next_coordinator_completes_what_was_decided_when_the_last_one_was_killed(cluster, is_commit):
    cluster.create_topic("t", 2)
    client = producer(cluster.bootstrap_servers, "x")
    coordinator = cluster.leader(STATES)
    for number, leader in enumerate([broker for broker in range(3) if broker != coordinator]):
        cluster.move_leader("t", number, to=leader)
    write(client, "t", [b"a"] * 10)
    client.flush(TIMEOUT_S)
    others = [broker for number, broker in cluster.brokers.items() if number != coordinator]
    choice = RequestChoice(from_broker=coordinator)
    with make_fault(others, "WriteTxnMarkers", choice, None, None) as lost:
        (client.commit_transaction if is_commit else client.abort_transaction)(TIMEOUT_S)
        lost.wait_for_hits(2)
        cluster.kill(coordinator)
    complete = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    wait_until(lambda: cluster.leader(STATES) not in (None, coordinator))

    def is_complete():
        try:
            return state(cluster, "x") is complete
        except kcore.errors.ApiError:
            return False

    wait_until(is_complete)
    logs = [cluster.brokers[cluster.leader("t", number)].log("t", number) for number in (0, 1)]
    values = [record.value for log in logs for record in log.records(isolation="read_committed")]
    assert values == [b"a"] * (10 if is_commit else 0)
    # And the producer goes on.
    write(client, "t", [b"b"] * 4)
    client.commit_transaction(TIMEOUT_S)
    assert committed(cluster.bootstrap_servers, "t", len(values) + 4, 2) == values + [b"b"] * 4
