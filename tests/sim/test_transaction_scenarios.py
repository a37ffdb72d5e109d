"""A history for each rule of transactions: it breaks no invariant with the rule, and one without it."""

from __future__ import annotations

from dataclasses import replace

from kcore.coordinator.coordinator_partitions import CoordinatorPartitions
from kcore.coordinator.coordinators import Coordinators
from kcore.coordinator.group.group_load import GroupLoad
from kcore.coordinator.group.group_metadata import GroupMetadata
from kcore.coordinator.group.group_metadata_manager import GroupMetadataManager
from kcore.coordinator.transaction import transaction_state
from kcore.coordinator.transaction.transaction_completion import TransactionCompletions
from kcore.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcore.coordinator.transaction.transaction_load import TransactionLoad
from kcore.coordinator.transaction.transaction_state_manager import TransactionStateManager
from kcore.coordinator.transaction.transaction_verifier import TransactionVerifier
from kcore.log.producer_state_manager import ProducerAppendInfo, ProducerStateManager
from kcore.replica.partition import Partition
from tests.sim.events import CONTROLLER, PRODUCER, Crash, Cut, Delay, Duplicate, Elect, Lose, Settings, SlowDisk
from tests.sim.transactions import without
from tests.sim.transactions.events import (
    ABORT,
    GROUP_OFFSETS,
    NOTHING,
    TRANSACTION_STATE,
    DieInAppend,
    FetchOffset,
    LateMessages,
    NewClient,
    ReadCommitted,
    Transact,
)

ONE = Settings(transactions=True, transaction_timeout_ms=10_000)
TWO = Settings(partitions=2, transactions=True, transaction_timeout_ms=10_000)
#: The same with clients of version 2.
ONE_V2 = replace(ONE, transaction_versions=(2,))
TWO_V2 = replace(TWO, transaction_versions=(2,))


def test_a_reader_of_committed_records_gets_none_of_an_open_transaction(scenario):
    history = scenario(
        ONE,
        Transact(100, 0, ends=NOTHING),
        ReadCommitted(200, 0),
    )
    history.goes_well()
    history.breaks(
        "what_a_consumer_sees_was_to_be_committed", Partition, "read_records", without.read_to_the_high_watermark
    )


def test_a_batch_that_is_sent_again_is_written_once(scenario):
    """The answer to the first one is lost."""
    history = scenario(
        ONE,
        Transact(100, 0),
        Lose(110, 0, PRODUCER),
    )
    history.goes_well()
    history.also(ProducerAppendInfo, "_check_sequence", without.any_sequence)
    history.breaks(
        "a_transaction_is_seen_whole_or_not_at_all", ProducerStateManager, "find_duplicate", without.no_duplicate
    )


def test_a_partition_refuses_the_marker_of_a_coordinator_that_was_replaced(scenario):
    """The marker of a commit comes late, from the coordinator before; the next transaction is open by then."""
    history = scenario(
        TWO,
        LateMessages(90, "WriteTxnMarkers", by_ms=1500),
        Transact(100, 0, (1,)),
        Elect(800, TRANSACTION_STATE, 1),
        Transact(1000, 0, (1, 1), ends=ABORT, pause_ms=400),
        ReadCommitted(1750, 1),
    )
    history.goes_well()
    history.breaks(
        "what_a_consumer_sees_was_to_be_committed", ProducerAppendInfo, "_end_txn", without.end_by_any_coordinator
    )


def test_a_client_with_an_old_epoch_writes_nothing(scenario):
    """The transaction of the new client is open.  The log and the coordinator look at the epoch: one is enough."""
    history = scenario(
        ONE,
        Transact(100, 0, pause_ms=1000),
        NewClient(300, 0),
        Transact(500, 0, pause_ms=400),
    )
    history.goes_well()
    history.also(ProducerAppendInfo, "_check_producer_epoch", without.any_producer_epoch)
    history.breaks("a_zombie_writes_nothing_visible", TransactionVerifier, "verify", without.confirm_without_asking)


