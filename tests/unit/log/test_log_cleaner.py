import dataclasses
import errno
import gzip
import os
import struct

import pytest

from kcore.common.file import CHANGES, clear_faults, fail_next
from kcore.common.throttler import Throttler
from kcore.common.time import MockTime
from kcore.errors import CorruptMessage, KafkaStorageError, LogCleaningAborted, LogClosed
from kcore.log.batch_filter import BatchFilter
from kcore.log.log_cleaner import CleanedTransactionMetadata, Cleaner, group_segments
from kcore.log.log_cleaner_manager import find_log_to_clean
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.log_segment import LogSegment
from kcore.log.offset_map import OffsetMap
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.own_process import in_own_process
from tests.reference import record_batch as model
from tests.unit.log.logs import Logs, marker, old_message

COMMITTED = FetchIsolation.TXN_COMMITTED
RETENTION_MS = 1000
NOW = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path):
    return Logs(
        tmp_path / "orders-0", cleanup_policy=("compact",), delete_retention_ms=RETENTION_MS, segment_bytes=1 << 20
    )


@pytest.fixture
def log(logs):
    with logs.open() as log:
        yield log


def put(log, *records, compression="none", roll=True, timestamp=NOW, **options):
    """One batch of (key, value), and a roll so that it can be cleaned."""
    builder = RecordBatchBuilder(compression=compression, **options)
    for key, value in records:
        builder.append(value, key, timestamp=timestamp)
    log.append_as_leader(builder.build())
    if roll:
        log.roll()


def end(log, producer_id, *, commit, roll=True, **options):
    log.append_as_leader(marker(producer_id, commit=commit, **options), origin=AppendOrigin.COORDINATOR)
    if roll:
        log.roll()


def clean(logs, log, first_dirty=0, *, keys=1000, **options):
    cleanable, _ = find_log_to_clean(log, first_dirty, logs.time.milliseconds())
    cleaner = Cleaner(OffsetMap(48 * keys, 0.5), time=logs.time, **options)
    return cleaner.clean(cleanable)


def records(log, **options):
    return [(r.offset, r.key, r.value) for r in log.records(**options)]


def batches(log):
    return list(log.batches())


def test_the_last_value_of_each_key_stays_at_its_offset(logs, log):
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    put(log, (b"c", b"1"), (b"b", b"2"))
    end_offset, stats = clean(logs, log)
    assert records(log) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert end_offset == 5
    assert (stats.records_read, stats.records_kept, stats.map_records_read) == (5, 3, 5)
    assert stats.bytes_written == log.size


def test_the_active_segment_is_never_touched(logs, log):
    put(log, (b"a", b"1"), roll=False)
    put(log, (b"a", b"2"), roll=False)
    assert clean(logs, log)[0] == 0
    assert len(records(log)) == 2


def test_keys_of_the_active_segment_do_not_count(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), roll=False)
    clean(logs, log)
    assert len(records(log)) == 2


