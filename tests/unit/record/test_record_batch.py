"""RecordBatch and Record: what records() yields and refuses."""

import pickle
import random
import re
import struct

import pytest

from kcore.errors import CorruptMessage, InvalidRecord
from kcore.record.memory_records import MemoryRecords
from kcore.record.record_batch import Record, RecordBatch
from tests.reference import record_batch as model
from tests.unit.record.batches import as_model, random_batch, reseal

RECORDS = [model.Record(i, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(3)]


def only_batch(data, **kwargs):
    (batch,) = MemoryRecords(data, **kwargs).batches
    return batch


def batch_of(payload, *, count, last_offset_delta=None, codec="none", base_timestamp=0):
    """A batch with this records block and a right CRC."""
    last_offset_delta = count - 1 if last_offset_delta is None else last_offset_delta
    fields = model.Batch(0, [], last_offset_delta, base_timestamp, 0, count=count, attributes=model.CODECS.index(codec))
    return only_batch(model.encode_batch(fields, model.compress(codec, payload)), source="t.log", base_position=9)


def record_bytes(*, length=None, timestamp=0, offset=0, key=b"\x01", value=b"\x01", headers=b"\x00"):
    """A record from parts that may be wrong; key, value and headers with their lengths, \\x01 = null."""
    body = b"\x00" + model.encode_varint(timestamp) + model.encode_varint(offset) + key + value + headers
    return model.encode_varint(len(body) if length is None else length) + body


WHOLE = record_bytes()


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 1),
        (WHOLE, 2),
        (WHOLE + WHOLE, 2),
        (WHOLE + b"\x00", 1),
        (WHOLE + WHOLE[:-1], 2),
        (b"\x00", 1),
        (b"\xff", 1),
        (b"\xff\xff\xff\xff\xff\x01", 1),
        (b"\x80\x80\x80\x80\x20" + WHOLE[1:], 1),
        (record_bytes(length=-1), 1),
        (record_bytes(length=2**31 - 1), 1),
        (record_bytes(length=5), 1),
        (record_bytes(length=7) + b"\x00", 1),
        (record_bytes(offset=1), 1),
        (record_bytes(offset=-1), 1),
        (record_bytes(offset=2**31 - 1), 1),
        (record_bytes(timestamp=2**63 - 1), 1),
        (record_bytes(key=b"\x03"), 1),
        (record_bytes(key=model.encode_varint(2**31 - 1)), 1),
        (record_bytes(key=model.encode_varint(5) + b"abcd", value=b"", headers=b""), 1),
        (record_bytes(value=model.encode_varint(-(2**31))), 1),
        (record_bytes(headers=b"\x01"), 1),
        (record_bytes(headers=model.encode_varint(2**31 - 1)), 1),
        (record_bytes(headers=b"\x02\x01\x01"), 1),
        (record_bytes(headers=b"\x02\x02a"), 1),
        (record_bytes(headers=b"\x04\x02a\x01"), 1),
    ],
    ids=[
        "no record",
        "fewer than counted",
        "same offset twice",
        "a byte after the last",
        "last one cut",
        "length 0",
        "length cut",
        "length of six bytes",
        "length beyond 32 bits",
        "length -1",
        "length max",
        "length too short",
        "length too long",
        "offset above the last",
        "offset below the base",
        "offset max",
        "timestamp overflows",
        "key size -2",
        "key size max",
        "key over the end",
        "value size min",
        "header count -1",
        "header count max",
        "null header key",
        "header without value",
        "one header of two",
    ],
)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_bytes_that_are_not_exactly_the_records_are_corrupt_before_one_is_yielded(payload, count, codec):
    batch = batch_of(payload, count=count, codec=codec, base_timestamp=5)
    with pytest.raises(CorruptMessage, match=r"^t\.log: ") as e:
        batch.records()
    assert e.value.source == "t.log"
    assert e.value.offset == 0
    assert e.value.position >= 9


LONG_VALUE = model.encode_varint(20) + bytes(20)


@pytest.mark.parametrize(
    ("payload", "count", "problem"),
    [
        (record_bytes(length=7), 1, "record length at position 70: expected 6, found 7"),
        (record_bytes(length=27, value=LONG_VALUE), 1, "record length at position 70: expected 26, found 27"),
        (WHOLE + record_bytes(offset=1, length=7), 2, "record length at position 77: expected 6, found 7"),
        (record_bytes(length=7) + b"\x00", 1, "record length at position 70: expected 7, found 8"),
        (record_bytes(length=5), 1, "record header count at position 70: expected 6, found -1"),
        (record_bytes(length=-1), 1, "record length at position 70: expected 6, found -1"),
        (b"\x00", 1, "record attributes at position 70: expected 1, found 0"),
        (WHOLE + b"\xff", 2, "record length at position 77: expected 8, found 7"),
        (record_bytes(headers=b"\x02"), 1, "record header count at position 70: expected 7, found -1"),
        (record_bytes(headers=b"\x04\x00"), 1, "record header count at position 70: expected 8, found -1"),
        (record_bytes(headers=b"\x02\x00"), 1, "record header at position 70: expected 8, found -1"),
        (WHOLE + b"\x00", 1, "bytes after the last record at position 77: expected 0, found 1"),
    ],
)
def test_a_length_or_count_that_is_wrong_by_one_is_named_with_what_is_there(payload, count, problem):
    """Nothing after the payload is read: what stands there would decide what is found wrong."""
    with pytest.raises(CorruptMessage, match=rf"^t\.log: {re.escape(problem)} \("):
        batch_of(payload, count=count).records()


