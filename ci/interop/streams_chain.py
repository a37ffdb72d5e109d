"""streams_chain.py [--minutes M] [--seed S] [--mixed]: Kafka Streams counts words exactly once, under kill -9.

Two instances of WordCount.java (exactly_once_v2, with a repartition topic, a store, its changelog and standby replicas)
count the words of `input` into `counts`.  Meanwhile brokers are killed, often a leader, the coordinator of
transactions, that of the group, or the controller; instances are killed, some lose their state with that, and some stop
cleanly.  All start again (chain.py).

In the end the counts of each word in `counts` are 1, 2, 3, ..., each once and in this order, up to how often the word
is in the committed records of `input`, and the changelog has that number; the checker of histories has nothing to say
of what the writer did, a reader saw, and the log of `counts` has; all replicas are equal, those of Kafka Streams' own
topics too.  Otherwise it prints what happened when, the brokers' logs and the instances' last lines; the directory
stays, and the exit status is 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import kcore  # noqa: E402
from ci.interop.chain import INPUT, JAVA, LOG4J, PARTITIONS, Chain, Processes, Program, jars, main  # noqa: E402
from tests.histories.checker import Kind, Operation, Poll, Send  # noqa: E402
from tests.histories.copies import transactions  # noqa: E402
from tests.system.broker_processes import BrokenCluster, await_true  # noqa: E402

OUTPUT, REPARTITION, CHANGELOG = "counts", "wordcount-words-repartition", "wordcount-counts-changelog"
#: Of each record.
WORDS = 3
_STOP_S = 60


def words_of(value: bytes) -> list[bytes]:
    """As in WordCount.java."""
    digits = b"%03d" % (int(value) % 1000)
    return [b"%s%c" % (place, digit) for place, digit in zip((b"hundreds", b"tens", b"ones"), digits, strict=True)]


class Instance(Program):
    """A process of WordCount.java with a state directory of its own."""

    def __init__(self, name: str, servers: str, directory: Path) -> None:
        self._state = directory / f"{name}.state"
        command = [*JAVA, LOG4J, "-cp", f"{jars('kafka')}/*:{directory / 'classes'}"]
        super().__init__(name, [*command, "WordCount", servers, str(self._state)], directory)

    def lose(self) -> None:
        """Kill it and remove its state: another process comes, which cannot end this one's transaction."""
        self.kill()
        shutil.rmtree(self._state, ignore_errors=True)

    def stop(self) -> None:
        """Raises BrokenCluster if it does not stop."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                raise BrokenCluster(f"{self.name} does not stop") from None
            self.process = None


class StreamsChain(Chain):
    name = "words counted by Kafka Streams"
    topics = {INPUT: PARTITIONS, OUTPUT: PARTITIONS}
    victims = {
        "a leader": 4,
        "the coordinator of transactions": 3,
        "the coordinator of the group": 3,
        "the controller": 1,
        "two brokers": 2,
        "an instance": 3,
        "an instance, with its state": 1,
        "an instance, cleanly": 1,
    }
    first_victims = ("the coordinator of transactions", "an instance", "a leader")

    def __init__(self, processes: Processes, brokers: Sequence[int], directory: Path, seed: int) -> None:
        super().__init__(processes, brokers, seed)
        source = ROOT / "ci" / "interop" / "WordCount.java"
        javac = ["javac", "-nowarn", "-proc:none", "-cp", f"{jars('kafka')}/*", "-d", str(directory / "classes")]
        subprocess.run([*javac, str(source)], check=True)
        self._instances = [Instance(f"instance-{number}", self.servers, directory) for number in range(2)]
        self.programs = [*self._instances]

    def all_topics(self) -> dict[str, int]:
        return self.topics | {REPARTITION: PARTITIONS, CHANGELOG: PARTITIONS}

    def kill_program(self, what: str) -> bool:
        instance = self.rng.choice(self._instances)
        if what == "an instance":
            instance.kill()
        elif what == "an instance, with its state":
            instance.lose()
        elif what == "an instance, cleanly":
            instance.stop()
        else:
            return False
        return True

    def settle(self) -> None:
        def has_all() -> bool:
            self.keep_running()
            counts = self.reader.counts
            return self.acknowledged() <= counts[INPUT] and WORDS * counts[INPUT] == counts[OUTPUT]

        await_true(has_all, lambda: f"{self.acknowledged()} records were acknowledged, read are {self.reader.counts}")
        for instance in self._instances:
            instance.stop()

    def judge(self) -> list[str]:
        committed = {name: list(self._committed(*name)) for name in self.partitions()}
        values = [value for number in range(PARTITIONS) for _, _, value in committed[INPUT, number]]
        expected = Counter(word for value in values for word in words_of(value))
        counts: dict[bytes, list[int]] = defaultdict(list)
        stored: dict[bytes, int] = {}
        for number in range(PARTITIONS):
            for _, word, value in committed[OUTPUT, number]:
                counts[word].append(int(value.removeprefix(word + b" ")))
            stored |= {word: int.from_bytes(value) for _, word, value in committed[CHANGELOG, number]}
            self._add_transactions(number)
        read = {
            f"{topic}-{number}": [(offset, value) for offset, _, value in records]
            for (topic, number), records in committed.items()
            if topic in self.topics
        }
        now = time.monotonic()
        self.history.append(Operation("the logs", Kind.OK, [Poll(read, is_whole=True)], now, now))
        self.actions["committed records"] = len(values)
        faults = [
            f"{word.decode()} is there {expected[word]} times: {_first_fault(counts[word], expected[word])}"
            for word in sorted(expected.keys() | counts.keys())
            if counts[word] != [*range(1, expected[word] + 1)]
        ]
        if stored != expected:
            faults.append(f"the changelog has {stored}, and not {expected}")
        return faults

    def _committed(self, topic: str, number: int) -> Iterator[tuple[int, bytes, bytes]]:
        """(offset, key, value) of the records that a consumer of committed ones sees."""
        with kcore.open_log(str(self.processes.partition_dirs(topic, number)[0])) as log:
            for record in log.records(isolation="read_committed"):
                yield record.offset, record.key or b"", record.value or b""

    def _add_transactions(self, number: int) -> None:
        """Those of Kafka Streams in this partition of the output, to the history."""
        name = f"{OUTPUT}-{number}"
        with kcore.open_log(str(self.processes.partition_dirs(OUTPUT, number)[0])) as log:
            found = transactions(log.batches())
        for place, (kind, records) in enumerate(found):
            self.actions[f"transactions in {OUTPUT}: {kind.value}"] += 1
            sends = [Send(name, value, offset) for offset, value in records]
            # When it was is not in the log: before everything else, and for an unknown time.
            self.history.append(Operation(f"to {name}", kind, sends, place * 1e-9))


def _first_fault(counts: Sequence[int], expected: int) -> str:
    for place, (count, before) in enumerate(zip(counts, [0, *counts], strict=False)):
        if count != before + 1:
            return f"{count} comes after {before}, as the count number {place + 1}"
    return f"the last count is {len(counts)}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], StreamsChain, __doc__))
