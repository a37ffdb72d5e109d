import errno
import inspect
import pathlib
import random
import re
import struct
import threading

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptMessage,
    InvalidRecord,
    KafkaStorageError,
    MessageTooLarge,
    NoRecordBatch,
    OffsetOutOfRange,
    OffsetsOutOfOrder,
    RecordListTooLarge,
    UnexpectedAppendOffset,
)
from kcore.log.log_offset_metadata import AppendOrigin, FetchIsolation
from kcore.log.unified_log import UnifiedLog
from kcore.record.crc32c import crc32c
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch_builder import RecordBatchBuilder
from tests.reference.disk import calls, place, recorded
from tests.unit.log.logs import (
    SIZE,
    Logs,
    batch,
    idempotent,
    marker,
    offsets,
    old_message,
    old_wrapper,
    small_segments,
)

# -- the class --------------------------------------------------------------------------------------------


def test_what_LogHotPath_requires_of_UnifiedLog_is_declared_in_one_section_and_defined_there():
    source = (pathlib.Path(__file__).parents[3] / "kcore" / "log" / "log_hot_path.pyx").read_text()
    body = source[source.index("cdef class LogHotPath") : source.index("cdef AppendSettings append_settings_of")]
    section = re.search(r"# -- what UnifiedLog defines -+\n(.*?)    # -- ", body, re.S)[1]
    required = re.findall(r"    def (\w+)\((.*)\):", section)
    assert len(required) == section.count("raise NotImplementedError") > 10
    for name, parameters in required:
        defined = vars(UnifiedLog)[name]
        names = re.findall(r"\w+", parameters.replace("=False", ""))
        assert [*inspect.signature(getattr(defined, "fget", defined)).parameters][: len(names)] == names
    # Every name that the class uses of itself is declared in it.
    declared = set(re.findall(r"^    (?:cdef|def) .*?(\w+)\(", body, re.M))
    declared |= set(re.findall(r"^    cdef (?:(?:public|readonly) )?\w+ (\w+)$", body, re.M))
    assert set(re.findall(r"\bself\.(\w+)", body)) - declared == set()


# -- append ----------------------------------------------------------------------------------------------


def test_LOG_02_a_leader_assigns_offsets_without_gaps_and_a_follower_keeps_them(tmp_path):
    leader, follower = Logs(tmp_path / "a-0").open(), Logs(tmp_path / "b-0").open()
    for count in (1, 3, 2):
        info = leader.append_as_leader(batch(count), 4)
        follower.append_as_follower(leader.read(info.first_offset, 1 << 20).records.read())
    assert offsets(leader) == list(range(6)) == offsets(follower)
    assert (tmp_path / "a-0" / f"{0:020d}.log").read_bytes() == (tmp_path / "b-0" / f"{0:020d}.log").read_bytes()
    assert follower.last_epoch == 4


def test_offsets_are_assigned_in_the_callers_buffer_unless_it_is_read_only(log):
    writable = batch(2)
    log.append_as_leader(writable)
    log.append_as_leader(writable_copy := batch(2))
    assert MemoryRecords(writable).first_offset == 0
    assert MemoryRecords(writable_copy).first_offset == 2
    frozen = bytes(batch(2))
    assert log.append_as_leader(frozen).first_offset == 4
    assert MemoryRecords(frozen).first_offset == 0
    assert offsets(log) == list(range(6))


def test_LOG_03_a_produced_batch_starts_at_offset_0(log):
    with pytest.raises(InvalidRecord, match="base offset 7"):
        log.append_as_leader(batch(base_offset=7))
    assert log.log_end_offset == 0 and log.size == 0


def test_LOG_03_the_crc_is_checked_before_anything_is_written(log):
    damaged = batch()
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append_as_leader(damaged)
    with pytest.raises(CorruptMessage):
        log.append_as_follower(damaged)
    assert log.size == 0


def test_LOG_03_the_answer_has_offsets_timestamps_and_counts(log):
    log.append_as_leader(batch(2))
    info = log.append_as_leader(batch(3, timestamp=1_700_000_000_123), 5)
    assert (info.first_offset, info.last_offset) == (2, 4)
    assert info.max_timestamp == 1_700_000_000_123
    assert (info.batch_count, info.record_count, info.log_append_time) == (1, 3, -1)
    assert (info.log_start_offset, info.last_leader_epoch, info.is_duplicate) == (0, 5, False)


