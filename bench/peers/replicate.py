"""replicate.py: three kcore brokers and three of a real Apache Kafka, one cluster after the other, under one client.

Topics have three replicas on one machine, all of its CPUs for everybody.  Rows: acks=all throughput and the brokers'
CPU per GB, the round trip of one small record, the catch-up of a stopped follower, and (kcore alone) what idle
replicated partitions cost.  Only one cluster runs at a time, rounds alternate, and each cluster does every row once
before it counts.  Segments and retention are small on both sides, and BackedPages has pages for what the brokers keep:
how long the host of a virtual machine takes to find them says nothing about either (`--unbacked-pages` leaves it out).
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.backed_pages import BackedPages  # noqa: E402
from bench.peers.real_kafka import RealKafka, Unavailable, answers, free_port  # noqa: E402
from bench.peers.rounds import VERDICTS, Goals, Rows, table_of_rounds  # noqa: E402
from bench.peers.run import cpu_seconds, resident_mib  # noqa: E402
from bench.replication_client import Address, leaders_of_whole_isr, produce, round_trips  # noqa: E402

KIB, MIB, GB = 1 << 10, 1 << 20, 1e9
BROKERS = 3
PARTITIONS = 3
#: Of one of Kafka's brokers (real_kafka.JVM).
HEAP_BYTES = 1 << 30
BATCH_SIZES = (16 * KIB, 256 * KIB)
#: What both sides keep on disk, as the settings of a topic.  The records' timestamps are old.
SMALL_TOPIC = {
    "segment.bytes": str(16 * MIB),
    "retention.bytes": str(64 * MIB),
    "retention.ms": "-1",
    "file.delete.delay.ms": "1000",
}
BROKER_CONFIG = {
    "log.retention.check.interval.ms": "2000",
    "log.initial.task.delay.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class Cluster(Protocol):
    def __enter__(self) -> Cluster: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def launch(self, number: int) -> None: ...
    def wait_until_it_answers(self, number: int) -> None: ...
    def stop(self, number: int) -> None: ...
    def pids(self) -> list[int]: ...
    def address(self, number: int) -> Address: ...
    def data_dir(self, number: int) -> Path: ...


class KcoreCluster:
    """Three `kcore serve` with one SQLite store; their ids are 1, 2 and 3.  Or one alone, without a store.

    configs: settings of each broker, in addition to BROKER_CONFIG.
    """

    def __init__(self, directory: Path, configs: Sequence[Mapping[str, str]] = ({},) * BROKERS) -> None:
        self._directory = directory
        self._configs = [BROKER_CONFIG | config for config in configs]
        self._ports = [free_port() for _ in configs]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> KcoreCluster:
        try:
            for number in range(len(self._ports)):
                self.launch(number)
            for number in range(len(self._ports)):
                self.wait_until_it_answers(number)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._processes):
            self.stop(number)

    def launch(self, number: int) -> None:
        self.data_dir(number).mkdir(parents=True, exist_ok=True)
        options = [argument for name, value in self._configs[number].items() for argument in ("-o", f"{name}={value}")]
        command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(self.data_dir(number))]
        command += ["--port", str(self._ports[number]), "--id", str(number + 1), *options]
        if len(self._ports) > 1:
            command += ["--store", f"sqlite:{self._directory / 'store.sqlite'}"]
        with open(self._directory / f"out{number}", "ab") as out:
            process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=out, stderr=out)
        self._processes[number] = process

    def wait_until_it_answers(self, number: int) -> None:
        process = self._processes[number]
        wait_for(lambda: answers(self._ports[number]) or process.poll() is not None, f"broker {number} to answer")
        if process.poll() is not None:
            raise RuntimeError(f"kcore serve did not start:\n{(self._directory / f'out{number}').read_text()[-4000:]}")

    def stop(self, number: int) -> None:
        process = self._processes.pop(number)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def address(self, number: int) -> Address:
        return "127.0.0.1", self._ports[number]

    def data_dir(self, number: int) -> Path:
        return self._directory / f"data{number}"


class KafkaCluster:
    """Brokers of Apache Kafka, each a voter of the KRaft quorum too."""

    def __init__(self, directory: Path, brokers: int = BROKERS, settings: Mapping[str, str] | None = None) -> None:
        voters = {number + 1: free_port() for number in range(brokers)}
        replicas = {"offsets.topic.replication.factor": str(brokers)}
        replicas["transaction.state.log.replication.factor"] = str(brokers)
        config = {
            name.replace(".", "_"): value for name, value in (BROKER_CONFIG | replicas | (settings or {})).items()
        }
        cluster_id = RealKafka.new_cluster_id()
        self._brokers = [
            RealKafka(directory / str(number), node_id=node_id, voters=voters, cluster_id=cluster_id, **config)
            for number, node_id in enumerate(voters)
        ]
        self._running = ExitStack()

    def __enter__(self) -> KafkaCluster:
        try:
            for broker in self._brokers:  # a voter answers only once it has a quorum
                broker.launch()
                self._running.callback(broker.terminate)
            for broker in self._brokers:
                broker.wait_until_it_answers()
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def launch(self, number: int) -> None:
        self._brokers[number].launch()

    def wait_until_it_answers(self, number: int) -> None:
        self._brokers[number].wait_until_it_answers()

    def stop(self, number: int) -> None:
        self._brokers[number].terminate()

    def pids(self) -> list[int]:
        return [broker.pid for broker in self._brokers if broker.is_running]

    def address(self, number: int) -> Address:
        return "127.0.0.1", self._brokers[number].port

    def data_dir(self, number: int) -> Path:
        return self._brokers[number].directory / "data"


CLUSTERS: dict[str, Callable[[Path], Cluster]] = {"kcore": KcoreCluster, "Apache Kafka": KafkaCluster}


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 120, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(pause_s)


def create_topic(cluster: Cluster, name: str, partitions: int, **config: str) -> dict[int, Address]:
    """The leader of each partition, once all replicas are in sync."""
    from confluent_kafka.admin import AdminClient, NewTopic

    host, port = cluster.address(0)
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
    topic = NewTopic(name, partitions, BROKERS, config=SMALL_TOPIC | config)
    admin.create_topics([topic], operation_timeout=60)[name].result(90)
    return leaders_of_whole_isr(cluster.address(0), name, partitions, BROKERS)


def brokers_cpu_s(cluster: Cluster) -> float:
    return sum(cpu_seconds(pid) for pid in cluster.pids())


def measure_produce(cluster: Cluster, topic: str, batch_size: int, total_bytes: int) -> dict[str, float]:
    leaders = create_topic(cluster, topic, PARTITIONS)
    before = brokers_cpu_s(cluster)
    taken = produce(leaders, topic, batch_size, total_bytes)
    return {"MB/s": total_bytes / taken / 1e6, "CPU-s/GB": (brokers_cpu_s(cluster) - before) / (total_bytes / GB)}


def measure_round_trip(cluster: Cluster, topic: str, count: int) -> dict[str, float]:
    leader = create_topic(cluster, topic, 1)[0]
    round_trips(leader, topic, 0, count // 4)
    taken = sorted(round_trips(leader, topic, 0, count))
    return {"p50 us": taken[count // 2] * 1e6, "p99 us": taken[count * 99 // 100] * 1e6}


def measure_catch_up(cluster: Cluster, topic: str, total_bytes: int) -> dict[str, float]:
    """A follower is stopped, misses total_bytes, and starts again; measured from its first byte to its last."""
    keep = {"retention.bytes": "-1", "min.insync.replicas": "1"}
    leader = create_topic(cluster, topic, 1, **keep)[0]
    leader_number = next(number for number in range(BROKERS) if cluster.address(number) == leader)
    stopped = (leader_number + 1) % BROKERS
    cluster.stop(stopped)
    # Its fetches may just have been answered; a stopped follower is out of the ISR, or will be soon.
    produce({0: leader}, topic, 256 * KIB, total_bytes, acks=1)

    def size(number: int) -> int:
        return sum(path.stat().st_size for path in (cluster.data_dir(number) / f"{topic}-0").glob("*.log"))

    leader_size, size_before = size(leader_number), size(stopped)
    cluster.launch(stopped)
    wait_for(lambda: size(stopped) > size_before, "the follower's first byte", pause_s=0.002)
    start, missing, cpu_before = time.perf_counter(), leader_size - size(stopped), brokers_cpu_s(cluster)
    wait_for(lambda: size(stopped) >= leader_size, "the follower's last byte", pause_s=0.002)
    taken, cpu = time.perf_counter() - start, brokers_cpu_s(cluster) - cpu_before
    cluster.wait_until_it_answers(stopped)
    leaders_of_whole_isr(cluster.address(leader_number), topic, 1, BROKERS)
    return {"MB/s": missing / taken / 1e6, "CPU-s/GB": cpu / (missing / GB)}


def measure_idle(cluster: Cluster, topic: str, partitions: int, seconds: float) -> dict[str, float]:
    create_topic(cluster, topic, partitions)
    time.sleep(5)
    before, start = brokers_cpu_s(cluster), time.perf_counter()
    time.sleep(seconds)
    share = (brokers_cpu_s(cluster) - before) / (time.perf_counter() - start)
    return {
        "% of a core": 100 * share,
        "MiB a broker": statistics.fmean(resident_mib(pid) for pid in cluster.pids()),
    }


def measure_all(cluster: Cluster, directory: Path, args: argparse.Namespace, number: int) -> Rows:
    rows: Rows = {}

    def add(name: str, values: dict[str, float]) -> None:
        rows.update({(name, unit): value for unit, value in values.items()})

    total = args.mib * MIB
    # What the row writes, and the heap of a broker that starts again.
    taken = 0 if args.unbacked_pages else BROKERS * total + HEAP_BYTES
    for batch_size in BATCH_SIZES:
        label = f"acks=all, {batch_size // KIB} KiB batches"
        with BackedPages(directory, taken, label):
            add(label, measure_produce(cluster, f"produce-{batch_size}-{number}", batch_size, total))
    add("acks=all, one small record", measure_round_trip(cluster, f"round-trip-{number}", args.round_trips))
    with BackedPages(directory, taken, "catch-up of a follower"):
        add("catch-up of a follower", measure_catch_up(cluster, f"catch-up-{number}", total))
    return rows


#: Unit -> whether more is better; row -> the goal as a ratio of kcore to Kafka.
GOALS: Goals = {
    "MB/s": (True, {"acks=all, 16 KiB batches": 2.0, "acks=all, 256 KiB batches": 2.0, "catch-up of a follower": 3.0}),
    "CPU-s/GB": (
        False,
        {"acks=all, 16 KiB batches": 0.5, "acks=all, 256 KiB batches": 0.5, "catch-up of a follower": 0.5},
    ),
    "p50 us": (False, {"acks=all, one small record": 1.0}),
    "p99 us": (False, {"acks=all, one small record": 1.0}),
}
IDLE_GOAL = 3.0


def report(results: dict[str, list[Rows]], idle: dict[str, float] | None) -> None:
    print(table_of_rounds(results, GOALS))
    if idle is not None:
        share = idle["% of a core"]
        print(
            f"\nidle, three kcore brokers: {share:.2f} % of a core "
            f"(goal < {IDLE_GOAL:g} %: {VERDICTS[share < IDLE_GOAL]}), {idle['MiB a broker']:.0f} MiB a broker"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="of both clusters, alternating (2)")
    parser.add_argument("--mib", type=int, default=512, help="MiB of each row (512)")
    parser.add_argument("--round-trips", type=int, default=2000, help="small records, one at a time (2000)")
    parser.add_argument("--idle-partitions", type=int, default=2000, help="0 leaves the row out (2000)")
    parser.add_argument("--idle-seconds", type=float, default=20)
    parser.add_argument("--unbacked-pages", action="store_true", help="leave the machine's free memory as it is")
    parser.add_argument("--only", choices=sorted(CLUSTERS), help="measure one of the two alone")
    args = parser.parse_args(arguments)

    results: dict[str, list[Rows]] = {name: [] for name in CLUSTERS if args.only in (None, name)}
    for n in range(args.rounds):
        for name, rounds in results.items():
            with tempfile.TemporaryDirectory(prefix="kcore-peers-") as temporary:
                directory = Path(temporary)
                try:
                    with CLUSTERS[name](directory) as cluster:
                        measure_all(cluster, directory, args, 0)  # a JVM needs to see the work before it is fast at it
                        rounds.append(measure_all(cluster, directory, args, 1))
                except Unavailable as missing:
                    print(f"{missing}: kcore is measured alone", file=sys.stderr)
                    continue
            figures = ", ".join(f"{row}: {value:,.1f} {unit}" for (row, unit), value in rounds[-1].items())
            print(f"round {n + 1}, {name}: {figures}", flush=True)
    idle = None
    if args.idle_partitions and "kcore" in results:
        with tempfile.TemporaryDirectory(prefix="kcore-peers-") as directory, KcoreCluster(Path(directory)) as cluster:
            idle = measure_idle(cluster, "idle", args.idle_partitions, args.idle_seconds)
    report({name: rounds for name, rounds in results.items() if rounds}, idle)
    return 0


if __name__ == "__main__":
    sys.exit(main())
