"""confluent-kafka against kcore.Cluster: a consumer group outlives the broker that coordinates it."""

import time

import pytest

import kcore
from tests.cluster_sessions import LONG_MS

confluent_kafka = pytest.importorskip("confluent_kafka")

DEADLINE_S = 90
OFFSETS = "__consumer_offsets"


@pytest.fixture
def cluster():
    with kcore.Cluster(3, zookeeper_session_timeout_ms=LONG_MS, offsets_topic_num_partitions=1) as cluster:
        yield cluster


def produce(cluster, numbers):
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True}
    producer, errors = confluent_kafka.Producer({**settings, "log_level": 2}), []
    for number in numbers:
        producer.produce("t", b"%d" % number, on_delivery=lambda error, message: error and errors.append(error))
    assert producer.flush(DEADLINE_S) == 0 and not errors


def consumer(cluster):
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer({**settings, "enable.auto.commit": False, "log_level": 2})


def test_a_group_goes_on_where_it_was_when_its_coordinator_is_killed(cluster):
    cluster.create_topic("t", partitions=3)
    produce(cluster, range(1000))
    first, values = consumer(cluster), []
    first.subscribe(["t"])
    deadline = time.monotonic() + DEADLINE_S

    def consume_until(count):
        while len(set(values)) < count:
            assert time.monotonic() < deadline, f"{len(set(values))} of {count}"
            messages = first.consume(200, timeout=0.5)
            values.extend(int(message.value()) for message in messages if not message.error())

    def commit():
        while True:
            try:
                return first.commit(asynchronous=False)
            except confluent_kafka.KafkaException:
                assert time.monotonic() < deadline, "the group has no coordinator"
                time.sleep(0.2)

    consume_until(1000)
    commit()
    assert len(cluster.isr(OFFSETS)) == 3
    coordinator = cluster.leader(OFFSETS)
    cluster.kill(coordinator)
    produce(cluster, range(1000, 2000))
    consume_until(2000)
    commit()
    first.close()
    # What was committed came once.  Of the rest a member that joins anew gets some again.
    assert sorted(values[:1000]) == list(range(1000)) and set(values[1000:]) == set(range(1000, 2000))
    assert cluster.leader(OFFSETS) not in (None, coordinator)
    cluster.start(coordinator)
    second = consumer(cluster)
    partitions = [confluent_kafka.TopicPartition("t", number) for number in range(3)]
    # A partition that no record went to has no offset.
    assert sum(max(at.offset, 0) for at in second.committed(partitions, timeout=DEADLINE_S)) == 2000
    second.close()
