"""Transactions in the log: what holds back the last stable offset, which records a read_committed reader leaves out."""

import contextlib
import errno
import os
import shutil

import pytest

from kcore.common import file
from kcore.errors import (
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaStorageError,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
)
from kcore.log import local_log
from kcore.log.clean_shutdown import write_clean_shutdown
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation, LogOffsetMetadata
from kcore.log.open_log import open_log
from kcore.log.transaction_index import TransactionIndex, encode_entries
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.golden_data import data_dir
from tests.unit.log.logs import Logs, batch, idempotent, marker, offsets

COORDINATOR = AppendOrigin.COORDINATOR
COMMITTED = FetchIsolation.TXN_COMMITTED
ENOUGH = 1 << 20


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0", index_interval_bytes=0)


def at(offset, records):
    """The batch as a leader sends it on."""
    records[0:8] = offset.to_bytes(8, "big")
    return records


def data(log, producer, sequence=0, count=1, **options):
    return log.append_as_leader(idempotent(producer, sequence, count, is_transactional=True, **options)).first_offset


def end(log, producer, *, commit, **options):
    return log.append_as_leader(marker(producer, commit=commit, **options), origin=COORDINATOR).first_offset


def aborted(log, offset=0, size=ENOUGH):
    return log.read(offset, size, COMMITTED).aborted_transactions


def committed(log, **options):
    return offsets(log, isolation="read_committed", **options)


def test_SEG_13_a_flush_syncs_the_transaction_index_too(logs):
    log = logs.open()
    data(log, 1)
    end(log, 1, commit=False)
    index = str(logs.directory / f"{0:020d}.txnindex")
    assert os.path.getsize(index) == 34
    file.fail_next("fsync", errno.EIO, under=index)
    with pytest.raises(KafkaStorageError, match="txnindex"):
        log.flush()
    file.clear_faults()


# -- the last stable offset ------------------------------------------------------------------------------------


def test_HW_06_the_oldest_of_several_open_and_unreplicated_transactions_decides(logs):
    log = logs.open(sole_replica=False)
    for producer in (1, 2, 3):
        data(log, producer)  # 0, 1, 2
    end(log, 2, commit=True)  # 3
    log.append_as_leader(batch())  # 4
    end(log, 1, commit=False)  # 5
    seen = []
    for high_watermark in range(7):
        log.update_high_watermark(high_watermark)
        seen.append(log.last_stable_offset)
    # 1 and 2 have ended, but that counts only when their markers are replicated.
    assert seen == [0, 0, 0, 0, 0, 0, 2]
    end(log, 3, commit=True)  # 6
    log.update_high_watermark(6)
    assert log.last_stable_offset == 2
    log.update_high_watermark(7)
    assert (log.last_stable_offset, log.last_stable_offset_metadata) == (7, log.log_end_offset_metadata)


def test_HW_06_the_lso_has_its_place_in_the_log(tmp_path):
    size = len(idempotent(1, 0, is_transactional=True))
    log = Logs(tmp_path / "orders-0", segment_bytes=2 * size).open()
    data(log, 7)
    end(log, 7, commit=True)
    data(log, 1)
    data(log, 2)
    end(log, 2, commit=True)
    assert log.last_stable_offset_metadata == LogOffsetMetadata(2, 2, 0)
    assert log.read(0, ENOUGH, COMMITTED).records.size_in_bytes == log.segments[0].size


def test_HW_06_a_hanging_transaction_holds_back_readers_for_ever_and_its_producer_never_expires(logs, log):
    data(log, 1, timestamp=logs.time.milliseconds())
    log.append_as_leader(batch(3))
    logs.time.sleep(10 * 86_400_000)
    log.remove_expired_producers(logs.time.milliseconds())
    for again in (log, logs.open(clean=False)):
        assert (again.last_stable_offset, again.high_watermark) == (0, 4)
        assert committed(again) == []
        assert again.producer_state_manager.producers[1].current_txn_first_offset == 0


def test_HW_06_transactions_that_interleave_in_one_replicated_append_hold_back_the_lso_in_offset_order(log):
    """Producer 1 has ended its first transaction and begun a second one when this fetch arrives; 2 began between."""
    log.append_as_follower(
        at(0, idempotent(1, 0, is_transactional=True))
        + at(1, idempotent(2, 0, is_transactional=True))
        + at(2, marker(1, commit=False))
        + at(3, idempotent(1, 1, is_transactional=True))
        + at(4, idempotent(3, 0, is_transactional=True))
    )
    assert log.last_stable_offset == 1
    log.append_as_follower(at(5, marker(2, commit=True)))
    assert log.last_stable_offset == 3
    log.append_as_follower(at(6, marker(1, commit=False)) + at(7, marker(3, commit=True)))
    assert log.last_stable_offset == 8
    assert committed(log) == [1, 4]


