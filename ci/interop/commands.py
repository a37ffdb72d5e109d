"""`kcore produce`, `consume` and `groups reset` with a real Kafka, and confluent-kafka at the other end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import RealKafka, Unavailable  # noqa: E402
from ci.interop.mirror import step  # noqa: E402

TOPIC, GROUP = "commands", "billing"
PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 1000
DEADLINE_S = 120
#: As JSON lines, and as librdkafka has them.
ODD = [
    ({"key": {"hex": "ff00"}, "value": None, "headers": [["h", None]]}, (b"\xff\x00", None, [("h", None)])),
    ({"key": None, "value": "", "headers": []}, (None, b"", [])),
    (
        {"key": "", "value": {"hex": "fe"}, "headers": [["a", "1"], ["a", {"hex": "ff"}]]},
        (b"", b"\xfe", [("a", b"1"), ("a", b"\xff")]),
    ),
]


class Commands:
    """Runs commands of kcore on the broker; each raises RuntimeError for another exit status than expected."""

    def __init__(self, kafka: RealKafka) -> None:
        self._environment = {**os.environ, "KCORE_BOOTSTRAP": kafka.bootstrap_servers}

    def run(self, *words: str, stdin: bytes = b"", status: int = 0) -> bytes:
        done = subprocess.run(
            [sys.executable, "-m", "kcore.tools.main", *words],
            input=stdin,
            capture_output=True,
            cwd=ROOT,
            env=self._environment,
            timeout=DEADLINE_S,
            check=False,
        )
        if done.returncode != status:
            raise RuntimeError(f"kcore {' '.join(words)}: exit {done.returncode}\n{done.stderr.decode()}")
        return done.stdout if status == 0 else done.stderr


def check(found: object, expected: object) -> None:
    """Raises RuntimeError unless they are equal."""
    if found != expected:
        raise RuntimeError(f"found {found!r:.500}, expected {expected!r:.500}")


def read_by_librdkafka(kafka: RealKafka, topic: str, count: int, **config: object) -> list[tuple[object, ...]]:
    """(key, value, headers) of the records of one partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.auto.commit": False} | config
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages, deadline = [], time.monotonic() + DEADLINE_S
    try:
        while len(messages) < count and time.monotonic() < deadline:
            messages += consumer.consume(count, 0.5)
    finally:
        consumer.close()
    return [(message.key(), message.value(), message.headers() or []) for message in messages]


def produced(kafka: RealKafka, commands: Commands) -> None:
    for codec in CODECS:
        topic = f"written-{codec}"
        commands.run("topics", "create", topic, "--partitions", "1")
        text = b"".join(json.dumps(line).encode() + b"\n" for line, _ in ODD)
        text += b"".join(b'{"value": "%d"}\n' % number for number in range(RECORDS))
        commands.run("produce", topic, "--json", "--compression", codec, stdin=text)
        expected = [read for _, read in ODD] + [(None, b"%d" % number, []) for number in range(RECORDS)]
        check(read_by_librdkafka(kafka, topic, len(expected)), expected)


def copied(commands: Commands) -> None:
    printed = commands.run("consume", "written-zstd", "--json")
    commands.run("topics", "create", "copy", "--partitions", "1")
    commands.run("produce", "copy", "--json", stdin=printed)
    again = commands.run("consume", "copy", "--json")
    check(again.replace(b'"topic": "copy"', b'"topic": "written-zstd"'), printed)


def refused(commands: Commands) -> None:
    commands.run(
        "topics", "create", "small", "--config", "max.message.bytes=1000", "--config", "cleanup.policy=compact"
    )
    text = b'{"key": "a", "value": "1"}\n{"key": "b", "value": "%b"}\n{"value": "no key"}\n{"key": "c", "value": "2"}\n'
    error = commands.run("produce", "small", "--json", stdin=text % (b"x" * 2000), status=1).decode()
    check(["line 2: MessageTooLarge" in error, "line 3: InvalidRecord" in error], [True, True])
    check(commands.run("consume", "small", "--format", r"%k=%s\n"), b"a=1\nc=2\n")


def committed_alone(kafka: RealKafka, commands: Commands) -> None:
    from confluent_kafka import Producer

    commands.run("topics", "create", "transactions", "--partitions", "1")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
        producer.begin_transaction()
        producer.produce("transactions", str(number))
        producer.flush(60)  # else the abort would drop the record here
        end(60)
    check(commands.run("consume", "transactions"), b"0\n1\n2\n3\n")
    check(commands.run("consume", "transactions", "--isolation-level", "read_committed"), b"0\n2\n")


def places(commands: Commands) -> None:
    commands.run("topics", "create", TOPIC, "--partitions", str(PARTITIONS))
    lines = b"".join(
        b'{"value": "%d", "partition": %d, "timestamp": %d}\n' % (n, n % PARTITIONS, 1_700_000_000_000 + n)
        for n in range(RECORDS)
    )
    commands.run("produce", TOPIC, "--json", stdin=lines)

    def numbers(*words: str) -> list[int]:
        return sorted(map(int, commands.run("consume", TOPIC, *words).split()))

    check(numbers(), list(range(RECORDS)))
    check(numbers("--from", "@1700000000500"), list(range(500, RECORDS)))
    check(numbers("--until", "@1700000000500"), list(range(500)))
    check(numbers("--tail", "1"), list(range(RECORDS - PARTITIONS, RECORDS)))
    check(len(numbers("--max", "7")), 7)


def resets(kafka: RealKafka, commands: Commands) -> None:
    from confluent_kafka import Consumer, TopicPartition

    check(len(commands.run("consume", TOPIC, "--group", GROUP).split()), RECORDS)
    check(commands.run("consume", TOPIC, "--group", GROUP), b"")
    commands.run("groups", "reset", GROUP, "--all-topics", "--to", "2", "--apply")
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": GROUP, "enable.auto.commit": False})
    asked = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    check([found.offset for found in consumer.committed(asked, timeout=60)], [2] * PARTITIONS)
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + DEADLINE_S
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.5)
    error = commands.run("groups", "reset", GROUP, "--topic", TOPIC, "--to", "earliest", "--apply", status=2).decode()
    check("has 1 member" in error, True)
    consumer.close()
    commands.run("groups", "reset", GROUP, "--topic", TOPIC, "--to", "earliest", "--apply")
    check(len(commands.run("consume", TOPIC, "--group", GROUP).split()), RECORDS)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kcore-commands-") as directory:
        kafka = RealKafka(Path(directory) / "kafka", log_retention_ms=-1)
        commands = Commands(kafka)
        try:
            with kafka:
                step(
                    "confluent-kafka reads from Kafka what kcore produce wrote, all codecs",
                    lambda: produced(kafka, commands),
                )
                step("what kcore consume prints as JSON kcore produce takes back", lambda: copied(commands))
                step("records that Kafka refuses are named, and the others are written", lambda: refused(commands))
                step("read_committed leaves out aborted transactions", lambda: committed_alone(kafka, commands))
                step("by offset, time and tail", lambda: places(commands))
                step("committed offsets of a group, and kcore groups reset", lambda: resets(kafka, commands))
        except Unavailable as missing:
            print(f"commands: skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
