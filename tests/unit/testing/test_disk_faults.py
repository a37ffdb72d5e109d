"""Disk faults on demand, as clients and other brokers meet them."""

import pathlib
import tempfile

import confluent_kafka
import pytest

import kcore
from kcore.common import file
from kcore.errors import OffsetOutOfRange, UnknownTopicOrPartition
from kcore.testing.disk_faults import DiskFault, FlippedOnDisk
from kcore.testing.kafka_fixture import KafkaClusterFixture, KafkaFixture
from tests.waiting import wait_until


@pytest.fixture
def kafka():
    with kcore.Broker() as broker:
        broker.create_topic("orders", 2)
        kafka = KafkaFixture(broker)
        yield kafka
        kafka.end_faults()


@pytest.fixture
def kafka_cluster():
    with kcore.Cluster(2) as cluster:
        cluster.create_topic("orders")
        kafka = KafkaClusterFixture(cluster)
        yield kafka
        kafka.end_faults()


def produce(kafka, value, partition=0, **settings):
    """The error of its delivery, None without one."""
    errors = []
    producer = confluent_kafka.Producer(kafka.confluent(retry_backoff_ms=1, **settings))
    producer.produce("orders", value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    (error,) = errors
    return error


def values(kafka, partition=0):
    return [record.value for record in kafka.broker.consume("orders", partition)]


def test_a_full_disk_refuses_records_of_its_partition_and_takes_them_again(kafka):
    with kafka.disk_fault("full", "orders", 0) as fault:
        assert produce(kafka, b"a book", retries=0) is not None
        assert produce(kafka, b"a pen", partition=1) is None
    assert fault.hits >= 1
    assert produce(kafka, b"a cup") is None
    assert values(kafka) == [b"a cup"] and values(kafka, 1) == [b"a pen"]


def test_a_client_tries_again_what_a_coordinator_could_not_store_on_a_full_disk(kafka):
    producer = confluent_kafka.Producer(kafka.confluent(transactional_id="shop"))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"a book", partition=0)
    producer.flush(60)
    consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop", enable_auto_commit=False))
    offsets = [confluent_kafka.TopicPartition("orders", 1, 7)]
    with kafka.disk_fault("full", times=1) as full:
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
    assert full.hits == 1
    with kafka.disk_fault("full", times=1) as full:
        producer.commit_transaction(60)
    assert full.hits == 1
    with kafka.disk_fault("full", times=1) as full:
        consumer.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 1)], asynchronous=False)
    assert full.hits == 1
    assert kafka.committed_offsets("shop") == {("orders", 0): 1, ("orders", 1): 7}
    consumer.close()


def test_of_a_topic_with_several_partitions_a_disk_fault_needs_to_know_which(kafka):
    with pytest.raises(ValueError, match="orders has 2 partitions: say in which one the disk fails, partition=0 say"):
        kafka.disk_fault("full", "orders")
    kafka.broker.create_topic("lone")
    with kafka.disk_fault("slow_fsync", "lone", seconds=0):
        pass


