import errno
import os
import random
import threading

import pytest

from kcore.common import file
from kcore.errors import (
    CorruptMessage,
    ReadOnlyLog,
)
from kcore.log.log_segment import LogSegment
from tests.unit.log.segments import (
    Model,
    batch,
    entries,
    file_bytes,
    files_of,
    filled,
    filled_with_a_hole,
    random_batches,
    records,
)
from tests.waiting import wait_until

# --- reads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_SEG_10_translate_offset_agrees_with_a_walk_from_the_start(tmp_path, seed):
    rng = random.Random(seed)
    base = rng.choice([0, 77, 2**40])
    batches = random_batches(rng, 150, base)
    expected = Model(batches, base)
    segment = filled(tmp_path, batches, base, index_interval_bytes=rng.choice([0, 500, 4096]))
    for offset in range(base - 2, base + 900):
        assert segment.translate_offset(offset) == expected.translate(offset), f"seed={seed} offset={offset}"
    some = expected.rows[60][0]
    assert segment.translate_offset(base, some).position == some
    assert segment.translate_offset(base, expected.size) is None


def test_SEG_07_a_negative_size_is_an_error_and_an_offset_beyond_the_end_is_none(tmp_path):
    segment = filled(tmp_path, [batch(0, 2)])
    with pytest.raises(ValueError):
        segment.read(0, -1)
    assert segment.read(2, 100) is None
    assert LogSegment(str(tmp_path), 9).read(9, 100) is None


def test_SEG_08_SEG_09_read_gives_a_slice_bounded_by_size_and_position_and_at_least_one_batch_if_asked(tmp_path):
    batches = [batch(0, 2), batch(2, 2), batch(4, 2)]
    a, b, c = (len(one) for one in batches)
    segment = filled(tmp_path, batches)

    def read(*args, **options):
        got = segment.read(*args, **options)
        return got.position, bytes(got.records.read()), got.first_entry_incomplete

    everything = b"".join(batches)
    assert read(0, 10**9) == (0, everything, False)
    assert read(3, 10**9) == (a, everything[a:], False)
    assert read(2, b) == (a, everything[a : a + b], False)
    assert read(2, b + 1) == (a, everything[a : a + b + 1], False)
    assert read(2, b - 1) == (a, everything[a : a + b - 1], True)
    assert read(2, 1, min_one_message=True) == (a, everything[a : a + b], False)
    assert read(2, 0) == (a, b"", True)
    assert read(2, 0, min_one_message=True) == (a, everything[a : a + b], False)
    assert read(0, 10**9, a + b) == (0, everything[: a + b], False)
    assert read(2, 10**9, a) == (a, b"", False)
    assert read(4, 10**9, a) == (a + b, b"", False)
    assert read(4, 10**9, c * 100) == (a + b, everything[a + b :], False)


@pytest.mark.parametrize("seed", range(5))
def test_SEG_09_the_length_is_the_smaller_of_limit_and_room_and_the_slice_is_no_copy(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 60)
    expected = Model(batches)
    segment = filled(tmp_path, batches, index_interval_bytes=500)
    for _ in range(200):
        start, max_size = rng.randint(0, 250), rng.choice([0, 1, 60, 61, 200, 5000, 10**6])
        max_position = rng.choice([segment.size, rng.randint(0, segment.size), 2**62])
        at_least_one = rng.random() < 0.5
        got = segment.read(start, max_size, max_position, at_least_one)
        batch_place = expected.translate(start)
        if batch_place is None:
            assert got is None
            continue
        _, position, first = batch_place
        limit = max(max_size, first) if at_least_one else max_size
        length = min(limit, max(0, min(max_position, segment.size) - position))
        note = f"seed={seed} start={start} size={max_size} to={max_position} one={at_least_one}"
        assert (got.position, got.records.position, got.records.size_in_bytes) == (position, position, length), note
        assert got.first_entry_incomplete == (limit < first), note
        assert got.records.path == segment.log_path


