"""PartitionStateStore over the metadata store: the leader writes its partition's state node itself.

What has changed is then made known to the controller, which watches /isr_change_notification.
Source: ZkAlterPartitionManager and ReplicationUtils.updateLeaderAndIsr, Kafka 3.9; KIP-903.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kcore.common.scheduler import Scheduler
from kcore.common.text import counted, some_of
from kcore.common.time import Time
from kcore.common.topic_partition import TopicPartition
from kcore.errors import ApiError, FencedLeaderEpoch, IneligibleReplica, UnknownTopicOrPartition
from kcore.metadata import znodes
from kcore.metadata.store import (
    BadVersion,
    Check,
    CheckChildrenCreated,
    ConnectionLost,
    MetadataStore,
    MultiFailed,
    Node,
    NoNode,
    Operation,
    SessionExpired,
    SetData,
    StoreError,
    UnreadableNode,
)
from kcore.replica.partition_state_store import OnIsrChanged, StoredIsr

logger = logging.getLogger(__name__)

#: After a call of a store that cannot be reached, before the next.
_RETRY_MS = 1000
#: After the store has refused changes that it may take later (a quota, an ACL, an error of the server).
REFUSED_RETRY_MS = 5000
#: How often the nodes of one batch are read again at once because they changed before the write.
_MAX_READS = 20
#: Changes in one multi(): ZooKeeper takes no message above 1 MiB.
_MAX_BATCH = 500
#: Partitions in one notification, for the same reason.
_MAX_NOTIFIED = 3000
#: When notifications are looked at; after how long a quiet they go out, and after how long in any case.
#: Source: ZkAlterPartitionManager's DefaultIsrPropagationConfig.
CHECK_INTERVAL_MS = 2500
QUIET_MS = 5000
MAX_DELAY_MS = 60_000


class _Change(NamedTuple):
    topic_partition: TopicPartition
    isr: frozenset[int]
    expected_version: int
    broker_epochs: Mapping[int, int]
    leader_epoch: int
    on_done: OnIsrChanged


class _Write(NamedTuple):
    """A change that is allowed by what is stored now, and what makes it so."""

    change: _Change
    checks: Sequence[Check | CheckChildrenCreated]
    set_state: SetData


#: What became of a change; a StoreError: nothing that is known, and it is tried again.
_Answer = StoredIsr | ApiError | StoreError


class _Registrations:
    """The brokers' registrations in the store, each read once, until the write that depends on them."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._children_created: int | None = None
        self._nodes: dict[int, Node | None] = {}

    def checks(self, broker_id: int, epoch: int, *, is_joining: bool) -> list[Check | CheckChildrenCreated] | None:
        """What must hold at the write, so that the broker is registered with this epoch; None if it is not now.

        A new registration has version 0 as well.  For a broker that joins the ISR the count of all registrations must
        be as it was before they were read, so that no new one is missed.  One that stays in it has no record to prove.
        Raises StoreError.
        """
        path = znodes.broker_id(broker_id)
        if self._children_created is None:
            try:
                self._children_created = self._store.children_created(znodes.BROKER_IDS)
            except NoNode:
                return None
        if broker_id not in self._nodes:
            self._nodes[broker_id] = self._store.get(path)
        node = self._nodes[broker_id]
        if node is None or node.czxid != epoch:
            return None
        is_still_there = Check(path, node.version)
        if not is_joining:
            return [is_still_there]
        return [CheckChildrenCreated(znodes.BROKER_IDS, self._children_created), is_still_there]


def is_time_to_notify(now_ms: float, last_change_ms: float, last_notification_ms: float) -> bool:
    """Whether the partitions whose ISR has changed are to be made known (RM-28): after a quiet, but not too late."""
    return last_change_ms + QUIET_MS < now_ms or last_notification_ms + MAX_DELAY_MS < now_ms


