"""Completing a transaction whose end is decided: its marker goes to every partition, until each one has it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from kcore.common.text import some_of
from kcore.common.topic_partition import TopicPartition
from kcore.coordinator.transaction.marker_writer import Marker, MarkerResults, MarkerWriter
from kcore.coordinator.transaction.transaction_state import TRANSACTION_VERSION, TransactionMetadata, complete
from kcore.coordinator.transaction.transaction_state_manager import TransactionEntry, TransactionStateManager
from kcore.errors import (
    ApiError,
    InvalidProducerEpoch,
    NotCoordinator,
    TransactionCoordinatorFenced,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
)
from kcore.purgatory.timer import Timer

logger = logging.getLogger(__name__)

#: After a round that has not reached every partition, and after a state that could not be stored.
RETRY_MS = 100
#: How long a coordinator that has just been elected may not have heard of a partition that there is.
UNKNOWN_PARTITION_MS = 10_000

#: Another coordinator, or a later epoch of the producer, has been at the partition: this completion is not to go on.
_FENCED = (InvalidProducerEpoch, TransactionCoordinatorFenced)
#: No transaction can be in such a partition.
_NEEDS_NO_MARKER = (UnsupportedForMessageFormat, UnsupportedVersion)

OnWritten = Callable[[MarkerResults], None]


class MarkerSender(Protocol):
    """Sends markers to the other brokers of a cluster."""

    def send(self, broker_id: int, marker: Marker, partitions: Collection[TopicPartition], on_sent: OnWritten) -> None:
        """on_sent() is called once, on another thread.  Where the broker has not answered each partition has a
        retriable error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerRoutes:
    """Where partitions are led.  leader_of: a broker's id, -1 while there is none, None for a partition that is not
    known here.  others: None for a broker alone."""

    broker_id: int
    leader_of: Callable[[TopicPartition], int | None]
    here: MarkerWriter
    others: MarkerSender | None = None


class _Completion:
    """lock guards the other fields, and nothing is sent or written under it.  num_awaited: answers of this round.

    lacks_leader: a partition had none in this round.  is_unstored: all have the marker, and that could not be stored.
    """

    def __init__(self, entry: TransactionEntry, prepared: TransactionMetadata) -> None:
        self.entry = entry
        self.prepared = prepared
        self.lock = threading.Lock()
        self.remaining = set(prepared.partitions)
        self.num_awaited = 0
        self.is_fenced = self.lacks_leader = self.is_unstored = False
        self.last_error = self.logged_error = ""

    @property
    def missing(self) -> str:
        """The partitions that do not have the marker, and the last error."""
        if not self.remaining:
            return "its markers are written, and its end is being stored"
        reason = self.last_error and f": {self.last_error}"
        return f"its marker is not in {some_of(sorted(self.remaining))} yet{reason}"


