"""A log that verifies transactions: none begins that its coordinator does not know (KIP-890)."""

import pytest

from kcore.coordinator.transaction.marker_writer import Marker
from kcore.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.open_log import open_log
from kcore.testing import MockTime
from tests.unit.server.transactions import Producer, transactional_batch

P = Producer(7, 0)


@pytest.fixture
def time():
    return MockTime()


@pytest.fixture
def log(tmp_path, time):
    with open_log(tmp_path / "t-0", "a", time=time) as log:
        log.producer_state_manager.verifies_transactions = True
        yield log


def append(log, sequence=0, producer=P):
    return log.append_as_leader(transactional_batch(producer, b"v", base_sequence=sequence)).first_offset


def end(log, producer=P, *, is_commit=True, version=0):
    marker = Marker(*producer, is_commit, 0, version)
    log.append_as_leader(marker.batch(1), origin=marker.origin)


def test_TXN_28_a_transaction_begins_only_after_the_coordinator_has_confirmed_it(log):
    with pytest.raises(InvalidTxnState, match="its coordinator does not know"):
        append(log)
    verification = log.start_verification(*P, 0)
    with pytest.raises(InvalidTxnState):
        append(log)
    verification.is_confirmed = True
    assert append(log) == 0
    assert log.start_verification(*P, 1) is None, "it is open"
    assert append(log, 1) == 1
    assert log.log_end_offset == 2


def test_TXN_35_what_was_confirmed_before_a_marker_is_out_of_date_after_it(log):
    log.start_verification(*P, 0).is_confirmed = True
    end(log)
    with pytest.raises(InvalidTxnState):
        append(log)


def test_TXN_35_a_late_answer_does_not_confirm_the_question_of_the_next_transaction(log):
    """A marker comes between the question and the answer, and somebody asks again."""
    early = log.start_verification(*P, 0)
    end(log, is_commit=False)
    log.start_verification(*P, 0)
    early.is_confirmed = True
    with pytest.raises(InvalidTxnState):
        append(log)
    assert log.log_end_offset == 1


def test_TXN_35_a_batch_after_the_end_of_its_transaction_needs_another_confirmation(log):
    log.start_verification(*P, 0).is_confirmed = True
    append(log)
    end(log)
    with pytest.raises(InvalidTxnState):
        append(log, 1)
    log.start_verification(*P, 1).is_confirmed = True
    assert append(log, 1) == 2


def test_TXN_35_the_first_batch_is_the_lowest_of_those_that_wait(log):
    log.start_verification(*P, 0)
    log.start_verification(*P, 4).is_confirmed = True
    with pytest.raises(OutOfOrderSequenceNumber, match="sent sequence 4, but 0 before"):
        append(log, 4)
    assert append(log, 0) == 0


def test_TXN_35_sequences_of_an_older_epoch_do_not_count(log):
    log.start_verification(7, 0, 0)
    log.start_verification(7, 1, 3).is_confirmed = True
    assert append(log, 3, Producer(7, 1)) == 0


def test_a_higher_epoch_is_verified_though_an_older_transaction_is_open(log):
    log.start_verification(*P, 0).is_confirmed = True
    append(log)
    assert log.start_verification(7, 1, 0) is not None


def test_TXN_28_offsets_of_a_transaction_need_a_confirmation_too_and_markers_do_not(log):
    batch = bytes(transactional_batch(P, b"v", base_sequence=-1))
    end(log)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(batch, origin=AppendOrigin.COORDINATOR)
    log.start_verification(*P, -1).is_confirmed = True
    assert log.append_as_leader(batch, origin=AppendOrigin.COORDINATOR).first_offset == 1


def test_a_log_that_does_not_verify_and_what_a_leader_has_written_ask_nobody(tmp_path):
    batch = transactional_batch(P, b"v")
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    with open_log(tmp_path / "1" / "t-1", "a") as other:
        assert append(other) == 0
    with open_log(tmp_path / "2" / "t-2", "a") as follower:
        follower.producer_state_manager.verifies_transactions = True
        assert follower.append_as_follower(bytes(batch)).first_offset == 0


