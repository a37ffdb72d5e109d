"""A segment of another process, which may cut it at any time: nothing is mapped, and what is read of it in parts is
what its owner finds in the whole."""

import os
import random

import pytest

from kcore.common import file
from kcore.errors import CorruptMessage
from kcore.log.log_segment import LogSegment
from kcore.record.record_columns import ColumnsReader
from tests.unit.log.segments import batch, filled, random_batches, records

NOW = 1_000
LARGE = 300_000  # more than a scan reads at a time
WINDOW = 8 * 1024  # what a search reads at a time, WINDOW_BYTES
SCAN_WINDOW = 256 * 1024  # SCAN_WINDOW_BYTES


def rows_of(segment, **options):
    tables = []
    result = segment.scan(tables.append, **options)
    return result, [(row.position, row.base_offset, row.last_offset, row.size) for table in tables for row in table]


def columns_by(segment, max_bytes, end=10**6):
    reader = ColumnsReader(end_offset=end)
    offset, records = 0, []
    while (columns := segment.read_columns(reader, offset, 2**62, max_bytes)) is not None:
        records += zip(columns.offset.tolist(), columns.timestamp.tolist(), columns.value, strict=True)
        if reader.previous + 1 in (offset, end):
            break
        offset = reader.previous + 1
    return records


