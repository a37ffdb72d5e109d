"""failover.py: three kcore brokers and three of Apache Kafka 3.9, both over a real ZooKeeper, under one client.

    python bench/peers/failover.py                 both, one after the other; prints a table
    python bench/peers/failover.py --only kcore    kcore alone
    python bench/peers/failover.py --only kcore --store sqlite    without Java

An idempotent producer with acks=all writes to some partitions of each broker, all the time.  Under it the
controller is killed (SIGKILL), then a broker that leads and is not the controller; then one broker is restarted, and
topics are created.  A pause of a partition is the longest time without an acknowledged record.  In the end every record
is read back: each acknowledged one has to be there, once, with its offset.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import JVM, Unavailable, answers, free_port, jars  # noqa: E402
from bench.peers.replicate import wait_for  # noqa: E402
from bench.peers.rounds import spread  # noqa: E402
from bench.peers.run import cpu_seconds  # noqa: E402
from bench.replication_client import METADATA_VERSION, Address  # noqa: E402
from bench.tables import markdown_table  # noqa: E402
from kcore.client.blocking_sender import BlockingSender  # noqa: E402
from kcore.metadata import znodes  # noqa: E402
from kcore.metadata.open_store import open_store  # noqa: E402
from kcore.protocol.messages.metadata import MetadataRequest, MetadataResponse  # noqa: E402

KCORE, KAFKA = "kcore", "Apache Kafka"
BROKERS = (1, 2, 3)
#: Of each topic that the setup creates.
PARTITIONS_OF_A_TOPIC = 100
#: Partitions that are written to, of each leader.
WRITTEN_OF_A_LEADER = 8
#: Records of a partition that wait for an acknowledgement.
MAX_WAITING = 50
DEADLINE_S = 300

TopicAndPartition = tuple[str, int]

_SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "auto.leader.rebalance.enable": "false",
    "auto.create.topics.enable": "false",
}
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


# -- processes ------------------------------------------------------------------------------------------


class Processes:
    """What runs in one directory; each process has its output in NAME.out."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, command: Sequence[str]) -> None:
        with open(self.directory / f"{name}.out", "ab") as out:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "LC_ALL": "C"}
            self._running[name] = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def has_ended(self, name: str) -> bool:
        return self._running[name].poll() is not None

    def pids(self, names: Iterable[str]) -> list[int]:
        return [self._running[name].pid for name in names if name in self._running]

    def output(self, name: str) -> str:
        return (self.directory / f"{name}.out").read_text(errors="replace")[-4000:]

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def close(self) -> None:
        for name in reversed(list(self._running)):
            self.kill(name)


