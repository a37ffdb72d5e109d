"""mixed.py JARS: a kcore broker and two Java brokers of Kafka 3.9 in one cluster, in one ZooKeeper.

1. Under a kcore controller: brokers of both kinds replicate each other, and each leads.  While an idempotent producer
   writes with acks=all, a Java broker is killed, then the kcore broker, which is the controller, then whoever is it
   after that; each starts again, and all replicas get in sync.  What was acknowledged is there.
2. kafka-reassign-partitions moves partitions from Java brokers to the kcore broker and back, while the producer writes:
   under a kcore controller, under it with a Java broker killed and with ZooKeeper killed meanwhile, and under a Java
   controller with ZooKeeper killed meanwhile.
3. Kafka's tools: kafka-topics, kafka-leader-election under controllers of both kinds, zookeeper-shell;
   kafka-verifiable-producer and, in a group, kafka-verifiable-consumer while brokers and ZooKeeper are killed.
4. Cancelled and throttled moves, settings, paused brokers: mixed_changes.py.
5. `kcore diff` finds the replicas of both kinds equal.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.replicate import wait_for  # noqa: E402
from ci.interop.mirror import step  # noqa: E402
from ci.interop.mixed_changes import CANCELLED, PAUSED, change_things  # noqa: E402
from ci.interop.mixed_changes import HERE as AS_BEFORE  # noqa: E402
from ci.interop.mixed_cluster import (  # noqa: E402
    ASSIGNMENT,
    JAVA_BROKERS,
    KCORE_BROKER,
    LOAD_RECORD,
    TOPIC,
    Assignment,
    Mixed,
    Writer,
    await_controller,
    check,
    compare,
    create_topic,
    elect_preferred,
    replicas_are_equal,
)
from kcore.metadata import znodes  # noqa: E402

MOVED = "moved"
#: Replicas of each partition of MOVED: the leader's replica goes from Java to kcore, and from kcore to Java; one more
#: replica, and one less.
HERE = ((1, 2), (3, 1), (2, 1), (3, 1))
THERE = ((3, 2), (2, 1), (2, 1, 3), (1,))
#: Bytes of each partition of MOVED, which take a moment to copy.
LOAD = 24 << 20


class Verifiable:
    """Kafka's verifiable producer and, in a group, its verifiable consumer, from start() to finish()."""

    TOPIC = "verified"

    def __init__(self, mixed: Mixed) -> None:
        self._mixed = mixed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        config = self._mixed.directory / "verifiable.properties"
        config.write_text("enable.idempotence=true\nretries=2147483647\ndelivery.timeout.ms=300000\n")
        options = ("--topic", self.TOPIC, "--bootstrap-server", self._mixed.bootstrap_servers)
        self._start("VerifiableProducer", *options, "--throughput", "200", "--producer.config", str(config))
        group = ("--group-id", "verifiers", "--reset-policy", "earliest", "--session-timeout", "10000")
        self._start("VerifiableConsumer", *options, *group, "--verbose")

    def _start(self, tool: str, *arguments: str) -> None:
        command = self._mixed.tool_command(f"org.apache.kafka.tools.{tool}", *arguments)
        with open(self._path(tool), "wb") as out:
            self._processes[tool] = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def _path(self, tool: str) -> Path:
        return self._mixed.directory / f"{tool}.lines"

    def _values(self, tool: str, event: str) -> set[str]:
        lines = self._path(tool).read_text(errors="replace").splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return {line["value"] for line in events if line["name"] == event}

    def finish(self) -> None:
        """What the one has sent, the other reads.  Raises RuntimeError if a record was refused."""
        self._stop("VerifiableProducer")
        refused = self._values("VerifiableProducer", "producer_send_error")
        check(not refused, f"{len(refused)} records were refused, as {sorted(refused)[:3]}")
        sent = self._values("VerifiableProducer", "producer_send_success")
        check(len(sent) > 100, f"{len(sent)} records were sent")
        wait_for(
            lambda: sent <= self._values("VerifiableConsumer", "record_data"),
            f"the verifiable consumer to read all of {len(sent)}",
            pause_s=1,
        )
        self._stop("VerifiableConsumer")

    def _stop(self, tool: str) -> None:
        process = self._processes.pop(tool)
        process.send_signal(signal.SIGTERM)
        process.wait(180)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def kill(mixed: Mixed, writer: Writer, broker: int) -> None:
    writer.await_more()
    mixed.kill(broker)
    mixed.await_leaders(without=broker)
    writer.await_more()
    mixed.start(broker)
    mixed.await_whole_isr()
    writer.await_more()


