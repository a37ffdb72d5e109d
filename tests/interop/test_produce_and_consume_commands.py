"""`kcore produce` and `kcore consume` with confluent-kafka at the other end."""

import json
import os
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import kcore
from tests.interop.conftest import CODECS

DEADLINE_S = 60


@pytest.fixture(scope="module")
def broker():
    with kcore.Broker(log_retention_ms=-1) as broker:
        yield broker


def run(broker, command, topic, *words, stdin=b""):
    done = subprocess.run(
        [sys.executable, "-m", "kcore", command, topic, *words],
        input=stdin,
        capture_output=True,
        timeout=DEADLINE_S,
        env={**os.environ, "KCORE_BOOTSTRAP": broker.bootstrap_servers},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_the_command_has_written(broker, codec):
    topic = f"written-{codec}"
    broker.create_topic(topic)
    events = [
        {"key": {"hex": "ff00"}, "value": None, "headers": [["h", None]], "timestamp": 1_700_000_000_000},
        {"key": None, "value": "", "headers": [], "timestamp": 1_700_000_000_001},
        {
            "key": "",
            "value": {"hex": "fe"},
            "headers": [["a", "1"], ["a", {"hex": "ff"}]],
            "timestamp": 1_700_000_000_002,
        },
        *(
            {"key": f"k{n}", "value": f"v{n}" * 20, "headers": None, "timestamp": 1_700_000_000_003}
            for n in range(2000)
        ),
    ]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    run(broker, "produce", topic, "--json", "--compression", codec, stdin=text)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    messages, deadline = [], time.monotonic() + DEADLINE_S
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(messages) < len(events):
            assert time.monotonic() < deadline, len(messages)
            messages += consumer.consume(len(events), 0.2)
    finally:
        consumer.close()
    found = [(m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in messages]
    assert found[:3] == [
        (b"\xff\x00", None, [("h", None)], 1_700_000_000_000),
        (None, b"", [], 1_700_000_000_001),
        (b"", b"\xfe", [("a", b"1"), ("a", b"\xff")], 1_700_000_000_002),
    ]
    assert found[3:] == [(b"k%d" % n, b"v%d" % n * 20, [], 1_700_000_000_003) for n in range(2000)]


@pytest.mark.parametrize("codec", CODECS)
def test_the_command_reads_what_librdkafka_has_written(broker, codec):
    topic = f"read-{codec}"
    broker.create_topic(topic, 3)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
    for number in range(3000):
        producer.produce(topic, b"v%d" % number, b"k%d" % number, headers=[("n", b"%d" % number)])
    assert producer.flush(DEADLINE_S) == 0
    values = run(broker, "consume", topic).split(b"\n")
    assert sorted(values[:-1]) == sorted(b"v%d" % number for number in range(3000))
    events = [json.loads(line) for line in run(broker, "consume", topic, "--json").splitlines()]
    assert sorted((event["key"], event["value"], event["headers"][0][1]) for event in events) == sorted(
        (f"k{number}", f"v{number}", str(number)) for number in range(3000)
    )