@pytest.mark.parametrize("kind", ["full", "torn_append", "lost_fsync"])
def test_of_a_fault_that_is_one_too_many_nothing_is_left(kind, kafka, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = [kafka.disk_fault("full", "orders", 1) for _ in range(63 if kind == "torn_append" else 64)]
    with pytest.raises(ValueError, match="too many faults at once"):
        kafka.disk_fault(kind, "orders", 0)  # a torn append is two faults of calls
    assert DiskFault._active == set(others) and not list(tmp_path.iterdir())
    others.pop().end()
    with kafka.disk_fault("full", "orders", 0):
        assert produce(kafka, b"a book", retries=0) is not None
    kafka.end_faults()
    assert not DiskFault._active and produce(kafka, b"a book") is None


def test_a_bit_is_right_again_if_another_one_of_the_fault_cannot_be_flipped(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(FileNotFoundError):
        FlippedOnDisk({str(tmp_path / "a"): 1, str(tmp_path / "missing"): 1})
    assert (tmp_path / "a").read_bytes() == b"abc" and not DiskFault._active


def test_a_disk_that_is_full_once_costs_a_client_a_retry(kafka):
    fault = kafka.disk_fault("full", "orders", 0, times=1)
    assert produce(kafka, b"a book") is None
    fault.wait_for_hits(1)
    assert fault.hits == 1 and values(kafka) == [b"a book"]


def test_a_fault_of_a_data_directory_meets_all_its_partitions(kafka):
    with kafka.disk_fault("full", data_dir=kafka.broker.data_dir):
        for partition in range(2):
            assert produce(kafka, b"a book", partition=partition, retries=0) is not None


def test_a_bit_that_flips_on_its_way_to_the_disk_is_found_by_the_reader(kafka):
    assert produce(kafka, b"a book") is None
    with kafka.disk_fault("flipped_write", "orders", 0, times=1) as fault:
        assert produce(kafka, b"a pen") is None
    assert produce(kafka, b"a cup") is None
    assert fault.hits == 1
    consumer = confluent_kafka.Consumer(kafka.confluent_consumer("shop", check_crcs=True))
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    assert wait_until(lambda: consumer.poll(1)).value() == b"a book"
    assert wait_until(lambda: consumer.poll(1)).error() is not None
    consumer.close()


def test_a_bit_that_is_read_wrong_is_right_again_after_the_fault(kafka):
    for value in (b"a book", b"a pen"):
        assert produce(kafka, value) is None
    with kafka.disk_fault("flipped_read", "orders", 0, offset=1), pytest.raises(kcore.errors.CorruptMessage):
        values(kafka)
    assert values(kafka) == [b"a book", b"a pen"]


def test_a_slow_fsync_delays_what_waits_for_it():
    with kcore.Broker(log_flush_interval_messages=1) as broker:
        broker.create_topic("orders")
        kafka = KafkaFixture(broker)
        with kafka.disk_fault("slow_fsync", "orders", 0, seconds=0.2, times=1) as fault:
            began_ms = broker.time.hi_res_clock_ms()
            broker.produce("orders", "a book")
            fault.wait_for_hits()
            wait_until(lambda: broker.log("orders").recovery_point == 1)
            assert broker.time.hi_res_clock_ms() - began_ms >= 200
        broker.produce("orders", "a pen")
        assert fault.hits == 1


def test_a_torn_append_ends_a_leader_and_its_recovery_cuts_it_off(kafka_cluster):
    cluster = kafka_cluster.cluster
    leader = cluster.leader("orders")
    cluster.produce("orders", "a book")
    segment = pathlib.Path(cluster.brokers[leader].log("orders").directory) / f"{0:020}.log"
    size = segment.stat().st_size
    kafka_cluster.disk_fault("torn_append", "orders", after_bytes=20, broker=leader, times=1)
    assert produce(kafka_cluster, b"a pen") is None
    assert cluster.leader("orders") != leader
    assert segment.stat().st_size == size + 20
    kafka_cluster.end_faults()
    cluster.kill(leader)
    cluster.start(leader)
    kafka_cluster.wait_until_in_sync("orders")
    cluster.move_leader("orders", 0, to=leader)
    assert [record.value for record in cluster.consume("orders")] == [b"a book", b"a pen"]


def test_what_was_not_synced_is_gone_after_a_loss_of_power(kafka_cluster):
    """The other replica has it: with acks=all Kafka keeps what one machine loses."""
    cluster = kafka_cluster.cluster
    cluster.produce("orders", "a book")
    leader = cluster.leader("orders")
    with kafka_cluster.disk_fault("lost_fsync", "orders", broker=leader) as fault:
        cluster.produce("orders", "a pen")
        with pytest.raises(RuntimeError, match=f"broker {leader} runs: kill it before its disk loses power"):
            fault.lose_power()
        log = cluster.brokers[leader].log("orders")
        log.flush()
        assert fault.hits >= 1
        cluster.kill(leader)
        fault.lose_power()
    with kcore.open_log(log.directory) as left:
        assert [record.value for record in left.records()] == [b"a book"]
    cluster.start(leader)
    kafka_cluster.wait_until_in_sync("orders")
    cluster.move_leader("orders", 0, to=leader)
    assert [record.value for record in cluster.consume("orders")] == [b"a book", b"a pen"]


def test_a_cluster_brings_a_broker_down_and_up(kafka_cluster):
    leader = kafka_cluster.cluster.leader("orders")
    with kafka_cluster.down(leader):
        assert leader not in kafka_cluster.cluster.brokers
        kafka_cluster.wait_until_led("orders")
        assert produce(kafka_cluster, b"a book") is None
    assert leader in kafka_cluster.cluster.brokers
    kafka_cluster.wait_until_in_sync("orders")


def test_the_last_fault_to_end_brings_the_systems_calls_back(kafka):
    first = kafka.disk_fault("full", "orders", 0)
    with kafka.disk_fault("full", "orders", 1):
        pass
    assert produce(kafka, b"a book", retries=0) is not None
    first.end()
    first.end()
    assert produce(kafka, b"a book") is None
    assert file.calls("pwrite") == 0  # only the simulated disk counts


def test_of_two_disk_faults_in_a_partition_the_last_one_hits_first_and_each_so_often_as_it_was_asked_to(kafka):
    assert produce(kafka, b"an order") is None  # the first append writes a page of the index, too
    full = kafka.disk_fault("full", "orders", 0, times=2)
    with kafka.disk_fault("flipped_write", "orders", 0, times=1) as flipped:
        assert produce(kafka, b"a book") is None
        assert [flipped.hits, full.hits] == [1, 0]
        assert produce(kafka, b"a pen", retries=0) is not None
        again = kafka.disk_fault("full", "orders", 0)
        assert produce(kafka, b"a cup", retries=0) is not None
        assert [again.hits, full.hits] == [1, 1]
        again.end()
        assert produce(kafka, b"a lamp", retries=0) is not None
        assert produce(kafka, b"a lamp") is None
    assert [flipped.hits, full.hits] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("fill", "orders"), ValueError, "no disk fault 'fill': expected one of full, torn_append"),
        (("full", "orders", 7), UnknownTopicOrPartition, "orders-7: no running broker of the fault has it"),
        (("full", "orders", 0, {"seconds": 1}), ValueError, "seconds is not for full"),
        (("full", "orders", 0, {"times": 0}), ValueError, "times=0: expected 1 or more"),
        (("full", "orders", 0, {"broker": 9}), RuntimeError, "broker 9 does not run"),
        (
            ("full", None, 0, {"data_dir": "/nowhere"}),
            ValueError,
            "/nowhere is no data directory of broker 1: it has /",
        ),
        (("full", "orders", 0, {"data_dir": "/nowhere"}), ValueError, "give a topic or data_dir"),
        (("slow_fsync", "orders"), ValueError, "slow_fsync needs seconds"),
        (("slow_fsync", "orders", 0, {"seconds": -1}), ValueError, "seconds=-1: expected 0 or more"),
        (("flipped_read", "orders"), ValueError, "flipped_read needs a topic and an offset"),
        (
            ("flipped_read", "orders", 0, {"offset": 3}),
            OffsetOutOfRange,
            r"no batch has offset 3, the log holds \[0, 0\)",
        ),
        (("flipped_read", "orders", 0, {"offset": 3, "times": 1}), ValueError, "flipped_read lasts until its end"),
    ],
)
def test_a_fault_that_makes_no_sense_is_an_error(kafka, arguments, error, message):
    *arguments, named = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(error, match=message):
        kafka.disk_fault(*arguments, **named)


def test_a_flipped_bit_and_a_torn_append_meet_the_first_records_of_a_log_and_not_its_index(kafka):
    fault = kafka.disk_fault("flipped_write", "orders", 0, times=1)
    assert produce(kafka, b"a book") is None
    assert fault.hits == 1
    with pytest.raises(kcore.errors.CorruptMessage):
        values(kafka)
    segment = pathlib.Path(kafka.broker.log("orders", 1).directory) / f"{0:020}.log"
    kafka.disk_fault("torn_append", "orders", 1, after_bytes=20, times=1)
    assert produce(kafka, b"a pen", partition=1, retries=0) is not None
    assert segment.stat().st_size == 20
