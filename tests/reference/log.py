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
    timestamps: list[int] = field(default_factory=list)
    is_transactional: bool = False
    marker: str | None = None  # "COMMIT" or "ABORT"
    producer_epoch: int = -1

    @property
    def last_offset(self) -> int:
        return self.base_offset + len(self.values) - 1


@dataclass
class ReferenceTxn:
    producer_id: int
    first_offset: int
    last_data_offset: int
    marker_offset: int | None = None
    is_aborted: bool = False
    last_stable_offset: int | None = None  # when the marker was written


@dataclass
class ReferenceLog:
    batches: list[ReferenceBatch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def data_end(self):
        """Of the last batch; the log end may be beyond it."""
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def append_as_leader(self, values, epoch, producer_id=-1, base_sequence=-1, **fields):
        """The first offset given."""
        return self._append(ReferenceBatch(self.end, list(values), epoch, producer_id, base_sequence, **fields))

    def append_as_follower(self, base_offset, values, epoch, producer_id=-1, base_sequence=-1, **fields):
        assert base_offset >= self.end
        return self._append(ReferenceBatch(base_offset, list(values), epoch, producer_id, base_sequence, **fields))

    def _append(self, batch):
        if not self.epochs or self.epochs[-1][0] != batch.epoch:
            self.epochs = [e for e in self.epochs if e[0] < batch.epoch and e[1] < batch.base_offset]
            self.epochs.append((batch.epoch, batch.base_offset))
        self.batches.append(batch)
        self.end = batch.last_offset + 1
        return batch.base_offset

    def records(self):
        """(offset, value, epoch) of every record from the log start on, markers included."""
        return [
            (batch.base_offset + i, value, batch.epoch)
            for batch in self.batches
            for i, value in enumerate(batch.values)
            if batch.base_offset + i >= self.start
        ]

    def first_at_or_after(self, timestamp):
        """(timestamp, offset, epoch) of the first record with at least this timestamp; None if there is none."""
        for batch in self.batches:
            for i, batch_timestamp in enumerate(batch.timestamps):
                if batch_timestamp >= timestamp and batch.base_offset + i >= self.start:
                    return batch_timestamp, batch.base_offset + i, batch.epoch
        return None

    def last_sequence(self, producer_id, from_offset=0):
        """Sequence of the producer's last record at or above from_offset; -1 if it has none."""
        for batch in reversed(self.batches):
            if batch.producer_id == producer_id and batch.marker is None and batch.last_offset >= from_offset:
                return batch.base_sequence + len(batch.values) - 1
        return -1

    # -- transactions ---------------------------------------------------------------------------------------------

    def transactions(self, from_offset=0):
        """Every transaction with data at or above from_offset, in the order of their first offsets."""
        aborted, ongoing = [], {}
        for batch in self.batches:
            if batch.last_offset < from_offset:
                continue
            if batch.marker is not None:
                txn = ongoing.pop(batch.producer_id, None)
                if txn is not None:
                    txn.marker_offset, txn.is_aborted = batch.base_offset, batch.marker == "ABORT"
                    others = [other.first_offset for other in ongoing.values()]
                    txn.last_stable_offset = min([*others, batch.base_offset + 1])
            elif batch.is_transactional:
                txn = ongoing.get(batch.producer_id)
                if txn is None:
                    txn = ongoing[batch.producer_id] = ReferenceTxn(batch.producer_id, batch.base_offset, -1)
                    aborted.append(txn)
                txn.last_data_offset = batch.last_offset
        return aborted

    def last_stable_offset(self, high_watermark, from_offset=0):
        """HW-06, for a log whose state begins at from_offset."""
        unstable = [
            max(txn.first_offset, self.start)
            for txn in self.transactions(from_offset)
            if txn.marker_offset is None or txn.marker_offset >= high_watermark
        ]
        return min([*unstable, high_watermark])

    def committed(self, limit):
        """Offsets of the records below limit that a committed reader gets."""
        aborted = [txn for txn in self.transactions() if txn.is_aborted]
        return [
            offset
            for batch in self.batches
            if batch.marker is None
            and not (
                batch.is_transactional
                and any(
                    txn.producer_id == batch.producer_id and txn.first_offset <= batch.base_offset < txn.marker_offset
                    for txn in aborted
                )
            )
            for offset in range(max(batch.base_offset, self.start), batch.last_offset + 1)
            if batch.last_offset < limit
        ]

    # -- shrinking ------------------------------------------------------------------------------------------------

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