def test_LOG_04_nothing_valid_is_nothing_written(log):
    for empty in (b"", batch()[:-1], batch()[:11], b"hello world"):
        with pytest.raises(NoRecordBatch):
            log.append_as_leader(empty)
        assert log.append_as_follower(empty).first_offset == -1
    assert log.log_end_offset == 0 and log.size == 0


def test_LOG_05_a_partial_batch_at_the_end_is_cut_off_and_garbage_is_corrupt(log):
    assert log.append_as_leader(batch(2) + batch()[:30]).last_offset == 1
    assert log.size == len(batch(2))
    for garbage in (bytes(8) + b"\xff\xff\xff\xfe" + bytes(100), bytes(11) + b"\x05", b"hello world, hello"):
        for append in (log.append_as_leader, log.append_as_follower):
            with pytest.raises(CorruptMessage):
                append(garbage)
    assert log.log_end_offset == 2


def test_LOG_06_a_batch_above_max_message_bytes_is_refused_from_a_producer_only(tmp_path):
    logs = Logs(tmp_path / "orders-0", max_message_bytes=SIZE)
    log = logs.open()
    log.append_as_leader(batch())
    with pytest.raises(MessageTooLarge, match=f"max.message.bytes is {SIZE}"):
        log.append_as_leader(batch(size=21))
    log.append_as_follower(batch(size=21, base_offset=1))
    assert log.log_end_offset == 2


def test_LOG_06_the_bytes_of_a_refused_append_are_counted_as_they_were_sent(tmp_path):
    logs = Logs(tmp_path / "orders-0", max_message_bytes=SIZE, segment_bytes=400)
    log = logs.open()
    log.append_as_leader(batch())
    assert log.bytes_rejected == 0
    for refused in (batch(size=21), bytes(batch(size=30)), batch(size=1000), batch(size=21) + batch()[:5]):
        before = log.bytes_rejected
        with pytest.raises(MessageTooLarge):  # also where segment.bytes would refuse it
            log.append_as_leader(refused)
        assert log.bytes_rejected == before + len(refused)
    # What other rules refuse, and what a follower takes, is not counted.
    before = log.bytes_rejected
    with pytest.raises(InvalidRecord):
        log.append_as_leader(batch(base_offset=7))
    log.append_as_follower(batch(size=50, base_offset=1))
    assert log.bytes_rejected == before and log.log_end_offset == 2


@pytest.mark.parametrize("frozen", [True, False])
def test_LOG_06_a_batch_that_another_codec_makes_too_large_is_refused_and_counted_as_it_was_sent(tmp_path, frozen):
    logs = Logs(tmp_path / "orders-0", max_message_bytes=300, compression_type="uncompressed")
    log = logs.open()
    sent = batch(size=1000, compression="gzip")
    assert len(sent) < 300
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes is 300"):
        log.append_as_leader(bytes(sent) if frozen else sent)
    assert (log.bytes_rejected, log.size) == (len(sent), 0)


def test_LOG_07_a_follower_neither_decompresses_nor_looks_at_records(tmp_path):
    """Bytes that no codec takes, under a right CRC: the leader answers for what it took."""
    data = batch(3, compression="gzip", leader_epoch=4)
    data[61:] = bytes(len(data) - 61)
    data[17:21] = struct.pack(">I", crc32c(data[21:]))
    leader, follower = Logs(tmp_path / "a-0").open(), Logs(tmp_path / "b-0").open()
    with pytest.raises(CorruptMessage):
        leader.append_as_leader(bytearray(data))
    assert leader.size == 0
    info = follower.append_as_follower(bytearray(data))
    assert (info.first_offset, info.last_offset, info.record_count) == (0, 2, 3)
    assert follower.read(0, 1 << 20).records.read() == data
    # Two batches, of which the second would be refused: the same.
    data[0:8] = struct.pack(">q", 4)
    follower.append_as_follower(batch(base_offset=3) + data)
    assert follower.log_end_offset == 7


def test_LOG_07_a_leader_checks_records_and_a_follower_does_not(tmp_path):
    logs = Logs(tmp_path / "orders-0", cleanup_policy=("compact",))
    log = logs.open()
    with pytest.raises(InvalidRecord):
        log.append_as_leader(batch(key=None))
    log.append_as_follower(batch(key=None))
    assert log.log_end_offset == 1


