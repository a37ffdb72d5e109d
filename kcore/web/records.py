"""Records to show, and what a page needs of whatever they are read from: a cluster or the files of a log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kcore.record.record_batch import Record, RecordBatch

#: Of one page; after so many bytes of records it has no more.
MOST_BYTES = 4 << 20
#: Of one page; more are not shown.
MOST_PROBLEMS = 100
NO_END = (1 << 63) - 1


class ShownRecord(NamedTuple):
    """is_control: a marker of a transaction, no record of a producer."""

    record: Record
    is_control: bool


@dataclass
class Slice:
    """Records from an offset on.  next_offset: where the next page begins.  problems: what could not be read between
    them, each with its offset if that is known."""

    records: list[ShownRecord] = field(default_factory=list)
    next_offset: int = 0
    problems: list[tuple[int | None, str]] = field(default_factory=list)


class Bounds(NamedTuple):
    """Of a log: its first offset, and the one after its last."""

    start: int
    end: int


class PartitionRecords(Protocol):
    """Reads a partition.  Its methods raise OSError, KafkaError."""

    def bounds(self) -> Bounds: ...

    def offset_at(self, timestamp_ms: int) -> int:
        """Of the first record of at least that time; the end if there is none."""
        ...

    def read(self, offset: int, most: int) -> Slice:
        """At most so many records from the offset on."""
        ...


class Taker:
    """Takes records out of batches, from an offset on, until there are enough or an end is reached."""

    def __init__(self, offset: int, most: int, end: int = NO_END) -> None:
        self.slice = Slice(next_offset=offset)
        self._most = most
        self._end = end
        self._left_bytes = MOST_BYTES

    def add_problem(self, offset: int | None, text: str) -> None:
        if len(self.slice.problems) < MOST_PROBLEMS:
            self.slice.problems.append((offset, text))

    @property
    def is_full(self) -> bool:
        found = self.slice
        return len(found.records) >= self._most or self._left_bytes <= 0 or found.next_offset >= self._end

    def take(self, batch: RecordBatch) -> None:
        """Raises KafkaError for a batch whose records cannot be read."""
        for record in batch.records():
            if self.is_full:
                return
            if self.slice.next_offset <= record.offset < self._end:
                self.slice.records.append(ShownRecord(record, batch.is_control))
                self.slice.next_offset = record.offset + 1
                self._left_bytes -= len(record.key or b"") + len(record.value or b"")
        if not self.is_full:
            self.slice.next_offset = max(self.slice.next_offset, batch.last_offset + 1)
