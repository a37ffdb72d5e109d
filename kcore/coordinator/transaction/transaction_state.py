"""The state of one transactional id, and what each request and each limit of time makes of it.

Rules over values: nothing here reads a clock, takes a lock or writes.  A rule gets the present state and raises an
ApiError, or returns the state to be written next; where it returns the present one there is nothing to write.
A client of transaction version 2 gets another epoch with each end of a transaction (KIP-890); with the versions 0 and 1
the epoch stays, and what arrives late is taken for a part of the next transaction.
Source: TransactionMetadata, TransactionCoordinator, Kafka 3.9 and 4.x (KIP-98, 360, 588, 890).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from kcore.common.topic_partition import TopicPartition
from kcore.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
)

NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1
#: Of a transaction that waits for as long as its producer likes (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1
MAX_EPOCH = 2**15 - 1

#: The highest level of the feature transaction.version.  A client that uses it says so by the versions of its requests.
TRANSACTION_VERSION = 2


class TransactionState(enum.IntEnum):
    """Numbers as in the records of __transaction_state; the last two are never written."""

    EMPTY = 0  # no transaction yet
    ONGOING = 1  # has partitions; the producer may write
    PREPARE_COMMIT = 2  # decided; markers are being written
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4  # all markers are written
    COMPLETE_ABORT = 5
    DEAD = 6  # being removed
    PREPARE_EPOCH_FENCE = 7  # its producer is fenced, then the transaction is aborted

    @property
    def shown(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_AT_REST = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

#: State -> the states it may be entered from.  Source: TransactionMetadata.validPreviousStates, Kafka 4.x.
VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: _AT_REST,
    TransactionState.ONGOING: _AT_REST | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # From a state at rest: an abort without partitions, which only raises the epoch (transaction version 2).
    TransactionState.PREPARE_ABORT: _AT_REST | {TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _AT_REST,
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.ONGOING}),
}


class Producer(NamedTuple):
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """What a coordinator knows of a transactional id.  Times in ms since the epoch, -1 for none.

    producer_epoch: -1 before the first one is given out.  previous_producer_id, last_producer_epoch: those that a
    repeated InitProducerId may still name, -1 where it may not.
    has_failed_epoch_fence: producer_epoch was raised for a fence that could not be written; nobody has been told of it.
    next_producer_id: what the producer goes on with, in epoch 0, after a transaction that has used up the last epoch
    and has not ended yet; -1 otherwise.
    client_transaction_version: of the producer, as far as its last request about the transaction told; 0 for 1 too.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_timestamp: int = -1
    last_update_timestamp: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    has_failed_epoch_fence: bool = False
    next_producer_id: int = NO_PRODUCER_ID
    client_transaction_version: int = 0

    @property
    def raises_epoch(self) -> bool:
        """Whether the epoch rises with the end of the transaction."""
        return self.client_transaction_version >= TRANSACTION_VERSION

    @property
    def next_producer(self) -> Producer:
        """The id and epoch of the producer's next transaction; the answer to EndTxn has them."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how the transaction ends, and it has not ended."""
        return self.state in _PREPARED

    @property
    def is_commit(self) -> bool:
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    def entering(self, state: TransactionState, now_ms: int) -> TransactionMetadata:
        """The same in its next state.  A state that cannot follow is an AssertionError."""
        previous = VALID_PREVIOUS_STATES[state]
        assert self.state in previous, f"{self.transactional_id} cannot go from {self.state.name} to {state.name}"
        return replace(self, state=state, last_update_timestamp=now_ms, has_failed_epoch_fence=False)


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether no producer may get a higher one: the last is left for a fence."""
    return epoch >= MAX_EPOCH - 1


def check_timeout(transactional_id: str, timeout_ms: int, max_timeout_ms: int) -> None:
    """Raises InvalidTransactionTimeout."""
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeout(
            f"{transactional_id}: a timeout of {timeout_ms} ms, "
            f"expected 1 to transaction.max.timeout.ms, which is {max_timeout_ms}"
        )


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def init_producer_id(
    current: TransactionMetadata,
    is_pending: bool,
    expected: Producer | None,
    timeout_ms: int,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> TransactionMetadata:
    """A producer begins to use the id.  expected: what it says that it has, None where it is new.

    In PREPARE_EPOCH_FENCE if the last producer's transaction is to be aborted first, by abort_fenced().
    Raises ConcurrentTransactions, ProducerFenced, and what new_producer_id() raises.
    """
    if is_pending or _is_awaited(current, expected):
        raise ConcurrentTransactions(current.transactional_id)
    if expected is not None and not _may_go_on(current, expected):
        raise ProducerFenced(f"{current.transactional_id}: {expected} is not {_producer_of(current)}")
    if current.is_prepared:
        raise ConcurrentTransactions(current.transactional_id)
    if current.state is TransactionState.ONGOING:
        return fence(current)
    begun = replace(
        current.entering(TransactionState.EMPTY, now_ms),
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_timestamp=-1,
    )
    epoch = current.producer_epoch
    if is_epoch_exhausted(epoch) and (expected is None or expected.epoch == epoch):
        return replace(
            begun,
            producer_id=new_producer_id(),
            producer_epoch=0,
            previous_producer_id=current.producer_id,
            last_producer_epoch=NO_PRODUCER_EPOCH if expected is None else epoch,
        )
    next_epoch = epoch if current.has_failed_epoch_fence else epoch + 1
    if expected is None:
        return replace(begun, producer_epoch=next_epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
    if epoch in (NO_PRODUCER_EPOCH, expected.epoch):
        return replace(begun, producer_epoch=next_epoch, last_producer_epoch=epoch)
    if expected.epoch == current.last_producer_epoch:
        return begun  # the answer to the same request was lost: the same again
    raise ProducerFenced(f"{current.transactional_id}: {expected} is not {_producer_of(current)}")


def _may_go_on(current: TransactionMetadata, expected: Producer) -> bool:
    """By its producer id; the epoch is compared later."""
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH  # expired here: the producer gets a new id
        or expected.producer_id == current.producer_id
        or (expected.producer_id == current.previous_producer_id and is_epoch_exhausted(expected.epoch))
    )


def _is_awaited(current: TransactionMetadata, producer: Producer | None) -> bool:
    """Whether the producer has its next id already, which counts once the transaction before has ended."""
    return current.next_producer_id != NO_PRODUCER_ID and producer == current.next_producer


def _producer_of(current: TransactionMetadata) -> Producer:
    return Producer(current.producer_id, current.producer_epoch)


def fence(current: TransactionMetadata) -> TransactionMetadata:
    """Raise the epoch, so that the producer of the transaction can do nothing any more.  Of a state that is ONGOING."""
    epoch = current.producer_epoch if current.has_failed_epoch_fence else current.producer_epoch + 1
    assert epoch <= MAX_EPOCH, f"{current.transactional_id}: no epoch is left to fence {_producer_of(current)}"
    return replace(
        current.entering(TransactionState.PREPARE_EPOCH_FENCE, current.last_update_timestamp),
        producer_epoch=epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )


def abort_fenced(fenced: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """With version 2 the abort raises the epoch once more, as any end does: so the fenced producer, whose epoch is two
    below then, cannot be taken for one that repeats its EndTxn."""
    aborting = fenced.entering(TransactionState.PREPARE_ABORT, now_ms)
    if aborting.raises_epoch:
        return replace(aborting, producer_epoch=min(aborting.producer_epoch + 1, MAX_EPOCH))
    return aborting


def fence_in_force(fenced: TransactionMetadata) -> TransactionMetadata:
    """What counts while the abort is written, and after that if it could not be."""
    return replace(fenced, state=TransactionState.ONGOING, has_failed_epoch_fence=True)


# -- the transaction ---------------------------------------------------------------------------------------------------


def _check_producer(current: TransactionMetadata, is_pending: bool, producer: Producer) -> None:
    if is_pending:
        raise ConcurrentTransactions(current.transactional_id)
    if producer.producer_id != current.producer_id:
        raise InvalidProducerIdMapping(f"{current.transactional_id}: {producer} is not {_producer_of(current)}")
    if producer.epoch != current.producer_epoch:
        raise ProducerFenced(f"{current.transactional_id}: {producer} is not {_producer_of(current)}")


def add_partitions(
    current: TransactionMetadata,
    is_pending: bool,
    producer: Producer,
    partitions: Set[TopicPartition],
    now_ms: int,
    client_transaction_version: int = 0,
) -> TransactionMetadata:
    """The producer is about to write to them.

    Raises ConcurrentTransactions, InvalidProducerIdMapping, ProducerFenced.
    """
    _check_producer(current, is_pending or _is_awaited(current, producer), producer)
    if current.is_prepared:
        raise ConcurrentTransactions(current.transactional_id)
    if current.state is TransactionState.ONGOING:
        if partitions <= current.partitions:
            return current
        start_timestamp = current.start_timestamp
    else:
        start_timestamp = now_ms
    return replace(
        current.entering(TransactionState.ONGOING, now_ms),
        partitions=current.partitions | partitions,
        start_timestamp=start_timestamp,
        client_transaction_version=client_transaction_version,
    )


def missing_partitions(
    current: TransactionMetadata, producer: Producer, partitions: Set[TopicPartition]
) -> Set[TopicPartition]:
    """Those that the producer has not added to its transaction: what the leader of a partition asks before it writes
    (KIP-890).  A change that is being written does not matter, as the marker that follows it ends what the leader asks
    for.  Raises InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions.
    """
    _check_producer(current, False, producer)
    if current.is_prepared:
        raise ConcurrentTransactions(current.transactional_id)
    return partitions - current.partitions


#: What a repeated EndTxn finds: the end that it asks for is on its way, or reached.
_PREPARING = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


def end(
    current: TransactionMetadata, is_pending: bool, producer: Producer, is_commit: bool, now_ms: int
) -> TransactionMetadata:
    """The producer, of transaction version 0 or 1, commits or aborts.

    Raises ConcurrentTransactions, InvalidProducerIdMapping, ProducerFenced, InvalidTxnState.
    """
    _check_producer(current, is_pending, producer)
    if current.state is TransactionState.ONGOING:
        return replace(current.entering(_PREPARING[is_commit], now_ms), client_transaction_version=0)
    return _repeated_end(current, is_commit)


def end_raising_epoch(
    current: TransactionMetadata,
    is_pending: bool,
    producer: Producer,
    is_commit: bool,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> TransactionMetadata:
    """The producer, of transaction version 2, commits or aborts, and goes on as next_producer of what comes back.

    An abort where no transaction is open raises the epoch too: the producer may have batches on their way.
    Raises ConcurrentTransactions, InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, and what
    new_producer_id() raises.
    """
    if is_pending:
        raise ConcurrentTransactions(current.transactional_id)
    if _is_of_last_end(current, producer):
        return _repeated_end(current, is_commit)
    _check_producer(current, is_pending, producer)
    if current.is_prepared or producer.epoch in (NO_PRODUCER_EPOCH, MAX_EPOCH):
        # The epoch in force is that of the next transaction, or one that no producer is ever given.
        raise ProducerFenced(f"{current.transactional_id}: {producer} is not {current.next_producer}")
    if current.state is TransactionState.ONGOING:
        start_timestamp = current.start_timestamp
    elif is_commit:
        raise InvalidTxnState(f"{current.transactional_id}: commit in state {current.state.shown}")
    else:
        start_timestamp = now_ms
    return replace(
        current.entering(_PREPARING[is_commit], now_ms),
        producer_epoch=producer.epoch + 1,
        last_producer_epoch=producer.epoch,
        next_producer_id=new_producer_id() if is_epoch_exhausted(producer.epoch) else NO_PRODUCER_ID,
        client_transaction_version=TRANSACTION_VERSION,
        start_timestamp=start_timestamp,
    )


def _is_of_last_end(current: TransactionMetadata, producer: Producer) -> bool:
    """Whether it has the id and the epoch from before the last end, whose answer it may not have got."""
    if not current.raises_epoch or not (current.is_prepared or current.state in _COMPLETE.values()):
        return False
    if current.producer_epoch == 0:
        return producer == (current.previous_producer_id, MAX_EPOCH - 1)
    if current.producer_epoch == MAX_EPOCH and current.next_producer_id == NO_PRODUCER_ID:
        return False  # a fence has used up the last epoch: see abort_fenced()
    return producer == (current.producer_id, current.producer_epoch - 1)


def _repeated_end(current: TransactionMetadata, is_commit: bool) -> TransactionMetadata:
    """The present state, where the transaction has ended in this way.

    Raises ConcurrentTransactions, InvalidTxnState.
    """
    if current.state is _COMPLETE[is_commit]:
        return current
    if current.state is _PREPARING[is_commit]:
        raise ConcurrentTransactions(current.transactional_id)
    wanted = "commit" if is_commit else "abort"
    raise InvalidTxnState(f"{current.transactional_id}: {wanted} in state {current.state.shown}")


def complete(prepared: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """All markers are written."""
    completed = replace(prepared.entering(_COMPLETE[prepared.is_commit], now_ms), partitions=frozenset())
    if prepared.next_producer_id == NO_PRODUCER_ID:
        return completed
    return replace(
        completed,
        producer_id=prepared.next_producer_id,
        producer_epoch=0,
        previous_producer_id=prepared.producer_id,
        last_producer_epoch=prepared.producer_epoch - 1,
        next_producer_id=NO_PRODUCER_ID,
    )


# -- time --------------------------------------------------------------------------------------------------------------


def is_timed_out(current: TransactionMetadata, is_pending: bool, now_ms: int) -> bool:
    """Whether its producer has taken too long, so that it is to be fenced and the transaction to be aborted."""
    return (
        not is_pending
        and current.state is TransactionState.ONGOING
        and current.timeout_ms != NO_TIMEOUT_MS
        and current.start_timestamp + current.timeout_ms < now_ms
    )


def is_expired(current: TransactionMetadata, is_pending: bool, now_ms: int, expiration_ms: int) -> bool:
    """Whether nobody has used the id for so long that it is to be forgotten."""
    return not is_pending and current.state in _AT_REST and current.last_update_timestamp <= now_ms - expiration_ms