def test_IDX_16_the_lso_of_an_entry_is_that_of_its_moment_although_later_transactions_came_in_the_same_append(
    logs, log
):
    """Else a reader that stops at it misses what the same producer aborts next."""
    log.append_as_follower(
        at(0, idempotent(1, 0, is_transactional=True))
        + at(1, marker(1, commit=False))
        + at(2, idempotent(1, 1, is_transactional=True))
        + at(3, batch())
        + at(4, idempotent(2, 0, is_transactional=True))
    )
    log.append_as_follower(at(5, marker(1, commit=False)) + at(6, marker(2, commit=True)))
    assert log.local._txn_indexes[0].entries == ((1, 0, 1, 2), (1, 2, 5, 4))
    assert aborted(log, 0, 3 * len(idempotent(1, 0))) == [(1, 0, 1, 2), (1, 2, 5, 4)]
    assert committed(log) == [3, 4]
    live = (logs.directory / f"{0:020d}.txnindex").read_bytes()
    logs.open(clean=False)
    assert (logs.directory / f"{0:020d}.txnindex").read_bytes() == live


# -- where transactions meet the other operations ------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_transaction_may_span_segments_and_restarts(tmp_path, clean):
    size = len(idempotent(1, 0, is_transactional=True))
    logs = Logs(tmp_path / "orders-0", segment_bytes=2 * size, index_interval_bytes=0)
    log = logs.open()
    for i in range(5):
        data(log, 1, i, timestamp=logs.time.milliseconds())
    assert len(log.segments) == 3
    if clean:
        log.close()
    log = logs.open(clean=clean)
    assert log.last_stable_offset == 0
    assert data(log, 1, 5, timestamp=logs.time.milliseconds()) == 5
    end(log, 1, commit=False)
    data(log, 1, 6, timestamp=logs.time.milliseconds())
    end(log, 1, commit=True)
    # Whatever segment a fetch starts in, the entry is found in the one with the marker.
    for start in range(6):
        assert aborted(log, start, size) == [(1, 0, 6, 7)]
    assert aborted(log, 7) == []
    assert committed(log) == [7]
    again = logs.open(clean=False)
    assert committed(again) == [7]
    assert [sorted(p.name for p in logs.directory.glob("*.txnindex"))] == [[f"{6:020d}.txnindex"]]


def test_truncation_into_a_transaction_opens_it_again(logs, log):
    data(log, 1)
    data(log, 1, 1)
    end(log, 1, commit=False)
    data(log, 2)
    end(log, 2, commit=False)
    log.truncate_to(2)
    assert (log.last_stable_offset, log.log_end_offset) == (0, 2)
    assert log.producer_state_manager.producers[1].current_txn_first_offset == 0
    assert 2 not in log.producer_state_manager.producers
    assert os.path.getsize(logs.directory / f"{0:020d}.txnindex") == 0
    end(log, 1, commit=True)
    assert (log.last_stable_offset, committed(log)) == (3, [0, 1])
    assert aborted(log) == []


def test_truncation_before_a_transaction_removes_it(log):
    log.append_as_leader(batch())
    data(log, 1)
    log.truncate_to(1)
    assert log.last_stable_offset == log.log_end_offset == 1
    assert log.producer_state_manager.producers == {}


def test_deleting_records_up_to_inside_a_transaction_leaves_its_rest_unstable(logs, log):
    data(log, 1)
    data(log, 1, 1)
    data(log, 1, 2)
    log.maybe_increment_log_start_offset(2)
    assert (log.log_start_offset, log.last_stable_offset, log.high_watermark) == (2, 2, 3)
    assert committed(log) == []
    end(log, 1, commit=False)
    assert (log.last_stable_offset, committed(log)) == (4, [])
    (txn,) = aborted(log, 2)
    assert (txn.producer_id, txn.last_offset) == (1, 3) and txn.first_offset <= 2


def test_deleting_records_up_to_inside_a_transaction_and_starting_anew_keeps_it_open(logs, log):
    for i in range(3):
        data(log, 1, i)
    log.maybe_increment_log_start_offset(2)
    again = logs.open(clean=False, log_start_offset=2)
    assert again.last_stable_offset == 2
    end(again, 1, commit=False)
    assert (again.last_stable_offset, committed(again)) == (4, [])


def test_a_control_batch_of_another_kind_ends_nothing(log):
    data(log, 1)
    made = RecordBatchBuilder(producer_id=1, producer_epoch=0, base_sequence=-1, is_transactional=True, is_control=True)
    made.append(b"\0\0\0\0\0\0", b"\0\0\0\x63", timestamp=1_700_000_000_000)
    log.append_as_leader(made.build(), origin=COORDINATOR)
    assert (log.last_stable_offset, log.log_end_offset) == (0, 2)


