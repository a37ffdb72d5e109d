"""A cluster of a kcore broker and two Java brokers of Kafka 3.9 in one ZooKeeper, each a process, and a producer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.real_kafka import answers  # noqa: E402
from bench.peers.replicate import wait_for  # noqa: E402
from ci.interop.mirror import kcore  # noqa: E402
from kcore.metadata import znodes  # noqa: E402
from kcore.metadata.open_store import open_store  # noqa: E402
from kcore.metadata.store import ConnectionLost, NoNode, SessionExpired  # noqa: E402
from tests import paused_process  # noqa: E402
from tests.zookeeper_server import free_port  # noqa: E402

JAVA_BROKERS, KCORE_BROKER = (1, 2), 3
TOPIC = "mixed"
#: Replicas of each partition, the preferred leader first.
ASSIGNMENT = ((1, 3, 2), (2, 3, 1), (3, 1, 2), (3, 2, 1))
Assignment = Sequence[Sequence[int]]
#: Bytes of a record that no Writer has written.
LOAD_RECORD = 1024
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
    "allow.everyone.if.no.acl.found": "true",
}


class Mixed:
    """ZooKeeper, the Java brokers 1 and 2 and the kcore broker 3, each a process.

    settings: of all brokers, besides those that each cluster here has.
    """

    def __init__(self, jars: str, directory: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self.directory = directory
        self._settings = _SETTINGS | settings
        (directory / "log4j.properties").write_text(_LOG4J)
        log4j = f"-Dlog4j.configuration=file:{directory / 'log4j.properties'}"
        self._java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", log4j, "-cp", f"{jars}/*"]
        self._processes: dict[object, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("zookeeper", *JAVA_BROKERS, KCORE_BROKER)}
        self.zookeeper = f"127.0.0.1:{self._ports['zookeeper']}"

    # -- processes --------------------------------------------------------------------------------------

    def start_zookeeper(self) -> None:
        config = self.directory / "zookeeper.properties"
        config.write_text(
            f"tickTime=500\ndataDir={self.directory / 'zookeeper'}\nclientPort={self._ports['zookeeper']}\n"
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
            options = [argument for name, value in self._settings.items() for argument in ("-o", f"{name}={value}")]
            command = [sys.executable, "-m", "kcore.tools.main", "serve", "--data", str(self.data_dir(broker))]
            command += ["--port", str(self._ports[broker]), "--id", str(broker)]
            command += ["--store", f"zookeeper://{self.zookeeper}", *options]
            command += ["-o", "authorizer.class.name=kcore.StoredAclAuthorizer"]
        else:
            settings = self._settings | {
                "broker.id": str(broker),
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "log.dirs": str(self.data_dir(broker)),
                "zookeeper.connect": self.zookeeper,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker]}",
            }
            config = self.directory / f"{broker}.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            command = [*self._java, "-Xmx384M", "kafka.Kafka", str(config)]
        self._launch(broker, command)

    def wait_until_it_answers(self, broker: int) -> None:
        process = self._processes[broker]
        wait_for(lambda: process.poll() is not None or answers(self._ports[broker]), f"broker {broker} to answer")
        if process.poll() is not None:
            raise RuntimeError(f"broker {broker} did not start:\n{self.output(broker)}")

    def _launch(self, name: object, command: Sequence[str]) -> None:
        with open(self.directory / f"{name}.out", "ab") as out:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            self._processes[name] = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def kill(self, broker: object) -> None:
        process = self._processes.pop(broker)
        process.kill()
        process.wait()

    def pause(self, broker: object) -> None:
        paused_process.pause(self._processes[broker])

    def resume(self, broker: object) -> None:
        paused_process.resume(self._processes[broker])

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
        return (self.directory / f"{name}.out").read_text()[-4000:]

    def print_outputs(self) -> None:
        for path in sorted(self.directory.glob("*.out")):
            print(f"--- {path.name}\n{path.read_text()[-4000:]}", file=sys.stderr)

    def data_dir(self, broker: int) -> Path:
        return self.directory / f"data{broker}"

    def address(self, broker: int) -> tuple[str, int]:
        return "127.0.0.1", self._ports[broker]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{self._ports[broker]}" for broker in (*JAVA_BROKERS, KCORE_BROKER))

    def run(self, main: str, *arguments: str, stdin: str | None = None) -> str:
        """What one of Kafka's tools prints.  Raises RuntimeError unless it exits with 0."""
        command = self.tool_command(main, *arguments)
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, input=stdin)
        if result.returncode:
            raise RuntimeError(f"{main} {' '.join(arguments)}: {result.stdout[-2000:]}\n{result.stderr[-2000:]}")
        return result.stdout

    def tool_command(self, main: str, *arguments: str) -> list[str]:
        return [*self._java, "-Xmx128M", main, *arguments]

    # -- what ZooKeeper says ----------------------------------------------------------------------------

    def state(self, partition: int, topic: str = TOPIC) -> znodes.PartitionStateZNode | None:
        data = self._get(znodes.partition_state(topic, partition))
        return znodes.PartitionStateZNode.decode(data) if data is not None else None

    def assignment(self, topic: str) -> znodes.TopicZNode:
        """Empty if there is no such topic, or no answer."""
        data = self._get(znodes.topic(topic))
        return znodes.TopicZNode.decode(data) if data is not None else znodes.TopicZNode({})

    def config(self, path: str) -> dict[str, str]:
        """Settings in a node."""
        data = self._get(path)
        return dict(znodes.decode_config(data)) if data else {}

    def has(self, path: str) -> bool:
        return self._get(path) is not None

    def _get(self, path: str) -> bytes | None:
        """None if there is no such node, or if ZooKeeper cannot be reached now."""
        try:
            node = self._store.get(path)
        except SessionExpired:
            self._store.new_session()
            return None
        except ConnectionLost:
            return None
        return node.data if node is not None else None

    def connect(self) -> None:
        self._store = open_store(f"zookeeper://{self.zookeeper}", session_timeout_ms=60_000)

    def disconnect(self) -> None:
        self._store.close()

    def controller(self) -> int | None:
        data = self._get(znodes.CONTROLLER)
        return znodes.ControllerZNode.decode(data).broker_id if data is not None else None

    def controller_epoch(self) -> int:
        return int(self._get(znodes.CONTROLLER_EPOCH) or 0)

    def depose(self) -> None:
        try:
            self._store.delete(znodes.CONTROLLER)
        except (NoNode, ConnectionLost):
            pass

    def registered(self) -> list[int]:
        return sorted(map(int, self._store.children(znodes.BROKER_IDS)))

    def await_leaders(self, without: int | None = None, topic: str = TOPIC) -> None:
        def have_leaders() -> bool:
            states = [self.state(number, topic) for number in range(len(ASSIGNMENT))]
            return all(state is not None and state.leader >= 0 and state.leader != without for state in states)

        wait_for(have_leaders, f"leaders other than {without}")

    def await_whole_isr(self, topic: str = TOPIC, assignment: Assignment = ASSIGNMENT) -> None:
        def states() -> list[znodes.PartitionStateZNode | None]:
            return [self.state(number, topic) for number in range(len(assignment))]

        def is_whole() -> bool:
            pairs = zip(states(), assignment, strict=True)
            return all(state is not None and sorted(state.isr) == sorted(replicas) for state, replicas in pairs)

        try:
            wait_for(is_whole, "all replicas to be in sync")
        except TimeoutError as error:
            raise RuntimeError(f"{error}: {states()}") from error


