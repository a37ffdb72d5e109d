"""What a leader asks before a transaction begins in a partition: whether the producer has added the partition to it.

For a producer of transaction version 2, which adds none, it asks to add the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from kcore.common.meters import Meter, TimeHistogram
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION, Producer
from kcore.errors import NONE, ApiError, ConcurrentTransactions, CoordinatorNotAvailable, for_code
from kcore.purgatory.timer import Timer
from kcore.replica.partition import Partition
from kcore.replica.replica_manager import ReplicaManager

#: None: the partition is in the transaction.
VerificationResults = Mapping[TopicPartition, ApiError | None]
OnVerified = Callable[[VerificationResults], None]


class Verification(Protocol):
    """The log's TransactionVerification."""

    is_confirmed: bool


class VerificationSender(Protocol):
    """Asks the coordinators on the other brokers of a cluster."""

    def send(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        partitions: Set[TopicPartition],
        on_answered: OnVerified,
        *,
        adds: bool,
    ) -> None:
        """adds: have the partitions added, as TransactionVerifier.verify().
        on_answered() is called once, on another thread, or at once.  Of two questions about an id that wait for the
        same broker one is not sent: it gets NetworkException, or InvalidProducerEpoch where its epoch is older.
        All partitions are None where the broker's release does not know the question; where they were to be added each
        has InvalidTxnState then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationRoutes:
    """leader_of: as that of MarkerRoutes.  others: None for a broker alone."""

    broker_id: int
    leader_of: Callable[[TopicPartition], int | None]
    here: TransactionCoordinator
    others: VerificationSender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRetry:
    """add.partitions.to.txn.retry.backoff.ms, and its .max.ms, the time that all of it may take."""

    timer: Timer
    backoff_ms: Callable[[], int]
    max_ms: Callable[[], int]


class TransactionVerifier:
    """Without this a batch that arrives after the end of its transaction would begin one that nobody ends (KIP-890).

    Thread-safe.  is_enabled: transaction.partition.verification.enable, which the logs follow too.  retry: when
    partitions are asked for again that cannot be added yet; from then on it runs on the timer's thread.
    Source: AddPartitionsToTxnManager, ReplicaManager.handleProduceAppend, Kafka 3.9 and 4.x.
    """

    def __init__(
        self,
        replica_manager: ReplicaManager,
        routes: VerificationRoutes,
        is_enabled: Callable[[], bool],
        retry: AddRetry,
    ) -> None:
        self._replica_manager = replica_manager
        self._routes = routes
        self._is_enabled = is_enabled
        self._retry = retry
        #: Of each question to a coordinator, and partitions in which the producer might not write.
        self.times, self.failures = TimeHistogram(), Meter()

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        sequences: Mapping[TopicPartition, int],
        on_verified: Callable[[dict[TopicPartition, ApiError]], None],
        *,
        adds: bool = False,
    ) -> None:
        """Call on_verified() with the error of each partition in which the producer may not write: now, or later on
        another thread; under no lock.  What is written without an error has to be appended after that.

        sequences: of each partition's first batch; -1 where it has none.  adds: the producer, of transaction version 2,
        leaves it to this broker to add them; while its last transaction is ending that is tried again for a while.
        Errors: InvalidProducerIdMapping, ProducerFenced, TransactionAbortable where the partition is not in the
        transaction, InvalidTxnState where this broker may not ask; those that pass are ConcurrentTransactions,
        NetworkException, NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress.
        """
        if not adds:
            self._ask(transactional_id, producer, sequences, on_verified, adds=False)
            return
        retry = self._retry
        deadline_ms = retry.timer.now_ms() + retry.max_ms()

        def added(errors: dict[TopicPartition, ApiError]) -> None:
            is_ending = any(isinstance(error, ConcurrentTransactions) for error in errors.values())
            if is_ending and retry.timer.now_ms() < deadline_ms:
                retry.timer.add(ask, retry.backoff_ms())
            else:
                on_verified(errors)

        def ask() -> None:
            # All of them: a transaction that was added to meanwhile is not asked about again.
            self._ask(transactional_id, producer, sequences, added, adds=True)

        ask()

    def _ask(
        self,
        transactional_id: str,
        producer: Producer,
        sequences: Mapping[TopicPartition, int],
        on_verified: Callable[[dict[TopicPartition, ApiError]], None],
        *,
        adds: bool,
    ) -> None:
        started = self._started(producer, sequences, adds=adds) if adds or self._is_enabled() else {}
        if not started:
            on_verified({})
            return

        begin_ns = self.times.begin()

        def answered(results: VerificationResults) -> None:
            self.times.end(begin_ns)
            errors = {}
            for tp, error in results.items():
                if error is None:
                    started[tp].is_confirmed = True
                else:
                    self.failures.mark()
                    errors[tp] = error
            on_verified(errors)

        routes = self._routes
        number = routes.here.partition_for(transactional_id)
        leader = routes.leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, number))
        if leader == routes.broker_id and adds:
            self._add_here(transactional_id, producer, started.keys(), answered)
        elif leader == routes.broker_id:
            answered(routes.here.verify_partitions(transactional_id, producer, started.keys()))
        elif leader is not None and leader >= 0 and routes.others is not None:
            routes.others.send(leader, transactional_id, producer, started.keys(), answered, adds=adds)
        else:
            answered(dict.fromkeys(started, CoordinatorNotAvailable(f"{transactional_id} has no coordinator now")))

    def _add_here(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], on_answered: OnVerified
    ) -> None:
        def added(code: int) -> None:
            error = None if code == NONE else for_code(code)(transactional_id)
            on_answered(dict.fromkeys(partitions, error))

        self._routes.here.add_partitions(transactional_id, producer, frozenset(partitions), added, TRANSACTION_VERSION)

    def _started(
        self, producer: Producer, sequences: Mapping[TopicPartition, int], *, adds: bool
    ) -> dict[TopicPartition, Verification]:
        """Of the partitions in which no transaction of the producer is open.  Those that this broker does not lead are
        left to the append, which says so."""
        started: dict[TopicPartition, Verification] = {}
        for tp, sequence in sequences.items():
            partition = self._replica_manager.get_partition(tp)
            if isinstance(partition, Partition) and partition.is_leader:
                verification = partition.local_log().start_verification(*producer, sequence, raises_epoch=adds)
                if verification is not None:
                    started[tp] = verification
        return started
