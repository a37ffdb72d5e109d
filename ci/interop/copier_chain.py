"""copier_chain.py [--minutes M] [--seed S]: records go through two programs of Kafka, each exactly once, under kill -9.

A writer of librdkafka commits and aborts transactions in `input`.  Kafka's TransactionalMessageCopier copies them from
there to `middle` and from `middle` to `output`, and aborts a third of its transactions: two copiers of Kafka 4 in one
group for the first step, one copier of Kafka 2.4 for each partition of `middle` for the second, which do not keep the
partition: `output` has one.  Meanwhile brokers are killed, often a leader, the coordinator of transactions, that of the
group, or the controller; and copiers.  All start again.

In the end `output` has the committed records of `input`, once each and those of each partition in order; the checker of
histories (tests/histories/checker.py) has nothing to say of what the writer did, a reader saw, and the copiers' logs
have; all replicas are equal.  Otherwise it prints what happened when, the brokers' logs and the copiers' last lines;
the directory stays, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import confluent_kafka  # noqa: E402
from confluent_kafka import KafkaException  # noqa: E402
from confluent_kafka.admin import NewTopic  # noqa: E402

import kcore  # noqa: E402
from kcore.inspect.replica_diff import compare  # noqa: E402
from tests.histories.checker import LEGAL, Anomaly, Kind, Operation, Poll, check  # noqa: E402
from tests.histories.copies import LogTransaction, copies, transactions  # noqa: E402
from tests.system.broker_processes import BROKERS, BrokenCluster, BrokerProcesses, await_true  # noqa: E402
from tests.system.kill_everything import TOPIC_SETTINGS, create_topic  # noqa: E402
from tests.system.recording_clients import CommittedReader, TransactionalWriter  # noqa: E402

INPUT, MIDDLE, OUTPUT = "input", "middle", "output"
#: Of each topic but OUTPUT.
PARTITIONS = 2
TOPICS = {INPUT: PARTITIONS, MIDDLE: PARTITIONS, OUTPUT: 1}
#: Longer than a busy machine stands still; who is killed is missed at once.
SESSION_MS = 12_000
TRANSACTION_PARTITIONS = 3
#: Records of a copier's transaction.
SIZE = 50
_JAVA = ("-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
#: What a round kills; so often in as many rounds as there are here.
VICTIMS = {
    "a leader": 4,
    "the coordinator of transactions": 4,
    "the coordinator of the group": 3,
    "the controller": 2,
    "two brokers": 2,
    "a copier": 3,
}


class Copier:
    """A TransactionalMessageCopier that starts again whenever it has ended.

    is_old: it reads committed offsets without asking whether they are stable (KIP-447), so its last transaction has to
    be over before it starts.
    """

    def __init__(self, name: str, command: Sequence[str], servers: str, directory: Path, *, is_old: bool) -> None:
        self.name, self.is_old = name, is_old
        self.errors = self.starts = 0
        self.output = directory / f"{name}.out"
        self._servers = servers
        options = ["--broker-list", servers, "--transactional-id", name, "--enable-random-aborts"]
        self._command = [*command, *options]
        self._size = SIZE
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self.errors += status != 0
            self._process = None
        if self.is_old and self.starts and not self._is_settled():
            return  # next time
        self.starts += 1
        with open(self.output, "ab") as output:
            command = [*self._command, "--transaction-size", str(self._size)]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)

    def _is_settled(self) -> bool:
        """A producer of the same id is there when its last transaction is complete, in the offsets' topic too."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": self.name, "log_level": 2}
        )
        try:
            producer.init_transactions(5)
        except KafkaException:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def drain(self) -> None:
        """From now on it copies one record in a transaction: the old one waits until a transaction is full."""
        self._size = 1
        self.kill()


