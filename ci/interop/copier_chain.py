"""copier_chain.py [--minutes M] [--seed S] [--mixed]: two programs of Kafka copy records exactly once, under kill -9.

Kafka's TransactionalMessageCopier copies from `input` to `middle` and from `middle` to `output`, and aborts a third of
its transactions: two copiers of Kafka 4 in one group for the first step, one copier of Kafka 2.4 for each partition of
`middle` for the second, which do not keep the partition: `output` has one.  Meanwhile brokers are killed, often a
leader, the coordinator of transactions, that of the group, or the controller; and copiers.  All start again (chain.py).

In the end `output` has the committed records of `input`, once each and those of each partition in order; the checker of
histories (tests/histories/checker.py) has nothing to say of what the writer did, a reader saw, and the copiers' logs
have; all replicas are equal.  Otherwise it prints what happened when, the brokers' logs and the copiers' last lines;
the directory stays, and the exit status is 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import confluent_kafka  # noqa: E402
from confluent_kafka import KafkaException  # noqa: E402

import kcore  # noqa: E402
from ci.interop.chain import INPUT, JAVA, LOG4J, PARTITIONS, Chain, Processes, Program, jars, main  # noqa: E402
from tests.histories.checker import Kind, Operation, Poll  # noqa: E402
from tests.histories.copies import LogTransaction, copies, transactions  # noqa: E402
from tests.system.broker_processes import await_true  # noqa: E402

MIDDLE, OUTPUT = "middle", "output"
#: Records of a copier's transaction.
SIZE = 25
#: Who has copied nothing for so long waits for more records.
_STILL_S = 3
_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"


class Copier(Program):
    """A TransactionalMessageCopier.

    is_old: it reads committed offsets without asking whether they are stable (KIP-447), so its last transaction has to
    be over before it starts.
    """

    def __init__(self, name: str, command: Sequence[str], servers: str, directory: Path, *, is_old: bool) -> None:
        options = ["--broker-list", servers, "--transactional-id", name, "--enable-random-aborts"]
        super().__init__(name, [*command, *options], directory)
        self.is_old = is_old
        self._servers = servers
        self._size = SIZE

    def command(self) -> list[str]:
        return [*super().command(), "--transaction-size", str(self._size)]

    def may_start(self) -> bool:
        """A producer of the same id is there when its last transaction is complete, in the offsets' topic too."""
        if not self.is_old or not self.starts:
            return True
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._servers, "transactional.id": self.name, "log_level": 2}
        )
        try:
            producer.init_transactions(5)
        except KafkaException:
            return False
        return True

    def drain(self) -> None:
        """From now on it copies one record in a transaction: the old one waits until a transaction is full."""
        self._size = 1
        self.kill()


def copiers(servers: str, directory: Path) -> list[Copier]:
    new = [*JAVA, LOG4J, "-cp", f"{jars('kafka')}/*", _COPIER, "--input-topic", INPUT, "--output-topic", MIDDLE]
    new += ["--input-partition", "-1", "--group-mode", "--use-group-metadata", "--consumer-group", "copiers"]
    old = [*JAVA, "-cp", f"{jars('kafka24')}/*", _COPIER, "--input-topic", MIDDLE, "--output-topic", OUTPUT]
    found = [Copier(f"new-{number}", new, servers, directory, is_old=False) for number in range(2)]
    for number in range(PARTITIONS):
        command = [*old, "--input-partition", str(number), "--consumer-group", f"copier-{number}"]
        found.append(Copier(f"old-{number}", command, servers, directory, is_old=True))
    return found


class CopierChain(Chain):
    name = "copies through Kafka's programs"
    topics = {INPUT: PARTITIONS, MIDDLE: PARTITIONS, OUTPUT: 1}
    victims = {
        "a leader": 4,
        "the coordinator of transactions": 4,
        "the coordinator of the group": 3,
        "the controller": 2,
        "two brokers": 2,
        "a copier": 3,
    }

    def __init__(self, processes: Processes, brokers: Sequence[int], directory: Path, seed: int) -> None:
        super().__init__(processes, brokers, seed)
        self._copiers = copiers(self.servers, directory)
        self.programs = [*self._copiers]

    def may_run(self, program: Program) -> bool:
        """A copier that sees nothing to do when it starts ends at once."""
        return program.starts > 0 or self.reader.counts[MIDDLE if program in self._old() else INPUT] > 0

    def _old(self) -> list[Copier]:
        return [copier for copier in self._copiers if copier.is_old]

    def kill_program(self, what: str) -> bool:
        if what != "a copier":
            return False
        self.rng.choice(self._copiers).kill()
        return True

    def settle(self) -> None:
        def has_all() -> bool:
            self.keep_running()
            counts = self.reader.counts
            return self.acknowledged() <= counts[INPUT] == counts[MIDDLE] == counts[OUTPUT]

        last, since = -1, 0.0

        def stands_still() -> bool:
            """Whether `output` grows no more: a copier that has fewer records than a transaction takes commits none."""
            nonlocal last, since
            self.keep_running()
            counts = self.reader.counts
            if counts[OUTPUT] != last or not self.acknowledged() <= counts[INPUT] == counts[MIDDLE]:
                last, since = counts[OUTPUT], time.monotonic()
            return time.monotonic() - since > _STILL_S

        await_true(stands_still, lambda: f"the copiers do not come to an end: {self.reader.counts}")
        for copier in self._old():
            copier.drain()
        await_true(has_all, lambda: f"{self.acknowledged()} records were acknowledged, read are {self.reader.counts}")

    def judge(self) -> list[str]:
        read: dict[str, list[tuple[int, object]]] = {}
        logs: dict[str, list[LogTransaction]] = {}
        for topic, number in self.partitions():
            name = f"{topic}-{number}"
            with kcore.open_log(str(self.processes.partition_dirs(topic, number)[0])) as log:
                logs[name] = transactions(log.batches())
                read[name] = [(r.offset, r.value) for r in log.records(isolation="read_committed")]
            for transaction in logs[name]:
                self.actions[f"transactions in {topic}: {transaction.kind.value}"] += 1
        for number in range(PARTITIONS):
            names = (f"{INPUT}-{number}", f"{MIDDLE}-{number}", f"{OUTPUT}-0")
            for source, target in pairwise(names):
                self.history += copies(source, logs[source], target, logs[target])
        counts = {topic: sum(len(read[f"{topic}-{number}"]) for number in range(n)) for topic, n in self.topics.items()}
        now = time.monotonic()
        self.history.append(Operation("the logs", Kind.OK, [Poll(read, is_whole=True)], now, now))
        self.actions["committed records"] = counts[INPUT]
        return [f"committed records: {counts}"] if len(set(counts.values())) != 1 else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CopierChain, __doc__))
