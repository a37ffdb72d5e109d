import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from kcore.common import file
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.log_segment import LogSegment
from kcore.log.open_log import open_log
from tests.reference.disk import calls, place, recorded
from tests.unit.log.logs import Logs, batch, idempotent, marker, offsets

SIZE = len(batch())


@pytest.fixture
def logs(tmp_path):
    return Logs(tmp_path / "orders-0", segment_bytes=3 * SIZE, index_interval_bytes=0)


def filled(logs, count=8):
    log = logs.open()
    for i in range(count):
        log.append_as_leader(batch(timestamp=1000 + i), i // 3)
    return log


def path(logs, offset, suffix=".log"):
    return logs.directory / f"{offset:020d}{suffix}"


def test_LOG_30_after_a_clean_stop_nothing_is_recovered(logs, monkeypatch):
    filled(logs).close()
    monkeypatch.setattr("kcore.log.log_loader._LogLoader._recover", lambda self, suspects, *rest: suspects and 1 / 0)
    log = logs.open(recovery_point=0)
    assert offsets(log) == list(range(8))
    assert (log.recovery_point, log.log_end_offset) == (8, 8)
    assert [s.base_offset for s in log.segments] == [0, 3, 6]
    assert log.append_as_leader(batch()).first_offset == 8


def test_IDX_04_an_idle_log_is_loaded_without_a_mapping_and_its_indexes_grow_at_the_next_append(tmp_path):
    logs = Logs(tmp_path / "orders-0")
    filled(logs).close()
    file.count_calls()
    log = logs.open()
    assert [file.calls(call) for call in ("mmap", "ftruncate", "open_write")] == [0, 0, 2]  # the .log, a look at times
    file.clear_faults()
    assert [path(logs, 0, suffix).stat().st_size for suffix in (".index", ".timeindex")] == [0, 12]
    for _ in range(100):
        log.append_as_leader(batch(size=100, timestamp=2000))
    assert [path(logs, 0, suffix).stat().st_size for suffix in (".index", ".timeindex")] == [10485760, 10485756]
    assert len(log.active_segment.offset_index) > 2
    assert log.active_segment.find_offset_by_timestamp(2000)[1] == 8


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("more", [0, 3])
def test_LOG_30_an_empty_segment_inside_the_offsets_of_the_one_before_is_no_part_of_the_log(logs, more, clean, mode):
    filled(logs, 3 + more).close()
    path(logs, 2).write_bytes(b"")
    log = logs.open(clean=clean, mode=mode)
    assert offsets(log) == list(range(3 + more))
    assert path(logs, 2).exists() is (mode == "r")
    assert [segment.base_offset for segment in log.segments] == [0, 3][: 1 + (more > 0)]
    log.close()


def test_LOG_30_a_damaged_batch_does_not_take_the_place_of_an_empty_segment(logs):
    filled(logs, 3).close()
    path(logs, 2).write_bytes(b"")
    with open(path(logs, 0), "r+b") as out:
        out.seek(3 * SIZE - 1)
        out.write(b"\xff")
    log = logs.open()
    assert [segment.base_offset for segment in log.segments] == [0, 2] and log.log_end_offset == 2


def test_LOG_30_a_batch_that_spans_the_offset_of_an_empty_segment_does_not_take_its_place(logs):
    log = logs.open()
    log.append_as_leader(batch(3))
    log.close()
    path(logs, 2).write_bytes(b"")
    assert [segment.base_offset for segment in logs.open().segments] == [0, 2]


def test_LOG_30_an_empty_segment_before_one_that_overlaps_is_left_to_recovery(tmp_path):
    """Offsets 5 to 7 of epoch 2 are lost, and those of epoch 1 that were cut off have come back."""
    logs = Logs(tmp_path / "orders-0")
    overlapping(logs, 1, 2)  # 0 to 9 of epoch 1; 5 to 7 of epoch 2
    segment = LogSegment(str(logs.directory), 5)
    segment.renumber(8, 2)
    segment.close()
    path(logs, 5).rename(path(logs, 8))
    path(logs, 5).write_bytes(b"")
    log = logs.open(clean=False)
    assert [(r.offset, r.key) for r in log.records()] == [(n, b"k") for n in range(10)]
    (aside,) = tmp_path.glob("orders-0.*-stray")
    assert path(logs, 8).name in os.listdir(aside)


def test_LOG_30_SEG_11_after_an_unclean_stop_the_first_bad_batch_ends_the_log(logs, caplog):
    filled(logs)
    with open(path(logs, 3), "r+b") as file:
        file.seek(SIZE + 70)
        file.write(b"\xff")
    log = logs.open(clean=False, recovery_point=3)
    assert offsets(log) == [0, 1, 2, 3]
    assert [s.base_offset for s in log.segments] == [0, 3]
    assert f"cut {2 * SIZE} bytes off segment 3 from offset 4 on, position {SIZE}" in caplog.text
    assert log.leader_epoch_cache.entries == ((0, 0), (1, 3))
    assert log.append_as_leader(batch()).first_offset == 4


@pytest.mark.parametrize("threads", [0, 2])
def test_LOG_30_a_crash_while_a_damaged_log_recovers_leaves_no_gap_for_the_next_start(tmp_path, threads):
    executor = ThreadPoolExecutor(threads) if threads else None
    crashes = 0
    for calls_before in range(200):
        logs = Logs(tmp_path / f"orders-{calls_before}", segment_bytes=3 * SIZE, index_interval_bytes=0)
        filled(logs, 11)
        with open(path(logs, 3), "r+b") as damaged:
            damaged.seek(SIZE + 70)
            damaged.write(b"\xff")
        file.fail_next(file.CHANGES, errno.EIO, skip=calls_before, times=-1, under=str(logs.directory))
        try:
            logs.open(clean=False, segment_threads=executor)
        except OSError:
            crashes += 1
        else:
            break
        finally:
            file.clear_faults()
        assert offsets(logs.open(clean=False)) == [0, 1, 2, 3], f"crash before call {calls_before}"
    assert crashes > 10
    if executor:
        executor.shutdown()


def test_LOG_30_segments_below_the_recovery_point_are_believed(logs):
    filled(logs)
    with open(path(logs, 0), "r+b") as file:
        file.seek(SIZE + 70)
        file.write(b"\xff")
    log = logs.open(clean=False, recovery_point=6)
    assert log.log_end_offset == 8


def overlapping(logs, epoch_below, epoch_above):
    """Offsets 0 to 9 in one segment, 5 to 7 in the next, as after a truncation that a lost power undid in part."""
    log = logs.open()
    for _ in range(10):
        log.append_as_leader(idempotent(7, log.log_end_offset), epoch_below)
    log.close()
    made = (logs.directory / f"{0:020d}.log").read_bytes()
    log = logs.open()
    log.truncate_fully_and_start_at(5)
    for n in range(3):
        log.append_as_leader(idempotent(8, n, key=b"above"), epoch_above)
    log.close()
    for left in logs.directory.iterdir():
        if left.suffix != ".log":
            left.unlink()
    (logs.directory / f"{0:020d}.log").write_bytes(made)
    return made


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_segment_ends_where_the_next_begins_unless_that_is_of_an_older_epoch(tmp_path, epoch, caplog):
    logs = Logs(tmp_path / "orders-0")
    overlapping(logs, 1, epoch)
    log = logs.open(clean=False)
    assert [(r.offset, r.key) for r in log.records()] == [(n, b"k" if n < 5 else b"above") for n in range(8)]
    assert "segment 0 has records up to offset 9, but segment 5 begins with leader epoch" in caplog.text
    assert log.leader_epoch_cache.entries == ((1, 0), (2, 5))[:epoch]
    assert log.producer_state_manager.producers[7].last_sequence == 4
    assert log.producer_state_manager.producers[8].last_sequence == 2
    assert log.append_as_leader(idempotent(8, 3), 2).first_offset == 8
    assert [r.offset for r in log.records()] == list(range(9))


@pytest.mark.parametrize("above", ["older", "torn"])
def test_segments_of_an_older_epoch_after_newer_records_are_set_aside(tmp_path, above, caplog):
    logs = Logs(tmp_path / "orders-0")
    overlapping(logs, 2, 1 if above == "older" else 3)
    if above != "older":
        os.truncate(path(logs, 5), 40)
    kept = path(logs, 5).read_bytes()
    log = logs.open(clean=False)
    assert [(r.offset, r.key) for r in log.records()] == [(n, b"k") for n in range(10)]
    assert log.log_end_offset == 10 and log.leader_epoch_cache.entries == ((2, 0),)
    (aside,) = tmp_path.glob("orders-0.*-stray")
    assert (aside / f"{5:020d}.log").read_bytes() == kept and str(aside) in caplog.text
    assert 8 not in log.producer_state_manager.producers
    assert log.append_as_leader(batch(), 3).first_offset == 10


@pytest.mark.parametrize("cut", range(1, SIZE + 1, 7))
def test_a_torn_last_batch_is_cut_off(logs, cut):
    filled(logs)
    os.truncate(path(logs, 6), 2 * SIZE - cut)
    log = logs.open(clean=False, recovery_point=6)
    assert offsets(log) == list(range(7))
    assert path(logs, 6).stat().st_size == SIZE


@pytest.mark.parametrize("size", range(0, SIZE, 4))
def test_a_log_that_is_torn_in_its_first_batch_is_read_as_empty(logs, size):
    log = logs.open()
    log.append_as_leader(batch(), 3)
    log.close()
    os.truncate(path(logs, 0), size)
    with open_log(logs.directory) as reader:
        assert offsets(reader) == [] and reader.log_end_offset == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd length", "zeros"])
def test_LOG_30_IDX_12_an_index_that_is_missing_or_cannot_be_right_is_rebuilt(logs, suffix, damage):
    filled(logs).close()
    file = path(logs, 0, suffix)
    good = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(good + b"\0" if damage == "odd length" else bytes(len(good)))
    reader = open_log(logs.directory)
    assert offsets(reader, start_offset=1, end_offset=3) == [1, 2]
    reader.close()
    log = logs.open()
    assert offsets(log, start_offset=1, end_offset=3) == [1, 2]
    assert log.fetch_offset_by_timestamp(1002) == (1002, 2, 0)
    log.close()
    assert file.read_bytes() == good


def test_IDX_12_missing_indexes_are_rebuilt_durably_and_the_offset_index_gets_its_name_last(logs):
    """An empty time index passes the sanity check, so only a missing .index makes the next start rebuild both."""
    filled(logs).close()
    index, time_index = path(logs, 0, ".index"), path(logs, 0, ".timeindex")
    index.unlink()
    time_index.unlink()
    with recorded() as record:
        logs.open().close()
        lines = calls(record, logs.directory, "fsync", "rename")
    renamed = place(lines, f"rename {index.name}.tmp {index.name}")
    assert place(lines, f"fsync {time_index.name}.tmp") < renamed
    assert place(lines, f"rename {time_index.name}.tmp {time_index.name}") < renamed
    assert "fsync ." in lines[renamed:]


def test_orphan_indexes_and_deleted_and_cleaned_files_are_removed(logs):
    filled(logs).close()
    leftovers = [
        path(logs, 99, ".index"),
        path(logs, 99, ".txnindex"),
        path(logs, 0, ".log.deleted"),
        path(logs, 0, ".index.deleted"),
        path(logs, 0, ".snapshot.deleted"),
        path(logs, 3, ".log.cleaned"),
        path(logs, 3, ".timeindex.cleaned"),
    ]
    for leftover in leftovers:
        leftover.write_bytes(b"junk")
    with open_log(logs.directory) as reader:
        assert offsets(reader) == list(range(8))
    assert all(file.exists() for file in leftovers)
    assert offsets(logs.open()) == list(range(8))
    assert not any(file.exists() for file in leftovers)


def make_swap(logs, base, batches, suffix):
    """What the cleaner leaves: a segment beside the others."""
    segment = LogSegment(str(logs.directory), base, file_suffix=suffix, index_interval_bytes=0)
    from kcore.record.memory_records import MemoryRecords

    for made in batches:
        segment.append(MemoryRecords(made))
    segment.close()


def compacted():
    return [batch(base_offset=1, timestamp=1001), batch(base_offset=5, timestamp=1005)]


def test_LOG_30_a_finished_swap_replaces_the_segments_it_was_made_from(logs):
    filled(logs).close()
    make_swap(logs, 0, compacted(), ".swap")
    with open_log(logs.directory) as reader:
        assert offsets(reader) == [1, 5, 6, 7]
    assert path(logs, 3).exists()
    log = logs.open()
    assert offsets(log) == [1, 5, 6, 7]
    assert sorted(p.name for p in logs.directory.iterdir() if ".log" in p.name) == [f"{o:020d}.log" for o in (0, 6)]


@pytest.mark.parametrize("renamed", [(".log",), (".index",), (".log", ".index"), (".index", ".timeindex")])
def test_TRUNC_11_a_swap_that_was_interrupted_while_renaming_is_completed(logs, renamed):
    filled(logs).close()
    make_swap(logs, 0, compacted(), ".swap")
    for offset in (0, 3):
        for suffix in (".log", ".index", ".timeindex"):
            path(logs, offset, suffix).unlink()
    for suffix in renamed:
        path(logs, 0, f"{suffix}.swap").rename(path(logs, 0, suffix))
    log = logs.open()
    assert offsets(log) == [1, 5, 6, 7]
    assert log.read(4, 1000).fetch_offset_metadata == (4, 0, SIZE)


def test_LOG_30_a_swap_of_a_split_that_did_not_finish_is_dropped(logs):
    filled(logs).close()
    make_swap(logs, 3, compacted()[1:], ".swap")
    make_swap(logs, 0, compacted()[:1], ".cleaned")
    assert offsets(logs.open()) == list(range(8))
    assert not [p for p in logs.directory.iterdir() if p.suffix in {".swap", ".cleaned"}]


def test_TRUNC_11_a_crash_between_removal_and_cut_recovers_to_a_consistent_log(logs):
    filled(logs)
    for suffix in (".log", ".index", ".timeindex"):
        path(logs, 6, suffix).rename(path(logs, 6, f"{suffix}.deleted"))
    log = logs.open(clean=False, recovery_point=4)
    assert offsets(log) == list(range(6))
    for segment in log.segments:
        index = segment.offset_index
        assert all(index.entry(n)[1] < segment.size for n in range(index.entries))


def test_the_log_start_offset_of_the_checkpoint_counts(logs):
    filled(logs).close()
    log = logs.open(log_start_offset=4)
    assert (log.log_start_offset, offsets(log)) == (4, [4, 5, 6, 7])
    assert log.leader_epoch_cache.entries == ((1, 4), (2, 6))


def test_a_log_that_ends_below_its_start_offset_starts_anew_there(logs):
    filled(logs).close()
    log = logs.open(clean=False, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (50, 50, 0)
    assert log.append_as_leader(batch()).first_offset == 50


def test_checkpoints_beyond_the_log_are_brought_back(logs):
    filled(logs).close()
    log = logs.open(clean=False, recovery_point=500, high_watermark=700, sole_replica=False)
    assert (log.recovery_point, log.high_watermark) == (8, 8)


def with_epochs(logs, epochs_in_file):
    """Batches at 10 (epoch 0), 20 (epoch 1) and 30 (epoch 3), with gaps between; writes epochs_in_file."""
    log = logs.open()
    for offset, epoch in ((10, 0), (20, 1), (30, 3)):
        log.append_as_follower(bytes(batch(base_offset=offset, leader_epoch=epoch)))
    log.close()
    lines = [f"{epoch} {start}" for epoch, start in epochs_in_file]
    (logs.directory / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def test_EPOCH_03_an_unclean_start_keeps_epochs_that_began_in_what_the_cleaner_has_removed(logs):
    epochs_in_file = ((0, 0), (1, 15), (2, 22), (3, 27))
    with_epochs(logs, epochs_in_file)
    assert logs.open(clean=False).leader_epoch_cache.entries == epochs_in_file


def test_EPOCH_03_epochs_that_the_batches_contradict_are_those_of_the_batches_with_their_old_starts(logs):
    with_epochs(logs, ((0, 0), (1, 15), (3, 20)))
    assert logs.open(clean=False).leader_epoch_cache.entries == ((0, 0), (1, 15), (3, 30))


@pytest.mark.parametrize("text", ["", "garbage", "0\n1\n-1 0\n", "0\n2\n0 0\n"])
def test_a_damaged_epoch_checkpoint_is_rebuilt_from_the_log(logs, text):
    filled(logs).close()
    (logs.directory / "leader-epoch-checkpoint").write_text(text)
    with open_log(logs.directory) as reader:
        assert reader.leader_epoch_cache.entries == ((0, 0), (1, 3), (2, 6))
    assert logs.open(clean=False).leader_epoch_cache.entries == ((0, 0), (1, 3), (2, 6))


def test_the_transaction_index_is_rebuilt_with_the_transactions_of_earlier_segments(logs):
    log = logs.open()
    log.append_as_leader(idempotent(7, 0, is_transactional=True, timestamp=logs.time.milliseconds()))
    for _ in range(4):
        log.append_as_leader(batch())
    log.append_as_leader(marker(7, commit=False, timestamp=logs.time.milliseconds()), origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(batch())
    wanted = log.read(0, 10, FetchIsolation.TXN_COMMITTED).aborted_transactions
    assert wanted == [(7, 0, 5, 6)]
    (txn_file,) = [p for p in logs.directory.iterdir() if p.suffix == ".txnindex"]
    content = txn_file.read_bytes()
    for damage in (None, b"", b"x" * 34):
        for clean in (True, False):
            if damage is None:
                if clean:
                    continue  # no file shows that it is missing
                txn_file.unlink()
            elif clean and not damage:
                continue
            else:
                txn_file.write_bytes(damage)
            again = logs.open(clean=clean, recovery_point=1)
            assert again.read(0, 10, FetchIsolation.TXN_COMMITTED).aborted_transactions == wanted
            assert offsets(again, isolation="read_committed") == [1, 2, 3, 4, 6]
            again.close()
    assert log.segments  # still the same records for who opened first
    assert content


def test_an_unclean_directory_is_read_as_far_as_it_is_whole(logs):
    filled(logs)
    os.truncate(path(logs, 6), 2 * SIZE - 3)
    before = {p.name: p.stat().st_mtime_ns for p in logs.directory.iterdir()}
    with open_log(logs.directory) as log:
        assert offsets(log) == list(range(7))
        assert log.high_watermark == log.log_end_offset == 7
    assert {p.name: p.stat().st_mtime_ns for p in logs.directory.iterdir()} == before


def test_a_log_that_is_being_written_can_be_read_beside_the_writer(logs):
    log = filled(logs)
    for n in range(8, 12):
        with open_log(logs.directory) as reader:
            assert offsets(reader) == list(range(n))
        log.append_as_leader(batch())


def test_open_log_makes_a_new_log_and_appends_again_later(tmp_path):
    for n in range(3):
        with open_log(tmp_path / "data" / "orders-3", "a") if n else open_new(tmp_path) as log:
            assert log.append_as_leader(batch(2)).first_offset == 2 * n
            assert log.topic_partition == ("orders", 3)
    with open_log(tmp_path / "data" / "orders-3") as log:
        assert offsets(log) == list(range(6))
        assert log.high_watermark == 6
    assert (tmp_path / "data" / "replication-offset-checkpoint").read_text() == "0\n1\norders 3 6\n"


def open_new(tmp_path):
    (tmp_path / "data").mkdir()
    return open_log(tmp_path / "data" / "orders-3", "a")


def test_a_log_opened_alone_does_not_vouch_for_its_neighbours(tmp_path):
    (tmp_path / "other-0").mkdir()
    with open_log(tmp_path / "orders-0", "a") as log:
        log.append_as_leader(batch())
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 0 1\n"


def test_a_coordinator_stays_fenced_by_a_marker_below_the_log_start_after_a_crash(tmp_path):
    # The segment with the marker is recovered, as its index is missing, and the later ones are believed.
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    log.append_as_leader(idempotent(7, 0, is_transactional=True), 0)
    log.append_as_leader(marker(7, commit=True, coordinator_epoch=5), 0, AppendOrigin.COORDINATOR)
    log.append_as_leader(batch(2), 0)
    for n in range(2):
        log.roll()
        log.append_as_leader(idempotent(7, 1 + n), 0)
    log.flush()
    log.maybe_increment_log_start_offset(3)
    path(logs, 0, ".index").unlink()
    crashed = logs.open(clean=False, log_start_offset=3, recovery_point=6)
    assert crashed.log_end_offset == 6 and crashed.producer_state_manager.producers[7].coordinator_epoch == 5


def test_producers_of_segments_below_the_log_start_do_not_come_back_after_a_crash(tmp_path):
    # As in Kafka: only the segment with the log start has entries below it.
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    log.append_as_leader(idempotent(7, 0, is_transactional=True), 0)
    log.roll()
    log.append_as_leader(batch(3), 0)
    log.maybe_increment_log_start_offset(2)
    crashed = logs.open(clean=False, log_start_offset=2)
    assert not crashed.producer_state_manager.producers
    assert (crashed.last_stable_offset, offsets(crashed, isolation="read_committed")) == (4, [2, 3])


@pytest.mark.parametrize("is_aborted", [False, True])
def test_mode_r_warns_of_a_missing_transaction_index_only_where_a_transaction_was_aborted(tmp_path, caplog, is_aborted):
    logs = Logs(tmp_path / "orders-0")
    log = logs.open()
    if is_aborted:
        log.append_as_leader(idempotent(5, 0, is_transactional=True))
        log.append_as_leader(marker(5, commit=False), origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(batch())
    log.roll()
    log.append_as_leader(batch())
    log.close()
    for suffix in (".index", ".txnindex"):
        (logs.directory / f"{0:020d}{suffix}").unlink(missing_ok=True)
    reader = logs.open(mode="r", recovery_point=log.log_end_offset)
    warnings = [record.getMessage() for record in caplog.records if "transaction index" in record.getMessage()]
    assert len(warnings) == is_aborted
    assert all(f"{0:020d}.txnindex" in warning and ".log" not in warning for warning in warnings)
    assert len(reader.local.aborted_between(0, reader.log_end_offset)) == is_aborted
    reader.close()
