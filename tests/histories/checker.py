"""check(): what in a history of clients no correct Kafka cluster can have done.

A history is a list of operations.  An operation is what one process did between two moments: a transaction, or a send
or a poll outside of one.  Its actions are in their order.  Nothing else about the cluster is needed: the order of a
partition's records is that of the offsets which polls have seen and brokers have acknowledged.

Every poll is one of a consumer with isolation.level=read_committed.  Values are unique in their partition, but for
those that are sent again after their transaction was aborted.  A record is that of the send that was acknowledged with
its offset; if there is none, of a send of its value without an offset.

The names of the findings are those of Jepsen's workload for Kafka (jepsen.tests.kafka), where there is one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

#: "orders-0", in a test any name.
Partition = str
Value = Hashable
#: A place in a log.
Place = tuple[Partition, int]


class Kind(Enum):
    """How an operation ended."""

    #: It took place.
    OK = "ok"
    #: It did not take place: its sends were refused, or its transaction was aborted.
    FAIL = "fail"
    #: No answer came.
    INFO = "info"


class Send(NamedTuple):
    """offset: what the broker has answered; None if it has not, or without one."""

    partition: Partition
    value: Value
    offset: int | None = None


class Poll(NamedTuple):
    """What one call has returned: (offset, value) of each record, in the order in which it came.

    is_whole: these are all records of these partitions that are there, from the start of the log to its end.
    """

    records: Mapping[Partition, Sequence[tuple[int, Value]]]
    is_whole: bool = False


class Assign(NamedTuple):
    """The consumer reads these partitions from now on.  It keeps its positions in those that it read before."""

    partitions: Collection[Partition]


class Rebalance(NamedTuple):
    """These partitions were taken or given, or the consumer was moved in them: it may go on anywhere."""

    partitions: Collection[Partition]


Action = Send | Poll | Assign | Rebalance


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """process: one producer and one consumer, until a crash; what comes after a crash has another name.

    Times are of one clock.  completed: infinite if nothing was heard of it any more.  Operations of one process are in
    the order in which they were invoked, and may overlap if they only send.
    """

    process: Hashable
    kind: Kind
    actions: Sequence[Action]
    invoked: float
    completed: float = math.inf

    @property
    def sends(self) -> Iterator[Send]:
        return (action for action in self.actions if isinstance(action, Send))

    @property
    def polled(self) -> Iterator[tuple[Place, Value]]:
        for action in self.actions:
            if isinstance(action, Poll):
                for partition, records in action.records.items():
                    for offset, value in records:
                        yield (partition, offset), value


class Anomaly(StrEnum):
    INCONSISTENT_OFFSET = "two values at one offset"
    UNWRITTEN_READ = "a record that nobody has sent"
    ABORTED_READ = "a record of an operation that did not take place was read"
    PRECOMMITTED_READ = "a transaction has read its own record"
    FUTURE_READ = "a record was read before the operation that wrote it began"
    LOST_WRITE = "a record before one that was read was read by nobody"
    VANISHED = "a record that was acknowledged or read is not there any more"
    UNSEEN = "a record was read by nobody, nor was a later one"
    DUPLICATE = "one record at two offsets"
    INTERNAL_SKIPPED_POLL = "an operation has left records out"
    SKIPPED_POLL = "a consumer has left records out between two operations"
    INTERNAL_NONMONOTONIC_POLL = "an operation has read backwards"
    NONMONOTONIC_POLL = "a consumer went back between two operations"
    INTERNAL_NONMONOTONIC_SEND = "records of one operation are in another order than sent"
    NONMONOTONIC_SEND = "records of one process are in another order than sent"
    REALTIME_SEND = "a record comes after one that was sent once it had been acknowledged"
    READ_CYCLE = "operations that have read each other's records (G1c)"
    WRITE_CYCLE = "records of operations are in opposite orders in two partitions (G0)"
    WRITE_READ_CYCLE = "a cycle of records that follow each other, and reads (G1c)"
    ANTI_DEPENDENCY_CYCLE = "a cycle with a read that lacks a record (G2)"


#: Transactions of Kafka are atomic and not isolated: their records are written when they are sent, and their markers
#: come to one partition after the other.
LEGAL = frozenset({Anomaly.WRITE_CYCLE, Anomaly.WRITE_READ_CYCLE, Anomaly.ANTI_DEPENDENCY_CYCLE})


class Finding(NamedTuple):
    """operations: those that prove it."""

    anomaly: Anomaly
    text: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"  {operation!r:.400}" for operation in self.operations]
        return "\n".join([f"{self.anomaly}: {self.text}", *lines])


def check(history: Iterable[Operation], legal: Collection[Anomaly] = LEGAL) -> list[Finding]:
    """Every finding but those of the kinds that are legal here."""
    logs = _logs(sorted(history, key=lambda operation: operation.invoked))
    found = [finding for analysis in _ANALYSES for finding in analysis(logs) if finding.anomaly not in legal]
    return [*found, *_cycle(logs, legal)]


@dataclass(slots=True)
class _Logs:
    """What a history says about each partition's log.

    writers: of each record that was polled or whose operation took place; placed: (operation, send, place) of each send
    of an operation that took place, place None if no broker and no poll names it.
    """

    history: Sequence[Operation]
    values: dict[Place, dict[Value, Operation]] = field(default_factory=lambda: defaultdict(dict))
    readers: dict[Place, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    writers: dict[Place, Operation] = field(default_factory=dict)
    placed: list[tuple[Operation, Send, Place | None]] = field(default_factory=list)
    #: Sorted, of all records that are there.
    offsets: dict[Partition, list[int]] = field(default_factory=dict)

    def between(self, partition: Partition, low: int, high: int) -> list[int]:
        """The offsets of records after low and before high."""
        offsets = self.offsets[partition]
        return offsets[bisect_right(offsets, low) : bisect_left(offsets, high)]


def _logs(history: Sequence[Operation]) -> _Logs:
    logs = _Logs(history)
    by_offset: dict[tuple[Place, Value], Operation] = {}
    by_value: dict[tuple[Partition, Value], list[Operation]] = defaultdict(list)
    elsewhere: dict[tuple[Partition, Value], Operation] = {}
    for operation in history:
        for partition, value, offset in operation.sends:
            if offset is None:
                by_value[partition, value].append(operation)
            else:
                by_offset[(partition, offset), value] = operation
                elsewhere.setdefault((partition, value), operation)
    for operation in history:
        for place, value in operation.polled:
            logs.values[place].setdefault(value, operation)
            logs.readers[place].append(operation)
            sent = (place[0], value)
            writer = by_offset.get((place, value)) or _most_certain(by_value[sent]) or elsewhere.get(sent)
            if writer is not None:
                logs.writers[place] = writer
    _add_sends(logs)
    offsets: dict[Partition, set[int]] = defaultdict(set)
    for partition, offset in logs.values:
        offsets[partition].add(offset)
    logs.offsets = {partition: sorted(found) for partition, found in offsets.items()}
    return logs


def _most_certain(operations: Sequence[Operation]) -> Operation | None:
    order = (Kind.OK, Kind.INFO, Kind.FAIL)
    return min(operations, key=lambda operation: order.index(operation.kind), default=None)


def _add_sends(logs: _Logs) -> None:
    """Those of operations that took place: that ended well, or have a record that was read."""
    were_read = {id(writer) for writer in logs.writers.values()}
    places: dict[tuple[int, Partition, Value], Place] = {}
    for polled, writer in logs.writers.items():
        for value in logs.values[polled]:
            places[id(writer), polled[0], value] = polled
    for operation in logs.history:
        if operation.kind is Kind.OK or (operation.kind is Kind.INFO and id(operation) in were_read):
            for send in operation.sends:
                place: Place | None
                if send.offset is None:
                    place = places.get((id(operation), send.partition, send.value))
                else:
                    place = (send.partition, send.offset)
                    logs.values[place].setdefault(send.value, operation)
                    logs.writers.setdefault(place, operation)
                logs.placed.append((operation, send, place))


def _inconsistent_offsets(logs: _Logs) -> Iterator[Finding]:
    for place, by_value in logs.values.items():
        if len(by_value) > 1:
            values = ", ".join(f"{value!r:.60}" for value in by_value)
            yield Finding(Anomaly.INCONSISTENT_OFFSET, f"{_name(place)} is {values}", tuple(by_value.values()))


def _bad_reads(logs: _Logs) -> Iterator[Finding]:
    for place, readers in logs.readers.items():
        writer = logs.writers.get(place)
        for reader in _distinct(readers):
            anomaly = None
            if writer is None:
                anomaly = Anomaly.UNWRITTEN_READ
            elif writer is reader:
                anomaly = Anomaly.PRECOMMITTED_READ
            elif writer.kind is Kind.FAIL:
                anomaly = Anomaly.ABORTED_READ
            elif writer.invoked > reader.completed:
                anomaly = Anomaly.FUTURE_READ
            if anomaly is not None:
                text = f"{_name(place)}, {next(iter(logs.values[place]))!r:.60}"
                yield Finding(anomaly, text, (reader, writer) if writer not in (None, reader) else (reader,))


def _unread_writes(logs: _Logs) -> Iterator[Finding]:
    """A record that was not read although a later one of its partition was is lost; one after the last that was read
    may only be read too late."""
    last: dict[Partition, int] = {}
    for partition, offset in logs.readers:
        last[partition] = max(offset, last.get(partition, -1))
    for operation, send, place in logs.placed:
        if place is None or place not in logs.readers:
            proof = [operation]
            anomaly = Anomaly.UNSEEN
            if place is not None and place[1] < last.get(place[0], -1):
                anomaly = Anomaly.LOST_WRITE
                proof += logs.readers[place[0], last[place[0]]][:1]
            where = _name(place) if place is not None else f"{send.partition}, offset unknown"
            yield Finding(anomaly, f"{where}, {send.value!r:.60}", tuple(_distinct(proof)))


def _vanished(logs: _Logs) -> Iterator[Finding]:
    for operation in logs.history:
        for action in operation.actions:
            if isinstance(action, Poll) and action.is_whole:
                for partition, records in action.records.items():
                    there = {offset for offset, _ in records}
                    for offset in logs.offsets.get(partition, ()):
                        if offset not in there:
                            witnesses = logs.values[partition, offset].values()
                            before = [witness for witness in witnesses if witness.completed < operation.invoked]
                            if before:
                                yield Finding(Anomaly.VANISHED, _name((partition, offset)), (before[0], operation))


def _duplicates(logs: _Logs) -> Iterator[Finding]:
    places: dict[tuple[Partition, Value], list[Place]] = defaultdict(list)
    for place, by_value in logs.values.items():
        for value in by_value:
            places[place[0], value].append(place)
    for (partition, value), at in places.items():
        if len(at) > 1:
            proof = _distinct(logs.values[place][value] for place in at)
            text = f"{value!r:.60} is at {sorted(offset for _, offset in at)} of {partition}"
            yield Finding(Anomaly.DUPLICATE, text, tuple(proof))


def _polls(logs: _Logs) -> Iterator[Finding]:
    """Each consumer reads each of its partitions in order and leaves nothing out.

    An operation that did not take place has moved nobody: the next one begins where it began.
    """
    positions: dict[Hashable, dict[Partition, tuple[int, Operation]]] = defaultdict(dict)
    for operation in logs.history:
        before = positions[operation.process]
        after = dict(before)
        for action in operation.actions:
            if isinstance(action, Assign):
                forgotten = set(after) - set(action.partitions)
            elif isinstance(action, Rebalance):
                forgotten = set(action.partitions)
            else:
                forgotten = set()
            for partition in forgotten:
                after.pop(partition, None)
                before.pop(partition, None)
            if isinstance(action, Poll):
                yield from _poll(logs, operation, action, after)
        if operation.kind is Kind.OK:
            positions[operation.process] = after


def _poll(
    logs: _Logs, operation: Operation, poll: Poll, positions: dict[Partition, tuple[int, Operation]]
) -> Iterator[Finding]:
    for partition, records in poll.records.items():
        for offset, _ in records:
            if partition in positions:
                position, last = positions[partition]
                is_internal = last is operation
                proof = (operation,) if is_internal else (last, operation)
                text = f"{operation.process} reads {_name((partition, offset))} after {position}"
                if offset <= position:
                    kinds = (Anomaly.NONMONOTONIC_POLL, Anomaly.INTERNAL_NONMONOTONIC_POLL)
                    yield Finding(kinds[is_internal], text, proof)
                elif skipped := logs.between(partition, position, offset):
                    kinds = (Anomaly.SKIPPED_POLL, Anomaly.INTERNAL_SKIPPED_POLL)
                    yield Finding(kinds[is_internal], f"{text}, and not {skipped[0]} ({len(skipped)} records)", proof)
            positions[partition] = (offset, operation)


def _sends(logs: _Logs) -> Iterator[Finding]:
    """The records of one process are in each partition in the order in which it has sent them."""
    last: dict[tuple[Hashable, Partition], tuple[int, Operation]] = {}
    for operation, send, place in logs.placed:
        if place is None:
            continue
        key = (operation.process, send.partition)
        if key in last and place[1] <= last[key][0]:
            offset, before = last[key]
            text = f"{operation.process} has sent {_name(place)} after {offset}"
            if before is operation:
                yield Finding(Anomaly.INTERNAL_NONMONOTONIC_SEND, text, (operation,))
            else:
                yield Finding(Anomaly.NONMONOTONIC_SEND, text, (before, operation))
        last[key] = (place[1], operation)


def _real_time(logs: _Logs) -> Iterator[Finding]:
    for partition, offsets in logs.offsets.items():
        latest: Operation | None = None
        for offset in offsets:
            writer = logs.writers.get((partition, offset))
            if writer is None or writer.kind is Kind.FAIL:
                continue
            if latest is not None and writer.kind is Kind.OK and writer.completed < latest.invoked:
                yield Finding(Anomaly.REALTIME_SEND, _name((partition, offset)), (writer, latest))
            if latest is None or writer.invoked > latest.invoked:
                latest = writer


# -- cycles ---------------------------------------------------------------------------------------------

#: (before, after)
_Edges = Iterator[tuple[Operation | None, Operation | None]]


def _write_edges(logs: _Logs) -> _Edges:
    for partition, offsets in logs.offsets.items():
        for one, other in pairwise(offsets):
            yield logs.writers.get((partition, one)), logs.writers.get((partition, other))


def _read_edges(logs: _Logs) -> _Edges:
    for place, readers in logs.readers.items():
        for reader in readers:
            yield logs.writers.get(place), reader


def _lack_edges(logs: _Logs) -> _Edges:
    """From who has not read a record yet to who has written it."""
    for operation in logs.history:
        ends: dict[Partition, int] = {}
        for (partition, offset), _ in operation.polled:
            ends[partition] = max(offset, ends.get(partition, -1))
        for partition, end in ends.items():
            offsets = logs.offsets[partition]
            at = bisect_right(offsets, end)
            if at < len(offsets):
                yield operation, logs.writers.get((partition, offsets[at]))


_CYCLES = {
    Anomaly.READ_CYCLE: (_read_edges,),
    Anomaly.WRITE_CYCLE: (_write_edges,),
    Anomaly.WRITE_READ_CYCLE: (_write_edges, _read_edges),
    Anomaly.ANTI_DEPENDENCY_CYCLE: (_write_edges, _read_edges, _lack_edges),
}


def _cycle(logs: _Logs, legal: Collection[Anomaly]) -> Iterator[Finding]:
    """The first one of the strictest kind: each of the others may have it in it."""
    for anomaly, sources in _CYCLES.items():
        if anomaly in legal:
            continue
        before: dict[Operation, set[Operation]] = defaultdict(set)
        for source in sources:
            for one, other in source(logs):
                if one is not None and other is not None and one is not other:
                    before[other].add(one)
        try:
            # What follows nothing is in no cycle.
            TopologicalSorter({operation: others & before.keys() for operation, others in before.items()}).prepare()
        except CycleError as error:
            cycle = _distinct(error.args[1])
            yield Finding(anomaly, f"{len(cycle)} operations", tuple(cycle))
            return


def _distinct(operations: Iterable[Operation]) -> list[Operation]:
    return list(dict.fromkeys(operations))


def _name(place: Place) -> str:
    return f"{place[0]}@{place[1]}"


_ANALYSES = (_inconsistent_offsets, _bad_reads, _unread_writes, _vanished, _duplicates, _polls, _sends, _real_time)