@pytest.mark.parametrize("seed", range(8))
def test_find_offset_by_timestamp_agrees_with_a_walk_over_all_records(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, 80)
    expected = Model(batches)
    segment = filled(tmp_path, batches, index_interval_bytes=700)
    for timestamp in [-1, 0, expected.max_timestamp, expected.max_timestamp + 1] + rng.choices(range(5100), k=150):
        start = rng.choice([0, 0, rng.randint(0, 400)])
        got = segment.find_offset_by_timestamp(timestamp, start)
        assert got == expected.by_timestamp(timestamp, start), f"seed={seed} timestamp={timestamp} start={start}"
    assert segment.find_offset_of_max_timestamp() == expected.by_timestamp(expected.max_timestamp, 0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_find_offset_by_timestamp_looks_into_compressed_batches(tmp_path, codec):
    segment = filled(tmp_path, [batch(n, 10, timestamp=n, compression=codec, epoch=3) for n in range(0, 50, 10)])
    assert segment.find_offset_by_timestamp(37) == (37, 37, 3)
    assert segment.find_offset_of_max_timestamp() == (49, 49, 3)


def test_a_segment_without_timestamps_has_no_greatest_one(tmp_path):
    segment = filled(tmp_path, [batch(0, 1, timestamp=-1)])
    assert segment.find_offset_of_max_timestamp() is None
    assert segment.find_offset_by_timestamp(0) is None
    segment.close()
    assert file_bytes(segment, "timeindex") == b""


def test_SEG_14_the_next_offset_is_that_after_the_last_whole_batch(tmp_path):
    segment = LogSegment(str(tmp_path), 5)
    assert segment.read_next_offset() == 5
    segment.append(records(batch(5, 3), batch(10, 2)))
    assert segment.read_next_offset() == 12
    segment.close()
    with open(segment.log_path, "ab") as out:
        out.write(batch(12)[:-1])
    assert LogSegment(str(tmp_path), 5, writable=False).read_next_offset() == 12


def outcome(call):
    try:
        return call()
    except CorruptMessage as error:
        return str(error)


@pytest.mark.parametrize("seed", range(40))
def test_SEG_14_a_small_read_of_the_tail_finds_the_end_that_the_mapped_file_shows(tmp_path, seed):
    rng = random.Random(seed)
    batches = random_batches(rng, rng.randint(1, 30), base_offset=rng.choice([0, 7]))
    filled(tmp_path, batches, 0, index_interval_bytes=rng.choice([500, 4096, 10**6])).close()
    paths = [tmp_path / f"{0:020d}.{extension}" for extension in ("log", "index")]
    sound = [path.read_bytes() for path in paths]
    for _ in range(25):
        log, index = map(bytearray, sound)
        for _ in range(rng.randint(0, 3)):
            log[rng.randrange(max(0, len(log) - 2_000), len(log))] ^= 1 << rng.randrange(8)
        if index and rng.random() < 0.3:
            index[rng.randrange(len(index))] ^= 1 << rng.randrange(8)
        del log[len(log) - rng.choice([0, 0, 1, rng.randrange(len(log))]) :]
        paths[0].write_bytes(log)
        paths[1].write_bytes(index)
        for writable in (True, False):
            by_read, by_mapping = (LogSegment(str(tmp_path), 0, writable=writable) for _ in range(2))
            by_mapping.scan(lambda batches: None)  # has it mapped
            file.count_calls()
            mapped_end = outcome(by_mapping.read_next_offset), outcome(by_mapping.ends_inside_a_batch)
            assert not writable or file.calls("pread") == 0
            assert (outcome(by_read.read_next_offset), outcome(by_read.ends_inside_a_batch)) == mapped_end
            file.clear_faults()
            by_read.close(trim=False)
            by_mapping.close(trim=False)


def test_IDX_15_reads_need_no_lock_while_another_thread_appends(tmp_path):
    segment = filled(tmp_path, [batch(0, size=1000)], index_interval_bytes=2000)
    failures = []
    done = threading.Event()

    def reader(seed):
        rng = random.Random(seed)
        while not done.is_set():
            offset = rng.randrange(batches_written[0])
            batch_place = segment.translate_offset(offset)
            if batch_place is None or batch_place.offset != offset:
                failures.append((seed, offset, batch_place))

    batches_written = [1]
    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for n in range(1, 3000):
        segment.append(records(batch(n, size=1000)))
        batches_written[0] = n + 1
    done.set()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("fill", "read", "expected"),
    [
        (filled_with_a_hole, lambda segment: segment.translate_offset(3), None),
        (filled_with_a_hole, lambda segment: segment.read_next_offset(), 4),
        (filled, lambda segment: segment.read_next_offset(), 4),
    ],
    ids=["search in a copy", "tail with a hole", "tail"],
)
def test_a_cut_waits_for_a_reader_that_copies_from_the_file(tmp_path, fill, read, expected):
    """It would otherwise find what an append after the cut has put there."""
    batches = [batch(0, size=20_000), batch(1), batch(2), batch(3)]
    fill(tmp_path, batches).close()
    segment = LogSegment(str(tmp_path), 0)
    size, kept = segment.size, sum(map(len, batches[:2]))
    results = []

    def reader():
        # Its pread begins again and again, until the faults are cleared.
        file.fail_next("pread", errno.EINTR, times=-1, thread=threading.get_ident())
        results.append(read(segment))

    threads = [threading.Thread(target=reader), threading.Thread(target=segment.truncate_to, args=(2,))]
    try:
        threads[0].start()
        wait_until(lambda: file.calls("pread"), "the reader does not read")
        threads[1].start()
        wait_until(lambda: segment.size == kept, "no cut")
        threads[1].join(0.2)  # only so long does a cut that does not wait have to show itself
        assert os.path.getsize(segment.log_path) == size
    finally:
        file.clear_faults()
        for thread in threads:
            thread.join()
    assert os.path.getsize(segment.log_path) == kept
    assert results == [expected]


