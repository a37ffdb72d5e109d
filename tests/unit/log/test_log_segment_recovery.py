import errno
import os
import random
import struct
import threading

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptIndex,
    CorruptMessage,
)
from kcore.log.log_segment import LogSegment
from tests.reference import record_batch as model
from tests.reference.disk import calls, place, recorded
from tests.unit.log.segments import Model, batch, entries, file_bytes, filled, random_batches, records

# --- truncation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_TRUNC_06_TRUNC_08_after_truncation_the_segment_is_as_if_the_later_batches_had_never_come(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 60)
    target = rng.randint(0, 300)
    segment = filled(tmp_path, batches, index_interval_bytes=600)
    before = segment.size
    removed = segment.truncate_to(target)
    kept = [one for one in batches if struct.unpack_from(">q", one)[0] + struct.unpack_from(">i", one, 23)[0] < target]
    expected = Model(kept, interval=600)
    note = f"seed={seed} target={target}"
    assert file_bytes(segment) == b"".join(kept), note
    assert removed == before - segment.size == before - expected.size
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (
        expected.max_timestamp,
        expected.offset_of_max,
    ), note
    assert all(offset < target for offset, _ in entries(segment.offset_index))
    for offset in range(310):
        assert segment.translate_offset(offset) == expected.translate(offset), note
    assert os.path.getsize(segment.log_path.replace(".log", ".index")) == 10 * 1024 * 1024
    segment.append(records(batch(1000)))
    assert segment.read_next_offset() == 1001


def test_TRUNC_08_the_byte_counter_of_the_index_interval_restarts(tmp_path):
    """As in Kafka: what was written before the truncation does not count towards the next entry."""
    size = len(batch(0))
    segment = filled(tmp_path, [batch(n) for n in range(4)], index_interval_bytes=2 * size)
    assert entries(segment.offset_index) == [(3, 3 * size)]
    segment.truncate_to(3)
    assert entries(segment.offset_index) == []
    for n in range(3, 8):
        segment.append(records(batch(n)))
    # After three batches the counter is above the interval: so the fourth gets the entry, not the one at the cut.
    assert entries(segment.offset_index) == [(6, 6 * size)]
    segment.truncate_to(7)
    segment.append(records(batch(7)))
    assert entries(segment.offset_index) == [(6, 6 * size)]


