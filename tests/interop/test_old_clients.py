"""Clients that speak the protocol of Kafka 0.9 to 0.11, and today's clients on a directory of that time."""

import json
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

import kcore
from kcore.tools.main import main
from tests.interop.test_kafka_python import subscribed, take

OLD_FORMATS = Path(__file__).resolve().parents[1] / "golden" / "old-formats"
NOW = 1_700_000_000_000
# What these versions produce, and what they fetch.
MAGIC = {(0, 9): 0, (0, 10): 1, (0, 10, 2): 1, (0, 11): 2}


def ids(version):
    return ".".join(map(str, version))


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
@pytest.mark.parametrize("version", MAGIC, ids=ids)
def test_what_an_old_client_produces_old_and_new_clients_consume(broker, servers, name, version, codec):
    # One batch: the client sends one that does not get smaller uncompressed.
    producer = KafkaProducer(bootstrap_servers=servers, api_version=version, compression_type=codec, linger_ms=60_000)
    sent = [(b"k%d" % i if i % 3 else None, b"value %d" % i) for i in range(100)]
    futures = [producer.send(name, value, key, timestamp_ms=NOW + i) for i, (key, value) in enumerate(sent)]
    producer.flush(60)
    assert [future.get(60).offset for future in futures] == list(range(100))
    producer.close()
    assert {(batch.magic, batch.compression) for batch in broker.log(name, 0).batches()} == {(2, codec or "none")}
    for reader in (version, None):
        options = {} if reader is None else {"api_version": reader}
        consumer = subscribed(servers, name, **options)
        records = take(consumer, 100)
        consumer.close()
        assert [(r.offset, r.key, r.value) for r in records] == [(i, *record) for i, record in enumerate(sent)]
        if MAGIC[version]:
            assert [r.timestamp for r in records] == [NOW + i for i in range(100)]


@pytest.mark.parametrize("codec", [None, "gzip", "lz4"])
@pytest.mark.parametrize("version", MAGIC, ids=ids)
def test_an_old_client_consumes_what_a_new_one_produced(servers, name, version, codec):
    producer = KafkaProducer(bootstrap_servers=servers, compression_type=codec, linger_ms=20)
    for i in range(100):
        producer.send(name, b"value %d" % i, b"key", headers=[("h", b"x")], timestamp_ms=NOW + i)
    producer.close()
    # Smaller than a batch: old protocol versions have no promise that one comes whole.
    consumer = KafkaConsumer(bootstrap_servers=servers, api_version=version, max_partition_fetch_bytes=1 << 16)
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    consumer.seek(partition, 7)
    records = take(consumer, 93)
    consumer.close()
    assert [(r.offset, r.key, r.value) for r in records] == [(i, b"key", b"value %d" % i) for i in range(7, 100)]
    if MAGIC[version] < 2:
        assert {len(r.headers) for r in records} == {0}


@pytest.fixture(scope="module")
def mixed_broker(tmp_path_factory):
    """A broker on a directory with a partition of all three formats."""
    data = tmp_path_factory.mktemp("mixed") / "data"
    (data / "old-0").mkdir(parents=True)
    shutil.copy(OLD_FORMATS / "mixed.log", data / "old-0" / "00000000000000000000.log")
    with kcore.Broker(data) as broker:
        yield broker


@pytest.fixture(scope="module")
def mixed():
    batches = json.loads((OLD_FORMATS / "expected.json").read_text())["files"]["mixed.log"]["batches"]
    return [
        (offset, timestamp, key and bytes.fromhex(key), value and bytes.fromhex(value))
        for batch in batches
        for offset, timestamp, key, value in batch["records"]
    ]


def plain(records):
    return [(offset, key or None, value or None) for offset, _, key, value in records]


@pytest.mark.parametrize("version", [None, (0, 9), (0, 10)])
def test_kafka_python_consumes_a_partition_of_all_three_formats(mixed_broker, mixed, version):
    options = {} if version is None else {"api_version": version}
    consumer = KafkaConsumer(bootstrap_servers=mixed_broker.bootstrap_servers, **options)
    partition = TopicPartition("old", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    records = take(consumer, len(mixed))
    consumer.close()
    got = [(r.offset, r.timestamp, r.key, r.value) for r in records]
    assert plain(got) == plain(mixed)
    if version is None:
        assert [-1 if timestamp is None else timestamp for _, timestamp, _, _ in got] == [r[1] for r in mixed]


def test_librdkafka_consumes_a_partition_of_all_three_formats(mixed_broker, mixed):
    consumer = Consumer({"bootstrap.servers": mixed_broker.bootstrap_servers, "group.id": "any"})
    consumer.assign([ConfluentPartition("old", 0, 0)])
    messages = []
    while len(messages) < len(mixed):
        rest = consumer.consume(len(mixed) - len(messages), timeout=60)  # more would wait for the timeout
        assert rest, f"{len(messages)} of {len(mixed)} records"
        assert all(message.error() is None for message in rest)
        messages += rest
    consumer.close()
    got = [(m.offset(), m.timestamp()[1], m.key(), m.value()) for m in messages]
    assert plain(got) == plain(mixed)


def test_the_tools_take_a_partition_of_all_three_formats(tmp_path, mixed, capsys):
    directory = tmp_path / "old-0"
    directory.mkdir()
    segment = directory / "00000000000000000000.log"
    shutil.copy(OLD_FORMATS / "mixed.log", segment)
    with kcore.open_log(directory, "a"):
        pass
    assert main(["verify", str(directory)]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert main(["dump", "--json", "--deep-iteration", str(segment)]) == 0
    dumped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["offset"] for line in dumped if line["type"] == "record"] == [record[0] for record in mixed]
