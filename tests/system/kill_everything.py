"""python -m tests.system.kill_everything --seconds N [--seed S] [--store sqlite|zookeeper]: brokers and their store are
killed, paused and cut off at random, under verifying producers and consumers.

Three `kcore serve` processes, one topic with min.insync.replicas=2 and without unclean elections.  Each round does one
to three things to the brokers (kill -9, SIGSTOP for longer than the session or shorter, SIGTERM) and to the store (kill
-9, SIGSTOP, a lock), often to leaders and to the controller; then everything runs again, and each producer must get
acknowledgements from each partition.  At the end:

- every acknowledged record is in the log once, at its offset, and each producer's are in its order (where a client has
  begun a new epoch of its id, what it had no answer for may be there again: partition_history.py);
- each partition has one history (partition_history.py): whatever any consumer has read is there, and no consumer saw
  the high watermark or the group's committed offset go back;
- all replicas are in sync, and equal byte for byte;
- no broker has logged a traceback, or ended by itself (but one may fail to start while the store is away).

Otherwise it prints the seed, what was done when, the states, what the brokers explain and the ends of their logs; the
directory stays, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

import kcore
from kcore.inspect.replica_diff import compare
from tests.system.broker_processes import (
    BROKERS,
    DEADLINE_S,
    STORES,
    BrokenCluster,
    BrokerProcesses,
    await_true,
)
from tests.system.partition_history import PartitionHistory, epoch_starts
from tests.system.verifying_clients import (
    FreshReader,
    GroupReader,
    TailReader,
    VerifyingProducer,
    WatermarkReader,
    stop_all,
)

TOPIC = "orders"
PARTITIONS = 4
SESSION_MS = 3000
#: A producer for each.
CODECS = ("none", "lz4", "none")
TOPIC_SETTINGS = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "segment.bytes": str(1 << 20),
}
#: What a round does, and how often.
ACTIONS = {
    "kill leader": 5,
    "kill controller": 5,
    "kill any": 2,
    "kill two": 3,
    "kill all": 1,
    "pause leader": 4,
    "pause controller": 4,
    "pause any": 1,
    "terminate any": 2,
    "depose controller": 1,
    "store": 6,
}


@dataclass
class Summary:
    seed: int
    store: str
    seconds: float = 0.0
    rounds: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = self.actions | Counter(self.counts)
        lines = [f"{self.store}, seed {self.seed}: {self.seconds:.0f} s, {self.rounds} rounds"]
        lines += [f"{count:9d}  {name}" for name, count in counts.items()]
        return "\n".join(lines)


class _Chaos:
    """One run.  rng: decides what is done; to whom it happens depends on who leads at that moment."""

    def __init__(self, processes: BrokerProcesses, rng: random.Random, summary: Summary) -> None:
        self._processes = processes
        self._rng = rng
        self._summary = summary
        self._session_s = processes.session_ms / 1000
        self._resume_at: dict[int, float] = {}
        self._store_back_at: float | None = None

    def round(self) -> None:
        names, weights = zip(*ACTIONS.items(), strict=True)
        for name in self._rng.choices(names, weights, k=self._rng.choice((1, 1, 1, 2, 2, 3))):
            self._act(name)
            self._sleep(self._rng.choice((0.1, 0.5, 1.5)))
        self._heal()
        self._summary.rounds += 1

    def _sleep(self, sessions: float) -> None:
        """Up to so many sessions; meanwhile what is paused resumes when its time is over."""
        end = time.monotonic() + self._rng.uniform(0, sessions * self._session_s)
        while time.monotonic() < end:
            self._end_pauses()
            time.sleep(0.02)

    def _act(self, name: str) -> None:
        processes = self._processes
        if name == "store":
            if self._store_back_at is None:
                outage = self._rng.choice(processes.store_process.outages)
                self._count(outage)
                processes.note(outage)
                processes.store_process.begin(outage)
                self._store_back_at = time.monotonic() + self._rng.uniform(0.1, 2.5) * self._session_s
            return
        if name == "depose controller":
            if self._store_back_at is None:
                self._count(name)
                processes.note(name)
                processes.depose_controller()
            return
        verb, whom = name.split()
        for victim in self._victims(whom):
            if verb == "kill" and victim in processes.running:
                self._count(f"{verb} {whom}" if whom in ("leader", "controller") else "kill another")
                self._resume_at.pop(victim, None)
                processes.kill(victim)
            elif verb == "terminate" and victim in self._up():
                if self._store_back_at is None and self._up() == set(BROKERS):
                    self._count("terminate")
                    processes.terminate(victim)
            elif verb == "pause" and victim in self._up():
                sessions = self._rng.choice((0.5, 1.5, 3))
                self._count(f"pause {whom} " + ("within the session" if sessions < 1 else "beyond the session"))
                processes.pause(victim)
                self._resume_at[victim] = time.monotonic() + sessions * self._session_s

    def _count(self, what: str) -> None:
        self._summary.actions[what] += 1

    def _up(self) -> set[int]:
        return set(self._processes.running) - self._processes.paused

    def _victims(self, whom: str) -> Sequence[int]:
        any_broker = self._rng.choice(BROKERS)
        if whom == "all":
            return BROKERS
        if whom == "two":
            return self._rng.sample(BROKERS, 2)
        if whom == "any" or self._store_back_at is not None:
            return (any_broker,)
        if whom == "controller":
            controller = self._processes.controller()
            return (controller if controller is not None else any_broker,)
        state = self._processes.state(self._rng.randrange(PARTITIONS))
        return (state.leader if state is not None and state.leader >= 0 else any_broker,)

    def _end_pauses(self) -> None:
        now = time.monotonic()
        for number, at in list(self._resume_at.items()):
            if at <= now:
                del self._resume_at[number]
                self._processes.resume(number)
        if self._store_back_at is not None and self._store_back_at <= now:
            self._processes.note("the store comes back")
            self._processes.store_process.end()
            self._store_back_at = None

    def _heal(self) -> None:
        missing = [number for number in BROKERS if number not in self._processes.running]
        self._rng.shuffle(missing)
        for number in missing:
            self._sleep(0.5)
            self._processes.start(number)
        while self._resume_at or self._store_back_at is not None:
            self._end_pauses()
            time.sleep(0.02)
        for number in BROKERS:
            self._processes.await_serving(number)


class _Clients:
    def __init__(self, servers: str, rng: random.Random) -> None:
        self._servers = servers
        self.histories = [PartitionHistory(f"{TOPIC}-{number}") for number in range(PARTITIONS)]
        arguments = (TOPIC, self.histories)
        self.producers = [
            VerifyingProducer(servers, f"producer{number}", *arguments, codec) for number, codec in enumerate(CODECS)
        ]
        self.tails = [TailReader(servers, f"tail{number}", *arguments) for number in range(2)]
        self.fresh = FreshReader(servers, "fresh", *arguments, random.Random(rng.random()))
        self.watermarks = WatermarkReader(servers, "watermarks", *arguments)
        self.group = GroupReader(servers, "group", *arguments, random.Random(rng.random()))
        self.hanging_members = self.hanging_tails = 0
        self.all = [*self.producers, *self.tails, self.fresh, self.watermarks, self.group]

    def start(self) -> None:
        for client in self.all:
            client.start()

    def check(self) -> None:
        faults = [fault for history in self.histories for fault in history.faults]
        faults += [refused for producer in self.producers for refused in producer.refused]
        faults += [f"{client.name}: {client.crash!r}" for client in self.all if client.crash is not None]
        if faults:
            raise BrokenCluster("\n".join(faults[:20]))

    def await_progress(self) -> None:
        """Each producer gets acknowledgements from each partition."""

        def counts() -> list[int]:
            return [history.acknowledged(producer.name) for producer in self.producers for history in self.histories]

        before = counts()

        def has_progress() -> bool:
            self.check()
            return all(now > then for now, then in zip(counts(), before, strict=True))

        await_true(has_progress, "a producer gets no acknowledgement from a partition")

    def finish(self) -> None:
        """Everything that was sent is acknowledged, and read by those who read all."""
        if hanging := stop_all(self.producers):
            raise BrokenCluster(f"producers that do not stop: {hanging}")
        waiting = {producer.name: producer.flush(DEADLINE_S) for producer in self.producers}
        self.check()
        if any(waiting.values()):
            raise BrokenCluster(f"records without an answer: {waiting}")
        ends = self._log_ends()
        hanging = stop_all([self.fresh, self.watermarks, *(self._at_end(tail, ends) for tail in self.tails)])
        if not self.group.stop():
            # Seen with librdkafka 2.16: after some changes of the coordinator it asks no broker for anything any more.
            self.hanging_members += 1
            self.group = GroupReader(self._servers, "another member", TOPIC, self.histories, random.Random(0))
            self.group.start()
            await_true(lambda: self.group.commits, "the coordinator lets nobody commit")
            hanging += stop_all([self.group])
        if hanging:
            raise BrokenCluster(f"clients that do not stop: {hanging}")
        self.check()

    def _at_end(self, tail: TailReader, ends: list[int]) -> TailReader:
        """The tail, or if it hangs in its client one that goes on for it, which has read everything."""

        def has_ended() -> bool:
            self.check()
            return tail.hangs or tail.positions == ends

        def report() -> str:
            return f"{tail.name} reads up to {tail.positions}, the logs end at {ends}; it stands at: {tail.where()}"

        await_true(has_ended, report)
        if tail.hangs:
            self.hanging_tails += 1
            tail = tail.successor()
            tail.start()
            await_true(lambda: tail.positions == ends, report)
            self.check()
        return tail

    def _log_ends(self) -> list[int]:
        """Once nobody writes any more."""
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 2})
        ends: dict[int, int] = {}

        def is_answered() -> bool:
            asked = {TopicPartition(TOPIC, number): OffsetSpec.latest() for number in range(PARTITIONS)}
            for topic_partition, future in admin.list_offsets(asked, request_timeout=30).items():
                try:
                    ends[topic_partition.partition] = future.result().offset
                except KafkaException:
                    return False
            return True

        await_true(is_answered, "no leader says where its log ends")
        return [ends[number] for number in range(PARTITIONS)]

    def counts(self) -> dict[str, int]:
        return {
            "records acknowledged": sum(history.all_acknowledged for history in self.histories),
            "of them without an offset": sum(history.without_offset for history in self.histories),
            "reads of fresh consumers": self.fresh.rounds,
            "of them again, sent out of range": self.fresh.out_of_range,
            "high watermarks": self.watermarks.answers,
            "members of the group": self.group.members,
            "commits": self.group.commits,
            "members that hang": self.hanging_members,
            "tails that hang": self.hanging_tails,
        }


def create_topic(servers: str, topic: object = None) -> None:
    """Once the brokers know each other, the controller too, which may learn of them after the one that answers here."""
    new_topic = topic or NewTopic(TOPIC, PARTITIONS, len(BROKERS), config=TOPIC_SETTINGS)
    admin = AdminClient({"bootstrap.servers": servers})
    await_true(lambda: len(admin.list_topics(timeout=60).brokers) == len(BROKERS), "the brokers never knew each other")

    def is_created() -> bool:
        (future,) = admin.create_topics([new_topic]).values()
        try:
            future.result(DEADLINE_S)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    await_true(is_created, "the topic was not created")


def check_logs(processes: BrokerProcesses, histories: Sequence[PartitionHistory]) -> int:
    """After the brokers have stopped.  How often a producer has begun a new epoch.  Raises BrokenCluster."""
    faults = []
    epochs = 0
    for number, history in enumerate(histories):
        first, *others = [str(directory) for directory in processes.partition_dirs(TOPIC, number)]
        with kcore.open_log(first) as log:
            new_epochs, refusable = epoch_starts(log.batches())
            faults += [f"{first}: {text}" for text in refusable]
            faults += history.faults_beside({record.offset: record.value for record in log.records()}, new_epochs)
        epochs += len(new_epochs)
        faults += [f"{first} and {other} differ" for other in others if not compare(first, other).equal]
    if faults:
        raise BrokenCluster("\n".join(faults[:40]))
    return epochs


def run(
    directory: Path, store: str, seed: int, goes_on: Callable[[Summary], bool], *, verbose: bool = False
) -> Summary:
    """Rounds as long as goes_on(); then the checks.  Raises BrokenCluster, with a report."""
    summary = Summary(seed, store)
    begin = time.monotonic()
    rng = random.Random(seed)
    processes = BrokerProcesses(directory, store, topic=TOPIC, partitions=PARTITIONS, session_ms=SESSION_MS)
    if verbose:
        processes.on_event = lambda at, event: print(f"{at:8.1f} {event}", flush=True)
    clients: _Clients | None = None
    try:
        processes.start_all()
        create_topic(processes.bootstrap_servers)
        clients = _Clients(processes.bootstrap_servers, rng)
        clients.start()
        clients.await_progress()
        chaos = _Chaos(processes, rng, summary)
        while goes_on(summary):
            chaos.round()
            clients.await_progress()
            processes.note("every producer goes on")
            if rng.random() < 0.5:
                processes.await_whole_isr()
        processes.await_whole_isr()
        clients.finish()
        processes.stop_all()
        summary.actions["new epoch of a producer, in one partition"] += check_logs(processes, clients.histories)
        tracebacks = processes.tracebacks()
        if tracebacks:
            raise BrokenCluster("\n".join(tracebacks[:5]))
    except Exception as error:
        report = processes.report()
        raise BrokenCluster(f"--store {store} --seed {seed}: {error}\n{report}") from error
    finally:
        if clients is not None:
            summary.counts = clients.counts()
        summary.seconds = time.monotonic() - begin
        processes.close()
    return summary


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.kill_everything", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="else from the clock")
    parser.add_argument("--store", choices=list(STORES), default="sqlite")
    parser.add_argument("--verbose", action="store_true", help="print what is done when")
    parser.add_argument("--directory", type=Path, help="for the data; else one below the system's temporary directory")
    options = parser.parse_args(arguments)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    seed = options.seed if options.seed is not None else time.time_ns() // 1_000_000 % 10**9
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kcore-kill-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"{options.store}, seed {seed}, for {options.seconds:.0f} s in {directory}", flush=True)
    end = time.monotonic() + options.seconds
    try:
        summary = run(directory, options.store, seed, lambda summary: time.monotonic() < end, verbose=options.verbose)
    except BrokenCluster as error:
        print(error, f"\nthe data are in {directory}", flush=True)
        return 1
    print(summary)
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