@pytest.mark.parametrize("offset", range(6))
def test_a_truncation_of_a_segment_that_is_not_mapped_knows_the_greatest_timestamp_that_is_left(tmp_path, offset):
    batches = [batch(0, size=20_000, timestamp=1)]
    batches += [batch(n, timestamp=timestamp) for n, timestamp in enumerate([9, 5, 20, 3], 1)]
    segment = filled_with_a_hole(tmp_path, batches, index_interval_bytes=10**6)
    segment.truncate_to(offset)
    expected = Model(batches[:offset])
    assert (segment.max_timestamp_so_far, segment.offset_of_max_timestamp) == (
        expected.max_timestamp,
        expected.offset_of_max,
    )
    assert (segment.size, segment.read_next_offset()) == (expected.size, min(offset, 5))
    assert not segment.ends_inside_a_batch()


# --- read only ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [(), ("index",), ("timeindex",), ("index", "timeindex")])
def test_a_read_only_segment_rebuilds_missing_indexes_in_memory_and_writes_nothing(tmp_path, missing):
    batches = random_batches(random.Random(5), 100)
    expected = Model(batches, interval=1000)
    segment = filled(tmp_path, batches, index_interval_bytes=1000)
    segment.close()
    for extension in missing:
        os.unlink(segment.log_path.replace(".log", f".{extension}"))
    before = {name: os.stat(tmp_path / name).st_mtime_ns for name in files_of(tmp_path)}
    segment = LogSegment(str(tmp_path), 0, writable=False, index_interval_bytes=1000)
    if missing:
        with pytest.raises(FileNotFoundError):
            segment.sanity_check()
    assert entries(segment.offset_index) == expected.index
    expected.note_time()
    assert entries(segment.time_index) == expected.time_index
    assert segment.max_timestamp_so_far == expected.max_timestamp
    for offset in range(300):
        assert segment.translate_offset(offset) == expected.translate(offset)
    segment.close()
    assert {name: os.stat(tmp_path / name).st_mtime_ns for name in files_of(tmp_path)} == before


def test_a_read_only_segment_refuses_every_change(tmp_path):
    filled(tmp_path, [batch(0)]).close()
    segment = LogSegment(str(tmp_path), 0, writable=False)
    for change in (
        lambda: segment.append(records(batch(1))),
        lambda: segment.truncate_to(0),
        segment.recover,
        segment.on_become_inactive,
        segment.flush,
        segment.delete,
        lambda: segment.change_file_suffixes("", ".deleted"),
    ):
        with pytest.raises(ReadOnlyLog):
            change()
    with pytest.raises(FileNotFoundError):
        LogSegment(str(tmp_path), 1, writable=False)


def test_a_file_that_another_process_cuts_does_not_kill_a_read_only_reader(tmp_path):
    batches = [batch(n, size=3000) for n in range(50)]
    filled(tmp_path, batches).close()
    segment = LogSegment(str(tmp_path), 0, writable=False)
    assert segment.translate_offset(49).offset == 49
    everything = segment.slice(0, segment.size)
    os.truncate(segment.log_path, 5 * len(batches[0]) + 17)
    assert segment.translate_offset(49) is None
    assert segment.translate_offset(3).offset == 3
    assert segment.scan(None).valid_bytes == 5 * len(batches[0])
    assert len(everything.read()) == 5 * len(batches[0]) + 17
