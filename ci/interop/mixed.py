"""mixed.py JARS: a kcore broker and two Java brokers of Kafka 3.9 in one cluster, in one ZooKeeper.

1. Under a kcore controller: brokers of both kinds replicate each other, and each leads.  While an idempotent producer
   writes with acks=all, a Java broker is killed, then the kcore broker, which is the controller, then whoever is it
   after that; each starts again, and all replicas get in sync.  What was acknowledged is there.
2. Kafka's tools: kafka-topics, kafka-leader-election under a Java controller, zookeeper-shell.
3. `kcore diff` finds the replicas of both kinds equal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import answers  # noqa: E402
from bench.peers.replicate import wait_for  # noqa: E402
from ci.interop.mirror import kcore, step  # noqa: E402
from kcore.metadata import znodes  # noqa: E402
from kcore.metadata.open_store import open_store  # noqa: E402
from kcore.metadata.store import NoNode  # noqa: E402
from tests.zookeeper_server import free_port  # noqa: E402

JAVA_BROKERS, KCORE_BROKER = (1, 2), 3
TOPIC = "mixed"
#: Replicas of each partition, the preferred leader first.
ASSIGNMENT = ((1, 3, 2), (2, 3, 1), (3, 1, 2), (3, 2, 1))
#: Longer than a busy machine stands still.
SESSION_TIMEOUT_MS = 12_000
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_SETTINGS = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.leader.rebalance.enable": "false",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class Mixed:
    """ZooKeeper, the Java brokers 1 and 2 and the kcore broker 3, each a process."""

    def __init__(self, jars: str, directory: Path) -> None:
        self._directory = directory
        (directory / "log4j.properties").write_text(_LOG4J)
        log4j = f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}"
        self._java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", log4j, "-cp", f"{jars}/*"]
        self._processes: dict[object, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("zookeeper", *JAVA_BROKERS, KCORE_BROKER)}
        self.zookeeper = f"127.0.0.1:{self._ports['zookeeper']}"

    # -- processes --------------------------------------------------------------------------------------

    def start_zookeeper(self) -> None:
        config = self._directory / "zookeeper.properties"
        config.write_text(
            f"tickTime=500\ndataDir={self._directory / 'zookeeper'}\nclientPort={self._ports['zookeeper']}\n"
            "clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\nmaxSessionTimeout=60000\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._launch("zookeeper", [*self._java, "-Xmx192M", main, str(config)])
        wait_for(lambda: _is_open(self._ports["zookeeper"]), "ZooKeeper to answer")

    def start(self, broker: int) -> None:
        self.launch(broker)
        self.wait_until_it_answers(broker)

    def launch(self, broker: int) -> None:
        self.data_dir(broker).mkdir(exist_ok=True)
        if broker == KCORE_BROKER:
            options = [argument for name, value in _SETTINGS.items() for argument in ("-o", f"{name}={value}")]
            command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(self.data_dir(broker))]
            command += ["--port", str(self._ports[broker]), "--id", str(broker)]
            command += ["--store", f"zookeeper://{self.zookeeper}", *options]
        else:
            settings = _SETTINGS | {
                "broker.id": str(broker),
                "log.dirs": str(self.data_dir(broker)),
                "zookeeper.connect": self.zookeeper,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker]}",
            }
            config = self._directory / f"{broker}.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            command = [*self._java, "-Xmx384M", "kafka.Kafka", str(config)]
        self._launch(broker, command)

    def wait_until_it_answers(self, broker: int) -> None:
        process = self._processes[broker]
        wait_for(lambda: process.poll() is not None or answers(self._ports[broker]), f"broker {broker} to answer")
        if process.poll() is not None:
            raise RuntimeError(f"broker {broker} did not start:\n{self.output(broker)}")

    def _launch(self, name: object, command: Sequence[str]) -> None:
        with open(self._directory / f"{name}.out", "ab") as out:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self._processes[name] = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def kill(self, broker: object) -> None:
        process = self._processes.pop(broker)
        process.kill()
        process.wait()

    def stop(self, broker: object) -> None:
        process = self._processes.pop(broker)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """Cleanly, the controller last."""
        controller = self.controller()
        brokers = [broker for broker in (*JAVA_BROKERS, KCORE_BROKER) if broker != controller]
        for broker in [*brokers, *([controller] if controller is not None else [])]:
            self.stop(broker)

    def close(self) -> None:
        for name in [name for name in self._processes if name != "zookeeper"]:
            self.kill(name)
        if "zookeeper" in self._processes:
            self.kill("zookeeper")

    def output(self, name: object) -> str:
        return (self._directory / f"{name}.out").read_text()[-4000:]

    def print_outputs(self) -> None:
        for path in sorted(self._directory.glob("*.out")):
            print(f"--- {path.name}\n{path.read_text()[-4000:]}", file=sys.stderr)

    def data_dir(self, broker: int) -> Path:
        return self._directory / f"data{broker}"

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{self._ports[broker]}" for broker in (*JAVA_BROKERS, KCORE_BROKER))

    def run(self, main: str, *arguments: str, stdin: str | None = None) -> str:
        """What one of Kafka's tools prints.  Raises RuntimeError unless it exits with 0."""
        command = [*self._java, "-Xmx128M", main, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=stdin)
        if result.returncode:
            raise RuntimeError(f"{main} {' '.join(arguments)}: {result.stdout[-2000:]}\n{result.stderr[-2000:]}")
        return result.stdout

    # -- what ZooKeeper says ----------------------------------------------------------------------------

    def state(self, partition: int) -> znodes.PartitionStateZNode | None:
        node = self._store.get(znodes.partition_state(TOPIC, partition))
        return znodes.PartitionStateZNode.decode(node.data) if node is not None else None

    def connect(self) -> None:
        self._store = open_store(f"zookeeper://{self.zookeeper}", session_timeout_ms=60_000)

    def disconnect(self) -> None:
        self._store.close()

    def controller(self) -> int | None:
        node = self._store.get(znodes.CONTROLLER)
        return znodes.ControllerZNode.decode(node.data).broker_id if node is not None else None

    def depose(self) -> None:
        try:
            self._store.delete(znodes.CONTROLLER)
        except NoNode:
            pass

    def registered(self) -> list[int]:
        return sorted(map(int, self._store.children(znodes.BROKER_IDS)))

    def await_leaders(self, without: int | None = None) -> None:
        def have_leaders() -> bool:
            states = [self.state(number) for number in range(len(ASSIGNMENT))]
            return all(state is not None and state.leader >= 0 and state.leader != without for state in states)

        wait_for(have_leaders, f"leaders other than {without}")

    def await_whole_isr(self) -> None:
        def is_whole() -> bool:
            states = [self.state(number) for number in range(len(ASSIGNMENT))]
            return all(state is not None and sorted(state.isr) == [1, 2, 3] for state in states)

        try:
            wait_for(is_whole, "all replicas to be in sync", 90)
        except TimeoutError as error:
            states = [self.state(number) for number in range(len(ASSIGNMENT))]
            raise RuntimeError(f"{error}: {states}") from error