def test_the_clean_part_loses_what_the_dirty_part_replaces(logs, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    first_dirty, _ = clean(logs, log)
    put(log, (b"a", b"2"))
    clean(logs, log, first_dirty)
    assert records(log) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_a_batch_that_loses_records_keeps_its_offsets_and_its_producer(logs, log):
    options = {"producer_id": 7, "producer_epoch": 3, "base_sequence": 5}
    put(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", b"2"), **options)
    put(log, (b"b", b"3"))
    clean(logs, log)
    (first, _) = batches(log)
    assert (first.base_offset, first.last_offset, len(first)) == (0, 3, 1)
    assert (first.producer_id, first.producer_epoch, first.base_sequence, first.last_sequence) == (7, 3, 5, 8)
    assert first.leader_epoch == 0
    first.ensure_valid()


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(logs, log):
    put(log, (b"a", b"1"), (b"b", b"1"), compression="gzip")
    before = bytes(batches(log)[0].buffer)
    put(log, (b"c", b"2"))
    clean(logs, log)
    assert bytes(batches(log)[0].buffer) == before


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch_is_made_anew_in_its_codec(logs, log, compression):
    put(log, *((b"%d" % n, bytes(50)) for n in range(50)), compression=compression)
    put(log, *((b"%d" % n, b"new") for n in range(0, 50, 2)))
    clean(logs, log)
    (first, _) = batches(log)
    assert first.compression == compression
    assert [r.key for r in first.records()] == [b"%d" % n for n in range(1, 50, 2)]


def test_the_base_timestamp_becomes_that_of_the_first_record_left(logs, log):
    builder = RecordBatchBuilder()
    for n, key in enumerate([b"a", b"b", b"c"]):
        builder.append(b"v", key, timestamp=NOW + 100 * n, headers=[("h", b"x")])
    log.append_as_leader(builder.build())
    put(log, (b"a", b"2"))
    clean(logs, log)
    (first, _) = batches(log)
    assert first.base_timestamp == NOW + 100 and first.max_timestamp == NOW + 200
    assert [(r.timestamp, list(r.headers)) for r in first.records()] == [
        (NOW + 100, [("h", b"x")]),
        (NOW + 200, [("h", b"x")]),
    ]


def test_a_batch_never_grows_for_another_base_timestamp(logs, log):
    builder = RecordBatchBuilder()
    builder.append(b"v", b"first", timestamp=NOW)
    builder.append(b"v", b"late", timestamp=NOW + 10**9)
    for n in range(200):
        builder.append(b"v", b"%d" % n, timestamp=NOW)
    log.append_as_leader(builder.build())
    put(log, (b"first", b"2"))
    before, expected = batches(log)[0].size, records(log)[1:]
    clean(logs, log)
    (first, _) = batches(log)
    assert first.size < before and first.base_timestamp == NOW
    assert records(log) == expected


@pytest.mark.parametrize(
    "kept",
    [
        [-1, -(2**63) + 5, NOW],
        [-1, NOW, -(2**63) + 5],
        [NOW, -(2**63) + 5, -1],
        [-1, 2**63 - 2, 0],
        [NOW, -5, -1],
    ],
)
def test_a_base_timestamp_from_which_a_difference_would_not_fit_is_not_taken(logs, log, kept):
    """Neither that of the first record that stays nor the delete horizon of a tombstone: the timestamps stay right."""
    made = [model.Record(n, t, b"%d" % n, None if n == 2 else b"v") for n, t in enumerate([-1, *kept])]
    log.append_as_leader(model.encode_batch(model.make_batch(made)))
    log.roll()
    put(log, (b"0", b"2"))
    for _ in range(2):
        clean(logs, log)
        assert [(r.key, r.timestamp) for r in log.records()][:-1] == [(b"%d" % n, kept[n - 1]) for n in (1, 2, 3)]
        assert batches(log)[0].max_timestamp == max(*kept, -1)
    fits = min(kept) - (logs.time.milliseconds() + RETENTION_MS) >= -(2**63)
    assert (batches(log)[0].delete_horizon_ms is not None) == fits


def test_records_of_a_log_append_time_topic_keep_the_time_of_their_append(tmp_path):
    logs = Logs(tmp_path / "orders-0", cleanup_policy=("compact",), message_timestamp_type="LogAppendTime")
    with logs.open() as log:
        put(log, (b"a", b"1"), (b"b", b"1"), (b"a", None))
        appended = logs.time.milliseconds()
        logs.time.sleep(500)
        put(log, (b"b", b"2"))
        clean(logs, log)
        (first, second) = batches(log)
        assert first.timestamp_type == "LogAppendTime" and first.max_timestamp == appended
        assert [r.timestamp for r in first.records()] == [appended]
        assert [r.timestamp for r in second.records()] == [appended + 500]


# -- tombstones -----------------------------------------------------------------------------------------------------


def test_a_tombstone_gets_a_delete_horizon_when_a_cleaning_first_meets_it(logs, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), timestamp=NOW - 5)
    clean(logs, log)
    assert records(log) == [(1, b"b", b"1"), (2, b"a", None)]
    tombstone = batches(log)[1]
    assert tombstone.delete_horizon_ms == logs.time.milliseconds() + RETENTION_MS
    assert tombstone.attributes & 0x40 and tombstone.base_timestamp == tombstone.delete_horizon_ms
    assert tombstone.max_timestamp == NOW - 5
    assert [r.timestamp for r in tombstone.records()] == [NOW - 5]


def test_a_tombstone_goes_at_its_horizon_and_not_before(logs, log):
    put(log, (b"a", None))
    put(log, (b"x", b"keeps the last batch of the round from being the tombstone's"))
    clean(logs, log)
    horizon = batches(log)[0].delete_horizon_ms
    logs.time.sleep(RETENTION_MS - 1)
    clean(logs, log)
    assert (0, b"a", None) in records(log) and batches(log)[0].delete_horizon_ms == horizon
    logs.time.sleep(1)
    clean(logs, log)
    assert [key for _, key, _ in records(log)] == [b"x"]


def test_a_tombstone_that_a_later_value_replaces_goes_at_once(logs, log):
    put(log, (b"a", None))
    put(log, (b"a", b"again"))
    clean(logs, log)
    assert records(log) == [(1, b"a", b"again")]


def test_values_beside_a_tombstone_outlive_its_horizon(logs, log):
    put(log, (b"a", None), (b"b", b"1"))
    clean(logs, log)
    logs.time.sleep(RETENTION_MS)
    clean(logs, log)
    (only,) = batches(log)
    assert records(log) == [(1, b"b", b"1")]
    assert only.delete_horizon_ms is not None, "the horizon stays as it was"


# -- what must stay though it is empty ------------------------------------------------------------------------------


def test_the_last_batch_of_a_round_stays_though_it_is_empty(logs, log):
    put(log, (b"a", None))
    clean(logs, log)
    logs.time.sleep(RETENTION_MS)
    clean(logs, log)
    (only,) = batches(log)
    assert (only.base_offset, only.last_offset, len(only), only.compression) == (0, 0, 0, "none")
    assert only.max_timestamp == NOW and only.base_timestamp == -1 and only.size == 61
    only.ensure_valid()


def test_the_last_batch_of_an_active_producer_stays_for_its_sequence(logs, log):
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"), (b"a", b"3"), producer_id=7, producer_epoch=0, base_sequence=1)
    put(log, (b"a", b"4"))
    clean(logs, log)
    assert [(b.base_offset, b.last_offset, len(b)) for b in batches(log)] == [(1, 2, 0), (3, 3, 1)]
    log.close()
    with logs.open(clean=False, recovery_point=0) as again:
        assert again.producer_state_manager.producers[7].last_sequence == 2
        put(again, (b"b", b"1"), producer_id=7, producer_epoch=0, base_sequence=3)


def test_the_last_batch_of_an_expired_producer_is_removed(logs, log):
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    put(log, (b"a", b"2"))
    logs.time.sleep(10 * 86_400_000)
    log.remove_expired_producers(logs.time.milliseconds())
    clean(logs, log)
    assert [b.base_offset for b in batches(log)] == [1]


# -- transactions ---------------------------------------------------------------------------------------------------

TXN = {"producer_id": 9, "producer_epoch": 0, "is_transactional": True}


def test_the_data_of_an_aborted_transaction_goes_and_replaces_nothing(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), (b"z", b"aborted"), base_sequence=0, **TXN)
    end(log, 9, commit=False)
    put(log, (b"b", b"1"))
    clean(logs, log)
    assert records(log) == [(0, b"a", b"1"), (4, b"b", b"1")]
    kept = batches(log)
    assert [(b.is_control, len(b)) for b in kept] == [(False, 1), (False, 0), (True, 1), (False, 1)]


