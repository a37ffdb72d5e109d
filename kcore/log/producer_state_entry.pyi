"""ProducerStateEntry: what a log knows of one producer."""

from collections.abc import Sequence
from typing import NamedTuple

from kcore.record.record_batch import RecordBatch

NO_PRODUCER_EPOCH: int
NO_SEQUENCE: int

class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int  # the batch's maximum, ms

    @property
    def first_sequence(self) -> int: ...
    @property
    def first_offset(self) -> int: ...

class ProducerStateEntry:
    """One producer.  Immutable, so that an append can prepare a new state and drop it again."""

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = ...,
        batches: Sequence[tuple[int, int, int, int]] = ...,  # as BatchMetadata, oldest first; the last five are kept
        last_timestamp: int = ...,
        coordinator_epoch: int = ...,
        current_txn_first_offset: int | None = ...,
    ) -> None: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def batches(self) -> tuple[BatchMetadata, ...]: ...  # oldest first, at most five
    @property
    def last_batch(self) -> BatchMetadata | None: ...
    @property
    def last_sequence(self) -> int: ...  # NO_SEQUENCE without a batch
    @property
    def expected_sequence(self) -> int: ...  # of the next batch in the same epoch
    @property
    def last_timestamp(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int: ...
    @property
    def current_txn_first_offset(self) -> int | None: ...
    def find_duplicate(self, batch: RecordBatch) -> BatchMetadata | None:
        """The batch already in the log that this one repeats."""

    def with_batch(self, batch: RecordBatch, current_txn_first_offset: int | None) -> ProducerStateEntry:
        """The state after a data batch, whose offsets are those of the log."""

class ProducerStates:
    """The base of ProducerStateManager: what every append with a producer id looks at."""

    #: By producer id.
    producers: dict[int, ProducerStateEntry]
