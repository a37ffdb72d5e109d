"""Broker.produce() and Broker.consume(): every consumer sees what they write, and they see what producers write."""

import random
import shutil
import threading
import time

import pytest

import kcore
from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    InvalidTopicException,
    LogIsServed,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from kcore.protocol.messages import fetch as f
from kcore.record.memory_records import MemoryRecords
from kcore.testing import MockTime
from tests import golden_data
from tests.batches import batch
from tests.reference import partitioner as model
from tests.unit.server.client import Client


@pytest.fixture
def broker():
    with kcore.Broker(num_partitions=1) as broker:
        yield broker


def fetch(client, topic, offset, max_wait_ms=0):
    partition = f.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = f.FetchRequest(max_wait_ms=max_wait_ms, topics=[f.FetchTopic(topic=topic, partitions=[partition])])
    request.min_bytes = 1
    return request, 11


def values(broker, topic, *args, **options):
    return [record.value for record in broker.consume(topic, *args, **options)]


def test_a_record_that_was_produced_is_below_the_high_watermark_and_a_client_gets_it(broker):
    assert broker.produce("orders", b"a book", b"42", timestamp=5) == ("orders", 0, 0, 5)
    assert broker.log("orders").high_watermark == 1
    with Client(broker) as client:
        answer = client.ask(*fetch(client, "orders", 0)).responses[0].partitions[0]
    (record,) = MemoryRecords(bytes(answer.records)).records()
    assert (answer.high_watermark, record.key, record.value, record.timestamp) == (1, b"42", b"a book", 5)


def test_a_fetch_that_waits_is_answered_by_a_produce(broker):
    broker.create_topic("t")
    with Client(broker) as client:
        client.send(*fetch(client, "t", 0, max_wait_ms=60_000))
        while not broker.replica_manager.delayed_fetch_purgatory.operations(TopicPartition("t", 0)):
            pass
        started = time.monotonic()
        broker.produce("t", b"x")
        assert client.receive(1, 11).responses[0].partitions[0].high_watermark == 1
        assert time.monotonic() - started < 50


def test_what_a_client_produced_is_consumed(broker):
    broker.create_topic("t")
    broker.replica_manager.get_partition(TopicPartition("t", 0)).append_records_to_leader(batch(b"a", b"b"), -1)
    assert values(broker, "t") == [b"a", b"b"]


def test_keys_values_and_headers_come_back_as_they_were_and_text_as_utf8(broker):
    broker.produce("t", "grün", "größe", {"from": "shop", "raw": b"\xff", "none": None}, 7)
    broker.produce("t", None, bytearray(b"k"), [("h", b"1"), ("h", memoryview(b"2"))], 8)
    broker.produce("t", b"", timestamp=0)
    assert list(broker.consume("t")) == [
        (
            "t",
            0,
            0,
            7,
            "CreateTime",
            "größe".encode(),
            "grün".encode(),
            (("from", b"shop"), ("raw", b"\xff"), ("none", None)),
        ),
        ("t", 0, 1, 8, "CreateTime", b"k", None, (("h", b"1"), ("h", b"2"))),
        ("t", 0, 2, 0, "CreateTime", None, b"", ()),
    ]


def test_without_a_timestamp_the_brokers_clock_gives_it_and_a_topic_may_insist_on_its_own():
    clock = MockTime()
    with kcore.Broker(time=clock) as broker:
        now = clock.milliseconds()
        assert broker.produce("t", b"x").timestamp == now
        broker.create_topic("stamped", message_timestamp_type="LogAppendTime")
        assert broker.produce("stamped", b"x", timestamp=1).timestamp == now
        (record,) = broker.consume("stamped")
        assert (record.timestamp, record.timestamp_type) == (now, "LogAppendTime")


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_key_goes_where_kafkas_producer_sends_it(broker, partitions):
    broker.create_topic("t", partitions=partitions)
    for key in (b"", b"21", b"foobar", b"a-little-bit-long-string", b"abc", "grün".encode()):
        assert broker.produce("t", b"v", key).partition == (model.murmur2(key) & 0x7FFFFFFF) % partitions
        assert broker.produce("t", b"v", key, partition=partitions - 1).partition == partitions - 1