def test_the_data_of_a_committed_transaction_is_cleaned_like_any_other(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"), (b"b", b"1"), base_sequence=0, **TXN)
    end(log, 9, commit=True)
    put(log, (b"b", b"2"))
    clean(logs, log)
    assert records(log, isolation="read_committed") == [(1, b"a", b"2"), (4, b"b", b"2")]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_until_its_data_is_gone_and_then_until_its_horizon(logs, log, commit):
    put(log, (b"a", b"1"), base_sequence=0, **TXN)
    end(log, 9, commit=commit)
    put(log, (b"a", b"2"), base_sequence=1, **TXN)
    end(log, 9, commit=True)
    put(log, (b"a", b"3"))

    def first_marker():
        return next((b for b in batches(log) if b.last_offset == 1), None)

    clean(logs, log)  # the data goes
    assert [b.last_offset for b in batches(log)] == [1, 2, 3, 4]
    assert first_marker().delete_horizon_ms is None
    logs.time.sleep(10)
    clean(logs, log)  # the marker is met without data
    horizon = logs.time.milliseconds() + RETENTION_MS
    assert first_marker().delete_horizon_ms == horizon
    logs.time.sleep(RETENTION_MS - 1)
    clean(logs, log)
    assert first_marker().delete_horizon_ms == horizon
    logs.time.sleep(1)
    clean(logs, log)
    assert first_marker() is None
    assert [b.last_offset for b in batches(log)] == [2, 3, 4], "the last data batch keeps the second marker"


def test_the_marker_that_is_the_last_trace_of_its_producer_stays(logs, log):
    end(log, 9, commit=False, epoch=4)
    put(log, (b"a", b"1"))
    for _ in range(3):
        clean(logs, log)
        logs.time.sleep(RETENTION_MS)
    assert [b.is_control for b in batches(log)] == [True, False]
    log.close()
    with logs.open(clean=False, recovery_point=0) as again:
        assert again.producer_state_manager.producers[9].producer_epoch == 4


def test_nothing_from_an_open_transaction_on_is_cleaned(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    put(log, (b"b", b"1"), base_sequence=0, **TXN)
    put(log, (b"a", b"3"))
    assert clean(logs, log)[0] == 2
    assert records(log) == [(1, b"a", b"2"), (2, b"b", b"1"), (3, b"a", b"3")]


def test_a_cleaned_segment_has_the_aborted_transactions_that_can_still_be_met(logs, log):
    put(log, (b"a", b"1"), base_sequence=0, **TXN)
    put(log, (b"b", b"1"), base_sequence=1, **TXN)
    end(log, 9, commit=False)
    put(log, (b"c", b"1"))
    index = logs.directory / f"{0:020d}.txnindex"
    clean(logs, log)
    assert [s.base_offset for s in log.segments] == [0, 4], "four segments became one"
    assert index.stat().st_size == 34, "the marker is there, and so is what it ended"
    before = log.read(0, 10_000, isolation=COMMITTED).aborted_transactions
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in before] == [(9, 0, 2)]
    log.close()
    with logs.open() as again:
        assert records(again, isolation="read_committed") == [(3, b"c", b"1")]


# -- segments -------------------------------------------------------------------------------------------------------


class Sized:
    def __init__(self, base_offset, size, index_size=8):
        self.base_offset, self.size = base_offset, size
        self.offset_index = self.time_index = type("Index", (), {"size_in_bytes": index_size})


def group(sizes, *, max_size=100, max_index=100, end=10_000):
    segments = [Sized(n, *size) if isinstance(size, tuple) else Sized(n, size) for n, size in enumerate(sizes)]
    return [[s.base_offset for s in g] for g in group_segments(segments, max_size, max_index, end)]


def test_segments_are_grouped_as_far_as_one_segment_can_hold_them():
    assert group([30, 30, 40, 10]) == [[0, 1, 2], [3]]
    assert group([101, 0, 99, 1, 1]) == [[0], [1, 2, 3], [4]]
    assert group([(1, 60), (1, 40), (1, 1)]) == [[0, 1], [2]]
    assert group([]) == []


def test_a_group_spans_no_more_offsets_than_an_index_can_hold():
    segments = [Sized(base, 10) for base in (0, 100, 2**31 - 1, 2**31, 2**32)]
    groups = group_segments(segments, 1000, 1000, 2**32 + 5)
    assert [[s.base_offset for s in g] for g in groups] == [[0, 100, 2**31 - 1], [2**31], [2**32]]
    # The estimate of a segment's last offset is one below where the next begins: 2**31 - 1 fits, 2**31 does not.
    for following, expected in ((2**31, [[0, 100]]), (2**31 + 1, [[0], [100]])):
        segments = [Sized(0, 10), Sized(100, 10)]
        groups = group_segments(segments, 1000, 1000, following)
        assert [[s.base_offset for s in g] for g in groups] == expected
        groups = group_segments([*segments, Sized(following, 10)], 1000, 1000, 2**33)
        assert [[s.base_offset for s in g] for g in groups] == [*expected, [following]]
    # An empty segment has no offset that could be too far.
    segments = [Sized(0, 10), Sized(100, 0), Sized(2**33, 5)]
    assert [[s.base_offset for s in g] for g in group_segments(segments, 1000, 1000, 2**33 + 5)] == [[0, 100], [2**33]]


def test_a_cleaned_segment_is_as_old_as_the_last_it_was_made_from(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"b", b"1"))
    first, second, _ = log.segments
    os.utime(first.log_path, (1_000, 1_000))
    os.utime(second.log_path, (2_000, 2_000))
    clean(logs, log)
    assert os.stat(log.segments[0].log_path).st_mtime == 2_000


