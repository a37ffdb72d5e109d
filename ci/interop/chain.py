"""Chain: programs of Kafka copy or count the records of a topic into another one while they and brokers are killed.

Brokers are processes: three of kcore, or with --mixed two of Java and one of kcore.  A writer of librdkafka commits and
aborts transactions in INPUT, and a reader sees what is committed.  Each round kills something with SIGKILL, starts it
again, and waits until new records have come through; with --mixed one of the first two kills the kcore broker, and one
a Java broker.  What the programs are, and how their output is judged, is up to copier_chain.py and streams_chain.py.
With --storage Kafka's storage classes and its DumpLogSegments read what the kcore brokers have written (run.py).
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from confluent_kafka import Consumer, KafkaException, TopicPartition  # noqa: E402
from confluent_kafka.admin import NewTopic  # noqa: E402

from ci.interop.mixed_cluster import KCORE_BROKER  # noqa: E402
from ci.interop.mixed_processes import KINDS, MIXED_BROKERS, MixedProcesses  # noqa: E402
from ci.interop.oracle import DEFAULTS, Oracle  # noqa: E402
from ci.interop.run import KafkaTool, check_dump, check_loading  # noqa: E402
from kcore.client.transaction_client import TransactionClient  # noqa: E402
from kcore.inspect.replica_diff import compare  # noqa: E402
from tests.histories.checker import LEGAL, Anomaly, Kind, Operation, check  # noqa: E402
from tests.system.broker_processes import BROKERS, BrokenCluster, BrokerProcesses, await_true  # noqa: E402
from tests.system.kill_everything import TOPIC_SETTINGS, create_topic  # noqa: E402
from tests.system.recording_clients import CommittedReader, TransactionalWriter  # noqa: E402
from tests.system.verifying_clients import client_settings  # noqa: E402

#: The topic of the writer, and how many partitions it has.
INPUT = "input"
PARTITIONS = 2
#: Longer than a busy machine stands still; who is killed is missed at once.
SESSION_MS = 12_000
TRANSACTION_PARTITIONS = 3
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": str(TRANSACTION_PARTITIONS),
    "group.initial.rebalance.delay.ms": "0",
}
Processes = BrokerProcesses | MixedProcesses
#: Java, with a heap that three brokers and four programs have room for.
JAVA = ("java", "-Xmx128M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOG4J = f"-Dlog4j2.configurationFile={ROOT / 'ci' / 'interop' / 'log4j2.xml'}"


class Program:
    """A process that starts again whenever it has ended.  What it prints is in `output`."""

    def __init__(self, name: str, command: Sequence[str], directory: Path) -> None:
        self.name = name
        self.errors = self.starts = 0
        self.output = directory / f"{name}.out"
        self._command = list(command)
        self.process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self.process is not None:
            status = self.process.poll()
            if status is None:
                return
            self.errors += status != 0
            self.process = None
        if self.may_start():
            self.starts += 1
            with open(self.output, "ab") as output:
                self.process = subprocess.Popen(self.command(), stdout=output, stderr=output)

    def may_start(self) -> bool:
        """Otherwise it is asked again the next time."""
        return True

    def command(self) -> list[str]:
        return self._command

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Chain:
    """One run.  rng: decides what is killed when.

    topics: name -> number of partitions of each topic that the chain makes; victims: what a round kills -> so often in
    as many rounds as there are.
    """

    name: str
    topics: Mapping[str, int]
    victims: Mapping[str, int]
    #: What the first rounds kill over kcore brokers; then it is a matter of chance.
    first_victims: Sequence[str] = ()

    def __init__(self, processes: Processes, brokers: Sequence[int], seed: int) -> None:
        self.rng = random.Random(seed)
        self.servers = processes.bootstrap_servers
        self.processes = processes
        self.programs: list[Program] = []
        self.actions: Counter[str] = Counter()
        self.history: list[Operation] = []
        self._brokers = brokers
        self._rounds = 0
        is_mixed = isinstance(processes, MixedProcesses)
        self._victims_to_come = self.rng.sample([*KINDS], len(KINDS)) if is_mixed else [*reversed(self.first_victims)]

    def run(self, seconds: float) -> None:
        """For so long, and until the first victims were killed.  Raises BrokenCluster."""
        self.processes.start_all()
        for topic, partitions in self.topics.items():
            create_topic(self.servers, NewTopic(topic, partitions, len(self._brokers), config=TOPIC_SETTINGS))
        end = time.monotonic() + seconds
        self.writer = TransactionalWriter(
            self.servers, "writer", INPUT, PARTITIONS, self.history, random.Random(self.rng.random())
        )
        self.reader = CommittedReader(self.servers, "reader", self.topics, self.history)
        self.writer.start()
        self.reader.start()
        self._await_progress()
        first = len(self._victims_to_come)
        while self._rounds < first or time.monotonic() < end:
            self._round()
            self._await_progress()
        self._finish()

    # -- what a kind of chain does in its way --------------------------------------------------------------

    def all_topics(self) -> Mapping[str, int]:
        """Also those that the programs make."""
        return self.topics

    def may_run(self, program: Program) -> bool:
        return True

    def kill_program(self, what: str) -> bool:
        """False if `what` is no program."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until the programs have done everything that the writer has committed."""
        raise NotImplementedError

    def judge(self) -> list[str]:
        """What is wrong with the logs of the topics.  Adds what they tell to the history.  All brokers have ended."""
        raise NotImplementedError

    # -- rounds -----------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._rounds += 1
        if not self._victims_to_come:
            every = [what for what, count in self.victims.items() for _ in range(count)]
            self._victims_to_come = self.rng.sample(every, len(every))
        what = self._victims_to_come.pop()
        self.actions[f"kill {what}"] += 1
        self.processes.note(f"kill {what}")
        if self.kill_program(what):
            return
        victims = self._brokers_to_kill(what)
        for number in victims:
            self.processes.kill(number)
            self._sleep(0.5)
        self._sleep(6)
        for number in victims:
            self.processes.start(number)
            self._sleep(1)
        for number in victims:
            self.processes.await_serving(number)

    def _brokers_to_kill(self, what: str) -> list[int]:
        processes = self.processes
        topic = self.rng.choice(list(self.all_topics()))
        if what in KINDS:
            return [self.rng.choice(KINDS[what])]
        if what == "two brokers":
            return self.rng.sample(self._brokers, 2)
        if what == "the controller":
            leader = processes.controller()
        else:
            partition = {
                "a leader": (self.rng.randrange(self.all_topics()[topic]), topic),
                "the coordinator of transactions": (self.rng.randrange(TRANSACTION_PARTITIONS), "__transaction_state"),
                "the coordinator of the group": (0, "__consumer_offsets"),
            }[what]
            state = processes.state(*partition)
            leader = None if state is None else state.leader
        return [leader if leader in processes.running else self.rng.choice(self._brokers)]  # type: ignore[list-item]

    def _sleep(self, most_s: float) -> None:
        end = time.monotonic() + self.rng.uniform(0, most_s)
        while time.monotonic() < end:
            self.keep_running()
            time.sleep(0.1)

    def keep_running(self) -> None:
        for client in (self.writer, self.reader):
            if client.crash is not None:
                raise BrokenCluster(f"{client.name}: {client.crash!r}")
        for program in self.programs:
            if self.may_run(program):
                program.keep_running()

    def _await_progress(self) -> None:
        """New records come through the chain, to each partition."""
        before = dict(self.reader.positions)

        def has_progress() -> bool:
            self.keep_running()
            return all(position > before[partition] for partition, position in self.reader.positions.items())

        await_true(has_progress, lambda: f"no new records: {before}, {self.reader.positions}")
        self.processes.note(f"read {self.reader.counts}")

    # -- the end ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if not self.writer.stop():
            raise BrokenCluster(f"the writer does not stop: {self.writer.where()}")
        self.processes.note("the writer has stopped")
        self.settle()
        for program in self.programs:
            program.kill()
        # A marker that comes while the brokers stop one after the other would be on some of them.
        await_true(self._nothing_is_open, "a transaction stays open", pause_s=0.5)
        await_true(self._isr_is_whole, "the ISR is not whole")
        if not self.reader.stop():
            raise BrokenCluster(f"the reader does not stop: {self.reader.where()}")
        self.processes.stop_all()
        faults = [*self._differences(), *self.judge()]
        faults += [str(finding) for finding in check(self.history)]
        faults += self.processes.tracebacks()[:5]
        self.actions["operations in the history"] = len(self.history)
        for program in self.programs:
            self.actions[f"starts of {program.name}"] = program.starts
            self.actions[f"errors of {program.name}"] = program.errors
        if faults:
            raise BrokenCluster("\n".join([f"{len(faults)} faults:", *faults[:20]]))

    def acknowledged(self) -> int:
        """Records of the writer's committed transactions."""
        return sum(
            len(operation.actions)
            for operation in list(self.history)
            if operation.kind is Kind.OK and str(operation.process).startswith("writer")
        )

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, number) for topic, count in self.all_topics().items() for number in range(count)]

    def _nothing_is_open(self) -> bool:
        """Whether consumers of committed records see as far as others, in each partition, and no marker is to come."""
        ends: list[list[int]] = []
        for isolation in ("read_committed", "read_uncommitted"):
            consumer = Consumer(client_settings(self.servers, group_id="ends") | {"isolation.level": isolation})
            try:
                ends.append([self._end(consumer, *partition) for partition in self.partitions()])
            except KafkaException:
                return False  # a leader is being elected
            finally:
                consumer.close()
        addresses = [(host, int(port)) for host, _, port in (at.partition(":") for at in self.servers.split(","))]
        with TransactionClient(addresses) as client:
            ending, errors = client.list_transactions(("PrepareCommit", "PrepareAbort"))
        return ends[0] == ends[1] and not ending and not errors

    @staticmethod
    def _end(consumer: Consumer, topic: str, number: int) -> int:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
        return int(end)

    def _isr_is_whole(self) -> bool:
        states = [self.processes.state(number, topic) for topic, number in self.partitions()]
        return all(state is not None and len(state.isr) == len(self._brokers) for state in states)

    def _differences(self) -> list[str]:
        found = []
        for topic, number in self.partitions():
            first, *others = [str(directory) for directory in self.processes.partition_dirs(topic, number)]
            found += [f"{first} and {other} differ" for other in others if not compare(first, other).equal]
        return found

    def report(self) -> str:
        # Without the programs' logs nobody has sent what is read after the first step.
        found = check(list(self.history), LEGAL | {Anomaly.UNWRITTEN_READ, Anomaly.UNSEEN})
        tails = [f"-- {p.name}\n{p.output.read_text(errors='replace')[-2500:]}" for p in self.programs if p.starts]
        return "\n".join([*map(str, found[:5]), self.processes.report(), *tails])

    def close(self) -> None:
        for program in self.programs:
            program.kill()
        self.processes.close()