class Writer:
    """A producer with acks=all and idempotence, on a thread; remembers what was acknowledged."""

    def __init__(self, bootstrap_servers: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self.topic, self.partitions = topic, partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 300_000,
                # A broker that stands still answers no request; then it goes to the next leader.
                "socket.timeout.ms": 5_000,
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
                self._send(b"%d" % self._sent)
            self._producer.poll(0.02)

    def _send(self, value: bytes) -> None:
        partition = self._sent % self.partitions
        self._producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
        self._sent += 1

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))  # type: ignore[attr-defined]

    def await_more(self) -> None:
        goals = [
            sum(partition == number for partition, _, _ in list(self.acknowledged)) + 50
            for number in range(self.partitions)
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


def create_topic(mixed: Mixed, topic: str, assignment: Assignment, min_insync_replicas: int) -> None:
    text = ",".join(":".join(map(str, replicas)) for replicas in assignment)
    mixed.run(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", mixed.bootstrap_servers, "--create", "--topic", topic),
        *("--replica-assignment", text, "--config", f"min.insync.replicas={min_insync_replicas}"),
    )
    mixed.await_whole_isr(topic, assignment)
    leaders = [mixed.state(number, topic).leader for number in range(len(assignment))]  # type: ignore[union-attr]
    check(leaders == [replicas[0] for replicas in assignment], f"leaders {leaders}")


def elect_preferred(mixed: Mixed, topic: str = TOPIC, assignment: Assignment = ASSIGNMENT) -> None:
    server = ("--bootstrap-server", mixed.bootstrap_servers)
    options = ("--election-type", "preferred", "--all-topic-partitions")
    mixed.run("org.apache.kafka.tools.LeaderElectionCommand", *server, *options)

    def are_elected() -> bool:
        states = [mixed.state(number, topic) for number in range(len(assignment))]
        return [state and state.leader for state in states] == [replicas[0] for replicas in assignment]

    wait_for(are_elected, "the preferred leaders")


def compare(mixed: Mixed, writer: Writer) -> None:
    read = consume(mixed.bootstrap_servers, writer)
    check(read == sorted(writer.acknowledged), f"{len(read)} records are not the {len(writer.acknowledged)} sent")


def consume(bootstrap_servers: str, writer: Writer) -> list[tuple[int, int, bytes]]:
    """The records of the topic that are the writer's."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "mixed", "auto.offset.reset": "earliest"})
    partitions = [TopicPartition(writer.topic, number, 0) for number in range(writer.partitions)]
    ends = [consumer.get_watermark_offsets(partition, timeout=60)[1] for partition in partitions]
    consumer.assign(partitions)
    positions = [0] * len(ends)
    records: list[tuple[int, int, bytes]] = []
    deadline = time.monotonic() + 120
    while positions != ends and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            if not message.error():
                positions[message.partition()] = message.offset() + 1
                if len(message.value()) < LOAD_RECORD:
                    records.append((message.partition(), message.offset(), message.value()))
    consumer.close()
    check(positions == ends, f"read up to {positions} of {ends}")
    return sorted(records)


def replicas_are_equal(mixed: Mixed, topic: str, assignment: Assignment) -> None:
    for number, replicas in enumerate(assignment):
        first, *others = [str(mixed.data_dir(broker) / f"{topic}-{number}") for broker in replicas]
        for other in others:
            kcore("diff", "--quiet", first, other)


def await_controller(mixed: Mixed, wanted: Sequence[int]) -> None:
    """Delete the controller's node until one of these is elected, as operators do."""

    def is_elected() -> bool:
        controller = mixed.controller()
        if controller is not None and controller not in wanted:
            mixed.depose()
        return controller in wanted

    wait_for(is_elected, f"one of {wanted} to be the controller", pause_s=1)