def test_TRUNC_08_both_indexes_lose_their_entries_before_the_file_is_cut_and_get_their_full_size_back(tmp_path):
    segment = filled(
        tmp_path, [batch(n, timestamp=n) for n in range(6)], index_interval_bytes=0, max_index_size=8 * 12 * 50
    )
    segment.on_become_inactive()
    sizes = [len(file_bytes(segment, extension)) for extension in ("index", "timeindex")]
    assert sizes == [5 * 8, 5 * 12]
    file.fail_next("ftruncate", errno.EIO, under=segment.log_path)
    with pytest.raises(OSError, match="ftruncate"):
        segment.truncate_to(3)
    file.clear_faults()
    # What failed is the cut: the entries are gone, the data are there, and a search finds them.
    assert entries(segment.offset_index) == [(n, n * len(batch(0))) for n in (1, 2)]
    assert segment.size == 6 * len(batch(0))
    assert entries(segment.time_index) == [(1, 1), (2, 2)]
    assert segment.translate_offset(5).offset == 5
    with recorded() as record:
        segment.truncate_to(3)
        done = calls(record, tmp_path)
    assert place(done, "ftruncate *.log") < place(done, "ftruncate *.index") < place(done, "ftruncate *.timeindex")
    assert [len(file_bytes(segment, extension)) for extension in ("index", "timeindex")] == [8 * 12 * 50] * 2
    assert (segment.size, segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (3 * len(batch(0)), 2, 2)


def test_TRUNC_08_an_emptied_segment_counts_its_age_anew(tmp_path):
    segment = filled(tmp_path, [batch(0)], now_ms=100)
    assert (segment.created_ms, segment.first_batch_timestamp) == (100, 1000)
    assert segment.truncate_to(5) == 0
    assert segment.created_ms == 100
    assert segment.truncate_to(0, now_ms=777) == len(batch(0))
    assert (segment.created_ms, segment.first_batch_timestamp, segment.max_timestamp_so_far) == (777, None, -1)


def test_LOG_29_a_truncation_that_fails_keeps_the_data_readable(tmp_path):
    segment = filled(tmp_path, [batch(n) for n in range(5)])
    file.fail_next("ftruncate", errno.EIO)
    with pytest.raises(OSError, match="ftruncate"):
        segment.truncate_to(2)
    assert segment.size == 5 * len(batch(0))
    assert segment.read(4, 1000).position == 4 * len(batch(0))
    assert segment.truncate_to(2) == 3 * len(batch(0))


def test_TRUNC_09_readers_that_walk_the_file_during_a_truncation_see_the_old_or_the_new_end(tmp_path):
    size = len(batch(0, size=1000))
    segment = filled(tmp_path, [batch(n, size=1000) for n in range(400)])
    failures = []
    done = threading.Event()

    def reader():
        while not done.is_set():
            valid, _, reason, _ = segment.scan(None)
            if valid % size or reason is not None:
                failures.append((valid, reason))
            segment.translate_offset(399)
            segment.find_offset_by_timestamp(10**9)

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        segment.truncate_to(20)
        segment.append(records(*(batch(n, size=1000) for n in range(20, 400))))
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


# --- recovery -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_IDX_18_recovery_rebuilds_a_byte_identical_index(tmp_path, seed):
    batches = random_batches(random.Random(seed), 150)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    segment.close()
    written = file_bytes(segment, "index"), file_bytes(segment, "timeindex")
    assert written[0]
    for extension in ("index", "timeindex"):
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    segment = LogSegment(str(tmp_path), 0, index_interval_bytes=1000)
    with pytest.raises(FileNotFoundError):
        segment.sanity_check()
    result = segment.recover()
    assert result[:3] == (sum(map(len, batches)), 0, None)
    assert (file_bytes(segment, "index"), file_bytes(segment, "timeindex")) == written, f"seed={seed}"
    segment.sanity_check()


def assert_index_agrees_with_log(segment, note):
    """IDX-17: each entry is the last offset of a batch and its position; times are the greatest up to there."""
    batches = list(segment.slice(0, segment.size).memory_records().batches)
    last_offsets = {b.last_offset: b.position for b in batches}
    for offset, position in entries(segment.offset_index):
        assert last_offsets.get(offset) == position, note
    for timestamp, offset in entries(segment.time_index):
        up_to_there = [b.max_timestamp for b in batches if b.last_offset <= offset]
        assert offset in last_offsets and max(up_to_there) == up_to_there[-1] == timestamp, note


@pytest.mark.parametrize("seed", range(10))
def test_IDX_18_IDX_17_indexes_of_several_runs_and_truncations_and_rebuilt_ones_both_agree_with_the_log(tmp_path, seed):
    """They are not the same bytes: the interval's counter restarts at reopening and at a truncation."""
    rng = random.Random(seed)
    options = {"index_interval_bytes": 600}
    segment = LogSegment(str(tmp_path), 0, **options)
    rest, kept = random_batches(rng, 120), []
    while rest:
        n = rng.randint(1, 5)
        segment.append(records(*rest[:n]))
        kept, rest = kept + rest[:n], rest[n:]
        if rng.random() < 0.2:
            segment.close()
            segment = LogSegment(str(tmp_path), 0, **options)
        elif rng.random() < 0.15:
            target = model.decode_batch(kept[-rng.randint(1, min(6, len(kept)))]).base_offset
            segment.truncate_to(target)
            kept = [one for one in kept if model.decode_batch(one).base_offset < target]
    note = f"seed={seed}"
    assert_index_agrees_with_log(segment, note)
    assert len(segment.offset_index) > 5, note
    segment.close()
    for extension in ("index", "timeindex"):
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    segment = LogSegment(str(tmp_path), 0, **options)
    assert segment.recover().truncated_bytes == 0
    assert_index_agrees_with_log(segment, note)
    expected = Model(kept, interval=600)
    expected.note_time()  # the final entry
    assert (entries(segment.offset_index), entries(segment.time_index)) == (expected.index, expected.time_index), note


def test_SEG_11_a_flipped_byte_anywhere_stops_recovery_exactly_at_its_batch(tmp_path):
    batches = [batch(0, 2), batch(2, 3, compression="gzip"), batch(5, 1)]
    whole = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0] + batches[1])]
    lasts = [-1, 1, 4]
    path = tmp_path / f"{0:020d}.log"
    for at in range(len(whole)):
        for extension in ("index", "timeindex"):
            (tmp_path / f"{0:020d}.{extension}").unlink(missing_ok=True)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        n = max(i for i in range(3) if starts[i] <= at)
        segment = LogSegment(str(tmp_path), 0)
        result = segment.recover()
        in_batch = at - starts[n]
        if in_batch < 8:
            # The CRC does not cover the base offset.  One that is still in range shows at the next batch, or never.
            assert result.valid_bytes in [*starts[n:], len(whole)], f"byte {at}"
            segment.close()
            continue
        if 12 <= in_batch < 16:
            assert result.reason is None, f"byte {at}"  # leader epoch, not covered either
            segment.close()
            continue
        assert (result.valid_bytes, result.truncated_bytes) == (starts[n], len(whole) - starts[n]), f"byte {at}"
        assert result.last_offset == lasts[n]
        assert f"position {starts[n]}" in result.reason
        assert file_bytes(segment) == whole[: starts[n]]
        segment.close()