class Cluster:
    """Three brokers of one kind and their store.  store: "zookeeper", or "sqlite" for kcore without Java."""

    def __init__(self, directory: Path, kind: str, store: str, session_timeout_ms: int) -> None:
        self.kind = kind
        self.session_timeout_ms = session_timeout_ms
        self._processes = Processes(directory)
        self._directory = directory
        self._settings = _SETTINGS | {"zookeeper.session.timeout.ms": str(session_timeout_ms)}
        self._ports = {broker: free_port() for broker in BROKERS}
        self._zookeeper = f"127.0.0.1:{free_port()}"
        self._store = f"zookeeper://{self._zookeeper}" if store == "zookeeper" else f"sqlite:{directory / 'store.db'}"
        self._java: list[str] = []
        if store == "zookeeper":
            (directory / "log4j.properties").write_text(_LOG4J)
            log4j = f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}"
            self._java = [log4j, "-cp", f"{jars('kafka39')}/*"]

    @contextmanager
    def running(self) -> Iterator[Cluster]:
        try:
            if self._java:
                self._start_zookeeper()
            for broker in BROKERS:
                self.launch(broker)
            for broker in BROKERS:
                self.wait_until_it_answers(broker)
            wait_for(self.all_registered, "three brokers", DEADLINE_S)
            yield self
        except BaseException:
            for broker in BROKERS:
                with suppress(OSError):
                    print(f"--- broker {broker}\n{self._processes.output(str(broker))}", file=sys.stderr)
            raise
        finally:
            self._processes.close()

    def _start_zookeeper(self) -> None:
        config = self._directory / "zookeeper.properties"
        host, port = self._zookeeper.split(":")
        config.write_text(
            f"tickTime=500\ndataDir={self._directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress={host}\n"
            "maxClientCnxns=0\nadmin.enableServer=false\nmaxSessionTimeout=60000\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._processes.launch("zookeeper", ["java", "-Xmx512M", *self._java, main, str(config)])
        wait_for(lambda: _is_open(int(port)), "ZooKeeper to answer", DEADLINE_S)

    def launch(self, broker: int) -> None:
        data = self._directory / f"data{broker}"
        data.mkdir(exist_ok=True)
        if self.kind == KCORE:
            options = [argument for name, value in self._settings.items() for argument in ("-o", f"{name}={value}")]
            command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(data), "--id", str(broker)]
            command += ["--port", str(self._ports[broker]), "--store", self._store, *options]
        else:
            settings = self._settings | {
                "broker.id": str(broker),
                "log.dirs": str(data),
                "zookeeper.connect": self._zookeeper,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker]}",
            }
            config = self._directory / f"{broker}.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            command = ["java", *JVM, *self._java, "kafka.Kafka", str(config)]
        self._processes.launch(str(broker), command)

    def wait_until_it_answers(self, broker: int) -> None:
        name = str(broker)

        def has_answered_or_ended() -> bool:
            return self._processes.has_ended(name) or answers(self._ports[broker])

        wait_for(has_answered_or_ended, f"broker {broker} to answer", DEADLINE_S)
        if self._processes.has_ended(name):
            raise RuntimeError(f"broker {broker} did not start")

    def kill(self, broker: int) -> None:
        self._processes.kill(str(broker))

    def stop(self, broker: int) -> None:
        self._processes.stop(str(broker))

    def cpu_s(self) -> float:
        """What the brokers that run now have used so far."""
        return sum(cpu_seconds(pid) for pid in self._processes.pids(map(str, BROKERS)))

    def address(self, broker: int) -> Address:
        return "127.0.0.1", self._ports[broker]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, BROKERS))

    def controller(self) -> int | None:
        """From the store, which knows it first."""
        store = open_store(self._store, session_timeout_ms=30_000)
        try:
            node = store.get(znodes.CONTROLLER)
            return znodes.ControllerZNode.decode(node.data).broker_id if node is not None else None
        finally:
            store.close()

    def all_registered(self) -> bool:
        with suppress(OSError):
            return all(len(metadata(self.address(broker)).brokers) == len(BROKERS) for broker in BROKERS)
        return False


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# -- what brokers say -----------------------------------------------------------------------------------


class Partition(NamedTuple):
    leader: int
    isr: int


def metadata(address: Address) -> MetadataResponse:
    """Raises OSError while the broker does not answer."""
    sender = BlockingSender(*address, "bench", request_timeout_ms=60_000)
    try:
        response = sender.send(MetadataRequest(topics=None, allow_auto_topic_creation=False), METADATA_VERSION)
        assert isinstance(response, MetadataResponse)
        return response
    finally:
        sender.close()


def partitions_of(address: Address) -> dict[TopicAndPartition, Partition]:
    return {
        (topic.name or "", one.partition_index): Partition(one.leader_id, len(one.isr_nodes))
        for topic in metadata(address).topics
        for one in topic.partitions
    }


def wait_for_partitions(
    cluster: Cluster, wanted: int, is_well: Callable[[Partition], bool], what: str, pause_s: float
) -> dict[TopicAndPartition, Partition]:
    """Until each broker knows that many partitions and all are well."""
    seen: dict[TopicAndPartition, Partition] = {}

    def all_say_so() -> bool:
        nonlocal seen
        for broker in BROKERS:
            try:
                seen = partitions_of(cluster.address(broker))
            except OSError:
                return False
            if len(seen) < wanted or not all(map(is_well, seen.values())):
                return False
        return True

    wait_for(all_say_so, what, DEADLINE_S, pause_s)
    return seen


def wait_for_whole_isrs(cluster: Cluster, wanted: int) -> dict[TopicAndPartition, Partition]:
    return wait_for_partitions(cluster, wanted, lambda one: one.isr == len(BROKERS), "whole ISRs", 0.5)


# -- the client -----------------------------------------------------------------------------------------


