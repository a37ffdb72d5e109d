"""A cluster as it has to be, in a few lines, and random clients of it: histories without a fault."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from tests.histories.checker import Action, Assign, Kind, Operation, Partition, Poll, Rebalance, Send

PARTITIONS = ("p0", "p1", "p2")


@dataclass(eq=False)
class _Transaction:
    partitions: set[Partition] = field(default_factory=set)
    is_commit: bool | None = None
    #: Where its marker is.
    ended: set[Partition] = field(default_factory=set)


@dataclass
class _Log:
    #: A record's value and transaction, or a marker, which is (None, None).
    entries: list[tuple[str | None, _Transaction | None]] = field(default_factory=list)

    def readable(self, partition: Partition, start: int, count: int) -> list[tuple[int, str]]:
        """At most so many committed records below the first one of a transaction without its marker here."""
        found: list[tuple[int, str]] = []
        for offset, (value, transaction) in enumerate(self.entries):
            if transaction is not None and partition not in transaction.ended:
                break
            is_there = value is not None and (transaction is None or transaction.is_commit)
            if is_there and offset >= start and len(found) < count:
                assert value is not None
                found.append((offset, value))
        return found


class ModelLog:
    """run() returns the history.  Each step of a client, and each marker, happens at a random moment."""

    def __init__(self, seed: int, clients: int = 3, operations: int = 25) -> None:
        self._rng = random.Random(seed)
        self._clients, self._operations = clients, operations
        self._logs = {partition: _Log() for partition in PARTITIONS}
        self._ending: list[_Transaction] = []
        self._history: list[Operation] = []
        self._now = 0
        self._values = 0
        self._processes = 0

    def run(self) -> list[Operation]:
        steps = [self._client() for _ in range(self._clients)]
        while steps:
            step = self._rng.choice(steps)
            if next(step, "end") == "end":
                steps.remove(step)
            if self._ending and self._rng.random() < 0.5:
                self._write_marker()
        while self._ending:
            self._write_marker()
        self._read_all()
        return self._history

    def _time(self) -> int:
        self._now += 1
        return self._now

    def _write_marker(self) -> None:
        transaction = self._rng.choice(self._ending)
        partition = self._rng.choice(sorted(transaction.partitions - transaction.ended, key=str))
        self._logs[partition].entries.append((None, None))
        transaction.ended.add(partition)
        if transaction.ended == transaction.partitions:
            self._ending.remove(transaction)

    def _new_process(self) -> str:
        self._processes += 1
        return f"client{self._processes}"

    def _client(self) -> Generator[None]:
        process, positions = self._new_process(), dict.fromkeys(PARTITIONS, 0)
        for _ in range(self._operations):
            yield
            ends = self._transaction if self._rng.random() < 0.7 else self._alone
            kind = yield from ends(process, positions)
            if kind is Kind.INFO:
                process, positions = self._new_process(), {p: self._rng.randrange(30) for p in PARTITIONS}

    def _alone(self, process: str, positions: dict[Partition, int]) -> Generator[None, None, Kind]:
        invoked, kind = self._time(), Kind.OK
        action: Action
        if self._rng.random() < 0.5:
            action = self._send(None)
            if self._rng.random() < 0.1:
                kind, action = Kind.INFO, action._replace(offset=None)
        elif self._rng.random() < 0.2:
            partition = self._rng.choice(PARTITIONS)
            positions[partition] = self._rng.randrange(30)
            action = Rebalance([partition])
        elif self._rng.random() < 0.2:
            gone = self._rng.choice(PARTITIONS)
            positions[gone] = 0
            action = Assign([partition for partition in PARTITIONS if partition != gone])
        else:
            action = self._poll(positions)
        yield
        self._add(process, kind, [action], invoked)
        return kind

    def _transaction(self, process: str, positions: dict[Partition, int]) -> Generator[None, None, Kind]:
        transaction, after = _Transaction(), dict(positions)
        actions: list[Send | Poll] = []
        invoked = self._time()
        for _ in range(self._rng.randint(1, 5)):
            actions.append(self._send(transaction) if self._rng.random() < 0.6 else self._poll(after))
            yield
        is_crash = self._rng.random() < 0.1
        transaction.is_commit = self._rng.random() < 0.7
        if transaction.partitions:
            self._ending.append(transaction)
        yield
        if is_crash:
            # The answer to its last send is lost too.
            if isinstance(last := actions[-1], Send):
                actions[-1] = last._replace(offset=None)
            self._add(process, Kind.INFO, actions, invoked)
            return Kind.INFO
        if transaction.is_commit:
            positions.update(after)
        kind = Kind.OK if transaction.is_commit else Kind.FAIL
        self._add(process, kind, actions, invoked)
        return kind

    def _add(self, process: str, kind: Kind, actions: Sequence[Action], invoked: int) -> None:
        times = (invoked,) if kind is Kind.INFO else (invoked, self._time())
        self._history.append(Operation(process, kind, actions, *times))

    def _send(self, transaction: _Transaction | None) -> Send:
        partition = self._rng.choice(PARTITIONS)
        if transaction is not None:
            transaction.partitions.add(partition)
        self._values += 1
        entries = self._logs[partition].entries
        entries.append((f"v{self._values}", transaction))
        return Send(partition, f"v{self._values}", len(entries) - 1)

    def _poll(self, positions: dict[Partition, int]) -> Poll:
        records = {}
        for partition in self._rng.sample(PARTITIONS, self._rng.randint(1, len(PARTITIONS))):
            log = self._logs[partition]
            found = log.readable(partition, positions[partition], self._rng.randint(1, 10))
            if found:
                records[partition] = found
                positions[partition] = found[-1][0] + 1
        return Poll(records)

    def _read_all(self) -> None:
        process, positions = self._new_process(), dict.fromkeys(PARTITIONS, 0)
        while any(log.readable(partition, positions[partition], 1) for partition, log in self._logs.items()):
            invoked = self._time()
            self._add(process, Kind.OK, [self._poll(positions)], invoked)
