"""ProducerStateEntry: what a log knows of one producer, and what most batches need of it, without an object of theirs.

Source: ProducerStateEntry, Kafka 2.4-4.x; KIP-98.
"""

from collections import namedtuple

cimport cython
from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kcore.record.record_batch cimport KC_ATTR_CONTROL, KC_ATTR_TRANSACTIONAL, RecordBatch, kc_batch, last_sequence_of

NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class BatchMetadata(namedtuple("BatchMetadata", "last_sequence last_offset offset_delta timestamp")):
    """A batch that a producer wrote; timestamp is its maximum."""

    __slots__ = ()

    @property
    def first_sequence(self):
        return (self.last_sequence - self.offset_delta) & INT32_MAX

    @property
    def first_offset(self):
        return self.last_offset - self.offset_delta


cdef inline void write_batch(written_batch *written, const kc_batch *row) noexcept:
    written.last_sequence = last_sequence_of(row)
    written.last_offset = row.last_offset
    written.offset_delta = <int32_t>(row.last_offset - row.base_offset)
    written.timestamp = row.max_timestamp


@cython.final
@cython.freelist(16)
@cython.no_gc
cdef class ProducerStateEntry:
    """One producer: its epoch, its last five batches, the transaction that is open.

    Immutable, so that an append can prepare a new state and drop it again.  Of batches the last five are kept.
    """

    def __init__(
        self,
        int64_t producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        batches=(),
        last_timestamp=-1,
        coordinator_epoch=-1,
        current_txn_first_offset=None,
    ):
        cdef written_batch *written
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.open_txn = -1 if current_txn_first_offset is None else current_txn_first_offset
        self.batch_count = 0
        for last_sequence, last_offset, offset_delta, timestamp in batches[-BATCHES_KEPT:]:
            written = &self.written[self.batch_count]
            written.last_sequence = last_sequence
            written.last_offset = last_offset
            written.offset_delta = offset_delta
            written.timestamp = timestamp
            self.batch_count += 1

    cdef object metadata(self, int index):
        cdef written_batch *written = &self.written[index]
        return BatchMetadata(
            written.last_sequence, written.last_offset, written.offset_delta, written.timestamp
        )

    @property
    def batches(self):
        """The last ones, oldest first, at most five."""
        return tuple([self.metadata(i) for i in range(self.batch_count)])

    @property
    def last_batch(self):
        return self.metadata(self.batch_count - 1) if self.batch_count else None

    @property
    def last_sequence(self):
        return self.written[self.batch_count - 1].last_sequence if self.batch_count else NO_SEQUENCE

    @property
    def expected_sequence(self):
        """What the next batch of the same epoch has to begin with."""
        return self.next_sequence()

    @property
    def current_txn_first_offset(self):
        return None if self.open_txn < 0 else self.open_txn

    def find_duplicate(self, RecordBatch batch not None):
        """The batch already in the log that this one repeats."""
        cdef int index = self.find(&batch.row)
        return None if index < 0 else self.metadata(index)

    def with_batch(self, RecordBatch batch not None, current_txn_first_offset):
        """The state after a data batch, whose offsets are those of the log."""
        return self.followed_by(&batch.row, -1 if current_txn_first_offset is None else current_txn_first_offset)

    cdef int32_t next_sequence(self) noexcept:
        return ((self.written[self.batch_count - 1].last_sequence if self.batch_count else -1) + <int64_t>1) & INT32_MAX

    cdef int find(self, const kc_batch *row) noexcept:
        """Which of the batches this one repeats, -1 for none."""
        cdef int32_t last_sequence = last_sequence_of(row)
        cdef const written_batch *written
        cdef int i
        if row.producer_epoch == self.producer_epoch:
            for i in range(self.batch_count):
                written = &self.written[i]
                if written.last_sequence == last_sequence and (
                    (written.last_sequence - <int64_t>written.offset_delta) & INT32_MAX
                ) == row.base_sequence:
                    return i
        return -1

    cdef bint is_continued_by(self, const kc_batch *row) noexcept:
        """Whether a client's batch can follow without further checks: data of the same epoch and the next sequence that
        neither begins a transaction nor contradicts the open one."""
        return (
            row.producer_epoch == self.producer_epoch
            and not row.attributes & KC_ATTR_CONTROL
            and (row.attributes & KC_ATTR_TRANSACTIONAL != 0) == (self.open_txn >= 0)
            and row.base_sequence == self.next_sequence()
            and self.find(row) < 0
        )

    cdef bint accepts_replicated(self, int16_t producer_epoch, bint is_transactional) noexcept:
        """Whether replicated data batches can follow without further checks: same epoch, and no transaction starts with
        them.  is_transactional: one of them at least.  Sequences are not checked: the leader has accepted them."""
        return producer_epoch == self.producer_epoch and (not is_transactional or self.open_txn >= 0)

    cdef ProducerStateEntry followed_by(self, const kc_batch *row, int64_t open_txn):
        """with_batch() for native callers."""
        cdef ProducerStateEntry entry = ProducerStateEntry.__new__(ProducerStateEntry)
        cdef int dropped = self.batch_count == BATCHES_KEPT
        cdef int i
        entry.batch_count = 0
        if row.producer_epoch == self.producer_epoch:
            for i in range(dropped, self.batch_count):
                entry.written[entry.batch_count] = self.written[i]
                entry.batch_count += 1
        write_batch(&entry.written[entry.batch_count], row)
        entry.batch_count += 1
        entry.producer_id = self.producer_id
        entry.producer_epoch = row.producer_epoch
        entry.last_timestamp = row.max_timestamp
        entry.coordinator_epoch = self.coordinator_epoch
        entry.open_txn = open_txn
        return entry

    cdef ProducerStateEntry followed_by_batches(self, const kc_batch **batches, int count, int64_t open_txn):
        """The state after 1 to BATCHES_KEPT data batches of one epoch, the last of those that were appended."""
        cdef ProducerStateEntry entry = ProducerStateEntry.__new__(ProducerStateEntry)
        cdef const kc_batch *row = batches[count - 1]
        cdef int i
        entry.batch_count = 0
        if row.producer_epoch == self.producer_epoch:
            for i in range(max(0, self.batch_count - (BATCHES_KEPT - count)), self.batch_count):
                entry.written[entry.batch_count] = self.written[i]
                entry.batch_count += 1
        for i in range(count):
            write_batch(&entry.written[entry.batch_count], batches[i])
            entry.batch_count += 1
        entry.producer_id = self.producer_id
        entry.producer_epoch = row.producer_epoch
        entry.last_timestamp = row.max_timestamp
        entry.coordinator_epoch = self.coordinator_epoch
        entry.open_txn = open_txn
        return entry

    def _fields(self):
        return (
            self.producer_id,
            self.producer_epoch,
            self.batches,
            self.last_timestamp,
            self.coordinator_epoch,
            self.current_txn_first_offset,
        )

    def __eq__(self, other):
        return isinstance(other, ProducerStateEntry) and self._fields() == other._fields()

    def __repr__(self):
        return "ProducerStateEntry({!r}, {!r}, {!r}, {!r}, {!r}, {!r})".format(*self._fields())


cdef class ProducerStates:
    """The base of ProducerStateManager: its producers by their ids, which every append with a producer id looks at."""

    def __init__(self):
        self.producers = {}