class Writer:
    """An idempotent producer with acks=all on a thread, which writes to some partitions and notes each answer."""

    def __init__(self, bootstrap_servers: str, partitions: Iterable[TopicAndPartition]) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": DEADLINE_S * 1000,
                "log_level": 2,
            }
        )
        #: When records of a partition were acknowledged, in order.
        self.times: dict[TopicAndPartition, list[float]] = {partition: [] for partition in partitions}
        self.acknowledged: list[tuple[str, int, int, bytes]] = []
        self.errors: list[str] = []
        self._waiting = dict.fromkeys(self.times, 0)
        self._sent = 0
        self._is_running = True
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while self._is_running:
            for partition, waiting in self._waiting.items():
                if waiting < MAX_WAITING:
                    self._waiting[partition] += 1
                    self._sent += 1
                    self._producer.produce(
                        partition[0], b"%d" % self._sent, partition=partition[1], on_delivery=self._delivered
                    )
            end = time.monotonic() + 0.02
            while (left := end - time.monotonic()) > 0:
                self._producer.poll(left)

    def _delivered(self, error: object, message: object) -> None:
        partition = (message.topic(), message.partition())  # type: ignore[attr-defined]
        self._waiting[partition] -= 1
        if error is not None:
            self.errors.append(str(error))
        else:
            self.times[partition].append(time.monotonic())
            self.acknowledged.append((*partition, message.offset(), message.value()))  # type: ignore[attr-defined]

    def wait_for_more(self) -> None:
        """Until each partition has had three more records acknowledged."""
        goals = {partition: len(times) + 3 for partition, times in self.times.items()}
        wait_for(
            lambda: all(len(self.times[partition]) >= goal for partition, goal in goals.items()),
            "acknowledged records of each partition",
            DEADLINE_S,
        )

    def stop(self) -> None:
        self._is_running = False
        self._thread.join()
        self._producer.flush(DEADLINE_S)


def resumed_after(times: Sequence[float], begin: float, end: float) -> float:
    """Seconds from `begin` to the end of the longest pause between acknowledged records in [begin, end].

    The answers to records of before may still come after `begin`.
    """
    moments = [begin, *(one for one in times if begin < one <= end), end]
    pauses = [(after - before, after) for before, after in pairwise(moments)]
    return max(pauses)[1] - begin


def longest_pause(times: Sequence[float], begin: float, end: float) -> tuple[float, float]:
    """In seconds, and its end; one that began before `begin` counts from its beginning."""
    before = [one for one in times if one <= begin][-1:] or [begin]
    moments = [*before, *(one for one in times if begin < one <= end), end]
    return max((after - earlier, after) for earlier, after in pairwise(moments))


