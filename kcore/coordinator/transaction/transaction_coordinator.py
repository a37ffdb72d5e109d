"""The transaction coordinator: what transactional producers ask of it, and what time decides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Set
from functools import partial
from typing import NamedTuple

from kcore.common.scheduler import ScheduledTask, Scheduler
from kcore.common.time import Time
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction import transaction_state as rules
from kcore.coordinator.transaction.transaction_completion import MarkerRoutes, TransactionCompletions
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_state import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Producer,
    TransactionMetadata,
    TransactionState,
)
from kcore.coordinator.transaction.transaction_state_manager import TransactionEntry, TransactionStateManager
from kcore.errors import (
    ApiError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    NotCoordinator,
    TransactionAbortable,
    TransactionalIdNotFound,
    code_of,
)
from kcore.purgatory.delayed_operation import DelayedOperation
from kcore.purgatory.timer import Timer
from kcore.replica.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

OnError = Callable[[ApiError | None], None]
#: From the present state, and whether a change of it is being written: the state to write next.
Rule = Callable[[TransactionMetadata, bool], TransactionMetadata]
#: The error, or the state that counts now.
OnChanged = Callable[[ApiError | None, TransactionMetadata | None], None]


class ProducerResult(NamedTuple):
    """What a producer is to go on with, or why it cannot."""

    error: ApiError | None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def error_code(self) -> int:
        return code_of(self.error)


class _DelayedBegin(DelayedOperation):
    """A producer's next transaction, which begins once the last one has ended everywhere."""

    __slots__ = ("_begin", "_is_ending")

    def __init__(self, is_ending: Callable[[], bool], begin: Callable[[], None], max_wait_ms: int) -> None:
        super().__init__(max_wait_ms)
        self._is_ending = is_ending
        self._begin = begin

    def try_complete(self) -> bool:
        return not self._is_ending() and self.force_complete()

    def on_complete(self) -> None:
        self._begin()