class MetadataPartitionStateStore:
    """Thread-safe.  The store is called, and on_done, on the scheduler's thread only: one of its own in a cluster, so
    that ISRs change while other work waits for a disk."""

    def __init__(self, broker_id: int, store: MetadataStore, scheduler: Scheduler, time: Time) -> None:
        self._broker_id = broker_id
        self._store = store
        self._scheduler = scheduler
        self._time = time
        self._lock = threading.Lock()
        self._waiting: list[_Change] = []
        self._lookups: dict[int, list[Callable[[int], None]]] = {}
        # On the scheduler's thread only:
        self._changed: dict[TopicPartition, None] = {}
        self._last_change_ms = 0.0
        self._last_notification_ms = 0.0

    def change_isr(
        self,
        topic_partition: TopicPartition,
        isr: frozenset[int],
        expected_version: int,
        on_done: OnIsrChanged,
        *,
        broker_epochs: Mapping[int, int] | None = None,
        leader_epoch: int = -1,
    ) -> None:
        """See PartitionStateStore.change_isr."""
        change = _Change(topic_partition, isr, expected_version, broker_epochs or {}, leader_epoch, on_done)
        with self._lock:
            self._waiting.append(change)
            is_first = len(self._waiting) == 1
        if is_first:
            self._scheduler.schedule("change-isrs", self._store_waiting, 0)

    def look_up_registration(self, broker_id: int, on_found: Callable[[int], None]) -> None:
        """See PartitionStateStore.look_up_registration; one read of the store answers all that wait for a broker."""
        with self._lock:
            is_first = not self._lookups
            self._lookups.setdefault(broker_id, []).append(on_found)
        if is_first:
            self._scheduler.schedule("look-up-registrations", self._look_up_registrations, 0)

    def _look_up_registrations(self) -> None:
        with self._lock:
            lookups, self._lookups = self._lookups, {}
        for broker_id, waiting in lookups.items():
            try:
                node = self._store.get(znodes.broker_id(broker_id))
            except StoreError as error:
                logger.info("the registration of broker %d is not known: %s", broker_id, error)
                continue
            if node is not None:
                for on_found in waiting:
                    on_found(node.czxid)

    # -- storing ----------------------------------------------------------------------------------------

    def _store_waiting(self) -> None:
        """Store everything that waits, many with one write; while the store cannot be reached, it goes on waiting."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        while waiting:
            batch = _first_of_each_partition(waiting[:_MAX_BATCH])
            try:
                answers = self._store_batch(batch)
            except (ConnectionLost, SessionExpired) as error:
                logger.warning("%d changes of ISRs wait for the store: %s", len(waiting), error)
                with self._lock:
                    self._waiting = waiting + self._waiting
                self._scheduler.schedule("change-isrs", self._store_waiting, _RETRY_MS)
                return
            del waiting[: len(batch)]
            _log_changes(batch, answers)
            self._try_again([c for c, answer in zip(batch, answers, strict=True) if isinstance(answer, StoreError)])
            for change, answer in zip(batch, answers, strict=True):
                if isinstance(answer, StoreError):
                    continue
                if isinstance(answer, StoredIsr) and answer.isr == change.isr:
                    self._note_changed(change.topic_partition)
                try:
                    change.on_done(answer)
                except Exception:
                    logger.exception("%s: the answer about its ISR failed", change.topic_partition)

    def _try_again(self, changes: Sequence[_Change]) -> None:
        """After a pause: until then acknowledgements wait for both ISRs, so it is short."""

        def try_again() -> None:
            with self._lock:
                self._waiting = [*changes, *self._waiting]
            self._store_waiting()

        if changes:
            self._scheduler.schedule("change-isrs-again", try_again, REFUSED_RETRY_MS)

    def _store_batch(self, changes: Sequence[_Change]) -> list[_Answer]:
        """The answers, in the same order.  Raises ConnectionLost, SessionExpired: then some may have been stored."""
        answers: dict[TopicPartition, _Answer] = {}
        registrations = _Registrations(self._store)
        to_look_at = list(changes)
        writes: list[_Write] = []
        reads = 0
        while True:
            reads += 1
            paths = [znodes.partition_state(*change.topic_partition) for change in to_look_at]
            for change, node in zip(to_look_at, self._nodes(paths), strict=True):
                prepared = self._prepared(change, node, registrations)
                if isinstance(prepared, _Write):
                    writes.append(prepared)
                else:
                    answers[change.topic_partition] = prepared
            if not writes:
                return [answers[change.topic_partition] for change in changes]
            checks = list(dict.fromkeys(check for write in writes for check in write.checks))
            operations: list[Operation] = [*checks, *(write.set_state for write in writes)]
            try:
                results = self._store.multi(operations)
            except MultiFailed as error:
                failed = operations[error.index]
                affected = [write for write in writes if failed is write.set_state or failed in write.checks]
                writes = [write for write in writes if write not in affected]
                registrations = _Registrations(self._store)
                to_look_at = [write.change for write in affected]
                if not isinstance(error.cause, BadVersion | NoNode) or reads > _MAX_READS:
                    for change in to_look_at:
                        answers[change.topic_partition] = error
                    to_look_at = []
                # Else the node has changed since it was read: read it again.  Nothing was written.
                continue
            except (ConnectionLost, SessionExpired):
                raise
            except StoreError as error:
                for write in writes:
                    answers[write.change.topic_partition] = error
            else:
                for write, version in zip(writes, results[len(checks) :], strict=True):
                    assert isinstance(version, int)
                    answers[write.change.topic_partition] = StoredIsr(write.change.isr, version)
            writes, to_look_at = [], []

    def _nodes(self, paths: Sequence[str]) -> Sequence[Node | StoreError | None]:
        """Each node, or why it cannot be read.  Raises ConnectionLost, SessionExpired."""
        try:
            return self._store.get_many(paths)
        except (ConnectionLost, SessionExpired):
            raise
        except StoreError:
            # The error of one node is that of them all: read them one by one.
            return [self._node(path) for path in paths]

    def _node(self, path: str) -> Node | StoreError | None:
        try:
            return self._store.get(path)
        except (ConnectionLost, SessionExpired):
            raise
        except StoreError as error:
            return error

    def _prepared(
        self, change: _Change, node: Node | StoreError | None, registrations: _Registrations
    ) -> _Write | _Answer:
        """How to write a change; or its answer, if it cannot be written or is no longer right."""
        tp, isr, expected_version, broker_epochs, leader_epoch, _ = change
        path = znodes.partition_state(tp.topic, tp.partition)
        try:
            if isinstance(node, StoreError):
                raise node
            if node is None:
                return UnknownTopicOrPartition(f"{tp}: its state is not stored")
            state = znodes.PartitionStateZNode.decode(node.data)
            if state.leader != self._broker_id or 0 <= leader_epoch != state.leader_epoch:
                # Also where this broker was elected again: what it knows of its followers may be of an earlier log.
                return FencedLeaderEpoch(f"{tp}: broker {state.leader} leads with epoch {state.leader_epoch}")
            if node.version != expected_version:
                # The reply to an earlier change was lost, or an operator wrote the node: what is stored counts.
                return StoredIsr(frozenset(state.isr), node.version)
            checks: list[Check | CheckChildrenCreated] = []
            for broker in sorted(isr):
                epoch = broker_epochs.get(broker, -1)
                if epoch < 0:
                    continue
                of_broker = registrations.checks(broker, epoch, is_joining=broker not in state.isr)
                if of_broker is None:
                    # It has started again since its fetch, perhaps without what it had fetched.
                    return IneligibleReplica(f"{tp}: broker {broker} is not registered with epoch {epoch} any more")
                checks += of_broker
            data = state._replace(isr=sorted(isr)).encode()
            return _Write(change, checks, SetData(path, data, expected_version))
        except (ConnectionLost, SessionExpired):
            raise
        except StoreError as error:
            return error
        except (KeyError, TypeError, ValueError) as error:
            return UnreadableNode(path, StoreError(repr(error)))

    # -- notifications ----------------------------------------------------------------------------------

    def _note_changed(self, topic_partition: TopicPartition) -> None:
        self._last_change_ms = self._time.milliseconds()
        if not self._changed:
            self._scheduler.schedule("notify-of-isrs", self._notify, CHECK_INTERVAL_MS)
        self._changed[topic_partition] = None

    def _notify(self) -> None:
        """Let the controller read the states that have changed (RM-28); later, if more changes may come soon."""
        now_ms = self._time.milliseconds()
        if not is_time_to_notify(now_ms, self._last_change_ms, self._last_notification_ms):
            self._scheduler.schedule("notify-of-isrs", self._notify, CHECK_INTERVAL_MS)
            return
        try:
            self._store.ensure_path(znodes.ISR_CHANGE_NOTIFICATION)
            while self._changed:
                partitions = list(self._changed)[:_MAX_NOTIFIED]
                path = f"{znodes.ISR_CHANGE_NOTIFICATION}/isr_change_"
                self._store.create(path, znodes.encode_partitions(partitions), sequential=True)
                for topic_partition in partitions:
                    del self._changed[topic_partition]
            self._last_notification_ms = now_ms
        except StoreError as error:
            logger.warning("the controller was not notified of %d changed ISRs: %s", len(self._changed), error)
            self._scheduler.schedule("notify-of-isrs", self._notify, CHECK_INTERVAL_MS)


def _log_changes(changes: Sequence[_Change], answers: Sequence[_Answer]) -> None:
    """One line for each new ISR, and for each kind of error."""
    changed: dict[frozenset[int], list[TopicPartition]] = {}
    refused: dict[type[ApiError], dict[TopicPartition, ApiError]] = {}
    to_try_again: list[str] = []
    for change, answer in zip(changes, answers, strict=True):
        if isinstance(answer, StoreError):
            to_try_again.append(f"{change.topic_partition}: {answer}")
        elif isinstance(answer, ApiError):
            refused.setdefault(type(answer), {})[change.topic_partition] = answer
        elif answer.isr == change.isr:
            changed.setdefault(answer.isr, []).append(change.topic_partition)
    for isr, partitions in changed.items():
        logger.info("ISR %s of %s: %s", sorted(isr), counted(len(partitions), "partition"), some_of(partitions))
    if to_try_again:
        what = counted(len(to_try_again), "ISR")
        logger.error("%s not stored, tried again in %d s: %s", what, REFUSED_RETRY_MS // 1000, some_of(to_try_again))
    for kind, errors in refused.items():
        # An ineligible replica has stopped or has registered again meanwhile; it joins by a later fetch.
        level = logging.INFO if kind is IneligibleReplica else logging.WARNING
        logger.log(level, "%s not stored: %s", counted(len(errors), "ISR"), some_of(errors.values()))


def _first_of_each_partition(changes: Sequence[_Change]) -> list[_Change]:
    """The changes up to the first one of a partition that is among them already: it depends on what comes before."""
    first: dict[TopicPartition, _Change] = {}
    for change in changes:
        if change.topic_partition in first:
            break
        first[change.topic_partition] = change
    return list(first.values())