def jars(name: str) -> str:
    """Raises RuntimeError where there is no Java or Maven."""
    found = subprocess.run(
        ["bash", str(ROOT / "ci" / "kafka_jars.sh"), name], stdout=subprocess.PIPE, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(f"no jars of {name}")
    return found.stdout.strip()


def kcore_processes(directory: Path) -> BrokerProcesses:
    processes = BrokerProcesses(directory, topic=INPUT, partitions=PARTITIONS, session_ms=SESSION_MS)
    processes.settings = dict.fromkeys(BROKERS, SETTINGS)
    return processes


def check_storage(classes: str, data_dirs: Sequence[Path], work: Path) -> None:
    """Kafka's storage classes read each file of these directories as kcore does, and DumpLogSegments those of one.

    The logs of the others have the same bytes.  Raises BrokenCluster.
    """
    tool = KafkaTool(jars("kafka"), classes)
    with Oracle(tool.java, work / "oracle.err", DEFAULTS) as kafka:
        faults = check_dump(tool, data_dirs[0])
        for data in data_dirs:
            faults += check_loading(kafka, data, work)
    if faults:
        raise BrokenCluster("\n".join([f"{len(faults)} differences from Kafka's classes:", *faults[:20]]))


#: Makes a chain over these brokers; its files are below the directory.
Maker = Callable[[Processes, Sequence[int], Path, int], Chain]


def main(arguments: Sequence[str], chain_of: Maker, description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None, help="else from the clock")
    parser.add_argument("--mixed", action="store_true", help="over two Java brokers of Kafka 3.9 and one of kcore")
    parser.add_argument("--storage", metavar="CLASSES", help="at the end; the folder with LogOracle.class")
    parser.add_argument("--verbose", action="store_true", help="print what is done when")
    parser.add_argument("--directory", type=Path, help="for the data; else one below the system's temporary directory")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else time.time_ns() // 1_000_000 % 10**9
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcore-chain-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {options.minutes:g} minutes in {directory}", flush=True)
    begin = time.monotonic()
    processes: Processes = (
        MixedProcesses(jars("kafka39"), directory, SETTINGS) if options.mixed else kcore_processes(directory)
    )
    chain = chain_of(processes, MIXED_BROKERS if options.mixed else BROKERS, directory, seed)
    if options.verbose:
        processes.on_event = lambda at, event: print(f"{at:8.1f} {event}", flush=True)
    try:
        chain.run(60 * options.minutes)
        if options.storage:
            data_dirs = [processes.data_dir(broker) for broker in ((KCORE_BROKER,) if options.mixed else BROKERS)]
            check_storage(options.storage, data_dirs, directory)
    except Exception as error:
        print(
            f"--seed {seed}: {type(error).__name__}: {error}\n{chain.report()}\nthe data are in {directory}", flush=True
        )
        return 1
    finally:
        chain.close()
        for name, count in chain.actions.items():
            print(f"{count:9d}  {name}")
    print(f"interop: {chain.name}, exactly once, {time.monotonic() - begin:.0f} s")
    shutil.rmtree(directory)
    return 0