class TransactionCompletions:
    """Thread-safe.  Retries run on the timer's thread; all else runs on the thread that brings an answer.

    A completion ends when the state is stored, or when this broker does not coordinate the id any more: then the next
    coordinator begins anew, and what is written twice changes nothing.
    Source: TransactionMarkerChannelManager, Kafka 3.9.
    """

    def __init__(self, manager: TransactionStateManager, routes: MarkerRoutes, timer: Timer) -> None:
        self._manager = manager
        self._routes = routes
        self._timer = timer
        self._lock = threading.Lock()
        self._completions: dict[TransactionEntry, _Completion] = {}

    def __len__(self) -> int:
        """Transactions that have not ended everywhere."""
        return len(self._completions)

    @property
    def num_without_leader(self) -> int:
        """Transactions with a partition that has no leader, as far as this broker knows."""
        return sum(completion.lacks_leader for completion in self._all())

    @property
    def num_unstored(self) -> int:
        """Transactions whose markers are written, which could not be noted in __transaction_state so far."""
        return sum(completion.is_unstored for completion in self._all())

    def progress(self, transactional_id: str) -> str | None:
        """Which partitions do not have the marker of its end yet, and why, for people; None where it is not ending."""
        for completion in self._all():
            if completion.entry.transactional_id == transactional_id:
                with completion.lock:
                    return completion.missing
        return None

    def _all(self) -> list[_Completion]:
        with self._lock:
            return list(self._completions.values())

    def begin(
        self, entry: TransactionEntry, prepared: TransactionMetadata, on_begun: Callable[[], None] = lambda: None
    ) -> None:
        """on_begun() is called before the first marker is written."""
        completion = _Completion(entry, prepared)
        with self._lock:
            self._completions[entry] = completion
        try:
            on_begun()
        finally:
            self._send_round(completion)

    def partitions_deleted(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """They are gone for good, and need no markers."""
        gone = frozenset(topic_partitions)
        for completion in self._all():
            with completion.lock:
                completion.remaining -= gone  # a round that waits ends by its answers, or by its retry

    # -- a round -----------------------------------------------------------------------------------------------------

    def _send_round(self, completion: _Completion) -> None:
        """Send the marker to each leader of a partition that does not have it."""
        epoch = self._coordinator_epoch(completion)
        if epoch < 0:
            self._drop(completion, "this broker does not coordinate it any more")
            return
        prepared, routes = completion.prepared, self._routes
        version = TRANSACTION_VERSION if prepared.raises_epoch else 0
        marker = Marker(prepared.producer_id, prepared.producer_epoch, prepared.is_commit, epoch, version)
        by_leader: dict[int, list[TopicPartition]] = {}
        with completion.lock:
            for topic_partition in sorted(completion.remaining):
                leader = routes.leader_of(topic_partition)
                if leader is None and self._is_deleted(completion.entry):
                    completion.remaining.discard(topic_partition)
                elif leader is not None and leader >= 0:
                    by_leader.setdefault(leader, []).append(topic_partition)
                else:
                    completion.last_error = f"{topic_partition} has no leader"
            completion.lacks_leader = sum(map(len, by_leader.values())) < len(completion.remaining)
            completion.num_awaited = len(by_leader)
        if not by_leader:
            self._end_round(completion)
            return

        def answered(results: MarkerResults) -> None:
            self._take(completion, results)

        for leader, partitions in by_leader.items():
            if leader == routes.broker_id:
                routes.here.write(marker, partitions, answered)
            elif routes.others is not None:
                routes.others.send(leader, marker, partitions, answered)

    def _coordinator_epoch(self, completion: _Completion) -> int:
        """-1 where this broker does not coordinate the id, or has shut down.

        It is that of the entry, not of its partition, which may have moved away and back after is_unloaded was read:
        partitions refuse a marker with the old epoch once the new coordinator has sent one.
        """
        entry = completion.entry
        return -1 if entry.is_unloaded or not self._manager.is_active else entry.coordinator_epoch

    def _is_deleted(self, entry: TransactionEntry) -> bool:
        """Whether a partition of its transaction that the metadata do not have was deleted.  It was there when it was
        added; but a new coordinator may not have all metadata yet."""
        return entry.loaded_ms is None or self._timer.now_ms() - entry.loaded_ms >= UNKNOWN_PARTITION_MS

    def _take(self, completion: _Completion, results: MarkerResults) -> None:
        with completion.lock:
            for topic_partition, error in results.items():
                if error is None or isinstance(error, _NEEDS_NO_MARKER):
                    completion.remaining.discard(topic_partition)
                else:
                    completion.is_fenced |= isinstance(error, _FENCED)
                    completion.last_error = f"{type(error).__name__}: {error}"
            completion.num_awaited -= 1
            if completion.num_awaited:
                return
        self._end_round(completion)

    def _end_round(self, completion: _Completion) -> None:
        if completion.is_fenced:
            self._drop(completion, completion.last_error)
        elif completion.remaining:
            if completion.last_error != completion.logged_error:
                completion.logged_error = completion.last_error
                logger.info("%s: %s; it is sent again", completion.entry.transactional_id, completion.missing)
            self._timer.add(lambda: self._send_round(completion), RETRY_MS)
        else:
            self._store_end(completion)

    def _drop(self, completion: _Completion, reason: str) -> None:
        logger.info("%s: its end is not sent on: %s", completion.entry.transactional_id, reason)
        self._forget(completion)

    def _forget(self, completion: _Completion) -> None:
        with self._lock:
            if self._completions.get(completion.entry) is completion:
                del self._completions[completion.entry]

    # -- the end -----------------------------------------------------------------------------------------------------

    def _store_end(self, completion: _Completion) -> None:
        """Every partition has the marker: the id is ready for its next transaction once that is in the log."""
        entry = completion.entry
        if self._coordinator_epoch(completion) < 0:
            self._drop(completion, "this broker does not coordinate it any more")
            return
        with entry.lock:
            entry.pending = after = complete(completion.prepared, self._manager.now_ms())
        self._manager.store(entry, after, lambda error: self._stored(completion, error))

    def _stored(self, completion: _Completion, error: ApiError | None) -> None:
        if error is None:
            self._forget(completion)
        elif isinstance(error, NotCoordinator):
            self._drop(completion, str(error))
        else:
            completion.is_unstored = True
            self._timer.add(lambda: self._store_end(completion), RETRY_MS)
