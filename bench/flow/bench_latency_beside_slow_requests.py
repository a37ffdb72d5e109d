"""How long a small produce takes while another connection keeps the broker busy with slow requests.

The broker is a process of its own (`kcore serve`).  One client sends one produce of a 100-byte record after the
other and notes how long each takes; a second one meanwhile sends one slow request after the other:

    fetch           a Fetch of 100,000 partitions
    create_topics   a CreateTopics of 10,000 partitions and its deletion (of 100 where it runs once as a test)
    list_offsets    a ListOffsets by time of 500 times, after the pages of the log have been dropped from the cache
    scrape          a GET of /metrics of 10,000 partitions, one each second
    search          a search through 300 MB of a topic on the page of `kcore web`, which reads them from the broker
    search_dir      the same through the broker's directory, which it reads itself

In one more case new idempotent producers come instead, each with a connection, an InitProducerId and one record:

    topic_changes   a CreateTopics of 10,000 partitions, and 6 of one partition on connections of their own, which
                    wait for it; then the deletion of all

    python -m bench.flow.bench_latency_beside_slow_requests [SECONDS [CASE...]]     p50 and p99 alone and beside each
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.conftest import record_role
from kcore.protocol.api_keys import ApiKey
from kcore.protocol.headers import decode_response_header, encode_request_header
from kcore.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kcore.protocol.messages.delete_topics import DeleteTopicsRequest
from kcore.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kcore.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcore.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kcore.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcore.protocol.schema import Message
from kcore.record.record_batch_builder import RecordBatchBuilder

FETCH_PARTITIONS = 100_000
CREATE_PARTITIONS = 10_000
SEGMENTS, SEGMENT_BYTES = 100, 1 << 20
FIRST_TIMESTAMP = 1_700_000_000_000
SCRAPE_INTERVAL_S = 1
#: Reading a page costs the thread that measures some of its time.
PAGE_INTERVAL_S = 0.5
SLOW = ("fetch", "create_topics", "list_offsets", "scrape", "search", "search_dir")
TOPIC_CHANGES = "topic_changes"
SMALL_CREATIONS = 6


class Client:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, frame: bytes) -> bytes:
        """Send a request and wait for the end of its response; the first bytes of that."""
        self.sock.sendall(frame)
        return self.receive()

    def receive(self) -> bytes:
        data = self.sock.recv(65536)
        assert data, "the broker closed the connection"
        left = 4 + int(struct.unpack_from(">i", data)[0]) - len(data)
        while left > 0:
            received = len(self.sock.recv(min(left, 1 << 20)))
            assert received, "the broker closed the connection"
            left -= received
        return data


def frame(request: Message, version: int) -> bytes:
    body = encode_request_header(ApiKey(request.api_key), version, 1, "bench") + request.encode(version)
    return struct.pack(">i", len(body)) + body


def produce(topic: str, value: bytes, timestamp: int = FIRST_TIMESTAMP, **producer: int) -> bytes:
    builder = RecordBatchBuilder(**producer)
    builder.append(value, timestamp=timestamp)
    data = PartitionProduceData(index=0, records=bytes(builder.build()))
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    return frame(ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics), 9)


def create_topic(name: str, partitions: int) -> bytes:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return frame(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 4)


class Served(NamedTuple):
    directory: Path
    port: int
    #: Of its metrics.
    url: str


@contextlib.contextmanager
def command_running(*arguments: str) -> Iterator[Iterator[str]]:
    """A command of kcore; the lines that it prints."""
    command = [sys.executable, "-m", "kcore.tools.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Served]:
    settings = ["-o", f"log.segment.bytes={SEGMENT_BYTES}", "-o", "log.index.size.max.bytes=65536"]
    settings += ["-o", "log.retention.ms=-1", "-o", "log.segment.delete.delay.ms=0", "--monitoring", "127.0.0.1:0"]
    with command_running("serve", "--data", str(directory), "--port", "0", *settings) as lines:
        port = int(next(lines).rsplit(":", 1)[1])
        yield Served(directory, port, next(lines).split()[1].rstrip(","))


def scrape(url: str) -> None:
    with urllib.request.urlopen(url) as answer:
        answer.read()
    time.sleep(SCRAPE_INTERVAL_S)


def fill(client: Client, topic: str, segments: int = SEGMENTS) -> None:
    client.ask(create_topic(topic, 1))
    for i in range(segments):
        client.ask(produce(topic, b"x" * (SEGMENT_BYTES * 3 // 4), FIRST_TIMESTAMP + i * 1000))


def search(page: str, **where: str) -> None:
    """Search for what is nowhere, and wait until it has ended."""
    with urllib.request.urlopen(page) as answer:
        token = re.findall(rb'name="token" value="([^"]+)"', answer.read())[0].decode()
    form = urllib.parse.urlencode({"text": "nowhere", "token": token} | where).encode()
    with urllib.request.urlopen(page, form) as answer:
        found, url = answer.read(), answer.url
    while b"Done" not in found:
        assert b"Ended by an error" not in found, found
        time.sleep(PAGE_INTERVAL_S)
        with urllib.request.urlopen(url) as answer:
            found = answer.read()


@contextlib.contextmanager
def slow_request(kind: str | None, served: Served, partitions: int) -> Iterator[Callable[[], None] | None]:
    """What sends one such request and waits for its answer."""
    client = Client(served.port)
    if kind is None or kind == "nothing":
        yield None
    elif kind == TOPIC_CHANGES:
        yield topic_changes(served.port, partitions)
    elif kind == "scrape":
        client.ask(create_topic("scraped", partitions))
        yield partial(scrape, served.url)
    elif kind in ("search", "search_dir"):
        fill(client, "searched", 4 * SEGMENTS)
        arguments = ["--bootstrap", f"127.0.0.1:{served.port}"] if kind == "search" else [str(served.directory)]
        where = {"topic": "searched"} if kind == "search" else {"dir": "0"}
        with command_running("web", *arguments, "--http", "127.0.0.1:0") as lines:
            yield partial(search, next(lines).split()[-1] + "search", **where)
    else:
        yield request_over(client, kind, served.directory, partitions)


def request_over(client: Client, kind: str, directory: Path, partitions: int) -> Callable[[], None]:
    if kind == "fetch":
        asked = [FetchPartition(partition=i, partition_max_bytes=1) for i in range(FETCH_PARTITIONS)]
        fetch = frame(FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic="small", partitions=asked)]), 11)
        return lambda: client.ask(fetch)
    if kind == "create_topics":
        deletion = frame(DeleteTopicsRequest(topic_names=["created"], timeout_ms=60_000), 3)

        def create_and_delete() -> None:
            client.ask(create_topic("created", partitions))
            client.ask(deletion)

        return create_and_delete
    fill(client, "large")
    times = [FIRST_TIMESTAMP + i * 1000 * SEGMENTS // 500 for i in range(500)]
    lookups = [
        frame(
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(name="large", partitions=[ListOffsetsPartition(partition_index=0, timestamp=t)])
                ],
            ),
            5,
        )
        for t in times
    ]

    def look_up() -> None:
        for path in (directory / "large-0").iterdir():
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for lookup in lookups:
            client.ask(lookup)

    return look_up


def topic_changes(port: int, partitions: int) -> Callable[[], None]:
    clients = [Client(port) for _ in range(1 + SMALL_CREATIONS)]
    names = [f"created-{i}" for i in range(len(clients))]
    creations = [create_topic(name, 1 if i else partitions) for i, name in enumerate(names)]
    deletion = frame(DeleteTopicsRequest(topic_names=names, timeout_ms=60_000), 3)

    def create_and_delete() -> None:
        for client, creation in zip(clients, creations, strict=True):
            client.sock.sendall(creation)
        for client in clients:
            client.receive()
        clients[0].ask(deletion)

    return create_and_delete


def first_records(port: int, count: int) -> list[float]:
    """Microseconds from the connection of a new idempotent producer to the answer to its first record."""
    init, times = frame(InitProducerIdRequest(transactional_id=None), 1), []
    for _ in range(count):
        started = time.perf_counter()
        client = Client(port)
        answer = client.ask(init)[4:]
        _, position = decode_response_header(answer, ApiKey.INIT_PRODUCER_ID, 1)
        identity = InitProducerIdResponse.decode(answer, 1, position)
        client.ask(produce("small", b"x" * 100, producer_id=identity.producer_id, producer_epoch=0, base_sequence=0))
        times.append((time.perf_counter() - started) * 1e6)
        client.sock.close()
    return times


def latencies(client: Client, count: int) -> list[float]:
    """Microseconds of that many small produces, one after the other."""
    small, times = produce("small", b"x" * 100), []
    for _ in range(count):
        started = time.perf_counter()
        client.ask(small)
        times.append((time.perf_counter() - started) * 1e6)
    return times


@contextlib.contextmanager
def busy(slow: Callable[[], None] | None) -> Iterator[list[float]]:
    """slow() again and again on a thread; how many seconds each call took."""
    durations: list[float] = []
    stop = threading.Event()

    def repeat() -> None:
        while slow is not None and not stop.is_set():
            started = time.perf_counter()
            slow()
            durations.append(time.perf_counter() - started)

    with ThreadPoolExecutor(1) as threads:
        repeated = threads.submit(repeat)
        try:
            yield durations
        finally:
            stop.set()
        repeated.result()


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


@pytest.mark.parametrize("beside", ["nothing", *SLOW])
@pytest.mark.benchmark(group="small produce beside slow requests")
def bench_small_produce_beside(benchmark, bench_dir, beside):
    per_round = 200
    record_role(benchmark, "limit" if beside == "nothing" else "ours", per_round=per_round, label=f"beside {beside}")
    directory = bench_dir / f"latency-{beside}"
    partitions = CREATE_PARTITIONS if benchmark.enabled else 100
    with serving(directory) as served, slow_request(beside, served, partitions) as slow:
        client = Client(served.port)
        client.ask(create_topic("small", 1))
        times: list[float] = []
        with busy(slow):
            benchmark.pedantic(lambda: times.extend(latencies(client, per_round)), rounds=20, warmup_rounds=1)
        benchmark.extra_info.update(p50_us=percentile(times, 0.5), p99_us=percentile(times, 0.99))
    shutil.rmtree(directory)


@pytest.mark.parametrize("beside", ["nothing", TOPIC_CHANGES])
@pytest.mark.benchmark(group="first record of a new producer beside slow requests")
def bench_first_record_beside(benchmark, bench_dir, beside):
    per_round = 20
    record_role(benchmark, "limit" if beside == "nothing" else "ours", per_round=per_round, label=f"beside {beside}")
    directory = bench_dir / f"first-record-{beside}"
    partitions = CREATE_PARTITIONS if benchmark.enabled else 100
    with serving(directory) as served, slow_request(beside, served, partitions) as slow:
        Client(served.port).ask(create_topic("small", 1))
        times: list[float] = []
        with busy(slow):
            benchmark.pedantic(lambda: times.extend(first_records(served.port, per_round)), rounds=20, warmup_rounds=1)
        benchmark.extra_info.update(p50_us=percentile(times, 0.5), p99_us=percentile(times, 0.99))
    shutil.rmtree(directory)


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    kinds = sys.argv[2:] or [*SLOW, TOPIC_CHANGES]
    slow_kinds = [kind for kind in kinds if kind != TOPIC_CHANGES]
    if slow_kinds:
        print("a small produce")
        measure([None, *slow_kinds], seconds, lambda port: partial(latencies, Client(port)))
    if TOPIC_CHANGES in kinds:
        print("the first record of a new idempotent producer")
        measure([None, TOPIC_CHANGES], seconds, lambda port: partial(first_records, port))
    return 0


def measure(kinds: Sequence[str | None], seconds: float, make: Callable[[int], Callable[[int], list[float]]]) -> None:
    """Print how long what make(port) measures takes beside each kind of slow request."""
    alone: dict[float, float] = {}
    for kind in kinds:
        with (
            tempfile.TemporaryDirectory() as name,
            serving(Path(name)) as served,
            slow_request(kind, served, CREATE_PARTITIONS) as slow,
        ):
            Client(served.port).ask(create_topic("small", 1))
            sample = make(served.port)
            sample(500)
            times: list[float] = []
            with busy(slow) as durations:
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    times += sample(50)
        for share in (0.5, 0.99):
            alone.setdefault(share, percentile(times, share))
        cells = [
            f"p{share * 100:.0f} {percentile(times, share):7.0f} us, {percentile(times, share) / alone[share]:6.1f}x"
            for share in (0.5, 0.99)
        ]
        took = f"{statistics.median(durations):.3f} s each, {len(durations)} of them" if durations else "-"
        print(f"beside {kind or 'nothing':14} {cells[0]}   {cells[1]}   longest {max(times) / 1000:7.1f} ms   {took}")


if __name__ == "__main__":
    sys.exit(main())