def load(mixed: Mixed) -> None:
    """So many bytes in each partition of MOVED, with some of Kafka's own tools."""
    count = len(HERE) * LOAD // LOAD_RECORD
    main = "org.apache.kafka.tools.ProducerPerformance"
    options = ("--topic", MOVED, "--num-records", str(count), "--record-size", str(LOAD_RECORD), "--throughput", "-1")
    properties = (f"bootstrap.servers={mixed.bootstrap_servers}", "acks=all")
    mixed.run(main, *options, "--producer-props", *properties)


class Reassignment:
    """kafka-reassign-partitions --execute as a process, and what ZooKeeper says about the progress."""

    def __init__(self, mixed: Mixed, target: Assignment) -> None:
        self._mixed, self._target = mixed, target
        moves = [{"topic": MOVED, "partition": number, "replicas": replicas} for number, replicas in enumerate(target)]
        self._plan = mixed.directory / "reassign.json"
        self._plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        self._process = self._execute()

    def _execute(self) -> subprocess.Popen[str]:
        main = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        server = ("--bootstrap-server", self._mixed.bootstrap_servers)
        options = ("--reassignment-json-file", str(self._plan), "--execute", "--additional")
        command = self._mixed.tool_command(main, *server, *options)
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def await_begin(self) -> int:
        """How many partitions are being moved, as soon as there is one; 0 if all were moved before that was seen."""
        counts: list[int] = []

        def has_begun() -> bool:
            node = self._mixed.assignment(MOVED)
            counts.append(len(node.adding.keys() | node.removing.keys()))
            return counts[-1] > 0 or self._is_done()

        wait_for(has_begun, "a reassignment to begin", pause_s=0.001)
        return counts[-1]

    def await_end(self) -> None:
        """All replicas are where they are to be, and in sync.  Where the tool was cut off from the controller, it is
        run again."""

        def is_done() -> bool:
            if self._process.poll() is None:
                return False
            node = self._mixed.assignment(MOVED)
            if node.assignment and not node.adding and not node.removing and not self._is_done():
                self._process = self._execute()
            return self._is_done()

        try:
            wait_for(is_done, "the reassignment to end", 180, pause_s=0.2)
        except TimeoutError as error:
            output = self._process.communicate(timeout=60) if self._process.poll() is not None else "still running"
            raise RuntimeError(f"{error}: {self._mixed.assignment(MOVED)}, {output}") from error
        self._process.communicate()
        self._mixed.await_whole_isr(MOVED, self._target)
        for number, replicas in enumerate(self._target):
            for broker in {1, 2, 3} - set(replicas):
                directory = self._mixed.data_dir(broker) / f"{MOVED}-{number}"
                wait_for(lambda directory=directory: not directory.exists(), f"{directory} to go")  # type: ignore[misc]

    def _is_done(self) -> bool:
        node = self._mixed.assignment(MOVED)
        replicas = [node.assignment.get(number) for number in range(len(self._target))]
        return replicas == [list(brokers) for brokers in self._target] and not node.adding and not node.removing


def reassign(mixed: Mixed, writer: Writer, target: Assignment, meanwhile: Callable[[], None] | None = None) -> None:
    """Move MOVED's partitions while the writer writes; `meanwhile` is called as soon as one is being moved."""
    writer.await_more()
    reassignment = Reassignment(mixed, target)
    count = reassignment.await_begin()
    if meanwhile is not None:
        meanwhile()
        print(f"    while {count} of {len(target)} partitions were being moved", flush=True)
    reassignment.await_end()
    writer.await_more()


def restart_zookeeper(mixed: Mixed) -> None:
    """kill -9, and away for longer than it needs to start."""
    mixed.kill("zookeeper")
    time.sleep(3)
    mixed.start_zookeeper()


