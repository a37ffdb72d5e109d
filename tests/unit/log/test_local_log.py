import errno

import pytest

from kcore.common import file
from kcore.errors import InvalidOffset
from kcore.log import local_log
from kcore.log.log_offset_metadata import AbortedTxn, AppendOrigin, FetchIsolation
from kcore.log.transaction_index import encode_entries
from kcore.record.memory_records import MemoryRecords
from tests.reference.disk import calls, recorded
from tests.unit.log.logs import SIZE, Logs, batch, file_names, idempotent, marker, offsets, small_segments


def test_LOG_01_segments_are_ordered_and_only_the_last_is_written(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(batch())
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    sizes = [segment.size for segment in log.segments]
    log.append_as_leader(batch())
    assert [segment.size for segment in log.segments] == [*sizes[:-1], 2 * SIZE]


def test_LOG_23_leftovers_with_the_new_base_are_removed_and_an_impossible_base_is_refused(logs, log):
    log.append_as_leader(batch(3))
    leftover = logs.directory / f"{3:020d}.log"
    leftover.write_bytes(b"leftover")
    log.roll()
    assert leftover.read_bytes() == b""
    log.append_as_leader(batch())
    empty = log.roll()
    assert log.roll() is empty
    assert [s.base_offset for s in log.segments] == [0, 3, 4]
    log.append_as_leader(batch())
    assert log.roll(100).base_offset == 100
    with pytest.raises(InvalidOffset):
        log.roll(50)
    assert [s.base_offset for s in log.segments] == [0, 3, 4, 100]


def test_a_swap_is_on_disk_before_the_old_names_go_and_before_the_old_files_do(tmp_path):
    """A lost power after the first sync leaves what the next start finishes, one before it the old segments whole."""
    logs = small_segments(tmp_path, file_delete_delay_ms=0)
    log = logs.open()
    for _ in range(7):
        log.append_as_leader(batch())
    logs.scheduler.tick()
    cleaned = log.local.new_cleaned_segment(0)
    cleaned.append(MemoryRecords(log.read(0, SIZE).records.read()))
    cleaned.on_become_inactive()
    cleaned.flush()
    with recorded() as record:
        log.replace_segments([cleaned], list(log.segments)[:2])
        logs.scheduler.tick()
        done = calls(record, logs.directory, "rename", "fsync", "unlink")
    first, second = f"{0:020d}.log", f"{3:020d}.log"
    assert [line for line in done if ".log" in line or line == "fsync ."] == [
        f"rename {first}.cleaned {first}.swap",
        "fsync .",
        f"rename {first} {first}.deleted",
        f"rename {second} {second}.deleted",
        f"rename {first}.swap {first}",
        "fsync .",
        f"unlink {first}.deleted",
        f"unlink {second}.deleted",
    ]
    assert offsets(log) == [0, 6]


def test_the_name_of_a_segment_that_was_made_after_a_truncation_is_on_disk_before_the_recovery_point_passes_it(
    tmp_path,
):
    """Also one as high as those that were there before, when the directory was last synced."""
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(batch())
    log.flush(3)  # which syncs the names of all four segments
    log.truncate_to(7)
    for _ in range(3):
        log.append_as_leader(batch())
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    with recorded() as record:
        log.flush()
        assert "fsync ." in calls(record, logs.directory)
    with recorded() as record:
        log.append_as_leader(batch())
        log.flush()
        assert "fsync ." not in calls(record, logs.directory)  # no name is new
    log.truncate_to(9)
    log.roll()  # of an empty segment, which keeps its files
    log.append_as_leader(batch())
    with recorded() as record:
        log.flush()
        assert "fsync ." not in calls(record, logs.directory)


def test_slices_stay_readable_after_their_segment_is_gone(tmp_path):
    logs = small_segments(tmp_path)
    log = logs.open()
    for _ in range(4):
        log.append_as_leader(batch())
    records = log.read(0, 1 << 20).records
    log.truncate_fully_and_start_at(50)
    logs.time.sleep(60_000)
    logs.scheduler.tick()
    assert file_names(logs, ".deleted") == []
    assert [r.offset for r in records.records()] == [0, 1, 2]


def test_IDX_14_without_an_index_entry_the_search_for_aborted_transactions_ends_with_the_segment_or_the_log(logs, log):
    def aborted(producer_id, sequence):
        log.append_as_leader(idempotent(producer_id, sequence, is_transactional=True))
        log.append_as_leader(marker(producer_id, commit=False), origin=AppendOrigin.COORDINATOR)

    def found_from(offset, max_bytes=1 << 20):
        return log.read(offset, max_bytes, FetchIsolation.TXN_COMMITTED).aborted_transactions

    aborted(1, 0)
    log.append_as_leader(batch())
    log.append_as_leader(idempotent(2, 0, is_transactional=True))  # 3, into the next segment
    log.roll()
    aborted(1, 1)
    log.append_as_leader(marker(2, commit=False), origin=AppendOrigin.COORDINATOR)
    first, across, second = (1, 0, 1, 2), (2, 3, 6, 7), (1, 4, 5, 3)
    assert len(log.segments[0].offset_index) == len(log.segments[1].offset_index) == 0
    # From the first segment: all that begins before the next one does, also what ends in it.
    assert found_from(0) == [first, across]
    assert found_from(2) == [across]
    # From the last one: all that begins before the log ends.
    assert (found_from(4), found_from(6, 1)) == ([second, across], [across])
    log.append_as_leader(batch())
    assert found_from(7) == []


def test_transactions_that_end_after_a_truncation_are_not_taken_for_those_of_the_file(logs, log):
    """A file's entries are compared with the log as it was loaded; later entries come from appends."""

    def aborted(producer_id, sequence):
        log.append_as_leader(idempotent(producer_id, sequence, is_transactional=True))
        log.append_as_leader(marker(producer_id, commit=False), origin=AppendOrigin.COORDINATOR)

    aborted(1, 0)
    aborted(2, 0)
    log.append_as_leader(batch(10))
    log.close()
    log = logs.open()
    log.truncate_to(2)
    aborted(3, 0)
    log.append_as_leader(batch(10))
    expected = [(1, 0, 1, 2), (3, 2, 3, 4)]
    assert log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED).aborted_transactions == expected
    log.close()
    path = logs.directory / f"{0:020d}.txnindex"
    assert path.read_bytes() == encode_entries([AbortedTxn(*txn) for txn in expected])