@pytest.mark.parametrize("seed", range(5))
def test_a_payload_cut_anywhere_is_corrupt(seed):
    rng = random.Random(seed)
    batch = random_batch(rng, codec="none")
    payload = b"".join(model.encode_record(r, 0, batch.base_timestamp) for r in batch.records)
    for cut in range(0, len(payload), 1 + len(payload) // 300):
        broken = batch_of(payload[:cut], count=len(batch.records), base_timestamp=batch.base_timestamp)
        with pytest.raises(CorruptMessage):
            broken.records()


@pytest.mark.parametrize("codec", model.CODECS[1:])
def test_a_compressed_stream_cut_anywhere_is_corrupt(codec):
    data = model.encode_batch(model.make_batch(RECORDS, codec=codec))
    for cut in range(model.HEADER_SIZE, len(data)):
        short = bytearray(data[:cut])
        struct.pack_into(">i", short, 8, cut - model.LOG_OVERHEAD)
        with pytest.raises(CorruptMessage, match="batch at offset 0"):
            list(only_batch(reseal(bytes(short))))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_does_not_exist_is_corrupt(codec):
    data = bytearray(model.encode_batch(model.make_batch(RECORDS)))
    data[22] |= codec
    batch = only_batch(reseal(bytes(data)))
    assert batch.compression == f"unknown-{codec}"
    with pytest.raises(CorruptMessage, match=f"codec {codec}"):
        batch.records()


def test_with_log_append_time_every_record_has_the_batchs_max_timestamp():
    batch = only_batch(model.encode_batch(model.make_batch(RECORDS, log_append_time=77777)))
    assert batch.timestamp_type == "LogAppendTime"
    assert [(r.timestamp, r.timestamp_type) for r in batch] == [(77777, "LogAppendTime")] * 3


def test_a_delete_horizon_is_the_base_timestamp_and_records_still_count_from_it():
    records = [model.Record(0, 1000, b"k", None)]
    fields = {"base_timestamp": 999_999, "attributes": model.DELETE_HORIZON}
    batch = only_batch(model.encode_batch(model.make_batch(records, **fields)))
    assert batch.delete_horizon_ms == batch.base_timestamp == 999_999
    assert next(iter(batch)).timestamp == 1000
    assert only_batch(model.encode_batch(model.make_batch(RECORDS))).delete_horizon_ms is None


@pytest.mark.parametrize("codec", model.CODECS)
def test_a_batch_that_the_cleaner_emptied_has_no_records(codec):
    empty = model.Batch(10, [], 4, -1, 5, count=0, attributes=model.CODECS.index(codec))
    batch = only_batch(model.encode_batch(empty, b""))
    assert (batch.base_offset, batch.last_offset, batch.next_offset, len(batch)) == (10, 14, 15, 0)
    assert list(batch) == []


@pytest.mark.parametrize(
    ("base", "count", "last"), [(0, 3, 2), (2**31 - 1, 3, 1), (2**31 - 2, 2, 2**31 - 1), (-1, 3, -1)]
)
def test_the_last_sequence_wraps_at_31_bits(base, count, last):
    records = [model.Record(i, 1) for i in range(count)]
    batch = only_batch(
        model.encode_batch(model.make_batch(records, producer_id=4, producer_epoch=2, base_sequence=base))
    )
    assert batch.last_sequence == last
    assert batch.has_producer_id


def test_header_names_that_are_not_utf8_keep_their_bytes():
    record = model.Record(0, 1, None, None, [(b"\xff\x00a", b""), ("é".encode(), None)])
    (read,) = only_batch(model.encode_batch(model.make_batch([record])))
    assert as_model(read) == record
    assert read.headers[1] == ("é", None)


def test_records_outlive_the_buffer_they_were_read_from():
    buffer = bytearray(model.encode_batch(model.make_batch(RECORDS)))
    records = list(MemoryRecords(buffer).records())
    buffer[:] = bytes(len(buffer))
    assert [as_model(record) for record in records] == RECORDS


def test_a_buffer_overwritten_during_iteration_is_an_error_and_no_crash():
    buffer = bytearray(model.encode_batch(model.make_batch(RECORDS)))
    records = iter(only_batch(buffer))
    next(records)
    buffer[model.HEADER_SIZE :] = b"\xff" * (len(buffer) - model.HEADER_SIZE)
    with pytest.raises(CorruptMessage):
        list(records)


def test_a_record_unpacks_compares_and_pickles():
    record = Record(5, 1000, "CreateTime", b"k", None, [("h", b"x")])
    offset, timestamp, timestamp_type, key, value, headers = record
    assert (offset, timestamp, timestamp_type, key, value, headers) == (
        5,
        1000,
        "CreateTime",
        b"k",
        None,
        [("h", b"x")],
    )
    assert pickle.loads(pickle.dumps(record)) == record
    assert record == Record(5, 1000, key=b"k", headers=[("h", b"x")])
    assert record != Record(6, 1000, key=b"k", headers=[("h", b"x")])
    assert record != "record"
    assert len({record, Record(5, 1000, key=b"k", headers=[("h", b"x")])}) == 1
    assert repr(record).startswith("Record(offset=5, timestamp=1000, ")
    with pytest.raises(AttributeError):
        record.offset = 6


def test_a_batch_is_only_made_from_bytes():
    with pytest.raises(TypeError):
        RecordBatch()


def test_the_errors_a_reader_meets_are_those_of_kafka():
    assert CorruptMessage.code == 2
    assert InvalidRecord.code == 87