class Writer:
    """A producer with acks=all and idempotence, on a thread; remembers what was acknowledged."""

    def __init__(self, bootstrap_servers: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
            }
        )
        self._is_running = True
        self._sent = 0
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        while self._is_running:
            for _ in range(20 if len(self._producer) < 20_000 else 0):
                self._producer.produce(
                    TOPIC, b"%d" % self._sent, partition=self._sent % len(ASSIGNMENT), on_delivery=self._delivered
                )
                self._sent += 1
            self._producer.poll(0.02)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))  # type: ignore[attr-defined]

    def await_more(self) -> None:
        goals = [
            sum(partition == number for partition, _, _ in list(self.acknowledged)) + 50
            for number in range(len(ASSIGNMENT))
        ]

        def has_more() -> bool:
            partitions = [partition for partition, _, _ in list(self.acknowledged)]
            return all(partitions.count(number) >= goal for number, goal in enumerate(goals))

        wait_for(has_more, "acknowledged records of each partition")

    def stop(self) -> None:
        self._is_running = False
        self._thread.join()
        self._producer.flush(120)
        if self.errors or len(self.acknowledged) != self._sent:
            raise RuntimeError(f"{self._sent - len(self.acknowledged)} of {self._sent} were lost: {self.errors[:3]}")


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def check(holds: bool, otherwise: object) -> None:
    if not holds:
        raise RuntimeError(str(otherwise))


def create_topic(mixed: Mixed) -> None:
    assignment = ",".join(":".join(map(str, replicas)) for replicas in ASSIGNMENT)
    mixed.run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", mixed.bootstrap_servers, "--create", "--topic", TOPIC),
        *("--replica-assignment", assignment, "--config", "min.insync.replicas=2"),
    )
    mixed.await_whole_isr()
    leaders = [mixed.state(number).leader for number in range(len(ASSIGNMENT))]  # type: ignore[union-attr]
    check(leaders == [replicas[0] for replicas in ASSIGNMENT], f"leaders {leaders}")


