"""A log as a list of batches: the slow, obvious model that UnifiedLog is held against."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ReferenceBatch:
    base_offset: int
    values: list[bytes]
    epoch: int
    producer_id: int = -1
    base_sequence: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + len(self.values) - 1


@dataclass
class ReferenceLog:
    batches: list[ReferenceBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)

    def append_as_leader(self, values, epoch, producer_id=-1, base_sequence=-1):
        """The first offset given."""
        return self._append(ReferenceBatch(self.end, list(values), epoch, producer_id, base_sequence))

    def append_as_follower(self, base_offset, values, epoch):
        assert base_offset >= self.end
        return self._append(ReferenceBatch(base_offset, list(values), epoch))

    def _append(self, batch):
        if not self.epochs or self.epochs[-1][0] != batch.epoch:
            self.epochs = [e for e in self.epochs if e[0] < batch.epoch and e[1] < batch.base_offset]
            self.epochs.append((batch.epoch, batch.base_offset))
        self.batches.append(batch)
        self.end = batch.last_offset + 1
        return batch.base_offset

    def records(self):
        """(offset, value, epoch) of every record from the log start on."""
        return [
            (batch.base_offset + i, value, batch.epoch)
            for batch in self.batches
            for i, value in enumerate(batch.values)
            if batch.base_offset + i >= self.start
        ]

    def last_sequence(self, producer_id, from_offset=0):
        """Sequence of the producer's last record at or above from_offset; -1 if it has none."""
        for batch in reversed(self.batches):
            if batch.producer_id == producer_id and batch.last_offset >= from_offset:
                return batch.base_sequence + len(batch.values) - 1
        return -1

    def truncate_to(self, offset):
        self.epochs = [e for e in self.epochs if e[1] < min(offset, self.end)]
        if offset < self.end:
            self.batches = [batch for batch in self.batches if batch.last_offset < offset]
            self.end = offset
            self.start = min(self.start, offset)

    def truncate_fully_and_start_at(self, offset):
        self.batches, self.epochs = [], []
        self.start = self.end = offset

    def increment_start(self, offset):
        if offset > self.start:
            self.start = offset
            below = [e for e in self.epochs if e[1] <= offset]
            above = [e for e in self.epochs if e[1] > offset]
            self.epochs = ([(below[-1][0], offset)] if below else []) + above