def test_SEG_11_a_file_cut_at_any_length_keeps_every_whole_batch(tmp_path):
    batches = [batch(0, 2), batch(2, 1), batch(3, 1)]
    whole = b"".join(batches)
    ends = [0, len(batches[0]), len(batches[0] + batches[1]), len(whole)]
    path = tmp_path / f"{0:020d}.log"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        segment = LogSegment(str(tmp_path), 0)
        result = segment.recover()
        valid = max(end for end in ends if end <= length)
        assert result[:2] == (valid, length - valid)
        assert (result.reason is None) == (valid == length)
        assert file_bytes(segment) == whole[:valid]
        assert segment.append(records(batch(9))) == valid
        segment.close()


def test_SEG_11_offsets_that_go_back_or_leave_the_segments_range_end_what_is_valid(tmp_path):
    for n, last in enumerate([batch(1), batch(3, 2), batch(4), batch(2**31 + 50)]):
        directory = tmp_path / str(n)
        directory.mkdir()
        good = batch(3) + batch(4)
        (directory / f"{3:020d}.log").write_bytes(good + last)
        result = LogSegment(str(directory), 3).recover()
        assert result[:2] == (len(good), len(last)), f"case {n}"
        assert result.last_offset == 4


def test_SEG_11_a_base_offset_that_is_too_high_ends_what_is_valid_before_its_batch(tmp_path):
    whole = [batch(3, 5), batch(8, 5), batch(13, 5), batch(18, 5)]
    start, size = len(whole[0]), sum(map(len, whole))
    for n, flipped in enumerate(8 ^ 1 << bit for bit in range(30)):
        directory = tmp_path / str(n)
        directory.mkdir()
        lying = flipped.to_bytes(8, "big") + whole[1][8:]
        (directory / f"{3:020d}.log").write_bytes(whole[0] + lying + whole[2] + whole[3])
        segment = LogSegment(str(directory), 3)
        for result in (segment.scan(None), segment.recover()):
            assert result[:2] == (start, size - start), f"base offset {flipped}"
            assert result.last_offset == 7 and f"position {start}" in result.reason
        segment.close()


def test_SEG_11_a_torn_batch_after_a_gap_in_the_offsets_does_not_make_the_batch_before_it_wrong(tmp_path):
    whole = batch(3, 5) + batch(100, 5)
    for n, tail in enumerate([bytes(200), batch(8, 5)[:-1], (8).to_bytes(8, "big") + b"garbage" * 20]):
        directory = tmp_path / str(n)
        directory.mkdir()
        (directory / f"{3:020d}.log").write_bytes(whole + tail)
        result = LogSegment(str(directory), 3).recover()
        assert result[:2] == (len(whole), len(tail)) and result.last_offset == 104, f"case {n}"