def elect_preferred(mixed: Mixed) -> None:
    server = ("--bootstrap-server", mixed.bootstrap_servers)
    options = ("--election-type", "preferred", "--all-topic-partitions")
    mixed.run("org.apache.kafka.tools.LeaderElectionCommand", *server, *options)

    def are_elected() -> bool:
        states = [mixed.state(number) for number in range(len(ASSIGNMENT))]
        return [state and state.leader for state in states] == [replicas[0] for replicas in ASSIGNMENT]

    wait_for(are_elected, "the preferred leaders")


def kill(mixed: Mixed, writer: Writer, broker: int) -> None:
    writer.await_more()
    mixed.kill(broker)
    mixed.await_leaders(without=broker)
    writer.await_more()
    mixed.start(broker)
    mixed.await_whole_isr()
    writer.await_more()


def compare(mixed: Mixed, writer: Writer) -> None:
    read = consume(mixed.bootstrap_servers, len(writer.acknowledged))
    check(read == sorted(writer.acknowledged), f"{len(read)} records are not the {len(writer.acknowledged)} sent")


def consume(bootstrap_servers: str, count: int) -> list[tuple[int, int, bytes]]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "mixed", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(len(ASSIGNMENT))])
    records: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + 120
    while len(records) < count and time.monotonic() < deadline:
        messages = consumer.consume(1000, 1.0)
        records += [(m.partition(), m.offset(), m.value()) for m in messages if not m.error()]
    consumer.close()
    return sorted(records)


def replicas_are_equal(mixed: Mixed) -> None:
    for number in range(len(ASSIGNMENT)):
        first, *others = [str(mixed.data_dir(broker) / f"{TOPIC}-{number}") for broker in (1, 2, 3)]
        for other in others:
            kcore("diff", "--quiet", first, other)


def read_with_shell(mixed: Mixed) -> None:
    """Kafka's zookeeper-shell prints the bodies, of both kinds of brokers with the same fields."""
    main = "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka"

    def fields(path: str) -> list[str]:
        lines = mixed.run(main, "-server", mixed.zookeeper, "get", path).splitlines()
        return sorted(json.loads(next(line for line in lines if line.startswith("{"))))

    ours = fields(znodes.broker_id(KCORE_BROKER))
    java = fields(znodes.broker_id(JAVA_BROKERS[0]))
    check(java == ours, f"registrations: {java} and {ours}")
    check("adding_replicas" in fields(znodes.topic(TOPIC)), "the topic's node")
    check("leader_epoch" in fields(znodes.partition_state(TOPIC, 0)), "the partition's state")


def await_controller(mixed: Mixed, wanted: Sequence[int]) -> None:
    """Delete the controller's node until one of these is elected, as operators do."""

    def is_elected() -> bool:
        controller = mixed.controller()
        if controller is not None and controller not in wanted:
            mixed.depose()
        return controller in wanted

    wait_for(is_elected, f"one of {wanted} to be the controller", pause_s=1)


def run(jars: str, directory: Path) -> None:
    mixed = Mixed(jars, directory)
    brokers = (*JAVA_BROKERS, KCORE_BROKER)
    try:
        mixed.start_zookeeper()
        mixed.connect()
        for broker in brokers:
            mixed.launch(broker)
        for broker in brokers:
            mixed.wait_until_it_answers(broker)
        wait_for(lambda: mixed.registered() == sorted(brokers), "three brokers")
        await_controller(mixed, [KCORE_BROKER])
        step("under a kcore controller kafka-topics makes a topic", lambda: create_topic(mixed))
        writer = Writer(mixed.bootstrap_servers)
        try:
            step("a Java broker is killed and starts again", lambda: kill(mixed, writer, JAVA_BROKERS[0]))
            step("the kcore controller is killed and starts again", lambda: kill(mixed, writer, KCORE_BROKER))
            await_controller(mixed, JAVA_BROKERS)
            step("under a Java controller the kcore broker is killed", lambda: kill(mixed, writer, KCORE_BROKER))
        finally:
            writer.stop()
        step("each acknowledged record is read once", lambda: compare(mixed, writer))
        await_controller(mixed, JAVA_BROKERS)
        step("kafka-leader-election elects the preferred leaders", lambda: elect_preferred(mixed))
        step("zookeeper-shell reads what both kinds have written", lambda: read_with_shell(mixed))
        mixed.stop_all()
        step("replicas of both kinds are equal", lambda: replicas_are_equal(mixed))
        mixed.disconnect()
    except BaseException:
        mixed.print_outputs()
        raise
    finally:
        mixed.close()


def main() -> int:
    (jars,) = sys.argv[1:]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kcore-mixed-") as directory:
        run(jars, Path(directory))
    print(f"mixed: no difference ({time.monotonic() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