def test_the_files_of_cleaned_segments_go_after_file_delete_delay_ms(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    clean(logs, log)
    assert any(name.endswith(".deleted") for name in os.listdir(logs.directory))
    logs.time.sleep(log.config.file_delete_delay_ms)
    logs.scheduler.tick()
    names = os.listdir(logs.directory)
    assert not [name for name in names if name.endswith((".deleted", ".cleaned", ".swap"))]
    assert sorted(name for name in names if name.endswith((".log", ".snapshot"))) == [
        f"{0:020d}.log",
        f"{2:020d}.log",
        f"{2:020d}.snapshot",
    ], "the snapshot of a segment that is no more went too"


def test_a_reader_of_a_segment_that_is_being_replaced_reads_on(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    slice_of_old = log.read(0, 1000).records
    clean(logs, log)
    assert [r.value for r in slice_of_old.memory_records().records()] == [b"1"]
    assert records(log) == [(1, b"a", b"2")]


def test_a_batch_larger_than_the_buffer_makes_it_grow(logs, log):
    put(log, (b"a", bytes(100_000)), (b"b", b"1"))
    put(log, (b"a", b"2"))
    clean(logs, log, io_buffer_size=300)
    assert records(log) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_a_map_that_fills_up_ends_the_round_there(logs, log):
    put(log, *((b"%d" % n, b"1") for n in range(20)))
    put(log, *((b"%d" % n, b"2") for n in range(20)))
    first_dirty = 0
    for expected in (8, 16, 24, 32, 40):
        first_dirty, _ = clean(logs, log, first_dirty, keys=8)
        assert first_dirty == expected
    assert records(log) == [(20 + n, b"%d" % n, b"2") for n in range(20)]


def test_records_without_a_key_are_dropped_and_counted(logs, tmp_path):
    # As of a topic that was not compacted when they came.
    plain = Logs(tmp_path / "orders-0")
    with plain.open() as log:
        builder = RecordBatchBuilder()
        builder.append(b"no key")
        builder.append(b"v", b"k")
        log.append_as_leader(builder.build())
        log.roll()
        _, stats = clean(plain, log)
        assert records(log) == [(1, b"k", b"v")]
        assert stats.records_without_key == 1


def test_a_flipped_bit_is_not_copied_under_a_right_crc(logs, log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", b"2"))
    segment = log.segments[0]
    with open(segment.log_path, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptMessage, match=r"00000000000000000000\.log.*position 0"):
        clean(logs, log)
    assert not [name for name in os.listdir(logs.directory) if name.endswith(".cleaned")]


@pytest.mark.parametrize("length", [61 + 5, 2**30])
def test_a_wrong_length_in_a_log_is_corrupt_and_is_not_used(logs, log, length):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    segment = log.segments[0]
    with open(segment.log_path, "r+b") as file:
        file.seek(8)
        file.write(struct.pack(">i", length))
    with pytest.raises(CorruptMessage, match=r"00000000000000000000\.log"):
        clean(logs, log, io_buffer_size=64)


def test_an_aborted_cleaning_leaves_the_log_as_it_was(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    before, calls = records(log), []

    def check_done(tp):
        calls.append(tp)
        if len(calls) == 4:
            raise LogCleaningAborted("enough")

    with pytest.raises(LogCleaningAborted):
        clean(logs, log, check_done=check_done)
    assert records(log) == before
    assert not [name for name in os.listdir(logs.directory) if not name.startswith("0") or "cleaned" in name][1:]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_count_that_the_bytes_cannot_hold_makes_no_room(compression):
    builder = RecordBatchBuilder(compression=compression)
    builder.append(b"v", b"k", timestamp=NOW)
    made = builder.build()
    struct.pack_into(">i", made, 57, 2**31 - 1)  # the count
    struct.pack_into(">i", made, 23, 2**31 - 2)  # the last offset delta
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    wrong_records = MemoryRecords(bytes(made))
    offset_map = OffsetMap(1 << 40)
    offset_map.clear()
    with pytest.raises(CorruptMessage, match="record count at position"):
        offset_map.add(wrong_records, 0, CleanedTransactionMetadata())
    batch_filter = BatchFilter(offset_map, lambda batch: 0, lambda batch: None, now_ms=NOW, delete_retention_ms=0)
    with pytest.raises(CorruptMessage, match="record count at position"):
        batch_filter.filter(wrong_records)


@in_own_process
def test_a_small_batch_that_decompresses_to_much_has_room_for_what_stays():
    """Without it this process ends with SIGSEGV."""
    builder = RecordBatchBuilder(compression="gzip")
    builder.append(b"old", b"replaced", timestamp=NOW)
    builder.append(bytes(32 << 20), b"stays", timestamp=NOW)
    made = MemoryRecords(bytes(builder.build()))
    assert made.valid_bytes < 64 << 10
    offset_map = OffsetMap(1 << 20)
    offset_map.clear()
    offset_map.put(b"replaced", 7)
    batch_filter = BatchFilter(offset_map, lambda batch: 0, lambda batch: None, now_ms=NOW, delete_retention_ms=0)
    (left,) = MemoryRecords(batch_filter.filter(made)).batches
    assert [(record.key, len(record.value)) for record in left.records()] == [(b"stays", 32 << 20)]


def leftovers(logs):
    return [name for name in os.listdir(logs.directory) if name.endswith((".cleaned", ".swap"))]


def test_a_swap_that_is_refused_leaves_no_files(logs, log, monkeypatch):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    made, flush = [], LogSegment.flush

    class Spy(LogSegment):
        def flush(self):
            flush(self)
            made.append(self)
            log.mark_offline(OSError(errno.EIO, "another log's disk"))

    monkeypatch.setattr("kcore.log.local_log.LogSegment", Spy)
    with pytest.raises(KafkaStorageError, match="offline"):
        clean(logs, log)
    assert leftovers(logs) == []
    with pytest.raises(LogClosed):
        made[0].read_next_offset()


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_swap_that_fails_before_anything_was_replaced_leaves_no_files(logs, log, renames):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    fail_next("rename", errno.EIO, skip=renames, under=str(logs.directory))
    try:
        with pytest.raises(KafkaStorageError):
            clean(logs, log)
    finally:
        clear_faults()
    assert leftovers(logs) == []
    log.close()
    with logs.open(clean=False) as again:
        assert records(again) == [(0, b"a", b"1"), (1, b"a", b"2")]


def test_a_full_disk_leaves_no_files_of_a_segment_that_was_not_even_begun(logs, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    fail_next("ftruncate", errno.ENOSPC, under=str(logs.directory))
    try:
        with pytest.raises(OSError, match="No space"):
            clean(logs, log)
    finally:
        clear_faults()
    assert leftovers(logs) == []


@pytest.mark.parametrize("target", [0, 1])
def test_a_log_that_is_cut_during_a_cleaning_keeps_what_was_not_cut(logs, log, target):
    put(log, (b"a", b"1"), roll=False)
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"))
    calls = []

    def check_done(tp):
        calls.append(tp)
        if len(calls) == 4:  # reading for the copy
            log.truncate_to(target)

    with pytest.raises(LogCleaningAborted, match="changed meanwhile"):
        clean(logs, log, check_done=check_done)
    assert records(log) == [(0, b"a", b"1")][:target]
    assert not [name for name in os.listdir(logs.directory) if name.endswith((".cleaned", ".swap"))]


def test_the_cleaner_keeps_below_its_rate():
    time = MockTime()
    throttler = Throttler(1000, time)
    started = time.hi_res_clock_ms()
    for _ in range(100):
        time.sleep(10)
        throttler.maybe_throttle(100)
    # 10,000 done at 1,000/s; what came since the last look is not yet paid for.
    assert 9_000 <= time.hi_res_clock_ms() - started <= 10_500
    assert Throttler(float("inf"), time).maybe_throttle(10**12) is None


def test_reading_and_writing_are_both_throttled(logs, log):
    put(log, (b"a", bytes(5000)))
    put(log, (b"b", bytes(5000)))
    amounts = []

    class Spy:
        def maybe_throttle(self, amount):
            amounts.append(amount)

    clean(logs, log, throttler=Spy())
    assert sum(amounts) == 3 * 2 * (log.size // 2), "read for the keys, read for the copy, written"


# -- crashes ---------------------------------------------------------------------------------------------------------


def a_log_with_something_of_everything(log):
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"c", b"aborted"), base_sequence=0, **TXN)
    end(log, 9, commit=False)
    put(log, (b"a", b"2"), (b"d", None), compression="lz4")
    put(log, (b"b", bytes(600)))
    put(log, (b"e", b"1"), roll=False)


def summary(log):
    return [(b.base_offset, b.last_offset, b.is_control, [tuple(r) for r in b.records()]) for b in log.batches()]


@pytest.mark.parametrize("deletes_at_once,clean_stop", [(True, False), (False, True)])
def test_a_crash_at_any_system_call_leaves_the_old_segments_or_the_new_ones(tmp_path, deletes_at_once, clean_stop):
    expected = None
    outcomes = set()
    for calls_before in range(1000):
        logs = Logs(tmp_path / f"orders-{calls_before}", cleanup_policy=("compact",), segment_bytes=700)
        log = logs.open()
        if deletes_at_once:
            log.local._scheduler = None
        a_log_with_something_of_everything(log)
        log.flush()
        before = summary(log)
        committed = records(log, isolation="read_committed")
        fail_next(CHANGES, errno.EIO, skip=calls_before, times=-1, under=str(logs.directory))
        crashed = False
        try:
            clean(logs, log)
        except (OSError, KafkaStorageError):
            crashed = True
        finally:
            clear_faults()
        if not crashed:
            expected = summary(log)
        log.mark_offline(OSError(errno.EIO, "crashed"))
        log.close()
        with logs.open(clean=clean_stop, recovery_point=8) as again:
            recovered = summary(again)
            outcomes.add(recovered == before)
            assert again.log_end_offset == 8
            assert [r for r in committed if r in records(again, isolation="read_committed")] == records(
                again, isolation="read_committed"
            )
            assert {k: v for _, k, v in records(again, isolation="read_committed")} == {k: v for _, k, v in committed}
            leftovers = [n for n in os.listdir(logs.directory) if n.endswith((".cleaned", ".swap", ".deleted"))]
            assert leftovers == [], f"crash before call {calls_before}"
            for segment in again.segments:
                segment.sanity_check()
            clean(logs, again)
            last = summary(again)
            if not crashed:
                assert last == recovered == expected
        if not crashed:
            break
    assert not crashed and calls_before > 20, calls_before
    assert outcomes == {True, False}


# -- magic 0 and 1 --------------------------------------------------------------------------------------------------


def legacy(magic, *records, base_offset, compression="none"):
    builder = RecordBatchBuilder(magic=magic, base_offset=base_offset, compression=compression)
    for n, (key, value) in enumerate(records):
        builder.append(value, key, timestamp=-1 if magic == 0 else NOW + n)
    return bytes(builder.build())


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_cleaned_like_new_ones(logs, log, magic, compression):
    log.append_as_follower(
        legacy(magic, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", None), base_offset=0, compression=compression)
    )
    log.roll()
    put(log, (b"b", b"2"))
    end_offset, stats = clean(logs, log)
    assert records(log) == [(2, b"a", b"2"), (3, b"c", None), (4, b"b", b"2")]
    assert {b.magic for b in batches(log)[:-1]} == {magic}
    assert {b.compression for b in batches(log)[:-1]} == {compression}
    assert (end_offset, stats.records_read, stats.records_kept) == (5, 5, 3)


@pytest.mark.parametrize("type_bit", [0, 8], ids=["CreateTime", "LogAppendTime"])
def test_an_old_message_with_a_timestamp_below_minus_1_is_cleaned_like_any_other_and_keeps_it(logs, log, type_bit):
    inner = [old_message(n, b"%d" % n, key=b"ab"[n % 2 :][:1], timestamp=-5 - n) for n in range(4)]
    inner[2] = old_message(2, b"2", key=b"c", timestamp=NOW)
    packed = gzip.compress(b"".join(inner))
    log.append_as_follower(old_message(3, packed, codec=1 | type_bit, timestamp=-9))
    log.append_as_follower(old_message(4, b"4", key=b"d", timestamp=-7))
    log.roll()
    put(log, (b"a", b"new"))
    before = {r.offset: r for r in log.records()}
    clean(logs, log)
    left = list(log.records())
    assert [(r.offset, r.key, r.value) for r in left] == [
        (2, b"c", b"2"),
        (3, b"b", b"3"),
        (4, b"d", b"4"),
        (5, b"a", b"new"),
    ]
    if type_bit:
        assert [r.timestamp for r in left[:2]] == [-1, -1], "there is no time of an append below that"
    else:
        assert left == [before[r.offset] for r in left]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_tombstones_go_when_their_segment_is_old_enough(logs, log, magic):
    log.append_as_follower(legacy(magic, (b"a", None), (b"b", b"1"), base_offset=0, compression="gzip"))
    log.roll()
    put(log, (b"x", b"1"))
    first_dirty, _ = clean(logs, log)
    assert records(log)[0] == (0, b"a", None), "nothing was clean before, so nothing is old"
    put(log, (b"y", b"1"))
    # A segment is old if it is older than the last clean one by delete.retention.ms.
    log.config = dataclasses.replace(log.config, delete_retention_ms=0)
    clean(logs, log, first_dirty)
    assert [key for _, key, _ in records(log)] == [b"b", b"x", b"y"]
