"""large_requests.py: Fetch of 1 MiB with one and six connections, and Produce beside it, on two brokers in one run.

kcore beside a real Apache Kafka, or with `--other DIR` beside the kcore of a clone of this repository in which another
commit is built: what a change costs shows only beside the commit before it.  Both brokers run at once and are measured
in turns; the client sends requests that were encoded before the clock started, and drops the answers' records in the
kernel.  What both keep is bounded, and was written before the measurement.  Read the CPU per GB; MB/s need a quiet
machine.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import RealKafka, Unavailable, answers, free_port  # noqa: E402
from bench.peers.rounds import spread  # noqa: E402
from bench.peers.run import cpu_seconds  # noqa: E402
from bench.replication_client import TIMEOUT_S, Address, leaders_of_whole_isr, produce  # noqa: E402
from bench.tables import markdown_table  # noqa: E402
from kcore.protocol.headers import encode_request_header  # noqa: E402
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic  # noqa: E402

KIB, MIB, GB = 1 << 10, 1 << 20, 1e9
PARTITIONS = 6
BATCH = 256 * KIB
FETCH_VERSION = 12
KEPT = {"log.retention.bytes": 48 * MIB, "log.segment.bytes": 16 * MIB, "log.retention.ms": -1}
KEPT |= {"log.retention.check.interval.ms": 300, "log.initial.task.delay.ms": 500, "log.segment.delete.delay.ms": 0}


class Row(NamedTuple):
    kind: str
    size: int
    connections: int

    def __str__(self) -> str:
        size = f"{self.size // MIB} MiB" if self.size >= MIB else f"{self.size // KIB} KiB"
        return f"{self.kind} {size}, {self.connections} connection{'s' if self.connections > 1 else ''}"


ROWS = (
    Row("fetch", MIB, 1),
    Row("fetch", MIB, 6),
    Row("produce", 16 * KIB, 1),
    Row("produce", 16 * KIB, 6),
    Row("produce", BATCH, 6),
)


class FetchConnection:
    """One connection that reads a partition of equal batches from its start to its end, again and again."""

    #: Where the kernel would put the records; on Linux it drops them instead.
    _buffer = bytearray(MIB)

    def __init__(self, address: Address, topic: str, partition: int, stored_bytes: int, requests: int) -> None:
        self.socket = socket.create_connection(address, TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = [_fetch_frame(topic, partition, n * MIB // BATCH) for n in range(stored_bytes // MIB)]
        self._sent = 0
        self._left = 0
        self.unanswered = requests

    def send(self) -> None:
        self.socket.sendall(self._frames[self._sent % len(self._frames)])
        self._sent += 1

    def receive(self) -> bool:
        """Whether an answer is whole now.  Raises OSError if it does not have the 1 MiB that was asked for."""
        if not self._left:
            self._left = int.from_bytes(self.socket.recv(4, socket.MSG_WAITALL))
            if not MIB < self._left < MIB + 4 * KIB:
                raise OSError(f"an answer of {self._left} bytes to a fetch of 1 MiB")
        received = self.socket.recv_into(self._buffer, min(self._left, MIB), socket.MSG_TRUNC)
        if not received:
            raise OSError("the broker closed the connection")
        self._left -= received
        return not self._left


def _fetch_frame(topic: str, partition: int, offset: int) -> bytes:
    wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=MIB)
    body = FetchRequest(
        max_wait_ms=500, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(topic=topic, partitions=[wanted])]
    ).encode(FETCH_VERSION)
    header = encode_request_header(FetchRequest.api_key, FETCH_VERSION, 1, "bench")
    return struct.pack(">i", len(header) + len(body)) + header + body


def fetch(leaders: Mapping[int, Address], topic: str, stored_bytes: int, total_bytes: int) -> float:
    """Seconds until total_bytes were read in answers of 1 MiB, one request in flight for each partition."""
    requests = max(1, total_bytes // MIB // len(leaders))
    selector = selectors.DefaultSelector()
    for partition, address in leaders.items():
        connection = FetchConnection(address, topic, partition, stored_bytes, requests)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
    start = time.perf_counter()
    for key in selector.get_map().values():
        key.data.send()
    while selector.get_map():
        ready = selector.select(TIMEOUT_S)
        if not ready:
            raise TimeoutError(f"no answer for {TIMEOUT_S} s")
        for key, _ in ready:
            connection = key.data
            if not connection.receive():
                continue
            connection.unanswered -= 1
            if connection.unanswered:
                connection.send()
            else:
                selector.unregister(connection.socket)
                connection.socket.close()
    taken = time.perf_counter() - start
    selector.close()
    return taken


class Side:
    """One of the two brokers, with the data that is fetched; each measurement is (CPU seconds per GB, MB/s)."""

    def __init__(self, name: str, port: int, pid: int, stored_bytes: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        self.name = name
        self._address: Address = ("127.0.0.1", port)
        self._pid = pid
        self._stored_bytes = stored_bytes
        self.measured: dict[Row, list[tuple[float, float]]] = {row: [] for row in ROWS}
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        topics = [
            NewTopic("fetched", PARTITIONS, 1, config={"retention.bytes": "-1", "segment.bytes": str(128 * MIB)}),
            NewTopic("produced", PARTITIONS, 1),
        ]
        for future in admin.create_topics(topics).values():
            future.result(60)
        leaders_of_whole_isr(self._address, "produced", PARTITIONS, 1)
        produce(self._leaders("fetched", PARTITIONS), "fetched", BATCH, stored_bytes * PARTITIONS)

    def _leaders(self, topic: str, count: int) -> dict[int, Address]:
        leaders = leaders_of_whole_isr(self._address, topic, PARTITIONS, 1)
        return {partition: leaders[partition] for partition in range(count)}

    def measure(self, row: Row, total_bytes: int) -> tuple[float, float]:
        is_fetch = row.kind == "fetch"
        leaders = self._leaders("fetched" if is_fetch else "produced", row.connections)
        before = cpu_seconds(self._pid)
        if is_fetch:
            taken = fetch(leaders, "fetched", self._stored_bytes, total_bytes)
        else:
            taken = produce(leaders, "produced", row.size, total_bytes, acks=1)
        return (cpu_seconds(self._pid) - before) / (total_bytes / GB), total_bytes / 1e6 / taken


@contextmanager
def kcore_of(clone: Path, directory: Path) -> Iterator[tuple[int, int]]:
    """(port, process id) of `kcore serve` of a clone."""
    port = free_port()
    command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(directory / "data")]
    command += ["--port", str(port), *(part for name, value in KEPT.items() for part in ("-o", f"{name}={value}"))]
    with open(directory / "out", "wb") as out:
        environment = os.environ | {"PYTHONPATH": str(clone)}
        process = subprocess.Popen(command, env=environment, cwd=clone, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"kcore serve did not start:\n{(directory / 'out').read_text()}")
            time.sleep(0.01)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def apache_kafka(directory: Path) -> Iterator[tuple[int, int]]:
    with RealKafka(directory, **{name.replace(".", "_"): value for name, value in KEPT.items()}) as kafka:
        yield kafka.port, kafka.pid


def figures(row: Row, ours: Side, other: Side | None) -> list[str]:
    """A line of the table: medians, and ratios over pairs of neighbouring rounds, which met the same machine."""
    rounds = ours.measured[row]
    cpu, rate = ([one[place] for one in rounds] for place in (0, 1))
    cells = [str(row), f"{statistics.median(cpu):.3f}", spread(cpu), f"{statistics.median(rate):.0f}"]
    if other is not None:
        for place in (0, 1):
            ratios = [a[place] / b[place] for a, b in zip(rounds, other.measured[row], strict=True) if b[place]]
            cells.append(f"{statistics.median(ratios):.2f}x" if ratios else "")
    return cells


def table(lines: Iterable[Sequence[str]], other: Side | None) -> str:
    headings = ["row", "broker CPU-s/GB", "spread", "MB/s"]
    if other is not None:
        headings += [f"CPU / {other.name}", f"MB/s / {other.name}"]
    return markdown_table(headings, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, metavar="DIR", help="beside the kcore of this built clone, not Kafka")
    parser.add_argument("--alone", action="store_true", help="kcore alone")
    parser.add_argument("--only", choices=["fetch", "produce"], help="these rows alone")
    parser.add_argument("--rounds", type=int, default=5, help="of each row on both brokers, after one that warms (5)")
    parser.add_argument("--mib", type=int, default=2048, help="of one measurement (2048)")
    parser.add_argument("--stored-mib", type=int, default=64, help="of each partition that is fetched (64)")
    args = parser.parse_args()
    total, stored = args.mib * MIB, args.stored_mib * MIB
    with ExitStack() as stack:

        def started(name: str) -> Side:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kcore-peers-")))
            if name == "Apache Kafka":
                port, pid = stack.enter_context(apache_kafka(directory))
            else:
                port, pid = stack.enter_context(kcore_of(ROOT if name == "kcore" else args.other, directory))
            return Side(name, port, pid, stored)

        ours = started("kcore")
        sides = [ours]
        if not args.alone:
            try:
                sides.append(started("the other" if args.other else "Apache Kafka"))
            except Unavailable as missing:
                print(f"{missing}: kcore is measured alone", file=sys.stderr)
        other = sides[1] if len(sides) > 1 else None
        lines = []
        for row in ROWS:
            if args.only not in (None, row.kind):
                continue
            for number in range(args.rounds + 1):
                for side in sides if number % 2 else sides[::-1]:
                    measured = side.measure(row, total)
                    if number:
                        side.measured[row].append(measured)
            lines.append(figures(row, ours, other))
            print(*lines[-1], sep="  ", flush=True)
        print(f"\n{table(lines, other)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
