"""The transactional ids this broker coordinates, and their records in __transaction_state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from functools import partial

from kcore.common.scheduler import Scheduler
from kcore.common.time import Time
from kcore.common.topic_names import TRANSACTION_STATE_TOPIC
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.coordinator_partitions import CoordinatorPartitions
from kcore.coordinator.transaction.transaction_config import TransactionConfig
from kcore.coordinator.transaction.transaction_load import TransactionLoad, value_of
from kcore.coordinator.transaction.transaction_log import transaction_log_key, transaction_log_value
from kcore.coordinator.transaction.transaction_state import TransactionMetadata, TransactionState, is_expired
from kcore.errors import (
    ApiError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DiskFull,
    InvalidRequest,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kcore.purgatory.delayed_operation import DelayedOperationPurgatory
from kcore.purgatory.timer import Timer
from kcore.record.record_batch_builder import RecordBatchBuilder
from kcore.replica.delayed.delayed_produce import ProducePartitionStatus
from kcore.replica.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

#: What a failed append of a state means to a producer (TXN-62).
#: Source: TransactionStateManager.appendTransactionToLog, Kafka 3.9.
_APPEND_ERRORS: dict[type[ApiError], type[ApiError]] = {
    UnknownTopicOrPartition: CoordinatorNotAvailable,
    NotEnoughReplicas: CoordinatorNotAvailable,
    NotEnoughReplicasAfterAppend: CoordinatorNotAvailable,
    RequestTimedOut: CoordinatorNotAvailable,
    NotLeaderOrFollower: NotCoordinator,
    KafkaStorageError: NotCoordinator,
    # The directory stays online, and this broker the coordinator.
    DiskFull: CoordinatorNotAvailable,
    MessageTooLarge: UnknownServerError,
    RecordListTooLarge: UnknownServerError,
}
#: Tombstones of one append, together: far below any max.message.bytes in use.
_MAX_TOMBSTONE_BYTES = 256 << 10


def _error_for_producers(error: ApiError) -> ApiError:
    meaning = _APPEND_ERRORS.get(type(error))
    return error if meaning is None else meaning(f"{type(error).__name__}: {error}")


class TransactionEntry:
    """A transactional id.  lock guards the other fields, and nothing is appended under it.

    coordinator_epoch: in which this broker coordinates it, as this object; the log takes its states in that one only.
    metadata: what counts, and is in the log.  pending: what is being written; while it is set nothing else may be.
    is_unloaded: the id lives at another coordinator, or here in another entry.
    loaded_ms: when it was read from the log, on the clock of deadlines; None for an id that began here.
    """

    __slots__ = ("coordinator_epoch", "is_unloaded", "loaded_ms", "lock", "metadata", "pending")

    def __init__(self, metadata: TransactionMetadata, coordinator_epoch: int, loaded_ms: float | None = None) -> None:
        self.lock = threading.Lock()
        self.coordinator_epoch = coordinator_epoch
        self.metadata = metadata
        self.pending: TransactionMetadata | None = None
        self.is_unloaded = False
        self.loaded_ms = loaded_ms

    @property
    def transactional_id(self) -> str:
        return self.metadata.transactional_id


class TransactionStateManager:
    """Thread-safe.  Ids live in one dict for all partitions.  Order of locks: an entry's, then that of the partitions.

    Source: TransactionStateManager, Kafka 3.9.
    """

    def __init__(
        self,
        config: TransactionConfig,
        replica_manager: ReplicaManager,
        disk_scheduler: Scheduler,
        time: Time,
        timer: Timer,
        transaction_version: Callable[[], int],
    ) -> None:
        self._config = config
        self._transaction_version = transaction_version
        self._time = time
        #: Of __transaction_state: which this broker coordinates.
        self.partitions = CoordinatorPartitions(
            TRANSACTION_STATE_TOPIC,
            config.num_partitions,
            replica_manager,
            disk_scheduler,
            time,
            append_timeout_ms=config.append_timeout_ms,
            load_buffer_size=config.load_buffer_size,
        )
        self.partition_for = self.partitions.partition_for
        self._entries: dict[str, TransactionEntry] = {}
        #: By transactional id: what waits until no change of its state is being written.
        self.waiting = DelayedOperationPurgatory("Transaction", timer)
        #: By partition: why tombstones could not be stored there, as logged; under the partitions' lock.
        self._tombstone_errors: dict[int, str] = {}
        #: From startup() to shutdown().
        self.is_active = False

    def now_ms(self) -> int:
        """The wall clock, which timestamps and timeouts are by."""
        return self._time.milliseconds()

    # -- looking up --------------------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        return bool(self.partitions.loading)

    @property
    def load_times_ms(self) -> list[float]:
        """Of the last partitions that were loaded."""
        return list(self.partitions.load_times_ms)

    def entries(self) -> list[TransactionEntry]:
        return list(self._entries.values())

    def check_status(self, transactional_id: str) -> None:
        """Raises InvalidRequest, CoordinatorNotAvailable, CoordinatorLoadInProgress or NotCoordinator unless this
        coordinator is responsible for the id and has loaded it."""
        if not transactional_id:
            raise InvalidRequest("the transactional id is empty")
        if not self.is_active:
            raise CoordinatorNotAvailable("the coordinator has stopped")
        partition = self.partition_for(transactional_id)
        if partition not in self.partitions.owned:
            raise (CoordinatorLoadInProgress if partition in self.partitions.loading else NotCoordinator)(
                transactional_id
            )

    def find(self, transactional_id: str) -> TransactionEntry | None:
        """None for an id that nobody has used.  Raises as check_status()."""
        with self.partitions.lock:
            self.check_status(transactional_id)
            return self._entries.get(transactional_id)

    def find_or_add(self, metadata: TransactionMetadata) -> TransactionEntry:
        """The entry of its id; a new one with it where there is none.  Raises as check_status()."""
        with self.partitions.lock:
            self.check_status(metadata.transactional_id)
            epoch = self.partitions.epoch(self.partition_for(metadata.transactional_id))
            return self._entries.setdefault(metadata.transactional_id, TransactionEntry(metadata, epoch))

    # -- storing -----------------------------------------------------------------------------------------------------

    def store(
        self, entry: TransactionEntry, after: TransactionMetadata, on_stored: Callable[[ApiError | None], None]
    ) -> None:
        """Write a state, which the caller has made entry.pending, and have it count; under no lock.

        on_stored(error) runs without a lock, now or later on another thread.  With an error the state is as it was.
        """
        builder = RecordBatchBuilder()
        value = transaction_log_value(value_of(after, self._transaction_version()))
        builder.append(value, transaction_log_key(after.transactional_id), timestamp=self.now_ms())

        def appended(status: ProducePartitionStatus) -> None:
            error = status.error
            with entry.lock:
                entry.pending = None
                if error is not None:
                    logger.warning("%s: storing %s failed: %s", after.transactional_id, after.state.shown, error)
                    error = _error_for_producers(error)
                elif entry.is_unloaded:
                    error = NotCoordinator(after.transactional_id)
                else:
                    entry.metadata = after
            on_stored(error)
            self.waiting.check_and_complete(after.transactional_id)

        partition = self.partition_for(after.transactional_id)
        self.partitions.append(partition, entry.coordinator_epoch, builder.build(), appended)

    def remove_expired(self) -> None:
        """Forget the ids that nobody has used for transactional.id.expiration.ms (TXN-70)."""
        now_ms, expiration_ms = self.now_ms(), self._config.transactional_id_expiration_ms
        expired: dict[int, list[TransactionEntry]] = {}
        for entry in self.entries():
            with entry.lock:
                current = entry.metadata
                if entry.is_unloaded or not is_expired(current, entry.pending is not None, now_ms, expiration_ms):
                    continue
                entry.pending = current.entering(TransactionState.DEAD, now_ms)
            expired.setdefault(self.partition_for(entry.transactional_id), []).append(entry)
        for partition, entries in expired.items():
            self._remove(partition, entries)

    def _remove(self, partition: int, entries: list[TransactionEntry]) -> None:
        while entries:
            builder, batch_entries = RecordBatchBuilder(), []
            while entries and builder.size_in_bytes < _MAX_TOMBSTONE_BYTES:
                entry = entries.pop()
                batch_entries.append(entry)
                key = transaction_log_key(entry.transactional_id)
                builder.append(None, key, timestamp=self.now_ms())
            # The lowest: of a partition that goes on with what is in memory (elect()), newer ids have a higher one.
            epoch = min(entry.coordinator_epoch for entry in batch_entries)
            self.partitions.append(partition, epoch, builder.build(), partial(self._removed, partition, batch_entries))

    def _removed(self, partition: int, entries: list[TransactionEntry], status: ProducePartitionStatus) -> None:
        self._log_removal(partition, status.error)
        for entry in entries:
            with entry.lock:
                if status.error is None:
                    # A request that has found the entry and waits for its lock finds a new one when it is repeated.
                    entry.is_unloaded = True
                    with self.partitions.lock:
                        if self._entries.get(entry.transactional_id) is entry:
                            del self._entries[entry.transactional_id]
                entry.pending = None
            self.waiting.check_and_complete(entry.transactional_id)

    def _log_removal(self, partition: int, error: ApiError | None) -> None:
        """The next removal tries again: what has been logged of the partition is not logged again."""
        with self.partitions.lock:
            before = self._tombstone_errors.pop(partition, None)
            if error is not None:
                self._tombstone_errors[partition] = reason = f"{type(error).__name__}: {error}"
        topic_partition = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        if error is not None and reason != before:
            logger.warning(
                "%s: expired transactional ids stay, their tombstones were not stored: %s", topic_partition, error
            )
        elif error is None and before is not None:
            logger.info("%s: tombstones of expired transactional ids are stored now", topic_partition)

    # -- loading and unloading ---------------------------------------------------------------------------------------

    def load_partition(self, partition: int, epoch: int, on_loaded: Callable[[TransactionEntry], None]) -> None:
        """Begin to coordinate the ids of a partition that this broker leads since epoch.

        Until its records have been read its ids answer COORDINATOR_LOAD_IN_PROGRESS.
        on_loaded(entry) runs for each id without a lock, before requests can reach it.
        """
        entries: list[TransactionEntry] = []

        def publish(states: Collection[TransactionMetadata]) -> None:
            loaded_ms = self._time.hi_res_clock_ms()
            entries.extend(TransactionEntry(state, epoch, loaded_ms) for state in states)
            self._entries.update((entry.transactional_id, entry) for entry in entries)

        def activate() -> None:
            for entry in entries:
                on_loaded(entry)

        topic_partition = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        self.partitions.elect(partition, epoch, TransactionLoad(topic_partition, publish, activate))

    def unload_partition(self, partition: int, epoch: int | None) -> None:
        """Stop coordinating a partition's ids.  epoch: since which another broker leads, None when it is gone."""

        def kept_in() -> list[TransactionEntry]:
            self._tombstone_errors.pop(partition, None)
            entries = [entry for name, entry in self._entries.items() if self.partition_for(name) == partition]
            for entry in entries:
                del self._entries[entry.transactional_id]
            return entries

        for entry in self.partitions.resign(partition, epoch, kept_in):
            with entry.lock:
                entry.is_unloaded = True
            self.waiting.check_and_complete(entry.transactional_id)
