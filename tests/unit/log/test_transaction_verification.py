"""A log that verifies transactions: none begins that its coordinator does not know (KIP-890)."""

import pytest

from kcore.coordinator.transaction.marker_writer import Marker
from kcore.errors import InvalidTxnState, OutOfOrderSequenceNumber
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


def end(log, producer=P, *, is_commit=True):
    log.append_as_leader(Marker(*producer, is_commit, 0).batch(1), origin=AppendOrigin.COORDINATOR)


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
