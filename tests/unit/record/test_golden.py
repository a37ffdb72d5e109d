"""Everything in the logs that a real Kafka wrote reads back as Kafka's own tools and consumer read it."""

import pytest

from kcore.record.memory_records import MemoryRecords
from tests.golden_data import (
    consumed,
    described_header,
    expected,
    expected_extents,
    expected_file,
    expected_header,
    partition_dir,
    record_extent,
)

PARTITIONS = sorted(expected()["partitions"])


def log_files(partition):
    return sorted(partition_dir(partition).glob("*.log"))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_batch_headers_are_what_dump_log_segments_printed(partition):
    for path in log_files(partition):
        records = MemoryRecords(path.read_bytes(), source=path.name)
        assert records.valid_bytes == path.stat().st_size
        headers = [expected_header(batch) for batch in expected_file(partition, path.name)["batches"]]
        assert [described_header(batch, batch.compression, batch.is_valid()) for batch in records.batches] == headers


@pytest.mark.parametrize("partition", PARTITIONS)
def test_record_extents_are_what_dump_log_segments_printed(partition):
    for path in log_files(partition):
        batches = expected_file(partition, path.name)["batches"]
        for batch, batch_json in zip(MemoryRecords(path.read_bytes()).batches, batches, strict=True):
            assert [record_extent(r) for r in batch.records()] == expected_extents(batch_json, batch.timestamp_type)


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if expected()["partitions"][p]["consumer"]])
def test_records_are_what_the_java_consumer_read(partition):
    consumer = expected()["partitions"][partition]["consumer"]["read_uncommitted"]
    got = [
        consumed(record, record.timestamp_type, batch.leader_epoch)
        for path in log_files(partition)
        for batch in MemoryRecords(path.read_bytes()).batches
        if not batch.is_control
        for record in batch.records()
    ]
    assert [row for row in got if row[0] >= consumer["beginning_offset"]] == consumer["records"]
