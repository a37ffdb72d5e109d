import pytest

from kcore.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from kcore.log.log_offset_metadata import AppendOrigin
from kcore.log.producer_state_entry import BatchMetadata, ProducerStateEntry
from kcore.log.producer_state_manager import decode_snapshot, encode_snapshot
from tests.unit.log.logs import Logs, idempotent, marker, offsets

COORDINATOR = AppendOrigin.COORDINATOR


def test_LOG_14_a_repeat_of_one_of_the_last_five_batches_gets_its_old_offsets_and_is_not_written(log):
    for i in range(7):
        log.append_as_leader(idempotent(9, 3 * i, 3, timestamp=1000 + i))
    size = log.size
    for i in range(2, 7):
        info = log.append_as_leader(idempotent(9, 3 * i, 3))
        assert info.is_duplicate
        assert (info.first_offset, info.last_offset, info.max_timestamp) == (3 * i, 3 * i + 2, 1000 + i)
    assert (log.size, log.log_end_offset) == (size, 21)
    for too_old in (0, 3):
        with pytest.raises(OutOfOrderSequenceNumber, match="expected 21 after 20"):
            log.append_as_leader(idempotent(9, too_old, 3))


def test_LOG_14_the_log_append_time_of_a_repeat_is_the_first_ones(tmp_path):
    logs = Logs(tmp_path / "orders-0", message_timestamp_type="LogAppendTime")
    log = logs.open()
    first = log.append_as_leader(idempotent(9, 0))
    logs.time.sleep(500)
    again = log.append_as_leader(idempotent(9, 0))
    assert again.is_duplicate and again.log_append_time == first.log_append_time == logs.time.milliseconds() - 500


@pytest.mark.parametrize("sequence", [1, 2, 5])
def test_LOG_14_a_gap_in_the_sequence_is_refused_and_nothing_is_written(log, sequence):
    log.append_as_leader(idempotent(9, 0, 2))
    if sequence == 2:
        log.append_as_leader(idempotent(9, sequence))
        return
    with pytest.raises(OutOfOrderSequenceNumber, match=f"sent sequence {sequence}, expected 2 after 1"):
        log.append_as_leader(idempotent(9, sequence))
    assert log.log_end_offset == 2
    assert log.append_as_leader(idempotent(9, 2)).first_offset == 2


def test_LOG_14_sequences_wrap_at_2_to_the_31(log):
    log.append_as_leader(idempotent(9, 2**31 - 2, 1))
    log.append_as_leader(idempotent(9, 2**31 - 1, 3))
    assert log.producer_state_manager.producers[9].last_sequence == 1
    assert log.append_as_leader(idempotent(9, 2**31 - 1, 3)).is_duplicate
    assert log.append_as_leader(idempotent(9, 2)).first_offset == 4


def test_LOG_14_an_older_epoch_is_refused_and_a_newer_one_starts_at_sequence_0(log):
    log.append_as_leader(idempotent(9, 0, epoch=3))
    with pytest.raises(InvalidProducerEpoch, match=r"epoch 2 .* older than 3"):
        log.append_as_leader(idempotent(9, 1, epoch=2))
    with pytest.raises(OutOfOrderSequenceNumber, match="expected 0"):
        log.append_as_leader(idempotent(9, 1, epoch=4))
    assert log.append_as_leader(idempotent(9, 0, epoch=4)).first_offset == 1


def test_LOG_14_of_an_unknown_producer_any_sequence_comes_first(log):
    assert log.append_as_leader(idempotent(9, 500)).first_offset == 0
    assert log.append_as_leader(idempotent(9, 501)).first_offset == 1


def test_LOG_15_a_follower_takes_what_the_leader_took(log):
    log.append_as_follower(idempotent(9, 5, epoch=4, base_offset=0))
    log.append_as_follower(idempotent(9, 77, epoch=2, base_offset=1))
    assert offsets(log) == [0, 1]