def test_a_late_batch_begins_no_transaction_that_its_coordinator_does_not_know(scenario):
    """The client has given it up and aborted; it comes after the marker."""
    history = scenario(
        ONE,
        LateMessages(90, "Produce", by_ms=400),
        Transact(100, 0, patience_ms=20),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", TransactionVerifier, "verify", without.confirm_without_asking)


def test_an_answer_that_was_asked_for_before_the_marker_begins_no_transaction(scenario):
    """The leader asks, the client gives up and aborts, and the answer comes after the marker."""
    history = scenario(
        TWO,
        Transact(100, 0, (1,), pause_ms=50, patience_ms=20),
        Delay(160, 0, 1, by_ms=600),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", ProducerAppendInfo, "_end_txn", without.end_without_ending_the_question)


def test_a_client_with_an_old_epoch_ends_no_transaction(scenario):
    """A zombie asks to commit while the transaction of the new client is open."""
    history = scenario(
        ONE,
        Transact(100, 0, pause_ms=1000),
        NewClient(1300, 0),
        Transact(1500, 0, ends=ABORT, pause_ms=400),
    )
    history.goes_well()
    history.breaks("a_zombie_commits_nothing", transaction_state, "_check_producer", without.check_producer_id_alone)


def test_no_epoch_is_given_while_a_change_is_being_written(scenario):
    history = scenario(
        ONE,
        NewClient(100, 0),
        NewClient(101, 0),
    )
    history.goes_well()
    history.breaks(
        "a_producer_id_and_epoch_is_given_once", transaction_state, "init_producer_id", without.init_whatever_is_pending
    )


def test_a_new_client_first_aborts_what_the_one_before_has_left_open(scenario):
    """A new client that went on with it would commit what the one before has written."""
    history = scenario(
        ONE,
        Transact(100, 0, (0, 0), ends=ABORT, pause_ms=400),
        NewClient(700, 0),
        Transact(750, 0),
    )
    history.goes_well()
    history.breaks(
        "what_a_consumer_sees_was_to_be_committed", transaction_state, "init_producer_id", without.init_without_fence
    )


def test_a_state_counts_once_it_is_replicated(scenario):
    """The next coordinator has no commit, and aborts."""
    history = scenario(
        TWO,
        Transact(100, 0, (1,), pause_ms=200),
        Cut(350, 0, 1, 3000),
        Cut(350, 0, 2, 3000),
        Elect(600, TRANSACTION_STATE, 1),
    )
    history.goes_well()
    history.breaks(
        "an_acknowledged_end_is_what_consumers_see", CoordinatorPartitions, "append", without.append_unreplicated
    )


def test_a_state_counts_once_it_is_written(scenario):
    history = scenario(
        TWO,
        Transact(100, 0, (1,), pause_ms=200),
        Cut(450, 0, 1, 3000),
        Cut(450, 0, 2, 3000),
        Elect(700, TRANSACTION_STATE, 1),
    )
    history.goes_well()
    history.breaks(
        "an_acknowledged_end_is_what_consumers_see",
        TransactionStateManager,
        "store",
        without.store_in_memory_first(TransactionStateManager.store),
    )


def test_a_transaction_ends_when_each_partition_has_its_marker(scenario):
    """The leader dies before it has the marker."""
    history = scenario(
        TWO,
        Transact(100, 0, (1,)),
        Crash(118, 1, "is killed", down_ms=300),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", TransactionCompletions, "_end_round", without.end_after_one_round)


def test_a_transaction_whose_client_is_gone_is_aborted(scenario):
    history = scenario(
        ONE,
        Transact(100, 0, ends=NOTHING),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", TransactionCoordinator, "abort_timed_out", without.nothing)


def test_a_decided_transaction_is_completed_by_the_next_coordinator(scenario):
    history = scenario(
        TWO,
        DieInAppend(80, 0, moments=6, down_ms=2000),
        Transact(100, 0, (1,)),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", TransactionCoordinator, "_on_loaded", without.nothing)


def test_a_loaded_decision_is_acted_on_once_it_is_committed(scenario):
    """Broker 2 has loaded an abort with a later epoch that broker 1, which leads next, does not have."""
    history = scenario(
        ONE,
        Transact(100, 0, pause_ms=1000),
        Cut(250, 0, 1, 800),
        Cut(250, 1, 2, 800),
        NewClient(300, 0),
        Elect(500, TRANSACTION_STATE, 2),
        Cut(550, 2, PRODUCER, 300),
        Elect(900, TRANSACTION_STATE, 1),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", TransactionLoad, "acts", False)


def test_a_coordinator_answers_nothing_before_it_has_loaded_its_partition(scenario):
    """A new client would be given another producer id, which fences nobody."""
    history = scenario(
        ONE,
        Transact(100, 0, (0, 0), pause_ms=300),
        SlowDisk(450, 1, 1000),
        Elect(500, TRANSACTION_STATE, 1),
        NewClient(550, 0),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", CoordinatorPartitions, "elect", without.own_at_once)


def test_who_leads_again_begins_with_what_is_in_its_log(scenario):
    history = scenario(
        ONE,
        Transact(100, 0),
        Elect(200, TRANSACTION_STATE, 1),
        Transact(400, 0, ends=NOTHING),
        Elect(600, TRANSACTION_STATE, 0),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", CoordinatorPartitions, "resign", without.forget_nothing)


def test_a_coordinator_that_may_have_missed_another_one_begins_anew(scenario):
    """Broker 1 has sent markers with its epoch, and broker 0 never hears that it was not the leader."""
    history = scenario(
        TWO,
        LateMessages(90, "WriteTxnMarkers", by_ms=1500),
        Transact(100, 0, (1,)),
        Delay(799, CONTROLLER, 0, by_ms=3000),
        Elect(800, TRANSACTION_STATE, 1),
        Elect(1000, TRANSACTION_STATE, 0),
    )
    history.goes_well()
    history.breaks(
        "no_transaction_stays_open", Coordinators, "leadership_changed", without.elected_without_a_new_beginning
    )


def test_what_a_client_repeats_is_answered_when_the_replicas_have_agreed(scenario):
    """Broker 0 coordinates no more and has not heard of it.  It has committed the last transaction, of the same epoch;
    the client has begun the next one at broker 1, and asks broker 0 to commit it."""
    history = scenario(
        replace(TWO, asks_any_broker=True),
        Transact(100, 0, (0,)),
        Delay(299, CONTROLLER, 0, by_ms=5000),
        Elect(300, TRANSACTION_STATE, 1),
        Transact(2500, 0, (1, 1, 1)),
        ReadCommitted(5000, 1),
    )
    history.goes_well()
    history.breaks(
        "an_acknowledged_end_is_what_consumers_see",
        TransactionCoordinator,
        "_change",
        without.change_without_confirming,
    )


def test_a_coordinator_that_no_replica_follows_confirms_nothing(scenario):
    """Broker 0 has not heard that broker 1 coordinates, where the client has aborted; its batch is late."""
    history = scenario(
        ONE,
        LateMessages(90, "Produce", by_ms=2600),
        Transact(100, 0, patience_ms=2200),
        Delay(299, CONTROLLER, 0, by_ms=6000),
        Elect(300, TRANSACTION_STATE, 1),
        ReadCommitted(5000, 0),
    )
    history.goes_well()
    history.breaks("no_transaction_stays_open", Partition, "is_followed", True)


def test_KIP_890_a_late_end_does_not_end_the_next_transaction(scenario):
    """A copy of the commit comes while the next transaction is open."""
    history = scenario(
        ONE_V2,
        Transact(100, 0, pause_ms=200),
        Duplicate(450, PRODUCER, 0, after_ms=800),
        Transact(700, 0, ends=ABORT, pause_ms=400),
        ReadCommitted(1400, 0),
    )
    history.goes_well()
    history.breaks(
        "what_a_consumer_sees_was_to_be_committed",
        transaction_state,
        "end_raising_epoch",
        without.end_in_the_same_epoch,
    )


def test_KIP_890_a_late_marker_does_not_end_the_next_transaction(scenario):
    """A copy of the marker of a commit comes while the next transaction, which has the epoch of the marker, is open."""
    history = scenario(
        TWO_V2,
        Transact(100, 0, (1,), pause_ms=200),
        Duplicate(500, 0, 1, after_ms=800, count=10),
        Transact(700, 0, (1,), ends=ABORT, pause_ms=400),
        ReadCommitted(1450, 1),
    )
    history.goes_well()
    history.breaks(
        "what_a_consumer_sees_was_to_be_committed", ProducerAppendInfo, "_end_txn", without.end_whatever_has_begun
    )


def test_offsets_wait_for_the_end_of_their_transaction(scenario):
    """Somebody asks for the offset while the transaction is open."""
    history = scenario(
        ONE,
        Transact(100, 0, (0,), has_offsets=True, ends=ABORT, pause_ms=300),
        FetchOffset(800, 0),
    )
    history.goes_well()
    history.also(GroupMetadata, "is_unstable", without.stable)
    history.breaks(
        "a_committed_offset_was_to_be_committed",
        GroupMetadata,
        "complete_transactional_commit",
        without.take_offsets_at_once,
    )


def test_offsets_of_an_aborted_transaction_are_dropped(scenario):
    history = scenario(
        ONE,
        Transact(100, 0, has_offsets=True, ends=ABORT),
    )
    history.goes_well()
    history.breaks("offsets_move_with_their_transaction", GroupMetadata, "end_transaction", without.end_as_committed)


def test_an_offset_that_an_open_transaction_may_change_is_not_answered_as_stable(scenario):
    """Of a commit that was acknowledged the marker is still on its way."""
    history = scenario(
        ONE,
        Elect(90, GROUP_OFFSETS, 1),
        Transact(100, 0, has_offsets=True),
        LateMessages(110, "WriteTxnMarkers", by_ms=800),
        FetchOffset(300, 0),
    )
    history.goes_well()
    history.breaks(
        "a_stable_offset_is_not_older_than_an_acknowledged_commit", GroupMetadata, "is_unstable", without.stable
    )


def test_the_marker_of_a_commit_makes_its_offsets_those_of_the_group(scenario):
    history = scenario(
        ONE,
        Transact(100, 0, has_offsets=True),
    )
    history.goes_well()
    history.breaks("offsets_move_with_their_transaction", GroupMetadataManager, "end_transaction", without.nothing)


def test_a_group_that_is_loaded_takes_the_offsets_of_committed_transactions(scenario):
    history = scenario(
        ONE,
        Transact(100, 0, has_offsets=True),
        Elect(500, GROUP_OFFSETS, 1),
    )
    history.goes_well()
    history.breaks("offsets_move_with_their_transaction", GroupLoad, "_end_transaction", without.nothing)
