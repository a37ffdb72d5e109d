"""PartitionHistory: what all clients of one partition have sent and seen, kept in little memory for the checker of
histories.

A partition is a list to which records are appended.  It is linear if each record has one place in it that every reader
sees, now and later, and if a record that was sent after another's acknowledgement comes after that one.

Each record is there once as long as its producer keeps its epoch.  A client that goes on under a higher epoch sends
again what was never answered, with new sequence numbers: no broker can tell that from new records.  librdkafka does so
for all partitions as soon as one broker refuses a sequence, which is often its own fault: while a partition moves to
another leader it may send a second batch there before the first, which the old leader has just refused.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kcore.record.record_batch import RecordBatch
from tests.histories.checker import Kind, Operation, Poll, Send, check

#: A fault is reported at most so many times for each partition.
MAX_FAULTS = 20
#: The offset of an acknowledgement that says "I have this already", and not where.
UNKNOWN_OFFSET = -1


class Acknowledgement(NamedTuple):
    offset: int
    time: float


def value_of(producer: str, number: int) -> bytes:
    """The record that a producer sends as its number-th to a partition; of different sizes."""
    return b"%s:%d:%s" % (producer.encode(), number, b"." * (number * 37 % 199))


def producer_and_number(value: bytes) -> tuple[str, int]:
    """Raises ValueError for another value than value_of() returns."""
    producer, number, _ = value.split(b":")
    return producer.decode(), int(number)


class PartitionHistory:
    """Thread-safe.  Times are of one clock, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: What was wrong with what a reader saw.
        self.faults: list[str] = []
        #: The value at each offset, as the first reader has seen it.
        self.values: list[bytes] = []
        self._sent: dict[str, array[float]] = {}
        self._acknowledged: dict[str, dict[int, Acknowledgement]] = {}
        self._high_watermarks: dict[str, int] = {}
        self._lock = threading.Lock()

    # -- producers --------------------------------------------------------------------------------------

    def send(self, producer: str, now: float) -> bytes:
        """The next value of this producer, which sends it after the call."""
        times = self._sent.setdefault(producer, array("d"))
        times.append(now)
        return value_of(producer, len(times) - 1)

    def acknowledge(self, value: bytes, offset: int, now: float) -> None:
        producer, number = producer_and_number(value)
        offset = max(offset, UNKNOWN_OFFSET)
        acknowledged = self._acknowledged.setdefault(producer, {})
        if number in acknowledged:
            self._fault(f"{producer}:{number} is acknowledged twice, at {acknowledged[number].offset} and {offset}")
        acknowledged[number] = Acknowledgement(offset, now)

    def acknowledged(self, producer: str) -> int:
        return len(self._acknowledged.get(producer, ()))

    @property
    def all_acknowledged(self) -> int:
        return sum(map(len, self._acknowledged.values()))

    @property
    def without_offset(self) -> int:
        """Records that were acknowledged as duplicates, without an offset."""
        return sum(a.offset == UNKNOWN_OFFSET for by_number in self._acknowledged.values() for a in by_number.values())

    # -- readers ----------------------------------------------------------------------------------------

    def read(self, reader: str, offset: int, value: bytes) -> None:
        """A reader, which has read everything up to this offset or begins at one that another has read, sees this."""
        with self._lock:
            if offset == len(self.values):
                self.values.append(value)
            elif offset > len(self.values):
                self._fault(f"{reader} reads offset {offset}, and nobody has seen those from {len(self.values)} on")
            elif self.values[offset] != value:
                self._fault(f"{reader} reads {value[:40]!r} at {offset}, where {self.values[offset][:40]!r} was read")

    def high_watermark(self, reader: str, high_watermark: int) -> None:
        """A reader asks for the end of what can be read, and gets this."""
        before = self._high_watermarks.get(reader, 0)
        if high_watermark < before:
            self._fault(f"{reader} sees the high watermark {high_watermark} after {before}")
        self._high_watermarks[reader] = max(before, high_watermark)

    def fault(self, text: str) -> None:
        self._fault(text)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(f"{self.name}: {text}")

    # -- at the end -------------------------------------------------------------------------------------

    def faults_beside(self, log: Mapping[int, bytes], new_epochs: Collection[int] = ()) -> list[str]:
        """What the clients have seen and this log, offset to value, contradicts; with the faults seen before.

        new_epochs: offsets at which a producer goes on under a higher epoch, of epoch_starts().
        """
        found = [*dense_offset_faults(log), *self._gaps(log), *map(str, check(self._operations(log, new_epochs)))]
        return [*self.faults, *(f"{self.name}: {text}" for text in found[:MAX_FAULTS])]

    def _gaps(self, log: Mapping[int, bytes]) -> Iterator[str]:
        """A producer that gives up nothing leaves nothing out, acknowledged or not."""
        numbers: dict[str, set[int]] = {}
        for value in log.values():
            producer, number = producer_and_number(value)
            numbers.setdefault(producer, set()).add(number)
        for producer, there in numbers.items():
            if missing := sorted(set(range(max(there))) - there):
                yield f"{producer}:{max(there)} is there, and {producer}:{missing[0]} is not"

    def _operations(self, log: Mapping[int, bytes], new_epochs: Collection[int]) -> Iterator[Operation]:
        """Each send, what the readers have read, and the whole log in the end, but for _earlier_copies()."""
        for producer, times in self._sent.items():
            acknowledged = self._acknowledged.get(producer, {})
            for number, time in enumerate(times):
                answer = acknowledged.get(number)
                kind = Kind.INFO if answer is None else Kind.OK
                offset = None if answer is None or answer.offset == UNKNOWN_OFFSET else answer.offset
                send = Send(self.name, value_of(producer, number), offset)
                yield Operation(producer, kind, (send,), time, math.inf if answer is None else answer.time)
        end = max((times[-1] for times in self._sent.values()), default=0.0)
        end = max([end, *(a.time for by_number in self._acknowledged.values() for a in by_number.values())])
        earlier = self._earlier_copies(log, new_epochs)
        for reader, records in (("readers", enumerate(self.values)), ("the log", sorted(log.items()))):
            left = [record for record in records if record[0] not in earlier]
            poll = Poll({self.name: left}, is_whole=reader == "the log")
            yield Operation(reader, Kind.OK, (poll,), end + 1, end + 2)
            end += 2

    def _earlier_copies(self, log: Mapping[int, bytes], new_epochs: Collection[int]) -> set[int]:
        """The offsets of records that their producer has sent again under a new epoch, because they were not
        acknowledged there."""
        found = set()
        epoch_begins: dict[str, int] = {}
        last: dict[tuple[str, int], int] = {}
        for offset in sorted(log):
            producer, number = producer_and_number(log[offset])
            if offset in new_epochs:
                epoch_begins[producer] = offset
            copy = last.get((producer, number))
            if copy is not None and copy < epoch_begins.get(producer, -1):
                answer = self._acknowledged.get(producer, {}).get(number)
                if answer is None or answer.offset != copy:
                    found.add(copy)
            last[producer, number] = offset
        return found


