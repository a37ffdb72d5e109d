"""Control records, by the bytes Kafka writes."""

import pytest

from kcore.errors import InvalidRecord
from kcore.record.control_record import (
    ControlRecordType,
    EndTransactionMarker,
    control_record_type,
    parse_end_transaction_marker,
)
from kcore.record.memory_records import MemoryRecords
from tests.golden_data import expected, partition_dir


@pytest.mark.parametrize("partition", ["g-txn-0", "g-txn-zstd-0"])
def test_the_markers_kafka_wrote_are_read_and_written_alike(partition):
    seen = 0
    for path in sorted(partition_dir(partition).glob("*.log")):
        dumped = expected()["partitions"][partition]["files"][path.name]["batches"]
        for batch, want in zip(MemoryRecords(path.read_bytes()).batches, dumped, strict=True):
            if not batch.is_control:
                continue
            (record,) = batch.records()
            marker = parse_end_transaction_marker(record.key, record.value)
            assert marker.type.name == want["records"][0]["endTxnMarker"]
            assert marker.coordinator_epoch == want["records"][0]["coordinatorEpoch"]
            assert (marker.key(), marker.value()) == (record.key, record.value)
            seen += 1
    assert seen > 0


def test_markers_have_known_bytes():
    commit = EndTransactionMarker(ControlRecordType.COMMIT, 7)
    assert commit.key().hex() == "00000001"
    assert commit.value().hex() == "000000000007"
    assert parse_end_transaction_marker(b"\0\0\0\0", b"\0\0\0\0\0\7") == (ControlRecordType.ABORT, 7)


def test_a_later_version_may_be_longer():
    assert parse_end_transaction_marker(b"\0\1\0\1more", b"\0\1\0\0\0\7more").coordinator_epoch == 7


def test_a_type_of_the_future_is_unknown_and_ends_no_transaction():
    assert control_record_type(b"\0\0\0\x63") is ControlRecordType.UNKNOWN
    assert control_record_type(b"\0\0\0\2") is ControlRecordType.LEADER_CHANGE
    for key in (b"\0\0\0\x63", b"\0\0\0\2"):
        with pytest.raises(InvalidRecord, match="does not end a transaction"):
            parse_end_transaction_marker(key, bytes(6))


@pytest.mark.parametrize("key", [None, b"", b"\0\0\0", b"\xff\xff\0\1"])
def test_a_key_that_cannot_be_one_is_an_invalid_record(key):
    with pytest.raises(InvalidRecord, match="key"):
        control_record_type(key)


@pytest.mark.parametrize("value", [None, b"", bytes(5), b"\xff\xff\0\0\0\0"])
def test_a_marker_value_that_cannot_be_one_is_an_invalid_record(value):
    with pytest.raises(InvalidRecord, match="COMMIT marker value"):
        parse_end_transaction_marker(b"\0\0\0\1", value)