def test_without_keys_the_partitions_come_in_turn(broker):
    broker.create_topic("t", partitions=3)
    broker.create_topic("u", partitions=2)
    assert [broker.produce("t", b"v").partition for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert [broker.produce("u", b"v").partition for _ in range(3)] == [0, 1, 0]


def test_partitions_without_a_leader_are_skipped_for_records_without_a_key(tmp_path):
    shutil.copytree(golden_data.partition_dir("g-segments-1"), tmp_path / "data" / "g-segments-1")
    with kcore.Broker(tmp_path / "data") as broker:
        assert [broker.produce("g-segments", b"v").partition for _ in range(3)] == [1, 1, 1]
        for use in (lambda: broker.produce("g-segments", b"v", partition=0), lambda: broker.consume("g-segments")):
            with pytest.raises(NotLeaderOrFollower, match="g-segments-0"):
                use()
        assert values(broker, "g-segments", 1)[-3:] == [b"v"] * 3


def test_all_partitions_are_consumed_one_after_the_other_or_one_alone(broker):
    rng = random.Random(3)
    broker.create_topic("t", partitions=4)
    expected = {number: [] for number in range(4)}
    for n in range(100):
        at = broker.produce("t", b"%d" % n, partition=rng.randrange(4))
        expected[at.partition].append((at.offset, b"%d" % n))
    records = [(record.partition, record.offset, record.value) for record in broker.consume("t")]
    assert records == [(number, *record) for number in range(4) for record in expected[number]]
    for number in range(4):
        assert [(r.offset, r.value) for r in broker.consume("t", number)] == expected[number]
    assert [record.offset for record in broker.consume("t", 2, start_offset=5)] == [o for o, _ in expected[2][5:]]
    assert len(list(broker.consume("t", max_records=7))) == 7
    assert list(broker.consume("t", max_records=0)) == []
    assert list(broker.consume("t", start_offset="latest")) == []


def test_a_consume_ends_where_it_could_read_to_when_it_was_called(broker):
    broker.produce("t", b"a")
    before = broker.consume("t")
    broker.produce("t", b"b")
    assert [record.value for record in before] == [b"a"]
    growing = []
    for record in broker.consume("t"):
        growing.append(record.value)
        broker.produce("t", b"more")
    assert growing == [b"a", b"b"]


def test_records_above_the_high_watermark_are_not_consumed(broker):
    broker.produce("t", b"a")
    log = broker.log("t")
    log.append_as_leader(batch(b"not replicated"), leader_epoch=0)
    assert (log.log_end_offset, log.high_watermark) == (2, 1)
    assert values(broker, "t") == [b"a"]
    with pytest.raises(OffsetOutOfRange, match="start_offset 2"):
        broker.consume("t", 0, start_offset=2)


def test_with_a_timeout_new_records_are_waited_for(broker):
    broker.create_topic("t", partitions=2)
    consumed = broker.consume("t", timeout=60, max_records=3, start_offset="latest")
    writer = threading.Thread(target=lambda: [time.sleep(0.05) or broker.produce("t", b"%d" % n) for n in range(3)])
    started = time.monotonic()
    writer.start()
    assert sorted(record.value for record in consumed) == [b"0", b"1", b"2"]
    writer.join()
    assert time.monotonic() - started < 50  # max_records ends it, not the timeout
    started = time.monotonic()
    assert len(list(broker.consume("t", timeout=0.1))) == 3
    assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize("topic", ["g-txn", "g-txn-open"])
def test_read_committed_is_consumed_as_kafkas_consumer_reads_it(tmp_path, topic):
    shutil.copytree(golden_data.partition_dir(f"{topic}-0"), tmp_path / "data" / f"{topic}-0")
    with kcore.Broker(tmp_path / "data") as broker:
        read = {
            level: [record.offset for record in broker.consume(topic, isolation=level)]
            for level in ("read_committed", "read_uncommitted")
        }
        log = broker.log(topic)
        assert read["read_committed"] == [r.offset for r in log.records(isolation="read_committed")]
        assert read["read_uncommitted"] == [r.offset for r in log.records()]
        assert len(read["read_committed"]) < len(read["read_uncommitted"])


def test_records_that_were_deleted_meanwhile_are_passed_over(broker):
    for n in range(5):
        broker.produce("t", b"%d" % n)
    consumed = broker.consume("t")
    broker.replica_manager.delete_records({TopicPartition("t", 0): 3}, lambda results: None)
    assert [record.value for record in consumed] == [b"3", b"4"]


def test_what_cannot_be_is_refused_at_the_call(broker):
    broker.create_topic("t", partitions=2)
    for wrong, error, words in (
        ({"isolation": "read_comitted"}, ValueError, "'read_uncommitted' or 'read_committed'"),
        ({"max_records": -1}, ValueError, "max_records -1"),
        ({"max_records": "5"}, TypeError, "max_records must be an int"),
        ({"timeout": -1}, ValueError, "timeout -1"),
        ({"start_offset": 0}, ValueError, "2 partitions"),
        ({"start_offset": "begin"}, ValueError, "'earliest' or 'latest'"),
        ({"start_offset": 1, "partition": 0}, OffsetOutOfRange, r"t-0: start_offset 1, readable is \[0, 0\]"),
        ({"start_offset": -1, "partition": 0}, OffsetOutOfRange, "start_offset -1"),
        ({"partition": 2}, UnknownTopicOrPartition, "t-2: no such partition, the topic has 2"),
        ({"partition": "0"}, TypeError, "partition must be an int"),
        ({"topic": "u"}, UnknownTopicOrPartition, "u: no such topic"),
        ({"topic": b"t"}, TypeError, "topic must be a str"),
    ):
        with pytest.raises(error, match=words):
            broker.consume(**{"topic": "t", **wrong})
    for wrong, error, words in (
        ({"value": 5}, TypeError, "value must be bytes, str or None, not 5"),
        ({"key": 5}, TypeError, "key must be bytes, str or None"),
        ({"headers": "abc"}, TypeError, "headers must be .* not 'abc'"),
        ({"headers": 7}, TypeError, "headers must be .* not 7"),
        ({"headers": ["ab"]}, TypeError, "headers must be .* 'ab' is no pair"),
        ({"headers": [("a", b"b", b"c")]}, TypeError, "headers must be .* is no pair"),
        ({"headers": {"h": 5}}, TypeError, "header h must be bytes"),
        ({"headers": [(b"h", b"1")]}, TypeError, "header's name must be a str"),
        ({"timestamp": -1}, ValueError, "timestamp -1"),
        ({"timestamp": 1 << 63}, ValueError, "timestamp 9223372036854775808, expected"),
        ({"timestamp": 1.5}, TypeError, "timestamp must be an int"),
        ({"partition": 2}, UnknownTopicOrPartition, "t-2: no such partition, the topic has 2"),
        ({"partition": -1}, UnknownTopicOrPartition, "t--1"),
        ({"topic": "a b"}, InvalidTopicException, "a b"),
        ({"topic": "__consumer_offsets"}, InvalidTopicException, "internal"),
        ({"value": bytes(2 << 20)}, MessageTooLarge, r"max\.message\.bytes"),
    ):
        with pytest.raises(error, match=words):
            broker.produce(**{"topic": "t", "value": b"v", **wrong})
    assert values(broker, "t") == []
    assert list(broker.metadata_cache.snapshot.topic_names()) == ["t"]


def test_a_produce_is_refused_as_a_producers_is():
    with kcore.Broker(auto_create_topics_enable=False) as broker:
        with pytest.raises(UnknownTopicOrPartition, match=r"auto\.create\.topics\.enable is false"):
            broker.produce("t", b"x")
        broker.create_topic("t", min_insync_replicas=2)
        with pytest.raises(NotEnoughReplicas):
            broker.produce("t", b"x")
        assert values(broker, "t") == []


def test_a_missing_topic_is_created_with_the_brokers_number_of_partitions():
    with kcore.Broker(num_partitions=3) as broker:
        broker.produce("t", b"x")
        assert len(broker.metadata_cache.topic("t").partitions) == 3


def test_neither_works_unless_the_broker_runs():
    broker = kcore.Broker()
    for use in (lambda: broker.produce("t", b"x"), lambda: broker.consume("t"), broker.restart):
        with pytest.raises(RuntimeError, match="has not started"):
            use()
    with broker:
        broker.produce("t", b"x")
        waiting = broker.consume("t", timeout=60)
        assert next(waiting).value == b"x"
    for use in (lambda: broker.produce("t", b"x"), lambda: broker.consume("t"), lambda: next(waiting), broker.restart):
        with pytest.raises(RuntimeError, match="has stopped"):
            use()


def test_many_threads_produce_and_each_record_has_its_own_offset(broker):
    broker.create_topic("t", partitions=2)
    produced_records = []

    def write(number):
        for n in range(50):
            produced_records.append((broker.produce("t", b"%d-%d" % (number, n))[1:3], b"%d-%d" % (number, n)))

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(((r.partition, r.offset), r.value) for r in broker.consume("t")) == sorted(produced_records)
    assert len(dict(produced_records)) == 300


def test_the_log_of_a_running_broker_takes_no_append_that_no_consumer_would_see(broker, tmp_path):
    broker.produce("t", b"a")
    log = broker.log("t")
    for append in (lambda: log.append_as_leader(batch(b"x")), lambda: log.append_as_follower(batch(b"x"))):
        with pytest.raises(LogIsServed, match=r"t-0: .* broker\.produce\(\)"):
            append()
    assert (log.log_end_offset, values(broker, "t")) == (1, [b"a"])
    with kcore.open_log(tmp_path / "t-0", "a") as own:  # no broker's: as ever
        own.append_as_leader(batch(b"x"))
        assert own.high_watermark == 1