def read_all(bootstrap_servers: str, partitions: Iterable[TopicAndPartition]) -> list[tuple[str, int, int, bytes]]:
    """What the partitions hold, each to its end: (topic, partition, offset, value)."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "failover",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "log_level": 2,
        }
    )
    missing = {}
    for topic, number in partitions:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
        if end:
            missing[topic, number] = end
    consumer.assign([TopicPartition(topic, number, 0) for topic, number in missing])
    records: list[tuple[str, int, int, bytes]] = []
    deadline = time.monotonic() + DEADLINE_S
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the ends of {len(missing)} partitions were not read")
        for message in consumer.consume(1000, 1.0):
            if message.error():
                raise RuntimeError(str(message.error()))
            record = (message.topic(), message.partition(), message.offset(), message.value())
            records.append(record)  # type: ignore[arg-type]
            if record[2] + 1 >= missing.get(record[:2], 1 << 62):  # type: ignore[operator, arg-type]
                del missing[record[:2]]  # type: ignore[arg-type]
    consumer.close()
    return records


class Comparison(NamedTuple):
    """acknowledged, lost, twice, unasked: records; unasked ones were never acknowledged to the producer."""

    acknowledged: int
    lost: int
    twice: int
    unasked: int

    @property
    def is_sound(self) -> bool:
        return not self.lost and not self.twice


def compared(
    acknowledged: Iterable[tuple[str, int, int, bytes]], read: Iterable[tuple[str, int, int, bytes]]
) -> Comparison:
    """A record is lost if it is not there with the offset that its acknowledgement named, and there twice if its value
    is at two offsets."""
    wanted, present = set(acknowledged), set(read)
    values = Counter((topic, partition, value) for topic, partition, _, value in present)
    for record in sorted(present):
        if values[record[0], record[1], record[3]] > 1:
            print(f"twice: {record}, {'acknowledged' if record in wanted else 'not acknowledged'}", file=sys.stderr)
    return Comparison(
        len(wanted),
        len(wanted - present),
        sum(count - 1 for count in values.values()),
        len(present - wanted),
    )


# -- the rows -------------------------------------------------------------------------------------------

FIRST = "first record after the death of {}"
LESS = "the same, less the session timeout"
ALL = "a record of each partition after the death of {}"
OTHERS = "longest pause of what others led at the death of {}"
CREATE = ((10, 100), (1, 1000))
RESTART = "restart of a broker: longest pause"
ERRORS = "producer errors"

#: Row -> the highest ratio of kcore to Kafka that meets the goal.
GOALS = {
    FIRST.format("the controller"): 1.0,
    FIRST.format("a leader"): 1.0,
    **{f"create {topics} x {partitions} partitions": 0.5 for topics, partitions in CREATE},
    RESTART: 1.0,
}


def measure_death(
    cluster: Cluster, writer: Writer, leaders: Mapping[TopicAndPartition, int], victim: int, who: str, partitions: int
) -> dict[str, float]:
    """Kill a broker, wait until the producer goes on, and start the broker again."""
    led = [partition for partition in writer.times if leaders[partition] == victim]
    writer.wait_for_more()
    begin = time.monotonic()
    cluster.kill(victim)
    cpu_begin = cluster.cpu_s()
    wait_for(
        lambda: all(times and times[-1] > begin + 1 for times in map(writer.times.__getitem__, led)),
        "records of the killed broker's partitions",
        DEADLINE_S,
    )
    cpu = cluster.cpu_s() - cpu_begin
    writer.wait_for_more()
    end = time.monotonic()
    resumed = sorted(resumed_after(writer.times[partition], begin, end) for partition in led)
    cluster.launch(victim)
    cluster.wait_until_it_answers(victim)
    wait_for_whole_isrs(cluster, partitions)
    return {
        FIRST.format(who): resumed[0],
        f"{LESS} ({who})": resumed[0] - cluster.session_timeout_ms / 1000,
        ALL.format(who): resumed[-1],
        f"brokers' CPU until then ({who})": cpu,
        OTHERS.format(who): max(
            longest_pause(times, begin, end)[0] for partition, times in writer.times.items() if partition not in led
        ),
    }


def measure_restart(cluster: Cluster, writer: Writer, broker: int, partitions: int) -> dict[str, float]:
    writer.wait_for_more()
    errors, begin = len(writer.errors), time.monotonic()
    cluster.stop(broker)
    stopped = time.monotonic()
    cluster.launch(broker)
    cluster.wait_until_it_answers(broker)
    answered = time.monotonic()
    wait_for_whole_isrs(cluster, partitions)
    writer.wait_for_more()
    end = time.monotonic()
    pause, pause_end = max(longest_pause(times, begin, end) for times in writer.times.values())
    return {
        RESTART: pause,
        "restart: begin of that pause": pause_end - pause - begin,
        "restart: until it has stopped": stopped - begin,
        "restart: from there until it answers": answered - stopped,
        "restart: from there until all ISRs are whole": end - answered,
        f"restart: {ERRORS}": float(len(writer.errors) - errors),
    }


def create_topics(cluster: Cluster, topics: Mapping[str, int]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    new = [NewTopic(name, partitions, len(BROKERS)) for name, partitions in topics.items()]
    for future in admin.create_topics(new, operation_timeout=DEADLINE_S, request_timeout=DEADLINE_S).values():
        future.result(DEADLINE_S)


def measure_creation(cluster: Cluster, topics: int, partitions: int, present: int) -> dict[str, float]:
    """Until every broker names a leader of every new partition."""
    cpu_begin, begin = cluster.cpu_s(), time.monotonic()
    create_topics(cluster, {f"new-{topics}-{number}": partitions for number in range(topics)})
    wait_for_partitions(cluster, present + topics * partitions, lambda one: one.leader >= 0, "leaders", 0.05)
    row = f"create {topics} x {partitions} partitions"
    return {row: time.monotonic() - begin, f"{row}: brokers' CPU": cluster.cpu_s() - cpu_begin}


def moved_to(leaders: Mapping[TopicAndPartition, Partition]) -> dict[TopicAndPartition, int]:
    return {partition: one.leader for partition, one in leaders.items()}


def measure_all(cluster: Cluster, partitions: int) -> tuple[dict[str, float], Comparison]:
    count = max(1, partitions // PARTITIONS_OF_A_TOPIC)
    for number in range(count):
        create_topics(cluster, {f"t-{number:02}": partitions // count})
    partitions = partitions // count * count
    leaders = moved_to(wait_for_whole_isrs(cluster, partitions))
    written = []
    for broker in BROKERS:
        # Of different topics.
        led = sorted((partition for partition, leader in leaders.items() if leader == broker), key=lambda one: one[1])
        written += led[:WRITTEN_OF_A_LEADER]
    writer = Writer(cluster.bootstrap_servers, written)
    rows: dict[str, float] = {}
    try:
        writer.wait_for_more()
        time.sleep(2)
        controller = cluster.controller()
        assert controller is not None
        rows |= measure_death(cluster, writer, leaders, controller, "the controller", partitions)
        # The one that has not been killed yet, so that it leads as many partitions as at first.
        controller_now = cluster.controller()
        victim = next(broker for broker in BROKERS if broker not in (controller, controller_now))
        leaders = moved_to(wait_for_whole_isrs(cluster, partitions))
        rows |= measure_death(cluster, writer, leaders, victim, "a leader", partitions)
        rows |= measure_restart(cluster, writer, cluster.controller() or victim, partitions)
    finally:
        writer.stop()
    rows[ERRORS] = float(len(writer.errors))
    comparison = compared(writer.acknowledged, read_all(cluster.bootstrap_servers, written))
    present = len(partitions_of(cluster.address(BROKERS[0])))
    for topics, of_each in CREATE:
        of_each = max(1, of_each * partitions // 2000) if partitions < 2000 else of_each
        rows |= measure_creation(cluster, topics, of_each, present)
        present += topics * of_each
    return rows, comparison


def report(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    names = [name for name, rounds in results.items() if rounds]
    table = []
    for row in results[names[0]][0]:
        values = {name: [one[row] for one in results[name]] for name in names}
        unit = "" if ERRORS in row else " s"
        cells = [row]
        for name in names:
            median = statistics.median(values[name])
            cells.append(f"{median:,.0f}" if not unit else f"{median:,.2f}{unit} (±{spread(values[name])})")
        if len(names) == 2:
            theirs = statistics.median(values[names[1]])
            ratio = statistics.median(values[names[0]]) / theirs if theirs > 0 and unit else None
            cells += ["" if ratio is None else f"{ratio:.2f}", verdict(row, ratio, values[names[0]])]
        elif row == ERRORS or row.endswith(ERRORS):
            cells.append(verdict(row, None, values[names[0]]))
        else:
            cells.append("")
        table.append(cells)
    columns = ["row", *names, *(["ratio"] if len(names) == 2 else []), "goal"]
    return markdown_table(columns, table)


def verdict(row: str, ratio: float | None, ours: Sequence[float]) -> str:
    if row.endswith(ERRORS):
        return f"0: {'met' if not any(ours) else 'MISSED'}"
    goal = GOALS.get(row)
    if goal is None or ratio is None:
        return ""
    return f"<= {goal:g}: {'met' if ratio <= goal else 'MISSED'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="of both, alternating (1)")
    parser.add_argument("--partitions", type=int, default=2000, help="of three replicas each (2000)")
    parser.add_argument("--session-timeout-ms", type=int, default=6000)
    parser.add_argument("--only", choices=["kcore", "kafka"], help="one of the two alone")
    parser.add_argument("--store", choices=["zookeeper", "sqlite"], default="zookeeper", help="sqlite: kcore alone")
    args = parser.parse_args(arguments)
    kinds = {None: (KCORE, KAFKA), "kcore": (KCORE,), "kafka": (KAFKA,)}[args.only]
    if args.store == "sqlite" and kinds != (KCORE,):
        parser.error("--store sqlite is for --only kcore")

    results: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    is_sound = True
    for _ in range(args.rounds):
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="kcore-failover-") as directory:
                try:
                    cluster = Cluster(Path(directory), kind, args.store, args.session_timeout_ms)
                except Unavailable as error:
                    print(f"failover.py: {error}", file=sys.stderr)
                    return 3
                with cluster.running():
                    rows, comparison = measure_all(cluster, args.partitions)
            results[kind].append(rows)
            is_sound = is_sound and (comparison.is_sound or kind != KCORE)
            print(
                f"{kind}: {comparison.acknowledged} records acknowledged, {comparison.lost} lost, {comparison.twice} "
                f"twice, {int(rows[ERRORS])} errors; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    print(report(results))
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