# -- markers that cannot be read -----------------------------------------------------------------------------------


def malformed(key, value):
    made = RecordBatchBuilder(producer_id=1, producer_epoch=0, base_sequence=-1, is_transactional=True, is_control=True)
    made.append(value, key, timestamp=1_700_000_000_000)
    return made.build()


BAD_MARKERS = [(b"\xff\xff\0\0", bytes(6)), (b"\0\0\0\1", bytes(5)), (b"\0\0\0\0", None)]


@pytest.mark.parametrize(("key", "value"), BAD_MARKERS)
def test_a_marker_that_cannot_be_read_is_refused_and_nothing_changes(log, key, value):
    data(log, 1)
    before = (log.size, log.producer_state_manager.producers[1])
    with pytest.raises(InvalidRecord):
        log.append_as_leader(malformed(key, value), origin=COORDINATOR)
    with pytest.raises(InvalidRecord):
        log.append_as_follower(at(1, malformed(key, value)))
    assert (log.size, log.producer_state_manager.producers[1]) == before
    assert log.last_stable_offset == 0
    end(log, 1, commit=True)
    assert committed(log) == [0]


@pytest.mark.parametrize(("key", "value"), BAD_MARKERS)
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_marker_in_a_log_that_cannot_be_read_is_logged_and_leaves_its_transaction_open(
    logs, log, key, value, mode, caplog
):
    """Its CRC is right: a broken writer, not a broken disk.  Showing the records would be a guess."""
    data(log, 1)
    log.append_as_leader(batch())
    log.close()
    with open(logs.directory / f"{0:020d}.log", "ab") as file:
        file.write(at(2, malformed(key, value)))
    with open_log(logs.directory, mode) as again:
        assert offsets(again) == [0, 1]
        assert (again.log_end_offset, again.last_stable_offset, committed(again)) == (3, 0, [])
    assert "offset 2: a marker that cannot be read" in caplog.text


# -- epochs of producers (KIP-360, KIP-890) ------------------------------------------------------------------------


def test_LOG_14_a_bumped_epoch_starts_at_sequence_0_and_discards_the_batches_before(log):
    log.append_as_leader(idempotent(1, 0, 3))
    assert log.append_as_leader(idempotent(1, 0, 2, epoch=1)).first_offset == 3
    entry = log.producer_state_manager.producers[1]
    assert (entry.producer_epoch, [b.last_offset for b in entry.batches]) == (1, [4])
    # The same sequence in the epoch before is no duplicate any more, it is a zombie.
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(idempotent(1, 0, 3))
    assert log.append_as_leader(idempotent(1, 0, 2, epoch=1)).is_duplicate


def test_LOG_14_a_marker_of_a_bumped_epoch_fences_the_producer_and_restarts_its_sequence(log):
    data(log, 1, 0, 2, epoch=3)
    end(log, 1, commit=False, epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        data(log, 1, 2, epoch=3)
    with pytest.raises(OutOfOrderSequenceNumber):
        data(log, 1, 2, epoch=4)
    assert data(log, 1, 0, epoch=4) == 3
    assert aborted(log) == [(1, 0, 2, 3)]


def test_LOG_14_a_marker_of_the_same_epoch_leaves_the_sequence_going_on(log):
    data(log, 1, 0, 2)
    end(log, 1, commit=True)
    with pytest.raises(OutOfOrderSequenceNumber):
        data(log, 1, 0)
    assert data(log, 1, 2) == 3


def test_LOG_14_a_marker_may_be_the_first_batch_of_a_producer_in_a_log(log):
    end(log, 1, commit=True, epoch=2, coordinator_epoch=7)
    entry = log.producer_state_manager.producers[1]
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.batches) == (2, 7, ())
    assert data(log, 1, 0, epoch=2) == 1


def test_LOG_14_the_last_five_batches_wrap_at_2_to_the_31_too(log):
    last = 2**31
    sequences = [(last - 5 + 2 * i) % last for i in range(7)]
    for sequence in sequences:
        log.append_as_leader(idempotent(1, sequence, 2))
    for i, sequence in enumerate(sequences[2:], start=2):
        info = log.append_as_leader(idempotent(1, sequence, 2))
        assert (info.is_duplicate, info.first_offset) == (True, 2 * i)
    entry = log.producer_state_manager.producers[1]
    assert [b.first_sequence for b in entry.batches] == sequences[2:]
    assert sequences[2] == last - 1


# -- a read_committed reader checks the index ----------------------------------------------------------------------


