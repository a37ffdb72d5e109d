"""Everything in the logs that a real Kafka wrote reads back as Kafka's own tools and consumer read it."""

import pytest

from kcore.record.memory_records import MemoryRecords
from tests.golden_data import expected, partition_dir

PARTITIONS = sorted(expected()["partitions"])


def log_files(partition):
    return sorted(partition_dir(partition).glob("*.log"))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_batch_headers_are_what_dump_log_segments_printed(partition):
    for path in log_files(partition):
        records = MemoryRecords(path.read_bytes(), source=path.name)
        assert records.valid_bytes == path.stat().st_size
        batches = expected()["partitions"][partition]["files"][path.name]["batches"]
        assert len(records.batches) == len(batches)
        for batch, want in zip(records.batches, batches, strict=True):
            assert {
                "baseOffset": batch.base_offset,
                "lastOffset": batch.last_offset,
                "count": batch.count,
                "baseSequence": batch.base_sequence,
                "lastSequence": batch.last_sequence,
                "producerId": batch.producer_id,
                "producerEpoch": batch.producer_epoch,
                "partitionLeaderEpoch": batch.leader_epoch,
                "isTransactional": batch.is_transactional,
                "isControl": batch.is_control,
                "deleteHorizonMs": batch.delete_horizon_ms,
                "position": batch.position,
                batch.timestamp_type: batch.max_timestamp,
                "size": batch.size,
                "magic": batch.magic,
                "compresscodec": batch.compression,
                "crc": batch.crc,
                "isvalid": batch.is_valid(),
            } == {name: value for name, value in want.items() if name != "records"}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_record_extents_are_what_dump_log_segments_printed(partition):
    for path in log_files(partition):
        batches = expected()["partitions"][partition]["files"][path.name]["batches"]
        for batch, want in zip(MemoryRecords(path.read_bytes()).batches, batches, strict=True):
            got = [
                (r.offset, r.timestamp, -1 if r.key is None else len(r.key), -1 if r.value is None else len(r.value))
                for r in batch.records()
            ]
            assert got == [
                (r["offset"], r[batch.timestamp_type], r["keySize"], r["valueSize"]) for r in want["records"]
            ]


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if expected()["partitions"][p]["consumer"]])
def test_records_are_what_the_java_consumer_read(partition):
    consumed = expected()["partitions"][partition]["consumer"]["read_uncommitted"]
    got = []
    for path in log_files(partition):
        for batch in MemoryRecords(path.read_bytes()).batches:
            if not batch.is_control:
                got += [(batch.leader_epoch, record) for record in batch.records()]

    def as_hex(data):
        return None if data is None else data.hex()

    assert [
        [
            record.offset,
            record.timestamp,
            record.timestamp_type,
            as_hex(record.key),
            as_hex(record.value),
            [[as_hex(name.encode("utf-8", "surrogateescape")), as_hex(value)] for name, value in record.headers],
            epoch,
        ]
        for epoch, record in got
        if record.offset >= consumed["beginning_offset"]
    ] == consumed["records"]