def test_LOG_15_markers_of_a_coordinator_are_checked_by_epoch_but_not_by_sequence(log):
    log.append_as_leader(idempotent(9, 0, epoch=3, is_transactional=True), origin=COORDINATOR)
    log.append_as_leader(idempotent(9, 50, epoch=3, is_transactional=True), origin=COORDINATOR)
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(idempotent(9, 51, epoch=2, is_transactional=True), origin=COORDINATOR)
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(marker(9, epoch=2, commit=True), origin=COORDINATOR)


def test_LOG_15_a_marker_of_an_older_coordinator_epoch_is_fenced(log):
    for epoch in (0, 1):
        log.append_as_leader(idempotent(9, 0, epoch=epoch, is_transactional=True))
        log.append_as_leader(marker(9, epoch=epoch, commit=True, coordinator_epoch=5), origin=COORDINATOR)
    with pytest.raises(TransactionCoordinatorFenced, match=r"4 .* older than 5"):
        log.append_as_leader(marker(9, epoch=1, commit=True, coordinator_epoch=4), origin=COORDINATOR)
    replicated = marker(9, epoch=1, commit=True, coordinator_epoch=4)
    replicated[0:8] = (4).to_bytes(8, "big")  # the base offset
    log.append_as_follower(replicated)
    assert log.log_end_offset == 5


def test_a_plain_batch_inside_a_transaction_is_refused(log):
    log.append_as_leader(idempotent(9, 0, is_transactional=True))
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(idempotent(9, 1))
    assert log.log_end_offset == 1


def test_a_marker_without_a_transaction_completes_nothing(log):
    log.append_as_leader(marker(9, commit=False), origin=COORDINATOR)
    assert log.last_stable_offset == 1
    assert log.read(0, 1000).aborted_transactions is None
    assert offsets(log, isolation="read_committed") == []


def test_the_state_survives_a_clean_stop_by_its_snapshot(logs, log):
    for i in range(7):
        log.append_as_leader(idempotent(9, i, timestamp=logs.time.milliseconds()))
    log.append_as_leader(idempotent(10, 0, is_transactional=True, timestamp=logs.time.milliseconds()))
    log.close()
    again = logs.open()
    assert again.producer_state_manager.producers[9].batches == (BatchMetadata(6, 6, 0, logs.time.milliseconds()),)
    assert again.last_stable_offset == 7
    assert again.append_as_leader(idempotent(9, 6)).is_duplicate
    assert again.append_as_leader(idempotent(9, 7)).first_offset == 8


def test_the_state_survives_an_unclean_stop_by_the_log(logs, log):
    for i in range(7):
        log.append_as_leader(idempotent(9, i, timestamp=logs.time.milliseconds()))
    again = logs.open(clean=False)
    # Five batches, not one: they were read, not loaded.
    assert [b.last_sequence for b in again.producer_state_manager.producers[9].batches] == [2, 3, 4, 5, 6]


def test_a_damaged_snapshot_is_set_aside_for_an_older_one_or_the_log(logs, log, caplog):
    for i in range(4):
        log.append_as_leader(idempotent(9, i, timestamp=logs.time.milliseconds()))
        log.roll()
    log.close()
    newest = logs.directory / f"{4:020d}.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x55")
    again = logs.open()
    assert again.append_as_leader(idempotent(9, 4)).first_offset == 4
    assert "00000000000000000004.snapshot: CRC" in caplog.text


def test_producers_that_were_idle_too_long_expire_unless_their_transaction_is_open(logs, log):
    now = logs.time.milliseconds()
    log.append_as_leader(idempotent(9, 0, timestamp=now))
    log.append_as_leader(idempotent(10, 0, timestamp=now, is_transactional=True))
    log.remove_expired_producers(now + 86_400_000 - 1)
    assert set(log.producer_state_manager.producers) == {9, 10}
    log.remove_expired_producers(now + 86_400_000)
    assert set(log.producer_state_manager.producers) == {10}
    assert log.append_as_leader(idempotent(9, 44)).first_offset == 2


def test_a_snapshot_keeps_every_field_of_the_last_batch():
    entries = [
        ProducerStateEntry(2**62, 32767, (BatchMetadata(2**31 - 1, 2**50, 7, 99),), 99, 12, 2**49),
        ProducerStateEntry(0, 0, (), 5, -1, None),
    ]
    assert decode_snapshot(encode_snapshot(entries), "x") == entries
