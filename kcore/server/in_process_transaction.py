"""Transactions of a program that a broker or a cluster runs in: Broker.transaction() and Cluster.transaction()."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from kcore.common.text import plain_error
from kcore.common.time import SYSTEM_TIME
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION, Producer
from kcore.errors import (
    NONE,
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    ProducerFenced,
    RequestTimedOut,
    for_code,
)
from kcore.server.call_arguments import integer, string
from kcore.server.in_process_client import Data, Headers, RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kcore.server.running_broker import RunningBroker

T = TypeVar("T")

#: Strings of requests, and of the records of __transaction_state.
MAX_ID_BYTES = 32_767
#: How long a step waits for the coordinator, or for the markers of a transaction.
WAIT_MS = 30_000
#: Between two attempts: the first pause, which doubles up to the longest.
_POLL_MS, _LONGEST_POLL_MS = 3, 100
_WAITED_FOR = (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NetworkException,
    NotCoordinator,
)
#: Of a producer that the coordinator or a log knows no more.
_FENCED = (InvalidProducerEpoch, InvalidProducerIdMapping, ProducerFenced)
#: Of an append that is in the leader's log all the same.
_APPENDED = (NotEnoughReplicasAfterAppend, RequestTimedOut)


class TransactionHost(Protocol):
    """Where transactions are coordinated and written.  The brokers run at least as long as the `with` block."""

    #: Errors of a broker that leads no more or not yet: the step is repeated.
    passing_errors: tuple[type[ApiError], ...]
    #: Whether a record for a missing topic creates it.
    creates_topics: bool

    def any_broker(self) -> AbstractContextManager[RunningBroker]: ...

    def leading(self, tp: TopicPartition) -> AbstractContextManager[RunningBroker]:
        """The broker that leads the partition.  Raises NotLeaderOrFollower where there is none."""


class BrokerHost:
    """A TransactionHost of one broker.  serving: raises RuntimeError unless it runs."""

    passing_errors: tuple[type[ApiError], ...] = ()
    creates_topics = True

    def __init__(self, serving: Callable[[], AbstractContextManager[RunningBroker]]) -> None:
        self.any_broker = serving

    @contextmanager
    def leading(self, tp: TopicPartition) -> Iterator[RunningBroker]:
        with self.any_broker() as running:
            base = running.base
            leader = base.metadata_cache.snapshot.leader_of(tp)
            if leader is not None and leader not in (-1, base.broker_id):
                raise NotLeaderOrFollower(f"{tp}: broker {leader} leads it, not {base.broker_id}: use Cluster's call")
            yield running


class Transaction:
    """One transaction of a transactional id, as a producer of its own makes it.

        with broker.transaction("shop") as transaction:
            transaction.produce("orders", "a book")

    The end of the block commits, an exception in it aborts.  Where commit() or abort() in it timed out, the block ends
    without another attempt.  Without a block it stays open until commit() or abort(), until its timeout, or until the
    next producer of the id, which aborts it.
    Not thread-safe.  It goes on where the broker restarts, or another one coordinates it.
    """

    def __init__(self, host: TransactionHost, transactional_id: str, timeout_ms: int) -> None:
        self._host = host
        self._transactional_id = _checked_id(transactional_id)
        self._timeout_ms = integer("timeout_ms", timeout_ms)
        #: Partition -> the sequence of its next record.
        self._sequences: dict[TopicPartition, int] = {}
        self._is_ended = False
        #: commit() or abort() has waited for as long as it may.
        self._end_timed_out = False
        #: Of an end that was decided and did not get all its markers in time: whether it commits.
        self._unfinished_end: bool | None = None
        #: Of the cluster, 0 to 2.
        self._transaction_version = 0
        self._producer = self._repeated(self._init)

    def produce(
        self,
        topic: str,
        value: Data | None,
        key: Data | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write one record in the transaction.  The arguments and errors are those of Broker.produce(); in a
        cluster the topic has to exist, as for Cluster.produce().

        Raises InvalidTxnState after the end; ProducerFenced or InvalidProducerEpoch once another producer has begun
        to use the id, or the timeout has passed; RequestTimedOut without a coordinator or, in a cluster, a leader.
        """
        self._check_open()
        with self._host.any_broker() as running:
            client = running.client
            record = client.record(value, key, headers, None if timestamp is None else integer("timestamp", timestamp))
            number = None if partition is None else integer("partition", partition)
            tp = client.partition_to_write(
                string("topic", topic), record.key, number, creates_topic=self._host.creates_topics
            )
        adds = self._transaction_version >= TRANSACTION_VERSION
        if tp not in self._sequences:
            if not adds:
                self._repeated(lambda: self._add(tp))
            self._sequences[tp] = 0

        def append() -> RecordMetadata:
            with self._host.leading(tp) as running:
                return running.client.append_in_transaction(
                    tp, record, self._transactional_id, self._producer, self._sequences[tp], adds=adds
                )

        try:
            written = self._repeated(append)
        except _APPENDED:
            self._sequences[tp] += 1
            raise
        self._sequences[tp] += 1
        return written

    def commit(self) -> None:
        """Returns once consumers with read_committed can read the records.

        Raises InvalidTxnState after the end, ProducerFenced once another producer has begun to use the id or the
        timeout has passed; RequestTimedOut with the reason, for instance the partition that has too few in-sync
        replicas, or RuntimeError where no broker runs: then it may be called again.
        """
        self._end(is_commit=True)

    def abort(self) -> None:
        """Returns once consumers with read_committed can read what comes after the records.  Raises as commit()."""
        self._end(is_commit=False)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_ended:
            return
        if exc_type is None:
            self.commit()
        elif not self._end_timed_out:  # else the abort would wait for the same once more
            with suppress(KafkaError, RuntimeError):  # the exception of the block says more
                self.abort()

    def __repr__(self) -> str:
        return f"Transaction({self._transactional_id}, {'ended' if self._is_ended else 'open'})"

    # -- steps -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_ended:
            raise InvalidTxnState(f"the transaction of {self._transactional_id} has ended: make another one")

    def _init(self) -> Producer:
        results = queue.SimpleQueue()  # type: ignore[var-annotated]
        with self._host.any_broker() as running:
            self._transaction_version = running.services.features().finalized
        with self._coordinating() as coordinator:
            coordinator.init_producer_id(self._transactional_id, self._timeout_ms, None, results.put)
            result = _answer(results)
        _raise(result.error)
        return Producer(result.producer_id, result.producer_epoch)

    def _add(self, tp: TopicPartition) -> None:
        codes: queue.SimpleQueue[int] = queue.SimpleQueue()
        with self._coordinating() as coordinator:
            coordinator.add_partitions(self._transactional_id, self._producer, {tp}, codes.put)
            code = _answer(codes)
        if code != NONE:
            raise for_code(code)(f"{self._transactional_id}: the coordinator does not add {tp} to the transaction")

    def _end(self, *, is_commit: bool) -> None:
        try:
            self._end_in_time(is_commit)
        except RequestTimedOut:
            self._end_timed_out = True
            raise

    def _end_in_time(self, is_commit: bool) -> None:
        if self._unfinished_end is not is_commit:
            self._check_open()
            if not self._sequences:
                self._is_ended = True
                return  # the coordinator has no transaction
            # Where no record was written, there may be no transaction to commit; an abort is always in order.
            self._repeated(lambda: self._decide(is_commit=is_commit and any(self._sequences.values())))
            self._is_ended, self._unfinished_end = True, is_commit
        self._repeated(self._check_markers)
        self._unfinished_end = None

    def _decide(self, *, is_commit: bool) -> None:
        results = queue.SimpleQueue()  # type: ignore[var-annotated]
        with self._coordinating() as coordinator:
            coordinator.end_transaction(
                self._transactional_id, self._producer, is_commit, results.put, self._transaction_version
            )
            _raise(_answer(results).error)

    def _check_markers(self) -> None:
        with self._coordinating() as coordinator:
            if coordinator.describe(self._transactional_id).is_prepared:
                raise ConcurrentTransactions("its markers are being written")

    @contextmanager
    def _coordinating(self) -> Iterator[TransactionCoordinator]:
        with self._host.any_broker() as running:
            if running.base.metadata_cache.topic(TRANSACTION_STATE_TOPIC) is None:
                running.services.admin_manager.auto_create_topic(TRANSACTION_STATE_TOPIC)
            number = running.services.transaction_coordinator.partition_for(self._transactional_id)
        with self._host.leading(TopicPartition(TRANSACTION_STATE_TOPIC, number)) as running:
            yield running.services.transaction_coordinator

    def _repeated(self, step: Callable[[], T]) -> T:
        """What the step returns, once it meets no error that passes.  Raises RequestTimedOut, and its other errors."""
        passing: Collection[type[ApiError]] = (*_WAITED_FOR, *self._host.passing_errors)
        deadline_ms, pause_ms = SYSTEM_TIME.hi_res_clock_ms() + WAIT_MS, _POLL_MS
        while True:
            try:
                return step()
            except tuple(passing) as error:
                if SYSTEM_TIME.hi_res_clock_ms() > deadline_ms:
                    reason = self._reason(error)
                    raise RequestTimedOut(f"{self._transactional_id}: waited {WAIT_MS} ms: {reason}") from error
            except _FENCED as error:
                raise type(error)(
                    f"{self._transactional_id}: another producer has begun to use this transactional id, or the "
                    f"transaction took longer than its timeout_ms={self._timeout_ms}: it was aborted; begin another one"
                ) from error
            SYSTEM_TIME.sleep(pause_ms)
            pause_ms = min(2 * pause_ms, _LONGEST_POLL_MS)

    def _reason(self, error: ApiError) -> str:
        """Why a step has not come to its end, for people."""
        if isinstance(error, ConcurrentTransactions):
            with suppress(KafkaError, RuntimeError), self._coordinating() as coordinator:
                progress = coordinator.completions.progress(self._transactional_id)
                if progress is not None:
                    return f"a transaction is ending: {progress}"
        return plain_error(error)


def _answer(answers: queue.SimpleQueue[T]) -> T:
    try:
        return answers.get(timeout=WAIT_MS / 1000)
    except queue.Empty:  # the coordinator's broker was killed
        raise CoordinatorNotAvailable("the coordinator does not answer") from None


def _checked_id(transactional_id: str) -> str:
    """The coordinator refuses an empty one.  Raises TypeError, and InvalidRequest for an id that fits no request."""
    size = len(string("transactional_id", transactional_id).encode())
    if size > MAX_ID_BYTES:
        raise InvalidRequest(f"the transactional id has {size} bytes, a request has room for at most {MAX_ID_BYTES}")
    return transactional_id


def _raise(error: ApiError | None) -> None:
    if error is not None:
        raise error