@pytest.fixture
def many(tmp_path):
    """Every second batch is aborted, by one producer after the other; each batch has an entry in the offset index."""
    logs = Logs(tmp_path / "many-0", index_interval_bytes=0)
    log = logs.open()
    for i in range(12):
        data(log, i, 0, 2)
        log.append_as_leader(batch(2))
        end(log, i, commit=i % 2 == 0)
    wanted = committed(log)
    assert wanted
    log.close()
    write_clean_shutdown(str(tmp_path))
    return logs, wanted


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
@pytest.mark.parametrize("mask", [0x01, 0x10, 0xFF])
def test_no_flipped_byte_of_an_index_shows_a_committed_reader_an_aborted_record(many, suffix, mask):
    logs, wanted = many
    file = logs.directory / f"{0:020d}{suffix}"
    sound = file.read_bytes()
    for n in range(len(sound)):
        file.write_bytes(sound[:n] + bytes([sound[n] ^ mask]) + sound[n + 1 :])
        with open_log(logs.directory) as log:
            for start in (0, 7, 31):
                assert committed(log, start_offset=start) == [o for o in wanted if o >= start], f"byte {n}"
            for start, size in ((0, 400), (10, 1000)):
                info = log.read(start, size, COMMITTED)
                needed = [
                    (2 * i, 5 * i)
                    for i in range(12)
                    if i % 2
                    and 5 * i + 4 >= start
                    and any(5 * i <= r.offset < 5 * i + 4 for r in info.records.records() if r.offset >= start)
                ]
                listed = {(txn.producer_id, txn.first_offset) for txn in info.aborted_transactions}
                assert {(i // 2, first) for i, first in needed} <= listed, f"byte {n}"


@pytest.mark.parametrize("how", ["quickly", "after a scan with checks"])
def test_an_index_whose_segment_is_removed_while_it_is_compared_is_not_written_again(many, how, monkeypatch):
    """The name of the file may be that of another segment by then: it would hide that one's records."""
    logs, _ = many
    path = logs.directory / f"{0:020d}.txnindex"
    path.write_bytes(encode_entries([(0, 0, 4, 5)]))
    log = logs.open()
    real = local_log.aborted_txns_in

    def removed_meanwhile(*where, check_crc=False):
        found = real(*where, check_crc=check_crc)
        if check_crc == (how != "quickly"):
            log.truncate_fully_and_start_at(100)
            logs.scheduler.tick()
        return found

    monkeypatch.setattr(local_log, "aborted_txns_in", removed_meanwhile)
    with contextlib.suppress(KafkaStorageError, OffsetOutOfRange):
        log.read(0, ENOUGH, COMMITTED)
    assert log.log_end_offset == 100
    assert not path.exists()
    log.close()


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_transaction_index_cut_anywhere_or_added_to_is_made_good_from_the_log(many, mode, caplog):
    logs, wanted = many
    file = logs.directory / f"{0:020d}.txnindex"
    sound = file.read_bytes()
    invented = encode_entries([(0, 0, 4, 5)])
    for damaged in [sound[:n] for n in range(0, len(sound), 17)] + [invented + sound]:
        file.write_bytes(damaged)
        if mode == "a":
            write_clean_shutdown(str(logs.directory.parent))
        with open_log(logs.directory, mode) as log:
            assert committed(log) == wanted
        if mode == "a":
            assert file.read_bytes() == sound
    assert f"{file}: the log has" in caplog.text


def test_a_sound_transaction_index_is_compared_once_and_left_alone(many, monkeypatch):
    logs, wanted = many
    calls = []
    real = TransactionIndex.replace
    monkeypatch.setattr(TransactionIndex, "replace", lambda index, entries: (calls.append(1), real(index, entries)))
    before = os.stat(logs.directory / f"{0:020d}.txnindex").st_ino
    with open_log(logs.directory, "a") as log:
        assert calls == []
        assert committed(log) == wanted == committed(log)
        assert calls == [1]
        data(log, 99)
        end(log, 99, commit=False)
        assert committed(log) == wanted
    assert os.stat(logs.directory / f"{0:020d}.txnindex").st_ino == before


@pytest.mark.parametrize("partition", ["g-txn-0", "g-txn-zstd-0"])
def test_no_flipped_byte_of_kafkas_transaction_index_changes_what_a_committed_reader_gets(tmp_path, partition):
    shutil.copytree(data_dir() / partition, tmp_path / partition)
    write_clean_shutdown(str(tmp_path))
    with open_log(tmp_path / partition) as log:
        records = committed(log)
        assert 0 < len(records) < len(offsets(log))
    for index in (tmp_path / partition).glob("*.txnindex"):
        sound = index.read_bytes()
        for n in range(len(sound)):
            index.write_bytes(sound[:n] + bytes([sound[n] ^ 0x02]) + sound[n + 1 :])
            with open_log(tmp_path / partition) as log:
                assert committed(log) == records, f"byte {n} of {index.name}"
        index.write_bytes(sound)