def test_IDX_14_an_index_entry_ends_the_search_for_aborted_transactions(tmp_path):
    log = Logs(tmp_path / "orders-0", index_interval_bytes=0).open()
    for producer_id in (1, 2, 3):
        log.append_as_leader(idempotent(producer_id, 0, is_transactional=True))
        log.append_as_leader(marker(producer_id, commit=False), origin=AppendOrigin.COORDINATOR)
    everything = log.read(0, 1 << 20, FetchIsolation.TXN_COMMITTED)
    assert [txn.first_offset for txn in everything.aborted_transactions] == [0, 2, 4]
    ends = [batch.position + batch.size for batch in everything.records.memory_records().batches]
    # A fetch up to the end of the batch at offset n: what begins at n + 1 is not needed.
    for offset, end in enumerate(ends[:-1]):
        info = log.read(0, end, FetchIsolation.TXN_COMMITTED)
        assert [txn.first_offset for txn in info.aborted_transactions] == [n for n in (0, 2, 4) if n <= offset]


def test_a_flush_beside_a_change_of_names_is_done_again_when_that_is_over(logs, log):
    log.append_as_leader(batch(3))
    file.fail_next("fsync", errno.ENOENT)
    try:
        log.flush()
    finally:
        file.clear_faults()
    assert log.recovery_point == 3 and not log.is_offline and logs.failures == []


def test_an_index_that_goes_while_it_is_compared_with_the_log_does_not_come_back(logs, log, monkeypatch):
    log.append_as_leader(idempotent(7, 0, is_transactional=True))
    log.append_as_leader(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    log.close()
    path = logs.directory / f"{0:020d}.txnindex"
    path.write_bytes(encode_entries([AbortedTxn(7, 0, 0, 5)]))
    with logs.open() as log:
        compare = local_log.aborted_txns_in

        def compare_beside_a_truncation(*args, **options):
            txns = compare(*args, **options)
            log.truncate_fully_and_start_at(0)
            return txns

        monkeypatch.setattr(local_log, "aborted_txns_in", compare_beside_a_truncation)
        log.read(0, 1000, isolation=FetchIsolation.TXN_COMMITTED)
        assert not path.exists()
        # The file's entry would be used for this record.
        log.append_as_leader(batch())
    with logs.open() as again:
        assert offsets(again, isolation="read_committed") == [0]
