"""What the product does when a rule of transactions is taken out: for test_transaction_scenarios.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcore.coordinator.coordinator_partitions import CoordinatorPartitions
from kcore.coordinator.group.committed_offset import CommittedOffset
from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.coordinator.transaction import transaction_state
from kcore.coordinator.transaction.transaction_completion import TransactionCompletions
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_state import Producer, TransactionState
from kcore.coordinator.transaction.transaction_state_manager import TransactionStateManager
from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
from kcore.errors import InvalidProducerIdMapping
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.producer_state_manager import ProducerAppendInfo, ProducerStateManager
from kcore.replica.partition import Partition

# -- rules of a log ---------------------------------------------------------------------------------------------------

_end_txn = ProducerAppendInfo._end_txn
_read_records = Partition.read_records


def end_by_any_coordinator(info: ProducerAppendInfo, batch: Any, coordinator_epoch: int, *others: Any) -> Any:
    """A marker of an old coordinator counts."""
    return _end_txn(info, batch, max(coordinator_epoch, info.entry.coordinator_epoch), *others)


def end_without_ending_the_question(info: ProducerAppendInfo, *marker: Any) -> Any:
    """An answer counts that was asked for before the marker."""
    before = info.ends_verification
    completed = _end_txn(info, *marker)
    info.ends_verification = before
    return completed


def end_whatever_has_begun(info: ProducerAppendInfo, *marker: Any) -> Any:
    """A marker that raises the epoch ends the transaction that is open in the raised one."""
    if info._origin is AppendOrigin.COORDINATOR_RAISING_EPOCH:
        info._origin = AppendOrigin.COORDINATOR
    return _end_txn(info, *marker)


def any_producer_epoch(info: ProducerAppendInfo, producer_epoch: int, offset: int) -> None:
    """Batches and markers of an old epoch are taken."""


def any_sequence(info: ProducerAppendInfo, batch: Any) -> None:
    """A batch may come in any order."""


def no_duplicate(manager: ProducerStateManager, batch: Any) -> None:
    """A batch that came before is appended again."""


def read_to_the_high_watermark(partition: Partition, offset: int, size: int, isolation: Any, *others: Any) -> Any:
    """Readers of committed records read what is in open transactions, too."""
    if isolation is FetchIsolation.TXN_COMMITTED:
        isolation = FetchIsolation.HIGH_WATERMARK
    return _read_records(partition, offset, size, isolation, *others)


# -- rules of the coordinator -----------------------------------------------------------------------------------------


def confirm_without_asking(
    verifier: TransactionVerifier,
    transactional_id: str,
    producer: Producer,
    sequences: Any,
    on_verified: Any,
    *,
    adds: bool = False,
) -> None:
    """Each leader takes a partition to be in the transaction."""
    for verification in verifier._started(producer, sequences, adds=adds).values():
        verification.is_confirmed = True
    on_verified({})


def check_producer_id_alone(current: Any, is_pending: bool, producer: Producer) -> None:
    """Neither the epoch nor a change that is being written matters."""
    if producer.producer_id != current.producer_id:
        raise InvalidProducerIdMapping(current.transactional_id)


_check_producer = transaction_state._check_producer


def check_whatever_is_pending(current: Any, is_pending: bool, producer: Producer) -> None:
    _check_producer(current, False, producer)


_init_producer_id = transaction_state.init_producer_id


def init_whatever_is_pending(current: Any, is_pending: bool, *others: Any) -> Any:
    return _init_producer_id(current, False, *others)


def init_without_fence(current: Any, is_pending: bool, *others: Any) -> Any:
    """A new producer goes on with the transaction of the one before, which is fenced all the same."""
    if current.state is TransactionState.ONGOING and not is_pending:
        fenced = transaction_state.fence(current)
        return transaction_state.replace(fenced, state=TransactionState.ONGOING)
    return _init_producer_id(current, is_pending, *others)


def end_in_the_same_epoch(
    current: Any, is_pending: bool, producer: Producer, is_commit: bool, new_producer_id: Any, now_ms: int
) -> Any:
    """The end of a transaction of version 2 leaves the epoch as it is."""
    return transaction_state.end(current, is_pending, producer, is_commit, now_ms)


_change = TransactionCoordinator._change


def change_without_confirming(
    coordinator: TransactionCoordinator, entry: Any, rule: Any, on_changed: Any, *, writes_unchanged: bool = False
) -> None:
    """What a client repeats is answered from memory."""
    _change(coordinator, entry, rule, on_changed)


def own_at_once(partitions: CoordinatorPartitions, partition: int, epoch: int, load: Any) -> None:
    """Requests are answered before what is in the log has been read; it is read after that."""
    if epoch >= partitions.epoch(partition):
        partitions.owned[partition] = epoch
        partitions._disk_scheduler.schedule("load", lambda: _load_late(partitions, partition, epoch, load), 0)


def _load_late(partitions: CoordinatorPartitions, partition: int, epoch: int, load: Any) -> None:
    partitions.loading[partition] = epoch
    partitions._load(partition, epoch, load)


def keep_all(partitions: CoordinatorPartitions, partition: int, epoch: Any, kept_in: Any) -> list[Any]:
    """Who leads no more keeps what it has, and goes on from there when it leads again."""
    return []


def forget_nothing(partitions: CoordinatorPartitions, partition: int, epoch: Any, kept_in: Any) -> list[Any]:
    """Who leads no more answers no requests, but what it had stays, for when it leads again."""
    partitions.loading.pop(partition, None)
    partitions.owned.pop(partition, None)
    return []


def elected_without_a_new_beginning(coordinators: Any, new_leaders: Any, new_followers: Any) -> None:
    """Who may have missed another leader goes on with what it had."""
    for partition in new_leaders:
        coordinators.on_election(partition.topic_partition, partition.leader_epoch)
    for partition in new_followers:
        coordinators.on_resignation(partition.topic_partition, partition.leader_epoch)


def nothing(*arguments: Any) -> None:
    """Does not happen."""


def end_after_one_round(completions: TransactionCompletions, completion: Any) -> None:
    """A transaction has ended when each leader has been asked once."""
    completions._store_end(completion)


def append_unreplicated(
    partitions: CoordinatorPartitions, partition: int, epoch: int, batch: Any, on_done: Any
) -> None:
    """What a coordinator writes counts before it is replicated."""
    tp = transaction_state.TopicPartition(partitions._topic, partition)
    partitions._replica_manager.append_records(
        1000, 1, True, AppendOrigin.COORDINATOR, {tp: batch}, lambda statuses: on_done(statuses[tp]), {tp: epoch}
    )


def store_in_memory_first(store: Callable[..., None]) -> Callable[..., None]:
    """A state counts, and is answered, before it is in the log."""

    def store_and_answer(manager: TransactionStateManager, entry: Any, after: Any, on_stored: Any) -> None:
        with entry.lock:
            entry.metadata = after
        answered = False

        def once(error: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                on_stored(error)

        once(None)
        store(manager, entry, after, once)

    return store_and_answer


def may_own(manager: Any, partition: int) -> bool:
    return True


# -- rules of groups --------------------------------------------------------------------------------------------------


def take_offsets_at_once(group: GroupMetadata, producer_id: int, offsets: Any, append_offset: int) -> None:
    """Offsets count before their transaction is committed."""
    group.offsets.update({tp: CommittedOffset(append_offset, value) for tp, value in offsets.items()})


def end_as_committed(group: GroupMetadata, producer_id: int, is_commit: bool) -> None:
    """Offsets of an aborted transaction count."""
    _end_transaction(group, producer_id, True)


_end_transaction = GroupMetadata.end_transaction


def stable(group: GroupMetadata, tp: Any) -> bool:
    return False