def restart_java_broker(mixed: Mixed) -> None:
    mixed.kill(JAVA_BROKERS[1])
    mixed.await_leaders(without=JAVA_BROKERS[1])
    mixed.start(JAVA_BROKERS[1])


def restart_zookeeper_under_load(mixed: Mixed, writer: Writer) -> None:
    """Records are acknowledged while it is away: leaders need it only for changes."""
    writer.await_more()
    mixed.kill("zookeeper")
    writer.await_more()
    mixed.start_zookeeper()
    wait_for(lambda: mixed.controller() is not None, "a controller")
    mixed.await_whole_isr()
    writer.await_more()


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


def move_partitions(mixed: Mixed) -> None:
    await_controller(mixed, [KCORE_BROKER])
    step("a topic to be moved", lambda: create_topic(mixed, MOVED, HERE, 1))
    step("with data", lambda: load(mixed))
    writer = Writer(mixed.bootstrap_servers, MOVED, len(HERE))
    try:
        step("under a kcore controller kafka-reassign-partitions", lambda: reassign(mixed, writer, THERE))
        step("and kafka-leader-election", lambda: elect_preferred(mixed, MOVED, THERE))
        zookeeper, java = (lambda: restart_zookeeper(mixed)), (lambda: restart_java_broker(mixed))
        await_controller(mixed, [KCORE_BROKER])
        step("back, ZooKeeper is killed meanwhile", lambda: reassign(mixed, writer, HERE, zookeeper))
        await_controller(mixed, [KCORE_BROKER])
        step("again, a Java broker is killed meanwhile", lambda: reassign(mixed, writer, THERE, java))
        await_controller(mixed, JAVA_BROKERS)
        step(
            "under a Java controller back, ZooKeeper is killed meanwhile",
            lambda: reassign(mixed, writer, HERE, zookeeper),
        )
        step("and kafka-leader-election", lambda: elect_preferred(mixed, MOVED, HERE))
    finally:
        writer.stop()
    step("each acknowledged record of it is read once", lambda: compare(mixed, writer))


def run(jars: str, directory: Path) -> None:
    mixed = Mixed(jars, directory)
    verifiable = Verifiable(mixed)
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
        step("under a kcore controller kafka-topics makes a topic", lambda: create_topic(mixed, TOPIC, ASSIGNMENT, 2))
        create_topic(mixed, verifiable.TOPIC, ASSIGNMENT, 2)
        verifiable.start()
        writer = Writer(mixed.bootstrap_servers, TOPIC, len(ASSIGNMENT))
        try:
            step("a Java broker is killed and starts again", lambda: kill(mixed, writer, JAVA_BROKERS[0]))
            step("the kcore controller is killed and starts again", lambda: kill(mixed, writer, KCORE_BROKER))
            await_controller(mixed, JAVA_BROKERS)
            step("under a Java controller the kcore broker is killed", lambda: kill(mixed, writer, KCORE_BROKER))
            step("ZooKeeper is killed and starts again", lambda: restart_zookeeper_under_load(mixed, writer))
        finally:
            writer.stop()
        step("each acknowledged record is read once", lambda: compare(mixed, writer))
        step("kafka-verifiable-consumer reads what kafka-verifiable-producer has sent", verifiable.finish)
        await_controller(mixed, JAVA_BROKERS)
        step("kafka-leader-election elects the preferred leaders", lambda: elect_preferred(mixed))
        step("zookeeper-shell reads what both kinds have written", lambda: read_with_shell(mixed))
        move_partitions(mixed)
        change_things(mixed)
        mixed.stop_all()
        step("replicas of both kinds are equal", lambda: replicas_are_equal(mixed, TOPIC, ASSIGNMENT))
        step("those that were moved too", lambda: replicas_are_equal(mixed, MOVED, HERE))
        step("those whose move was cancelled", lambda: replicas_are_equal(mixed, CANCELLED, AS_BEFORE))
        step("those of paused brokers", lambda: replicas_are_equal(mixed, PAUSED, ASSIGNMENT))
        step("and those of the verifiable producer", lambda: replicas_are_equal(mixed, verifiable.TOPIC, ASSIGNMENT))
        mixed.disconnect()
    except BaseException:
        mixed.print_outputs()
        raise
    finally:
        verifiable.close()
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
