"""Three brokers: the records of the leader are damaged on its disk while it leads."""

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.replica import damage_checks
from kcore.server import cluster_membership
from tests.cluster_sessions import LONG_MS
from tests.unit.log.segments import flip_a_bit
from tests.waiting import wait_until

TP = TopicPartition("t", 0)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_membership, "RETRY_OFFLINE_MS", 200)
    monkeypatch.setattr(damage_checks, "REPEATS_MS", 100)
    settings = {"zookeeper_session_timeout_ms": LONG_MS, "offsets_topic_num_partitions": 1, "log_segment_bytes": 4096}
    # Else a replica that is whole again leads again, some seconds after the controller's election.
    settings |= {"auto_leader_rebalance_enable": False}
    with kcore.Cluster(3, tmp_path, **settings) as cluster:
        yield cluster


def test_another_broker_leads_instead_and_the_damaged_replica_becomes_whole(cluster, tmp_path):
    cluster.create_topic("t")
    leader, follower = cluster.leader("t"), (cluster.leader("t") + 1) % 3
    cluster.stop(follower)
    wait_until(lambda: len(cluster.isr("t")) == 2, "the stopped broker is still in the ISR")
    for number in range(200):
        cluster.brokers[leader].produce("t", b"%d" % number)
    log = cluster.brokers[leader].log("t")
    flip_a_bit(list(log.segments)[1].log_path)
    cluster.start(follower)
    wait_until(lambda: cluster.leader("t") not in (leader, None), lambda: f"{cluster.leader('t')} leads")
    wait_until(lambda: cluster.isr("t") == [0, 1, 2], lambda: f"ISR {cluster.isr('t')}")
    directories = [tmp_path / str(number) / "t-0" for number in range(3)]
    mark = directories[leader] / "lost-records"
    wait_until(lambda: not mark.exists(), "the mark stays")
    cluster.brokers[cluster.leader("t")].produce("t", b"200")
    wait_until(lambda: {broker.log("t").log_end_offset for broker in cluster.brokers.values()} == {201}, "unequal")
    cluster.stop()
    for directory in directories:
        with kcore.open_log(directory) as log:
            assert [record.value for record in log.records()] == [b"%d" % number for number in range(201)]
    contents = [b"".join(path.read_bytes() for path in sorted(d.glob("*.log"))) for d in directories]
    assert contents[0] == contents[1] == contents[2]


def damaged_leader(cluster, values, batch_size):
    """The broker that leads, after a bit of its records has flipped which all replicas have."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    cluster.create_topic("t")
    leader = cluster.brokers[cluster.leader("t")]
    settings = {"linger.ms": 1000, "batch.num.messages": batch_size, "acks": "all"}
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    for number in range(0, len(values), batch_size):
        for value in values[number : number + batch_size]:
            producer.produce("t", value)
        producer.flush()
    log = leader.log("t")
    wait_until(lambda: cluster.isr("t") == [0, 1, 2] and log.high_watermark == len(values), "not replicated")
    flip_a_bit(list(log.segments)[1].log_path)
    return leader


@pytest.mark.parametrize(("batch_size", "reset"), [(1, "latest"), (50, "earliest")])
def test_a_consumer_that_a_wrong_crc_stops_reads_on_from_another_leader(cluster, batch_size, reset):
    """It only asks again; the followers have copied the records before they were damaged.

    librdkafka asks for the damaged batch again, or, if it takes what follows the wrong CRC for an offset, for that one:
    then it resets its position.
    """
    confluent_kafka = pytest.importorskip("confluent_kafka")
    expected = [b"value-%06d-abcdefgh" % number for number in range(200 if batch_size == 1 else 1000)]
    leader = damaged_leader(cluster, expected, batch_size)
    settings = {"check.crcs": True, "auto.offset.reset": reset, "topic.metadata.refresh.interval.ms": 1000}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", **settings})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    values, errors = [], []

    def has_everything():
        for message in consumer.consume(1000, timeout=0.1):
            (errors if message.error() else values).append(message.error() or message.value())
        return expected[-1] in values[-1000:]

    try:
        wait_until(has_everything, lambda: f"{len(values)} records, {errors[-1:]}")
    finally:
        consumer.close()
    assert list(dict.fromkeys(values)) == expected
    assert any("CRC" in error.str() for error in errors), "the damage was not read"
    assert cluster.leader("t") != leader.broker_id
    wait_until(lambda: cluster.isr("t") == [0, 1, 2], lambda: f"ISR {cluster.isr('t')}")