def test_VAL_01_only_a_leaders_append_is_validated_and_changed(tmp_path):
    config = {"compression_type": "gzip", "message_timestamp_type": "LogAppendTime", "max_message_bytes": 100}
    followers = Logs(tmp_path / "a-0", **config)
    follower = followers.open()
    # Gaps, an old timestamp, another codec, no key, too large: what a leader of such a topic would refuse or change.
    made = RecordBatchBuilder(leader_epoch=9, base_offset=4)
    made.append(bytes(200), timestamp=5, offset=6)
    made.append(b"x", timestamp=3, offset=9)
    as_sent = bytes(made.build())
    follower.append_as_follower(as_sent)
    assert (followers.directory / f"{0:020d}.log").read_bytes() == as_sent
    leader = Logs(tmp_path / "b-0", **config | {"max_message_bytes": 1000}).open()
    leader.append_as_leader(batch(2), 9)
    (stored,) = leader.batches()
    assert (stored.compression, stored.timestamp_type, stored.leader_epoch) == ("gzip", "LogAppendTime", 9)


def test_LOG_08_a_followers_offsets_ascend_and_start_at_the_log_end(log):
    log.append_as_follower(batch(3, base_offset=5))
    with pytest.raises(UnexpectedAppendOffset) as caught:
        log.append_as_follower(batch(2, base_offset=6))
    assert (caught.value.first_offset, caught.value.last_offset) == (6, 7)
    with pytest.raises(OffsetsOutOfOrder):
        log.append_as_follower(batch(2, base_offset=10) + batch(base_offset=11))
    assert log.log_end_offset == 8


def test_LOG_09_gaps_are_legal_for_a_follower(log):
    log.append_as_follower(batch(base_offset=10) + batch(base_offset=20))
    assert log.log_end_offset == 21
    assert offsets(log) == [10, 20]


def test_LOG_10_an_append_above_segment_bytes_is_refused_from_a_leader(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_bytes=SIZE).open()
    log.append_as_leader(batch())
    with pytest.raises(RecordListTooLarge, match=f"segment.bytes is {SIZE}"):
        log.append_as_leader(batch(2))
    assert (log.log_end_offset, log.size) == (1, SIZE)