def jars(name: str) -> str:
    """Raises RuntimeError where there is no Java or Maven."""
    found = subprocess.run(
        ["bash", str(ROOT / "ci" / "kafka_jars.sh"), name], stdout=subprocess.PIPE, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(f"no jars of {name}")
    return found.stdout.strip()


def copiers(servers: str, directory: Path) -> list[Copier]:
    new = ["java", *_JAVA, f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"]
    new += ["-cp", f"{jars('kafka')}/*", _COPIER, "--input-topic", INPUT, "--output-topic", MIDDLE]
    new += ["--input-partition", "-1", "--group-mode", "--use-group-metadata", "--consumer-group", "copiers"]
    old = ["java", *_JAVA, "-cp", f"{jars('kafka24')}/*", _COPIER, "--input-topic", MIDDLE, "--output-topic", OUTPUT]
    found = [Copier(f"new-{number}", new, servers, directory, is_old=False) for number in range(2)]
    for number in range(PARTITIONS):
        command = [*old, "--input-partition", str(number), "--consumer-group", f"copier-{number}"]
        found.append(Copier(f"old-{number}", command, servers, directory, is_old=True))
    return found


class Chain:
    """One run over three brokers with these ids.  rng: decides who is killed when."""

    def __init__(self, processes: BrokerProcesses, brokers: Sequence[int], directory: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._brokers = brokers
        self._servers = processes.bootstrap_servers
        self.processes = processes
        self.copiers = copiers(self._servers, directory)
        self.actions: Counter[str] = Counter()
        self._victims_to_come: list[str] = []
        self.history: list[Operation] = []

    def run(self, seconds: float) -> None:
        processes = self.processes
        processes.start_all()
        for topic, partitions in TOPICS.items():
            create_topic(self._servers, NewTopic(topic, partitions, len(self._brokers), config=TOPIC_SETTINGS))
        end = time.monotonic() + seconds
        self.writer = TransactionalWriter(
            self._servers, "writer", INPUT, PARTITIONS, self.history, random.Random(self._rng.random())
        )
        self.reader = CommittedReader(self._servers, "reader", TOPICS, self.history)
        self.writer.start()
        self.reader.start()
        self._await_progress()
        while time.monotonic() < end:
            self._round()
            self._await_progress()
        self._finish()

    # -- rounds -----------------------------------------------------------------------------------------

    def _round(self) -> None:
        if not self._victims_to_come:
            every = [what for what, count in VICTIMS.items() for _ in range(count)]
            self._victims_to_come = self._rng.sample(every, len(every))
        what = self._victims_to_come.pop()
        self.actions[f"kill {what}"] += 1
        self.processes.note(f"kill {what}")
        if what == "a copier":
            self._rng.choice(self.copiers).kill()
            return
        victims = self._victims(what)
        for number in victims:
            self.processes.kill(number)
            self._sleep(0.5)
        self._sleep(6)
        for number in victims:
            self.processes.start(number)
            self._sleep(1)
        for number in victims:
            self.processes.await_serving(number)

    def _victims(self, what: str) -> list[int]:
        processes = self.processes
        topic = self._rng.choice(list(TOPICS))
        if what == "two brokers":
            return self._rng.sample(self._brokers, 2)
        if what == "the controller":
            leader = processes.controller()
        else:
            partition = {
                "a leader": (self._rng.randrange(TOPICS[topic]), topic),
                "the coordinator of transactions": (
                    self._rng.randrange(TRANSACTION_PARTITIONS),
                    "__transaction_state",
                ),
                "the coordinator of the group": (0, "__consumer_offsets"),
            }[what]
            state = processes.state(*partition)
            leader = None if state is None else state.leader
        return [leader if leader in processes.running else self._rng.choice(self._brokers)]  # type: ignore[list-item]

    def _sleep(self, most_s: float) -> None:
        end = time.monotonic() + self._rng.uniform(0, most_s)
        while time.monotonic() < end:
            self._keep_copying()
            time.sleep(0.1)

    def _keep_copying(self) -> None:
        for client in (self.writer, self.reader):
            if client.crash is not None:
                raise BrokenCluster(f"{client.name}: {client.crash!r}")
        for copier in self.copiers:
            # A program that sees nothing to do when it starts ends at once.
            if copier.starts or self.reader.counts[MIDDLE if copier.is_old else INPUT]:
                copier.keep_running()

    def _await_progress(self) -> None:
        """New records come through the chain, to each partition."""
        before = dict(self.reader.positions)

        def has_progress() -> bool:
            self._keep_copying()
            return all(position > before[partition] for partition, position in self.reader.positions.items())

        await_true(has_progress, lambda: f"no new records: {before}, {self.reader.positions}")
        self.processes.note(f"read {self.reader.counts}")

    # -- the end ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if not self.writer.stop():
            raise BrokenCluster(f"the writer does not stop: {self.writer.where()}")
        self.processes.note("the writer has stopped")

        def has_all() -> bool:
            self._keep_copying()
            counts = self.reader.counts
            return self._acknowledged() <= counts[INPUT] == counts[MIDDLE] == counts[OUTPUT]

        def is_nearly_over() -> bool:
            self._keep_copying()
            counts = self.reader.counts
            has_input = self._acknowledged() <= counts[INPUT] == counts[MIDDLE]
            return has_input and counts[MIDDLE] - counts[OUTPUT] < SIZE * PARTITIONS

        await_true(is_nearly_over, lambda: f"the copiers do not come to an end: {self.reader.counts}")
        for copier in self.copiers:
            if copier.is_old:
                copier.drain()
        await_true(has_all, lambda: f"{self._acknowledged()} records were acknowledged, read are {self.reader.counts}")
        for copier in self.copiers:
            copier.kill()
        self.processes.await_whole_isr()
        if not self.reader.stop():
            raise BrokenCluster(f"the reader does not stop: {self.reader.where()}")
        self.processes.stop_all()
        self._judge()

    def _acknowledged(self) -> int:
        """Records of the writer's committed transactions."""
        return sum(
            len(operation.actions)
            for operation in list(self.history)
            if operation.kind is Kind.OK and str(operation.process).startswith("writer")
        )

    def _judge(self) -> None:
        """Raises BrokenCluster."""
        faults: list[str] = []
        read: dict[str, list[tuple[int, object]]] = {}
        logs: dict[str, list[LogTransaction]] = {}
        for topic, partitions in TOPICS.items():
            for number in range(partitions):
                name = f"{topic}-{number}"
                first, *others = [str(directory) for directory in self.processes.partition_dirs(topic, number)]
                with kcore.open_log(first) as log:
                    logs[name] = transactions(log.batches())
                    read[name] = [(r.offset, r.value) for r in log.records(isolation="read_committed")]
                faults += [f"{first} and {other} differ" for other in others if not compare(first, other).equal]
                for transaction in logs[name]:
                    self.actions[f"transactions in {topic}: {transaction.kind.value}"] += 1
        for number in range(PARTITIONS):
            names = (f"{INPUT}-{number}", f"{MIDDLE}-{number}", f"{OUTPUT}-0")
            for source, target in pairwise(names):
                self.history += copies(source, logs[source], target, logs[target])
        counts = {topic: sum(len(read[f"{topic}-{number}"]) for number in range(n)) for topic, n in TOPICS.items()}
        if len(set(counts.values())) != 1:
            faults.append(f"committed records: {counts}")
        now = time.monotonic()
        self.history.append(Operation("the logs", Kind.OK, [Poll(read, is_whole=True)], now, now))
        faults += [str(finding) for finding in check(self.history)]
        faults += self.processes.tracebacks()[:5]
        self.actions["committed records"] = counts[INPUT]
        self.actions["operations in the history"] = len(self.history)
        for copier in self.copiers:
            self.actions[f"starts of {copier.name}"] = copier.starts
            self.actions[f"errors of {copier.name}"] = copier.errors
        if faults:
            raise BrokenCluster("\n".join([f"{len(faults)} faults:", *faults[:20]]))

    def report(self) -> str:
        # Without the copiers' logs nobody has sent what is read after the first step.
        found = check(list(self.history), LEGAL | {Anomaly.UNWRITTEN_READ, Anomaly.UNSEEN})
        tails = [f"-- {c.name}\n{c.output.read_text(errors='replace')[-2500:]}" for c in self.copiers if c.starts]
        return "\n".join([*map(str, found[:5]), self.processes.report(), *tails])

    def close(self) -> None:
        for copier in self.copiers:
            copier.kill()
        self.processes.close()


def kcore_chain(directory: Path, seed: int) -> Chain:
    processes = BrokerProcesses(directory, topic=OUTPUT, partitions=TOPICS[OUTPUT], session_ms=SESSION_MS)
    settings = {
        "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
        "group.initial.rebalance.delay.ms": "0",
    }
    processes.settings = dict.fromkeys(BROKERS, settings)
    return Chain(processes, BROKERS, directory, seed)


def main(arguments: Sequence[str], chain_of: Callable[[Path, int], Chain], description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="else from the clock")
    parser.add_argument("--verbose", action="store_true", help="print what is done when")
    parser.add_argument("--directory", type=Path, help="for the data; else one below the system's temporary directory")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() // 1_000_000 % 10**9
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcore-chain-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"copier chain: seed {seed}, {options.minutes:g} minutes in {directory}", flush=True)
    begin = time.monotonic()
    chain = chain_of(directory, seed)
    if options.verbose:
        chain.processes.on_event = lambda at, event: print(f"{at:8.1f} {event}", flush=True)
    try:
        chain.run(60 * options.minutes)
    except Exception as error:
        print(
            f"--seed {seed}: {type(error).__name__}: {error}\n{chain.report()}\nthe data are in {directory}", flush=True
        )
        return 1
    finally:
        chain.close()
        for name, count in chain.actions.items():
            print(f"{count:9d}  {name}")
    print(f"interop: copies through Kafka's programs, exactly once, {time.monotonic() - begin:.0f} s")
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], kcore_chain, __doc__))