def assert_alike(directory, rng, *, has_indexes):
    own = LogSegment(str(directory), 0)
    if not has_indexes:  # the foreign reader makes its own, in memory
        own.recover()
        for path in directory.glob("*index"):
            path.unlink()
    foreign = LogSegment(str(directory), 0, writable=False)
    end = own.read_next_offset()
    assert foreign.read_next_offset() == end
    assert foreign.first_batch_timestamp == own.first_batch_timestamp
    targets = [-1, 0, end - 1, end, *(rng.randrange(end) for _ in range(100))]
    for target in targets:
        assert foreign.translate_offset(target) == own.translate_offset(target), target
        expected = own.find_offset_by_timestamp(NOW + target)
        assert foreign.find_offset_by_timestamp(NOW + target) == expected, target
        position = rng.randrange(own.size)
        assert foreign.fetch_upper_bound_offset(position, 100) == own.fetch_upper_bound_offset(position, 100)
    assert foreign.find_offset_of_max_timestamp() == own.find_offset_of_max_timestamp()
    for options in ({}, {"check_crc": False}, {"only_noteworthy": True}):
        assert rows_of(foreign, **options) == rows_of(own, **options)
    for max_bytes in (1, 5_000, 10**6, 2**62):
        assert columns_by(foreign, max_bytes) == columns_by(own, max_bytes)
    assert columns_by(foreign, 2**62, end=end // 2) == columns_by(own, 2**62, end=end // 2)
    foreign.close()


def filled_up_to(total, *offsets_and_sizes):
    """A batch for each offset and size of its value, the last value enlarged so that they have `total` bytes."""
    *before, (offset, size) = offsets_and_sizes
    batches = [batch(one, size=its_size) for one, its_size in before]
    return [*batches, batch(offset, size=size + total - sum(map(len, batches)) - len(batch(offset, size=size)))]


@pytest.mark.parametrize("present", range(1, 62))
def test_a_header_that_is_only_partly_in_what_was_read_is_read_again(tmp_path, present):
    batches = [*filled_up_to(WINDOW - present, (0, 8_000)), batch(1), batch(2, timestamp=NOW + 7)]
    filled(tmp_path, batches, index_interval_bytes=10**6).close()
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert foreign.translate_offset(1) == (1, WINDOW - present, len(batches[1]))
    assert foreign.read_next_offset() == 3
    assert foreign.find_offset_by_timestamp(NOW + 1) == (NOW + 7, 2, 0)


@pytest.mark.parametrize("present", range(9))
def test_a_scan_reads_on_for_the_offset_of_the_next_batch(tmp_path, present):
    """A scan compares the base offset of a batch with that of the next one, which may begin in the next window."""
    batches = [*filled_up_to(SCAN_WINDOW - present, (0, 1), (100, 250_000)), batch(5), batch(6)]
    filled(tmp_path, batches).close()
    own = LogSegment(str(tmp_path), 0)
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert rows_of(foreign) == rows_of(own)
    assert rows_of(foreign)[0].valid_bytes == len(batches[0])


@pytest.mark.parametrize("indexes", ["sound", "missing", "wrong"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_in_parts_is_what_the_owner_finds(tmp_path, seed, indexes):
    rng = random.Random(seed)
    batches = random_batches(rng, 120)
    base = LogSegment(str(tmp_path), 0)
    for one in batches:
        base.append(records(one))
    end = base.read_next_offset()
    for n in range(3):
        base.append(records(batch(end + n, 1, size=LARGE * (n + 1), timestamp=5_000 - n)))
    base.close()
    if indexes == "wrong":
        index = tmp_path / f"{0:020d}.index"
        entries = bytearray(index.read_bytes())
        for at in range(4, len(entries) - 8, 16):
            entries[at : at + 4] = rng.randbytes(4)
        index.write_bytes(entries)
    assert_alike(tmp_path, rng, has_indexes=indexes != "missing")


def test_nothing_of_a_foreign_segment_is_mapped(tmp_path):
    filled(tmp_path, [batch(n, size=2_000) for n in range(50)]).close()
    file.count_calls()
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert foreign.translate_offset(30).offset == 30
    assert foreign.find_offset_by_timestamp(NOW)[1] == 0
    assert foreign.find_offset_of_max_timestamp()[1] == 0
    assert foreign.read_next_offset() == 50
    assert foreign.fetch_upper_bound_offset(0, 1_000) is not None
    assert foreign.scan(lambda table: None).truncated_bytes == 0
    assert len(foreign.columns()) == 50
    assert len(list(foreign.read(10, 10_000).records.records())) == 4
    assert file.calls("mmap") == 0
    own = LogSegment(str(tmp_path), 0)
    assert own.translate_offset(30).offset == 30
    assert file.calls("mmap") > 0, "or this counts nothing"
    file.clear_faults()


@pytest.mark.parametrize("left", [0, 1, 60, 2_100, 30_000, 50_001])
def test_a_cut_of_the_file_is_the_end_of_the_segment(tmp_path, left):
    batches = [batch(n, size=2_000) for n in range(50)]
    filled(tmp_path, batches).close()
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert foreign.translate_offset(49).offset == 49
    os.truncate(foreign.log_path, left)
    whole = left // len(batches[0])
    assert foreign.scan(lambda table: None, check_crc=False).valid_bytes == whole * len(batches[0])
    for offset in range(50):
        place = foreign.translate_offset(offset)
        assert (place is None) == (offset >= whole)
        assert (foreign.find_offset_by_timestamp(NOW, offset) is None) == (offset >= whole)
    with pytest.raises(CorruptMessage):
        foreign.columns()
    assert len(foreign.columns(0, whole)) == whole
    assert foreign.read_next_offset() == whole


def test_a_record_found_by_its_timestamp_has_the_right_crc(tmp_path):
    filled(tmp_path, [batch(n) for n in range(3)]).close()
    path = tmp_path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(batch(0)) + 80] ^= 1
    path.write_bytes(data)
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert foreign.find_offset_by_timestamp(NOW)[1] == 0
    with pytest.raises(CorruptMessage, match="CRC-32C"):
        foreign.find_offset_by_timestamp(NOW, 1)


def test_an_error_of_the_disk_is_an_error_and_no_signal(tmp_path):
    filled(tmp_path, [batch(n) for n in range(3)]).close()
    foreign = LogSegment(str(tmp_path), 0, writable=False)
    assert foreign.translate_offset(1).offset == 1
    for call in (lambda: foreign.translate_offset(1), lambda: foreign.scan(None), lambda: foreign.columns()):
        file.fail_next("pread", 5, times=-1)
        with pytest.raises(OSError, match="pread"):
            call()
        file.clear_faults()
