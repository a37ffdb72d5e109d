"""`kcore mirror` of a real Kafka's topic: its directories have the batches of Kafka's own, byte for byte.

Compressed batches of all codecs, an idempotent producer, transactions that committed and aborted, records deleted from
the start, several leader epochs, and a copy that goes on after Kafka restarted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import RealKafka, Unavailable  # noqa: E402

TOPIC = "mirrored"
PARTITIONS = 2
BROKER = {"log.segment.bytes": 1 << 20, "log.retention.ms": -1, "log.initial.task.delay.ms": 500}


def create_topic(kafka: RealKafka) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)


def produce(kafka: RealKafka, count: int, **config: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, **config})
    if "transactional.id" in config:
        producer.init_transactions(60)
        for number, end in enumerate((producer.commit_transaction, producer.abort_transaction) * 2):
            producer.begin_transaction()
            send(producer, count // 4, f"transaction {number}")
            end(60)
        return
    send(producer, count, config.get("compression.type", "plain"))
    if producer.flush(60):
        raise RuntimeError("records were not acknowledged")


def send(producer: object, count: int, prefix: str) -> None:
    for n in range(count):
        producer.produce(TOPIC, f"{prefix} {n} {'x' * (n % 300)}", partition=n % PARTITIONS)  # type: ignore[attr-defined]
        producer.poll(0)  # type: ignore[attr-defined]


def delete_records(kafka: RealKafka, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(TOPIC, 0, offset)]).values():
        future.result(60)


def kcore(*arguments: str) -> str:
    """What the command prints.  Raises RuntimeError unless it exits with 0."""
    command = [sys.executable, "-m", "kcore.tools.main", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    if result.returncode:
        raise RuntimeError(f"kcore {' '.join(arguments)}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def step(name: str, action: Callable[[], object]) -> None:
    action()
    print(f"ok  {name}", flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kcore-mirror-") as directory:
        work = Path(directory)
        kafka = RealKafka(work / "kafka", **{name.replace(".", "_"): value for name, value in BROKER.items()})
        copy = work / "copy"

        def mirror() -> None:
            kcore("mirror", kafka.bootstrap_servers, TOPIC, str(copy))

        def same() -> None:
            for number in range(PARTITIONS):
                ours, theirs = copy / f"{TOPIC}-{number}", work / "kafka" / "data" / f"{TOPIC}-{number}"
                kcore("diff", str(theirs), str(ours))
                kcore("verify", str(ours))

        try:
            with kafka:
                create_topic(kafka)
                for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                    produce(kafka, 2000, **{"compression.type": codec, "enable.idempotence": "true"})
                produce(kafka, 400, **{"transactional.id": "t"})
                step("a topic with all codecs, idempotent and transactional producers", mirror)
            step("the copy has Kafka's batches", same)
            with kafka:
                produce(kafka, 2000)
                step("the copy goes on after a restart of Kafka, in another leader epoch", mirror)
                delete_records(kafka, 3000)
                produce(kafka, 100)
                step("and after records were deleted", mirror)
            step("the copy has Kafka's batches", same)
        except Unavailable as missing:
            print(f"mirror: skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
