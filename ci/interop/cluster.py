"""cluster.py JARS CLASSES: three `kcore serve` in the hands of Kafka's Java client and tools.

1. An idempotent producer with acks=all writes while the leader of a partition is killed and starts again; a group of
   two consumers reads each acknowledged record once, in order, at the offset that the producer was answered.
2. A consumer with client.rack reads from the follower in its rack (KIP-392): while nothing happens, after the leader
   was killed, and from the leader while the follower is stopped.  The brokers' BytesOutPerSec show which one sent the
   records.
3. Kafka's own command-line tools against the cluster.
4. In the end the ISR is whole, and `kcore diff` finds the three directories equal.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.peers.replicate import BROKERS, KcoreCluster, wait_for  # noqa: E402
from bench.replication_client import leaders_of_whole_isr, metadata, produce  # noqa: E402
from ci.interop.mirror import kcore, step  # noqa: E402
from kcore.metadata import znodes  # noqa: E402
from kcore.metadata.open_store import open_store  # noqa: E402

RECORDS, PARTITIONS = "records", 4
NEAR = "near"
#: A topic of one partition that Kafka's tools move.
MOVED = "moved"
#: Of the brokers 1, 2 and 3.
RACKS = ("a", "b", "c")
#: The consumer's rack, and the number of the broker that is in it.
RACK, IN_RACK = "b", 1
BATCH_SIZE, BATCHES = 16 << 10, 64
CONFIG = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # Longer than a busy machine stands still.
    "zookeeper.session.timeout.ms": "12000",
    # The leaders are to stay where they are.
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.replication.factor": str(BROKERS),
    "controlled.shutdown.retry.backoff.ms": "200",
}


class JavaTools:
    """Kafka's programs and our ClusterClient, from the jars."""

    def __init__(self, jars: str, classes: str, work: Path) -> None:
        log4j = f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"
        # Programs of a second: less time for the compiler.
        options = ["-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log4j]
        self._java = ["java", *options, "-cp", f"{jars}/*:{classes}"]
        self._errors = work / "java.err"

    def errors(self) -> str:
        return self._errors.read_text()[-4000:] if self._errors.exists() else ""

    def run(self, main: str, *arguments: str) -> str:
        """What one of Kafka's tools prints.  Raises RuntimeError unless it exits with 0 and reports no error."""
        name = main if main.startswith("kafka.") else f"org.apache.kafka.tools.{main}"
        command = [*self._java, name, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        output = result.stdout + result.stderr
        if result.returncode or re.search(r"^(Error|Exception|Caused by)", output, re.MULTILINE):
            raise RuntimeError(f"{main} {' '.join(arguments)}: exit {result.returncode}\n{output[-4000:]}")
        return result.stdout

    @contextmanager
    def start(self, main: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A program with pipes, ended with the block."""
        with open(self._errors, "a") as errors:
            process = subprocess.Popen(
                [*self._java, main, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


class Client:
    """A running ClusterClient."""

    def __init__(self, process: subprocess.Popen[str], tools: JavaTools) -> None:
        self._process = process
        self._tools = tools

    def __call__(self, command: str) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        answer = self._process.stdout.readline()
        if not answer.startswith("ok "):
            raise RuntimeError(f"ClusterClient: {command}: {answer}\n{self._tools.errors()}")
        return int(answer.split()[1])


class Brokers(KcoreCluster):
    """By number, 0 to 2; a broker's id is one above its number."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, [CONFIG | {"broker.rack": rack} for rack in RACKS])
        # Only read from, so it has no session and no thread.
        self._store = open_store(f"sqlite:{directory / 'store.sqlite'}")

    def close(self) -> None:
        self._store.close()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, range(BROKERS)))

    def state(self, topic: str, partition: int = 0) -> tuple[int, frozenset[int]]:
        """Leader and ISR, by number; a leader below 0 is none.

        From the store: brokers learn of an ISR only seconds after it has changed.
        """
        node = self._store.get(znodes.partition_state(topic, partition))
        assert node is not None
        state = znodes.PartitionStateZNode.decode(node.data)
        return state.leader - 1, frozenset(broker_id - 1 for broker_id in state.isr)

    def knows(self, asked: int, topic: str, leader: int) -> bool:
        """Whether a broker knows who leads partition 0, and all brokers that run."""
        try:
            response = metadata(self.address(asked), topic)
        except OSError:
            return False
        leaders = [state.leader_id - 1 for state in response.topics[0].partitions if state.partition_index == 0]
        return leaders == [leader] and len(response.brokers) == len(self._processes)

    def all_know(self, topic: str) -> bool:
        leader, _ = self.state(topic)
        return all(self.knows(asked, topic, leader) for asked in self._processes)

    def await_whole_isr(self) -> None:
        partitions = [(RECORDS, partition) for partition in range(PARTITIONS)] + [(NEAR, 0)]
        wait_for(lambda: all(len(self.state(*partition)[1]) == BROKERS for partition in partitions), "a whole ISR")
        wait_for(lambda: self.all_know(NEAR), "every broker to know the others")

    def kill_leader(self, topic: str) -> int:
        """The number of the killed broker, once every other one knows who leads the partition now."""
        killed, _ = self.state(topic)
        self.kill(killed)
        # While a new controller begins its term the partition may have no leader.
        wait_for(lambda: 0 <= self.state(topic)[0] != killed and self.all_know(topic), f"another leader of {topic}-0")
        return killed

    def start(self, number: int) -> None:
        self.launch(number)
        self.wait_until_it_answers(number)
        self.await_whole_isr()

    def bytes_out(self, topic: str) -> dict[int, int]:
        """Running broker's number -> bytes of the topic's records that it has sent to consumers since it started."""
        name = f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={topic}"
        counts = {}
        for number in sorted(self._processes):
            metrics = json.loads(kcore("metrics", "--data", str(self.data_dir(number)), "--json", "--match", name))
            counts[number] = metrics.get(name, {"Count": 0})["Count"]
        return counts


def check(holds: bool, otherwise: object) -> None:
    if not holds:
        raise RuntimeError(str(otherwise))


def create_topics(tools: JavaTools, brokers: Brokers) -> None:
    topics = {
        RECORDS: ["--partitions", str(PARTITIONS), "--replication-factor", str(BROKERS)],
        # Broker 1 leads, broker 3 is next, and broker 2 is in the consumer's rack.
        NEAR: ["--replica-assignment", "1:3:2"],
    }
    server = ("--bootstrap-server", brokers.bootstrap_servers)
    for topic, placement in topics.items():
        # Old timestamps are in the batches of `produce`.
        settings = ["--config", "min.insync.replicas=2", "--config", "retention.ms=-1"]
        tools.run("TopicCommand", *server, "--create", "--topic", topic, *placement, *settings)
    leaders_of_whole_isr(brokers.address(0), RECORDS, PARTITIONS, BROKERS)
    brokers.await_whole_isr()
    described = tools.run("TopicCommand", *server, "--describe", "--topic", RECORDS)
    check(f"PartitionCount: {PARTITIONS}" in described and f"ReplicationFactor: {BROKERS}" in described, described)
    isrs = re.findall(r"Isr: ([\d,]+)", described)
    check(len(isrs) == PARTITIONS and all(len(isr.split(",")) == BROKERS for isr in isrs), described)


def produce_while_a_leader_is_killed(client: Client, brokers: Brokers) -> None:
    def await_more() -> None:
        goal = client("acknowledged") + 500
        wait_for(lambda: client("acknowledged") >= goal, "500 more acknowledged records")

    client(f"produce {RECORDS}")
    await_more()
    killed = brokers.kill_leader(RECORDS)
    await_more()
    brokers.start(killed)
    await_more()
    client("stop")


def use_tools(tools: JavaTools, brokers: Brokers, work: Path, count: int) -> None:
    server = ("--bootstrap-server", brokers.bootstrap_servers)

    def offsets(at: str) -> dict[str, int]:
        lines = tools.run("GetOffsetShell", *server, "--topic", RECORDS, "--time", at).split()
        return {name: int(offset) for name, offset in (line.rsplit(":", 1) for line in lines)}

    ends = offsets("-1")
    check(sum(ends.values()) == count, f"kafka-get-offsets: {ends}, {count} records were written")
    group = tools.run("consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", "java-cluster")
    lags = re.findall(rf"java-cluster +{RECORDS} +\d+ +\d+ +\d+ +(\d+)", group)
    check(lags == ["0"] * PARTITIONS, group)

    deletion = work / "delete.json"
    partition = {"topic": RECORDS, "partition": 0, "offset": 10}
    deletion.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    deleted = tools.run("DeleteRecordsCommand", *server, "--offset-json-file", str(deletion))
    check("low_watermark: 10" in deleted, deleted)
    starts = offsets("-2")
    check(starts[f"{RECORDS}:0"] == 10, f"kafka-get-offsets --time -2: {starts}")

    dirs = tools.run("LogDirsCommand", *server, "--describe", "--topic-list", RECORDS)
    described = json.loads(dirs[dirs.index("{") :])["brokers"]
    sizes = {}
    for broker in described:
        replicas = broker["logDirs"][0]["partitions"]
        sizes[broker["broker"]] = sorted((replica["partition"], replica["size"]) for replica in replicas)
    check(len(sizes) == BROKERS and sizes[1] == sizes[2] == sizes[3], dirs)
    check(len(sizes[1]) == PARTITIONS, dirs)

    topic = ("--topic", "verifiable", "--max-messages", "1000")
    settings = ("--partitions", "2", "--replication-factor", str(BROKERS))
    tools.run("TopicCommand", *server, "--create", "--topic", "verifiable", *settings)
    produced = json_lines(tools.run("VerifiableProducer", *server, *topic, "--acks", "-1"))
    check(produced["tool_data"] == 1 and produced["producer_send_success"] == 1000, produced)
    reset = ("--group-id", "verifiable", "--reset-policy", "earliest")
    consumed = tools.run("VerifiableConsumer", *server, *topic, *reset)
    counts = [json.loads(line)["count"] for line in consumed.splitlines() if '"records_consumed"' in line]
    check(sum(counts) == 1000, consumed[-2000:])
    verify_replicas(tools, brokers)
    change_broker_settings(tools, server)
    move_partitions(tools, brokers, work)


def change_broker_settings(tools: JavaTools, server: tuple[str, str]) -> None:
    """kafka-configs for one broker and for all (KIP-226)."""
    main, brokers = "kafka.admin.ConfigCommand", ("--entity-type", "brokers")
    setting = "log.cleaner.backoff.ms"
    for entity, value, source in (
        (("--entity-default",), 14_000, "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        (("--entity-name", "1"), 13_000, "DYNAMIC_BROKER_CONFIG"),
    ):
        tools.run(main, *server, "--alter", *brokers, *entity, "--add-config", f"{setting}={value}")
        # The broker that describes may learn of the change after the one that has carried it out.
        describe = ("--describe", *brokers, *entity)
        text = f"{{{source}:{setting}={value}"
        wait_for(lambda d=describe, t=text: t in tools.run(main, *server, *d), text)  # type: ignore[misc]
        tools.run(main, *server, "--alter", *brokers, *entity, "--delete-config", setting)
        wait_for(lambda d=describe: setting not in tools.run(main, *server, *d), f"{entity} without {setting}")  # type: ignore[misc]


def move_partitions(tools: JavaTools, brokers: Brokers, work: Path) -> None:
    """kafka-reassign-partitions, throttled, and kafka-leader-election: in the end each broker has the partition, and
    broker 3 leads it."""
    server = ("--bootstrap-server", brokers.bootstrap_servers)
    tools.run("TopicCommand", *server, "--create", "--topic", MOVED, "--replica-assignment", "1:2")
    tools.run("VerifiableProducer", *server, "--topic", MOVED, "--max-messages", "1000", "--acks", "-1")
    plan = work / "reassign.json"
    file = ("--reassignment-json-file", str(plan))

    def moved_to() -> bool:
        verified = tools.run("reassign.ReassignPartitionsCommand", *server, *file, "--verify")
        if f"Reassignment of partition {MOVED}-0 is completed." not in verified:
            return False
        check("Clearing broker-level throttles" in verified, verified)
        return True

    for replicas in ([3, 1], [3, 2, 1]):
        partition = {"topic": MOVED, "partition": 0, "replicas": replicas}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        limit = ("--execute", "--throttle", "50000000")
        started = tools.run("reassign.ReassignPartitionsCommand", *server, *file, *limit)
        check("The inter-broker throttle limit was set to 50000000 B/s" in started, started)
        check(f"Successfully started partition reassignment for {MOVED}-0" in started, started)
        wait_for(moved_to, f"{MOVED} on {replicas}")
        listed = tools.run("reassign.ReassignPartitionsCommand", *server, "--list")
        check("No partition reassignments found" in listed, listed)
        ids = frozenset(replica - 1 for replica in replicas)
        wait_for(lambda ids=ids: brokers.state(MOVED)[1] == ids, f"an ISR of {replicas}")  # type: ignore[misc]
    topic = ("--topic", MOVED, "--partition", "0", "--election-type", "PREFERRED")
    elected = tools.run("LeaderElectionCommand", *server, *topic)
    check(brokers.state(MOVED)[0] == 2, elected)
    again = tools.run("LeaderElectionCommand", *server, *topic)
    check("Valid replica already elected" in again, again)


def json_lines(output: str) -> Mapping[str, int]:
    """How many lines there are of each name."""
    counts: dict[str, int] = {}
    for line in output.splitlines():
        name = json.loads(line)["name"]
        counts[name] = counts.get(name, 0) + 1
    return counts


def verify_replicas(tools: JavaTools, brokers: Brokers) -> None:
    """kafka-replica-verification: it compares the replicas' bytes for ever, and prints the largest lag now and then."""
    options = ("--broker-list", brokers.bootstrap_servers, "--topics-include", f"{RECORDS}|verifiable")
    main = "org.apache.kafka.tools.ReplicaVerificationTool"
    reports = []
    with tools.start(main, *options, "--report-interval-ms", "500") as process:
        assert process.stdout is not None
        for line in process.stdout:
            check("partition" not in line or "max lag" in line or "verification process" in line, line)
            reports += [line] if "max lag is 0" in line else []
            if len(reports) == 2:
                return
    raise RuntimeError(f"kafka-replica-verification ended:\n{tools.errors()}")


def read_near(client: Client, brokers: Brokers, expected: int | None = None) -> None:
    """Write, read, and hold the bytes that each broker sent to what is expected: all from one of them.

    expected: its number; None for the leader.  Again if the partition's leader or ISR has changed meanwhile: a broker
    that a busy machine has kept waiting loses its session.
    """
    for _ in range(5):
        state = leader, isr = brokers.state(NEAR)
        before = brokers.bytes_out(NEAR)
        produce({0: brokers.address(leader)}, NEAR, BATCH_SIZE, BATCH_SIZE * BATCHES)
        check(client(f"read {NEAR}") > 0, "nothing was read")
        after = brokers.bytes_out(NEAR)
        sent = {number: after[number] - before[number] for number in after}
        rows = [f"{count} from rack {RACKS[number]}" for number, count in sent.items()]
        print(f"    rack {RACKS[leader]} leads; bytes sent: {', '.join(rows)}", flush=True)
        if brokers.state(NEAR) == state:
            break
    source = leader if expected is None else expected
    check(source in isr and all((count > 0) == (number == source) for number, count in sent.items()), sent)
    check(sent[source] >= BATCH_SIZE * BATCHES, sent)


def read_from_the_nearest(client: Client, brokers: Brokers) -> None:
    def from_the_rack() -> None:
        check(brokers.state(NEAR)[0] != IN_RACK, "the broker in the consumer's rack leads")
        read_near(client, brokers, IN_RACK)

    step("a consumer reads from the follower in its rack", from_the_rack)
    killed = brokers.kill_leader(NEAR)
    step("and after its leader was killed", from_the_rack)
    brokers.start(killed)
    brokers.stop(IN_RACK)
    step("and from the leader while the follower is stopped", lambda: read_near(client, brokers))
    brokers.start(IN_RACK)
    step("and from the follower again", from_the_rack)


def main() -> int:
    jars, classes = sys.argv[1:]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kcore-cluster-") as directory, ExitStack() as stack:
        work = Path(directory)
        tools = JavaTools(jars, classes, work)
        brokers = stack.enter_context(closing(Brokers(work)))
        with brokers:
            step("kafka-topics makes and describes replicated topics", lambda: create_topics(tools, brokers))
            with tools.start("ClusterClient", brokers.bootstrap_servers, RACK) as process:
                client = Client(process, tools)
                step(
                    "an idempotent producer writes while a leader is killed and starts again",
                    lambda: produce_while_a_leader_is_killed(client, brokers),
                )
                count = client(f"group {RECORDS}")
                print(f"ok  a group reads each of {count} acknowledged records once and in order", flush=True)

                read_from_the_nearest(client, brokers)
            step("Kafka's tools", lambda: use_tools(tools, brokers, work, count))
            brokers.await_whole_isr()

        def directories_are_equal() -> None:
            for number in range(1, BROKERS):
                kcore("diff", "--quiet", str(brokers.data_dir(0)), str(brokers.data_dir(number)))

        step("the three directories are equal", directories_are_equal)
    print(f"cluster: no difference ({time.monotonic() - begin:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