def test_a_question_without_an_answer_is_forgotten_with_its_producer(log, time):
    log.start_verification(*P, 0)
    manager = log.producer_state_manager
    manager.remove_expired_producers(time.milliseconds() + manager.producer_id_expiration_ms - 1)
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, 4)
    manager.remove_expired_producers(time.milliseconds() + manager.producer_id_expiration_ms)
    log.start_verification(*P, 4).is_confirmed = True
    assert append(log, 4) == 0


# -- transaction version 2: each transaction has an epoch of its own

NEXT = Producer(7, 1)


def begin_2(log, producer=P, sequence=0):
    log.start_verification(*producer, sequence, raises_epoch=True).is_confirmed = True
    return append(log, sequence, producer)


def test_TXN_38_after_a_marker_with_the_next_epoch_the_last_one_may_write_nothing(log):
    begin_2(log)
    end(log, NEXT, version=2)
    log_end = log.log_end_offset
    log.start_verification(*P, 1, raises_epoch=True).is_confirmed = True
    with pytest.raises(InvalidProducerEpoch):
        append(log, 1)
    assert log.log_end_offset == log.last_stable_offset == log_end
    assert log.producer_state_manager.producers[7].producer_epoch == 1
    # Each epoch begins with sequence 0.
    log.start_verification(*NEXT, 1, raises_epoch=True).is_confirmed = True
    with pytest.raises(OutOfOrderSequenceNumber):
        append(log, 1, NEXT)
    assert begin_2(log, NEXT) == log_end


def test_TXN_35_a_producer_of_version_2_that_the_log_does_not_know_begins_with_0(log):
    log.start_verification(*P, 3, raises_epoch=True).is_confirmed = True
    with pytest.raises(OutOfOrderSequenceNumber, match="begins with sequence 3, expected 0"):
        append(log, 3)
    assert log.log_end_offset == 0
    assert begin_2(log) == 0
    # One of an older version may be unknown because of retention.
    log.start_verification(8, 0, 3).is_confirmed = True
    assert append(log, 3, Producer(8, 0)) == 1


def test_TXN_35_the_end_of_the_last_transaction_leaves_the_question_about_the_next_one_in_force(log):
    begin_2(log)
    early = log.start_verification(*NEXT, 0, raises_epoch=True)
    end(log, NEXT, version=2)
    early.is_confirmed = True
    assert append(log, 0, NEXT) == 2
    # But not its own end.
    end(log, Producer(7, 2), version=2)
    confirmed = log.start_verification(7, 2, 0, raises_epoch=True)
    confirmed.is_confirmed = True
    end(log, Producer(7, 3), version=2)
    with pytest.raises((InvalidProducerEpoch, InvalidTxnState)):
        append(log, 0, Producer(7, 2))
    with pytest.raises(InvalidTxnState):
        append(log, 0, Producer(7, 3))


@pytest.mark.parametrize("is_commit", [True, False])
def test_TXN_66_a_marker_of_the_last_transaction_that_comes_twice_does_not_end_the_next_one(log, is_commit):
    begin_2(log)
    end(log, NEXT, version=2)
    end(log, NEXT, version=2)  # nothing is open: it changes nothing
    begin_2(log, NEXT)
    log_end = log.log_end_offset
    with pytest.raises(InvalidProducerEpoch, match="of the transaction before epoch 1, in which one is open from 3"):
        end(log, NEXT, is_commit=is_commit, version=2)
    assert (log.log_end_offset, log.producer_state_manager.producers[7].current_txn_first_offset) == (log_end, 3)
    end(log, Producer(7, 2), is_commit=is_commit, version=2)
    assert log.producer_state_manager.producers[7].current_txn_first_offset is None


def test_TXN_66_of_version_0_the_end_has_the_epoch_of_its_transaction(log):
    log.start_verification(*P, 0).is_confirmed = True
    append(log)
    end(log)
    assert log.producer_state_manager.producers[7].current_txn_first_offset is None


def test_TXN_66_a_fence_in_the_last_epoch_may_end_what_was_written_in_it(log):
    last = Producer(7, 32767)
    begin_2(log, last)
    end(log, last, is_commit=False, version=2)
    assert log.producer_state_manager.producers[7].current_txn_first_offset is None