@pytest.mark.parametrize("producer", [{}, {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("claimed", [-1, 1_000, 2**62])
def test_VAL_03_a_leaders_append_stores_the_max_timestamp_of_the_records_not_the_producers(
    logs, log, claimed, quick, producer
):
    """The batch's CRC, offsets and epoch follow; not a byte of the records changes.  quick: a single plain batch in a
    writable buffer, which the general path does not look at."""
    made = RecordBatchBuilder(**producer)
    for timestamp in (5_000, 9_000, 7_000):
        made.append(b"value", b"key", timestamp=timestamp)
    data = made.build()
    data[35:43] = struct.pack(">q", claimed)
    data[17:21] = struct.pack(">I", crc32c(data[21:]))
    log.append_as_leader(batch(2))
    for sequence in (0, 3) if producer else (0,):  # the first batch of a producer always goes the general way
        if producer:
            data[53:57] = struct.pack(">i", sequence)
            data[17:21] = struct.pack(">I", crc32c(data[21:]))
        records = bytes(data[61:])
        info = log.append_as_leader(bytearray(data) if quick else bytes(data), 4)
        assert (info.max_timestamp, info.offset_of_max_timestamp) == (9_000, info.first_offset + 1)
        (stored,) = log.batches(info.first_offset)
        assert (stored.base_offset, stored.last_offset) == (info.first_offset, info.last_offset)
        assert (stored.max_timestamp, stored.leader_epoch) == (9_000, 4)
        header = log.read(info.first_offset, 1 << 20).records.read()
        assert header[61:] == records and header[35:43] == struct.pack(">q", 9_000)
        assert header[17:21] == struct.pack(">I", crc32c(header[21:]))
    assert log.fetch_offset_by_timestamp(-3) is not None
    assert log.active_segment.max_timestamp_so_far == 1_700_000_000_000


@pytest.mark.parametrize(
    ("builder", "config", "expected"),
    [
        ({}, {}, (9_000, 3)),  # uncompressed, in place: the first record that has it
        ({"compression": "lz4"}, {}, (9_000, 5)),  # compressed: the batch's last offset
        ({}, {"compression_type": "gzip"}, (9_000, 5)),  # built anew
        ({"compression": "gzip"}, {"compression_type": "uncompressed"}, (9_000, 5)),
        ({"magic": 1}, {}, (9_000, 5)),
        ({}, {"message_timestamp_type": "LogAppendTime"}, (None, 5)),
        ({"timestamp": -1}, {}, (-1, 5)),  # none has a timestamp
    ],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_VAL_21_an_append_returns_the_offset_of_its_max_timestamp(tmp_path, builder, config, expected, frozen):
    logs = Logs(tmp_path / "orders-0", **config)
    log = logs.open()
    log.append_as_leader(batch(2))
    builder = dict(builder)
    without = builder.pop("timestamp", None)
    made = RecordBatchBuilder(**builder)
    for timestamp in (5_000, 9_000, 9_000, 7_000):
        made.append(b"v", b"k", timestamp=timestamp if without is None else without)
    data = made.build()
    info = log.append_as_leader(bytes(data) if frozen else data)
    timestamp = logs.time.milliseconds() if expected[0] is None else expected[0]
    assert (info.max_timestamp, info.offset_of_max_timestamp) == (timestamp, expected[1])
    assert (info.first_offset, info.last_offset, info.record_count) == (2, 5, 4)


def test_V22_14_a_follower_takes_what_its_leader_took_however_small_its_segment_bytes_became(tmp_path):
    logs = Logs(tmp_path / "orders-0", segment_bytes=SIZE)
    log = logs.open()
    log.append_as_follower(batch(size=1))
    large = batch(5, size=1_000_000, base_offset=1)
    log.append_as_follower(large)
    log.append_as_follower(batch(base_offset=6) + batch(base_offset=7))
    assert [(s.base_offset, s.size) for s in log.segments] == [(0, len(batch(size=1))), (1, len(large)), (6, 2 * SIZE)]
    for again in (log, logs.open(clean=False)):
        assert [r.offset for r in again.records() if len(r.value) == 1_000_000] == [1, 2, 3, 4, 5]
        assert again.log_end_offset == 8


def test_LOG_11_EPOCH_02_a_higher_epoch_adds_an_entry_before_the_write(log):
    log.append_as_leader(batch(2), 3)
    log.append_as_leader(batch(), 3)
    log.append_as_leader(batch(), 7)
    assert log.leader_epoch_cache.entries == ((3, 0), (7, 3))
    log.append_as_follower(batch(base_offset=4, leader_epoch=8) + batch(base_offset=9, leader_epoch=11))
    assert log.leader_epoch_cache.entries == ((3, 0), (7, 3), (8, 4), (11, 9))
    assert log.last_epoch == 11


def test_LOG_11_the_epoch_is_in_its_file_before_the_data_are_in_the_log(logs, log):
    """Else a crash leaves records of an epoch that the file does not know."""
    log.append_as_leader(batch(), 3)
    for append in (
        lambda: log.append_as_leader(batch(), 5),
        lambda: log.append_as_follower(batch(base_offset=2, leader_epoch=6) + batch(base_offset=3, leader_epoch=7)),
    ):
        with recorded() as record:
            append()
            done = calls(record, logs.directory)
        written = place(done, f"pwrite {0:020d}.log")
        assert place(done, "* leader-epoch-checkpoint") < written
        assert [n for n, line in enumerate(done) if line.endswith(" leader-epoch-checkpoint") and n > written] == []
    with recorded() as record:
        log.append_as_leader(batch(), 7)
        assert calls(record, logs.directory) == [f"pwrite {0:020d}.log"]  # an epoch that is known is not written again


@pytest.mark.parametrize("append", ["leader", "follower"])
def test_LOG_11_an_epoch_that_cannot_be_written_fails_the_append_before_the_data(logs, log, append):
    log.append_as_leader(batch(2), 3)
    file.fail_next("rename", errno.EIO, under=str(logs.directory))
    try:
        with pytest.raises(KafkaStorageError, match="append"):
            if append == "leader":
                log.append_as_leader(batch(), 4)
            else:
                log.append_as_follower(batch(base_offset=2, leader_epoch=4))
    finally:
        file.clear_faults()
    assert log.is_offline and (log.log_end_offset, log.leader_epoch_cache.entries) == (2, ((3, 0),))
    assert (logs.directory / f"{0:020d}.log").stat().st_size == len(batch(2))
    assert offsets(logs.open(clean=False)) == [0, 1]


@pytest.mark.parametrize(
    "old", [old_message(3), old_message(3, magic=0), old_wrapper(3, 5), old_wrapper(3, 5, magic=0)]
)
def test_EPOCH_03_a_message_of_an_old_format_clears_the_leader_epochs(logs, log, old):
    log.append_as_leader(batch(3), 4)
    assert log.leader_epoch_cache.entries == ((4, 0),)
    log.append_as_follower(old)
    assert log.leader_epoch_cache.entries == () and log.last_epoch == -1
    assert log.end_offset_for_epoch(4) == (-1, -1)
    # No restart brings the epoch back: with it a follower would keep records that the leader may not have.
    assert logs.open(clean=False).leader_epoch_cache.entries == ()
    end = log.log_end_offset
    log.append_as_follower(batch(base_offset=end, leader_epoch=6))
    assert log.leader_epoch_cache.entries == ((6, end),)
    assert logs.open(clean=False).leader_epoch_cache.entries == ((6, end),)


def test_LOG_12_an_append_never_spans_two_segments(tmp_path):
    log = small_segments(tmp_path).open()
    log.append_as_leader(batch())
    log.append_as_follower(batch(base_offset=1) + batch(base_offset=2) + batch(base_offset=3))
    assert [(s.base_offset, s.size) for s in log.segments] == [(0, SIZE), (1, 3 * SIZE)]


def test_LOG_13_the_log_end_is_advanced_although_the_transaction_index_fails(log, monkeypatch):
    log.append_as_leader(idempotent(7, 0, is_transactional=True))

    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("kcore.log.transaction_index.TransactionIndex.append", fail)
    with pytest.raises(KafkaStorageError):
        log.append_as_leader(marker(7, commit=False), origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 2


def test_LOG_16_flush_messages_flushes_inside_the_append(tmp_path, monkeypatch):
    logs = Logs(tmp_path / "orders-0", flush_messages=3)
    log = logs.open()
    for expected in (0, 0, 3, 3, 3, 6):
        log.append_as_leader(batch())
        assert log.recovery_point == expected


def test_LOG_02_LOG_26_appends_of_many_threads_get_disjoint_offsets_and_readers_see_whole_batches(tmp_path):
    log = Logs(tmp_path / "orders-0", segment_bytes=4000).open()
    seen, stop = [], threading.Event()

    def append():
        for _ in range(100):
            info = log.append_as_leader(batch(3))
            seen.append((info.first_offset, info.last_offset))

    def read():
        while not stop.is_set():
            got = offsets(log)
            assert got == list(range(len(got)))

    writers = [threading.Thread(target=append) for _ in range(4)]
    errors = []

    def guarded():
        try:
            read()
        except BaseException as error:
            errors.append(error)

    reader = threading.Thread(target=guarded)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not errors
    assert sorted(seen) == [(3 * i, 3 * i + 2) for i in range(400)]
    assert offsets(log) == list(range(1200))


# -- read ----------------------------------------------------------------------------------------------


def test_LOG_24_a_read_goes_on_in_the_next_segment_where_compaction_left_nothing(tmp_path):
    log = small_segments(tmp_path, 1).open()
    log.append_as_follower(batch(base_offset=0))
    log.append_as_follower(batch(base_offset=10))
    log.append_as_follower(batch(base_offset=30))
    info = log.read(11, 1 << 20)
    assert info.fetch_offset_metadata == (11, 30, 0)
    assert [r.offset for r in info.records.records()] == [30]


def test_LOG_25_LOG_28_a_read_ends_at_its_limit_and_may_start_inside_a_batch(tmp_path):
    log = Logs(tmp_path / "orders-0").open(sole_replica=False)
    for _ in range(4):
        log.append_as_leader(batch(2))
    log.update_high_watermark(4)
    info = log.read(1, 1 << 20, FetchIsolation.HIGH_WATERMARK)
    assert [r.offset for r in info.records.records()] == [0, 1, 2, 3]
    assert info.fetch_offset_metadata == (1, 0, 0)
    assert log.read(4, 100, FetchIsolation.HIGH_WATERMARK).records.size_in_bytes == 0
    assert log.read(6, 100, FetchIsolation.HIGH_WATERMARK).records.size_in_bytes == 0
    assert len(list(log.read(1, 1 << 20).records.records())) == 8
    # A watermark inside a batch holds back the whole batch.
    log.update_high_watermark(3)
    assert [r.offset for r in log.read(0, 1 << 20, FetchIsolation.HIGH_WATERMARK).records.records()] == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_LOG_28_no_read_reaches_its_limit_and_none_leaves_out_a_record_before_it(tmp_path, seed):
    rng = random.Random(seed)
    log = Logs(tmp_path / "orders-0", segment_bytes=1500, index_interval_bytes=200).open(sole_replica=False)
    for _ in range(60):
        count = rng.randint(1, 5)
        if rng.random() < 0.3:
            gap = rng.randint(0, 4)
            log.append_as_follower(batch(count, size=rng.randint(0, 90), base_offset=log.log_end_offset + gap))
        else:
            log.append_as_leader(batch(count, size=rng.randint(0, 90)))
    batches = [(b.base_offset, b.last_offset) for b in log.batches()]
    for _ in range(300):
        limit = log.update_high_watermark(rng.randint(0, log.log_end_offset))
        start, size = rng.randint(0, log.log_end_offset), rng.choice([0, 100, 400, 5000])
        info = log.read(start, size, FetchIsolation.HIGH_WATERMARK, min_one_message=rng.random() < 0.5)
        data = info.records.read() if info.records.size_in_bytes else b""
        batches = [(b.base_offset, b.last_offset) for b in MemoryRecords(data).batches]
        visible = [b for b in batches if b[1] >= start and b[1] < limit]
        assert batches == visible[: len(batches)], f"seed={seed} start={start} limit={limit}"
        if batches:
            assert batches[0][0] <= start or batches[0] == visible[0]
        if size == 5000 and visible:
            assert batches, f"seed={seed} start={start} limit={limit}"


def test_LOG_26_a_read_takes_no_lock_and_sees_the_log_end_of_its_start(log):
    log.append_as_leader(batch(2))
    got = []
    with log.lock:
        reader = threading.Thread(target=lambda: got.append(log.read(0, 1 << 20)))
        reader.start()
        reader.join(60)
        assert not reader.is_alive()
        assert got[0].records.size_in_bytes == log.size
    log.append_as_leader(batch(3))
    # The slice still has the bytes that it had when it was read.
    assert [r.offset for r in got[0].records.records()] == [0, 1]


def test_reads_outside_the_log_are_refused_and_at_its_end_are_empty(log):
    log.append_as_leader(batch(3))
    assert log.read(3, 100).records.size_in_bytes == 0
    assert log.read(3, 100).fetch_offset_metadata == log.log_end_offset_metadata
    log.maybe_increment_log_start_offset(2)
    for offset in (-1, 0, 1, 4):
        with pytest.raises(OffsetOutOfRange, match=r"\[2, 3\]"):
            log.read(offset, 100)


def test_one_whole_message_is_returned_with_minimum_one_message(log):
    log.append_as_leader(batch(size=500))
    whole = log.read(0, 10)
    assert whole.records.size_in_bytes == len(batch(size=500)) and not whole.first_entry_incomplete
    cut = log.read(0, 10, min_one_message=False)
    assert cut.records.size_in_bytes == 10 and cut.first_entry_incomplete


def test_LOG_27_when_all_later_data_are_gone_a_read_in_range_is_empty_at_the_log_end(log):
    log.append_as_follower(batch(base_offset=0) + batch(base_offset=9))
    log.truncate_to(7)
    info = log.read(3, 1 << 20)
    assert info.records.size_in_bytes == 0
    assert info.fetch_offset_metadata == log.log_end_offset_metadata == (7, 0, SIZE)
    assert offsets(log, start_offset=3) == []


# -- failures ----------------------------------------------------------------------------------------------


def test_LOG_29_a_full_disk_fails_the_append_and_not_the_log(logs, log, monkeypatch, caplog):
    log.append_as_leader(batch(3))

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kcore.log.local_log.LogSegment", fail)
        for _ in range(3):
            with pytest.raises(KafkaStorageError, match="No space left"):
                log.roll()
    # Whoever looks at the broker sees it, once a minute and not with each of the producers' retries.
    assert [record.levelname for record in caplog.records if "No space left" in record.message] == ["ERROR"]
    assert not log.is_offline and logs.failures == []
    assert log.append_as_leader(batch()).first_offset == 3
    assert offsets(log) == [0, 1, 2, 3]