class TransactionCoordinator:
    """Coordinates the transactional ids whose partition of __transaction_state this broker leads.

    Thread-safe.  Callbacks run without a lock, on the calling thread or on the one that completed what they waited for.
    time: its wall clock is what timeouts are by.  scheduler: for what time decides; disk_scheduler: for loading.
    new_producer_id: raises an ApiError where it has none.
    transaction_version: level of the cluster's feature transaction.version, by which records are written.
    is_certain: False while another broker may coordinate the same ids, of which this one has not heard.  Then, and
    while the replicas do not follow, what is answered without an append is NOT_COORDINATOR, at which a producer looks
    for the coordinator again.
    Source: TransactionCoordinator, Kafka 3.9 and 4.x (KIP-98, 360, 890).
    """

    def __init__(
        self,
        config: TransactionConfig,
        replica_manager: ReplicaManager,
        routes: MarkerRoutes,
        new_producer_id: Callable[[], int],
        time: Time,
        scheduler: Scheduler,
        timer: Timer,
        *,
        disk_scheduler: Scheduler | None = None,
        is_certain: Callable[[], bool] = lambda: True,
        transaction_version: Callable[[], int] = lambda: rules.TRANSACTION_VERSION,
    ) -> None:
        self.config = config
        self.manager = TransactionStateManager(
            config, replica_manager, disk_scheduler or scheduler, time, timer, transaction_version
        )
        self.completions = TransactionCompletions(self.manager, routes, timer)
        self._leader_of = routes.leader_of
        self._new_producer_id = new_producer_id
        self._scheduler = scheduler
        self._is_certain = is_certain
        self._tasks: list[ScheduledTask] = []

    def startup(self) -> None:
        for name, action, interval_ms in (
            ("abort-timed-out-transactions", self.abort_timed_out, self.config.abort_timed_out_interval_ms),
            ("remove-expired-transactional-ids", self.manager.remove_expired, self.config.remove_expired_interval_ms),
        ):
            self._tasks.append(self._scheduler.schedule(name, action, interval_ms, interval_ms))
        self.manager.is_active = True

    def shutdown(self) -> None:
        """From now on everything answers COORDINATOR_NOT_AVAILABLE, and no more markers are sent."""
        self.manager.is_active = False
        for task in self._tasks:
            task.cancel()

    def partition_for(self, transactional_id: str) -> int:
        return self.manager.partition_for(transactional_id)

    def on_election(self, partition: int, epoch: int) -> None:
        """This broker leads a partition of __transaction_state since epoch: load its ids, and go on with the ends of
        transactions that were decided.

        Not where the topic has got more partitions since this broker started: by their number each broker finds the
        partition of an id (TXN-07).
        """
        num_partitions = self.config.num_partitions
        if (
            partition >= num_partitions
            or self._leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, num_partitions)) is not None
        ):
            logger.error(
                "%s-%d is not coordinated here: the topic had %d partitions when this broker started, and has more now;"
                " restart every broker",
                TRANSACTION_STATE_TOPIC,
                partition,
                num_partitions,
            )
            self.manager.unload_partition(partition, None)
            return
        self.manager.load_partition(partition, epoch, self._on_loaded)

    def on_resignation(self, partition: int, epoch: int | None = None) -> None:
        self.manager.unload_partition(partition, epoch)

    def partitions_deleted(self, topic_partitions: Collection[TopicPartition]) -> None:
        self.completions.partitions_deleted(topic_partitions)

    def _on_loaded(self, entry: TransactionEntry) -> None:
        if entry.metadata.is_prepared:
            self.completions.begin(entry, entry.metadata)

    # -- requests ----------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int | None,
        expected: Producer | None,
        callback: Callable[[ProducerResult], None],
    ) -> None:
        """Give a producer its id and epoch; what its predecessor has left open is aborted first.

        expected: what the producer says that it has, None where it is new.  timeout_ms: None for a producer whose
        transactions have none (KIP-939).
        """
        stored_ms = rules.NO_TIMEOUT_MS if timeout_ms is None else timeout_ms
        epoch = self._epoch_of(transactional_id)

        def answer(error: ApiError | None, metadata: TransactionMetadata | None) -> None:
            callback(self._result(transactional_id, epoch, error, metadata))

        def rule(current: TransactionMetadata, is_pending: bool) -> TransactionMetadata:
            new_producer_id, now_ms = self._new_producer_id, self.manager.now_ms()
            return rules.init_producer_id(current, is_pending, expected, stored_ms, new_producer_id, now_ms)

        try:
            self.manager.check_status(transactional_id)
            if timeout_ms is not None:
                rules.check_timeout(transactional_id, timeout_ms, self.config.transaction_max_timeout_ms)
            entry = self.manager.find(transactional_id)
            if entry is None:
                new = TransactionMetadata(transactional_id, self._new_producer_id(), timeout_ms=stored_ms)
                entry = self.manager.find_or_add(new)
        except ApiError as error:
            answer(error, None)
            return
        self._change(entry, rule, answer)

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Set[TopicPartition],
        callback: Callable[[int], None],
        client_transaction_version: int = 0,
        *,
        max_wait_ms: int = 0,
    ) -> None:
        """Note that the producer is about to write to them; callback(error code).

        While its last transaction is ending this waits for so long, before it answers CONCURRENT_TRANSACTIONS: a
        producer that is answered at once pauses for longer (20 ms) than most markers take.
        """

        def rule(current: TransactionMetadata, is_pending: bool) -> TransactionMetadata:
            now_ms = self.manager.now_ms()
            return rules.add_partitions(current, is_pending, producer, partitions, now_ms, client_transaction_version)

        epoch = self._epoch_of(transactional_id)

        def answer(error: ApiError | None, metadata: TransactionMetadata | None) -> None:
            callback(code_of(self._answered(transactional_id, epoch, error)))

        def answer_or_wait(error: ApiError | None, metadata: TransactionMetadata | None) -> None:
            if max_wait_ms > 0 and isinstance(error, ConcurrentTransactions):
                is_ending = partial(self._is_ending, transactional_id)
                begin = partial(self._change_known, transactional_id, rule, answer, client_transaction_version)
                self.manager.waiting.watch(_DelayedBegin(is_ending, begin, max_wait_ms), (transactional_id,))
            else:
                answer(error, metadata)

        self._change_known(transactional_id, rule, answer_or_wait, client_transaction_version)

    def _is_ending(self, transactional_id: str) -> bool:
        try:
            entry = self.manager.find(transactional_id)
        except ApiError:
            return False
        return entry is not None and (entry.pending is not None or entry.metadata.is_prepared)

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]
    ) -> dict[TopicPartition, ApiError | None]:
        """Whether each partition is in the producer's transaction: None, or the reason why nothing may be written."""
        epoch = self._epoch_of(transactional_id)
        try:
            entry = self.manager.find(transactional_id)
            if entry is None:
                raise InvalidProducerIdMapping(f"{transactional_id}: no producer has it")
            missing = rules.missing_partitions(entry.metadata, producer, partitions)
            if not self._is_certain_of(transactional_id, epoch):
                raise NotCoordinator(transactional_id)
        except ApiError as error:
            return dict.fromkeys(partitions, self._answered(transactional_id, epoch, error))
        not_added = TransactionAbortable(f"{transactional_id}: the partition was not added to the transaction")
        return {tp: not_added if tp in missing else None for tp in partitions}

    def end_transaction(
        self,
        transactional_id: str,
        producer: Producer,
        is_commit: bool,
        callback: Callable[[ProducerResult], None],
        client_transaction_version: int = 0,
    ) -> None:
        """Commit or abort; callback() comes when that is decided.  The markers follow."""

        def rule(current: TransactionMetadata, is_pending: bool) -> TransactionMetadata:
            now_ms = self.manager.now_ms()
            if client_transaction_version < rules.TRANSACTION_VERSION:
                return rules.end(current, is_pending, producer, is_commit, now_ms)
            return rules.end_raising_epoch(current, is_pending, producer, is_commit, self._new_producer_id, now_ms)

        epoch = self._epoch_of(transactional_id)

        def changed(error: ApiError | None, metadata: TransactionMetadata | None) -> None:
            callback(self._result(transactional_id, epoch, error, metadata))

        self._change_known(transactional_id, rule, changed, client_transaction_version)

    def _change_known(
        self, transactional_id: str, rule: Rule, on_changed: OnChanged, client_transaction_version: int
    ) -> None:
        """A change that the producer of a transaction asks for.

        What it repeats changes nothing.  With version 2 its epoch is that of one transaction, of which the answer is
        true for ever.  With version 1 the next transaction has the same epoch, and may be known to another coordinator
        alone: so the state is written once more, and the answer comes when the replicas have agreed (not in Kafka).
        """
        try:
            entry = self.manager.find(transactional_id)
            if entry is None:
                raise InvalidProducerIdMapping(f"{transactional_id}: no producer has it")
        except ApiError as error:
            on_changed(error, None)
            return
        self._change(entry, rule, on_changed, writes_unchanged=client_transaction_version < rules.TRANSACTION_VERSION)

    def _epoch_of(self, transactional_id: str) -> int:
        """The coordinator epoch, to be read before the state of the id."""
        return self.manager.partitions.epoch(self.partition_for(transactional_id))

    def _result(
        self, transactional_id: str, epoch: int, error: ApiError | None, metadata: TransactionMetadata | None
    ) -> ProducerResult:
        if error is not None or metadata is None:
            return ProducerResult(self._answered(transactional_id, epoch, error))
        return ProducerResult(None, *metadata.next_producer)

    def _answered(self, transactional_id: str, epoch: int, error: ApiError | None) -> ApiError | None:
        """An error is answered without an append: it may be out of date where another broker coordinates the id."""
        if error is not None and not error.retriable and not self._is_certain_of(transactional_id, epoch):
            return NotCoordinator(str(error))
        return error

    def _is_certain_of(self, transactional_id: str, epoch: int) -> bool:
        """Whether no other broker can have changed the state of the id since epoch."""
        return self._is_certain() and self.manager.partitions.is_followed(self.partition_for(transactional_id), epoch)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _change(
        self,
        entry: TransactionEntry,
        rule: Rule,
        on_changed: OnChanged,
        *,
        writes_unchanged: bool = False,
    ) -> None:
        """Write what the rule makes of the state; then on_changed(None, it), or on_changed(error, None).

        writes_unchanged: whether the state is written also if the rule leaves it as it is.
        The end of a transaction goes on to its partitions after that.  A fence ends in an abort, and is answered with
        CONCURRENT_TRANSACTIONS: the producer asks again.
        """
        try:
            with entry.lock:
                if entry.is_unloaded:
                    raise NotCoordinator(entry.transactional_id)
                current = entry.metadata
                after = rule(current, entry.pending is not None)
                is_fence = after.state is TransactionState.PREPARE_EPOCH_FENCE
                if is_fence:
                    entry.metadata = rules.fence_in_force(after)
                    after = rules.abort_fenced(after, self.manager.now_ms())
                is_written = writes_unchanged or after is not current
                if is_written:
                    entry.pending = after
        except ApiError as error:
            on_changed(error, None)
            return
        if not is_written:
            on_changed(None, current)
            return

        def answer(error: ApiError | None) -> None:
            if error is not None:
                on_changed(error, None)
            elif is_fence:
                on_changed(ConcurrentTransactions(entry.transactional_id), None)
            else:
                on_changed(None, after)

        def stored(error: ApiError | None) -> None:
            if error is None and after.is_prepared:
                self.completions.begin(entry, after, lambda: answer(None))
            else:
                answer(error)

        self.manager.store(entry, after, stored)

    def abort_timed_out(self) -> None:
        """Fence the producers whose transactions take too long, and abort these (TXN-69)."""
        now_ms = self.manager.now_ms()

        def rule(current: TransactionMetadata, is_pending: bool) -> TransactionMetadata:
            return rules.fence(current) if rules.is_timed_out(current, is_pending, now_ms) else current

        for entry in self.manager.entries():
            if not rules.is_timed_out(entry.metadata, entry.pending is not None, now_ms):
                continue
            logger.info("%s: its transaction has timed out and is aborted", entry.transactional_id)
            self._change(entry, rule, lambda error, metadata: None)

    # -- administrators ----------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """Raises TransactionalIdNotFound, and as TransactionStateManager.check_status()."""
        entry = self.manager.find(transactional_id)
        metadata = entry.metadata if entry is not None else None
        if entry is None or metadata is None or entry.is_unloaded:
            raise TransactionalIdNotFound(transactional_id)
        return metadata

    def list_transactions(
        self, states: Iterable[TransactionState], producer_ids: Iterable[int], min_duration_ms: int
    ) -> list[TransactionMetadata]:
        """Those in these states, of these producers, that last for more than this; empty or negative is no condition.

        Raises CoordinatorNotAvailable, and CoordinatorLoadInProgress while some are being loaded.
        """
        if not self.manager.is_active:
            raise CoordinatorNotAvailable("the coordinator has stopped")
        if self.manager.is_loading:
            raise CoordinatorLoadInProgress("some partitions are being loaded")
        wanted_states, wanted_ids, now_ms = set(states), set(producer_ids), self.manager.now_ms()
        return [
            metadata
            for metadata in (entry.metadata for entry in self.manager.entries())
            if (not wanted_states or metadata.state in wanted_states)
            and (not wanted_ids or metadata.producer_id in wanted_ids)
            and (min_duration_ms < 0 or 0 <= metadata.start_timestamp < now_ms - min_duration_ms)
        ]