def dense_offset_faults(log: Mapping[int, bytes]) -> list[str]:
    """Every offset from 0 on has a record: nothing was deleted, compacted or part of a transaction."""
    missing = [offset for offset in range(max(log, default=-1) + 1) if offset not in log]
    return [f"the log has no offset {missing[0]}, nor {len(missing) - 1} others"] if missing else []


def epoch_starts(batches: Iterable[RecordBatch]) -> tuple[set[int], list[str]]:
    """The offsets at which a producer goes on under a higher epoch, and what no broker may have accepted: a sequence
    number that does not follow on the one before it, or an epoch after a higher one."""
    starts: set[int] = set()
    found: list[str] = []
    last: dict[int, tuple[int, int]] = {}
    for batch in batches:
        epoch, sequence = last.get(batch.producer_id, (batch.producer_epoch, -1))
        if batch.producer_epoch > epoch:
            starts.add(batch.base_offset)
            sequence = -1
        if batch.producer_epoch < epoch or batch.base_sequence != sequence + 1:
            text = f"epoch {batch.producer_epoch}, sequence {batch.base_sequence} at {batch.base_offset}"
            found.append(f"producer {batch.producer_id}: {text}, after epoch {epoch}, sequence {sequence}")
        last[batch.producer_id] = batch.producer_epoch, batch.last_sequence
    return starts, found