def test_SEG_11_recovery_hands_over_the_batches_and_leaves_out_what_it_cuts(tmp_path):
    segment = filled(tmp_path, [batch(n, epoch=n // 10) for n in range(30)])
    segment.close()
    with open(segment.log_path, "ab") as out:
        out.write(b"\0" * 500)
    segment = LogSegment(str(tmp_path), 0)
    seen = []
    result = segment.recover(lambda table: seen.extend(b.base_offset for b in table))
    assert seen == list(range(30))
    assert (result.truncated_bytes, result.last_offset) == (500, 29)
    noteworthy = []
    segment.scan(lambda table: noteworthy.extend(b.base_offset for b in table), only_noteworthy=True)
    assert noteworthy == [0, 10, 20]


def test_a_scan_hands_over_what_producer_state_needs_and_can_start_anywhere(tmp_path):
    batches = [
        batch(0),
        batch(1, producer_id=7, producer_epoch=0, base_sequence=0),
        batch(2),
        batch(3, epoch=1),
        batch(4, epoch=1),
    ]
    segment = filled(tmp_path, batches)
    seen = []
    segment.scan(lambda table: seen.extend(b.base_offset for b in table), only_noteworthy=True)
    assert seen == [0, 1, 3]
    seen.clear()
    result = segment.scan(
        lambda table: seen.extend(b.base_offset for b in table), start_position=len(batches[0]), check_crc=False
    )
    assert seen == [1, 2, 3, 4]
    assert result == (segment.size, 0, None, 4)


def test_a_scan_of_many_batches_hands_them_over_in_order_and_whole(tmp_path):
    segment = LogSegment(str(tmp_path), 0)
    for start in range(0, 20_000, 1000):
        segment.append(records(*(batch(n, size=1) for n in range(start, start + 1000))))
    seen = []
    segment.scan(lambda table: seen.extend(table.to_numpy()["base_offset"].tolist()))
    assert seen == list(range(20_000))


def test_recovery_after_a_crash_replaces_untrimmed_indexes(tmp_path):
    batches = random_batches(random.Random(1), 100)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    expected = entries(segment.offset_index)
    segment.close(trim=False)
    crashed = LogSegment(str(tmp_path), 0, index_interval_bytes=1000)
    with pytest.raises(CorruptIndex):
        crashed.sanity_check()
    crashed.recover()
    crashed.sanity_check()
    assert entries(crashed.offset_index) == expected
    assert os.path.getsize(crashed.log_path.replace(".log", ".index")) == 8 * len(expected)
    crashed.append(records(*(batch(n) for n in range(10_000, 10_050))))
    assert crashed.translate_offset(10_049).offset == 10_049


@pytest.mark.parametrize("seed", range(30))
def test_garbage_in_a_log_never_crashes_a_reader(tmp_path, seed):
    rng = random.Random(seed)
    whole = bytearray(b"".join(random_batches(rng, 30)))
    for _ in range(rng.randint(1, 60)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    (tmp_path / f"{0:020d}.log").write_bytes(whole)
    (tmp_path / f"{0:020d}.index").write_bytes(rng.randbytes(8 * rng.randint(0, 20)))
    (tmp_path / f"{0:020d}.timeindex").write_bytes(rng.randbytes(12 * rng.randint(0, 20)))
    segment = LogSegment(str(tmp_path), 0, writable=False)
    for call in (
        *(lambda o=o: segment.translate_offset(o) for o in range(0, 150, 7)),
        *(lambda t=t: segment.find_offset_by_timestamp(t) for t in range(0, 5000, 500)),
        segment.read_next_offset,
        segment.find_offset_of_max_timestamp,
        lambda: segment.scan(None),
        segment.sanity_check,
    ):
        try:
            call()
        except (CorruptMessage, CorruptIndex, FileNotFoundError):
            pass
        except Exception as error:
            # A flipped magic is a format of its own.
            assert type(error).__name__ in {"UnsupportedForMessageFormat", "InvalidRecord"}, f"seed={seed}: {error!r}"
