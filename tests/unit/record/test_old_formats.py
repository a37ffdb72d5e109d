"""Messages of magic 0 and 1 that Kafka's own classes wrote read back as those classes read them."""

import json
import random
from pathlib import Path

import pytest

import kcore
from kcore.errors import CorruptMessage
from kcore.log.log_segment import LogSegment
from kcore.record.memory_records import MemoryRecords

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "old-formats"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())["files"]
NAMES = sorted(EXPECTED)
LEGACY = [name for name in NAMES if not name.startswith("v2")]


def as_hex(data):
    return None if data is None else data.hex()


def row(record):
    return [record.offset, record.timestamp, as_hex(record.key), as_hex(record.value)]


def expected_records(name):
    return [record for batch in EXPECTED[name]["batches"] for record in batch["records"]]


def segment_of(directory, data):
    (directory / "00000000000000000000.log").write_bytes(data)
    segment = LogSegment(str(directory), 0, index_interval_bytes=100)
    segment.recover()
    return segment


@pytest.mark.parametrize("name", NAMES)
def test_batches_and_records_are_what_kafka_reads(name):
    data = (GOLDEN / name).read_bytes()
    records = MemoryRecords(data, source=name)
    assert records.valid_bytes == EXPECTED[name]["size"] == len(data)
    for batch, want in zip(records.batches, EXPECTED[name]["batches"], strict=True):
        assert batch.records().__next__().offset == want["baseOffset"]
        assert [row(record) for record in batch.records()] == want["records"]
        assert {record.timestamp_type for record in batch.records()} == {want["timestampType"]}
        assert {
            "position": batch.position,
            "lastOffset": batch.last_offset,
            "magic": batch.magic,
            "size": batch.size,
            "codec": batch.compression,
            "timestampType": batch.timestamp_type,
            "maxTimestamp": batch.max_timestamp,
            "crc": batch.crc,
            "isValid": batch.is_valid(),
        } == {key: value for key, value in want.items() if key not in ("baseOffset", "count", "records")}


@pytest.mark.parametrize("name", LEGACY)
def test_a_message_is_a_batch_without_producer_or_epoch(name):
    for batch in MemoryRecords((GOLDEN / name).read_bytes()).batches:
        if batch.magic == 2:
            continue
        assert batch.base_offset == batch.last_offset
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.leader_epoch) == (-1, -1, -1, -1)
        assert not (batch.is_control or batch.is_transactional or batch.has_producer_id)
        assert batch.count == (1 if batch.compression == "none" else -1)


def test_a_wrapper_has_no_length():
    batch = MemoryRecords((GOLDEN / "v1-gzip.log").read_bytes()).batches[1]
    with pytest.raises(TypeError, match="does not say how many"):
        len(batch)
    assert len(list(batch)) == 7


@pytest.mark.parametrize("name", NAMES)
def test_recover_keeps_every_byte_and_each_offset_is_found(name, tmp_path):
    data = (GOLDEN / name).read_bytes()
    segment = segment_of(tmp_path, data)
    assert segment.size == len(data)
    assert segment.read_next_offset() == expected_records(name)[-1][0] + 1
    segment.sanity_check()
    for batch in EXPECTED[name]["batches"]:
        for offset in range(batch["baseOffset"], batch["lastOffset"] + 1):
            assert tuple(segment.translate_offset(offset)) == (batch["lastOffset"], batch["position"], batch["size"])
    assert segment.translate_offset(segment.read_next_offset()) is None
    segment.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_timestamp_finds_the_first_record_that_has_it_or_a_later_one(name, tmp_path):
    segment = segment_of(tmp_path, (GOLDEN / name).read_bytes())
    records = expected_records(name)
    timestamps = sorted({record[1] for record in records if record[1] >= 0})
    for timestamp in [0, *timestamps]:
        entry = segment.find_offset_by_timestamp(timestamp)
        first = next((record for record in records if record[1] >= timestamp), None)
        assert (entry and entry[:2]) == (first and (first[1], first[0]))
    if timestamps:
        assert segment.find_offset_by_timestamp(timestamps[-1] + 1) is None
        assert segment.max_timestamp_so_far == timestamps[-1]
    segment.close()


@pytest.mark.parametrize("name", NAMES)
def test_truncation_removes_every_batch_that_ends_at_or_above_the_offset(name, tmp_path):
    data = (GOLDEN / name).read_bytes()
    segment = segment_of(tmp_path, data)
    for batch in reversed(EXPECTED[name]["batches"]):
        segment.truncate_to(batch["lastOffset"])
        assert segment.size == batch["position"]
        assert segment.first_batch_timestamp == (EXPECTED[name]["batches"][0]["maxTimestamp"] if segment.size else None)
    segment.append(MemoryRecords(data))
    assert (tmp_path / "00000000000000000000.log").read_bytes() == data
    segment.close()


def test_a_directory_of_mixed_formats_opens_and_reads(tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes((GOLDEN / "mixed.log").read_bytes())
    with kcore.open_log(directory) as log:
        assert [row(record) for record in log.records()] == expected_records("mixed.log")
        assert {batch.magic for batch in log.batches()} == {0, 1, 2}
    with kcore.open_log(directory, mode="a") as log:
        offset = log.log_end_offset
        assert offset == expected_records("mixed.log")[-1][0] + 1
        assert [row(record) for record in log.records(start_offset=5)] == expected_records("mixed.log")[5:]


def recovered(directory, data):
    """The records that recovery leaves, up to the first that cannot be read."""
    segment = segment_of(directory, data)
    rows = []
    try:
        for record in segment.slice(0, segment.size).records():
            rows.append(row(record))
    except CorruptMessage:
        pass
    segment.close()
    return rows


@pytest.mark.parametrize("name", LEGACY)
def test_VAL_15_a_flipped_byte_never_gives_a_wrong_record(name, tmp_path, seed):
    data = (GOLDEN / name).read_bytes()[:1300]
    batches = EXPECTED[name]["batches"]
    records = expected_records(name)
    contents = [record[1:] for record in records]
    rng = random.Random(seed)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        got = recovered(tmp_path, broken)
        # No CRC covers the offset of a message, nor the base offset and epoch of a batch: contents are right all the
        # same, and in another batch than the broken one so are offsets.
        batch = next(batch for batch in batches if batch["position"] <= at < batch["position"] + batch["size"])
        assert [record[1:] for record in got] == contents[: len(got)], f"seed={seed} byte={at}"
        if not 0 <= at - batch["position"] < 8:
            assert got == records[: len(got)], f"seed={seed} byte={at}"


@pytest.mark.parametrize("name", LEGACY)
def test_VAL_15_a_file_cut_at_any_length_keeps_its_whole_batches(name):
    data = (GOLDEN / name).read_bytes()[:1300]
    for size in range(len(data)):
        whole = [batch for batch in EXPECTED[name]["batches"] if batch["position"] + batch["size"] <= size]
        records = MemoryRecords(data[:size])
        assert records.valid_bytes == sum(batch["size"] for batch in whole)
        assert [row(record) for record in records.records()] == [r for batch in whole for r in batch["records"]]
