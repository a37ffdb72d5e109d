"""run.py: the same client against kcore and against a real Apache Kafka, one after the other, several times over.

A million records of 100 bytes through confluent-kafka's producer and back through its consumer, one partition, default
settings, both brokers on this machine with all of its CPUs.  Only one of them runs at a time.  Rounds alternate, so
that a slow moment of the machine meets both.  Prints what the brokers took of CPU and memory, then the table of
bench/report.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench import report  # noqa: E402
from bench.conftest import machine_notes  # noqa: E402
from bench.peers.real_kafka import RealKafka, Unavailable, answers, free_port  # noqa: E402

SIZE = 100
TOPIC = "million"

#: librdkafka stops fetching for a second whenever 100,000 messages wait in its queue.  A client that takes them as fast
#: as the broker sends them meets that a few times in a million, or not, by luck, and each time costs more than all the
#: rest.  So we measure with a pause of 10 ms, and beside it with the defaults.
NO_LONG_PAUSE: dict[str, str | int | float | bool] = {"fetch.queue.backoff.ms": 10}
STEPS = {
    "produce": "produce",
    "consume": "consume, fetch.queue.backoff.ms=10",
    "consume_default": "consume, client defaults (1 s pauses by luck)",
}


@contextmanager
def kcore_serve(directory: Path) -> Iterator[tuple[str, int]]:
    """(bootstrap servers, process id) of `kcore serve`."""
    port = free_port()
    command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(directory), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with open(directory / "out", "wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 30
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"kcore serve did not start:\n{(directory / 'out').read_text()}")
            time.sleep(0.01)
        yield f"127.0.0.1:{port}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def apache_kafka(directory: Path) -> Iterator[tuple[str, int]]:
    with RealKafka(directory) as kafka:
        yield kafka.bootstrap_servers, kafka.pid


BROKERS = {"kcore": kcore_serve, "Apache Kafka": apache_kafka}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@dataclass
class Round:
    """What one pass of the client took."""

    produce_s: float
    consume_s: float
    consume_default_s: float
    produce_cpu_s: float
    consume_cpu_s: float
    resident_mib: float


def produce(bootstrap_servers: str, topic: str, count: int) -> float:
    """Seconds until all records are acknowledged."""
    from confluent_kafka import Producer

    failures: list[object] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers})
    padding = bytes(SIZE - 8)
    start = time.perf_counter()
    for n in range(count):
        value = n.to_bytes(8) + padding
        while True:
            try:
                producer.produce(topic, value, on_delivery=delivered)
                break
            except BufferError:  # librdkafka's queue is full: let it work
                producer.poll(0.01)
        if n % 1000 == 0:
            producer.poll(0)
    left = producer.flush(120)
    taken = time.perf_counter() - start
    if left or failures:
        raise RuntimeError(f"{left} records not acknowledged, {len(failures)} refused: {failures[:1]}")
    return taken


def consume(bootstrap_servers: str, topic: str, count: int, **config: str | int | float | bool) -> float:
    """Seconds until all records came back, from the moment the consumer is made."""
    from confluent_kafka import Consumer, TopicPartition

    start = time.perf_counter()
    common = {"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(common | config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    while seen < count:
        messages = consumer.consume(10_000, 30)
        if not messages:
            raise RuntimeError(f"{seen} of {count} records, then nothing for 30 s")
        for message in (messages[0], messages[-1]):
            if message.error():
                raise RuntimeError(str(message.error()))
        first, last = messages[0], messages[-1]
        if int.from_bytes(first.value()[:8]) != seen or first.offset() != seen:
            raise RuntimeError(f"record {first.offset()} where {seen} was expected")
        seen += len(messages)
        if int.from_bytes(last.value()[:8]) != seen - 1:
            raise RuntimeError(f"record {last.offset()} where {seen - 1} was expected")
    taken = time.perf_counter() - start
    consumer.close()
    return taken


def measure(bootstrap_servers: str, pid: int, number: int, count: int) -> Round:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"{TOPIC}-{number}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)
    before = cpu_seconds(pid)
    produce_s = produce(bootstrap_servers, topic, count)
    between = cpu_seconds(pid)
    consume_s = consume(bootstrap_servers, topic, count, **NO_LONG_PAUSE)
    after = cpu_seconds(pid)
    consume_default_s = consume(bootstrap_servers, topic, count)
    return Round(produce_s, consume_s, consume_default_s, between - before, after - between, resident_mib(pid))


def as_benchmarks(results: dict[str, list[Round]], count: int) -> list[dict[str, object]]:
    """In the shape of pytest-benchmark's JSON, for bench/report.py."""
    goal = {"vs": "peer", "at_most": 1.05, "text": "no less than Kafka (5 % for noise)"}
    found: list[dict[str, object]] = []
    for step, title in STEPS.items():
        for name, rounds in results.items():
            times = [getattr(one, f"{step}_s") for one in rounds]
            quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [0, 0, 0]
            info = {"role": "ours" if name == "kcore" else "peer", "per_round": count, "unit": "record", "label": name}
            found.append(
                {
                    "name": f"{step} {name}",
                    "group": f"confluent-kafka, {count:,} x {SIZE} bytes: {title}",
                    "stats": {"median": statistics.median(times), "iqr": quartiles[2] - quartiles[0]},
                    "extra_info": info | ({"goal": goal} if name == "kcore" else {}),
                    "rounds": [vars(one) for one in rounds],
                }
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="of both brokers, alternating (3)")
    parser.add_argument("--warm", type=int, default=1, help="passes before the one that counts, in each round (1)")
    parser.add_argument("--only", choices=sorted(BROKERS), help="measure one broker alone")
    parser.add_argument("--json", default=str(ROOT / "build" / "peers.json"), metavar="FILE")
    args = parser.parse_args()

    results: dict[str, list[Round]] = {name: [] for name in BROKERS if args.only in (None, name)}
    for n in range(args.rounds):
        for name, rounds in results.items():
            with tempfile.TemporaryDirectory(prefix="kcore-peers-") as directory:
                try:
                    with BROKERS[name](Path(directory)) as (bootstrap_servers, pid):
                        for number in range(args.warm):  # a JVM needs to see the work before it is fast at it
                            measure(bootstrap_servers, pid, number, args.records)
                        one = measure(bootstrap_servers, pid, args.warm, args.records)
                except Unavailable as missing:
                    print(f"{missing}: kcore is measured alone", file=sys.stderr)
                    continue
            rounds.append(one)
            print(
                f"round {n + 1}, {name}: produce {args.records / one.produce_s:,.0f}/s, "
                f"consume {args.records / one.consume_s:,.0f}/s, "
                f"broker CPU {one.produce_cpu_s:.2f} + {one.consume_cpu_s:.2f} s, {one.resident_mib:.0f} MiB resident",
                flush=True,
            )
    measured = {name: rounds for name, rounds in results.items() if rounds}
    Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    document = {"machine_info": {"kcore": machine_notes()}, "benchmarks": as_benchmarks(measured, args.records)}
    Path(args.json).write_text(json.dumps(document, indent=1))
    print()
    return report.main([args.json])


if __name__ == "__main__":
    sys.exit(main())
